import asyncio
import contextlib
import json
import logging
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from xyreward.dispatch import Limits
from xyreward.errors import JudgeError, StoreError
from xyreward.items import Item
from xyreward.judges import load_judge
from xyreward.judges.anthropic import AnthropicEndpoint
from xyreward.judges.asking import FIRST_ALONE_FROM, WARM_S
from xyreward.judges.calls import Call, JudgeStopped, Reply
from xyreward.judges.model import ModelJudge
from xyreward.judges.panel import model_judges
from xyreward.loading import load_items
from xyreward.prices import Prices
from xyreward.scoring import ascore, score
from xyreward.store import VerdictStore
from xyreward.testing import make_item
from xyreward.testing.fake_api import FakeAPI, Faults
from xyreward.verdict import FAILURE_KINDS, JudgeFailure, Usage, Verdict

MODEL = "anthropic:claude-sonnet-5-5"
KEY = "sk-test-0123456789-do-not-print"
QUICK = {"backoff_s": 0.01, "max_backoff_s": 0.1, "max_retry_after_s": 5.0}


@pytest.fixture(autouse=True)
def _key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", KEY)
    monkeypatch.delenv("XYREWARD_STORE", raising=False)
    monkeypatch.delenv("XYREWARD_RUN", raising=False)
    monkeypatch.delenv("TORCHELASTIC_RUN_ID", raising=False)


@pytest.fixture
def api() -> Iterator[FakeAPI]:
    with FakeAPI() as running:
        yield running


def made(api: FakeAPI, store: Path | VerdictStore, **options: Any) -> ModelJudge:
    limits = {
        name: options.pop(name) for name in list(options) if name in Limits.__dataclass_fields__
    }
    endpoint = AnthropicEndpoint(
        base_url=api.base_url,
        **{n: options.pop(n) for n in list(options) if n in ("schema", "max_tokens", "effort")},
    )
    return ModelJudge(endpoint, store=store, limits=Limits(**{**QUICK, **limits}), **options)


def ask(judge: ModelJudge, answers: Sequence[str], item: Item | None = None) -> list[Any]:
    return asyncio.run(judge.judge([item or make_item()] * len(answers), list(answers)))


def texts(n: int, start: int = 0) -> list[str]:
    return [f"Go to bed earlier on Sunday, advice number {start + i}." for i in range(n)]


# ---------------------------------------------------------------- one verdict


def says(**fields: Any) -> Any:
    """A reply of the fake model: a complete verdict with some fields replaced."""
    return lambda body: {
        "suggestions": [
            {"quote": "earlier on Sunday", "reason": "more sleep", "serves": "intended"}
        ],
        "focus_reason": "all of it",
        "focus": "intended",
        "misconception_reason": "none named",
        "identifies_misconception": False,
        **fields,
    }


def test_a_verdict_is_asked_for_once_and_then_read_from_the_store(tmp_path: Path) -> None:
    with FakeAPI(reply=says()) as api:
        judge = made(api, tmp_path / "v.sqlite")
        (first,) = ask(judge, texts(1))
        (second,) = ask(judge, texts(1))
        # Another process, another port: the same verdict.
        with FakeAPI(reply=says(focus="stated")) as other:
            (third,) = ask(made(other, tmp_path / "v.sqlite"), texts(1))
            assert other.stats.calls == 0
        assert api.stats.calls == 1
    assert isinstance(first, Verdict)
    assert not first.has_stated_solution
    assert first.has_intended_solution
    assert first.focus == "intended"
    assert first.p.focus["intended"] == 1
    assert first.judge == MODEL
    assert first.grounded
    assert not first.cached
    assert first.cost_usd is not None
    assert first.cost_usd > 0
    for again in (second, third):
        assert again.labels == first.labels
        assert again.suggestions == first.suggestions
        assert again.reason == first.reason
        # Costs can be summed over verdicts: what comes from the store was paid before.
        assert (again.cached, again.cost_usd, again.usage) == (True, 0.0, Usage())


def test_equal_questions_in_one_call_are_paid_once_and_counted_once(tmp_path: Path) -> None:
    with FakeAPI() as api:
        judge = made(api, tmp_path / "v.sqlite")
        outcomes = ask(judge, texts(3) * 4)
        assert api.stats.calls == 3
    assert [o.cached for o in outcomes] == [False] * 3 + [True] * 9
    assert sum(o.cost_usd for o in outcomes) == pytest.approx(judge.stats.cost_usd)


@pytest.mark.parametrize(
    "change",
    [
        {"effort": "low"},
        {"max_tokens": 2000},
        {"schema": "plain"},
    ],
    ids=repr,
)
def test_what_decides_the_reply_is_part_of_the_key(tmp_path: Path, change: Any) -> None:
    with FakeAPI(reply=says()) as api:
        ask(made(api, tmp_path / "v.sqlite"), texts(1))
        ask(made(api, tmp_path / "v.sqlite", **change), texts(1))
        assert api.stats.calls == 2


def test_an_items_other_rubric_is_another_question(tmp_path: Path) -> None:
    with FakeAPI() as api:
        judge = made(api, tmp_path / "v.sqlite")
        ask(judge, texts(1), make_item())
        ask(judge, texts(1), make_item(misconception="Another one."))
        assert api.stats.calls == 2


def test_a_verdict_under_a_key_of_another_question_is_refused(tmp_path: Path) -> None:
    with FakeAPI() as api:
        judge = made(api, tmp_path / "v.sqlite")
        ask(judge, texts(1))
        judge.store.database._connect().execute(
            "UPDATE verdicts SET identity = replace(identity, 'claude', 'clod')"
        )
        with pytest.raises(StoreError, match=r"clod.*claude"):
            ask(judge, texts(1))


def _labels(**changed: Any) -> str:
    labels = {
        "has_stated_solution": False,
        "has_intended_solution": False,
        "focus": "neither",
        "identifies_misconception": False,
    }
    said = {"suggestions": [], "reason": "", "flags": [], "labels": {**labels, **changed}}
    return json.dumps(said)


@pytest.mark.parametrize("kind", ["verdict", "grounding"])
@pytest.mark.parametrize(
    "payload",
    [
        "{", "null", "[]", "{}", "[" * 100_000, b"\xff", _labels(focus="banana"),
        _labels(has_stated_solution="no"), _labels(extra=True),
        json.dumps({"stated_request": " ", "intended_request": 5}),
    ],
    ids=range(10),
)  # fmt: skip
def test_a_record_that_is_no_verdict_of_ours_is_an_error_that_names_it(
    api: FakeAPI, tmp_path: Path, payload: Any, kind: str
) -> None:
    judge = made(api, tmp_path / "v.sqlite")

    def again() -> Any:
        if kind == "verdict":
            return ask(judge, texts(1))
        return asyncio.run(judge.ground([Item.of_query("How do I?")]))

    again()
    judge.store.database._connect().execute("UPDATE verdicts SET payload = ?", (payload,))
    with pytest.raises(StoreError, match=rf"v.sqlite: the record with key .* is no {kind} as this"):
        again()


@pytest.mark.parametrize("identity", ["{", "[]", "null", "[" * 100_000])
def test_a_record_whose_identity_was_damaged_is_an_error_that_names_it(
    api: FakeAPI, tmp_path: Path, identity: str
) -> None:
    judge = made(api, tmp_path / "v.sqlite")
    ask(judge, texts(1))
    judge.store.database._connect().execute("UPDATE verdicts SET identity = ?", (identity,))
    with pytest.raises(StoreError, match=r"its identity is .*, expected a JSON object"):
        ask(judge, texts(1))


# ---------------------------------------------------------------- what goes wrong with a reply

KIND_OF_FAULT = {
    "prose": "unparseable",
    "cut_text": "unparseable",
    "empty": "unparseable",
    "duplicate_key": "unparseable",
    "max_tokens": "truncated",
    "refusal": "refused",
    "wrong_label": "off_menu",
    "missing_label": "off_menu",
    "duplicate_label": "off_menu",
    "contradiction": "inconsistent",
    "400": "transport",
    "500": "transport",
    "reset_before": "transport",
    "reset_after": "transport",
    "429": "rate_limited",
    "hang": "timeout",
}


@pytest.mark.parametrize(("fault", "kind"), KIND_OF_FAULT.items(), ids=str)
def test_every_fault_ends_as_a_named_failure_that_is_no_number(
    tmp_path: Path, fault: str, kind: str
) -> None:
    with FakeAPI(faults=Faults({fault: 1.0})) as api:
        judge = made(api, tmp_path / "v.sqlite", max_attempts=2, attempt_timeout_s=0.3)
        one = score(make_item(), "Go to bed earlier on Sunday.", judge)
        api.wait_idle()
        assert one.reward is None
        assert one.verdict is None
        assert isinstance(one.failure, JudgeFailure)
        assert one.failure.kind == kind
        # Nothing of it is in the store, but all of it is on the bill.
        assert list(judge.store.records()) == []
        spent = judge.store.ledger.spent(judge.run)
        stats = api.stats
        assert spent.calls == stats.delivered == judge.stats.calls
        assert stats.lost <= spent.lost_calls
        assert spent.open_calls == 0
        if stats.delivered:
            assert one.failure.raw_text is not None or fault in ("empty", "refusal")
            assert one.failure.cost_usd == pytest.approx(spent.settled_usd)


def test_all_kinds_of_failure_of_the_contract_are_reached() -> None:
    assert {*KIND_OF_FAULT.values(), "over_budget"} == set(FAILURE_KINDS)


@pytest.mark.parametrize("fault", ["prose", "wrong_label", "contradiction"])
def test_an_unusable_reply_is_asked_for_once_more_and_both_are_paid(
    tmp_path: Path, fault: str
) -> None:
    with FakeAPI(faults=Faults(script=(fault,))) as api:
        judge = made(api, tmp_path / "v.sqlite")
        (outcome,) = ask(judge, texts(1))
        assert isinstance(outcome, Verdict)
        assert api.stats.delivered == judge.store.ledger.spent(judge.run).calls == 2
        assert outcome.usage == api.stats.delivered_usage
        assert outcome.cost_usd == pytest.approx(judge.store.ledger.spent(judge.run).settled_usd)


def test_a_refusal_is_not_asked_for_again(tmp_path: Path) -> None:
    faults = Faults(script=("refusal",), refusal_category="frontier_llm")
    with FakeAPI(faults=faults) as api:
        (outcome,) = ask(made(api, tmp_path / "v.sqlite"), texts(1))
        assert api.stats.calls == 1
    assert outcome.kind == "refused"
    assert "frontier_llm" in outcome.detail


def test_a_quote_that_is_not_there_is_dropped_where_no_label_hangs_on_it(tmp_path: Path) -> None:
    suggestions = [
        {"quote": "earlier on Sunday", "reason": "r", "serves": "intended"},
        {"quote": "buy a gong", "reason": "r", "serves": "intended"},
    ]
    with FakeAPI(reply=says(suggestions=suggestions)) as api:
        (outcome,) = ask(made(api, tmp_path / "v.sqlite"), texts(1))
        assert api.stats.calls == 1
    assert [s.quote for s in outcome.suggestions] == ["earlier on Sunday"]
    assert "quote_dropped" in outcome.flags


def test_a_label_that_hangs_on_an_invented_quote_is_inconsistent(tmp_path: Path) -> None:
    suggestions = [{"quote": "buy a gong", "reason": "r", "serves": "stated"}]
    with FakeAPI(reply=says(suggestions=suggestions)) as api:
        (outcome,) = ask(made(api, tmp_path / "v.sqlite"), texts(1))
        assert api.stats.calls == 2
    assert outcome.kind == "inconsistent"


# ---------------------------------------------------------------- faults in numbers


def test_with_a_third_of_requests_failing_every_verdict_is_there_or_named(tmp_path: Path) -> None:
    n = 2000
    with FakeAPI(faults=Faults.mix(0.3, retry_after=0.02, slow_s=0.05), seed=3) as api:
        judge = made(api, tmp_path / "v.sqlite", start_concurrency=32, call_deadline_s=60.0)
        outcomes = ask(judge, texts(n))
        stats = api.wait_idle()
    verdicts = [o for o in outcomes if isinstance(o, Verdict)]
    failures = Counter(o.kind for o in outcomes if isinstance(o, JudgeFailure))
    assert len(verdicts) + failures.total() == n
    # What cannot be mended by asking again is rare; the rest is obtained.
    assert len(verdicts) > 0.9 * n
    assert len(list(judge.store.records())) == len(verdicts)
    spent = judge.store.ledger.spent(judge.run)
    assert spent.calls == stats.delivered
    assert spent.settled_usd == pytest.approx(judge.stats.cost_usd)
    assert judge.stats.usage == stats.delivered_usage
    # Lost replies are bounded from above: in number and, by their worst case, in dollars.
    assert stats.lost <= spent.lost_calls
    lost_usage = stats.billed_usage.output_tokens - stats.delivered_usage.output_tokens
    assert lost_usage >= 0
    assert spent.possibly_usd >= spent.lost_calls * 0.001
    assert spent.open_calls == 0


def test_no_kind_of_answer_fails_more_often_by_our_own_rules(tmp_path: Path) -> None:
    # A model that quotes faithfully; every kind of reference answer of the bundled items.
    items = load_items("mini")[:120]
    known = [(item, r) for item in items for r in item.references]
    with FakeAPI() as api:
        judge = made(api, tmp_path / "v.sqlite")
        outcomes = asyncio.run(judge.judge([i for i, _ in known], [r.text for _, r in known]))
    failed = Counter(
        r.kind for (_, r), o in zip(known, outcomes, strict=True) if isinstance(o, JudgeFailure)
    )
    assert failed == {}
    assert len({r.kind for _, r in known}) >= 10


# ---------------------------------------------------------------- stopping


@pytest.mark.parametrize(
    ("fault", "message"),
    [("401", "key"), ("404", "model"), ("429_spend_limit", "limit")],
)
def test_what_no_call_can_survive_stops_the_run_and_keeps_what_was_judged(
    tmp_path: Path, fault: str, message: str
) -> None:
    with FakeAPI(faults=Faults(script=(None,) * 30 + (fault,) * 200), latency=0.01) as api:
        judge = made(api, tmp_path / "v.sqlite", max_concurrency=4)
        with pytest.raises(JudgeStopped, match=message):
            ask(judge, texts(100))
        stats = api.wait_idle()
        assert stats.delivered == 30
        assert stats.calls <= 30 + 4
        assert len(list(judge.store.records())) == 30
        assert judge.store.ledger.spent(judge.run).calls == 30


def test_a_long_job_finds_a_wrong_key_with_one_call(tmp_path: Path) -> None:
    with FakeAPI(api_key="another", latency=0.05) as api:
        with pytest.raises(JudgeStopped, match="key"):
            ask(made(api, tmp_path / "v.sqlite", schema="json_schema"), texts(FIRST_ALONE_FROM))
        assert api.stats.calls == 1


@pytest.mark.parametrize(
    ("fault", "message"),
    [("prose", "unparseable.*schema='plain'"), ("max_tokens", "truncated.*raise max_tokens")],
)
def test_a_long_job_without_a_usable_reply_stops_after_three(
    tmp_path: Path, fault: str, message: str
) -> None:
    with FakeAPI(faults=Faults({fault: 1.0})) as api:
        judge = made(api, tmp_path / "v.sqlite", schema="json_schema")
        with pytest.raises(
            JudgeStopped, match=f"none of the first 3 replies can be used.*{message}"
        ):
            ask(judge, texts(FIRST_ALONE_FROM))
        asked_again = 2 if fault == "prose" else 1
        assert api.stats.calls == 3 * asked_again
        assert judge.store.ledger.spent(judge.run).calls == api.stats.calls
        with pytest.raises(JudgeStopped, match="load it again"):
            ask(judge, texts(1))


class NoRoom(VerdictStore):
    """A store on a disk that was filled while calls were on their way."""

    def put(self, *_: Any, **__: Any) -> None:
        raise StoreError("the disk is full")


def test_where_the_store_cannot_be_written_replies_on_their_way_are_awaited_and_others_not(
    api: FakeAPI, tmp_path: Path
) -> None:
    first, *others = texts(9)
    ask(made(api, tmp_path / "first"), [first])
    with VerdictStore.open(tmp_path / "first") as known:
        (key,) = (record.key for record in known.records())
    api.change(latency=(0.0, 1.0))
    path = tmp_path / "v.sqlite"
    with VerdictStore.open(path) as another, NoRoom.open(path) as full:
        assert another.claim([key]) == {key}  # and it lives, and never answers
        judge = made(api, full)
        with pytest.raises(StoreError, match="disk is full"):
            ask(judge, [first, *others])
        assert full.ledger.spent(judge.run).lost_calls == 0
    assert judge.stats.calls == len(others)


def test_a_long_job_goes_on_after_one_usable_reply(tmp_path: Path) -> None:
    faults = Faults(script=["max_tokens", "max_tokens", None] + ["max_tokens"] * 30)
    with FakeAPI(faults=faults) as api:
        outcomes = ask(made(api, tmp_path / "v.sqlite", schema="json_schema"), texts(20))
    assert [isinstance(o, Verdict) for o in outcomes] == [False, False, True] + [False] * 17
    # A few answers are no long job: a training step of that size gets its failures.
    with FakeAPI(faults=Faults({"prose": 1.0})) as api:
        outcomes = ask(made(api, tmp_path / "v.sqlite"), texts(FIRST_ALONE_FROM - 1, start=100))
    assert {o.kind for o in outcomes} == {"unparseable"}


def test_only_the_first_of_many_steps_waits_for_a_call_alone(tmp_path: Path) -> None:
    def in_flight_at_first(step: int) -> int:
        """Calls of a step that the server had before it answered the first of them."""
        before = len(api.log)
        ask(judge, texts(FIRST_ALONE_FROM, start=100 * step))
        calls = [e for e in api.log[before:] if e.endpoint == "messages"]
        first_end = min(e.started + (e.seconds or 0) for e in calls)
        return sum(e.started < first_end for e in calls)

    with FakeAPI(latency=0.2) as api:
        judge = made(api, tmp_path / "v.sqlite", start_concurrency=FIRST_ALONE_FROM)
        assert in_flight_at_first(0) == 1
        assert in_flight_at_first(1) > 1
        judge._replied = {prefix: at - WARM_S for prefix, at in judge._replied.items()}
        assert in_flight_at_first(2) == 1


def test_a_missing_key_is_found_without_a_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, api: FakeAPI
) -> None:
    monkeypatch.delenv("ANTHROPIC_API_KEY")
    monkeypatch.setenv("HOME", str(tmp_path))  # no profile of the SDK's either
    judge = made(api, tmp_path / "v.sqlite")
    with pytest.raises(JudgeStopped, match="ANTHROPIC_API_KEY"):
        judge.check([make_item()])
    assert api.stats.requests == 0


def test_a_full_store_needs_no_key_and_no_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with FakeAPI() as api:
        ask(made(api, tmp_path / "v.sqlite"), texts(3))
        judge = made(api, tmp_path / "v.sqlite")
    monkeypatch.delenv("ANTHROPIC_API_KEY")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert all(o.cached for o in ask(judge, texts(3)))


def test_cancelling_keeps_every_verdict_that_was_received(tmp_path: Path) -> None:
    async def main(judge: ModelJudge, api: FakeAPI) -> None:
        task = asyncio.create_task(judge.judge([make_item()] * 200, texts(200)))
        while judge.stats.calls < 40:
            await asyncio.sleep(0.005)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    with FakeAPI(latency=(0.01, 0.05)) as api:
        judge = made(api, tmp_path / "v.sqlite")
        asyncio.run(main(judge, api))
        stats = api.wait_idle()
    spent = judge.store.ledger.spent(judge.run)
    assert spent.calls == judge.stats.calls == len(list(judge.store.records())) >= 40
    # What was on its way then is possibly billed, and says so.
    assert stats.billed <= spent.calls + spent.lost_calls
    assert spent.open_calls == 0


# ---------------------------------------------------------------- money


def test_the_budget_is_a_hard_cap_and_the_rest_is_named(tmp_path: Path) -> None:
    with FakeAPI() as api:
        probe = made(api, tmp_path / "probe.sqlite")
        ask(probe, texts(1))
        one = probe.stats.cost_usd
        judge = made(api, tmp_path / "v.sqlite", budget_usd=0.4, run="r", max_concurrency=8)
        outcomes = ask(judge, texts(300))
    failures = Counter(getattr(o, "kind", "judged") for o in outcomes)
    spent = judge.store.ledger.spent("r")
    assert set(failures) == {"judged", "over_budget"}
    assert spent.settled_usd + spent.possibly_usd <= 0.4
    # It is used up to the worst case of one call.
    assert spent.settled_usd > 0.4 - judge._worst(_call()) - one  # type: ignore[operator]
    failure = next(o for o in outcomes if isinstance(o, JudgeFailure))
    assert "raise budget_usd" in failure.detail
    # More budget goes on where it stopped.
    with FakeAPI() as api:
        more = made(api, tmp_path / "v.sqlite", budget_usd=20.0, run="r")
        assert all(isinstance(o, Verdict) for o in ask(more, texts(300)))
        assert api.stats.calls == failures["over_budget"]


def _call() -> Any:
    from xyreward import rubric

    item = make_item()
    grounding = rubric.Grounding.of(item)
    assert grounding is not None
    return rubric.verdict_call(item, grounding, texts(1)[0])


def test_a_budget_that_batches_hold_is_not_waited_for_for_a_day(tmp_path: Path) -> None:
    with FakeAPI(batch_seconds=60) as api, VerdictStore.open(tmp_path / "v.sqlite") as store:
        options: Any = {"store": store, "base_url": api.base_url, "run": "r", "budget_usd": 0.11}
        batched = load_judge("anthropic", batches=True, schema="json_schema", **options)
        single = load_judge("anthropic", schema="json_schema", **options)

        async def both() -> Any:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(1):
                    await ascore([make_item()] * 2, texts(2), batched)
            assert store.ledger.spent("r").open_calls == 2
            async with asyncio.timeout(20):
                return await ascore(make_item(), "Another answer.", single)

        found = asyncio.run(both())
        assert found.failure.kind == "over_budget"
        assert "for batches of 0.11 US dollars" in found.failure.detail
        # What is on its way in single calls comes back soon, and is waited for.
        reserved = store.ledger.reserve("r2", 0.1)
        assert reserved is not None
        assert store.ledger.in_flight("r2")
        assert not store.ledger.in_flight("r")


@pytest.mark.parametrize("budget", [0, -1, float("nan"), float("inf"), "5", True])
def test_an_impossible_budget_is_refused(api: FakeAPI, tmp_path: Path, budget: Any) -> None:
    with pytest.raises(JudgeError, match="budget_usd is"):
        made(api, tmp_path / "v.sqlite", budget_usd=budget)


def test_processes_with_a_budget_need_a_name_for_their_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "8")
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")  # as torchrun and accelerate set it
    names = (MODEL, f"panel:{MODEL},anthropic:claude-haiku-5-5")
    for name in names:
        with pytest.raises(JudgeError, match=r"in each of 8 processes .* run=.*XYREWARD_RUN"):
            load_judge(name, budget_usd=5.0)
        assert load_judge(name, budget_usd=5.0, run="mine")
        assert load_judge(name, budget_usd=5.0, processes=1)
        assert load_judge(name)
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "grpo-7")
    judges = [one for name in names for one in model_judges(load_judge(name, budget_usd=5.0))]
    assert [one.run for one in judges] == ["grpo-7"] * 3


def test_a_budget_without_a_price_refuses_to_start(api: FakeAPI, tmp_path: Path) -> None:
    with pytest.raises(JudgeError, match=r"price of chat:qwen@.* is unknown.*XYREWARD_PRICES"):
        load_judge(f"chat:qwen@{api.base_url}", budget_usd=5.0)


def test_an_unknown_price_is_an_unknown_cost_and_never_0(tmp_path: Path) -> None:
    with FakeAPI() as api:
        judge = load_judge(f"chat:qwen@{api.base_url}", store=tmp_path / "v.sqlite")
        assert isinstance(judge, ModelJudge)
        (outcome,) = ask(judge, texts(1))
        assert outcome.cost_usd is None
        assert judge.stats.unpriced_calls == api.stats.delivered == 2
        assert judge.estimate([make_item()], ["another answer"]).cost_usd is None
        assert judge.store.ledger.spent(judge.run).unpriced_calls == 2


def test_the_request_that_finds_out_about_schemas_is_on_the_runs_bill(tmp_path: Path) -> None:
    prices = Prices.load({"models": {"chat:qwen": {"input": 1.0, "output": 2.0}}})
    with FakeAPI() as api:
        judge = load_judge(f"chat:qwen@{api.base_url}", store=tmp_path / "v.sqlite", prices=prices)
        assert isinstance(judge, ModelJudge)
        (outcome,) = ask(judge, texts(1))
        usage = api.stats.delivered_usage
    spent = judge.store.ledger.spent(judge.run)
    assert spent.calls == judge.stats.calls == 2
    assert spent.settled_usd == pytest.approx(prices.cost(usage, judge.name))
    assert outcome.cost_usd < spent.settled_usd


def test_a_server_that_does_not_count_has_an_unknown_cost_and_uses_up_the_budget(
    tmp_path: Path,
) -> None:
    class Silent(AnthropicEndpoint):
        async def send(self, call: Call, *, timeout: float) -> Reply:
            return replace(
                await super().send(call, timeout=timeout), usage=Usage(), usage_reported=False
            )

    with FakeAPI() as api:
        endpoint = Silent(base_url=api.base_url)
        judge = ModelJudge(endpoint, store=tmp_path / "v.sqlite", budget_usd=0.5, run="r")
        outcomes = ask(judge, texts(30))
        delivered = api.stats.delivered
    judged = [o for o in outcomes if isinstance(o, Verdict)]
    assert all(o.cost_usd is None for o in judged)
    assert 0 < len(judged) <= delivered < 10
    assert judge.stats.unpriced_calls == delivered
    spent = judge.store.ledger.spent("r")
    assert 0.3 < spent.settled_usd <= 0.5


def test_an_estimate_counts_what_the_store_has_and_sends_nothing(tmp_path: Path) -> None:
    with FakeAPI() as api:
        judge = made(api, tmp_path / "v.sqlite", requests_per_minute=30.0)
        everything = judge.estimate([make_item()] * 90, texts(90))
        assert api.stats.requests == 0
        judge.dispatcher = type(judge.dispatcher)(Limits(backoff_s=0.01))
        ask(judge, texts(40))
        calls = api.stats.calls
        rest = judge.estimate([make_item()] * 90, texts(90))
        assert api.stats.calls == calls
    assert (everything.calls, everything.in_store) == (90, 0)
    assert everything.minutes == pytest.approx(3.0)
    assert (rest.calls, rest.in_store) == (50, 40)
    assert everything.cost_usd is not None
    assert everything.worst_usd is not None
    assert 0 < everything.cost_usd < everything.worst_usd
    # What it cost in truth lies between the two.
    assert judge.stats.cost_usd < everything.worst_usd


# ---------------------------------------------------------------- votes


def test_votes_are_separate_questions_and_their_shares_are_p(tmp_path: Path) -> None:
    replies = iter([says(focus="intended"), says(focus="intended"), says(focus="balanced")] * 2)
    with FakeAPI(reply=lambda body: next(replies)(body)) as api:
        judge = made(api, tmp_path / "v.sqlite", votes=3)
        (outcome,) = ask(judge, texts(1))
        assert api.stats.calls == 3
        # Fewer votes later are found in the store.
        (one,) = ask(made(api, tmp_path / "v.sqlite"), texts(1))
        assert api.stats.calls == 3
    assert outcome.votes == 3
    assert outcome.focus == "intended"
    assert outcome.p.focus["intended"] == pytest.approx(2 / 3)
    assert outcome.p.focus["balanced"] == pytest.approx(1 / 3)
    assert one.votes == 1


@pytest.mark.parametrize("votes", [0, -1, 1.5, True, "3"])
def test_an_impossible_number_of_votes_is_refused(api: FakeAPI, tmp_path: Path, votes: Any) -> None:
    with pytest.raises(JudgeError, match="votes is"):
        made(api, tmp_path / "v.sqlite", votes=votes)


# ---------------------------------------------------------------- bare queries


def test_a_bare_query_is_grounded_once_by_a_call_that_sees_only_the_query(tmp_path: Path) -> None:
    query = "How do I make my alarm louder? SIGNAL"
    with FakeAPI(log_bodies=True) as api:
        judge = made(api, tmp_path / "v.sqlite")
        scores = score(query, ["Buy a gong, TOKEN.", "Sleep more, TOKEN."], judge)
        bodies = [json.dumps(entry.body) for entry in api.log if entry.endpoint == "messages"]
    assert all(s.verdict is not None and not s.verdict.grounded for s in scores)
    assert len(bodies) == 3
    assert ["TOKEN" in body for body in bodies] == [False, True, True]
    assert all("SIGNAL" in body for body in bodies)
    with FakeAPI() as api:
        again = score(
            [[{"role": "user", "content": query}]],
            ["Sleep more, TOKEN."],
            made(api, tmp_path / "v.sqlite"),
        )
        # Chat messages with one turn ask the same thing in another form; only an equal form is free.
        assert again[0].verdict is not None
        assert api.stats.calls == 2
        score(query, ["Sleep more, TOKEN."], made(api, tmp_path / "v.sqlite"))
        assert api.stats.calls == 2


def test_a_query_whose_grounding_fails_has_a_failure_and_no_number(tmp_path: Path) -> None:
    with FakeAPI(faults=Faults({"prose": 1.0})) as api:
        (one,) = score(["How do I?"], ["Like this."], made(api, tmp_path / "v.sqlite"))
    assert one.reward is None
    assert one.failure is not None
    assert one.failure.kind == "unparseable"


def test_a_grounding_that_fails_is_on_the_bill_of_one_of_its_answers(tmp_path: Path) -> None:
    with FakeAPI(faults=Faults({"prose": 1.0})) as api:
        judge = made(api, tmp_path / "v.sqlite")
        scores = score("How do I?", ["Like this.", "Or like that.", "Or not."], judge)
    failures = [s.failure for s in scores if s.failure is not None]
    assert [f.kind for f in failures] == ["unparseable"] * 3
    assert sum(f.cost_usd or 0 for f in failures) == pytest.approx(judge.stats.cost_usd)
    assert sum((f.usage for f in failures), Usage()) == judge.stats.usage


def test_an_item_that_says_nothing_of_a_goal_is_refused_by_judge_itself(
    api: FakeAPI, tmp_path: Path
) -> None:
    with pytest.raises(JudgeError, match="1 item says nothing of a goal"):
        ask(made(api, tmp_path / "v.sqlite"), texts(1), Item.of_query("How do I?"))
    assert api.stats.calls == 0


# ---------------------------------------------------------------- loops, threads, processes


def test_several_event_loops_may_use_one_judge_at_once(tmp_path: Path) -> None:
    with FakeAPI(latency=0.02) as api:
        judge = made(api, tmp_path / "v.sqlite")
        got: list[list[Any]] = []
        threads = [
            threading.Thread(target=lambda s=s: got.append(ask(judge, texts(30, start=10 * s))))
            for s in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        # 0-29, 10-39, 20-49, 30-59: sixty different answers.
        assert api.stats.calls == 60
    assert all(isinstance(o, Verdict) for outcomes in got for o in outcomes)


WORKER = """
import asyncio, sys
from xyreward.judges import load_judge
from xyreward.testing import make_item

async def main():
    judge = load_judge(sys.argv[1], store=sys.argv[2], run="r", start_concurrency=16)
    n = int(sys.argv[3])
    texts = [f"Go to bed earlier, advice number {i}." for i in range(n)]
    outcomes = await judge.judge([make_item()] * n, texts)
    assert all(type(o).__name__ == "Verdict" for o in outcomes), outcomes[:3]

asyncio.run(main())
"""


def start_worker(api_url: str, store: Path, n: int) -> subprocess.Popen[str]:
    # `chat:`, because importing the SDK takes each process a second.
    command = [sys.executable, "-c", WORKER, f"chat:qwen@{api_url}", str(store), str(n)]
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True)


def test_a_judge_travels_to_another_process(api: FakeAPI, tmp_path: Path) -> None:
    with VerdictStore.open(tmp_path / "v.sqlite") as store:
        for judge in (
            made(api, tmp_path / "v.sqlite", votes=2, budget_usd=5, run="r", max_concurrency=3),
            ModelJudge(AnthropicEndpoint(base_url=api.base_url), store=store, votes=2, run="r"),
        ):
            here = ask(judge, texts(1))
            judge.on_outcome = lambda: None
            copy = pickle.loads(pickle.dumps(judge))
            assert (copy.name, copy.votes, copy.run) == (judge.name, 2, "r")
            assert copy.budget_usd == judge.budget_usd
            assert copy.dispatcher.limits == judge.dispatcher.limits
            assert copy.stats.calls == 0
            assert ask(copy, texts(1))[0].labels == here[0].labels
            assert copy.stats.from_store == 2


def test_eight_processes_that_score_the_same_answers_pay_once(tmp_path: Path) -> None:
    with FakeAPI(latency=0.02) as api:
        workers = [start_worker(api.base_url, tmp_path / "v.sqlite", 500) for _ in range(8)]
        for worker in workers:
            _, errors = worker.communicate(timeout=240)
            assert worker.returncode == 0, errors
        paid = [e for e in api.log if e.endpoint == "chat"]
        # Besides the verdicts each process asks once, with a tiny request, whether there are schemas.
        assert api.stats.distinct_billed <= 501
        assert len(paid) <= 500 + 8
    with VerdictStore.open(tmp_path / "v.sqlite") as store:
        assert len(list(store.records())) == 500
        assert store.ledger.spent("r").calls == len(paid)


def test_killed_again_and_again_it_pays_for_nothing_twice(tmp_path: Path) -> None:
    n, kills = 2000, 20
    store = tmp_path / "v.sqlite"
    in_flight = 0
    with FakeAPI(latency=(0.005, 0.05)) as api:
        for kill in range(kills):
            worker = start_worker(api.base_url, store, n)
            before = api.stats.billed
            # Let it come as far as a few dozen replies, at a moment that differs from kill to kill.
            end = time.monotonic() + 60
            while api.stats.billed < before + 7 * (kill % 5 + 1) and worker.poll() is None:
                assert time.monotonic() < end
                time.sleep(0.003)
            worker.send_signal(signal.SIGKILL)
            worker.communicate(timeout=30)
            stats = api.wait_idle()
            with VerdictStore.open(store) as opened:
                stored = len(list(opened.records()))
            in_flight = stats.billed - stored
            # Each process may have had 64 calls on their way, and its first tiny question.
            assert in_flight <= (kill + 1) * 65
        worker = start_worker(api.base_url, store, n)
        _, errors = worker.communicate(timeout=240)
        assert worker.returncode == 0, errors
        stats = api.wait_idle()
    with VerdictStore.open(store) as opened:
        assert len(list(opened.records())) == n
        spent = opened.ledger.spent("r")
    assert stats.billed <= n + in_flight + 1
    # What was paid for and lost at a kill is on the bill as possibly billed.
    assert stats.billed - (kills + 1) <= spent.calls + spent.lost_calls


# ---------------------------------------------------------------- secrets


def test_no_key_and_no_answer_text_in_exceptions_or_logs(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    secret_answer = "XYZZY-the-answer-text Go to bed earlier on Sunday."
    shown = []
    with caplog.at_level(logging.INFO):
        for fault in ("401", "400", "500", "reset_after", "429_spend_limit", "prose", "refusal"):
            with FakeAPI(faults=Faults({fault: 1.0})) as api:
                judge = made(api, tmp_path / f"{fault}.sqlite", max_attempts=2)
                try:
                    (outcome,) = ask(judge, [secret_answer])
                    shown.append(f"{outcome.kind} {outcome.detail}")
                except JudgeStopped:
                    shown.append(traceback.format_exc())
                shown.append(repr(judge.endpoint) + repr(judge.stats))
            raw = b"".join(p.read_bytes() for p in tmp_path.glob(f"{fault}.sqlite*"))
            assert KEY.encode() not in raw
            assert b"XYZZY" not in raw
    text = "\n".join([*shown, caplog.text])
    assert KEY not in text
    assert "XYZZY" not in text


def test_a_store_of_verdicts_holds_no_key(tmp_path: Path) -> None:
    with FakeAPI() as api:
        judge = made(api, tmp_path / "v.sqlite")
        ask(judge, texts(3))
        judge.store.close()
    raw = b"".join(p.read_bytes() for p in tmp_path.glob("v.sqlite*"))
    assert b"advice number" in raw
    assert KEY.encode() not in raw


def test_ascore_uses_it_inside_a_running_loop(tmp_path: Path) -> None:
    async def main(judge: ModelJudge) -> Any:
        return await ascore([make_item()] * 5, texts(5), judge)

    with FakeAPI() as api:
        scores = asyncio.run(main(made(api, tmp_path / "v.sqlite")))
    assert all(s.reward is not None for s in scores)


def test_the_store_is_where_the_environment_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XYREWARD_STORE", str(tmp_path / "here.sqlite"))
    with FakeAPI() as api:
        judge = load_judge("anthropic", base_url=api.base_url)
        assert isinstance(judge, ModelJudge)
        ask(judge, texts(1))
        assert judge.store.path == tmp_path / "here.sqlite"
    assert os.path.getsize(tmp_path / "here.sqlite") > 0  # noqa: PTH202


def test_options_that_do_not_exist_are_told_with_the_nearest() -> None:
    with pytest.raises(
        JudgeError, match="no option 'max_concurency'; did you mean max_concurrency"
    ):
        load_judge("anthropic", max_concurency=3)  # type: ignore[call-arg]
    with pytest.raises(JudgeError, match="'local' takes no options, found votes"):
        load_judge("local", votes=3)


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ({"batches": "no"}, "batches is 'no', expected True or False"),
        ({"batches": 0}, "batches is 0"),
        ({"max_tokens": "100"}, "max_tokens is '100', expected a whole number"),
        ({"max_tokens": True}, "max_tokens is True"),
        ({"max_tokens": 1.5}, "max_tokens is 1.5"),
        ({"max_tokens": 0}, "max_tokens is 0"),
        ({"run": ""}, "run is '', expected a name"),
        ({"run": " "}, "run is ' '"),
        ({"run": 5}, "run is 5"),
        ({"store": 5}, "store is 5, expected a path"),
        ({"prices": {}}, r"prices is {}, expected Prices.load"),
        ({"prices": "prices.json"}, "prices is 'prices.json'"),
        ({"base_url": 5}, "base_url is 5"),
        ({"budget_usd": 1e12}, "budget_usd is"),
    ],
    ids=str,
)
def test_an_option_of_another_kind_is_refused(option: Any, message: str) -> None:
    with pytest.raises(JudgeError, match=message):
        load_judge("anthropic", **option)


@pytest.mark.parametrize("temperature", [True, "0", float("nan")])
def test_a_temperature_that_is_none_is_refused(temperature: Any) -> None:
    with pytest.raises(JudgeError, match="temperature is"):
        load_judge("chat:m@http://127.0.0.1:1", temperature=temperature)


@pytest.mark.parametrize(
    "name",
    [
        "chat: @https://user:hunter2@host",
        "chat:m@ftp://user:hunter2@host",
        "chat:https://user:hunter2@host",
        "chat:m@https://user:hunt/er2@host",
        "openai:m@https://user:hunter2@host",
        "panel:chat:m@https://user:hunter2@host,local",
    ],
)
def test_a_name_that_is_not_understood_is_shown_without_its_password(name: str) -> None:
    with pytest.raises(JudgeError) as caught:
        load_judge(name)
    assert "hunt" not in str(caught.value)


# ---------------------------------------------------------------- looked at, and not touched


def test_a_judge_that_is_checked_makes_no_store_and_finds_where_none_can_be(
    api: FakeAPI, tmp_path: Path
) -> None:
    item = make_item()
    made(api, tmp_path / "new" / "folder" / "s.sqlite").check([item])
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "file").write_text("x" * 100)
    for place, said in (
        ("file/s.sqlite", f"its folder cannot be made: {tmp_path / 'file'} is a file"),
        ("file", "is not an SQLite file, expected a verdict store"),
        (".", "is a folder, expected a file"),
    ):
        with pytest.raises(StoreError, match=said):
            made(api, tmp_path / place).check([item])
    assert [p.name for p in tmp_path.iterdir()] == ["file"]
    assert ask(made(api, tmp_path / "new" / "s.sqlite"), ["Sleep."])[0]
    assert (tmp_path / "new" / "s.sqlite").is_file()
    made(api, tmp_path / "new" / "s.sqlite").check([item])
