"""Marks: one connection for the process, a small buffer, and what is open.

The depth of a region and the depth that the agent knows are separate: each call sends the difference. So a call without an
agent costs a reading of the clock, and a new connection begins with the open regions.
"""

import os
import socket
import threading
import time
from contextlib import ContextDecorator
from types import TracebackType
from typing import Dict, List, NamedTuple, Optional, Type

#: Where the agent listens unless WHOLEGRAIN_SOCKET says otherwise.
SOCKET = "/run/wholegrain/jobs.sock"
#: The longest name of a region or a value, in bytes.
NAME_BYTES_MAX = 128
#: The most regions of different names that are open at a time.
OPEN_MAX = 64
#: Bytes that wait for room in the socket.
BUFFER_BYTES = 4096
#: How long after a try to connect the next one is made.
RETRY_S = 1.0


def socket_path() -> str:
    """Where the agent listens."""
    return os.environ.get("WHOLEGRAIN_SOCKET") or SOCKET


class Counts(NamedTuple):
    """How many marks of this process were sent and dropped."""

    #: Handed to the agent, which may still refuse or drop them.
    sent: int
    #: No agent, no room, or a name with white space in it or over NAME_BYTES_MAX.
    dropped: int
    #: An agent listens.
    connected: bool


def _is_word(text: str, bytes_max: int) -> bool:
    if not text or any(character.isspace() or ord(character) < 33 or ord(character) == 127 for character in text):
        return False
    try:
        return len(text.encode()) <= bytes_max
    except UnicodeEncodeError:
        return False


class _Marks:
    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.reset()

    def reset(self) -> None:
        """Resets to the initial state. A forked child does so too: connection and open regions belong to its parent."""
        self.connection: Optional[socket.socket] = None
        self.retry_at = 0.0
        self.buffer = b""
        self.lines = 0
        # The depth of each region, and the depth that was sent.
        self.open: Dict[str, List[int]] = {}
        self.sent = 0
        self.dropped = 0

    def disconnect(self) -> None:
        if self.connection is not None:
            self.connection.close()
        self.connection = None
        self.retry_at = time.monotonic() + RETRY_S
        self.sent -= self.lines
        self.dropped += self.lines
        self.buffer, self.lines = b"", 0
        self.open = {name: [depth, 0] for name, (depth, _) in self.open.items() if depth}

    def flush(self) -> None:
        while self.connection is not None and self.buffer:
            try:
                count = self.connection.send(self.buffer, socket.MSG_NOSIGNAL | socket.MSG_DONTWAIT)
            except BlockingIOError:
                return
            except OSError:
                self.disconnect()
                return
            self.buffer = self.buffer[count:]
            if not self.buffer:
                self.lines = 0

    def is_connected(self) -> bool:
        if self.connection is None and time.monotonic() >= self.retry_at:
            self.retry_at = time.monotonic() + RETRY_S
            connection = None
            try:
                connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
                connection.setblocking(False)
                connection.connect(socket_path())
                self.connection = connection
            except (OSError, ValueError):
                if connection is not None:
                    connection.close()
        self.flush()
        return self.connection is not None

    def put(self, line: str) -> bool:
        data = line.encode()
        if len(self.buffer) + len(data) > BUFFER_BYTES:
            return False
        self.buffer += data
        self.lines += 1
        self.sent += 1
        return True

    def send_changes(self) -> None:
        """Sends the unsent changes of every region, as far as there is room."""
        now = time.time_ns()
        for name in list(self.open):
            state = self.open[name]
            while state[0] != state[1]:
                by = 1 if state[1] < state[0] else -1
                if not self.put(f"{'begin' if by > 0 else 'end'} {name} {now}\n"):
                    return
                state[1] += by
            if state == [0, 0]:
                del self.open[name]

    def change(self, name: str, by: int) -> None:
        with self.lock:
            state = self.open.get(name)
            if state is None and by > 0 and _is_word(name, NAME_BYTES_MAX) and len(self.open) < OPEN_MAX:
                state = self.open[name] = [0, 0]
            if state is None or state[0] + by < 0:
                self.dropped += 1
                return
            state[0] += by
            if self.is_connected():
                before = self.sent
                self.send_changes()
                self.dropped += self.sent == before
                self.flush()
            else:
                self.dropped += 1
                if self.open.get(name, [1])[0] == 0:
                    del self.open[name]

    def value(self, name: str, number: float, unit: Optional[str]) -> None:
        with self.lock:
            is_good = _is_word(name, NAME_BYTES_MAX) and (unit is None or _is_word(unit, 64))
            if not is_good or not self.is_connected():
                self.dropped += 1
                return
            self.send_changes()
            if not self.put(f"value {name} {float(number)!r} {unit or '-'} {time.time_ns()}\n"):
                self.dropped += 1
            self.flush()

    def close(self) -> None:
        with self.lock:
            for state in self.open.values():
                state[0] = 0
            if self.connection is not None:
                self.send_changes()
                self.flush()
                self.disconnect()
            self.open.clear()
            self.retry_at = 0.0


_marks = _Marks()


def _in_child() -> None:
    connection = _marks.connection
    _marks.lock = threading.Lock()
    _marks.reset()
    if connection is not None:
        connection.close()


os.register_at_fork(after_in_child=_in_child)


def begin(name: str) -> None:
    """A region of the code begins."""
    _marks.change(name, 1)


def end(name: str) -> None:
    """A region ends."""
    _marks.change(name, -1)


def value(name: str, number: float, unit: Optional[str] = None) -> None:
    """A value of the application's own; `unit` is a UCUM code such as "s", "By" or "1"."""
    _marks.value(name, number, unit)


def counts() -> Counts:
    """How many marks of this process were sent and dropped."""
    with _marks.lock:
        return Counts(_marks.sent, _marks.dropped, _marks.connection is not None)


def close() -> None:
    """Ends the regions that this process has open and the connection. Not needed; the next mark connects again."""
    _marks.close()


class region(ContextDecorator):
    """A region as a context, or of a function as its decorator."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __enter__(self) -> "region":
        begin(self.name)
        return self

    def __exit__(
        self,
        kind: Optional[Type[BaseException]],
        error: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        end(self.name)
