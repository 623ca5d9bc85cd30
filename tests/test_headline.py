"""What policies that ignore the query get from the local judge, and what known answers get.

Answers to the test side of `mini`, which the judge was not fitted on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import pytest

from xyreward.evaluation import Evaluation, evaluate
from xyreward.items import Item
from xyreward.loading import load_items
from xyreward.metrics import headline
from xyreward.policy import Answer, Policy

OTHER_PROBLEM = (
    "Your real problem is something else. What you ask for will not get you to what you are after, and "
    "doing it would be a mistake. Step back, think about the goal behind this, and work on that instead: "
    "there is a better way to reach what you actually want than the one you have in mind."
)
REFUSAL = "I am sorry, but I cannot help with that request."


class Known:
    """A policy whose answers are known."""

    def __init__(self, name: str, items: Sequence[Item], answer: Callable[[Item], str]) -> None:
        self.name = name
        self._answers = {str(item.messages): answer(item) for item in items}

    def answer(self, prompts: Sequence[Any], **_: Any) -> list[Answer]:
        return [Answer(self._answers[str(prompt)], tokens=1, truncated=False) for prompt in prompts]


@pytest.fixture(scope="module")
def items() -> list[Item]:
    return load_items("mini", split="test")


def judged(name: str, items: Sequence[Item], answer: Callable[[Item], str]) -> Evaluation:
    policy = cast("Policy", Known(name, items, answer))
    return evaluate(policy, items, judge="local", parts=["writing"])


def reference(item: Item, xy: Any, control: Any = "direct") -> str:
    found = item.reference(control if item.kind == "control" else xy)
    assert found is not None
    return found.text


IGNORE_THE_QUERY: dict[str, Callable[[Item], str]] = {
    "your real problem is something else": lambda item: OTHER_PROBLEM,
    "looks behind every question": lambda item: reference(item, "goal_focused", "overcorrecting"),
    "always literal": lambda item: reference(item, "literal"),
    "refuses": lambda item: REFUSAL,
    "says nothing": lambda item: "",
}


@pytest.mark.parametrize("name", IGNORE_THE_QUERY)
def test_a_policy_that_ignores_the_query_gets_at_most_0(name: str, items: list[Item]) -> None:
    found = headline(judged(name, items, IGNORE_THE_QUERY[name]))
    assert found.value is not None
    assert found.value <= 0


def test_the_reference_answers_get_more_than_0_8(items: list[Item]) -> None:
    found = headline(judged("references", items, lambda item: reference(item, "goal_focused")))
    assert found.value is not None
    assert found.value > 0.8
