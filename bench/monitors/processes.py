"""The processes of a monitor: their output goes to files, the use of all that they start is counted, and stopping leaves none of them.

A process that ended and whose parent waited for it is in that parent's account of its children, so the CPU time of a tree is that of its living members,
each with its ended children. Processes that lose their parent come to this one, which waits for none of them before the end; a variable in their
environment says to which part they belong.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from harness import POLL_S, READY_MAX_S, BenchError, Json, children_cpu_ns, cpu_ns, memory_kb, processes, stat_fields

STOP_MAX_S = 10.0
PART = "WHOLEGRAIN_MONITOR_PART"
# The server's part takes what the programs leave, as a server elsewhere would take nothing.
SERVER_NICE = 19
LOG_SHOWN = 2000
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_LIBC = ctypes.CDLL(None)


@dataclass
class Process:
    name: str
    server: bool
    child: subprocess.Popen[bytes]
    log: Path


def adopt_orphans() -> None:
    """From now on processes that lose their parent become children of this one."""
    _LIBC.prctl(_PR_SET_CHILD_SUBREAPER, 1)


def die_with_parent(number: int) -> None:
    """Between fork and exec: the kernel signals this process when its parent ends."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, number)


class Processes:
    def __init__(self) -> None:
        adopt_orphans()
        self.all: list[Process] = []
        # Children of this process that are no part of the monitor and end by themselves.
        self.helpers: set[int] = set()

    def start(self, name: str, server: bool, command: Sequence[str], log: Path, env: dict[str, str] | None = None, cwd: Path | None = None) -> None:
        """Starts a program that stays in the foreground."""

        def before_exec() -> None:
            die_with_parent(signal.SIGKILL)
            if server:
                os.setpriority(os.PRIO_PROCESS, 0, SERVER_NICE)

        variables = dict(os.environ) | (env or {}) | {PART: str(len(self.all))}
        with log.open("ab") as output:
            try:
                child = subprocess.Popen(
                    command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=variables, cwd=cwd, preexec_fn=before_exec
                )
            except OSError as error:
                raise BenchError(f"starting {name}: {shlex.join(command)}: {error}") from error
        self.all.append(Process(name, server, child, log))

    def check(self, what: str) -> None:
        """An error when a process ended by itself, with the end of its log."""
        for process in self.all:
            if (status := process.child.poll()) is not None:
                raise BenchError(f"{what}: {process.name} ended ({exit_status(status)}): {tail(process.log)}")

    def wait_until(self, what: str, condition: Callable[[], bool], seconds: float = READY_MAX_S) -> None:
        """Waits while all processes run. A condition may raise as long as a server does not answer yet."""
        deadline = time.monotonic() + seconds
        while True:
            with contextlib.suppress(OSError, ValueError, KeyError):
                if condition():
                    return
            self.check(f"waiting until {what}")
            if time.monotonic() > deadline:
                logs = "; ".join(f"{process.name}: {tail(process.log)}" for process in self.all)
                raise BenchError(f"timeout after {seconds:g} s, waiting until {what}; {logs}")
            time.sleep(POLL_S)

    def stop(self) -> None:
        """Ends all, the last first, and then what they left behind."""
        for process in reversed(self.all):
            child = process.child
            if child.poll() is None:
                child.terminate()
            try:
                child.wait(STOP_MAX_S)
            except subprocess.TimeoutExpired:
                print(f"  {process.name} did not end within {STOP_MAX_S:g} s and is killed", file=sys.stderr)
                child.kill()
                child.wait()
        self.all.clear()
        deadline = time.monotonic() + STOP_MAX_S
        while (left := [pid for pid, root in descendants().items() if root not in self.helpers]) and time.monotonic() < deadline:
            for pid in left:
                with contextlib.suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
                with contextlib.suppress(OSError):
                    os.waitpid(pid, os.WNOHANG)
            time.sleep(0.001)

    def usage(self) -> list[Json]:
        """CPU time since its start and memory of each process, with all that it started."""
        sums: list[Json] = [{"name": p.name, "server": p.server, "cpu_ns": 0, "rss_kb": 0, "pss_kb": 0} for p in self.all]
        roots = {process.child.pid: at for at, process in enumerate(self.all)}
        for pid, root in descendants().items():
            part = roots.get(root, _part(pid))
            if part is None or part >= len(sums) or not (fields := stat_fields(pid)):
                continue
            sums[part]["cpu_ns"] += cpu_ns(pid) + children_cpu_ns(fields)
            sums[part]["rss_kb"] += memory_kb(pid, "status", "VmRSS")
            sums[part]["pss_kb"] += memory_kb(pid, "smaps_rollup", "Pss")
        return sums


def descendants() -> dict[int, int]:
    """Every process below this one, with the child of this one from which it descends."""
    parents = {pid: int(fields[1]) for pid in processes() if (fields := stat_fields(pid))}
    own, found = os.getpid(), {}
    for pid in parents:
        root, steps = pid, 0
        # A chain of parents is never longer than the table, which changes while it is read.
        while parents.get(root) not in (None, own) and steps < len(parents):
            root, steps = parents[root], steps + 1
        if parents.get(root) == own:
            found[pid] = root
    return found


def _part(pid: int) -> int | None:
    """The part to which a process belongs that lost its parent."""
    try:
        variables = Path(f"/proc/{pid}/environ").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return None
    return next((int(v.partition("=")[2]) for v in variables if v.startswith(f"{PART}=")), None)


def exit_status(status: int) -> str:
    """The end of a process in the words that logs and failures use."""
    return f"signal: {-status} ({signal.Signals(-status).name})" if status < 0 else f"exit status: {status}"


def tail(log: Path) -> str:
    text = log.read_bytes()[-LOG_SHOWN:].decode(errors="replace") if log.exists() else ""
    return f"the end of {log}: {text.strip()}"
