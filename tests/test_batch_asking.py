import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from xyreward import rubric
from xyreward.errors import JudgeError
from xyreward.items import Item
from xyreward.judges import load_asker, load_judge
from xyreward.judges.anthropic import AnthropicEndpoint
from xyreward.judges.asking import ModelAsker, Question
from xyreward.judges.batch_asking import BatchAsker, BatchJudge
from xyreward.judges.batches import BatchLimits, BatchReport, MessageBatches
from xyreward.judges.calls import Call, JudgeStopped, Reply
from xyreward.judges.model import ModelJudge
from xyreward.prices import Prices
from xyreward.reading import ReadingProblem, Unread, read_object
from xyreward.scoring import score
from xyreward.store import VerdictStore
from xyreward.testing import make_item
from xyreward.testing.fake_api import FakeAPI, Faults
from xyreward.verdict import JudgeFailure, Usage, Verdict

QUICK = BatchLimits(first_poll_s=0.02, last_poll_s=0.1, grace_s=1.0, request_timeout_s=20)
HALF = Prices.load()


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-test-9b2f61d07ce84a53")
    for name in ("XYREWARD_STORE", "XYREWARD_RUN", "TORCHELASTIC_RUN_ID"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "verdicts.sqlite"


def made(api: FakeAPI, path: Path, **options: Any) -> BatchJudge:
    endpoint = AnthropicEndpoint(base_url=api.base_url)
    return BatchJudge(endpoint, store=path, **{"batch_limits": QUICK, "run": "test", **options})


def ask(judge: ModelJudge, answers: Sequence[str], item: Item | None = None) -> list[Any]:
    try:
        return asyncio.run(judge.judge([item or make_item()] * len(answers), list(answers)))
    finally:
        judge.store.close()


def texts(n: int) -> list[str]:
    return [f"Go to bed earlier on Sunday, advice number {i}." for i in range(n)]


def test_verdicts_of_a_batch_are_those_of_single_calls_at_half_the_price(
    path: Path, tmp_path: Path
) -> None:
    with FakeAPI() as api:
        batched = ask(made(api, path), texts(12))
        assert (api.stats.calls, api.stats.batches) == (0, 1)
        one_by_one = ModelJudge(
            AnthropicEndpoint(base_url=api.base_url), store=tmp_path / "other.sqlite"
        )
        single = ask(one_by_one, texts(12))
    for a, b in zip(batched, single, strict=True):
        assert isinstance(a, Verdict)
        assert (a.labels, a.suggestions, a.reason) == (b.labels, b.suggestions, b.reason)
        assert not a.cached
        assert a.cost_usd == HALF.cost(a.usage, "claude-sonnet-5-5", batch=True)
        full = HALF.cost(a.usage, "claude-sonnet-5-5")
        assert full is not None
        assert a.cost_usd == pytest.approx(full / 2)


def test_a_batch_and_single_calls_share_one_store(path: Path) -> None:
    with FakeAPI() as api:
        first = ask(made(api, path), texts(5))
        judge = ModelJudge(AnthropicEndpoint(base_url=api.base_url), store=path)
        again = ask(judge, texts(5))
        assert api.stats.calls == 0
        assert [v.labels for v in again] == [v.labels for v in first]
        assert all(v.cached and v.cost_usd == 0 for v in again)
        ask(made(api, path), texts(7))
        assert api.stats.batch_rows == {"succeeded": 7}


def test_single_calls_for_what_is_on_its_way_say_that_it_is_paid_for_twice(path: Path) -> None:
    async def submit_and_leave(judge: BatchJudge, n: int) -> None:
        task = asyncio.create_task(judge.judge([make_item()] * n, texts(n)))
        while api.stats.batches == 0:
            await asyncio.sleep(0.01)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    with FakeAPI(batch_seconds=0.5) as api:
        batched = made(api, path)
        asyncio.run(submit_and_leave(batched, 4))
        live = ModelJudge(AnthropicEndpoint(base_url=api.base_url), store=path)
        estimate = live.estimate([make_item()] * 6, texts(6))
        assert (estimate.calls, estimate.on_their_way) == (6, 4)
        assert "4 of the calls are on their way in message batches" in str(estimate)
        with pytest.warns(UserWarning, match=r"4 of these.*second time.*--batches"):
            asyncio.run(live.judge([make_item()] * 6, texts(6)))
        assert api.stats.calls == 6
        assert live.estimate([make_item()] * 6, texts(6)).on_their_way == 0
        asyncio.run(live.judge([make_item()] * 7, texts(7)))  # once is enough
        # What the batch brings is too late: it is paid for, and the first verdicts stay.
        ask(batched, texts(8))
        assert api.stats.batch_rows == {"succeeded": 5}
    assert batched.stats.calls == 5


def test_the_bill_is_that_of_the_server(path: Path) -> None:
    with FakeAPI() as api:
        judge = made(api, path)
        verdicts = ask(judge, [*texts(6), *texts(2)])  # two of them twice
        assert judge.stats.usage == api.stats.batch_usage
        assert sum((v.usage for v in verdicts), Usage()) == api.stats.batch_usage
    assert judge.stats.calls == 6
    assert judge.stats.cost_usd == pytest.approx(sum(v.cost_usd or 0 for v in verdicts))


def test_votes_and_bare_queries_travel_in_batches_too(path: Path) -> None:
    with FakeAPI() as api:
        judge = made(api, path, votes=3)
        asked: list[Item | str] = [make_item(), "Why is my kettle slow?"]
        scores = score(asked, ["Descale it.", "Descale it."], judge)
        assert api.stats.calls == 0
        assert api.stats.batch_rows == {"succeeded": 7}  # one grounding and two times three votes
    assert all(s.verdict is not None or s.failure is not None for s in scores)


@pytest.mark.parametrize(
    ("fault", "kind"),
    [
        ("prose", "unparseable"),
        ("wrong_label", "off_menu"),
        ("empty", "unparseable"),
        ("duplicate_label", "off_menu|unparseable"),
    ],
)
def test_a_reply_that_cannot_be_used_is_asked_for_once_more_and_then_a_named_failure(
    path: Path, fault: str, kind: str
) -> None:
    with FakeAPI(batch_faults=Faults(script=[fault])) as api:
        judge = made(api, path)
        (verdict,) = ask(judge, texts(1))
        assert isinstance(verdict, Verdict)
        assert verdict.usage == api.stats.batch_usage  # both replies
        assert judge.stats.calls == 2
    with FakeAPI(batch_faults=Faults({fault: 1.0})) as api:
        judge = made(api, path.with_name("other.sqlite"))
        outcomes = ask(judge, texts(3))
        assert api.stats.batches == 2
        for outcome in outcomes:
            assert isinstance(outcome, JudgeFailure)
            assert outcome.kind in kind.split("|")
        assert sum((o.usage for o in outcomes), Usage()) == api.stats.batch_usage


@pytest.mark.parametrize(("fault", "kind"), [("refusal", "refused"), ("max_tokens", "truncated")])
def test_a_refusal_or_a_cut_is_not_asked_for_again(path: Path, fault: str, kind: str) -> None:
    with FakeAPI(batch_faults=Faults({fault: 1.0})) as api:
        (failure,) = ask(made(api, path), texts(1))
        assert api.stats.batches == 1
    assert isinstance(failure, JudgeFailure)
    assert failure.kind == kind
    assert failure.usage == api.stats.batch_usage


def test_rows_that_never_succeed_are_failures_and_no_numbers(path: Path) -> None:
    with FakeAPI(batch_faults=Faults({"expired": 1.0})) as api:
        judge = made(api, path)
        outcomes = ask(judge, texts(2))
    assert [o.kind for o in outcomes] == ["timeout", "timeout"]
    assert [o.cost_usd for o in outcomes] == [0.0, 0.0]
    assert judge.stats.failed == {"timeout": 2}


def test_a_batch_of_a_process_that_was_killed_is_collected_by_the_next(path: Path) -> None:
    script = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
import test_batch_asking as t
from pathlib import Path
class Api: base_url = sys.argv[1]
t.ask(t.made(Api, Path({str(path)!r})), t.texts(6))
"""
    with FakeAPI(batch_seconds=2.0) as api:
        process = subprocess.Popen([sys.executable, "-c", script, api.base_url])
        while api.stats.batches == 0:
            time.sleep(0.02)
            assert process.poll() is None
        time.sleep(0.1)
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        judge = made(api, path)
        verdicts = ask(judge, texts(6))
        assert api.stats.batches == 1
        assert judge.stats.usage == api.stats.batch_usage
    assert all(isinstance(v, Verdict) for v in verdicts)


def test_a_second_asking_survives_its_process_with_its_whole_bill(path: Path) -> None:
    reports: list[BatchReport] = []

    class LeftError(Exception):
        pass

    def leave(report: BatchReport) -> None:
        # The first batch is collected (its reply was prose), the second one submitted.
        if len(reports) and report is not reports[-1] and report.batches:
            raise LeftError
        reports.append(report)

    with FakeAPI(batch_faults=Faults(script=["prose"])) as api:
        with pytest.raises(LeftError):
            ask(made(api, path, on_batches=leave), texts(1))
        assert api.stats.batches == 2
        time.sleep(0.3)
        judge = made(api, path)
        (verdict,) = ask(judge, texts(1))
        assert api.stats.batches == 2
        assert verdict.usage == api.stats.batch_usage
    assert isinstance(verdict, Verdict)


def test_a_budget_is_counted_at_batch_prices_and_needs_one(path: Path, tmp_path: Path) -> None:
    with FakeAPI() as api:
        judge = made(api, path, budget_usd=1e-6)
        outcomes = ask(judge, texts(2))
        assert [o.kind for o in outcomes] == ["over_budget"] * 2
        assert api.stats.batches == 0
        judge = made(api, path)
        single = ModelJudge(AnthropicEndpoint(base_url=api.base_url), store=path)
        worst = [one.estimate([make_item()], ["x"]).worst_usd or 0 for one in (judge, single)]
        assert worst[0] == pytest.approx(worst[1] / 2)
        judge.store.close()
        single.store.close()
        file = tmp_path / "prices.json"
        price = {"input": 1, "output": 1, "cache_read": 1, "cache_write": 1}
        file.write_text(json.dumps({"models": {"claude-sonnet-5-5": price}}), "utf-8")
        with pytest.raises(JudgeError, match="price"):
            made(api, path, budget_usd=1.0, prices=Prices.load(file))


def test_batches_are_an_option_of_the_judges_name(path: Path) -> None:
    with FakeAPI() as api:
        judge = load_judge(
            "anthropic:claude-sonnet-5-5", batches=True, base_url=api.base_url, store=path
        )
        assert isinstance(judge, BatchJudge)
        assert judge.name == "anthropic:claude-sonnet-5-5"
        plain = load_judge("anthropic:claude-sonnet-5-5", batches=False, base_url=api.base_url)
        assert not isinstance(plain, BatchJudge)
        with pytest.raises(JudgeError, match="leave batches out"):
            load_judge("chat:m@http://127.0.0.1:9", batches=True)


def test_progress_counts_each_question_once(path: Path) -> None:
    ticks: list[int] = []
    with FakeAPI() as api:
        judge = made(api, path, batch_limits=replace(QUICK, max_rows=2))
        judge.on_outcome = lambda: ticks.append(1)
        ask(judge, texts(5))
    assert len(ticks) == judge.stats.decided == 5


# ---------------------------------------------------------------- questions that are not a judge's


SCHEMA = rubric.object_schema({"word": {"type": "string"}})


def asker(api: FakeAPI, path: Path, **options: Any) -> BatchAsker:
    endpoint = AnthropicEndpoint(base_url=api.base_url, schema="json_schema")
    return BatchAsker(endpoint, store=path, **{"batch_limits": QUICK, "run": "test", **options})


def said(body: Mapping[str, Any]) -> str:
    return str(body["messages"][-1]["content"])


def reply_with_word(body: Mapping[str, Any]) -> str | None:
    text = said(body)
    return json.dumps({"word": text.split()[-1]}) if "Say word" in text else None


def word_of(reply: Reply) -> Mapping[str, Any] | ReadingProblem:
    try:
        return {"word": read_object(reply, ("word",))["word"]}
    except Unread as unread:
        return replace(unread.problem, complaints=("There was no word.",))


def say_again(call: Call, complaints: Sequence[str]) -> Call:
    return replace(call, text=f"{complaints[0]} {call.text}")


def words(
    one: ModelAsker, which: Sequence[str], *, timeout: float | None = None
) -> list[str | JudgeFailure] | None:
    """What came of asking for these words; None where time was up."""

    def questions(parameters: Mapping[str, Any]) -> list[Question]:
        told = one.asked_of(parameters)
        found = []
        for word in which:
            call = Call(prefix="Repeat the last word.", text=f"Say {word}", schema=SCHEMA)
            identity = {"judge": one.name_without_url, "word": word}
            found.append(
                Question(
                    one.key(call, 0, told), call, identity, "completion", word_of, say_again, 20
                )
            )
        return found

    async def work() -> list[str | JudgeFailure]:
        async with asyncio.timeout(timeout):
            return [
                found if isinstance(found, JudgeFailure) else json.loads(found.payload)["word"]
                for _, found, _ in await one.decide(questions)
            ]

    try:
        return asyncio.run(work())
    except TimeoutError:
        return None
    finally:
        one.store.close()


def on_the_way(path: Path) -> int:
    with VerdictStore.open(path) as store:
        return sum(batch.rows for batch in store.batches.find(state="open"))


MANY = [f"word{i}" for i in range(40)]


def test_any_question_travels_in_a_batch_and_is_a_hit_for_single_calls(path: Path) -> None:
    with FakeAPI(reply=reply_with_word) as api:
        one = asker(api, path)
        assert words(one, MANY) == MANY
        assert (api.stats.calls, api.stats.batches) == (0, 1)
        assert one.stats.usage == api.stats.batch_usage
        assert one.stats.cost_usd == pytest.approx(
            HALF.cost(api.stats.batch_usage, "claude-sonnet-5-5", batch=True)
        )
        live = load_asker("anthropic", base_url=api.base_url, store=path, schema="json_schema")
        assert words(live, MANY) == MANY
        assert (api.stats.calls, live.stats.from_store) == (0, 40)


@pytest.mark.parametrize("kinds", [("errored", "expired"), ("prose",)])
def test_a_fifth_of_rows_gone_wrong_changes_nothing_but_the_number_of_batches(
    path: Path, kinds: Sequence[str]
) -> None:
    def choose(body: dict[str, Any], seen: int) -> str | None:
        number = int(said(body).split("Say word")[1])
        first = seen == 0 and said(body).startswith("Say")
        return kinds[number // 5 % len(kinds)] if first and number % 5 == 0 else None

    with FakeAPI(reply=reply_with_word, batch_faults=Faults(choose=choose)) as api:
        one = asker(api, path)
        assert words(one, MANY) == MANY
        assert api.stats.batches == 2
        wrong = sum(n for how, n in api.stats.batch_rows.items() if how != "succeeded")
        assert wrong == (0 if "prose" in kinds else 8)
        assert sum(api.stats.batch_rows.values()) == 48
        assert one.stats.usage == api.stats.batch_usage
    with VerdictStore.open(path) as store:
        spent = store.ledger.spent("test")
    assert (spent.reserved_usd, spent.possibly_usd) == (0, 0)
    assert spent.settled_usd == pytest.approx(one.stats.cost_usd)


def test_rows_that_always_go_wrong_are_failures_by_kind(path: Path) -> None:
    def choose(body: dict[str, Any], seen: int) -> str | None:
        by_word = {"word1": "expired", "word2": "errored", "word3": "prose", "word4": "refusal"}
        return by_word.get(said(body).split()[-1])

    with FakeAPI(reply=reply_with_word, batch_faults=Faults(choose=choose)) as api:
        one = asker(api, path)
        found = words(one, MANY[:6])
    assert found is not None
    kinds = [one.kind if isinstance(one, JudgeFailure) else one for one in found]
    assert kinds == ["word0", "timeout", "transport", "unparseable", "refused", "word5"]
    assert one.stats.failed == {"timeout": 1, "transport": 1, "unparseable": 1, "refused": 1}


def test_replies_to_another_processs_questions_are_kept_and_read_by_who_asks(path: Path) -> None:
    prose = Faults(choose=lambda body, _: "prose" if "word7" in said(body) else None)
    with FakeAPI(reply=reply_with_word, batch_faults=prose, batch_seconds=1.0) as api:
        while not on_the_way(path):  # a busy machine may need a second try to get that far
            assert words(asker(api, path), MANY[:8], timeout=0.6) is None
        time.sleep(1.0)
        # A judge of the same model, with the same store, knows none of these questions.
        judge = made(api, path)
        ask(judge, texts(2))
        assert judge.stats.calls == 8 + 2
        assert on_the_way(path) == 0
        with VerdictStore.open(path) as store:
            assert (store.counts()["reply"], store.counts()["completion"]) == (8, 0)
            spent = store.ledger.spent("test")
        assert (spent.reserved_usd, spent.possibly_usd) == (0, 0)

        def live() -> ModelAsker:
            return load_asker("anthropic", base_url=api.base_url, store=path, schema="json_schema")

        assert words(live(), MANY[:7]) == MANY[:7]
        assert (api.stats.calls, api.stats.batches) == (0, 2)
        # The eighth is of no use, and asked for anew.
        assert words(live(), MANY[:8]) == MANY[:8]
        assert api.stats.calls == 1
    with VerdictStore.open(path) as store:
        assert store.counts()["completion"] == 8


def test_the_bill_of_a_batch_is_half_of_that_of_single_calls(path: Path) -> None:
    options: Any = {"store": path, "base_url": "http://127.0.0.1:9", "schema": "json_schema"}
    live, batched = (load_asker("anthropic", batches=b, **options) for b in (False, True))
    assert isinstance(batched, BatchAsker)
    assert not isinstance(live, BatchAsker)

    def estimate(one: ModelAsker) -> Any:
        call = Call(prefix="", text="Say a word, please.", schema=SCHEMA)
        return one.estimate_of(
            lambda told: [
                Question(
                    str(i), replace(call, text=f"{i}"), {}, "completion", word_of, say_again, 20
                )
                for i in range(100)
            ]
        )

    single, half = estimate(live), estimate(batched)
    assert (single.calls, half.calls) == (100, 100)
    assert half.cost_usd == pytest.approx(single.cost_usd / 2)
    assert half.worst_usd == pytest.approx(single.worst_usd / 2)


def test_rows_without_a_result_are_on_the_bill_as_possibly_paid(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = MessageBatches._results

    async def half(self: MessageBatches, batch_id: str, rows: int) -> list[Mapping[str, Any]]:
        found = await whole(self, batch_id, rows)
        return found[: rows // 2] if batch_id.endswith("1") else found

    monkeypatch.setattr(MessageBatches, "_results", half)
    with FakeAPI(reply=reply_with_word) as api:
        one = asker(api, path)
        assert words(one, MANY[:6]) == MANY[:6]
        assert api.stats.batches == 2
    assert (one.stats.calls, one.stats.lost_calls) == (6, 3)
    with VerdictStore.open(path) as store:
        spent = store.ledger.spent("test")
    assert spent.lost_calls == 3
    assert one.stats.possibly_usd == pytest.approx(spent.possibly_usd)
    assert spent.possibly_usd > 0


def test_a_batch_that_never_ends_is_waited_for_so_long_and_no_longer(path: Path) -> None:
    with FakeAPI(reply=reply_with_word, batch_seconds=8.0) as api:
        one = asker(api, path, batch_limits=replace(QUICK, max_wait_s=0.2))
        with pytest.raises(JudgeStopped, match=r"waited for 0\.2 s and is in_progress") as caught:
            words(one, MANY[:3])
        assert "batch msgbatch_fake000001 of 20" in str(caught.value)
        assert "run the same again" in str(caught.value)
        assert on_the_way(path) == 3
        # Somebody whose questions are not in it does not wait for it.
        other = asker(api, path, batch_limits=replace(QUICK, max_wait_s=0.2))
        assert words(other, []) == []
        again = asker(api, path, batch_limits=replace(QUICK, max_wait_s=60))
        assert words(again, MANY[:3]) == MANY[:3]
        assert api.stats.batches == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batches": "yes"}, "batches is 'yes', expected True or False"),
        ({"max_wait_h": 3}, "max_wait_h is for message batches"),
        ({"batches": True, "max_wait_h": 0}, "max_wait_h is 0, expected hours above 0"),
        ({"batches": True, "max_wait_h": True}, "max_wait_h is True"),
    ],
)
def test_impossible_options_of_batches_are_refused(options: Any, message: str) -> None:
    for load in (load_judge, load_asker):
        with pytest.raises(JudgeError, match=message):
            load("anthropic", **options)
    assert load_asker("anthropic", batches=True, max_wait_h=48).batch_limits.max_wait_s == 172_800  # type: ignore[attr-defined]
    with pytest.raises(JudgeError, match="has no option batches"):
        load_asker("chat:m@http://127.0.0.1:9", batches=True)
