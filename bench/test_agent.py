"""The arithmetic of the costs of agent and jobs, and the common form of results."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from harness import figures_of, quantile, timestamp_ns, write_result
from jobs import first_at, own_rules


@pytest.mark.parametrize(("text", "ns"), [("1970-01-01T00:00:01Z", 10**9), ("1970-01-01T00:00:00.25Z", 250_000_000), ("1970-01-01T00:00:00.000000007Z", 7)])
def test_times_of_the_client(text: str, ns: int) -> None:
    assert timestamp_ns(text) == ns


def test_quantiles_are_measured_values() -> None:
    assert [quantile(list(range(101, 0, -1)), share) for share in (0.0, 0.5, 0.99, 1.0)] == [1, 51, 100, 101]


def test_every_number_becomes_a_figure_by_its_path() -> None:
    assert figures_of({"10ms": {"agent_us": 2.5, "ratios": [3.0, 1.0, 2.0]}, "text": "x", "flag": True, "none": []}) == [
        {"name": "10ms.agent_us", "value": 2.5, "unit": "us", "spread": [2.5, 2.5]},
        {"name": "10ms.ratios", "value": 2.0, "unit": "", "spread": [1.0, 3.0]},
    ]


def test_a_result_has_date_command_and_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WHOLEGRAIN_BENCH_COMMAND", "all")
    write_result("x", {"a_s": 1})
    found = json.loads((tmp_path / "target/bench/x.json").read_text())
    assert (found["benchmark"], found["command"], found["a_s"]) == ("x", "wholegrain-bench all", 1)
    assert found["machine"]["cores"] > 0 and found["date"].endswith("Z") and found["figures"][0]["name"] == "a_s"


def test_the_first_sample_at_a_rate_is_found() -> None:
    times = [0, 10, 20, 28, 42, 56]
    assert [first_at(times, interval) for interval in (14, 10, 30)] == [28, 0, None]
    assert own_rules({"rules": [{"id": 3, "until": "2026-01-01T00:00:00Z"}, {"id": 1, "until": None}]}) == [3]
