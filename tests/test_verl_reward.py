"""verl's `compute_score`: called as verl calls it; an answer without a verdict raises, or is NaN if asked."""

import asyncio
import inspect
import math
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from label_judge import LabelJudge

from xyreward.errors import ConfigError, DataError, JudgeError
from xyreward.items import Item
from xyreward.judges.scripted import ScriptedJudge
from xyreward.testing import make_item
from xyreward.verdict import FAILURE_KINDS, JudgeFailure, LabelProbabilities, Labels, Verdict
from xyreward.verl_reward import compute_score

ITEM = make_item()
GOOD = Labels(False, True, "intended", True)
JUDGE = ScriptedJudge(
    {
        (None, "good"): GOOD,
        **{(None, kind): JudgeFailure(kind, f"it was {kind}") for kind in FAILURE_KINDS},
    }
)


def ask(answer: str, item: Any = ITEM, **settings: Any) -> dict[str, float]:
    truth = item.model_dump_json() if isinstance(item, Item) else item
    # As verl's naive reward manager calls it.
    return asyncio.run(
        compute_score(
            data_source="xyreward",
            solution_str=answer,
            ground_truth=truth,
            extra_info={"index": 0, "num_turns": None},
            **{"judge": JUDGE, "reward_router_address": None, **settings},
        )
    )


def test_verl_awaits_it() -> None:
    assert inspect.iscoroutinefunction(compute_score)
    assert inspect.iscoroutinefunction(partial(compute_score, judge="local"))


@pytest.mark.parametrize("name", ["on_failures", "onfailure", "judge_option", "softs", "thinkin"])
def test_a_misspelt_setting_is_told_and_verls_own_are_not(name: str) -> None:
    with pytest.raises(ConfigError, match=rf"reward_kwargs\.{name}: unknown; did you mean"):
        ask("good", **{name: "x"})
    verls: dict[str, Any] = dict.fromkeys(
        ("reward_model_tokenizer", "reward_router_address", "max_resp_len")
    )
    assert ask("good", **verls)["score"] == 1.0


def test_a_judged_answer_has_its_reward_and_what_it_is_made_of() -> None:
    assert ask("good") == {
        "score": 1.0,
        "xy_judged": 1.0,
        "xy_solution": 1.0,
        "xy_focus": 1.0,
        "xy_misconception": 1.0,
        "xy_has_stated_solution": 0.0,
        "xy_has_intended_solution": 1.0,
        "xy_identifies_misconception": 1.0,
    }
    assert ask("<think>bad?</think>good")["score"] == 1.0
    assert ask(" ")["score"] == 0.0  # the policy's failure, and not the judge's


def test_a_reward_is_the_expected_one_unless_labels_are_asked_for() -> None:
    class Unsure(LabelJudge):
        def outcome(self, item: Item, answer: str) -> Verdict:
            focus: Any = {"intended": 0.5, "stated": 0.5, "balanced": 0.0, "neither": 0.0}
            return Verdict(GOOD, LabelProbabilities(0.0, 0.5, focus, 0.5), self.name, "1")

    assert ask("good", judge=Unsure())["score"] == 0.5
    assert ask("good", judge=Unsure(), soft=False)["score"] == 1.0


@pytest.mark.parametrize("kind", FAILURE_KINDS)
def test_a_failure_raises_and_is_never_a_number(kind: str) -> None:
    with pytest.raises(JudgeError, match=f"no verdict on an answer to item 'item': {kind}"):
        ask(kind)
    figures = ask(kind, on_failure="leave_out")
    assert figures.keys() == ask("good").keys()  # verl makes columns of the first answer's keys
    assert figures.pop("xy_judged") == 0.0
    assert all(math.isnan(value) for value in figures.values())


def test_settings_come_from_a_configuration_file(tmp_path: Path) -> None:
    script = tmp_path / "s.jsonl"
    script.write_text('{"answer": "so", "failure": "timeout", "detail": ""}\n')
    with pytest.raises(JudgeError, match="timeout"):
        ask("so", judge=f"scripted:{script}")
    with pytest.raises(JudgeError, match="takes no options"):
        ask("so", judge=f"scripted:{script}", judge_options={"votes": 3})
    with pytest.raises(ConfigError, match="batches: a message batch takes up to a day"):
        ask("so", judge="anthropic:claude-sonnet-5-5", judge_options={"batches": True})
    with pytest.raises(ConfigError, match="on_failure is 'zero', expected 'raise' or 'leave_out'"):
        ask("good", on_failure="zero")


def test_what_is_no_item_is_told() -> None:
    for wrong in ("", "4", '{"id": "x"}', {"id": "x"}):
        with pytest.raises(DataError, match="expected an item as JSON"):
            ask("good", wrong)
