"""`xy_reward`, a scorer for Inspect, against the real Inspect: `make test-adapters`.

Models are Inspect's own `mockllm`, which say what they are told to.
"""

import json
import math
import os
import re
import subprocess
import sys
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

from xyreward.inspect_scorer import samples, xy_reward
from xyreward.items import Item
from xyreward.testing import FakeAPI, make_item

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
    carried = {} if item is None else {"item": item.model_dump(mode="json")}
    dataset = [
        Sample(input=ITEM.query_text, id=f"s{i}", metadata=carried) for i in range(len(answers))
    ]
    return run_of(tmp_path, scorer, dataset, answers, **settings)


def run_of(
    tmp_path: Path, scorer: Any, dataset: list[Sample], answers: list[str], **settings: Any
) -> EvalLog:
    (log,) = inspect_eval(
        Task(dataset=MemoryDataset(dataset), solver=generate(), scorer=scorer),
        model=says(*answers),
        max_samples=1,
        log_dir=str(tmp_path / "logs"),
        display="none",
        **settings,
    )
    return log


def of(log: EvalLog, name: str = "xy_reward") -> list[Any]:
    return [(sample.scores or {})[name] for sample in log.samples or []]


def names(log: EvalLog) -> set[str]:
    assert log.results is not None
    return set(log.results.scores[-1].metrics)


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
    assert good.metadata["verdict"]["focus"] == "intended"
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


def test_a_spent_budget_ends_the_evaluation(tmp_path: Path) -> None:
    path = tmp_path / "script.jsonl"
    said = {"answer": GOOD, "failure": "over_budget", "detail": "20 of 20 spent; raise budget_usd"}
    path.write_text(json.dumps(said))
    log = run(tmp_path, xy_reward(f"scripted:{path}"), [GOOD])
    assert log.status == "error"
    assert log.error is not None
    assert "raise budget_usd" in log.error.message


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
    assert good.metadata["verdict"]["suggestions"][0]["quote"] == "Go to bed on Sunday"
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
    assert found.metadata["verdict"]["grounded"] is False
    assert (metric(log, "mean_inferred"), metric(log, "clusters_inferred")) == (1.0, 1)
    assert names(log) == {"mean_inferred", "clusters_inferred"}


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


LITERAL = "Put it on a metal tray."


@pytest.fixture
def both(tmp_path: Path) -> str:
    """A judge that knows an answer worth 1, one worth 0, and one that it fails on."""
    worst = {
        "has_stated_solution": True,
        "has_intended_solution": False,
        "focus": "stated",
        "identifies_misconception": False,
    }
    best = {**worst, "has_intended_solution": True, "focus": "intended"}
    lines = [
        {"answer": GOOD, "labels": {**best, "identifies_misconception": True}},
        {"answer": LITERAL, "labels": worst},
        {"answer": "?", "failure": "timeout", "detail": "no reply in 600 s"},
    ]
    path = tmp_path / "both.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return f"scripted:{path}"


QUERIES = [
    "My alarm does not wake me. How do I make it louder than it is now, without buying a new clock?",
    "My alarm does not wake me. How do I make it louder than it is now, without buying a new phone?",
    "How do I stop the tap in the kitchen from dripping at night?",
    "Which glue holds a handle on a cup of porcelain that goes into the dishwasher every day?",
]


def test_near_duplicates_are_one_cluster_of_the_standard_error(tmp_path: Path, both: str) -> None:
    made = samples([make_item(id=f"i{i}", query=query) for i, query in enumerate(QUERIES)])
    clusters = [(sample.metadata or {})["cluster"] for sample in made]
    assert clusters[0] == clusters[1]
    assert len(set(clusters)) == 3
    log = run_of(tmp_path, xy_reward(both), made, [GOOD, GOOD, LITERAL, LITERAL])
    assert metric(log) == 0.5
    assert metric(log, "clusters") == 3
    # Sums of a cluster's deviations from the mean: 2 * 0.5, -0.5, -0.5; corrected by 3 / 2; of 4 answers.
    assert metric(log, "stderr") == pytest.approx(math.sqrt(1.5 * 3 / 2) / 4)
    # As if there were four, which is too small: sqrt(1 / 3) / sqrt(4).
    assert metric(log, "stderr") > math.sqrt(1 / 3) / 2


def test_the_same_item_twice_is_one_cluster_without_being_told(tmp_path: Path, both: str) -> None:
    log = run(tmp_path, xy_reward(both), [GOOD, LITERAL])
    assert (metric(log), metric(log, "clusters")) == (0.5, 1)
    assert "stderr" not in names(log)  # one cluster has none, and not 0


def test_goals_that_were_inferred_are_averaged_apart(tmp_path: Path) -> None:
    carried = {"item": ITEM.model_dump(mode="json")}
    dataset = [
        Sample(input=ITEM.query_text, id="1 given", metadata=carried),
        Sample(input="How do I hide a broken tile?", id="2 bare"),
        Sample(input="How do I hide a broken pane?", id="3 empty"),
    ]
    none = {**VERDICT, "suggestions": [], "focus": "neither", "identifies_misconception": False}
    grader = says(json.dumps(VERDICT), json.dumps(GROUNDING), json.dumps(none))
    scorer = xy_reward(judge_options={"store": str(tmp_path / "s")})
    roles = {"grader": grader}
    log = run_of(tmp_path, scorer, dataset, [GOOD, "I do not know.", ""], model_roles=roles)
    # An empty answer is worth 0 without a call, and its goal would have been inferred all the same.
    assert [found.metadata["goal_inferred"] for found in of(log)] == [False, True, True]
    assert (metric(log, "mean"), metric(log, "mean_inferred")) == (1.0, 0.0)
    assert (metric(log, "clusters"), metric(log, "clusters_inferred")) == (1, 2)


def test_epochs_are_reduced_to_one_reward_per_sample(tmp_path: Path, both: str) -> None:
    made = samples([make_item(id=f"i{i}", query=query) for i, query in enumerate(QUERIES[1:3])])
    # One epoch after the other: the judge fails on the first sample's second answer.
    log = run_of(tmp_path, xy_reward(both), made, [GOOD, GOOD, "?", LITERAL], epochs=2)
    assert log.samples is not None
    by_sample = {
        (s.id, s.epoch): found.value for s, found in zip(log.samples, of(log), strict=True)
    }
    assert (by_sample["i0", 1], by_sample["i1", 1], by_sample["i1", 2]) == (1.0, 1.0, 0.0)
    assert math.isnan(by_sample["i0", 2])
    # A sample's reward is the mean of its judged answers, 1 and 1/2; of all answers it would be 2/3.
    assert metric(log) == 3 / 4
    assert metric(log, "clusters") == 2
    # Each is 1/4 from the mean: sqrt((1/16 + 1/16) / (2 - 1)) / sqrt(2).
    assert metric(log, "stderr") == pytest.approx(1 / 4)


def test_the_log_does_not_hold_what_others_answered() -> None:
    item = make_item(references=[{"text": "Sleep more, it helps.", "kind": "goal_focused"}])
    (made,) = samples([item])
    assert "Sleep more" not in made.model_dump_json()
    assert (made.metadata or {})["item"]["stated_request"] == item.stated_request


def test_the_task_of_the_documentation_is_found_and_asks_the_grader(tmp_path: Path) -> None:
    page = (Path(__file__).parent.parent / "docs/other_loops.md").read_text("utf-8")
    shown = re.search(r"```python\n# task.py\n(.*?)```", page, re.DOTALL)
    assert shown is not None
    (tmp_path / "task.py").write_text(shown[1])
    with FakeAPI() as api:
        environment = {
            **os.environ,
            "FAKE_BASE_URL": f"{api.base_url}/v1",
            "FAKE_API_KEY": "any",
            "XYREWARD_STORE": str(tmp_path / "store.sqlite"),
        }
        done = subprocess.run(
            [
                *(str(Path(sys.executable).parent / "inspect"), "eval", "task.py", "--limit", "2"),
                *("--model", "openai-api/fake/m", "--model-role", "grader=openai-api/fake/judge"),
                *("--display", "none", "--log-dir", str(tmp_path / "logs")),
            ],
            capture_output=True,
            text=True,
            check=False,
            cwd=tmp_path,
            env=environment,
        )
    assert done.returncode == 0, done.stdout + done.stderr
    (file,) = (tmp_path / "logs").glob("*.eval")
    log = read_eval_log(str(file))
    assert log.status == "success", log.error
    judges = {found.metadata["judge"] for found in of(log)}
    assert judges == {"inspect:openai-api/fake/judge"}
