"""Jobs: rows of a list, and everything known of one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from ._http import Connection
from ._pattern import Patterns, several
from ._result import Result
from ._sensors import Sensor
from ._times import Interval, Time, datetime_of, now_ns, rfc3339_ns, text_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from ._client import Client


@dataclass(frozen=True, slots=True)
class JobRow:
    """One run of a job over all its nodes."""

    #: The id as the resource manager writes it.
    id: str
    manager: str
    user: str | None
    name: str | None
    #: ``running`` or ``ended``.
    state: str
    #: How many nodes.
    nodes: int
    #: The first eight of them.
    node_names: tuple[str, ...]
    start: datetime
    #: ``None`` while it runs.
    end: datetime | None
    #: CPU seconds of all nodes together.
    cpu_s: float | None
    #: The highest of any node, in bytes.
    memory_peak: float | None
    #: Whatever else the server says of it: account, partition, uid, also, ….
    more: Mapping[str, Any]

    @classmethod
    def of(cls, row: dict[str, Any]) -> JobRow:
        """From the server's JSON."""
        row = dict(row)
        end = row.pop("to", None)
        return cls(
            id=row.pop("job"),
            manager=row.pop("manager", ""),
            user=row.pop("user", None),
            name=row.pop("name", None),
            state=row.pop("state"),
            nodes=row.pop("nodes", 0),
            node_names=tuple(row.pop("node_names", ())),
            start=datetime_of(rfc3339_ns(row.pop("from"))),
            end=None if end is None else datetime_of(rfc3339_ns(end)),
            cpu_s=row.pop("cpu_s", None),
            memory_peak=row.pop("memory_peak", None),
            more=row,
        )


class Job:
    """One run of a job."""

    def __init__(self, client: Client, connection: Connection, found: dict[str, Any]) -> None:
        self._client, self._connection = client, connection
        #: The run as lists of jobs show it.
        self.row = JobRow.of(found["job"])
        #: All runs under the id, the newest first.
        self.runs: list[dict[str, Any]] = found.get("runs", [])
        #: The records of its nodes.
        self.allocations: list[dict[str, Any]] = found.get("allocations", [])
        #: What they come to together: cpus, devices, steps, totals.
        self.summary: dict[str, Any] = found.get("summary", {})
        self._from_ns = rfc3339_ns(found["job"]["from"])
        end = found["job"].get("to")
        self._to_ns = None if end is None else rfc3339_ns(end)

    @property
    def id(self) -> str:
        """Its id."""
        return self.row.id

    @property
    def start(self) -> datetime:
        """When it began, on the first of its nodes."""
        return self.row.start

    @property
    def end(self) -> datetime | None:
        """When it ended, on the last of its nodes; ``None`` while it runs."""
        return self.row.end

    @property
    def nodes(self) -> list[str]:
        """The agents' names."""
        return sorted({str(record["node"]) for record in self.allocations})

    @property
    def range_ns(self) -> tuple[int, int]:
        """From when (within) to when (not within), ns; to now while it runs."""
        # The last sample can lie at the very end.
        return self._from_ns, (now_ns() if self._to_ns is None else self._to_ns) + 1

    def patterns(self, metrics: Sequence[str] = ("**",)) -> list[str]:
        """The patterns of its own sensors, below ``<prefix>/job/<level>``, that choose these metrics."""
        below = sorted({f"{record['prefix'].rstrip('/')}/job/{record['level']}" for record in self.allocations})
        return [f"{prefix}/{metric}" for prefix in below for metric in metrics]

    def sensors(self, metrics: Sequence[str] = ("**",)) -> list[Sensor]:
        """Its own sensors, such as ``cpu/usage``, on all its nodes."""
        found: dict[str, Sensor] = {}
        for some in _portions(self.patterns(metrics)):
            found.update((sensor.path, sensor) for sensor in self._client.sensors(some))
        return [found[path] for path in sorted(found)]

    def query(
        self,
        metrics: str | Sequence[str],
        start: Time | None = None,
        end: Time | None = None,
        *,
        every: Interval | None = None,
        points: int | None = None,
        agg: str | None = None,
        op: str | None = None,
        unit: str | None = None,
        across: str | None = None,
        levels: int | str | None = None,
        limit: int | None = None,
    ) -> Result:
        """Its own sensors' readings (``job.query("cpu/usage", op="rate")``) while it ran; parameters as :meth:`Client.query` has them.
        What is measured of its nodes besides: :meth:`query_nodes`."""
        chosen = [metrics] if isinstance(metrics, str) else list(metrics)
        patterns = self.patterns(chosen)
        if len(patterns) > _PATTERNS_MAX:
            # More nodes than patterns are taken: by the job's level, which is the same everywhere, at any depth.
            levels_of = sorted({str(record["level"]) for record in self.allocations})
            patterns = [f"job/{level}/{metric}" for level in levels_of for metric in chosen]
        low, high = self.range_ns
        return self._client.query(
            patterns,
            text_of(low) if start is None else start,
            text_of(high) if end is None else end,
            every=every,
            points=points,
            agg=agg,
            op=op,
            unit=unit,
            across=across,
            levels=levels,
            limit=limit,
        )

    def query_nodes(
        self,
        patterns: Patterns,
        *,
        every: Interval | None = None,
        points: int | None = None,
        agg: str | None = None,
        op: str | None = None,
        unit: str | None = None,
        across: str | None = None,
        levels: int | str | None = None,
        limit: int | None = None,
    ) -> Result:
        """What is measured of its nodes and cores besides (``job.query_nodes("power")``), while it ran there; parameters as
        :meth:`Client.query` has them."""
        low, high = self.range_ns
        return self._client.query(
            patterns,
            text_of(low),
            text_of(high),
            every=every,
            points=points,
            agg=agg,
            op=op,
            unit=unit,
            across=across,
            levels=levels,
            job=self.id,
            at=text_of(low),
            limit=limit,
        )

    def statistics(self, patterns: Patterns = "**") -> dict[str, Any]:
        """Least, mean and greatest on each node and over them, and the imbalance, of metrics of the job; as the server computes and tells
        them."""
        params = [("pattern", pattern) for pattern in several(patterns)]
        return self._ask("statistics", params)

    def energy(self, patterns: Patterns = (), *, share: str | None = None, source: str | None = None) -> dict[str, Any]:
        """Its energy from its nodes' power, with the rule by which power was shared with jobs beside it; as the server tells it."""
        chosen = [patterns] if isinstance(patterns, str) else list(patterns)
        given = [("share", share), ("source", source)]
        params = [("pattern", pattern) for pattern in chosen] + [(key, value) for key, value in given if value is not None]
        return self._ask("energy", params)

    def _ask(self, what: str, params: list[tuple[str, str]]) -> dict[str, Any]:
        path = f"/api/v1/jobs/{quote(self.id, safe='')}/{what}"
        # This run, should there be later ones under the id.
        answer: dict[str, Any] = self._connection.json("GET", path, [*params, ("at", text_of(self._from_ns))])
        return answer

    def plot(self, metrics: Sequence[str] | None = None, *, points: int = 300) -> Figure:
        """A figure of the job: one panel for each metric, over the time that it ran; counters as their rate. Without ``metrics``, those of
        CPU, memory, page faults, context switches, input and output that it has. Up to sixteen nodes are a line each, more a band from the
        least to the greatest with the mean."""
        from ._plot import plot_job

        return plot_job(self, metrics, points)

    def __repr__(self) -> str:
        return f"Job({self.id!r}, {self.row.state}, {self.row.nodes} nodes, since {self.start.isoformat()})"


#: The most patterns that the server takes at once.
_PATTERNS_MAX = 256


def _portions(patterns: list[str]) -> list[list[str]]:
    return [patterns[at : at + _PATTERNS_MAX] for at in range(0, len(patterns), _PATTERNS_MAX)]
