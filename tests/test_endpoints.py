import asyncio
import contextlib
import email.utils
import gc
import json
import logging
import os
import pickle
import random
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Literal

import pytest
from canned import Canned

from xyreward.errors import JudgeError
from xyreward.judges import anthropic as anthropic_module
from xyreward.judges.anthropic import (
    DEFAULT_MODEL,
    AnthropicEndpoint,
    end_of_life,
    read_message,
)
from xyreward.judges.calls import Call, CallError, JudgeStopped, Reply
from xyreward.judges.chat import ChatEndpoint, api_root, read_completion
from xyreward.judges.transport import check_url, is_loopback, repeats, retry_after, scrub
from xyreward.testing.fake_api import FAULTS, FakeAPI, Faults
from xyreward.verdict import Usage

KEY = "sk-ant-test-7f3a9c51e2d84b60"
ANSWER = "Stand the clock on a metal tray, says the confidential answer of this test."
SCHEMA = {
    "type": "object",
    "properties": {
        "reason": {"type": "string"},
        "focus": {"type": "string", "enum": ["stated", "intended"]},
    },
    "required": ["reason", "focus"],
    "additionalProperties": False,
}
CALL = Call(prefix="You judge answers. " * 300, text=ANSWER, schema=SCHEMA)

Make = Callable[..., AnthropicEndpoint | ChatEndpoint]


def claude(base_url: str, **arguments: Any) -> AnthropicEndpoint:
    return AnthropicEndpoint(
        **{"base_url": base_url, "api_key": KEY, "schema": "json_schema", **arguments}
    )


def chat(base_url: str, **arguments: Any) -> ChatEndpoint:
    return ChatEndpoint(
        **{"model": DEFAULT_MODEL, "base_url": base_url, "api_key": KEY, "schema": "json_schema"}
        | arguments
    )


BOTH = pytest.mark.parametrize("make", [claude, chat])


def send(
    endpoint: AnthropicEndpoint | ChatEndpoint, call: Call = CALL, timeout: float = 10
) -> Reply:
    return asyncio.run(endpoint.send(call, timeout=timeout))


def failure(
    endpoint: AnthropicEndpoint | ChatEndpoint, call: Call = CALL, timeout: float = 10
) -> CallError | JudgeStopped:
    try:
        reply = send(endpoint, call, timeout)
    except (CallError, JudgeStopped) as error:
        return error
    raise AssertionError(f"a reply came: {reply}")


@pytest.fixture(autouse=True)
def no_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    for name in os.environ:
        if (
            name.startswith(("ANTHROPIC_", "OPENAI_", "XYREWARD_CHAT", "XYREWARD_HTTP"))
            or "proxy" in name.lower()
        ):
            monkeypatch.delenv(name)
    monkeypatch.setenv("ANTHROPIC_CONFIG_DIR", str(tmp_path / "no-profile-here"))


MESSAGE: dict[str, Any] = {
    "id": "msg_1",
    "type": "message",
    "role": "assistant",
    "model": DEFAULT_MODEL,
    "content": [{"type": "text", "text": "{}"}],
    "stop_reason": "end_turn",
    "usage": {"input_tokens": 3, "output_tokens": 2},
}
COMPLETION: dict[str, Any] = {
    "id": "c_1",
    "object": "chat.completion",
    "model": "m",
    "choices": [{"message": {"role": "assistant", "content": "{}"}, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 3, "completion_tokens": 2},
}


def ok(make: Make) -> Any:
    return MESSAGE if make is claude else COMPLETION


# ---------------------------------------------------------------- every fault has a meaning


STOP = "stop"
# kind, retry, retry_after, overloaded, pause_all, possibly_billed; or STOP; or the stop of a Reply
MEANING: dict[str, Any] = {
    "400": ("transport", False, None, False, False, False),
    "401": STOP,
    "403": STOP,
    "404": STOP,
    "408": ("timeout", True, None, False, False, False),
    "409": ("transport", True, None, False, False, False),
    "413": ("transport", False, None, False, False, False),
    "429": ("rate_limited", True, None, True, False, False),
    "429_retry_after": ("rate_limited", True, 7200.0, True, False, False),
    "429_spend_limit": STOP,
    "500": ("transport", True, None, False, False, False),
    "502_html": ("transport", True, None, False, False, True),
    "529": ("transport", True, None, True, True, False),
    "no_schema": STOP,
    "reset_before": ("transport", True, None, False, False, True),  # we cannot know
    "reset_after": ("transport", True, None, False, False, True),
    "truncated_body": ("transport", True, None, False, False, True),
    "broken_json": ("transport", True, None, False, False, True),
    "hang": ("timeout", True, None, False, False, True),
    "slow_body": "end",
    "prose": "end",
    "cut_text": "end",
    "max_tokens": "truncated",
    "refusal": "refused",
    "empty": "end",
    "wrong_label": "end",
    "missing_label": "end",
    "duplicate_label": "end",
    "duplicate_key": "end",
    "wrong_quote": "end",
    "contradiction": "end",
}


def test_the_table_of_meanings_names_every_fault() -> None:
    assert set(MEANING) == set(FAULTS)


@BOTH
@pytest.mark.parametrize("fault", FAULTS)
def test_every_fault_means_one_thing_and_shows_no_secret(
    make: Make, fault: str, caplog: pytest.LogCaptureFixture
) -> None:
    faults = Faults(script=[fault], retry_after=7200, slow_s=0.05)
    with FakeAPI(faults=faults, api_key=KEY) as api:
        endpoint = make(api.base_url)
        expected = MEANING[fault]
        if expected in ("end", "truncated", "refused"):
            reply = send(endpoint)
            assert reply.stop == expected
            assert reply.model == DEFAULT_MODEL
            assert reply.usage == api.stats.delivered_usage  # it was paid for, whatever it says
            return
        error = failure(endpoint, timeout=0.5 if fault == "hang" else 10)
        if expected == STOP:
            assert isinstance(error, JudgeStopped)
        else:
            assert isinstance(error, CallError)
            assert expected == (
                error.kind,
                error.retry,
                error.retry_after,
                error.overloaded,
                error.pause_all,
                error.possibly_billed,
            )
            assert error.possibly_billed or api.stats.billed == 0
        # Nothing of ours in it, nor in what it hangs on.
        assert error.__cause__ is None
        assert error.__context__ is None
        shown = [repr(error), str(error), *map(repr, error.args), repr(vars(error))]
        shown += traceback.format_exception(error)
        assert not any(KEY in text or ANSWER[10:40] in text for text in shown)
        with_locals = traceback.TracebackException.from_exception(error, capture_locals=True)
        assert KEY not in "".join(with_locals.format())
        assert KEY not in caplog.text
        assert ANSWER[10:40] not in caplog.text


@BOTH
def test_a_judge_model_that_is_busy_or_absent_leaves_no_trace_of_a_reply(make: Make) -> None:
    with FakeAPI() as api:
        url = api.base_url
    error = failure(make(url))  # nobody listens there any more
    assert isinstance(error, CallError)
    assert (error.kind, error.retry, error.possibly_billed) == ("transport", True, False)
    assert "ConnectError" in error.detail


@BOTH
def test_logs_at_info_and_debug_of_ours_hold_no_key(
    make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    with FakeAPI(api_key=KEY) as api:
        send(make(api.base_url))
    assert KEY not in caplog.text
    assert ANSWER[10:40] not in caplog.text


# ---------------------------------------------------------------- what servers say of themselves


@BOTH
@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"retry-after": "3"}, 3.0),
        ({"retry-after": "0.5"}, 0.5),
        ({"retry-after-ms": "250", "retry-after": "9"}, 0.25),
        ({"retry-after": "3600"}, 3600.0),  # the cap is the dispatcher's
        ({"retry-after": "-5"}, 0.0),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "nan"}, None),
    ],
    ids=str,
)
def test_the_pause_that_a_server_asks_for_is_passed_on_uncapped(
    make: Make, headers: dict[str, str], seconds: float | None
) -> None:
    with Canned(
        (429, headers, {"error": {"type": "rate_limit_error", "message": "slow"}})
    ) as server:
        error = failure(make(server.url))
    assert isinstance(error, CallError)
    assert error.retry_after == seconds


def test_a_pause_until_a_date_is_counted_from_now() -> None:
    headers = {"retry-after": email.utils.formatdate(time.time() + 100, usegmt=True)}
    assert retry_after(headers) == pytest.approx(100, abs=2)
    assert retry_after({"retry-after": email.utils.formatdate(0)}) == 0.0


@BOTH
@pytest.mark.parametrize(
    "date",
    ["Wed, 21 Oct 99999 07:28:00 GMT", "Oct 21 9999999999 7:28", "Wed, 99 Oct 2020 99:99:99 GMT"],
)
def test_a_date_that_no_calendar_has_is_no_pause(make: Make, date: str) -> None:
    with Canned((429, {"retry-after": date}, {"error": {"message": "slow"}})) as server:
        error = failure(make(server.url))
    assert isinstance(error, CallError)
    assert error.retry
    assert error.retry_after in (None, 0.0)


@BOTH
@pytest.mark.parametrize("status", [200, 400, 500])
def test_a_body_that_is_nested_too_deep_is_a_failure_of_that_call_alone(
    make: Make, status: int
) -> None:
    with Canned((status, {}, b"[" * 200_000)) as server:
        error = failure(make(server.url))
    assert isinstance(error, CallError)
    assert error.kind == "transport"
    assert error.retry is (status != 400)
    assert error.possibly_billed is (status == 200)


@BOTH
def test_lists_that_are_nested_too_deep_are_as_good_as_none(make: Make) -> None:
    deep: Any = (200, {}, b"[" * 200_000)
    paths = ("/v1/models", f"/v1/models/{DEFAULT_MODEL}", "/v1/messages/count_tokens")
    sent = "/v1/messages" if make is claude else "/v1/chat/completions"
    with Canned(by_path={**dict.fromkeys(paths, deep), sent: (200, {}, ok(make))}) as server:
        found = asyncio.run(make(server.url).check(CALL))
    assert len(found.replies) == 2


@BOTH
@pytest.mark.parametrize(("told", "retry"), [("true", True), ("false", False)])
def test_a_server_that_says_whether_to_retry_is_believed(
    make: Make, told: str, retry: bool
) -> None:
    for status in (400, 500):
        with Canned((status, {"x-should-retry": told}, {"error": {"message": "x"}})) as server:
            error = failure(make(server.url))
        assert isinstance(error, CallError)
        assert error.retry is retry


@pytest.mark.parametrize(
    ("status", "error", "next_step"),
    [
        (429, {"details": {"error_code": "enforced_spend_limit_reached"}}, "limit is spent"),
        (429, {"details": {"error_code": "contract_spend_limit_reached"}}, "limit is spent"),
        (429, {"code": "insufficient_quota"}, "limit is spent"),
        (400, {"details": {"error_code": "organization_on_hold"}}, "limit is spent"),
        (400, {"message": "Your credit balance is too low to access the API."}, "Add credit"),
        (402, {"type": "billing_error"}, "limit is spent"),
        (402, {}, "payment"),
        (403, {"message": "no"}, "permissions"),
        (404, {"message": "model: x"}, "list its models"),
        (405, {}, "final address"),
        (410, {"message": "gone"}, "list its models"),
    ],
)
@BOTH
def test_what_no_waiting_helps_against_stops_the_run_and_says_what_to_do(
    make: Make, status: int, error: dict[str, Any], next_step: str
) -> None:
    with Canned((status, {}, {"type": "error", "error": error})) as server:
        stopped = failure(make(server.url))
    assert isinstance(stopped, JudgeStopped)
    assert next_step in str(stopped)
    assert str(status) in str(stopped)


@BOTH
def test_a_ramp_limit_is_a_429_that_passes(make: Make) -> None:
    body = {"error": {"type": "rate_limit_error", "details": {"error_code": "ramp_limit_exceeded"}}}
    with Canned((429, {"retry-after": "2"}, body)) as server:
        error = failure(make(server.url))
    assert isinstance(error, CallError)
    assert (error.retry, error.overloaded, error.retry_after) == (True, True, 2.0)


@BOTH
@pytest.mark.parametrize("status", [502, 504, 524])
def test_a_gateway_that_lost_its_server_may_have_cost_a_reply(make: Make, status: int) -> None:
    with Canned((status, {"content-type": "text/html"}, b"<html>bad gateway</html>")) as server:
        error = failure(make(server.url))
    assert isinstance(error, CallError)
    assert (error.retry, error.possibly_billed) == (True, True)


@BOTH
def test_a_web_page_in_place_of_an_api_names_the_address_as_the_culprit(make: Make) -> None:
    with Canned((404, {"content-type": "text/html"}, b"<html>not here</html>")) as server:
        assert "check base_url" in str(failure(make(server.url)))
    with Canned((200, {"content-type": "text/html"}, b"<html>welcome</html>")) as server:
        error = failure(make(server.url))
    assert isinstance(error, CallError)
    assert "no complete" in error.detail


@BOTH
def test_a_redirect_is_not_followed_with_the_key(make: Make) -> None:
    with Canned((200, {}, ok(make))) as elsewhere:
        moved = (307, {"location": f"{elsewhere.url}/v1/messages"}, b"")
        with Canned(moved) as server:
            stopped = failure(make(server.url))
        assert elsewhere.asked == []
    assert isinstance(stopped, JudgeStopped)
    assert "redirect" in str(stopped)


@BOTH
def test_a_message_that_echoes_the_key_or_our_text_is_not_repeated(make: Make) -> None:
    echo = {"detail": [{"loc": ["body"], "msg": "bad", "input": {"content": ANSWER}}]}
    with Canned((422, {}, echo)) as server:
        error = failure(make(server.url))
    assert isinstance(error, CallError)
    assert not error.retry
    assert "confidential" not in str(error)
    assert "repeats our request" in str(error)
    for said in (f"Incorrect API key provided: {KEY}", f"key {KEY[:12]}*** is not valid"):
        with Canned((403, {}, {"error": {"message": said}})) as server:
            stopped = failure(make(server.url))
        assert KEY[:12] not in str(stopped)
        assert "[key]" in str(stopped)


def test_a_long_message_and_a_long_answer_do_not_stop_the_event_loop() -> None:
    letters = random.Random(0)
    message, answer = ("".join(letters.choices("abcdefgh", k=n)) for n in (20_000, 1_000_000))
    start = time.thread_time()
    assert not repeats(message, answer)
    assert repeats(message, answer + message[100:116])
    assert time.thread_time() - start < 5  # the product of both lengths took half a minute


def test_scrubbing_keeps_what_is_harmless_and_cuts_what_is_long() -> None:
    assert scrub("max_tokens: 5 > 4") == "max_tokens: 5 > 4"
    assert scrub("a\n\x1b[31mb\u202ec") == "a [31mb c"
    assert len(scrub("x " * 1000)) <= 301
    assert scrub("Authorization: Bearer abc.def") == "Authorization: Bearer [key]"
    for key in ("EMPTY-1", "an0ther-kind-of-k3y"):
        assert scrub(f"the key {key!r} is unknown", secrets=[key]) == "the key '[key]' is unknown"
    assert "an0ther-" not in scrub("key an0ther-kin*** is unknown", secrets=["an0ther-kind-of-k3y"])
    private = 'He said: "ring\nlouder, please"'
    assert "louder" not in scrub(f"bad input {json.dumps(private)}", private=private)
    private = "把闹钟放在金属托盘上，声音会大得多，你就能醒来。"
    assert "\\u" not in scrub(f"bad input {json.dumps(private)}", private=private)


# ---------------------------------------------------------------- what is sent


def test_the_cache_breakpoint_ends_the_prefix_and_nothing_else_has_one() -> None:
    with FakeAPI(log_bodies=True) as api:
        endpoint = claude(api.base_url)
        first = send(endpoint)
        second = send(endpoint, replace(CALL, text="another answer"))
        body = api.log[0].body
    assert body == {
        "model": DEFAULT_MODEL,
        "max_tokens": 4096,
        "system": [
            {"type": "text", "text": CALL.prefix, "cache_control": {"type": "ephemeral"}},
        ],
        "messages": [{"role": "user", "content": ANSWER}],
        "output_config": {"format": {"type": "json_schema", "schema": SCHEMA}},
    }
    assert json.dumps(body).count("cache_control") == 1
    prefix = -(-len(CALL.prefix) // 4)
    assert first.usage.cache_write_tokens == prefix
    assert first.usage.cache_read_tokens == 0
    assert second.usage.cache_read_tokens == prefix
    assert second.usage.cache_write_tokens == 0
    assert second.usage.input_tokens < 100  # the prefix is not counted twice


def test_a_call_without_a_prefix_has_no_system_block() -> None:
    assert "system" not in claude("http://x").body(replace(CALL, prefix=""))
    roles = [m["role"] for m in chat("http://x").body(replace(CALL, prefix=""))["messages"]]
    assert roles == ["user"]


def test_options_are_sent_and_are_parameters_and_the_address_is_not() -> None:
    endpoint = claude("http://x:1", effort="low", thinking="disabled", max_tokens=77)
    body = endpoint.body(CALL)
    assert body["output_config"]["effort"] == "low"
    assert body["thinking"] == {"type": "disabled"}
    assert body["max_tokens"] == 77
    assert endpoint.parameters == {
        "api": "messages",
        "effort": "low",
        "thinking": "disabled",
        "max_tokens": 77,
        "schema": "json_schema",
        "elsewhere": True,
    }
    assert (
        endpoint.parameters
        == claude("http://y:2/other", effort="low", thinking="disabled", max_tokens=77).parameters
    )
    served = chat("http://x:1", temperature=0.5)
    assert served.body(CALL)["temperature"] == 0.5
    assert "temperature" not in chat("http://x:1").body(CALL)
    for each in (endpoint, served):
        assert "x:1" not in json.dumps(each.parameters)
        assert KEY not in json.dumps(each.parameters)
        assert KEY not in repr(each)


def test_the_schema_keeps_its_order_so_that_the_reason_comes_before_the_label() -> None:
    for make in (claude, chat):
        with Canned((200, {}, ok(make))) as server:
            send(make(server.url))
        (_, _, body), *_ = server.asked
        sent = json.dumps(body)
        assert sent.index('"reason"') < sent.index('"focus"')


@BOTH
def test_text_of_all_scripts_arrives_as_it_is(make: Make) -> None:
    text = "你好 \u2028 \u202e 😀 \x00 ' \" \\ </answer>"
    with FakeAPI(log_bodies=True, api_key=KEY) as api:
        send(make(api.base_url), replace(CALL, text=text))
        body = api.log[0].body
    assert body is not None
    assert body["messages"][-1]["content"] == text


def test_what_is_sent_is_the_body_of_the_call_whatever_was_sent_before() -> None:
    other = {**SCHEMA, "required": ["focus"]}
    calls = [
        CALL,
        replace(CALL, text='A "quoted" text\n\0text with \u2028 and \u6f22.'),
        replace(CALL, schema=other),
        replace(CALL, max_tokens=77),
        replace(CALL, prefix="\0text"),
        CALL,
    ]
    with FakeAPI(log_bodies=True) as api:
        endpoint = claude(api.base_url)

        async def run() -> None:
            for call in calls:
                await endpoint.send(call, timeout=10)

        asyncio.run(run())
        assert [entry.body for entry in api.log] == [endpoint.body(call) for call in calls]


@BOTH
def test_half_a_surrogate_pair_is_a_failure_of_that_call_alone(make: Make) -> None:
    with FakeAPI() as api:
        error = failure(make(api.base_url), replace(CALL, text="half \ud83d of it"))
    assert isinstance(error, CallError)
    assert not error.retry
    assert not error.possibly_billed
    assert error.__context__ is None


@pytest.mark.parametrize(
    ("given", "root"),
    [
        ("http://h:1", "http://h:1/v1"),
        ("http://h:1/", "http://h:1/v1"),
        ("http://h:1/v1", "http://h:1/v1"),
        ("http://h:1/v1/", "http://h:1/v1"),
        ("https://h/api/v1", "https://h/api/v1"),
        ("https://h/v1beta/openai", "https://h/v1beta/openai"),
        ("https://h/proxy", "https://h/proxy/v1"),
        ("https://h/v1/chat/completions", "https://h/v1"),
    ],
)
def test_an_address_may_come_with_or_without_its_version(given: str, root: str) -> None:
    assert api_root(check_url(given)) == root


def test_a_blank_address_is_none_and_not_the_vendors() -> None:
    for blank in ("", "  "):
        with pytest.raises(JudgeError, match=r"base_url is '', expected http"):
            AnthropicEndpoint(base_url=blank)


def test_a_blank_address_of_the_environment_is_not_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTHROPIC_BASE_URL", "")
    assert AnthropicEndpoint().base_url == "https://api.anthropic.com"


@pytest.mark.parametrize("key", ["", " ", "\n", 5])
@pytest.mark.parametrize("kind", [AnthropicEndpoint, ChatEndpoint])
def test_a_blank_key_is_not_the_environments(
    monkeypatch: pytest.MonkeyPatch, kind: Any, key: Any
) -> None:
    for name in ("ANTHROPIC_API_KEY", "XYREWARD_CHAT_KEY"):
        monkeypatch.setenv(name, KEY)
    with pytest.raises(JudgeError, match=r"api_key is .*leave it out to use the environment's"):
        kind(model="m", base_url="http://127.0.0.1:1", api_key=key)


@pytest.mark.parametrize("blank", [" ", "\n"])
def test_blank_credentials_of_the_environment_are_none(
    monkeypatch: pytest.MonkeyPatch, blank: str
) -> None:
    for name in ("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN"):
        monkeypatch.setenv(name, blank)
    with pytest.raises(JudgeStopped, match="no key was found"):
        AnthropicEndpoint().check_key()


def test_a_token_of_the_environment_may_have_its_line_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTHROPIC_AUTH_TOKEN", f"{KEY}\n")
    with Canned((200, {}, MESSAGE)) as server:
        send(AnthropicEndpoint(base_url=server.url, schema="plain"))
        assert server.asked[0][1]["authorization"] == f"Bearer {KEY}"
    monkeypatch.setenv("ANTHROPIC_AUTH_TOKEN", "a\r\nX-Evil: 1")
    with pytest.raises(JudgeStopped, match="ANTHROPIC_AUTH_TOKEN has blanks"):
        AnthropicEndpoint().check_key()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("HTTP_PROXY", "ftp://user:hunter2@p:1"),
        ("ALL_PROXY", "socks5://user:hunter2@p:1"),
        ("HTTP_PROXY", "http://[::1"),
        ("SSL_CERT_FILE", "/nowhere/ca.pem"),
    ],
)
@pytest.mark.parametrize("kind", [AnthropicEndpoint, ChatEndpoint])
def test_an_impossible_environment_is_named_without_its_password(
    monkeypatch: pytest.MonkeyPatch, kind: Any, name: str, value: str
) -> None:
    monkeypatch.setenv(name, value)
    monkeypatch.setenv("XYREWARD_HTTP_KEY_HOSTS", "192.0.2.1")
    endpoint = kind(model="m", base_url="http://192.0.2.1", api_key=KEY, schema="plain")
    stopped = failure(endpoint, timeout=0.2)
    assert isinstance(stopped, JudgeStopped)
    assert name in str(stopped)
    assert "hunter2" not in "".join(traceback.format_exception(stopped))


@pytest.mark.parametrize("suffix", ["", "/", "/v1", "/v1/"])
@BOTH
def test_both_forms_of_an_address_reach_the_same_server(make: Make, suffix: str) -> None:
    with FakeAPI() as api:
        assert send(make(api.base_url + suffix)).stop == "end"


@pytest.mark.parametrize(
    "url",
    [
        "h:1", "ftp://h", "http://", "http://user:pw@h", "http://h?key=1", "http://h#x", "http://h:x",
        "http://ho\nst", "http://h/\x00", "http://a b", "http://m\u00fcnchen", "ftp://user:pw@h",
    ],
)  # fmt: skip
@BOTH
def test_an_address_that_cannot_be_meant_is_refused_without_its_secrets(
    make: Make, url: str
) -> None:
    with pytest.raises(JudgeError, match="expected http") as caught:
        make(url)
    assert "pw" not in str(caught.value)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"model": ""}, "model"),
        ({"model": " x"}, "model"),
        ({"schema": "xml"}, "schema is 'xml', expected auto"),
        ({"max_tokens": 0}, "max_tokens is 0"),
        ({"effort": "huge"}, "effort is 'huge', expected one of low"),
        ({"thinking": "enabled"}, "thinking is 'enabled', expected one of adaptive"),
    ],
)
def test_impossible_arguments_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(JudgeError, match=message):
        claude("http://x", **arguments)
    if not set(arguments) & {"effort", "thinking"}:
        with pytest.raises(JudgeError, match=message):
            chat("http://x", **arguments)


def test_the_name_of_a_chat_judge_is_taken_apart_at_its_address() -> None:
    for model in ("qwen3.5-9b", "@cf/meta/llama", "org/model:tag"):
        endpoint = ChatEndpoint.from_name(f"{model}@http://127.0.0.1:8000/v1")
        assert endpoint.model == model
        assert endpoint.name == f"chat:{model}@http://127.0.0.1:8000/v1"
    for wrong in ("model", "model@", "@http://x", "model@host:8000"):
        with pytest.raises(JudgeError, match="chat:<model>@<base_url>"):
            ChatEndpoint.from_name(wrong)


# ---------------------------------------------------------------- keys


def test_a_missing_key_stops_before_anything_is_sent() -> None:
    with FakeAPI() as api:
        stopped = failure(claude(api.base_url, api_key=None))
        assert isinstance(stopped, JudgeStopped)
        assert "ANTHROPIC_API_KEY" in str(stopped)
        assert api.stats.requests == 0


def test_a_profile_that_cannot_be_read_is_no_key(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    monkeypatch.setenv("ANTHROPIC_CONFIG_DIR", str(tmp_path))
    monkeypatch.setenv("ANTHROPIC_PROFILE", "absent")
    stopped = failure(claude("http://127.0.0.1:9", api_key=None))
    assert isinstance(stopped, JudgeStopped)
    assert "no key was found" in str(stopped)
    assert stopped.__context__ is None


def test_a_key_comes_from_the_environment_without_its_line_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", f" {KEY}\n")
    monkeypatch.setenv("OPENAI_API_KEY", "sk-openai")
    with FakeAPI(api_key=KEY) as api:
        assert send(claude(api.base_url, api_key=None)).stop == "end"
    with Canned((200, {}, COMPLETION)) as server:
        send(chat(server.url, api_key=None))
        monkeypatch.setenv("XYREWARD_CHAT_KEY", KEY)
        send(chat(server.url, api_key=None))
        assert [h["authorization"] for _, h, _ in server.asked] == [
            "Bearer sk-openai",
            f"Bearer {KEY}",
        ]


def test_an_auth_token_of_the_sdk_will_do_and_is_not_shown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    token = "t0ken-of-a-gateway-81f3"
    monkeypatch.setenv("ANTHROPIC_AUTH_TOKEN", token)
    with FakeAPI(api_key=token) as api:
        assert send(claude(api.base_url, api_key=None)).stop == "end"
    with Canned((403, {}, {"error": {"message": f"token {token} may not"}})) as server:
        assert token not in str(failure(claude(server.url, api_key=None)))


def test_a_chat_server_on_this_machine_needs_no_key() -> None:
    with Canned((200, {}, COMPLETION)) as server:
        assert send(chat(server.url, api_key=None)).text == "{}"
        assert "authorization" not in server.asked[0][1]


def test_a_key_for_openai_is_not_sent_in_clear_to_another_machine(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    assert chat("http://node7:8000", api_key=None)._key()[0] is None
    chat("http://node7:8000", api_key=None).check_key()
    assert chat("https://api.openai.com", api_key=None)._key()[0] == KEY


@BOTH
def test_a_key_is_not_sent_in_clear_to_another_machine_unless_that_is_allowed(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Canned((200, {}, ok(make))) as proxy:
        monkeypatch.setenv("HTTP_PROXY", proxy.url)  # who would see it
        for check in (lambda e: e.check_key(), send):
            with pytest.raises(JudgeStopped, match=r"unencrypted to node7\.example, ") as caught:
                check(make("http://node7.example:8000"))
            assert "the api_key given" in str(caught.value)
            assert "XYREWARD_HTTP_KEY_HOSTS=node7.example" in str(caught.value)
            assert KEY not in "".join(traceback.format_exception(caught.value))
        monkeypatch.setenv("XYREWARD_HTTP_KEY_HOSTS", "node8, node7.example")
        send(make("http://node7.example:8000"))
        with pytest.raises(JudgeStopped, match="unencrypted to node9"):
            send(make("http://node9:8000"))
        assert [path.partition("/v1")[0] for path, _, _ in proxy.asked] == [
            "http://node7.example:8000"
        ]


@pytest.mark.parametrize("name", ["XYREWARD_CHAT_KEY", "ANTHROPIC_AUTH_TOKEN", "ANTHROPIC_API_KEY"])
def test_a_key_of_the_environment_is_not_sent_in_clear_either(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv(name, "t0ken-of-a-gateway-81f3")
    make = chat if name == "XYREWARD_CHAT_KEY" else claude
    with pytest.raises(JudgeStopped, match="unencrypted to node7") as caught:
        make("http://node7:8000", api_key=None).check_key()
    assert "t0ken" not in str(caught.value)
    make("https://node7:8000", api_key=None).check_key()
    make("http://127.0.0.1:8000", api_key=None).check_key()


# ---------------------------------------------------------------- bodies without end


class Flood(Canned):
    """A server whose reply never ends, in chunks; `packed` names a compression that it claims."""

    def __init__(self, status: int = 200, packed: str = "") -> None:
        super().__init__((status, {}, {}))
        self.sent = 0
        flood = self

        class Handler(self.server.RequestHandlerClass):  # type: ignore[misc, name-defined]
            def answer(self) -> None:
                self.rfile.read(int(self.headers.get("content-length") or 0))
                self.send_response(status)
                self.send_header("content-type", "application/json")
                self.send_header("transfer-encoding", "chunked")
                if packed:
                    self.send_header("content-encoding", packed)
                self.end_headers()
                piece = b" " * 2**20
                with contextlib.suppress(OSError):
                    while flood.sent < 256:
                        self.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece))
                        flood.sent += 1
                self.close_connection = True

            do_GET = do_POST = answer  # noqa: N815

        self.server.RequestHandlerClass = Handler


@BOTH
@pytest.mark.parametrize("status", [200, 500])
def test_a_body_without_end_is_a_failure_after_32_mib(make: Make, status: int) -> None:
    flood = Flood(status)
    with flood as server:
        error = failure(make(server.url), timeout=60)
        assert flood.sent < 100  # MiB; what is above 32 lies in buffers of the network
    assert isinstance(error, CallError)
    assert (error.kind, error.retry, error.possibly_billed) == ("transport", False, True)
    assert error.detail == "a reply came, but its body has more than 32 MiB"


@BOTH
def test_a_body_that_is_compressed_unasked_is_not_unpacked(make: Make) -> None:
    with Flood(packed="gzip") as server:
        error = failure(make(server.url), timeout=60)
    assert isinstance(error, CallError)
    assert error.detail == "a reply came, but its body is compressed, which was not asked for"
    with Canned((200, {}, ok(make))) as server:
        send(make(server.url))
        assert server.asked[0][1]["accept-encoding"] == "identity"


@BOTH
@pytest.mark.parametrize("key", ["sk-with a blank", "sk-line\nend", "sk-ключ"])
def test_a_key_that_no_header_can_carry_is_refused_without_being_shown(
    make: Make, key: str
) -> None:
    stopped = failure(make("http://127.0.0.1:9", api_key=key))
    assert isinstance(stopped, JudgeStopped)
    assert "copy the key once more" in str(stopped)
    assert key[3:] not in "".join(traceback.format_exception(stopped))
    assert stopped.__context__ is None


@BOTH
def test_a_refused_key_is_named_by_where_it_came_from(make: Make) -> None:
    with FakeAPI(api_key="another") as api:
        stopped = failure(make(api.base_url))
    assert isinstance(stopped, JudgeStopped)
    assert "does not accept the api_key given" in str(stopped)


# ---------------------------------------------------------------- connections


@BOTH
@pytest.mark.parametrize("name", ["HTTP_PROXY", "http_proxy", "ALL_PROXY"])
def test_a_proxy_variable_does_not_swallow_this_machine(
    make: Make, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, "http://127.0.0.1:9")
    with FakeAPI() as api:
        assert send(make(api.base_url)).stop == "end"


@BOTH
def test_a_proxy_variable_holds_for_other_machines(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Canned((200, {}, ok(make))) as proxy:
        monkeypatch.setenv("HTTP_PROXY", proxy.url)
        monkeypatch.setenv("XYREWARD_HTTP_KEY_HOSTS", "judge.invalid")
        send(make("http://judge.invalid:8000"))
        assert proxy.asked[0][0].startswith("http://judge.invalid:8000/v1/")


@pytest.mark.parametrize(
    ("url", "here"),
    [
        ("http://localhost:1", True),
        ("http://127.8.9.1", True),
        ("http://[::1]:1", True),
        ("http://0.0.0.0:8000", True),
        ("http://10.0.0.1", False),
        ("http://localhost.example.org", False),
    ],
)
def test_this_machine_is_known_by_its_names(url: str, here: bool) -> None:
    assert is_loopback(url) is here


@BOTH
def test_two_event_loops_have_connections_of_their_own_and_leave_none_behind(make: Make) -> None:
    with FakeAPI() as api:
        endpoint = make(api.base_url)

        async def some() -> list[Reply]:
            return list(await asyncio.gather(*(endpoint.send(CALL, timeout=10) for _ in range(4))))

        lasting = asyncio.new_event_loop()
        thread = threading.Thread(target=lasting.run_forever)
        thread.start()
        try:
            # As in a training run: one loop that lasts in a thread, and others that come and go.
            for _ in range(2):
                asyncio.run_coroutine_threadsafe(some(), lasting).result()
                asyncio.run(some())
            assert api.stats.delivered == 16
            asyncio.run_coroutine_threadsafe(endpoint.aclose(), lasting).result()
        finally:
            lasting.call_soon_threadsafe(lasting.stop)
            thread.join()
            lasting.close()
    gc.collect()  # an unclosed socket would warn here, and warnings are errors


@BOTH
def test_closing_is_harmless_before_the_first_call_and_the_next_call_opens_again(
    make: Make,
) -> None:
    async def work(url: str) -> None:
        endpoint = make(url)
        await endpoint.aclose()
        for _ in range(2):
            await endpoint.send(CALL, timeout=10)
            await endpoint.aclose()

    with FakeAPI() as api:
        asyncio.run(work(api.base_url))
        assert api.stats.connections == 2


@BOTH
def test_as_many_calls_are_in_flight_as_are_sent(make: Make) -> None:
    async def work(url: str) -> None:
        endpoint = make(url)
        await asyncio.gather(*(endpoint.send(CALL, timeout=30) for _ in range(150)))

    with FakeAPI(latency=0.5) as api:
        asyncio.run(work(api.base_url))
        assert api.stats.max_concurrent == 150


@BOTH
def test_cancelling_a_call_ends_it_at_once(make: Make) -> None:
    async def work(url: str) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0.3):
                await make(url).send(CALL, timeout=60)

    with FakeAPI(latency=30) as api:
        started = time.monotonic()
        asyncio.run(work(api.base_url))
        assert time.monotonic() - started < 10


@BOTH
def test_an_endpoint_travels_to_another_process(make: Make) -> None:
    with FakeAPI() as api:
        endpoint = make(api.base_url)
        send(endpoint)
        copy = pickle.loads(pickle.dumps(endpoint))
        assert copy.parameters == endpoint.parameters
        assert send(copy).stop == "end"


# ---------------------------------------------------------------- replies


def test_only_text_blocks_are_read_and_unknown_ones_are_left_out() -> None:
    message = {
        **MESSAGE,
        "content": [
            {"type": "thinking", "thinking": "hm", "signature": "x"},
            {"type": "text", "text": '{"a":'},
            {"type": "hologram", "text": "from the future"},
            {"type": "text", "text": None},
            {"type": "text", "text": " 1}"},
            "no block at all",
        ],
    }
    with Canned((200, {"request-id": "req_1"}, message)) as server:
        reply = send(claude(server.url))
    assert reply.text == '{"a": 1}'
    assert reply.request_id == "req_1"
    assert reply.stop == "end"


@pytest.mark.parametrize(
    ("reason", "stop", "detail"),
    [
        ("end_turn", "end", ""),
        ("stop_sequence", "end", ""),
        ("max_tokens", "truncated", "max_tokens after 2 tokens"),
        ("model_context_window_exceeded", "truncated", "model_context_window_exceeded after"),
        ("tool_use", "end", "stop_reason tool_use"),
        ("pause_turn", "end", "stop_reason pause_turn"),
        ("something_new", "end", "stop_reason something_new"),
        (None, "end", "stop_reason None"),
    ],
)
def test_every_stop_reason_of_a_message_is_read(reason: str, stop: str, detail: str) -> None:
    reply = read_message({**MESSAGE, "stop_reason": reason})
    assert reply is not None
    assert reply.stop == stop
    assert reply.detail.startswith(detail)


@pytest.mark.parametrize(
    ("details", "said"),
    [
        (
            {"category": "frontier_llm", "explanation": "no\nthanks"},
            "category frontier_llm: no thanks",
        ),
        ({"category": None, "explanation": None}, "no category"),
        (None, "no category"),
    ],
)
def test_a_refusal_begins_with_its_category(details: Any, said: str) -> None:
    reply = read_message(
        {**MESSAGE, "content": [], "stop_reason": "refusal", "stop_details": details}
    )
    assert reply is not None
    assert (reply.stop, reply.text, reply.detail) == ("refused", "", said)


@pytest.mark.parametrize("category", ["frontier_llm", "cyber", None])
def test_a_refusal_over_the_wire_keeps_its_category_and_its_bill(category: str | None) -> None:
    with FakeAPI(faults=Faults(script=["refusal"], refusal_category=category)) as api:
        reply = send(claude(api.base_url))
        assert reply.usage == api.stats.billed_usage
    assert reply.stop == "refused"
    assert reply.detail.startswith(f"category {category}" if category else "no category")


def test_tokens_are_read_where_they_are_and_are_0_where_not() -> None:
    usage = {
        "input_tokens": 10,
        "output_tokens": 20,
        "cache_read_input_tokens": 30,
        "cache_creation_input_tokens": 40,
    }
    reply = read_message({**MESSAGE, "usage": usage})
    assert reply is not None
    assert reply.usage == Usage(10, 20, 30, 40)
    absent: dict[str, Any] = dict.fromkeys(usage)
    reply = read_message({**MESSAGE, "usage": {**absent, "output_tokens": 7}})
    assert reply is not None
    assert reply.usage == Usage(0, 7, 0, 0)
    nothings: list[Any] = [None, [], "3", {"input_tokens": -1, "output_tokens": True}]
    for nothing in nothings:
        reply = read_message({**MESSAGE, "usage": nothing})
        assert reply is not None
        assert reply.usage == Usage()


@pytest.mark.parametrize(
    ("usage", "reported"),
    [
        ({"in": 5, "out": 0}, True),
        ({"in": 5, "out": 7, "cached": None}, True),
        ({"in": 5}, False),
        ({"out": 7}, False),
        ({"in": "5", "out": 7}, False),
        ({"in": 5.0, "out": 7}, False),
        ({"in": -5, "out": 7}, False),
        ({"in": 5, "out": -7}, False),
        ({"in": True, "out": 7}, False),
        ({"in": 5, "out": True}, False),
        ({"in": 0, "out": 0}, False),  # nobody replies to nothing
        ({"in": 10**15, "out": 7}, False),
        ({"in": 5, "out": 2**70}, False),
        (None, False),
        ([5, 7], False),
    ],
    ids=str,
)
def test_a_usage_that_is_not_told_in_full_is_not_told(usage: Any, reported: bool) -> None:
    def named(*names: str) -> Any:
        if not isinstance(usage, dict):
            return usage
        return {
            dict(zip(("in", "out", "cached"), names, strict=True))[k]: v for k, v in usage.items()
        }

    claudes = named("input_tokens", "output_tokens", "cache_read_input_tokens")
    reply = read_message({**MESSAGE, "usage": claudes})
    assert reply is not None
    assert reply.usage_reported is reported
    chats = named("prompt_tokens", "completion_tokens", "cached_tokens")
    reply = read_completion({**COMPLETION, "usage": chats})
    assert reply is not None
    assert reply.usage_reported is reported


def test_tokens_of_the_cache_count_as_input_and_are_counts_like_others() -> None:
    for cached, reported in ((3, True), (0, False), ("3", False), (-3, False)):
        usage = {"input_tokens": 0, "output_tokens": 2, "cache_read_input_tokens": cached}
        reply = read_message({**MESSAGE, "usage": usage})
        assert reply is not None
        assert reply.usage_reported is reported


def test_cached_tokens_of_a_chat_server_are_not_counted_twice() -> None:
    usage = {
        "prompt_tokens": 100,
        "completion_tokens": 5,
        "prompt_tokens_details": {"cached_tokens": 80},
    }
    reply = read_completion({**COMPLETION, "usage": usage})
    assert reply is not None
    assert reply.usage == Usage(input_tokens=20, output_tokens=5, cache_read_tokens=80)


@pytest.mark.parametrize(
    "payload", [None, [], "text", {}, {"content": "text"}, {"type": "error", "error": {}}]
)
def test_what_is_no_message_is_no_reply(payload: Any) -> None:
    assert read_message(payload) is None
    assert read_completion(payload) is None


def completion(message: Any, reason: str | None = "stop") -> Reply:
    reply = read_completion(
        {**COMPLETION, "choices": [{"message": message, "finish_reason": reason}]}
    )
    assert reply is not None
    return reply


def test_every_end_of_a_chat_completion_is_read() -> None:
    assert completion({"content": "{}"}).stop == "end"
    assert completion({"content": "{"}, "length").stop == "truncated"
    assert completion({"content": None}, "content_filter").stop == "refused"
    refused = completion({"content": None, "refusal": "I won't."})
    assert (refused.stop, refused.detail) == ("refused", "refusal: I won't.")
    called = completion({"content": None, "tool_calls": [{}]}, "tool_calls")
    assert (called.stop, called.text, called.detail) == ("end", "", "finish_reason tool_calls")
    assert completion({"content": [{"type": "text", "text": "{}"}, {"type": "image"}]}).text == "{}"


def test_thoughts_of_a_chat_model_are_no_part_of_its_verdict() -> None:
    assert completion({"content": "{}", "reasoning_content": '{"x": 1}'}).text == "{}"
    assert completion({"content": "\n<think>\nhm {}\n</think>\n\n{}"}).text == "{}"
    # Thoughts that do not end, and tags inside a verdict, stay: the verdict's reader decides.
    assert completion({"content": "<think> {}"}).text == "<think> {}"
    quoted = '{"reason": "it says <think>x</think>"}'
    assert completion({"content": quoted}).text == quoted


# ---------------------------------------------------------------- structured output, or not


def test_a_chat_server_that_refuses_schemas_is_asked_in_plain_words_from_then_on() -> None:
    with FakeAPI(faults=Faults({"no_schema": 1.0}), log_bodies=True) as api:
        endpoint = chat(api.base_url, schema="auto")
        with pytest.raises(RuntimeError, match="settle"):
            _ = endpoint.parameters  # a key that was made now would be wrong
        modes = [p["schema"] for p in endpoint.possible_parameters]
        assert modes == ["json_schema", "plain"]

        async def work() -> None:
            await endpoint.settle(timeout=10)
            assert endpoint.parameters["schema"] == "plain"
            await endpoint.settle(timeout=10)  # remembered: nothing more is sent
            await endpoint.send(CALL, timeout=10)

        asyncio.run(work())
        assert [e.endpoint for e in api.log] == ["chat"] * 3
        asked = ["response_format" in (e.body or {}) for e in api.log]
        assert asked == [True, False, False]
    assert endpoint.possible_parameters == (endpoint.parameters,)


def test_of_two_that_find_out_at_once_the_first_decides() -> None:
    # A gateway that takes a schema once and refuses it from then on.
    def choose(body: dict[str, Any], seen: int) -> str | None:
        return "no_schema" if "response_format" in body and seen else None

    async def modes() -> list[str]:
        asking = [asyncio.create_task(endpoint.settle(timeout=10)) for _ in range(2)]
        found = []
        for one in asyncio.as_completed(asking):
            await one
            found.append(endpoint.parameters["schema"])
        return found

    with FakeAPI(faults=Faults(choose=choose), latency=0.1) as api:
        endpoint = chat(api.base_url, schema="auto")
        assert asyncio.run(modes()) == ["json_schema", "json_schema"]
        assert api.stats.by_fault == {"no_schema": 1}


def test_a_chat_server_that_takes_schemas_is_settled_with_one_small_request() -> None:
    with FakeAPI(log_bodies=True) as api:
        endpoint = chat(api.base_url, schema="auto")
        used = asyncio.run(endpoint.settle(timeout=10))
        assert used == api.stats.billed_usage
        assert endpoint.parameters["schema"] == "json_schema"
        (entry,) = api.log
    assert entry.body is not None
    assert entry.body["max_tokens"] <= 16


def test_claude_at_anthropic_is_settled_without_a_request() -> None:
    endpoint = AnthropicEndpoint(api_key=KEY)
    assert endpoint.base_url == "https://api.anthropic.com"
    assert endpoint.parameters["schema"] == "json_schema"


@pytest.mark.parametrize(("refuses", "mode"), [(0.0, "json_schema"), (1.0, "plain")])
def test_a_server_that_lists_what_its_models_can_is_settled_without_a_paid_call(
    refuses: float, mode: str
) -> None:
    with FakeAPI(faults=Faults({"no_schema": refuses})) as api:
        endpoint = claude(api.base_url, schema="auto")
        asyncio.run(endpoint.settle(timeout=10))
        assert endpoint.parameters["schema"] == mode
        assert "output_config" not in endpoint.body(CALL) or mode == "json_schema"
        assert api.stats.calls == 0


def test_a_messages_server_without_a_list_of_capabilities_is_settled_with_a_small_call() -> None:
    refused: Any = (400, {}, {"error": {"message": "output_config.format: unknown"}})
    none: Any = (404, {}, {"error": {"message": "no such path"}})
    with Canned(none, refused, none, (200, {}, MESSAGE)) as server:
        endpoint = claude(server.url, schema="auto")
        asyncio.run(endpoint.settle(timeout=10))
        assert endpoint.parameters["schema"] == "plain"
    with Canned((200, {}, {"id": "m", "object": "model"}), (200, {}, MESSAGE)) as server:
        endpoint = claude(server.url, schema="auto")
        asyncio.run(endpoint.settle(timeout=10))
        assert endpoint.parameters["schema"] == "json_schema"


@BOTH
def test_a_bad_moment_of_the_server_does_not_decide_the_schema_mode(make: Make) -> None:
    bad = ["529", "reset_before", "400", "broken_json"]
    faults = Faults(script=bad, on=("messages", "chat", "models"))
    with FakeAPI(faults=faults) as api:
        endpoint = make(api.base_url, schema="auto")
        asyncio.run(endpoint.settle(timeout=30))
        assert endpoint.parameters["schema"] == "json_schema"


@BOTH
def test_settling_stops_where_no_call_can_succeed(make: Make) -> None:
    with FakeAPI(api_key="another") as api:
        endpoint = make(api.base_url, schema="auto")
        with pytest.raises(JudgeStopped):
            asyncio.run(endpoint.settle(timeout=10))
        assert not endpoint.settled


def test_settling_gives_up_at_its_deadline() -> None:
    with FakeAPI(faults=Faults({"529": 1.0})) as api:
        endpoint = chat(api.base_url, schema="auto")
        started = time.monotonic()
        with pytest.raises(CallError) as caught:
            asyncio.run(endpoint.settle(timeout=1.5))
        assert caught.value.pause_all
        assert time.monotonic() - started < 10


@BOTH
def test_a_schema_that_is_refused_in_the_middle_of_a_run_stops_it(make: Make) -> None:
    with FakeAPI(faults=Faults(script=[None, "no_schema"])) as api:
        endpoint = make(api.base_url)
        send(endpoint)
        stopped = failure(endpoint)
    assert isinstance(stopped, JudgeStopped)
    assert "schema='plain'" in str(stopped)


@BOTH
def test_an_answer_that_speaks_of_schemas_does_not_stop_a_run(make: Make) -> None:
    text = "Use response_format with a json_schema and a grammar for structured output."
    echo = {"error": {"message": f"too long: {text}"}}
    with Canned((400, {}, echo)) as server:
        error = failure(make(server.url), replace(CALL, text=text))
    assert isinstance(error, CallError)
    assert not error.retry


def test_a_server_that_wants_the_new_name_of_the_limit_gets_it() -> None:
    said = "Unsupported parameter: 'max_tokens'. Use 'max_completion_tokens' instead."
    with Canned((400, {}, {"error": {"message": said}}), (200, {}, COMPLETION)) as server:
        endpoint = chat(server.url, schema="auto")
        asyncio.run(endpoint.settle(timeout=10))
        send(endpoint)
        limits = [sorted(k for k in body if k.startswith("max_")) for _, _, body in server.asked]
    assert limits == [["max_tokens"], ["max_completion_tokens"], ["max_completion_tokens"]]


# ---------------------------------------------------------------- end of life


def test_a_model_near_its_end_is_selectable_and_warned_of_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(anthropic_module, "_warned", set())
    with pytest.warns(UserWarning, match="2026-11-30") as caught:
        endpoint = claude("http://x", model="claude-sonnet-4-5")
    (warning,) = caught
    assert "store export" in str(warning.message)
    assert DEFAULT_MODEL in str(warning.message)
    assert warning.filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        claude("http://x", model="claude-sonnet-4-5")  # said once
        claude("http://x", model=DEFAULT_MODEL)
        with FakeAPI() as api:  # and the SDK's own warning, one per call, is not heard
            endpoint = claude(api.base_url, model="claude-sonnet-4-5")
            assert send(endpoint).stop == "end"


def test_end_of_life_is_known_for_dated_names_too() -> None:
    assert end_of_life("claude-sonnet-4-5-20250929") == "2026-11-30"
    assert end_of_life("claude-opus-4-5") == "2027-01-22"
    for other in (DEFAULT_MODEL, "claude-sonnet-4-6", "claude-sonnet-4-5-mine"):
        assert end_of_life(other) is None


def test_a_model_that_is_gone_is_explained_where_the_server_does_not_know_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(anthropic_module, "_warned", {"claude-sonnet-4-5"})
    with FakeAPI(models=["claude-sonnet-5-5"]) as api:
        stopped = failure(claude(api.base_url, model="claude-sonnet-4-5"))
    assert "2026-11-30" in str(stopped)
    assert "'claude-sonnet-4-5'" in str(stopped)


def test_the_end_of_life_dates_are_those_of_the_sdk() -> None:
    from anthropic._data import DEPRECATED_MODELS  # fails where the SDK moves it: then look anew

    listed = {
        name.removesuffix(f"-{name[-8:]}") if name[-8:].isdigit() else name
        for name in DEPRECATED_MODELS
    }
    assert listed == set(anthropic_module.END_OF_LIFE)
    for name, said in DEPRECATED_MODELS.items():
        day = end_of_life(name)
        assert day is not None
        year, month, number = (int(part) for part in day.split("-"))
        assert str(year) in said
        assert f" {number}" in said
        assert said.startswith(time.strftime("%B", (year, month, number, 0, 0, 0, 0, 1, 0)))


# ---------------------------------------------------------------- preflight


def check(endpoint: AnthropicEndpoint | ChatEndpoint, call: Call = CALL) -> Any:
    return asyncio.run(endpoint.check(call, timeout=5))


def test_a_sound_endpoint_passes_with_its_figures() -> None:
    with FakeAPI() as api:
        found = check(claude(api.base_url, schema="auto"))
        assert found.usage == api.stats.billed_usage
    prefix = -(-len(CALL.prefix) // 4)
    assert (found.ok, found.problems, found.warnings) == (True, (), ())
    assert found.schema == "json_schema"
    assert found.structured is True
    assert found.prefix_tokens == pytest.approx(prefix, abs=5)
    assert found.cache_read_tokens == prefix
    assert found.per_call.cache_read_tokens == prefix
    assert found.model == DEFAULT_MODEL
    assert len(found.replies) == 2


def test_a_sound_chat_server_passes_with_its_figures() -> None:
    with FakeAPI(api_key=KEY) as api:
        found = check(chat(api.base_url, schema="auto"))
        assert found.usage == api.stats.billed_usage
    assert found.ok
    assert found.structured is True
    assert found.schema == "json_schema"
    assert found.per_call.output_tokens > 0


@BOTH
def test_preflight_finds_a_wrong_key_an_unknown_model_and_a_dead_server(make: Make) -> None:
    with FakeAPI(api_key="another") as api:
        found = check(make(api.base_url))
        assert not found.ok
        assert not found.transient
        assert "does not accept" in found.problems[0]
    with FakeAPI(models=["claude-haiku-5-5"]) as api:
        found = check(make(api.base_url))
        assert not found.ok
        assert DEFAULT_MODEL in found.problems[0]
    found = check(make(api.base_url))  # it is down by now
    assert found.transient
    assert "no connection" in found.problems[0]
    assert found.structured is None


def test_preflight_without_a_key_says_where_to_put_one() -> None:
    found = check(claude("http://127.0.0.1:9", api_key=None))
    assert "ANTHROPIC_API_KEY" in found.problems[0]


def test_preflight_names_the_models_that_a_chat_server_has() -> None:
    with FakeAPI(models=["qwen3.5-9b"], api_key=KEY) as api:
        found = check(chat(api.base_url, model="qwen"))
        assert api.stats.calls == 0
    assert "'qwen', but 'qwen3.5-9b'" in found.problems[0]


def test_preflight_tells_of_no_schema_and_goes_on_in_plain_words() -> None:
    reply = json.dumps({"reason": "r", "focus": "stated"})
    with FakeAPI(faults=Faults({"no_schema": 1.0}), reply=lambda body: reply) as api:
        for make in (claude, chat):
            found = check(make(api.base_url, schema="auto"))
            assert (found.ok, found.schema, found.structured) == (True, "plain", True)


@BOTH
@pytest.mark.parametrize(
    ("fault", "told"),
    [
        ("refusal", "frontier_llm|content_filter"),
        ("max_tokens", "raise max_tokens"),
        ("prose", "do not follow"),
    ],
)
def test_preflight_finds_a_judge_that_answers_but_cannot_be_used(
    make: Make, fault: str, told: str
) -> None:
    with FakeAPI(faults=Faults({fault: 1.0})) as api:
        found = check(make(api.base_url))
    assert not found.ok
    assert any(part in found.problems[0] for part in told.split("|"))
    assert found.usage.input_tokens > 0


def test_preflight_warns_of_a_prefix_too_short_to_be_cached() -> None:
    with FakeAPI(min_cache_tokens=4096) as api:
        found = check(claude(api.base_url))
    assert found.ok
    assert found.cache_read_tokens == 0
    assert "prompt cache" in found.warnings[0]


def test_preflight_passes_on_what_the_server_says_of_the_end_of_a_model(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(anthropic_module, "_warned", {"claude-sonnet-4-5"})
    with FakeAPI() as api:
        found = check(claude(api.base_url, model="claude-sonnet-4-5"))
    assert found.ok
    assert "end of life 2026-11-30" in found.warnings[0]


def test_preflight_does_without_lists_and_counts_that_a_server_lacks() -> None:
    none = (404, {"content-type": "text/plain"}, b"no")
    message = {**MESSAGE, "content": [{"type": "text", "text": '{"reason":"","focus":"stated"}'}]}
    with Canned(none, none, (200, {}, message)) as server:
        found = check(claude(server.url))
    assert found.ok
    assert found.prefix_tokens is None


# ---------------------------------------------------------------- what a policy is asked with


@BOTH
def test_what_was_said_before_comes_before_the_text(make: Make) -> None:
    turns: tuple[tuple[Literal["user", "assistant"], str], ...] = (
        ("user", "Hi."),
        ("assistant", "Hello."),
    )
    with FakeAPI(log_bodies=True) as api:
        endpoint = make(api.base_url, schema="plain")
        send(endpoint, replace(CALL, turns=turns))
        (body,) = [entry.body for entry in api.log if entry.body]
    expected = [*turns, ("user", CALL.text)]
    said = [(m["role"], m["content"]) for m in body["messages"] if m["role"] != "system"]
    assert said == expected


def test_a_seed_and_top_p_are_sent_where_they_are_set() -> None:
    plain = chat("http://x:1", schema="plain")
    assert not {"seed", "top_p"} & plain.body(CALL).keys()
    assert "top_p" not in plain.parameters  # verdicts from before there was one keep their keys
    assert plain.body(replace(CALL, seed=7))["seed"] == 7
    narrow = chat("http://x:1", schema="plain", top_p=0.9)
    assert narrow.body(CALL)["top_p"] == narrow.parameters["top_p"] == 0.9
    for wrong in (0.0, 1.5, float("nan")):
        with pytest.raises(JudgeError, match=r"top_p is .*, expected a number in \(0, 1\]"):
            chat("http://x:1", top_p=wrong)


def test_turns_and_seed_change_a_calls_hash_and_their_absence_does_not() -> None:
    call = Call(prefix="p", text="t", schema={"type": "object"}, max_tokens=9)
    # What stores have had since the first release.
    assert call.hash == "372e29f8305e50fa26c199316adac34c597d121b1f5082f52973ea844eefed0b"
    changed = [replace(call, seed=1), replace(call, seed=2), replace(call, turns=(("user", "x"),))]
    assert len({call.hash, *(one.hash for one in changed)}) == 4


def test_verdicts_of_a_gateway_are_not_filed_as_the_vendors_but_its_port_may_change() -> None:
    def parameters(url: str) -> Mapping[str, Any]:
        return AnthropicEndpoint(base_url=url, api_key="any", schema="plain").parameters

    assert parameters("https://api.anthropic.com") != parameters("http://127.0.0.1:8000")
    assert parameters("http://127.0.0.1:8000") == parameters("http://127.0.0.1:8001")
    assert parameters("https://anthropic.com.example") == parameters("http://127.0.0.1:8001")
