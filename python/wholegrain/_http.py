"""HTTPS requests with streamed responses. Uses the standard library only, with one connection for each request."""

from __future__ import annotations

import http.client
import json
import socket
import ssl
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Any, TypeAlias
from urllib.parse import quote, urlencode, urlsplit

from ._config import Target
from ._errors import BrokenAnswer, ConfigError, Unreachable, refusal

#: Parameters of a request.
Params: TypeAlias = Iterable[tuple[str, str]]

#: Timeout of connecting, s.
CONNECT_S = 10.0
#: Timeout until a response begins, s.
ANSWER_S = 60.0
#: Timeout between two parts of a response, s; not for live streams.
READ_S = 120.0
#: TCP keep-alive: after this silence (s) the kernel probes the connection, then every 10 s, 3 times.
KEEP_ALIVE_S = 30
#: The most bytes that are read of an error message.
ERROR_BYTES_MAX = 64 << 10
#: The largest piece of a response, in bytes.
PIECE_BYTES = 256 << 10


class Connection:
    """The address and TLS settings of a server."""

    def __init__(self, target: Target) -> None:
        parts = urlsplit(target.url)
        if not parts.hostname or parts.query or parts.fragment:
            raise ConfigError(f"{target.url!r} (from {target.origin}) is not an address; write https://host:port")
        self.url = target.url
        self._origin = target.origin
        self._host, self._port, self._base = parts.hostname, parts.port or 443, parts.path
        self._headers = {"User-Agent": "wholegrain-python/0.1.0", "Accept-Encoding": "identity"}
        if target.token is not None:
            self._headers["Authorization"] = f"Bearer {target.token}"
        # Trusts only this CA, and checks the host name.
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        try:
            self._context.load_verify_locations(cafile=target.ca)
        except (OSError, ssl.SSLError) as error:
            raise ConfigError(
                f"cannot read the CA certificate {target.ca} (from {target.origin}): {error}; copy ca.pem from the server"
            ) from error

    def ask(self, method: str, path: str, params: Params = (), body: Any = None, endless: bool = False) -> Answer:
        """Sends a request. ``path`` is percent-encoded, ``body`` is converted to JSON. Raises unless the response is a success."""
        query = urlencode(list(params), quote_via=quote)
        headers = dict(self._headers)
        data: bytes | None = None
        if body is not None:
            data = json.dumps(body).encode()
            headers["Content-Type"] = "application/json"
        connection = http.client.HTTPSConnection(self._host, self._port, timeout=CONNECT_S, context=self._context)
        try:
            connection.connect()
            sock: socket.socket = connection.sock
            _keep_alive(sock)
            sock.settimeout(ANSWER_S)
            connection.request(method, f"{self._base}{path}{'?' if query else ''}{query}", data, headers)
            response = connection.getresponse()
            sock.settimeout(None if endless else READ_S)
        except ssl.SSLError as error:
            connection.close()
            raise Unreachable(
                f"cannot reach {self.url} (from {self._origin}): TLS: {error}; is the ca in {self._origin} the CA of this "
                "server?"
            ) from error
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            what = "no answer in time" if isinstance(error, TimeoutError) else str(error) or type(error).__name__
            raise Unreachable(f"cannot reach {self.url} (from {self._origin}): {what}; is the server running?") from error
        answer = Answer(connection, response, sock)
        if not 200 <= response.status < 300:
            with answer:
                raise refusal(response.status, self._said(response.status, answer))
        return answer

    def json(self, method: str, path: str, params: Params = (), body: Any = None) -> Any:
        """The JSON of a response; ``None`` without a body."""
        with self.ask(method, path, params, body) as answer:
            data = answer.read()
        try:
            return json.loads(data) if data.strip() else None
        except ValueError as error:
            raise BrokenAnswer(f"{self.url}{path} answered with something else than JSON: {error}") from error

    def _said(self, status: int, answer: Answer) -> str:
        try:
            text = answer.read(ERROR_BYTES_MAX).decode("utf-8", "replace")
        except BrokenAnswer:
            text = ""
        try:
            said = str(json.loads(text)["error"])
        except (ValueError, KeyError, TypeError):
            line = text.partition("\n")[0]
            said = f"status {status}: {line}" if line else f"status {status}"
        if status in (401, 403):
            return f"{self.url} refuses the request: {said}; is the token in {self._origin} the right one?"
        if status == 404:
            return f"{self.url}: not found: {said}"
        return said if status < 500 else f"{self.url}: {said}"


def _keep_alive(sock: socket.socket) -> None:
    # Detects a lost network even if nothing is sent for hours.
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (("TCP_KEEPIDLE", KEEP_ALIVE_S), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 3)):
        if hasattr(socket, name):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


class Answer:
    """A response whose body is read as it arrives; a file for :mod:`pyarrow` with ``read`` and ``closed``."""

    def __init__(self, connection: http.client.HTTPSConnection, response: http.client.HTTPResponse, sock: socket.socket) -> None:
        self._connection, self._response, self._socket = connection, response, sock
        self.closed = False

    def header(self, name: str) -> str | None:
        """One header."""
        return self._response.getheader(name)

    def headers(self, name: str) -> list[str]:
        """All headers with this name."""
        lines = self._response.headers.get_all(name) or []
        # Python decodes headers as Latin-1; the server writes UTF-8.
        return [line.encode("latin-1", "replace").decode("utf-8", "replace") for line in lines]

    def read(self, count: int = -1) -> bytes:
        """Reads ``count`` bytes, fewer only at the end; without ``count`` everything."""
        if self.closed:
            raise BrokenAnswer("the answer was closed before it was read to its end")
        try:
            return self._response.read() if count is None or count < 0 else self._response.read(count)
        except (OSError, http.client.HTTPException, ValueError) as error:
            what = "nothing came in time" if isinstance(error, TimeoutError) else str(error) or type(error).__name__
            raise BrokenAnswer(
                f"the answer ended early ({what}) and is incomplete; see the server's log"
            ) from error

    def readable(self) -> bool:
        """Whether it can be read: always."""
        return True

    def pieces(self) -> Iterator[bytes]:
        """The received data as it arrives, at most :data:`PIECE_BYTES` in a piece."""
        while True:
            try:
                piece = self._response.read1(PIECE_BYTES)
            except (OSError, http.client.HTTPException, ValueError, AttributeError) as error:
                raise BrokenAnswer(f"the answer ended early: {str(error) or type(error).__name__}") from error
            if not piece:
                return
            yield piece

    def lines(self) -> Iterator[bytes]:
        """The lines without line ends, as they arrive; the last one may be incomplete."""
        rest = b""
        for piece in self.pieces():
            *whole, rest = (rest + piece).split(b"\n")
            yield from whole
        if rest:
            yield rest

    def items(self, name: str) -> Iterator[Any]:
        """The elements of ``{"<name>": […]}`` one by one, without the whole text in memory."""
        yield from _elements(self.pieces(), name)

    def abort(self) -> None:
        """Closes the connection, also while another thread reads from it."""
        try:
            self._socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass  # already closed

    def close(self) -> None:
        """Closes the connection; the server stops work on the rest."""
        if not self.closed:
            self.closed = True
            self._response.close()
            self._connection.close()

    def __del__(self) -> None:
        # An abandoned answer ends without an error, and the server stops work on it.
        self.close()

    def __enter__(self) -> Answer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _elements(pieces: Iterator[bytes], name: str) -> Iterator[Any]:
    decoder = json.JSONDecoder()
    head = f'{{"{name}":['
    data, text = b"", ""
    began = False
    for piece in chain(pieces, (b"\n",)):
        # A piece can end anywhere, even within a character.
        data += piece
        end = data.rfind(b"\n") + 1 if b"\n" in data else 0
        text += data[:end].decode("utf-8")
        data = data[end:]
        if not began and text.startswith(head):
            began, text = True, text[len(head) :]
        if began:
            at = 0
            while True:
                while at < len(text) and text[at] in " \t\r\n,":
                    at += 1
                try:
                    element, at = decoder.raw_decode(text, at)
                except ValueError:
                    break
                yield element
            text = text[at:]
    if not began or text.lstrip()[:1] != "]":
        raise BrokenAnswer(f"the list of {name} ended early or is invalid")
