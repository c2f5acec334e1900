"""An experiment's folder: the finished runs, and the files for the report that are made from them.

The runner appends a line to `runs.jsonl` for each finished run. All other tables are made from these lines whenever they are asked for.
"""

from __future__ import annotations

import io
import json
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import polars as pl

from harness import Json

from . import summary
from .records import FolderError, read_records, seconds, write_file

_CONDITION = {"workload": pl.String, "size": pl.String, "ranks": pl.Int64, "hosts": pl.Int64, "monitor": pl.String, "configuration": pl.String, "interval_ns": pl.Int64}
RESULTS: dict[str, Any] = {
    "experiment": pl.String, "run": pl.Int64, "round": pl.Int64, "warm_up": pl.Boolean, **_CONDITION, "started": pl.Datetime("ns", "UTC"),
    "seconds": pl.Float64, "verified": pl.Boolean, "failure": pl.String, "metrics": pl.Int64, "node_cpu_ns": pl.Int64, "server_cpu_ns": pl.Int64,
    "window_ns": pl.Int64, "rss_kb": pl.Int64, "pss_kb": pl.Int64, "samples": pl.Int64, "missed": pl.Int64, "figures": pl.String,
}  # fmt: skip
HISTOGRAM: dict[str, Any] = {
    "run": pl.Int64, "workload": pl.String, "monitor": pl.String, "configuration": pl.String, "interval_ns": pl.Int64, "bin_ns": pl.Int64, "count": pl.Int64,
}  # fmt: skip
SUMMARY: dict[str, Any] = {
    **_CONDITION, "runs": pl.Int64, "failed": pl.Int64, "mean_s": pl.Float64, "ci_low_s": pl.Float64, "ci_high_s": pl.Float64, "median_s": pl.Float64,
    "ratio": pl.Float64, "ratio_low": pl.Float64, "ratio_high": pl.Float64, "median_ratio": pl.Float64, "significant": pl.Boolean,
    "p_adjusted": pl.Float64, "node_cpu_share": pl.Float64, "us_per_metric": pl.Float64, "rss_kb": pl.Float64,
}  # fmt: skip

USAGE = ("node_cpu_ns", "server_cpu_ns", "window_ns", "rss_kb", "pss_kb", "samples", "missed")
SETTING = ("monitor", "configuration", "interval_ns")


def write(folder: Path) -> Json:
    """Writes all files that are made from the finished runs. Returns `experiment`, `rows` and `left_out`."""
    state_file = folder / "state.json"
    if not state_file.exists():
        raise FolderError(f"no experiment was started here: {state_file} is missing")
    try:
        state = json.loads(state_file.read_text())
    except ValueError as error:
        raise FolderError(f"{state_file}: {error}") from error
    records = read_records(folder / "runs.jsonl")
    about = _about((folder / "experiment.toml").read_text(), state, records)
    left_out = _left_out(state, records)
    conditions, divided = summary.divide(state["conditions"], records, state["parts"])
    rows = summary.rows(conditions, divided)
    _write_parquet(folder / "results.parquet", (_result(about["name"], record) for record in divided), RESULTS)
    _write_parquet(folder / "histogram.parquet", _histogram(divided), HISTOGRAM)
    _write_parquet(folder / "summary.parquet", rows, SUMMARY)
    write_file(folder / "monitors.json", _json({"monitors": _monitors(records), "left_out": left_out}))
    write_file(folder / "experiment.json", _json(about))
    return {"experiment": about, "rows": rows, "left_out": left_out}


def _about(text: str, state: Json, records: list[Json]) -> Json:
    file = tomllib.loads(text)
    warn = file.get("quiet", {}).get("warn", 5.0)
    return {
        "name": file["name"],
        "seed": state["seed"],
        "repetitions": file["repetitions"],
        "warm_up": file.get("warm_up", 1),
        "none_per_round": file.get("none_per_round", 1),
        "hosts": state["hosts"],
        "runs_planned": state["runs"],
        "runs_made": len({record["run"] for record in records}),
        "runs_failed": sum(seconds(record) is None for record in records),
        "runs_not_quiet": sum(record["others_percent"] > warn for record in records),
        "not_quiet_percent": warn,
    }


def _setting(condition: Json) -> tuple[Any, ...]:
    return tuple(condition[name] for name in SETTING)


def _left_out(state: Json, records: list[Json]) -> list[Json]:
    """The settings that could not be measured, and those that were given up."""
    left_out: list[Json] = list(state["left_out"])
    for setting in dict.fromkeys(_setting(c) for c in state["conditions"] if c["interval_ns"] is not None):
        own = [record for record in records if _setting(record["condition"]) == setting]
        failure = own[-1]["failure"] if own else None
        if failure and failure["part"] == "monitor" and all(seconds(record) is None for record in own):
            entry = dict(zip(SETTING, setting)) | {"reason": f"no run of it was good, last: {failure['reason']}"}
            if entry not in left_out:
                left_out.append(entry)
    return left_out


def _monitors(records: list[Json]) -> list[Json]:
    """Each monitor's setting as it was first seen."""
    found: dict[tuple[Any, ...], Json] = {}
    for record in records:
        if seen := record["seen"]:
            row = {name: record["condition"][name] for name in SETTING}
            row |= {"version": seen["version"], "metrics": seen["metrics"], "configured": seen.get("configured")}
            found.setdefault(_setting(record["condition"]), row)
    return [found[setting] for setting in sorted(found)]


def _result(name: str, record: Json) -> Json:
    outcome, failure, usage = record["outcome"], record["failure"], record["usage"] or {}
    condition: Json = record["condition"]
    return condition | {
        "experiment": name,
        "run": record["run"],
        "round": record["round"],
        "warm_up": record["warm_up"],
        "started": record["started_ns"],
        # The time of a run that does not count would be taken for one that does.
        "seconds": seconds(record),
        "verified": bool(outcome and outcome["verified"]),
        "failure": failure["reason"] if failure else None,
        "metrics": record["seen"]["metrics"] if record["seen"] else None,
        **{column: usage.get(column) for column in USAGE},
        "figures": json.dumps(outcome["figures"], separators=(",", ":"), sort_keys=True) if outcome else None,
    }


def _histogram(records: Iterable[Json]) -> list[Json]:
    """The bins of the workloads that have some, of runs that count."""
    good = [record for record in records if seconds(record) is not None and not record["warm_up"]]
    return [
        {"run": r["run"], "workload": r["condition"]["workload"], **{name: r["condition"][name] for name in SETTING}, "bin_ns": bin_ns, "count": count}
        for r in good
        for bin_ns, count in r["outcome"]["histogram"]
    ]


def _json(value: Any) -> bytes:
    return json.dumps(value, indent=2).encode()


def _write_parquet(path: Path, rows: Iterable[Json], schema: dict[str, Any]) -> None:
    table = io.BytesIO()
    pl.DataFrame(list(rows), schema=schema).write_parquet(table, compression="zstd")
    write_file(path, table.getvalue())
