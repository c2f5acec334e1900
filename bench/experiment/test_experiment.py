"""Statistics against SciPy's own tests and published values; the summary of made-up runs; damaged folders."""

from __future__ import annotations

import json
import tempfile
import unittest
from pathlib import Path
from typing import Any

from scipy import stats

from . import __main__, folder, records, summary
from .intervals import holm, mean_interval, paired_ratio

Json = dict[str, Any]

# Rounds of runs without and with something.
PAIRS = [(10.1, 10.5), (10.4, 10.9), (9.9, 10.1), (10.2, 10.8), (10.6, 10.9)]


class Statistics(unittest.TestCase):
    def close(self, values: tuple[float, ...] | list[float] | None, expected: tuple[float, ...] | list[float]) -> None:
        assert values is not None
        for value, right in zip(values, expected, strict=True):
            self.assertAlmostEqual(value, right, delta=1e-9 * max(abs(right), 1e-3))

    def test_means_have_students_interval(self) -> None:
        without, beside = zip(*PAIRS)
        self.close(mean_interval(without), (9.904520861507333, 10.575479138492664))
        self.close(mean_interval(beside), (10.213474409720385, 11.066525590279612))
        self.assertEqual((mean_interval([1.0]), mean_interval([])), (None, None))

    def test_a_ratio_has_the_interval_in_which_the_test_for_pairs_finds_no_difference(self) -> None:
        ratio = paired_ratio(PAIRS)
        assert ratio and ratio.interval and ratio.p
        without, beside = zip(*PAIRS)
        self.close([ratio.mean, ratio.p], [1.0390625, float(stats.ttest_rel(beside, without).pvalue)])
        self.close(ratio.interval, (1.0200331350158567, 1.0578814310501854))
        for bound in ratio.interval:
            self.close([float(stats.ttest_1samp([y - bound * x for x, y in PAIRS], 0).pvalue)], [0.05])

    def test_few_pairs_claim_nothing(self) -> None:
        self.assertIsNone(paired_ratio([]))
        single = paired_ratio([(2.0, 3.0)])
        assert single
        self.assertEqual((single.mean, single.interval, single.p), (1.5, None, None))
        equal, noisy = paired_ratio([(2.0, 2.0), (3.0, 3.0)]), paired_ratio([(0.1, 1.0), (10.0, 2.0)])
        assert equal and noisy
        self.assertEqual(equal.p, 1.0)
        self.assertIsNone(noisy.interval, "a mean that does not differ from 0 bounds no ratio")

    def test_holm(self) -> None:
        # By hand, and as `multipletests(…, method="holm")` of statsmodels documents it.
        self.close(holm([0.01, 0.04, 0.03, 0.005]), [0.03, 0.06, 0.06, 0.02])
        self.assertEqual((holm([0.9, 0.6]), holm([])), ([1.0, 1.0], []))


def condition(monitor: str) -> Json:
    setting = {"configuration": "", "interval_ns": None} if monitor == "none" else {"configuration": "same", "interval_ns": 10**6}
    return {"workload": "ep", "size": "S", "ranks": 2, "hosts": 1, "monitor": monitor} | setting


def record(run: int, number: int, monitor: str, took: float, **other: Any) -> Json:
    outcome = {"workload": "ep", "size": "S", "ranks": 2, "seconds": took, "verified": True, "figures": {}, "histogram": []}
    return {
        "run": run, "attempt": 0, "round": number, "warm_up": number == 0, "condition": condition(monitor), "started_ns": 1, "wall_s": 1.0,
        "others_percent": 0.0, "outcome": outcome, "failure": None, "seen": None, "usage": None,
    } | other  # fmt: skip


class Summary(unittest.TestCase):
    def test_only_good_runs_count_and_rounds_are_compared_with_themselves(self) -> None:
        # A drift of 10 % a round, and 2 % for the monitor: only pairs show it.
        drift, jitter = [9.0, 1.0, 1.1, 1.2, 1.3, 1.4], [0.0, 0.001, -0.001, 0.0005, -0.0005, 0.0]
        records = [record(2 * n, n, "none", took) for n, took in enumerate(drift)]
        records += [record(2 * n + 1, n, "ours", took * (1.02 + jitter[n])) for n, took in enumerate(drift)]
        records.append(record(12, 5, "ours", 50.0, failure={"part": "monitor", "reason": "it ended"}))
        wrong = record(13, 5, "ours", 50.0)
        wrong["outcome"]["verified"] = False
        none, ours = summary.rows([condition("none"), condition("ours")], records + [wrong])
        self.assertEqual((none["runs"], none["failed"], none["ratio"], none["significant"]), (5, 0, 1.0, None))
        self.assertEqual((ours["runs"], ours["failed"], ours["significant"]), (5, 2, True))
        self.assertAlmostEqual(none["mean_s"], 1.2)
        self.assertEqual(none["median_s"], 1.2)
        self.assertAlmostEqual(ours["ratio"], 1.02, delta=1e-3)
        self.assertAlmostEqual(ours["median_ratio"], 1.0205)
        self.assertTrue(1.01 < ours["ratio_low"] < ours["ratio_high"] < 1.03, ours)

    def test_the_cost_of_a_monitor_is_per_core_and_per_metric(self) -> None:
        # 2 % of a core over 2 s at 1 ms: 40 ms for 2,000 times 200 values.
        usage = {"node_cpu_ns": 40_000_000, "server_cpu_ns": 1, "window_ns": 2 * 10**9, "rss_kb": 4096, "pss_kb": 4000, "samples": None, "missed": None}
        (row,) = summary.rows([condition("ours")], [record(1, 1, "ours", 1.0, seen={"version": "1", "metrics": 200}, usage=usage)])
        self.assertAlmostEqual(row["node_cpu_share"], 0.02)
        self.assertAlmostEqual(row["us_per_metric"], 0.1)
        self.assertEqual((row["rss_kb"], row["ratio"], row["significant"]), (4096.0, None, None))

    def test_parts_that_a_program_times_are_workloads_of_their_own(self) -> None:
        one = record(1, 1, "none", 3.0)
        one["outcome"]["figures"] = {"first_s": 1.0, "second_s": 2.0}
        conditions = [condition("none"), condition("ours")]
        conditions, records = summary.divide(conditions, [one, record(2, 2, "none", 3.0)], [("ep", ["first", "second"])])
        self.assertEqual([c["workload"] for c in conditions], ["ep", "ep", "first", "first", "second", "second"])
        of = {row["workload"]: (row["runs"], row["failed"], row["mean_s"]) for row in reversed(summary.rows(conditions, records))}
        self.assertEqual(of, {"ep": (2, 0, 3.0), "first": (1, 1, 1.0), "second": (1, 1, 2.0)})


class Folder(unittest.TestCase):
    def test_a_torn_last_line_is_no_run_and_a_damaged_line_is_named(self) -> None:
        with tempfile.TemporaryDirectory() as directory:
            path = Path(directory) / "runs.jsonl"
            self.assertEqual(records.read_records(path), [])
            lines = b"".join(json.dumps(record(run, 1, "none", 1.0)).encode() + b"\n" for run in range(3))
            last = lines[:-1].rindex(b"\n") + 1
            for end in (last, last + 1, len(lines) - 1):
                path.write_bytes(lines[:end])
                self.assertEqual([r["run"] for r in records.read_records(path)], [0, 1], end)
            path.write_bytes(b"{}\n" + lines)
            with self.assertRaisesRegex(records.FolderError, "runs.jsonl:1: not a run"):
                records.read_records(path)

    def test_a_folder_without_an_experiment_is_refused(self) -> None:
        with tempfile.TemporaryDirectory() as directory, self.assertRaisesRegex(records.FolderError, "state.json is missing"):
            folder.write(Path(directory))

    def test_a_setting_that_always_failed_is_left_out_with_its_reason(self) -> None:
        failed = record(1, 1, "ours", 1.0, failure={"part": "monitor", "reason": "not today"})
        state = {"seed": 7, "hosts": 1, "runs": 9, "conditions": [condition("none"), condition("ours")], "left_out": [], "parts": []}
        with tempfile.TemporaryDirectory() as directory:
            path = Path(directory)
            (path / "state.json").write_text(json.dumps(state))
            (path / "experiment.toml").write_text('name = "e"\nrepetitions = 4\n[quiet]\nwarn = 2.0\n')
            runs = [record(0, 0, "none", 1.0, others_percent=2.5), failed]
            (path / "runs.jsonl").write_text("".join(json.dumps(r) + "\n" for r in runs))
            found = folder.write(path)
            self.assertEqual([e["reason"] for e in found["left_out"]], ["no run of it was good, last: not today"])
            about = found["experiment"]
            counts = (about["runs_planned"], about["runs_made"], about["runs_failed"], about["runs_not_quiet"], about["none_per_round"])
            self.assertEqual(counts, (9, 2, 1, 1, 1))
            names = {"results.parquet", "histogram.parquet", "summary.parquet", "monitors.json", "experiment.json"}
            self.assertEqual({p.name for p in path.iterdir()} - {"state.json", "experiment.toml", "runs.jsonl"}, names)
            table = __main__.report(found)
            self.assertIn("e: 2 of 9 runs made, 1 of them failed, seed 7", table)
            self.assertIn("left out: ours same 1ms: no run of it was good", table)
            self.assertIn("(1 failed)", table)


if __name__ == "__main__":
    unittest.main()
