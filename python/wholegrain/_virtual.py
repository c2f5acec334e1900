"""Virtual sensors: defined by an expression, computed by the server when queried."""

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
    """The definition of a virtual sensor. A path with wildcards is a template: one sensor for each prefix below which its operands exist."""

    path: str
    expression: str
    unit: str
    description: str = ""
    #: Its times are multiples of this; the default is the shortest interval of its operands.
    interval: str | None = None
    #: The longest distance between readings of an operand with interpolation between them.
    bridge: str | None = None
    #: ``gap`` or ``skip``: the result if some operands of an aggregate are missing.
    missing: str = "gap"
    #: Further fields of the server.
    more: dict[str, Any] | None = None

    @classmethod
    def of(cls, row: dict[str, Any]) -> Definition:
        """From the server's JSON."""
        row = dict(row)
        # The server returns the expression as written and as normalized.
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
        """Defines or changes a virtual sensor: ``define("/lrz/pue", "sum(</lrz/facility/**/power>) / sum(</lrz/*/power>)", "1")``.

        Raises :class:`BadRequest` with the marked place in the expression for an error, a missing sensor or units that do not fit.
        Returns the server's answer.
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
        """Checks a definition without a change; returns the server's answer or raises as :meth:`define`."""
        body = _body(path, expression, unit, description, interval, bridge, missing)
        return _with_warnings(self._connection.json("POST", _PATH, body=body))

    def list(self, patterns: Patterns = ()) -> list[Definition]:
        """Definitions sorted by path: all, or those with a sensor that matches the patterns."""
        params = [("pattern", pattern) for pattern in ([patterns] if isinstance(patterns, str) else patterns)]
        answer = self._connection.json("GET", _PATH, params)
        return [Definition.of(row) for row in answer["virtual"]]

    def remove(self, path: str, *, force: bool = False) -> dict[str, Any]:
        """Removes a definition. Raises :class:`BadRequest` if it does not exist, or if others refer to it, unless ``force``."""
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
