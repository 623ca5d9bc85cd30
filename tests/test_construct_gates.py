"""construct/gates.py: what an item must pass, what a failure is, and what the gates would cost."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from xyreward.construct.gate_stages import Compared, inference, labelling, same_goal
from xyreward.construct.gates import Gates, GateSettings, judged, meant_as
from xyreward.construct.given_away import content_words, shares
from xyreward.construct.stages import Dropped, Failed, Funnel, Kept
from xyreward.errors import ConfigError, JudgeError
from xyreward.fence import parse_fences
from xyreward.items import Item, Reference
from xyreward.judges import load_asker, load_judge
from xyreward.judges.calls import Reply
from xyreward.reading import ReadingProblem
from xyreward.testing import FakeAPI, Faults, ScriptedJudge, make_item
from xyreward.verdict import JudgeFailure, Labels

# ---------------------------------------------------------------- words


def test_a_query_that_says_the_goal_or_the_correction_has_its_words() -> None:
    fair = make_item()
    assert shares(fair).goal < 0.85
    assert shares(fair).correction < 0.5
    told = make_item(query=f"{fair.query} I want to get up on time on Mondays.")
    assert shares(told).goal == 1.0
    why = make_item(query=f"{fair.query} {fair.misconception}")
    assert shares(why).correction == 1.0


def test_words_of_the_stated_request_are_left_out_and_endings_make_no_difference() -> None:
    item = make_item(
        query="How do I grease the hinges? The doors keep creaking.",
        stated_request="Grease the hinges of the doors.",
        intended_request="Stop the door from creaking.",
        misconception="Grease attracts dust.",
    )
    # stop, creak: `door` is what is asked about. attra, dust: `grease` likewise.
    assert shares(item).goal == 0.5
    assert shares(item).correction == 0.0


def test_a_control_gives_nothing_away_and_a_goal_without_own_words_neither() -> None:
    assert shares(make_item(kind="control")).goal == 0.0
    same = make_item(stated_request="Make an alarm louder.", intended_request="A louder alarm!")
    assert shares(same).goal == 0.0


def test_words_without_spaces_are_pairs_of_characters() -> None:
    assert content_words("\u95f9\u949f\u66f4\u54cd") == {
        "\u95f9\u949f",
        "\u949f\u66f4",
        "\u66f4\u54cd",
    }
    assert content_words("Ma\u0308dchen M\u00e4dchens") == {"m\u00e4dch"}


# ---------------------------------------------------------------- a model by plan

GOAL = "Get up on time on Mondays."


def says(body: dict[str, Any]) -> Any:
    """`[never]` in a query: the goal is not inferred. `[plain]`: a second reading sees no hidden goal.

    `[mute]`: no reply to that query can be used where it is asked about the goal, `[dumb]`: labelled.
    """
    content = body["messages"][-1]["content"]
    text = content if isinstance(content, str) else "\n".join(b["text"] for b in content)
    parts = {part.name: part.text for part in parse_fences(text)}
    if not parts:
        return None
    query = parts["query"]
    if "first" in parts:
        return {"reason": "r", "same": parts["first"] == parts["second"]}
    if "answer-a" in parts:
        hidden = "[plain]" not in query and "[control]" not in query
        if "[dumb]" in query:
            return "Hm."
        return {
            "reading": "r",
            "stated_request": "Make an alarm clock louder.",
            "hidden_goal": hidden,
            "intended_request": GOAL if hidden else "",
        }
    if "[mute]" in query:
        return "Hm."
    return {"reading": "r", "goal": "Sleep." if "[never]" in query else GOAL}


def items(*marks: str) -> list[Item]:
    return [
        make_item(
            id=f"i{n}",
            query=f"Number {n} {mark}: how do I make my alarm clock louder?",
            kind="control" if "[control]" in mark else "xy",
        )
        for n, mark in enumerate(marks)
    ]


def run(
    api: FakeAPI, folder: Path, rows: list[Item], *, judge: Any = None, **settings: Any
) -> tuple[Any, dict[str, Any], dict[str, Item]]:
    gates = Gates(
        GateSettings(**{"inferences": 0, "second_pass": 0, **settings}),
        load_asker(f"chat:reader@{api.base_url}", store=folder / "store.sqlite"),
        judge=judge,
        controls=0.5,
    )
    funnel = Funnel()
    left, found = gates.run([Kept(item) for item in rows], funnel)
    return found, {step.name: step for step in funnel.steps}, {r.value.id: r.value for r in left}


def test_an_item_above_the_limit_of_words_is_dropped_and_one_at_it_is_not(tmp_path: Path) -> None:
    fair = make_item()
    goal, why = "I want to get up on time on Mondays.", fair.misconception
    all_said = make_item(query=f"{fair.query} {goal} {why}")
    with FakeAPI() as api:
        for limits, dropped in (
            ((1, 1), {}),
            ((0.99, 1), {"the query says the goal in so many words": 1}),
            ((1, 0.99), {"the query says why what was asked will not do": 1}),
        ):
            wanted = dict(zip(("max_goal_words", "max_correction_words"), limits, strict=True))
            _, steps, _ = run(api, tmp_path, [all_said], **wanted)
            assert steps["words"].dropped == dropped


# ---------------------------------------------------------------- inference


def test_a_goal_that_nobody_infers_is_dropped_and_one_that_could_not_be_asked_about_failed(
    tmp_path: Path,
) -> None:
    with FakeAPI(reply=says) as api:
        rows = items("", "[never]", "[mute]", "[control]")
        found, steps, left = run(api, tmp_path, rows, inferences=2)
    step = steps["inference"]
    assert step.dropped == {"the goal is not inferred from the query": 1}
    assert step.failed == {"unparseable": 1}
    assert left.keys() == {"i0", "i3"}
    rate = found.figures["inferences that are the intended request"]
    assert (rate.value, rate.n, rate.clusters) == (0.5, 4, 2)
    assert rate.low < 0.5 < rate.high
    assert found.figures["items inferred at least 1 of 2 times"].n == 2
    gates = left["i0"].meta["gates"]
    assert gates["inference"] == [{"goal": GOAL, "same": True}] * 2
    told = [one["stage"] for one in left["i0"].meta["provenance"]]
    assert told == ["inference", "same goal"] * 2
    assert "inference" not in left["i3"].meta.get("gates", {})


def test_inferences_beside_a_failure_count_and_what_they_cannot_decide_failed() -> None:
    def outcome(at_least: int, *hits: bool | None) -> Any:
        gates = Gates(
            GateSettings(inferences=3, infer_at_least=at_least),
            load_asker("chat:m@http://127.0.0.1:9"),
        )
        tries = [
            (Failed("refused"), None) if hit is None else (Kept("goal"), Kept(hit)) for hit in hits
        ]
        return gates._inferred(Kept(make_item()), tries)[0]

    assert isinstance(outcome(1, True, None, None), Kept)
    assert isinstance(outcome(2, True, None, False), Failed)
    assert isinstance(outcome(3, True, None, False), Dropped)
    assert isinstance(outcome(3, True, True, True), Kept)


def test_which_goal_is_ours_is_not_told_and_both_orders_occur() -> None:
    first = set()
    for n in range(20):
        parts = parse_fences(same_goal().call(Compared(f"query {n}", "theirs", "ours")).text)
        assert [part.name for part in parts] == ["query", "first", "second"]
        first.add(parts[1].text)
    assert first == {"theirs", "ours"}


def test_the_inference_sees_the_query_alone() -> None:
    item = make_item()
    call = inference().call(item)
    assert [part.text for part in parse_fences(call.text)] == [item.query]
    for text in (item.intended_request, item.misconception, item.references[0].text):
        assert text not in call.text


# ---------------------------------------------------------------- second pass


def test_another_kind_is_dropped_and_a_reading_that_failed_is_no_disagreement(
    tmp_path: Path,
) -> None:
    with FakeAPI(reply=says) as api:
        rows = items("", "", "[plain]", "[dumb]", "[control]")
        found, steps, left = run(api, tmp_path, rows, second_pass=1.0)
    step = steps["second pass"]
    assert step.dropped == {"the second pass sees no hidden goal": 1}
    assert step.failed == {"unparseable": 1}
    assert step.how == {"agreed": 3}
    same = found.figures["second pass, same kind"]
    assert (same.value, same.n) == (0.75, 4)
    # Both: 3 of 4 xy against 2 of 4: 0.75 by chance 0.5.
    assert found.figures["second pass, kind, Cohen's kappa"].value == pytest.approx(0.5)
    assert found.figures["second pass, same intended request"].n == 2
    assert left["i0"].meta["gates"]["second_pass"]["same_intended"] is True
    assert "same_intended" not in left["i4"].meta["gates"]["second_pass"]


def test_without_items_every_gate_is_there_and_measures_nothing(tmp_path: Path) -> None:
    with FakeAPI(reply=says) as api:
        for rows in ([], items("[control]")):
            found, steps, left = run(
                api, tmp_path, rows, judge=scripted(), inferences=1, second_pass=1.0
            )
            assert left == {}
            assert list(steps) == [
                "words",
                "controls",
                "inference",
                "second pass",
                "judge",
                "controls, again",
            ]
            assert set(found.figures.values()) == {None}
        assert api.stats.requests == 0


def test_a_share_is_drawn_by_id(tmp_path: Path) -> None:
    with FakeAPI(reply=says) as api:
        _, steps, left = run(api, tmp_path, items(*[""] * 20), second_pass=0.3)
    how = steps["second pass"].how
    assert 0 < how["agreed"] < 20
    assert how["not drawn"] == 20 - how["agreed"]
    assert len(left) == 20


def test_the_second_reading_is_not_told_the_first_one() -> None:
    item = make_item()
    call = labelling().call(item)
    for text in (item.intended_request, item.misconception, *item.intended_solutions):
        assert text not in call.text
    assert "goal_focused" not in call.text
    turned = item.model_copy(update={"references": item.references[::-1]})
    assert labelling().call(turned) == call


@pytest.mark.parametrize(
    ("changes", "kind"),
    [
        ({"intended_request": ""}, "inconsistent"),
        ({"intended_request": " make IT louder"}, "inconsistent"),
        ({"hidden_goal": "yes"}, "off_menu"),
        ({"stated_request": ""}, "unparseable"),
    ],
)
def test_labels_that_say_nothing_are_no_use(changes: dict[str, Any], kind: str) -> None:
    label = {
        "reading": "r",
        "stated_request": "Make it louder",
        "hidden_goal": True,
        "intended_request": "Get up.",
    }
    found = labelling().read(make_item(), Reply(json.dumps({**label, **changes})))
    assert isinstance(found, ReadingProblem)
    assert found.kind == kind


# ---------------------------------------------------------------- judge


LABELS = {
    "goal_focused": Labels(False, True, "intended", True),
    "literal": Labels(True, False, "stated", False),
    "direct": Labels(True, True, "stated", False),
}


def scripted(**outcomes: Labels | JudgeFailure) -> ScriptedJudge:
    """To this judge an answer is what it is meant as, but for what is given."""
    return ScriptedJudge(
        {
            (item.id, reference.text): ({**LABELS, **outcomes})[str(reference.kind)]
            for item in items("", "[control]")
            for reference in item.references
            if reference.kind in LABELS
        }
    )


def after_judge(folder: Path, judge: Any, rows: list[Item] | None = None) -> Any:
    with FakeAPI(reply=says) as api:
        return run(api, folder, items("", "[control]") if rows is None else rows, judge=judge)


def test_items_whose_answers_are_what_they_are_meant_as_are_kept_with_what_the_judge_said(
    tmp_path: Path,
) -> None:
    found, steps, left = after_judge(tmp_path, scripted())
    assert steps["judge"].how == {"as meant": 2}
    noted = left["i0"].meta["gates"]["judge"]
    assert noted["judge"] == "scripted"
    assert [(one["reference"], one["meant_as"]) for one in noted["answers"]] == [
        (0, "goal_focused"),
        (1, "literal"),
    ]
    assert noted["answers"][0]["focus"] == "intended"
    assert left["i0"].references[0].labels is not None  # of the item, and none of the judge's
    figure = found.figures["direct answers that have a solution"]
    assert (figure.value, figure.n) == (1.0, 1)


@pytest.mark.parametrize(
    ("outcomes", "reason", "left"),
    [
        ({"goal_focused": Labels(False, True, "balanced", True)}, "goal-focused", set()),
        ({"goal_focused": Labels(False, False, "intended", True)}, "goal-focused", set()),
        ({"literal": Labels(True, True, "stated", False)}, "literal", set()),
        ({"literal": Labels(False, False, "stated", False)}, "literal", set()),
        ({"direct": Labels(True, True, "stated", True)}, "direct", {"i0"}),
        ({"direct": Labels(False, False, "stated", False)}, "direct", {"i0"}),
    ],
)
def test_an_answer_that_is_not_what_it_is_meant_as_drops_its_item(
    tmp_path: Path, outcomes: Any, reason: str, left: set[str]
) -> None:
    _, steps, found = after_judge(tmp_path, scripted(**outcomes))
    assert steps["judge"].dropped == {f"no {reason} answer is one, says the judge": 1}
    assert found.keys() == left  # a control alone is beyond the controls' share


def test_a_judge_that_fails_is_a_failure_and_no_reason_to_drop_or_keep(tmp_path: Path) -> None:
    found, steps, _ = after_judge(tmp_path, scripted(literal=JudgeFailure("timeout", "slow")))
    assert steps["judge"].failed == {"timeout": 1}
    assert steps["judge"].dropped == {}
    assert found.figures["literal answers that have a stated solution"] is None
    # What is known to be wrong is wrong, whatever else failed.
    both = scripted(
        literal=JudgeFailure("timeout", "slow"),
        goal_focused=Labels(False, False, "neither", False),
    )
    _, steps, _ = after_judge(tmp_path, both)
    assert steps["judge"].dropped == {"no goal-focused answer is one, says the judge": 1}


def test_of_several_answers_one_must_be_what_it_is_meant_as(tmp_path: Path) -> None:
    [item, _] = items("", "[control]")
    texts = ("weak", "fine", "as asked", "noise")
    item = item.model_copy(
        update={
            "references": tuple(Reference(text=text) for text in texts),
            "meta": {"meant_as": ["goal_focused", "goal_focused", "literal", ""]},
        }
    )
    assert meant_as(item) == {0: "goal_focused", 1: "goal_focused", 2: "literal"}
    labels = {"weak": Labels(False, True, "stated", False), "fine": LABELS["goal_focused"]}
    judge = ScriptedJudge(
        {(None, k): v for k, v in {**labels, "as asked": LABELS["literal"]}.items()}
    )
    _, steps, left = after_judge(tmp_path, judge, [item])
    assert steps["judge"].how == {"as meant": 1}
    assert len(left["i0"].meta["gates"]["judge"]["answers"]) == 3
    # The one that is not known could have been it.
    late = ScriptedJudge(
        {
            (None, "weak"): labels["weak"],
            (None, "fine"): JudgeFailure("timeout", "slow"),
            (None, "as asked"): LABELS["literal"],
        }
    )
    _, steps, _ = after_judge(tmp_path, late, [item])
    assert (steps["judge"].failed, steps["judge"].dropped) == ({"timeout": 1}, {})
    alone = item.model_copy(update={"meta": {"meant_as": ["", "goal_focused", "", ""]}})
    _, steps, _ = after_judge(tmp_path, judge, [alone])
    assert steps["judge"].how == {"as meant, without a literal answer": 1}
    nothing = item.model_copy(update={"meta": {}})
    _, steps, _ = after_judge(tmp_path, judge, [nothing])
    assert steps["judge"].dropped == {"no answer is meant as goal-focused": 1}


def test_a_kind_is_looked_at_only_on_items_that_have_it() -> None:
    assert meant_as(make_item(kind="control")) == {0: "direct"}
    assert meant_as(make_item()) == {0: "goal_focused", 1: "literal"}
    strange = make_item(references=(Reference(text="a"),), meta={"meant_as": ["direct"]})
    assert meant_as(strange) == {}


def test_a_judge_that_fails_for_a_while_is_asked_again(tmp_path: Path) -> None:
    item = make_item()
    texts = [f"answer number {n} is fine" for n in range(12)]

    def verdict(body: dict[str, Any]) -> Any:
        text = body["messages"][-1]["content"]
        parts = {part.name: part.text for part in parse_fences(text)}
        if not parts:
            return None
        return {
            "suggestions": [{"quote": parts["answer"], "reason": "r", "serves": "intended"}],
            "focus_reason": "r",
            "focus": "intended",
            "misconception_reason": "r",
            "identifies_misconception": True,
        }

    ticks: list[int] = []
    with FakeAPI(reply=verdict, faults=Faults({"prose": 0.4})) as api:
        judge = load_judge(f"chat:judge@{api.base_url}", store=tmp_path / "store.sqlite")
        found = judged([item] * 12, texts, judge, lambda: ticks.append(1))
    assert all(not isinstance(one, JudgeFailure) for one in found)
    assert len(ticks) >= 12


def test_a_judge_without_labels_is_refused() -> None:
    class Rewards:
        name, rubric_version, reads_query_alone = "rewards", "r", True

        async def judge(self, items: Any, answers: Any) -> Any: ...
        async def rewards(self, items: Any, answers: Any, reward: Any) -> Any: ...
        def check_reward(self, reward: Any) -> None: ...

    asker = load_asker("chat:m@http://127.0.0.1:9")
    with pytest.raises(JudgeError, match="is a reward model"):
        Gates(GateSettings(), asker, judge=Rewards())


# ---------------------------------------------------------------- settings and bills


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"second_pass": 1.5}, "second_pass is 1.5, expected a share"),
        ({"max_goal_words": -1}, "max_goal_words is -1"),
        ({"inferences": -1}, "inferences is -1"),
        ({"inferences": 2, "infer_at_least": 3}, "infer_at_least is 3, expected 1 to 2"),
        ({"infer_at_least": 0}, "infer_at_least is 0"),
    ],
)
def test_settings_outside_their_range_are_refused(settings: Any, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        GateSettings(**settings)


def test_the_bill_is_at_most_what_is_asked_and_nothing_once_all_is_there(tmp_path: Path) -> None:
    rows = items("", "", "[never]", "[control]")
    settings = GateSettings(inferences=2, second_pass=1.0)

    def gates(api: FakeAPI, *, other: bool = False) -> Gates:
        return Gates(
            settings,
            load_asker(f"chat:reader@{api.base_url}", store=tmp_path / "store.sqlite"),
            judge=load_judge(f"chat:judge@{api.base_url}", store=tmp_path / "store.sqlite"),
            second=load_asker("chat:other@" + api.base_url, store=tmp_path / "store.sqlite")
            if other
            else None,
            controls=0.5,
        )

    with FakeAPI(reply=says) as api:
        apart = gates(api, other=True).estimate(rows)[1:3]
        assert [(bill.stage, bill.estimate.calls) for bill in apart] == [
            ("second pass, labels, chat:other", 4),
            ("second pass, comparisons, chat:reader", 7),
        ]
        before = gates(api).estimate(rows)
        assert api.stats.requests == 0
        # 3 xy items: 2 inferences and as many comparisons; 4 labels and 7 comparisons; 7 answers.
        assert [
            (bill.stage.split(",")[0], bill.estimate.calls, bool(bill.at_most)) for bill in before
        ] == [
            ("inference", 12, False),
            ("second pass", 11, True),
            ("judge", 7, True),
        ]
        assert str(before[-1]).startswith("judge, chat:judge: at most 7 calls to make")
        assert str(before[-1]).endswith("(as if all 4 items at the gate before passed it)")
        one = gates(api)
        one.judge = None
        one.run([Kept(item) for item in rows], Funnel())
        asked = api.stats.requests
        after = gates(api).estimate(rows)
        assert api.stats.requests == asked
    assert [
        (bill.stage.split(",")[0], bill.estimate.calls, bool(bill.at_most)) for bill in after
    ] == [
        ("inference", 0, False),
        ("second pass", 0, False),
        ("judge", 5, False),  # the third item is out
    ]
