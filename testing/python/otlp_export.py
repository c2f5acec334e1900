"""Exports metrics with the SDK of OpenTelemetry: URL, file with a token, file of the CA, "cumulative", "delta" or "json".

With "json" the SDK's messages are cumulative and sent in protobuf's JSON encoding, as SDKs of other languages do it.

Prints the values that the server must have, as a JSON object: the path below the service's, and the newest value.
"""

import gzip
import json
import os
import sys
from typing import Any

import requests
from google.protobuf.json_format import MessageToJson
from opentelemetry.exporter.otlp.proto.http import Compression
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.metrics import CallbackOptions, Observation
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.sdk.metrics import Counter, Histogram, MeterProvider
from opentelemetry.sdk.metrics.export import AggregationTemporality, PeriodicExportingMetricReader
from opentelemetry.sdk.metrics.view import ExponentialBucketHistogramAggregation, View
from opentelemetry.sdk.resources import Resource



class JsonSession(requests.Session):
    """Sends each message as JSON."""

    def post(self, url: Any, data: Any = None, json: Any = None, **more: Any) -> requests.Response:
        message = ExportMetricsServiceRequest.FromString(gzip.decompress(data))
        text = MessageToJson(message, use_integers_for_enums=True)
        headers = {"Content-Type": "application/json"}
        return super().post(url, data=gzip.compress(text.encode()), headers=headers, **more)


url, token_file, ca, temporality = sys.argv[1:]
# The library prefers these to the exporter's certificate_file.
for variable in ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"):
    os.environ.pop(variable, None)
with open(token_file, encoding="utf-8") as file:
    token = file.read().strip()
kind = AggregationTemporality.DELTA if temporality == "delta" else AggregationTemporality.CUMULATIVE
exporter = OTLPMetricExporter(
    endpoint=url,
    headers={"authorization": f"Bearer {token}"},
    certificate_file=ca,
    compression=Compression.Gzip,
    preferred_temporality={Counter: kind, Histogram: kind},
    session=JsonSession() if temporality == "json" else None,
)
reader = PeriodicExportingMetricReader(exporter, export_interval_millis=3_600_000)
views = [View(instrument_name="cooling.delay", aggregation=ExponentialBucketHistogramAggregation())]
resource = Resource({"service.name": "plant", "service.instance.id": temporality, "host.name": "n7", "process.command_args": ["a"]})
provider = MeterProvider([reader], resource, views=views)
meter = provider.get_meter("test")


def inlet(_: CallbackOptions) -> list[Observation]:
    return [Observation(21.5, {"loop": "a/1"}), Observation(19.25, {"loop": "b"})]


meter.create_observable_gauge("inlet.temperature", [inlet], unit="Cel", description="At the inlet.")
heat = meter.create_counter("heat", unit="J", description="Heat that left.")
level = meter.create_up_down_counter("tank.level", unit="{unit}")
duration = meter.create_histogram("valve.duration", unit="s", explicit_bucket_boundaries_advisory=[0.5, 2.0])
delay = meter.create_histogram("cooling.delay", unit="s")
for value in (40, 2):
    heat.add(value, {"pump": "1"})
level.add(7)
level.add(-3)
for seconds in (0.25, 1.0, 1.5, 9.0):
    duration.record(seconds)
    delay.record(seconds)
provider.force_flush()
heat.add(100, {"pump": "1"})
provider.shutdown()
print(
    json.dumps(
        {
            "inlet.temperature/loop=a%2F1": 21.5,
            "inlet.temperature/loop=b": 19.25,
            "heat/pump=1": 142,
            "tank.level": 4,
            "valve.duration/count": 4,
            "valve.duration/sum": 11.75,
            "valve.duration/min": 0.25,
            "valve.duration/max": 9.0,
            "valve.duration/le=0.5/bucket": 1,
            "valve.duration/le=2/bucket": 3,
            "valve.duration/le=%2BInf/bucket": 4,
            "cooling.delay/count": 4,
            "cooling.delay/sum": 11.75,
            "cooling.delay/min": 0.25,
            "cooling.delay/max": 9.0,
        }
    )
)
