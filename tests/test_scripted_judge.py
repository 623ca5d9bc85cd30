import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from xyreward.errors import JudgeError
from xyreward.items import DEFAULT_LABELS
from xyreward.judges import load_judge
from xyreward.judges.scripted import ScriptedJudge
from xyreward.scoring import score
from xyreward.testing import make_item
from xyreward.verdict import JudgeFailure, Labels, Verdict

GOOD = DEFAULT_LABELS["goal_focused"]
BAD = DEFAULT_LABELS["literal"]
LABELS = {
    "has_stated_solution": False,
    "has_intended_solution": True,
    "focus": "intended",
    "identifies_misconception": True,
}
A, B = make_item(id="a"), make_item(id="b")


def script(path: Path, *rows: Any) -> Path:
    path.write_text("".join(json.dumps(r, ensure_ascii=False) + "\n" for r in rows), "utf-8")
    return path


def labels_of(judge: ScriptedJudge, item: Any, answer: str) -> Labels | str:
    (outcome,) = asyncio.run(judge.judge([item], [answer]))
    return outcome.labels if isinstance(outcome, Verdict) else outcome.kind


def test_the_line_for_an_item_wins_over_the_line_for_any_item() -> None:
    judge = ScriptedJudge({("a", "x"): GOOD, (None, "x"): BAD})
    assert labels_of(judge, A, "x") == GOOD
    assert labels_of(judge, B, "x") == BAD


def test_an_answer_that_the_script_lacks_is_off_menu() -> None:
    judge = ScriptedJudge({("a", "x"): GOOD})
    assert labels_of(judge, B, "x") == "off_menu"
    assert labels_of(judge, A, "y") == "off_menu"


def test_a_verdict_is_certain_names_its_judge_and_flags_what_is_odd() -> None:
    odd = Labels(False, False, "intended", True)
    judge = ScriptedJudge({(None, "x"): odd}, name="mine")
    (verdict,) = asyncio.run(judge.judge([A], ["x"]))
    assert isinstance(verdict, Verdict)
    assert verdict.judge == "mine"
    assert verdict.rubric_version == judge.rubric_version
    assert verdict.p.focus["intended"] == 1.0
    assert verdict.flags == ("focus_intended_without_intended_solution",)


def test_the_version_follows_what_is_told_and_not_its_order() -> None:
    one = ScriptedJudge({(None, "x"): GOOD, (None, "y"): BAD})
    other_order = ScriptedJudge({(None, "y"): BAD, (None, "x"): GOOD})
    other_labels = ScriptedJudge({(None, "x"): GOOD, (None, "y"): GOOD})
    assert one.rubric_version == other_order.rubric_version
    assert one.rubric_version != other_labels.rubric_version


def test_a_script_from_a_file_gives_labels_and_failures(tmp_path: Path) -> None:
    path = script(
        tmp_path / "s.jsonl",
        {"item_id": "a", "answer": "x", "labels": LABELS},
        {"answer": "y", "failure": "timeout", "detail": "after 60 s"},
        {"item_id": None, "answer": "z", "failure": "refused"},
    )
    judge = load_judge(f"scripted:{path}")
    assert judge.name == f"scripted:{path}"
    x, y, z = score(A, ["x", "y", "z"], judge)
    assert x.reward == 1.0
    assert y.failure == JudgeFailure("timeout", "after 60 s")
    assert z.failure == JudgeFailure("refused", "as the script says")


def test_a_script_saved_on_windows_reads_the_same(tmp_path: Path) -> None:
    line = json.dumps({"answer": "x", "labels": LABELS})
    path = tmp_path / "s.jsonl"
    path.write_bytes(b"\xef\xbb\xbf" + f"{line}\r\n\r\n".encode())
    assert labels_of(ScriptedJudge.from_file(path), A, "x") == GOOD


@pytest.mark.parametrize("end", ["\u2028", "\x85", "\u2029"], ids=ascii)
def test_an_answer_may_hold_any_line_end_of_unicode(tmp_path: Path, end: str) -> None:
    path = script(tmp_path / "s.jsonl", {"answer": f"one{end}two", "labels": LABELS})
    assert labels_of(ScriptedJudge.from_file(path), A, f"one{end}two") == GOOD


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{not json", "line 2: .*double quotes"),
        ("[]", "line 2: is list, expected an object"),
        ("[" * 100_000, "line 2: is nested too deep"),
        ('{"labels": {}}', r"line 2: \(item_id, answer\) is \(None, None\), expected \(string or"),
        (
            '{"answer": 5, "failure": "timeout"}',
            r"line 2: .*\(None, 5\), expected \(string or none",
        ),
        ('{"answer": ["x"], "failure": "timeout"}', r"line 2: .*\['x'\]\), expected"),
        ('{"item_id": 3, "answer": "x", "failure": "timeout"}', r"line 2: .*\(3, 'x'\), expected"),
        ('{"item": "a", "answer": "x", "failure": "timeout"}', "line 2: unknown keys item"),
        ('{"answer": "x"}', "line 2: expected exactly one of labels, failure"),
        (
            json.dumps({"answer": "x", "labels": LABELS, "failure": "timeout"}),
            "line 2: expected exactly one of labels, failure",
        ),
        ('{"answer": "x", "failure": "oops"}', "line 2: failure 'oops', expected one of transport"),
        ('{"answer": "x", "failure": ["oops"]}', "line 2: failure .*expected one of transport"),
        (
            json.dumps({"answer": "x", "labels": {**LABELS, "focus": "both"}}),
            "line 2: .*focus.*'stated', 'intended', 'balanced' or 'neither'",
        ),
        (
            json.dumps({"answer": "x", "labels": {"focus": "stated"}}),
            "line 2: .*has_stated_solution",
        ),
        (
            json.dumps({"answer": "ok", "failure": "timeout"}),
            "line 2: another line says something else of the same answer",
        ),
    ],
)
def test_a_malformed_line_is_named_with_what_is_wrong(
    tmp_path: Path, line: str, message: str
) -> None:
    path = tmp_path / "s.jsonl"
    path.write_text(json.dumps({"answer": "ok", "labels": LABELS}) + f"\n{line}\n", "utf-8")
    with pytest.raises(JudgeError, match=message) as caught:
        ScriptedJudge.from_file(path)
    assert str(path) in str(caught.value)


def test_all_malformed_lines_are_named(tmp_path: Path) -> None:
    path = script(tmp_path / "s.jsonl", 1, 2, {"answer": "x", "labels": LABELS}, 3)
    with pytest.raises(JudgeError) as caught:
        ScriptedJudge.from_file(path)
    assert [f"line {i}:" in str(caught.value) for i in (1, 2, 3, 4)] == [True, True, False, True]


def test_the_same_line_twice_is_no_contradiction(tmp_path: Path) -> None:
    row = {"answer": "x", "labels": LABELS}
    assert labels_of(ScriptedJudge.from_file(script(tmp_path / "s", row, row)), A, "x") == GOOD


def test_a_file_that_is_missing_a_folder_or_not_text_is_refused(tmp_path: Path) -> None:
    with pytest.raises(JudgeError, match=r"no file .*absent\.jsonl"):
        load_judge(f"scripted:{tmp_path / 'absent.jsonl'}")
    with pytest.raises(JudgeError, match="no file"):
        load_judge(f"scripted:{tmp_path}")
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(JudgeError, match="binary: not UTF-8"):
        load_judge(f"scripted:{tmp_path / 'binary'}")


@pytest.mark.parametrize(
    "bad",
    [{"x": GOOD}, {("a", "x", "y"): GOOD}, {(1, "x"): GOOD}, {(None, "x"): "goal_focused"}],
    ids=["answer alone", "three", "number", "kind in place of labels"],
)
def test_a_script_in_memory_that_could_never_match_is_refused(bad: Any) -> None:
    with pytest.raises(
        JudgeError, match=r"expected \(item id or None, answer\) -> Labels or Judge"
    ):
        ScriptedJudge(bad)
