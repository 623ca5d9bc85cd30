"""Where the service listens, what it takes, and who may ask."""

from __future__ import annotations

import ipaddress
import os
import socket
from dataclasses import dataclass, field
from pathlib import Path

from xyreward.errors import ConfigError

TOKEN_VARIABLE = "XYREWARD_SERVE_TOKEN"  # noqa: S105  # the name of a variable
MIN_TOKEN = 16
"""Characters. A shorter one can be guessed over a network."""
MAKE_TOKEN = 'python -c "import secrets; print(secrets.token_urlsafe(32))"'  # noqa: S105  # a command


@dataclass(frozen=True, slots=True)
class Settings:
    """What `xyreward serve` is told. Checked when it is made."""

    host: str = "127.0.0.1"
    port: int = 8123
    """0: any free one, which is printed."""
    token: str | None = field(default=None, repr=False)
    """Whoever asks must bring it. None: only for a host that is a loopback address."""
    max_body_bytes: int = 4 * 2**20
    """Of one request; above it 413."""
    max_held_bytes: int = 64 * 2**20
    """Of all requests being read or answered; above it 429. This bounds the service's memory."""
    max_answers: int = 256
    """Of one request; above it 422."""
    max_waiting: int = 1024
    """Answers without a verdict yet, over all requests; above it 429."""
    deadline_s: float = 150.0
    """A request without verdicts by then is told 503; they are still finished and remembered. Below the
    180 seconds after which OpenRLHF gives up and asks anew."""
    read_s: float = 30.0
    """A body that is not there by then: 408. A connection is closed on which no head of a request is."""

    def __post_init__(self) -> None:
        for name in ("max_body_bytes", "max_held_bytes", "max_answers", "max_waiting"):
            if (value := getattr(self, name)) < 1:
                raise ConfigError(f"{name} is {value}, expected 1 or more")
        for name in ("deadline_s", "read_s"):
            if not 0 < (value := getattr(self, name)) < 86_400:
                raise ConfigError(f"{name} is {value}, expected seconds above 0, below a day")
        if not 0 <= self.port < 65_536:
            raise ConfigError(f"port is {self.port}, expected 0 to 65535")
        if self.max_answers > self.max_waiting:
            raise ConfigError(
                f"max_answers is {self.max_answers}, above max_waiting ({self.max_waiting}): such a "
                "request could never be taken; expected it at most as large"
            )
        if self.max_body_bytes > self.max_held_bytes:
            raise ConfigError(
                f"max_body_bytes is {self.max_body_bytes}, above max_held_bytes "
                f"({self.max_held_bytes}): such a request could never be taken; expected it at most as "
                "large"
            )
        if self.token is not None:
            _check_token(self.token)
        elif not self.is_loopback:
            raise ConfigError(
                f"host is {self.host!r}, which others can reach, and there is no token; every request "
                f"may cost money. Make one with {MAKE_TOKEN} and put it into {TOKEN_VARIABLE} or a file "
                "(--token-file), or listen on 127.0.0.1"
            )

    @property
    def is_loopback(self) -> bool:
        """Whether nobody but this machine can reach the host: every address that it stands for."""
        try:
            found = socket.getaddrinfo(self.host, None, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as error:
            raise ConfigError(
                f"host is {self.host!r}, which is no address of this machine ({error}); expected "
                "127.0.0.1, ::1, 0.0.0.0 or a name that resolves"
            ) from None
        return all(is_loopback(str(address[0])) for *_, address in found)


def is_loopback(address: str) -> bool:
    """Whether an address in digits, with or without a scope, is one of loopback."""
    try:
        return ipaddress.ip_address(address.partition("%")[0]).is_loopback
    except ValueError:
        return False


def token_of(file: str | os.PathLike[str] | None = None) -> str | None:
    """The token from a file, or from XYREWARD_SERVE_TOKEN; None where neither is given.

    There is no option for the token itself: other users of the machine see command lines.

    Raises:
        ConfigError: the file cannot be read or others may read it; either is blank; both are given.
    """
    given = os.environ.get(TOKEN_VARIABLE)
    if file is None:
        return None if given is None else _checked(given, TOKEN_VARIABLE)
    if given is not None:
        raise ConfigError(f"both --token-file and {TOKEN_VARIABLE} are given, expected one of them")
    path = Path(file)
    try:
        if os.name == "posix" and path.stat().st_mode & 0o077 and path.is_file():
            raise ConfigError(
                f"{path} holds the token, and others may read it; run: chmod 600 {path}"
            )
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"{path}: the token cannot be read ({type(error).__name__}); expected a file with one line"
        ) from None
    return _checked(text, str(path))


def _checked(text: str, where: str) -> str:
    token = text.strip()
    if not token:
        raise ConfigError(f"{where} is blank, expected a token; make one with {MAKE_TOKEN}")
    try:
        _check_token(token)
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from None
    return token


def _check_token(token: str) -> None:
    if len(token) < MIN_TOKEN:
        raise ConfigError(
            f"the token has {len(token)} characters, expected {MIN_TOKEN} or more; make one with {MAKE_TOKEN}"
        )
    if not token.isascii() or not token.isprintable() or " " in token:
        raise ConfigError(
            "the token has blanks or characters beyond ASCII, which a header cannot carry; make one "
            f"with {MAKE_TOKEN}"
        )
