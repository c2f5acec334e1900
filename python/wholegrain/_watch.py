"""Live readings."""

from __future__ import annotations

import json
import threading
import time
import warnings
from collections.abc import Callable

from ._errors import BrokenAnswer, Unavailable, Unreachable, WholegrainError, WholegrainWarning
from ._http import Answer, Connection
from ._sensors import Reading

#: Waits between attempts to reconnect, s: doubling up to the last.
_WAITS_S = (0.2, 0.5, 1.0, 2.0, 5.0, 10.0)


class Watch:
    """A live subscription: iterate over it, in ``with`` or until :meth:`close`. Readings arrive when they are durable.

    It reconnects without limit; a :class:`WholegrainWarning` reports it, and readings of that time are not delivered (a query returns
    them). Errors of the server (an invalid pattern, an expired token) are raised.
    """

    def __init__(self, connection: Connection, patterns: list[str], reconnect: bool) -> None:
        self._connection, self._patterns, self._reconnect = connection, patterns, reconnect
        self._closed = threading.Event()
        self._lock = threading.Lock()
        #: The number of reconnects.
        self.reconnects = 0
        self._answer = self._open()
        self._lines = self._answer.lines()
        #: The number of matching sensors at the start.
        self.sensors = int(self._answer.header("x-wholegrain-sensors") or 0)

    def _open(self) -> Answer:
        params = [("pattern", pattern) for pattern in self._patterns]
        return self._connection.ask("GET", "/api/v1/watch", params, endless=True)

    def __iter__(self) -> Watch:
        return self

    def __next__(self) -> Reading:
        while not self._closed.is_set():
            try:
                line = next(self._lines, None)
                what = "the server ended it"
            except BrokenAnswer as error:
                line, what = None, str(error)
            if line:
                return _reading(line)
            if line is None and not self._closed.is_set():
                if not self._reconnect:
                    self.end()
                    raise BrokenAnswer(f"the subscription ended: {what}")
                self._come_back(what)
        self._answer.close()
        raise StopIteration

    def _come_back(self, what: str) -> None:
        self._answer.close()
        attempt = 0
        while not self._closed.wait(_WAITS_S[min(attempt, len(_WAITS_S) - 1)]):
            attempt += 1
            try:
                answer = self._open()
            except (Unreachable, Unavailable):
                continue
            with self._lock:
                self._answer, self._lines = answer, answer.lines()
                self.reconnects += 1
                if self._closed.is_set():
                    answer.close()
            text = f"the subscription was interrupted ({what}); readings since then are only in the store"
            warnings.warn(text, WholegrainWarning, stacklevel=3)
            return

    def close(self) -> None:
        """Ends the subscription from any thread."""
        self._closed.set()
        with self._lock:
            self._answer.abort()

    def __enter__(self) -> Watch:
        return self

    def end(self) -> None:
        """Ends the subscription from the reading thread."""
        self.close()
        self._answer.close()

    def __exit__(self, *_: object) -> None:
        self.end()


class Subscription:
    """A :class:`Watch` that calls a function from its own thread."""

    def __init__(self, watch: Watch, call: Callable[[Reading], object]) -> None:
        self._watch, self._call = watch, call
        #: The error of the server or the callback that ended it; ``None`` after :meth:`stop`.
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="wholegrain-watch", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            for reading in self._watch:
                self._call(reading)
        except Exception as error:
            self.error = error
        finally:
            self._watch.end()

    @property
    def running(self) -> bool:
        """Whether it is active."""
        return self._thread.is_alive()

    def stop(self, timeout: float | None = 10.0) -> None:
        """Ends the subscription and waits for the last call; raises the error that ended it before, if any."""
        self._watch.close()
        if threading.current_thread() is not self._thread:
            deadline = None if timeout is None else time.monotonic() + timeout
            self._thread.join(None if deadline is None else max(0.0, deadline - time.monotonic()))
        if self.error is not None:
            raise self.error

    def __enter__(self) -> Subscription:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def _reading(line: bytes) -> Reading:
    try:
        return Reading.of(json.loads(line))
    except (ValueError, KeyError, TypeError) as error:
        raise WholegrainError(f"the subscription received a line that is not a reading: {line[:80]!r}") from error
