"""Properties of sensors by pattern: unit, scale, kind, description, retention, with their history."""

from __future__ import annotations

from typing import Any

from ._http import Connection
from ._pattern import Patterns, several
from ._times import Interval, interval_text

_PATH = "/api/v1/properties"


class Properties:
    """The properties of a server's sensors, as set over the agents' values. Rows are dictionaries as in the server's answer."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def show(self, patterns: Patterns) -> list[dict[str, Any]]:
        """Sensors with their effective properties and the origin of each."""
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
        """Sets properties for every sensor that matches the pattern, now and later. Raises :class:`BadRequest` if they are invalid.

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
        """Removes what was set for a pattern, all of it or one property; returns the number of removed settings."""
        params = [("pattern", pattern)] + ([] if property is None else [("property", property)])
        return int(self._connection.json("DELETE", _PATH, params)["unset"])

    def settings(self) -> list[dict[str, Any]]:
        """All settings, in order of precedence."""
        found: list[dict[str, Any]] = self._connection.json("GET", f"{_PATH}/settings")["settings"]
        return found

    def history(self, pattern: str | None = None, limit: int | None = None) -> list[dict[str, Any]]:
        """All changes of settings with author and time."""
        given = [("pattern", pattern), ("limit", None if limit is None else str(limit))]
        params = [(key, value) for key, value in given if value is not None]
        found: list[dict[str, Any]] = self._connection.json("GET", f"{_PATH}/history", params)["history"]
        return found
