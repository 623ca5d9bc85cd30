"""What both kinds of endpoint share: addresses, connections, and what a failed request means.

Every failure of the wire becomes a CallError or a JudgeStopped here, without the exception that it
came from: those of the HTTP libraries hold the request, and with it the key and the answer.

Not here: what is sent and how a reply is taken apart (`judges/anthropic.py`, `judges/chat.py`),
what is asked of a server before a long job (`judges/preflight.py`).
"""

from __future__ import annotations

import asyncio
import ipaddress
import math
import os
import re
import ssl
import time
from collections.abc import AsyncGenerator, Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from email.utils import mktime_tz, parsedate_tz
from typing import TYPE_CHECKING, Any, Generic, Literal, Protocol, TypeGuard, TypeVar
from urllib.parse import urlsplit
from weakref import WeakKeyDictionary

from xyreward.errors import JudgeError
from xyreward.judges.calls import CallError, JudgeStopped

if TYPE_CHECKING:
    import httpx2

SchemaMode = Literal["json_schema", "plain"]
"""How the form of the reply is asked for: by structured output, or by the prompt alone."""

CONNECT_TIMEOUT_S = 10.0
MESSAGE_LENGTH = 300
"""Characters of a server's message that are kept."""
MOST_TOKENS = 100_000_000
"""A count above this is no count of one reply's tokens."""


# ---------------------------------------------------------------- addresses


def check_url(url: str) -> str:
    """The address without a slash at its end.

    Raises:
        JudgeError: not http(s), or with credentials or parameters in it. A URL is written into
            verdicts, logs and reports, so what is secret must not be part of it.
    """
    expected = "expected http://host:port or https://host, perhaps with a path"
    if not isinstance(url, str):
        raise JudgeError(f"base_url is {url!r:.80}, {expected}")
    url = url.strip()
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError:
        host = None
    # urlsplit drops line ends that the HTTP libraries stumble over, and they read other letters apart.
    odd = not url.isascii() or not url.isprintable() or " " in url
    if odd or host is None or parts.scheme not in ("http", "https"):
        raise JudgeError(f"base_url is {url.rpartition('@')[2]!a:.200}, {expected}, in ASCII")
    if parts.username is not None or parts.password is not None:
        raise JudgeError(
            f"base_url of {host} holds a user or password, {expected}; give the key as api_key or "
            "in the environment, where it is not written into verdicts"
        )
    if parts.query or parts.fragment:
        raise JudgeError(f"base_url of {host} has parameters after its path, {expected}")
    return url.rstrip("/")


def is_loopback(url: str) -> bool:
    """Whether the address is this machine's own."""
    host = urlsplit(url).hostname or ""
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    return address.is_loopback or address.is_unspecified  # 0.0.0.0 reaches this machine too


def clean_key(key: str | None, source: str) -> str | None:
    """The key without the line end that a file or shell left on it; None where there is none.

    Raises:
        JudgeStopped: it cannot be sent in a header. The libraries' own messages would print it.
    """
    if not isinstance(key, str | None):
        raise JudgeStopped(f"{source} is a {type(key).__name__}, expected text")
    key = (key or "").strip()
    if not key:
        return None
    if not key.isascii() or not key.isprintable() or " " in key:
        raise JudgeStopped(
            f"{source} has blanks, line ends or letters outside ASCII in it, which no key has; "
            "copy the key once more"
        )
    return key


def given_key(key: str | None) -> str | None:
    """An `api_key` as it was given to an endpoint; None where none was.

    Raises:
        JudgeError: a blank one. Taken for none, it would send the environment's key to a server that was
            to get another.
    """
    if key is not None and (not isinstance(key, str) or not key.strip()):
        found = "blank" if isinstance(key, str) else f"a {type(key).__name__}"
        raise JudgeError(
            f"api_key is {found}, expected a key; leave it out to use the environment's"
        )
    return key


def check_max_tokens(given: int | None) -> None:
    """Raise JudgeError for a limit of a reply that is none."""
    if given is None:
        return
    if isinstance(given, bool) or not isinstance(given, int) or not 1 <= given <= 10_000_000:
        raise JudgeError(f"max_tokens is {given!r:.80}, expected a whole number of at least 1")


HTTP_KEY_HOSTS = "XYREWARD_HTTP_KEY_HOSTS"
"""Environment variable: hosts to which a key may go unencrypted, with commas or blanks between them."""


def check_encrypted(url: str, source: str, endpoint: str) -> None:
    """Make sure that a key does not cross a network in clear.

    Raises:
        JudgeStopped: the address is another machine's, without https, and not among `HTTP_KEY_HOSTS`.
    """
    parts = urlsplit(url)
    host = parts.hostname or ""
    allowed = os.environ.get(HTTP_KEY_HOSTS, "").replace(",", " ").lower().split()
    if parts.scheme == "https" or is_loopback(url) or host in allowed:
        return
    raise JudgeStopped(
        f"{endpoint}: {source} would go unencrypted to {host}, for everybody on the way to read; expected an "
        "https:// address, or this machine's own. Give another base_url, or no key where the server wants "
        f"none; where the network is yours, set {HTTP_KEY_HOSTS}={host}"
    )


def without_credentials(text: str) -> str:
    """A judge's name, fit to be shown where it was not understood: what stands before an @ may be secret."""
    return re.sub(r"//\S*@", "//[hidden]@", text)


@contextmanager
def of_environment(endpoint: str) -> Iterator[None]:
    """Around the making of a client: proxies and certificates of the environment may be impossible."""
    failure: JudgeStopped
    try:
        yield
        return
    except (ImportError, OSError, ValueError) as error:
        failure = JudgeStopped(
            f"{endpoint}: no connection can be made with this environment ({type(error).__name__}); check "
            "HTTP_PROXY, HTTPS_PROXY, ALL_PROXY, SSL_CERT_FILE and SSL_CERT_DIR (a socks proxy needs pip "
            "install socksio)"
        )
    except Exception as error:
        if type(error).__name__ != "InvalidURL":  # of httpx2, which is not imported for that
            raise
        failure = JudgeStopped(
            f"{endpoint}: the address of a proxy or of the server is none; check base_url, HTTP_PROXY, "
            "HTTPS_PROXY and ALL_PROXY"
        )
    raise failure  # not above: what these say may hold the proxy's password


# ---------------------------------------------------------------- connections


MAX_REPLY_BYTES = 32 * 2**20
"""Of one body. The longest reply of any model is a few hundred thousand bytes."""
_most_bytes: ContextVar[int] = ContextVar("most_bytes", default=MAX_REPLY_BYTES)


class UnboundedReplyError(RuntimeError):
    """A body without end, or one that nobody could say how large it becomes."""


@contextmanager
def replies_up_to(most_bytes: int) -> Iterator[None]:
    """Around a request whose reply may be larger than `MAX_REPLY_BYTES`: results of a batch."""
    before = _most_bytes.set(max(most_bytes, MAX_REPLY_BYTES))
    try:
        yield
    finally:
        _most_bytes.reset(before)


def bounded() -> dict[str, Any]:
    """Arguments of an HTTP client that takes no body above the limit into memory.

    Bodies are asked for uncompressed: a megabyte of a compressed one can become a gigabyte.
    """
    import httpx2

    class Counted(httpx2.AsyncByteStream):
        def __init__(self, stream: httpx2.AsyncByteStream, most: int) -> None:
            self._stream, self._most = stream, most

        async def __aiter__(self) -> AsyncGenerator[bytes, None]:
            size = 0
            async for part in self._stream:
                size += len(part)
                if size > self._most:
                    raise UnboundedReplyError(f"its body has more than {self._most / 2**20:g} MiB")
                yield part

        async def aclose(self) -> None:
            await self._stream.aclose()

    async def bound(response: httpx2.Response) -> None:
        if response.headers.get("content-encoding", "identity").lower() not in ("", "identity"):
            raise UnboundedReplyError("its body is compressed, which was not asked for")
        assert isinstance(response.stream, httpx2.AsyncByteStream)
        response.stream = Counted(response.stream, _most_bytes.get())

    return {"headers": {"accept-encoding": "identity"}, "event_hooks": {"response": [bound]}}


class _Closable(Protocol):
    async def close(self) -> None: ...


T = TypeVar("T", bound=_Closable)


class LoopClients(Generic[T]):
    """One client per event loop: a connection pool works only in the loop that opened it.

    TRL calls async rewards on a loop of its own, score() opens one per call. A client closes when
    its loop ends: `asyncio.run` closes all asynchronous generators of a loop, and each client sits
    in one. So nobody has to remember to call `aclose`, and no socket is left open.
    """

    def __init__(self) -> None:
        self._by_loop: WeakKeyDictionary[
            asyncio.AbstractEventLoop, tuple[T, AsyncGenerator[None, None]]
        ] = WeakKeyDictionary()

    async def get(self, make: Callable[[], T]) -> T:
        """The client of the running loop, made on first use."""
        loop = asyncio.get_running_loop()
        held = self._by_loop.get(loop)
        if held is not None:
            return held[0]
        for other in [loop for loop in list(self._by_loop) if loop.is_closed()]:
            self._by_loop.pop(other, None)
        client = make()
        lifetime = self._open(loop, client)
        self._by_loop[loop] = client, lifetime
        await anext(lifetime)
        return client

    async def _open(self, loop: asyncio.AbstractEventLoop, client: T) -> AsyncGenerator[None, None]:
        try:
            yield
        finally:
            self._by_loop.pop(loop, None)
            await client.close()

    async def aclose(self) -> None:
        """Close the client of the running loop, if there is one."""
        held = self._by_loop.get(asyncio.get_running_loop())
        if held is not None:
            await held[1].aclose()

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), ()  # a copy in another process opens connections of its own


# ---------------------------------------------------------------- failures


def scrub(message: str, *, secrets: Collection[str] = (), private: str = "") -> str:
    """A server's message, fit to be shown: one line, short, without keys, without our own text.

    Servers echo: a gateway repeats part of the key, a validator the whole request. The message is
    left out where any 16 letters in a row of it occur in `private`.
    """
    for secret in secrets:
        message = message.replace(secret, "[key]")
        for start in range(len(secret) - 7):
            message = message.replace(secret[start : start + 8], "[key]")
    message = re.sub(r"\bsk-[\w*.…-]+", "[key]", message)
    message = re.sub(r"(?i)\b(bearer|x-api-key:?)\s+\S+", r"\1 [key]", message)
    message = " ".join("".join(c if c.isprintable() else " " for c in message).split())
    if repeats(message, private):
        return "(its message repeats our request and is left out)"
    if len(message) > MESSAGE_LENGTH:
        message = message[:MESSAGE_LENGTH].rstrip() + "…"
    return message


def repeats(message: str, private: str) -> bool:
    """Whether 16 letters or digits in a row of a message occur in `private`, escaped as JSON or not."""
    ours, theirs = _letters(private), _letters(message[:20_000])
    # Looking for each piece in the other text would take their product: seconds, in the event loop.
    pieces = {theirs[i : i + 16] for i in range(len(theirs) - 15)}
    return bool(pieces) and any(ours[i : i + 16] in pieces for i in range(len(ours) - 15))


def _letters(text: str) -> str:
    text = re.sub(r"\\u([0-9a-fA-F]{4})", lambda found: chr(int(found[1], 16)), text)
    return re.sub(r"\\[a-z]|\W+", "", text)


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds that the server asks to wait, uncapped; None where it does not say."""
    for name, unit in (("retry-after-ms", 1000.0), ("retry-after", 1.0)):
        value = headers.get(name, "")
        try:
            seconds = float(value) / unit
        except ValueError:
            until = _moment(value) if unit == 1.0 else None
            if until is None:
                continue
            seconds = until - time.time()
        if not math.isnan(seconds):
            return max(0.0, seconds)
    return None


def _moment(date: str) -> float | None:
    """A date of HTTP in seconds since 1970; None where it is none, or of a year that no clock has."""
    try:
        parts = parsedate_tz(date)
        return None if parts is None else mktime_tz(parts)
    except (ValueError, OverflowError, IndexError, TypeError):
        return None


def json_body(response: httpx2.Response) -> Any:
    """The body of a response as JSON; None where it is none, also where it is nested too deep to be read."""
    try:
        return response.json()
    except (ValueError, RecursionError):
        return None


class ServerStopped(JudgeStopped):
    """A JudgeStopped that a server's status caused."""

    def __init__(self, message: str, status: int = 0) -> None:
        self.status = status
        super().__init__(message)


class SchemaRefused(ServerStopped):
    """The server takes no structured output. Raised by `send` only where it was told to ask for it."""


@dataclass(frozen=True, slots=True)
class ServerError:
    """An error that a server answered with, in its own words: not to be shown unscrubbed."""

    status: int
    headers: Mapping[str, str]
    type: str = ""
    code: str = ""
    message: str = ""
    request_id: str = ""

    @classmethod
    def of_body(cls, status: int, headers: Mapping[str, str], body: object) -> ServerError:
        """Read what servers answer: {"error": {...}}, {"message": ...}, {"detail": ...}, or text."""
        kind = code = message = ""
        if isinstance(body, Mapping):
            error = body.get("error", body)
            if isinstance(error, Mapping):
                details = error.get("details")
                inner = details.get("error_code") if isinstance(details, Mapping) else None
                kind, code = _text(error.get("type")), _text(inner or error.get("code"))
                message = _text(error.get("message") or error.get("detail"))
            else:
                message = _text(error)
        elif isinstance(body, str):
            message = body
        request_id = headers.get("request-id", "") or headers.get("x-request-id", "")
        return cls(status, headers, kind, code, message, request_id)

    @property
    def is_json(self) -> bool:
        """Whether an API answered, and not a web page."""
        return "json" in self.headers.get("content-type", "").lower()

    def mentions(self, *words: str) -> bool:
        """Whether any of the words occurs in its message, type or code."""
        told = f"{self.type} {self.code} {self.message}".lower()
        return any(word in told for word in words)


def _text(value: object) -> str:
    return "" if value is None else value if isinstance(value, str) else repr(value)


STOP_CODES = (
    "spend_limit",
    "insufficient_quota",
    "billing_hard_limit",
    "billing_not_active",
    "organization_on_hold",
)
"""Parts of error codes that no waiting helps against, whatever their status (often 429)."""


def of_status(
    error: ServerError,
    *,
    endpoint: str,
    model: str,
    key_source: str,
    secrets: Collection[str] = (),
    private: str = "",
    retired: str = "",
) -> CallError | ServerStopped:
    """What an error status means for us.

    Args:
        error: what the server answered.
        endpoint: name of the judge, for messages.
        model: as it was asked for.
        key_source: where the key came from, in words.
        secrets: keys, which messages must not show.
        private: text of ours, which messages must not show.
        retired: what to say of the model's end of life where the server does not know it.
    """
    status, headers = error.status, error.headers
    message = scrub(error.message, secrets=secrets, private=private)
    named = " ".join(filter(None, (str(status), scrub(error.type), scrub(error.code))))
    request = f" (request {scrub(error.request_id)})" if error.request_id else ""
    found = f"{named}: {message}{request}" if message else f"{named}{request}"

    def stop(message: str) -> ServerStopped:
        return ServerStopped(message, status)

    if any(code in error.code for code in STOP_CODES) or error.type == "billing_error":
        return stop(
            f"{endpoint}: {found}. The account's limit is spent, and waiting does not help; raise "
            "it, then run again: what was judged is in the store"
        )
    if status == 400 and "credit balance is too low" in message.lower():
        return stop(f"{endpoint}: {found}. Add credit to the account, then run again")
    if status == 402:
        return stop(f"{endpoint}: {found}. Settle the account's payment, then run again")
    if status == 401:
        # The message is left out: it is the one that most often shows a part of the key.
        return stop(
            f"{endpoint}: {named}{request}; the server does not accept {key_source}. Check the key "
            "and that it belongs to this server"
        )
    if status == 403:
        return stop(
            f"{endpoint}: {found}. {key_source[:1].upper()}{key_source[1:]} may not use model "
            f"{model!r} here; check the permissions of the key, and the address"
        )
    if status in (404, 410):
        if not error.is_json:
            return stop(f"{endpoint}: {named}, and no API answers at this path; check base_url")
        return stop(
            f"{endpoint}: {found}. Expected a model that this server has, found {model!r}; {retired}"
            "list its models with GET /v1/models"
        )
    if status == 405 or 300 <= status < 400:
        return stop(
            f"{endpoint}: the address answers {status} to a POST; give the API's final address as "
            "base_url (https, no redirect)"
        )

    retry = status in (408, 409, 425, 429) or (status >= 500 and status not in (501, 505))
    told = headers.get("x-should-retry", "").lower()
    if told in ("true", "false"):
        retry = told == "true"
    overloaded = status == 529 or error.type == "overloaded_error"
    return CallError(
        "rate_limited" if status == 429 else "timeout" if status in (408, 504) else "transport",
        found,
        retry=retry,
        retry_after=retry_after(headers),
        overloaded=status in (429, 503) or overloaded,
        pause_all=overloaded,
        # A gateway that lost its upstream cannot know whether the model had answered.
        possibly_billed=status in (502, 504) or 520 <= status <= 527,
    )


SCHEMA_WORDS = (
    "json_schema",
    "response_format",
    "output_config.format",
    "output_format",
    "structured output",
    "structured_output",
    "guided",
    "grammar",
)


def refuses_schema(error: ServerError, private: str) -> bool:
    """Whether an error is about our asking for structured output, as far as its words tell.

    A message that repeats our text tells nothing: the answer in it may hold any of the words.
    """
    return (
        error.status in (400, 422, 501)
        and error.mentions(*SCHEMA_WORDS)
        and not repeats(error.message, private)
    )


def of_connection(error: BaseException | None, *, endpoint: str) -> CallError | JudgeStopped:
    """What an exception of httpx2 means for us. Its own message is not used: it can hold headers."""
    import httpx2

    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, UnboundedReplyError):
            # Not again: it would come again, and each may be charged for.
            return CallError(
                "transport", f"a reply came, but {seen}", retry=False, possibly_billed=True
            )
        if isinstance(seen, ssl.SSLCertVerificationError):
            return JudgeStopped(
                f"{endpoint}: the server's certificate is not trusted ({seen.verify_message}); "
                "check base_url, or install the certificate authority of your network"
            )
        seen = seen.__cause__ or seen.__context__
    name = type(error).__name__ if error is not None else "no connection"
    if isinstance(error, httpx2.ConnectTimeout | httpx2.PoolTimeout):
        return CallError("timeout", f"no connection to the server ({name})", retry=True)
    if isinstance(error, httpx2.ConnectError | httpx2.ProxyError | httpx2.UnsupportedProtocol):
        return CallError("transport", f"no connection to the server ({name})", retry=True)
    if isinstance(error, httpx2.LocalProtocolError):
        return CallError("transport", f"the request cannot be sent ({name})", retry=False)
    # All others come after the first byte was sent, or cannot be told from those that do.
    kind: Literal["timeout", "transport"] = (
        "timeout" if isinstance(error, httpx2.TimeoutException) else "transport"
    )
    return CallError(
        kind, f"the connection was lost before the reply ({name})", retry=True, possibly_billed=True
    )


def timed_out(timeout: float) -> CallError:
    """No reply within the time of one sending."""
    return CallError("timeout", f"no reply within {timeout:g} s", retry=True, possibly_billed=True)


def unsendable() -> CallError:
    """Half a surrogate pair somewhere in the text, which is no text. Nothing was sent."""
    return CallError("transport", "the text of the request is not valid Unicode", retry=False)


def unreadable(response_status: int, why: str) -> CallError:
    """A reply came and was paid for, but is not what an API sends: cut off, or a web page."""
    return CallError("transport", f"{response_status}, but {why}", retry=True, possibly_billed=True)


# ---------------------------------------------------------------- tokens


def tokens(usage: object, *path: str) -> int:
    """A count out of a usage object; 0 where it is absent or no count."""
    for name in path:
        usage = usage.get(name) if isinstance(usage, Mapping) else None
    return usage if _is_count(usage) else 0


def counted(usage: object, read: str, wrote: str, cached: Collection[str] = ()) -> bool:
    """Whether a usage object says what a reply cost, with counts under these names.

    What is half told is not told, and nobody replies to nothing: a cost would come out too low, and a
    budget would not hold. Counts of the cache may be absent.
    """
    if not isinstance(usage, Mapping):
        return False
    counts = [usage.get(read), *(usage[name] for name in cached if usage.get(name) is not None)]
    return all(map(_is_count, [*counts, usage.get(wrote)])) and any(counts)


def _is_count(value: object) -> TypeGuard[int]:
    # No model writes or reads a hundred million tokens at a time; sums of such numbers would not fit
    # into the store.
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MOST_TOKENS
