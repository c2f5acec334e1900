"""Reads and checks the results of the benchmarks. Statistics are the benchmarks' own."""

from __future__ import annotations

import csv
import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

PAPERS = Path(__file__).parent / "papers"

# Columns without which a figure cannot be drawn; others may come and go.
SUMMARY = (
    "workload", "size", "ranks", "hosts", "monitor", "configuration", "interval_ns", "runs", "failed", "mean_s", "ci_low_s",
    "ci_high_s", "median_s", "ratio", "ratio_low", "ratio_high", "significant", "node_cpu_share", "us_per_metric",
)  # fmt: skip
HISTOGRAM = ("run", "workload", "monitor", "configuration", "interval_ns", "bin_ns", "count")

Row = dict[str, Any]


# Folders that `experiment run --fresh` moved aside are no part of the report.
MOVED_ASIDE = re.compile(r"\.old-\d+$")


class Unreadable(Exception):
    """A damaged file: names it, the damage and the remedy."""


@dataclass
class Experiment:
    """One experiment's folder."""

    name: str
    summary: list[Row]
    histogram: list[Row]
    results: list[Row]
    machine: Row
    monitors: Row
    about: Row
    text: str


@dataclass
class Findings:
    """All that was found in the folder of the benchmarks."""

    experiments: list[Experiment] = field(default_factory=list)
    monitor_cost: Row | None = None
    sensor_rate: Row | None = None
    beside: Row | None = None
    fan_in: Row | None = None
    others: dict[str, Row] = field(default_factory=dict)
    # Parts that failed in their last run, with their last words.
    failed: dict[str, str] = field(default_factory=dict)
    # Descriptions of damaged files.
    unreadable: list[str] = field(default_factory=list)


def read(folder: Path) -> Findings:
    """Reads everything below `folder`; a damaged file does not affect the others."""
    if not folder.is_dir():
        raise Unreadable(f"{folder}: no such folder; `make bench` fills target/bench")
    found = Findings()
    for summary in sorted(folder.glob("**/summary.parquet")):
        if any(MOVED_ASIDE.search(part) for part in summary.relative_to(folder).parts):
            continue
        try:
            found.experiments.append(_experiment(summary.parent))
        except Unreadable as error:
            found.unreadable.append(str(error))
    for path in sorted(folder.glob("*.json")):
        try:
            value = _json(path)
            if not isinstance(value, dict):
                raise Unreadable(f"{path}: an object was expected; make it again or remove it")
        except Unreadable as error:
            found.unreadable.append(str(error))
            continue
        match path.stem:
            case "monitor-cost":
                found.monitor_cost = value
            case "sensor-rate":
                found.sensor_rate = value
            case "beside":
                found.beside = value
            case "fan-in":
                found.fan_in = value
            case other:
                found.others[other] = value
    for path in sorted(folder.glob("*.failed")):
        if not _newer(folder, path):
            found.failed[path.stem] = path.read_text(errors="replace").strip()
    return found


def _newer(folder: Path, failed: Path) -> bool:
    """Whether a benchmark has left results since it failed."""
    results = (folder / f"{failed.stem}.json", folder / failed.stem / "summary.parquet")
    # An experiment that fails writes its results before it ends.
    return any(path.exists() and path.stat().st_mtime > failed.stat().st_mtime for path in results)


def colmet() -> list[Row]:
    """The published run times: benchmark, nodes, monitor, sampling_period_s (None without monitor), mean, half width."""
    with (PAPERS / "colmet-2022.csv").open(newline="") as file:
        return [
            {
                "benchmark": row["benchmark"],
                "nodes": int(row["nodes"]),
                "monitor": row["monitor"],
                "period_s": float(row["sampling_period_s"]) if row["sampling_period_s"] else None,
                "mean_s": float(row["mean_run_time_s"]),
                "half_s": float(row["ci95_half_width_s"]),
            }
            for row in csv.DictReader(file)
        ]


def _experiment(folder: Path) -> Experiment:
    machine, monitors = _json(folder / "machine.json"), _json(folder / "monitors.json")
    about = _json(folder / "experiment.json")
    toml = folder / "experiment.toml"
    return Experiment(
        name=folder.name,
        summary=_parquet(folder / "summary.parquet", SUMMARY),
        histogram=_parquet(folder / "histogram.parquet", HISTOGRAM) if (folder / "histogram.parquet").exists() else [],
        results=_parquet(folder / "results.parquet", ("monitor", "verified", "failure")),
        machine=machine if isinstance(machine, dict) else {},
        monitors=monitors if isinstance(monitors, dict) else {"monitors": monitors or [], "left_out": []},
        about=about if isinstance(about, dict) else {},
        text=toml.read_text() if toml.exists() else "",
    )


def _json(path: Path) -> Any:
    if not path.exists():
        return None
    try:
        return json.loads(path.read_text())
    except (ValueError, OSError) as error:
        raise Unreadable(f"{path}: {error}; run the benchmark again or remove the file") from error


def _parquet(path: Path, columns: tuple[str, ...]) -> list[Row]:
    try:
        table = pq.read_table(path)
    except Exception as error:  # pyarrow has no common class of errors
        raise Unreadable(f"{path}: {error}; `wholegrain-bench experiment summary` makes it again") from error
    missing = [name for name in columns if name not in table.column_names]
    if missing:
        raise Unreadable(f"{path}: columns {', '.join(missing)} are missing; it was made by another version")
    rows: list[Row] = table.to_pylist()
    return rows
