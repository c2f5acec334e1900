"""The streamed answer of a query."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from ._errors import BrokenAnswer, DataNote, DataWarning
from ._frames import Frames
from ._http import Answer

#: The most bytes that are read after an answer's rows: at most sixteen lines of text.
_AFTER_BYTES_MAX = 256 << 10


class Result(Frames):
    """The answer of :meth:`Client.query`. It is read when iterated. To stop early, close it (or use ``with``); then the server stops too.

    The server's remarks are Python warnings: :class:`DataWarning` for data missing because of damage, :class:`DataNote` for data dropped
    by retention. Some come at the start, the others after the last row.
    """

    def __init__(self, answer: Answer) -> None:
        super().__init__()
        self._answer = answer
        self._begun = False
        self._units: dict[str, str] | None = None
        #: The number of matching sensors.
        self.sensors = int(answer.header("x-wholegrain-sensors") or 0)
        #: The resolution of the tier that is used where possible; ``None`` if only readings are read.
        self.tier = answer.header("x-wholegrain-tier")
        #: The length of the windows.
        self.every = answer.header("x-wholegrain-every")
        #: Warnings about missing data that have arrived.
        self.warnings: list[str] = []
        #: Notes that have arrived.
        self.notes: list[str] = []
        for text in answer.headers("x-wholegrain-warning"):
            self._tell(text, DataWarning)
        for text in answer.headers("x-wholegrain-note"):
            self._tell(text, DataNote)
        try:
            self._reader = pa.ipc.open_stream(pa.PythonFile(answer, mode="r"))
        except pa.ArrowInvalid as error:
            answer.close()
            raise BrokenAnswer(f"the answer is not an Arrow stream: {error}") from error

    @property
    def schema(self) -> Any:
        """The batches' schema; its metadata contains the units."""
        return self._reader.schema

    @property
    def unit(self) -> str | None:
        """The unit of all values, if all sensors share it."""
        value = (self.schema.metadata or {}).get(b"wholegrain.unit")
        return None if value is None else value.decode() or "1"

    @property
    def units(self) -> dict[str, str]:
        """The unit of each sensor in the answer. Known after the first batch."""
        return dict(self._units or {})

    def _stream(self) -> Iterator[Any]:
        if self._begun:
            raise RuntimeError("the answer was already read; keep the table of to_arrow(), or query again")
        self._begun = True
        try:
            while True:
                try:
                    batch = self._reader.read_next_batch()
                except StopIteration:
                    break
                except pa.ArrowInvalid as error:
                    raise BrokenAnswer(f"the answer ended early: {error}") from error
                self._note_units(batch)
                yield batch
            self._after()
        finally:
            self.close()

    def _note_units(self, batch: Any) -> None:
        if self._units is not None:
            return
        names = batch.column(0).dictionary.to_pylist()
        many = (self.schema.metadata or {}).get(b"wholegrain.units")
        units = [self.unit or "1"] * len(names) if many is None else many.decode().split("\n")
        self._units = {name: unit or "1" for name, unit in zip(names, units, strict=False)}

    def _after(self) -> None:
        """The text after the end of the Arrow stream."""
        text = self._answer.read(_AFTER_BYTES_MAX)
        for line in text.splitlines():
            try:
                found = json.loads(line)
            except ValueError as error:
                raise BrokenAnswer(f"the text after the rows is not JSON: {line[:80]!r}") from error
            if "warning" in found:
                self._tell(str(found["warning"]), DataWarning)
            if "note" in found:
                self._tell(str(found["note"]), DataNote)

    def _tell(self, text: str, kind: type[Warning]) -> None:
        (self.warnings if kind is DataWarning else self.notes).append(text)
        warnings.warn(text, kind, stacklevel=2)

    def close(self) -> None:
        """Ends the answer."""
        self._answer.close()

    def __enter__(self) -> Result:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
