"""The summary of an experiment: one row for each condition, which is a workload beside a monitor's setting."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from statistics import fmean, median
from typing import Any

from harness import Json

from .intervals import holm, mean_interval, paired_ratio
from .records import seconds

NO_MONITOR = "none"
# The chance of one false "it makes a difference" in a whole experiment.
SIGNIFICANCE = 0.05


def without_monitor(condition: Json) -> Json:
    """The same workload without a monitor."""
    return condition | {"monitor": NO_MONITOR, "configuration": "", "interval_ns": None}


def divide(conditions: Sequence[Json], records: Sequence[Json], parts: Iterable[tuple[str, Sequence[str]]]) -> tuple[list[Json], list[Json]]:
    """Adds the conditions and runs of the parts that a workload times, as if each part were a workload of its own. Its runs keep the numbers of
    the whole workload's."""
    all_conditions, all_records = list(conditions), list(records)
    for whole, part in ((whole, part) for whole, its_parts in parts for part in its_parts):
        all_conditions += [c | {"workload": part} for c in conditions if c["workload"] == whole]
        all_records += [_part_of(r, whole, part) for r in records if r["condition"]["workload"] == whole]
    return all_conditions, all_records


def _part_of(record: Json, whole: str, part: str) -> Json:
    own = record | {"condition": record["condition"] | {"workload": part}}
    if outcome := record["outcome"]:
        took = outcome["figures"].get(f"{part}_s")
        if took is None and not record["failure"]:
            own["failure"] = {"part": "workload", "reason": f"{whole} gave no time of {part}: its outcome has no figure {part}_s"}
        own["outcome"] = outcome | {"workload": part, "seconds": took or 0.0, "figures": {}, "histogram": []}
    return own


def rows(conditions: Sequence[Json], records: Iterable[Json]) -> list[Json]:
    """One row for each condition, in the order given. Runs of the warm-up do not count."""
    by_condition: dict[tuple[Any, ...], list[Json]] = defaultdict(list)
    for record in records:
        if not record["warm_up"]:
            by_condition[_key(record["condition"])].append(record)
    made = [_row(c, by_condition[_key(c)], by_condition[_key(without_monitor(c))]) for c in conditions]
    tested = [row for row in made if row["p_adjusted"] is not None]
    for row, p in zip(tested, holm([row["p_adjusted"] for row in tested])):
        row["p_adjusted"], row["significant"] = p, p < SIGNIFICANCE
    return made


def _key(condition: Json) -> tuple[Any, ...]:
    return tuple(condition[name] for name in ("workload", "size", "ranks", "hosts", "monitor", "configuration", "interval_ns"))


def _row(condition: Json, own: list[Json], bare: list[Json]) -> Json:
    """The row with its p-value not yet adjusted."""
    good = [record for record in own if seconds(record) is not None]
    times, bare_times = _times(good), _times(bare)
    low, high = mean_interval(times) or (None, None)
    row: Json = condition | {
        "runs": len(times),
        "failed": len(own) - len(times),
        "mean_s": fmean(times) if times else None,
        "ci_low_s": low,
        "ci_high_s": high,
        "median_s": median(times) if times else None,
        "ratio": None,
        "ratio_low": None,
        "ratio_high": None,
        "median_ratio": median(times) / median(bare_times) if times and bare_times else None,
        "significant": None,
        "p_adjusted": None,
        "node_cpu_share": None,
        "us_per_metric": None,
        "rss_kb": None,
    }
    if condition["interval_ns"] is None:
        return row | {"ratio": 1.0 if times else None}
    if ratio := paired_ratio(_pairs(bare, good)):
        row["ratio"], row["p_adjusted"] = ratio.mean, ratio.p
        row["ratio_low"], row["ratio_high"] = ratio.interval or (None, None)
    return row | _cost(condition["interval_ns"], good)


def _times(records: Iterable[Json]) -> list[float]:
    return [took for record in records if (took := seconds(record)) is not None]


def _pairs(bare: Iterable[Json], beside: Iterable[Json]) -> list[tuple[float, float]]:
    """The mean times without and with a monitor of each round that has both."""

    def by_round(records: Iterable[Json]) -> dict[int, float]:
        rounds: dict[int, list[float]] = defaultdict(list)
        for record in records:
            if (took := seconds(record)) is not None:
                rounds[record["round"]].append(took)
        return {number: fmean(times) for number, times in rounds.items()}

    first, second = by_round(bare), by_round(beside)
    return [(first[number], second[number]) for number in sorted(first.keys() & second.keys())]


def _cost(interval_ns: int, good: Iterable[Json]) -> Json:
    """What the monitor used in its good runs."""
    used = [(record["usage"], record["seen"]) for record in good if record["usage"] and record["seen"]]
    if not used:
        return {}
    # Reads that were due: one that misses ticks must not look expensive by it. `missed` in the results tells how many.
    due = fmean(seen["metrics"] * usage["window_ns"] / interval_ns for usage, seen in used)
    return {
        "node_cpu_share": fmean(usage["node_cpu_ns"] / max(usage["window_ns"], 1) for usage, _ in used),
        "us_per_metric": fmean(usage["node_cpu_ns"] / 1e3 for usage, _ in used) / due if due > 0 else None,
        "rss_kb": fmean(usage["rss_kb"] for usage, _ in used),
    }
