"""Runs side by side: figures are those of the reports; what is not comparable is refused or marked."""

import json
import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from rows import DIRECT, GOAL, LITERAL, REFUSAL, evaluation, failed, row

from xyreward import cli
from xyreward.compare_runs import compare_runs, read_runs, to_json, to_markdown
from xyreward.errors import DataError, RunFolderError
from xyreward.evaluation import Evaluation, Row
from xyreward.metrics import HEADLINE_PARTS, headline_change, measure
from xyreward.report import build_report
from xyreward.report import to_markdown as to_report


def of(letters: str) -> list[Row]:
    """A row per letter: g goal-focused, l literal, r refusal, f not judged; capitals are of controls."""
    known: dict[str, Callable[[str], Row]] = {
        "g": lambda name: row(name, GOAL),
        "l": lambda name: row(name, LITERAL),
        "r": lambda name: row(name, REFUSAL),
        "f": failed,
        "D": lambda name: row(name, DIRECT, "control"),
        "R": lambda name: row(name, REFUSAL, "control"),
        "F": lambda name: failed(name, "control"),
    }
    return [known[letter](f"i{n}") for n, letter in enumerate(letters)]


def run_folder(
    path: Path,
    evaluations: dict[str, Evaluation],
    *,
    held_out: str = "abc",
    settings: dict[str, Any] | None = None,
) -> str:
    path.mkdir(parents=True)
    for name, one in evaluations.items():
        (path / f"{name}.jsonl").write_text(one.to_jsonl(), "utf-8")
    (path / "pairs.jsonl").write_text('{"prompt": 1}\n')
    (path / "data.json").write_text(json.dumps({"held-out hash": held_out}))
    (path / "config.yaml").write_text(
        json.dumps({"evaluation": {"max_new_tokens": 192, "batch_size": 16, **(settings or {})}})
    )
    return str(path)


BEFORE, AFTER, OTHER = "lllllllgDDDR", "lllgggggDDRR", "glllggggDDDD"


@pytest.fixture
def dpo(tmp_path: Path) -> str:
    return run_folder(
        tmp_path / "dpo",
        {
            "before": evaluation(*of(BEFORE), policy="base"),
            "after": evaluation(*of(AFTER), policy="tuned"),
        },
    )


@pytest.fixture
def single(tmp_path: Path) -> str:
    return run_folder(tmp_path / "single", {"evaluation": evaluation(*of(OTHER), policy="another")})


def line(found: dict[str, Any], key: str) -> dict[str, Any]:
    (one,) = (line for line in found["metrics"] if line["key"] == key)
    return dict(one)


# ---------------------------------------------------------------- figures


def test_one_run_alone_is_compared_with_itself_before_and_gives_the_figures_of_its_report(
    dpo: str,
) -> None:
    found = compare_runs([dpo])
    assert [one["name"] for one in found["runs"]] == [f"{dpo}:before", f"{dpo}:after"]
    before, after = evaluation(*of(BEFORE)), evaluation(*of(AFTER))
    lines = measure(before, after)
    assert [one["key"] for one in found["metrics"]] == [one.metric.key for one in lines]
    for one in lines:
        told = line(found, one.metric.key)
        for estimate, there in (
            (one.before, told["runs"]["A"]),
            (one.after, told["runs"]["B"]),
            (one.change, told["differences"]["B - A"]),
        ):
            assert estimate is not None
            assert there == {**asdict(estimate), "failure_bounds": None}
    (difference,) = found["differences"]
    wanted = headline_change(before, after)
    assert wanted.value is not None
    assert difference["headline"]["value"] == wanted.value
    # MOVER of the two lines of the table.
    served, direct = (line(found, key)["differences"]["B - A"] for key in HEADLINE_PARTS)
    low = math.hypot(served["value"] - served["low"], direct["value"] - direct["low"])
    assert difference["headline"]["low"] == pytest.approx(wanted.value - low)
    assert wanted.low == pytest.approx(wanted.value - low, abs=0.03)  # of other draws
    assert difference["other"] == []


def test_a_trained_run_and_an_evaluation_alone_stand_side_by_side(dpo: str, single: str) -> None:
    found = compare_runs([dpo, single])
    assert [one["name"] for one in found["runs"]] == [f"{dpo}:after", f"{single}:evaluation"]
    assert found["items"] == {"xy": 8, "control": 4}
    told = line(found, "intended_solution")
    assert told["runs"]["A"]["value"] == 5 / 8
    assert told["runs"]["B"]["value"] == 5 / 8
    difference = told["differences"]["B - A"]
    assert (
        difference["value"] == 0
    )  # one gained, one lost: an interval, and not a difference of two
    assert difference["low"] < 0 < difference["high"]
    (test,) = (t for t in found["label_tests"] if t["key"] == "intended_solution")
    assert (test["n"], test["gained"], test["lost"], test["p"]) == (8, 1, 1, 1)


def test_an_evaluation_can_be_named_and_every_two_compared(dpo: str, single: str) -> None:
    names = [f"{dpo}:before", dpo, single]
    from_first = compare_runs(names)
    assert [one["name"] for one in from_first["differences"]] == ["B - A", "C - A"]
    each = compare_runs(names, all_pairs=True)
    assert [one["name"] for one in each["differences"]] == ["B - A", "C - A", "C - B"]
    told = line(each, "control_direct")
    assert [told["runs"][label]["value"] for label in "ABC"] == [3 / 4, 2 / 4, 4 / 4]
    assert [one["value"] for one in told["differences"].values()] == [-1 / 4, 1 / 4, 2 / 4]
    # 5 labels of 3 differences are one family: the smallest p of all is multiplied by 15.
    tests = each["label_tests"]
    smallest = min(tests, key=lambda test: test["p"])
    assert len(tests) == 15
    assert smallest["p_holm"] == pytest.approx(min(1, 15 * smallest["p"]))


def test_rounds_give_before_the_first_and_after_the_last(tmp_path: Path) -> None:
    for n, (old, new) in enumerate([(BEFORE, AFTER), (AFTER, OTHER)], start=1):
        run_folder(
            tmp_path / f"rounds/round-{n}",
            {"before": evaluation(*of(old)), "after": evaluation(*of(new), policy=f"round {n}")},
        )
    before, after = read_runs([str(tmp_path / "rounds")])
    assert [r.verdict for r in before.evaluation.rows] == [r.verdict for r in of(BEFORE)]
    assert after.evaluation.policy == "round 2"


def test_a_failed_judgement_is_no_number_and_gives_bounds_on_each_side(
    tmp_path: Path, dpo: str
) -> None:
    other = run_folder(tmp_path / "other", {"evaluation": evaluation(*of("fllgggggDDRR"))})
    found = compare_runs([dpo, other])
    told = line(found, "intended_solution")
    assert told["runs"]["B"]["n"] == 7
    assert told["runs"]["B"]["failure_bounds"] == (5 / 8, 6 / 8)
    assert told["differences"]["B - A"]["n"] == 7
    assert told["differences"]["B - A"]["failure_bounds"] == (0, 1 / 8)
    page = to_markdown(found)
    counts = [f"items with a hidden goal: {n} of 8; controls: 0 of 4" for n in (0, 1)]
    assert f"| answers without labels |  | {' | '.join(counts)} |  |" in page
    assert (
        "n/a: 12.5 % of judgements on items with a hidden goal failed, more than max_failure_rate=5.0 %"
        in page
    )
    assert "(with failures: +0 to +12)" in page


def test_bounds_of_a_reward_are_no_shares(tmp_path: Path) -> None:
    rows = [row(f"{n}", GOAL, soft_reward=0.5) for n in range(9)]
    names = [
        run_folder(tmp_path / name, {"evaluation": evaluation(*rows, last)})
        for name, last in (("a", row("9", GOAL, soft_reward=0.5)), ("b", failed("9")))
    ]
    page = to_markdown(compare_runs(names))
    (told,) = (text for text in page.splitlines() if text.startswith("| soft reward"))
    assert "(with failures: 0.45 to 0.55)" in told
    assert "(with failures: -0.05 to +0.05)" in told


def test_several_answers_to_an_item_are_one_cluster_and_their_number_must_be_the_same(
    tmp_path: Path, dpo: str
) -> None:
    def three(letters: str) -> list[Row]:
        return [replace(r, answer_index=i) for r in of(letters) for i in range(3)]

    names = [
        run_folder(tmp_path / name, {"evaluation": evaluation(*three(letters))})
        for name, letters in (("a", AFTER), ("b", OTHER))
    ]
    found, once = compare_runs(names)["metrics"], compare_runs([dpo, one_of(tmp_path)])["metrics"]
    for several, single in zip(found, once, strict=True):
        change, alone = (line["differences"]["B - A"] for line in (several, single))
        # Three times the same answer: three times as many, and as certain as once.
        assert change["n"] == 3 * alone["n"]
        assert (change["value"], change["low"]) == pytest.approx((alone["value"], alone["low"]))
    (problem,) = refused([dpo, names[0]])
    assert "different numbers of answers to the same items: 36 and 12" in problem


def one_of(folder: Path) -> str:
    return run_folder(folder / "once", {"evaluation": evaluation(*of(OTHER))})


def test_a_cell_reads_as_in_the_report_of_the_same_run(dpo: str) -> None:
    report = to_report(build_report(evaluation(*of(BEFORE)), evaluation(*of(AFTER))))
    page = to_markdown(compare_runs([dpo]))
    of_report, of_page = (
        [ln for ln in text.splitlines() if ln.startswith("| ") and ln.count("|") == 6 and "[" in ln]
        for text in (report, page)
    )
    assert len(of_report) >= 13
    assert set(of_report) <= set(of_page)


# ---------------------------------------------------------------- what is refused


def refused(names: Sequence[str], **asked: bool) -> list[str]:
    with pytest.raises(DataError) as caught:
        compare_runs(names, **asked)
    return caught.value.problems


def test_other_items_judges_and_rubrics_are_refused_at_once_each_with_its_flag(
    tmp_path: Path, dpo: str
) -> None:
    rows = of(OTHER)
    other = run_folder(
        tmp_path / "other",
        {
            "evaluation": evaluation(
                *rows[2:], row("new", GOAL), judge="anthropic:x", rubric_version="w"
            )
        },
    )
    problems = refused([dpo, other])
    assert [one.rpartition("; ")[2].split()[0] for one in problems] == [
        "--other-items",
        "--other-judges",
        "--other-rubrics",
    ]
    assert f"{other}:evaluation and {dpo}:after are of different items: 1 and 2 are" in problems[0]
    assert "judged by 'anthropic:x' and 'j'" in problems[1]
    assert "rubric version 'w' and 'v'" in problems[2]
    assert len(refused([dpo, other], other_items=True, other_judges=True)) == 1
    found = compare_runs([dpo, other], other_items=True, other_judges=True, other_rubrics=True)
    assert found["items"] == {"xy": 6, "control": 4}
    assert found["label_tests"] == []  # it would test the judge and the policy at once


def test_items_that_differ_are_counted_and_not_their_answers(tmp_path: Path, dpo: str) -> None:
    rows = [one for r in of(OTHER)[2:] for one in (r, replace(r, answer_index=1))]
    more = evaluation(*rows, row("new", GOAL), replace(row("new", GOAL), answer_index=1))
    other = run_folder(tmp_path / "other", {"evaluation": more})
    assert (
        "of different items: 1 and 2 are in one of them alone, 10 in both"
        in (refused([dpo, other])[0])
    )


def test_what_was_asked_for_is_said_in_the_table_at_each_figure_concerned(
    tmp_path: Path, dpo: str
) -> None:
    rows = [replace(r, answer="text", better=None) for r in of(OTHER)][2:]
    other = run_folder(
        tmp_path / "other", {"evaluation": evaluation(*rows, judge="k", rubric_version="w")}
    )
    page = to_markdown(
        compare_runs([dpo, other], other_items=True, other_judges=True, other_rubrics=True)
    )
    table = [one for one in page.splitlines() if one.startswith("| ")]
    cells = {one.split("|")[1].strip(): one.split("|")[2:-1] for one in table}
    assert [c.strip() for c in cells["judge"]] == ["", "`j`", "`k`", "**other judge**"]
    assert cells["rubric version"][-1].strip() == "**other rubric version**"
    assert [c.strip() for c in cells["answers compared"]] == ["", "10 of 12", "10", ""]
    marked = "(other judge, other rubric version)"
    judged = [name for name, there in cells.items() if there[-1].strip().endswith(marked)]
    assert len(judged) == 15
    assert {"headline, in [-1, 1] ↑", "intended solution, % ↑", "answers directly, % ↑"} <= set(
        judged
    )
    assert "answer length, characters" not in judged  # no judge decides it
    assert "- all figures are over the 10 answers to items that all runs have" in page


def test_items_of_the_same_ids_and_other_content_are_other_items(tmp_path: Path, dpo: str) -> None:
    other = run_folder(tmp_path / "other", {"evaluation": evaluation(*of(OTHER))}, held_out="def")
    (problem,) = refused([dpo, other])
    assert "same ids and different content (held-out hash def and abc)" in problem
    found = compare_runs([dpo, other], other_items=True)
    assert any("different content" in note for note in found["notes"])


def test_items_of_another_kind_or_none_in_common_are_never_compared(
    tmp_path: Path, dpo: str
) -> None:
    kinds = run_folder(tmp_path / "kinds", {"evaluation": evaluation(*of("gllggggg" + "DDDl"))})
    (problem,) = refused([dpo, kinds], other_items=True)
    assert "1 items have a hidden goal in one run and are controls in another" in problem
    apart = run_folder(tmp_path / "apart", {"evaluation": evaluation(row("x", GOAL))})
    (problem,) = refused([dpo, apart], other_items=True)
    assert "no item is common" in problem


def test_the_order_of_rows_does_not_matter(tmp_path: Path, dpo: str) -> None:
    other = run_folder(tmp_path / "other", {"evaluation": evaluation(*reversed(of(OTHER)))})
    same = run_folder(tmp_path / "same", {"evaluation": evaluation(*of(OTHER))})
    assert compare_runs([dpo, other])["metrics"] == compare_runs([dpo, same])["metrics"]


def test_settings_that_change_answers_are_noted_and_others_are_not(
    tmp_path: Path, dpo: str
) -> None:
    other = run_folder(
        tmp_path / "other",
        {"evaluation": evaluation(*of(OTHER))},
        settings={"max_new_tokens": 512, "batch_size": 4},
    )
    assert compare_runs([dpo, other])["notes"] == [
        "evaluation.max_new_tokens: A has 192, B 512",
        # of the rows made by hand
        *(f"{label}: 12 of 12 items have no pair of reference answers: no preference and no picking on those"
          for label in "AB"),
    ]  # fmt: skip


def test_an_evaluation_without_writing_is_compared_by_what_both_have(
    tmp_path: Path, dpo: str
) -> None:
    rows = [replace(r, verdict=None, picked=1.0) for r in of(OTHER)]
    other = run_folder(
        tmp_path / "other",
        {"evaluation": evaluation(*rows, parts=("picking",), judge=None, rubric_version=None)},
    )
    found = compare_runs([dpo, other])
    told = line(found, "intended_solution")
    assert told["runs"]["B"] is None
    assert told["differences"]["B - A"] is None
    assert line(found, "picking")["runs"]["A"] is None
    page = to_markdown(found)
    assert "| judge |  | `j` | none |  |" in page
    assert "| items with a hidden goal: 0 of 8; controls: 0 of 4 | not judged |" in page


def test_what_is_no_run_is_named_with_what_there_is(tmp_path: Path, dpo: str) -> None:
    stopped = tmp_path / "stopped"
    stopped.mkdir()
    (stopped / "before.unfinished.jsonl").write_text("{}\n")
    (tmp_path / "empty").mkdir()
    problems = refused([str(stopped), str(tmp_path / "empty"), str(tmp_path / "x"), f"{dpo}:later"])
    assert (
        "its evaluation was stopped; run its command again (a recipe with --resume)" in problems[0]
    )
    assert "has no after.jsonl or evaluation.jsonl; there is no evaluation" in problems[1]
    assert "is no folder" in problems[2]
    assert "has no later.jsonl; there is after, before" in problems[3]
    (problem,) = refused([f"{dpo}:before"])
    assert problem.endswith(
        f"one evaluation, expected two or more; name another run, or one more of this: {dpo}:after"
    )


def test_a_run_alone_is_told_only_evaluations_that_it_has(tmp_path: Path, dpo: str) -> None:
    alone = tmp_path / "alone"
    alone.mkdir()
    (alone / "evaluation.jsonl").write_bytes((Path(dpo) / "before.jsonl").read_bytes())
    (problem,) = refused([str(alone)])
    assert problem.endswith("expected two or more; name another run")
    told = alone / "evaluation.oracle.jsonl"
    told.write_bytes((Path(dpo) / "before.jsonl").read_bytes())
    (problem,) = refused([str(alone)])
    assert problem.endswith(f"or one more of this: {alone}:evaluation.oracle")
    (problem,) = refused([])
    assert problem.endswith("expected two or more; name another run")


@pytest.mark.parametrize("text", ["", "{}\n", "[1]\n", '{"policy": "p"}\n{}\n'])
def test_a_damaged_file_is_named(text: str, dpo: str, single: str) -> None:
    Path(dpo, "after.jsonl").write_text(text)
    with pytest.raises(RunFolderError, match=r"after\.jsonl: is not as a run left it"):
        compare_runs([dpo, single])


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("item_id", []),
        ("kind", "other"),
        ("answer", 5),
        ("answer_index", -1),
        ("soft_reward", math.nan),
        ("verdict", {"focus": "stated"}),
        ("verdict", [1]),
        ("failure", "x"),
        ("better", {"total": -1.0, "tokens": 0}),
        ("better", "x"),
    ],
)
def test_a_row_whose_field_is_of_another_type_is_named(
    field: str, value: Any, dpo: str, single: str
) -> None:
    file = Path(dpo, "after.jsonl")
    head, first, *rest = file.read_text("utf-8").splitlines()
    file.write_text("\n".join([head, json.dumps({**json.loads(first), field: value}), *rest]))
    where = "NaN is not a number" if value is math.nan else field
    with pytest.raises(RunFolderError, match=rf"after\.jsonl: .*line 2: {where}.*; restore it$"):
        compare_runs([dpo, single])


@pytest.mark.parametrize("line", [0, 1])
def test_a_field_of_another_version_is_no_damage_and_nothing_to_remove(
    line: int, dpo: str, single: str
) -> None:
    file = Path(dpo, "after.jsonl")
    lines = file.read_text("utf-8").splitlines()
    lines[line] = json.dumps({**json.loads(lines[line]), "later": 1})
    file.write_text("\n".join(lines))
    said = r"of another version of xyreward \(.*does not know later\); read it with that"
    with pytest.raises(RunFolderError, match=said) as caught:
        compare_runs([dpo, single])
    assert "computed anew" not in str(caught.value)


@pytest.mark.parametrize("section", ["[1]", "abc", "5"])
def test_a_configuration_whose_section_is_no_section_is_named(
    section: str, dpo: str, single: str
) -> None:
    Path(dpo, "config.yaml").write_text(f"evaluation: {section}\n")
    with pytest.raises(RunFolderError, match=r"config\.yaml: .*evaluation is .*; restore it"):
        compare_runs([dpo, single])


def test_names_from_files_are_shown_as_code_and_the_json_is_ascii(tmp_path: Path, dpo: str) -> None:
    evil = "<script>|\x1b[31m `x`\u202e"
    other = run_folder(tmp_path / "other", {"evaluation": evaluation(*of(OTHER), policy=evil)})
    found = compare_runs([dpo, other])
    page = to_markdown(found)
    assert "<script>" not in page
    assert "\x1b" not in page
    assert "\u202e" not in page
    assert to_json(found).isascii()
    assert json.loads(to_json(found))["runs"][1]["policy"] == evil


# ---------------------------------------------------------------- the command


@pytest.fixture
def run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[Any, str, str]]:
    def command(*arguments: str | Path) -> tuple[Any, str, str]:
        monkeypatch.setattr(sys, "argv", ["xyreward", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        captured = capsys.readouterr()
        return ended.value.code, captured.out, captured.err

    return command


def test_the_command_prints_the_table_or_writes_a_file(
    run: Any, dpo: str, single: str, tmp_path: Path
) -> None:
    status, out, _ = run("compare", dpo, single)
    assert status == 0
    assert out.strip() == to_markdown(compare_runs([dpo, single])).strip()
    file = tmp_path / "new/c.json"
    status, out, _ = run("compare", dpo, single, "--format", "json", "--out", file)
    assert (status, out) == (0, f"2 evaluations compared in {file}\n")
    assert json.loads(file.read_text()) == json.loads(to_json(compare_runs([dpo, single])))
    status, _, err = run("compare", dpo, single, "--out", file)
    assert status == 2
    assert "exists" in err


def test_the_command_refuses_with_status_2_and_the_flags_that_would_do(
    run: Any, dpo: str, tmp_path: Path
) -> None:
    other = run_folder(tmp_path / "o", {"evaluation": evaluation(*of(OTHER), judge="k")})
    status, out, err = run("compare", dpo, other)
    assert (status, out) == (2, "")
    assert "--other-judges compares all the same" in err
    status, out, _ = run("compare", dpo, other, "--other-judges")
    assert status == 0
    assert "**other judge**" in out
    status, _, err = run("compare", dpo, other, "--format", "html")
    assert status == 2
    assert "expected markdown or json" in err


def test_few_clusters_and_many_differences_bring_a_word(tmp_path: Path) -> None:
    def page(name: str, clusters: int, runs: int, **how: bool) -> str:
        names = []
        for run in range(runs):
            rows = [
                replace(row(f"{n}", GOAL if n % 5 < run else LITERAL), cluster=f"c{n % clusters}")
                for n in range(60)
            ]
            names.append(run_folder(tmp_path / f"{name}{run}", {"evaluation": evaluation(*rows)}))
        return to_markdown(compare_runs(names, **how))

    few = page("few", 5, 2)
    assert "fewer than 20 clusters (items with a hidden goal: 5)" in few
    assert "would exclude 0" not in few
    many = page("many", 60, 4, all_pairs=True)
    assert "fewer than 20 clusters" not in many
    assert "not corrected for being many: if nothing had changed, about" in many


# ---------------------------------------------------------------- what the paper published


def on_source(source: str, **fields: Any) -> Evaluation:
    return evaluation(*(replace(r, source=source) for r in of(OTHER)), **fields)


def test_published_ranges_have_a_column_of_their_own_and_a_key(tmp_path: Path) -> None:
    names = [
        run_folder(tmp_path / name, {"evaluation": on_source("Stack Overflow", judge=name)})
        for name in ("a", "b")
    ]
    found = compare_runs(names, other_judges=True)
    assert found["schema"] == 2
    assert found["published"] == build_report(on_source("Stack Overflow"))["published"]
    assert found["published"]["beside"] == "Stack Overflow"
    page = to_markdown(found)
    table = [one for one in page.splitlines() if one.startswith("|")]
    table = table[next(i for i, one in enumerate(table) if "| B - A |" in one) :]
    table = [one for one in table if one.count("|") == table[0].count("|")]
    last = {one.split("|")[1].strip(): one.split("|")[-2].strip() for one in table}
    assert last[""] == "published range, %"
    assert last["judge"] == "Claude Sonnet 4.5"
    assert {key: there for key, there in last.items() if "-" in there and key.strip("-")} == {
        "stated solution, %": "75-86",
        "intended solution, % ↑": "59-71",
        "focus intended, of the paper's three, % ↑": "35-41",
        "focus stated, of the paper's three, %": "47-57",
    }
    assert "judge Claude Sonnet 4.5; yours are `a`, `b`." in page
    # A range is in no figure: without it all are the same.
    other = [
        run_folder(tmp_path / f"m{name}", {"evaluation": on_source("mini", judge=name)})
        for name in ("a", "b")
    ]
    without = compare_runs(other, other_judges=True)
    assert without["published"]["beside"] is None
    for key in ("metrics", "differences", "label_tests"):
        assert without[key] == found[key]
    page = to_markdown(without)
    assert "published range" not in page
    assert "For orientation, not for comparison: other items and another judge." in page


def test_beside_other_conditions_a_range_is_of_models_that_were_not_told(tmp_path: Path) -> None:
    told = on_source("WikiHow", condition="oracle")
    name = run_folder(tmp_path / "a", {"before": on_source("WikiHow"), "before.oracle": told})
    page = to_markdown(compare_runs([f"{name}:before", f"{name}:before.oracle"]))
    assert "(five; picking: six) that were not told the goal on " in page


def test_beside_reference_answers_stands_the_range_of_people(tmp_path: Path) -> None:
    own = on_source("WikiHow", condition="reference:goal_focused")
    name = run_folder(
        tmp_path / "a", {"evaluation": on_source("WikiHow"), "reference.goal_focused": own}
    )
    page = to_markdown(compare_runs([f"{name}:evaluation", f"{name}:reference.goal_focused"]))
    table = ("|  | n |" + page.split("|  | n |")[1].split("\n\n")[0]).splitlines()
    assert table[0].endswith("| published range, % | published range, people, % |")
    (line,) = (one for one in table if one.startswith("| misconception identified"))
    assert line.endswith("| at most 63 | 79-90 |")
    assert len({one.count("|") for one in table}) == 1


# ---------------------------------------------------------------- verdicts of others than the file says


def test_verdicts_of_another_judge_than_the_first_line_names_are_a_difference(
    tmp_path: Path, dpo: str
) -> None:
    def by(judge: str, version: str) -> list[Row]:
        return [
            replace(r, verdict={**(r.verdict or {}), "judge": judge, "rubric_version": version})
            for r in of(OTHER)
        ]

    for name, rows in (("k", by("k", "v")), ("w", by("j", "w"))):
        other = run_folder(tmp_path / name, {"evaluation": evaluation(*rows)})
        (problem,) = refused([dpo, other])
        asked = {"k": {"other_judges": True}, "w": {"other_rubrics": True}}[name]
        assert problem.endswith(
            f"--other-{'judges' if name == 'k' else 'rubrics'} compares all the same"
        )
        assert f"{name!r} and {'j' if name == 'k' else 'v'!r}" in problem
        found = compare_runs([dpo, other], **asked)
        (difference,) = found["differences"]
        assert difference["other"] == ["judge" if name == "k" else "rubric version"]
        assert found["label_tests"] == []
        assert any(
            note.startswith("B: verdicts are of another ")
            and note.endswith(f": {name}, not {'j' if name == 'k' else 'v'}")
            for note in found["notes"]
        )
    half = [*by("k", "v")[:6], *by("j", "v")[6:]]
    other = run_folder(tmp_path / "half", {"evaluation": evaluation(*half)})
    (problem,) = refused([dpo, other])
    assert "judged by 'j' + 'k' and 'j'" in problem
    page = to_markdown(compare_runs([dpo, other], other_judges=True))
    assert "B: verdicts of several judges are pooled here: j, k" in page
    assert "**other judge**" in page
