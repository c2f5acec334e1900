"""Sensors and readings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from ._times import datetime_of, rfc3339_ns


@dataclass(frozen=True, slots=True)
class Sensor:
    """A sensor, measured or virtual."""

    #: Its path, such as ``/lrz/node7/power``.
    path: str
    #: The unit of its values, a UCUM code.
    unit: str
    #: ``gauge`` or ``counter``.
    kind: str
    #: The stored type, ``int`` or ``float``. Values in answers are scaled.
    type: str
    #: The stored value times ``scale`` is in ``unit``.
    scale: float
    #: The time between two readings; 0 if unknown, or for events.
    interval_ns: int
    #: The time of its newest reading.
    last_time: datetime | None
    #: What it is.
    description: str
    #: The agent that sends it.
    agent: str
    #: Further fields of the server.
    more: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, row: dict[str, Any]) -> Sensor:
        """From the server's JSON."""
        last = row.pop("last_time", None)
        return cls(
            path=row.pop("path"),
            unit=row.pop("unit", "") or "1",
            kind=row.pop("kind", "gauge"),
            type=row.pop("type", "float"),
            scale=float(row.pop("scale", 1.0)),
            interval_ns=int(row.pop("interval_ns", 0)),
            last_time=None if last is None else datetime_of(rfc3339_ns(last)),
            description=row.pop("description", ""),
            agent=row.pop("agent", ""),
            more=row,
        )


@dataclass(frozen=True, slots=True)
class Reading:
    """One value at one time; ``None`` is a gap."""

    #: The sensor's path.
    path: str
    #: ns since 1970-01-01T00:00:00Z.
    time_ns: int
    #: In the sensor's unit.
    value: float | int | None
    #: The unit, if the answer contains it.
    unit: str | None = None

    @property
    def time(self) -> datetime:
        """The time as an aware datetime, truncated to µs."""
        return datetime_of(self.time_ns)

    @classmethod
    def of(cls, row: dict[str, Any]) -> Reading:
        """From the server's JSON."""
        path = row["path"] if "path" in row else row["sensor"]
        unit = row.get("unit")
        return cls(path, rfc3339_ns(row["time"]), row["value"], unit if unit is None else unit or "1")
