"""The report from small files of each kind, and from files that are not what they should be."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from . import __main__ as report
from . import aims, data, figures

Row = dict[str, Any]


def summary_row(monitor: str, interval_ns: int | None, ratio: float | None, **other: Any) -> Row:
    row = {
        "workload": "ep", "size": "S", "ranks": 2, "hosts": 1, "monitor": monitor, "configuration": "" if monitor == "none" else "same",
        "interval_ns": interval_ns, "runs": 5, "failed": 0, "mean_s": 2.0 * (ratio or 1.0), "ci_low_s": 1.9, "ci_high_s": 2.1, "median_s": 2.0,
        "ratio": ratio, "ratio_low": ratio and ratio - 0.0123, "ratio_high": ratio and ratio + 0.0123, "median_ratio": ratio,
        "significant": False, "node_cpu_share": 0.0314 if ratio else None, "us_per_metric": 0.271 if ratio else None,
    }  # fmt: skip
    return row | other


def experiment(folder: Path, summary: list[Row] | None = None) -> Path:
    """A small experiment's folder."""
    folder.mkdir(parents=True)
    rows = summary or [summary_row("none", None, None), summary_row("wholegrain", 10**6, 1.0456), summary_row("collectd", 10**9, 1.0021)]
    pq.write_table(pa.Table.from_pylist(rows), folder / "summary.parquet")
    results: list[Row] = [{"monitor": "none", "configuration": "", "interval_ns": None, "workload": "ep", "verified": True, "failure": None, "warm_up": False}] * 3
    results += [results[0] | {"monitor": "wholegrain", "configuration": "same", "interval_ns": 10**6, "verified": False, "failure": "exit status 9 <script>"}]
    pq.write_table(pa.Table.from_pylist(results), folder / "results.parquet")
    bins = [
        {"run": run, "workload": "noise", "monitor": m, "configuration": "", "interval_ns": i, "bin_ns": b, "count": 1000 // (1 + n)}
        for run, (m, i) in enumerate([("none", None), ("wholegrain", 10**6)])
        for n, b in enumerate([100_000, 101_000, 150_000])
    ]
    pq.write_table(pa.Table.from_pylist(bins), folder / "histogram.parquet")
    (folder / "machine.json").write_text(json.dumps({"cores": 2, "virtual": True}))
    monitors = {
        "monitors": [{"monitor": "wholegrain", "configuration": "same", "version": "0.1.0", "interval_ns": 10**6, "metrics": 282, "configured": "a = 1 & b"}],
        "left_out": [{"monitor": "collectd", "configuration": "", "interval_ns": 10**6, "reason": "its shortest period is 10 ms"}],
    }
    (folder / "monitors.json").write_text(json.dumps(monitors))
    (folder / "experiment.toml").write_text("seed = 4711\n")
    return folder


def page_of(folder: Path) -> str:
    assert report.main(["--dir", str(folder)]) == 0
    return (folder / "report.html").read_text()


def test_an_experiment_is_on_the_page_as_it_was_measured(tmp_path: Path) -> None:
    experiment(tmp_path / "quick")
    page = page_of(tmp_path)
    for text in ["+4.6 ± 1.2 %", "1.0456", "1.0333 – 1.0579", "0.271", "3.14 %", "its shortest period is 10 ms", "seed = 4711", "4 counted runs", "1 failed", "a = 1 &amp; b"]:
        assert text in page, text
    assert page.count("<svg") == 3, "run times, beside the published ones, and the loop"


def test_text_of_programs_is_never_markup(tmp_path: Path) -> None:
    experiment(tmp_path / "quick")
    page = page_of(tmp_path)
    assert "exit status 9 &lt;script&gt;" in page and "<script" not in page


def test_what_is_not_there_is_named_with_its_command(tmp_path: Path) -> None:
    page = page_of(tmp_path)
    for command in ["experiment run", "monitor-cost", "sensor-rate", "beside"]:
        assert f"wholegrain-bench {command}" in page, command
    assert "<svg" not in page


def test_other_figures(tmp_path: Path) -> None:
    cost = {"monitor": "wholegrain", "configuration": "default", "version": "0.1.0", "interval_ns": 10**9, "metrics": 400, "cpu_share": 0.001,
            "us_per_metric": 0.45, "rss_kb": 6000, "pss_kb": 5000, "server_cpu_share": 0.0}  # fmt: skip
    point = {"sensors": 100, "interval_ns": 10**9, "rate_per_s": 100.0, "cpu_share": 0.001, "rss_kb": 5000}
    files: dict[str, Row] = {
        "monitor-cost": {"rows": [cost], "left_out": [{"monitor": "likwid", "reason": "no counters"}]},
        "sensor-rate": {"points": [point, point | {"sensors": 1000, "rate_per_s": 1000.0, "cpu_share": 0.002}],
                        "fit": {"cpu_share_per_rate": 1.1e-6, "cpu_share_at_zero": 0.0009, "r2": 0.987654}},
        "beside": {"systems": [{"system": "prometheus", "version": "2.42", "configured": "--x"}],
                   "rows": [{"system": s, "what": "bytes_per_reading", "value": v, "unit": "By"} for s, v in (("wholegrain", 0.31), ("prometheus", 1.62))]},
        "fan-in": {"agents": 15000, "cpu_share": 0.2},
        "restart": {"seconds": 0.55, "list": [1]},
    }  # fmt: skip
    for name, value in files.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(value))
    page = page_of(tmp_path)
    for text in ["0.450", "no counters", "0.9877", "1.620", "15000", "restart"]:
        assert text in page, text
    assert page.count("<svg") == 3


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [("summary.parquet", b"no parquet", "summary.parquet"), ("machine.json", b"{", "machine.json"), ("results.parquet", None, "failure")],
)
def test_a_damaged_file_is_named_and_the_rest_is_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, content: bytes | None, message: str) -> None:
    folder = experiment(tmp_path / "quick")
    experiment(tmp_path / "other")
    (tmp_path / "restart.json").write_text('{"seconds": 0.5512}')
    if content is None:
        pq.write_table(pa.table({"monitor": ["none"], "verified": [True]}), folder / name)
    else:
        (folder / name).write_bytes(content)
    assert report.main(["--dir", str(tmp_path)]) == 1
    assert message in capsys.readouterr().err
    page = (tmp_path / "report.html").read_text()
    assert message in page and "without monitoring: other" in page and "without monitoring: quick" not in page and "0.5512" in page


def test_what_was_moved_aside_is_no_result(tmp_path: Path) -> None:
    experiment(tmp_path / "quick")
    experiment(tmp_path / "quick.old-1")
    page = page_of(tmp_path)
    assert "without monitoring: quick" in page and "old-1" not in page


def test_a_part_that_failed_is_shown_until_it_has_left_results(tmp_path: Path) -> None:
    (tmp_path / "beside.failed").write_text("exit status 1\nno room <here>")
    page = page_of(tmp_path)
    assert "beside failed when it was last run" in page and "no room &lt;here&gt;" in page
    os.utime(tmp_path / "beside.failed", (1, 1))
    (tmp_path / "beside.json").write_text(json.dumps({"rows": [], "systems": [], "left_out": [{"system": "x", "reason": "gone"}]}))
    page = page_of(tmp_path)
    assert "failed when" not in page and "Left out: x: gone" in page


def test_an_experiment_that_is_not_whole_or_was_not_alone_says_so(tmp_path: Path) -> None:
    folder = experiment(tmp_path / "quick")
    about = {"runs_planned": 300, "runs_made": 77, "runs_not_quiet": 12, "not_quiet_percent": 5.0}
    (folder / "experiment.json").write_text(json.dumps(about))
    page = page_of(tmp_path)
    assert "77 of 300 planned runs are made" in page and "Before 12 of 77 runs other processes used more than 5 % of a core" in page


def test_a_folder_that_is_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert report.main(["--dir", str(tmp_path / "none")]) == 1
    assert "make bench" in capsys.readouterr().err


def test_the_same_data_gives_the_same_page(tmp_path: Path) -> None:
    experiment(tmp_path / "quick")
    assert page_of(tmp_path) == page_of(tmp_path)


def test_published_figures_are_all_there() -> None:
    rows = data.colmet()
    assert len(rows) == 105
    without = {(r["benchmark"], r["nodes"]): r["mean_s"] for r in rows if r["period_s"] is None}
    assert without[("EP", 4)] == 214.58
    for published in ("EP", "LU", "CG"):
        assert any(benchmark == published for benchmark, _ in without), published


def test_a_loop_that_took_long_is_not_drawn_as_many() -> None:
    # A hundred bins of 100 ns side by side, and one loop far away: between them there is nothing.
    counts = {100_000 + 100 * at: 10 for at in range(100)} | {1_000_000: 1}
    edges, each = figures._rebinned(counts, 2)
    assert sum(each) == pytest.approx(1001 / 2) and edges == sorted(edges)
    assert each[-4:-1] == [each[-4], 0.0, 0.5] and each[-1] == 0.0 and each.count(0.0) == 2


@pytest.mark.parametrize(("ns", "name"), [(None, "–"), (10**9, "1 s"), (10**6, "1 ms"), (2_500_000, "2500 us"), (60 * 10**9, "60 s"), (1500, "1500 ns")])
def test_names_of_periods(ns: int | None, name: str) -> None:
    assert figures.interval_name(ns) == name


def test_each_point_is_drawn_where_it_was_measured() -> None:
    """Of two ratios the larger is drawn higher: the figure shows the data, not the order of the rows."""
    svg = figures.run_times([summary_row("wholegrain", 10**6, 1.5), summary_row("wholegrain", 10**9, 1.0, ratio_low=0.99, ratio_high=1.01)])
    places = [float(y) for y in re.findall(r'<use xlink:href="#\w+" x="[\d.]+" y="([\d.]+)" style="fill: #009e73', svg)]
    assert len(places) >= 2 and min(places) < max(places)


def found_with(summary: list[Row], tmp_path: Path) -> list[aims.Aim]:
    experiment(tmp_path / "quick", summary)
    return aims.all_of(data.read(tmp_path))


def test_aims_of_steady_programs(tmp_path: Path) -> None:
    reads = summary_row("bare", 10**6, 1.02, configuration="reads", node_cpu_share=0.03)
    for ratio, reached in ((1.005, True), (1.01, None), (1.03, None), (1.04, False)):
        held = found_with([summary_row("none", None, None), reads, summary_row("wholegrain", 10**6, ratio)], tmp_path / str(ratio))
        # Two cores: 1.5 % and 0.5 %; the interval reaches 1.23 % to both sides.
        assert [(a.aim, a.reached) for a in held] == [("at most 2.0 % (bare reads and 0.5 %)", reached)], ratio
    # What reads more files is held against the loop of the same files.
    rows = [reads, summary_row("bare", 10**6, 1.1, configuration="job-reads", node_cpu_share=0.19), summary_row("wholegrain", 10**6, 1.08, configuration="job")]
    assert [(a.aim, a.reached) for a in found_with(rows, tmp_path / "job")] == [("at most 10.0 % (bare job-reads and 0.5 %)", True)]
    wide = {"ratio_low": 0.9, "ratio_high": 1.1}
    rows = [summary_row("wholegrain", 10**7, 1.03, significant=True), summary_row("wholegrain", 10**8, 1.0, **wide), summary_row("wholegrain", 10**9, 1.0)]
    assert [a.reached for a in found_with(rows, tmp_path / "slow")] == [False, None, True]
    # One run has no interval, and proves nothing however near to 1 it is.
    single = {"ratio_low": None, "ratio_high": None, "significant": None}
    rows = [reads, summary_row("wholegrain", 10**6, 1.0, **single), summary_row("wholegrain", 10**9, 1.0, **single)]
    assert [a.reached for a in found_with(rows, tmp_path / "single")] == [None, None]


def test_aims_of_the_wavefront(tmp_path: Path) -> None:
    wave = {"workload": "wavefront"}
    for ratio, significant, reached in ((1.11, True, True), (1.13, True, False), (1.13, False, None)):
        reads = summary_row("bare", 10**6, 1.1, configuration="reads", significant=significant, **wave)
        held = found_with([reads, summary_row("wholegrain", 10**6, ratio, **wave)], tmp_path / f"{ratio}{significant}")
        assert [a.reached for a in held] == [reached], ratio
    rows = [summary_row("bare", 10**6, 1.1, configuration=c, significant=True, **wave) for c in ("reads", "job-reads")]
    rows[1]["ratio"] = 1.3
    rows += [summary_row("wholegrain", 10**6, 1.33, configuration=c, **wave) for c in ("same", "job")]
    assert [a.reached for a in found_with(rows, tmp_path / "both")] == [False, True]


def test_aims_beside_peers() -> None:
    row = {"configuration": "default", "interval_ns": 10**9, "us_per_metric": 0.5, "rss_kb": 5000}
    peer = {"monitor": "collectd", "configuration": "", "interval_ns": 10**9, "us_per_metric": 0.4, "rss_kb": 9000}
    stored = [{"system": s, "what": "bytes_per_reading", "value": v} for s, v in (("wholegrain", 0.3), ("victoriametrics", 0.4))]
    held = aims.all_of(data.Findings(monitor_cost={"rows": [row | {"monitor": "wholegrain"}, peer]}, beside={"rows": stored}))
    assert [a.reached for a in held] == [False, True, True]
