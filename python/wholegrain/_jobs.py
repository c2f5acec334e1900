"""Jobs: rows of a list, and details of one."""

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

    #: The id in the resource manager's form.
    id: str
    manager: str
    user: str | None
    name: str | None
    #: ``running`` or ``ended``.
    state: str
    #: The number of nodes.
    nodes: int
    #: The first eight nodes.
    node_names: tuple[str, ...]
    start: datetime
    #: ``None`` while it runs.
    end: datetime | None
    #: CPU seconds of all nodes together.
    cpu_s: float | None
    #: The maximum of all nodes, in bytes.
    memory_peak: float | None
    #: Further fields of the server: account, partition, uid, also, ….
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
        #: The run as in lists of jobs.
        self.row = JobRow.of(found["job"])
        #: All runs under the id, the newest first.
        self.runs: list[dict[str, Any]] = found.get("runs", [])
        #: The records of its nodes.
        self.allocations: list[dict[str, Any]] = found.get("allocations", [])
        #: Their summary: cpus, devices, steps, totals.
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
        """The begin on its first node."""
        return self.row.start

    @property
    def end(self) -> datetime | None:
        """The end on its last node; ``None`` while it runs."""
        return self.row.end

    @property
    def nodes(self) -> list[str]:
        """The names of its agents."""
        return sorted({str(record["node"]) for record in self.allocations})

    @property
    def range_ns(self) -> tuple[int, int]:
        """Begin (inclusive) and end (exclusive), ns; the end is now while it runs."""
        # The last sample can be exactly at the end.
        return self._from_ns, (now_ns() if self._to_ns is None else self._to_ns) + 1

    def patterns(self, metrics: Sequence[str] = ("**",)) -> list[str]:
        """Patterns below ``<prefix>/job/<level>`` that select these metrics of the job."""
        below = sorted({f"{record['prefix'].rstrip('/')}/job/{record['level']}" for record in self.allocations})
        return [f"{prefix}/{metric}" for prefix in below for metric in metrics]

    def sensors(self, metrics: Sequence[str] = ("**",)) -> list[Sensor]:
        """The job's own sensors, such as ``cpu/usage``, on all its nodes."""
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
        """Readings of the job's own sensors while it ran (``job.query("cpu/usage", op="rate")``); parameters as in :meth:`Client.query`.
        For sensors of its nodes see :meth:`query_nodes`.
        """
        chosen = [metrics] if isinstance(metrics, str) else list(metrics)
        patterns = self.patterns(chosen)
        if len(patterns) > _PATTERNS_MAX:
            # Too many nodes for a pattern each: matches the job's level, which is equal on all nodes, at any depth.
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
        """Readings of sensors of its nodes and cores while it ran there (``job.query_nodes("power")``); parameters as in
        :meth:`Client.query`.
        """
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
        """Minimum, mean and maximum of metrics on each node and over all nodes, and the imbalance, as the server computes them."""
        params = [("pattern", pattern) for pattern in several(patterns)]
        return self._ask("statistics", params)

    def energy(self, patterns: Patterns = (), *, share: str | None = None, source: str | None = None) -> dict[str, Any]:
        """The energy of the job from the power of its nodes, with the rule for shared nodes, as the server computes it."""
        chosen = [patterns] if isinstance(patterns, str) else list(patterns)
        given = [("share", share), ("source", source)]
        params = [("pattern", pattern) for pattern in chosen] + [(key, value) for key, value in given if value is not None]
        return self._ask("energy", params)

    def _ask(self, what: str, params: list[tuple[str, str]]) -> dict[str, Any]:
        path = f"/api/v1/jobs/{quote(self.id, safe='')}/{what}"
        # Selects this run if later ones have the same id.
        answer: dict[str, Any] = self._connection.json("GET", path, [*params, ("at", text_of(self._from_ns))])
        return answer

    def plot(self, metrics: Sequence[str] | None = None, *, points: int = 300) -> Figure:
        """A figure with one panel for each metric over the job's time; counters as rates. Without ``metrics`` it shows the available ones
        of CPU, memory, page faults, context switches, input and output. Up to sixteen nodes are one line each; more are a band from
        minimum to maximum with the mean.
        """
        from ._plot import plot_job

        return plot_job(self, metrics, points)

    def __repr__(self) -> str:
        return f"Job({self.id!r}, {self.row.state}, {self.row.nodes} nodes, since {self.start.isoformat()})"


#: The most patterns of one request.
_PATTERNS_MAX = 256


def _portions(patterns: list[str]) -> list[list[str]]:
    return [patterns[at : at + _PATTERNS_MAX] for at in range(0, len(patterns), _PATTERNS_MAX)]
