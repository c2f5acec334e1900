"""The answer of a query, as it streams in."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from ._errors import BrokenAnswer, DataNote, DataWarning
from ._frames import Frames
from ._http import Answer

#: The most bytes after an answer's rows that are looked at: at most sixteen lines of text.
_AFTER_BYTES_MAX = 256 << 10


class Result(Frames):
    """The answer of :meth:`Client.query`. Nothing is read before it is asked for; close it (or use it in ``with``) when you stop early,
    and the server stops too.

    What the server has to say of the answer comes as Python warnings: :class:`DataWarning` for what is missing through damage,
    :class:`DataNote` for what retention dropped. Some of it is known at the start, the rest after the last row.
    """

    def __init__(self, answer: Answer) -> None:
        super().__init__()
        self._answer = answer
        self._begun = False
        self._units: dict[str, str] | None = None
        #: How many sensors the patterns chose.
        self.sensors = int(answer.header("x-wholegrain-sensors") or 0)
        #: Resolution of the downsampled tier that answers wherever it can; ``None`` when readings are read.
        self.tier = answer.header("x-wholegrain-tier")
        #: Width of the windows.
        self.every = answer.header("x-wholegrain-every")
        #: What is missing, as far as it is known by now.
        self.warnings: list[str] = []
        #: What else a reader should know, as far as it is known by now.
        self.notes: list[str] = []
        for text in answer.headers("x-wholegrain-warning"):
            self._tell(text, DataWarning)
        for text in answer.headers("x-wholegrain-note"):
            self._tell(text, DataNote)
        try:
            self._reader = pa.ipc.open_stream(pa.PythonFile(answer, mode="r"))
        except pa.ArrowInvalid as error:
            answer.close()
            raise BrokenAnswer(f"the answer is no Arrow stream: {error}") from error

    @property
    def schema(self) -> Any:
        """The batches' schema; the units are in its metadata."""
        return self._reader.schema

    @property
    def unit(self) -> str | None:
        """The unit of every value, when all sensors share it."""
        value = (self.schema.metadata or {}).get(b"wholegrain.unit")
        return None if value is None else value.decode() or "1"

    @property
    def units(self) -> dict[str, str]:
        """Unit of each sensor in the answer. Known once a batch has come."""
        return dict(self._units or {})

    def _stream(self) -> Iterator[Any]:
        if self._begun:
            raise RuntimeError("the answer has been read already; keep to_arrow()'s table, or ask again")
        self._begun = True
        try:
            while True:
                try:
                    batch = self._reader.read_next_batch()
                except StopIteration:
                    break
                except pa.ArrowInvalid as error:
                    raise BrokenAnswer(f"the answer broke off: {error}") from error
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
        """What stands after the end of the Arrow stream."""
        text = self._answer.read(_AFTER_BYTES_MAX)
        for line in text.splitlines():
            try:
                found = json.loads(line)
            except ValueError as error:
                raise BrokenAnswer(f"after the rows stands something that is no JSON: {line[:80]!r}") from error
            if "warning" in found:
                self._tell(str(found["warning"]), DataWarning)
            if "note" in found:
                self._tell(str(found["note"]), DataNote)

    def _tell(self, text: str, kind: type[Warning]) -> None:
        (self.warnings if kind is DataWarning else self.notes).append(text)
        warnings.warn(text, kind, stacklevel=2)

    def close(self) -> None:
        """Ends the answer where it is."""
        self._answer.close()

    def __enter__(self) -> Result:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
