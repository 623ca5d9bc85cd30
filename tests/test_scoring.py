import asyncio
import os
import signal
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from xyreward.errors import JudgeError
from xyreward.items import DEFAULT_LABELS, Item
from xyreward.judges import Judge, load_judge
from xyreward.judges.scripted import ScriptedJudge
from xyreward.pairs.candidates import Candidate, by_judge
from xyreward.reward import Reward
from xyreward.scoring import Score, ascore, run_sync, score, stop_over_budget
from xyreward.testing import make_item
from xyreward.verdict import FAILURE_KINDS, JudgeFailure, LabelProbabilities, Labels, Verdict

GOOD = DEFAULT_LABELS["goal_focused"]
BAD = DEFAULT_LABELS["literal"]
JUDGE = ScriptedJudge({(None, "good"): GOOD, (None, "bad"): BAD})
XY = make_item(id="xy")
CONTROL = make_item(id="control", kind="control")


class Recording:
    """Judges everything as goal-focused and keeps what it was asked."""

    name = "recording"
    rubric_version = "1"

    def __init__(self) -> None:
        self.asked: list[tuple[list[str], list[str]]] = []

    async def judge(
        self, items: Sequence[Item], answers: Sequence[str]
    ) -> list[Verdict | JudgeFailure]:
        self.asked.append(([item.id for item in items], list(answers)))
        return [
            Verdict(GOOD, LabelProbabilities.certain(GOOD), self.name, self.rubric_version)
            for _ in answers
        ]


class Returning(Recording):
    """Returns what it was told to, whatever it is asked."""

    def __init__(self, outcomes: Any) -> None:
        super().__init__()
        self.outcomes = outcomes

    async def judge(self, items: Sequence[Item], answers: Sequence[str]) -> Any:
        return self.outcomes


VERDICT = Verdict(GOOD, LabelProbabilities.certain(GOOD), "returning", "1")


@pytest.mark.parametrize("kind", FAILURE_KINDS)
@pytest.mark.parametrize("soft", [False, True], ids=["hard", "soft"])
@pytest.mark.parametrize("item", [XY, CONTROL], ids=["xy", "control"])
def test_judge_failure_never_becomes_a_reward(kind: Any, soft: bool, item: Item) -> None:
    failure = JudgeFailure(kind, "as told", raw_text='{"has_intended_solution": true', cost_usd=0.1)
    judge = ScriptedJudge({(None, "lost"): failure, (None, "good"): GOOD})
    lost, judged = score(item, ["lost", "good"], judge, Reward(soft=soft))
    assert lost == Score(reward=None, verdict=None, failure=failure, source="scripted", metrics={})
    assert judged.reward is not None
    assert judged.failure is None


def test_an_answer_that_a_script_does_not_have_is_a_failure_and_no_number() -> None:
    found = score(XY, "unheard of", JUDGE)
    assert found.reward is None
    assert found.failure is not None
    assert found.failure.kind == "off_menu"


@pytest.mark.parametrize("outcome", [None, 0.0, 1, GOOD, {"reward": 1.0}, "yes"], ids=repr)
def test_what_is_neither_a_verdict_nor_a_failure_is_an_error_and_no_number(outcome: Any) -> None:
    # A None that was taken for "nothing to judge" would be worth 0.
    with pytest.raises(JudgeError, match=r"'recording' returned \w+ as outcome 1; expected a Verd"):
        score(XY, ["a", "b"], Returning([VERDICT, outcome]))


@pytest.mark.parametrize("count", [0, 1, 3])
def test_a_judge_that_returns_the_wrong_number_of_outcomes_is_an_error(count: int) -> None:
    with pytest.raises(JudgeError, match=f"'recording' returned {count} outcomes for 2 answers"):
        score(XY, ["a", "b"], Returning([VERDICT] * count))


def test_a_judge_that_is_not_async_is_told_so() -> None:
    class Synchronous(Recording):
        def judge(self, items: Any, answers: Any) -> Any:
            return [VERDICT for _ in answers]

    with pytest.raises(JudgeError, match=r"judge\(\) is not async; write `async def judge`"):
        score(XY, "a", Synchronous())


def test_an_exception_of_the_judge_reaches_the_caller_as_it_is() -> None:
    class Broken(Recording):
        async def judge(self, items: Any, answers: Any) -> Any:
            raise JudgeError("needs grounding")

    with pytest.raises(JudgeError, match=r"^needs grounding$"):
        score(XY, "a", Broken())


@pytest.mark.parametrize("answer", ["", " ", "\n\t\r\n", "\u3000\xa0", "\u200b\u2060"], ids=repr)
@pytest.mark.parametrize("item", [XY, CONTROL], ids=["xy", "control"])
@pytest.mark.parametrize("soft", [False, True], ids=["hard", "soft"])
def test_an_empty_answer_is_worth_0_for_both_kinds_of_item_and_costs_no_call(
    answer: str, item: Item, soft: bool
) -> None:
    judge = Recording()
    found = score(item, answer, judge, Reward(soft=soft, stated=1))
    assert judge.asked == []
    assert found.reward == 0.0
    assert found.verdict is not None
    assert found.source == found.verdict.judge == "recording"
    assert found.verdict.flags == ("empty_answer",)
    assert found.failure is None
    assert found.verdict is not None
    assert found.verdict.labels == Labels(False, False, "neither", False)
    assert found.metrics == {
        "solution": 0.0,
        "focus": 0.0,
        "misconception": 0.0,
        "has_stated_solution": 0.0,
        "has_intended_solution": 0.0,
        "identifies_misconception": 0.0,
    }


def test_empty_answers_among_others_keep_everything_in_its_place() -> None:
    judge = Recording()
    items = [make_item(id=name) for name in "abcd"]
    found = score(items, ["", "to b", "  ", "to d"], judge)
    assert judge.asked == [(["b", "d"], ["to b", "to d"])]
    assert [s.reward for s in found] == [0.0, 1.0, 0.0, 1.0]
    assert {s.source for s in found} == {"recording"}
    flags = [s.verdict.flags if s.verdict else None for s in found]
    assert flags == [("empty_answer",), (), ("empty_answer",), ()]


def test_pairs_take_the_same_answers_for_empty_as_scores_do() -> None:
    judge = Recording()
    texts = ["", "\u200b", "\ufeff \u3164", "to b"]
    candidates = [Candidate(XY.id, text, "on_policy", "them") for text in texts]
    judged = asyncio.run(by_judge({XY.id: XY}, candidates, judge))
    assert [one.failure for one in judged] == ["empty answer"] * 3 + [None]
    assert judge.asked == [([XY.id], ["to b"])]


def test_one_in_one_out_lists_in_list_out() -> None:
    one = score(XY, "good", JUDGE)
    assert isinstance(one, Score)
    assert one.reward == 1.0
    assert one.source == "scripted"
    assert [s.reward for s in score([XY, XY], ["good", "bad"], JUDGE)] == [1.0, 0.0]
    assert score([XY], ["good"], JUDGE) == [one]
    assert score(XY, ["good"], JUDGE) == [one]


def test_one_item_and_many_answers_scores_each_against_it() -> None:
    assert [s.reward for s in score(XY, ("good", "bad", "good"), JUDGE)] == [1.0, 0.0, 1.0]


def test_nothing_in_nothing_out() -> None:
    judge = Recording()
    assert score([], [], judge) == []
    assert score(XY, [], judge) == []
    assert judge.asked == []


def test_metrics_are_the_hard_parts_also_where_the_reward_is_soft() -> None:
    class Unsure(Recording):
        async def judge(self, items: Any, answers: Any) -> Any:
            p = LabelProbabilities(
                0.6, 0.2, {"stated": 0.5, "intended": 0.1, "balanced": 0.4, "neither": 0.0}, 0.3
            )
            return [Verdict(Labels(True, False, "stated", False), p, self.name, "1")]

    found = score(XY, "a", Unsure(), Reward(soft=True))
    assert found.reward == pytest.approx((0.2 + (0.1 + 0.4 / 2) + 0.3) / 3)
    assert found.metrics == {
        "solution": 0.0,
        "focus": 0.0,
        "misconception": 0.0,
        "has_stated_solution": 1.0,
        "has_intended_solution": 0.0,
        "identifies_misconception": 0.0,
    }
    assert score(CONTROL, "a", Unsure()).metrics == {
        "solution": 1.0,
        "focus": 1.0,
        "misconception": 1.0,
        "has_stated_solution": 1.0,
        "has_intended_solution": 0.0,
        "identifies_misconception": 0.0,
    }


def test_the_length_penalty_sees_the_answer() -> None:
    judge = ScriptedJudge({(None, "x" * 150): GOOD})
    assert score(XY, "x" * 150, judge, Reward(length_limit=100)).reward == pytest.approx(0.5)


# ---------------------------------------------------------------- what users pass


@pytest.mark.parametrize(
    ("items", "answers", "message"),
    [
        ([XY, XY], ["good"], "2 items and 1 answers; expected as many answers as items"),
        ([XY], ["good", "bad"], "1 items and 2 answers"),
        ([], ["good"], "0 items and 1 answers"),
        ([XY], "good", "items is a list of 1 and answers is one string; expected a list of 1 ans"),
    ],
)
def test_lists_of_different_length_are_an_error(items: Any, answers: Any, message: str) -> None:
    judge = Recording()
    with pytest.raises(ValueError, match=message):
        score(items, answers, judge)
    assert judge.asked == []


@pytest.mark.parametrize(
    ("items", "answers", "message"),
    [
        (XY, None, "answers is NoneType, expected a string or a list of them"),
        (XY, 5, "answers is int, expected a string"),
        (XY, b"good", "answers is bytes, expected a string"),
        (XY, {"role": "assistant", "content": "good"}, "answers is dict, expected a string"),
        (XY, {"good", "bad"}, "answers is set, expected a string"),
        (XY, np.array("good"), "answers is ndarray, expected a string"),
        (XY, np.array([["good"], ["bad"]]), "answers is ndarray, expected a string"),
        (XY, ["good", None], r"answers\[1\] is NoneType, expected a string"),
        (XY, ["good", float("nan")], r"answers\[1\] is float, expected a string"),
        (
            XY,
            [[{"role": "assistant", "content": "good"}]],
            r"answers\[0\] is list, expected a string; of chat messages pass the assistant's text",
        ),
        (None, "good", "items is NoneType, expected an Item"),
        ({"id": XY}, ["good"], "items is dict, expected an Item"),
        ([XY, 7], ["good", "bad"], r"items\[1\] is int, expected xyreward.Item"),
        ([{"query": "q"}], ["good"], r"items\[0\] is dict, expected xyreward.Item"),
    ],
)
def test_what_is_not_items_and_strings_is_an_error_before_the_judge_is_asked(
    items: Any, answers: Any, message: str
) -> None:
    judge = Recording()
    with pytest.raises(TypeError, match=message):
        score(items, answers, judge)
    assert judge.asked == []


def test_strings_of_numpy_and_generators_are_as_good_as_lists() -> None:
    strings: Any = np.array(["good", "bad"])
    assert [s.reward for s in score(XY, strings, JUDGE)] == [1.0, 0.0]
    one = score(XY, strings[0], JUDGE)
    assert isinstance(one, Score)
    assert one.reward == 1.0
    items: Any = (make_item(id=name) for name in "ab")
    answers: Any = (text for text in ("good", "bad"))
    assert [s.reward for s in score(items, answers, JUDGE)] == [1.0, 0.0]


def test_a_column_of_a_table_will_do_whatever_its_index_and_a_table_will_not() -> None:
    pandas = pytest.importorskip("pandas")
    column = pandas.Series(["good", "bad"], index=[7, 3])
    assert [s.reward for s in score(XY, column, JUDGE)] == [1.0, 0.0]
    items = pandas.Series([XY, CONTROL], index=[1, 0])
    assert [s.reward for s in score(items, column, JUDGE)] == [1.0, (1 + 1 + 1) / 3]
    with pytest.raises(TypeError, match="answers is DataFrame, expected a string or a list"):
        score(XY, pandas.DataFrame({"good": ["bad"]}), JUDGE)  # list() of it is ["good"]


@pytest.mark.parametrize("reward", ["soft", {"solution": 1}, 0, Reward], ids=repr)
def test_what_is_no_reward_is_refused_before_the_judge_is_asked(reward: Any) -> None:
    judge = Recording()
    with pytest.raises(TypeError, match=r"expected xyreward.Reward\(\.\.\.\)"):
        score(XY, "a", judge, reward)
    assert judge.asked == []


# ---------------------------------------------------------------- judges


@pytest.mark.parametrize("name", ["", "locl", "scripted:", "anthropic:", "chat:", "local:x"])
def test_an_unknown_name_of_a_judge_is_refused_with_the_known_ones(name: str) -> None:
    with pytest.raises(JudgeError, match=f"judge {name!r} is not known; expected local, "):
        load_judge(name)


def test_an_object_that_lacks_a_member_of_a_judge_is_refused_and_the_member_named() -> None:
    class Half:
        name = "half"

    half: Any = Half()
    with pytest.raises(JudgeError, match=r"judge is Half, which lacks rubric_version, judge; "):
        score(XY, "a", half)
    nothing: Any = None
    with pytest.raises(JudgeError, match="judge is NoneType, which lacks name, rubric_version, ju"):
        load_judge(nothing)


def test_a_class_in_place_of_a_judge_is_refused() -> None:
    cls: Any = Recording
    with pytest.raises(JudgeError, match="judge is the class Recording, expected one of its inst"):
        load_judge(cls)


def test_a_judge_of_ones_own_is_used_as_it_is() -> None:
    judge = Recording()
    assert isinstance(judge, Judge)
    assert load_judge(judge) is judge


# ---------------------------------------------------------------- event loops


def test_score_works_inside_a_running_event_loop_as_in_a_notebook() -> None:
    async def cell() -> list[Score]:
        return [score(XY, "good", JUDGE), *score(XY, ["bad"], JUDGE)]

    assert [s.reward for s in asyncio.run(cell())] == [1.0, 0.0]


def test_ascore_runs_in_the_loop_of_its_caller() -> None:
    threads = []

    class Noting(Recording):
        async def judge(self, items: Any, answers: Any) -> Any:
            threads.append(threading.current_thread())
            return await super().judge(items, answers)

    async def main() -> tuple[Score, list[Score]]:
        return await ascore(XY, "a", Noting()), await ascore([XY], ["a"], Noting())

    one, many = asyncio.run(main())
    assert (one.reward, [s.reward for s in many]) == (1.0, [1.0])
    assert threads == [threading.current_thread()] * 2


def test_an_error_inside_a_running_loop_reaches_the_caller() -> None:
    async def cell() -> None:
        score([XY, XY], ["good"], JUDGE)

    with pytest.raises(ValueError, match="2 items and 1 answers"):
        asyncio.run(cell())


def test_run_sync_passes_on_what_is_no_plain_exception_too() -> None:
    async def stop() -> None:
        raise KeyboardInterrupt

    async def cell() -> None:
        run_sync(stop())

    with pytest.raises(KeyboardInterrupt):
        asyncio.run(cell())


@pytest.mark.parametrize(
    "query", ["How do I exit vim?", [{"role": "user", "content": "How do I exit vim?"}]]
)
def test_a_bare_query_needs_a_judge_that_infers_its_goal(query: Any) -> None:
    judge = Recording()
    with pytest.raises(JudgeError, match="cannot infer what a bare query is after"):
        score(query, "Type :q.", judge)
    assert judge.asked == []
    # An empty answer is worth nothing whatever was meant.
    assert score(query, " ", judge).reward == 0


@pytest.mark.parametrize("query", ["  ", [{"role": "assistant", "content": "Hello."}]])
def test_a_query_that_asks_nothing_is_refused(query: Any) -> None:
    with pytest.raises(ValueError, match="as a bare query"):
        score([query], ["Type :q."], Recording())


def test_ctrl_c_in_a_notebook_ends_the_work_and_not_only_the_wait_for_it() -> None:
    ends: list[str] = []

    class Slow(Recording):
        async def judge(self, items: Any, answers: Any) -> Any:
            os.kill(os.getpid(), signal.SIGINT)
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                ends.append("cancelled")
                raise

    async def cell() -> None:
        score(XY, "good", Slow())

    # Not asyncio.run, which would take Ctrl-C itself: a notebook's loop does not.
    loop = asyncio.new_event_loop()
    try:
        with pytest.raises(KeyboardInterrupt):
            loop.run_until_complete(cell())
    finally:
        loop.close()
    assert ends == ["cancelled"]


def test_what_a_budget_forbade_stops_and_says_how_much_of_what() -> None:
    stop_over_budget([None, "timeout", True, "refused"], "answers were not judged")
    for kinds, of, told in (
        ([None, "over_budget", "timeout"], None, "1 of 3 answers were not judged"),
        (["policy_over_budget", "over_budget"], 5, "2 of 5 answers were not judged"),
    ):
        with pytest.raises(JudgeError, match=told):
            stop_over_budget(kinds, "answers were not judged", of=of)
