"""The fake API, driven by the real SDK and by a plain HTTP client."""

import asyncio
import json
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anthropic
import httpx2
import pytest
from anthropic import AsyncAnthropic

from xyreward.items import Item
from xyreward.judges.calls import Reply
from xyreward.reading import Reading, read_reply
from xyreward.rubric import Grounding, verdict_call
from xyreward.testing import FakeAPI, FakeAPIProcess, Faults
from xyreward.testing.fake_api import FAULTS, MIX, ROW_FAULTS
from xyreward.testing.fake_api.faults import REPLY_FAULTS
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
async def client_of(api: FakeAPI | FakeAPIProcess, **options: Any) -> AsyncIterator[AsyncAnthropic]:
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


def ask(api: FakeAPI | FakeAPIProcess, **fields: Any) -> Any:
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


# ---------------------------------------------------------------- verdicts


READ_AS = {
    None: {"Reading"},
    "prose": {"unparseable"},
    "cut_text": {"unparseable"},
    "max_tokens": {"truncated"},
    "refusal": {"refused"},
    "empty": {"unparseable"},
    "wrong_label": {"off_menu"},
    "missing_label": {"off_menu"},
    "duplicate_label": {"off_menu"},
    "duplicate_key": {"unparseable"},
    "wrong_quote": {"inconsistent", "Reading"},  # readable where no label hangs on that quote
    "contradiction": {"inconsistent"},
}


def test_every_fault_of_a_reply_has_a_reading() -> None:
    assert set(READ_AS) == {None, *REPLY_FAULTS}


@pytest.mark.parametrize("kind", READ_AS)
def test_replies_to_the_rubric_are_verdicts_and_each_fault_is_its_failure(
    kind: str | None, mini: list[Item]
) -> None:
    """Over the wire: rubric, server, SDK's message, reading."""

    async def read(api: FakeAPI) -> list[str]:
        seen: list[str] = []
        async with client_of(api) as client:
            for item in [*mini[:6], *[item for item in mini if item.kind == "control"][:3]]:
                grounding = Grounding.of(item)
                assert grounding is not None
                for reference in item.references:
                    call = verdict_call(item, grounding, reference.text)
                    message = await client.messages.create(
                        model=MODEL,
                        max_tokens=call.max_tokens,
                        system=[
                            {
                                "type": "text",
                                "text": call.prefix,
                                "cache_control": {"type": "ephemeral"},
                            }
                        ],
                        messages=[{"role": "user", "content": call.text}],
                        output_config={
                            "format": {"type": "json_schema", "schema": dict(call.schema)}
                        },
                    )
                    stop: Any = {"max_tokens": "truncated", "refusal": "refused"}
                    reply = Reply(text_of(message), stop=stop.get(message.stop_reason, "end"))
                    found = read_reply(reply, reference.text, item.kind)
                    seen.append("Reading" if isinstance(found, Reading) else found.kind)
                    if kind is None:
                        assert isinstance(found, Reading)
                        assert found.dropped == 0
        return seen

    with FakeAPI(faults=Faults({kind: 1.0} if kind else {})) as api:
        seen = asyncio.run(read(api))
    assert len(seen) > 20
    assert set(seen) == READ_AS[kind]


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
    stats = api.wait_idle()
    assert (stats.billed, stats.lost, stats.in_flight) == (1, 1, 0)


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
        async with client_of(api, timeout=1 if kind == "hang" else 60) as client:
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
        async with client_of(api, timeout=60) as client:
            calls = [client.messages.create(**params(i)) for i in range(600)]
            return await gather(calls, at_once=32)

    # Without "hang": a client's time-out could fall between the server's last byte and its reading.
    kinds = [kind for kind in FAULTS if kind != "hang"]
    with FakeAPI(latency=0.005, faults=Faults.mix(0.5, kinds, slow_s=0.1)) as api:
        got = asyncio.run(many(api))
        stats = api.stats
    messages = [m for m in got if not isinstance(m, BaseException)]
    assert len(got) == stats.requests == stats.calls == 600
    assert stats.delivered == len(messages)
    assert stats.billed == stats.delivered + stats.lost
    assert stats.in_flight == 0
    assert stats.distinct_billed == stats.billed
    assert set(stats.by_fault) == set(kinds)
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


def test_a_chat_completion_needs_a_key_only_where_the_server_has_one() -> None:
    with FakeAPI(api_key="secret") as api:
        assert chat(api).status_code == 401
        with httpx2.Client(trust_env=False, headers={"authorization": "Bearer secret"}) as client:
            body = {"model": "m", "messages": [{"role": "user", "content": "Hello"}]}
            assert client.post(f"{api.base_url}/v1/chat/completions", json=body).status_code == 200


@pytest.mark.parametrize(
    ("kind", "code", "finish"),
    [
        ("500", 500, None),
        ("no_schema", 400, None),
        ("max_tokens", 200, "length"),
        ("refusal", 200, "content_filter"),
    ],
)
def test_faults_happen_to_chat_completions_as_well(
    kind: str, code: int, finish: str | None
) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "verdict", "schema": SCHEMA}}
    with FakeAPI(faults=Faults(script=[kind])) as api:
        response = chat(api, response_format=form)
    assert response.status_code == code
    if finish is None:
        assert set(response.json()) == {"error"}
    else:
        assert response.json()["choices"][0]["finish_reason"] == finish


def test_an_endpoint_without_structured_output_still_serves_plain_requests() -> None:
    form = {"type": "json_schema", "json_schema": {"name": "verdict", "schema": SCHEMA}}
    with FakeAPI(faults=Faults({"no_schema": 1.0}), schema=SCHEMA) as api:
        assert chat(api, response_format=form).status_code == 400
        text = chat(api).json()["choices"][0]["message"]["content"]
    assert quotes(text)


# ---------------------------------------------------------------- who decides what is said


def test_a_reply_function_decides_and_none_leaves_it_to_the_schema() -> None:
    def say(body: dict[str, Any]) -> dict[str, Any] | str | None:
        text = body["messages"][-1]["content"]
        if "Question 0" in text:
            return {"focus": "intended"}
        return "words" if "Question 1" in text else None

    with FakeAPI(reply=say) as api:
        first, second, third = (text_of(ask(api, number=i)) for i in range(3))
    assert json.loads(first) == {"focus": "intended"}
    assert second == "words"
    assert set(json.loads(third)) == set(SCHEMA["properties"])


def test_a_reply_function_that_raises_is_a_500_that_names_the_exception() -> None:
    def say(body: dict[str, Any]) -> str:
        raise KeyError("labels")

    with FakeAPI(reply=say) as api:
        with pytest.raises(anthropic.InternalServerError, match="raised KeyError: 'labels'"):
            ask(api)
        assert api.stats.billed == 0


def test_a_fault_spoils_what_the_reply_function_said() -> None:
    said = {"suggestions": [], "focus": "balanced", "identifies_misconception": True}
    with FakeAPI(reply=lambda _: said, faults=Faults(script=["wrong_label"])) as api:
        assert json.loads(text_of(ask(api))) == {**said, "focus": OFF_MENU}
        assert said["focus"] == "balanced"  # and not the function's own object
        assert json.loads(text_of(ask(api))) == said


def test_the_first_try_of_every_request_can_be_made_to_fail() -> None:
    faults = Faults(choose=lambda body, seen: "529" if seen == 0 else None)
    with FakeAPI(faults=faults) as api:
        for number in range(3):
            with pytest.raises(anthropic.OverloadedError):
                ask(api, number=number)
            assert ask(api, number=number).stop_reason == "end_turn"
        assert (api.stats.calls, api.stats.billed, api.stats.distinct_billed) == (6, 3, 3)


def test_a_server_recovers_when_its_settings_are_changed() -> None:
    with FakeAPI(faults=Faults({"529": 1.0})) as api:
        with pytest.raises(anthropic.OverloadedError):
            ask(api)
        api.change(faults=Faults(script=["429"]))
        with pytest.raises(anthropic.RateLimitError):
            ask(api)
        assert ask(api).stop_reason == "end_turn"
        assert api.stats.by_status == {529: 1, 429: 1, 200: 1}


def test_chance_gives_the_same_faults_in_any_order_and_a_retry_a_fate_of_its_own() -> None:
    def fates(order: list[int]) -> dict[int, list[str | None]]:
        found: dict[int, list[str | None]] = {i: [] for i in order}

        async def run(api: FakeAPI) -> None:
            async with client_of(api) as client:
                for number in order * 2:
                    await asyncio.gather(
                        client.messages.create(**params(number)), return_exceptions=True
                    )
                    found[number].append(api.log[-1].fault)

        with FakeAPI(faults=Faults({"429": 0.3, "529": 0.3}), seed=3) as api:
            asyncio.run(run(api))
        return found

    forwards, backwards = fates(list(range(20))), fates(list(range(19, -1, -1)))
    assert forwards == backwards
    assert any(first != second for first, second in forwards.values())


# ---------------------------------------------------------------- what the API refuses


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"extra_body": {"temperature": 0}}, "temperature: Extra inputs are not permitted"),
        ({"extra_body": {"tempreature": 0}}, "tempreature: Extra inputs are not permitted"),
        ({"extra_body": {"stream": True}}, "does not stream"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"messages": []}, "at least one message"),
        ({"messages": [{"role": "assistant", "content": "{"}]}, "no prefill"),
        ({"output_config": {"effort": "enormous"}}, "output_config.effort"),
        ({"schema": {"type": "object", "properties": {}}}, "additionalProperties"),
        (
            {
                "schema": {
                    "type": "object",
                    "additionalProperties": False,
                    "properties": {
                        "n": {"type": "array", "items": {"type": "integer", "maximum": 3}}
                    },
                }
            },
            "n.items: for 'integer' type, 'maximum' is not supported",
        ),
    ],
)
def test_a_request_that_the_api_would_refuse_is_refused(fields: dict[str, Any], says: str) -> None:
    with FakeAPI() as api:
        with pytest.raises(anthropic.BadRequestError, match=says):
            ask(api, **fields)
        assert api.stats.billed == 0


def test_an_older_version_of_the_api_still_takes_a_temperature() -> None:
    old = {"anthropic-version": "2023-06-01"}
    with FakeAPI() as api:
        reply = ask(api, extra_body={"temperature": 0}, extra_headers=old)
    assert reply.stop_reason == "end_turn"


def test_a_key_is_needed_and_a_wrong_one_is_refused() -> None:
    with FakeAPI(api_key="right") as api, pytest.raises(anthropic.AuthenticationError):
        ask(api)
    with FakeAPI() as api, httpx2.Client(trust_env=False) as client:
        response = client.post(f"{api.base_url}/v1/messages", json=params())
        assert response.status_code == 401
        assert response.json()["error"]["type"] == "authentication_error"


def test_a_model_that_is_not_there_is_a_404_everywhere() -> None:
    async def all_ways(api: FakeAPI) -> list[Any]:
        async with client_of(api) as client:
            messages: Any = [{"role": "user", "content": "Hello"}]
            calls: list[Any] = [
                client.messages.create(**params(model="claude-nonet")),
                client.messages.count_tokens(model="claude-nonet", messages=messages),
                client.models.retrieve("claude-nonet"),
            ]
            return await asyncio.gather(*calls, return_exceptions=True)

    with FakeAPI(models=[MODEL]) as api:
        got = asyncio.run(all_ways(api))
        assert [type(problem) for problem in got] == [anthropic.NotFoundError] * 3
        assert chat(api).status_code == 404
        assert ask(api).model == MODEL


def test_calls_beyond_the_concurrency_limit_are_a_429() -> None:
    async def burst(api: FakeAPI) -> list[Any]:
        async with client_of(api) as client:
            calls = [client.messages.create(**params(i)) for i in range(20)]
            return await asyncio.gather(*calls, return_exceptions=True)

    with FakeAPI(latency=1.0, concurrency_limit=5) as api:
        got = asyncio.run(burst(api))
        assert sum(isinstance(r, anthropic.RateLimitError) for r in got) == 15
        assert api.stats.by_status == {200: 5, 429: 15}


# ---------------------------------------------------------------- tokens, models


def test_a_long_prefix_is_written_to_the_cache_once_and_then_read() -> None:
    prefix = "Judge what follows. " * 300  # 6,000 characters, 1,500 tokens
    system = [{"type": "text", "text": prefix, "cache_control": {"type": "ephemeral"}}]

    async def both(api: FakeAPI) -> tuple[Any, Any, int]:
        async with client_of(api) as client:
            first = await client.messages.create(**params(0, system=system))
            second = await client.messages.create(**params(1, system=system))
            counted = params(0, system=system)
            del counted["max_tokens"]
            return (
                first.usage,
                second.usage,
                (await client.messages.count_tokens(**counted)).input_tokens,
            )

    with FakeAPI() as api:
        first, second, counted = asyncio.run(both(api))
        total = api.stats.delivered_usage
    assert (first.cache_creation_input_tokens, first.cache_read_input_tokens) == (1500, 0)
    assert (second.cache_creation_input_tokens, second.cache_read_input_tokens) == (0, 1500)
    assert first.input_tokens == second.input_tokens == counted - 1500
    assert total == Usage(
        input_tokens=2 * first.input_tokens,
        output_tokens=first.output_tokens + second.output_tokens,
        cache_read_tokens=1500,
        cache_write_tokens=1500,
    )


def test_a_short_prefix_is_not_cached() -> None:
    system = [{"type": "text", "text": "Judge. " * 100, "cache_control": {"type": "ephemeral"}}]
    with FakeAPI() as api:
        usage = ask(api, system=system).usage
    assert (usage.cache_creation_input_tokens, usage.cache_read_input_tokens) == (0, 0)


def test_a_reply_is_cut_at_max_tokens() -> None:
    with FakeAPI() as api:
        message = ask(api, max_tokens=5)
    assert (message.stop_reason, message.usage.output_tokens) == ("max_tokens", 5)
    assert len(text_of(message)) == 20


def test_a_thinking_model_has_a_block_that_is_not_text() -> None:
    with FakeAPI() as api:
        message = ask(api, thinking={"type": "adaptive"})
    assert [block.type for block in message.content] == ["thinking", "text"]


def test_models_are_listed_with_their_end_of_life() -> None:
    async def models(api: FakeAPI) -> dict[str, str]:
        async with client_of(api) as client:
            return {model.id: model.lifecycle async for model in client.models.list()}

    with FakeAPI() as api:
        found = asyncio.run(models(api))
    assert found["claude-sonnet-5-5"] == "active"
    assert found["claude-sonnet-4-5"] == "deprecated"


# ---------------------------------------------------------------- clients that leave


def test_a_reply_to_a_client_that_left_is_billed_and_lost() -> None:
    async def leave(api: FakeAPI) -> None:
        async with client_of(api) as client:
            calls = [asyncio.create_task(client.messages.create(**params(i))) for i in range(10)]
            while (api.stats.in_flight, api.stats.delivered) != (6, 4):
                await asyncio.sleep(0.01)
            for call in calls:
                call.cancel()
            await asyncio.gather(*calls, return_exceptions=True)

    with FakeAPI(faults=Faults(script=["hang"] * 6)) as api:
        asyncio.run(leave(api))
        stats = api.wait_idle()
    assert (stats.billed, stats.delivered, stats.lost, stats.in_flight) == (10, 4, 6, 0)


@pytest.mark.skipif(not hasattr(select, "POLLRDHUP"), reason="only Linux tells in time")
def test_a_client_that_left_unnoticed_does_not_count_as_served() -> None:
    def slow(body: dict[str, Any]) -> str:
        time.sleep(1.5)  # the server's loop is busy and hears nothing
        return "a reply to nobody"

    async def leave(api: FakeAPI) -> None:
        async with client_of(api, timeout=0.5) as client:
            with pytest.raises(anthropic.APITimeoutError):
                await client.messages.create(**params())

    with FakeAPI(reply=slow) as api:
        asyncio.run(leave(api))
        stats = api.wait_idle()
    assert (stats.billed, stats.delivered, stats.lost) == (1, 0, 1)


def test_a_server_that_is_stopped_loses_what_was_in_flight_and_keeps_its_counts() -> None:
    async def call(api: FakeAPI) -> BaseException | None:
        async with client_of(api) as client:
            task = asyncio.create_task(client.messages.create(**params()))
            while api.stats.in_flight < 1:
                await asyncio.sleep(0.01)
            await asyncio.to_thread(api.stop)
            return (await asyncio.gather(task, return_exceptions=True))[0]

    with FakeAPI(latency=30) as api:
        assert isinstance(asyncio.run(call(api)), anthropic.APIConnectionError)
    assert (api.stats.billed, api.stats.lost) == (1, 1)
    assert api.log[0].fault is None


def test_a_client_that_speaks_no_http_is_told_so_and_others_are_served() -> None:
    async def talk(api: FakeAPI) -> bytes:
        host, port = api.base_url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(b"\x16\x03\x01 hello\r\n\r\n")
        got = await reader.read()
        writer.close()
        return got

    with FakeAPI() as api:
        assert asyncio.run(talk(api)).startswith(b"HTTP/1.1 400 ")
        assert ask(api).stop_reason == "end_turn"


def test_connections_are_kept_and_requests_sent_ahead_are_answered_in_order() -> None:
    def raw(number: int) -> bytes:
        body = json.dumps(params(number)).encode()
        head = (
            "POST /v1/messages HTTP/1.1\r\nhost: x\r\nx-api-key: k\r\nanthropic-version: 2026-10-21\r\n"
            f"content-length: {len(body)}\r\n{'connection: close' if number else 'x: y'}\r\n\r\n"
        )
        return head.encode() + body

    async def talk(api: FakeAPI) -> bytes:
        host, port = api.base_url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(raw(0) + raw(1))
        got = await reader.read()
        writer.close()
        return got

    with FakeAPI() as api:
        got = asyncio.run(talk(api))
        assert api.stats.connections == 1
        assert api.stats.delivered == 2
    assert got.count(b"HTTP/1.1 200 ") == 2
    assert got.index(b"msg_fake00000000") < got.index(b"msg_fake00000001")


# ---------------------------------------------------------------- the log


def test_the_log_keeps_no_bodies_unless_told_to() -> None:
    with FakeAPI() as api:
        ask(api)
        [entry] = api.log
        assert entry.body is None
        assert (entry.endpoint, entry.status, entry.delivered) == ("messages", 200, True)
    with FakeAPI(log_bodies=True) as api:
        ask(api)
        assert api.log[0].body == params()


# ---------------------------------------------------------------- batches


async def run_batch(client: AsyncAnthropic, rows: int) -> tuple[Any, dict[str, Any]]:
    requests: Any = [{"custom_id": f"row-{i}", "params": params(i)} for i in range(rows)]
    batch: Any = await client.messages.batches.create(requests=requests)
    assert batch.processing_status == "in_progress"
    assert batch.request_counts.processing == rows
    while batch.processing_status != "ended":
        await asyncio.sleep(0.02)
        batch = await client.messages.batches.retrieve(batch.id)
    results = [row async for row in await client.messages.batches.results(batch.id)]
    found = {row.custom_id: row.result for row in results}
    assert len(found) == len(results)
    assert [row.custom_id for row in results] != [f"row-{i}" for i in range(rows)]
    return batch, found


def test_a_batch_is_created_polled_and_collected() -> None:
    async def run(api: FakeAPI) -> tuple[Any, dict[str, Any]]:
        async with client_of(api) as client:
            return await run_batch(client, 30)

    with FakeAPI() as api:
        batch, found = asyncio.run(run(api))
        assert batch.results_url.startswith(api.base_url + "/v1/messages/batches/")
        assert batch.request_counts.succeeded == 30
        assert set(found) == {f"row-{i}" for i in range(30)}
        messages = [row.message for row in found.values()]
        assert all(quotes(text_of(message))[0] in ANSWER for message in messages)
        stats = api.stats
        assert (stats.batches, stats.batch_rows, stats.billed) == (1, {"succeeded": 30}, 0)
        assert stats.batch_usage.output_tokens == sum(m.usage.output_tokens for m in messages)
        # A row says what the same request says by itself.
        assert text_of(found["row-3"].message) == text_of(ask(api, number=3))


def test_rows_of_a_batch_expire_fail_and_are_refused_on_demand() -> None:
    async def run(api: FakeAPI) -> tuple[Any, dict[str, Any]]:
        async with client_of(api) as client:
            return await run_batch(client, 5)

    script = ["errored", "expired", "prose", "refusal", None]
    with FakeAPI(batch_faults=Faults(script=script, refusal_category="bio")) as api:
        batch, found = asyncio.run(run(api))
    counts = batch.request_counts
    assert (counts.processing, counts.errored, counts.expired, counts.succeeded) == (0, 1, 1, 3)
    assert found["row-0"].error.error.type == "api_error"
    assert found["row-1"].type == "expired"
    assert text_of(found["row-2"].message) == SENTENCE
    assert found["row-3"].message.stop_details.category == "bio"
    assert is_json(text_of(found["row-4"].message))


def test_a_bad_row_is_an_errored_row_and_a_bad_batch_is_refused() -> None:
    async def run(api: FakeAPI) -> Any:
        async with client_of(api) as client:
            create: Any = client.messages.batches.create
            good = {"custom_id": "good", "params": params()}
            for requests, says in [
                ([], "at least one"),
                ([good, good], "is there twice"),
                ([{**good, "custom_id": "a b"}], "custom_id"),
            ]:
                with pytest.raises(anthropic.BadRequestError, match=says):
                    await create(requests=requests)
            with pytest.raises(anthropic.ContentTooLargeError):
                await create(requests=[{**good, "custom_id": f"r{i}"} for i in range(11)])
            bad = {"custom_id": "bad", "params": {**params(), "temperature": 0}}
            batch = await create(requests=[good, bad])
            with pytest.raises(anthropic.AnthropicError, match="No `results_url`"):
                await client.messages.batches.results(batch.id)
            while batch.processing_status != "ended":
                await asyncio.sleep(0.02)
                batch = await client.messages.batches.retrieve(batch.id)
            rows = [row async for row in await client.messages.batches.results(batch.id)]
            return {row.custom_id: row.result for row in rows}

    with FakeAPI(max_batch_rows=10) as api:
        found = asyncio.run(run(api))
    assert found["good"].type == "succeeded"
    assert found["bad"].error.error.type == "invalid_request_error"


def test_a_batch_that_is_cancelled_half_way_keeps_what_it_has() -> None:
    async def run(api: FakeAPI) -> tuple[Any, list[str]]:
        async with client_of(api) as client:
            requests: Any = [{"custom_id": f"row-{i}", "params": params(i)} for i in range(40)]
            batches = client.messages.batches
            batch = await batches.create(requests=requests)
            await asyncio.sleep(0.5)  # of 4: some rows are processed
            assert (await batches.cancel(batch.id)).processing_status == "canceling"
            while batch.processing_status != "ended":
                await asyncio.sleep(0.02)
                batch = await batches.retrieve(batch.id)
            other = await batches.create(requests=requests[:1])
            names = [b.id async for b in batches.list(limit=1)]
            assert names == [other.id, batch.id]
            await batches.delete(batch.id)
            with pytest.raises(anthropic.NotFoundError):
                await batches.retrieve(batch.id)
            return batch.request_counts, names

    with FakeAPI(batch_seconds=4.0) as api:
        counts, _ = asyncio.run(run(api))
    assert counts.succeeded > 0
    assert counts.canceled > 0
    assert counts.succeeded + counts.canceled == 40


def test_faults_can_happen_to_batch_requests_and_a_batch_whose_reply_was_lost_is_listed() -> None:
    async def run(api: FakeAPI) -> list[str]:
        async with client_of(api) as client:
            requests: Any = [{"custom_id": "a", "params": params()}]
            with pytest.raises(anthropic.APIConnectionError):
                await client.messages.batches.create(requests=requests)
            return [batch.id async for batch in client.messages.batches.list()]

    with FakeAPI(faults=Faults(script=["reset_after"], on=["batches"])) as api:
        assert len(asyncio.run(run(api))) == 1


# ---------------------------------------------------------------- a process of its own


def test_the_server_runs_as_a_process_and_tells_its_counts() -> None:
    with FakeAPIProcess("--faults", "script:529,ok", "--latency", "0,0.01", "--seed", "7") as api:
        with pytest.raises(anthropic.OverloadedError):
            ask(api)
        assert ask(api).stop_reason == "end_turn"
        stats = api.stats
    assert (stats.requests, stats.delivered, stats.by_status) == (2, 1, {529: 1, 200: 1})
    assert isinstance(stats.delivered_usage, Usage)
    with FakeAPI(seed=7) as other:
        ask(other)
        assert other.stats.delivered_usage == stats.delivered_usage


def test_a_process_that_does_not_start_says_why(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(RuntimeError, match="ended with status 2"):
        FakeAPIProcess("--faults", "oops:0.1")
    assert "'oops' are not known" in capfd.readouterr().err


# ---------------------------------------------------------------- mistakes of the user


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: Faults({"529": 0.7, "500": 0.7}), "sum 1.4"),
        (lambda: Faults({"529": -0.1}), r"in \[0, 1\]"),
        (lambda: Faults(script=["530"]), "'530' are not known here; expected 400, 401"),
        (lambda: Faults(on=["everything"]), "expected endpoints of messages"),
        (lambda: Faults.parse("mix:often"), "mix:often"),
        (lambda: FakeAPI(faults=Faults({"expired": 0.1})), "'expired' are not known here"),
        (lambda: FakeAPI(batch_faults=Faults({"529": 0.1})), "expected errored, expired"),
        (lambda: FakeAPI(latency=-1), "latency is -1"),
    ],
)
def test_what_cannot_be_meant_is_refused_at_once(make: Callable[[], object], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        make()


def test_faults_are_read_from_a_command_line() -> None:
    assert Faults.parse("") == Faults()
    assert Faults.parse("529:0.1,prose:0.05") == Faults({"529": 0.1, "prose": 0.05})
    assert Faults.parse("script:529,ok") == Faults(script=["529", None])
    mixed = Faults.parse("mix:0.3").chances
    assert set(mixed) == set(MIX)
    assert sum(mixed.values()) == pytest.approx(0.3)


def test_a_server_is_used_once_and_has_no_url_before() -> None:
    api = FakeAPI()
    with pytest.raises(RuntimeError, match="is not running"):
        api.base_url  # noqa: B018
    with api, pytest.raises(RuntimeError, match="started before"):
        api.start()


def test_a_port_that_is_taken_is_an_error() -> None:
    with FakeAPI() as api:
        port = int(api.base_url.rpartition(":")[2])
        with pytest.raises(OSError, match="address already in use"):
            FakeAPI(port=port).start()


# ---------------------------------------------------------------- the page

PAGE = (Path(__file__).parent.parent / "docs" / "testing.md").read_text("utf-8")
PROGRAMS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


def test_the_page_has_programs() -> None:
    assert len(PROGRAMS) == 3


@pytest.mark.parametrize("program", PROGRAMS, ids=["judge", "api", "process"])
def test_a_program_of_the_page_runs(program: str) -> None:
    command = [sys.executable, "-W", "error", "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_page_names_every_fault() -> None:
    table = PAGE[PAGE.index("| fault |") :]
    assert [kind for kind in (*FAULTS, *ROW_FAULTS) if f"`{kind}`" not in table] == []


def test_a_server_ends_with_the_process_that_started_it() -> None:
    code = (
        "import os, signal\n"
        "from xyreward.testing import FakeAPIProcess\n"
        "api = FakeAPIProcess()\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    command = [sys.executable, "-c", code]
    # The server has inherited the pipe of stderr, so this returns when the server has ended as well.
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=30)
    assert done.returncode == -signal.SIGKILL
