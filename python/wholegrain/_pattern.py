"""Patterns of sensor paths for stores without a server, with the server's rules."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import TypeAlias

#: One pattern or several; a sensor is selected if one of them matches.
Patterns: TypeAlias = "str | Sequence[str]"


def several(patterns: Patterns) -> list[str]:
    """One or several patterns as a list; raises without any."""
    found = [patterns] if isinstance(patterns, str) else list(patterns)
    if not found:
        raise ValueError("no pattern; write for instance /** for all sensors")
    return found


class Matcher:
    """Selects paths. ``*`` matches any text within a level, ``**`` any number of levels; a pattern without a leading ``/`` matches at any
    depth.
    """

    def __init__(self, patterns: Patterns) -> None:
        self._expressions = [_expression(pattern) for pattern in several(patterns)]

    def matches(self, path: str) -> bool:
        """Whether a pattern matches the path."""
        return any(expression.fullmatch(path) for expression in self._expressions)

    def choose(self, paths: Iterable[str]) -> list[str]:
        """The matching paths, in order."""
        return [path for path in paths if self.matches(path)]


def _expression(pattern: str) -> re.Pattern[str]:
    if re.search(r"[\s\x00-\x1f\x7f]", pattern):
        raise ValueError(f"pattern {pattern!r}: contains white space or a control character")
    if "+" in pattern or "#" in pattern:
        raise ValueError(
            f"pattern {pattern!r}: `+` and `#` are MQTT's wildcards; write `*` for one level and `**` for any number of levels"
        )
    pieces: list[str] = []
    if not pattern.startswith("/"):
        pieces.append("**")
    for level in pattern.removeprefix("/").split("/"):
        if level == "":
            raise ValueError(f"pattern {pattern!r}: has an empty level; write `/**` for every sensor")
        if level != "**" and "**" in level:
            raise ValueError(f"pattern {pattern!r}: `**` must be a whole level")
        if level != "**" or pieces[-1:] != ["**"]:
            pieces.append(level)
    return re.compile("".join(map(_level, pieces)))


def _level(level: str) -> str:
    if level == "**":
        return "(?:/[^/]+)*"
    return "/" + "[^/]*".join(re.escape(piece) for piece in level.split("*"))
