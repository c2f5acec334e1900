"""The state of an experiment's folder: its identity, and the journal of finished runs.

A run is one line of JSON, appended with one write and synchronised before the next run begins. A crash can only tear the last line, which is cut off when
the file is opened again; its run is then made again.
"""

from __future__ import annotations

import fcntl
import json
import os
import sys
import time
from collections.abc import Iterable
from pathlib import Path

from harness import BenchError, Json

from .plan import Plan

FORMAT = 1
ASIDE_MAX = 10_000


class FolderError(BenchError):
    """The folder holds no experiment, or a file of it is damaged."""


def read_records(path: Path) -> list[Json]:
    """The finished runs. A last line without its end is a run that a crash interrupted."""
    lines = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
    records = []
    for number, line in enumerate(lines, 1):
        try:
            record = json.loads(line)
            seconds(record)
        except (ValueError, TypeError, KeyError) as error:
            raise FolderError(f"{path}:{number}: not a run: another program changed the file; `experiment run --fresh` starts again") from error
        records.append(record)
    return records


def seconds(record: Json) -> float | None:
    """The run time, if the run counts: nothing failed and the workload verified its result."""
    outcome = record["outcome"]
    return outcome["seconds"] if outcome and outcome["verified"] and not record["failure"] else None


def write_file(path: Path, content: bytes) -> None:
    """Replaces a file as a whole: whatever happens, it has either its old content or its new."""
    partial = path.with_name(f".{path.name}.new")
    with partial.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)


def identity(
    seed: int, programs: Json, monitors: Json, hosts: int, plan: Plan, parts: Iterable[tuple[str, list[str]]]
) -> Json:
    """What all runs of a folder have in common."""
    return {
        "format": FORMAT, "seed": seed, "programs": programs, "monitors": monitors, "hosts": hosts, "left_out": plan.left_out,
        "conditions": plan.conditions, "runs": len(plan.runs), "parts": list(parts), "mark": f"{seed:x}-{os.getpid():x}-{time.time_ns():x}",
    }  # fmt: skip


def difference(old: Json, new: Json) -> str | None:
    """The first difference between the identity of a folder and that of runs to be added."""
    if old["format"] != new["format"]:
        return f"its files have form {old['format']}, this program writes {new['format']}"
    if old["seed"] != new["seed"]:
        return f"its seed is {old['seed']}, not {new['seed']}"
    for kind in ("program", "monitor"):
        before, now = old[f"{kind}s"], new[f"{kind}s"]
        for name in {**before, **now}:
            if before.get(name, "none") != now.get(name, "none"):
                return f"its {kind} {name} was {before.get(name, 'none')}, and is now {now.get(name, 'none')}"
    if old["hosts"] != new["hosts"]:
        return f"it was made on {old['hosts']} hosts, and there are {new['hosts']} now"
    return None


def begun(folder: Path) -> tuple[str, Json] | None:
    """The experiment's text and identity; None where no experiment was begun."""
    state = folder / "state.json"
    if not state.exists():
        return None
    try:
        return (folder / "experiment.toml").read_text(), json.loads(state.read_text())
    except ValueError as error:
        raise FolderError(f"{state}: {error}") from error


def begin(folder: Path, text: str, state: Json) -> None:
    """The text first, so that an identity always has one."""
    write_file(folder / "experiment.toml", text.encode())
    write_file(folder / "state.json", json.dumps(state, indent=2).encode())


def move_aside(folder: Path) -> Path:
    """Moves everything to a name of its own beside the folder."""
    names = (folder.with_name(f"{folder.name}.old-{number}") for number in range(1, ASIDE_MAX))
    aside = next((path for path in names if not path.exists()), None)
    if aside is None:
        raise BenchError(f"{folder} was moved aside too often: remove some of the old folders")
    folder.rename(aside)
    return aside


def lock(folder: Path) -> int:
    """Locks the folder against a second runner, as long as this process lives."""
    descriptor = os.open(folder / "lock", os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise BenchError(f"another runner of this experiment is at work in this folder ({folder / 'lock'})") from None
    return descriptor


class Journal:
    """The finished runs, open for more. A torn last line is cut off."""

    def __init__(self, folder: Path) -> None:
        path = folder / "runs.jsonl"
        self.records = read_records(path)
        content = path.read_bytes() if path.exists() else b""
        self._end = content.rfind(b"\n") + 1
        self._file = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC)
        if len(content) > self._end:
            print(f"the last run of {path} was not written to its end; it is made again", file=sys.stderr)
            os.ftruncate(self._file, self._end)
        os.fsync(self._file)
        _sync(folder)

    def append(self, record: Json) -> None:
        """Adds a run; when this returns it is on disk."""
        line = json.dumps(record).encode() + b"\n"
        written = os.pwrite(self._file, line, self._end)
        if written != len(line):
            raise OSError(f"only {written} of {len(line)} bytes of a finished run were written; earlier runs are kept")
        os.fsync(self._file)
        self._end += len(line)
        self.records.append(record)


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    os.fsync(descriptor)
    os.close(descriptor)
