"""Message batches: created, processed in the background, cancelled, listed, collected.

A batch ends `batch_seconds` after it was created. Its rows are processed evenly over that time, so
one that is cancelled half way has succeeded and canceled rows. What is wrong with a row's params
shows when it is processed and not before, as with the API: it is an errored row.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections import Counter
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import parse_qs

from xyreward.testing.fake_api.books import Books
from xyreward.testing.fake_api.checks import message_problem
from xyreward.testing.fake_api.connection import Request, Response
from xyreward.testing.fake_api.model import (
    Model,
    Settings,
    check_model,
    digest_of,
    draws,
    wrap_message,
)
from xyreward.testing.fake_api.wire import RequestProblem, json_response

PATH = "/v1/messages/batches"
CUSTOM_ID = re.compile(r"[a-zA-Z0-9_-]{1,64}")
ROWS_AT_A_TIME = 100
"""After so many rows the server looks at its other requests."""


@dataclass(slots=True, eq=False)
class Batch:
    """One batch."""

    name: str
    rows: list[tuple[str, dict[str, Any]]]
    """(custom_id, params)"""
    version: str
    """The anthropic-version that it was created with."""
    created: datetime
    cancelled: asyncio.Event = field(default_factory=asyncio.Event)
    cancelled_at: datetime | None = None
    ended_at: datetime | None = None
    counts: Counter[str] = field(default_factory=Counter)
    results: bytes = b""
    task: asyncio.Task[None] | None = None


class Batches:
    """All batches of one server."""

    def __init__(self, model: Model, books: Books) -> None:
        self._model = model
        self._books = books
        self._batches: dict[str, Batch] = {}
        self._rows = 0
        self._seen: Counter[bytes] = Counter()

    def answer(
        self, request: Request, body: dict[str, Any], settings: Settings, base_url: str
    ) -> Response:
        """Answer a request to `/v1/messages/batches` or below.

        Raises:
            RequestProblem: it is answered with an error.
        """
        name, _, action = request.path.removeprefix(PATH).strip("/").partition("/")
        if not name:
            if request.method == "POST":
                version = request.headers.get("anthropic-version", "")
                return json_response(self._create(body, version, settings))
            return json_response(self._list(request.query, base_url))
        batch = self._batches.get(name)
        if batch is None:
            raise RequestProblem(404, f"batch: {name}")
        match request.method, action:
            case "GET", "":
                return json_response(self._describe(batch, base_url))
            case "GET", "results":
                if batch.ended_at is None:
                    raise RequestProblem(404, f"batch {name} has not ended; it has no results yet")
                return Response(200, batch.results, content_type="application/x-jsonl")
            case "POST", "cancel":
                if batch.ended_at is None and not batch.cancelled.is_set():
                    batch.cancelled.set()
                    batch.cancelled_at = datetime.now(UTC)
                return json_response(self._describe(batch, base_url))
            case "DELETE", "":
                if batch.ended_at is None:
                    raise RequestProblem(400, f"batch {name} is in progress; cancel it first")
                del self._batches[name]
                return json_response({"id": name, "type": "message_batch_deleted"})
        raise RequestProblem(404, f"{request.method} {request.path} is no endpoint of this server")

    def _create(self, body: dict[str, Any], version: str, settings: Settings) -> dict[str, Any]:
        requests = body.get("requests")
        if not isinstance(requests, list) or not requests:
            raise RequestProblem(400, "requests: at least one request is required")
        if len(requests) > settings.max_batch_rows:
            raise RequestProblem(413, f"requests: more than {settings.max_batch_rows} in one batch")
        rows: dict[str, dict[str, Any]] = {}
        for i, row in enumerate(requests):
            at = f"requests.{i}"
            if not isinstance(row, dict) or not isinstance(row.get("params"), dict):
                raise RequestProblem(400, f"{at}.params: Field required")
            custom_id = row.get("custom_id")
            if not isinstance(custom_id, str) or not CUSTOM_ID.fullmatch(custom_id):
                raise RequestProblem(400, f"{at}.custom_id: should match ^{CUSTOM_ID.pattern}$")
            if custom_id in rows:
                raise RequestProblem(400, f"{at}.custom_id: '{custom_id}' is there twice")
            rows[custom_id] = row["params"]
        self._books.batches += 1
        name = f"msgbatch_fake{self._books.batches:06d}"
        batch = Batch(name, list(rows.items()), version, datetime.now(UTC))
        self._batches[name] = batch
        batch.task = asyncio.create_task(self._process(batch, settings))
        return self._describe(batch, "")

    def _list(self, query: str, base_url: str) -> dict[str, Any]:
        asked = {key: values[-1] for key, values in parse_qs(query).items()}
        names = list(reversed(self._batches))  # the latest first
        if "after_id" in asked:
            names = (
                names[names.index(asked["after_id"]) + 1 :] if asked["after_id"] in names else []
            )
        if "before_id" in asked:
            names = names[: names.index(asked["before_id"])] if asked["before_id"] in names else []
        limit = int(asked.get("limit", 20))
        page = names[:limit]
        return {
            "data": [self._describe(self._batches[name], base_url) for name in page],
            "has_more": len(names) > limit,
            "first_id": page[0] if page else None,
            "last_id": page[-1] if page else None,
        }

    def _describe(self, batch: Batch, base_url: str) -> dict[str, Any]:
        ended = batch.ended_at is not None
        # As the API documents it: how rows ended is 0 until the whole batch has.
        counts = {"processing": 0 if ended else len(batch.rows)}
        counts |= {
            end: batch.counts[end] if ended else 0
            for end in ("succeeded", "errored", "canceled", "expired")
        }
        status = "ended" if ended else "canceling" if batch.cancelled.is_set() else "in_progress"
        return {
            "id": batch.name,
            "type": "message_batch",
            "processing_status": status,
            "request_counts": counts,
            "created_at": _time(batch.created),
            "expires_at": _time(batch.created + timedelta(hours=24)),
            "ended_at": _time(batch.ended_at),
            "cancel_initiated_at": _time(batch.cancelled_at),
            "archived_at": None,
            "results_url": f"{base_url}{PATH}/{batch.name}/results" if ended else None,
        }

    async def _process(self, batch: Batch, settings: Settings) -> None:
        loop = asyncio.get_running_loop()
        begun = loop.time()
        done = len(batch.rows)
        if settings.batch_seconds > 0:
            try:
                await asyncio.wait_for(batch.cancelled.wait(), settings.batch_seconds)
                share = min(1.0, (loop.time() - begun) / settings.batch_seconds)
                done = int(done * share)
            except TimeoutError:
                pass
        lines: list[str] = []
        for i, (custom_id, params) in enumerate(batch.rows):
            result: dict[str, Any] = {"type": "canceled"}
            if i < done:
                result = self._row(batch, custom_id, params, settings)
            batch.counts[result["type"]] += 1
            lines.append(json.dumps({"custom_id": custom_id, "result": result}, ensure_ascii=False))
            if i % ROWS_AT_A_TIME == 0:
                await asyncio.sleep(0)
        draws(settings.seed, batch.name.encode(), "order").shuffle(lines)  # the API promises none
        batch.results = "".join(f"{line}\n" for line in lines).encode("utf-8", "backslashreplace")
        self._books.batch_rows += batch.counts
        batch.ended_at = datetime.now(UTC)

    def _row(
        self, batch: Batch, custom_id: str, params: dict[str, Any], settings: Settings
    ) -> dict[str, Any]:
        digest = digest_of(params)
        seen = self._seen[digest]
        self._seen[digest] += 1
        number = self._rows
        self._rows += 1
        faults = settings.batch_faults
        try:
            chance = draws(settings.seed, digest, f"row {seen}").random()
            fault = faults.draw(number, params, seen, chance)
            if fault == "expired":
                return {"type": "expired"}
            if fault == "errored":
                raise RequestProblem(500)
            if problem := message_problem(params, batch.version):
                raise RequestProblem(400, problem)
            check_model(params["model"], settings.models)
            reply = self._model.reply(params, digest, settings, fault, faults.refusal_category)
        except RequestProblem as problem:
            return {"type": "errored", "error": problem.payload()}
        except Exception as problem:
            # The user's own function: a batch that never ends would not tell what it raised.
            text = f"reply or choose raised {type(problem).__name__}: {problem}"
            return {"type": "errored", "error": RequestProblem(500, text).payload()}
        self._books.bill_row(reply.usage)
        name = f"msg_{batch.name}_{custom_id}"
        message = wrap_message(name, params["model"], reply, tier="batch")
        return {"type": "succeeded", "message": message}


def _time(moment: datetime | None) -> str | None:
    return None if moment is None else moment.isoformat().replace("+00:00", "Z")
