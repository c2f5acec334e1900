"""The parts of the runner that start no monitor: file, order, folder, machine. `bench/tests/experiment.rs` starts real processes."""

from __future__ import annotations

import json
import subprocess
import time
from pathlib import Path

import pytest

from harness import BenchError, cpu_ns, parse_interval

from . import machine, plan, records
from .file import Experiment, Known, parse
from .one_run import in_job, last_words, outcome_of
from .plan import Offer, Plan
from .test_experiment import condition, record

KNOWN = Known(["ep", "wavefront", "noise"], {"wholegrain": ["default", "same"], "collectd": ["default"], "bare": ["tick", "reads"]})
# Two workloads beside four settings of ours, one of another, and none.
WHOLE = """
name = "both"
repetitions = 3
warm_up = 1
none_per_round = 2
intervals = ["1ms", "1s"]

[[workload]]
name = "ep"
size = "S"
ranks = 2

[[workload]]
name = "mine"
command = ["./mine", "{ranks}"]
timed_by = "program"

[[monitor]]
name = "wholegrain"
configurations = ["same", "default"]

[[monitor]]
name = "collectd"
intervals = ["10ms"]
workloads = ["ep"]

[limits]
run = "1min"
"""
BASE = 'name = "x"\nrepetitions = 2\n'
EP = '[[workload]]\nname = "ep"\nsize = "S"\n'
OWN = '[[workload]]\nname = "own"\nsize = "S"\ncommand = ["x"]\n'


def read(text: str) -> Experiment:
    return parse(Path("e.toml"), text, KNOWN)


def test_a_file_is_read_as_written() -> None:
    experiment = read(WHOLE)
    assert (experiment.seed, experiment.repetitions, experiment.warm_up) == (None, 3, 1)
    assert experiment.workloads[1].timed_by == "program"
    assert experiment.monitors[0].intervals_ns == [10**6, 10**9]
    assert experiment.monitors[1].configurations == ["default"]
    assert (experiment.launcher.kind, experiment.run_ns, experiment.ready_ns) == ("local", 60 * 10**9, 60 * 10**9)


def monitor(rest: str) -> str:
    return f"{BASE}{EP}[[monitor]]\n{rest}\n"


@pytest.mark.parametrize(("text", "expected"), [
    ('name = "x"\nrepetition = 2\n', "e.toml:2: unknown key `repetition`; did you mean `repetitions`?"),
    ('name = "a b"\nrepetitions = 2\n', "e.toml:1: name = 'a b'"),
    ('name = "x"\nrepetitions = 0\n', "e.toml:2: repetitions is from 1"),
    (BASE, "e.toml:1: nothing to run"),
    (f"{BASE}{EP}rank = 2\n", "e.toml:6: unknown key `rank`; did you mean `ranks`?"),
    (f'{BASE}[[workload]]\nname = "wavefrnt"\n', "e.toml:4: unknown workload `wavefrnt`; did you mean `wavefront`?"),
    (f'{BASE}[[workload]]\nname = "ep"\n', "e.toml:3: ep needs a size"),
    (f"{BASE}{EP}ranks = 0\n", "e.toml:6: ranks is at least 1"),
    (f'{BASE}{EP}timed_by = "runner"\n', "e.toml:6: timed_by is for a `command`"),
    (f'{BASE}{OWN}timed_by = "runer"\n', "e.toml:7: unknown value `runer`; did you mean `runner`?"),
    (f"{BASE}{EP}{EP}", "e.toml:1: ep of this size"),
    (monitor('name = "colectd"'), "e.toml:7: unknown monitor `colectd`; did you mean `collectd`?"),
    (monitor('name = "none"'), "e.toml:7: runs without a monitor are in every round"),
    (monitor('name = "collectd"'), "e.toml:7: collectd has no intervals"),
    (monitor('name = "wholegrain"\nconfigurations = ["same", "defualt"]'), "e.toml:8: unknown configuration of wholegrain `defualt`; did you mean `default`?"),
    (monitor('name = "bare"\nintervals = ["1"]'), 'e.toml:8: "1" is not a length of time'),
    (monitor('name = "bare"\nintervals = ["0s"]'), "e.toml:8: a sampling period is longer than 0"),
    (monitor('name = "bare"\nintervals = ["1s"]\nworkloads = ["eq"]'), "e.toml:9: unknown workload of this file `eq`; expected one of `ep`"),
    (monitor('name = "bare"\nintervals = ["1s"]\n[[monitor]]\nname = "bare"\nintervals = ["1s"]\nworkloads = ["ep"]'), "e.toml:1: bare tick at 1s is named twice"),
    (f'{BASE}{EP}{OWN}parts = ["ep"]\n', "e.toml:1: ep of own is named twice"),
    (f'{BASE}{OWN}parts = ["a", "a"]\n', "e.toml:1: a of own is named twice"),
    (f'{BASE}{EP}[launcher]\nkind = "mpirun"\n', "e.toml:7: mpirun needs either"),
    (f'{BASE}{EP}[launcher]\nkind = "slrm"\n', "e.toml:7: unknown value `slrm`; did you mean `slurm`?"),
    (f'{BASE}{EP}[limits]\nrun = "0s"\n', "e.toml:7: run is the longest time"),
    (f"{BASE}{EP}[quiet]\nwarn = 0.0\n", "e.toml:7: warn is a share"),
])  # fmt: skip
def test_mistakes_are_reported_with_line_and_the_nearest_word(text: str, expected: str) -> None:
    with pytest.raises(BenchError) as error:
        read(text)
    assert str(error.value).startswith(expected)


def offers(collectd: str | None = "5") -> dict[str, Offer]:
    theirs = Offer(collectd, None if collectd else "install collectd-core", 10**7)
    return {"wholegrain": Offer("1", None, 10**6), "collectd": theirs}


def made(text: str, seed: int) -> Plan:
    return plan.make(read(text), seed, offers(), 1)


def test_the_order_depends_on_the_seed_alone() -> None:
    assert made(WHOLE, 7) == made(WHOLE, 7)
    assert made(WHOLE, 7).runs != made(WHOLE, 8).runs
    assert made(WHOLE, 7).runs == made(WHOLE.replace('[limits]\nrun = "1min"', "[quiet]\nwarn = 20.0"), 7).runs


def test_each_round_makes_every_setting_once_in_an_order_of_its_own() -> None:
    whole = made(WHOLE, 7)
    # ep: none, 2 x 2 of ours, collectd; mine: none, 2 x 2 of ours.
    assert (len(whole.conditions), whole.left_out) == (11, [])
    rounds = [[run.condition for run in whole.runs if run.round == number] for number in range(4)]
    for one in rounds:
        for at, own in enumerate(whole.conditions):
            assert one.count(at) == (2 if own["interval_ns"] is None else 1), own
        assert len(one) == 11 + 2
    assert all(a != b for a, b in zip(rounds, rounds[1:]))
    assert [run.run for run in whole.runs] == list(range(4 * 13))
    assert all(run.warm_up == (run.round == 0) for run in whole.runs)


def test_a_period_that_a_monitor_does_not_accept_is_left_out_with_the_reason() -> None:
    experiment = read(WHOLE.replace('intervals = ["10ms"]', 'intervals = ["1ms", "10ms"]'))
    (left,) = plan.make(experiment, 1, offers(), 1).left_out
    assert (left["monitor"], left["interval_ns"], left["reason"]) == ("collectd", 10**6, "10ms is its shortest period")
    without = plan.make(experiment, 1, offers(None), 1)
    assert [entry["reason"] for entry in without.left_out] == ["install collectd-core"] * 2
    assert all(own["monitor"] != "collectd" for own in without.conditions)


def test_a_workload_on_more_hosts_than_there_are_is_refused() -> None:
    text = WHOLE.replace("ranks = 2", "ranks = 2\nhosts = 2")
    with pytest.raises(BenchError, match="ep is to run on 2 hosts; the launcher has 1"):
        made(text, 1)
    twice = read(f'{text}[[workload]]\nname = "ep"\nsize = "S"\nranks = 2\n')
    with pytest.raises(BenchError, match="ep S x2 on 2, none is named twice"):
        plan.make(twice, 1, offers(), 2)
    hosts = {(own["workload"], own["hosts"]) for own in plan.make(twice, 1, offers(), 4).conditions}
    assert hosts == {("ep", 2), ("ep", 4), ("mine", 4)}


def test_a_torn_last_line_is_cut_off_and_the_rest_kept(tmp_path: Path) -> None:
    journal = records.Journal(tmp_path)
    for run in range(3):
        journal.append(record(run, run, "none", 1.0))
    path = tmp_path / "runs.jsonl"
    whole = path.read_bytes()
    last = whole[:-1].rindex(b"\n") + 1
    # A crash at any byte of the last line loses that line and no other.
    for end in range(last, len(whole), 20):
        path.write_bytes(whole[:end])
        journal = records.Journal(tmp_path)
        assert len(journal.records) == 2, end
        journal.append(record(9, 0, "none", 1.0))
        assert [r["run"] for r in records.read_records(path)] == [0, 1, 9], end


def test_the_first_difference_between_two_starts_is_reported() -> None:
    def of(seed: int = 7, program: str = "aa", monitors: dict[str, str] | None = None, hosts: int = 1) -> dict[str, object]:
        return records.identity(seed, {"wholegrain": program}, {"collectd": "5"} if monitors is None else monitors, hosts, Plan([], [], []), [])

    assert records.difference(of(), of()) is None
    assert records.difference(of(), of(seed=8)) == "its seed is 7, not 8"
    assert records.difference(of(), of(program="ab")) == "its program wholegrain was aa, and is now ab"
    assert records.difference(of(), of(monitors={})) == "its monitor collectd was 5, and is now none"
    assert records.difference(of(), of(hosts=2)) == "it was made on 1 hosts, and there are 2 now"


def test_a_workload_enters_the_job_before_it_begins(tmp_path: Path) -> None:
    files = [str(tmp_path / "a"), str(tmp_path / "b c")]
    command = in_job(files, ["sh", "-c", 'cat "$1" "$2"; echo $3', "sh", *files, "x y"])
    assert subprocess.run(command, capture_output=True, text=True).stdout == "0\n0\nx y\n"
    # A job that cannot be entered is no run of the workload outside of it.
    gone = subprocess.run(in_job([str(tmp_path / "none/procs")], ["echo", "outside"]), capture_output=True, text=True)
    assert gone.returncode and not gone.stdout
    assert in_job([], ["true"]) == ["true"]


def test_the_last_words_are_the_error() -> None:
    text = "starting\nError: no such file\n\nCaused by:\n    nothing\n\nStack backtrace:\n   0: main\n"
    assert last_words(text) == "Error: no such file; Caused by:; nothing"
    assert last_words("a\nb\n--\nc\nd\n") == "b; c; d"
    assert last_words("") == ""


def test_only_a_whole_outcome_is_one() -> None:
    outcome = record(0, 0, "none", 1.5)["outcome"]
    assert outcome_of(json.dumps(outcome)) == outcome
    for line in ("", "[1]", "3", '{"ready": {}}', json.dumps(outcome | {"seconds": "x"})):
        assert outcome_of(line) is None, line
    assert condition("none")["interval_ns"] is None


def test_the_machine_is_described_in_general_terms() -> None:
    assert machine.general("Intel(R) Xeon(R) Processor @ 2.10GHz") == "Intel Xeon @ 2.10GHz"
    described = machine.description(1)
    assert described["cores"] > 0 and described["memory_gib"] > 0
    assert Path("/proc/sys/kernel/hostname").read_text().strip() not in [str(value) for value in described.values()]


def test_the_use_of_another_process_is_measured() -> None:
    before = machine.Load()
    child = subprocess.Popen(["sh", "-c", "while :; do :; done"])

    # Its own CPU time, not the clock's, ends the wait: the machine may be busy.
    def used(ns: int) -> None:
        deadline = time.monotonic() + 60
        while cpu_ns(child.pid) < ns and time.monotonic() < deadline:
            time.sleep(0.005)

    used(10**8)
    middle = machine.Load()
    used(2 * 10**8)
    after = machine.Load()
    child.kill()
    child.wait()
    assert after.percent_since(middle) >= 0.09 / (after.at - middle.at) * 100
    # One that began within the window is in the kernel's sum only.
    assert middle.percent_since(before) > 0


@pytest.mark.parametrize(("text", "ns"), [("1ms", 10**6), ("1.5s", 1_500_000_000), ("1h30min", 5400 * 10**9), ("50us", 50_000), ("0s", 0)])
def test_intervals(text: str, ns: int) -> None:
    assert parse_interval(text) == ns


@pytest.mark.parametrize("text", ["", "5", "1 s", "s", "1x", "1..5s"])
def test_a_number_without_a_unit_is_no_interval(text: str) -> None:
    with pytest.raises(BenchError, match="write a number with a unit"):
        parse_interval(text)
