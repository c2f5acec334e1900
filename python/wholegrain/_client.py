"""A client of a server."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any, overload
from urllib.parse import quote

from . import _config
from ._http import Connection
from ._jobs import Job, JobRow
from ._pattern import Patterns, several
from ._properties import Properties
from ._result import Result
from ._sensors import Reading, Sensor
from ._times import Interval, Time, interval_text, time_text
from ._virtual import Virtual
from ._watch import Subscription, Watch

#: Jobs of one page.
_PAGE = 1_000
#: Sensors of one page.
_SENSORS_PAGE = 100_000


def connect(
    client: str | os.PathLike[str] | None = None,
    *,
    url: str | None = None,
    token: str | None = None,
    ca: str | os.PathLike[str] | None = None,
) -> Client:
    """Connects to the server in client.toml.

    :param client: the file; the default is the one in ``WHOLEGRAIN_CLIENT``, else the first of ``./var/client.toml``,
        ``~/.config/wholegrain/client.toml`` and ``/etc/wholegrain/client.toml``, as for the command line.
    :param url: ``https://host:port``, overrides the file.
    :param token: the bearer token, overrides the file's ``token_file``.
    :param ca: certificates of the trusted CA, overrides the file. With ``url`` and ``ca`` no file is needed.

    Sends no request. Raises :class:`ConfigError` if a setting is missing.
    """
    return Client(Connection(_config.find(client, url, token, ca)))


class Client:
    """A server. Every request uses its own connection, so that threads can share a client."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        #: Virtual sensors: define, list, check, remove.
        self.virtual = Virtual(connection)
        #: Unit, scale, kind and description of sensors, with their history.
        self.properties = Properties(connection)

    @property
    def url(self) -> str:
        """The server's address."""
        return self._connection.url

    def sensors(self, patterns: Patterns = "/**", *, job: str | int | None = None, at: Time | None = None) -> list[Sensor]:
        """The sensors that match the patterns, sorted by path; without a pattern all. ``job`` restricts them to one job; if several runs
        have the id, to the newest, or to the newest that began before ``at``.
        """
        params = [("pattern", pattern) for pattern in several(patterns)]
        params += [("job", str(job))] if job is not None else []
        params += [("at", time_text(at))] if at is not None else []
        return [Sensor.of(row) for row in self._paged("/api/v1/sensors", params, "sensors")]

    def newest(self, patterns: Patterns) -> list[Reading]:
        """The newest reading of each matching sensor that has one."""
        params = [("pattern", pattern) for pattern in several(patterns)]
        return [Reading.of(row) for row in self._paged("/api/v1/newest", params, "readings")]

    def _paged(self, path: str, params: list[tuple[str, str]], name: str) -> Iterator[Any]:
        """Reads a list page by page."""
        params = [*params, ("limit", str(_SENSORS_PAGE))]
        after: list[tuple[str, str]] = []
        while True:
            with self._connection.ask("GET", path, params + after) as answer:
                yield from answer.items(name)
                further = answer.headers("x-wholegrain-next")
            if not further:
                return
            after = [("after", further[0])]

    def query(
        self,
        patterns: Patterns,
        start: Time = "-1h",
        end: Time = "now",
        *,
        every: Interval | None = None,
        points: int | None = None,
        agg: str | None = None,
        op: str | None = None,
        unit: str | None = None,
        across: str | None = None,
        levels: int | str | None = None,
        job: str | int | None = None,
        at: Time | None = None,
        limit: int | None = None,
    ) -> Result:
        """Readings from ``start`` (inclusive) to ``end`` (exclusive), sorted by sensor and time.

        :param every: the length of windows, such as ``10s``.
        :param points: instead of ``every``: the approximate number of windows.
        :param agg: the aggregate of a window, or of the range without windows: mean (weighted by time), min, max, sum, count, last,
            first, sample_mean (arithmetic mean).
        :param op: an operation on successive values, before the aggregate: rate, delta, derivative, integral.
        :param unit: the unit of the answer, such as ``kW``.
        :param across: aggregates several sensors into one series: mean, min, max, sum, count.
        :param levels: with ``across``: the levels of the paths that stay separate.
        :param job: restricts the answer to the nodes, cores and time of a job.
        :param at: with ``job``: selects the newest run that began before this time.
        :param limit: the most rows.

        Raises :class:`BadRequest` with the server's message for an invalid request.
        """
        given: list[tuple[str, object]] = [
            ("points", points),
            ("agg", agg),
            ("op", op),
            ("unit", unit),
            ("across", across),
            ("levels", levels),
            ("job", job),
            ("at", None if at is None else time_text(at)),
            ("limit", limit),
        ]
        params = [("pattern", pattern) for pattern in several(patterns)]
        params += [("from", time_text(start)), ("to", time_text(end)), ("format", "arrow")]
        params += [(name, str(value)) for name, value in given if value is not None]
        if every is not None:
            params.append(("every", interval_text(every)))
        return Result(self._connection.ask("GET", "/api/v1/query", params))

    @overload
    def watch(self, patterns: Patterns, call: None = None, *, reconnect: bool = True) -> Watch: ...

    @overload
    def watch(self, patterns: Patterns, call: Callable[[Reading], object], *, reconnect: bool = True) -> Subscription: ...

    def watch(
        self, patterns: Patterns, call: Callable[[Reading], object] | None = None, *, reconnect: bool = True
    ) -> Watch | Subscription:
        """New readings as they become durable: an iterator, or with ``call`` a thread that calls it with each :class:`Reading`.

        The subscription is active on return. With ``reconnect=False`` a lost connection raises :class:`BrokenAnswer`.
        """
        watch = Watch(self._connection, several(patterns), reconnect)
        return watch if call is None else Subscription(watch, call)

    def jobs(
        self,
        *,
        user: str | int | None = None,
        node: str | None = None,
        account: str | None = None,
        partition: str | None = None,
        manager: str | None = None,
        name: str | None = None,
        state: str | None = None,
        start: Time | None = None,
        end: Time | None = None,
        limit: int | None = 100,
    ) -> list[JobRow]:
        """Jobs, newest first, at most ``limit`` (``None`` for all). ``node`` and ``name`` may contain ``*``; ``state`` is running or
        ended; ``start`` and ``end`` select jobs that ran within this range. Role user sees only its own jobs.
        """
        given = {
            "user": user,
            "node": node,
            "account": account,
            "partition": partition,
            "manager": manager,
            "name": name,
            "state": state,
            "from": None if start is None else time_text(start),
            "to": None if end is None else time_text(end),
        }
        params = [(key, str(value)) for key, value in given.items() if value is not None]
        rows: list[JobRow] = []
        after: str | None = None
        while limit is None or len(rows) < limit:
            page = _PAGE if limit is None else min(_PAGE, limit - len(rows))
            more = [] if after is None else [("after", after)]
            answer = self._connection.json("GET", "/api/v1/jobs", [*params, ("limit", str(page)), *more])
            rows.extend(JobRow.of(row) for row in answer["jobs"])
            after = answer.get("next")
            if after is None:
                break
        return rows

    def job(self, id: str | int, *, at: Time | None = None) -> Job:
        """One job; if several runs have the id, the newest, or the newest that began before ``at``."""
        params = [] if at is None else [("at", time_text(at))]
        row = self._connection.json("GET", f"/api/v1/jobs/{quote(str(id), safe='')}", params)
        return Job(self, self._connection, row)

    def __repr__(self) -> str:
        return f"Client({self.url!r})"
