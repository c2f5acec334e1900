"""What can go wrong, as exceptions that say what was done, to what, and what to do."""

from __future__ import annotations


class WholegrainError(Exception):
    """Every error of this package."""


class ConfigError(WholegrainError):
    """There is no usable client.toml, token or authority."""


class Unreachable(WholegrainError):
    """The server did not answer: no connection, no TLS, or no answer in time."""


class BrokenAnswer(WholegrainError):
    """An answer began and broke off, or is none that this package can read. What came of it is not the whole."""


class StoreError(WholegrainError):
    """A store's folder cannot be read as one."""


class Refused(WholegrainError):
    """The server answered with an error. Its text is the exception's; subclasses tell the kinds apart."""

    def __init__(self, text: str, status: int) -> None:
        super().__init__(text)
        #: The HTTP status.
        self.status = status


class BadRequest(Refused):
    """400: something asked for is wrong; the text names it and says what to write."""


class NotAuthorized(Refused):
    """401: the token is missing, unknown or has run out."""


class Forbidden(Refused):
    """403: the token's role does not allow this."""


class NotFound(Refused):
    """404: there is no such thing, or it is not the caller's to see."""


class Conflict(Refused):
    """409: not in the state that things are in."""


class Unavailable(Refused):
    """429 or 503: not now; the same request can succeed in a moment."""


class ServerFailed(Refused):
    """5xx: the server failed; its log says more."""


class WholegrainWarning(UserWarning):
    """Every warning of this package."""


class DataWarning(WholegrainWarning):
    """Part of an answer is missing, for instance because a block is damaged."""


class DataNote(WholegrainWarning):
    """What a reader of an answer should know, for instance that retention has dropped part of the range."""


def refusal(status: int, text: str) -> Refused:
    """The exception of an answer's status."""
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
