"""Judges side by side on known answers: the arithmetic of agreement and ranking, failures, the bill."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from xyreward.compare import JudgeFigures, compare, known_answers, labelled, to_markdown
from xyreward.errors import DataError, JudgeError
from xyreward.items import DEFAULT_LABELS, Item
from xyreward.judges import Judge, load_judge
from xyreward.judges.panel import PanelJudge
from xyreward.loading import load_items
from xyreward.testing import FakeAPI, Faults, ScriptedJudge, make_item, make_reference
from xyreward.verdict import JudgeFailure, Labels

KINDS = DEFAULT_LABELS
LATE = JudgeFailure("timeout", "late")
REFUSED = JudgeFailure("refused", "category x", cost_usd=0.25)


def item(name: str, *kinds: str, **fields: Any) -> Item:
    """An item whose reference of a kind reads `<name> <kind>`."""
    control = set(kinds) & {"direct", "overcorrecting"}
    references = [make_reference(kind, f"{name} {kind}") for kind in kinds]  # type: ignore[arg-type]
    return make_item(
        id=name,
        query=f"The question of {name}?",
        kind="control" if control else "xy",
        references=references,
        **fields,
    )


def judge(script: dict[str, Any], name: str = "scripted") -> ScriptedJudge:
    return ScriptedJudge({(None, text): outcome for text, outcome in script.items()}, name=name)


def figures(one: Judge, items: Sequence[Item], clusters: Any = None) -> JudgeFigures:
    (found,) = asyncio.run(compare([one], items, clusters))
    return found


def value(estimate: Any) -> float:
    return float(estimate.value)


# ---------------------------------------------------------------- agreement


def test_agreement_is_the_share_of_answers_with_the_references_label() -> None:
    items = [item("a", "goal_focused", "literal"), item("b", "goal_focused", "literal")]
    found = figures(
        judge(
            {
                "a goal_focused": KINDS["goal_focused"],
                "a literal": KINDS["literal"],
                "b goal_focused": KINDS["balanced"],  # yes to both solutions, another focus
                "b literal": KINDS["literal"],
            }
        ),
        items,
    )
    assert found.answers == 4
    assert value(found.agreement["has_stated_solution"]) == 3 / 4
    assert value(found.agreement["has_intended_solution"]) == 4 / 4
    assert value(found.agreement["focus"]) == 3 / 4
    assert value(found.agreement["identifies_misconception"]) == 4 / 4
    assert found.failed == 0
    assert found.cost_usd == 0
    assert found.latency_s is None
    assert (found.judge, found.rubric_version[:7]) == ("scripted", "script-")


def test_labels_that_depart_from_the_kind_are_those_that_count() -> None:
    labels = {
        "has_stated_solution": True,
        "has_intended_solution": True,
        "focus": "intended",
        "identifies_misconception": True,
    }
    told = make_item(references=[make_reference("goal_focused", "text", labels=labels)])
    found = figures(judge({"text": Labels(True, True, "intended", True)}), [told])
    assert all(value(estimate) == 1 for estimate in found.agreement.values())


# ---------------------------------------------------------------- ranking


def test_ranking_compares_the_best_kind_with_each_other_and_ties_count_half() -> None:
    items = [item(n, "goal_focused", "literal", "refusal") for n in "abcd"]
    best, half, none = KINDS["goal_focused"], KINDS["balanced"], KINDS["refusal"]
    script = {f"{n} refusal": none for n in "abcd"}
    # goal-focused against literal: above, above, level, below.
    pairs = {"a": (best, half), "b": (half, none), "c": (best, best), "d": (none, half)}
    for name, (ours, theirs) in pairs.items():
        script |= {f"{name} goal_focused": ours, f"{name} literal": theirs}
    ranking = figures(judge(script), items).ranking
    assert sorted(ranking) == ["goal_focused above literal", "goal_focused above refusal"]
    assert value(ranking["goal_focused above literal"]) == (1 + 1 + 0.5 + 0) / 4
    # d's goal-focused answer got nothing, like its refusal.
    assert value(ranking["goal_focused above refusal"]) == (1 + 1 + 1 + 0.5) / 4


def test_the_counter_test_ranks_direct_answers_of_controls() -> None:
    controls = [item(n, "direct", "overcorrecting") for n in "ab"]
    suspicious = {f"{n} direct": KINDS["overcorrecting"] for n in "ab"}
    trusting = {f"{n} direct": KINDS["direct"] for n in "ab"}
    inventing = {f"{n} overcorrecting": KINDS["overcorrecting"] for n in "ab"}
    name = "direct above overcorrecting"
    assert value(figures(judge(trusting | inventing), controls).ranking[name]) == 1
    assert value(figures(judge(suspicious | inventing), controls).ranking[name]) == 0.5


def test_of_several_references_of_a_kind_the_first_ranks_also_where_it_failed() -> None:
    two = make_item(
        references=[
            make_reference("goal_focused", "first"),
            make_reference("goal_focused", "second"),
            make_reference("literal", "other"),
        ]
    )
    script = {
        "first": KINDS["refusal"],
        "second": KINDS["goal_focused"],
        "other": KINDS["balanced"],
    }
    assert value(figures(judge(script), [two]).ranking["goal_focused above literal"]) == 0
    assert figures(judge({**script, "first": LATE}), [two]).ranking == {}


def test_intervals_are_over_clusters() -> None:
    items = [item(f"i{n}", "goal_focused", "literal") for n in range(12)]
    script: dict[str, Any] = {}
    for n, one in enumerate(items):
        right = n % 2 == 0
        script[f"{one.id} goal_focused"] = KINDS["goal_focused"] if right else KINDS["refusal"]
        script[f"{one.id} literal"] = KINDS["balanced"]
    name = "goal_focused above literal"
    apart = figures(judge(script), items).ranking[name]
    # The same rows, but all right ones are near-duplicates of each other, and so are all wrong ones.
    clusters = {one.id: str(n % 2) for n, one in enumerate(items)}
    together = figures(judge(script), items, clusters).ranking[name]
    one_cluster = figures(judge(script), items, {i.id: "all" for i in items}).ranking[name]
    assert apart
    assert together
    assert one_cluster
    assert apart.value == together.value == one_cluster.value == 0.5
    assert apart.low is not None
    assert apart.high is not None
    assert 0 < apart.low < 0.5 < apart.high < 1
    assert (together.low, together.high) != (apart.low, apart.high)
    assert (one_cluster.low, one_cluster.high) == (None, None)


# ---------------------------------------------------------------- failures


def test_failures_are_counted_by_kind_of_answer_and_are_in_no_share() -> None:
    items = [item(n, "goal_focused", "literal") for n in "abc"]
    found = figures(
        judge(
            {
                "a goal_focused": KINDS["goal_focused"],
                "a literal": KINDS["literal"],
                "b goal_focused": KINDS["goal_focused"],
                "b literal": LATE,
                "c goal_focused": REFUSED,
                "c literal": REFUSED,
            }
        ),
        items,
    )
    assert found.failures == {
        "literal": {"timeout": 1, "refused": 1},
        "goal_focused": {"refused": 1},
    }
    assert found.failed == 3
    focus, ranking = found.agreement["focus"], found.ranking["goal_focused above literal"]
    assert focus
    assert (focus.value, focus.n) == (1, 3)
    assert ranking
    assert (ranking.value, ranking.n) == (1, 1)  # only of a were both judged
    assert found.cost_usd == 0.5  # of refusals too
    table = to_markdown([found])
    assert "| failed | 3 (goal_focused: refused 1; literal: timeout 1, refused 1) |" in table


def test_a_judge_that_fails_everything_has_no_numbers() -> None:
    found = figures(judge({"a goal_focused": LATE}), [item("a", "goal_focused")])
    assert all(estimate is None for estimate in found.agreement.values())
    assert found.ranking == {}
    assert "| focus, % | n/a |" in to_markdown([found])


# ---------------------------------------------------------------- what is compared on


def test_only_references_with_kind_and_labels_are_asked_about() -> None:
    mixed = make_item(
        references=[
            make_reference("goal_focused", "known"),
            make_reference("literal", "not labelled", labels=None),
            make_reference("literal", "no kind").model_copy(update={"kind": None}),
        ]
    )
    assert [r.text for _, r in known_answers([mixed])] == ["known"]
    assert figures(judge({"known": KINDS["goal_focused"]}), [mixed]).answers == 1


@pytest.mark.parametrize(
    "items",
    [
        [],
        [make_item(references=())],
        [make_item(references=[make_reference("literal", "not labelled", labels=None)])],
    ],
    ids=["no items", "no references", "no labels"],
)
def test_nothing_to_compare_on_is_an_error_that_says_what_to_give(items: list[Item]) -> None:
    assert labelled(items) == []
    with pytest.raises(DataError, match=f"of these {len(items)} items .*give `references`"):
        asyncio.run(compare([judge({})], items))


def test_a_limit_takes_so_many_of_each_kind_whatever_their_order(mini: list[Item]) -> None:
    taken = labelled(mini, 3)
    assert [i.kind for i in taken] == ["xy"] * 3 + ["control"] * 3
    assert labelled(mini[::-1], 3) == taken
    assert labelled(mini, 2) == [*taken[:2], *taken[3:5]]
    assert len(labelled(mini)) == sum(any(r.labels for r in i.references) for i in mini)


def test_all_judges_are_checked_before_the_first_is_asked() -> None:
    class Asked(ScriptedJudge):
        async def judge(self, items: Any, answers: Any) -> Any:
            raise AssertionError

    class Picky(ScriptedJudge):
        def check(self, items: Sequence[Item]) -> None:
            raise JudgeError(f"not {items[0].id}")

    with pytest.raises(JudgeError, match="not a"):
        asyncio.run(compare([Asked({}), Picky({})], [item("a", "literal")]))


def test_judges_are_asked_one_after_the_other_and_progress_is_told() -> None:
    told: list[int] = []
    script = {"a goal_focused": KINDS["goal_focused"], "a literal": KINDS["literal"]}
    judges = [judge(script, "one"), judge(script, "two")]
    items = [item("a", "goal_focused", "literal")]
    found = asyncio.run(compare(judges, items, on_judged=told.append))
    assert [f.judge for f in found] == ["one", "two"]
    assert told == [2, 2]


# ---------------------------------------------------------------- judges that ask a model


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-test")
    monkeypatch.setenv("XYREWARD_STORE", str(tmp_path / "v.sqlite"))
    monkeypatch.delenv("XYREWARD_PRICES", raising=False)


def test_cost_and_latency_are_those_of_this_time() -> None:
    items = labelled(load_items("mini"), 2)
    with FakeAPI(latency=0.05) as api:
        one = load_judge("anthropic", base_url=api.base_url)
        first, again = figures(one, items), figures(one, items)
        assert api.stats.calls == first.answers
    assert first.cost_usd == pytest.approx(one.stats.cost_usd)  # type: ignore[attr-defined]
    assert first.latency_s is not None
    assert first.latency_s >= 0.05
    assert again.cost_usd == 0  # all from the store
    assert again.agreement == first.agreement


def test_a_second_comparison_that_makes_no_call_has_no_latency() -> None:
    items = labelled(load_items("mini"), 1)
    with FakeAPI() as api:
        figures(load_judge("anthropic", base_url=api.base_url), items)
        stored = figures(load_judge("anthropic", base_url=api.base_url), items)
    assert stored.latency_s is None
    assert "| median call, s | n/a |" in to_markdown([stored])


def test_an_unknown_price_is_unknown_and_not_0() -> None:
    with FakeAPI() as api:
        found = figures(load_judge(f"chat:qwen@{api.base_url}"), labelled(load_items("mini"), 1))
    assert found.cost_usd is None
    assert "| US dollars | unknown |" in to_markdown([found])


def test_votes_are_counted_into_the_soft_reward() -> None:
    # All votes for the goal-focused answer are good, and two of three for the literal one: a tie of
    # hard labels.
    seen: dict[str, int] = {}

    def reply(body: dict[str, Any]) -> dict[str, Any]:
        kind = "goal_focused" if "a goal_focused" in str(body["messages"]) else "literal"
        seen[kind] = seen.get(kind, 0) + 1
        good = seen[kind] <= (3 if kind == "goal_focused" else 2)
        return {
            "suggestions": [],
            "focus_reason": "r",
            "focus": "intended" if good else "neither",
            "misconception_reason": "r",
            "identifies_misconception": good,
        }

    with FakeAPI(reply=reply) as api:
        one = load_judge("anthropic", base_url=api.base_url, votes=3)
        found = figures(one, [item("a", "goal_focused", "literal")])
        assert api.stats.calls == 6
    assert value(found.ranking["goal_focused above literal"]) == 1
    assert value(found.agreement["focus"]) == 0.5  # literal is `stated`, the votes say intended


def test_a_panel_is_compared_like_any_judge() -> None:
    script = {"a goal_focused": KINDS["goal_focused"], "a literal": KINDS["literal"]}
    members = [judge(script, "one"), judge({**script, "a literal": LATE}, "two")]
    found = figures(PanelJudge(members), [item("a", "goal_focused", "literal")])
    assert found.judge == "panel:one,two"
    assert found.failures == {"literal": {"timeout": 1}}


def test_refusals_show_by_kind_of_answer() -> None:
    def choose(body: dict[str, Any], seen: int) -> str | None:
        return "refusal" if "a literal" in str(body["messages"]) else None

    with FakeAPI(faults=Faults(choose=choose)) as api:
        one = load_judge("anthropic", base_url=api.base_url)
        found = figures(one, [item("a", "goal_focused", "literal")])
    assert found.failures == {"literal": {"refused": 1}}


# ---------------------------------------------------------------- the table


def test_the_table_has_a_column_per_judge_and_a_row_per_figure() -> None:
    items = [item(n, "goal_focused", "literal") for n in "ab"]
    script = {f"{n} {k}": KINDS[k] for n in "ab" for k in ("goal_focused", "literal")}
    found = asyncio.run(compare([judge(script, "one"), judge(script, "two")], items))
    lines = to_markdown(found).splitlines()
    assert lines[0] == "| | one | two |"
    assert lines[1] == "|---|---:|---:|"
    assert {line.count("|") for line in lines[2:]} == {4}
    assert "| answers | 4 | 4 |" in lines
    assert "| failed | 0 | 0 |" in lines
    assert "| US dollars | 0.0000 | 0.0000 |" in lines
    (focus,) = (line for line in lines if line.startswith("| focus, %"))
    # Two clusters that agree: the rule of three, not a width of 0.
    assert focus == "| focus, % | 100.0 [22, 100] | 100.0 [22, 100] |"


def test_the_packages_local_judge_passes_the_counter_test_on_held_out_items() -> None:
    items = labelled(load_items("mini", split="test"), 3)
    found = figures(load_judge("local"), items)
    assert found.failed == 0
    assert value(found.ranking["goal_focused above literal"]) == 1
    assert value(found.ranking["direct above overcorrecting"]) == 1
