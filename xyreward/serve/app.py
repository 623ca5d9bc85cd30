"""The endpoints of the service.

    POST /score        rows of an item and an answer; scores in their order
    POST /get_reward   what OpenRLHF sends to its remote reward URL
    GET  /health       the process answers
    GET  /ready        it takes requests: not ending, and its judge not stopped
    GET  /metrics      for Prometheus

A request all of whose answers have verdicts is a 200. One answer without a verdict makes it a 503 that
names it; the verdicts of the others are remembered where the judge has a store, so asking again pays for
what is missing only.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI, HTTPException, Request
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from pydantic import ValidationError
from starlette.exceptions import HTTPException as StarletteHTTPException
from starlette.responses import Response

from xyreward import __version__
from xyreward.errors import JudgeError, StoreError, printable
from xyreward.items import Item, Message
from xyreward.judges import Judge
from xyreward.judges.calls import JudgeStopped
from xyreward.reward import Reward
from xyreward.scoring import Score, check_can_ground, over_budget
from xyreward.serve.catalogue import Catalogue, NotServedError
from xyreward.serve.forms import (
    ErrorResponse,
    FailureOut,
    Health,
    OpenRLHFRequest,
    OpenRLHFResponse,
    Problem,
    RowOfId,
    RowOfItem,
    ScoreRequest,
    ScoreResponse,
    problems_of,
)
from xyreward.serve.guard import OPEN, Guard, error_response
from xyreward.serve.line import Line, LineFullError, Row, TooLateError
from xyreward.serve.metrics import Metrics
from xyreward.serve.openrlhf import answer_of, item_of_label
from xyreward.serve.settings import Settings
from xyreward.strict_json import faults, parse_json
from xyreward.words import noun

LOG = logging.getLogger("xyreward.serve")

ASK_AGAIN_S = 5
"""After a failed verdict: the judge's own retries are over by then, and a failure is not remembered."""
STOPPED_S = 60
"""After a judge or its store gave up (spent budget, full disk): somebody has to see to it. Not ready so long,
and never again after a JudgeStopped (wrong key, spent limit): such a judge sends nothing more."""

_STATUSES: Mapping[int, str] = {
    400: "The body is no JSON.",
    401: "The token is missing or another one.",
    403: "Without a token the service answers to loopback names only.",
    405: "Another method.",
    408: "The body did not come in time.",
    413: "The body is too large.",
    422: "The body is JSON, but not what was expected; all that is wrong is named.",
    429: "No room; ask again after Retry-After.",
    500: "A mistake of ours.",
    503: "An answer has no verdict, or the service is ending; ask again after Retry-After.",
}


def _responses(*statuses: int) -> dict[int | str, dict[str, Any]]:
    return {
        status: {"model": ErrorResponse, "description": _STATUSES[status]} for status in statuses
    }


_OF_POST = _responses(*_STATUSES)


class _StrictRequest(Request):
    """A request whose JSON is read as the standard has it; see `strict_json.py`."""

    async def json(self) -> Any:
        if not hasattr(self, "_json"):
            body = await self.body()
            try:
                self._json = parse_json(body.decode("utf-8"))
                if b"\\ud" in body.lower():
                    # Half of a pair of surrogates is JSON, but no text: it cannot be sent on.
                    json.dumps(self._json, ensure_ascii=False).encode("utf-8")
            except ValueError as error:
                raise json.JSONDecodeError(str(error)[:200], "", 0) from None
            wrong = faults({"body": self._json})
            if found := [Problem(where=w.removeprefix("body.")[:200], message=m) for w, m in wrong]:
                raise _RefusedError(found[:20])
        return self._json


class _RefusedError(HTTPException):
    """A body that is JSON, and not what was expected."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        super().__init__(422)
        self.problems = list(problems)


class _StrictRoute(APIRoute):
    def get_route_handler(self) -> Callable[[Request], Awaitable[Response]]:  # type: ignore[override]
        handler = super().get_route_handler()

        async def strictly(request: Request) -> Response:
            return await handler(_StrictRequest(request.scope, request.receive))

        return strictly


class Service:
    """The application and what it shares: judge, items, line, counts."""

    def __init__(
        self,
        judge: Judge,
        *,
        items: Sequence[Item] = (),
        held_out: Sequence[Item] = (),
        reward: Reward | None = None,
        settings: Settings | None = None,
        thinking: bool = False,
    ) -> None:
        """Make a service; `server.run` serves it, or any ASGI server `.app`.

        Args:
            judge: who judges.
            items: those that requests may name by id.
            held_out: those that are refused in whatever form they come.
            reward: how labels become a number; `Reward(soft=True)` by default, since rewards of a
                service are for training.
            settings: limits and token; `host` and `port` are for `server.run`.
            thinking: judge what OpenRLHF's answers have between <think> and </think> too.
        """
        self.judge = judge
        self.reward = Reward(soft=True) if reward is None else reward
        self.settings = Settings() if settings is None else settings
        self.catalogue = Catalogue(items, held_out)
        self.thinking = thinking
        self.metrics = Metrics()
        self.line = Line(
            judge,
            self.reward,
            max_waiting=self.settings.max_waiting,
            max_bytes=self.settings.max_held_bytes,
            deadline_s=self.settings.deadline_s,
            on_lot=lambda _, seconds: self.metrics.lot_seconds.observe(seconds),
        )
        self.metrics.watch(self.line, judge, self.reward)
        self.unanswered = 0
        """Answers that had no verdict when the service was told to end at once."""
        self._stopped_at = -float(STOPPED_S)
        self._stopped_by = ""
        self._stopped_for_good = False
        inner = self._application()
        self.app = Guard(
            inner,
            self.settings,
            self.metrics,
            endpoints=frozenset({"/score", "/get_reward", "/health", "/ready", "/metrics"}),
            retry_after_s=lambda: self.line.retry_after_s,
        )
        self.openapi: Callable[[], dict[str, Any]] = inner.openapi

    # ---------------------------------------------------------------- the endpoints

    def _application(self) -> FastAPI:
        @asynccontextmanager
        async def lifespan(_: FastAPI) -> AsyncIterator[None]:
            yield
            await self.line.finish()

        # No pages of documentation: they load scripts from elsewhere. /openapi.json stays.
        app = FastAPI(
            title="xyreward",
            summary="Rewards for serving the goal behind a question.",
            version=__version__,
            lifespan=lifespan,
            docs_url=None,
            redoc_url=None,
        )
        app.router.route_class = _StrictRoute
        _on_errors(app)

        @app.post("/score", response_model=ScoreResponse, responses=_OF_POST)
        async def score(form: ScoreRequest, request: Request) -> Response:
            """Score answers, each to an item named by id, an item that comes along, or a bare query."""
            rows = self._rows(form)
            scores = await self._scores(rows, request)
            return (
                scores
                if isinstance(scores, Response)
                else _json(
                    ScoreResponse.of(
                        scores, self.judge.name, self.judge.rubric_version, self.reward
                    )
                )
            )

        @app.post("/get_reward", response_model=OpenRLHFResponse, responses=_OF_POST)
        async def get_reward(form: OpenRLHFRequest, request: Request) -> Response:
            """Score what OpenRLHF's trainer sends to its remote reward URL."""
            rows = self._rows_of_openrlhf(form)
            scores = await self._scores(rows, request)
            return scores if isinstance(scores, Response) else _json(OpenRLHFResponse.of(scores))

        @app.get("/health", response_model=Health, responses=_responses(405, 500))
        async def health() -> Response:
            """Whether the process answers."""
            return _json(self._health())

        @app.get("/ready", response_model=Health, responses=_responses(405, 500, 503))
        async def ready() -> Response:
            """Whether it takes requests."""
            if self.app.draining:
                return error_response(503, "draining", "the service is ending", retry_after_s=5)
            if self._stopped_for_good or time.monotonic() - self._stopped_at < STOPPED_S:
                return error_response(
                    503, "judge_stopped", self._stopped_by, retry_after_s=STOPPED_S
                )
            return _json(self._health())

        @app.get(
            "/metrics",
            response_class=_Metrics,
            responses={
                200: {"content": {_METRICS: {"schema": {"type": "string"}}}},
                **_responses(401, 403, 405, 500),
            },
        )
        async def metrics() -> Response:
            """Counts for Prometheus."""
            return Response(self.metrics.text(), media_type=_METRICS)

        _describe(app, token=self.settings.token is not None, items=self.catalogue.items)
        return app

    def _health(self) -> Health:
        return Health(
            status="ok",
            judge=self.judge.name,
            rubric_version=self.judge.rubric_version,
            items=len(self.catalogue),
            waiting=self.line.waiting,
        )

    # ---------------------------------------------------------------- bodies to rows

    def _rows(self, form: ScoreRequest) -> list[Row]:
        self._refuse_many(len(form.rows), "rows")
        rows: list[Row] = []
        problems = []
        for n, row in enumerate(form.rows):
            place = f"rows.{n}"
            try:
                if isinstance(row, RowOfId):
                    place += ".item_id"
                    item = self.catalogue.named(row.item_id)
                elif isinstance(row, RowOfItem):
                    place += ".item"
                    item = self.catalogue.checked(row.item)
                else:
                    place += ".query"
                    item = self.catalogue.checked(_bare(row.query))
                rows.append((self._judgeable(item), row.answer))
            except (NotServedError, JudgeError) as error:
                problems.append(_problem(place, error))
            except ValidationError as error:
                problems.append(
                    Problem(where=place, message=problems_of(error.errors())[0].message)
                )
        _refuse(problems)
        return rows

    def _rows_of_openrlhf(self, form: OpenRLHFRequest) -> list[Row]:
        self._refuse_many(len(form.query), "query")
        if not len(form.query) == len(form.prompts) == len(form.labels):
            _refuse(
                [
                    Problem(
                        where="query, prompts, labels",
                        message=f"have {len(form.query)}, {len(form.prompts)} and {len(form.labels)} "
                        "entries, expected as many",
                    )
                ]
            )
        rows: list[Row] = []
        problems = []
        for n, (query, prompt, label) in enumerate(
            zip(form.query, form.prompts, form.labels, strict=True)
        ):
            place = f"labels.{n}"
            try:
                item = self._judgeable(item_of_label(label, self.catalogue))
                place = f"query.{n}"
                rows.append((item, answer_of(query, prompt, thinking=self.thinking)))
            except (NotServedError, JudgeError, ValueError) as error:
                problems.append(_problem(place, error))
        _refuse(problems)
        return rows

    def _refuse_many(self, n: int, where: str) -> None:
        if n > self.settings.max_answers:
            _refuse(
                [
                    Problem(
                        where=where,
                        message=f"has {n} entries, and a request may have {self.settings.max_answers}",
                    )
                ]
            )

    def _judgeable(self, item: Item) -> Item:
        """The item, if the judge can judge answers to it; asked before anything waits for anything."""
        if item.bare:
            check_can_ground(self.judge)
        elif check := getattr(self.judge, "check", None):
            check([item])
        return item

    # ---------------------------------------------------------------- rows to scores

    async def _scores(self, rows: Sequence[Row], request: Request) -> list[Score] | Response:
        """Scores of all rows, or the answer that says why there are none."""
        try:
            scores = await self.line.score(rows, size=len(await request.body()))
        except LineFullError as error:
            return error_response(429, "queue_full", str(error), retry_after_s=error.retry_after_s)
        except TooLateError as error:
            return error_response(
                503,
                "too_late",
                f"{error}; the work goes on, and is remembered where the judge has a store",
                retry_after_s=self.line.retry_after_s,
            )
        except JudgeStopped as error:
            if not self._stopped_for_good:
                self._stopped(f"{error}; restart the service when that is mended")
                self._stopped_for_good = True
            return self._stopped(self._stopped_by)
        except StoreError as error:
            return self._stopped(str(error))
        except JudgeError as error:
            LOG.error("%s", error)
            return error_response(503, "judge_failed", str(error), retry_after_s=ASK_AGAIN_S)
        self.metrics.count(scores)
        if (spent := over_budget(scores)) is not None:
            return self._stopped(spent.detail)
        self._stopped_at = -float(STOPPED_S)
        failures = [
            FailureOut.of(n, score.failure)
            for n, score in enumerate(scores)
            if score.failure is not None
        ]
        if failures:
            n = len(failures)
            return error_response(
                503,
                "judge_failed",
                f"{n} of {len(scores)} {noun(len(scores), 'answer')} {noun(n, 'has', 'have')} no verdict, "
                f"the first: {failures[0].kind}. A failure is never a score; ask again, or leave "
                f"{noun(n, 'this answer', 'these answers')} out",
                retry_after_s=ASK_AGAIN_S,
                failures=failures,
            )
        return scores

    def _stopped(self, why: str) -> Response:
        """The answer where the judge cannot go on, which is logged once and not for every request."""
        now = time.monotonic()
        if now - self._stopped_at >= STOPPED_S or self._stopped_by != why:
            LOG.error("the judge stopped: %s", why)
            self._stopped_at, self._stopped_by = now, why
        return error_response(503, "judge_stopped", why, retry_after_s=STOPPED_S)


_METRICS = "text/plain; version=0.0.4; charset=utf-8"


class _Metrics(Response):
    media_type = None


def _json(form: Any) -> Response:
    return Response(form.model_dump_json(), media_type="application/json")


def _bare(query: str | tuple[Message, ...]) -> Item:
    if isinstance(query, str):
        return Item.of_query(query)
    return Item.of_query([message.model_dump() for message in query])


def _problem(where: str, error: Exception) -> Problem:
    return Problem(where=where, message=printable(str(error))[:500])


def _refuse(problems: Sequence[Problem]) -> None:
    if problems:
        raise _RefusedError(problems[:20])


def _on_errors(app: FastAPI) -> None:
    """All that FastAPI would answer in forms of its own."""

    async def refused(_: Request, error: Exception) -> Response:
        assert isinstance(error, _RefusedError)
        return _invalid(error.problems)

    async def invalid(request: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        found = error.errors()
        if found and found[0]["type"] == "json_invalid":
            why = printable(str(found[0].get("ctx", {}).get("error", "")))
            return error_response(400, "bad_json", f"the body is no JSON: {why}")
        problems = problems_of(found)
        if "json" not in request.headers.get("content-type", "") and problems:
            hint = f"{problems[0].message}; is it JSON? then send Content-Type: application/json"
            problems[0] = Problem(where=problems[0].where, message=hint)
        return _invalid(problems)

    async def other(_: Request, error: Exception) -> Response:
        assert isinstance(error, StarletteHTTPException)
        match error.status_code:
            case 404:
                return error_response(
                    404,
                    "not_found",
                    "there are /score, /get_reward, /health, /ready, /metrics, /openapi.json",
                )
            case 405:
                answer = error_response(
                    405, "method_not_allowed", "another method is expected here"
                )
                answer.headers.update(error.headers or {})
                return answer
            case _:
                return error_response(400, "bad_json", "the body cannot be read")

    async def ours(_: Request, error: Exception) -> Response:
        # uvicorn logs where it happened.
        return error_response(
            500, "internal", f"a mistake of ours ({type(error).__name__}); the log has more"
        )

    app.add_exception_handler(_RefusedError, refused)
    app.add_exception_handler(RequestValidationError, invalid)
    app.add_exception_handler(StarletteHTTPException, other)
    app.add_exception_handler(Exception, ours)


def _invalid(problems: Sequence[Problem]) -> Response:
    first = problems[0]
    more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
    return error_response(
        422, "invalid_request", f"{first.where}: {first.message}{more}", problems=list(problems)
    )


def _describe(app: FastAPI, *, token: bool, items: Sequence[Item]) -> None:
    """Add to the OpenAPI description what differs between services: how the token is brought, an item."""
    plain = app.openapi

    def described() -> dict[str, Any]:
        if app.openapi_schema:
            return app.openapi_schema
        description = plain()
        parts = description["components"]
        if token:  # the guard asks for it
            parts["securitySchemes"] = {
                "token": {"type": "http", "scheme": "bearer"},
                "password": {"type": "http", "scheme": "basic"},
            }
            for path, methods in description["paths"].items():
                if path not in OPEN:
                    for operation in methods.values():
                        operation["security"] = [{"token": []}, {"password": []}]
        if items:
            name, answer = items[0].id, "What do you want it for?"
            prompt = "<|im_start|>user\nHow?<|im_end|>\n<|im_start|>assistant\n"
            for form, example in {
                "ScoreRequest": {"rows": [{"item_id": name, "answer": answer}]},
                "OpenRLHFRequest": {
                    "query": [f"{prompt}{answer}<|im_end|>"],
                    "prompts": [prompt],
                    "labels": [name],
                },
            }.items():
                parts["schemas"][form]["examples"] = [example]
        return description

    app.openapi = described  # type: ignore[method-assign]
