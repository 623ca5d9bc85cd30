"""GRPO that begins with a short SFT: which answers are learnt, what is refused, and as a user starts it."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pair_sets import pair_set
from safetensors.torch import load_file
from test_grpo import config as grpo_config
from test_recipes import launch
from trl import GRPOConfig

from xyreward import Item, build_pairs, load_items
from xyreward.config import Arguments, GRPORecipe, Places, load_config
from xyreward.errors import ConfigError, LeakError, RunFolderError
from xyreward.grpo import wrong_training
from xyreward.locate import mark_in, short_hash
from xyreward.pairs.audit import audit_pairs
from xyreward.pairs.formats import write_pairs
from xyreward.pairs.held_out import HeldOut
from xyreward.policy import load_policy
from xyreward.recipe import Run, load_data
from xyreward.runs import RunFolder
from xyreward.sft_start import NO_MODEL, OVER_SHARE, REPEATED, SFTStart, chosen_once, rows

PLACES = Places("c.yaml")
SFT: dict[str, Any] = {
    "num_train_epochs": 1,
    "per_device_train_batch_size": 4,
    "learning_rate": 1e-2,
    "logging_steps": 1,
    "save_steps": 1,
}


def recipe_of(folder: Path, **changes: Any) -> GRPORecipe:
    return GRPORecipe.model_validate({"output_dir": str(folder / "run"), **changes})


def start_of(wanted: GRPORecipe, *, bf16: bool = False) -> SFTStart:
    grpo = GRPOConfig("unused", use_cpu=True, bf16=bf16, activation_checkpointing=False)
    return SFTStart(wanted, PLACES, load_data(wanted), grpo)


# ---------------------------------------------------------------- what is learnt


def test_each_chosen_answer_is_learnt_once_and_controls_keep_their_share() -> None:
    pairs = pair_set()  # seven pairs: four items, the first with two pairs, and two controls
    once = chosen_once(pairs, None)
    assert [pair.chosen for pair in once.pairs] == [f"good {i}" for i in range(6)]
    assert once.dropped[REPEATED] == 1
    assert sum(once.dropped.values()) + len(once.pairs) == pairs.candidates
    quarter = chosen_once(pairs, 0.25)  # of four others: one
    assert quarter.control_share == pytest.approx(1 / 5)
    assert quarter.dropped[OVER_SHARE] == 1
    assert sum(quarter.dropped.values()) + len(quarter.pairs) == pairs.candidates
    assert chosen_once(pairs, 0.3).control_share == pytest.approx(2 / 6)  # 1.7 are rounded
    assert chosen_once(once, None) == once
    hot, *others = once.pairs
    unsafe = replace(hot.chosen_answer, answer=replace(hot.chosen_answer.answer, unsafe=True))
    some = chosen_once(replace(once, pairs=(replace(hot, chosen_answer=unsafe), *others)), None)
    assert some.pairs == tuple(others)
    assert some.dropped[NO_MODEL] == 1


def test_what_is_learnt_is_the_answer_as_the_policy_would_be_asked(tiny: str) -> None:
    """The trainer's own tokens: those of the prompt are not learnt, the end of the answer is."""
    from datasets import Dataset
    from trl import SFTConfig, SFTTrainer

    policy = load_policy(tiny)
    pairs = chosen_once(pair_set(), None)
    trainer = SFTTrainer(
        policy.model,
        SFTConfig("unused", use_cpu=True, bf16=False, activation_checkpointing=False),
        train_dataset=Dataset.from_list(rows(pairs, policy)),
        processing_class=policy.tokenizer,
    )
    batch = trainer.data_collator([trainer.train_dataset[0]])
    prompt = policy.prompt_ids(pairs.pairs[0].prompt)
    labels = batch["labels"][0].tolist()
    assert batch["input_ids"][0].tolist()[: len(prompt)] == prompt
    assert labels[: len(prompt)] == [-100] * len(prompt)
    learnt = policy.tokenizer.decode([label for label in labels if label != -100])
    assert learnt.startswith("good 0")
    assert len(learnt) > len("good 0")  # where it ends is learnt, too


def test_nothing_that_is_held_out_is_learnt(tmp_path: Path) -> None:
    # Of each chosen answer once a third would go to controls: all their answers, fewer of the others'.
    wanted = recipe_of(tmp_path, sft={}, pairs={"control_share": 0.1})
    start = start_of(wanted)
    data = start.data
    train = {item.id for item in data.train}
    assert {pair.item_id for pair in start.pairs.pairs} <= train
    assert not train & {item.id for item in data.held_out}
    assert start.pairs.control_share == pytest.approx(0.1, abs=0.01)
    assert f"SFT on {len(start.pairs.pairs)} chosen answers, 10% to controls" in start.plan()


def test_of_pairs_that_were_built_every_chosen_answer_is_learnt(tmp_path: Path) -> None:
    """Whoever built them chose their share of controls."""
    data = load_data(recipe_of(tmp_path))
    built = build_pairs(data.train, split="train", splits=data.splits, held_out=data.kept_out)
    write_pairs(built, audit_pairs(built), tmp_path / "built", meta={})
    start = start_of(recipe_of(tmp_path, sft={}, pairs={"built": str(tmp_path / "built")}))
    assert OVER_SHARE not in start.pairs.dropped
    assert start.pairs == chosen_once(built, None)
    assert start.pairs.control_share > 0.3


def test_pairs_that_were_built_with_other_items_held_out_are_refused(
    tmp_path: Path, mini: list[Item]
) -> None:
    built = build_pairs(mini[:40], split="train", held_out=HeldOut(mini[40:]))
    write_pairs(built, audit_pairs(built), tmp_path / "built", meta={})
    wanted = recipe_of(tmp_path, sft={}, pairs={"built": str(tmp_path / "built")})
    with pytest.raises(LeakError, match="built"):
        start_of(wanted)


# ---------------------------------------------------------------- settings


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"pairs": {"max_pairs": 8}}, "there is no section sft"),
        ({"sft": {}, "pairs": {"sources": ["on_policy"], "judge": "local"}}, "in pairs.built"),
        ({"sft": {}, "pairs": {"judge": "local"}}, "in pairs.built"),
        ({"sft": {}, "pairs": {"max_pair": 8}}, "max_pair"),
        ({"start": {"sft": {}}}, "start"),
    ],
)
def test_impossible_sections_are_refused(
    tmp_path: Path, changes: dict[str, Any], said: str
) -> None:
    with pytest.raises(ValueError, match=said):
        recipe_of(tmp_path, **changes)


def test_keys_of_the_sft_are_checked_with_the_others_and_its_first_step_is_rehearsed(
    tmp_path: Path,
) -> None:
    wrong = {
        "sft": {"bf16": True, "completion_only_loss": False, "learning_rat": 1, "max_length": 1},
        "grpo": {"temperature": 0.0},
        "lora": {"r": 0},
    }
    assert wrong_training(wrong, Places("c.yaml")) == [
        "c.yaml: grpo.temperature: is 0.0, expected in (0, inf)",
        "c.yaml: lora.r: is 0, expected in [1, inf)",
        "c.yaml: sft.bf16: is set by the recipe; it is that of grpo, which trains in the same process",
        "c.yaml: sft.completion_only_loss: is set by the recipe; answers alone are learnt in any case",
        "c.yaml: sft.learning_rat: SFTConfig has no such field; did you mean 'learning_rate'?",
        "c.yaml: sft.max_length: is 1, expected in [2, inf)",
    ]
    made = start_of(recipe_of(tmp_path, sft={}, grpo={"bf16": True}), bf16=True)
    assert made.settings.bf16
    late = recipe_of(tmp_path, sft={"loss_type": "nil"})
    with pytest.raises(ConfigError, match=r"c.yaml: sft.loss_type: .*nil"):
        start_of(late)


# ---------------------------------------------------------------- as a user starts it


@pytest.fixture(scope="module")
def finished(tiny: str, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str, str]:
    folder = tmp_path_factory.mktemp("sft")
    path = grpo_config(
        folder, tiny, sft=SFT, pairs={"max_pairs": 8}, audit=None, grpo={"max_steps": 2, "beta": 0.1},
        reward={"length_limit": 4},  # else its answers would all be worth the same
    )  # fmt: skip
    done = launch("grpo", "--config", path)
    assert done.returncode == 0, done.stderr[-3000:]
    return folder / "run", path, done.stdout


def test_grpo_goes_on_from_the_sft_and_before_is_the_policy_without_it(
    finished: tuple[Path, str, str], tiny: str
) -> None:
    run, _, printed = finished
    assert "before them an SFT on 8 chosen answers, 25% to controls: 2 steps of 4" in printed
    assert printed.index("== evaluation before") < printed.index("== SFT on 8 chosen answers")
    # Greedy answers of the policy that was named, and of nothing that was trained.
    rows = [json.loads(line) for line in (run / "before.jsonl").read_text().splitlines()]
    answers = {row["item_id"]: row["answer"] for row in rows if "answer" in row}
    items = [item for item in load_items("mini") if item.id in answers]
    fresh = load_policy(tiny).answer([item.messages for item in items], max_new_tokens=12)
    assert [one.text for one in fresh] == [answers[item.id] for item in items]
    report = json.loads((run / "report.json").read_text())
    assert report["facts"]["SFT before GRPO"].startswith(
        "8 chosen answers, 25% to controls; 2 steps"
    )
    assert any("an SFT on chosen answers and of GRPO" in note for note in report["headline_notes"])
    assert "Before is the policy as it was named" in (run / "report.md").read_text()


def test_what_came_out_is_one_adapter_that_remembers_all_it_was_trained_on(
    finished: tuple[Path, str, str], tiny: str
) -> None:
    run, _, _ = finished
    assert not (run / "model").exists()
    assert not (run / "adapter/ref").exists()
    begun, ended = (
        load_file(run / one / "adapter_model.safetensors") for one in ("sft/adapter", "adapter")
    )
    assert begun.keys() == ended.keys()
    assert any((begun[name] != ended[name]).any() for name in begun)
    marks = [mark_in(str(run / one)) for one in ("sft/adapter", "adapter")]
    assert marks[0] is not None
    assert marks[1] is not None
    assert marks[0].name == marks[1].name == tiny
    learnt = {json.loads(x)["item_id"] for x in (run / "sft/pairs.jsonl").read_text().splitlines()}
    rewarded = {json.loads(x)["item_id"] for x in (run / "prompts.jsonl").read_text().splitlines()}
    hashes = {item.id: short_hash(item.content_hash) for item in load_items("mini")}
    assert {hashes[i] for i in learnt} <= set(marks[0].trained_on) <= set(marks[1].trained_on)
    assert {hashes[i] for i in learnt | rewarded} <= set(marks[1].trained_on)
    card = (run / "sft/adapter/README.md").read_text()
    assert "that SFT made of" in card
    assert str(run.parent) not in card


def test_a_resumed_run_keeps_the_sft_and_may_change_what_comes_after_it(
    finished: tuple[Path, str, str], tmp_path: Path
) -> None:
    run, path, _ = finished
    copy = tmp_path / "run"
    ended = shutil.ignore_patterns(
        "adapter", "after*", "checkpoints", "figures", "log*", "report*", "training*"
    )
    shutil.copytree(
        run, copy, ignore=lambda folder, names: ended(folder, names) if folder == str(run) else ()
    )
    for key in ("sft.learning_rate", "pairs.control_share", "lora.r"):
        other = load_config(GRPORecipe, path, [f"{key}=0.5"])
        with pytest.raises(RunFolderError, match=rf"it differs in {key} \(was .*, is 0\.5\)"):
            RunFolder.open(other, str(copy), resume=True)
    begun = ["--config", path, "--output-dir", str(copy), "--resume"]
    done = launch("grpo", *begun, "--set", "grpo.learning_rate=0.5")
    assert done.returncode == 0, done.stderr[-3000:]
    assert "training with other settings than before: grpo.learning_rate" in done.stdout
    assert "evaluation before: kept from before" in done.stdout
    assert done.stdout.count("training: kept from before") == 1
    facts = [json.loads((one / "report.json").read_text())["facts"] for one in (run, copy)]
    assert facts[0]["SFT before GRPO"] == facts[1]["SFT before GRPO"]


@pytest.mark.parametrize("lost", ["sft", "sft/training.json"])
def test_an_sft_that_is_gone_is_not_made_anew_under_what_grpo_trained_on_it(
    finished: tuple[Path, str, str], tmp_path: Path, lost: str
) -> None:
    run, path, _ = finished
    copy = tmp_path / "run"
    shutil.copytree(run, copy, ignore=shutil.ignore_patterns("after*", "report*", "figures"))
    (shutil.rmtree if (copy / lost).is_dir() else Path.unlink)(copy / lost)
    wanted = load_config(GRPORecipe, path, [f"output_dir={copy}"])
    begun = Run(wanted, Arguments(Path(path), resume=True))
    with pytest.raises(
        RunFolderError, match=r"GRPO has begun here \(adapter, checkpoint-2, training"
    ):
        start_of(wanted).take(begun)
    assert not (copy / "sft/training.json").exists()
