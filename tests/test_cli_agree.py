"""`xyreward agree` and `xyreward annotate`, as they are typed."""

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from xyreward import cli
from xyreward.ratings import LABELS
from xyreward.testing import FakeAPI

ITEM = "cleaning-cellar-summer-airing"
GOOD = {
    "has_stated_solution": False,
    "has_intended_solution": True,
    "focus": "intended",
    "identifies_misconception": True,
}


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XYREWARD_STORE", str(tmp_path / "store" / "v.sqlite"))
    monkeypatch.setenv("XYREWARD_CALIBRATION", str(tmp_path / "cal"))
    monkeypatch.chdir(tmp_path)
    for name in ("XYREWARD_RUN", "TORCHELASTIC_RUN_ID", "XYREWARD_PRICES", "OPENAI_API_KEY"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def api() -> Iterator[FakeAPI]:
    with FakeAPI() as running:
        yield running


class Ended:
    """What a command said and how it ended."""

    def __init__(self, status: int | str | None, out: str, err: str) -> None:
        self.status, self.out, self.err = status, out, err


@pytest.fixture
def run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., Ended]:
    def command(*arguments: str | Path) -> Ended:
        monkeypatch.setattr(sys, "argv", ["xyreward", *map(str, arguments)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            cli.main()
        captured = capsys.readouterr()
        return Ended(ended.value.code, captured.out, captured.err)

    return command


def write(rows: Sequence[dict[str, Any]], path: str) -> str:
    Path(path).write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    return path


def answers(n: int) -> list[dict[str, Any]]:
    return [{"item_id": ITEM, "answer": f"Air the cellar at night, number {i}."} for i in range(n)]


def labels(n: int) -> str:
    return write(
        [{**row, "annotator": "ann", "labels": GOOD} for row in answers(n)], "labels.jsonl"
    )


def test_the_command_of_the_documentation_on_real_labels(run: Any, external_data: Path) -> None:
    command = (
        "agree", external_data / "pandalm_annotators.jsonl",
        "--human", "annotator1,annotator2,annotator3", "--judge", "judge_gpt35",
        "--failure-labels", "garbage", "--map", "Tie=0",
    )  # fmt: skip
    page = run(*command).out.replace("|  |", "| |").replace("|  |", "| |").splitlines()
    table = [line for line in page if line.startswith("| ") and "[" in line]
    documented = (Path(__file__).parent.parent / "docs/agree.md").read_text("utf-8").splitlines()
    assert len(table) == 10
    assert set(table) <= set(documented)
    done = run(*command, "--format", "json")
    assert done.status == 0
    one = json.loads(done.out)["labels"]["label"]
    assert one["raters"][3] == {
        "name": "judge_gpt35", "role": "judge", "labelled": 974, "failed": 25, "missing": 0,
    }  # fmt: skip
    mean = one["judges"][0]["mean"]
    assert mean["value"] == pytest.approx(0.706, abs=5e-4)
    assert mean["low"] < mean["value"] < mean["high"]
    assert one["people_mean"]["value"] == pytest.approx(0.920, abs=5e-4)


def test_a_table_as_markdown(run: Any) -> None:
    rows = [{"id": i, "a": "x" if i < 6 else "y", "b": "x" if i < 7 else "y"} for i in range(10)]
    done = run("agree", write(rows, "t.jsonl"), "--human", "a,b", "--label", "better answer")
    assert done.status == 0
    assert "## better answer" in done.out
    assert "| `a`, `b` | 10 | 90.0 [" in done.out


def test_a_person_who_labelled_nothing_that_the_judge_did_is_not_counted_in_the_mean(
    run: Any,
) -> None:
    rows = [{"id": i, "a": "xy"[i % 2], "j": "x"} for i in range(6)]
    rows += [{"id": i, "a": "x", "b": "y"} for i in range(6, 9)]
    done = run("agree", write(rows, "t.jsonl"), "--human", "a,b", "--judge", "j")
    assert "| `b`, `j` | 0 | n/a | n/a | n/a |" in done.out
    assert "| `j`, mean over 1 person | 6 | 50.0 [" in done.out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--human", "a,b", "--record"], "--record: for answers with the four labels"),
        (["--human", "a,b", "--seed", "-1"], "Invalid value for '--seed'"),
        (["--human", "a,b", "--ask", "local"], "--ask: for answers with the four labels"),
        (["--map", "a=b"], "--map: for a table with a column per rater"),
        (["--human", "a,b", "--map", "ab"], "'ab', expected FROM=TO"),
        (
            ["--human", "a,b", "--map", "0=1,1=0"],
            "'0=1,1=0', expected FROM=TO, and the option again",
        ),
        (["--human", "a,b", "--map", "a=1", "--map", "a=2"], "'a' is mapped to two labels"),
        (["--human", "a,b", "--format", "yaml"], "'yaml', expected markdown or json"),
        (["t.jsonl", "--human", "a,b"], "2 files, expected one table"),
        (["--human", "a,c"], "no column 'c'"),
        (["--against-store", "chat:x", "--votes", "3"], "votes: only a judge that is asked"),
    ],
)
def test_what_does_not_go_together_is_refused(run: Any, arguments: list[str], message: str) -> None:
    write([{"id": 1, "a": "x", "b": "y"}], "t.jsonl")
    write([{**row, "labels": GOOD} for row in answers(1)], "l.jsonl")
    file = "l.jsonl" if "--against-store" in arguments else "t.jsonl"
    done = run("agree", file, *arguments)
    assert done.status == 2
    assert message in " ".join(done.err.split()).replace("│ ", "")


def test_scored_answers_against_labels_and_the_record_that_score_then_names(
    run: Any, api: FakeAPI
) -> None:
    judge = f"chat:qwen@{api.base_url}"
    write(answers(6), "answers.jsonl")
    first = run("score", "answers.jsonl", "--judge", judge, "--out", "v.jsonl")
    assert first.status == 0
    assert "no calibration record covers chat:qwen@" in first.out
    done = run("agree", labels(6), "v.jsonl", "--record", "--note", "toy", "--format", "json")
    assert done.status == 0
    data = json.loads(done.out)
    assert list(data["labels"]) == [*LABELS[:3], "focus, neither left out", LABELS[3]]
    (shown,) = data["judges"]
    assert data["judges"][shown]["judge"] == judge
    assert [s["name"] for s in data["sources"]] == ["labels.jsonl", "v.jsonl"]
    (kept,) = Path("cal").iterdir()
    assert str(kept.resolve()) in done.err
    again = run("score", "answers.jsonl", "--judge", judge, "--out", "v2.jsonl")
    assert "agrees with 1 person on 6 answers: stated solution" in again.out
    assert "(toy; " in again.out


def test_a_judge_s_name_out_of_a_file_does_not_steer_the_terminal(run: Any) -> None:
    verdict = {"verdict": GOOD, "failure": None, "judge": "j\x1b[2J", "rubric_version": "v\u202e"}
    scored = write([{**row, **verdict} for row in answers(6)], "v.jsonl")
    done = run("agree", labels(6), scored, "--record", "--note", "of\x07 a toy")
    assert done.status == 0
    assert r"j\x1b[2J (v\u202e) agrees with 1 person on 6 answers" in done.err
    assert r"(of\x07 a toy; " in done.err
    assert (done.out + done.err).replace("\n", "").isprintable()


def test_a_retired_judge_is_compared_from_the_store_and_the_new_ones_bill_comes_first(
    run: Any, api: FakeAPI
) -> None:
    write(answers(5), "answers.jsonl")
    old, new = f"chat:old@{api.base_url}", f"chat:new@{api.base_url}"
    assert run("score", "answers.jsonl", "--judge", old, "--out", "old.jsonl").status == 0
    before = api.wait_idle().requests
    arguments = ("agree", "answers.jsonl", "--against-store", "chat:old", "--ask", new)
    dry = run(*arguments, "--dry-run")
    assert dry.status == 0
    assert "5 calls to make, 0 already in the store" in dry.out
    assert "Nothing was sent." in dry.out
    assert "store: 5 verdicts of chat:old (xy-1-" in dry.err
    assert api.wait_idle().requests == before
    done = run(*arguments, "--format", "json")
    assert done.status == 0
    data = json.loads(done.out)
    assert {j["judge"] for j in data["judges"].values()} == {"chat:old", new}
    (pair,) = data["labels"]["focus"]["judge_pairs"]
    assert pair["n"] == 5
    assert f"{new}: " in done.err  # the bill
    assert api.wait_idle().requests > before
    # A file of verdicts of the new judge does as well, and asks nobody.
    assert run("score", "answers.jsonl", "--judge", new, "--out", "new.jsonl").status == 0
    before = api.wait_idle().requests
    by_file = run("agree", "new.jsonl", "--against-store", "chat:old", "--format", "json")
    (same,) = json.loads(by_file.out)["labels"]["focus"]["judge_pairs"]
    assert {same["first"], same["second"]} == {pair["first"], pair["second"]}
    assert same["agreement"] == pair["agreement"]
    assert same["kappa"] == pair["kappa"]
    assert api.wait_idle().requests == before


def test_a_store_without_the_old_judge_stops_before_the_new_one_is_paid(
    run: Any, api: FakeAPI
) -> None:
    write(answers(2), "answers.jsonl")
    new = f"chat:new@{api.base_url}"
    missing = run("agree", "answers.jsonl", "--against-store", "chat:old", "--ask", new)
    assert missing.status == 2
    assert run("score", "answers.jsonl", "--judge", new, "--out", "v.jsonl").status == 0
    before = api.wait_idle().requests
    done = run("agree", "answers.jsonl", "--against-store", "chat:old", "--ask", f"{new}")
    assert done.status == 2
    assert "no verdict of chat:old; it has those of chat:new" in done.err
    assert api.wait_idle().requests == before


def test_a_judge_that_is_asked_now_and_fails_ends_with_status_1(run: Any) -> None:
    script = [{"answer": row["answer"], "labels": GOOD} for row in answers(3)]
    script[0] = {"answer": script[0]["answer"], "failure": "refused"}
    judge = "scripted:" + write(script, "script.jsonl")
    done = run("agree", labels(3), "--ask", judge)
    assert done.status == 1
    assert "no verdict on 1 answer, which is in no figure" in done.err
    assert f"| `{judge}` | 2 | 1 | 0 |" in done.out


def test_what_cannot_be_recorded_is_told_before_a_judge_is_paid_or_ends_with_status_3(
    run: Any, api: FakeAPI
) -> None:
    judge = f"chat:qwen@{api.base_url}"
    nobody = run("agree", write(answers(2), "answers.jsonl"), "--ask", judge, "--record")
    assert nobody.status == 2
    assert "nothing to record: no judge with a verdict was compared with a person's" in nobody.err
    assert api.wait_idle().requests == 0
    Path("taken").write_text("")
    done = run("agree", labels(2), "--ask", judge, "--record", "--record-folder", "taken")
    assert done.status == 3
    assert "FileExistsError" in done.err
    assert api.wait_idle().requests > 0


def test_all_that_is_wrong_is_told_and_nothing_is_kept(run: Any) -> None:
    rows = [{**answers(1)[0], "labels": {**GOOD, "focus": "both"}}, {"labels": GOOD}]
    done = run("agree", write(rows, "l.jsonl"), "--record")
    assert done.status == 2
    assert "l.jsonl row 1: focus is 'both'" in done.err
    assert "l.jsonl row 2: has no answer" in done.err
    assert not Path("cal").exists()


def test_annotate_writes_a_sheet_and_no_second_one_over_it(run: Any) -> None:
    rows = [*answers(3), answers(1)[0], {"item_id": ITEM, "answer": ""}]
    write([{**row, "policy": "secret-policy"} for row in rows], "answers.jsonl")
    done = run("annotate", "answers.jsonl", "--out", "sheets/sheet.html")
    assert done.status == 0
    assert done.out.startswith("3 answers to label in sheets/sheet.html (sheet ")
    assert "1 row had an answer that is there already" in done.out
    assert "1 empty answer is left out" in done.out
    text = Path("sheets/sheet.html").read_text("utf-8")
    assert "secret-policy" not in text
    again = run("annotate", "answers.jsonl", "--out", "sheets/sheet.html")
    assert again.status == 2
    assert Path("sheets/sheet.html").read_text("utf-8") == text
    assert run("annotate", "answers.jsonl", "--out", "b.html", "--limit", "2").out.startswith("2 ")
