"""Plots a job in one figure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from ._frames import runs

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from ._jobs import Job
    from ._sensors import Sensor

#: The default panels: title and metrics; the first existing metric is shown.
_PANELS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("CPUs in use", ("cpu/usage",)),
    ("memory", ("memory/usage",)),
    ("page faults", ("memory/pgfault", "perf/page-faults")),
    ("context switches", ("perf/context-switches", "tasks/voluntary_switches")),
    ("read", ("io/read_bytes",)),
    ("written", ("io/write_bytes",)),
)
#: More nodes than this are plotted as a band.
_LINES_MAX = 16
#: The most further metrics in a default figure, such as values of an application.
_OWN_MAX = 4


def plot_job(job: Job, metrics: Sequence[str] | None, points: int) -> Figure:
    """Plots the figure; see :meth:`Job.plot`."""
    try:
        from matplotlib import pyplot
    except ImportError as error:
        raise ImportError("plot() needs matplotlib: pip install 'wholegrain[plot]'") from error
    by_metric: dict[str, list[Sensor]] = {}
    marks = {f"{record['prefix'].rstrip('/')}/job/{record['level']}/" for record in job.allocations}
    for sensor in job.sensors(("**",) if metrics is None else metrics):
        own = next((sensor.path[len(mark) :] for mark in marks if sensor.path.startswith(mark)), sensor.path)
        by_metric.setdefault(own, []).append(sensor)
    panels = _unasked(by_metric) if metrics is None else [(name, name) for name in by_metric]
    if not panels:
        wanted = "none of the default metrics" if metrics is None else f"none of {', '.join(metrics)}"
        raise ValueError(f"job {job.id} has {wanted}; job.sensors() lists what it has")
    figure, axes = pyplot.subplots(
        len(panels), 1, sharex=True, squeeze=False, figsize=(9, 1.2 + 1.8 * len(panels)), layout="constrained"
    )
    shown = f"{job.row.name or ''} {job.row.user or ''}".strip()
    figure.suptitle(f"job {job.id}{' · ' + shown if shown else ''} · {job.row.nodes} node{'s' if job.row.nodes != 1 else ''}")
    for axis, (title, metric) in zip(axes[:, 0], panels, strict=True):
        _panel(axis, job, title, metric, by_metric[metric], points)
    axes[-1, 0].set_xlabel("UTC")
    figure.autofmt_xdate()
    return figure


def _unasked(by_metric: dict[str, list[Sensor]]) -> list[tuple[str, str]]:
    found = []
    for title, choices in _PANELS:
        metric = next((choice for choice in choices if choice in by_metric), None)
        if metric is not None:
            found.append((title, metric))
    own = [metric for metric in by_metric if metric.startswith(("app/", "region/"))]
    return found + [(metric, metric) for metric in sorted(own)[:_OWN_MAX]]


def _panel(axis: Axes, job: Job, title: str, metric: str, sensors: list[Sensor], points: int) -> None:
    counter = sensors[0].kind == "counter"
    every = _width_ns(job, sensors, points)
    with job.query(metric, op="rate" if counter else None, agg="mean", every=f"{every}ns") as result:
        table = result.to_arrow()
        unit = result.unit or sensors[0].unit
    rows = [(name, table.slice(start, length)) for name, start, length in runs(table["sensor"])]
    if len(rows) <= _LINES_MAX:
        for name, part in rows:
            label = next((r["node"] for r in job.allocations if name.startswith(r["prefix"].rstrip("/") + "/")), name)
            axis.plot(_times(part["time"]), part["value"].to_pylist(), label=label, linewidth=1)
        if 1 < len(rows):
            axis.legend(fontsize="x-small", ncols=4)
    else:
        _band(axis, table)
    # A rate of seconds per second is a number of CPUs.
    unit = {"s/s": "CPUs", "1": "", "1/s": "1/s"}.get(unit, unit)
    axis.set_ylabel(unit)
    axis.set_title(title, fontsize="small", loc="left")
    axis.grid(alpha=0.3)


def _width_ns(job: Job, sensors: list[Sensor], points: int) -> int:
    low, high = job.range_ns
    longest = max((sensor.interval_ns for sensor in sensors), default=0)
    return max((high - low) // max(points, 1), longest, 1_000_000)


def _band(axis: Axes, table: Any) -> None:
    over = table.group_by("time").aggregate([("value", "min"), ("value", "mean"), ("value", "max")]).sort_by("time")
    times = _times(over["time"])
    low, high = over["value_min"].to_pylist(), over["value_max"].to_pylist()
    axis.fill_between(times, low, high, alpha=0.3, label="minimum to maximum")
    axis.plot(times, over["value_mean"].to_pylist(), linewidth=1, label="mean")
    axis.legend(fontsize="x-small", ncols=2)


def _times(column: Any) -> list[Any]:
    """Datetimes, truncated to µs."""
    cut = pc.floor_temporal(column, unit="microsecond").cast(pa.timestamp("us", tz="UTC"))
    found: list[Any] = cut.to_pylist()
    return found
