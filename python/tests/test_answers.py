"""Answers of a failing server: a small HTTPS server sends what a real one sends only with a damaged disk or when it is killed."""

from __future__ import annotations

import http.server
import ssl
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

import wholegrain


def stream() -> bytes:
    schema = pa.schema(
        [("sensor", pa.dictionary(pa.int32(), pa.string())), ("time", pa.timestamp("ns", tz="UTC")), ("value", pa.float64())],
        metadata={"wholegrain.unit": "W"},
    )
    sensor = pa.DictionaryArray.from_arrays(pa.array([0, 0], pa.int32()), pa.array(["/a"]))
    batch = pa.record_batch([sensor, pa.array([1, 2], pa.timestamp("ns", tz="UTC")), pa.array([1.0, None])], schema=schema)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema) as writer:
        writer.write_batch(batch)
    return bytes(sink.getvalue().to_pybytes())


@pytest.fixture(scope="module")
def scripted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[dict[str, object], wholegrain.Client]]:
    folder: Path = tmp_path_factory.mktemp("tls")
    certificate = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "1"]
    names = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"]
    subprocess.run([*certificate, *names, "-keyout", folder / "key", "-out", folder / "ca"], check=True, capture_output=True)
    says: dict[str, object] = {}

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self.send_response(int(str(says.get("status", 200))))
            for line in says.get("warnings", ()):  # type: ignore[attr-defined]
                self.send_header("X-Wholegrain-Warning", line)
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            body = says["body"]
            assert isinstance(body, bytes)
            self.wfile.write(b"%x\r\n%s\r\n" % (len(body), body))
            if says.get("whole", True):
                self.wfile.write(b"0\r\n\r\n")
            self.close_connection = True

        def log_message(self, *_: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "ca", folder / "key")
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield says, wholegrain.connect(url=f"https://localhost:{server.server_port}", ca=folder / "ca", token="t")
    server.shutdown()
    thread.join()
    server.server_close()


ScriptedServer = tuple[dict[str, object], wholegrain.Client]


def test_what_stands_after_the_rows_becomes_a_warning(scripted: ScriptedServer) -> None:
    says, client = scripted
    after = '{"note":"readings before May are gone"}\n{"warning":"block é is damaged"}\n'
    says.clear()
    says |= {"body": stream() + after.encode(), "warnings": ["block 7 is damaged"]}
    with pytest.warns(wholegrain.DataWarning, match="block 7"):
        result = client.query("/a")
    with pytest.warns(wholegrain.DataNote, match="before May"), pytest.warns(wholegrain.DataWarning, match="block é"):
        table = result.to_arrow()
    assert table["value"].to_pylist() == [1.0, None]
    assert result.warnings == ["block 7 is damaged", "block é is damaged"] and result.notes == ["readings before May are gone"]
    assert result.unit == "W" and result.units == {"/a": "W"}


def test_an_answer_that_breaks_off_is_an_error(scripted: ScriptedServer) -> None:
    says, client = scripted
    whole = stream()
    for cut in (len(whole), len(whole) - 8, len(whole) - 100):
        says.clear()
        says |= {"body": whole[:cut], "whole": False}
        with pytest.raises(wholegrain.BrokenAnswer):
            client.query("/a").to_arrow()
    says |= {"body": b"hello", "whole": True}
    with pytest.raises(wholegrain.BrokenAnswer):
        client.query("/a")
    says |= {"body": b'{"sensors":[{"path":"/a"},\n', "whole": True}
    with pytest.raises(wholegrain.BrokenAnswer):
        client.sensors()


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, wholegrain.BadRequest),
        (401, wholegrain.NotAuthorized),
        (403, wholegrain.Forbidden),
        (404, wholegrain.NotFound),
        (409, wholegrain.Conflict),
        (429, wholegrain.Unavailable),
        (500, wholegrain.ServerFailed),
        (503, wholegrain.Unavailable),
        (418, wholegrain.Refused),
    ],
)
def test_statuses(scripted: ScriptedServer, status: int, kind: type[wholegrain.Refused]) -> None:
    says, client = scripted
    says.clear()
    says |= {"status": status, "body": b'{"error":"because"}'}
    with pytest.raises(kind, match="because") as raised:
        client.sensors()
    assert raised.value.status == status and type(raised.value) is kind
    says |= {"body": b"<html>\nnot ours"}
    with pytest.raises(kind, match=f"status {status}: <html>"):
        client.newest("/a")
