"""What people say of sensors: unit, scale, kind, description, how long they are kept; by pattern, with its history."""

from __future__ import annotations

from typing import Any

from ._http import Connection
from ._pattern import Patterns, several
from ._times import Interval, interval_text

_PATH = "/api/v1/properties"


class Properties:
    """The properties of a server's sensors, and what people set over what agents send. Rows are dictionaries, as the server tells them."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def show(self, patterns: Patterns) -> list[dict[str, Any]]:
        """Sensors with the properties that hold and where each comes from."""
        params = [("pattern", pattern) for pattern in several(patterns)]
        found: list[dict[str, Any]] = []
        after: list[tuple[str, str]] = []
        while True:
            with self._connection.ask("GET", _PATH, params + after) as answer:
                found.extend(answer.items("sensors"))
                further = answer.headers("x-wholegrain-next")
            if not further:
                return found
            after = [("after", further[0])]

    def set(
        self,
        pattern: str,
        *,
        unit: str | None = None,
        scale: float | None = None,
        kind: str | None = None,
        description: str | None = None,
        ttl: Interval | None = None,
    ) -> dict[str, Any]:
        """Sets them for every sensor that the pattern chooses, now and later; raises :class:`BadRequest` when they cannot be.

        :param unit: a UCUM code, such as ``kW``.
        :param kind: ``gauge`` or ``counter``.
        :param ttl: how long readings are kept, such as ``30d``, or ``forever``.
        """
        given = {
            "pattern": pattern,
            "unit": unit,
            "scale": scale,
            "kind": kind,
            "description": description,
            "ttl": None if ttl is None else interval_text(ttl),
        }
        setting = {key: value for key, value in given.items() if value is not None}
        done: dict[str, Any] = self._connection.json("PUT", _PATH, body={"settings": [setting]})
        return done

    def unset(self, pattern: str, property: str | None = None) -> int:
        """Takes back what was set with a pattern, all of it or one property; gives back how much that was."""
        params = [("pattern", pattern)] + ([] if property is None else [("property", property)])
        return int(self._connection.json("DELETE", _PATH, params)["unset"])

    def settings(self) -> list[dict[str, Any]]:
        """What is set, in the order in which it counts."""
        found: list[dict[str, Any]] = self._connection.json("GET", f"{_PATH}/settings")["settings"]
        return found

    def history(self, pattern: str | None = None, limit: int | None = None) -> list[dict[str, Any]]:
        """What was ever set and taken back, by whom and when."""
        given = [("pattern", pattern), ("limit", None if limit is None else str(limit))]
        params = [(key, value) for key, value in given if value is not None]
        found: list[dict[str, Any]] = self._connection.json("GET", f"{_PATH}/history", params)["history"]
        return found
