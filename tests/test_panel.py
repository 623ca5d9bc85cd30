"""Several judges at once: who is in a panel, what it says, what it costs, how it stops."""

import asyncio
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from xyreward.errors import JudgeError
from xyreward.items import DEFAULT_LABELS, Item
from xyreward.judges import Judge, load_judge, options_of
from xyreward.judges.calls import JudgeStopped
from xyreward.judges.model import ModelJudge
from xyreward.judges.panel import PanelJudge, model_judges
from xyreward.score_file import AnswersFile
from xyreward.scoring import score
from xyreward.testing import FakeAPI, Faults, ScriptedJudge, make_item
from xyreward.verdict import JudgeFailure, LabelProbabilities, Verdict

GOOD = DEFAULT_LABELS["goal_focused"]
BAD = DEFAULT_LABELS["literal"]
LATE = JudgeFailure("timeout", "late", cost_usd=0.25)
ITEM = make_item()


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-test")
    monkeypatch.setenv("XYREWARD_STORE", str(tmp_path / "v.sqlite"))
    for name in ("XYREWARD_RUN", "TORCHELASTIC_RUN_ID", "XYREWARD_PRICES"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def api() -> Iterator[FakeAPI]:
    with FakeAPI() as running:
        yield running


def says(name: str, outcome: Any) -> ScriptedJudge:
    return ScriptedJudge({(None, "answer"): outcome}, name=name)


def ask(*outcomes: Any, item: Item = ITEM) -> Any:
    members = [says(f"j{n}", outcome) for n, outcome in enumerate(outcomes)]
    (found,) = asyncio.run(PanelJudge(members).judge([item], ["answer"]))
    return found


# ---------------------------------------------------------------- what it says


def test_the_majority_decides_and_p_is_the_share_of_members() -> None:
    found = ask(GOOD, GOOD, BAD)
    assert found.labels == GOOD
    assert found.p.has_intended_solution == pytest.approx(2 / 3)
    assert found.p.focus["stated"] == pytest.approx(1 / 3)
    assert found.votes == 3
    assert found.judge == "panel:j0,j1,j2"
    assert found.rubric_version.count("+") == 1  # of two scripts that say the same, and one other


def test_two_that_disagree_are_worth_the_worse_of_each_label() -> None:
    found = ask(GOOD, BAD)
    assert not found.has_stated_solution
    assert not found.has_intended_solution
    assert found.focus == "stated"
    assert not found.identifies_misconception


def test_of_three_one_may_fail_and_is_named() -> None:
    found = ask(GOOD, LATE, GOOD)
    assert found.labels == GOOD
    assert found.votes == 2
    assert "failed_votes:1" in found.flags
    assert found.cost_usd == 0.25  # it was paid for all the same


def test_half_of_the_members_is_no_verdict() -> None:
    for found in (ask(GOOD, LATE), ask(LATE, GOOD, LATE)):
        assert isinstance(found, JudgeFailure)
        assert found.kind == "timeout"
        assert "votes failed" in found.detail


def test_ties_follow_the_kind_of_item() -> None:
    direct, inventing = DEFAULT_LABELS["direct"], DEFAULT_LABELS["overcorrecting"]
    control = make_item(kind="control")
    found = ask(direct, inventing, item=control)
    assert found.identifies_misconception
    assert not found.has_stated_solution
    assert found.focus == "neither"


def test_answers_keep_their_order() -> None:
    one = ScriptedJudge({(None, "a"): GOOD, (None, "b"): BAD}, name="one")
    two = ScriptedJudge({(None, "a"): GOOD, (None, "b"): BAD}, name="two")
    scores = score(ITEM, ["b", "a", "", "b"], PanelJudge([one, two]))
    assert [s.verdict.focus for s in scores if s.verdict] == [
        "stated",
        "intended",
        "neither",
        "stated",
    ]


# ---------------------------------------------------------------- who is in it


@pytest.mark.parametrize(
    "names", ["local", "local,local", ",", "anthropic,anthropic:claude-sonnet-5-5"]
)
def test_a_panel_needs_two_different_judges(names: str) -> None:
    with pytest.raises(JudgeError, match="expected two or more different judges"):
        load_judge(f"panel:{names}")


def test_one_model_at_two_addresses_is_no_panel(api: FakeAPI, tmp_path: Path) -> None:
    first, second = api.base_url, api.base_url.replace("127.0.0.1", "localhost")
    with pytest.raises(JudgeError, match="ask the same model as far as the store can tell"):
        load_judge(f"panel:chat:m@{first},chat:m@{second}", store=tmp_path / "v.sqlite")
    load_judge(f"panel:chat:m@{first},chat:n@{second}", store=tmp_path / "v.sqlite")
    one = load_judge(f"chat:m@{first}", store=tmp_path / "v.sqlite", temperature=0.5)
    two = load_judge(f"chat:m@{second}", store=tmp_path / "v.sqlite")
    own = load_judge(f"chat:m@{second}/v1", store=tmp_path / "other.sqlite")
    PanelJudge([one, two, own])


def test_an_unknown_member_is_named() -> None:
    with pytest.raises(JudgeError, match="judge 'nobody' is not known"):
        load_judge("panel:local,nobody")
    with pytest.raises(JudgeError, match="judge 'panel:' is not known"):
        load_judge("panel:")


def test_blanks_between_names_do_not_matter(tmp_path: Path) -> None:
    (tmp_path / "s.jsonl").write_text(
        json.dumps({"answer": "answer", "failure": "timeout"}), "utf-8"
    )
    judge = load_judge(f"panel: local , scripted:{tmp_path}/s.jsonl,")
    assert judge.name == f"panel:local,scripted:{tmp_path}/s.jsonl"


def test_each_member_gets_the_options_that_it_takes(api: FakeAPI) -> None:
    judge = load_judge(
        f"panel:anthropic,chat:qwen@{api.base_url},local",
        base_url=api.base_url,
        effort="low",
        temperature=0.5,
        votes=2,
    )
    claude, qwen = model_judges(judge)
    assert claude.endpoint.possible_parameters[0]["effort"] == "low"
    assert qwen.endpoint.possible_parameters[0]["temperature"] == 0.5
    assert claude.votes == qwen.votes == 2


def test_an_option_that_no_member_takes_is_refused() -> None:
    with pytest.raises(JudgeError, match="no option 'tempature'; did you mean temperature"):
        load_judge("panel:local,chat:m@http://127.0.0.1:1", tempature=1)  # type: ignore[call-arg]
    with pytest.raises(
        JudgeError, match=r"'panel:.*' has no option 'temperature'; only judges of chat"
    ):
        load_judge("panel:local,anthropic", temperature=1.0)
    with pytest.raises(JudgeError, match="takes no options, found votes"):
        load_judge("panel:local,scripted:s.jsonl", votes=3)


@pytest.mark.parametrize(
    ("judge", "takes", "not_"),
    [
        ("local", set(), {"votes"}),
        ("scripted:x", set(), {"store"}),
        ("nobody", set(), {"votes"}),
        ("anthropic", {"effort", "votes", "base_url", "max_concurrency"}, {"temperature"}),
        ("chat:m@http://h", {"temperature", "budget_usd"}, {"effort", "base_url"}),
        ("panel:local,anthropic", {"effort"}, {"temperature"}),
        ("panel:local,anthropic,chat:m@http://h", {"effort", "temperature"}, set()),
    ],
)
def test_options_of_a_name(judge: str, takes: set[str], not_: set[str]) -> None:
    assert takes <= options_of(judge)
    assert not not_ & options_of(judge)
    assert takes or not options_of(judge)


def test_a_loaded_judge_takes_no_options_any_more() -> None:
    with pytest.raises(JudgeError, match="'j' is loaded already, found votes"):
        load_judge(says("j", GOOD), votes=3)


# ---------------------------------------------------------------- money


def panel(api: FakeAPI, **options: Any) -> Judge:
    names = "panel:anthropic:claude-sonnet-5-5,anthropic:claude-haiku-5-5"
    return load_judge(names, base_url=api.base_url, start_concurrency=1, **options)


def test_members_share_one_run_and_one_budget(api: FakeAPI) -> None:
    budget = 0.2  # a call of the dearer member may cost 0.11 at worst, and costs 0.003
    judge = panel(api, budget_usd=budget)
    one, two = model_judges(judge)
    assert one.run == two.run
    assert one.run.startswith("panel ")
    scores = score(ITEM, [f"Go to bed earlier, number {n}." for n in range(100)], judge)
    spent = one.store.ledger.spent(one.run)
    assert 0 < spent.settled_usd <= budget
    assert spent.settled_usd == pytest.approx(one.stats.cost_usd + two.stats.cost_usd)
    assert {s.failure.kind for s in scores if s.failure} == {"over_budget"}


def test_the_run_can_be_named(api: FakeAPI, monkeypatch: pytest.MonkeyPatch) -> None:
    assert {m.run for m in model_judges(panel(api, run="mine"))} == {"mine"}
    monkeypatch.setenv("XYREWARD_RUN", "of the environment")
    assert {m.run for m in model_judges(panel(api))} == {"of the environment"}


def test_an_estimate_is_the_sum_of_the_members(api: FakeAPI, tmp_path: Path) -> None:
    judge = panel(api)
    assert isinstance(judge, PanelJudge)
    found = judge.estimate([ITEM] * 3, ["a", "b", "c"])
    assert found is not None
    assert (found.calls, found.in_store) == (6, 0)
    assert not (tmp_path / "v.sqlite").exists()
    assert PanelJudge([says("a", GOOD), says("b", GOOD)]).estimate([ITEM], ["answer"]) is None
    score(ITEM, ["a"], judge)
    found = judge.estimate([ITEM] * 3, ["a", "b", "c"])
    assert found is not None
    assert (found.calls, found.in_store) == (4, 2)


def test_judges_with_a_bill_are_found_in_and_out_of_a_panel(api: FakeAPI) -> None:
    alone = load_judge("anthropic")
    assert model_judges(alone) == [alone]
    assert model_judges(says("j", GOOD)) == []
    assert [m.name for m in model_judges(panel(api))] == [
        "anthropic:claude-sonnet-5-5",
        "anthropic:claude-haiku-5-5",
    ]


# ---------------------------------------------------------------- stopping


class Slow:
    """Judges for a minute; says whether it was let."""

    name, rubric_version = "slow", "1"

    def __init__(self) -> None:
        self.cancelled = self.finished = False

    async def judge(self, items: Sequence[Item], answers: Sequence[str]) -> Any:
        try:
            await asyncio.sleep(60)
            self.finished = True
        except asyncio.CancelledError:
            self.cancelled = True
            raise
        return [Verdict(GOOD, LabelProbabilities.certain(GOOD), "slow", "1") for _ in answers]


class Stops:
    name, rubric_version = "stops", "1"

    async def judge(self, items: Sequence[Item], answers: Sequence[str]) -> Any:
        await asyncio.sleep(0.01)
        raise JudgeStopped("wrong key")


def test_a_member_that_stops_for_good_stops_the_others() -> None:
    async def main() -> None:
        with pytest.raises(JudgeStopped, match="wrong key"):
            await PanelJudge([slow, Stops()]).judge([ITEM], ["answer"])
        # Not when the loop ends, but now: a loop of a trainer goes on for hours.
        assert slow.cancelled
        assert len(asyncio.all_tasks()) == 1

    slow = Slow()
    asyncio.run(main())


def test_cancelling_a_panel_cancels_its_members() -> None:
    async def main() -> None:
        task = asyncio.create_task(PanelJudge([slow, Slow2()]).judge([ITEM], ["answer"]))
        await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert slow.cancelled

    class Slow2(Slow):
        name = "slow too"

    slow = Slow()
    asyncio.run(main())


def test_a_wrong_key_of_one_member_stops_the_panel(api: FakeAPI) -> None:
    with FakeAPI(api_key="another") as refusing:
        judge = load_judge(f"panel:anthropic,chat:qwen@{refusing.base_url}", base_url=api.base_url)
        with pytest.raises(JudgeStopped, match="key"):
            score(ITEM, ["a"], judge)


def test_a_stop_of_one_member_lets_replies_to_the_others_arrive_and_sends_no_more() -> None:
    class StopsAtFour(Stops):
        async def judge(self, items: Sequence[Item], answers: Sequence[str]) -> Any:
            while server.stats.calls < 4:
                await asyncio.sleep(0.01)
            raise JudgeStopped("wrong key")

    with FakeAPI(latency=0.3) as server:
        claude = load_judge("anthropic", base_url=server.base_url, start_concurrency=4)
        assert isinstance(claude, ModelJudge)
        answers = [f"Go to bed earlier, number {n}." for n in range(10)]
        with pytest.raises(JudgeStopped, match="wrong key"):
            score(ITEM, answers, PanelJudge([claude, StopsAtFour()]))
        stats = server.wait_idle()
        assert (stats.calls, stats.delivered, stats.lost) == (4, 4, 0)
    assert claude.stats.lost_calls == 0
    assert claude.store.counts()["verdict"] == 4


def test_check_asks_every_member() -> None:
    class Checks(ScriptedJudge):
        def check(self, items: Sequence[Item]) -> None:
            raise JudgeError(f"not {len(items)} items")

    with pytest.raises(JudgeError, match="not 2 items"):
        PanelJudge([says("a", GOOD), Checks({})]).check([ITEM, ITEM])
    PanelJudge([says("a", GOOD), says("b", GOOD)]).check([ITEM])


# ---------------------------------------------------------------- bare queries


def test_a_bare_query_is_grounded_once_for_all_members() -> None:
    with FakeAPI(log_bodies=True) as api:
        judge = load_judge(
            "panel:anthropic:claude-sonnet-5-5,anthropic:claude-haiku-5-5", base_url=api.base_url
        )
        (one,) = score(["How do I make it louder?"], ["Buy a gong."], judge)
        models = [e.body["model"] for e in api.log if e.endpoint == "messages" and e.body]
    assert one.verdict is not None
    assert not one.verdict.grounded
    assert sorted(models) == ["claude-haiku-5-5", "claude-sonnet-5-5", "claude-sonnet-5-5"]


def test_a_panel_that_cannot_infer_goals_says_so_like_any_other_judge() -> None:
    judge = PanelJudge([says("a", GOOD), says("b", GOOD)])
    assert not hasattr(judge, "ground")
    with pytest.raises(JudgeError, match="cannot infer what a bare query is after"):
        score(["How do I?"], ["answer"], judge)


def test_a_panel_with_a_member_that_needs_an_items_solutions_refuses_bare_queries_before_a_call(
    tmp_path: Path,
) -> None:
    answers = tmp_path / "answers.jsonl"
    answers.write_text(json.dumps({"query": "How do I?", "answer": "Like this."}), "utf-8")
    with FakeAPI() as api:
        for names in ("panel:local,anthropic", "panel:anthropic,local"):
            judge = load_judge(names, base_url=api.base_url)
            with pytest.raises(JudgeError, match="or a panel of nothing but such"):
                score(["How do I make it louder?"], ["Buy a gong."], judge)
            with pytest.raises(JudgeError, match="or a panel of nothing but such"):
                AnswersFile(answers, [ITEM]).check(judge)
        assert api.stats.requests == 0


def test_a_failed_grounding_is_a_failure_of_the_panel() -> None:
    with FakeAPI(faults=Faults({"prose": 1.0})) as api:
        judge = load_judge(
            "panel:anthropic:claude-sonnet-5-5,anthropic:claude-haiku-5-5", base_url=api.base_url
        )
        (one,) = score(["How do I make it louder?"], ["Buy a gong."], judge)
    assert one.reward is None
    assert one.failure is not None
    assert one.failure.kind == "unparseable"
    assert one.source == judge.name
