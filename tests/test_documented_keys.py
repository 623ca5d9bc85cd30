"""The keys of the files of answers and of `xyreward compare --format json` are those that docs name."""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from rows import GOAL, LITERAL, evaluation, failed, row

from xyreward.compare_runs import compare_runs
from xyreward.errors import OtherVersion
from xyreward.evaluation import Evaluation, Row, judged_fields
from xyreward.policy import LogProb
from xyreward.scoring import Score
from xyreward.testing import make_item
from xyreward.verdict import JudgeFailure, LabelProbabilities, Suggestion, Verdict

DOCS = Path(__file__).parent.parent / "docs"


def documented(page: str) -> dict[str, list[str]]:
    """Name of an object -> keys of its table, in their order."""
    text = (DOCS / page).read_text("utf-8")
    found = {}
    for name, table in re.findall(r"^\*\*(\w+)\*\*: .*\n\n((?:\|.*\n)+)", text, re.M):
        lines = table.splitlines()[2:]
        found[name] = [key for line in lines for key in re.findall(r"`(\w+)`", line.split("|")[1])]
    return found


def objects(node: Any, name: str, inner: Mapping[str, str]) -> Iterator[tuple[str, list[str]]]:
    """Every object in JSON as its name and its keys.

    Args:
        inner: key -> name of the objects below it: of its value, of a list, or by name (`*Name`).
    """
    yield name, list(node)
    for key, value in node.items():
        if (below := inner.get(key)) is None or not value:
            continue
        by_name = below.startswith("*")
        several = value.values() if by_name else value if isinstance(value, list) else [value]
        for one in several:
            if one:
                yield from objects(one, below.lstrip("*"), inner)


def judged() -> dict[str, Any]:
    """The fields of a row that are a judge's, all of them there."""
    verdict = Verdict(
        GOAL, LabelProbabilities.certain(GOAL), "j", "v", (Suggestion("advice", "intended", "why"),)
    )
    return judged_fields(make_item(), "advice", Score(1.0, verdict, None, "j"))


def test_the_keys_of_a_file_of_answers_are_those_in_the_docs() -> None:
    whole = replace(row("a", GOAL, better=LogProb(-1.5, 3), worse=LogProb(-2.0, 3)), **judged())
    lost = replace(failed("b"), failure=asdict(JudgeFailure("unparseable", "prose", "So.")))
    head, *rows = map(json.loads, evaluation(whole, lost).to_jsonl().splitlines())
    inner = {
        "verdict": "Verdict", "p": "Probabilities", "suggestions": "Suggestion", "failure": "Failure",
        "better": "LogProb", "worse": "LogProb",
    }  # fmt: skip
    written = dict(objects(head, "Head", {}))
    for one in rows:
        for name, keys in objects(one, "Row", inner):
            assert written.setdefault(name, keys) == keys
    told = documented("evaluate.md")
    assert {name: sorted(keys) for name, keys in written.items()} == {
        name: sorted(keys) for name, keys in told.items()
    }


def test_the_keys_of_a_comparison_are_those_in_the_docs(tmp_path: Path) -> None:
    for name, one in (("a", GOAL), ("b", LITERAL)):
        (tmp_path / name).mkdir()
        found = evaluation(row("x", one), row("y", GOAL), failed("z"), parts=("writing",))
        (tmp_path / name / "evaluation.jsonl").write_text(found.to_jsonl(), "utf-8")
    compared = compare_runs([str(tmp_path / "a"), str(tmp_path / "b")], max_failure_rate=1)
    inner = {
        "label_tests": "LabelTest", "failures": "Failures", "headline": "Headline", "runs": "Run",
        "differences": "Difference", "published": "Published", "bands": "Band",
    }  # fmt: skip
    written = dict(objects({**compared, "metrics": []}, "Comparison", inner))
    of_metrics = {"runs": "*Figure", "differences": "*Figure"}
    for metric in compared["metrics"]:
        written |= dict(objects(metric, "Metric", of_metrics))
    told = documented("compare.md")
    assert {name: sorted(keys) for name, keys in written.items()} == {
        name: sorted(keys) for name, keys in told.items()
    }


# ---------------------------------------------------------------- the number of the version


def with_head(**changes: Any) -> str:
    head, rest = evaluation(row("a", GOAL)).to_jsonl().split("\n", 1)
    kept = {**json.loads(head), **changes}
    return json.dumps({k: v for k, v in kept.items() if v is not None}) + "\n" + rest


def test_the_first_line_has_the_version_and_a_file_from_before_there_was_one_is_read() -> None:
    text = evaluation(row("a", GOAL)).to_jsonl()
    assert text.startswith('{"schema": 1, ')
    old = with_head(schema=None)
    assert "schema" not in old.split("\n", 1)[0]
    assert Evaluation.from_jsonl(old) == Evaluation.from_jsonl(text) == evaluation(row("a", GOAL))


def test_a_file_of_a_later_version_is_named_as_that_whatever_else_is_in_it() -> None:
    later = with_head(schema=2, more=1, policy=3)
    with pytest.raises(OtherVersion, match="schema is 2, expected at most 1: a later version"):
        Evaluation.from_jsonl(later)


@pytest.mark.parametrize("schema", ["1", 0, True, 1.5])
def test_a_version_that_is_none_is_an_error_of_the_file(schema: Any) -> None:
    with pytest.raises(ValueError, match="line 1: schema: ") as caught:
        Evaluation.from_jsonl(with_head(schema=schema))
    assert not isinstance(caught.value, OtherVersion)


def test_a_key_that_is_not_in_the_docs_is_refused_in_head_and_row_and_kept_within() -> None:
    head, one, _ = evaluation(row("a", GOAL)).to_jsonl().split("\n")
    fields = json.loads(one)
    for text in (with_head(more=1), f"{head}\n{json.dumps({**fields, 'more': 1})}\n"):
        with pytest.raises(OtherVersion, match="does not know more"):
            Evaluation.from_jsonl(text)
    within = {**fields, "verdict": {**fields["verdict"], "more": 1}}
    (read,) = Evaluation.from_jsonl(f"{head}\n{json.dumps(within)}\n").rows
    assert read.verdict is not None
    assert read.verdict["more"] == 1


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        (
            [row("a", GOAL), row("b", GOAL), row("a", GOAL)],
            "line 4: answer 0 to item 'a' is in line 2",
        ),
        ([row("a", GOAL, reward=7.0)], "line 2: reward: "),
        ([row("a", GOAL, soft_reward=-0.1)], "line 2: soft_reward: "),
        ([row("a", picked=2.0)], "line 2: picked: "),
        ([failed("a", reward=1.0)], "line 2: has a reward and no verdict"),
        ([failed("a", verdict=row("a", GOAL).verdict)], "line 2: has a verdict and a failure"),
        ([row("a", GOAL), row("b")], "line 3: has no verdict and no failure"),
    ],
)
def test_a_row_twice_and_a_reward_that_cannot_be_are_named(rows: list[Row], said: str) -> None:
    with pytest.raises(ValueError, match=re.escape(said)):
        Evaluation.from_jsonl(evaluation(*rows).to_jsonl())
    several = evaluation(
        row("a", GOAL, reward=1.0), row("a", GOAL, answer_index=1, soft_reward=0.0)
    )
    assert Evaluation.from_jsonl(several.to_jsonl()) == several
