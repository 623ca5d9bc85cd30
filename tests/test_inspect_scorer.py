"""`xy_reward`, a scorer for Inspect, against the real Inspect: `make test-adapters`.

Models are Inspect's own `mockllm`, which say what they are told to.
"""

import json
import math
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("inspect_ai", reason="Inspect is not installed: make test-adapters")

from inspect_ai import Task, score
from inspect_ai import eval as inspect_eval
from inspect_ai.dataset import MemoryDataset, Sample
from inspect_ai.log import EvalLog, read_eval_log
from inspect_ai.model import Model, ModelOutput, ModelUsage, get_model
from inspect_ai.solver import generate

from xyreward.inspect_scorer import xy_reward
from xyreward.items import Item
from xyreward.testing import make_item

# Inspect and what it imports; ours are tested by the main suite.
pytestmark = pytest.mark.filterwarnings("default")

ITEM = make_item(id="alarm")
GOOD = "Go to bed on Sunday as early as on other days."
VERDICT = {
    "suggestions": [{"quote": "Go to bed on Sunday", "reason": "sleep", "serves": "intended"}],
    "focus_reason": "all of it",
    "focus": "intended",
    "misconception_reason": "says why",
    "identifies_misconception": True,
}
GROUNDING = {
    "stated_request": "A louder alarm.",
    "hidden_goal_reason": "They want to get up.",
    "hidden_goal": True,
    "intended_request": "Get up on time.",
    "misconception": "Loudness does not help.",
    "stated_solutions": ["A metal tray."],
    "intended_solutions": ["Sleep more."],
}


@pytest.fixture
def judge(tmp_path: Path) -> str:
    labels = {name: VERDICT[name] for name in ("focus", "identifies_misconception")}
    labels |= {"has_stated_solution": False, "has_intended_solution": True}
    lines = [
        {"answer": GOOD, "labels": labels},
        {"answer": "?", "failure": "timeout", "detail": "x"},
    ]
    path = tmp_path / "script.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return f"scripted:{path}"


def says(*texts: str | ModelOutput, name: str = "model") -> Model:
    outputs = [
        t if isinstance(t, ModelOutput) else ModelOutput.from_content("mockllm/model", t)
        for t in texts
    ]
    for output in outputs:
        # Without it the mock would fetch a tokenizer from the network to count with.
        output.usage = ModelUsage(input_tokens=10, output_tokens=5, total_tokens=15)
    return get_model(f"mockllm/{name}", custom_outputs=outputs, memoize=False)


def run(
    tmp_path: Path, scorer: Any, answers: list[str], item: Item | None = ITEM, **settings: Any
) -> EvalLog:
    samples = [
        Sample(
            input=ITEM.query_text,
            id=f"s{i}",
            metadata={} if item is None else {"item": item.model_dump(mode="json")},
        )
        for i in range(len(answers))
    ]
    (log,) = inspect_eval(
        Task(dataset=MemoryDataset(samples), solver=generate(), scorer=scorer),
        model=says(*answers),
        max_samples=1,
        log_dir=str(tmp_path / "logs"),
        display="none",
        **settings,
    )
    return log


def of(log: EvalLog, name: str = "xy_reward") -> list[Any]:
    return [(sample.scores or {})[name] for sample in log.samples or []]


def metric(log: EvalLog, name: str = "mean") -> float:
    assert log.results is not None
    return log.results.scores[-1].metrics[name].value


def test_rewards_and_labels_are_in_the_log_and_failures_are_unscored(
    tmp_path: Path, judge: str
) -> None:
    log = run(tmp_path, xy_reward(judge), [GOOD, "?", ""])
    assert log.status == "success"
    good, failed, empty = of(log)
    assert good.value == 1.0
    assert good.metadata["labels"]["focus"] == "intended"
    assert good.metadata["metrics"]["solution"] == 1.0
    assert good.metadata["judge"] == judge
    assert math.isnan(failed.value)
    assert failed.reason == "grader_failed"
    assert failed.explanation == "timeout: x"
    assert failed.metadata["failure"]["kind"] == "timeout"
    assert (empty.value, empty.reason) == (0.0, "no_response")
    assert metric(log) == 0.5  # of the two that were judged
    assert log.results is not None
    assert log.results.scores[0].unscored_samples == 1
    # What was written can be read.
    assert read_eval_log(log.location).samples is not None


def test_without_a_grader_nobody_grades(tmp_path: Path) -> None:
    # Not even the model under test.
    log = run(tmp_path, xy_reward(judge_options={"store": str(tmp_path / "s")}), [GOOD])
    assert log.status == "error"
    assert log.error is not None
    assert "'grader' is required" in log.error.message


def test_the_model_of_the_role_judges_with_our_rubric(tmp_path: Path) -> None:
    grader = says(json.dumps(VERDICT), "no JSON at all", "none again")
    scorer = xy_reward(judge_options={"store": str(tmp_path / "s")})
    log = run(tmp_path, scorer, [GOOD, "Another answer."], model_roles={"grader": grader})
    good, failed = of(log)
    assert good.value == 1.0
    assert good.metadata["judge"].startswith("inspect:mockllm/")
    assert good.metadata["suggestions"][0]["quote"] == "Go to bed on Sunday"
    assert math.isnan(failed.value)
    assert failed.metadata["failure"]["kind"] == "unparseable"
    # What a role uses is in Inspect's own books.
    assert log.samples is not None
    assert all("grader" in (sample.role_usage or {}) for sample in log.samples)


def test_a_grader_that_breaks_is_unscored_and_not_asked_again_by_us(tmp_path: Path) -> None:
    refused = ModelOutput.from_content("mockllm/model", "No.", stop_reason="content_filter")
    cut = ModelOutput.from_content("mockllm/model", '{"sugg', stop_reason="max_tokens")
    grader = says(refused, cut)  # a third question raises: the script is at its end
    scorer = xy_reward(judge_options={"store": str(tmp_path / "s")})
    log = run(tmp_path, scorer, ["one", "two", "three"], model_roles={"grader": grader})
    assert [s.metadata["failure"]["kind"] for s in of(log)] == ["refused", "truncated", "transport"]
    assert math.isnan(metric(log))


def test_a_sample_without_an_item_is_a_bare_query(tmp_path: Path) -> None:
    grader = says(json.dumps(GROUNDING), json.dumps(VERDICT))
    scorer = xy_reward(judge_options={"store": str(tmp_path / "s")})
    log = run(tmp_path, scorer, [GOOD], item=None, model_roles={"grader": grader})
    (found,) = of(log)
    assert found.value == 1.0
    assert found.metadata["grounded"] is False


def test_a_log_is_scored_anew(tmp_path: Path, judge: str) -> None:
    log = run(tmp_path, xy_reward(judge), [GOOD, "?"])
    grader = says(json.dumps(VERDICT), json.dumps({**VERDICT, "suggestions": [
        {"quote": "?", "reason": "none", "serves": "neither"}], "focus": "neither",
        "identifies_misconception": False}))  # fmt: skip
    options = {"store": str(tmp_path / "s")}
    again = score(
        log,
        xy_reward(judge_options=options),
        model_roles={"grader": grader},
        action="append",
        display="none",
    )
    assert [math.isnan(s.value) for s in of(again)] == [False, True]
    assert [s.value for s in of(again, "xy_reward1")] == [1.0, 0.0]
    # A second time nobody is asked: the verdicts are in the store.
    silent = score(
        log,
        xy_reward(judge_options=options),
        model_roles={"grader": says()},
        action="overwrite",
        display="none",
    )
    assert [s.value for s in of(silent)] == [1.0, 0.0]
    assert all(s.metadata["cached"] for s in of(silent))


def test_several_graders_are_a_panel(tmp_path: Path) -> None:
    graders = [says(json.dumps(VERDICT), name=name) for name in ("a", "b")]
    scorer = xy_reward(judge_options={"store": str(tmp_path / "s")})
    log = run(tmp_path, scorer, [GOOD], model_roles={"grader": graders})
    (found,) = of(log)
    assert found.value == 1.0
    assert found.metadata["judge"] == "panel:inspect:mockllm/a,inspect:mockllm/b"
