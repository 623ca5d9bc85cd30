"""Every metric on rows made by hand, with the right values worked out here."""

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

import pytest
import torch

from xyreward.errors import JudgeError
from xyreward.evaluation import PICKING_PROMPT, Evaluation, Row, evaluate, picking_prompt
from xyreward.items import Item, ItemKind
from xyreward.metrics import (
    METRICS,
    failure_bounds,
    failures,
    headline,
    headline_change,
    implicit_reward,
    measure,
)
from xyreward.policy import LogProb, Policy, load_policy
from xyreward.testing import ScriptedJudge, make_item, make_reference
from xyreward.verdict import JudgeFailure, LabelProbabilities, Labels, Suggestion, Verdict

GOAL = Labels(False, True, "intended", True)
LITERAL = Labels(True, False, "stated", False)
REFUSAL = Labels(False, False, "neither", False)
INVENTS = Labels(False, False, "neither", True)
DIRECT = Labels(True, True, "stated", False)


def row(name: str, labels: Labels | None = None, kind: ItemKind = "xy", **fields: Any) -> Row:
    verdict = asdict(labels) if labels else None
    base: dict[str, Any] = {"source": "t", "domain": "d", "language": "en", "cluster": name}
    return Row(item_id=name, kind=kind, verdict=verdict, **{**base, **fields})


def evaluation(*rows: Row, parts: Any = ("writing", "preference", "picking")) -> Evaluation:
    return Evaluation("p", tuple(rows), "j", "v", parts)


def value(key: str, *rows: Row) -> float:
    (line,) = (ln for ln in measure(evaluation(*rows)) if ln.metric.key == key)
    assert line.before is not None
    return line.before.value


def test_label_metrics_are_shares_of_the_items_of_their_kind() -> None:
    rows = [
        row("a", GOAL),
        row("b", LITERAL),
        row("c", LITERAL),
        row("d", REFUSAL),
        row("e", DIRECT, "control"),
        row("f", INVENTS, "control"),
    ]
    assert value("stated_solution", *rows) == 2 / 4
    assert value("intended_solution", *rows) == 1 / 4
    assert value("focus_intended", *rows) == 1 / 4
    assert value("focus_stated", *rows) == 2 / 4
    assert value("focus_neither", *rows) == 1 / 4
    assert value("misconception", *rows) == 1 / 4
    assert value("control_direct", *rows) == 1 / 2
    assert value("control_invents", *rows) == 1 / 2


def test_items_with_inferred_goals_are_not_averaged_with_others(policy: Policy) -> None:
    inferred = make_item(id="i", query="How do I?", meta={"inferred": True})
    for items in ([make_item(), inferred], [make_item(), Item.of_query("How do I?")]):
        with pytest.raises(ValueError, match=r"goals of 1 of the 2 items.* evaluate them apart"):
            evaluate(policy, items, judge=ScriptedJudge({}), parts=["writing"])
    column = make_item(id="i", query="How do I?", meta={"inferred": "no"})  # of a source
    found = evaluate(policy, [make_item(), column], judge=ScriptedJudge({}), parts=["writing"])
    assert len(found.rows) == 2


def test_preference_compares_log_probabilities_per_token() -> None:
    shorter_but_likelier_in_sum = row("a", better=LogProb(-30, 10), worse=LogProb(-20, 5))
    tie = row("b", better=LogProb(-10, 10), worse=LogProb(-5, 5))
    assert value("preference", shorter_but_likelier_in_sum) == 1  # -3 against -4 nats per token
    assert value("preference", shorter_but_likelier_in_sum, tie) == 0.75


def test_picking_in_both_orders_and_with_the_position_cancelled() -> None:
    always_a = row("a", picked=0.5, picked_first=1.0, pick_margin=0.2)
    right = row("b", picked=1.0, picked_first=0.5, pick_margin=1.0)
    assert value("picking", always_a, right) == 0.75
    assert value("picking_margin", always_a, right) == 1.0
    assert value("position", always_a, right) == 0.75


@pytest.mark.parametrize(
    ("xy", "control", "expected"),
    [
        ("goal", "direct", 1.0),
        ("literal", "direct", 0.0),  # answers every question literally
        ("goal", "invents", 0.0),  # looks behind every question
        ("refusal", "refusal", -1.0),
    ],
)
def test_the_headline_pays_no_policy_that_ignores_the_query(
    xy: str, control: str, expected: float
) -> None:
    labels = {
        "goal": GOAL, "literal": LITERAL, "direct": DIRECT, "invents": INVENTS, "refusal": REFUSAL,
    }  # fmt: skip
    rows = [row(f"x{i}", labels[xy]) for i in range(5)]
    rows += [row(f"c{i}", labels[control], "control") for i in range(5)]
    found = headline(evaluation(*rows))
    assert found.value == expected
    assert found.low is not None
    assert found.high is not None
    assert -1 <= found.low <= expected <= found.high <= 1
    assert found.low < found.high  # ten items cannot make it certain


def test_the_change_of_the_headline_is_paired_by_item() -> None:
    controls = [row(f"c{i}", DIRECT, "control") for i in range(8)]
    before = evaluation(*[row(f"x{i}", GOAL if i < 2 else LITERAL) for i in range(8)], *controls)
    after = evaluation(
        *[row(f"x{i}", GOAL if i < 6 else LITERAL) for i in range(8)],
        *controls[:6],
        row("c6", INVENTS, "control"),
        row("c7", INVENTS, "control"),
    )
    found = headline_change(before, after)
    assert found.value == (6 - 2) / 8 - 2 / 8
    assert found.low is not None
    assert found.high is not None
    assert found.low < found.value < found.high
    alone = [headline(e) for e in (before, after)]
    assert found.value == pytest.approx((alone[1].value or 0) - (alone[0].value or 0))


def test_the_papers_three_focuses_leave_neither_out() -> None:
    rows = [row("a", GOAL), row("b", LITERAL), row("c", LITERAL), row("d", REFUSAL)]
    assert value("paper_focus_intended", *rows) == 1 / 3
    assert value("paper_focus_stated", *rows) == 2 / 3
    assert value("focus_neither", *rows) == 1 / 4


def test_no_headline_without_controls() -> None:
    assert headline(evaluation(row("a", GOAL))).why.startswith("n/a: no controls; add {source")


def failed(name: str, kind: ItemKind = "xy", why: str = "timeout") -> Row:
    return replace(row(name, None, kind), failure=asdict(JudgeFailure(why, "late")))  # type: ignore[arg-type]


def test_failures_are_counted_by_kind_and_withhold_the_headline() -> None:
    rows = [row(f"x{i}", GOAL) for i in range(9)] + [failed("x9")]
    rows += [row("c0", DIRECT, "control")]
    of_xy, of_control = failures(evaluation(*rows))
    assert (of_xy.failed, of_xy.judged, of_xy.rate) == (1, 9, 0.1)
    assert dict(of_xy.by_kind) == {"timeout": 1}
    assert of_control.rate == 0
    assert headline(evaluation(*rows)).value is None
    assert (
        "10.0 % of judgements on items with a hidden goal failed" in headline(evaluation(*rows)).why
    )
    assert headline(evaluation(*rows), max_failure_rate=0.1).value == 1.0


def test_a_headline_that_is_withheld_says_whether_answers_or_judgements_are_missing() -> None:
    def missing(name: str) -> Row:
        return row(name, failure={"kind": "policy_missing", "detail": "the file has none"})

    rows = [row(f"x{i}", GOAL) for i in range(8)] + [row("c0", DIRECT, "control")]
    of_xy, _ = failures(evaluation(*rows, missing("x8"), failed("x9")))
    assert (of_xy.failed, of_xy.missing) == (2, 1)
    for lost, told in (
        (
            [missing("x8"), missing("x9")],
            "20.0 % of answers to items with a hidden goal are missing",
        ),
        ([failed("x8"), failed("x9")], "20.0 % of judgements on items with a hidden goal failed"),
        (
            [missing("x8"), failed("x9")],
            "20.0 % of answers to items with a hidden goal have no labels (1 missing, judgements failed on "
            "1)",
        ),
    ):
        why = headline(evaluation(*rows, *lost)).why
        assert why == f"n/a: {told}, more than max_failure_rate=5.0 %"


def test_failed_controls_alone_withhold_the_headline() -> None:
    rows = [row(f"i{n}", GOAL) for n in range(100)]
    rows += [row(f"c{n}", DIRECT, "control") for n in range(9)]
    lost = row("c9", kind="control", failure=asdict(JudgeFailure("timeout", "late")))
    found = headline(evaluation(*rows, lost))
    assert found.value is None
    assert "10.0 % of judgements on controls failed" in found.why
    whole = evaluation(*rows, row("c9", DIRECT, "control"))
    assert headline(whole).value == 1.0
    for before, after in ((whole, evaluation(*rows, lost)), (evaluation(*rows, lost), whole)):
        assert "on controls failed" in headline_change(before, after).why


def test_a_failure_is_no_row_of_any_metric_and_gives_bounds() -> None:
    rows = [row("a", GOAL), row("b", LITERAL), row("c", GOAL), failed("d")]
    assert value("misconception", *rows) == 2 / 3
    (metric,) = (m for m in METRICS if m.key == "misconception")
    assert failure_bounds(evaluation(*rows), metric) == (2 / 4, 3 / 4)
    assert failure_bounds(evaluation(*rows[:3]), metric) is None


def test_a_failure_bounds_only_what_it_hides() -> None:
    """20 answers: on 4 the judge failed, which are there all the same; one the policy did not give."""
    rows = [row(f"{n}", GOAL, answer="x", truncated=n < 2) for n in range(15)]
    timeout = {"kind": "timeout"}
    rows += [row(f"{n}", answer="x", truncated=False, failure=timeout) for n in range(15, 19)]
    rows += [row("19", failure={"kind": "policy_refused"})]
    bounds = {m.key: failure_bounds(evaluation(*rows), m) for m in METRICS}
    assert bounds["empty"] == (0.0, 1 / 20)
    assert bounds["truncated"] == (2 / 20, 3 / 20)
    assert bounds["intended_solution"] == (15 / 20, 1.0)
    judged = evaluation(*rows[:19])
    empty = next(m for m in METRICS if m.key == "empty")
    assert failure_bounds(judged, empty) is None  # every answer is there
    unseen = [row("a", answer="\u200b\u2060"), row("b", answer=" "), row("c", answer="\u200b.")]
    assert [empty.value(one) for one in unseen] == [1.0, 1.0, 0.0]


def test_changes_are_paired_and_use_only_items_measured_twice() -> None:
    before = evaluation(row("a", LITERAL), row("b", LITERAL), row("c", GOAL), failed("d"))
    after = evaluation(row("a", GOAL), row("b", LITERAL), failed("c"), row("d", GOAL))
    (line,) = (ln for ln in measure(before, after) if ln.metric.key == "intended_solution")
    assert line.before is not None
    assert line.after is not None
    assert line.change is not None
    assert (line.before.n, line.after.n, line.change.n) == (3, 3, 2)
    assert line.change.value == 1 / 2


@pytest.mark.parametrize("name", ["judge", "rubric_version", "parts"])
def test_evaluations_of_different_judges_or_rubrics_are_not_compared(name: str) -> None:
    one = evaluation(row("a", GOAL))
    changed: dict[str, Any] = {name: ("writing",) if name == "parts" else "other"}
    other = replace(one, **changed)
    with pytest.raises(ValueError, match=f"differ in {name}"):
        measure(one, other)


def test_evaluations_of_different_items_are_not_compared() -> None:
    with pytest.raises(ValueError, match="different items"):
        measure(evaluation(row("a", GOAL)), evaluation(row("b", GOAL)))


def test_implicit_reward_is_the_change_of_better_minus_worse() -> None:
    before = evaluation(
        row("a", better=LogProb(-10, 10), worse=LogProb(-20, 20)),
        row("b", better=LogProb(-10, 10), worse=LogProb(-20, 20)),
    )
    after = evaluation(
        row("a", better=LogProb(-9, 10), worse=LogProb(-22, 20)),  # +1 - (-2) = +3
        row("b", better=LogProb(-14, 10), worse=LogProb(-23, 20)),  # -4 - (-3) = -1
    )
    found = implicit_reward(before, after, "xy")
    assert found is not None
    assert found.accuracy.value == 0.5
    assert found.margin.value == (3 - 1) / 2
    # per token: +0.1 + 0.1 = 0.2 and -0.4 + 0.15 = -0.25
    assert found.margin_per_token.value == pytest.approx((0.2 - 0.25) / 2)
    assert found.better_change.value == (1 - 4) / 2
    assert found.worse_change.value == (-2 - 3) / 2
    assert implicit_reward(before, after, "control") is None
    # In sum the long worse answer gains more, per token the short better one does.
    one, other = (
        evaluation(row("a", better=LogProb(-b, 10), worse=LogProb(-w, 100)))
        for b, w in ((10, 100), (9, 98))
    )
    longer = implicit_reward(one, other, "xy")
    assert longer is not None
    assert (longer.accuracy.value, longer.accuracy_per_token.value) == (0, 1)


def test_an_evaluation_survives_its_file() -> None:
    one = evaluation(
        row("a", GOAL, answer="Ünicode\u2028line", better=LogProb(-1.5, 3), worse=LogProb(-2, 3)),
        failed("b"),
    )
    assert Evaluation.from_jsonl(one.to_jsonl()) == one


# ---------------------------------------------------------------- on a model


@pytest.fixture(scope="module")
def policy(tiny: str) -> Policy:
    return load_policy(tiny, device="cpu")


def items() -> list[Item]:
    return [
        make_item(id="a"),
        make_item(id="b", query="How do I sharpen a pencil with a knife? It keeps breaking."),
        make_item(id="c", kind="control"),
        make_item(id="bare", query="Why is it so?", references=()),
    ]


def test_every_part_is_measured_and_items_without_references_are_noted(policy: Policy) -> None:
    answers = policy.answer([i.messages for i in items()], max_new_tokens=8)
    judge = ScriptedJudge({(None, a.text): LITERAL for a in answers if a.text})
    done: dict[str, int] = {}

    def progress(what: str, n: int, total: int) -> None:
        done[what] = done.get(what, 0) + n
        assert done[what] <= total

    found = evaluate(policy, items(), judge=judge, max_new_tokens=8, progress=progress)
    assert [r.item_id for r in found.rows] == ["a", "b", "c", "bare"]
    for r in found.rows[:3]:
        assert r.answer is not None
        assert r.verdict is not None
        assert r.better is not None
        assert r.picked in (0, 0.5, 1)
    assert found.rows[3].better is None
    assert found.rows[3].picked is None
    assert "1 of 4 items have no pair of reference answers" in found.notes[0]
    assert done == {"writing": 4, "preference": 6, "picking": 6}


def test_picking_cancels_the_position(policy: Policy) -> None:
    item = make_item(id="x")
    same = make_item(
        id="y",
        references=(make_reference("goal_focused", "Same."), make_reference("literal", "Same. ")),
    )
    found = evaluate(policy, [item, same], parts=("picking",))
    a, b = policy.option_logits(
        [
            [{"role": "user", "content": PICKING_PROMPT.format(query=item.query, a=x, b=y)}]
            for x, y in (
                (item.references[0].text, item.references[1].text),
                (item.references[1].text, item.references[0].text),
            )
        ],
        ("A", "B"),
    )
    expected = ((a[0] - a[1]) + (b[1] - b[0])) / 2
    assert found.rows[0].pick_margin == pytest.approx(expected, abs=1e-4)
    assert found.judge is None


def test_a_failed_judgement_is_kept_as_a_failure_and_never_as_a_number(policy: Policy) -> None:
    judge = ScriptedJudge({})  # knows no answer
    found = evaluate(policy, items()[:2], judge=judge, parts=("writing",), max_new_tokens=8)
    assert all(r.answer for r in found.rows)
    for r in found.rows:
        assert r.failure is not None
        assert r.failure["kind"] == "off_menu"
        assert r.verdict is None
        assert r.reward is None
        assert r.soft_reward is None


class Explains(ScriptedJudge):
    """Says why, and which advice it found."""

    async def judge(
        self, items: Sequence[Item], answers: Sequence[str]
    ) -> list[Verdict | JudgeFailure]:
        found = Suggestion(answers[0][:3], "both", "It helps.")
        labels = Labels(True, True, "balanced", True)
        p = LabelProbabilities.certain(labels)
        return [Verdict(labels, p, "j", "v", suggestions=(found,), reason="So.") for _ in items]


def test_what_the_judge_says_of_an_answer_is_kept_with_it(policy: Policy) -> None:
    judge = Explains({})
    found = evaluate(policy, items()[:1], judge=judge, parts=("writing",), max_new_tokens=8)
    (one,) = Evaluation.from_jsonl(found.to_jsonl()).rows
    assert one.verdict is not None
    assert one.answer is not None
    assert one.verdict["reason"] == "So."
    assert one.verdict["suggestions"] == [
        {"quote": one.answer[:3], "serves": "both", "reason": "It helps."}
    ]


def test_a_policy_that_diverged_is_noted_and_never_a_number(tiny: str) -> None:
    broken = load_policy(tiny, device="cpu")
    with torch.no_grad():
        broken.model.lm_head.weight.fill_(math.nan)
    found = evaluate(broken, items()[:2], parts=("preference", "picking"))
    assert all(r.better is None and r.picked is None for r in found.rows)
    assert "not finite on 2 of 2 items" in found.notes[-1]
    assert "NaN" not in found.to_jsonl()


def test_items_that_the_judge_cannot_judge_are_refused_before_an_answer_is_generated(
    policy: Policy,
) -> None:
    bare = make_item(id="bare", stated_solutions=(), intended_solutions=())
    done: list[str] = []
    with pytest.raises(JudgeError, match=r"'bare' .* needs this grounding"):
        evaluate(policy, [bare], progress=lambda what, n, total: done.append(what))
    assert not done


def test_two_items_of_one_id_are_refused(policy: Policy) -> None:
    with pytest.raises(ValueError, match="distinct ids"):
        evaluate(policy, [make_item(id="a"), make_item(id="a")], parts=("preference",))


def test_a_query_with_braces_does_not_reach_into_the_picking_prompt(policy: Policy) -> None:
    hostile = make_item(id="h", query="What does {a} mean in {query}? And {0}?")
    (message,) = picking_prompt(hostile, "first answer, with {b}", "second answer")
    assert "What does {a} mean in {query}? And {0}?" in message["content"]
    assert "first answer, with {b}" in message["content"]
    assert message["content"].count("second answer") == 1


def test_the_file_of_an_evaluation_is_json_line_by_line(policy: Policy) -> None:
    found = evaluate(policy, items()[:1], parts=("preference",))
    assert all(json.loads(line) for line in found.to_jsonl().splitlines())
