"""Exceptions. Each message says what was done, to what, and what to do."""

from __future__ import annotations


class WholegrainError(Exception):
    """The base class of all errors of this package."""


class ConfigError(WholegrainError):
    """No usable client.toml, token or CA certificate."""


class Unreachable(WholegrainError):
    """The server did not answer: no connection, no TLS, or a timeout."""


class BrokenAnswer(WholegrainError):
    """An answer ended early or is invalid. Data received before is incomplete."""


class StoreError(WholegrainError):
    """The directory is not a readable store."""


class Refused(WholegrainError):
    """The server returned an error; the message is the server's. Subclasses stand for HTTP statuses."""

    def __init__(self, text: str, status: int) -> None:
        super().__init__(text)
        #: The HTTP status.
        self.status = status


class BadRequest(Refused):
    """400: the request is invalid; the message says how to correct it."""


class NotAuthorized(Refused):
    """401: the token is missing, unknown or expired."""


class Forbidden(Refused):
    """403: the token's role does not permit this."""


class NotFound(Refused):
    """404: the object does not exist, or the caller may not see it."""


class Conflict(Refused):
    """409: the request conflicts with the current state."""


class Unavailable(Refused):
    """429 or 503: the server is busy; the same request can succeed later."""


class ServerFailed(Refused):
    """5xx: the server failed; see its log."""


class WholegrainWarning(UserWarning):
    """The base class of all warnings of this package."""


class DataWarning(WholegrainWarning):
    """A part of an answer is missing, for instance because a block is damaged."""


class DataNote(WholegrainWarning):
    """Information about an answer, for instance that retention dropped a part of the range."""


def refusal(status: int, text: str) -> Refused:
    """The exception for an HTTP status."""
    kinds: dict[int, type[Refused]] = {
        400: BadRequest,
        401: NotAuthorized,
        403: Forbidden,
        404: NotFound,
        409: Conflict,
        429: Unavailable,
        503: Unavailable,
    }
    other = ServerFailed if status >= 500 else BadRequest if status in (405, 413, 415, 422) else Refused
    return kinds.get(status, other)(text, status)
