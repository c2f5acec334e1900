"""Requests over HTTPS that stream their answers. The standard library is enough: one connection for each request."""

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

#: Names and values of a request.
Params: TypeAlias = Iterable[tuple[str, str]]

#: How long connecting may take, s.
CONNECT_S = 10.0
#: How long the server may take until an answer begins, s.
ANSWER_S = 60.0
#: How long the server may pause within an answer, s; not for what has no end.
READ_S = 120.0
#: Without a word from the other side for so long (s) the kernel asks whether it is still there, then every 10 s, 3 times.
KEEP_ALIVE_S = 30
#: The most bytes read of an error's text.
ERROR_BYTES_MAX = 64 << 10
#: The most bytes asked of the connection at once where an answer is read piece by piece.
PIECE_BYTES = 256 << 10


class Connection:
    """A server that can be asked."""

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
        # Trusts this authority alone; checks the host's name.
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        try:
            self._context.load_verify_locations(cafile=target.ca)
        except (OSError, ssl.SSLError) as error:
            raise ConfigError(
                f"cannot read the authority {target.ca} (from {target.origin}): {error}; copy ca.pem from the server"
            ) from error

    def ask(self, method: str, path: str, params: Params = (), body: Any = None, endless: bool = False) -> Answer:
        """Sends one request; ``path`` is percent-encoded already, ``body`` becomes JSON. Raises unless the answer is a success."""
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
                f"cannot reach {self.url} (from {self._origin}): TLS: {error}; is the ca in {self._origin} the authority of this "
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
        """The JSON of an answer; ``None`` for one without a body."""
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
    # A network that is gone is noticed although nothing is sent for hours.
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (("TCP_KEEPIDLE", KEEP_ALIVE_S), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 3)):
        if hasattr(socket, name):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


class Answer:
    """An answer whose body is read as it comes. A file for :mod:`pyarrow`: it has ``read`` and ``closed``."""

    def __init__(self, connection: http.client.HTTPSConnection, response: http.client.HTTPResponse, sock: socket.socket) -> None:
        self._connection, self._response, self._socket = connection, response, sock
        self.closed = False

    def header(self, name: str) -> str | None:
        """One line of the head."""
        return self._response.getheader(name)

    def headers(self, name: str) -> list[str]:
        """Every line of the head of this name."""
        lines = self._response.headers.get_all(name) or []
        # Python reads the bytes of heads as Latin-1; the server writes UTF-8.
        return [line.encode("latin-1", "replace").decode("utf-8", "replace") for line in lines]

    def read(self, count: int = -1) -> bytes:
        """So many bytes, fewer only at the end; all that is left without ``count``."""
        if self.closed:
            raise BrokenAnswer("the answer was closed before it was read to its end")
        try:
            return self._response.read() if count is None or count < 0 else self._response.read(count)
        except (OSError, http.client.HTTPException, ValueError) as error:
            what = "nothing came in time" if isinstance(error, TimeoutError) else str(error) or type(error).__name__
            raise BrokenAnswer(
                f"the answer broke off ({what}): it is not whole; the server's log may say why, or it went away"
            ) from error

    def readable(self) -> bool:
        """It can be read."""
        return True

    def pieces(self) -> Iterator[bytes]:
        """What has come, at once as it comes, at most :data:`PIECE_BYTES` a piece."""
        while True:
            try:
                piece = self._response.read1(PIECE_BYTES)
            except (OSError, http.client.HTTPException, ValueError, AttributeError) as error:
                raise BrokenAnswer(f"the answer broke off: {str(error) or type(error).__name__}") from error
            if not piece:
                return
            yield piece

    def lines(self) -> Iterator[bytes]:
        """Its lines, without their ends, each as soon as it has come; the last one may lack its end."""
        rest = b""
        for piece in self.pieces():
            *whole, rest = (rest + piece).split(b"\n")
            yield from whole
        if rest:
            yield rest

    def items(self, name: str) -> Iterator[Any]:
        """The elements of ``{"<name>": […]}``, one after the other: the text is never in memory as a whole."""
        yield from _elements(self.pieces(), name)

    def abort(self) -> None:
        """Ends the connection, also under a reader in another thread."""
        try:
            self._socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass  # it has ended already

    def close(self) -> None:
        """Ends the connection; the server stops working on what is not read yet."""
        if not self.closed:
            self.closed = True
            self._response.close()
            self._connection.close()

    def __del__(self) -> None:
        # An answer that nobody wants any more ends quietly, and the server's work on it.
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
        # An element may be cut anywhere, within a character too.
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
        raise BrokenAnswer(f"the list of {name} broke off or is none")
