"""Writes the report of the benchmarks: one HTML page from their results in a folder.

    PYTHONPATH=bench .venv/bin/python -m report --dir target/bench
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from . import aims, data, figures
from .page import Page

Row = dict[str, Any]

# Kinds of failures on the page.
FAILED_SHOWN = 20

# The comparison of stores, in the order of the page.
BESIDE = {
    "ingest_cpu_ns_per_reading": "server CPU a reading, ns",
    "ingest_wall_readings_per_s": "readings taken in per second",
    "bytes_per_reading": "stored bytes a reading",
    "query_one_sensor_ms": "one sensor, its readings, ms",
    "query_thousand_sensors_ms": "last values of 1,000 counters added up by windows, ms",
    "query_newest_ms": "newest values, ms",
    "rss_mb": "resident memory after it, MB",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; 0 when the page was written and lacks nothing that is there."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dir", type=Path, default=Path("target/bench"), help="where the benchmarks left their results")
    parser.add_argument("--output", type=Path, help="the page (default: report.html in that folder)")
    given = parser.parse_args(arguments)
    output: Path = given.output or given.dir / "report.html"
    try:
        found = data.read(given.dir)
        page = write(found)
    except data.Unreadable as error:
        print(f"report: {error}", file=sys.stderr)
        return 1
    partial = output.with_suffix(".part")
    partial.write_text(page, encoding="utf-8")
    partial.replace(output)
    print(f"report: {output.resolve()}")
    for text in found.unreadable:
        print(f"report: left out: {text}", file=sys.stderr)
    return 1 if found.unreadable else 0


def write(found: data.Findings) -> str:
    """The whole page."""
    page = Page("The cost of monitoring")
    page.text(
        "Run time of programs with and without monitoring, the use of each monitor, and the server beside other stores, all measured "
        "on the machine described below. Ratios are to runs without any monitor in the same experiment; bars are 95 % confidence intervals."
    )
    for name, said in found.failed.items():
        page.warning(f"{name} failed when it was last run; its results below, if any, are of an earlier run or a part of it.", said)
    for text in found.unreadable:
        page.warning(f"Left out: {text}")
    held = aims.all_of(found)
    if held:
        page.section("Aims")
        verdict = {True: "reached", False: "missed", None: "undecided"}
        page.text("“Undecided”: the interval is too wide, or there were too few runs for one.")
        page.table(["what", "aim", "found", ""], [[a.what, a.aim, a.found, verdict[a.reached]] for a in held])
    if not found.experiments:
        page.section("Run time with and without monitoring")
        page.missing("The experiment", "wholegrain-bench experiment run bench/experiments/quick.toml --dir target/bench/quick")
    for experiment in found.experiments:
        _experiment(page, experiment)
    _monitor_cost(page, found.monitor_cost)
    _sensor_rate(page, found.sensor_rate)
    _beside(page, found)
    _others(page, found.others)
    return page.document()


def _experiment(page: Page, experiment: data.Experiment) -> None:
    page.section(f"Run time with and without monitoring: {experiment.name}")
    summary = experiment.summary
    counted = [row for row in experiment.results if not row.get("warm_up")]
    failed = [row for row in counted if row["failure"] or not row["verified"]]
    page.text(f"{len(counted)} counted runs in random order" + (f", of which {len(failed)} failed or were not verified and are in no mean." if failed else "."))
    about = experiment.about
    made, planned = about.get("runs_made"), about.get("runs_planned")
    if made is not None and planned is not None and made < planned:
        page.warning(f"{made} of {planned} planned runs are made: the same command goes on with the others.")
    noisy = about.get("runs_not_quiet")
    if noisy:
        percent = about.get("not_quiet_percent", 0)
        page.warning(f"Before {noisy} of {made} runs other processes used more than {percent:g} % of a core: their times may be those processes'.")
    if any(row["monitor"] != "none" and row["ratio"] is not None for row in summary):
        page.figure(
            figures.run_times(summary),
            "Run time by sampling period, divided by the run time without monitor (1 = no overhead), mean and 95 % confidence interval. "
            "Drawn as figure 3 of the Colmet paper (2022).",
        )
        _overheads(page, summary)
        page.table(
            ["monitor", "workload", "period", "runs", "mean s", "95 % interval of the ratio", "ratio", "by medians", "differs", "CPU of the node's part", "us a metric"],
            [_summary_row(row) for row in summary],
            numbers=[3, 4, 5, 6, 7, 9, 10],
            fold="All means, intervals, and the use of each monitor",
        )
        page.text("An asterisk, and “differs”, where the difference from no monitor is significant at 5 % after Holm's correction for the number of comparisons in the experiment.")
        if any(row["monitor"] == "wholegrain" and row["workload"] in ("ep", "cg", "wavefront") for row in summary):
            page.figure(
                figures.colmet(data.colmet(), summary),
                "The run times that the Colmet paper published for itself, DCDB and LIKWID on four nodes of 32 cores (tables 1 to 3), and ours from this "
                "machine: other hardware, sizes and sets of metrics, so only the shape of the curves can be compared.",
            )
    if experiment.histogram:
        page.figure(
            figures.noise(experiment.histogram),
            "How long a loop of fixed work took, without monitor and with: the tail on the right is the time that monitoring takes from a program. "
            "Drawn as figures 5 and 8 of the LDMS paper (2014).",
        )
    if failed:
        kinds = Counter(f"{row['workload']} {_beside_what(row)}: {row['failure'] or 'wrong result'}" for row in failed)
        page.bullets(f"failed{f' {count} times' if count > 1 else ''}: {kind}" for kind, count in kinds.most_common(FAILED_SHOWN))
        if len(kinds) > FAILED_SHOWN:
            page.text(f"Others failed in {len(kinds) - FAILED_SHOWN} more ways: runs.jsonl of the experiment has the reasons.")
    page.heading("Monitors")
    monitors: list[Row] = experiment.monitors.get("monitors", [])
    page.table(
        ["monitor", "version", "period", "values a sample"],
        [[figures.monitor_name(m), _text(m.get("version")), figures.interval_name(m["interval_ns"]), _text(m.get("metrics"))] for m in monitors],
        numbers=[3],
    )
    _left_out(page, experiment.monitors.get("left_out", []))
    for name, text in {figures.monitor_name(m): m.get("configured", "") for m in monitors}.items():
        page.details(f"Configuration of {name}", text)
    page.heading("Machine and experiment")
    page.table(["", "machine"], [[key.replace("_", " "), _text(value)] for key, value in experiment.machine.items()])
    if experiment.text:
        page.details("The experiment's file", experiment.text)


def _overheads(page: Page, summary: Sequence[Row]) -> None:
    """The run time that each monitor adds to each workload, a table a period."""
    measured = [row for row in summary if row["monitor"] != "none" and row["ratio"] is not None]
    workloads = list(dict.fromkeys((row["workload"], row["size"]) for row in measured))
    for interval in sorted({row["interval_ns"] for row in measured}):
        page.heading(f"Added run time, sampled each {figures.interval_name(interval)}")
        of = {(figures.monitor_name(r), r["workload"], r["size"]): r for r in measured if r["interval_ns"] == interval}
        names = list(dict.fromkeys(name for name, _, _ in of))
        page.table(
            ["monitor", *(f"{workload} {size}" for workload, size in workloads)],
            [[name, *(_overhead(of.get((name, *workload))) for workload in workloads)] for name in names],
            numbers=range(1, len(workloads) + 1),
        )


def _overhead(row: Row | None) -> str:
    if row is None:
        return "–"
    half = "" if row["ratio_low"] is None else f" ± {50 * (row['ratio_high'] - row['ratio_low']):.1f}"
    return f"{100 * (row['ratio'] - 1):+.1f}{half} %" + (" *" if row["significant"] else "")


def _summary_row(row: Row) -> list[str]:
    none = row["monitor"] == "none"
    interval = "" if none or row["ratio_low"] is None else f"{row['ratio_low']:.4f} – {row['ratio_high']:.4f}"
    runs = str(row["runs"]) + (f" ({row['failed']} failed)" if row["failed"] else "")
    return [
        "none" if none else figures.monitor_name(row),
        f"{row['workload']} {row['size']}",
        figures.interval_name(row["interval_ns"]),
        runs,
        _number(row["mean_s"], 3),
        interval,
        "" if none else _number(row["ratio"], 4),
        "" if none else _number(row.get("median_ratio"), 4),
        "" if none else ("yes" if row["significant"] else "no"),
        _percent(row["node_cpu_share"]),
        _number(row["us_per_metric"], 3),
    ]


def _monitor_cost(page: Page, found: Row | None) -> None:
    page.section("Cost of each monitor")
    if not found:
        page.missing("The cost of each monitor", "wholegrain-bench monitor-cost")
        return
    rows: list[Row] = found["rows"]
    if rows:
        page.figure(figures.monitor_costs(rows), "CPU time a metric and memory of the part on the node, of all its processes, on an otherwise idle machine. Logarithmic.")
    page.table(
        ["monitor", "version", "period", "values a sample", "CPU of a core", "us a metric", "missed", "resident MB", "proportional MB", "server's CPU"],
        [
            [
                figures.monitor_name(r), _text(r.get("version")), figures.interval_name(r["interval_ns"]), _text(r.get("metrics")),
                _percent(r.get("cpu_share")), _number(r.get("us_per_metric"), 3), _percent(r.get("missed_share")), _mega(r.get("rss_kb")), _mega(r.get("pss_kb")),
                _percent(r.get("server_cpu_share")),
            ]
            for r in rows
        ],
        numbers=range(3, 10),
    )  # fmt: skip
    _left_out(page, found.get("left_out", []))


def _left_out(page: Page, rows: Sequence[Row]) -> None:
    """Settings that were not measured, a line for each reason."""
    settings: dict[tuple[str, str, str], list[str]] = {}
    for row in rows:
        periods = settings.setdefault((row["monitor"], row.get("configuration") or "", row["reason"]), [])
        if row.get("interval_ns"):
            periods.append(figures.interval_name(row["interval_ns"]))
    page.bullets(
        f"Left out: {monitor}{f' {configuration}' if configuration else ''}{' each ' + ', '.join(periods) if periods else ''}: {reason}"
        for (monitor, configuration, reason), periods in settings.items()
    )


def _beside_what(row: Row) -> str:
    if row["monitor"] == "none":
        return "without monitor"
    return f"beside {figures.monitor_name(row)}, each {figures.interval_name(row['interval_ns'])}"


def _sensor_rate(page: Page, found: Row | None) -> None:
    page.section("CPU and memory against the sensor rate")
    if not found or not found.get("points"):
        page.missing("The sensor rate", "wholegrain-bench sensor-rate")
        return
    page.figure(figures.sensor_rate(found), "The agent with synthetic sensors: CPU against readings per second with the fitted line, memory against sensors. Drawn as figures 6 and 7 of the DCDB paper (2019), whose model is the same line (section 6.3).")
    page.table(["fit", "value"], [[key.replace("_", " "), _text(value)] for key, value in found.get("fit", {}).items()], numbers=[1])


def _beside(page: Page, found: data.Findings) -> None:
    page.section("The server beside other stores")
    if not found.beside:
        page.missing("Other stores", "wholegrain-bench beside")
    else:
        rows: list[Row] = found.beside["rows"]
        recorded: Row = found.beside.get("data", {})
        if recorded:
            lacking = f" ({recorded['readings_left_out']} more, taken within a millisecond of the one before, are given to nobody)" if recorded.get("readings_left_out") else ""
            page.text(
                f"{recorded['readings']:,} readings{lacking} of {recorded['sensors']} sensors in {recorded['seconds']:.0f} s; "
                f"ingest and questions with those of {recorded['nodes']} nodes, bytes with one's."
            )
        if rows:
            page.figure(figures.beside(rows, BESIDE), "The same recorded readings into each system on this machine. Shorter is better, but for readings per second.")
        systems = list(dict.fromkeys(r["system"] for r in rows))
        of = {(r["system"], r["what"]): r["value"] for r in rows}
        page.table(["system", *BESIDE.values()], [[s, *(_number(of.get((s, what)), 3) for what in BESIDE)] for s in systems], numbers=range(1, len(BESIDE) + 1))
        for system in found.beside.get("systems", []):
            words = [f"{key}: {_text(system[key])}" for key in ("configured", "durable", "counted") if system.get(key)]
            page.details(f"{system['system']} {_text(system.get('version'))}", "\n".join(words))
        page.bullets(f"Left out: {row['system']}: {row['reason']}" for row in found.beside.get("left_out", []))
    if found.fan_in:
        page.heading("Many agents on one server")
        flat = [[key.replace("_", " "), _text(value)] for key, value in found.fan_in.items() if not isinstance(value, (list, dict))]
        page.table(["", "value"], flat, numbers=[1])


def _others(page: Page, others: dict[str, Row]) -> None:
    if not others:
        return
    page.section("Other benchmarks")
    page.text("Results of the single benchmarks; bench/README.md describes each.")
    for name, value in others.items():
        flat = [[key, _text(v)] for key, v in value.items() if not isinstance(v, (list, dict))]
        if flat:
            page.heading(name)
            page.table(["", "value"], flat, numbers=[1])


def _text(value: Any) -> str:
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, (list, tuple)):
        return ", ".join(_text(v) for v in value)
    if isinstance(value, dict):
        return ", ".join(f"{k} {_text(v)}" for k, v in value.items())
    return str(value)


def _number(value: float | None, digits: int) -> str:
    return "–" if value is None else f"{value:,.{digits}f}" if abs(value) < 1e5 else f"{value:,.0f}"


def _percent(share: float | None) -> str:
    return "–" if share is None else f"{100 * share:.3g} %"


def _mega(kb: float | None) -> str:
    return "–" if kb is None else f"{kb / 1e3:.1f}"


if __name__ == "__main__":
    sys.exit(main())
