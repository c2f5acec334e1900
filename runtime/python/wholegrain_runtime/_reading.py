"""Reading: requests and answers over a connection of its own."""

import socket
from typing import Dict, List, NamedTuple, Optional, Tuple, Union

from ._marks import socket_path

#: How long each wait for the agent may last, unless it is said otherwise.
TIMEOUT_S = 1.0


class NoAgent(ConnectionError):
    """No agent listens, or it does not answer in time."""


class Refused(ValueError):
    """The agent refuses; the text says why."""


class Reading(NamedTuple):
    """The newest reading of a sensor."""

    path: str
    #: ns since the Unix epoch; None when there is none yet.
    time_ns: Optional[int]
    #: In `unit`; None when there is none, or for a gap: it could not be read.
    value: Union[int, float, None]
    unit: str


def _number(text: str) -> Union[int, float, None]:
    if text == "-":
        return None
    try:
        return int(text)
    except ValueError:
        return float(text)


class _Line:
    """A connection that requests and answers go over."""

    def __init__(self, path: Optional[str], timeout_s: float) -> None:
        path = path or socket_path()
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.settimeout(timeout_s)
        try:
            self._socket.connect(path)
        except (OSError, ValueError) as error:
            self._socket.close()
            raise NoAgent(f"cannot connect to the agent at {path}: {error}; does it run, and has it a [jobs] socket?") from error
        self._input = b""

    def close(self) -> None:
        self._socket.close()

    def ask(self, request: str, kind: str) -> List[str]:
        """The words of the answer's first line after `kind`."""
        data = f"{request}\n".encode()
        if data.count(b"\n") != 1:
            raise Refused("a request has no new line in it")
        try:
            self._socket.sendall(data)
        except OSError as error:
            raise NoAgent(f"the agent: {error}") from error
        answer = self.line()
        first, _, rest = answer.partition(" ")
        if first != kind:
            raise Refused(rest if first == "error" else answer)
        return rest.split(" ")

    def line(self) -> str:
        while True:
            line, new_line, rest = self._input.partition(b"\n")
            if new_line:
                self._input = rest
                return line.decode()
            self._receive()

    def lines(self, count: int) -> List[str]:
        while self._input.count(b"\n") < count:
            self._receive()
        *lines, self._input = self._input.split(b"\n", count)
        return [line.decode() for line in lines]

    def _receive(self) -> None:
        try:
            data = self._socket.recv(1 << 16)
        except OSError as error:
            raise NoAgent(f"the agent: {error}") from error
        if not data:
            raise NoAgent("the agent closed the connection")
        self._input += data


def newest(*patterns: str, path: Optional[str] = None, timeout_s: float = TIMEOUT_S) -> List[Reading]:
    """The newest readings of the sensors that patterns choose; "@/" at the beginning of one is the own job."""
    line = _Line(path, timeout_s)
    try:
        count = int(line.ask(f"newest {' '.join(patterns)}", "readings")[0])
        readings = []
        for text in line.lines(count):
            sensor, time_ns, value, unit = text.split(" ")
            readings.append(Reading(sensor, None if time_ns == "-" else int(time_ns), _number(value), unit))
        return readings
    finally:
        line.close()


class Watch:
    """Sensors selected once and read often. After a restart of the agent it connects and selects again.

    Each sensor keeps its place in `paths` and in what `get` gives; sensors that come later are added at the end.
    """

    def __init__(self, *patterns: str, path: Optional[str] = None, timeout_s: float = TIMEOUT_S) -> None:
        self._patterns = patterns
        self._path = path
        self._timeout_s = timeout_s
        self._line: Optional[_Line] = None
        self._handle = ""
        # The places of the agent's sensors among ours.
        self._places: List[int] = []
        self._by_path: Dict[str, int] = {}
        self.paths: List[str] = []
        self.units: List[str] = []
        self._connected()

    def __enter__(self) -> "Watch":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Gives the connection back; the next `get` makes another."""
        if self._line is not None:
            self._line.close()
        self._line = None
        self._places = []

    def _connected(self) -> _Line:
        if self._line is None:
            line = self._line = _Line(self._path, self._timeout_s)
            try:
                self._learn(line, f"watch {' '.join(self._patterns)}")
            except Exception:
                self.close()
                raise
        return self._line

    def _learn(self, line: _Line, request: str) -> None:
        self._handle, size, *_ = line.ask(request, "watch")
        for text in line.lines(int(size) - len(self._places)):
            path, _, unit = text.partition(" ")
            place = self._by_path.setdefault(path, len(self.paths))
            if place == len(self.paths):
                self.paths.append(path)
                self.units.append(unit)
            self._places.append(place)

    def values(self) -> List[Tuple[Optional[int], Union[int, float, None]]]:
        """Time and value of each sensor, in the order of `paths`. The quickest way."""
        line = self._connected()
        try:
            count = int(line.ask(f"get {self._handle}", "values")[0])
            answers = line.lines(count)
            if count > len(self._places):
                self._learn(line, f"list {self._handle} {len(self._places)}")
        except (NoAgent, Refused):
            self.close()
            raise
        readings: List[Tuple[Optional[int], Union[int, float, None]]] = [(None, None)] * len(self.paths)
        for place, text in zip(self._places, answers):
            time_ns, _, value = text.partition(" ")
            readings[place] = (None if time_ns == "-" else int(time_ns), _number(value))
        return readings

    def get(self) -> List[Reading]:
        """The newest reading of each sensor, in the order of `paths`."""
        rows = zip(self.paths, self.values(), self.units)
        return [Reading(path, time_ns, value, unit) for path, (time_ns, value), unit in rows]
