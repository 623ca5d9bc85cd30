"""The recipe of the reward model: what is trained on, as a user starts it, and GRPO on what it wrote."""

import json
import shutil
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from safetensors import safe_open
from test_recipes import launch
from test_reward_model_judge import saved

from xyreward import Item, build_pairs, load_items, load_judge, reward_model, score
from xyreward.compare import ranking
from xyreward.config import (
    Arguments,
    GRPORecipe,
    Places,
    PromptsConfig,
    RewardModelRecipe,
    dump_yaml,
    load_config,
)
from xyreward.errors import (
    ConfigError,
    DataError,
    JudgeError,
    JudgeUnreliable,
    LeakError,
    RunFolderError,
)
from xyreward.grpo import load_prompts, room_warnings
from xyreward.judges.reward_model import FILE, Distilled, RewardModelJudge, load_reader
from xyreward.locate import MARK, fingerprint_of_folder, mark_of_training, short_hash, trained_on
from xyreward.pairs import PairSet
from xyreward.recipe import Data, Run, load_data
from xyreward.reward_model import TOO_LONG, UNREWARDED, compare, length_warnings, training_rows
from xyreward.scoring import Score
from xyreward.sides import Sides
from xyreward.splits import assign_splits
from xyreward.testing import FakeAPI, ScriptedJudge, make_item, tiny_policy
from xyreward.training_prompts import choose_prompts
from xyreward.verdict import JudgeFailure, LabelProbabilities, Labels, Verdict


def config(folder: Path, tiny: str, **changes: Any) -> str:
    """A configuration that runs in seconds: 8 pairs, 4 steps, 3 held-out items of each kind."""
    data: dict[str, Any] = {
        "policy": {"model": tiny},
        "pairs": {"max_pairs": 8},
        "lora": {"r": 2, "target_modules": "all-linear"},
        "reward_model": {
            "per_device_train_batch_size": 2,
            "num_train_epochs": 1,
            "learning_rate": 1e-2,
            "max_length": 2048,
            "logging_steps": 1,
            "save_steps": 1,
        },
        "evaluation": {"limit": 3},
        "output_dir": str(folder / "run"),
    }
    data.update(changes)
    path = folder / "config.yaml"
    path.write_text(json.dumps(data))  # JSON is YAML
    return str(path)


def recipe_of(**changes: Any) -> RewardModelRecipe:
    return RewardModelRecipe.model_validate({"output_dir": "x", **changes})


# ---------------------------------------------------------------- what is trained on


@pytest.fixture(scope="module")
def pairs(mini: list[Item]) -> PairSet:
    return build_pairs(mini[:40], split="train")


@pytest.mark.parametrize("shown", ["query", "goal"])
def test_no_pair_that_the_trainer_would_drop_is_lost_without_a_word(
    tiny: str, mini: list[Item], pairs: PairSet, shown: Any
) -> None:
    from datasets import Dataset
    from trl import RewardConfig, RewardTrainer

    reader = load_reader(tiny, shown, seed=0)
    lengths = sorted(
        max(len(row["chosen_ids"]), len(row["rejected_ids"]))
        for row in training_rows(pairs, reader, mini, 10**6, margins=True)[1]
    )
    middle = lengths[len(lengths) // 2]
    kept, rows = training_rows(pairs, reader, mini, middle, margins=True)
    assert len(kept.pairs) == len(rows) == sum(length <= middle for length in lengths)
    assert kept.dropped[TOO_LONG] == len(lengths) - len(rows) > 0
    assert sum(kept.dropped.values()) + len(kept.pairs) == pairs.candidates
    (warned,) = length_warnings(kept)
    assert f"{kept.dropped[TOO_LONG]} of {len(lengths)} pairs" in warned
    settings = RewardConfig(
        "unused", max_length=middle, use_cpu=True, bf16=False, activation_checkpointing=False
    )
    trainer = RewardTrainer(
        reader.model, settings, train_dataset=Dataset.from_list(rows), processing_class=reader.tokenizer
    )  # fmt: skip
    assert len(trainer.train_dataset) == len(rows)
    assert trainer.train_dataset[0]["margin"] == pytest.approx(kept.pairs[0].margin)


def test_where_none_fits_it_says_what_to_raise(tiny: str, mini: list[Item], pairs: PairSet) -> None:
    with pytest.raises(
        ConfigError, match=r"none of \d+ pairs fits into reward_model\.max_length=2"
    ):
        training_rows(pairs, load_reader(tiny, "query", seed=0), mini, 2, margins=True)


def test_pairs_of_unknown_items_need_no_requests_unless_these_are_shown(
    tiny: str, mini: list[Item], pairs: PairSet
) -> None:
    query = load_reader(tiny, "query", seed=0)
    known = training_rows(pairs, query, mini, 10**6, margins=False)[1]
    assert training_rows(pairs, query, [], 10**6, margins=False)[1] == known
    assert set(known[0]) == {"chosen_ids", "rejected_ids"}
    with pytest.raises(DataError, match="which is not among the train items"):
        training_rows(pairs, load_reader(tiny, "goal", seed=0), [], 10**6, margins=False)


# ---------------------------------------------------------------- settings


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"pairs": {"sources": ["on_policy"], "judge": "local"}}, "a reward model answers nothing"),
        ({"evaluation": {"parts": ["writing"]}}, "evaluated on which answer it prefers"),
        ({"distilled": {"judge": "reward_model:x"}}, "its errors would be learnt"),
        ({"distilled": {"judge_options": {"api_key": "x"}}}, "written into the run folder"),
        ({"distilled": {"solution": 0, "focus": 0, "misconception": 0}}, "all weights are 0"),
        ({"distilled": {"shown": "all"}}, "query"),
        ({"distilled": {"focus": float("inf")}}, "weights are infinite"),
        ({"evaluation": {"judge": "anthropic"}}, r"evaluation\.judge: would be ignored"),
        ({"policy": {"model": "chat:m@http://127.0.0.1:1"}}, "can be evaluated and not trained"),
    ],
)
def test_impossible_sections_are_refused(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        recipe_of(**changes)


def test_a_written_configuration_reads_back(tmp_path: Path) -> None:
    for wanted in (recipe_of(), recipe_of(evaluation={"split": "dev", "limit": 2})):
        (tmp_path / "config.yaml").write_text(dump_yaml(wanted))
        assert load_config(RewardModelRecipe, tmp_path / "config.yaml") == wanted
        assert wanted.evaluation.parts == ("preference",)


def test_what_the_trainer_cannot_have_is_told_at_once(tmp_path: Path) -> None:
    wrong = {
        "reward_model": {"max_length": None, "pad_token": "x", "learning_rat": 1},
        "lora": {"task_type": "CAUSAL_LM"},
    }
    said = "\n".join(reward_model.wrong_training(wrong, Places(tmp_path)))
    for part in ("max_length: is null", "pad_token", "learning_rat", "expected SEQ_CLS"):
        assert part in said
    assert reward_model.wrong_training({"reward_model": {"max_length": 8}}, Places(tmp_path)) == []


def test_what_is_calibrated_on_is_not_compared() -> None:
    for split, other in (("test", "dev"), ("dev", "test")):
        wanted = recipe_of(evaluation={"split": split})
        held_out = reward_model.load_held_out(wanted, load_data(wanted))
        assert held_out.side == other
        ids = [{item.id for item in some} for some in (held_out.calibration, held_out.evaluated)]
        assert not ids[0] & ids[1]
        assert {pair.item_id for pair in held_out.pairs.pairs} <= ids[1]


def test_what_nearly_repeats_an_evaluated_item_is_not_calibrated_on() -> None:
    queries = [" ".join(f"word-{n}-{k}" for k in range(9)) for n in range(40)]
    items = [make_item(id=f"of-{n}", query=query) for n, query in enumerate(queries)]
    items += [
        make_item(id=f"twin-{n}", query=f"{query} thanks", source="left out")
        for n, query in enumerate(queries[:20])
    ]
    splits = assign_splits(items)
    sides = Sides(tuple(items), splits, ())
    # One that lies on the side of calibration, and not all of them, as with evaluation.limit.
    of_dev = tuple(item for item in sides.select("dev") if item.source == "left out")
    twins = of_dev[:1]
    assert len(of_dev) > 1
    wanted = recipe_of(evaluation={"leave_out": "left out"})
    found = reward_model.load_held_out(wanted, Data(sides.train_without(twins), twins, sides))
    of_twins = {sides.clusters(items)[twin.id] for twin in twins}
    assert {item.source for item in found.calibration} == {"test"}
    assert not of_twins & set(sides.clusters(found.calibration).values())


def test_a_bad_night_of_the_judge_calibrates_nothing() -> None:
    rewards: list[float | None] = [0.5] * 95 + [None] * 5
    judged = {
        (str(n), "answer"): Score(
            r, None, JudgeFailure("refused", "no") if r is None else None, "x"
        )
        for n, r in enumerate(rewards)
    }
    reward_model.refuse_failures(judged, recipe_of())
    strict = recipe_of(evaluation={"max_failure_rate": 0.04})
    with pytest.raises(
        JudgeUnreliable, match=r"5 of 100 labelled .* \(refused 5\), above evaluation"
    ):
        reward_model.refuse_failures(judged, strict)


# ---------------------------------------------------------------- the comparison


def scores(of: dict[str, float | None], items: list[Item]) -> dict[tuple[str, str], Score]:
    """Rewards by kind of answer; None: the rater failed."""
    failure = JudgeFailure("timeout", "late")
    return {
        (item.id, r.text): Score(of[str(r.kind)], None, None if of[str(r.kind)] is not None else failure, "x")
        for item in items
        for r in item.references
    }  # fmt: skip


def compared(model: dict[str, float | None], judge: dict[str, float | None]) -> Any:
    items = [
        make_item(id=f"item-{n}", query=f"How do I make my alarm clock {n} times louder?")
        for n in range(4)
    ]
    pairs = build_pairs(items, split="test", control_share=0)
    held_out = reward_model.HeldOut((), "dev", tuple(items), pairs)
    return compare(
        held_out, ScriptedJudge({}), scores(judge, items), scores(model, items), {},
        calibrated_on=1, seconds=0.8,
    )  # fmt: skip


def test_agreement_lost_is_the_judges_share_less_the_models() -> None:
    right: dict[str, float | None] = {"goal_focused": 0.9, "literal": 0.2}
    wrong: dict[str, float | None] = {"goal_focused": 0.2, "literal": 0.9}
    tied: dict[str, float | None] = {"goal_focused": 0.5, "literal": 0.5}
    for model, lost, same in ((right, 0, 1), (tied, 0.5, 0.5), (wrong, 1, 0)):
        found = compared(model, right)
        assert found.agreement_lost.value == lost
        assert found.judge_pairs.value == 1
        assert found.pairs.value == 1 - lost
        assert found.same_order.value == same
        assert found.ranking["goal_focused above literal"].value == 1 - lost
        assert "goal_focused above literal" in found.to_markdown()
    assert compared(right, right).error.value == 0
    assert compared(wrong, right).error.value == pytest.approx(0.7)
    assert compared(wrong, right).error_of_a_constant.value == pytest.approx(0.35)
    high: dict[str, float | None] = {"goal_focused": 1.0, "literal": 0.95}
    # Of the judge's mean, and not of the model's.
    assert compared(high, right).error_of_a_constant.value == pytest.approx(0.35)
    assert compared(tied, right).bias.value == pytest.approx(
        0.5 - 0.55
    )  # of the model, less the judge's
    assert compared(right, right).judge_dollars == 0  # it asks no model
    assert compared(right, right).seconds == pytest.approx(100)


def test_two_answers_that_the_judge_rewards_alike_have_no_order_to_keep() -> None:
    alike: dict[str, float | None] = {"goal_focused": 0.9, "literal": 0.9}
    assert compared({"goal_focused": 0.9, "literal": 0.2}, alike).same_order is None


def test_what_a_judge_costs_is_what_it_was_billed_for_or_its_list_price(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "any")
    judge = load_judge("anthropic:claude-sonnet-5-5", store=tmp_path / "s.sqlite")
    labels = Labels(
        has_stated_solution=False,
        has_intended_solution=True,
        focus="intended",
        identifies_misconception=True,
    )
    sure = LabelProbabilities.certain(labels)

    def cost(*of: tuple[float | None, bool]) -> float | None:
        verdicts = [
            Verdict(labels, sure, "j", "v", cost_usd=usd, cached=there) for usd, there in of
        ]
        return reward_model.dollars(judge, [Score(1.0, one, None, "j") for one in verdicts])

    assert cost((0.002, False), (0.004, False), (0.0, True)) == pytest.approx(3)
    listed = cost((0.0, True))  # the store had it: what it cost is not known any more
    assert listed is not None
    assert listed > 0
    assert cost((0.002, False), (None, False)) == listed


def test_an_answer_that_one_failed_on_is_counted_and_in_no_share() -> None:
    right: dict[str, float | None] = {"goal_focused": 0.9, "literal": 0.2}
    for model, judge in (({**right, "literal": None}, right), (right, {**right, "literal": None})):
        found = compared(model, judge)
        assert (found.failed, found.judge_failed) == ((4, 0) if model != right else (0, 4))
        assert found.pairs is None
        assert found.agreement_lost is None
        assert found.error.n == 4
        assert "| n/a |" in found.to_markdown()


def test_ties_count_half() -> None:
    item = make_item()
    known = [(item, reference) for reference in item.references]
    both = [Score(0.5, None, None, "x")] * 2
    found = ranking(known, both, {})["goal_focused above literal"]
    assert found is not None
    assert found.value == 0.5


def test_the_scale_is_fitted_to_answers_that_both_can_read(tmp_path: Path) -> None:
    name = saved(tmp_path)  # of a folder that the trainer would have written
    folder = Path(name.removeprefix("reward_model:"))
    items = [make_item(id=f"item-{n}", query=f"How do I do {n}?") for n in range(4)]
    held_out = reward_model.HeldOut(tuple(items), "dev", (), build_pairs(items, split="test"))
    judged = scores({"goal_focused": 0.9, "literal": 0.2}, items)
    known = [(item, r.text) for item in items for r in item.references]
    judged[items[0].id, known[0][1]] = Score(None, None, JudgeFailure("timeout", "late"), "x")
    reader = load_reader(str(folder), "query")
    lengths = sorted(len(reader.ids(item, text)) for item, text in known)
    data = Data((), (), Sides(tuple(items), assign_splits(items), ()))
    calibrate = partial(reward_model.calibrate, folder, recipe_of(), held_out, data, judged)
    assert calibrate(lengths[-1]) == len(known) - 1
    longest = sum(n == lengths[-1] for n in lengths)
    fitted = calibrate(lengths[-1] - 1)
    assert len(known) - 1 - longest <= fitted < len(known) - 1


# ---------------------------------------------------------------- as a user starts it


@pytest.fixture(scope="module")
def finished(tiny: str, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str, str]:
    folder = tmp_path_factory.mktemp("reward_model")
    path = config(folder, tiny)
    done = launch("reward_model", "--config", path)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "LOAD REPORT" not in done.stderr
    return folder / "run", path, done.stdout


def test_the_run_folder_explains_itself(finished: tuple[Path, str, str]) -> None:
    run, _, printed = finished
    names = {p.name for p in run.iterdir()}
    assert names >= {
        "config.yaml", "environment.json", "data.json", "splits.json", "pairs.jsonl", "audit.md",
        "log.jsonl", "adapter", "distilled.json", "distilled.jsonl", "distilled.md",
    }  # fmt: skip
    report = json.loads((run / "distilled.json").read_text())
    assert report["judge"] == "local"
    assert report["judge_dollars"] == 0
    assert report["failed"] == 0
    assert report["calibrated_on"] > 0
    assert report["facts"]["steps"] == 4
    assert "goal_focused above literal" in report["ranking"]
    page = (run / "distilled.md").read_text()
    assert page in printed
    card = (run / "adapter/README.md").read_text()
    assert "reward modelling" in card
    assert 'judge="reward_model:FOLDER"' in card
    assert "agreement lost" in card
    for file in (run / "adapter").iterdir():
        assert str(run.parent).encode() not in file.read_bytes(), file.name


def test_the_head_was_trained_and_saved_with_the_adapter(
    finished: tuple[Path, str, str], tiny: str
) -> None:
    run, _, _ = finished
    with safe_open(run / "adapter/adapter_model.safetensors", "pt") as file:
        (head,) = (file.get_tensor(name) for name in file.keys() if "score" in name)  # noqa: SIM118
    new = load_reader(tiny, "query", seed=0).model.score.weight
    assert head.shape == new.shape
    assert (head - new).abs().max() > 1e-3


def test_the_folder_is_a_judge_that_says_what_was_measured(
    finished: tuple[Path, str, str], mini: list[Item]
) -> None:
    run, _, _ = finished
    of = {item.id: item for item in mini}
    rows = [json.loads(line) for line in (run / "distilled.jsonl").read_text().splitlines()]
    found = score(
        [of[row["item_id"]] for row in rows],
        [row["answer"] for row in rows],
        f"reward_model:{run / 'adapter'}",
    )
    assert [one.reward for one in found] == pytest.approx([row["reward"] for row in rows])
    assert len({one.reward for one in found}) > len(rows) / 2  # a group of ties teaches nothing


def test_what_is_too_long_is_not_counted_among_what_the_scale_was_fitted_to(
    finished: tuple[Path, str, str], tmp_path: Path
) -> None:
    run, path, _ = finished
    copy, wanted = tmp_path / "adapter", load_config(RewardModelRecipe, path)
    shutil.copytree(run / "adapter", copy)
    data = load_data(wanted)
    held_out = reward_model.load_held_out(wanted, data)
    answers = [(item, r.text) for item in held_out.calibration for r in item.references]
    judged = {(item.id, text): Score(0.5, None, None, "x") for item, text in answers}
    reader = load_reader(str(copy), "query")
    lengths = sorted(len(reader.ids(item, text)) for item, text in dict.fromkeys(answers))
    middle = lengths[len(lengths) // 2]
    fitted_to = reward_model.calibrate(copy, wanted, held_out, data, judged, middle)
    assert fitted_to == sum(length <= middle for length in lengths) < len(lengths)
    assert not [file.name for file in copy.iterdir() if file.suffix == ".partial"]


def test_an_adapter_without_its_head_is_no_judge(
    finished: tuple[Path, str, str], tmp_path: Path
) -> None:
    from safetensors.torch import load_file, save_file

    run, _, _ = finished
    copy = tmp_path / "adapter"
    shutil.copytree(run / "adapter", copy)
    weights = load_file(copy / "adapter_model.safetensors")
    save_file(
        {name: value for name, value in weights.items() if "score" not in name},
        copy / "adapter_model.safetensors",
    )
    with pytest.raises(JudgeError, match=r"none of its \d+ weights is of a head"):
        load_judge(f"reward_model:{copy}")
    with pytest.raises(ConfigError, match="score"):  # nor is it a model
        load_reader(str(copy), "query")


def test_an_adapter_on_another_base_is_no_judge(
    finished: tuple[Path, str, str], tmp_path: Path
) -> None:
    run, _, _ = finished
    copy, other = tmp_path / "adapter", tiny_policy(tmp_path / "other", seed=1)
    shutil.copytree(run / "adapter", copy)
    mark = json.loads((copy / "xyreward.json").read_text())
    (copy / "xyreward.json").write_text(json.dumps({**mark, "name": other}))
    with pytest.raises(JudgeError, match="its files are not those"):
        load_judge(f"reward_model:{copy}")
    # The same name, and another model under it.
    moved = tmp_path / "base"
    shutil.copytree(mark["name"], moved)
    (copy / "xyreward.json").write_text(json.dumps({**mark, "name": str(moved)}))
    said = Distilled.from_json((copy / FILE).read_text())
    again = replace(said, weights_of=fingerprint_of_folder(copy, without={FILE}))
    (copy / FILE).write_text(again.to_json())
    RewardModelJudge(copy).check([make_item()])
    shutil.copytree(other, moved, dirs_exist_ok=True)
    with pytest.raises(JudgeError, match="is another model"):
        RewardModelJudge(copy).check([make_item()])


def test_a_resumed_run_compares_nothing_anew(
    finished: tuple[Path, str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    folder, path, _ = finished
    before = (folder / "adapter" / FILE).stat().st_mtime_ns
    wanted = load_config(RewardModelRecipe, path)
    run, data = Run(wanted, Arguments(Path(path), resume=True)), load_data(wanted)
    held_out = reward_model.load_held_out(wanted, data)
    reward_model.finish(run, wanted, folder / "adapter", held_out, data, 2048, {})
    said = capsys.readouterr().out
    assert "comparison: kept from before" in said
    assert (folder / "distilled.md").read_text() in said
    assert (folder / "adapter" / FILE).stat().st_mtime_ns == before


class SickOf:
    """The local judge, which fails on some answers for as long as it is sick."""

    def __init__(self, answers: set[str]) -> None:
        self.well = load_judge("local")
        self.name, self.rubric_version = self.well.name, self.well.rubric_version
        self.answers = answers
        self.asked = 0

    async def judge(
        self, items: Sequence[Item], answers: Sequence[str]
    ) -> list[Verdict | JudgeFailure]:
        self.asked += len(answers)
        found = await self.well.judge(items, answers)
        late = JudgeFailure("timeout", "late")
        return [late if a in self.answers else v for a, v in zip(answers, found, strict=True)]


def test_a_resumed_run_asks_again_for_rewards_that_failed(
    finished: tuple[Path, str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, path, _ = finished
    copy = tmp_path / "run"
    shutil.copytree(finished[0], copy, ignore=shutil.ignore_patterns("distilled*", FILE))
    wanted = load_config(RewardModelRecipe, path, [f"output_dir={copy}"])
    data = load_data(wanted)
    held_out = reward_model.load_held_out(wanted, data)
    calibrated_on = {item.id for item in held_out.calibration}
    ill = next(text for item, text in held_out.answers if item.id in calibrated_on)
    judge = SickOf({ill})
    monkeypatch.setattr(reward_model, "distilled_judge", lambda _: judge)
    run = Run(wanted, Arguments(Path(path), resume=True))

    def finish() -> tuple[int, float, str]:
        reward_model.finish(run, wanted, copy / "adapter", held_out, data, 2048, {})
        found = json.loads((copy / "distilled.json").read_text())
        version = RewardModelJudge(copy / "adapter").rubric_version
        return found["calibrated_on"], found["facts"][UNREWARDED], version

    first = finish()
    written = (copy / "distilled.md").stat().st_mtime_ns
    assert finish() == first  # sick still: nothing is made anew
    assert (copy / "distilled.md").stat().st_mtime_ns == written
    judge.answers = set()
    second = finish()
    assert (first[1], second[1]) == (1, 0)
    assert second[0] == first[0] + 1
    assert second[2] != first[2]  # another scale: GRPO that was begun on the first would say so
    asked = judge.asked
    assert finish() == second
    assert judge.asked == asked


def test_grpo_refuses_it_where_labels_are_needed(finished: tuple[Path, str, str]) -> None:
    run, _, _ = finished
    name = f"reward_model:{run / 'adapter'}"
    for changes, said in (
        ({"reward": {"judge": name, "components": True}}, "no labels"),
        ({"audit": {"judge": name}}, "no labels"),
        ({"reward": {"judge": name, "focus": 2.0}}, "cannot be weighed anew"),
    ):
        wanted = GRPORecipe.model_validate({"output_dir": "x", **changes})
        with pytest.raises(JudgeError, match=said):
            load_prompts(wanted, load_data(wanted))


def test_grpo_refuses_a_reward_model_that_was_trained_on_what_it_holds_out(
    tmp_path: Path,
) -> None:
    name = saved(tmp_path)
    folder = Path(name.removeprefix("reward_model:"))
    wanted = GRPORecipe.model_validate(
        {"output_dir": "x", "reward": {"judge": name}, "evaluation": {"limit": 1}}
    )
    data = load_data(wanted)
    load_prompts(wanted, data)  # trained on nothing that is known
    of_side = {side: data.sides.select(side)[-1] for side in ("train", "dev", "test")}
    for side, item in of_side.items():
        assert item not in data.held_out
        mark = mark_of_training("embedded:smollm2-135m", None, {}, [item.content_hash])
        (folder / MARK).write_text(mark.to_json())
        said = Distilled.from_json((folder / FILE).read_text())
        kept = replace(said, weights_of=fingerprint_of_folder(folder, without={FILE}))
        (folder / FILE).write_text(kept.to_json())
        if side == "train":
            # A policy learns by way of the reward what the model learnt, whatever its own prompts are.
            assert load_prompts(wanted, data).behind_reward == {short_hash(item.content_hash)}
            # Of a source that is left out, items of all sides are evaluated.
            with pytest.raises(LeakError, match=f"trained on 1 of the .*{item.id}"):
                load_prompts(wanted, replace(data, held_out=(item,)))
            continue
        with pytest.raises(LeakError, match=f"trained on 1 of the .*{item.id}") as refused:
            load_prompts(wanted, data)
        assert list(refused.value.offending) == [item.id]


@pytest.mark.parametrize("split", ["dev", "test"])
def test_grpo_does_not_evaluate_on_what_its_reward_model_was_calibrated_on(
    split: str, tmp_path: Path
) -> None:
    sides = {"splits_lock": str(tmp_path / "lock"), "items": [{"source": "mini"}]}
    of_model = RewardModelRecipe.model_validate(
        {"output_dir": "x", "evaluation": {"split": split, "limit": 6}, **sides}
    )
    data = load_data(of_model)
    held_out = reward_model.load_held_out(of_model, data)
    name = saved(tmp_path)
    folder = Path(name.removeprefix("reward_model:"))
    judged = {(item.id, text): Score(0.5, None, None, "x") for item, text in held_out.answers}
    reward_model.calibrate(folder, of_model, held_out, data, judged, 4096)
    assert RewardModelJudge(folder).distilled.calibrated_on
    for evaluated in ("dev", "test"):
        wanted = GRPORecipe.model_validate(
            {
                "output_dir": "x",
                "reward": {"judge": name},
                "evaluation": {"split": evaluated},
                **sides,
            }
        )
        if evaluated == split:
            load_prompts(wanted, load_data(wanted))
            continue
        with pytest.raises(LeakError, match="was calibrated on") as refused:
            load_prompts(wanted, load_data(wanted))
        seen = {item.id for item in held_out.calibration}
        assert set(refused.value.offending) >= seen > set()


def test_grpo_says_at_the_start_which_answers_a_reward_model_cannot_read(tmp_path: Path) -> None:
    wide = RewardModelJudge(saved(tmp_path / "wide").removeprefix("reward_model:"))
    items = load_items("mini")
    prompts = choose_prompts(PromptsConfig(), items, "x")
    lengths = sorted(4096 - tokens for tokens in wide.room(prompts.items))  # with an empty answer
    one = prompts.items[0]
    row = load_reader(str(wide.folder), "query").ids(one, "Air it at night.")
    assert 0 < len(row) - (4096 - wide.room([one])[0]) <= len(b"Air it at night.")
    shortest, longest = lengths[0], lengths[-1]

    def told(max_length: int, answer: int) -> list[str]:
        name = saved(tmp_path / f"{max_length}", max_length=max_length)
        wanted = GRPORecipe.model_validate({"output_dir": "x", "reward": {"judge": name}})
        return room_warnings(wanted, prompts, SimpleNamespace(max_completion_length=answer))

    assert told(longest + 8, 8) == []
    tight = sum(length > longest - 1 for length in lengths)
    (warned,) = told(longest + 7, 8)
    assert f"{tight} of {len(lengths)} prompts leave less of the {longest + 7} tokens" in warned
    assert "grpo.max_completion_length=8, the longest of them 7:" in warned
    full = sum(length >= shortest + 1 for length in lengths)
    assert (
        f"{full} of {len(lengths)} prompts alone fill the {shortest + 1} "
        in told(shortest + 1, 1)[0]
    )
    with pytest.raises(ConfigError, match="every answer would be a failure"):
        told(shortest, 8)
    other = GRPORecipe.model_validate({"output_dir": "x", "reward": {"judge": "local"}})
    assert room_warnings(other, prompts, SimpleNamespace(max_completion_length=8)) == []


def test_grpo_goes_on_with_the_reward_model_only_that_it_began_with(
    finished: tuple[Path, str, str], tiny: str, tmp_path: Path
) -> None:
    copy = tmp_path / "adapter"
    shutil.copytree(finished[0] / "adapter", copy)
    settings = {"policy": {"model": tiny}, "reward": {"judge": f"reward_model:{copy}"}}
    wanted = GRPORecipe.model_validate({"output_dir": str(tmp_path / "run"), **settings})
    data = load_data(wanted)
    prompts = load_prompts(wanted, data)

    def begin(*, resume: bool) -> None:
        run = Run(wanted, Arguments(Path("c.yaml"), resume=resume))
        run.record_data(data, prompts)
        run.write("training.json", "{}")

    begin(resume=False)
    begin(resume=True)
    said = Distilled.from_json((copy / FILE).read_text())
    other = replace(said, scale=replace(said.scale, centre=said.scale.centre + 1))
    (copy / FILE).write_text(other.to_json())
    with pytest.raises(RunFolderError, match="prompts rewarded by version was reward-model-"):
        begin(resume=True)


def test_a_distilled_judge_that_costs_is_paid_once_and_grpo_on_the_model_asks_nobody(
    tiny: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ANTHROPIC_API_KEY", raising=False)
    monkeypatch.setenv("XYREWARD_STORE", str(tmp_path / "store.sqlite"))
    with FakeAPI() as api:
        judge = {
            "judge": "anthropic:claude-sonnet-5-5",
            "judge_options": {"base_url": api.base_url, "max_concurrency": 4},
            "shown": "goal",
        }
        path = config(tmp_path, tiny, distilled=judge, lora=None)
        dry = launch("reward_model", "--config", path, "--dry-run")
        assert dry.returncode == 0, dry.stderr[-3000:]  # without a key: nothing is sent
        monkeypatch.setenv("ANTHROPIC_API_KEY", "any")
        done = launch("reward_model", "--config", path)
        assert done.returncode == 0, done.stderr[-3000:]
    run = tmp_path / "run"
    report = json.loads((run / "distilled.json").read_text())
    calls = report["facts"]["distilled judge calls"]
    assert f"judged by anthropic:claude-sonnet-5-5: {calls} calls" in dry.stdout
    assert report["judge_dollars"] == pytest.approx(
        1000 * report["facts"]["distilled judge, US dollars"] / calls, rel=1e-2
    )
    assert (run / "model" / FILE).is_file()

    # The API is gone, and there is no store to ask.
    monkeypatch.delenv("ANTHROPIC_API_KEY")
    monkeypatch.setenv("XYREWARD_STORE", str(tmp_path / "other.sqlite"))
    name = f"reward_model:{run / 'model'}"
    smaller = {
        "reward.judge": name,
        "grpo.max_steps": 2,
        "grpo.max_completion_length": 8,
        "audit.limit": 2,
        "audit.max_new_tokens": 8,
        "evaluation.limit": 2,
        "evaluation.max_new_tokens": 8,
    }
    changes = [part for key, value in smaller.items() for part in ("--set", f"{key}={value}")]
    target = ["--model", tiny, "--output-dir", str(tmp_path / "grpo/run")]
    done = launch("grpo", "--config", "configs/grpo/rm.yaml", *target, *changes)
    assert done.returncode == 0, done.stderr[-3000:]
    steps = [
        entry
        for line in (tmp_path / "grpo/run/log.jsonl").read_text().splitlines()
        if "reward" in (entry := json.loads(line))
    ]
    assert len(steps) == 2
    assert all(step["judge/failure_rate"] == step["judge/cost_usd"] == 0 for step in steps)
    facts = json.loads((tmp_path / "grpo/run/report.json").read_text())["facts"]
    assert not any(" calls" in fact for fact in facts)
    assert not (tmp_path / "other.sqlite").exists()
    adapter = tmp_path / "grpo/run/adapter"
    assert trained_on(str(adapter)) >= trained_on(str(run / "model")) > set()
    card = (adapter / "README.md").read_text()
    assert "reward_model:run/model" in card
    assert str(tmp_path) not in card


def test_an_adapter_is_no_base_of_a_reward_model(finished: tuple[Path, str, str]) -> None:
    run, _, _ = finished
    wanted = recipe_of(policy={"model": str(run / "adapter")})
    with pytest.raises(ConfigError, match="is an adapter of a model that writes"):
        reward_model.reward_settings(wanted, Path("c.yaml"))
