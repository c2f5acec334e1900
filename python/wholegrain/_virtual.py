"""Virtual sensors: defined by an expression, computed by the server when they are asked for."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

from ._errors import WholegrainWarning
from ._http import Connection
from ._pattern import Patterns
from ._times import Interval, interval_text

_PATH = "/api/v1/virtual"


@dataclass(frozen=True, slots=True)
class Definition:
    """A virtual sensor as it is defined. A path with wildcards is a template: one sensor for each place where its operands are."""

    path: str
    expression: str
    unit: str
    description: str = ""
    #: Its times are whole multiples of this; without it of the shortest interval of its operands.
    interval: str | None = None
    #: No operand is interpolated between readings further apart.
    bridge: str | None = None
    #: ``gap`` or ``skip``: what a time gives at which some operands of an aggregate are missing.
    missing: str = "gap"
    #: Whatever else the server says of it.
    more: dict[str, Any] | None = None

    @classmethod
    def of(cls, row: dict[str, Any]) -> Definition:
        """From the server's JSON."""
        row = dict(row)
        # The server tells what was written beside what it makes of it.
        row |= row.pop("definition", {})
        known = {key: row.pop(key) for key in cls.__slots__ if key != "more" and row.get(key) is not None}
        return cls(**known, more=row)


class Virtual:
    """The virtual sensors of a server."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def define(
        self,
        path: str,
        expression: str,
        unit: str,
        *,
        description: str = "",
        interval: Interval | None = None,
        bridge: Interval | None = None,
        missing: str | None = None,
    ) -> dict[str, Any]:
        """Defines one, or changes it: ``define("/lrz/pue", "sum(</lrz/facility/**/power>) / sum(</lrz/*/power>)", "1")``.

        Raises :class:`BadRequest` with the place in the expression marked when it cannot be: a mistake in it, a sensor that is not there,
        units that do not fit. Gives back what the server says of it.
        """
        body = _body(path, expression, unit, description, interval, bridge, missing)
        return _with_warnings(self._connection.json("PUT", _PATH, body=body))

    def check(
        self,
        path: str,
        expression: str,
        unit: str,
        *,
        description: str = "",
        interval: Interval | None = None,
        bridge: Interval | None = None,
        missing: str | None = None,
    ) -> dict[str, Any]:
        """The same without changing anything: what the server would say, or the same exception."""
        body = _body(path, expression, unit, description, interval, bridge, missing)
        return _with_warnings(self._connection.json("POST", _PATH, body=body))

    def list(self, patterns: Patterns = ()) -> list[Definition]:
        """Definitions, sorted by path: all of them, or those of which the patterns choose a sensor."""
        params = [("pattern", pattern) for pattern in ([patterns] if isinstance(patterns, str) else patterns)]
        answer = self._connection.json("GET", _PATH, params)
        return [Definition.of(row) for row in answer["virtual"]]

    def remove(self, path: str, *, force: bool = False) -> dict[str, Any]:
        """Removes one; :class:`BadRequest` when there is none of this path, or when others refer to it, unless ``force``."""
        return _with_warnings(self._connection.json("DELETE", _PATH, [("path", path), ("force", "1" if force else "0")]))


def _with_warnings(answer: dict[str, Any]) -> dict[str, Any]:
    for text in answer.get("warnings", ()):
        warnings.warn(text, WholegrainWarning, stacklevel=3)
    return answer


def _body(
    path: str,
    expression: str,
    unit: str,
    description: str,
    interval: Interval | None,
    bridge: Interval | None,
    missing: str | None,
) -> dict[str, Any]:
    given = {
        "path": path,
        "expression": expression,
        "unit": unit,
        "description": description or None,
        "interval": None if interval is None else interval_text(interval),
        "bridge": None if bridge is None else interval_text(bridge),
        "missing": missing,
    }
    return {key: value for key, value in given.items() if value is not None}
