"""Reads client.toml, which the command line uses as well."""

from __future__ import annotations

import os
import tomllib
from dataclasses import dataclass
from pathlib import Path

from ._errors import ConfigError

_KEYS = ("url", "token_file", "ca", "agent_socket")


@dataclass(frozen=True, slots=True)
class Target:
    """A server's address and credentials."""

    url: str
    ca: Path
    token: str | None
    #: The origin of the settings, for messages.
    origin: str


def places() -> list[Path]:
    """The paths of client.toml, in order of precedence."""
    home = os.environ.get("HOME")
    own = [Path(home) / ".config/wholegrain/client.toml"] if home else []
    return [Path("var/client.toml"), *own, Path("/etc/wholegrain/client.toml")]


def find(client: str | os.PathLike[str] | None, url: str | None, token: str | None, ca: str | os.PathLike[str] | None) -> Target:
    """Combines the arguments with client.toml for everything that is missing."""
    named = client or os.environ.get("WHOLEGRAIN_CLIENT")
    if url is not None and ca is not None and client is None:
        return Target(_address(url, "the argument url"), Path(ca), token, "the arguments of connect()")
    file = Path(named) if named else next((path for path in places() if path.exists()), None)
    if file is None:
        looked = ", ".join(map(str, places()))
        raise ConfigError(
            f"no client.toml; tried {looked}. Start a server with `wholegrain up`, set the file "
            "with connect(client=…) or in WHOLEGRAIN_CLIENT, or give url, ca and token"
        )
    read = _read(file)
    url = url or read.get("url")
    if url is None:
        raise ConfigError(f'{file} has no url; add url = "https://host:8443"')
    authority = Path(ca) if ca is not None else _beside(file, read.get("ca"))
    if authority is None:
        raise ConfigError(f'{file} has no ca; add ca = "ca.pem", the server\'s CA certificate')
    token_file = _beside(file, read.get("token_file"))
    if token is None and token_file is not None:
        token = read_token(token_file)
    return Target(_address(url, str(file)), authority, token, str(file))


def read_token(path: Path) -> str:
    """The first line that is not a comment."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read the token {path}: {error}; check its permissions") from error
    lines = (line.strip() for line in text.splitlines())
    token = next((line for line in lines if line and not line.startswith("#")), "")
    if not token or not all("!" <= c <= "~" for c in token):
        raise ConfigError(f"{path} holds no token: expected one line of printable ASCII")
    return token


def _read(file: Path) -> dict[str, str]:
    try:
        found = tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"cannot read {file}: {error}; set another file with connect(client=…), or create one with `wholegrain init`"
        ) from error
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{file}: {error}") from error
    for key, value in found.items():
        if key not in _KEYS:
            raise ConfigError(f"{file}: unknown key `{key}`; known are {', '.join(_KEYS)}")
        if not isinstance(value, str):
            raise ConfigError(f"{file}: `{key}` must be text in quotes")
    return found


def _beside(file: Path, value: str | None) -> Path | None:
    return None if value is None else file.parent / value


def _address(url: str, origin: str) -> str:
    if not url.startswith("https://"):
        raise ConfigError(f"{url!r} (from {origin}) is not an address; write https://host:port")
    return url.rstrip("/")
