"""An experiment's file, checked: every mistake is reported with file, line and the nearest valid word."""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness import BenchError, interval_name, parse_interval

COUNT_MAX = 10_000
NO_MONITOR = "none"
KINDS = ("local", "mpirun", "slurm")
TIMED_BY = ("runner", "program")
SECOND = 10**9


@dataclass(frozen=True)
class Known:
    """The workloads and the monitors with their configurations that a file can name."""

    workloads: Sequence[str]
    monitors: Mapping[str, Sequence[str]]


@dataclass
class Workload:
    name: str
    size: str
    ranks: int
    # Nodes it runs on, the first of the launcher's; None for all.
    hosts: int | None
    # A program of the user's own.
    command: list[str] | None
    timed_by: str
    # Its outcome has a figure `<part>_s` for each; each is shown as a workload of its own.
    parts: list[str]
    expect_ns: int


@dataclass
class MonitorUse:
    name: str
    configurations: list[str]
    intervals_ns: list[int]
    # Only beside these; all when empty.
    workloads: list[str]
    command: list[str] | None


@dataclass
class Launcher:
    kind: str = "local"
    hosts: list[str] = field(default_factory=list)
    # The words that start ranks, and a monitor's part on one host, in place of the kind's own.
    workload: str | None = None
    monitor: str | None = None


@dataclass
class Experiment:
    name: str
    seed: int | None
    repetitions: int
    warm_up: int
    none_per_round: int
    pause_ns: int
    workloads: list[Workload]
    monitors: list[MonitorUse]
    launcher: Launcher
    # Limits: a workload's run, until a monitor samples on all nodes, until it has stopped, failures in a row.
    run_ns: int
    ready_ns: int
    stop_ns: int
    failures: int
    quiet_percent: float
    quiet_wait_ns: int


class Table:
    """A table of a TOML file, whose keys are taken one by one; what is left is unknown."""

    def __init__(self, path: Path, text: str, values: dict[str, Any], header: str = "", index: int = 0) -> None:
        self._path, self._text, self._values, self._header, self._index = path, text, dict(values), header, index
        self._known: list[str] = []

    def error(self, key: str, message: str) -> BenchError:
        return BenchError(f"{self._path}:{self._line(key)}: {message}")

    def _line(self, key: str) -> int:
        """The line of a key, else of the table's header."""
        lines = self._text.splitlines()
        headers = [at for at, line in enumerate(lines) if re.match(rf"\s*\[+\s*{re.escape(self._header)}\s*\]+", line)] if self._header else [-1]
        begin = headers[self._index] if self._index < len(headers) else -1
        for at in range(begin + 1, len(lines)):
            if re.match(r"\s*\[", lines[at]):
                break
            if re.match(rf"\s*{re.escape(key)}\s*=", lines[at]):
                return at + 1
        return max(begin, 0) + 1

    def take(self, key: str, kind: type, default: Any = None, required: bool = False) -> Any:
        self._known.append(key)
        if key not in self._values:
            if required:
                raise self.error(key, f"missing key `{key}`")
            return default
        value = self._values.pop(key)
        if kind is float and isinstance(value, int):
            value = float(value)
        if not isinstance(value, kind) or isinstance(value, bool):
            raise self.error(key, f"{key} = {value!r}: a {'whole number' if kind is int else kind.__name__} is expected")
        return value

    def strings(self, key: str) -> list[str] | None:
        value: list[str] | None = self.take(key, list)
        if value is not None and not all(isinstance(word, str) for word in value):
            raise self.error(key, f"{key} is a list of strings")
        return value

    def word(self, key: str, choices: Sequence[str]) -> str:
        value = str(self.take(key, str, choices[0]))
        if value not in choices:
            raise self.error(key, unknown("value", value, choices))
        return value

    def interval(self, key: str, default: int) -> int:
        value = self.take(key, str)
        return default if value is None else self._interval(key, value)

    def intervals(self, key: str) -> list[int]:
        found = [self._interval(key, text) for text in self.strings(key) or []]
        if 0 in found:
            raise self.error(key, "a sampling period is longer than 0")
        return found

    def _interval(self, key: str, text: str) -> int:
        try:
            return parse_interval(text)
        except BenchError as error:
            raise self.error(key, str(error)) from error

    def count(self, key: str, default: int) -> int:
        value = int(self.take(key, int, default))
        if not 1 <= value <= COUNT_MAX:
            raise self.error(key, f"{key} is from 1 to {COUNT_MAX}")
        return value

    def table(self, key: str) -> Table:
        return Table(self._path, self._text, self.take(key, dict, {}), key)

    def tables(self, key: str) -> list[Table]:
        return [Table(self._path, self._text, values, key, index) for index, values in enumerate(self.take(key, list, []))]

    def end(self) -> None:
        for key in self._values:
            raise self.error(key, unknown("key", key, self._known))


def unknown(kind: str, word: str, known: Iterable[str]) -> str:
    words = list(known)
    near = difflib.get_close_matches(word, words, 1)
    hint = f"did you mean `{near[0]}`?" if near else f"expected one of {', '.join(f'`{word}`' for word in words)}"
    return f"unknown {kind} `{word}`; {hint}"


def parse(path: Path, text: str, known: Known) -> Experiment:
    try:
        root = Table(path, text, tomllib.loads(text))
    except tomllib.TOMLDecodeError as error:
        raise BenchError(f"{path}: {error}") from error
    name = str(root.take("name", str, required=True))
    if not re.fullmatch(r"[A-Za-z0-9._-]+", name):
        raise root.error("name", f"name = {name!r}: letters, digits, `-`, `_` and `.` make a name")
    repetitions, usual = root.take("repetitions", int), root.intervals("intervals")
    workloads = [_workload(table, known) for table in root.tables("workload")]
    monitors = [_monitor(table, known, usual, [w.name for w in workloads]) for table in root.tables("monitor")]
    limits, quiet = root.table("limits"), root.table("quiet")
    experiment = Experiment(
        name=name,
        seed=root.take("seed", int),
        warm_up=min(int(root.take("warm_up", int, 1)), COUNT_MAX),
        none_per_round=root.count("none_per_round", 1),
        pause_ns=root.interval("pause", SECOND * 3 // 10),
        launcher=_launcher(root.table("launcher"), path),
        workloads=workloads,
        monitors=monitors,
        run_ns=limits.interval("run", 900 * SECOND),
        ready_ns=limits.interval("ready", 60 * SECOND),
        stop_ns=limits.interval("stop", 30 * SECOND),
        failures=limits.count("failures", 3),
        quiet_percent=quiet.take("warn", float, 5.0),
        quiet_wait_ns=quiet.interval("wait", 0),
        repetitions=repetitions or 0,
    )
    for table in (root, limits, quiet):
        table.end()
    if repetitions is None:
        raise root.error("repetitions", "missing key `repetitions`")
    if not 1 <= repetitions <= COUNT_MAX:
        raise root.error("repetitions", f"repetitions is from 1 to {COUNT_MAX}")
    if not workloads:
        raise root.error("name", "nothing to run: name at least one [[workload]]")
    for key in ("run", "ready", "stop"):
        if not getattr(experiment, f"{key}_ns"):
            raise limits.error(key, f"{key} is the longest time that it may take; it must not be 0")
    if not experiment.quiet_percent > 0:
        raise quiet.error("warn", "warn is a share of one core in percent, above 0")
    _refuse_duplicates(root, experiment)
    return experiment


def _workload(table: Table, known: Known) -> Workload:
    name, command = str(table.take("name", str, required=True)), table.strings("command")
    if command is None and name not in known.workloads:
        raise table.error("name", f"{unknown('workload', name, known.workloads)} A program of your own has a `command`.")
    if command == []:
        raise table.error("command", 'a command is a program and its arguments: ["./app", "{ranks}"]')
    ranks, hosts = int(table.take("ranks", int, 1)), table.take("hosts", int)
    if ranks < 1:
        raise table.error("ranks", "ranks is at least 1")
    if hosts is not None and hosts < 1:
        raise table.error("hosts", "hosts is at least 1, or left out for all")
    size = str(table.take("size", str, ""))
    if command is None and not size:
        raise table.error("size", f'{name} needs a size, such as size = "W"')
    if command is None and "timed_by" in table._values:
        raise table.error("timed_by", f"timed_by is for a `command`; {name} measures its own time")
    parts = table.strings("parts") or []
    if name in parts:
        raise table.error("parts", f"{name} cannot be a part of itself")
    workload = Workload(name, size, ranks, hosts, command, table.word("timed_by", TIMED_BY), parts, table.interval("expect", 5 * SECOND))
    table.end()
    return workload


def _monitor(table: Table, known: Known, usual: list[int], workloads: list[str]) -> MonitorUse:
    name, command = str(table.take("name", str, required=True)), table.strings("command")
    if name == NO_MONITOR:
        raise table.error("name", "runs without a monitor are in every round by themselves")
    if command == []:
        raise table.error("command", "a command is a program and its arguments")
    configurations = table.strings("configurations") or []
    if command is None:
        if name not in known.monitors:
            raise table.error("name", unknown("monitor", name, known.monitors))
        for configuration in configurations:
            if configuration not in known.monitors[name]:
                raise table.error("configurations", unknown(f"configuration of {name}", configuration, known.monitors[name]))
    configurations = configurations or ["own" if command else known.monitors[name][0]]
    intervals = table.intervals("intervals") or usual
    if not intervals:
        raise table.error("name", f"{name} has no intervals, and the file has none for all")
    beside = table.strings("workloads") or []
    for workload in beside:
        if workload not in workloads:
            raise table.error("workloads", unknown("workload of this file", workload, workloads))
    table.end()
    return MonitorUse(name, configurations, intervals, beside, command)


def _launcher(table: Table, path: Path) -> Launcher:
    kind, hosts, hostfile = table.word("kind", KINDS), table.strings("hosts"), table.take("hostfile", str)
    if kind != "mpirun" and (hosts is not None or hostfile is not None):
        raise table.error("hosts", 'hosts and hostfile are for kind = "mpirun"')
    if kind == "mpirun":
        if (hosts is None) == (hostfile is None):
            raise table.error("kind", 'mpirun needs either `hosts = ["n1", "n2"]` or `hostfile`')
        if hostfile is not None:
            try:
                lines = (path.parent / hostfile).read_text().splitlines()
            except OSError as error:
                raise table.error("hostfile", f"cannot read {path.parent / hostfile}: {error}") from error
            hosts = [words[0] for line in lines if (words := line.split("#")[0].split())]
        if not hosts:
            raise table.error("hosts", "no host is named")
    launcher = Launcher(kind, hosts or [], table.take("workload", str), table.take("monitor", str))
    table.end()
    return launcher


def _refuse_duplicates(root: Table, experiment: Experiment) -> None:
    """Runs of a thing that is named twice would be taken for repetitions of each other."""
    loads = [(w.name, w.size, w.ranks, w.hosts) for w in experiment.workloads]
    for at, load in enumerate(loads):
        if load in loads[:at]:
            raise root.error("workload", f"{load[0]} of this size, with these ranks and hosts, is named twice")
    # A part is shown as a workload of that name.
    names, parts = {w.name for w in experiment.workloads}, set()
    for workload in experiment.workloads:
        for part in workload.parts:
            key = (part, workload.size, workload.ranks)
            if part in names or key in parts:
                raise root.error("workload", f"{part} of {workload.name} is named twice, as a part or a workload")
            parts.add(key)
    settings = set()
    for monitor in experiment.monitors:
        for configuration in monitor.configurations:
            for interval in monitor.intervals_ns:
                for workload_name in sorted(set(monitor.workloads) or names):
                    setting = (monitor.name, configuration, interval, workload_name)
                    if setting in settings:
                        raise root.error("monitor", f"{monitor.name} {configuration} at {interval_name(interval)} is named twice")
                    settings.add(setting)
