"""What recipes share, in this process: checks that must come before any hour of training."""

import io
import json
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from xyreward import recipe
from xyreward.config import Arguments, DPORecipe, ItemsConfig, PairsConfig
from xyreward.errors import ConfigError, DataError, RunFolderError
from xyreward.evaluation import Evaluation, Row
from xyreward.policy import load_policy

PATH = Path("some.yaml")


def config(tmp_path: Path, tiny: str, **changes: Any) -> DPORecipe:
    base: dict[str, Any] = {
        "policy": {"model": tiny},
        "pairs": {"rejected_kinds": ["literal"], "max_pairs": 6},
        "lora": {"r": 2, "target_modules": "all-linear"},
        "evaluation": {"parts": ["preference"], "limit": 2},
        "output_dir": str(tmp_path / "run"),
    }
    return DPORecipe.model_validate({**base, **changes})


@pytest.mark.parametrize(
    ("section", "said"),
    [
        ({"dpo": {"loss_type": ["sigmod"]}}, "dpo.loss_type: 'sigmod', expected some of"),
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
    with pytest.raises(ConfigError) as caught:
        recipe.dpo_settings(config(tmp_path, tiny, **section), PATH)
    assert said in str(caught.value)
    assert not (tmp_path / "run").exists()


def test_nothing_trained_on_is_of_the_dev_or_test_side(tmp_path: Path, tiny: str) -> None:
    data = recipe.load_data(config(tmp_path, tiny, evaluation={"split": "test"}))
    assert {data.splits.side(i) for i in data.train} == {"train"}
    assert {data.splits.side(i) for i in data.held_out} == {"test"}
    assert len(data.clusters) == len(data.held_out)


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


def test_a_run_is_not_resumed_with_other_data(tmp_path: Path, tiny: str) -> None:
    """The lock of a finished run object is let go with it, hence the blocks."""
    settings = config(tmp_path, tiny)
    data = recipe.load_data(settings)
    pairs = recipe.make_pairs(settings, data)
    run = recipe.Run(settings, Arguments(PATH, resume=False))
    run.record_data(data, pairs)
    run.folder.write("before.jsonl", "{}\n")
    del run
    resumed = recipe.Run(settings, Arguments(PATH, resume=True))
    assert resumed.record_data(data, pairs)["pairs"] == 6
    before = (tmp_path / "run/data.json").read_bytes()
    other = replace(data, train=data.train[1:])
    with pytest.raises(RunFolderError, match="the run that is resumed had other data; train items"):
        resumed.record_data(other, pairs)
    assert (tmp_path / "run/data.json").read_bytes() == before


def test_pairs_are_tokenised_as_trl_does_it(tmp_path: Path, tiny: str) -> None:
    from datasets import Dataset
    from trl import DPOTrainer

    wanted = config(tmp_path, tiny, dpo={"max_length": 4096})
    settings, lora = recipe.dpo_settings(wanted, PATH)
    pairs = recipe.make_pairs(wanted, recipe.load_data(wanted))
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
    wanted = config(tmp_path, tiny, pairs=PairsConfig(rejected_kinds=("literal",)).model_dump())
    pairs = recipe.make_pairs(wanted, recipe.load_data(wanted))
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


def test_a_report_of_a_run_that_diverged_is_written(tmp_path: Path, tiny: str) -> None:
    run = recipe.Run(config(tmp_path, tiny), Arguments(PATH, resume=False))
    row = Row("a", "xy", "s", "d", "en", "a", comparable=True)
    one = Evaluation("p", (row,), None, None, ("preference",))
    run.finish(one, one, {"mean training loss": "not finite: it diverged"})
    assert "not finite on 1 of 1 items" in (tmp_path / "run/report.md").read_text()
    assert json.loads((tmp_path / "run/report.json").read_text())["metrics"] == []


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
    assert recipe._told_loss([0.5, 0.7]) == 0.6
    assert "not logged" in str(recipe._told_loss([]))
    assert "diverged" in str(recipe._told_loss([0.5, float("nan")]))


def test_a_source_shows_a_commit_only_if_it_is_one() -> None:
    from xyreward.testing import make_item

    commit = "0123456789abcdef0123456789abcdef01234567"
    assert recipe._source("a/b", [make_item(meta={"revision": commit})]) == f"a/b@{commit}"
    assert recipe._source("a/b", [make_item(meta={"revision": "<script>"})]) == "a/b"


def test_items_of_a_kind_that_the_file_does_not_say(tmp_path: Path, tiny: str) -> None:
    file = tmp_path / "controls.csv"
    file.write_text(
        "query,stated_request,stated_solutions\nHow do I boil an egg?,Boil an egg.,Boil it.\n"
    )
    source = ItemsConfig(source=str(file), kind="control")
    wanted = config(tmp_path, tiny, items=[source.model_dump(), {"source": "mini"}])
    data = recipe.load_data(wanted)
    assert "controls.csv: 1 of 1 items" in " ".join(data.sources)
