"""Tables of (sensor, time, value) in the format of several libraries."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

if TYPE_CHECKING:
    import pandas
    import polars


class Frames(ABC):
    """Readings in batches. To iterate over it streams the batches, once, with one batch in memory. ``to_arrow()``, ``to_pandas()`` and
    ``to_polars()`` read everything and can be called repeatedly.

    Columns are ``sensor`` (dictionary of strings), ``time`` (timestamp in ns, UTC) and ``value`` (float64, or int64 if all values are
    integers; null is a gap).
    """

    def __init__(self) -> None:
        self._table: Any = None

    @property
    @abstractmethod
    def schema(self) -> Any:
        """The batches' schema, a :class:`pyarrow.Schema`."""

    @abstractmethod
    def _stream(self) -> Iterator[Any]:
        """The batches; can be read once."""

    @property
    @abstractmethod
    def units(self) -> dict[str, str]:
        """The unit of each sensor of the answer, by path."""

    def batches(self) -> Iterator[Any]:
        """The record batches (:class:`pyarrow.RecordBatch`) as they arrive."""
        if self._table is not None:
            yield from self._table.to_batches()
        else:
            yield from self._stream()

    def __iter__(self) -> Iterator[Any]:
        return self.batches()

    def to_arrow(self, *, wide: bool = False) -> Any:
        """All rows as a :class:`pyarrow.Table`. With ``wide`` there is a column ``time`` and one column for each sensor, null without a
        value at that time.
        """
        if self._table is None:
            self._table = pa.Table.from_batches(list(self._stream()), schema=self.schema)
        return _widened(self._table, self.units) if wide else self._table

    def to_pandas(self, *, wide: bool = False) -> pandas.DataFrame:
        """All rows as a :class:`pandas.DataFrame`; with ``wide`` one column for each sensor, and times as the index (UTC)."""
        try:
            import pandas  # noqa: F401
        except ImportError as error:
            raise ImportError("to_pandas() needs pandas: pip install 'wholegrain[pandas]'") from error
        table = self.to_arrow(wide=wide)
        frame: pandas.DataFrame = table.to_pandas()
        frame.attrs["units"] = self.units
        return frame.set_index("time") if wide else frame

    def to_polars(self, *, wide: bool = False) -> polars.DataFrame:
        """All rows as a :class:`polars.DataFrame`."""
        try:
            import polars
        except ImportError as error:
            raise ImportError("to_polars() needs polars: pip install 'wholegrain[polars]'") from error
        frame = polars.from_arrow(self.to_arrow(wide=wide))
        assert isinstance(frame, polars.DataFrame)
        return frame


def _widened(table: Any, units: dict[str, str]) -> Any:
    """Converts to one column for each sensor. Rows are sorted by sensor and time, and no sensor has a time twice."""
    table = table.combine_chunks().unify_dictionaries()
    times = pc.unique(table["time"])
    times = times.take(pc.array_sort_indices(times))
    columns, fields = [times], [pa.field("time", table.schema.field("time").type)]
    for name, start, length in runs(table["sensor"]):
        rows = table.slice(start, length)
        own = rows["time"].combine_chunks()
        at = pc.index_in(times, value_set=own)
        columns.append(rows["value"].combine_chunks().take(at))
        unit = units.get(name)
        fields.append(pa.field(name, table.schema.field("value").type, metadata={"unit": unit} if unit is not None else None))
    return pa.table(columns, schema=pa.schema(fields))


def runs(sensor: Any) -> Iterator[tuple[str, int, int]]:
    """Name, first row and number of rows of each sensor in a sorted column."""
    column = sensor.combine_chunks() if isinstance(sensor, pa.ChunkedArray) else sensor
    if isinstance(column, pa.ChunkedArray):  # some versions return a chunked array for an empty one
        column = column.chunk(0) if column.num_chunks else pa.array([], pa.dictionary(pa.int32(), pa.string()))
    encoded = pc.run_end_encode(column.indices)
    names, start = column.dictionary, 0
    for key, end in zip(encoded.values.to_pylist(), encoded.run_ends.to_pylist(), strict=True):
        yield names[key].as_py(), start, end - start
        start = end
