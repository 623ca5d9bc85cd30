"""The fake API, driven by the real SDK and by a plain HTTP client."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import anthropic
import httpx2
import pytest
from anthropic import AsyncAnthropic

from xyreward.testing import FakeAPI, Faults
from xyreward.testing.fake_api import FAULTS
from xyreward.testing.fake_api.replies import ELSEWHERE, OFF_MENU, SENTENCE
from xyreward.verdict import Usage

SCHEMA: dict[str, Any] = {
    "type": "object",
    "additionalProperties": False,
    "required": ["suggestions", "focus", "identifies_misconception"],
    "properties": {
        "suggestions": {
            "type": "array",
            "items": {
                "type": "object",
                "additionalProperties": False,
                "required": ["quote", "serves"],
                "properties": {
                    "quote": {"type": "string"},
                    "serves": {"type": "string", "enum": ["stated", "intended", "both", "neither"]},
                },
            },
        },
        "focus": {"type": "string", "enum": ["stated", "intended", "balanced", "neither"]},
        "identifies_misconception": {"type": "boolean"},
    },
}
ANSWER = "Go to bed early on Sunday.\nPut the clock on a metal tray, and it rings much louder than before."
MODEL = "claude-sonnet-5-5"


@asynccontextmanager
async def client_of(api: FakeAPI, **options: Any) -> AsyncIterator[AsyncAnthropic]:
    async with AsyncAnthropic(
        base_url=api.base_url, **{"api_key": "any", "max_retries": 0, **options}
    ) as client:
        yield client


def params(
    number: int = 0, schema: dict[str, Any] | None = SCHEMA, **fields: Any
) -> dict[str, Any]:
    fence = f"----- {'0123456789abcdef'} -----"
    text = f"Question {number}. Judge this answer.\n{fence}\n{ANSWER}\n{fence}\nNow judge."
    made: dict[str, Any] = {
        "model": MODEL,
        "max_tokens": 1000,
        "messages": [{"role": "user", "content": text}],
    }
    if schema is not None:
        made["output_config"] = {"format": {"type": "json_schema", "schema": schema}}
    return {**made, **fields}


def ask(api: FakeAPI, **fields: Any) -> Any:
    async def one() -> Any:
        async with client_of(api) as client:
            return await client.messages.create(**params(**fields))

    return asyncio.run(one())


def text_of(message: Any) -> str:
    return "".join(block.text for block in message.content if block.type == "text")


# ---------------------------------------------------------------- replies


def test_a_reply_is_valid_under_the_schema_and_quotes_the_answer() -> None:
    with FakeAPI() as api:
        verdict = json.loads(text_of(ask(api)))
    assert set(verdict) == {"suggestions", "focus", "identifies_misconception"}
    assert verdict["focus"] in SCHEMA["properties"]["focus"]["enum"]
    assert isinstance(verdict["identifies_misconception"], bool)
    assert verdict["suggestions"]
    for suggestion in verdict["suggestions"]:
        assert suggestion["quote"] in ANSWER
        assert suggestion["serves"] in ("stated", "intended", "both", "neither")


def test_the_same_request_and_seed_bring_the_same_reply_and_another_seed_another() -> None:
    def replies(seed: int) -> list[str]:
        with FakeAPI(seed=seed) as api:
            return [text_of(ask(api, number=i)) for i in range(5)]

    assert replies(1) == replies(1)
    assert replies(1) != replies(2)
    assert len(set(replies(1))) > 1


# ---------------------------------------------------------------- faults

Check = Callable[[FakeAPI, BaseException | None, Any], None]


def status(code: int, error: type[anthropic.APIStatusError]) -> Check:
    def check(api: FakeAPI, raised: BaseException | None, message: Any) -> None:
        assert type(raised) is error
        assert raised.status_code == code
        assert api.stats.billed == 0
        assert api.stats.by_status == {code: 1}

    return check


def retry_after(expected: str | None) -> Check:
    def check(api: FakeAPI, raised: BaseException | None, message: Any) -> None:
        assert type(raised) is anthropic.RateLimitError
        assert raised.response.headers.get("retry-after") == expected

    return check


def spend_limit(api: FakeAPI, raised: BaseException | None, message: Any) -> None:
    assert isinstance(raised, anthropic.RateLimitError)
    assert raised.error_code == "contract_spend_limit_reached"


def html(api: FakeAPI, raised: BaseException | None, message: Any) -> None:
    assert isinstance(raised, anthropic.InternalServerError)
    assert raised.response.headers["content-type"] == "text/html"


def connection_lost(*, billed: int) -> Check:
    def check(api: FakeAPI, raised: BaseException | None, message: Any) -> None:
        assert type(raised) is anthropic.APIConnectionError
        stats = api.stats
        assert (stats.billed, stats.lost, stats.delivered) == (billed, billed, 0)
        assert stats.by_status == {}

    return check


def unreadable(api: FakeAPI, raised: BaseException | None, message: Any) -> None:
    assert isinstance(raised, json.JSONDecodeError)  # the SDK lets it through as it is
    assert (api.stats.billed, api.stats.lost) == (1, 1)


def hangs(api: FakeAPI, raised: BaseException | None, message: Any) -> None:
    assert isinstance(raised, anthropic.APITimeoutError)
    assert (api.stats.billed, api.stats.lost, api.stats.in_flight) == (1, 1, 0)


def slow(api: FakeAPI, raised: BaseException | None, message: Any) -> None:
    assert raised is None
    assert json.loads(text_of(message))
    assert api.stats.delivered == 1
    entry = api.log[0]
    assert entry.seconds is not None
    assert entry.seconds >= 0.09


def reply(says: Callable[[str], object], stop: str = "end_turn") -> Check:
    def check(api: FakeAPI, raised: BaseException | None, message: Any) -> None:
        assert raised is None
        assert message.stop_reason == stop
        assert says(text_of(message))
        assert (api.stats.billed, api.stats.delivered) == (1, 1)

    return check


def is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


def keys(text: str) -> list[str]:
    """Keys of the outermost object, as often as they are written."""
    seen: list[list[str]] = []
    json.loads(text, object_pairs_hook=lambda pairs: seen.append([k for k, _ in pairs]))
    return seen[-1]


def refused(api: FakeAPI, raised: BaseException | None, message: Any) -> None:
    assert (message.stop_reason, message.content) == ("refusal", [])
    assert message.stop_details.category == "frontier_llm"


def quotes(text: str) -> list[str]:
    return [s["quote"] for s in json.loads(text)["suggestions"]]


def contradicts(text: str) -> bool:
    suggestions = json.loads(text)["suggestions"]
    first = [s["serves"] for s in suggestions if s["quote"] == suggestions[0]["quote"]]
    return len(set(first)) == 2


SEEN: dict[str, Check] = {
    "400": status(400, anthropic.BadRequestError),
    "401": status(401, anthropic.AuthenticationError),
    "403": status(403, anthropic.PermissionDeniedError),
    "404": status(404, anthropic.NotFoundError),
    "408": status(408, anthropic.RequestTimeoutError),
    "409": status(409, anthropic.ConflictError),
    "413": status(413, anthropic.ContentTooLargeError),
    "429": retry_after(None),
    "429_retry_after": retry_after("0.05"),
    "429_spend_limit": spend_limit,
    "500": status(500, anthropic.InternalServerError),
    "502_html": html,
    "529": status(529, anthropic.OverloadedError),
    "no_schema": status(400, anthropic.BadRequestError),
    "reset_before": connection_lost(billed=0),
    "reset_after": connection_lost(billed=1),
    "truncated_body": connection_lost(billed=1),
    "broken_json": unreadable,
    "hang": hangs,
    "slow_body": slow,
    "prose": reply(lambda text: text == SENTENCE),
    "cut_text": reply(lambda text: text and not is_json(text)),
    "max_tokens": reply(lambda text: text and not is_json(text), stop="max_tokens"),
    "refusal": refused,
    "empty": reply(lambda text: text == ""),
    "wrong_label": reply(lambda text: json.loads(text)["focus"] == OFF_MENU),
    "missing_label": reply(lambda text: "focus" not in json.loads(text)),
    "duplicate_label": reply(lambda text: keys(text).count("focus") == 2),
    "duplicate_key": reply(lambda text: keys(text).count("suggestions") == 2),
    "wrong_quote": reply(lambda text: quotes(text)[0] == ELSEWHERE),
    "contradiction": reply(contradicts),
}


def test_every_fault_has_a_check() -> None:
    assert tuple(SEEN) == FAULTS


@pytest.mark.parametrize("kind", FAULTS)
def test_a_real_client_sees_the_fault(kind: str) -> None:
    async def one(api: FakeAPI) -> tuple[BaseException | None, Any]:
        async with client_of(api, timeout=0.3 if kind == "hang" else 10) as client:
            try:
                return None, await client.messages.create(**params())
            except Exception as problem:
                return problem, None

    faults = Faults(script=[kind], retry_after=0.05, slow_s=0.1)
    with FakeAPI(faults=faults) as api:
        raised, message = asyncio.run(one(api))
        SEEN[kind](api, raised, message)
        assert api.stats.by_fault == {kind: 1}
        assert text_of(ask(api, number=1))  # and the server goes on as if nothing had happened


# ---------------------------------------------------------------- counts


async def gather(calls: list[Coroutine[Any, Any, Any]], at_once: int) -> list[Any]:
    gate = asyncio.Semaphore(at_once)

    async def one(call: Awaitable[Any]) -> Any:
        async with gate:
            return await call

    return await asyncio.gather(*map(one, calls), return_exceptions=True)


def test_counts_are_exact_with_many_clients_and_every_fault() -> None:
    async def many(api: FakeAPI) -> list[Any]:
        async with client_of(api, timeout=0.5) as client:
            calls = [client.messages.create(**params(i)) for i in range(600)]
            return await gather(calls, at_once=32)

    chances = dict.fromkeys(FAULTS, 0.5 / len(FAULTS))
    with FakeAPI(latency=0.005, faults=Faults(chances, slow_s=0.1)) as api:
        got = asyncio.run(many(api))
        stats = api.stats
    messages = [m for m in got if not isinstance(m, BaseException)]
    assert len(got) == stats.requests == stats.calls == 600
    assert stats.delivered == len(messages)
    assert stats.billed == stats.delivered + stats.lost
    assert stats.in_flight == 0
    assert stats.distinct_billed == stats.billed
    assert set(stats.by_fault) <= set(FAULTS)
    assert 200 < sum(stats.by_fault.values()) < 400
    assert 2 <= stats.max_concurrent <= 32
    assert stats.delivered_usage == Usage(
        input_tokens=sum(m.usage.input_tokens for m in messages),
        output_tokens=sum(m.usage.output_tokens for m in messages),
    )


# ---------------------------------------------------------------- chat completions


def chat(api: FakeAPI, **fields: Any) -> httpx2.Response:
    body = {"model": "a-model", "messages": params()["messages"], **fields}
    with httpx2.Client(trust_env=False) as client:
        return client.post(f"{api.base_url}/v1/chat/completions", json=body)


def test_a_chat_completion_follows_its_response_format_and_is_prose_without() -> None:
    form = {"type": "json_schema", "json_schema": {"name": "verdict", "schema": SCHEMA}}
    with FakeAPI() as api:
        structured = chat(api, response_format=form).json()
        plain = chat(api).json()
    choice = structured["choices"][0]
    assert choice["finish_reason"] == "stop"
    assert quotes(choice["message"]["content"])[0] in ANSWER
    assert structured["usage"]["total_tokens"] > structured["usage"]["completion_tokens"] > 0
    assert plain["choices"][0]["message"]["content"] == SENTENCE
