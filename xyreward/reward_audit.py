"""Looks during training whether a policy serves people better, or only its judge.

Every so many steps the policy answers a fixed held-out sample. The training's judge and a second one score
the answers, and their texts are measured:

    gap               how much more the training's reward rose since the first look than the second judge's
    over-correction   share of controls in which a misconception is invented
    length            characters, and as a multiple of the first look's
    distinct_2        distinct pairs of tokens per pair, over all answers: low where all answers are alike
    repetition        share of an answer's sequences of four tokens that it had before
    neutral loss      nats per token on a fixed text that has nothing to do with the training

A figure beyond its bound is told, or ends the run.

Not here: the held-out evaluation before and after (`evaluation.py`).
"""

from __future__ import annotations

import json
import math
import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cache, cached_property
from importlib import resources
from typing import Any

from pydantic import TypeAdapter
from transformers import TrainerCallback

from xyreward.config import AuditConfig
from xyreward.errors import ConfigError, XYRewardError
from xyreward.items import Item
from xyreward.judges import Judge, RewardJudge
from xyreward.policy import Policy
from xyreward.prices import without_url
from xyreward.reward import Reward
from xyreward.scoring import Score, ascore, run_sync
from xyreward.trl_rewards import RewardFunction

MUCH_FAILED = 0.5
"""Share of a look's judgements above which their failure is told."""


@dataclass(frozen=True, slots=True)
class Look:
    """The figures of one step, over all processes."""

    step: int
    reward: float | None
    """Mean by the training's judge, in [0, 1], higher is better. None: it failed on all answers."""
    second_reward: float | None
    """Mean by the second judge, in [0, 1], higher is better. None: there is none, or it failed on all."""
    over_correction: float | None
    """Share of controls in which a misconception is invented, by the second judge or else the training's, in
    [0, 1], lower is better. None: no control was judged."""
    failed: float
    """Share of answers on which a judgement failed, of either judge, in [0, 1]; they are in no mean of it."""
    characters: float
    """Mean length of the answers."""
    truncated: float
    """Share of answers that were cut at the longest allowed, in [0, 1]."""
    distinct_2: float
    """Distinct pairs of tokens per pair, over all answers, in [0, 1]."""
    repetition: float
    """Share of sequences of four tokens that the same answer had before, in [0, 1], lower is better."""
    neutral_loss: float
    """Nats per token, lower is better."""
    lead: float | None = None
    """Mean of the training's reward less the second judge's, over answers that both judged, in [-1, 1]: where
    one fails, means over what each judged would differ for that alone. None: there is no such answer."""
    why: str | None = None
    """The most frequent reason of failed judgements, of one process. None: there was none."""

    def gap(self, first: Look) -> float | None:
        """How much more the training's reward rose since `first` than the second judge's."""
        return None if self.lead is None or first.lead is None else self.lead - first.lead

    def metrics(self, first: Look) -> dict[str, float]:
        """For the trainer's log; not a number where there is none."""
        found: dict[str, float | None] = {
            f"audit/{f.name}": getattr(self, f.name)
            for f in fields(self)
            if f.name not in ("step", "lead", "why")
        }
        found["audit/gap"] = self.gap(first)
        found["audit/length_ratio"] = (
            self.characters / first.characters if first.characters else None
        )
        found["audit/neutral_loss_rise"] = self.neutral_loss - first.neutral_loss
        return {name: math.nan if value is None else value for name, value in found.items()}

    def blindness(self) -> list[str]:
        """Why this look says little, in sentences: no reason to end a training, and none to trust it."""
        if self.failed <= MUCH_FAILED:
            return []
        return [
            f"{self.failed:.0%} of the audit's judgements failed"
            + (f" ({self.why})" if self.why else "")
            + ", so that it sees little or nothing"
        ]

    def objections(self, first: Look, bounds: AuditConfig) -> list[str]:
        """Figures beyond their bounds, in sentences."""
        rise = self.neutral_loss - first.neutral_loss
        checks: list[tuple[float | None, float | None, str]] = [
            (
                self.gap(first), bounds.max_gap,
                "the training's reward rose more than the second judge's (max_gap)",
            ),
            (
                self.over_correction, bounds.max_over_correction,
                "share of controls with an invented misconception (max_over_correction)",
            ),
            (rise, bounds.max_neutral_loss, "rise of the loss on neutral text (max_neutral_loss)"),
        ]  # fmt: skip
        return [
            f"{what}: {value:.3f}, above {bound:g}"
            for value, bound, what in checks
            if value is not None and bound is not None and (value > bound or math.isnan(value))
        ]


def read_look(line: str) -> Look:
    """A look as it is kept, in a line of JSON.

    Raises:
        TypeError, ValueError: it is none, or of another version.
    """
    look = Look(**json.loads(line))  # refuses unknown keys, and a line without some
    TypeAdapter(Look).validate_json(line, strict=True)  # refuses values of another type
    return look


class RewardAudit(TrainerCallback):  # type: ignore[misc]  # transformers is not typed
    """Looks before the first step, every so many steps, and after the last one."""

    def __init__(
        self,
        policy: Policy,
        items: Sequence[Item],
        function: RewardFunction,
        *,
        judge: Judge | None = None,
        settings: AuditConfig | None = None,
        earlier: Sequence[Look] = (),
        on_look: Callable[[Look, Sequence[str]], object] | None = None,
    ) -> None:
        """Audit a training.

        Args:
            policy: that is being trained; its model is the trainer's.
            items: the sample, which nothing is trained on.
            function: of the training; its judge is asked too, and it logs the figures.
            judge: the second one. None, or one of the same name: no second reward, and no gap.
            settings: when to look, how to answer, what bounds there are.
            earlier: looks of a run that is resumed; the first of them is what others are compared with.
            on_look: called in the first process with each look and what is to be told of it: figures beyond
                their bounds, a judge that failed.
        """
        self.policy = policy
        self.items = tuple(items)
        self.function = function
        self.judge = judge
        self.settings = settings or AuditConfig()
        self.looks = list(earlier)
        self.on_look = on_look
        self.stopped: str | None = None
        """Why the audit ended the run; None where it did not."""

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Look before the first step.

        Raises:
            ConfigError: the model is sharded, so that no process can answer by itself.
        """
        if is_sharded(args):
            raise ConfigError(
                "the audit of the reward lets every process answer by itself, and FSDP or ZeRO-3 shard the "
                "model; leave it out (audit: null)"
            )
        self.looks = [look for look in self.looks if look.step <= state.global_step]
        self._look(state.global_step, control)

    def on_step_end(self, _args: Any, state: Any, control: Any, **_: Any) -> None:
        """Look where it is time to."""
        if state.global_step % self.settings.every == 0 or state.global_step >= state.max_steps:
            self._look(state.global_step, control)

    def _look(self, step: int, control: Any) -> None:
        if not self.looks or self.looks[-1].step < step:
            self.looks.append(self.measured(step))
        look, first = self.looks[-1], self.looks[0]
        known = look.metrics(first)
        self.function.more = {name: known[name] for name in known if name not in self._never_known}
        beyond = look.objections(first, self.settings)
        rank, _ = _place()
        if self.on_look is not None and rank == 0:
            self.on_look(look, [*beyond, *look.blindness()])
        if beyond and self.settings.then == "stop":
            self.stopped = f"the audit, at step {step}: {'; '.join(beyond)}"
            control.should_training_stop = control.should_save = True

    @property
    def _second(self) -> Judge | None:
        """The second judge, where it is not the training's."""
        own = self.function.scorer.judge
        return None if self.judge is None or self.judge.name == own.name else self.judge

    @cached_property
    def _never_known(self) -> frozenset[str]:
        """Figures that no look can have: they are not logged, and others are in every step, None at times."""
        never = set() if self._second else {"audit/second_reward", "audit/gap"}
        labelling = self._second or self.function.scorer.judge
        if isinstance(labelling, RewardJudge) or all(item.kind != "control" for item in self.items):
            never.add("audit/over_correction")
        return frozenset(never)

    def measured(self, step: int) -> Look:
        """The figures now. Processes share the sample."""
        rank, processes = _place()
        items = self.items[rank::processes]
        training = self.policy.model.training
        try:
            answers = self.policy.answer(
                [item.messages for item in items],
                max_new_tokens=self.settings.max_new_tokens,
                batch_size=self.settings.batch_size,
            )
            neutral = neutral_loss(self.policy, neutral_passages()[rank::processes])
        finally:
            self.policy.model.train(training)
        texts = [answer.text for answer in answers]
        own, own_ended = self._scored(self.function.scorer.judge, items, texts)
        judge = self._second
        second, ended = (own, own_ended) if judge is None else self._scored(judge, items, texts)
        rows = [
            {
                "kind": item.kind,
                "characters": len(text),
                "truncated": answer.truncated,
                "tokens": self.policy.tokenizer(text, add_special_tokens=False)["input_ids"],
                "reward": mine.reward,
                "second": None if second is own else other.reward,
                "invented": None if other.verdict is None else other.verdict.identifies_misconception,
                "failed": _why_failed(mine, own_ended) or _why_failed(other, ended),
            }
            for item, text, answer, mine, other in zip(items, texts, answers, own, second, strict=True)
        ]  # fmt: skip
        shares = _gathered([(rows, neutral)])
        return _look_of(
            step,
            [row for rows, _ in shares for row in rows],
            sum(nats for _, (nats, _) in shares) / sum(tokens for _, (_, tokens) in shares),
        )

    def _scored(
        self, judge: Judge, items: Sequence[Item], answers: Sequence[str]
    ) -> tuple[list[Score], str | None]:
        """Scores, and why the judge stopped, where it did: there is no reward then."""
        reward: Reward = self.function.scorer.scoring.reward
        if not items:
            return [], None
        try:
            return run_sync(ascore(list(items), list(answers), judge, reward)), None
        except XYRewardError as error:
            # The guard ends the run, in all processes at once, where it is the training's; of a second one
            # the look tells that it failed.
            return [Score(None, None, None, judge.name) for _ in items], str(error)


def _why_failed(score: Score, ended: str | None) -> str | None:
    """Why there is no reward, with the judge's name; None where there is one."""
    if score.reward is not None:
        return None
    judge = without_url(score.source)
    if score.failure is not None:
        return f"{judge}: {score.failure.kind}: {score.failure.detail:.200}"
    return f"{judge}: {ended}"


def _look_of(step: int, rows: Sequence[Mapping[str, Any]], neutral: float) -> Look:
    invented = [row["invented"] for row in rows if row["kind"] == "control"]
    whys = Counter(row["failed"] for row in rows if row["failed"] is not None)
    both = [(r["reward"], r["second"]) for r in rows if None not in (r["reward"], r["second"])]
    return Look(
        step=step,
        reward=_mean([row["reward"] for row in rows]),
        second_reward=_mean([row["second"] for row in rows]),
        over_correction=_mean(invented),
        failed=whys.total() / len(rows),
        characters=_mean([row["characters"] for row in rows]) or 0.0,
        truncated=_mean([row["truncated"] for row in rows]) or 0.0,
        distinct_2=distinct([row["tokens"] for row in rows], 2),
        repetition=_mean([repetition(row["tokens"], 4) for row in rows]) or 0.0,
        neutral_loss=neutral,
        lead=_mean([own - second for own, second in both]),
        why=whys.most_common(1)[0][0] if whys else None,
    )


def _mean(values: Sequence[float | None]) -> float | None:
    known = [float(value) for value in values if value is not None]
    return sum(known) / len(known) if known else None


def distinct(texts: Sequence[Sequence[int]], n: int) -> float:
    """Distinct sequences of n tokens per sequence, over all texts together: in [0, 1], 1 where there is none.

    Li et al. 2016, arXiv:1510.03055. It falls with the number of tokens, too.
    """
    seen = [tuple(text[i : i + n]) for text in texts for i in range(len(text) - n + 1)]
    return len(set(seen)) / len(seen) if seen else 1.0


def repetition(text: Sequence[int], n: int) -> float:
    """Share of a text's sequences of n tokens that it had before, in [0, 1], lower is better."""
    seen = [tuple(text[i : i + n]) for i in range(len(text) - n + 1)]
    return 1 - len(set(seen)) / len(seen) if seen else 0.0


@cache
def neutral_passages() -> tuple[str, ...]:
    """Sixteen passages of plain prose that come with the package."""
    file = resources.files("xyreward").joinpath("data/neutral/passages.txt")
    return tuple(file.read_text("utf-8").strip().split("\n\n"))


def neutral_loss(policy: Policy, passages: Sequence[str]) -> tuple[float, int]:
    """Nats and tokens over which a policy predicts these passages, each from its second token on."""
    import torch

    nats, tokens = 0.0, 0
    model = policy.model
    model.eval()
    with torch.inference_mode():
        for passage in passages:
            ids = policy.tokenizer(passage, return_tensors="pt")["input_ids"].to(model.device)
            count = ids.shape[1] - 1
            nats += float(model(input_ids=ids, labels=ids).loss) * count
            tokens += count
    return nats, tokens


def is_sharded(args: Any) -> bool:
    """Whether a trainer with these arguments spreads one model's weights over processes."""
    plugin = getattr(args, "deepspeed_plugin", None)
    return (
        bool(args.fsdp)
        or os.environ.get("ACCELERATE_USE_FSDP", "").lower() in {"1", "true"}
        or (plugin is not None and plugin.zero_stage == 3)
    )


def _place() -> tuple[int, int]:
    """This process's number, and how many there are."""
    from torch import distributed

    if not (distributed.is_available() and distributed.is_initialized()):
        return 0, 1
    return distributed.get_rank(), distributed.get_world_size()


def _gathered(mine: list[Any]) -> list[Any]:
    """The lists of all processes, joined, in all of them."""
    if _place()[1] == 1:
        return mine
    from accelerate.utils import gather_object

    return list(gather_object(mine))
