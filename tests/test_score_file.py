"""Files of answers to files of verdicts: what is refused, what is carried over, how it goes on."""

import asyncio
import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock

from xyreward import score_file as module
from xyreward.errors import DataError, JudgeError, RunFolderError
from xyreward.items import DEFAULT_LABELS, Item
from xyreward.judges import Judge, load_judge
from xyreward.judges.calls import JudgeStopped
from xyreward.judges.panel import PanelJudge
from xyreward.reward import Reward
from xyreward.score_file import (
    COLUMNS,
    AnswersFile,
    FileReport,
    ScoringStopped,
    estimate_file,
    score_file,
)
from xyreward.testing import FakeAPI, Faults, ScriptedJudge, make_item
from xyreward.verdict import JudgeFailure

GOOD, BAD = DEFAULT_LABELS["goal_focused"], DEFAULT_LABELS["literal"]
LATE = JudgeFailure("timeout", "late", raw_text="half a rep", cost_usd=0.5)
ITEMS = [make_item(id="a"), make_item(id="b", query="Another question?"), make_item(id="7")]
JUDGE = ScriptedJudge({(None, "good"): GOOD, (None, "bad"): BAD, (None, "late"): LATE})


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-test")
    monkeypatch.setenv("XYREWARD_STORE", str(tmp_path / "store" / "v.sqlite"))
    monkeypatch.chdir(tmp_path)
    for name in ("XYREWARD_RUN", "TORCHELASTIC_RUN_ID"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CHUNK", "CHUNK_HERE"):
        monkeypatch.setattr(module, name, 2)


class Breaks(ScriptedJudge):
    """Fails with an exception of its own at one answer."""

    def __init__(self, script: Any, at: str) -> None:
        super().__init__(script)
        self.at = at
        self.asked: list[str] = []

    async def judge(self, items: Sequence[Item], answers: Sequence[str]) -> Any:
        self.asked += answers
        if self.at in answers:
            raise ZeroDivisionError
        return await super().judge(items, answers)


def write(rows: Sequence[Any], path: str = "answers.jsonl") -> Path:
    text = "".join(row if isinstance(row, str) else json.dumps(row) + "\n" for row in rows)
    Path(path).write_bytes(text.encode("utf-8"))
    return Path(path)


def row(answer: str, item_id: Any = "a", **more: Any) -> dict[str, Any]:
    return {"item_id": item_id, "answer": answer, **more}


def run(
    answers: AnswersFile | Sequence[Any],
    judge: Judge = JUDGE,
    out: str = "out.jsonl",
    reward: Reward | None = None,
    **options: Any,
) -> FileReport:
    file = answers if isinstance(answers, AnswersFile) else AnswersFile(write(answers), ITEMS)
    return asyncio.run(score_file(file, Path(out), judge, reward or Reward(), **options))


def read(path: str = "out.jsonl") -> list[dict[str, Any]]:
    return [json.loads(line) for line in Path(path).read_bytes().splitlines()]


def left() -> list[str]:
    return sorted(p.name for p in Path().iterdir() if p.is_file())


# ---------------------------------------------------------------- rows


def test_every_row_comes_back_in_order_with_what_was_made_of_it() -> None:
    report = run([row("good", "b", n=1, tags=["x"]), row("late"), row("bad", step={"k": None})])
    assert (report.rows, report.resumed, report.empty) == (3, 0, 0)
    assert report.failed == {"timeout": 1}
    assert report.reasons == {"timeout": "late"}
    first, second, third = read()
    assert first["n"] == 1
    assert first["tags"] == ["x"]
    assert third["step"] == {"k": None}
    assert [r["answer"] for r in read()] == ["good", "late", "bad"]
    assert list(first)[-5:] == list(COLUMNS)
    assert (first["reward"], third["reward"]) == (1.0, 0.0)
    assert first["judge"] == "scripted"
    assert first["rubric_version"] == JUDGE.rubric_version
    verdict = first["verdict"]
    assert verdict["has_intended_solution"] is True
    assert verdict["focus"] == "intended"
    assert verdict["p"]["focus"] == {"stated": 0, "intended": 1, "balanced": 0, "neither": 0}
    assert (verdict["cost_usd"], verdict["cached"], verdict["votes"]) == (0, False, 1)
    assert first["failure"] is None
    # A failure is no number, and keeps its reply and its cost.
    assert second["reward"] is None
    assert second["verdict"] is None
    assert second["failure"]["kind"] == "timeout"
    assert second["failure"]["raw_text"] == "half a rep"
    assert second["failure"]["cost_usd"] == 0.5
    assert left() == ["answers.jsonl", "out.jsonl"]


def test_an_empty_answer_is_worth_nothing_and_not_asked_about() -> None:
    run([row(""), row(" \n\t\u200b "), row("good")])
    empty, blank, _ = read()
    for one in (empty, blank):
        assert one["reward"] == 0
        assert (
            one["judge"] == "scripted"
        )  # as in all other rows, so that a file has one group per judge
        assert one["verdict"]["flags"] == ["empty_answer"]
        assert one["verdict"]["focus"] == "neither"
        assert one["failure"] is None


def test_a_rows_own_keys_of_the_outputs_names_are_replaced_and_named() -> None:
    before = {"reward": 0.5, "verdict": "mine", "failure": {"kind": "x"}, "judge": ["me"]}
    file = AnswersFile(write([row("good", **before), row("good", rubric_version=3)]), ITEMS)
    assert file.replaced == ["failure", "judge", "reward", "rubric_version", "verdict"]
    run(file)
    for one in read():
        assert one["reward"] == 1.0
        assert one["failure"] is None
        assert one["judge"] == "scripted"
        assert sorted(one) == sorted(["item_id", "answer", *COLUMNS])


def test_an_output_can_be_scored_again_by_another_judge() -> None:
    run([row("good"), row("late")])
    other = ScriptedJudge({(None, "good"): BAD, (None, "late"): GOOD}, name="other")
    run(AnswersFile(Path("out.jsonl"), ITEMS), other, "again.jsonl")
    assert [r["reward"] for r in read("again.jsonl")] == [0.0, 1.0]
    assert {r["judge"] for r in read("again.jsonl")} == {"other"}


def test_ids_that_are_numbers_are_found_as_items_have_them() -> None:
    run([row("good", 7), row("good", "7")])
    assert [r["item_id"] for r in read()] == [7, "7"]


def test_soft_rewards_are_those_of_the_reward_that_was_given() -> None:
    run([row("good")], reward=Reward(focus=0, misconception=0, stated=1))
    assert read()[0]["reward"] == 0.5


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a byte order mark", b'\xef\xbb\xbf{"item_id":"a","answer":"good"}\n'),
        ("CRLF", b'{"item_id":"a","answer":"good"}\r\n{"item_id":"a","answer":"good"}\r\n'),
        ("no line end at the end", b'{"item_id":"a","answer":"good"}'),
        ("blank lines", b'\n\n{"item_id":"a","answer":"good"}\n   \n\r\n'),
        ("blanks around", b'  {"item_id" : "a" , "answer":"good"}  \n'),
    ],
)
def test_files_of_other_systems_are_read(name: str, content: bytes) -> None:
    Path("answers.jsonl").write_bytes(content)
    report = run(AnswersFile(Path("answers.jsonl"), ITEMS))
    assert report.rows == content.count(b"answer")
    assert all(r["reward"] == 1.0 for r in read())


def test_characters_at_which_other_readers_end_a_line_stay_inside_their_row() -> None:
    odd = "good\u2028\u2029\x85\x0b\x0c\x1c end \x00 \U0001f600"
    raw = json.dumps(row(odd, note="\u2028"), ensure_ascii=False)
    run([raw + "\n", row("good")], ScriptedJudge({(None, odd): GOOD, (None, "good"): BAD}))
    (first, second) = (json.loads(x) for x in Path("out.jsonl").read_bytes().split(b"\n")[:-1])
    assert (first["answer"], first["note"], first["reward"]) == (odd, "\u2028", 1.0)
    assert second["reward"] == 0.0


def test_half_a_surrogate_pair_is_carried_over_as_it_came() -> None:
    Path("answers.jsonl").write_text(
        '{"item_id":"a","answer":"x \\ud800 y","n":"\\udfff x"}', "ascii"
    )
    run(
        AnswersFile(Path("answers.jsonl"), ITEMS),
        ScriptedJudge({(None, "x \ud800 y"): GOOD}),
    )
    assert read()[0]["answer"] == "x \ud800 y"
    assert read()[0]["n"] == "\udfff x"


# ---------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("nonsense", "is not JSON in UTF-8"),
        ('{"item_id": "a", "answer": "good"', "is not JSON in UTF-8"),
        ('{"item_id": "a", "answer": "good", "x": NaN}', "NaN is not a number in JSON"),
        ('{"item_id": "a", "answer": "good", "x": 1e999}', "1e999 is too large a number"),
        ('{"item_id": "a", "answer": "good", "answer": "bad"}', "'answer' is there twice"),
        ('{"item_id":"a","answer":"good","x":' + "[" * 99 + "]" * 99 + "}", "nested more than"),
        ('{"item_id":"a","answer":"good","x":' + "[" * 99_999, "nested more than"),
        ("[1]", "is list, expected an object"),
        ('"text"', "is str, expected an object"),
        ("null", "is NoneType, expected an object"),
        ('{"item_id": "a"}', "has no answer, expected a string; there is item_id$"),
        ('{"item_id": "a", "answr": "x"}', "there is answr, item_id; is it 'answr'"),
        ('{"item_di": "a", "answer": "x"}', "only answer, item_di; is it 'item_di'"),
        ('{"querry": "a", "answer": "x"}', "only answer, querry; is it 'querry'"),
        ('{"item_id": "a", "answer": null}', "answer is None, expected a string"),
        ('{"item_id": "a", "answer": 1}', "answer is 1, expected a string"),
        ('{"item_id": "a", "answer": ["good"]}', r"answer is \['good'\], expected a string"),
        ('{"item_id": "z", "answer": "good"}', "item_id 'z' is not among the 3 items; check --it"),
        ('{"item_id": null, "answer": "good"}', "item_id None is not among"),
        ('{"item_id": true, "answer": "good"}', "item_id True is not among"),
        ('{"item_id": {}, "answer": "good"}', "item_id {} is not among"),
        ('{"item_id": 1.0, "answer": "good"}', "item_id 1.0 is not among"),
        ('{"answer": "good"}', "has neither item_id nor query, only answer"),
        ('{"query": "", "answer": "good"}', "query: is empty"),
        ('{"query": 3, "answer": "good"}', "query: Input should be a valid string"),
        ('{"query": [], "answer": "good"}', "query: is a conversation whose last turn is not"),
        (
            '{"query": [{"role": "bot", "content": "x"}], "answer": "good"}',
            "query.0.role: Input should be 'system', 'user' or 'assistant'",
        ),
        (
            '{"query": [{"role": "assistant", "content": "x"}], "answer": "good"}',
            "query: is a conversation whose last turn is not a user's text",
        ),
    ],
)
def test_a_wrong_row_is_named_with_its_line_and_what_was_expected(line: str, message: str) -> None:
    with pytest.raises(DataError, match=rf"answers.jsonl: line 3: .*{message}") as caught:
        AnswersFile(write([row("good"), "\n", line + "\n", row("good")]), ITEMS)
    assert len(caught.value.problems) == 1
    assert len(str(caught.value)) < 500


def test_bytes_that_are_no_text_are_named() -> None:
    Path("answers.jsonl").write_bytes(b'{"item_id":"a","answer":"\xff"}\n')
    with pytest.raises(DataError, match=r"line 1: is not JSON in UTF-8 .*0xff"):
        AnswersFile(Path("answers.jsonl"), ITEMS)


@pytest.mark.parametrize(("wrong", "more"), [(19, 0), (20, 0), (21, 1), (500, 480)])
def test_twenty_problems_are_shown_and_the_rest_is_counted(wrong: int, more: int) -> None:
    with pytest.raises(DataError) as caught:
        AnswersFile(write([row("good", "z")] * wrong + [row("good")]), ITEMS)
    told = str(caught.value)
    assert told.count("item_id 'z'") == min(wrong, 20)
    if more:
        lines = "line has" if more == 1 else "lines have"
        assert told.endswith(f"answers.jsonl: {more} more {lines} problems")
    else:
        assert "more line" not in told
    assert ".problems" not in told  # nobody on a command line can look there


def test_a_file_that_is_none_is_named() -> None:
    with pytest.raises(DataError, match=r"nowhere.jsonl: cannot be read \(.*No such file"):
        AnswersFile(Path("nowhere.jsonl"), ITEMS)
    with pytest.raises(DataError, match="has no rows, expected one JSON object per line"):
        AnswersFile(write(["\n \n"]), ITEMS)
    with pytest.raises(DataError, match="expected a regular file, since it is read twice"):
        AnswersFile(Path(), ITEMS)


def test_a_pipe_is_refused_because_its_second_reading_would_find_nothing() -> None:
    os.mkfifo("pipe")
    with pytest.raises(DataError, match="expected a regular file"):
        AnswersFile(Path("pipe"), ITEMS)


@pytest.mark.parametrize(
    "changed",
    [
        [row("bad"), row("good")],
        [row("good")],
        [row("good"), row("good"), row("good")],
        [row("good"), "nonsense\n"],
    ],
    ids=["a row", "one less", "one more", "not JSON any more"],
)
def test_answers_that_change_meanwhile_stop_it_and_make_no_output(changed: list[Any]) -> None:
    file = AnswersFile(write([row("good"), row("good")]), ITEMS)
    write(changed)
    with pytest.raises(ScoringStopped, match="was changed while it was scored"):
        run(file)
    assert not Path("out.jsonl").exists()


@pytest.mark.usefixtures("small")
def test_answers_that_cannot_be_read_any_more_stop_it() -> None:
    file = AnswersFile(write([row("good")]), ITEMS)
    file.path.unlink()
    with pytest.raises(ScoringStopped, match=r"cannot be read .*run the same command again"):
        list(file)


def test_answers_that_grow_meanwhile_are_not_judged_to_their_end() -> None:
    file = AnswersFile(write([row("good"), row("good")]), ITEMS)
    write([row("good")] * 2 + [row("bad")] * 9)
    judge = Breaks(SCRIPT, "nothing")
    with pytest.raises(ScoringStopped, match="was changed"):
        run(file, judge)
    assert set(judge.asked) <= {"good"}


def test_a_judge_that_cannot_judge_is_found_before_the_first_row() -> None:
    class Picky(ScriptedJudge):
        def check(self, items: Sequence[Item]) -> None:
            asked.append([i.id for i in items])
            raise JudgeError("not these")

    asked: list[list[str]] = []
    named = AnswersFile(write([row("good", "b"), row("bad", "b"), row("good")]), ITEMS)
    with pytest.raises(JudgeError, match="not these"):
        named.check(Picky({}))
    assert asked == [["b", "a"]]
    bare = AnswersFile(write([{"query": "How do I?", "answer": "good"}, row("good")]), ITEMS)
    assert (bare.bare, [i.id for i in bare.named]) == (1, ["a"])
    with pytest.raises(JudgeError, match=r"1 row brings a query .*'scripted' cannot infer it"):
        bare.check(JUDGE)
    with pytest.raises(JudgeError, match="'panel:scripted,other' cannot infer it"):
        bare.check(PanelJudge([JUDGE, OTHER_JUDGE]))
    bare.check(load_judge("anthropic"))


# ---------------------------------------------------------------- where it goes


def test_folders_are_made() -> None:
    run([row("good")], out="new/folder/out.jsonl")
    assert len(read("new/folder/out.jsonl")) == 1


def test_what_exists_is_not_overwritten() -> None:
    write(["precious"], "out.jsonl")
    with pytest.raises(RunFolderError, match=r"out.jsonl: exists; choose another --out"):
        run([row("good")])
    assert Path("out.jsonl").read_text() == "precious"


def test_what_comes_to_exist_meanwhile_is_not_overwritten_either() -> None:
    def appear(rows: int) -> None:
        write(["precious"], "out.jsonl")

    with pytest.raises(RunFolderError, match="exists"):
        run([row("good")], on_rows=appear)
    assert Path("out.jsonl").read_text() == "precious"
    Path("out.jsonl").unlink()
    assert run([row("good")]).resumed == 1


def test_what_another_process_finished_just_now_is_not_judged_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Path, "mkdir", lambda *_, **__: write(["precious"], "out.jsonl"))
    judge = Breaks(SCRIPT, "nothing")
    with pytest.raises(RunFolderError, match="exists"):
        run([row("good")], judge)
    assert judge.asked == []


def test_a_place_where_no_file_can_be_is_told_before_anything_is_judged() -> None:
    class Asked(ScriptedJudge):
        async def judge(self, items: Any, answers: Any) -> Any:
            raise AssertionError

    with pytest.raises(RunFolderError, match=r"cannot be made .*choose another --out") as caught:
        run([row("good")], Asked({}), "answers.jsonl/out.jsonl")
    assert not isinstance(caught.value, ScoringStopped)


def test_two_processes_do_not_write_one_output() -> None:
    held = FileLock("out.jsonl.partial.lock")
    with held, pytest.raises(RunFolderError, match="another process is writing it"):
        run([row("good")])
    run([row("good")])


# ---------------------------------------------------------------- going on


SEVEN = [row(a, n=i) for i, a in enumerate(["good", "late", "bad", "", "good", "bad", "good"])]
SCRIPT: dict[Any, Any] = {(None, "good"): GOOD, (None, "late"): LATE, (None, "bad"): BAD}


def broken(at: int) -> list[Any]:
    """Leave a partial file of SEVEN with `at` rows."""
    file = AnswersFile(write(SEVEN), ITEMS)
    job = module._job(file, JUDGE, Reward())
    run(file, out="whole.jsonl")
    lines = Path("whole.jsonl").read_bytes().splitlines(keepends=True)
    Path("whole.jsonl").unlink()
    Path("out.jsonl.partial").write_bytes(b"".join(lines[:at]))
    Path("out.jsonl.partial.job").write_text(json.dumps(job), "utf-8")
    return [json.loads(line) for line in lines]


@pytest.mark.usefixtures("small")
def test_what_is_counted_is_of_all_rows_whoever_did_them() -> None:
    whole = run(SEVEN, out="all.jsonl")
    assert (whole.empty, whole.failed, whole.reasons) == (1, {"timeout": 1}, {"timeout": "late"})
    (mean,) = whole.means().values()
    assert (mean.value, mean.n) == (0.5, 6)
    broken(4)
    resumed = run(SEVEN)
    assert resumed.resumed == 4
    for name in ("rows", "empty", "failed", "reasons"):
        assert getattr(resumed, name) == getattr(whole, name)
    assert resumed.means() == whole.means()


def test_means_are_apart_by_kind_and_have_an_interval_over_items() -> None:
    items = [make_item(id=f"x{n}", query=f"Question {n}?") for n in range(30)]
    items += [make_item(id="c", kind="control")]
    rows = [row("good" if n % 3 else "bad", f"x{n}") for n in range(30)] * 2
    report = run(AnswersFile(write([*rows, row("", "c")]), items))
    control, hidden = report.means().values()
    assert list(report.means()) == ["controls", "items with a hidden goal"]
    assert (control.value, control.low, control.n) == (0.0, None, 1)
    assert (hidden.value, hidden.n) == (2 / 3, 60)
    # Two answers to one item are not two independent ones: the interval is that of 30 items.
    assert hidden.low is not None
    assert hidden.low < 0.55
    from xyreward.stats import mean

    assert hidden == mean([float(n % 3 > 0) for n in range(30)] * 2, [str(n) for n in range(30)] * 2,
                          bounds=(0, 1), expand=True)  # fmt: skip


def test_rewards_by_inferred_goals_are_in_no_mean_of_others() -> None:
    report = FileReport()
    inferred = {"id": "i", "meta": {"inferred": True}}
    given = [make_item(), make_item(**inferred), make_item(**inferred, kind="control")]
    for item in [*given, Item.of_query("How do I?")]:
        report.add(item, "x", 0.5, None)
    assert {name: one.n for name, one in report.means().items()} == {
        "bare queries": 1,
        "items whose goal a model inferred": 2,
        "items with a hidden goal": 1,
    }


def test_memory_for_means_does_not_grow_with_items(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BUCKETS", 5)
    items = [make_item(id=f"x{n}", query=f"Question {n}?") for n in range(50)]
    report = run(AnswersFile(write([row("good", f"x{n}") for n in range(50)]), items))
    assert len(report.sums["items with a hidden goal"]) == 5


@pytest.mark.usefixtures("small")
def test_what_a_broken_run_did_is_not_done_again_and_the_result_is_the_same() -> None:
    run(SEVEN, out="whole.jsonl")
    breaking = [*SEVEN[:4], {**SEVEN[4], "answer": "breaks"}, *SEVEN[5:]]
    script = {**SCRIPT, (None, "breaks"): GOOD}
    judge = Breaks(script, "breaks")
    with pytest.raises(ZeroDivisionError):
        run(breaking, judge)
    assert not Path("out.jsonl").exists()
    assert len(read("out.jsonl.partial")) == 4
    told: list[int] = []
    mended = Breaks(script, "nothing")
    report = run(breaking, mended, on_rows=told.append)
    assert (report.rows, report.resumed) == (7, 4)
    assert report.failed == {"timeout": 1}  # also those of the earlier run
    assert told == [4, 2, 1]
    assert mended.asked == ["breaks", "bad", "good"]
    same = [{**r, "answer": "good"} if r["answer"] == "breaks" else r for r in read()]
    expected = read("whole.jsonl")
    for one in same + expected:
        one.pop("rubric_version")  # the scripts differ
    assert same == expected
    assert left() == ["answers.jsonl", "out.jsonl", "whole.jsonl"]


@pytest.mark.parametrize("done", range(8))
def test_it_goes_on_from_any_number_of_rows(done: int) -> None:
    expected = broken(done)
    assert run(AnswersFile(Path("answers.jsonl"), ITEMS)).resumed == done
    assert read() == expected


@pytest.mark.parametrize("cut", [1, 20, 300])
def test_a_row_that_was_half_written_is_done_again(cut: int) -> None:
    expected = broken(5)
    content = Path("out.jsonl.partial").read_bytes()
    Path("out.jsonl.partial").write_bytes(content[:-cut])
    assert run(AnswersFile(Path("answers.jsonl"), ITEMS)).resumed == 4
    assert read() == expected


def test_a_tail_of_zeros_as_a_power_cut_leaves_it_is_cut_off() -> None:
    expected = broken(3)
    with Path("out.jsonl.partial").open("ab") as stream:
        stream.write(bytes(4096))
    assert run(AnswersFile(Path("answers.jsonl"), ITEMS)).resumed == 3
    assert read() == expected


def edited(change: Any) -> Any:
    lines = Path("out.jsonl.partial").read_bytes().splitlines(keepends=True)
    Path("out.jsonl.partial").write_bytes(b"".join(change(lines)))


def without(line: bytes, key: str) -> bytes:
    return json.dumps({k: v for k, v in json.loads(line).items() if k != key}).encode() + b"\n"


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (lambda lines: [lines[0], *lines[2:]], 2),  # a failed row taken out, to have it done again
        (lambda lines: [lines[1], lines[0], *lines[2:]], 1),
        (lambda lines: [lines[0].replace(b"good", b"GOOD"), *lines[1:]], 1),
        (lambda lines: [*lines[:2], b"nonsense\n", *lines[3:]], 3),
        (lambda lines: [*lines[:2], b"\n", *lines[2:]], 3),
        (lambda lines: [b"[]\n", *lines[1:]], 1),
        (lambda lines: [without(lines[0], "failure"), *lines[1:]], 1),
        (lambda lines: [without(lines[0], "n"), *lines[1:]], 1),
        (lambda lines: [without(lines[0], "reward"), *lines[1:]], 1),
        (lambda lines: [lines[0].replace(b'"reward": 1.0', b'"reward": null'), *lines[1:]], 1),
        (lambda lines: [lines[0], lines[1].replace(b"null", b"0.0", 1), *lines[2:]], 2),
        (lambda lines: [lines[0].replace(b'"failure": null', b'"failure": "x"'), *lines[1:]], 1),
        (lambda lines: [lines[0].replace(b'"failure": null', b'"failure": {}'), *lines[1:]], 1),
        (lambda lines: [*lines, lines[0]], 6),
        (lambda lines: [b"\xff\xfe\n", *lines[1:]], 1),
    ],
)
def test_a_damaged_partial_file_is_refused_with_its_line(change: Any, line: int) -> None:
    broken(5)
    edited(change)
    before = Path("out.jsonl.partial").read_bytes()
    with pytest.raises(RunFolderError, match=rf"partial: line {line} is not as a run left it"):
        run(AnswersFile(Path("answers.jsonl"), ITEMS))
    assert Path("out.jsonl.partial").read_bytes() == before
    assert not Path("out.jsonl").exists()


def test_what_is_nested_too_deep_in_a_partial_file_is_refused_with_its_line() -> None:
    broken(5)
    edited(lambda lines: [lines[0], b"[" * 100_000 + b"\n", *lines[2:]])
    with pytest.raises(RunFolderError, match="line 2 is not as a run left it"):
        run(AnswersFile(Path("answers.jsonl"), ITEMS))
    Path("out.jsonl.partial.job").write_bytes(b"[" * 100_000)
    with pytest.raises(RunFolderError, match="is of another job"):
        run(AnswersFile(Path("answers.jsonl"), ITEMS))


def test_a_partial_file_with_more_rows_than_there_are_answers_is_refused() -> None:
    broken(7)
    edited(lambda lines: [*lines, lines[-1]])
    with pytest.raises(RunFolderError, match="line 8 is not as a run left it"):
        run(AnswersFile(Path("answers.jsonl"), ITEMS))


OTHER_JUDGE = ScriptedJudge(SCRIPT, name="other")
OTHER_SCRIPT = ScriptedJudge({**SCRIPT, (None, "x"): GOOD})


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"answers": [*SEVEN, row("good")]}, "answers was '"),
        ({"answers": [*SEVEN[:-1], row("bad", n=6)]}, "answers was '"),
        ({"judge": OTHER_JUDGE}, "judge was 'scripted', is 'other'"),
        ({"judge": OTHER_SCRIPT}, "rubric_version was 'script-"),
        ({"reward": Reward(soft=True)}, "reward.soft was False, is True"),
        (
            {"reward": Reward(focus=2, length_limit=900)},
            "reward.focus was 1.0, is 2, reward.length_limit was None, is 900",
        ),
    ],
    ids=["more answers", "another answer", "judge", "rubric", "soft", "weights"],
)
def test_a_partial_file_of_another_job_is_refused_and_says_what_differs(
    options: dict[str, Any], told: str
) -> None:
    broken(4)
    with pytest.raises(
        RunFolderError, match=rf"is of another job \({told}[^=]*choose another --out"
    ):
        run(options.pop("answers", SEVEN), **options)
    assert len(read("out.jsonl.partial")) == 4


def test_a_partial_file_for_other_items_is_refused() -> None:
    broken(4)
    others = [make_item(id="a", misconception="Another one.")]
    with pytest.raises(RunFolderError, match=r"is of another job .items was"):
        run(AnswersFile(Path("answers.jsonl"), others))


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        ({"votes": 2}, {}, r"votes was 2, is 1"),
        ({"effort": "low"}, {"effort": "high"}, "parameters.effort was 'low', is 'high'"),
        ({"max_tokens": 900}, {}, "parameters.max_tokens was 900, is None"),
    ],
)
def test_other_options_of_the_judge_are_another_job(
    before: dict[str, Any], after: dict[str, Any], told: str
) -> None:
    with FakeAPI() as api:
        file = AnswersFile(write(SEVEN), ITEMS)
        judge = load_judge("anthropic", base_url=api.base_url, **before)
        job = module._job(file, judge, Reward())
        Path("out.jsonl.partial").touch()
        Path("out.jsonl.partial.job").write_text(json.dumps(job), "utf-8")
        with pytest.raises(RunFolderError, match=told):
            run(file, load_judge("anthropic", base_url=api.base_url, **after))
        assert api.stats.requests == 0
        # What does not decide a verdict is no other job: another port, limits, who pays.
        with FakeAPI() as moved:
            same = load_judge(
                "anthropic", base_url=moved.base_url, **before, max_concurrency=3, run="x"
            )
            assert run(file, same).rows == 7


def test_what_a_server_says_of_schemas_makes_no_other_job() -> None:
    with FakeAPI(faults=Faults({"no_schema": 1.0})) as api:
        file = AnswersFile(write([row("good")]), ITEMS)
        judge = load_judge("anthropic", base_url=api.base_url)
        before = module._job(file, judge, Reward())
        run(file, judge)
        assert module._job(file, judge, Reward()) == before


def test_a_partial_file_that_nothing_says_the_job_of_is_refused() -> None:
    broken(4)
    Path("out.jsonl.partial.job").unlink()
    with pytest.raises(
        RunFolderError, match=r"nothing beside it .* expected out.jsonl.partial.job"
    ):
        run(SEVEN)


def test_removing_the_partial_file_begins_anew() -> None:
    broken(4)
    Path("out.jsonl.partial").unlink()  # and not its job, of which no message tells
    assert run([row("good")]).resumed == 0
    assert left() == ["answers.jsonl", "out.jsonl"]


def test_a_partial_file_that_is_removed_meanwhile_makes_no_output_without_its_first_rows(
    small: None,
) -> None:
    def remove(rows: int) -> None:
        told.append(rows)
        if len(told) == 2:
            Path("out.jsonl.partial").unlink()

    told: list[int] = []
    with pytest.raises(ScoringStopped, match=r"partial: cannot be written .*run the same command"):
        run(SEVEN, on_rows=remove)
    assert not Path("out.jsonl").exists()
    assert not Path("out.jsonl.partial").exists()


def test_where_a_row_cannot_be_written_nothing_goes_on_unseen(small: None) -> None:
    ends: list[str] = []

    class Slow(ScriptedJudge):
        async def judge(self, items: Any, answers: Any) -> Any:
            if answers == ["good", "late"]:
                return await super().judge(items, answers)
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                ends.append("cancelled")
                raise

    async def in_a_loop_that_goes_on() -> None:
        file = AnswersFile(write([row("good"), row("late"), row("bad"), row("bad")]), ITEMS)
        with pytest.raises(ScoringStopped) as error:
            await score_file(
                file,
                Path("out.jsonl"),
                Slow({(None, "good"): GOOD, (None, "late"): LATE}),
                Reward(),
                on_rows=lambda _: Path("out.jsonl.partial").unlink(),
            )
        assert error.value is not None  # whose frames hold the generator
        assert ends == ["cancelled"]

    asyncio.run(in_a_loop_that_goes_on())


def test_an_error_of_the_operating_system_in_a_judge_is_not_taken_for_a_full_disk() -> None:
    class Offline(ScriptedJudge):
        async def judge(self, items: Any, answers: Any) -> Any:
            raise ConnectionError("of the judge")

    with pytest.raises(ConnectionError, match=r"^of the judge$"):
        run([row("good")], Offline({}))


# ---------------------------------------------------------------- a judge that costs money


@pytest.fixture
def api() -> Iterator[FakeAPI]:
    with FakeAPI(latency=(0.001, 0.02)) as running:
        yield running


def many(n: int) -> list[Any]:
    return [row(f"Go to bed earlier, number {i}.", n=i) for i in range(n)]


def comparable(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    for one in rows:
        for name in ("usage", "cost_usd", "cached"):  # of this run and not of the answer
            one["verdict"].pop(name)
    return rows


@pytest.mark.usefixtures("small")
def test_cancelled_again_and_again_it_pays_nothing_twice_and_ends_the_same(api: FakeAPI) -> None:
    async def some(stop_after: int) -> None:
        seen: list[int] = []

        def stop(rows: int) -> None:
            seen.append(rows)
            if sum(seen) >= stop_after:
                task.cancel()

        judge = load_judge("anthropic", base_url=api.base_url, run="r")
        work = score_file(file, Path("out.jsonl"), judge, Reward(), on_rows=stop)
        task = asyncio.create_task(work)
        with pytest.raises(asyncio.CancelledError):
            await task

    file = AnswersFile(write(many(60)), ITEMS)
    for n in (2, 10, 25, 44):
        asyncio.run(some(n))
        api.wait_idle()
        assert n <= len(read("out.jsonl.partial")) < 60
    judge = load_judge("anthropic", base_url=api.base_url, run="r")
    report = run(file, judge)
    assert (report.rows, report.failed) == (60, {})
    assert report.resumed >= 44
    stats = api.wait_idle()
    spent = judge.store.ledger.spent("r")  # type: ignore[attr-defined]
    assert spent.calls == 60
    # Only what was on its way when it was cancelled may have been paid for twice, and is on the bill.
    assert stats.delivered <= 60 + spent.lost_calls
    assert [r["n"] for r in read()] == list(range(60))
    with FakeAPI() as fresh:
        run(file, load_judge("anthropic", base_url=fresh.base_url, store="o.sqlite"), "whole.jsonl")
    assert comparable(read()) == comparable(read("whole.jsonl"))


def test_rows_that_ask_the_same_are_paid_once_over_chunks(api: FakeAPI, small: None) -> None:
    judge = load_judge("anthropic", base_url=api.base_url)
    run([row("Go to bed earlier.", n=i) for i in range(9)], judge)
    assert api.stats.calls == 1
    assert len({json.dumps(r["verdict"]["p"]) for r in read()}) == 1
    assert sum(not r["verdict"]["cached"] for r in read()) == 1


def test_the_costs_of_rows_sum_to_the_bill(api: FakeAPI) -> None:
    api.change(faults=Faults(script=("prose", None, "refusal")))
    judge = load_judge("anthropic", base_url=api.base_url, max_concurrency=1)
    run(many(5), judge)
    rows = read()
    costs = [(r["verdict"] or r["failure"])["cost_usd"] for r in rows]
    assert sum(costs) == pytest.approx(judge.stats.cost_usd)  # type: ignore[attr-defined]
    assert sum(r["reward"] is None for r in rows) == 1


def test_bare_queries_are_judged_ungrounded(api: FakeAPI) -> None:
    judge = load_judge("anthropic", base_url=api.base_url)
    query = [{"role": "user", "content": "How do I make it louder?"}]
    run([{"query": query, "answer": "Buy a gong."}, row("Buy a gong."), {**row(""), "x": 1}], judge)
    bare, named, empty = read()
    assert bare["query"] == query
    assert bare["verdict"]["grounded"] is False
    assert named["verdict"]["grounded"] is True
    assert empty["reward"] == 0


@pytest.mark.usefixtures("small")
def test_a_stop_of_one_chunk_lets_the_other_end() -> None:
    class Stops(ScriptedJudge):
        ended = 0

        async def judge(self, items: Any, answers: Any) -> Any:
            if "stop" in answers:
                raise JudgeStopped("wrong key")
            await asyncio.sleep(0.05)  # its replies are on their way, and paid for
            self.ended += 1
            return await super().judge(items, answers)

    judge = Stops(SCRIPT)
    with pytest.raises(JudgeStopped):
        run([row("stop"), row("good"), row("good"), row("good"), row("good")], judge)
    assert judge.ended == 1


@pytest.mark.usefixtures("small")
def test_a_stop_lets_replies_on_their_way_arrive_and_keeps_rows_before_it() -> None:
    # Of the four calls of two chunks the third is refused for good while the fourth is on its way.
    def choose(body: dict[str, Any], seen: int) -> str | None:
        return "429_spend_limit" if "number 2." in json.dumps(body) else None

    def slow(body: dict[str, Any]) -> None:
        return None

    with FakeAPI(faults=Faults(choose=choose), latency=0.2, reply=slow) as api:
        judge = load_judge("anthropic", base_url=api.base_url, schema="json_schema")
        with pytest.raises(JudgeStopped, match="spent"):
            run(many(8), judge)
        stats = api.wait_idle()
        assert stats.lost == 0
        assert stats.delivered == judge.stats.calls == 3  # type: ignore[attr-defined]
        assert judge.stats.lost_calls == 0  # type: ignore[attr-defined]
    # The limit is raised: what was paid for is not paid for again.
    with FakeAPI() as api:
        assert run(many(8), load_judge("anthropic", base_url=api.base_url)).rows == 8
        assert api.stats.calls == 5


def test_an_estimate_sends_nothing_makes_no_store_and_takes_off_what_is_there(
    api: FakeAPI, tmp_path: Path
) -> None:
    judge = load_judge("anthropic", base_url=api.base_url)
    file = AnswersFile(write([*many(5), row(" "), row("")]), ITEMS)
    found = estimate_file(file, judge)
    assert found is not None
    assert (found.calls, found.in_store) == (5, 0)
    assert api.stats.requests == 0
    assert not (tmp_path / "store").exists()
    run(many(2), judge)
    found = estimate_file(AnswersFile(write(many(5)), ITEMS), judge)
    assert found is not None
    assert (found.calls, found.in_store) == (3, 2)
    assert estimate_file(file, JUDGE) is None


def test_an_estimate_of_blank_answers_is_free(api: FakeAPI) -> None:
    found = estimate_file(AnswersFile(write([row("")]), ITEMS), load_judge("anthropic"))
    assert found is not None
    assert (found.calls, found.cost_usd, found.worst_usd) == (0, 0.0, 0.0)
