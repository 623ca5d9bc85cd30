"""What recipes share, in this process: checks that must come before any hour of training."""

import errno
import gc
import io
import json
import os
import re
import runpy
import shlex
import shutil
import subprocess
import sys
import warnings
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from xyreward import recipe, sides, training_pairs
from xyreward.calibrate import Record, keep
from xyreward.config import (
    Arguments,
    DPORecipe,
    EvaluateRecipe,
    EvaluationConfig,
    GRPORecipe,
    ItemsConfig,
    PairsConfig,
    Places,
    load_config,
    parse_arguments,
)
from xyreward.errors import ConfigError, DataError, LeakError, MissingDependency, RunFolderError
from xyreward.evaluation import Evaluation, Row
from xyreward.items import DEFAULT_LABELS, AnswerKind, Item, text_hash
from xyreward.loading import bundled_splits, load_items
from xyreward.pairs import Rule
from xyreward.policy import load_policy
from xyreward.recipe import checks, several_rounds, training
from xyreward.recipe.account import calibration
from xyreward.report import build_report, to_json
from xyreward.runs import RunFolder
from xyreward.splits import Placement, Side, Splits
from xyreward.testing import tiny_policy
from xyreward.verdict import LabelProbabilities, Verdict

PATH = Path("some.yaml")


def config(tmp_path: Path, tiny: str, **changes: Any) -> DPORecipe:
    base: dict[str, Any] = {
        "policy": {"model": tiny},
        "pairs": {"rule": {"rejected_kinds": ["literal"]}, "max_pairs": 6},
        "lora": {"r": 2, "target_modules": "all-linear"},
        "evaluation": {"parts": ["preference"], "limit": 2},
        "output_dir": str(tmp_path / "run"),
    }
    return DPORecipe.model_validate({**base, **changes})


@pytest.mark.parametrize(
    ("section", "said"),
    [
        ({"dpo": {"loss_type": ["sigmod"]}}, "dpo.loss_type: is ['sigmod'], expected some of"),
        ({"dpo": {"loss_type": "sigmod"}}, "dpo.loss_type: is 'sigmod', expected some of"),
        ({"dpo": {"loss_type": []}}, "dpo.loss_type: is [], expected some of"),
        (
            {"dpo": {"loss_type": ["sigmoid", "sft"], "label_smoothing": 0.15}},
            "dpo.label_smoothing: is 0.15, which loss_type sigmoid, sft ignores; expected one of aot, ",
        ),
        (
            {"dpo": {"label_smoothing": 0.15}},
            "dpo.label_smoothing: is 0.15, which loss_type sigmoid ignores",
        ),
        (
            {"dpo": {"loss_type": {"sigmoid": 1}}},
            "dpo.loss_type: is {'sigmoid': 1}, expected a list",
        ),
        ({"dpo": {"loss_type": [["sigmoid"]]}}, "dpo.loss_type: is [['sigmoid']], expected a list"),
        ({"dpo": {"loss_type": None}}, "dpo.loss_type: is None, expected a list of texts"),
        ({"dpo": {"loss_type": 3}}, "dpo.loss_type: is 3, expected a list of texts"),
        (
            {"dpo": {"learning_rate": float("nan")}},
            "dpo.learning_rate: is nan, expected in [0, inf)",
        ),
        (
            {"dpo": {"learning_rate": float("inf")}},
            "dpo.learning_rate: is inf, expected in [0, inf)",
        ),
        ({"dpo": {"learning_rate": -1e-4}}, "dpo.learning_rate: is -0.0001, expected in [0, inf)"),
        (
            {"dpo": {"per_device_train_batch_size": 0}},
            "dpo.per_device_train_batch_size: is 0, expected in [1, inf)",
        ),
        ({"dpo": {"num_train_epochs": -1}}, "dpo.num_train_epochs: is -1, expected in (0, inf)"),
        ({"dpo": {"beta": 0.0}}, "dpo.beta: is 0.0, expected in (0, inf)"),
        ({"dpo": {"deepspeed": "nowhere.json"}}, "some.yaml: dpo.deepspeed: "),
        # What only a step of training shows; the key is found by trying without it.
        ({"dpo": {"optim": "adamm"}}, "some.yaml: dpo.optim: ValueError: adamm is not"),
        ({"dpo": {"optim_args": "zzz"}}, "some.yaml: dpo.optim_args: ValueError"),
        (
            {"dpo": {"lr_scheduler_kwargs": {"z": 1}}},
            "some.yaml: dpo.lr_scheduler_kwargs: TypeError",
        ),
        ({"dpo": {"f_divergence_type": "x"}}, "some.yaml: dpo.f_divergence_type: ValueError"),
        ({"dpo": {"loss_weights": [1.0, 2.0]}}, "some.yaml: dpo.loss_weights: ValueError"),
        ({"dpo": {"beta": 0.2, "sync_ref_model": True}}, "some.yaml: dpo.sync_ref_model: NotImpl"),
        ({"lora": {"r": 0}}, "lora.r: is 0, expected in [1, inf)"),
        (
            {"lora": {"bias": "nonee"}},
            "lora.bias: is 'nonee', expected one of none, all, lora_only",
        ),
        ({"lora": {"lora_dropout": 1.0}}, "lora.lora_dropout: is 1.0, expected in [0, 1)"),
        ({"lora": {"init_lora_weights": "pissa"}}, "it changes the policy's own weights"),
        (
            {"lora": {"r": 3, "init_lora_weights": "orthogonal"}},
            "lora.r or lora.init_lora_weights: ",
        ),
        ({"policy": {"revision": "main"}}, "is no hub name and has none; take it out"),
        ({"dpo": {"eval_strategy": "steps"}}, "dpo.eval_strategy: is set by the recipe"),
        ({"dpo": {"hub_token": "secret"}}, "dpo.hub_token: is set by the recipe"),
        ({"dpo": {"seed": 3}}, "use the top-level seed"),
        ({"dpo": {"output_dir": "x"}}, "use the top-level output_dir"),
        ({"dpo": {"lr_scheduler_type": "zigzag"}}, "some.yaml: "),
        ({"lora": {"rank": 4}}, "LoraConfig has no such field"),
        ({"policy": {"model": "./nowhere"}}, "no such folder, and not a hub name"),
    ],
)
def test_a_configuration_that_cannot_work_is_refused_before_a_model_is_loaded(
    tmp_path: Path, tiny: str, section: dict[str, Any], said: str
) -> None:
    if "revision" in section.get("policy", {}):
        section = {"policy": {"model": tiny, **section["policy"]}}
    with pytest.raises(ConfigError) as caught:
        recipe.dpo_settings(config(tmp_path, tiny, **section), PATH)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "run").exists()


def test_all_mistakes_of_a_configuration_are_told_at_once(tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    wrong = {"lerning_rate": 1, "beta": 0, "seed": 1, "loss_type": "sigmod"}
    file.write_text(json.dumps({"output_dir": "x", "sead": 1, "dpo": wrong, "lora": {"rank": 1}}))
    arguments = ["--config", str(file), "--set", "dpo.max_length=1"]
    expected = [
        f"{file}: sead: unknown key",
        f"{file}: dpo.lerning_rate: DPOConfig has no such field; did you mean 'learning_rate'?",
        f"{file}: dpo.seed: is set by the recipe",
        f"{file}: lora.rank: LoraConfig has no such field",
        f"{file}: dpo.beta: is 0, expected in (0, inf)",
        "--set: dpo.max_length: is 1, expected in [2, inf)",
        f"{file}: dpo.loss_type: is 'sigmod', expected some of",
    ]
    with pytest.raises(ConfigError) as caught:
        parse_arguments(DPORecipe, file, arguments, others=recipe.wrong_training)
    lines = str(caught.value).splitlines()
    assert [line.startswith(e) for line, e in zip(lines, expected, strict=True)] == [True] * 7
    # And where nothing of ours is wrong, all of theirs.
    file.write_text(json.dumps({"output_dir": "x", "dpo": wrong, "lora": {"rank": 1}}))
    given, told = parse_arguments(DPORecipe, file, arguments, others=recipe.wrong_training)
    with pytest.raises(ConfigError) as caught:
        recipe.dpo_settings(given, told.places)
    assert str(caught.value).splitlines() == lines[1:]


@pytest.mark.parametrize("section", [None, 3, [1], "dpo"])
def test_sections_that_are_no_sections_are_left_to_whoever_tells_that(section: Any) -> None:
    assert recipe.wrong_training({"dpo": section, "lora": section}, Places("c.yaml")) == []


INTERRUPTED = """
import signal, sys
from pathlib import Path
from types import SimpleNamespace
from xyreward import recipe, runs
from xyreward.recipe import console
from xyreward.config import EvaluateRecipe
with recipe.plain_errors():
    if sys.argv[2:]:
        config = EvaluateRecipe(output_dir=sys.argv[1])
        folder = runs.RunFolder.open(config, sys.argv[1], resume=False)
        console.begins(folder)
        for name in sys.argv[2:]:
            (folder.path / name).write_text("x")
    signal.raise_signal(signal.SIGINT)
"""


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ([], "Interrupted before anything was computed. Begin again with: "),
        (["data.json"], "Interrupted before anything was computed. Begin again with: "),
        (["before.unfinished.jsonl"], "{run} keeps before.unfinished.jsonl. Go on with: "),
        (["before.jsonl", "log.jsonl"], "{run} keeps before.jsonl, log.jsonl. Go on with: "),
    ],
)
def test_ctrl_c_says_on_one_line_what_is_kept_and_how_to_go_on(
    tmp_path: Path, files: list[str], said: str
) -> None:
    script = tmp_path / "script.py"
    script.write_text(INTERRUPTED)
    run = tmp_path / "a run"
    done = subprocess.run(
        [sys.executable, script, run, *files], capture_output=True, text=True, cwd=tmp_path
    )
    assert done.returncode == 130
    command = [sys.executable, str(script), str(run), *files]
    resume = ["--resume"] if files and files != ["data.json"] else []
    assert said.format(run=run) in done.stderr
    assert done.stderr.strip().endswith(shlex.join([*command, *resume]))
    assert len(done.stderr.strip().splitlines()) == 1
    of_many = subprocess.run(
        [sys.executable, script, tmp_path / "b", *files],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "WORLD_SIZE": "2", "RANK": "1"},
    )
    assert (of_many.returncode, of_many.stderr) == (130, "")


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ("os.environ['WORLD_SIZE'] = 'abc'", "WORLD_SIZE is 'abc', expected a number of processes"),
        ("os.environ['RANK'] = 'abc'", "RANK is 'abc', expected the number of a process"),
        ("os.rmdir(os.getcwd())", "the folder that this was started in was removed"),
    ],
)
def test_what_is_wrong_with_the_place_of_a_recipe_is_not_told_of_its_configuration(
    tmp_path: Path, wrong: str, said: str
) -> None:
    code = (
        "import os\nfrom xyreward.recipe.console import plain_errors\n"
        f"{wrong}\nwith plain_errors():\n    print('began')"
    )
    (tmp_path / "place").mkdir()
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path / "place"
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"ConfigError: {said}")
    assert len(done.stderr.splitlines()) == 1


def test_settings_that_work_pass_the_rehearsal_and_show_nothing_of_it(
    tmp_path: Path, tiny: str, capfd: pytest.CaptureFixture[str]
) -> None:
    wanted = config(tmp_path, tiny, dpo={"loss_type": "ipo", "max_length": 16, "optim": "sgd"})
    settings, lora = recipe.dpo_settings(wanted, PATH)
    assert settings.loss_type == ["ipo"]
    assert settings.max_steps == -1
    assert lora.r == 2
    assert recipe.dpo_settings(config(tmp_path, tiny, lora={}), PATH)[1].r == 8  # peft's default
    assert recipe.dpo_settings(config(tmp_path, tiny, lora=None), PATH)[1] is None
    assert capfd.readouterr() == ("", "")


def test_a_tracker_that_is_not_there_is_told_with_its_place_before_a_model_is_loaded(
    tmp_path: Path, tiny: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("xyreward.tracking.TRACKERS", {"wandb": ("no_such_package",)})
    with pytest.raises(MissingDependency) as caught:
        recipe.dpo_settings(config(tmp_path, tiny, dpo={"report_to": ["wandb"]}), PATH)
    assert str(caught.value).startswith(
        "some.yaml: dpo.report_to: no_such_package not installed: pip"
    )
    settings, _ = recipe.dpo_settings(config(tmp_path, tiny), PATH)
    assert settings.run_name == "run"  # by which trackers call it, unless dpo.run_name does


def trainer_of(run: recipe.Run, policy: Any, pairs: Any, settings: Any, lora: Any) -> Any:
    from datasets import Dataset
    from trl import DPOTrainer

    with recipe.building(run, policy):
        return DPOTrainer(
            model=policy.model,
            args=settings,
            train_dataset=Dataset.from_list(recipe.rows(pairs, policy)),
            processing_class=policy.tokenizer,
            peft_config=lora,
        )


def test_a_module_that_the_policy_does_not_have_is_named_and_the_folder_takes_the_correction(
    tmp_path: Path, tiny: str
) -> None:
    wrong = config(tmp_path, tiny, lora={"r": 2, "target_modules": ["query_key_value"]})
    settings, lora = recipe.dpo_settings(wrong, PATH)
    data = recipe.load_data(wrong)
    pairs = training_pairs.make_pairs(wrong, data)
    run = recipe.Run(wrong, Arguments(PATH, resume=False))
    policy = run.load_policy(trainable=True)
    run.record_data(data, pairs)
    with pytest.raises(ConfigError) as caught:
        trainer_of(run, policy, pairs, settings, lora)
    assert str(caught.value).startswith("some.yaml: lora.target_modules: ")
    assert "query_key_value" in str(caught.value)
    del run, caught  # its traceback holds the run, which holds the lock
    gc.collect()
    corrected = config(tmp_path, tiny, seed=1)
    assert recipe.Run(corrected, Arguments(PATH, resume=False)).folder.read("data.json") is None


@pytest.mark.parametrize("start", [True, False, None])
def test_what_is_evaluated_before_training_is_the_policy_as_it_was_loaded(
    tmp_path: Path, tiny: str, start: bool | None
) -> None:
    """Although the trainer is built already, adapter attached; also an adapter that begins at random.

    None: without an adapter.
    """
    lora = {"r": 2, "target_modules": "all-linear", "init_lora_weights": start}
    wanted = config(
        tmp_path,
        tiny,
        lora=None if start is None else lora,
        dpo={"max_steps": 1, "learning_rate": 0.01},
        evaluation={"limit": 2, "max_new_tokens": 8},
    )
    settings, adapter = recipe.dpo_settings(wanted, PATH)
    data = recipe.load_data(wanted)
    pairs = training_pairs.make_pairs(wanted, data)
    run = recipe.Run(wanted, Arguments(PATH, resume=False))
    policy = run.load_policy(trainable=True)
    expected = run.evaluate("evaluation", policy, data)
    trainer = trainer_of(run, policy, pairs, settings, adapter)
    with recipe.as_loaded(trainer, adapter):
        found = run.evaluate("before", policy, data)
    assert found is not None
    assert found == expected
    trained, _ = recipe.fit(run, trainer, policy, pairs, data)
    after = run.evaluate("after", run.load_policy(str(trained)), data)
    assert after is not None
    assert after.rows != found.rows  # and training was of the adapter, not of a switched-off one


def test_nothing_trained_on_is_of_the_dev_or_test_side(tmp_path: Path, tiny: str) -> None:
    data = recipe.load_data(config(tmp_path, tiny, evaluation={"split": "test"}))
    assert {data.splits.side(i) for i in data.train} == {"train"}
    assert {data.splits.side(i) for i in data.held_out} == {"test"}
    assert len(data.clusters) == len(data.held_out)


def test_a_source_that_is_left_out_is_evaluated_whole_and_not_trained_on(
    tmp_path: Path, tiny: str
) -> None:
    near = next(i for i in recipe.load_data(config(tmp_path, tiny)).train if i.kind == "xy")
    queries = [f"Please: {near.query_text}", *(f"Where do I buy {n} green hats?" for n in range(9))]
    rows = [
        {
            "id": f"o{n}", "source": "other", "stated_request": "a", "intended_request": "b",
            "misconception": "m", "stated_solutions": ["s"], "intended_solutions": ["i"], "query": query,
        }
        for n, query in enumerate(queries)
    ]  # fmt: skip
    file = tmp_path / "other.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    both = [{"source": "mini"}, {"source": str(file)}]
    wanted = config(
        tmp_path, tiny, items=both, evaluation={"parts": ["preference"], "leave_out": "other"}
    )
    data = recipe.load_data(wanted)
    xy = [i for i in data.held_out if i.kind == "xy"]
    assert {i.id for i in xy} == {row["id"] for row in rows}
    controls = [i for i in data.held_out if i.kind == "control"]
    assert controls
    assert {data.splits.side(i) for i in controls} == {"test"}
    assert {i.source for i in data.train} == {"mini"}
    assert near.id not in {i.id for i in data.train}
    assert data.of_train_side == 0
    assert data.kept_out.hash != data.sides.held_out.hash
    of_one = config(
        tmp_path, tiny, items=both,
        evaluation={"parts": ["preference"], "sources": ["other"], "controls": "none"},
    )  # fmt: skip
    chosen = recipe.load_data(of_one).held_out
    assert {(i.source, i.kind) for i in chosen} == {("other", "xy")}
    assert len(chosen) < len(rows)


def test_one_id_in_two_sources_is_refused_with_what_to_do(tmp_path: Path, tiny: str) -> None:
    row = {
        "id": "cooking-jam-third-sachet", "query": "Quite another question, is it not?",
        "stated_request": "a", "intended_request": "b", "misconception": "m",
        "stated_solutions": "s", "intended_solutions": "i",
    }  # fmt: skip
    first = next(i for i in recipe.load_data(config(tmp_path, tiny)).train)
    file = tmp_path / "more.jsonl"
    file.write_text(json.dumps({**row, "id": first.id}) + "\n")
    wanted = config(tmp_path, tiny, items=[{"source": "mini"}, {"source": str(file)}])
    with pytest.raises(DataError, match="occurs in two sources of this recipe; give the items"):
        recipe.load_data(wanted)


def test_resuming_where_there_is_nothing_says_that_the_run_begins(
    tmp_path: Path, tiny: str, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = config(tmp_path, tiny)
    run = recipe.Run(settings, Arguments(PATH, resume=True))
    assert "nothing to go on with; the run begins" in capsys.readouterr().out
    run.folder.write("before.jsonl", "{}\n")
    del run
    recipe.Run(settings, Arguments(PATH, resume=True))
    assert "nothing to go on with" not in capsys.readouterr().out


def test_a_run_is_not_resumed_with_other_data(tmp_path: Path, tiny: str) -> None:
    """The lock of a finished run object is let go with it, hence the blocks."""
    settings = config(tmp_path, tiny)
    data = recipe.load_data(settings)
    pairs = training_pairs.make_pairs(settings, data)
    run = recipe.Run(settings, Arguments(PATH, resume=False))
    run.record_data(data, pairs)
    run.folder.write("before.jsonl", "{}\n")
    del run
    resumed = recipe.Run(settings, Arguments(PATH, resume=True))
    assert resumed.record_data(data, pairs)["pairs"] == 6
    before = (tmp_path / "run/data.json").read_bytes()
    other = replace(data, train=data.train[1:])
    with pytest.raises(RunFolderError, match="had other data or another policy; train items was"):
        resumed.record_data(other, pairs)
    assert (tmp_path / "run/data.json").read_bytes() == before


def test_a_run_is_not_resumed_with_another_policy_in_the_same_folder(tmp_path: Path) -> None:
    folder = tiny_policy(tmp_path / "policy")
    settings = config(tmp_path, folder)
    data = recipe.load_data(settings)
    run = recipe.Run(settings, Arguments(PATH, resume=False))
    run.record_data(data)
    run.folder.write("before.jsonl", "{}\n")
    del run
    tiny_policy(folder, seed=1)  # same names, same sizes, other weights
    resumed = recipe.Run(settings, Arguments(PATH, resume=True))
    with pytest.raises(RunFolderError, match=r"another policy; policy hash was [0-9a-f]{12}, is"):
        resumed.record_data(data)


def test_settings_of_the_training_may_change_until_it_has_begun(
    tmp_path: Path, tiny: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A first step that does not fit into memory comes after the evaluation, which is worth keeping."""
    first = config(tmp_path, tiny)
    data = recipe.load_data(first)
    run = recipe.Run(first, Arguments(PATH, resume=False))
    run.record_data(data, training_pairs.make_pairs(first, data))
    evaluation = run.evaluate("before", run.load_policy(), data)
    del run
    smaller = {"rule": {"rejected_kinds": ["literal"]}, "max_pairs": 4}
    other = config(tmp_path, tiny, dpo={"per_device_train_batch_size": 1}, pairs=smaller)
    resumed = recipe.Run(other, Arguments(PATH, resume=True))
    said = capsys.readouterr().out
    assert "dpo.per_device_train_batch_size (was None, is 1)" in said
    resumed.record_data(data, training_pairs.make_pairs(other, data))
    assert resumed.evaluate("before", resumed.load_policy(), data) == evaluation
    checkpoint = tmp_path / "run/checkpoints/checkpoint-1"
    checkpoint.mkdir(parents=True)
    del resumed
    with pytest.raises(RunFolderError, match="is a run with another configuration"):
        recipe.Run(first, Arguments(PATH, resume=True))


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        (
            "before.jsonl",
            '{"policy": "x"',
            "before.jsonl: is not as a run left it (ValueError: line 1: Expecting ','",
        ),
        ("before.jsonl", "[1]\n", "is not as a run left it (ValueError: line 1: is no object"),
        ("before.jsonl", "", "remove it, and it is computed anew"),
        ("before.jsonl", None, "3 items that are not the 4 of this run"),
        ("data.json", '{"pairs', "data.json: is not as a run left it (JSONDecodeError"),
        ("data.json", "3", "data.json: is not as a run left it (TypeError"),
    ],
)
def test_damaged_files_of_a_resumed_run_are_named_with_what_to_do(
    tmp_path: Path, tiny: str, name: str, text: str | None, said: str
) -> None:
    settings = config(tmp_path, tiny)
    data = recipe.load_data(settings)
    run = recipe.Run(settings, Arguments(PATH, resume=False))
    run.record_data(data)
    policy = run.load_policy()
    run.evaluate("before", policy, data)
    del run
    file = tmp_path / "run" / name
    lines = file.read_text().splitlines(keepends=True)
    file.write_text("".join(lines[:-1]) if text is None else text)
    resumed = recipe.Run(settings, Arguments(PATH, resume=True))

    def go_on() -> None:
        resumed.record_data(data)
        resumed.evaluate("before", policy, data)

    with pytest.raises(RunFolderError) as caught:
        go_on()
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("gone", "said"),
    [
        ([2], r"has the answers 0, 2, expected 0, 1, 2; lines are missing"),
        ([3], r"has the answers 0, 1, expected 0, 1, 2; lines are missing"),
        ([1, 2, 3], r"3 items that are not the 4 of this run"),
    ],
)
def test_an_evaluation_of_several_answers_is_only_gone_on_with_where_all_lines_are_there(
    tmp_path: Path, tiny: str, monkeypatch: pytest.MonkeyPatch, gone: list[int], said: str
) -> None:
    monkeypatch.setattr(checks, "load_judge", lambda *_, **__: Drawn())
    wanted = {
        "parts": ["writing"], "limit": 2, "max_new_tokens": 4, "answers_per_item": 3, "temperature": 1.0,
    }  # fmt: skip
    settings = config(tmp_path, tiny, evaluation=wanted)
    data = recipe.load_data(settings)
    run = recipe.Run(settings, Arguments(PATH, resume=False))
    policy = run.load_policy()
    whole = run.evaluate("before", policy, data)
    del run
    resumed = recipe.Run(settings, Arguments(PATH, resume=True))
    assert resumed.evaluate("before", policy, data) == whole
    file = tmp_path / "run/before.jsonl"
    lines = file.read_text().splitlines(keepends=True)
    file.write_text("".join(line for n, line in enumerate(lines) if n not in gone))
    with pytest.raises(RunFolderError, match=said) as caught:
        resumed.evaluate("before", policy, data)
    assert "remove it, and it is computed anew" in str(caught.value)


@pytest.mark.parametrize("key", ["judge", "rubric_version"])
def test_an_evaluation_of_another_judge_is_not_gone_on_with(
    tmp_path: Path, tiny: str, key: str
) -> None:
    settings = config(
        tmp_path, tiny, evaluation={"parts": ["writing"], "limit": 1, "max_new_tokens": 4}
    )
    data = recipe.load_data(settings)
    run = recipe.Run(settings, Arguments(PATH, resume=False))
    policy = run.load_policy()
    run.evaluate("before", policy, data)
    del run
    file = tmp_path / "run/before.jsonl"
    head, rest = file.read_text().split("\n", 1)
    file.write_text(json.dumps({**json.loads(head), key: "of last year"}) + "\n" + rest)
    resumed = recipe.Run(settings, Arguments(PATH, resume=True))
    with pytest.raises(
        RunFolderError, match=r"before\.jsonl: was judged by .*of last year.*does not compare"
    ):
        resumed.evaluate("before", policy, data)


def test_a_policy_is_not_evaluated_on_what_it_was_trained_on(tmp_path: Path, tiny: str) -> None:
    """Under other splits than those of its training, an item can be on the test side."""
    settings, lora = recipe.dpo_settings(wanted := config(tmp_path, tiny), PATH)
    data = recipe.load_data(wanted)
    pairs = training_pairs.make_pairs(wanted, data)
    run = recipe.Run(wanted, Arguments(PATH, resume=False))
    policy = run.load_policy(trainable=True)
    trained, _ = recipe.fit(
        run, trainer_of(run, policy, pairs, settings, lora), policy, pairs, data
    )
    mark = json.loads((trained / "xyreward.json").read_text())
    used = [item for item in data.train if item.id in {p.item_id for p in pairs.pairs}]
    assert set(mark["trained_on"]) >= {item.content_hash[:16] for item in used}
    assert len(mark["trained_on"]) < len(data.train)
    assert not set(mark["trained_on"]) & {item.content_hash[:16] for item in data.held_out}
    checkpoint = max((tmp_path / "run/checkpoints").glob("checkpoint-*"))
    assert json.loads((checkpoint / "xyreward.json").read_text()) == mark

    fine = EvaluateRecipe.model_validate(
        {"policy": {"model": str(trained)}, "output_dir": "x", "evaluation": {"limit": 2}}
    )
    assert len(recipe.load_data(fine).held_out) == 4
    lock = tmp_path / "splits.json"
    placements = {
        key: Placement("test" if key == used[0].content_hash else p.side, p.cluster)
        for key, p in data.splits.placements.items()
    }
    lock.write_text(Splits(placements).to_json())
    leaking = fine.model_copy(
        update={"splits_lock": str(lock), "evaluation": EvaluationConfig(limit=None)}
    )
    with pytest.raises(LeakError, match="was trained on 1 of the 61 items") as caught:
        recipe.load_data(leaking)
    assert caught.value.offending == [used[0].id]
    # A copy of the adapter without the file is nobody's; a damaged file is told.
    (trained / "xyreward.json").write_text('{"name": ')
    with pytest.raises(ConfigError, match=r"xyreward\.json: cannot be read"):
        recipe.load_data(leaking)


def test_pairs_are_tokenised_as_trl_does_it(tmp_path: Path, tiny: str) -> None:
    from datasets import Dataset
    from trl import DPOTrainer

    wanted = config(tmp_path, tiny, dpo={"max_length": 4096})
    settings, lora = recipe.dpo_settings(wanted, PATH)
    pairs = training_pairs.make_pairs(wanted, recipe.load_data(wanted))
    policy = load_policy(tiny, device="cpu")
    trainer = DPOTrainer(
        model=policy.model,
        args=settings,
        train_dataset=Dataset.from_list(recipe.rows(pairs, policy)),
        processing_class=policy.tokenizer,
        peft_config=lora,
    )
    rows = (
        {row["id"]: row for row in trainer.train_dataset}
        if "id" in (trainer.train_dataset.column_names)
        else dict(zip((p.id for p in pairs.pairs), trainer.train_dataset, strict=True))
    )
    for pair in pairs.pairs:
        row = rows[pair.id]
        for side in ("chosen", "rejected"):
            ids, begin = policy.answer_ids(pair.prompt, getattr(pair, side))
            assert ids[:begin] == row["prompt_ids"]
            assert ids[begin:] == row[f"{side}_ids"]


def test_pairs_that_do_not_fit_are_left_out_and_cut_ones_are_counted(
    tmp_path: Path, tiny: str
) -> None:
    wanted = config(
        tmp_path, tiny, pairs=PairsConfig(rule=Rule(rejected_kinds=("literal",))).model_dump()
    )
    pairs = training_pairs.make_pairs(wanted, recipe.load_data(wanted))
    policy = load_policy(tiny, device="cpu")
    lengths = {p.id: policy.answer_ids(p.prompt, p.chosen) for p in pairs.pairs}
    limit = sorted(begin for _, begin in lengths.values())[len(lengths) // 2]
    fitted = recipe.fit_to_length(pairs, policy, limit)
    too_long = sum(begin >= limit for _, begin in lengths.values())
    assert 0 < too_long < len(lengths)
    assert fitted.dropped["prompt longer than max_length"] == too_long
    assert len(fitted.pairs) + sum(fitted.dropped.values()) == len(pairs.pairs) + sum(
        pairs.dropped.values()
    )
    assert fitted.cut == len(fitted.pairs)  # a prompt that nearly fills it leaves no whole answer
    assert recipe.fit_to_length(pairs, policy, None) == pairs
    # So many are a fault of the set, unless they are allowed where it was built.
    (problem,) = fitted.problems
    assert problem.startswith(
        f"guard prompt_length: {too_long} of {len(pairs.pairs)} pairs dropped"
    )
    with pytest.raises(DataError, match="the pairs' audit: guard prompt_length"):
        training_pairs.audited(wanted, fitted)
    allowed = replace(pairs, limits={"prompt_length": 1.0})
    assert recipe.fit_to_length(allowed, policy, limit).problems == ()
    # A few are what the limit is for.
    most = sorted(begin for _, begin in lengths.values())[-1]
    assert recipe.fit_to_length(pairs, policy, most).problems == ()


def test_losses_that_smooth_labels_are_those_that_trl_knows_to(tmp_path: Path) -> None:
    """Of the trainer's own source: whether `label_smoothing` stands in the branch of a loss."""
    import inspect

    from trl import DPOTrainer

    source = inspect.getsource(DPOTrainer._compute_loss)
    branches = re.split(r'if loss_type == "(\w+)"', source)
    named = dict(zip(branches[1::2], branches[2::2], strict=True))
    smoothed = {loss for loss, code in named.items() if loss and "self.label_smoothing" in code}
    assert smoothed == recipe.SMOOTHED_LOSSES


def test_the_policy_is_sampled_on_the_queries_that_it_is_trained_on(
    tmp_path: Path, tiny: str
) -> None:
    wanted = config(
        tmp_path,
        tiny,
        pairs={
            "sources": ["on_policy"],
            "judge": "local",
            "on_policy": {"samples": 1, "limit": 1, "max_new_tokens": 4, "keep_truncated": True},
        },
    )
    data = recipe.load_data(wanted)
    train = [
        item.model_copy(update={"query": f"{item.query_text} Write to ada@lovelace.org"})
        for item in data.train
    ]
    run = recipe.Run(wanted, Arguments(PATH, resume=False))
    policy = load_policy(tiny, device="cpu")
    asked: list[str] = []
    told = policy.sample

    def sampled(prompts: Any, *more: Any, **options: Any) -> Any:
        asked.extend(json.dumps(prompt) for prompt in prompts)
        return told(prompts, *more, **options)

    policy.sample = sampled  # type: ignore[method-assign]
    run.sample(policy, replace(data, train=tuple(train)))
    assert len(asked) == 2
    assert all("[email]" in prompt and "ada@" not in prompt for prompt in asked)


def test_a_report_of_a_run_that_diverged_is_written(tmp_path: Path, tiny: str) -> None:
    run = recipe.Run(config(tmp_path, tiny), Arguments(PATH, resume=False))
    row = Row("a", "xy", "s", "d", "en", "a", comparable=True)
    one = Evaluation("p", (row,), None, None, ("preference",))
    run.finish(one, one, {"mean training loss": "not finite: it diverged"})
    assert "not finite on 1 of 1 items" in (tmp_path / "run/report.md").read_text()
    assert json.loads((tmp_path / "run/report.json").read_text())["metrics"] == []


@pytest.mark.parametrize(
    ("of_pairs", "evaluates", "told"),
    [
        ("local", "local", True),
        ("local", "panel:chat:a,local", True),
        ("local", "chat:a", False),
        ("labels", "local", False),
    ],
)
def test_a_judge_that_trains_and_evaluates_is_told_beside_the_headline(
    tmp_path: Path, tiny: str, of_pairs: str, evaluates: str, told: bool
) -> None:
    wanted = config(tmp_path, tiny)
    run = recipe.Run(wanted, Arguments(PATH, resume=False))
    data = recipe.load_data(wanted)
    found = training_pairs.make_pairs(wanted, replace(data, train=data.train[:20]))
    pairs = [
        replace(
            pair,
            chosen_answer=replace(pair.chosen_answer, judge=of_pairs),
            rejected_answer=replace(pair.rejected_answer, judge=of_pairs),
        )
        for pair in found.pairs
    ]
    assert pairs
    run.record_data(data, replace(found, pairs=tuple(pairs)))
    one = Evaluation("p", (Row("a", "xy", "s", "d", "en", "a"),), evaluates, "v", ("writing",))
    run.finish(one, one, {})
    report = json.loads((tmp_path / "run/report.json").read_text())
    assert bool(report["headline_notes"]) == told
    page = (tmp_path / "run/report.md").read_text().split("\n| ")[0]
    assert ("Judge local evaluates here and judged the pairs of the training" in page) == told
    assert (
        "judged the pairs of the training" in (tmp_path / "run/report.html").read_text()
    ) == told


@pytest.mark.parametrize("judge", ["local", None])
def test_a_run_records_which_calibration_record_covers_its_judge_or_that_none_does(
    tmp_path: Path, tiny: str, judge: str | None
) -> None:
    run = recipe.Run(config(tmp_path, tiny), Arguments(PATH, resume=False))
    one = Evaluation("p", (Row("a", "xy", "s", "d", "en", "a"),), judge, "v", ("writing",))
    run.finish(one, None, {})
    facts = json.loads((tmp_path / "run/report.json").read_text())["facts"]
    page = (tmp_path / "run/report.md").read_text()
    if judge is None:
        assert recipe.CALIBRATION not in facts
        return
    told = facts[recipe.CALIBRATION]
    assert told.startswith("no calibration record covers local (v); there are records of ")
    assert f"- {recipe.CALIBRATION}: {told}\n" in page


def test_a_record_of_given_goals_covers_no_evaluation_of_inferred_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XYREWARD_CALIBRATION", str(tmp_path))
    of_focus = {"focus": {"agreement": {"value": 0.8, "n": 50}, "failed": 0}}
    known: dict[str, Any] = {
        "judge": "j",
        "rubric_version": "v",
        "date": "2026-11-30",
        "xyreward": "0.1.0",
    }
    known |= {"answers": 50, "annotators": 1, "labels": of_focus}
    source = [{"name": "labels.jsonl", "sha256": "0" * 64}]
    keep(Record.model_validate({**known, "source": source}))
    for inferred in (False, True):
        verdicts: list[dict[str, Any]] = [{"grounded": not inferred}, {"grounded": True}]
        rows = [Row(f"{n}", "xy", "s", "d", "en", "a", verdict=v) for n, v in enumerate(verdicts)]
        told = calibration(Evaluation("p", tuple(rows), "j", "v", ("writing",)))
        assert told[recipe.CALIBRATION].startswith("no calibration record covers") == inferred


@pytest.mark.parametrize(
    ("evaluates", "of_pairs", "told"),
    [
        ("local", "labels", "gave the rewards"),
        ("local", "local", "judged the pairs and gave the rewards"),
        ("chat:a", "chat:a", "judged the pairs"),  # of the SFT before GRPO, and gave no reward
        ("chat:a", "labels", None),
    ],
)
def test_a_judge_of_rewards_that_evaluates_is_told_beside_the_headline(
    tmp_path: Path, tiny: str, evaluates: str, of_pairs: str, told: str | None
) -> None:
    wanted = GRPORecipe.model_validate(
        {
            "policy": {"model": tiny},
            "evaluation": {"parts": ["preference"]},
            "output_dir": str(tmp_path / "run"),
        }
    )
    run = recipe.Run(wanted, Arguments(PATH, resume=False))
    run.trained_by = frozenset({of_pairs})
    one = Evaluation("p", (Row("a", "xy", "s", "d", "en", "a"),), evaluates, "v", ("writing",))
    run.finish(one, one, {})
    page = (tmp_path / "run/report.md").read_text().split("\n| ")[0]
    assert ("evaluates here" in page) == (told is not None)
    assert told is None or f"Judge {evaluates} evaluates here and {told} of the training" in page


def test_a_terminal_that_has_gone_or_knows_only_ascii_does_not_end_a_run(
    tmp_path: Path, tiny: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = recipe.Run(config(tmp_path, tiny), Arguments(PATH, resume=False))
    with Path("/dev/full").open("w") as full:
        monkeypatch.setattr("sys.stdout", full)
        run.say("x" * 100_000)
        with suppress(OSError):
            full.close()
    ascii_only = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr("sys.stdout", ascii_only)
    run.say("goal-focused \u2191")
    assert b"goal-focused ?" in ascii_only.buffer.getvalue()


def test_a_loss_that_was_not_logged_is_not_called_diverged() -> None:
    assert training._told_loss([0.5, 0.7]) == 0.6
    assert "not logged" in str(training._told_loss([]))
    assert "diverged" in str(training._told_loss([0.5, float("nan")]))


def test_a_source_shows_a_commit_only_if_it_is_one() -> None:
    from xyreward.testing import make_item

    commit = "0123456789abcdef0123456789abcdef01234567"
    assert sides._source("a/b", [make_item(meta={"revision": commit})]) == f"a/b@{commit}"
    assert sides._source("a/b", [make_item(meta={"revision": "<script>"})]) == "a/b"


def test_items_of_a_kind_that_the_file_does_not_say(tmp_path: Path, tiny: str) -> None:
    file = tmp_path / "controls.csv"
    file.write_text(
        "query,stated_request,stated_solutions\nHow do I boil an egg?,Boil an egg.,Boil it.\n"
    )
    source = ItemsConfig(source=str(file), kind="control")
    wanted = config(tmp_path, tiny, items=[source.model_dump(), {"source": "mini"}])
    data = recipe.load_data(wanted)
    assert "controls.csv: 1 of 1 items" in " ".join(data.sides.sources)


def test_training_goes_on_from_the_newest_whole_checkpoint_and_says_which_is_damaged(
    tmp_path: Path, tiny: str, capsys: pytest.CaptureFixture[str]
) -> None:
    wanted = config(
        tmp_path,
        tiny,
        dpo={"max_steps": 3, "save_steps": 1, "per_device_train_batch_size": 2},
        evaluation={"parts": []},
    )
    settings, lora = recipe.dpo_settings(wanted, PATH)
    data = recipe.load_data(wanted)
    pairs = training_pairs.make_pairs(wanted, data)

    def train(*, resume: bool) -> dict[str, Any]:
        run = recipe.Run(wanted, Arguments(PATH, resume=resume))
        policy = run.load_policy(trainable=True)
        trainer = trainer_of(run, policy, pairs, settings, lora)
        return recipe.fit(run, trainer, policy, pairs, data)[1]

    straight = train(resume=False)
    run = tmp_path / "run"
    newest = run / "checkpoints/checkpoint-3"
    file = newest / "adapter_model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    (run / "training.json").write_text('{"steps": ')
    with pytest.raises(
        RunFolderError, match=r"training\.json: is not as a run left it .*remove it"
    ):
        train(resume=True)
    (run / "training.json").unlink()
    capsys.readouterr()
    assert train(resume=True) == straight
    said = capsys.readouterr().out
    assert "== checkpoint-3: not whole, left out" in said
    assert f"== going on from {run / 'checkpoints/checkpoint-2'}" in said


def test_a_training_that_diverges_says_so(tmp_path: Path, tiny: str) -> None:
    wanted = config(
        tmp_path,
        tiny,
        dpo={"max_steps": 3, "learning_rate": 1e30, "logging_steps": 1, "max_grad_norm": 0},
        evaluation={"parts": []},
    )
    settings, lora = recipe.dpo_settings(wanted, PATH)
    data = recipe.load_data(wanted)
    pairs = training_pairs.make_pairs(wanted, data)
    run = recipe.Run(wanted, Arguments(PATH, resume=False))
    policy = run.load_policy(trainable=True)
    trainer = trainer_of(run, policy, pairs, settings, lora)
    _, facts = recipe.fit(run, trainer, policy, pairs, data)
    assert facts["mean training loss"] == "not finite: it diverged"


def test_packages_that_are_not_there_are_all_named_at_once() -> None:
    with pytest.raises(MissingDependency) as caught:
        recipe.check_installed("numpy", "no_such_package", "nor_this_one")
    assert str(caught.value) == (
        "recipes need no_such_package, nor_this_one: pip install 'xyreward[train]'"
    )


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (ConfigError("a \x1b[31mname\x9b"), "ConfigError: a \\x1b[31mname\\x9b\n"),
        (
            ImportError("no way\nto load it"),
            "MissingDependency: ImportError: no way to load it. Try",
        ),
        (UserWarning("old"), "UserWarning: old. It is a warning that PYTHONWARNINGS or -W made an"),
    ],
)
def test_errors_are_told_on_one_line_that_steers_no_terminal(
    error: Exception, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with warnings.catch_warnings(), pytest.raises(SystemExit), recipe.plain_errors():
        raise error
    assert capsys.readouterr().err.startswith(said)


def test_announcements_of_other_libraries_are_no_errors_of_a_recipe() -> None:
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("error")
        with recipe.plain_errors():
            warnings.warn("will change one day", FutureWarning, stacklevel=1)
            warnings.warn("will go one day", DeprecationWarning, stacklevel=1)
            with pytest.raises(RuntimeWarning):
                warnings.warn("a number overflowed", RuntimeWarning, stacklevel=1)
    assert len(seen) == 2


# ---------------------------------------------------------------- pairs of the policy's own answers


class Drawn:
    """A judge that finds every second answer good, whatever it says."""

    name = "drawn"
    rubric_version = "drawn-1"

    async def judge(self, items: Sequence[Item], answers: Sequence[str]) -> list[Verdict]:
        kinds: dict[str, tuple[AnswerKind, AnswerKind]] = {
            "xy": ("goal_focused", "literal"),
            "control": ("direct", "overcorrecting"),
        }
        found = []
        for item, answer in zip(items, answers, strict=True):
            labels = DEFAULT_LABELS[kinds[item.kind][int(text_hash(answer)[:2], 16) % 2]]
            p = LabelProbabilities.certain(labels)
            found.append(Verdict(labels, p, self.name, self.rubric_version))
        return found


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training_pairs, "load_judge", lambda *_, **__: Drawn())


def on_policy(tmp_path: Path, tiny: str, **changes: Any) -> dict[str, Any]:
    """A policy that writes noise, for `Drawn` to judge."""
    base: dict[str, Any] = {
        "policy": {"model": tiny},
        "pairs": {
            "sources": ["on_policy"],
            "judge": "local",
            "on_policy": {
                "samples": 3,
                "limit": 4,
                "max_new_tokens": 12,
                "keep_truncated": True,
                "batch_size": 6,
            },
            "rule": {"max_pairs_per_item": 1},
            "guards": {"language": False},
        },
        "lora": {"r": 2, "target_modules": "all-linear"},
        "dpo": {
            "per_device_train_batch_size": 2,
            "num_train_epochs": 1,
            "learning_rate": 1e-2,
            "logging_steps": 1,
            "save_steps": 1,
        },
        "evaluation": {"parts": ["preference"], "limit": 2},
        "output_dir": str(tmp_path / "run"),
    }
    data = {**base, **changes}
    (tmp_path / "config.yaml").write_text(json.dumps(data))
    return data


def dpo(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, *arguments: str) -> None:
    """recipes/dpo.py in this process."""
    argv = ["dpo.py", "--config", str(tmp_path / "config.yaml"), *arguments]
    monkeypatch.setattr("sys.argv", argv)
    file = Path(__file__).parent.parent / "recipes/dpo.py"
    runpy.run_path(str(file))["main"]()
    gc.collect()


@pytest.mark.usefixtures("drawn")
def test_each_round_goes_on_from_the_one_before_and_a_stopped_run_goes_on_in_its_round(
    tmp_path: Path, tiny: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    data = on_policy(tmp_path, tiny, rounds=2)
    dpo(monkeypatch, tmp_path)
    said = capsys.readouterr().out
    run = tmp_path / "run"
    first, second = run / "round-1", run / "round-2"
    for folder in (first, second):
        assert {p.name for p in folder.iterdir()} >= {
            "samples.jsonl", "audit.md", "pairs.jsonl", "adapter", "before.jsonl", "after.jsonl",
            "report.json",
        }  # fmt: skip
        facts = json.loads((folder / "report.json").read_text())["facts"]
        assert facts["answers sampled"] == 24
        assert facts["pairs"] > 0
        assert any("only" in warning for warning in facts["audit warnings"])
    assert (second / "before.jsonl").read_bytes() == (first / "after.jsonl").read_bytes()
    told = load_config(DPORecipe, second / "config.yaml")
    assert (told.policy.model, told.lora, told.seed) == (str(first / "adapter"), None, 1)
    assert (second / "samples.jsonl").read_bytes() != (first / "samples.jsonl").read_bytes()
    report = json.loads((run / "report.json").read_text())
    assert report["facts"]["rounds"] == 2
    assert report["facts"]["round 2"]["pairs"] > 0
    assert "=== round 2 of 2" in said
    assert "=== all 2 rounds" in said
    parts = [json.loads((f / "report.json").read_text()) for f in (first, second)]
    totals = [r["implicit_reward"] is not None for r in (*parts, report)]
    assert totals == [True, True, True]

    # Stopped in the second round, in the middle of its training.
    before = {p: p.stat().st_mtime_ns for p in first.rglob("*") if p.is_file()}
    samples = (second / "samples.jsonl").stat().st_mtime_ns
    for name in ("report.json", "report.md", "training.json", "after.jsonl"):
        (second / name).unlink()
    (run / "report.json").unlink()
    with pytest.raises(RunFolderError, match="is not empty"):
        dpo(monkeypatch, tmp_path)
    on_policy(tmp_path, tiny, rounds=2, seed=5)
    with pytest.raises(RunFolderError, match=r"another configuration; it differs in seed"):
        dpo(monkeypatch, tmp_path, "--resume")
    (tmp_path / "config.yaml").write_text(json.dumps(data))
    capsys.readouterr()
    dpo(monkeypatch, tmp_path, "--resume")
    said = capsys.readouterr().out
    assert "=== round 1 of 2" not in said
    assert "== going on from" in said
    assert {p: p.stat().st_mtime_ns for p in first.rglob("*") if p.is_file()} == before
    assert (second / "samples.jsonl").stat().st_mtime_ns == samples
    assert json.loads((run / "report.json").read_text())["facts"]["rounds"] == 2

    # Moved, and stopped in the second round again.
    elsewhere = run.rename(tmp_path / "elsewhere")
    first, second = elsewhere / "round-1", elsewhere / "round-2"
    for name in ("report.json", "report.md", "training.json", "after.jsonl"):
        (second / name).unlink()
    gc.collect()
    capsys.readouterr()
    on_policy(tmp_path, tiny, rounds=2, output_dir=str(elsewhere))
    dpo(monkeypatch, tmp_path, "--resume")
    said = capsys.readouterr().out
    assert "=== round 1 of 2" not in said
    assert "== going on from" in said
    assert (second / "samples.jsonl").stat().st_mtime_ns == samples
    assert str(run) not in (second / "samples.jsonl").read_text()
    assert not run.exists()

    # The first round is gone. Run anew, it is another policy than the one that the second went on from.
    shutil.rmtree(first)
    with pytest.raises(RunFolderError, match=r"round-2 ended and round-1 did not.*remove round-2"):
        dpo(monkeypatch, tmp_path, "--resume")


def of_rounds(tmp_path: Path, tiny: str) -> tuple[DPORecipe, dict[str, dict[str, Evaluation]]]:
    """Two rounds that ended, each with what was judged in it, and a configuration of both."""
    wanted = {"parts": ["writing"], "oracle": True, "references": ["literal"], "limit": 2}
    settings = DPORecipe.model_validate(on_policy(tmp_path, tiny, rounds=2, evaluation=wanted))
    items = recipe.load_data(settings).held_out
    labels = {True: DEFAULT_LABELS["goal_focused"], False: DEFAULT_LABELS["literal"]}

    def judged(policy: str, good: bool, condition: str = "writing") -> Evaluation:
        verdict = asdict(labels[good])
        rows = [
            Row(i.id, i.kind, i.source, i.domain, i.language, i.id, answer=policy, verdict=verdict)
            for i in items
            if i.reference("literal") or condition in ("writing", "oracle")
        ]
        return Evaluation(policy, tuple(rows), "drawn", "drawn-1", ("writing",), condition)

    found = {}
    for n in (1, 2):
        found[f"round-{n}"] = {
            "before": judged(f"p{n - 1}", good=n > 1),
            "after": judged(f"p{n}", good=True),
            "before.oracle": judged(f"p{n - 1}", good=n > 1, condition="oracle"),
            "after.oracle": judged(f"p{n}", good=True, condition="oracle"),
            "reference.literal": judged(
                "reference:literal", good=False, condition="reference:literal"
            ),
        }
        folder = tmp_path / f"run/round-{n}"
        folder.mkdir(parents=True)
        first, last, *_ = found[f"round-{n}"].values()
        facts = {"pairs": n, recipe.CALIBRATION: f"as it was after round {n}"}
        notes = ["Judge drawn evaluates here and judged the pairs.", f"Of round {n}."]
        report = build_report(first, last, facts=facts, headline_notes=notes)
        (folder / "report.json").write_text(to_json(report))
        for name, one in found[folder.name].items():
            (folder / f"{name}.jsonl").write_text(one.to_jsonl(), "utf-8")
    return settings, found


def test_the_report_of_all_rounds_has_what_that_of_one_round_has(
    tmp_path: Path, tiny: str, capsys: pytest.CaptureFixture[str]
) -> None:
    settings, found = of_rounds(tmp_path, tiny)
    several_rounds._finish_rounds(settings, RunFolder(tmp_path / "run"))
    report = json.loads((tmp_path / "run/report.json").read_text())
    first, last = found.values()
    assert report["policies"] == {"before": "p0", "after": "p2"}
    assert [(c["name"], c["policy"]) for c in report["conditions"]] == [
        ("before", "p0"), ("after", "p2"), ("before.oracle", "p0"), ("after.oracle", "p2"),
        ("reference.literal", "reference:literal"),
    ]  # fmt: skip
    values = [
        {m["key"]: m["value"]["value"] for m in c["metrics"] if m["value"]}
        for c in report["conditions"][2:]
    ]
    assert [one["intended_solution"] for one in values] == [0.0, 1.0, 0.0]
    # What both rounds say of the headline stands there once; the judge's record is that of the last.
    assert report["headline_notes"] == [
        "Judge drawn evaluates here and judged the pairs.", "Of round 1.", "Of round 2.",
    ]  # fmt: skip
    assert report["facts"]["round 1"] == {"pairs": 1}
    assert report["facts"][recipe.CALIBRATION] == "as it was after round 2"
    told = build_report(
        first["before"],
        last["after"],
        conditions={"before.oracle": first["before.oracle"], "after.oracle": last["after.oracle"],
                    "reference.literal": last["reference.literal"]},
        facts=report["facts"],
        headline_notes=report["headline_notes"],
    )  # fmt: skip
    assert to_json(told) == (tmp_path / "run/report.json").read_text()
    pages = [(tmp_path / "run" / name).read_text() for name in ("report.md", "report.html")]
    for said in ("Judge drawn evaluates here", "Told the goal", "Reference answers"):
        assert all(said in page for page in (*pages, capsys.readouterr().out or pages[0]))


def test_what_was_told_the_goal_after_a_round_is_not_written_again_before_the_next(
    tmp_path: Path, tiny: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checks, "load_judge", lambda *_, **__: Drawn())
    settings, found = of_rounds(tmp_path, tiny)
    after = tmp_path / "run/round-1/after.jsonl"
    one = settings.model_copy(update={"rounds": 1, "output_dir": str(tmp_path / "next")})
    run = recipe.Run(one, Arguments(PATH, resume=False, before=after))
    (tmp_path / "next/reference.literal.jsonl").write_text(
        found["round-1"]["reference.literal"].to_jsonl(), "utf-8"
    )
    nobody: Any = object()  # whom nothing can be asked
    assert run.evaluate("before", nobody, recipe.load_data(one)) == found["round-1"]["after"]
    assert run.conditions["before.oracle"] == found["round-1"]["after.oracle"]
    for name in ("", ".oracle"):
        theirs = (after.parent / f"after{name}.jsonl").read_bytes()
        assert (tmp_path / f"next/before{name}.jsonl").read_bytes() == theirs


@pytest.mark.usefixtures("drawn")
def test_samples_outlive_a_change_of_what_is_made_of_them_and_no_other(
    tmp_path: Path, tiny: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    data = on_policy(tmp_path, tiny, lora={"r": 2, "target_modules": ["query_key_value"]})
    with pytest.raises(ConfigError, match=r"lora\.target_modules"):
        dpo(monkeypatch, tmp_path)
    file = tmp_path / "run/samples.jsonl"
    before = file.stat().st_mtime_ns
    gc.collect()

    hotter = {**data["pairs"], "on_policy": {**data["pairs"]["on_policy"], "temperature": 0.5}}
    on_policy(tmp_path, tiny, pairs=hotter)
    with pytest.raises(RunFolderError, match=r"another job \(temperature was 1\.0, is 0\.5\)"):
        dpo(monkeypatch, tmp_path, "--resume")
    gc.collect()
    on_policy(tmp_path, tiny, pairs={**data["pairs"], "max_pairs": 3})
    capsys.readouterr()
    dpo(monkeypatch, tmp_path, "--resume")
    assert "training with other settings than before" in capsys.readouterr().out
    assert file.stat().st_mtime_ns == before
    assert json.loads((tmp_path / "run/report.json").read_text())["facts"]["pairs"] <= 3


def test_pairs_whose_audit_fails_stop_a_recipe_before_anything_is_evaluated(
    tmp_path: Path, tiny: str, mini: list[Item], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Who wrote an answer tells which one is chosen.
    rows = [
        {
            "item_id": item.id,
            "answer": r.text,
            "model": "person" if r.kind in ("goal_focused", "direct") else "model",
        }
        for item in mini[::4]
        for r in item.references
    ]
    file = tmp_path / "answers.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    pairs = {
        "sources": ["cross_model"],
        "answers": [str(file)],
        "judge": "local",
        "rule": {"same_origin": False},
    }
    (tmp_path / "config.yaml").write_text(config(tmp_path, tiny, pairs=pairs).model_dump_json())
    with pytest.raises(DataError, match="the pairs' audit: shortcut origin"):
        dpo(monkeypatch, tmp_path)
    assert not (tmp_path / "run/before.jsonl").exists()
    assert not (tmp_path / "run/pairs.jsonl").exists()


def test_a_dry_run_of_rounds_tells_what_all_of_them_would_take(
    tmp_path: Path, tiny: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    on_policy(tmp_path, tiny, rounds=2)
    dpo(monkeypatch, tmp_path, "--dry-run")
    said = capsys.readouterr().out
    assert "pairs of 48 answers, judged by local: makes no calls" in said
    assert not (tmp_path / "run").exists()


def test_a_dry_run_leaves_neither_a_store_nor_a_splits_lock(
    tmp_path: Path, tiny: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XYREWARD_STORE", str(tmp_path / "store.sqlite"))
    monkeypatch.delenv("ANTHROPIC_API_KEY", raising=False)  # nor does it want a key
    on_policy(tmp_path, tiny)
    before = sorted(tmp_path.iterdir())
    lock = f"splits_lock={tmp_path / 'splits.json'}"
    judges = ("--set", "pairs.judge=anthropic", "--set", "evaluation.judge=anthropic")
    dpo(monkeypatch, tmp_path, "--dry-run", "--set", lock, *judges)
    assert "pairs of 24 answers, judged by anthropic:" in capsys.readouterr().out
    assert sorted(tmp_path.iterdir()) == before


# ---------------------------------------------------------------- what is told before


def xy_only(tmp_path: Path, tiny: str, **changes: Any) -> DPORecipe:
    changes = {"evaluation": {"limit": 2}, **changes}
    return config(tmp_path, tiny, items=[{"source": "mini", "kinds": ["xy"]}], **changes)


def own_items(file: Path, kinds: Sequence[str]) -> str:
    """A file of 40 items, of these kinds in turn."""
    rows = []
    for i in range(40):
        control = kinds[i % len(kinds)] == "control"
        # Words that no two items share, so that each is a cluster of its own.
        asked = " ".join(text_hash(f"{i} {n}")[:6] for n in range(12))
        rows.append(
            {
                "id": f"own-{i}",
                "query": asked,
                "stated_request": asked,
                "intended_request": asked if control else f"{asked} and more",
                "misconception": None if control else "None of it is needed.",
                "stated_solutions": ["So."],
                "intended_solutions": [] if control else ["Otherwise."],
                "kind": "control" if control else "xy",
            }
        )
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    return str(file)


@pytest.mark.parametrize("split", ["test", "dev", "all"])
@pytest.mark.parametrize("kinds", [("xy",), ("xy", "control")])
def test_controls_of_mini_are_added_where_there_are_none_and_only_there(
    tmp_path: Path, tiny: str, split: str, kinds: tuple[str, ...]
) -> None:
    def data(*items: dict[str, Any]) -> recipe.Data:
        return recipe.load_data(
            EvaluateRecipe.model_validate(
                {
                    "policy": {"model": tiny},
                    "items": list(items),
                    "evaluation": {"split": split, "controls": "mini"},
                    "output_dir": str(tmp_path / "run"),
                }
            ),
            dry_run=True,
        )

    side: Side = "dev" if split == "dev" else "test"
    at_side = bundled_splits().select(load_items("mini"), side)
    bundled = [item.id for item in at_side if item.kind == "control"]
    for found in (
        data({"source": own_items(tmp_path / "own.jsonl", kinds)}),
        data({"source": "mini", "kinds": list(kinds)}),
    ):
        controls = [i.id for i in found.held_out if i.kind == "control"]
        if "control" in kinds:
            assert controls
            assert len(found.sides.sources) == 1
        else:
            assert sorted(controls) == sorted(bundled)
            assert len(found.sides.sources) == 2
        assert {item.kind for item in found.held_out} == {"xy", "control"}


def test_items_without_controls_are_warned_of_with_what_to_add(tmp_path: Path, tiny: str) -> None:
    pairs = {"rule": {"rejected_kinds": ["literal"]}, "control_share": 0.27}
    wanted = xy_only(tmp_path, tiny, pairs=pairs)
    data = recipe.load_data(wanted)
    share, headline = recipe.control_warnings(wanted, data)
    assert share.startswith("control_share 0.27 asked, 0 controls there: ")
    assert "add {source: mini, kinds: [control]} to items" in share
    assert headline.startswith("no controls among the held-out items, so there will be no headline")
    none = xy_only(tmp_path, tiny, pairs={"control_share": 0.0}, evaluation={"parts": []})
    assert recipe.control_warnings(none, data) == []
    both = config(tmp_path, tiny, evaluation={"limit": 2})
    data = recipe.load_data(both)
    assert recipe.control_warnings(both, data) == []
    few = training_pairs.make_pairs(none, data)
    (warning,) = recipe.control_warnings(both, data, few)
    assert warning.startswith("control_share 0.25 asked, 0.00 of the pairs are of controls")


def test_a_dry_run_tells_items_pairs_steps_and_the_folder(
    tmp_path: Path,
    tiny: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    dpo = {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 2}
    wanted = config(tmp_path, tiny, dpo=dpo)
    settings, _ = recipe.dpo_settings(wanted, PATH)
    data = recipe.load_data(wanted)
    prepared = training_pairs.TrainingPairs(wanted, data)
    recipe.print_estimate(wanted, data, 2, prepared.estimate(), prepared.plan(settings))
    said = capsys.readouterr().out
    assert "144 train items: 97 with a hidden goal, 47 controls\n" in said
    assert "36 dev items: 24 with a hidden goal, 12 controls\n" in said
    assert (
        "4 held-out items (the test side, the first 2 of each kind): 2 with a hidden goal, 2 controls\n"
        in said
    )
    assert "6 pairs, 33% from controls" in said or "6 pairs, 17% from controls" in said
    assert f"run folder: {tmp_path / 'run'}\n" in said
    assert "warning" not in said
    assert not (tmp_path / "run").exists()
    monkeypatch.setenv("RANK", "1")  # the launch's other processes say nothing
    recipe.print_estimate(wanted, data, 2, prepared.estimate(), prepared.plan(settings))
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("changes", "pairs"),
    [
        ({}, 6),
        ({"per_device_train_batch_size": 4}, 6),
        ({"per_device_train_batch_size": 1, "gradient_accumulation_steps": 4}, 6),
        ({"num_train_epochs": 2.5, "per_device_train_batch_size": 2}, 6),
        ({"max_steps": 3}, 6),
    ],
)
def test_the_planned_steps_are_those_of_the_trainer(
    tmp_path: Path, tiny: str, changes: dict[str, Any], pairs: int
) -> None:
    wanted = config(tmp_path, tiny, dpo={"num_train_epochs": 1, **changes, "max_length": 2048})
    settings, lora = recipe.dpo_settings(wanted, PATH)
    data = recipe.load_data(wanted)
    made = training_pairs.make_pairs(wanted, data)
    assert len(made.pairs) == pairs
    run = recipe.Run(wanted, Arguments(PATH, resume=False))
    policy = run.load_policy(trainable=True)
    trainer = trainer_of(run, policy, made, settings, lora)
    trainer.train()
    assert recipe.planned_steps(settings, pairs).startswith(f"{trainer.state.global_step} steps")


def test_a_full_disk_is_told_whatever_the_library_makes_of_it_and_other_errors_are_left_alone() -> (
    None
):
    run: Any = SimpleNamespace(folder=SimpleNamespace(path="runs/x"))
    full = OSError(errno.ENOSPC, "No space left on device")
    of_torch = RuntimeError("unexpected pos 64 vs 0")
    of_torch.__context__ = full
    for error in (full, of_torch, RuntimeError("I/O error: No space left on device (os error 28)")):
        with (
            pytest.raises(RunFolderError, match=r"^runs/x: cannot be written .*--resume"),
            training._full_disk_told(run),
        ):
            raise error
    for other in (ValueError("x"), OSError(errno.EIO, "x")):
        with pytest.raises(type(other), match="x"), training._full_disk_told(run):
            raise other
