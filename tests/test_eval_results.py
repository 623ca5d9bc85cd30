"""A run's figures in the hub's forms: read by the hub's own library, refused where they would mislead."""

import json
import math
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import ModelCard, parse_eval_result_entries
from rows import DIRECT, GOAL, LITERAL, evaluation, failed, row
from ruamel.yaml import YAML

from xyreward import cli
from xyreward.config import EvaluationConfig
from xyreward.errors import DataError, RunFolderError
from xyreward.eval_results import OF_TRAIN_SIDE, DataSet, data_set, eval_results, model_index
from xyreward.evaluation import Evaluation
from xyreward.model_card import EVALUATION, add_report
from xyreward.report import build_report, to_json

BENCHMARK = "allenai/XYBench-dataset"
COMMIT = "0123456789abcdef0123456789abcdef01234567"
ITEMS: list[dict[str, Any]] = [
    {"source": BENCHMARK, "kinds": ["xy"]},
    {"source": "mini", "kinds": ["control"]},
]
FACTS = {"sources": [f"{BENCHMARK}@{COMMIT}: 8111 of 8111 items", "mini: 120 of 240 items"]}
WHOLE = EvaluationConfig()
BEFORE = evaluation(
    *(row(f"x{i}", LITERAL) for i in range(30)),
    *(row(f"c{i}", DIRECT, "control") for i in range(10)),
    parts=("writing",),
    judge="anthropic:m",
    rubric_version="1-abc",
)
AFTER = replace(
    BEFORE,
    rows=(*(row(f"x{i}", GOAL if i < 9 else LITERAL) for i in range(30)), *BEFORE.rows[30:]),
)


def run(
    folder: Path,
    after: Evaluation | None = AFTER,
    items: Any = ITEMS,
    facts: Any = FACTS,
    **settings: Any,
) -> Path:
    folder.mkdir(exist_ok=True)
    report = build_report(BEFORE, after, facts=facts)
    (folder / "report.json").write_text(to_json(report))
    (folder / "config.yaml").write_text(
        json.dumps({"items": items, "evaluation": {"max_new_tokens": 512, **settings}})
    )
    return folder


def entries(text: str) -> list[Any]:
    return list(parse_eval_result_entries(YAML(typ="safe").load(text)))


def test_the_hubs_own_reader_finds_task_value_commit_and_what_the_number_cannot_say(
    tmp_path: Path,
) -> None:
    found = {one.task_id: one for one in entries(eval_results(run(tmp_path)))}
    assert list(found) == [
        "stated_solution",
        "intended_solution",
        "paper_focus_intended",
        "misconception",
    ]
    one = found["intended_solution"]
    assert (one.dataset_id, one.dataset_revision, one.value) == (BENCHMARK, COMMIT, 30.0)
    assert one.notes.startswith("xyreward ")
    for part in (
        "judge anthropic:m, rubric 1-abc",
        "n 30, 95 % interval ",
        "items: the test side (sides are xyreward's)",
        "answers: 1 per item, greedy, ",
        "0 of 30 answers without labels",
        "max_new_tokens 512",
    ):
        assert part in one.notes
    os.utime(tmp_path / "report.json", (0, 0))
    assert entries(eval_results(tmp_path))[0].date == "1970-01-01"  # of the report, and a text


def test_the_policy_before_and_tasks_of_the_benchmark_can_be_named(tmp_path: Path) -> None:
    text = eval_results(
        run(tmp_path),
        policy="before",
        tasks={"goal_served": "presence"},
        revision="f" * 40,
        source_url="https://example.org/run",
    )
    (one,) = entries(text)
    assert (one.task_id, one.value, one.dataset_revision) == ("presence", 0.0, "f" * 40)
    assert one.source_url == "https://example.org/run"


def problems(folder: Path, **given: Any) -> list[str]:
    with pytest.raises(DataError) as caught:
        eval_results(folder, **given)
    return caught.value.problems


def test_items_that_are_not_the_benchmarks_are_not_published_as_such(tmp_path: Path) -> None:
    run(tmp_path, items=[{"source": "mini"}])
    assert "are of mini" in problems(tmp_path)[0]
    assert "and not of allenai" in problems(tmp_path, dataset=BENCHMARK)[0]
    run(tmp_path, items=[{"source": BENCHMARK}, {"source": "mini"}])
    assert "are of allenai/XYBench-dataset and mini" in problems(tmp_path, dataset=BENCHMARK)[0]
    run(tmp_path)
    assert "and not of owner/other" in problems(tmp_path, dataset="owner/other")[0]


def test_a_copy_in_a_folder_is_published_by_the_name_that_is_given(tmp_path: Path) -> None:
    run(tmp_path, items=[{"source": "/home/ada/xybench", "kinds": ["xy"]}])
    (problem,) = problems(tmp_path)
    assert "where they are a copy of one, name it with --dataset" in problem
    assert "ada" not in problem
    text = eval_results(tmp_path, dataset=BENCHMARK)
    assert "ada" not in text
    assert {one.dataset_revision for one in entries(text)} == {None}


def test_figures_of_which_too_many_judgements_failed_are_refused(tmp_path: Path) -> None:
    few = replace(AFTER, rows=(failed("x0"), *AFTER.rows[1:]))
    (one, *_) = entries(eval_results(run(tmp_path, few)))
    assert "1 of 30 answers without labels" in one.notes
    many = replace(AFTER, rows=(*(failed(f"x{i}") for i in range(2)), *AFTER.rows[2:]))
    assert (
        "6.7 % of the answers have no labels, more than 5.0 %" in problems(run(tmp_path, many))[0]
    )
    assert "n 28" in eval_results(tmp_path, max_failure_rate=0.1)


@pytest.mark.parametrize(
    ("settings", "of_train_side", "told"),
    [
        ({"leave_out": "stackoverflow"}, 0, "source stackoverflow, all sides"),
        ({"split": "all"}, 0, "all sides"),
        ({"split": "all"}, 12, "all sides, 12 of them on the train side"),
        ({"sources": ["curated"]}, 0, "the test side, of curated"),
        ({"limit": 30}, 0, "the test side, the first 30 of each kind"),
        ({"limit": 9}, 2, "the test side, the first 9 of each kind, 2 of them on the train side"),
    ],
)  # fmt: skip
def test_what_is_no_whole_held_out_side_is_published_as_what_it_is_or_not_at_all(
    settings: Any, of_train_side: int, told: str, tmp_path: Path
) -> None:
    facts = {**FACTS, **({OF_TRAIN_SIDE: of_train_side} if of_train_side else {})}
    run(tmp_path, facts=facts, **settings)
    (problem,) = problems(tmp_path)
    assert f"the items are {told}, where readers expect all of a held-out side" in problem
    for one in entries(eval_results(tmp_path, any_items=True)):
        assert f"; items: {told} (sides are xyreward's)" in one.notes
    report = build_report(BEFORE, AFTER, facts=facts)
    (index,) = model_index(report, ITEMS, "run", EvaluationConfig(**settings))
    assert {result["dataset"]["split"] for result in index["results"]} == {told}


def test_the_dev_side_is_a_held_out_side_and_is_called_so(tmp_path: Path) -> None:
    (one, *_) = entries(eval_results(run(tmp_path, split="dev")))
    assert "items: the dev side (" in one.notes


def test_how_answers_were_drawn_is_said_wherever_their_figures_are(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"answers_per_item": 4, "temperature": 0.7}
    told = "answers: 4 per item, temperature 0.7"
    (one, *_) = entries(eval_results(run(tmp_path, **settings)))
    assert told in one.notes
    sampled = EvaluationConfig(**settings)
    (index,) = model_index(build_report(BEFORE, AFTER), ITEMS, "run", sampled)
    names = [m["name"] for result in index["results"] for m in result["metrics"]]
    assert names
    assert all(told in name for name in names)
    # What the run itself had to say of it goes first: the configuration does not know an API's own.
    own = replace(BEFORE, remarks=("answers: 1 per item, sampled at the API's own temperature",))
    (index,) = model_index(build_report(own), ITEMS, "run", WHOLE)
    assert "the API's own temperature" in index["results"][0]["metrics"][0]["name"]


def picked(nothing: int, others: int) -> Evaluation:
    """Of 60 questions `nothing` have no pick, the others a right one; of controls `others` have none."""
    fails: dict[str, Any] = {"comparable": True, "pick_failure": "unparseable"}
    right: dict[str, Any] = {"comparable": True, "picked": 1.0, "picked_first": 0.5}
    return evaluation(
        *(row(f"x{i}", **(fails if i < nothing else right)) for i in range(60)),
        *(row(f"c{i}", kind="control", **(fails if i < others else right)) for i in range(40)),
        parts=("picking",),
    )


def written(folder: Path, before: Evaluation) -> Path:
    run(folder)
    (folder / "report.json").write_text(to_json(build_report(before, facts=FACTS)))
    return folder


@pytest.mark.parametrize("nothing", [0, 1, 3, 4, 56, 59])
def test_picking_with_too_many_items_without_a_pick_is_refused_and_others_are_told(
    nothing: int, tmp_path: Path
) -> None:
    before = picked(nothing, 20)  # those of the controls are in no figure of items with a goal
    written(tmp_path, before)
    if nothing > 3:
        (problem,) = problems(tmp_path)
        assert f"picking: {nothing} of 60 picked nothing, more than 5.0 %" in problem
    (one,) = entries(eval_results(tmp_path, max_failure_rate=1))
    assert f"{nothing} of 60 picked nothing" in one.notes
    (index,) = model_index(build_report(before, facts=FACTS), ITEMS, "run", WHOLE)
    (told,) = (m["name"] for r in index["results"] for m in r["metrics"] if m["type"] == "picking")
    assert (f"{nothing} of 60 picked nothing" in told) == bool(nothing)


def test_picking_of_which_nothing_is_left_is_no_figure(tmp_path: Path) -> None:
    assert problems(written(tmp_path, picked(60, 0)))


def test_metrics_that_are_not_there_are_named_all_at_once(tmp_path: Path) -> None:
    found = problems(
        run(tmp_path, None),
        tasks={"wrong": "a", "control_direct": "b", "picking": "c"},
        policy="after",
    )
    assert [one.split(",")[0] for one in found] == [
        "policy 'after'",
        "no metric 'wrong' of items with a hidden goal",
        "no metric 'control_direct' of items with a hidden goal",
        "picking was not measured of the policy 'after'",
    ]


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"dataset": "../.."}, "dataset is '../..', expected owner/name"),
        ({"dataset": "XYBench-dataset"}, "expected owner/name"),
        ({"dataset": "a/b/c"}, "expected owner/name"),
        ({"dataset": "allenai/.."}, "expected owner/name"),
        ({"dataset": "allenai/a..b"}, "expected owner/name"),
        ({"dataset": "allenai/x.git"}, "expected owner/name"),
        ({"dataset": "/etc/passwd"}, "expected owner/name"),
        ({"dataset": "https://example.org/a"}, "expected owner/name"),
        ({"dataset": "allenai/x\n"}, "expected owner/name"),
        ({"dataset": ""}, "expected owner/name"),
        ({"revision": "main\nother: 1"}, "revision is 'main\\nother: 1', expected a commit"),
        ({"revision": "../x"}, "expected a commit"),
        (
            {"tasks": {"intended_solution": "a b"}},
            "task of 'intended_solution' is 'a b', expected an id",
        ),
        ({"tasks": {"intended_solution": "-"}}, "expected an id"),
        ({"tasks": {"intended_solution": "../x"}}, "expected an id"),
        (
            {"tasks": {"intended_solution": "t", "stated_solution": "t"}},
            "two metrics have the same task",
        ),
        ({"source_url": "javascript:alert(1)"}, "source_url is 'javascript:alert(1)', expected"),
        ({"source_url": "https://"}, "source_url is 'https://', expected"),
    ],
)
def test_names_that_the_hub_has_not_are_refused_before_anything_is_written(
    tmp_path: Path, given: Any, says: str
) -> None:
    folder = run(tmp_path, items=[{"source": str(tmp_path)}])  # a copy: any name may be given to it
    assert any(says in problem for problem in problems(folder, **{"dataset": BENCHMARK, **given}))
    good = {"intended_solution": "presence", "stated_solution": "v1/stated:en"}
    url = "https://example.org/run?x=1"
    (one, _) = entries(eval_results(folder, dataset=BENCHMARK, tasks=good, source_url=url))
    assert (one.task_id, one.source_url) == ("presence", url)


def test_a_folder_without_a_report_or_with_a_damaged_one_is_named(tmp_path: Path) -> None:
    assert "has no report.json and no config.yaml" in problems(tmp_path)[0]
    run(tmp_path)
    (tmp_path / "report.json").write_text('{"policies": 1}')
    with pytest.raises(RunFolderError, match=r"report\.json: is not as a run left it"):
        eval_results(tmp_path)


def _metric(report: Any) -> Any:
    return next(line for line in report["metrics"] if line["key"] == "intended_solution")


@pytest.mark.parametrize(
    "spoil",
    [
        lambda r: r.update(metrics=[1]),
        lambda r: r.update(judge=None),
        lambda r: r.pop("judge"),
        lambda r: r["failures"].update(after=[1]),
        lambda r: r["facts"].update(sources=5),
        lambda r: _metric(r)["after"].update(value=math.nan),
        lambda r: _metric(r)["after"].update(value=None),
        lambda r: _metric(r)["after"].update(value="61"),
    ],
)
def test_a_figure_that_is_none_is_not_published(tmp_path: Path, spoil: Any) -> None:
    run(tmp_path)
    report = json.loads((tmp_path / "report.json").read_text("utf-8"))
    spoil(report)
    (tmp_path / "report.json").write_text(json.dumps(report), "utf-8")
    with pytest.raises(RunFolderError, match=r"report\.json: is not as a run left it"):
        eval_results(tmp_path)


@pytest.mark.parametrize("text", ["items: mini", "items: [1]", "items: [{}]", "evaluation: [1]"])
def test_a_configuration_that_is_none_is_named(tmp_path: Path, text: str) -> None:
    run(tmp_path)
    (tmp_path / "config.yaml").write_text(text)
    with pytest.raises(RunFolderError, match=r"config\.yaml: is not as a run left it"):
        eval_results(tmp_path)


def test_a_data_set_is_named_without_a_folder_of_this_machine(tmp_path: Path) -> None:
    assert data_set(ITEMS, "xy", FACTS) == DataSet(BENCHMARK, BENCHMARK, COMMIT)
    assert data_set(ITEMS, "control", FACTS) == DataSet("mini, which comes with xyreward", None)
    own = [{"source": str(tmp_path)}]
    assert data_set(own, "xy", {}) == DataSet("a data set of the authors", None)
    assert data_set([*own, *ITEMS], "xy", FACTS).several


def test_no_limit_is_told_of_answers_from_a_file(tmp_path: Path) -> None:
    folder = run(tmp_path)
    report = json.loads((folder / "report.json").read_text("utf-8"))
    report["notes"].append("answers: from a file, 1 per item")
    (folder / "report.json").write_text(json.dumps(report), "utf-8")
    notes = entries(eval_results(folder))[0].notes
    assert "answers: from a file, 1 per item" in notes
    assert "max_new_tokens" not in notes
    report["notes"].append("verdicts of several judges are pooled here: j, k")
    (folder / "report.json").write_text(json.dumps(report), "utf-8")
    assert "; verdicts of several judges are pooled here: j, k; " in (
        entries(eval_results(folder))[0].notes or ""
    )


def test_a_path_of_two_parts_is_no_name_on_the_hub(tmp_path: Path) -> None:
    """Whether or not it is there where the figures are published: the run says what was loaded."""
    for source in ("bench/items.jsonl", "data/items"):
        folder = run(
            tmp_path, items=[{"source": source}], facts={"sources": [f"{source}: 40 of 40 items"]}
        )
        assert (
            "of a data set of the authors, and not of one data set of the hub"
            in problems(folder)[0]
        )
        assert entries(eval_results(folder, dataset=BENCHMARK))[0].dataset_id == BENCHMARK


# ---------------------------------------------------------------- the card


def test_the_cards_front_matter_has_the_figures_and_the_hub_reads_them(tmp_path: Path) -> None:
    report = build_report(BEFORE, AFTER, facts=FACTS)
    card = tmp_path / "README.md"
    card.write_text(f"---\nlibrary_name: peft\n---\n\n# Title\n\n{EVALUATION}\n\nNone yet.\n")
    for _ in range(2):  # a second report takes the place of the first
        add_report(
            tmp_path,
            "# Held-out evaluation\n\nfigures\n",
            model_index(report, ITEMS, "run", WHOLE),
        )
    loaded = ModelCard.load(card)
    assert loaded.data.library_name == "peft"
    assert loaded.data.model_name == "run"
    results = {one.metric_type: one for one in loaded.data.eval_results}
    assert set(results) == {
        "stated_solution", "intended_solution", "focus_intended", "misconception", "goal_served",
        "control_direct", "control_invents", "xyreward_headline",
    }  # fmt: skip
    one = results["intended_solution"]
    assert (one.metric_value, one.dataset_type, one.dataset_revision) == (30.0, BENCHMARK, COMMIT)
    assert "n 30, 95 % interval" in one.metric_name
    assert one.metric_name.endswith("judge anthropic:m; answers: 1 per item, greedy)")
    assert results["control_direct"].dataset_type == "other"
    assert results["xyreward_headline"].metric_value == pytest.approx(0.3)
    assert card.read_text().endswith(f"# Title\n\n{EVALUATION}\n\nfigures\n")


def test_failed_judgements_are_said_and_a_headline_that_is_not_there_is_left_out() -> None:
    many = replace(AFTER, rows=(*(failed(f"x{i}") for i in range(9)), *AFTER.rows[9:]))
    (index,) = model_index(build_report(BEFORE, many, facts=FACTS), ITEMS, "run", WHOLE)
    told = {m["type"]: m["name"] for result in index["results"] for m in result["metrics"]}
    assert "9 answers without labels" in told["intended_solution"]
    assert "failed" not in told["control_direct"]
    assert "xyreward_headline" not in told
    assert index["results"][-1]["task"]["name"] == "answering controls"


@pytest.mark.parametrize("head", ["", "---\n- a list\n---\n", "text\n---\na: 1\n---\n"])
def test_a_front_matter_of_somebody_elses_is_left_alone(head: str, tmp_path: Path) -> None:
    card = tmp_path / "README.md"
    card.write_text(f"{head}# Mine\n\n{EVALUATION}\n\nNone yet.\n")
    add_report(tmp_path, "figures", [{"name": "run"}])
    assert card.read_text() == f"{head}# Mine\n\n{EVALUATION}\n\nfigures\n"


# ---------------------------------------------------------------- the command


def test_the_command_writes_into_what_will_be_pushed_and_says_how(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def command(*arguments: str) -> tuple[Any, str, str]:
        monkeypatch.setattr(sys, "argv", ["xyreward", "eval-results", *arguments])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        captured = capsys.readouterr()
        return ended.value.code, captured.out, captured.err

    folder = run(tmp_path / "run")
    (folder / "adapter").mkdir()
    status, out, _ = command(str(folder), "--task", "intended_solution=presence")
    assert status == 0
    file = folder / "adapter/.eval_results/XYBench-dataset.yaml"
    assert f"1 result in {file}" in out
    (one,) = entries(file.read_text())
    assert (one.task_id, one.value) == ("presence", 30.0)
    status, _, err = command(str(folder))
    assert status == 2
    assert "exists" in err
    status, out, _ = command(str(folder), "--policy", "before", "--out", str(tmp_path / "r.yaml"))
    assert status == 0
    assert "4 results in" in out
    outside = run(tmp_path / "copy", items=[{"source": str(tmp_path)}])
    before = sorted(tmp_path.rglob("*"))
    status, _, err = command(str(outside), "--dataset", "../..")
    assert status == 2
    assert "expected owner/name" in err
    assert sorted(tmp_path.rglob("*")) == before
    status, _, err = command(str(folder), "--task", "presence")
    assert status == 2
    assert "expected METRIC=TASK" in err
