"""What the server counted: requests, replies that were billed, delivered and lost.

Everything here is touched in the server's thread only; `Stats` is the copy that others get.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from xyreward.verdict import Usage


@dataclass(frozen=True)
class Stats:
    """A consistent copy of the server's counts at one moment.

    A *call* asks the model for a reply: messages and chat completions. Batches are counted apart.
    """

    requests: int = 0
    """Received wholly, on any endpoint. `reset_before` ones are among them."""
    calls: int = 0
    """Requests to messages and chat completions."""
    billed: int = 0
    """Replies that the model began: what an API charges for. billed = delivered + lost + in_flight."""
    delivered: int = 0
    """Billed replies that the server wrote wholly to a client that was still there, in readable JSON."""
    lost: int = 0
    """Billed replies that no client could read: reset, cut, unreadable, or the client had left."""
    in_flight: int = 0
    """Billed replies that are neither delivered nor lost yet."""
    distinct_billed: int = 0
    """Different request bodies among the billed ones. Equal to `billed` where nothing was paid twice."""
    max_concurrent: int = 0
    """Most calls that were being answered at one time."""
    connections: int = 0
    """TCP connections that were opened."""
    by_endpoint: Mapping[str, int] = field(default_factory=dict)
    by_status: Mapping[int, int] = field(default_factory=dict)
    """HTTP status to number of responses that were written wholly, on any endpoint."""
    by_fault: Mapping[str, int] = field(default_factory=dict)
    """Kind of fault to number of requests that had it."""
    billed_usage: Usage = field(default_factory=Usage)
    """Tokens of all billed replies."""
    delivered_usage: Usage = field(default_factory=Usage)
    """Tokens of all delivered replies: what a client's own bill must come to."""
    batches: int = 0
    batch_rows: Mapping[str, int] = field(default_factory=dict)
    """succeeded, errored, expired, canceled: rows of batches that ended."""
    batch_usage: Usage = field(default_factory=Usage)
    """Tokens of all succeeded rows."""

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, found: Mapping[str, Any]) -> Stats:
        """The inverse of `as_dict`, also after JSON made text of the statuses."""
        read = {f.name: found[f.name] for f in fields(cls)}
        read["by_status"] = {int(status): n for status, n in read["by_status"].items()}
        for name in ("billed_usage", "delivered_usage", "batch_usage"):
            read[name] = Usage(**read[name])
        return cls(**read)


@dataclass(slots=True)
class Entry:
    """One request, as the log has it."""

    number: int
    """In order of arrival, from 0, over all endpoints."""
    endpoint: str
    started: float
    """Seconds since the server started."""
    seconds: float | None = None
    """From the last byte of the request to the last of the response. None: not over yet."""
    status: int | None = None
    """None where no status was written."""
    fault: str | None = None
    billed: bool = False
    delivered: bool = False
    usage: Usage | None = None
    body_hash: str = ""
    """First 16 hex digits of a sha256 of the body, whatever its keys' order: finds what was sent twice."""
    body: dict[str, Any] | None = None
    """Kept only where the server was told to (`log_bodies=True`)."""


class Books:
    """The mutable counts. Every entry is opened once and closed once."""

    def __init__(self, log_size: int) -> None:
        self.log: deque[Entry] = deque(maxlen=log_size)
        self.requests = 0
        self.calls = 0
        self.billed = 0
        self.delivered = 0
        self.lost = 0
        self.concurrent = 0
        self.max_concurrent = 0
        self.connections = 0
        self.batches = 0
        self.by_endpoint: Counter[str] = Counter()
        self.by_status: Counter[int] = Counter()
        self.by_fault: Counter[str] = Counter()
        self.batch_rows: Counter[str] = Counter()
        self.distinct: set[str] = set()
        self.billed_usage = Counter[str]()
        self.delivered_usage = Counter[str]()
        self.batch_usage = Counter[str]()

    def open(self, endpoint: str, now: float) -> Entry:
        """A request arrived."""
        entry = Entry(number=self.requests, endpoint=endpoint, started=now)
        self.log.append(entry)
        self.requests += 1
        self.by_endpoint[endpoint] += 1
        if endpoint in ("messages", "chat"):
            self.calls += 1
            self.concurrent += 1
            self.max_concurrent = max(self.max_concurrent, self.concurrent)
        return entry

    def bill(self, entry: Entry, usage: Usage) -> None:
        """The model began this reply."""
        entry.billed, entry.usage = True, usage
        self.billed += 1
        self.distinct.add(entry.body_hash)
        _add(self.billed_usage, usage)

    def close(self, entry: Entry, *, written: bool, readable: bool, now: float) -> None:
        """The exchange is over, one way or the other."""
        entry.seconds = now - entry.started
        if entry.fault is not None:
            self.by_fault[entry.fault] += 1
        if written and entry.status is not None:
            self.by_status[entry.status] += 1
        if entry.endpoint in ("messages", "chat"):
            self.concurrent -= 1
        if entry.billed:
            entry.delivered = written and readable
            if entry.delivered and entry.usage is not None:
                self.delivered += 1
                _add(self.delivered_usage, entry.usage)
            else:
                self.lost += 1

    def bill_row(self, usage: Usage) -> None:
        """One row of a batch succeeded."""
        _add(self.batch_usage, usage)

    def stats(self) -> Stats:
        """A copy of all counts."""
        return Stats(
            requests=self.requests,
            calls=self.calls,
            billed=self.billed,
            delivered=self.delivered,
            lost=self.lost,
            in_flight=self.billed - self.delivered - self.lost,
            distinct_billed=len(self.distinct),
            max_concurrent=self.max_concurrent,
            connections=self.connections,
            by_endpoint=dict(self.by_endpoint),
            by_status=dict(self.by_status),
            by_fault=dict(self.by_fault),
            billed_usage=Usage(**self.billed_usage),
            delivered_usage=Usage(**self.delivered_usage),
            batches=self.batches,
            batch_rows=dict(self.batch_rows),
            batch_usage=Usage(**self.batch_usage),
        )


def _add(total: Counter[str], usage: Usage) -> None:
    total["input_tokens"] += usage.input_tokens
    total["output_tokens"] += usage.output_tokens
    total["cache_read_tokens"] += usage.cache_read_tokens
    total["cache_write_tokens"] += usage.cache_write_tokens
