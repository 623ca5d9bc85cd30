"""`inspect eval xyreward/writing`, against the real Inspect: `make test-adapters`.

The model is Inspect's own `mockllm`, which says what it is told to; the judge is a script.
"""

import json
import math
import os
import subprocess
import sys
from collections import Counter
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("inspect_ai", reason="Inspect is not installed: make test-adapters")

from inspect_ai import eval as inspect_eval
from inspect_ai.log import EvalLog, read_eval_log
from inspect_ai.model import ModelOutput, ModelUsage, get_model
from inspect_ai.scorer import SampleScore, Score
from rows import DIRECT, GOAL, LITERAL, evaluation, row

from xyreward.errors import DataError, JudgeError
from xyreward.inspect_task import held_out, held_out_rows, writing
from xyreward.items import Item
from xyreward.loading import load_items
from xyreward.metrics import headline, measure
from xyreward.testing import FakeAPI

# Those of Inspect and what it imports; ours are errors in the main suite.
pytestmark = pytest.mark.filterwarnings("ignore")

LABELS = {"good": GOAL, "literal": LITERAL, "direct": DIRECT}


@pytest.fixture(scope="module")
def items() -> list[Item]:
    """Six questions with a hidden goal and four controls."""
    mini = load_items("mini")
    return [i for i in mini if i.kind == "xy"][:6] + [i for i in mini if i.kind == "control"][:4]


@pytest.fixture
def place(items: list[Item], tmp_path: Path) -> Path:
    """A folder with the items, all of them on the test side, and a script of what the judge says."""
    with (tmp_path / "items.jsonl").open("w") as stream:
        for item in items:
            stream.write(json.dumps({**item.model_dump(mode="json"), "split": "test"}) + "\n")
    lines: list[dict[str, Any]] = [
        {"answer": name, "labels": vars_of(labels)} for name, labels in LABELS.items()
    ]
    lines.append({"answer": "late", "failure": "timeout", "detail": "no reply in 600 s"})
    (tmp_path / "judge.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return tmp_path


def vars_of(labels: Any) -> dict[str, Any]:
    names = ("has_stated_solution", "has_intended_solution", "focus", "identifies_misconception")
    return {name: getattr(labels, name) for name in names}


def run(place: Path, answers: list[str], **arguments: Any) -> EvalLog:
    """A log of the model that gives these answers to the items, in their order in the file.

    Those after the first `good_epochs` answers to an item cannot be judged.
    """
    lines = (place / "items.jsonl").read_text().splitlines()
    items = [Item.model_validate(drop_split(json.loads(line))) for line in lines]
    good_epochs = arguments.pop("good_epochs", math.inf)
    by_query = {item.query_text: text for item, text in zip(items, answers, strict=True)}

    asked: Counter[str] = Counter()

    def answer(messages: list[Any], *_: Any) -> ModelOutput:
        query = messages[-1].text
        asked[query] += 1
        text = by_query[query] if asked[query] <= good_epochs else "late"
        output = ModelOutput.from_content("mockllm/model", text)
        # Without it the mock would fetch a tokenizer from the network to count with.
        output.usage = ModelUsage(input_tokens=10, output_tokens=5, total_tokens=15)
        return output

    model = get_model("mockllm/model", custom_outputs=answer)
    options = {k: arguments.pop(k) for k in ("epochs", "limit") if k in arguments}
    task = writing(
        **{
            "items": str(place / "items.jsonl"),
            "judge": f"scripted:{place / 'judge.jsonl'}",
            **{k: v for k, v in arguments.items() if k != "limit"},
        }
    )
    (log,) = inspect_eval(
        task,
        model=model,
        log_dir=str(place / "logs"),
        display="none",
        **options,
    )
    assert log.status == "success", log.error
    return read_eval_log(log.location)  # as the viewer reads it


def drop_split(line: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in line.items() if name != "split"}


def score_of(log: EvalLog, item: Item) -> Score:
    """The only score of an item's only answer."""
    assert log.samples is not None
    (sample,) = (one for one in log.samples if one.id == item.id)
    assert sample.scores is not None
    (score,) = sample.scores.values()
    return score


def metrics(log: EvalLog) -> dict[str, float]:
    assert log.results is not None
    (score,) = log.results.scores
    return {name: metric.value for name, metric in score.metrics.items()}


ANSWERS = [
    "good",
    "good",
    "literal",
    "literal",
    "literal",
    "good",
    "direct",
    "direct",
    "good",
    "direct",
]


def test_the_figures_are_those_of_our_own_evaluation(place: Path, items: list[Item]) -> None:
    found = metrics(run(place, ANSWERS))
    ours = evaluation(
        *(
            row(item.id, LABELS[text], item.kind, answer=text, truncated=False)
            for item, text in zip(items, ANSWERS, strict=True)
        ),
        parts=("writing",),
    )
    assert (found["judged_xy"], found["judged_control"]) == (6, 4)
    for line in measure(ours):
        assert line.before is not None
        assert found[line.metric.key] == pytest.approx(line.before.value), line.metric.key
    assert found["intended_solution"] == pytest.approx(3 / 6)
    assert found["control_direct"] == pytest.approx(3 / 4)
    assert found["headline"] == pytest.approx(headline(ours).value)
    assert found["intended_solution_low"] < 3 / 6 < found["intended_solution_high"]
    assert 0 < found["soft_reward"] < 1


def test_a_judge_failure_is_unscored_and_never_a_number(place: Path, items: list[Item]) -> None:
    log = run(place, ["late", *ANSWERS[1:]])
    assert log.results is not None
    (score,) = log.results.scores
    assert (score.scored_samples, score.unscored_samples) == (9, 1)
    failed = score_of(log, items[0])
    assert isinstance(failed.value, float)
    assert math.isnan(failed.value)
    assert (failed.reason, failed.explanation) == ("grader_failed", "timeout: no reply in 600 s")
    assert (failed.metadata or {})["failure"]["kind"] == "timeout"
    found = metrics(log)
    assert found["judged_xy"] == 5
    assert found["intended_solution"] == pytest.approx(2 / 5)
    assert "headline" not in found  # 1 of 6 is more than 5 %
    assert "headline" in metrics(run(place, ["late", *ANSWERS[1:]], max_failure_rate=0.2))


def test_where_all_judgements_failed_there_is_no_figure(place: Path) -> None:
    log = run(place, ["late"] * 10)
    assert log.results is not None
    (score,) = log.results.scores
    assert (score.scored_samples, score.unscored_samples) == (0, 10)
    assert [
        v for name, v in metrics(log).items() if not math.isnan(v) and "judged" not in name
    ] == []


def test_an_empty_answer_is_the_models_failure_and_scores_0(place: Path, items: list[Item]) -> None:
    log = run(place, ["", *ANSWERS[1:]])
    assert score_of(log, items[0]).value == 0
    assert metrics(log)["empty"] == pytest.approx(1 / 10)


def test_the_log_has_labels_rubric_and_judge_and_no_answers_of_others(
    place: Path, items: list[Item]
) -> None:
    log = run(place, ANSWERS)
    assert log.samples is not None
    assert log.eval.metadata is not None
    assert log.eval.metadata["judge"].startswith("scripted:")
    assert log.eval.metadata["rubric_version"].startswith("script-")
    (first,) = (one for one in log.samples if one.id == items[0].id)
    score = score_of(log, items[0])
    assert score.metadata is not None
    assert score.metadata["verdict"]["focus"] == "intended"
    assert score.explanation is not None
    assert "focus intended" in score.explanation
    assert first.metadata["item"]["stated_request"] == items[0].stated_request
    reference = items[0].references[0].text
    assert reference not in Path(log.location).read_bytes().decode("latin-1")
    assert reference not in json.dumps(first.model_dump(mode="json"))


def test_answers_to_one_item_are_one_cluster(place: Path) -> None:
    log = run(place, ANSWERS, epochs=2)
    found, once = metrics(log), metrics(run(place, ANSWERS))
    assert found["judged_xy"] == 12  # answers
    assert found["intended_solution"] == pytest.approx(3 / 6)
    # Twice the same answer tells nothing new.
    width = found["intended_solution_high"] - found["intended_solution_low"]
    assert width == pytest.approx(once["intended_solution_high"] - once["intended_solution_low"])


def test_failures_are_counted_by_answer_and_not_by_item(place: Path) -> None:
    whole = metrics(run(place, ANSWERS, epochs=4))
    assert (whole["judged_xy"], whole["judged_control"]) == (24, 16)
    assert "headline" in whole
    found = metrics(run(place, ANSWERS, epochs=4, good_epochs=1))
    assert (found["judged_xy"], found["judged_control"]) == (6, 4)  # each item once, of four times
    assert "headline" not in found
    assert "headline" not in metrics(run(place, ANSWERS, epochs=4, good_epochs=3))
    assert "headline" in metrics(
        run(place, ANSWERS, epochs=4, good_epochs=3, max_failure_rate=0.25)
    )


def test_without_knowing_how_often_items_are_answered_there_is_no_headline(place: Path) -> None:
    log = run(place, ANSWERS)
    scores = [
        SampleScore(score=score, sample_id=sample.id, sample_metadata=sample.metadata)
        for sample in log.samples or ()
        for score in (sample.scores or {}).values()
    ]
    found = held_out(xy=6, control=4)(scores)
    assert isinstance(found, dict)
    assert found["judged_xy"] == 6
    assert "headline" not in found


def test_the_headline_is_made_of_the_intervals_that_stand_beside_it(place: Path) -> None:
    found = metrics(run(place, ANSWERS, epochs=2))
    for end, sign in (("low", -1), ("high", 1)):
        parts = [found[key] - found[f"{key}_{end}"] for key in ("goal_served", "control_direct")]
        assert found[f"headline_{end}"] == pytest.approx(
            found["headline"] + sign * math.hypot(*parts)
        )


def test_a_part_of_the_items_has_no_headline_unless_the_task_was_told(place: Path) -> None:
    assert "headline" not in metrics(run(place, ANSWERS, limit=3))
    task = writing(str(place / "items.jsonl"), judge=f"scripted:{place / 'judge.jsonl'}", limit=2)
    assert len(task.dataset) == 4  # of each kind


def test_what_is_wrong_shows_before_anything_is_generated(place: Path) -> None:
    with pytest.raises(JudgeError, match="judge 'nobody' is not known"):
        writing(judge="nobody")
    with pytest.raises(DataError, match="expected train, dev, test"):
        writing(split="tset", judge=f"scripted:{place / 'judge.jsonl'}")
    with pytest.raises(DataError, match=r"no item of .* is on the dev side"):
        writing(str(place / "items.jsonl"), "dev", f"scripted:{place / 'judge.jsonl'}")


def test_rows_are_made_of_a_log_again(place: Path, items: list[Item]) -> None:
    log = run(place, ANSWERS)
    assert log.samples is not None
    scores = [
        SampleScore(score=score, sample_id=sample.id, sample_metadata=sample.metadata)
        for sample in log.samples
        for score in (sample.scores or {}).values()
    ]
    made = {one.item_id: one.answer for one in held_out_rows(scores)}
    assert made == {item.id: text for item, text in zip(items, ANSWERS, strict=True)}


def test_the_command_of_the_documentation_asks_a_server_and_scores_anew(place: Path) -> None:
    if not [one for one in entry_points(group="inspect_ai") if one.name == "xyreward"]:
        pytest.skip("this package is not installed with its entry point")
    inspect = str(Path(sys.executable).parent / "inspect")
    task = ["-T", f"items={place / 'items.jsonl'}", "-T", f"judge=scripted:{place / 'judge.jsonl'}"]
    common = ["--display", "none", "--log-dir", str(place / "logs")]
    with FakeAPI() as api:
        command = [
            inspect,
            "eval",
            "xyreward/writing",
            "--model",
            "openai-api/fake/m",
            *task,
            *common,
        ]
        server = {**os.environ, "FAKE_BASE_URL": f"{api.base_url}/v1", "FAKE_API_KEY": "any"}
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, cwd=place, env=server
        )
        assert api.stats.calls == 10
    assert done.returncode == 0, done.stdout + done.stderr
    (file,) = (place / "logs").glob("*.eval")
    log = read_eval_log(str(file))
    assert log.status == "success"
    assert log.results is not None
    (score,) = log.results.scores
    assert score.unscored_samples == 10  # the script does not have what the server says
    assert log.samples is not None
    failed = [one for s in log.samples for one in (s.scores or {}).values()]
    assert {(one.reason, (one.metadata or {})["failure"]["kind"]) for one in failed} == {
        ("grader_failed", "off_menu")
    }
    # Judged anew, by a judge that knows the answer.
    (text,) = {sample.output.completion for sample in log.samples}
    (place / "other.jsonl").write_text(json.dumps({"answer": text, "labels": vars_of(GOAL)}) + "\n")
    judge = ["--scorer", "xyreward/xy_reward", "-S", f"judge=scripted:{place / 'other.jsonl'}"]
    again = [inspect, "score", str(file), *judge, "--action", "overwrite", "--overwrite"]
    done = subprocess.run(
        [*again, "--display", "none"],
        capture_output=True,
        text=True,
        check=False,
        cwd=place,
        env=server,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = metrics(read_eval_log(str(file)))
    assert (found["judged_xy"], found["intended_solution"]) == (6, 1)
