"""Sensors, readings and jobs of a Wholegrain server, or of a store directory.

>>> import wholegrain
>>> client = wholegrain.connect()                                  # doctest: +SKIP
>>> client.query("MemAvailable", "-10m", every="10s").to_pandas()  # doctest: +SKIP

- Input: a server's HTTP API, or the Parquet files of a store.
- Output: Arrow record batches, pandas and polars frames, figures.
- Never: a whole answer in memory unless requested, a time without a zone, a value in place of a gap.
"""

from ._client import Client, connect
from ._errors import (
    BadRequest,
    BrokenAnswer,
    ConfigError,
    Conflict,
    DataNote,
    DataWarning,
    Forbidden,
    NotAuthorized,
    NotFound,
    Refused,
    ServerFailed,
    StoreError,
    Unavailable,
    Unreachable,
    WholegrainError,
    WholegrainWarning,
)
from ._frames import Frames
from ._jobs import Job, JobRow
from ._properties import Properties
from ._result import Result
from ._sensors import Reading, Sensor
from ._store import Store, StoredReadings, StoredWindows, open_store
from ._virtual import Definition, Virtual
from ._watch import Subscription, Watch

__version__ = "0.1.0"

__all__ = [
    "BadRequest",
    "BrokenAnswer",
    "Client",
    "ConfigError",
    "Conflict",
    "DataNote",
    "DataWarning",
    "Definition",
    "Forbidden",
    "Frames",
    "Job",
    "JobRow",
    "NotAuthorized",
    "NotFound",
    "Properties",
    "Reading",
    "Refused",
    "Result",
    "Sensor",
    "ServerFailed",
    "Store",
    "StoreError",
    "StoredReadings",
    "StoredWindows",
    "Subscription",
    "Unavailable",
    "Unreachable",
    "Virtual",
    "Watch",
    "WholegrainError",
    "WholegrainWarning",
    "connect",
    "open_store",
]
