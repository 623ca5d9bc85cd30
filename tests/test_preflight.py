"""One judge before a long job: what is found, what it says, what it costs."""

import asyncio
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from canned import Canned, Response

from xyreward.errors import JudgeError
from xyreward.preflight import ANSWER, SAMPLE, Preflight, described, preflight
from xyreward.rubric import Grounding, rubric_version
from xyreward.testing import FakeAPI, Faults

JUDGE = "anthropic:claude-sonnet-5-5"
GOOD = {
    "suggestions": [
        {"quote": "Go to bed on Sunday", "reason": "sleeps enough", "serves": "intended"}
    ],
    "focus_reason": "all of it",
    "focus": "intended",
    "misconception_reason": "says why",
    "identifies_misconception": True,
}


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-test-0123456789")
    monkeypatch.setenv("XYREWARD_STORE", str(tmp_path / "v.sqlite"))
    monkeypatch.delenv("XYREWARD_PRICES", raising=False)


@pytest.fixture
def api() -> Iterator[FakeAPI]:
    with FakeAPI(reply=lambda body: GOOD) as running:
        yield running


def check(api: FakeAPI | None, judge: str = JUDGE, **options: Any) -> Preflight:
    if api is not None:
        options.setdefault("base_url", api.base_url)
    return asyncio.run(preflight(judge, **options))


def problems(found: Preflight) -> list[str]:
    return [line for line in found.lines if line.startswith("problem: ")]


def test_a_healthy_judge_is_described_with_two_calls(api: FakeAPI, tmp_path: Path) -> None:
    found = check(api)
    assert found.ok
    assert problems(found) == []
    assert api.stats.calls == 2
    head, verdict, form, prefix, cost = found.lines
    assert head == f"{JUDGE} at {api.base_url}, rubric {rubric_version()}"
    assert verdict == "verdict: focus intended, intended solution yes (expected: intended, yes)"
    assert form == "form of replies: json_schema; model as served: claude-sonnet-5-5"
    assert re.search(r"from the prompt cache in the second call: \d{4}$", prefix)
    assert "1,000 of them" in cost
    # The check is no part of a run: it makes no store and files no verdict.
    assert not (tmp_path / "v.sqlite").exists()


def test_the_price_of_a_verdict_is_that_of_a_call_with_the_prefix_cached(api: FakeAPI) -> None:
    from xyreward.prices import Prices

    found = check(api)
    second = [e for e in api.log if e.endpoint == "messages"][1]
    assert second.usage is not None
    cost = Prices.load().cost(second.usage, JUDGE)
    assert cost is not None
    assert f"; {cost:.5f} US dollars, 1,000 of them {1000 * cost:.2f}" in found.lines[-1]
    read = second.usage.input_tokens + second.usage.cache_read_tokens
    assert (
        f"one verdict: {read:,} input and {second.usage.output_tokens:,} output" in found.lines[-1]
    )


def test_an_unknown_price_says_where_to_give_it(
    api: FakeAPI, tmp_path: Path, monkeypatch: Any
) -> None:
    judge = f"chat:qwen@{api.base_url}"
    (told,) = [line for line in check(None, judge).lines if line.startswith("one verdict")]
    assert "price unknown, give it in a file named by XYREWARD_PRICES (docs/cost.md)" in told
    prices = {"models": {"chat:qwen": {"input": 1.0, "output": 2.0}}}
    (tmp_path / "prices.json").write_text(json.dumps(prices), "utf-8")
    monkeypatch.setenv("XYREWARD_PRICES", str(tmp_path / "prices.json"))
    (told,) = [line for line in check(None, judge).lines if line.startswith("one verdict")]
    assert "US dollars, 1,000 of them" in told


def test_a_server_that_does_not_count_has_an_unknown_cost_and_not_0(
    tmp_path: Path, monkeypatch: Any
) -> None:
    message = {"role": "assistant", "content": json.dumps(GOOD)}
    completion = {"model": "m", "choices": [{"message": message, "finish_reason": "stop"}]}
    prices = {"models": {"chat:m": {"input": 1.0, "output": 2.0}}}
    (tmp_path / "prices.json").write_text(json.dumps(prices), "utf-8")
    monkeypatch.setenv("XYREWARD_PRICES", str(tmp_path / "prices.json"))
    served: dict[str, Response] = {
        "/v1/models": (404, {}, {}),
        "/v1/chat/completions": (200, {}, completion),
    }
    with Canned(by_path=served) as server:
        found = check(None, f"chat:m@{server.url}", schema="plain")
    assert found.ok
    assert "cost unknown: the server does not say how many tokens it used" in found.lines[-1]
    assert found.lines[-2].endswith("from the prompt cache in the second call: not reported")


def test_options_reach_the_endpoint_and_none_is_left_out(api: FakeAPI) -> None:
    api.change(log_bodies=True)
    assert check(api, effort="low", max_tokens=777, schema=None).ok
    bodies = [e.body for e in api.log if e.endpoint == "messages" and e.body]
    assert {b["output_config"]["effort"] for b in bodies} == {"low"}
    assert {b["max_tokens"] for b in bodies} == {777}
    with pytest.raises(JudgeError, match="effort is 'huge'"):
        check(api, effort="huge")


# ---------------------------------------------------------------- what is found


def test_a_missing_key_is_found_without_a_call(
    api: FakeAPI, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("ANTHROPIC_API_KEY")
    monkeypatch.setenv("HOME", str(tmp_path))
    found = check(api)
    assert not found.ok
    assert "ANTHROPIC_API_KEY" in problems(found)[0]
    assert api.stats.requests == 0


def test_a_wrong_key_is_found_without_a_paid_call(api: FakeAPI) -> None:
    api.change(api_key="another")
    found = check(api)
    assert not found.ok
    (problem,) = problems(found)
    assert "401" in problem
    assert "key" in problem
    assert "sk-test" not in str(found)
    assert api.stats.billed == 0


def test_an_unknown_model_is_found(api: FakeAPI) -> None:
    api.change(models=["claude-haiku-5-5"])
    found = check(api)
    assert not found.ok
    (problem,) = problems(found)
    assert "'claude-sonnet-5-5'" in problem
    assert "list its models" in problem


def test_a_server_that_is_not_there_is_found() -> None:
    with FakeAPI() as api:
        url = api.base_url
    found = asyncio.run(preflight(JUDGE, base_url=url, schema="plain"))
    assert not found.ok
    assert "no connection to the server" in problems(found)[0]


def test_a_server_without_schemas_is_asked_in_plain_words(api: FakeAPI) -> None:
    api.change(faults=Faults({"no_schema": 1.0}))
    found = check(api)
    assert found.ok
    assert "form of replies: plain; model as served: claude-sonnet-5-5" in found.lines


@pytest.mark.parametrize(
    ("fault", "told"),
    [
        ("refusal", "the model refuses to judge .category frontier_llm.*terms on training use"),
        ("max_tokens", "the reply was cut off .max_tokens after .*raise max_tokens"),
        ("prose", "takes response schemas, but its replies do not follow them"),
        ("wrong_label", "its reply is no verdict, off_menu: "),
        ("contradiction", "its reply is no verdict, inconsistent: "),
        ("500", "500"),
        ("529", "529"),
        ("reset_after", "connection was lost"),
    ],
)
def test_a_reply_that_is_no_verdict_is_one_problem_that_says_why(
    api: FakeAPI, fault: str, told: str
) -> None:
    import re

    api.change(faults=Faults({fault: 1.0}))
    found = check(api, schema="json_schema")
    assert not found.ok
    (problem,) = problems(found)
    assert re.search(told, problem), problem
    assert not any(line.startswith("verdict:") for line in found.lines)


def test_a_reply_limit_that_is_too_small_is_found(api: FakeAPI) -> None:
    found = check(api, max_tokens=10)
    assert not found.ok
    assert "raise max_tokens" in problems(found)[0]


def test_a_missing_cache_is_a_note_and_no_problem(api: FakeAPI) -> None:
    api.change(min_cache_tokens=1_000_000)
    found = check(api)
    assert found.ok
    (note,) = [line for line in found.lines if line.startswith("note: ")]
    assert "read nothing from the prompt cache" in note
    assert "from the prompt cache in the second call: 0" in "\n".join(found.lines)


@pytest.mark.filterwarnings("ignore:judge anthropic.claude-sonnet-4-5:UserWarning")
def test_the_end_of_a_models_life_is_a_note(api: FakeAPI) -> None:
    found = check(api, "anthropic:claude-sonnet-4-5")
    assert found.ok
    assert any("end of life 2026-11-30" in line for line in found.lines)


def test_a_verdict_that_is_not_the_expected_one_is_shown_beside_it(api: FakeAPI) -> None:
    api.change(reply=lambda body: {**GOOD, "focus": "stated"})
    found = check(api)
    assert "verdict: focus stated, intended solution yes (expected: intended, yes)" in found.lines
    assert not found.ok
    (problem,) = problems(found)
    assert (
        "is wrong on an example that leaves no doubt; see with `xyreward judge compare`" in problem
    )
    # Of the suggestions too, and whatever else the reply says.
    api.change(reply=lambda body: {**GOOD, "suggestions": []})
    assert not check(api).ok
    api.change(reply=lambda body: {**GOOD, "identifies_misconception": False})
    assert check(api).ok


def test_what_a_check_would_send_is_told_without_loading_or_sending(
    api: FakeAPI, tmp_path: Path
) -> None:
    assert described("local") == ["local: makes no calls. Nothing was sent."]
    (told,) = described(JUDGE, base_url=api.base_url)
    assert re.fullmatch(
        rf"{JUDGE}: 2 calls, .*; US dollars: at most 0\.2\d. Nothing was sent.", told
    )
    first, second = described(f"panel:{JUDGE},chat:m@{api.base_url}", base_url=api.base_url)
    assert "at most" in first
    assert "at a price that is unknown" in second
    assert api.stats.requests == 0
    assert not (tmp_path / "v.sqlite").exists()
    with pytest.raises(JudgeError, match="takes no options"):
        described("local", effort="low")


def test_a_budget_that_the_check_may_exceed_is_refused_without_a_call(api: FakeAPI) -> None:
    with pytest.raises(JudgeError, match=r"the two calls to .* may cost 0\.2\d+ in the worst case"):
        check(api, budget_usd=0.1)
    assert api.stats.requests == 0
    assert check(api, budget_usd=0.3).ok


def test_a_prefix_that_the_server_does_not_count_is_said_in_a_sentence(api: FakeAPI) -> None:
    told = "\n".join(check(None, f"chat:qwen@{api.base_url}").lines)
    assert re.search(
        r"shared prefix: about \d{4} tokens .an offline estimate; the server does not", told
    )
    assert "server tokens" not in told


# ---------------------------------------------------------------- other judges


def test_the_local_judge_judges_the_sample() -> None:
    found = check(None, "local")
    assert found.ok
    assert len(found.lines) == 1
    assert found.lines[0].startswith("local: ready (local-")


def test_a_scripted_judge_is_ready_where_its_file_is(tmp_path: Path) -> None:
    script = tmp_path / "s.jsonl"
    with pytest.raises(JudgeError, match="no file"):
        check(None, f"scripted:{script}")
    script.write_text(json.dumps({"answer": "x", "failure": "timeout"}), "utf-8")
    found = check(None, f"scripted:{script}")
    assert found.ok
    assert "ready (script-" in found.lines[0]


def test_of_a_panel_every_member_is_checked(api: FakeAPI) -> None:
    with FakeAPI(api_key="another") as refusing:
        found = check(api, f"panel:local,chat:qwen@{refusing.base_url},{JUDGE}")
    assert not found.ok
    assert len(problems(found)) == 1
    for name in ("local: ready", f"{JUDGE} at", "chat:qwen@"):
        assert any(line.startswith(name) for line in found.lines), name


def test_an_unknown_judge_is_an_error() -> None:
    with pytest.raises(JudgeError, match="'nobody' is not known"):
        check(None, "nobody")


def test_the_sample_is_one_that_a_judge_can_read() -> None:
    grounding = Grounding.of(SAMPLE)
    assert grounding is not None
    assert grounding.kind == "xy"
    assert GOOD["suggestions"][0]["quote"] in ANSWER  # type: ignore[index]
