"""What is said about many items of a cluster is no surer than what is said about few of them."""

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from rows import evaluation, failed, row

from xyreward.breakdown import breakdown, failure_rates
from xyreward.compare_runs import compare_runs
from xyreward.evaluation import Evaluation, Row
from xyreward.judge_noise import judge_noise
from xyreward.metrics import headline, headline_change, implicit_reward, measure
from xyreward.paired import co_movement, gap_change, label_tests, picking_writing_gap
from xyreward.policy import LogProb
from xyreward.report import build_report
from xyreward.verdict import FOCUS_VALUES, Labels

CLUSTERS = 24
"""Of each kind of item, with two items each."""


def one_row(rng: random.Random, n: int, kind: Any) -> Row:
    """Of a policy that does everything now and then, and of a judge that fails now and then."""
    cluster = f"{kind}{n // 2}"
    common: dict[str, Any] = {
        "cluster": cluster,
        "answer": "x" * rng.randint(0, 9),
        "truncated": rng.random() < 0.3,
        "better": LogProb(-rng.uniform(5, 15), 10),
        "worse": LogProb(-rng.uniform(5, 15), 10),
        "picked": rng.choice([0.0, 0.5, 1.0]),
        "picked_first": rng.choice([0.0, 0.5, 1.0]),
        "pick_margin": rng.uniform(-1, 1),
    }
    name = f"{kind}-{n}"
    if rng.random() < 0.2:
        return failed(name, kind, why=rng.choice(["timeout", "refused"]), **common)
    focus = rng.choice(FOCUS_VALUES)
    ayes = [rng.randint(0, 3) for _ in range(3)]
    labels = Labels(ayes[0] > 1, ayes[1] > 1, focus, ayes[2] > 1)
    found = row(name, labels, kind, soft_reward=rng.random(), reward=rng.random(), **common)
    p = {
        "has_stated_solution": ayes[0] / 3,
        "has_intended_solution": ayes[1] / 3,
        "identifies_misconception": ayes[2] / 3,
        "focus": {
            value: 2 / 3 if value == focus else 1 / 3 if value == other else 0.0
            for other in [rng.choice([v for v in FOCUS_VALUES if v != focus])]
            for value in FOCUS_VALUES
        },
    }
    return replace(found, verdict={**(found.verdict or {}), "p": p, "votes": 3})


def policy(seed: int) -> Evaluation:
    rng = random.Random(seed)
    kinds = ("xy", "control")
    return evaluation(*(one_row(rng, n, kind) for kind in kinds for n in range(2 * CLUSTERS)))


def doubled(one: Evaluation) -> Evaluation:
    """Of every item another that is just the same, in the same cluster."""
    again = (replace(r, item_id=f"{r.item_id} again") for r in one.rows)
    return replace(one, rows=(*one.rows, *again))


def in_folders(before: Evaluation, after: Evaluation, folder: Path) -> list[str]:
    names = []
    for name, one in (("a", before), ("b", after)):
        path = folder / f"{name}{len(one.rows)}"
        path.mkdir()
        (path / "evaluation.jsonl").write_text(one.to_jsonl(), "utf-8")
        names.append(str(path))
    return names


FUNCTIONS: dict[str, Callable[[Evaluation, Evaluation, Path], Any]] = {
    "measure": lambda b, a, _: measure(b, a),
    "headline": lambda b, a, _: headline(b, max_failure_rate=1),
    "headline_change": lambda b, a, _: headline_change(b, a, max_failure_rate=1),
    "implicit_reward": lambda b, a, _: [implicit_reward(b, a, kind) for kind in ("xy", "control")],
    "failure_rates": lambda b, a, _: failure_rates(b),
    "breakdown": lambda b, a, _: breakdown(b, a, by="kind"),
    "co_movement": lambda b, a, _: co_movement(b, a),
    "picking_writing_gap": lambda b, a, _: picking_writing_gap(b),
    "gap_change": lambda b, a, _: gap_change(b, a),
    "judge_noise": lambda b, a, _: judge_noise([b]),
    "compare_runs": lambda b, a, folder: compare_runs(in_folders(b, a, folder), max_failure_rate=1),
    "build_report": lambda b, a, _: build_report(
        b, a, conditions={"before.oracle": replace(a, condition="oracle")}, max_failure_rate=1
    ),
}


def intervals(found: Any, where: str = "") -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Everything within that has an interval, with its place."""
    if is_dataclass(found) and not isinstance(found, type):
        names = [field.name for field in fields(found)]
        if {"value", "low", "high"} <= set(names):
            yield where, asdict(found)
            return
        found = {name: getattr(found, name) for name in names if name != "metric"}
    if isinstance(found, Mapping):
        if {"value", "low", "high"} <= found.keys():
            yield where, found
            return
        for name, one in found.items():
            yield from intervals(one, f"{where}.{name}")
    elif isinstance(found, Sequence) and not isinstance(found, str):
        for i, one in enumerate(found):
            yield from intervals(one, f"{where}.{i}")


@pytest.mark.parametrize("function", FUNCTIONS)
def test_more_items_of_the_same_clusters_make_no_interval_narrower(
    function: str, tmp_path: Path
) -> None:
    before, after = policy(1), policy(2)
    of = FUNCTIONS[function]
    once = dict(intervals(of(before, after, tmp_path)))
    twice = dict(intervals(of(doubled(before), doubled(after), tmp_path)))
    assert once.keys() == twice.keys()
    assert any(one["low"] is not None for one in once.values())
    for where, one in once.items():
        two = twice[where]
        assert two["value"] == pytest.approx(one["value"], abs=1e-9), where
        assert two["low"] == pytest.approx(one["low"], abs=1e-9), where
        assert two["high"] == pytest.approx(one["high"], abs=1e-9), where
        if "n" in one:
            assert two["n"] == 2 * one["n"], where
            assert two["clusters"] == one["clusters"] <= 2 * CLUSTERS, where


def test_more_items_of_the_same_clusters_make_no_test_surer() -> None:
    before, after = policy(1), policy(2)
    once, twice = label_tests(before, after), label_tests(doubled(before), doubled(after))
    assert [t.p for t in once] == pytest.approx([t.p for t in twice])
    assert any(t.p < 1 for t in once)
