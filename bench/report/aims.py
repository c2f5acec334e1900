"""The aims of Wholegrain, and whether these results reach them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from . import data, figures

Row = dict[str, Any]

# Programs that compute without waiting for each other all the time.
STEADY = ("hpl", "stream", "ep", "cg")
# What the agent may add at 1 ms beyond the share that the kernel's own reads take.
BEYOND_READS = 0.005
# What the agent may add to the wavefront kernel at 1 ms, as a multiple of the cost of bare reads.
WAVEFRONT = 1.2
# The bare loop with the reads of a configuration.
READS = {"same": "reads", "job": "job-reads", "job-broker": "job-reads"}
# Half an interval wider than this tells nothing of an overhead.
WIDE = 0.03
MS = 10**6
SECOND = 10**9


@dataclass(frozen=True)
class Aim:
    """One line of the table."""

    what: str
    aim: str
    found: str
    # None: undecided.
    reached: bool | None


def all_of(found: data.Findings) -> list[Aim]:
    """Every aim that these results can be held against."""
    aims: list[Aim] = []
    for experiment in found.experiments:
        aims += _steady(experiment)
        aims += _wavefront(experiment)
    if found.monitor_cost:
        aims += _cost(found.monitor_cost["rows"])
    if found.beside:
        aims += _bytes(found.beside["rows"])
    return aims


def _ours(rows: Sequence[Row]) -> Iterator[Row]:
    return (r for r in rows if r["monitor"] == "wholegrain" and r["ratio"] is not None)


def _steady(experiment: data.Experiment) -> Iterator[Aim]:
    cores = experiment.machine.get("cores")
    for row in _ours(experiment.summary):
        if row["workload"] not in STEADY:
            continue
        what = f"{row['workload']} {row['size']} with {row['configuration']} ({experiment.name})"
        measured = _percent(row)
        if row["interval_ns"] >= 10 * MS:
            # Without an interval, or with a wide one, no difference could be found.
            ends = _ends(row)
            reached = False if row["significant"] else True if ends and ends[1] - ends[0] <= 2 * WIDE else None
            yield Aim(f"{what}, each {figures.interval_name(row['interval_ns'])}", "no difference from no monitor", measured, reached)
        elif row["interval_ns"] == MS:
            loop = READS.get(row["configuration"], "reads")
            reads = _cell(experiment.summary, row, "bare", loop)
            share = reads.get("node_cpu_share") if reads else None
            if share is None or not cores:
                yield Aim(f"{what}, each ms", "bare reads and 0.5 %", measured, None)
                continue
            # The part of all cores that the bare loop of the same reads uses.
            most = share / cores + BEYOND_READS
            # With the aim within the interval, or without one, it is undecided.
            ends = _ends(row)
            reached = None if ends is None else True if ends[1] - 1 <= most else False if ends[0] - 1 > most else None
            yield Aim(f"{what}, each ms", f"at most {100 * most:.1f} % (bare {loop} and 0.5 %)", measured, reached)


def _wavefront(experiment: data.Experiment) -> Iterator[Aim]:
    for row in _ours(experiment.summary):
        if row["workload"] != "wavefront" or row["interval_ns"] != MS or row["configuration"] not in READS:
            continue
        loop = READS[row["configuration"]]
        reads = _cell(experiment.summary, row, "bare", loop)
        what = f"wavefront {row['size']} with {row['configuration']}, each ms ({experiment.name})"
        aim = f"at most {WAVEFRONT} x the cost of bare {loop}"
        if not reads or reads["ratio"] is None or reads["ratio"] <= 1 or not reads["significant"]:
            yield Aim(what, aim, f"{_percent(row)}; bare {loop} add nothing significant", None)
            continue
        times = (row["ratio"] - 1) / (reads["ratio"] - 1)
        yield Aim(what, aim, f"{times:.2f} x ({_percent(row)}; bare {loop} {_percent(reads)})", times <= WAVEFRONT)


def _cost(rows: Sequence[Row]) -> Iterator[Aim]:
    peers = [r for r in rows if r["monitor"] not in ("wholegrain", "bare", "none") and r["interval_ns"] == SECOND]
    for column, what, scale, unit in (("us_per_metric", "CPU a metric each second", 1.0, "us"), ("rss_kb", "resident memory", 1e3, "MB")):
        own = next((r for r in rows if r["monitor"] == "wholegrain" and r["configuration"] == "default" and r["interval_ns"] == SECOND), None)
        of = [r for r in peers if r.get(column)]
        if own is None or not of or own.get(column) is None:
            continue
        best = min(of, key=lambda r: float(r[column]))
        measured = f"{own[column] / scale:.3g} {unit}; {best['monitor']} {best[column] / scale:.3g} {unit}"
        yield Aim(f"{what}, default configuration", f"below every peer ({len({r['monitor'] for r in of})} measured)", measured, own[column] < best[column])


def _bytes(rows: Sequence[Row]) -> Iterator[Aim]:
    of = {r["system"]: r["value"] for r in rows if r["what"] == "bytes_per_reading" and r["value"] is not None}
    own, other = of.get("wholegrain"), of.get("victoriametrics")
    if own is not None and other is not None:
        yield Aim("stored bytes a reading", "below VictoriaMetrics", f"{own:.3f}; {other:.3f}", own < other)


def _cell(summary: Sequence[Row], like: Row, monitor: str, configuration: str) -> Row | None:
    same = ("workload", "size", "ranks", "hosts", "interval_ns")
    of = (r for r in summary if r["monitor"] == monitor and r["configuration"] == configuration)
    return next((r for r in of if all(r[key] == like[key] for key in same)), None)


def _ends(row: Row) -> tuple[float, float] | None:
    """The interval of the ratio, where there is one."""
    return None if row["ratio_low"] is None else (float(row["ratio_low"]), float(row["ratio_high"]))


def _percent(row: Row) -> str:
    half = "" if row["ratio_low"] is None else f" ± {50 * (row['ratio_high'] - row['ratio_low']):.1f}"
    return f"{100 * (row['ratio'] - 1):+.1f}{half} %"
