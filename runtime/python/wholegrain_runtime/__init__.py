"""Wholegrain for applications and runtimes on a node: say what the code does, read the newest values of the own job.

    from wholegrain_runtime import region, value, newest

    with region("solve"):
        value("residual", 1e-9)
    print(newest("@/memory/usage"))

Marks never block and never raise for want of an agent; reading does. The protocol is in PROTOCOL.md.
"""

from ._marks import Counts, begin, close, counts, end, region, value
from ._reading import NoAgent, Reading, Refused, Watch, newest

__all__ = [
    "Counts",
    "NoAgent",
    "Reading",
    "Refused",
    "Watch",
    "begin",
    "close",
    "counts",
    "end",
    "newest",
    "region",
    "value",
]
