"""The processes of a run: each in a group of its own, read line by line, ended in order or else killed.

While a workload runs nothing here wakes up: everything that can happen (a line, an end, a signal to this program) arrives at one poll, in which the caller
sleeps until its deadline.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from harness import POLL_S, BenchError, with_variable
from monitors.processes import die_with_parent, exit_status

# The variable that marks every process of a folder's runs, and those that they start.
MARK = "WHOLEGRAIN_EXPERIMENT_MARK"
# Between the word to end and SIGKILL.
GRACE_S = 5.0
# Processes that are ending already may take so long before they are reported.
ENDING_S = 0.5
# The end of a process waits so long for the rest of its output, should others hold it open.
REST_OF_OUTPUT_S = 1.0
LINE_BYTES_MAX = 16 << 20


@dataclass
class Line:
    child: int
    text: str


@dataclass
class Ended:
    child: int
    # When, by time.monotonic().
    at: float


@dataclass
class Stop:
    """A signal asked this program to end."""

    signal: int


Event = Line | Ended | Stop | None


@dataclass
class Child:
    process: subprocess.Popen[bytes]
    # Whether the word to end goes to the whole group: a monitor ends its own parts in order, the ranks of a workload end together.
    group: bool
    pidfd: int
    text: bytes = b""
    ended_at: float | None = None
    output_open: bool = True
    reported: bool = False


class Children:
    """All children of a run. From now on signals to end arrive as events."""

    def __init__(self, mark: str) -> None:
        self._mark, self._running, self._next = mark, dict[int, Child](), 0
        self._events: deque[Event] = deque()
        self.stopped: int | None = None
        self._signals, writer = os.pipe()
        os.set_blocking(writer, False)
        signal.set_wakeup_fd(writer)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, self._stop)

    def _stop(self, number: int, _frame: object) -> None:
        self.stopped = self.stopped or number

    def start(self, command: Sequence[str], group: bool, log: Path) -> int:
        """Starts a command; its output arrives as lines, its errors go to `log`. Its input stays open until it is to end."""
        with log.open("ab") as errors:
            try:
                process = subprocess.Popen(
                    command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, env=dict(os.environ) | {MARK: self._mark}, process_group=0,
                    # Should this program be killed, its children get SIGTERM.
                    preexec_fn=lambda: die_with_parent(signal.SIGTERM),
                )  # fmt: skip
            except OSError as error:
                raise BenchError(f"starting {command[0]}: {error}") from error
        assert process.stdout
        os.set_blocking(process.stdout.fileno(), False)
        number, self._next = self._next, self._next + 1
        self._running[number] = Child(process, group, os.pidfd_open(process.pid))
        return number

    def next(self, deadline: float) -> Event:
        """Sleeps until something happens; None at the deadline."""
        while True:
            if self.stopped is not None:
                return Stop(self.stopped)
            if self._events:
                return self._events.popleft()
            limits = [deadline, *(child.ended_at + REST_OF_OUTPUT_S for child in self._running.values() if child.ended_at is not None and not child.reported)]
            left = min(limits) - time.monotonic()
            if left <= 0 and time.monotonic() >= deadline:
                return None
            self._wait(max(left, 0.0))

    def _wait(self, seconds: float) -> None:
        poll = select.poll()
        poll.register(self._signals, select.POLLIN)
        for child in self._running.values():
            if child.output_open and child.process.stdout:
                poll.register(child.process.stdout.fileno(), select.POLLIN)
            if child.ended_at is None:
                poll.register(child.pidfd, select.POLLIN)
        ready = {descriptor for descriptor, _ in poll.poll(seconds * 1000 + 1)}
        now = time.monotonic()
        if self._signals in ready:
            os.read(self._signals, 64)
        for number, child in self._running.items():
            if child.pidfd in ready and child.ended_at is None:
                child.ended_at = now
            if child.output_open and child.process.stdout and child.process.stdout.fileno() in ready:
                self._read(number, child)
            if child.ended_at is not None and not child.reported and (not child.output_open or now >= child.ended_at + REST_OF_OUTPUT_S):
                self._events.append(Ended(number, child.ended_at))
                child.reported, child.output_open = True, False

    def _read(self, number: int, child: Child) -> None:
        assert child.process.stdout
        with contextlib.suppress(BlockingIOError):
            piece = os.read(child.process.stdout.fileno(), 1 << 16)
            child.text += piece
            child.output_open = bool(piece) and len(child.text) < LINE_BYTES_MAX
        *lines, rest = child.text.split(b"\n")
        if not child.output_open and rest:
            lines.append(rest)
        child.text = rest
        self._events.extend(Line(number, line.decode(errors="replace")) for line in lines)

    def pause(self, seconds: float) -> None:
        """Sleeps for a while, less after a signal to end."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and not isinstance(self.next(deadline), Stop):
            pass

    def tell_to_end(self, number: int, by_signal: bool) -> None:
        """By SIGTERM, or by the end of its input, which passes launchers where signals do not."""
        if child := self._running.get(number):
            if by_signal:
                child.process.terminate()
            else:
                _close_input(child)

    def reap(self, number: int) -> str | None:
        """Takes the end of a child that was reported; why it is a failure, if so."""
        child = self._running.pop(number)
        status = child.process.wait()
        _close(child)
        return exit_status(status) if status else None

    def end_all(self) -> list[str]:
        """Ends all children and what they left; the names of processes that outlived their parents."""
        for child in self._running.values():
            _close_input(child)
            _signal(-child.process.pid if child.group else child.process.pid, signal.SIGTERM)
        deadline = time.monotonic() + GRACE_S
        for child in self._running.values():
            while (child.process.poll() is None or _signal(-child.process.pid, 0)) and time.monotonic() < deadline:
                time.sleep(POLL_S)
            _signal(-child.process.pid, signal.SIGKILL)
            child.process.wait()
            _close(child)
        self._running.clear()
        self._events.clear()
        return sweep(self._mark)


def _close_input(child: Child) -> None:
    if child.process.stdin:
        with contextlib.suppress(OSError):
            child.process.stdin.close()


def _close(child: Child) -> None:
    _close_input(child)
    if child.process.stdout:
        child.process.stdout.close()
    os.close(child.pidfd)


def sweep(mark: str) -> list[str]:
    """Ends every process of this machine that carries the mark: ranks and servers whose parents are gone. Their names."""
    names: list[str] = []
    begun = time.monotonic()
    while True:
        found, age = with_variable(MARK, mark), time.monotonic() - begun
        if not found or age > 2 * GRACE_S:
            return names
        if age > ENDING_S:
            for pid in found:
                with contextlib.suppress(OSError):
                    name = Path(f"/proc/{pid}/comm").read_text().strip()
                    names += [name] if name not in names else []
                _signal(pid, signal.SIGTERM if age < GRACE_S else signal.SIGKILL)
        time.sleep(POLL_S)


def _signal(to: int, number: int) -> bool:
    """Sends a signal to a process, or to the group of a negative number; whether there is one."""
    try:
        os.kill(to, number)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
