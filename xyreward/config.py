"""Configuration of a recipe: its sections, and its command line.

Sections `lora` and `dpo` are handed to peft and TRL as they are; recipes check them against LoraConfig and
DPOConfig. `null` for `lora` means that all weights are trained.

Not here: how a file is read and its mistakes are told (`config_file.py`), what a recipe does with it
(`recipes/`).
"""

from __future__ import annotations

import argparse
import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, model_validator

from xyreward.answering import PARTS as PARTS
from xyreward.answering import (
    PARTS_OF,
    EvaluationPart,
    How,
    check_conditions,
    check_how,
    place_of,
)
from xyreward.config_file import Others as Others
from xyreward.config_file import Places as Places
from xyreward.config_file import check_keys as check_keys
from xyreward.config_file import check_limits as check_limits
from xyreward.config_file import dump_yaml as dump_yaml
from xyreward.config_file import load_config as load_config
from xyreward.config_file import outside_limits as outside_limits
from xyreward.config_file import parse_yaml as parse_yaml
from xyreward.config_file import wrong_keys as wrong_keys
from xyreward.embedded import POLICY_NAME
from xyreward.errors import RunFolderError
from xyreward.home import expanded, resolved
from xyreward.items import AnswerKind, ItemKind
from xyreward.pairs.candidates import PairSource
from xyreward.pairs.contrastive import Contrast
from xyreward.pairs.formats import Container, Format
from xyreward.pairs.guards import Guards
from xyreward.pairs.rule import Rule
from xyreward.pairs.sampling import REMOTE, Sampling

# Strict: otherwise `seed: true` is 1, and "16" in quotes is a number here but not in other
# libraries.
_Count = Annotated[int, Field(gt=0, strict=True)]


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


def _refuse_key(options: Mapping[str, Any], name: str, folder: str = "run folder") -> None:
    """A configuration is kept as it is given, and a key in it with it."""
    if "api_key" in options:
        raise ValueError(
            f"{name}.api_key would be written into the {folder}; set the key in the environment "
            "(ANTHROPIC_API_KEY, XYREWARD_CHAT_KEY)"
        )


class PolicyConfig(_Section):
    """The model to train or to evaluate."""

    model: str = POLICY_NAME
    """`embedded:smollm2-135m`, a folder, a hub name, or a folder or hub name of a peft adapter. Where it is
    only evaluated (or sampled, in a job of pairs) also `chat:<model>@<base_url>` and `anthropic:<model>`;
    where it is only evaluated also `answers:<file>`."""
    revision: str | None = None
    """Commit of a hub model."""
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """Of the weights. `auto`: float32 on CPU and MPS, bfloat16 on CUDA where it is supported."""
    chat_template_kwargs: dict[str, Any] | None = None
    """Passed to the chat template, e.g. `enable_thinking: false`. None: what an adapter was trained with."""


class ItemsConfig(_Section):
    """One source of items; see `load_items` for the fields."""

    source: str = "mini"
    hub_split: str | None = None
    revision: str | None = None
    columns: dict[str, str | None] = Field(default_factory=dict)
    kind: ItemKind = "xy"
    """Kind of the rows of a source that has no `kind` column."""
    kinds: tuple[ItemKind, ...] = Field(default=("xy", "control"), min_length=1)
    """Keep only these kinds of items of this source."""


class SamplingConfig(_Section):
    """Answers that are sampled from the policy, for pairs of source `on_policy`."""

    samples: _Count = 8
    """Answers per item."""
    temperature: float | None = Field(default=1.0, gt=0, strict=True)
    """None: the server's default, for policies behind an API."""
    top_p: float = Field(default=1.0, gt=0, le=1, strict=True)
    max_new_tokens: _Count = 192
    """Longest answer, in tokens. One that reaches it is left out: it would teach to stop anywhere."""
    keep_truncated: bool = Field(default=False, strict=True)
    batch_size: _Count = 16
    limit: _Count | None = None
    """Sample for only this many items of each kind (first by content hash), for a quick look."""

    def sampling(self, seed: int) -> Sampling:
        """The same, as `sample` takes it."""
        return Sampling(self.samples, self.temperature, self.top_p, self.max_new_tokens, seed)


class _PairSettings(_Section):
    """How pairs are made of answers; see `build_pairs` and docs/pairs.md."""

    sources: tuple[PairSource, ...] = Field(default=("references",), min_length=1)
    """Where answers come from: `references`, `on_policy`, `cross_model` (with `answers`), `contrastive`."""
    answers: tuple[str, ...] = ()
    """Files with answers of models, for source `cross_model`; see docs/pairs.md."""
    columns: dict[str, str] = Field(default_factory=dict)
    """Field -> column, for files of answers with names of their own."""
    origin: str | None = Field(default=None, min_length=1)
    """Who wrote all answers of the files. None: each row says so."""
    on_policy: SamplingConfig = SamplingConfig()
    judge: str | None = None
    """Judges every candidate. None: reference answers by their labels; other sources need one."""
    judge_options: dict[str, Any] = Field(default_factory=dict)
    rule: Rule = Field(default_factory=Rule)
    guards: Guards = Field(default_factory=Guards)
    balance: float | None = Field(default=None, ge=0, le=0.5, strict=True)
    """Shortcuts (longer wins, more cue words, ...) pick chosen in 0.5 +- this. None: no balancing."""
    allow_origin: bool = Field(default=False, strict=True)
    """Take pairs although who wrote an answer tells which one is chosen."""
    control_share: float = Field(default=0.25, ge=0, lt=1, strict=True)
    max_pairs: _Count | None = None

    @model_validator(mode="after")
    def _sources_fit(self) -> Self:
        if ("cross_model" in self.sources) != bool(self.answers):
            raise ValueError(
                "source cross_model and answers (files) go together, found one of them"
            )
        if self.columns and not self.answers:
            raise ValueError(
                "columns are of files of answers, and none is given; name them in answers (items have "
                "columns of their own: items.0.columns)"
            )
        if self.origin is not None and not self.answers:
            raise ValueError(
                "origin is of files of answers, and none is given; name them in answers"
            )
        if self.judge is None and set(self.sources) - {"references"}:
            raise ValueError(
                f"sources {', '.join(self.sources)} need a judge, since nobody labelled such answers"
            )
        if self.judge is None and self.judge_options:
            raise ValueError("judge_options are of no judge; name one in judge")
        if "on_policy" not in self.sources and self.on_policy != SamplingConfig():
            raise ValueError(
                "on_policy has settings, but sources has no on_policy; nothing is sampled"
            )
        return self


class PairsConfig(_PairSettings):
    """Which preference pairs a recipe makes of the train items."""

    built: str | None = None
    """A folder that `xyreward pairs` wrote: its pairs are taken, and no other key may be given."""

    @model_validator(mode="after")
    def _fits_a_recipe(self) -> Self:
        _refuse_key(self.judge_options, "judge_options")
        others = sorted(self.model_fields_set - {"built"})
        if self.built is not None and others and self != PairsConfig(built=self.built):
            raise ValueError(
                f"built names pairs that are made already, so {', '.join(others)} would be ignored; take "
                "either out"
            )
        if "contrastive" in self.sources:
            raise ValueError(
                "sources: contrastive answers are written once, by `xyreward pairs`; name its folder in "
                "built"
            )
        return self


class TokensConfig(_Section):
    """What a trainer will see of a pair; as in the recipe that is to train on it."""

    model: str | None = None
    """Whose tokenizer and chat template. None: the policy's, with its revision and chat template."""
    revision: str | None = None
    max_length: int | None = Field(default=None, ge=2, strict=True)
    """Tokens of prompt and answer together that the trainer keeps. None: all."""
    chat_template_kwargs: dict[str, Any] | None = None


class PairsJob(_PairSettings):
    """What `xyreward pairs` takes."""

    items: tuple[ItemsConfig, ...] = Field(default=(ItemsConfig(),), min_length=1)
    splits_lock: str | None = None
    split: Literal["train", "dev", "test"] = "train"
    """Side that the pairs are of. The others are held out."""
    policy: PolicyConfig = PolicyConfig()
    """Who is sampled, for source `on_policy`; also `chat:<model>@<base_url>`, `anthropic:<model>`."""
    policy_options: dict[str, Any] = Field(default_factory=dict)
    """Of a policy behind an API: `max_concurrency`, `budget_usd`, `store`, ... Judge, policy and writer have
    one bill, so that a `budget_usd` of any of them is a limit to what all of them may cost together."""
    writer: str | None = None
    """Who writes, for source `contrastive`: `anthropic:<model>` or `chat:<model>@<base_url>`."""
    writer_options: dict[str, Any] = Field(default_factory=dict)
    contrast: Contrast = Field(default_factory=Contrast)
    order_check: bool = Field(default=False, strict=True)
    """Let the judge see both answers in both orders; chosen must be preferred twice."""
    tokens: TokensConfig | None = None
    """None: what the trainer sees is not looked at here (a recipe looks anyway)."""
    formats: tuple[Format, ...] = Field(default=("preference",), min_length=1)
    containers: tuple[Container, ...] = Field(default=("jsonl",), min_length=1)
    seed: int = Field(default=0, ge=0, lt=2**32, strict=True)

    @property
    def policy_is_remote(self) -> bool:
        """Whether the policy is asked through an API."""
        return self.policy.model.startswith(REMOTE)

    @model_validator(mode="after")
    def _fits_a_job(self) -> Self:
        if ("contrastive" in self.sources) != (self.writer is not None):
            raise ValueError("source contrastive and writer go together, found one of them")
        if self.writer is None and (self.writer_options or self.contrast != Contrast()):
            raise ValueError("contrast and writer_options are for a writer; name one in writer")
        if self.order_check and self.judge is None:
            raise ValueError("order_check needs a judge")
        if self.policy_options and not ("on_policy" in self.sources and self.policy_is_remote):
            raise ValueError(
                "policy_options are for a policy behind an API (chat:..., anthropic:...) that is sampled"
            )
        tokens = self.tokens
        if tokens is not None and tokens.model is None:
            if self.policy_is_remote:
                raise ValueError(
                    f"tokens: policy {self.policy.model.partition('@')[0]} is behind an API and has no "
                    "tokenizer here; name the model that is to be trained in tokens.model"
                )
            if tokens.revision is not None or tokens.chat_template_kwargs is not None:
                raise ValueError(
                    "tokens has settings of a model and no model; name it in tokens.model"
                )
        for name in ("judge_options", "writer_options", "policy_options"):
            _refuse_key(getattr(self, name), name, "pairs' folder")
        return self


class EvaluationConfig(_Section):
    """The held-out evaluation."""

    split: Literal["dev", "test", "all"] = "test"
    """`all`: also train items and those on no side, for a policy that was trained on none of them; the
    report says so."""
    sources: tuple[str, ...] = ()
    """Only items of these sources (`Item.source`). Empty: all."""
    leave_out: str | None = None
    """All items of this source, of whatever side, and no others: it was, or is now, left out of training."""
    parts: tuple[EvaluationPart, ...] = PARTS
    """Empty: no evaluation, after a training."""
    oracle: bool = Field(default=False, strict=True)
    """Write a second time, with the stated and the intended request in the prompt."""
    references: tuple[AnswerKind, ...] = ()
    """Judge the items' own answers of these kinds, too."""
    controls: Literal["own", "mini", "none"] = "own"
    """`own`: those that the items bring. `mini`: where they bring none to be evaluated, those of the bundled
    set's test side (dev, where dev is evaluated). `none`: leave them out."""
    answers_per_item: _Count = 1
    temperature: float | None = Field(default=None, gt=0, strict=True)
    """None: greedy. A Messages API (`anthropic:`) takes none, and samples at its own."""
    judge: str = "local"
    """See docs/judges.md. Better not the one that made the training signal."""
    judge_options: dict[str, Any] = Field(default_factory=dict)
    """Options of `load_judge` for a judge that asks a model: votes, budget_usd, store, max_concurrency..."""
    max_new_tokens: _Count = 192
    """Longest generated answer, in tokens. Answers that reach it are counted."""
    batch_size: _Count = 16
    limit: _Count | None = None
    """Evaluate only this many items of each kind (first by content hash), for a quick look."""
    max_failure_rate: float = Field(default=0.05, ge=0, le=1, strict=True)
    """Above this share of failed judgements no headline is printed."""

    @model_validator(mode="after")
    def _fits_itself(self) -> Self:
        _refuse_key(self.judge_options, "judge_options")
        if self.leave_out is not None and (self.split != "test" or self.sources):
            raise ValueError(
                "leave_out takes all items of one source, so split and sources would be ignored; take them "
                "out, or leave_out"
            )
        if "writing" not in self.parts:
            needs = {"oracle": self.oracle, "references": bool(self.references)}
            if asked := [name for name, given in needs.items() if given]:
                raise ValueError(
                    f"{' and '.join(asked)}: what is judged there stands beside what was written; expected "
                    f"writing among parts, found {', '.join(self.parts) or 'none'}"
                )
        return self


class Recipe(_Section):
    """What all recipes take."""

    trainer: ClassVar[str | None] = None
    """The section that sets TRL's trainer, where a recipe has one."""
    script: ClassVar[str | None] = None
    """What a user starts."""

    policy: PolicyConfig = PolicyConfig()
    items: tuple[ItemsConfig, ...] = Field(default=(ItemsConfig(),), min_length=1)
    splits_lock: str | None = None
    """Path of a splits.json that keeps sides stable over runs. None: sides of the bundled items are
    those of the package, others are assigned by content hash."""
    evaluation: EvaluationConfig = EvaluationConfig()
    output_dir: str = Field(min_length=1)
    seed: int = Field(default=0, ge=0, lt=2**32, strict=True)
    """What numpy takes for one."""
    _bill: str | None = PrivateAttr(default=None)

    @property
    def of_trainer(self) -> Mapping[str, Any]:
        """What is set of TRL's trainer."""
        return getattr(self, self.trainer) if self.trainer else {}

    @property
    def bill(self) -> str:
        """Whose bill the judges' calls are on: the run's folder, which all rounds of a run share."""
        return self._bill or str(resolved(expanded(self.output_dir, RunFolderError)))

    def billed_to(self, bill: str) -> Self:
        """The same on another bill."""
        other = self.model_copy()
        other._bill = bill
        return other

    @model_validator(mode="after")
    def _what_is_trained_can_be(self) -> Self:
        if self.trainer is None:
            return self
        if place_of(self.policy.model) != "here":
            raise ValueError(
                f"policy.model is {self.policy.model!r:.80}, which can be evaluated and not trained; "
                "expected a folder, a hub name, or an adapter"
            )
        if self.evaluation.split == "all" or self.evaluation.controls == "mini":
            raise ValueError(
                "evaluation.split all and evaluation.controls mini are for a policy that is not trained "
                "here; expected dev or test, and controls among items: {source: mini, kinds: [control]}"
            )
        return self


class PairsRecipe(Recipe):
    """What recipes that train on pairs take."""

    pairs: PairsConfig = Field(default_factory=PairsConfig)


class DPORecipe(PairsRecipe):
    """What `recipes/dpo.py` takes."""

    trainer: ClassVar[str | None] = "dpo"
    script: ClassVar[str | None] = "recipes/dpo.py"

    rounds: _Count = 1
    """With source `on_policy`: sample, judge, pair and train this many times in turn, each time from the
    policy that the round before left. Each round has a run folder and a report of its own."""
    lora: dict[str, Any] | None = None
    """peft's LoraConfig. None: train all weights, or go on training the adapter that `policy`
    names."""
    dpo: dict[str, Any] = Field(default_factory=dict)
    """TRL's DPOConfig."""

    @model_validator(mode="after")
    def _rounds_have_something_new(self) -> Self:
        if self.rounds > 1 and "on_policy" not in self.pairs.sources:
            raise ValueError(
                f"rounds is {self.rounds}, but without source on_policy every round would train on the "
                "same pairs; use dpo.num_train_epochs"
            )
        return self


class RewardConfig(_Section):
    """The reward of a completion; see `Reward` and docs/grpo.md."""

    judge: str = "local"
    """See docs/judges.md."""
    judge_options: dict[str, Any] = Field(default_factory=dict)
    """Options of `load_judge`: votes, budget_usd, store, max_concurrency..."""
    components: bool = Field(default=False, strict=True)
    """One reward function per metric and not one composite; then use `normalize_then_sum`."""
    solution: float = Field(default=1.0, ge=0, strict=True)
    focus: float = Field(default=1.0, ge=0, strict=True)
    misconception: float = Field(default=1.0, ge=0, strict=True)
    stated: float = Field(default=0.0, ge=0, strict=True)
    """Weights of the composite's parts."""
    soft: bool = Field(default=True, strict=True)
    """Expected reward under the judge's probabilities. Hard labels tie, and ties teach nothing."""
    length_limit: _Count | None = None
    """Characters. Above it the composite shrinks, to 0 at twice the limit."""
    columns: dict[str, str] = Field(default_factory=dict)
    """Field of an item -> column of the data set, where their names differ. Recipes make the data set."""
    thinking_begun: bool = Field(default=False, strict=True)
    """The chat template opens thinking in the prompt. Recipes see that themselves."""
    max_outage_s: float = Field(default=600.0, ge=0, strict=True)
    """Seconds for which an outage of the judge is waited out."""
    max_failure_rate: float = Field(default=0.2, ge=0, le=1, strict=True)
    """Above this share of failed judgements over the latest steps all processes stop, with a checkpoint."""

    @model_validator(mode="after")
    def _is_of_use(self) -> Self:
        if self.solution + self.focus + self.misconception + self.stated <= 0:
            raise ValueError("all weights are 0, expected one above 0")
        if self.components and (self.length_limit or self.stated):
            raise ValueError(
                "length_limit and stated belong to the composite reward, and components is true"
            )
        _refuse_key(self.judge_options, "judge_options")
        return self


class PromptsConfig(_Section):
    """Which train items a policy answers."""

    control_share: float = Field(default=0.25, ge=0, lt=1, strict=True)
    """Of the prompts, as far as there are controls: without them a policy learns to see a hidden goal in
    every question."""
    max_prompts: _Count | None = None


class AuditConfig(_Section):
    """A look at a fixed held-out sample during training, by a second judge; see docs/grpo.md."""

    every: _Count = 50
    """Steps between two looks. There is one before the first step and one after the last."""
    judge: str | None = None
    """A second judge. None: the evaluation's, which then should not be the reward's."""
    judge_options: dict[str, Any] = Field(default_factory=dict)
    limit: _Count = 8
    """Items of each kind, from the dev side: first by content hash."""
    max_new_tokens: _Count = 192
    batch_size: _Count = 16
    max_gap: float | None = Field(default=0.2, gt=0, strict=True)
    """Widest gap: how much more the training reward rose than the second judge's, in [0, 1]."""
    max_over_correction: float | None = Field(default=0.5, gt=0, le=1, strict=True)
    """Largest share of controls in which a misconception is invented."""
    max_neutral_loss: float | None = Field(default=0.3, gt=0, strict=True)
    """Largest rise of the loss on neutral text, in nats per token."""
    then: Literal["warn", "stop"] = "warn"
    """What a figure beyond its bound does."""

    @model_validator(mode="after")
    def _has_its_own_options(self) -> Self:
        _refuse_key(self.judge_options, "judge_options")
        if self.judge is None and self.judge_options:
            raise ValueError(
                "judge_options are of no judge; name one in judge (without one the evaluation's judge is "
                "asked, with the options that it has there, but for message batches)"
            )
        if self.judge_options.get("batches"):
            raise ValueError(
                "judge_options.batches: a message batch takes up to a day, and every look of the audit would "
                "wait for one; leave it out"
            )
        return self


class SFTRecipe(PairsRecipe):
    """The short SFT that `recipes/grpo.py` may begin with; see `sft_start.py`."""

    trainer: ClassVar[str | None] = "sft"

    lora: dict[str, Any] | None = None
    sft: dict[str, Any] = Field(default_factory=dict)


class GRPORecipe(Recipe):
    """What `recipes/grpo.py` takes."""

    trainer: ClassVar[str | None] = "grpo"
    script: ClassVar[str | None] = "recipes/grpo.py"

    sft: dict[str, Any] | None = None
    """TRL's SFTConfig: begin with a short SFT on the chosen answers of `pairs`. None: begin with the policy
    as it is."""
    pairs: PairsConfig | None = None
    """What that SFT learns from: pairs of reference answers, or built before. None: as by default."""
    prompts: PromptsConfig = PromptsConfig()
    reward: RewardConfig = RewardConfig()
    audit: AuditConfig | None = AuditConfig()
    """None: no look at held-out items during training."""
    lora: dict[str, Any] | None = None
    """peft's LoraConfig. None: train all weights, or go on training the adapter that `policy` names."""
    grpo: dict[str, Any] = Field(default_factory=dict)
    """TRL's GRPOConfig."""

    @model_validator(mode="after")
    def _its_start_can_be_made(self) -> Self:
        if self.pairs is None:
            return self
        if self.sft is None:
            raise ValueError(
                "pairs are what an SFT before GRPO learns from, and there is no section sft; add it "
                "(sft: {}), or take pairs out"
            )
        if self.pairs.judge is not None or set(self.pairs.sources) != {"references"}:
            raise ValueError(
                "pairs: the SFT before GRPO takes reference answers, or pairs that `xyreward pairs` built "
                "(of other sources, judged): name their folder in pairs.built"
            )
        return self


class DistilledConfig(_Section):
    """Which judge's reward a reward model is to stand for; see docs/reward_model.md."""

    judge: str = "local"
    """It rewards the labelled answers of the side that is not evaluated, to which the model's output is
    calibrated, and of the side that is, where both are compared. See docs/judges.md."""
    judge_options: dict[str, Any] = Field(default_factory=dict)
    shown: Literal["query", "goal"] = "query"
    """What the model reads before an answer. `query`: it serves for any question. `goal`: also what is
    literally asked and really wanted, so that only items with both can be scored."""
    margins: bool = Field(default=True, strict=True)
    """Ask for a difference of outputs above the difference of the rewards that a pair's answers have."""
    solution: float = Field(default=1.0, ge=0, strict=True)
    focus: float = Field(default=1.0, ge=0, strict=True)
    misconception: float = Field(default=1.0, ge=0, strict=True)
    stated: float = Field(default=0.0, ge=0, strict=True)
    """Weights of the reward's parts. They cannot be changed afterwards."""

    @model_validator(mode="after")
    def _is_of_use(self) -> Self:
        weights = self.solution + self.focus + self.misconception + self.stated
        if weights <= 0:
            raise ValueError("all weights are 0, expected one above 0")
        if weights == float("inf"):
            raise ValueError("weights are infinite, expected finite ones")
        _refuse_key(self.judge_options, "judge_options")
        if self.judge.startswith("reward_model:"):
            raise ValueError(
                f"judge is {self.judge!r:.80}, a reward model; its errors would be learnt with the rest"
            )
        return self


_OF_WRITING = (
    "judge", "judge_options", "answers_per_item", "temperature", "max_new_tokens", "batch_size",
)  # fmt: skip
_WRITING: Mapping[str, Any] = EvaluationConfig().model_dump(include=set(_OF_WRITING))


class RewardModelRecipe(PairsRecipe):
    """What `recipes/reward_model.py` takes."""

    trainer: ClassVar[str | None] = "reward_model"
    script: ClassVar[str | None] = "recipes/reward_model.py"

    evaluation: EvaluationConfig = EvaluationConfig(parts=("preference",))
    """Which items are held out: `split`, `sources`, `leave_out`, `limit`; and `max_failure_rate`, above which
    share of failed judgements nothing is calibrated. No answer is written."""
    distilled: DistilledConfig = DistilledConfig()
    lora: dict[str, Any] | None = None
    """peft's LoraConfig; the head is trained and saved with it. None: train all weights."""
    reward_model: dict[str, Any] = Field(default_factory=dict)
    """TRL's RewardConfig."""

    @model_validator(mode="before")
    @classmethod
    def _prefers(cls, data: Any) -> Any:
        """What is evaluated is which answer it prefers; nobody need say so."""
        wanted = data.get("evaluation") if isinstance(data, Mapping) else None
        if isinstance(wanted, Mapping) and "parts" not in wanted:
            return {**data, "evaluation": {**wanted, "parts": ["preference"]}}
        return data

    @model_validator(mode="after")
    def _has_answers(self) -> Self:
        if set(self.pairs.sources) != {"references"} and self.pairs.built is None:
            raise ValueError(
                f"pairs.sources is {', '.join(self.pairs.sources)}; a reward model answers nothing, so make "
                "such pairs with `xyreward pairs` and name their folder in pairs.built"
            )
        if self.evaluation.parts != ("preference",):
            raise ValueError(
                f"evaluation.parts is {', '.join(self.evaluation.parts) or 'empty'}; a reward model is "
                "evaluated on which answer it prefers: take parts out"
            )
        # By their values: a configuration that a run wrote holds all defaults.
        ignored = [k for k in _OF_WRITING if getattr(self.evaluation, k) != _WRITING[k]]
        if ignored:
            raise ValueError(
                f"evaluation.{', evaluation.'.join(ignored)}: would be ignored, as a reward model writes no "
                "answer; distilled.judge rewards the labelled ones"
            )
        return self


class EvaluateRecipe(Recipe):
    """What `recipes/evaluate.py` and `xyreward eval` take."""

    script: ClassVar[str | None] = "recipes/evaluate.py"

    policy_options: dict[str, Any] = Field(default_factory=dict)
    """Of a policy behind an API: `max_concurrency`, `budget_usd`, `store`, ... Judge and policy have one
    bill, so that a `budget_usd` of either is a limit to what both may cost together. Of a file of answers:
    `origin`, `columns`, `allow_missing`."""
    report_to: str | list[str] | None = None
    """Trackers that get the figures: tensorboard, wandb, trackio; see docs/ecosystem.md."""

    @property
    def of_trainer(self) -> Mapping[str, Any]:
        """Nothing is trained; trackers are named as a training's are."""
        return {"report_to": self.report_to}

    @model_validator(mode="before")
    @classmethod
    def _parts_that_there_are(cls, data: Any) -> Any:
        """Where no parts are named: all that can be measured of such a policy."""
        if not isinstance(data, dict):
            return data
        policy, evaluation = data.get("policy", {}), data.get("evaluation", {})
        model = policy.get("model") if isinstance(policy, dict) else None
        if not isinstance(model, str) or not isinstance(evaluation, dict) or "parts" in evaluation:
            return data
        return {**data, "evaluation": {**evaluation, "parts": list(PARTS_OF[place_of(model)])}}

    @model_validator(mode="after")
    def _fits_its_policy(self) -> Self:
        place, wanted = place_of(self.policy.model), self.evaluation
        if place == "here" and self.policy_options:
            raise ValueError(
                "policy_options are for a policy behind an API (chat:..., anthropic:...) or a file "
                "(answers:...)"
            )
        if place != "here":
            of_its = ("revision", "dtype", "chat_template_kwargs")
            if given := [k for k in of_its if getattr(self.policy, k) not in (None, "auto")]:
                raise ValueError(
                    f"policy.{', policy.'.join(given)}: for a policy in this process; "
                    f"{self.policy.model!r:.80} takes none"
                )
        _refuse_key(self.policy_options, "policy_options")
        if not wanted.parts:
            raise ValueError(
                "evaluation.parts is empty, and nothing would be evaluated; expected some of "
                f"{', '.join(PARTS_OF[place])}"
            )
        how = How(wanted.answers_per_item, wanted.temperature, wanted.max_new_tokens)
        check_how(self.policy.model, how)
        check_conditions(self.policy.model, wanted.parts, oracle=wanted.oracle)
        return self


R = TypeVar("R", bound=Recipe)


@dataclasses.dataclass(frozen=True, slots=True)
class Arguments:
    """A recipe's command line beside the configuration."""

    path: Path
    resume: bool
    dry_run: bool = False
    before: Path | None = None
    """An evaluation of the same policy under the same settings, taken for that before training: what was
    after the round before."""
    flags: Mapping[str, str] = dataclasses.field(default_factory=dict, compare=False)
    """See `Places`."""

    @property
    def places(self) -> Places:
        """Where settings were given, for messages."""
        return Places(self.path, self.flags)


def parse_arguments(
    recipe: type[R],
    default: str | Path,
    argv: Sequence[str] | None = None,
    others: Others | None = None,
) -> tuple[R, Arguments]:
    """Read a recipe's command line; `--help` lists what it takes.

    Args:
        others: see `load_config`.

    Raises:
        ConfigError: see `load_config`.
        SystemExit: unknown argument or --help, as argparse does.
    """
    parser = argparse.ArgumentParser(description=recipe.__doc__, allow_abbrev=False)
    parser.add_argument("--config", type=Path, default=Path(default), help="YAML file")
    parser.add_argument("--model", help="same as --set policy.model=...")
    parser.add_argument("--output-dir", help="same as --set output_dir=...")
    parser.add_argument(
        "--resume", action="store_true", help="go on with the run in output_dir where it stopped"
    )
    parser.add_argument(
        "--dry-run",
        action="store_true",
        help="check everything that needs no model, print what the run would do and its judge cost, and stop",
    )
    if not issubclass(recipe, EvaluateRecipe):  # which would do nothing
        parser.add_argument(
            "--skip-eval", action="store_true", help="same as --set evaluation.parts=[]"
        )
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="e.g. evaluation.limit=8",
    )
    args = parser.parse_args(argv)
    overrides = list(args.set)
    flags = {override.partition("=")[0]: "--set" for override in overrides}
    # As JSON, which is YAML: a folder called 2026 is no number, and `#` in a path starts no
    # comment.
    if args.model is not None:
        overrides.append(f"policy.model={json.dumps(args.model)}")
        flags["policy.model"] = "--model"
    if args.output_dir is not None:
        overrides.append(f"output_dir={json.dumps(args.output_dir)}")
        flags["output_dir"] = "--output-dir"
    if getattr(args, "skip_eval", False):
        overrides.append("evaluation.parts=[]")
        flags["evaluation.parts"] = "--skip-eval"
    return load_config(recipe, args.config, overrides, flags, others), Arguments(
        args.config, args.resume, args.dry_run, flags=flags
    )
