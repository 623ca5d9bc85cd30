"""Message Batches: judging at half the price, for work that can wait up to a day.

    batches = MessageBatches(endpoint, store, run="pairs", received=received)
    report = await batches.run(requests)      # submits, waits, collects, submits again what expired

A batch outlives the process that submitted it. It is written into the store before it is submitted and
its id afterwards; a process that dies in between leaves a batch that the API may know and the store
does not. `run` looks for such a batch in the API's list, by a tag in its rows' custom ids, and only if
it is not there submits the rows once more: nothing is paid for twice.

Not here: how a reply is read and stored (`received` of the caller), prices (`prices.py`), the tables
(`store/batches.py`).
"""

from __future__ import annotations

import asyncio
import json
import random
import time
import uuid
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import quote

from xyreward.judges.anthropic import AnthropicEndpoint, read_message
from xyreward.judges.calls import Call, CallError, JudgeStopped, Reply
from xyreward.judges.transport import ServerStopped, json_body, replies_up_to, scrub, tokens
from xyreward.store import Batch, BatchRow, VerdictStore
from xyreward.words import noun

PATH = "/v1/messages/batches"
API_MAX_ROWS = 100_000
API_MAX_BYTES = 256_000_000
MAX_ROW_BYTES = 256 * 2**10
"""Of one row of results, on average. A verdict with its thinking has a few thousand."""
SUBMIT, LIST = "submitting a batch", "listing the batches"
FINAL_ERRORS = ("invalid_request_error", "request_too_large", "not_found_error")
"""Types of errored rows that come again however often the row is sent."""


@dataclass(frozen=True, slots=True)
class BatchRequest:
    """One call of a batch."""

    key: str
    """Of its verdict in the store."""
    call: Call
    memo: str = "{}"
    """JSON text with what `received` needs to read the reply: in another process, a day later."""
    worst_usd: float | None = None
    """Upper bound of its cost at batch prices; None where the price is unknown."""


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """Sizes and pauses."""

    max_rows: int = API_MAX_ROWS
    """Rows of one batch."""
    max_bytes: int = 50_000_000
    """Bytes of one batch. The API takes 256 MB; several copies of it are in memory while it is sent."""
    first_poll_s: float = 5.0
    """Seconds between two looks at a batch, in the beginning."""
    last_poll_s: float = 300.0
    """The longest pause that this grows to."""
    submissions: int = 3
    """How often a row is submitted by one `run` before it is given up."""
    request_timeout_s: float = 600.0
    """Seconds for one request, such as a batch of `max_bytes`."""
    outage_s: float = 3600.0
    """Seconds for which one step (submitting, listing, collecting a batch) may fail again and again before
    `run` gives up. Nothing is lost by that."""
    max_wait_s: float = 25 * 3600.0
    """Seconds for which `run` waits for one batch to end. The API ends each after 24 hours; what is in
    progress for longer is a mistake of the server's. Nothing is lost by that either."""
    grace_s: float = 60.0
    """Seconds after which a batch that was submitted must be in the API's list."""

    def __post_init__(self) -> None:
        if not 1 <= self.max_rows <= API_MAX_ROWS:
            raise ValueError(f"max_rows is {self.max_rows}, expected 1 to {API_MAX_ROWS:,}")
        if not 1 <= self.max_bytes <= API_MAX_BYTES:
            raise ValueError(f"max_bytes is {self.max_bytes}, expected 1 to {API_MAX_BYTES:,}")
        if self.submissions < 1:
            raise ValueError(f"submissions is {self.submissions}, expected at least 1")
        if not self.max_wait_s > 0:
            raise ValueError(f"max_wait_s is {self.max_wait_s}, expected seconds above 0")


@dataclass(slots=True)
class BatchReport:
    """What `run` did until now."""

    batches: list[str] = field(default_factory=list)
    """Ids of those that it submitted, or found submitted under a dead process's hand."""
    submitted: int = 0
    """Rows that it submitted, again or for the first time."""
    again: int = 0
    """Rows that came back expired or errored and are, or were, submitted once more."""
    received: int = 0
    """Rows that came back with a reply, whatever it says."""
    failed: dict[str, CallError] = field(default_factory=dict)
    """Key -> why there is finally no reply."""
    waiting: int = 0
    """Requests of this `run` that are not decided yet."""
    unreachable: list[str] = field(default_factory=list)
    """Batches of the store that the API does not know under this key. They stay in the store."""


Received = Callable[[BatchRow, Reply], None]
"""Reads a reply, puts it into the store and settles the row's reservation.

It is called once more for the same row where a process ended while it collected: both `put` and
`settle` of the store take that.
"""


class MessageBatches:
    """Sends requests in batches and brings their replies home.

    Any number of processes may do so with one store at a time: each row is submitted once, and each
    batch collected by one of them.
    """

    def __init__(
        self,
        endpoint: AnthropicEndpoint,
        store: VerdictStore,
        *,
        run: str,
        received: Received,
        there: Callable[[Iterable[str]], Collection[str]] | None = None,
        lost: Callable[[BatchRow], None] = lambda _: None,
        budget_usd: float | None = None,
        limits: BatchLimits | None = None,
        on_change: Callable[[BatchReport], None] | None = None,
    ) -> None:
        """Make one; nothing is sent yet.

        Args:
            endpoint: settled (`await endpoint.settle()`), for the rows are made from its parameters.
            store: where batches are remembered.
            run: whose bill it is.
            received: see `Received`.
            there: those of some keys for which nothing is left to ask. None: what the store has a record of.
            lost: called with each row that may be billed and has no reply.
            budget_usd: hard cap of the run. A row's worst case counts until its reply is here, so a
                batch may have to wait for the one before it.
            limits: sizes and pauses.
            on_change: called with the report after each step, for a progress bar.
        """
        self._endpoint = endpoint
        self._store = store
        self._run = run
        self._received = received
        self._there = store.get_many if there is None else there
        self._lost = lost
        self._budget_usd = budget_usd
        self._limits = limits or BatchLimits()
        self._max_bytes = self._limits.max_bytes
        self._on_change = on_change
        self._todo: dict[str, BatchRequest] = {}
        self._sent: Counter[str] = Counter()
        self._tags: dict[str, set[str]] = {}
        """Tags in the results of batches that the API lists and the store does not know."""
        self._failing: dict[str, float] = {}
        """Steps that failed whenever they were tried, and since when."""
        self._waits: dict[str, float] = {}
        """Batches that have not ended, and since when they are looked at."""
        self._not_before = 0.0
        """When it may be asked to take a batch again, where it said so."""
        self.report = BatchReport()

    async def run(self, requests: Iterable[BatchRequest]) -> BatchReport:
        """Bring every request to its end: `received` was called for it, or it is in `report.failed`.

        Batches of this judge that earlier processes left behind are collected too; those with none of
        `requests` in them are not waited for. Cancelling leaves batches on their way: run again.

        Raises:
            JudgeStopped: no request can succeed, or something of the API did not work for long. Batches
                that were submitted stay in the store, and the next `run` collects them.
            StoreError: the store cannot be used.
        """
        self._todo = {request.key: request for request in requests}
        self._failing = {}
        pause = self._limits.first_poll_s
        while True:
            progress = await self._recover()
            progress |= await self._submit()
            progress |= await self._collect()
            self._drop_stored()
            self._changed()
            if not self._todo:
                return self.report
            if progress:
                pause = self._limits.first_poll_s
                continue
            wait = max(pause * random.uniform(0.75, 1.0), self._not_before - time.monotonic())  # noqa: S311
            await asyncio.sleep(min(wait, self._limits.last_poll_s))
            pause = min(pause * 1.5, self._limits.last_poll_s)

    def _changed(self) -> None:
        self.report.waiting = len(self._todo)
        if self._on_change is not None:
            self._on_change(self.report)

    def _drop_stored(self) -> None:
        """Forget what somebody else put into the store meanwhile."""
        for key in list(self._there(self._todo)):
            del self._todo[key]

    # ---------------------------------------------------------------- submitting

    async def _submit(self) -> bool:
        """Submit what is neither stored nor on its way. Whether anything changed."""
        if not self._todo or time.monotonic() < self._not_before:
            return False
        with self._alone("submit") as granted:
            if not granted:
                return False
            self._drop_stored()
            on_their_way = self._store.batches.on_their_way(self._todo)
            unsent = [key for key in self._todo if key not in on_their_way]
            # Who asks for a key live, right now, will store it; look again later.
            mine = self._store.claim(unsent)
            if not mine:
                self._failing.pop(SUBMIT, None)
            try:
                return await self._submit_all([self._todo[key] for key in unsent if key in mine])
            finally:
                self._store.release(mine)

    async def _submit_all(self, requests: Sequence[BatchRequest]) -> bool:
        changed = False
        pending = list(reversed(requests))
        while pending:
            taken = await self._submit_one(pending)
            if not taken:
                break
            changed = True
        return changed

    async def _submit_one(self, pending: list[BatchRequest]) -> bool:
        """Make one batch of the end of `pending` and submit it. False: go no further for now."""
        tag = uuid.uuid4().hex[:16]
        rows: list[BatchRow] = []
        encoded: list[bytes] = []
        texts: list[str] = []
        size = 0
        full = False
        while pending and len(rows) < self._limits.max_rows:
            request = pending[-1]
            custom_id = f"{tag}-{len(rows):06d}"
            row = {"custom_id": custom_id, "params": self._endpoint.body(request.call)}
            text = json.dumps(row, ensure_ascii=False, separators=(",", ":"))
            data = text.encode("utf-8", "replace")
            if rows and size + len(data) > self._max_bytes:
                break
            reservation = self._store.ledger.reserve(self._run, request.worst_usd, self._budget_usd)
            if reservation is None:
                full = True
                break
            pending.pop()
            size += len(data) + 1
            rows.append(BatchRow(custom_id, request.key, request.memo, reservation))
            encoded.append(data)
            texts.append(request.call.text)
            if len(rows) % 100 == 0:
                await asyncio.sleep(0)
        if not rows:
            return self._nothing_fits(pending)
        body = b'{"requests":[' + b",".join(encoded) + b"]}"
        sent = await self._send(rows, body, "\n".join(texts))
        return sent and not full

    def _nothing_fits(self, pending: Sequence[BatchRequest]) -> bool:
        """The cap leaves no room. What is reserved comes back; if nothing is, it stays so."""
        spent = self._store.ledger.spent(self._run)
        if spent.reserved_usd > 0:
            return False
        for request in pending:
            self._fail(
                request.key,
                CallError(
                    "over_budget",
                    f"run {self._run!r} has spent {spent.settled_usd:.4f} and possibly "
                    f"{spent.possibly_usd:.4f} of {self._budget_usd} US dollars, and this call may "
                    f"cost {request.worst_usd:.4f}; raise budget_usd and run again",
                    retry=False,
                ),
            )
        return False

    async def _send(self, rows: list[BatchRow], body: bytes, texts: str) -> bool:
        """Submit one batch. Whether the API took it."""
        store = self._store
        name = store.batches.add(rows, judge=self._endpoint.name, run=self._run)
        try:
            response = await self._endpoint.request(
                PATH, body, timeout=self._limits.request_timeout_s, private=texts
            )
            batch_id = _id_of(response)
        except JudgeStopped:
            self._take_back(name, rows)
            raise
        except CallError as error:
            if not _may_be_taken(error):  # else `_recover` finds out
                self._take_back(name, rows)
            if error.retry:
                self._refused(error)
            if _may_be_taken(error):
                return False
            if error.detail.startswith("413") and len(rows) > 1:
                self._max_bytes = max(1, len(body) // 2)  # a gateway with a limit of its own
            elif not error.retry:
                for row in rows:
                    self._fail(row.key, error)
            return False
        self._adopt(name, batch_id, rows)
        return True

    def _adopt(self, name: str, batch_id: str, rows: Sequence[BatchRow]) -> None:
        """The API has the batch: remember under which id."""
        self._store.batches.submitted(name, batch_id)
        self._failing.pop(SUBMIT, None)
        self.report.batches.append(batch_id)
        self.report.submitted += len(rows)
        self._sent.update(row.key for row in rows)
        self._changed()

    def _take_back(self, name: str, rows: Iterable[BatchRow]) -> None:
        """The API surely does not have the batch."""
        for row in rows:
            if row.reservation is not None:
                self._store.ledger.release(row.reservation)
        self._store.batches.close(name)

    # ---------------------------------------------------------------- finding what was submitted

    async def _recover(self) -> bool:
        """Decide about batches of which nobody here knows whether the API took them."""
        if not self._unclear():
            self._failing.pop(LIST, None)
            return False
        changed = False
        with self._alone("submit") as granted:  # else one of them is just being submitted
            unclear = self._unclear() if granted else []
            if not unclear:
                return False
            try:
                # Clocks may differ; a batch that is older than this has ended long ago.
                since = _moment(min(batch.created for batch in unclear)) - timedelta(days=1)
                listed = await self._listed(since)
                for batch in unclear:
                    changed |= await self._identify(batch, listed)
                self._failing.pop(LIST, None)
            except CallError as error:
                self._outage(LIST, error)
        return changed

    def _unclear(self) -> list[Batch]:
        found = self._store.batches.find(state="submitting")
        return [batch for batch in found if batch.judge == self._endpoint.name]

    async def _listed(self, since: datetime) -> list[Mapping[str, Any]]:
        """The API's batches that were created after a moment, the latest first."""
        found: list[Mapping[str, Any]] = []
        query = {"limit": "1000"}
        ends: set[str] = set()
        while True:
            page = _json(await self._get(PATH, query))
            data = page.get("data")
            batches = [b for b in data if isinstance(b, Mapping)] if isinstance(data, list) else []
            young = [b for b in batches if _moment(str(b.get("created_at"))) >= since]
            found += young
            last = str(page.get("last_id") or "")
            # A gateway that does not know `after_id` gives the same page for ever.
            if not page.get("has_more") or len(young) < len(batches) or not last or last in ends:
                return found
            ends.add(last)
            query = {"limit": "1000", "after_id": last}

    async def _identify(self, batch: Batch, listed: Sequence[Mapping[str, Any]]) -> bool:
        """Find one batch among those of the API, or find that it is not there."""
        rows = self._store.batches.rows(batch.batch_id)
        tag = rows[0].custom_id.partition("-")[0]
        known = {known.batch_id for known in self._store.batches.find()}
        undecided: list[str] = []
        for candidate in listed:
            batch_id = str(candidate.get("id"))
            counts = candidate.get("request_counts")
            size = sum(tokens(counts, name) for name in counts) if isinstance(counts, dict) else 0
            if batch_id in known or size != len(rows):
                continue
            if candidate.get("processing_status") != "ended":
                undecided.append(batch_id)  # only its results tell whose it is
                continue
            if batch_id not in self._tags:
                results = await self._results_left(batch_id, len(rows))
                self._tags[batch_id] = {
                    str(row.get("custom_id")).partition("-")[0] for row in results
                }
            if tag in self._tags[batch_id]:
                self._adopt(batch.batch_id, batch_id, rows)
                return True
        if undecided and self._waited_long(batch):
            raise JudgeStopped(
                f"{self._endpoint.name}: whether the server took a batch of {batch.created} with "
                f"{batch.rows} {noun(batch.rows, 'request')} shows when "
                f"{scrub(', '.join(undecided[:3]))} of the same size, maybe another process's, "
                f"{noun(len(undecided), 'has', 'have')} ended, which was waited for "
                f"{_hours(self._limits.max_wait_s)}; the API's own limit is 24 h. It stays in the store, and "
                "nothing is sent twice: run the same again to go on waiting, for longer with max_wait_h "
                "(--max-wait). To do without it, forget it with "
                f"VerdictStore.open().batches.close({batch.batch_id!r}): its rows are then paid for again"
            )
        young = datetime.now(UTC) - _moment(batch.created)
        if undecided or young < timedelta(seconds=self._limits.grace_s):
            return False
        self._take_back(batch.batch_id, rows)
        return True

    # ---------------------------------------------------------------- collecting

    async def _collect(self) -> bool:
        """Collect every batch that has ended. Whether there was one."""
        changed = False
        for batch in self._open():
            step = f"collecting batch {batch.batch_id}"
            try:
                told = _json(await self._get(f"{PATH}/{quote(batch.batch_id, safe='')}"))
                if told.get("processing_status") == "ended":
                    with self._alone(batch.batch_id) as granted:
                        # Another process may have collected it since.
                        if granted and any(b.batch_id == batch.batch_id for b in self._open()):
                            await self._take(batch)
                            changed = True
                else:
                    self._check_wait(batch, told)
                self._failing.pop(step, None)
            except CallError as error:
                self._outage(step, error)
            except ServerStopped as stopped:
                if stopped.status != 404:
                    raise
                self._unknown(batch)
        return changed

    def _check_wait(self, batch: Batch, told: Mapping[str, Any]) -> None:
        """Give up waiting for a batch that does not end."""
        if not self._waited_long(batch):
            return
        limit = self._limits.max_wait_s
        raise JudgeStopped(
            f"{self._endpoint.name}: batch {batch.batch_id} of {batch.created} was waited for "
            f"{_hours(limit)} and is {scrub(str(told.get('processing_status')))} still, with {batch.rows} "
            f"{noun(batch.rows, 'request')}; the API's own limit is 24 h. It stays in the store, and nothing "
            "is sent twice: run the same again to go on waiting, for longer with max_wait_h (--max-wait). "
            "To do without it, cancel it at the API and run again; where the API does not end it even then, "
            f"forget it with VerdictStore.open().batches.close({batch.batch_id!r}): its rows are then paid "
            "for again"
        )

    def _waited_long(self, batch: Batch) -> bool:
        """Whether one that does not end was waited for long enough, and something of this `run` is in it."""
        waited = time.monotonic() - self._waits.setdefault(batch.batch_id, time.monotonic())
        return waited > self._limits.max_wait_s and any(
            row.key in self._todo for row in self._store.batches.rows(batch.batch_id)
        )

    def _open(self) -> list[Batch]:
        found = self._store.batches.find(state="open")
        return [batch for batch in found if batch.judge == self._endpoint.name]

    def _unknown(self, batch: Batch) -> None:
        """A batch that is in the store and not at the API: of another key's workspace, or deleted."""
        if batch.batch_id not in self.report.unreachable:
            self.report.unreachable.append(batch.batch_id)
        if any(row.key in self._todo for row in self._store.batches.rows(batch.batch_id)):
            raise JudgeStopped(
                f"{self._endpoint.name}: batch {batch.batch_id} of {batch.created} holds some of these "
                "requests, and the server does not know it. It may be known to the key of another "
                "workspace: use the key that submitted it. If it was deleted, forget it with "
                f"VerdictStore.open().batches.close({batch.batch_id!r}); its rows are then paid for "
                "again"
            )

    async def _take(self, batch: Batch) -> None:
        """Read the results of a batch that has ended, and close it."""
        store = self._store
        rows = {row.custom_id: row for row in store.batches.rows(batch.batch_id)}
        results = await self._results_left(batch.batch_id, len(rows))
        for number, line in enumerate(results):
            row = rows.pop(str(line.get("custom_id")), None)
            if row is not None:
                self._take_row(row, line.get("result"))
            if number % 100 == 0:
                await asyncio.sleep(0)
        for row in rows.values():
            self._may_be_billed(row, f"batch {batch.batch_id} has no result for this row")
        # Closed before what failed is submitted again: a process that dies here leaves rows that are
        # neither stored nor on their way, which is what the next run submits.
        store.batches.close(batch.batch_id)

    def _take_row(self, row: BatchRow, result: object) -> None:
        kind = result.get("type") if isinstance(result, Mapping) else None
        if kind == "succeeded" and isinstance(result, Mapping):
            reply = read_message(result.get("message"))
            if reply is not None:
                self._received(row, reply)
                self._todo.pop(row.key, None)
                self.report.received += 1
                return
            self._may_be_billed(row, "its result holds no message")
            return
        if kind not in ("errored", "canceled", "expired"):  # of which the API bills none
            self._may_be_billed(row, f"its result is of type {scrub(repr(kind))}")
            return
        if row.reservation is not None:
            self._store.ledger.release(row.reservation)
        if kind == "canceled":
            self._fail(row.key, CallError("transport", "its batch was canceled", retry=False))
        elif kind == "expired":
            self._again(row, CallError("timeout", "expired after 24 hours", retry=True))
        else:
            self._again(row, self._row_error(row, result))

    def _may_be_billed(self, row: BatchRow, why: str) -> None:
        """A row that has no reply, of which nobody says that it costs nothing."""
        if row.reservation is not None:
            self._store.ledger.lose(row.reservation)
        self._lost(row)
        self._again(row, CallError("transport", why, retry=True, possibly_billed=True))

    def _row_error(self, row: BatchRow, result: object) -> CallError:
        error = result.get("error") if isinstance(result, Mapping) else None
        inner = error.get("error") if isinstance(error, Mapping) else None
        found = inner if isinstance(inner, Mapping) else {}
        kind, message = scrub(str(found.get("type"))), str(found.get("message"))
        request = self._todo.get(row.key)
        private = request.call.prefix + request.call.text if request is not None else message
        return CallError(
            "rate_limited" if kind == "rate_limit_error" else "transport",
            f"errored in its batch: {kind}: {scrub(message, private=private)}",
            retry=kind not in FINAL_ERRORS,
        )

    def _again(self, row: BatchRow, error: CallError) -> None:
        """Leave a row to be submitted again, as often as is allowed and useful."""
        if row.key not in self._todo:
            return
        if not error.retry or self._sent[row.key] >= self._limits.submissions:
            self._fail(row.key, error)
        else:
            self.report.again += 1

    def _fail(self, key: str, error: CallError) -> None:
        if self._todo.pop(key, None) is not None:
            self.report.failed[key] = error

    # ---------------------------------------------------------------- the API

    async def _get(self, path: str, query: Mapping[str, str] | None = None) -> Any:
        return await self._endpoint.request(
            path, timeout=self._limits.request_timeout_s, query=query
        )

    async def _results_left(self, batch_id: str, rows: int) -> list[Mapping[str, Any]]:
        """Results of a batch that has ended; none where they are gone: they are kept for a month."""
        try:
            return await self._results(batch_id, rows)
        except ServerStopped as stopped:
            if stopped.status not in (404, 410):
                raise
            return []

    async def _results(self, batch_id: str, rows: int) -> list[Mapping[str, Any]]:
        """Results of a batch of so many rows that has ended, in any order.

        From the documented path, not from `results_url`: behind a gateway that names another host,
        and the key would be sent there.
        """
        with replies_up_to(rows * MAX_ROW_BYTES):
            response = await self._get(f"{PATH}/{quote(batch_id, safe='')}/results")
        try:
            # Bytes, because str.splitlines() would also split at line ends inside of strings.
            lines = [json.loads(line) for line in response.content.splitlines() if line.strip()]
        except (ValueError, RecursionError):
            raise CallError(
                "transport", f"the results of batch {batch_id} are cut off", retry=True
            ) from None
        return [line for line in lines if isinstance(line, Mapping)]

    def _refused(self, error: CallError) -> None:
        """Go on after a batch was not taken, not before the API wants to be asked again."""
        longest = self._limits.outage_s
        after = error.retry_after or 0.0
        self._not_before = time.monotonic() + min(after, longest)
        if error.kind == "rate_limited" and self._open():
            return  # the queue is full, among others of batches of ours
        if after > longest:
            raise JudgeStopped(
                f"{self._endpoint.name}: the server asks to wait {after:.0f} s before it takes a batch, "
                f"above outage_s={longest:g}; run again then: {error}"
            )
        self._outage(SUBMIT, error)

    def _outage(self, step: str, error: CallError) -> None:
        """Go on after a failed request, unless this step has failed for long.

        Each step by itself: a server that lists its batches well may cut off the results of one for ever.
        """
        since = self._failing.setdefault(step, time.monotonic())
        if time.monotonic() - since > self._limits.outage_s:
            raise JudgeStopped(
                f"{self._endpoint.name}: {step} has failed for {self._limits.outage_s:g} s, the last "
                f"time: {error}. Batches that were submitted are in the store; run again to collect them"
            )

    @contextmanager
    def _alone(self, what: str) -> Iterator[bool]:
        """Whether no other process does the same now. Ends with a process that dies."""
        key = f"batches of {self._endpoint.name}: {what}"
        granted = bool(self._store.claim([key]))
        try:
            yield granted
        finally:
            if granted:
                self._store.release([key])


def _may_be_taken(error: CallError) -> bool:
    """Whether the API may have a batch although it did not say so."""
    return error.possibly_billed or error.detail.startswith("5")


def _hours(seconds: float) -> str:
    return f"{seconds / 3600:.1f} h" if seconds >= 360 else f"{seconds:g} s"


def _json(response: Any) -> Mapping[str, Any]:
    told = json_body(response)
    if not isinstance(told, Mapping):
        raise CallError("transport", "200, but its body is not JSON", retry=True)
    return told


def _id_of(response: Any) -> str:
    """Id of a batch that was created. Without one, the API has a batch whose name it did not say."""
    try:
        found = _json(response).get("id")
    except CallError:
        found = None
    if not isinstance(found, str) or not found:
        raise CallError(
            "transport", "200, but no id of a batch in it", retry=True, possibly_billed=True
        )
    return found


def _moment(text: str) -> datetime:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return datetime.now(UTC)  # of unknown age: to be looked at
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
