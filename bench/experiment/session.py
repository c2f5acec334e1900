"""Makes the runs that are not made yet, one after the other; each is on disk before the next begins."""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import monitors
import workloads
from harness import BenchError, Json
from monitors.__main__ import version_or_reason

from . import machine, plan, records
from .children import Children, sweep
from .file import Experiment, Known, parse
from .launcher import Site
from .one_run import Run, Stopped
from .plan import Offer, Plan, Planned
from .records import seconds, write_file

# Programs of this project that an experiment may start.
PROGRAMS = ("wholegrain-bench", "wholegrain", "wholegrain-agent")
# Readers of JSON and TOML keep seeds below it exact.
SEED_END = 1 << 53
LOAD_WINDOW_MIN_S = 0.1
# About how long a monitor takes to start and stop: only for estimates.
MONITOR_S = 2.0


def read(path: Path) -> tuple[Experiment, str]:
    try:
        text = path.read_text()
    except OSError as error:
        raise BenchError(f"reading the experiment {path}: {error}") from error
    known = Known(list(workloads.CATALOGUE), {monitor.name: monitor.configurations for monitor in monitors.ALL})
    return parse(path, text, known), text


def offers(experiment: Experiment) -> dict[str, Offer]:
    """What this machine offers of the monitors that the file names, except those with a command of their own."""
    named = {monitor.name for monitor in experiment.monitors if monitor.command is None}
    return {m.name: Offer(*version_or_reason(m), m.shortest_ns) for m in monitors.ALL if m.name in named}


def draw_seed() -> int:
    return secrets.randbelow(SEED_END)


def programs() -> Json:
    """This project's programs, each with a hash of its file: runs of another build are another experiment."""
    bench = Path(os.environ["WHOLEGRAIN_BENCH"])
    paths = {name: bench if name == PROGRAMS[0] else bench.with_name(name) for name in PROGRAMS}
    found = {}
    for name, path in paths.items():
        if path.exists():
            with path.open("rb") as file:
                found[name] = hashlib.file_digest(file, "blake2b").hexdigest()[:16]
    return found


class Session:
    """An experiment with its folder, ready to go on."""

    def __init__(self, file: Path, folder: Path, fresh: bool = False, fresh_when_changed: bool = False, retry_failed: bool = False) -> None:
        self.experiment, text = read(file)
        self.site, self.folder = Site(self.experiment.launcher), folder.absolute()
        self.folder.mkdir(parents=True, exist_ok=True)
        self._lock = records.lock(self.folder)
        if fresh and records.begun(self.folder):
            self._start_again()
        begun = records.begun(self.folder)
        seed = self.experiment.seed
        if seed is None:
            seed = begun[1]["seed"] if begun else draw_seed()
        here = offers(self.experiment)
        self.plan = plan.make(self.experiment, seed, here, len(self.site.hosts))
        parts = [(workload.name, workload.parts) for workload in self.experiment.workloads if workload.parts]
        versions = {name: offer.version or "not installed" for name, offer in here.items()}
        self.identity = records.identity(seed, programs(), versions, len(self.site.hosts), self.plan, parts)
        if begun is not None:
            begun = self._adopt(begun, text, file, fresh_when_changed)
        if begun is None:
            write_file(self.folder / "machine.json", json.dumps(machine.description(len(self.site.hosts)), indent=2).encode())
            records.begin(self.folder, text, self.identity)
        self.journal = records.Journal(self.folder)
        for record in self.journal.records:
            run = record["run"]
            if run >= len(self.plan.runs) or self.plan.conditions[self.plan.runs[run].condition] != record["condition"]:
                raise BenchError(f"run {run} of {self.folder} is not in the plan of its seed: --fresh starts again")
        self.retry_failed = retry_failed
        # Failures in a row count from this record on.
        self.failures_from = len(self.journal.records) if retry_failed else 0

    def _adopt(self, begun: tuple[str, Json], text: str, file: Path, fresh_when_changed: bool) -> tuple[str, Json] | None:
        """Goes on with the experiment of the folder, if it is this one; None when the old one was moved aside."""
        old_text, old = begun
        differs = records.difference(old, self.identity) if old_text == text else f"{file} is not the file it was begun with, {self.folder / 'experiment.toml'}"
        if differs is None:
            self.identity = old
            return begun
        if not fresh_when_changed:
            raise BenchError(
                f"{self.folder} holds runs of another experiment: {differs}. Runs of both in one table would be compared as if they were alike. Name another "
                "--dir, or say --fresh, which moves the old one aside"
            )
        self._start_again()
        return None

    def _start_again(self) -> None:
        aside = records.move_aside(self.folder)
        os.close(self._lock)
        print(f"moved {self.folder} to {aside}", file=sys.stderr)
        self.folder.mkdir(parents=True)
        self._lock = records.lock(self.folder)

    def run(self) -> int | None:
        """Makes all runs that are left; the signal that ended it before, if any."""
        children = Children(self.identity["mark"])
        if left := sweep(self.identity["mark"]):
            print(f"ended processes that an earlier runner had left: {', '.join(left)}", file=sys.stderr)
        self._build_workloads()
        try:
            self._all(children)
        except Stopped:
            return children.stopped
        finally:
            children.end_all()
        return None

    def _build_workloads(self) -> None:
        """Compiles the workloads of this project once, so that no run waits for a compiler."""
        if all(workload.command is not None for workload in self.experiment.workloads):
            return
        command = [self.site.program, "workload", "build", "--dir", str(self.folder / "programs")]
        if subprocess.run(command, stdout=subprocess.DEVNULL).returncode:
            raise BenchError("the workloads cannot be built: the reason is above")

    def _all(self, children: Children) -> None:
        done = {record["run"] for record in self.journal.records}
        todo = [(planned, 0) for planned in self.plan.runs if planned.run not in done]
        if self.retry_failed:
            todo += self._failed()
        total = len(self.plan.runs)
        if not todo:
            print(f"{self.experiment.name}: all of its {total} runs are made; --fresh repeats them", file=sys.stderr)
            return
        about = minutes(self._estimate(todo))
        print(f"{self.experiment.name}: seed {self.identity['seed']}, {len(todo)} runs of {total} to be made, about {about}", file=sys.stderr)
        for at, (planned, attempt) in enumerate(todo):
            if reason := self._given_up(planned):
                print(f"  {plan.describe(self.plan.conditions[planned.condition])} left out: {reason}", file=sys.stderr)
                continue
            record = self._one(planned, attempt, children)
            self._print(record, total, self._estimate(todo[at + 1 :]))
            self.journal.append(record)

    def _estimate(self, todo: Iterable[tuple[Planned, int]]) -> float:
        return estimate(self.experiment, self.plan, self.journal.records, (planned for planned, _ in todo))

    def _failed(self) -> list[tuple[Planned, int]]:
        """Runs whose last attempt failed, with the number of the next one."""
        last = {record["run"]: record for record in self.journal.records}
        return [(planned, last[planned.run]["attempt"] + 1) for planned in self.plan.runs if planned.run in last and last[planned.run]["failure"]]

    def _given_up(self, planned: Planned) -> str | None:
        """Why a run is left out: its monitor's setting, or its workload, has only failed lately."""
        condition = self.plan.conditions[planned.condition]

        def in_a_row(part: str, key: Callable[[Json], object]) -> str | None:
            reasons = []
            for record in reversed(self.journal.records[self.failures_from :]):
                if key(record["condition"]) != key(condition):
                    continue
                if not record["failure"] or record["failure"]["part"] != part:
                    break
                reasons.append(record["failure"]["reason"])
            return f"failed {len(reasons)} times in a row, last: {reasons[0]}" if len(reasons) >= self.experiment.failures else None

        has_monitor = condition["interval_ns"] is not None
        return in_a_row("workload", plan.load) or (in_a_row("monitor", plan.setting) if has_monitor else None)

    def _one(self, planned: Planned, attempt: int, children: Children) -> Json:
        condition = self.plan.conditions[planned.condition]
        others_percent = self._wait_for_quiet(children)
        name = f"run-{planned.run:06}.{attempt}"
        work, logs = self.folder / "work" / name, self.folder / "logs"
        shutil.rmtree(work, ignore_errors=True)
        work.mkdir(parents=True)
        logs.mkdir(exist_ok=True)
        _remove_logs(logs, name)
        started_ns, begun = time.time_ns(), time.monotonic()
        hosts = len(self.site.hosts)
        workload = next(w for w in self.experiment.workloads if (w.name, w.size, w.ranks, w.hosts or hosts) == plan.load(condition))
        run = Run(self.experiment, self.site, children, condition, workload, work, self.folder / "programs", logs / name)
        try:
            result = run.make()
        except Stopped:
            shutil.rmtree(work, ignore_errors=True)
            raise
        if not result["failure"]:
            shutil.rmtree(work, ignore_errors=True)
            _remove_logs(logs, name)
        # The files that a setting was started with are long and always the same: the first record keeps them.
        if result["seen"] and any(r["seen"] and plan.setting(r["condition"]) == plan.setting(condition) for r in self.journal.records):
            del result["seen"]["configured"]
        return {
            "run": planned.run, "attempt": attempt, "round": planned.round, "warm_up": planned.warm_up, "condition": condition,
            "started_ns": started_ns, "wall_s": time.monotonic() - begun, "others_percent": others_percent, **result,
        }  # fmt: skip

    def _wait_for_quiet(self, children: Children) -> float:
        """Measures the load of others during the pause before a run, and longer where the file asks for it."""
        begun = time.monotonic()
        while True:
            before = machine.Load()
            children.pause(max(self.experiment.pause_ns / 1e9, LOAD_WINDOW_MIN_S))
            if children.stopped is not None:
                raise Stopped
            percent = machine.Load().percent_since(before)
            if percent <= self.experiment.quiet_percent or time.monotonic() - begun >= self.experiment.quiet_wait_ns / 1e9:
                return percent

    def _print(self, record: Json, total: int, left_s: float) -> None:
        failure, took, others = record["failure"], seconds(record), record["others_percent"]
        result = f"FAILED: {failure['part']}: {failure['reason']}" if failure else f"{took:.3f} s" if took is not None else "no time"
        number = "warm-up" if record["warm_up"] else f"round {record['round'] + 1 - self.experiment.warm_up}"
        noise = f"; others used {others:.0f} % of a core before it" if others > self.experiment.quiet_percent else ""
        what = plan.describe(record["condition"])
        print(f"  {record['run'] + 1}/{total}  {number}  {what}  {result}  ({minutes(left_s)} left{noise})", file=sys.stderr)


def estimate(experiment: Experiment, made: Plan, done: list[Json], runs: Iterable[Planned]) -> float:
    """About how long runs take, s: as long as those of the same kind did, or as the file expects."""

    def mean_of(same: Callable[[Json], bool]) -> float | None:
        took = [record["wall_s"] for record in done if same(record["condition"])]
        return sum(took) / len(took) if took else None

    def guess(condition: Json) -> float:
        expected = next((w.expect_ns / 1e9 for w in experiment.workloads if (w.name, w.size) == (condition["workload"], condition["size"])), 0.0)
        same = mean_of(lambda other: other == condition) or mean_of(lambda other: plan.load(other) == plan.load(condition))
        return same or expected + (MONITOR_S if condition["interval_ns"] is not None else 0)

    each = [guess(condition) for condition in made.conditions]
    pause = max(experiment.pause_ns / 1e9, LOAD_WINDOW_MIN_S)
    return sum((each[planned.condition] + pause for planned in runs), 0.0)


def minutes(seconds_: float) -> str:
    """A length of time for people."""
    if seconds_ < 90:
        return f"{seconds_:.0f} s"
    return f"{seconds_ / 60:.0f} min" if seconds_ < 5400 else f"{seconds_ / 3600:.1f} h"


def _remove_logs(folder: Path, run: str) -> None:
    """Removes the logs of one run: `<run>-workload`, `<run>-monitor` and one of each node."""
    for path in folder.glob(f"{run}-*"):
        path.unlink()
