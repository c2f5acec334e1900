"""Reads a store directory without a server."""

from __future__ import annotations

import csv
import os
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from ._blocks import Damaged, Entry, File, Footer, first_time, listed
from ._errors import DataWarning, StoreError
from ._frames import Frames
from ._pattern import Matcher, Patterns
from ._sensors import Sensor
from ._times import Interval, Time, interval_ns, interval_text, text_of, time_ns

_DAY_NS = 86_400_000_000_000
#: The rows read at a time, unless one sensor has more in a day.
_ROWS = 1 << 20
#: The most attempts to read a day whose files are removed by merges.
_TRIES_MAX = 50
#: The largest scale for which integers stay integers.
_INTEGRAL_MAX = float(1 << 53)
_TIME = pa.timestamp("ns", tz="UTC")


def open_store(folder: str | os.PathLike[str]) -> Store:
    """Opens a store directory (``[store] dir`` of the server). A server may run on it.

    Only readings in blocks are visible. New readings are in the journal for up to ``[store] seal_after`` (60 s by default). Deleted
    readings, and those that retention dropped, are visible as long as a file has them. Virtual sensors need a server.
    """
    return Store(Path(folder))


class Store:
    """A store's folder."""

    def __init__(self, folder: Path) -> None:
        if not (folder / "blocks").is_dir():
            raise StoreError(f"{folder} is not a store: it has no directory blocks; use the directory `[store] dir` of server.toml")
        self.folder = folder
        self._footers: dict[Path, Footer] = {}

    def sensors(self, patterns: Patterns = "/**") -> list[Sensor]:
        """The sensors in ``sensors.csv`` that match the patterns, sorted by path."""
        matcher = Matcher(patterns)
        return [sensor for sensor in self._all() if matcher.matches(sensor.path)]

    def _all(self) -> list[Sensor]:
        file = self.folder / "sensors.csv"
        if not file.exists():
            return []  # nothing has been sealed yet
        try:
            with file.open(encoding="utf-8", newline="") as lines:
                rows = list(csv.DictReader(lines))
            sensors = [
                Sensor(
                    path=row["sensor"],
                    unit=row["unit"] or "1",
                    kind=row["kind"],
                    type=row["type"],
                    scale=float(row["scale"]),
                    interval_ns=int(row["interval_ns"]),
                    last_time=None,
                    description=row["description"],
                    agent="",
                )
                for row in rows
            ]
        except (OSError, ValueError, KeyError, TypeError, csv.Error) as error:
            raise StoreError(f"{file} is not a list of sensors: {error}; the server writes it again after its next seal") from error
        return sorted(sensors, key=lambda sensor: sensor.path)

    def resolutions(self) -> list[str]:
        """The resolutions of the existing tiers, such as ``10s`` and ``1h``, finest first."""
        tiers = self.folder / "tiers"
        names = [entry.name for entry in tiers.iterdir() if entry.is_dir()] if tiers.is_dir() else []
        return sorted(names, key=interval_ns)

    def query(self, patterns: Patterns, start: Time = "-1h", end: Time = "now") -> StoredReadings:
        """Readings from ``start`` (inclusive) to ``end`` (exclusive). Streams day by day, within a day by sensor and time;
        :meth:`~StoredReadings.to_arrow` and the others sort by sensor and time, as a server does.
        """
        return StoredReadings(self, self.sensors(patterns), time_ns(start), time_ns(end))

    def windows(self, patterns: Patterns, resolution: Interval, start: Time = "-30d", end: Time = "now") -> StoredWindows:
        """Windows of a tier: minimum, maximum, sum, count, first and last value of each.

        Tiers are written after the end of a day, so that they lack the newest hours. If two files have a part of a window and may count
        readings twice, the window is computed from the readings; if these no longer exist, it is omitted with a :class:`DataWarning`.
        """
        name = next((tier for tier in self.resolutions() if interval_ns(tier) == interval_ns(resolution)), None)
        if name is None:
            have = ", ".join(self.resolutions()) or "none yet"
            raise StoreError(f"{self.folder} has no tier of {interval_text(resolution)}; it has {have}")
        return StoredWindows(self, name, self.sensors(patterns), time_ns(start), time_ns(end))

    def _candidates(self, top: Path, end: int) -> list[Footer]:
        """The files that begin before ``end``, by their footers; damaged ones are reported and omitted."""
        found = []
        for path in listed(top):
            if first_time(path) >= end:
                continue
            footer = self._footers.get(path)
            if footer is None:
                try:
                    file = File(path)
                    try:
                        footer = file.footer()
                    finally:
                        file.close()
                except FileNotFoundError:
                    raise
                except Damaged as error:
                    _warn_damaged(error)
                    continue
                self._footers[path] = footer
            found.append(footer)
        return found

    def _retried(self, top: Path, end: int) -> list[Footer]:
        for _ in range(_TRIES_MAX):
            try:
                return self._candidates(top, end)
            except FileNotFoundError:
                continue  # merged between the listing and the opening
        raise StoreError(f"{top}: files vanished during each of {_TRIES_MAX} attempts to read them")

    def _opened(self, top: Path, low: int, high: int) -> list[tuple[Footer, File]]:
        """Opens the files that may have rows from ``low`` to ``high`` (exclusive); a later merge does not affect open files."""
        for _ in range(_TRIES_MAX):
            files: list[tuple[Footer, File]] = []
            try:
                for footer in self._candidates(top, high):
                    if footer.last_time >= low and footer.first_time < high:
                        files.append((footer, File(footer.path)))
                return files
            except FileNotFoundError:
                for _, file in files:
                    file.close()
        raise StoreError(f"{top}: files vanished during each of {_TRIES_MAX} attempts to read them")

    def __repr__(self) -> str:
        return f"Store({str(self.folder)!r})"


def _warn_damaged(error: Damaged) -> None:
    warnings.warn(f"a file is omitted: {error}; `wholegrain config verify` gives details", DataWarning, stacklevel=2)


class _Chosen:
    """The sensors of a query with their indexes in the answer's dictionary."""

    def __init__(self, sensors: list[Sensor]) -> None:
        self.sensors = sensors
        self.names = pa.array([sensor.path for sensor in sensors], pa.string())
        self.place = {sensor.path: place for place, sensor in enumerate(sensors)}
        factors, divisors = zip(*(_scale(sensor.scale) for sensor in sensors), strict=True) if sensors else ((), ())
        self._plain = all(scale == 1.0 for scale in (*factors, *divisors))
        self._factors, self._divisors = pa.array(factors, pa.float64()), pa.array(divisors, pa.float64())
        self.exact = bool(sensors) and all(
            sensor.type == "int" and sensor.scale % 1 == 0 and abs(sensor.scale) <= _INTEGRAL_MAX for sensor in sensors
        )
        self.value_type = pa.int64() if self.exact else pa.float64()

    def scaled(self, code: Any, raw: Any) -> Any:
        """Raw values in the sensors' units."""
        if self.exact and pa.types.is_integer(raw.type):
            return raw if self._plain else pc.multiply_checked(raw, self._factors.take(code).cast(pa.int64()))
        values = raw.cast(pa.float64(), safe=False)
        if not self._plain:
            values = pc.divide(pc.multiply(values, self._factors.take(code)), self._divisors.take(code))
        if not self.exact:
            return values
        whole = pc.and_(pc.equal(pc.round(values), values), pc.less_equal(pc.abs(values), _INTEGRAL_MAX))
        if pc.any(pc.invert(whole)).as_py():
            warnings.warn(
                "values of a sensor of integers that are not integers are returned as gaps, as by the server", DataWarning, stacklevel=2
            )
        return pc.if_else(whole, values, None).cast(pa.int64())


def _scale(scale: float) -> tuple[float, float]:
    """Factor and divisor: 0.001 is applied as a division by 1000, which gives the float nearest to the decimal number."""
    inverse = float(round(1.0 / scale)) if abs(scale) < 1.0 and abs(1.0 / scale) <= _INTEGRAL_MAX else 0.0
    return (1.0, inverse) if inverse != 0.0 and 1.0 / inverse == scale else (scale, 1.0)


class StoredReadings(Frames):
    """Readings from a store's blocks."""

    def __init__(self, store: Store, sensors: list[Sensor], start: int, end: int) -> None:
        super().__init__()
        self._store, self._start, self._end = store, start, end
        self._chosen = _Chosen(sensors)

    @property
    def schema(self) -> Any:
        """sensor, time, value."""
        sensor = pa.dictionary(pa.int32(), pa.string())
        return pa.schema([("sensor", sensor), ("time", _TIME), ("value", self._chosen.value_type)])

    @property
    def units(self) -> dict[str, str]:
        """The unit of each selected sensor."""
        return {sensor.path: sensor.unit for sensor in self._chosen.sensors}

    def to_arrow(self, *, wide: bool = False) -> Any:
        """All rows as a :class:`pyarrow.Table`, sorted by sensor and time."""
        if self._table is None:
            parts = [_codes(batch) for batch in self._stream()]
            schema = pa.schema([("code", pa.int32()), ("time", _TIME), ("value", self._chosen.value_type)])
            table = pa.concat_tables([schema.empty_table(), *parts]).sort_by([("code", "ascending"), ("time", "ascending")])
            self._table = pa.Table.from_batches([self._batch(table.combine_chunks())], schema=self.schema)
        return super().to_arrow(wide=wide)

    def _batch(self, table: Any) -> Any:
        code = _one(table["code"])
        sensor = pa.DictionaryArray.from_arrays(code, self._chosen.names)
        return pa.RecordBatch.from_arrays([sensor, _one(table["time"]), _one(table["value"])], schema=self.schema)

    def _stream(self) -> Iterator[Any]:
        if not self._chosen.sensors or self._end <= self._start:
            return
        for low, high in self._days():
            yield from self._day(low, high)

    def _days(self) -> list[tuple[int, int]]:
        """The UTC days of the range that have rows."""
        days: set[int] = set()
        for footer in self._store._retried(self._store.folder / "blocks", self._end):
            low, high = max(footer.first_time, self._start), min(footer.last_time, self._end - 1)
            days.update(range(low // _DAY_NS, high // _DAY_NS + 1))
        return [(max(day * _DAY_NS, self._start), min((day + 1) * _DAY_NS, self._end)) for day in sorted(days)]

    def _day(self, low: int, high: int) -> Iterator[Any]:
        files = self._store._opened(self._store.folder / "blocks", low, high)
        try:
            held: dict[int, list[tuple[int, File, Entry]]] = {}
            files.sort(key=lambda file: file[0].rank)
            for rank, (_, file) in enumerate(files):
                for entry in file.entries():
                    place = self._chosen.place.get(entry.path)
                    if place is not None and entry.first_time < high and entry.last_time >= low:
                        held.setdefault(place, []).append((rank, file, entry))
            for places in _portions(held):
                table = self._read({place: held[place] for place in places}, low, high)
                if table.num_rows:
                    yield self._batch(table)
        finally:
            for _, file in files:
                file.close()

    def _read(self, held: dict[int, list[tuple[int, File, Entry]]], low: int, high: int) -> Any:
        """The rows of some sensors, each time once, from the file with the highest rank."""
        by_file: dict[int, list[tuple[int, Entry]]] = {}
        open_files: dict[int, File] = {}
        for place, found in held.items():
            for rank, file, entry in found:
                by_file.setdefault(rank, []).append((place, entry))
                open_files[rank] = file
        schema = pa.schema([("code", pa.int32()), ("time", _TIME), ("value", self._chosen.value_type), ("rank", pa.int32())])
        parts = [schema.empty_table()]
        for rank, entries in by_file.items():
            try:
                parts.append(self._rows(open_files[rank], rank, entries, low, high))
            except Damaged as error:
                _warn_damaged(error)
        table = pa.concat_tables(parts)
        several = any(len(found) > 1 for found in held.values())
        if len(parts) > 2:
            order = [("code", "ascending"), ("time", "ascending"), ("rank", "descending")]
            table = table.sort_by(order)
        return (_once(table) if several else table).combine_chunks()

    def _rows(self, file: File, rank: int, entries: list[tuple[int, Entry]], low: int, high: int) -> Any:
        entries.sort(key=lambda one: one[1].row)
        first, last = entries[0][1], entries[-1][1]
        table = file.read(first.row, last.row + last.rows, ["sensor", "time", "value"])
        # Rows form runs of one sensor; there may be runs of other sensors in between.
        code = _codes_of(_one(table["sensor"]), {entry.path: place for place, entry in entries})
        table = pa.table({"code": code, "time": table["time"].cast(_TIME), "raw": table["value"]})
        ns = pc.cast(table["time"], pa.int64())
        keep = pc.and_(pc.is_valid(table["code"]), pc.and_(pc.greater_equal(ns, low), pc.less(ns, high)))
        table = table.filter(keep).combine_chunks()
        code = _one(table["code"])
        value = self._chosen.scaled(code, _one(table["raw"]))
        ranks = pa.repeat(pa.scalar(rank, pa.int32()), table.num_rows)
        return pa.table({"code": code, "time": table["time"], "value": value, "rank": ranks})


def _codes(batch: Any) -> Any:
    return pa.table({"code": batch.column(0).indices, "time": batch.column(1), "value": batch.column(2)})


def _one(column: Any) -> Any:
    """A column as one array."""
    if not isinstance(column, pa.ChunkedArray):
        return column
    if pa.types.is_dictionary(column.type):
        column = column.unify_dictionaries()
    found = column.combine_chunks()
    if isinstance(found, pa.ChunkedArray):
        found = found.chunk(0) if found.num_chunks else pa.array([], column.type)
    return found


def _codes_of(sensor: Any, places: dict[str, int]) -> Any:
    """The index of each row's sensor in the answer's dictionary; null for sensors that are not selected."""
    if not pa.types.is_dictionary(sensor.type):
        sensor = sensor.dictionary_encode()
    wanted = pa.array([places.get(name) for name in sensor.dictionary.to_pylist()], pa.int32())
    return wanted.take(sensor.indices)


def _portions(held: dict[int, list[tuple[int, File, Entry]]]) -> Iterator[list[int]]:
    """Sensors in order, in groups of about :data:`_ROWS` rows."""
    some: list[int] = []
    rows = 0
    for place in sorted(held):
        more = sum(entry.rows for _, _, entry in held[place])
        if some and rows + more > _ROWS:
            yield some
            some, rows = [], 0
        some.append(place)
        rows += more
    if some:
        yield some


def _once(table: Any) -> Any:
    """The first row of each time, from rows sorted by code and time."""
    if table.num_rows < 2:
        return table
    code, time = _one(table["code"]), _one(table["time"])
    new = pc.or_(pc.not_equal(code.slice(1), code.slice(0, len(code) - 1)), pc.not_equal(time.slice(1), time.slice(0, len(time) - 1)))
    return table.filter(pa.concat_arrays([pa.array([True]), new]))


class StoredWindows(Frames):
    """Windows from a store's tier: ``sensor``, ``time`` (start of the window), ``min``, ``max``, ``sum``, ``first``, ``last`` in the
    sensors' units, and ``count``. ``wide`` is not supported.
    """

    _VALUES = ("min", "max", "sum", "first", "last")

    def __init__(self, store: Store, tier: str, sensors: list[Sensor], start: int, end: int) -> None:
        super().__init__()
        self._store, self._tier, self._start, self._end = store, tier, start, end
        self._width = interval_ns(tier)
        self._chosen = _Chosen(sensors)

    @property
    def schema(self) -> Any:
        """sensor, time, min, max, sum, first, last, count."""
        sensor = pa.dictionary(pa.int32(), pa.string())
        values = [(name, pa.float64()) for name in self._VALUES]
        return pa.schema([("sensor", sensor), ("time", _TIME), *values, ("count", pa.int64())])

    @property
    def units(self) -> dict[str, str]:
        """The unit of each selected sensor."""
        return {sensor.path: sensor.unit for sensor in self._chosen.sensors}

    def to_arrow(self, *, wide: bool = False) -> Any:
        """All rows as a :class:`pyarrow.Table`."""
        if wide:
            raise ValueError("a window has several values; use to_pandas() and pivot one of them")
        return super().to_arrow()

    def _stream(self) -> Iterator[Any]:
        files = self._store._opened(self._store.folder / "tiers" / self._tier, self._start - self._width, self._end)
        try:
            held: dict[int, list[tuple[File, Entry]]] = {}
            for _, file in files:
                for entry in file.entries():
                    place = self._chosen.place.get(entry.path)
                    if place is not None:
                        held.setdefault(place, []).append((file, entry))
            for place in sorted(held):
                table = self._sensor(place, held[place])
                if table.num_rows:
                    yield self._batch(place, table)
        finally:
            for _, file in files:
                file.close()

    def _sensor(self, place: int, found: list[tuple[File, Entry]]) -> Any:
        doubtful = _doubtful([entry for _, entry in found], self._width)
        parts = []
        for file, entry in found:
            if entry.rows == 0:
                continue
            try:
                part = file.read(entry.row, entry.row + entry.rows, ["time", *self._VALUES, "count"])
            except Damaged as error:
                _warn_damaged(error)
                continue
            columns = {"time": pc.cast(_one(part["time"]), pa.int64())}
            columns |= {name: _one(part[name]).cast(pa.float64(), safe=False) for name in self._VALUES}
            order = pa.repeat(pa.scalar(entry.first_time, pa.int64()), part.num_rows)
            parts.append(pa.table(columns | {"count": part["count"], "order": order}))
        if not parts:
            return pa.table({"time": pa.array([], pa.int64())})
        table = _within(pa.concat_tables(parts), self._start - self._start % self._width, self._end)
        for low, high in doubtful:
            inside = pc.and_(pc.greater_equal(table["time"], low), pc.less(table["time"], high))
            table = table.filter(pc.invert(inside))
        table = _added(table)
        again = [self._from_readings(place, low, high) for low, high in doubtful]
        return pa.concat_tables([table, *(one for one in again if one.num_rows)]).sort_by("time")

    def _from_readings(self, place: int, low: int, high: int) -> Any:
        """Computes windows that tiers may count twice from readings. Values are raw, as in tiers."""
        low, high = max(low, self._start - self._start % self._width), min(high, -(-self._end // self._width) * self._width)
        sensor = self._chosen.sensors[place]
        raw = Sensor(sensor.path, sensor.unit, sensor.kind, "float", 1.0, sensor.interval_ns, None, "", "")
        parts = [_codes(batch) for batch in StoredReadings(self._store, [raw], low, high)._stream()]
        if not parts:
            if low < high:
                text = f"{sensor.path}: windows from {text_of(low)} to {text_of(high)} are in two files and the readings are gone; left out"
                warnings.warn(text, DataWarning, stacklevel=2)
            return pa.table({"time": pa.array([], pa.int64())})
        table = pa.concat_tables(parts)
        table = table.filter(pc.and_(pc.is_valid(table["value"]), pc.invert(pc.fill_null(pc.is_nan(table["value"]), False))))
        ns = pc.cast(table["time"], pa.int64())
        window = pc.multiply(pc.divide(ns, self._width), self._width)
        one = pa.repeat(pa.scalar(1, pa.int64()), table.num_rows)
        value = table["value"]
        columns = {"time": window, **{name: value for name in self._VALUES}, "count": one, "order": ns}
        return _added(pa.table(columns))

    def _batch(self, place: int, table: Any) -> Any:
        table = table.combine_chunks()
        code = pa.repeat(pa.scalar(place, pa.int32()), table.num_rows)
        sensor = pa.DictionaryArray.from_arrays(code, self._chosen.names)
        factor, divisor = _scale(self._chosen.sensors[place].scale)
        values = [pc.divide(pc.multiply(_one(table[name]), factor), divisor) for name in self._VALUES]
        if factor * divisor < 0:
            # With a negative scale a greater raw value is a smaller quantity.
            values[0], values[1] = values[1], values[0]
        time = _one(table["time"]).cast(_TIME)
        return pa.RecordBatch.from_arrays([sensor, time, *values, _one(table["count"])], schema=self.schema)


def _within(table: Any, low: int, high: int) -> Any:
    return table.filter(pc.and_(pc.greater_equal(table["time"], low), pc.less(table["time"], high)))


def _added(table: Any) -> Any:
    """Merges the parts of one window."""
    table = table.sort_by([("time", "ascending"), ("order", "ascending")])
    how = [("min", "min"), ("max", "max"), ("sum", "sum"), ("first", "first"), ("last", "last"), ("count", "sum")]
    added = table.group_by("time", use_threads=False).aggregate(how)
    return added.select(["time", "min_min", "max_max", "sum_sum", "first_first", "last_last", "count_sum"]).rename_columns(
        ["time", "min", "max", "sum", "first", "last", "count"]
    )


def _doubtful(entries: list[Entry], width: int) -> list[tuple[int, int]]:
    """Ranges of whole windows in which the readings of two files overlap, so that one may be counted twice."""
    spans = sorted((entry.first_time, entry.last_time) for entry in entries)
    found: list[tuple[int, int]] = []
    for at, (first, last) in enumerate(spans):
        for other_first, other_last in spans[at + 1 :]:
            if other_first > last:
                break
            low, high = other_first - other_first % width, min(last, other_last)
            high = high - high % width + width
            if found and found[-1][1] >= low:
                found[-1] = (found[-1][0], max(found[-1][1], high))
            else:
                found.append((low, high))
    return found
