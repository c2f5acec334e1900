"""Converts times and lengths of time between Python and the server's formats.

Within this package a time is an int of ns since 1970-01-01T00:00:00Z; outside it is a timezone-aware datetime.
"""

from __future__ import annotations

import re
import time
from datetime import UTC, datetime, timedelta
from typing import Any, TypeAlias

#: A point in time: an aware datetime (pandas.Timestamp and numpy.datetime64 too), a length of time from now
#: (``-timedelta(hours=1)``), or text as the command line takes it: ``now``, ``-1h``, ``2026-01-31T12:00:00Z``, ``@1769860800``.
Time: TypeAlias = "datetime | timedelta | str | Any"
#: A length of time: a timedelta, or text such as ``10s``, ``500ms``, ``1h30m``.
Interval: TypeAlias = "timedelta | str"

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_UNITS_NS = {
    "ns": 1,
    "us": 1_000,
    "µs": 1_000,
    "ms": 1_000_000,
    "s": 1_000_000_000,
    "m": 60_000_000_000,
    "min": 60_000_000_000,
    "h": 3_600_000_000_000,
    "d": 86_400_000_000_000,
}
_PIECE = re.compile(r"([0-9.]+)(ns|us|µs|ms|min|s|m|h|d)")
_RFC3339 = re.compile(
    r"(\d{4}-\d\d-\d\d)(?:[Tt ](\d\d:\d\d(?::\d\d)?)(?:\.(\d{1,9}))?\s*([Zz]|[+-]\d\d:?\d\d)?)?",
)


def now_ns() -> int:
    """The current time."""
    return time.time_ns()


def delta_ns(delta: timedelta) -> int:
    """A timedelta in ns."""
    return ((delta.days * 86_400 + delta.seconds) * 1_000_000 + delta.microseconds) * 1_000


def interval_ns(value: Interval) -> int:
    """A length of time in ns."""
    if isinstance(value, timedelta):
        return delta_ns(value)
    text = value.strip()
    pieces = list(_PIECE.finditer(text))
    if not pieces or "".join(piece.group(0) for piece in pieces) != text:
        raise ValueError(f"{value!r} is not a length of time; write one such as 10s, 500ms or 1h30m")
    return round(sum(float(piece.group(1)) * _UNITS_NS[piece.group(2)] for piece in pieces))


def interval_text(value: Interval) -> str:
    """A length of time in the server's format."""
    return f"{delta_ns(value)}ns" if isinstance(value, timedelta) else value


def time_ns(value: Time) -> int:
    """A point in time in ns since the epoch."""
    if isinstance(value, str):
        return _text_ns(value)
    if isinstance(value, timedelta):
        return now_ns() + delta_ns(value)
    if hasattr(value, "as_unit") and hasattr(value, "tzinfo"):  # pandas.Timestamp: a datetime with ns
        _aware(value)
        return int(value.as_unit("ns").value)
    if isinstance(value, datetime):
        _aware(value)
        return delta_ns(value - _EPOCH)
    if hasattr(value, "astype"):  # numpy.datetime64, which is UTC
        return int(value.astype("datetime64[ns]").astype("int64"))
    raise TypeError(f"{value!r} is not a time; use an aware datetime, or text such as -1h or 2026-01-31T12:00:00Z")


def _aware(value: Any) -> None:
    if value.tzinfo is None:
        raise ValueError(
            f"{value!r} does not say its time zone; write for instance datetime(2026, 1, 31, tzinfo=timezone.utc)"
        )


def time_text(value: Time) -> str:
    """A point in time in the server's format; the server checks text."""
    return value if isinstance(value, str) else text_of(time_ns(value))


def text_of(ns: int) -> str:
    """RFC 3339 in UTC with nine decimals."""
    seconds, rest = divmod(ns, 1_000_000_000)
    return (_EPOCH + timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%S") + f".{rest:09d}Z"


def datetime_of(ns: int) -> datetime:
    """An aware datetime, truncated to µs."""
    return _EPOCH + timedelta(microseconds=ns // 1_000)


def rfc3339_ns(text: str) -> int:
    """Parses a time of an answer. A time without a zone is UTC, a date is its midnight, as on the command line."""
    found = _RFC3339.fullmatch(text.strip())
    if found is None:
        raise ValueError(f"{text!r} is not a time; write now, -1h, @1769860800 or 2026-01-31T12:00:00Z")
    date, clock, fraction, zone = found.groups()
    zone = "+00:00" if zone is None or zone in "Zz" else zone
    whole = datetime.fromisoformat(f"{date}T{clock or '00:00:00'}{zone}")
    return delta_ns(whole - _EPOCH) + int((fraction or "").ljust(9, "0"))


def _text_ns(text: str) -> int:
    text = text.strip()
    if text == "now":
        return now_ns()
    if text.startswith("now+"):
        return now_ns() + interval_ns(text[4:])
    if text.startswith(("-", "now-")):
        return now_ns() - interval_ns(text.removeprefix("now").removeprefix("-"))
    if text.startswith("@"):
        whole, _, fraction = text[1:].partition(".")
        if not re.fullmatch(r"-?\d+", whole) or (fraction and not re.fullmatch(r"\d{1,9}", fraction)):
            raise ValueError(f"{text!r} is not a time; write Unix seconds such as @1769860800 or @1769860800.5")
        sign = -1 if whole.startswith("-") else 1
        return int(whole) * 1_000_000_000 + sign * int(fraction.ljust(9, "0"))
    return rfc3339_ns(text)
