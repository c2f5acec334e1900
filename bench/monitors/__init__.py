"""Monitoring systems under one interface: ours, peers, and bare loops of the same reads; each is started, counted and stopped in the same way."""

from __future__ import annotations

from harness import BenchError

from .bare import Bare
from .base import Monitor
from .collectd import Collectd
from .ganglia import Ganglia
from .likwid import Likwid
from .netdata import Netdata
from .node_exporter import NodeExporter
from .pcp import Pcp
from .rezolus import Rezolus
from .wholegrain import Wholegrain

# In the order of reports.
ALL: tuple[type[Monitor], ...] = (Bare, Wholegrain, Collectd, NodeExporter, Ganglia, Pcp, Netdata, Likwid, Rezolus)


def find(name: str) -> type[Monitor]:
    monitor = next((monitor for monitor in ALL if monitor.name == name), None)
    if monitor is None:
        raise BenchError(f"there is no monitor {name}; there are {', '.join(monitor.name for monitor in ALL)}")
    return monitor
