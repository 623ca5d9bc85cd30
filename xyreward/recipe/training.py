"""Around the training, which is TRL's: its trainer is built, pairs fit, what it made is marked."""

from __future__ import annotations

import json
import math
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

from xyreward.chat_tokenizer import ChatTokenizer
from xyreward.config import Recipe
from xyreward.errors import NO_ROOM, ConfigError, RunFolderError, XYRewardError, told
from xyreward.items import text_hash
from xyreward.judges.reward_model import Reader
from xyreward.locate import Mark, mark_of_training, trained_on
from xyreward.model_card import CARD, write_card
from xyreward.pairs import PairSet
from xyreward.pairs.guards import Guards, TokenGuard
from xyreward.policy import Policy
from xyreward.recipe.account import Card, card_of
from xyreward.recipe.data import Data
from xyreward.recipe.run import Run
from xyreward.runs import LOGS
from xyreward.tracking import tensorboard_in
from xyreward.training_prompts import Prompts


@contextmanager
def building(run: Run, policy: Policy | Reader) -> Iterator[None]:
    """Around the building of the trainer: its errors are those of a configuration, on one line.

    The trainer is built before anything is evaluated, so that a module name that the policy does not
    have costs seconds and leaves a run folder that takes the corrected configuration.
    """
    try:
        with tensorboard_in(run.folder.path / LOGS):
            yield
    except XYRewardError:
        raise
    except Exception as error:  # of any of five libraries
        culprit = _lora_culprits(run.config, policy)
        where = run.arguments.places.of(culprit[0]) if culprit else run.arguments.path
        found = " or ".join(culprit) or "the trainer cannot be built"
        raise ConfigError(f"{where}: {found}: {told(error)}") from error


def _lora_culprits(config: Recipe, policy: Policy | Reader) -> list[str]:
    """Keys of `lora` that do not fit this policy, found on its architecture without its weights."""
    import torch
    from peft import LoraConfig, get_peft_model

    given: dict[str, Any] | None = getattr(config, "lora", None)

    def fits(arguments: Mapping[str, Any]) -> bool:
        try:
            with torch.device("meta"):
                get_peft_model(type(policy.model)(policy.model.config), LoraConfig(**arguments))
        except Exception:  # whatever the build failed with
            return False
        return True

    if given is None or fits(given):
        return []
    return [f"lora.{key}" for key in given if fits({k: v for k, v in given.items() if k != key})]


@contextmanager
def as_loaded(trainer: Any, lora: Any) -> Iterator[None]:
    """The policy as it was loaded, although `trainer` has already attached a new adapter to it.

    TRL's own reference model is the same: the policy with its new adapter switched off.
    """
    with trainer.model.disable_adapter() if lora is not None else nullcontext():
        yield


def rows(pairs: PairSet, policy: Policy) -> list[dict[str, Any]]:
    """The pairs in TRL's columns, to be rendered as the policy renders them in evaluation."""
    # The column only where it says something: TRL 1.16 fails on a row that has None there.
    kwargs = dict(policy.chat_template_kwargs)
    extra = {"chat_template_kwargs": kwargs} if kwargs else {}
    return [{**pair.as_row(), **extra} for pair in pairs.pairs]


def fit_to_length(
    pairs: PairSet, policy: Policy, max_length: int | None, section: str = "dpo"
) -> PairSet:
    """Leave out pairs that the trainer would drop or learn nothing from, and count them.

    TRL drops a pair whose prompt alone fills `max_length`, without a word, and cuts the end of longer
    answers; two answers may then read the same. Where more are left out than the limits of the guards
    `prompt_length` and `same_tokens` allow, that is a problem of the set, which its audit tells.

    Args:
        pairs: all of them.
        policy: whose tokens are counted.
        max_length: the trainer's. None: nothing is cut.
        section: of `max_length` in the configuration, for messages.

    Raises:
        ConfigError: no pair is left.
    """
    if max_length is None:
        return pairs
    guard = TokenGuard(policy, max_length)
    kept = []
    dropped: Counter[str] = Counter()
    cut = 0
    for pair in pairs.pairs:
        sides = pair.prompt, pair.chosen, pair.rejected
        if reason := guard.objection(*sides):
            dropped[reason] += 1
        else:
            kept.append(pair)
            cut += guard.cuts(*sides)
    if not kept:
        raise ConfigError(
            f"none of {len(pairs.pairs)} pairs fits into {section}.max_length={max_length} tokens of "
            f"{policy.name}; raise it ({dict(dropped)})"
        )
    problems = Guards(limits=pairs.limits).problems(dropped, len(pairs.pairs))
    return replace(
        pairs,
        pairs=tuple(kept),
        dropped=dict(Counter(pairs.dropped) + dropped),
        cut=cut,
        problems=(*pairs.problems, *problems),
    )


def fit(
    run: Run,
    trainer: Any,
    policy: ChatTokenizer,
    trained: PairSet | Prompts,
    data: Data,
    ended: Callable[[Sequence[Mapping[str, Any]]], Mapping[str, Any]] | None = None,
) -> tuple[Path, dict[str, Any]]:
    """Train `policy` with `trainer`, from the last checkpoint where there is one, and save the result.

    Beside every adapter or model that is saved, checkpoints included, lies a mark of what it was trained
    on (`locate.Mark`) and a card (`model_card.py`).

    Args:
        ended: called with the trainer's log when training has ended, before anything is saved. Raises where
            there is nothing to save; gives further facts.

    Returns:
        The folder of the adapter (or of the model, where all weights were trained), and facts.
    """
    kind = "adapter" if hasattr(trainer.model, "peft_config") else "model"
    target = run.folder.path / kind
    done = run.on_main(lambda: run.folder.read("training.json"))
    if done is not None:
        run.say("== training: kept from before")
        try:
            return target, dict(json.loads(done))
        except (ValueError, TypeError, RecursionError) as error:
            raise run.folder.damaged("training.json", error) from None
    wanted = run.config.policy

    def mark_of_this() -> Mark:
        seen = _hashes(trained, data)
        if policy.name != wanted.model:  # what an SFT made of it, on items of its own
            seen += sorted(trained_on(policy.name))
        return mark_of_training(wanted.model, wanted.revision, policy.chat_template_kwargs, seen)

    mark = run.on_main(mark_of_this)
    card = card_of(run.config, run.folder, mark, trained, adapter=kind == "adapter")
    trainer.add_callback(_marks_checkpoints(mark, card))
    checkpoint, damaged = run.on_main(run.folder.last_checkpoint)
    if damaged:
        run.say(f"== {', '.join(damaged)}: not whole, left out")
    if checkpoint:
        run.say(f"== going on from {checkpoint}")
    with run.timed("training"), _full_disk_told(run):
        trainer.train(resume_from_checkpoint=checkpoint)
    further = {} if ended is None else ended(trainer.state.log_history)
    with _full_disk_told(run):
        trainer.save_model(str(target))
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    facts = {
        "steps": trainer.state.global_step,
        # Of the whole training, also where it was resumed; what train() returns is of this session.
        "mean training loss": _told_loss(losses),
        "precision": "bf16" if trainer.args.bf16 else "fp16" if trainer.args.fp16 else "fp32",
        **further,
    }
    if run.is_main:
        write_card(target, card(facts), mark)
        # A pickle of TRL's settings, with the run's folder; config.yaml has them.
        (target / "training_args.bin").unlink(missing_ok=True)
        # What GRPO with beta above 0 compares an adapter to: a copy of that which it began with.
        shutil.rmtree(target / "ref", ignore_errors=True)
        log = (json.dumps(entry) + "\n" for entry in trainer.state.log_history)
        run.write("log.jsonl", "".join(log))
        run.write("training.json", json.dumps(facts) + "\n")
    run.state.wait_for_everyone()
    return target, facts


@contextmanager
def _full_disk_told(run: Run) -> Iterator[None]:
    """Tell a disk that is full as such: the trainer's libraries have an error of their own each."""
    try:
        yield
    except Exception as error:
        found: BaseException | None = error
        while found is not None:
            if getattr(found, "errno", None) in NO_ROOM or "No space left" in str(found):
                raise RunFolderError(
                    f"{run.folder.path}: cannot be written ({told(found)}); make room and run the same again "
                    "with --resume, which goes on from the last whole checkpoint"
                ) from error
            found = found.__cause__ or found.__context__
        raise


def _hashes(trained: PairSet | Prompts, data: Data) -> list[str]:
    """Hashes of items that were trained on, of what nearly repeats those, and of what is behind a reward."""
    pairs = () if isinstance(trained, Prompts) else trained.pairs
    ids = {pair.item_id for pair in pairs}
    behind: frozenset[str] = frozenset()
    if isinstance(trained, Prompts):
        ids, behind = {item.id for item in trained.items}, trained.behind_reward
    found = data.hashes_near(item for item in data.train if item.id in ids)
    # Pairs that were built before may be of items that this recipe does not have.
    found |= {text_hash("\n\n".join(m["content"] for m in pair.prompt)) for pair in pairs}
    return sorted(found | behind)


def _marks_checkpoints(mark: Mark, card: Card) -> Any:
    """A callback of the trainer that puts mark and card into every checkpoint."""
    from transformers import TrainerCallback

    class Marks(TrainerCallback):  # type: ignore[misc]  # transformers is not typed
        def on_save(self, args: Any, state: Any, _control: Any, **_: Any) -> None:
            folder = Path(args.output_dir) / f"checkpoint-{state.global_step}"
            if state.is_world_process_zero and folder.is_dir():
                write_card(folder, card({"checkpoint after steps": state.global_step}), mark)
                # TRL's card of all checkpoints, which says nothing but a folder's name.
                (Path(args.output_dir) / CARD).unlink(missing_ok=True)

    return Marks()


def _told_loss(losses: Sequence[float]) -> float | str:
    """Mean of the logged losses, or why there is none: nothing logged is not a run that diverged."""
    if not losses:
        return "not logged (logging_steps is above the number of steps)"
    loss = sum(losses) / len(losses)
    return round(loss, 4) if math.isfinite(loss) else "not finite: it diverged"
