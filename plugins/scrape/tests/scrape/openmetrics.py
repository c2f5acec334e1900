"""An exporter in OpenMetrics, with the values that the test expects."""

import sys
import time

from prometheus_client import CollectorRegistry, Counter, Enum, Gauge, Histogram, Info, Summary, start_http_server

registry = CollectorRegistry()
pumped = Counter("pumped_joules", "Energy of the pump.", ["pump"], registry=registry)
pumped.labels("p1").inc(17.5, exemplar={"trace_id": "abc"})
pumped.labels("p2").inc(3)
Gauge("supply_celsius", "Supply temperature.", registry=registry).set(16.25)
latency = Histogram("latency_seconds", "Latency.", buckets=[0.1, 1], registry=registry)
latency.observe(0.05, exemplar={"trace_id": "def"})
latency.observe(5)
size = Summary("answer_bytes", "Answers.", registry=registry)
size.observe(100)
size.observe(50)
Info("build", "The build.", registry=registry).info({"version": "1.2"})
Enum("mode", "The mode.", states=["off", "on"], registry=registry).state("on")
start_http_server(int(sys.argv[1]), "127.0.0.1", registry=registry)
while True:
    time.sleep(60)
