"""What the recipes share: data with checked splits, trainer settings for this machine, evaluation, report.

A recipe (recipes/*.py) is then a page that reads from top to bottom. Everything that can be checked is
checked before the first answer is generated.

Not here: the training itself, which is TRL's.
"""

from __future__ import annotations

import errno
import gc
import hashlib
import importlib.util
import json
import math
import os
import shlex
import shutil
import signal
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import cached_property, partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn, TypeVar

from xyreward import report as reports
from xyreward.answering import (
    FILE,
    Evaluated,
    FilePolicy,
    How,
    RemotePolicy,
    described_how,
    described_picks,
    place_of,
    write,
)
from xyreward.calibrate import covered_by
from xyreward.chat_tokenizer import ChatTokenizer
from xyreward.config import (
    Arguments,
    DPORecipe,
    EvaluateRecipe,
    EvaluationConfig,
    GRPORecipe,
    ItemsConfig,
    Others,
    PairsRecipe,
    Places,
    PolicyConfig,
    Recipe,
    RewardModelRecipe,
    SFTRecipe,
    outside_limits,
    wrong_keys,
)
from xyreward.embedded import POLICY_NAME
from xyreward.errors import (
    ConfigError,
    DataError,
    JudgeUnreliable,
    LeakError,
    MissingDependency,
    RunFolderError,
    XYRewardError,
    told,
)
from xyreward.eval_results import OF_TRAIN_SIDE, model_index
from xyreward.evaluation import (
    Condition,
    Evaluation,
    Row,
    ask_again,
    asks_again,
    evaluate,
    evaluate_references,
    judge_name,
    letter_questions,
    told_the_goal,
)
from xyreward.items import AnswerKind, Item, items_hash, text_hash
from xyreward.judges import Judge, described, load_judge
from xyreward.judges.asking import ModelAsker
from xyreward.judges.panel import model_judges, refuse_small_budget
from xyreward.judges.reward_model import Reader, RewardModelJudge
from xyreward.locate import (
    Mark,
    fingerprint,
    is_adapter,
    mark_of_training,
    short_hash,
    trained_on,
)
from xyreward.markdown import printable
from xyreward.model_card import CARD, Method, add_report, model_card, write_card
from xyreward.pairs import PairSet
from xyreward.pairs.candidates import Candidate
from xyreward.pairs.formats import row_of_item
from xyreward.pairs.guards import Guards, TokenGuard
from xyreward.pairs.held_out import HeldOut
from xyreward.pairs.sampling import sample
from xyreward.partial import Partial
from xyreward.policy import Policy, bf16_is_fast, default_device, load_policy
from xyreward.prices import without_url
from xyreward.rehearsal import Attempt, culprits, rehearse
from xyreward.report_page import write_page
from xyreward.runs import LOGS, PARTIAL_EVALUATION, ROUND, RunFolder, name_in_run
from xyreward.sides import Sides, limited, load_sides
from xyreward.splits import Splits
from xyreward.tracking import check_trackers, log_report, tensorboard_in
from xyreward.training_prompts import Prompts
from xyreward.which_items import is_whole_side, which_items
from xyreward.words import counted

T = TypeVar("T")

Card = Callable[[Mapping[str, Any]], str]
"""Facts to the text of a card."""

METHODS: Mapping[type[Recipe], Method] = {
    DPORecipe: "DPO",
    GRPORecipe: "GRPO",
    RewardModelRecipe: "reward modelling",
    SFTRecipe: "SFT",
}
"""What a recipe does, in words of its cards."""

SET_BY_RECIPE: Mapping[str, str] = {
    "output_dir": "use the top-level output_dir",
    "seed": "use the top-level seed",
    "data_seed": "use the top-level seed",
    "use_cpu": "it follows the machine",
    "resume_from_checkpoint": "use --resume",
    "model_init_kwargs": "use the section policy",
    "eval_strategy": "the evaluation is the recipe's own, before and after training",
    "do_eval": "the evaluation is the recipe's own, before and after training",
    "load_best_model_at_end": "nothing is evaluated during training",
    "hub_token": "it would be written into the run folder; log in with `hf auth login` or set HF_TOKEN",
    "push_to_hub": "push the run's adapter or model folder yourself, once you have read the report",
}
"""Fields of TRL's configurations that a recipe sets itself -> where the user sets them."""


DPO_LOSSES = frozenset(
    {
        "sigmoid", "hinge", "ipo", "exo_pair", "nca_pair", "robust", "bco_pair", "sppo_hard", "aot",
        "aot_unpaired", "apo_zero", "apo_down", "discopop", "sft", "sigmoid_norm",
    }
)  # fmt: skip
"""What `loss_type` may hold in TRL 1.16, which looks at it in the first step of training only."""

SMOOTHED_LOSSES = frozenset({"robust", "exo_pair", "aot", "aot_unpaired"})
"""Those that read `label_smoothing`. TRL's others ignore it, `sigmoid` too."""

TRAINER_LIMITS: Mapping[str, str] = {
    "adam_beta1": "[0, 1)",
    "adam_beta2": "[0, 1)",
    "adam_epsilon": "(0, inf)",
    "dataloader_num_workers": "[0, inf)",
    "gradient_accumulation_steps": "[1, inf)",
    "learning_rate": "[0, inf)",
    "logging_steps": "(0, inf)",
    "max_grad_norm": "[0, inf]",
    "max_steps": "[-1, inf)",
    "num_train_epochs": "(0, inf)",
    "per_device_train_batch_size": "[1, inf)",
    "save_steps": "(0, inf)",
    "warmup_steps": "[0, inf)",
    "weight_decay": "[0, inf)",
}
DPO_LIMITS: Mapping[str, str] = {
    **TRAINER_LIMITS,
    "beta": "(0, inf)",
    "label_smoothing": "[0, 0.5)",
    "ld_alpha": "[0, 1]",
    "max_length": "[2, inf)",
}
LORA_LIMITS: Mapping[str, str] = {
    "r": "[1, inf)",
    "lora_alpha": "(0, inf)",
    "lora_dropout": "[0, 1)",
}
"""Numbers that TRL, peft or torch take without a word, or refuse in words that name no key."""

NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
"""Errors of a disk, or of a user's share of it, that is full."""

PATIENCE_S = 7 * 24 * 3600
"""How long processes wait for each other: while the first one judges, or one has longer answers to
sample. torch's own 10 or 30 minutes would end such a run."""

LORA_STARTS = (True, False, "gaussian", "eva", "orthogonal")
"""Values of `init_lora_weights` that leave the policy's own weights alone."""


def _is_first() -> bool:
    """Whether this is the first of all processes, by the launcher's word: before there is a state to ask."""
    return os.environ.get("RANK", "0") == "0"


def say_hello() -> None:
    """Tell at once that something goes on: importing takes a minute where a machine is busy."""
    if _is_first():
        _tell("== loading PyTorch and checking the configuration")


def use_huge_pages() -> None:
    """Let PyTorch put large CPU tensors on huge pages (Linux; elsewhere nothing reads the variable).

    Call it before the first tensor is made: PyTorch looks once. A DPO step maps and clears gigabytes of
    fresh memory, page by page; on two cores 4 KiB pages cost a quarter of the step (17.4 against 12.9 s).
    Keeping freed memory in glibc's heap was faster still (9.6 s), but the heap grew to 12.5 GiB.
    """
    os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")


@contextmanager
def plain_errors() -> Iterator[None]:
    """Show an error of ours as its message: what was found, what was expected, what to do next.

    A traceback through five libraries helps nobody who mistyped a key. XYREWARD_TRACEBACK=1 shows it.

    Announcements of other libraries to change something one day are no errors of a recipe, also where
    PYTHONWARNINGS or `-W error` makes errors of them: whoever runs a recipe cannot mend those libraries,
    and one of them warns at nearly every start.
    """
    if any(action == "error" for action, *_ in warnings.filters):
        for category in (DeprecationWarning, PendingDeprecationWarning, FutureWarning):
            warnings.filterwarnings("default", category=category)
    # Between transformers and peft or TRL, at every start.
    warnings.filterwarnings("ignore", "`is_gradient_checkpointing` is deprecated", FutureWarning)
    try:
        yield
    except KeyboardInterrupt:
        if os.environ.get("XYREWARD_TRACEBACK"):
            raise
        # Nothing is left to do, and a second Ctrl-C shall not spoil the line.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        _close_bars()
        if _is_first():
            with suppress(OSError):
                print(f"\n{printable(how_to_go_on())}", file=sys.stderr, flush=True)  # noqa: T201
        raise SystemExit(INTERRUPTED) from None
    except JudgeUnreliable as error:
        said = f"{type(error).__name__}: {error}\n{how_to_go_on('Stopped')}"
        _end(said, error, JUDGE_FAILED)
    except (XYRewardError, FileNotFoundError) as error:
        said = f"{type(error).__name__}: {error}"
        _end(said, error)
    except ImportError as error:
        _end(f"MissingDependency: {told(error)}. Try: pip install 'xyreward[train]'", error)
    except Warning as error:
        _end(
            f"{told(error)}. It is a warning that PYTHONWARNINGS or -W made an error; leave that out",
            error,
        )


@contextmanager
def on_the_way() -> Iterator[None]:
    """Around what sends and computes, once all was found to be in order: errors there have another status.

    Within `plain_errors`, and as `xyreward eval` has it: 2 is what was wrong from the beginning.
    """
    try:
        yield
    except (XYRewardError, OSError) as error:
        _end(f"{type(error).__name__}: {error}\n{how_to_go_on('Stopped')}", error, STOPPED)


def _close_bars() -> None:
    """Leave progress bars where they stand: at exit each would be drawn once more, below the last word."""
    if (tqdm := getattr(sys.modules.get("tqdm"), "tqdm", None)) is not None:
        for bar in list(getattr(tqdm, "_instances", ())):
            bar.close()


INTERRUPTED = 128 + signal.SIGINT
"""Exit status after Ctrl-C, as shells have it."""

STOPPED = 3
"""Exit status of an evaluation that was stopped on the way: a wrong key, a spent budget, a full disk."""

JUDGE_FAILED = 75
"""Exit status of a training that its judge ended: EX_TEMPFAIL of sysexits.h, try again later."""

_begun: list[RunFolder] = []
"""Folders that this process runs in, the first one first; of several rounds it is that of the whole."""


def how_to_go_on(what: str = "Interrupted") -> str:
    """What a run that was interrupted keeps, and the command that goes on with it, on one line."""
    kept = _begun[0].kept() if _begun else []
    arguments = [a for a in sys.argv[1:] if a != "--resume"] + ["--resume"] * bool(kept)
    python = Path(sys.executable)
    with suppress(ValueError):
        python = python.relative_to(Path.cwd())
    command = shlex.join([str(python), sys.argv[0], *arguments])
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        command = "the same command" + " with --resume" * bool(kept)
    if not kept:
        return f"{what} before anything was computed. Begin again with: {command}"
    return f"{what}. {_begun[0].path} keeps {', '.join(kept)}. Go on with: {command}"


def _end(said: str, error: Exception, status: int = 2) -> NoReturn:
    if os.environ.get("XYREWARD_TRACEBACK"):
        raise error
    with suppress(OSError):  # nobody listens any more
        print(printable(said), file=sys.stderr)  # noqa: T201  # this is the output
    raise SystemExit(status) from None


def check_installed(*packages: str) -> None:
    """Raise MissingDependency with all packages that are not there, before one is missed late."""
    absent = [name for name in packages if importlib.util.find_spec(name) is None]
    if absent:
        raise MissingDependency(f"recipes need {', '.join(absent)}: pip install 'xyreward[train]'")


@dataclass(frozen=True)
class Data:
    """The items of a recipe on their sides."""

    train: tuple[Item, ...]
    held_out: tuple[Item, ...]
    """What is evaluated: one side, controls included. Never items that are trained on here; others that are
    on the train side where the whole set, or all of a source, was asked for."""
    sides: Sides

    @property
    def splits(self) -> Splits:
        """The side of every item."""
        return self.sides.splits

    @property
    def clusters(self) -> dict[str, str]:
        """Item id -> cluster, of the held-out items."""
        return self.sides.clusters(self.held_out)

    @cached_property
    def kept_out(self) -> HeldOut:
        """What must not be trained on: dev and test, and whatever else is evaluated."""
        known = {item.id for side in ("dev", "test") for item in self.sides.select(side)}
        others = [item for item in self.held_out if item.id not in known]
        if not others:
            return self.sides.held_out
        sides = [*self.sides.select("dev"), *self.sides.select("test")]
        return HeldOut([*sides, *others], self.splits)

    @property
    def of_train_side(self) -> int:
        """How many of the items that are evaluated are train items, too: of the whole set some are."""
        train = {item.id for item in self.train}
        return sum(item.id in train for item in self.held_out)


def load_data(config: Recipe, *, dry_run: bool = False) -> Data:
    """Load every source, put every item on a side, and make sure that nothing held out is trained on.

    Args:
        config: of the recipe.
        dry_run: the splits' lock is left as it is.

    Raises:
        DataError: see `load_sides`; also: nothing to evaluate.
        LeakError: see `load_sides`; also: what would be evaluated is what a recipe has trained the policy
            on.
    """
    wanted = config.evaluation
    sources = list(config.items)
    added = wanted.controls == "mini" and not _bring_controls(config)
    if added:
        sources.append(ItemsConfig(source="mini", kinds=("control",)))
    sides = load_sides(sources, config.splits_lock, write_lock=not dry_run)
    held_out, train = _chosen(sides, wanted), sides.select("train")
    if added:  # of one side, also where all items are asked for
        asked = (item for item in held_out if item.kind == "xy")
        held_out = (*asked, *_side_of_controls(sides, wanted))
    if wanted.leave_out is not None:
        train = sides.train_without(held_out)
    if wanted.parts and not held_out:
        raise DataError([f"{which_items(wanted)}: no item, nothing to evaluate"])
    evaluated = limited(held_out, wanted.limit) if wanted.parts else []
    if place_of(config.policy.model) == "here":
        _check_not_trained_on(config.policy, evaluated)
    return Data(train, tuple(evaluated), sides)


def _bring_controls(config: Recipe) -> bool:
    """Whether there are controls among what would be evaluated of the items alone."""
    sides = load_sides(config.items, config.splits_lock, write_lock=False)
    return any(item.kind == "control" for item in _chosen(sides, config.evaluation))


def _chosen(sides: Sides, wanted: EvaluationConfig) -> tuple[Item, ...]:
    """What is to be evaluated, all of it.

    Where one source or some are asked for and these have no controls (XYBench has none), the controls of
    the others are evaluated with them, those of one side.
    """
    if wanted.leave_out is not None:
        found = sides.of_source(wanted.leave_out)
    else:
        found = sides.items if wanted.split == "all" else sides.select(wanted.split)
    if wanted.sources:
        for source in wanted.sources:
            sides.of_source(source)  # one that does not exist is a typo
        found = tuple(item for item in found if item.source in wanted.sources)
    if wanted.controls == "none":
        return tuple(item for item in found if item.kind == "xy")
    if not any(item.kind == "control" for item in found):
        found += _side_of_controls(sides, wanted)
    return found


def _side_of_controls(sides: Sides, wanted: EvaluationConfig) -> tuple[Item, ...]:
    """The controls that are evaluated where those that were asked for have none."""
    others = sides.select("dev" if wanted.split == "dev" else "test")
    return tuple(item for item in others if item.kind == "control")


def _check_not_trained_on(policy: PolicyConfig, evaluated: Sequence[Item]) -> None:
    """Splits can differ between a policy's training and its evaluation; its mark knows."""
    seen = trained_on(policy.model, policy.revision)
    offending = [item.id for item in evaluated if short_hash(item.content_hash) in seen]
    if offending:
        raise LeakError(
            f"policy {policy.model!r} was trained on {len(offending)} of the {len(evaluated)} items that it "
            f"would be evaluated on: {', '.join(offending[:10])}{', ...' if len(offending) > 10 else ''}. "
            "Evaluate with the sides of its training (splits_lock: the splits.json of its run folder)",
            offending,
        )


# ---------------------------------------------------------------- rounds


def rounds(config: DPORecipe, arguments: Arguments) -> Iterator[tuple[DPORecipe, Arguments]]:
    """The configuration and arguments of each round: themselves where there is one.

    A round has a folder in the run's and goes on from what the round before saved, which is DPO's
    reference too; it samples with another seed. What was evaluated after the round before is what is
    before this one. With --resume a round that ended is not run again. After the last one the report of
    the whole run is written and printed.

    Raises:
        RunFolderError: see `RunFolder.open`.
    """
    if config.rounds == 1 or arguments.dry_run:
        yield config, arguments
        return
    dpo_settings(config, arguments.places)  # a mistake shows before there is a folder
    state = _state(config)
    top = RunFolder(Path(config.output_dir))

    def open_folder() -> None:
        nonlocal top
        top = RunFolder.open(config, config.output_dir, resume=arguments.resume)
        _begun.append(RunFolder(top.path))

    def check_order_of_rounds() -> None:
        ended = [_has_ended(top.path / f"{ROUND}{n}", config) for n in range(1, config.rounds + 1)]
        first = ended.index(False) if False in ended else len(ended)
        if any(ended[first:]):
            later = ended.index(True, first) + 1
            raise RunFolderError(
                f"{top.path}: {ROUND}{later} ended and {ROUND}{first + 1} did not, or is not there; it "
                f"would be run anew, and {ROUND}{later} went on from another policy. Put it back, or "
                f"remove {ROUND}{later} and those after it"
            )

    _on_main(state, open_folder)
    _on_main(state, check_order_of_rounds)
    policy, lora, before = config.policy, config.lora, None
    for number in range(1, config.rounds + 1):
        folder = top.path / f"{ROUND}{number}"
        if not _on_main(state, partial(_has_ended, folder, config)):
            one = config.model_copy(
                update={
                    "rounds": 1,
                    "output_dir": str(folder),
                    "policy": policy,
                    "lora": lora,
                    "seed": (config.seed + number - 1) % 2**32,
                }
            )
            if state.is_main_process:
                _tell(f"=== round {number} of {config.rounds}")
            yield one.billed_to(config.bill), replace(arguments, before=before)
        kind = (
            "adapter"
            if config.lora is not None or is_adapter(policy.model, policy.revision)
            else "model"
        )
        policy = config.policy.model_copy(update={"model": str(folder / kind), "revision": None})
        lora = None
        before = folder / "after.jsonl"
    if state.is_main_process:
        _finish_rounds(config, top)


def _has_ended(folder: Path, config: DPORecipe) -> bool:
    return (folder / ("report.json" if config.evaluation.parts else "training.json")).is_file()


def _finish_rounds(config: DPORecipe, top: RunFolder) -> None:
    """Write and print the report of before the first round against after the last one."""
    if not config.evaluation.parts:
        _tell(f"No evaluation was asked for. The rounds are in {top.path}")
        return
    folders = [RunFolder(top.path / f"{ROUND}{n}") for n in range(1, config.rounds + 1)]

    def read(folder: RunFolder, name: str, parse: Callable[[str], T]) -> T:
        text = folder.read(name)
        try:
            return parse(text or "")
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise folder.damaged(name, error) from None

    of_all = [read(folder, "report.json", json.loads) for folder in folders]
    of_rounds = [one["facts"] for one in of_all]
    noted = dict.fromkeys(note for one in of_all for note in one.get("headline_notes", ()))
    facts = {
        "rounds": config.rounds,
        "report of each round": f"{ROUND}1/report.md, ...",
        **{
            f"round {n}": {name: facts[name] for name in OF_ROUNDS if name in facts}
            for n, facts in enumerate(of_rounds, start=1)
        },
        **{key: of_rounds[-1][key] for key in (CALIBRATION,) if key in of_rounds[-1]},
    }
    wanted = config.evaluation
    oracle = ("before.oracle", "after.oracle") if wanted.oracle else ()
    references = [f"reference.{kind}" for kind in wanted.references]
    shown = {
        name: read(
            folders[0] if name.startswith("before") else folders[-1],
            f"{name}.jsonl",
            Evaluation.from_jsonl,
        )
        for name in ("before", "after", *oracle, *references)
    }
    report = reports.build_report(
        shown["before"],
        shown["after"],
        conditions={name: one for name, one in shown.items() if name not in ("before", "after")},
        facts=facts,
        headline_notes=list(noted),
        max_failure_rate=wanted.max_failure_rate,
        seed=config.seed,
    )
    top.write("report.md", reports.to_markdown(report))
    write_page(top, report, shown, load_data(config).held_out)
    top.write("report.json", reports.to_json(report))
    _tell(f"=== all {config.rounds} rounds\n\n{reports.to_markdown(report)}")
    _tell(f"All of it is in {top.path}")


REWARDED_BY = "prompts rewarded by version"
"""The fact that says which version of the reward's judge a GRPO run is trained on."""

OF_ROUNDS = (
    "answers sampled", "pairs", "pairs from controls", "pairs by rule", "audit warnings", "steps",
    "mean training loss",
)  # fmt: skip
"""Facts of each round that the report of all rounds repeats."""


# ---------------------------------------------------------------- the run


class Run:
    """One run of a recipe: its folder, its place among the processes, its clock."""

    def __init__(self, config: Recipe, arguments: Arguments) -> None:
        self.config = config
        self.arguments = arguments
        self.state: Any = _state(config)
        self.conditions: dict[str, Evaluation] = {}
        """What was evaluated beside the policy as it is: name of its file -> evaluation."""
        self.device: str = self.state.device.type
        if self.device == "cpu" and not isinstance(self.state, _Alone):
            _use_all_cores()
        self.trained_by: frozenset[str] = frozenset()
        """Names of the judges of the pairs that are trained on."""
        self.seconds: dict[str, float] = {}
        """What each step of this session took; a resumed run counts anew."""
        self.held_out: tuple[Item, ...] = ()
        """What was evaluated."""
        self.is_main: bool = self.state.is_main_process
        self.folder = RunFolder(Path(config.output_dir))
        self.on_main(self._open)
        if self.folder.changed:
            self.say(
                f"== training with other settings than before: {'; '.join(self.folder.changed)}"
            )

    @cached_property
    def judge(self) -> Judge:
        """The judge of all evaluations of this run: one, so that a server is asked once what it can do."""
        return evaluation_judge(self.config)

    def _open(self) -> None:
        self.folder = RunFolder.open(
            self.config, self.config.output_dir, resume=self.arguments.resume
        )
        _begun.append(RunFolder(self.folder.path))  # without its lock

    def on_main(self, work: Callable[[], T]) -> T:
        """Let the first process do something and tell the others what came out, errors included.

        Only it may decide by looking at the folder: others may not see it (another node), and if two
        processes decided differently, one would wait for the other for ever.
        """
        return _on_main(self.state, work)

    def pairs(self, make: Callable[[], PairSet]) -> PairSet:
        """Pairs that the first process makes, for all: two judges can differ, and cost twice."""
        if self.state.num_processes == 1:
            return make()
        from xyreward.training_pairs import packed, unpacked

        return unpacked(self.on_main(lambda: packed(make())))

    def say(self, text: str) -> None:
        """Tell the user what is being done. The first process only."""
        if self.is_main:
            _tell(text)

    @contextmanager
    def timed(self, what: str, remark: str = "") -> Iterator[None]:
        """Announce a step and record how many seconds it took; a remark is announced only."""
        self.say(f"== {what}{remark}")
        start = time.perf_counter()
        yield
        self.seconds[what] = round(time.perf_counter() - start, 1)

    def write(self, name: str, text: str) -> None:
        """Write a file into the run folder. The first process only."""
        if self.is_main:
            self.folder.write(name, text)

    def record_data(self, data: Data, trained: PairSet | Prompts | None = None) -> dict[str, Any]:
        """Write down what is trained and evaluated, on what, with hashes. Returns the same as facts.

        Raises:
            RunFolderError: the run that is resumed had other data or another policy. What its checkpoint
                was trained on could be among what would be evaluated now.
        """
        trains = not isinstance(self.config, EvaluateRecipe)
        facts: dict[str, Any] = {
            "policy hash": self.on_main(self._fingerprint),
            "sources": list(data.sides.sources),
            **({"train items": len(data.train)} if trains else {}),
            "held-out items": len(data.held_out),
            **({"train hash": items_hash(data.train)[:12]} if trains else {}),
            "held-out hash": items_hash(data.held_out)[:12],
            "splits hash": data.splits.hash[:12],
        }
        if data.splits.unplaced:
            facts["items on no side"] = len(data.splits.unplaced)
        facts |= self._of_evaluation(data)
        if isinstance(trained, Prompts):
            facts["prompts"] = len(trained.items)
            facts["prompts from controls"] = f"{trained.control_share:.0%}"
            facts["prompts left out"] = dict(trained.dropped)
            facts["prompts hash"] = trained.hash[:12]
            facts[REWARDED_BY] = self._rewarded_by()
        elif trained is not None:
            pairs = trained
            self.trained_by = frozenset(
                side.judge
                for pair in pairs.pairs
                for side in (pair.chosen_answer, pair.rejected_answer)
            )
            facts["pairs"] = len(pairs.pairs)
            facts["pairs from controls"] = f"{pairs.control_share:.0%}"
            facts["pairs left out"] = dict(pairs.dropped)
            facts["pairs with an answer cut at max_length"] = pairs.cut
            facts["pairs hash"] = pairs.hash[:12]
            if pairs.masked:
                facts["personal data masked in pairs"] = dict(pairs.masked)
        self.on_main(lambda: self._write_data(facts, data, trained))
        return facts

    def _of_evaluation(self, data: Data) -> dict[str, Any]:
        """What is evaluated, where it is another thing than one side."""
        wanted = self.config.evaluation
        facts: dict[str, Any] = {}
        if wanted.parts and (wanted.split != "test" or not is_whole_side(wanted)):
            facts["evaluated"] = which_items(wanted)
        if wanted.parts and data.of_train_side:
            facts[OF_TRAIN_SIDE] = data.of_train_side
        return facts

    def _fingerprint(self) -> str:
        wanted: PolicyConfig = self.config.policy
        place = place_of(wanted.model)
        if place == "api":
            return "unknown, it is behind an API"
        if place == "file":
            path = Path(wanted.model.removeprefix(FILE)).expanduser()
            return hashlib.sha256(path.read_bytes()).hexdigest()[:12]
        return fingerprint(wanted.model, wanted.revision)

    def _rewarded_by(self) -> str:
        """The judge of the rewards by its version: another reward model may lie in the folder of its name."""
        assert isinstance(self.config, GRPORecipe)
        from xyreward.grpo import judges_of_training

        return judges_of_training(self.config)["judge of rewards"].rubric_version

    def _write_data(
        self, facts: Mapping[str, Any], data: Data, trained: PairSet | Prompts | None
    ) -> None:
        kept = self.folder.read("data.json")
        if kept is not None:
            try:
                old = dict(json.loads(kept))
            except (ValueError, TypeError, RecursionError) as error:
                raise self.folder.damaged("data.json", error) from None
            differing = [
                key
                for key in {**old, **facts}
                if old.get(key) != facts.get(key)
                and (self.folder.trained or not key.startswith(("pairs", "prompts")))
                # Early versions told them of evaluations as well, where nothing is trained.
                and not (key in ("train items", "train hash") and key not in facts)
                # Nor did they tell this.
                and not (key == REWARDED_BY and key not in old)
            ]
            if differing:
                raise RunFolderError(
                    f"{self.folder.path}: the run that is resumed had other data or another policy; "
                    + "; ".join(f"{k} was {old.get(k)}, is {facts.get(k)}" for k in differing)
                    + ". Restore them (splits_lock keeps sides stable), or name another folder."
                )
        if trained is not None:
            name, made = (
                ("prompts.jsonl", map(row_of_item, trained.items))
                if isinstance(trained, Prompts)
                else ("pairs.jsonl", (pair.as_row() for pair in trained.pairs))
            )
            rows = (json.dumps(row, ensure_ascii=False) + "\n" for row in made)
            self.folder.write(name, "".join(rows))
        self.folder.write("splits.json", data.splits.to_json())
        self.folder.write("data.json", json.dumps(facts, indent=2, ensure_ascii=False) + "\n")

    def load_policy(self, name: str | None = None, *, trainable: bool = False) -> Policy:
        """The policy of the configuration, or another of the same settings."""
        wanted: PolicyConfig = self.config.policy
        dtype = wanted.dtype
        if trainable and dtype == "auto" and getattr(self.config, "lora", None) is None:
            # In pure bfloat16 most steps of AdamW at a usual learning rate round to nothing.
            dtype = "float32"
        return load_policy(
            name or wanted.model,
            revision=None if name else wanted.revision,
            dtype=dtype,
            device=str(self.state.device),
            chat_template_kwargs=wanted.chat_template_kwargs,
            trainable=trainable,
        )

    def sample(self, policy: Policy, data: Data) -> tuple[list[Candidate], dict[str, Any]]:
        """Answers of the policy to the train items, for pairs, and facts. Kept in the folder; gone on with.

        Processes share the items, and all get all answers. Each keeps a file of its own, since a share may
        take hours.
        """
        config = self.config
        assert isinstance(config, DPORecipe)
        wanted = config.pairs.on_policy
        # As the pairs show them, which are trained on: the policy answers what it will be asked.
        guards = config.pairs.guards
        items = [guards.mask_item(item)[0] for item in limited(data.train, wanted.limit)]
        rank, processes = self.state.process_index, self.state.num_processes
        name = "samples.jsonl" if processes == 1 else f"samples-{rank}-of-{processes}.jsonl"
        share = items[rank::processes]
        bars = _Bars() if self.is_main else None
        with self.timed(f"sampling {wanted.samples} answers to each of {len(items)} items"):
            found = sample(
                policy,
                share,
                wanted.sampling(config.seed),
                out=self.folder.path / name,
                keep_truncated=wanted.keep_truncated,
                batch_size=wanted.batch_size,
                origin=name_in_run(policy.name, config.output_dir),
                on_answers=(
                    None
                    if bars is None
                    else lambda n: bars("sampling", n, len(share) * wanted.samples)
                ),
            )
            shares = [found]
            if processes > 1:
                from accelerate.utils import gather_object

                shares = gather_object(shares)
        truncated = sum(one.truncated for one in shares)
        self.say(
            f"== {truncated} of {len(items) * wanted.samples} answers reached {wanted.max_new_tokens} tokens"
            + ("" if wanted.keep_truncated else " and are left out")
        )
        order = {item.id: n for n, item in enumerate(items)}
        # Stable: samples of one item keep their order.
        answers = sorted(
            (c for one in shares for c in one.candidates), key=lambda c: order[c.item_id]
        )
        return answers, {
            "answers sampled": len(items) * wanted.samples,
            "answers that reached max_new_tokens": truncated,
        }

    def evaluated_policy(self, data: Data) -> Evaluated:
        """The policy of a recipe that only evaluates: loaded here, behind an API, or a file of answers."""
        assert isinstance(self.config, EvaluateRecipe)
        if place_of(self.config.policy.model) == "here":
            return self.load_policy()
        return elsewhere(self.config, data)

    def evaluate(self, name: str, policy: Evaluated, data: Data) -> Evaluation | None:
        """Evaluate on the held-out items and keep every answer in `<name>.jsonl`.

        A resumed run reads the file instead, and asks again for what failed there; where it is not there
        yet, it goes on after the last batch that is kept. Processes share the items, and each keeps its
        own batches. None where evaluation is switched off. Where the configuration asks for the oracle and
        for reference answers, these are evaluated too, into files and `conditions` of their own.
        """
        wanted = self.config.evaluation
        if not wanted.parts:
            return None
        self.held_out = data.held_out
        found = self._evaluate(name, policy, data)
        if wanted.oracle:
            self.conditions[f"{name}.oracle"] = self._evaluate(f"{name}.oracle", policy, data)
        for kind in wanted.references:
            if (stem := f"reference.{kind}") not in self.conditions:
                self.conditions[stem] = self._references(stem, kind, data)
        return found

    def _evaluate(self, name: str, policy: Evaluated, data: Data) -> Evaluation:
        config = self.config.evaluation
        condition: Condition = "oracle" if name.endswith(".oracle") else "writing"
        expected = {item.id: self._answers_to(item, policy) for item in data.held_out}
        kept = self.on_main(lambda: self._kept(name, expected))
        if kept is not None:
            self.say(f"== {_evaluation(name)}: kept from before")
            return Evaluation.from_jsonl(
                self.on_main(lambda: self._completed(name, kept, policy, data.held_out))
            )
        mine = data.held_out[self.state.process_index :: self.state.num_processes]
        with self.timed(_evaluation(name)):
            partial = Partial()
            if isinstance(policy, Policy):
                partial = self._partial(name, policy, mine)
            part = evaluate(
                policy,
                mine,
                judge=self.judge if "writing" in config.parts else config.judge,
                parts=config.parts if condition == "writing" else ("writing",),
                clusters=data.clusters,
                max_new_tokens=config.max_new_tokens,
                batch_size=config.batch_size,
                answers_per_item=config.answers_per_item,
                temperature=config.temperature,
                seed=self.config.seed,
                condition=condition,
                remarks=self._remarks(policy, data),
                progress=_Bars() if self.is_main else None,
                partial=partial,
            )
            result = self._gather(part, data.held_out)
        self.write(f"{name}.jsonl", result.to_jsonl())
        self.state.wait_for_everyone()
        partial.remove()
        if self.is_main:  # also those of another number of processes
            for file in self.folder.path.glob(f"{name}*{PARTIAL_EVALUATION}"):
                file.unlink(missing_ok=True)
        return result

    def _remarks(self, policy: Evaluated, data: Data) -> list[str]:
        """What a reader of this evaluation must know, and could not see from its rows."""
        remarks = []
        if n := data.of_train_side:
            remarks.append(
                f"{n} of {len(data.held_out)} items are on the train side: where the policy was trained on "
                "them, by whatever recipe, these are no held-out figures"
            )
        wanted = self.config.evaluation
        if wanted.leave_out is not None and isinstance(self.config, EvaluateRecipe):
            remarks.append(
                f"all items of source {wanted.leave_out}, of whatever side: held-out figures where "
                "training left it out"
            )
        if "writing" in wanted.parts:
            how = described_how(policy, how_to_answer(self.config))
            if how != "1 per item, greedy":
                remarks.append(f"answers: {how}")
        if "picking" in wanted.parts and (
            how := described_picks(policy, how_to_answer(self.config))
        ):
            remarks.append(f"picks: {how}")
        if isinstance(policy, FilePolicy):
            remarks += policy.notes
        return remarks

    def _references(self, name: str, kind: AnswerKind, data: Data) -> Evaluation:
        """The items' own answers of a kind, judged by the first process."""
        having = [i for i in data.held_out if any(r.kind == kind for r in i.references)]

        def judged() -> str:
            expected = {i.id: sum(r.kind == kind for r in i.references) for i in having}
            kept = self._kept(name, expected)
            if kept is not None:
                self.say(f"== {_evaluation(name)}: kept from before")
                return self._completed(name, kept, None, having)
            with self.timed(_evaluation(name)):
                found = evaluate_references(
                    data.held_out,
                    kind,
                    judge=self.judge,
                    clusters=data.clusters,
                    progress=_Bars(),
                )
            self.write(f"{name}.jsonl", found.to_jsonl())
            return found.to_jsonl()

        return Evaluation.from_jsonl(self.on_main(judged))

    def _partial(self, name: str, policy: Policy, items: Sequence[Item]) -> Partial:
        """The batches of an evaluation that are kept already, of this process's share of the items."""
        wanted = self.config.evaluation
        rank, processes = self.state.process_index, self.state.num_processes
        share = "" if processes == 1 else f"-{rank}-of-{processes}"
        job = {
            "policy": self.on_main(lambda: fingerprint(policy.name, self._revision(policy))),
            "adapter": policy.adapter,
            "dtype": str(policy.model.dtype),
            "device": policy.model.device.type,
            "chat_template_kwargs": dict(policy.chat_template_kwargs),
            "items": [item.id for item in items],
            "items hash": items_hash(items)[:12],
            "max_new_tokens": wanted.max_new_tokens,
            "batch_size": wanted.batch_size,
        }
        if wanted.temperature is not None:
            job |= {
                "answers_per_item": wanted.answers_per_item,
                "temperature": wanted.temperature,
                "seed": self.config.seed,
            }
        found = Partial(self.folder.path / f"{name}{share}{PARTIAL_EVALUATION}", job)
        if found.other:
            self.say(
                f"== {_evaluation(name)}: batches are there, but {', '.join(found.other)} differ; "
                "computed anew"
            )
        elif found.batches:
            self.say(
                f"== {_evaluation(name)}: going on after {found.batches} batches that were kept, "
                f"with {found.rows('writing')} of {len(items)} answers"
            )
        return found

    def _revision(self, policy: Policy) -> str | None:
        wanted: PolicyConfig = self.config.policy
        return wanted.revision if policy.name == wanted.model else None

    def _answers_to(self, item: Item, policy: Evaluated) -> int:
        """How many rows an item has in an evaluation of a policy."""
        if "writing" not in self.config.evaluation.parts:
            return 1
        if isinstance(policy, FilePolicy):
            return len(policy.answers.get(item.id, ())) or 1  # the failure
        return self.config.evaluation.answers_per_item

    def _kept(self, name: str, expected: Mapping[str, int]) -> str | None:
        """The text of an evaluation that a stopped run finished, once it is known to be whole.

        Args:
            name: of its file, without the ending.
            expected: item id -> how many rows it has, in the order of the file.
        """
        file = f"{name}.jsonl"
        text = self.folder.read(file)
        earlier = self.arguments.before
        # What was after the round before is before this one, also where it was told the goal.
        if text is None and earlier is not None and name.partition(".")[0] == "before":
            theirs = name.replace("before", earlier.stem, 1)
            text = RunFolder(earlier.parent).read(f"{theirs}.jsonl")
            if text is not None:
                self.write(file, text)
        if text is None:
            return None
        try:
            found = Evaluation.from_jsonl(text)
            numbers: dict[str, list[int]] = {}
            for row in found.rows:
                numbers.setdefault(row.item_id, []).append(row.answer_index)
            if list(numbers) != list(expected):
                raise ValueError(
                    f"{len(numbers)} items that are not the {len(expected)} of this run"
                )
            for item_id, k in expected.items():
                if (there := numbers[item_id]) != list(range(k)):
                    raise ValueError(
                        f"item {item_id!r:.80} has the answers {', '.join(map(str, there))}, expected "
                        f"{', '.join(map(str, range(k)))}; lines are missing or out of place"
                    )
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise self.folder.damaged(file, error) from None
        self._refuse_another_judge(file, found)
        return text

    def _refuse_another_judge(self, file: str, kept: Evaluation) -> None:
        """Before anything is asked: verdicts of two judges, or of two rubric versions, do not compare."""
        if kept.rubric_version is None or "writing" not in self.config.evaluation.parts:
            return
        ours = judge_name(self.judge), self.judge.rubric_version
        if (kept.judge, kept.rubric_version) != ours:
            raise RunFolderError(
                f"{self.folder.path / file}: was judged by {kept.judge!r:.200} "
                f"({kept.rubric_version!r:.80}), and would go on with {ours[0]!r:.200} ({ours[1]!r:.80}), "
                "which does not compare; go on with the version of xyreward that began it "
                "(environment.json), or name another folder"
            )

    def _completed(
        self, name: str, kept: str, policy: Evaluated | None, items: Sequence[Item]
    ) -> str:
        """An evaluation that is kept, where what failed was asked for again. In the file, too."""
        found = Evaluation.from_jsonl(kept)
        again = sum(asks_again(row, policy) for row in found.rows)
        if not again:
            return kept
        what = f"{_evaluation(name)} again"
        remark = f": what failed at {again} of {len(found.rows)} answers"
        with self.timed(what, remark):
            try:
                text = ask_again(
                    found,
                    policy,
                    items,
                    judge=self.judge if "writing" in found.parts else self.config.evaluation.judge,
                    how=how_to_answer(self.config),
                    progress=_Bars(),
                ).to_jsonl()
            except ValueError as error:  # verdicts of two judges do not go together
                self.say(f"== {what}{remark} is left as it is: {error}")
                return kept
        if text != kept:
            self.write(f"{name}.jsonl", text)
        return text

    def _gather(self, part: Evaluation, items: Sequence[Item]) -> Evaluation:
        if self.state.num_processes == 1:
            return part
        from accelerate.utils import gather_object

        rows: dict[str, list[Row]] = {}
        for row in gather_object(list(part.rows)):
            rows.setdefault(row.item_id, []).append(row)
        return replace(part, rows=tuple(row for item in items for row in rows[item.id]))

    def finish(
        self, before: Evaluation | None, after: Evaluation | None, facts: Mapping[str, Any]
    ) -> None:
        """Write report.json, report.html and report.md and print the last."""
        if before is None:
            self.say(f"No evaluation was asked for. The run is in {self.folder.path}")
        if before is None or not self.is_main:
            return
        # Of a policy that is only evaluated the report has what is before, and no after.
        conditions = {
            name.replace("evaluation.", "before."): one for name, one in self.conditions.items()
        }
        report = reports.build_report(
            before,
            after,
            conditions=conditions,
            facts={
                **facts,
                **self.bill(),
                "seconds": self.seconds,
                "peak memory, GiB": peak_memory_gib(),
                **_calibration(before),
            },
            headline_notes=self._headline_notes(before),
            max_failure_rate=self.config.evaluation.max_failure_rate,
            seed=self.config.seed,
        )
        self.write("report.md", reports.to_markdown(report))
        shown = {"before": before, **({"after": after} if after else {}), **conditions}
        write_page(self.folder, report, shown, self.held_out)
        self.write("report.json", reports.to_json(report))
        self._complete_cards(report)
        for lost in log_report(
            report, self.config.of_trainer, self.folder.path, facts.get("steps", 0)
        ):
            self.say(f"== {lost}")
        self.say("\n" + reports.to_markdown(report))
        self.say(f"All of it is in {self.folder.path}")

    def _headline_notes(self, found: Evaluation) -> list[str]:
        """What a reader must know of the difference: also whether its judge made the training signal, too."""
        notes: list[str] = []
        trained = self.trained_by
        if isinstance(self.config, GRPORecipe):
            if self.config.sft is not None:
                notes.append(
                    "Before is the policy as it was named: what changed since is the work of an SFT on "
                    "chosen answers and of GRPO after it, together."
                )
            from xyreward.grpo import judges_of_training

            rewards = judges_of_training(self.config)["judge of rewards"]
            trained |= {rewards.name}
            if isinstance(rewards, RewardModelJudge):  # it has that judge's errors, and its own
                trained |= {rewards.distilled.judge}
        shared = _single_judges({found.judge or ""}) & _single_judges(trained)
        if not shared:
            return notes
        what = "gave the rewards" if isinstance(self.config, GRPORecipe) else "judged the pairs"
        return [
            *notes,
            f"Judge {', '.join(sorted(shared))} evaluates here and {what} of the training: what the policy "
            "learned of its errors looks like progress. evaluation.judge sets another.",
        ]

    def card(self, mark: Mark, trained: PairSet | Prompts, *, adapter: bool) -> Card:
        """What makes the card of something trained from further facts; see `model_card`.

        It does not hold the run: the trainer, which is full of cycles, would keep the folder's lock.
        """
        recorded = json.loads(self.folder.read("data.json") or "{}")
        wanted = ("policy hash", "train items", "train hash", "held-out hash", "splits hash")
        known = {key: recorded[key] for key in wanted if key in recorded}
        settings = self.config.of_trainer
        made = METHODS[type(self.config)]
        return lambda facts: model_card(
            mark, trained, {**known, **facts}, settings, adapter=adapter, method=made
        )

    def _complete_cards(self, report: Mapping[str, Any]) -> None:
        """Put the report into the card of what was trained, without names of this machine's folders."""
        if "after" not in report["policies"]:
            return
        told = {
            key: report["facts"][key]
            for key in ("evaluated", OF_TRAIN_SIDE)
            if key in report["facts"]
        }
        named = {**report, "policies": {"before": "the base", "after": "this"}, "facts": told}
        items = [one.model_dump() for one in self.config.items]
        index = model_index(report, items, self.folder.path.name, self.config.evaluation)
        for name in ("adapter", "model"):
            add_report(self.folder.path / name, reports.to_markdown(named), index)

    def bill(self) -> dict[str, Any]:
        """What judges cost over all processes, resumptions and rounds, where they are such as may cost."""
        from xyreward.grpo import judges_of_training
        from xyreward.reward_model import distilled_judge
        from xyreward.training_pairs import pairs_judge

        judges: dict[str, Judge | ModelAsker] = {}
        if place_of(self.config.policy.model) == "api" and isinstance(self.config, EvaluateRecipe):
            judges["policy"] = remote_policy(self.config).asker
        if "writing" in self.config.evaluation.parts:
            judges["judge"] = self.judge
        judge_of_pairs = pairs_judge(self.config) if isinstance(self.config, PairsRecipe) else None
        if judge_of_pairs is not None:
            judges["judge of pairs"] = judge_of_pairs
        if isinstance(self.config, RewardModelRecipe):
            judges["distilled judge"] = distilled_judge(self.config)
        if isinstance(self.config, GRPORecipe):
            judges |= judges_of_training(self.config)
        of_runs: dict[tuple[str, str], list[str]] = {}
        asked: dict[tuple[str, str], ModelAsker] = {}
        for name, judge in judges.items():
            for one in [judge] if isinstance(judge, ModelAsker) else model_judges(judge):
                bill = (str(one.store.path), one.run)  # one for all that share it
                if name not in of_runs.setdefault(bill, []):
                    of_runs[bill].append(name)
                asked[bill] = one
        facts: dict[str, Any] = {}
        for bill, names in of_runs.items():
            name = " and ".join(names)
            spent = asked[bill].store.ledger.spent(asked[bill].run)
            facts |= {
                f"{name} calls": spent.calls,
                f"{name} calls without a reply, possibly billed": spent.lost_calls,
                f"{name} calls of unknown price, of both": spent.unpriced_calls,
                f"{name}, US dollars": _sum_of(spent.settled_usd, spent.unpriced_calls),
                f"{name}, possibly billed at most, US dollars": _sum_of(
                    spent.possibly_usd, spent.unpriced_calls if spent.lost_calls else 0
                ),
            }
        return facts


CALIBRATION = "judge against people"
"""The fact that says which calibration record covers a run's judge."""


def _calibration(evaluation: Evaluation) -> dict[str, str]:
    """As it is known when the run ends: records made later do not change a report that is built again."""
    if not (evaluation.judge and evaluation.rubric_version):
        return {}
    return {CALIBRATION: covered_by(evaluation.judge, evaluation.rubric_version)}


def _sum_of(usd: float, unpriced: int) -> float | str:
    """A sum of money for a report; never 0 where that only means that no price is known."""
    return "unknown" if unpriced and not usd else round(usd, 4)


def _single_judges(names: Iterable[str]) -> frozenset[str]:
    """Judges by these names, members of panels one by one, without addresses of servers."""
    singles = (one for name in names for one in name.removeprefix("panel:").split(","))
    return frozenset(without_url(one.strip()) for one in singles) - {""}


@dataclass(frozen=True)
class _Alone:
    """The one process of a run whose policy answers elsewhere: it needs neither torch nor accelerate."""

    num_processes: int = 1
    process_index: int = 0
    is_main_process: bool = True

    @property
    def device(self) -> Any:
        """As torch names it."""
        return SimpleNamespace(type="cpu")

    def wait_for_everyone(self) -> None:
        """There is nobody else."""


def _state(config: Recipe) -> Any:
    """This process among those of the run."""
    alone = int(os.environ.get("WORLD_SIZE", "1")) == 1
    if alone and place_of(config.policy.model) != "here":
        return _Alone()
    from accelerate import PartialState

    return PartialState(cpu=default_device() == "cpu", timeout=timedelta(seconds=PATIENCE_S))


def _on_main(state: Any, work: Callable[[], T]) -> T:
    """Let the first process do something and tell the others what came out, errors included."""
    if state.num_processes == 1:
        return work()
    from accelerate.utils import broadcast_object_list

    told: list[Any] = [None, None]
    if state.is_main_process:
        try:
            told = [work(), None]
        except XYRewardError as error:
            told = [None, error]
    broadcast_object_list(told)
    if told[1] is not None:
        raise told[1]
    result: T = told[0]
    return result


def _tell(text: str) -> None:
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    # A closed pipe, a full disk behind stdout or an ASCII terminal must not end a run of hours.
    text = printable(text)
    with suppress(OSError):
        print(text.encode(encoding, "replace").decode(encoding), flush=True)  # noqa: T201


def _evaluation(name: str) -> str:
    """What is said of the evaluation that a file is named after."""
    return name if name == "evaluation" else f"evaluation {name}"


def _use_all_cores() -> None:
    """Undo `accelerate launch`'s default of one thread per process, which halves the speed on two cores.

    It exports OMP_NUM_THREADS=1 unless the user set something; any other number is left alone.
    """
    import torch

    if os.environ.get("OMP_NUM_THREADS") == "1":
        try:
            cores = len(os.sched_getaffinity(0))
        except AttributeError:  # macOS, Windows
            cores = os.cpu_count() or 1
        torch.set_num_threads(max(1, cores // int(os.environ.get("LOCAL_WORLD_SIZE", "1"))))


def peak_memory_gib() -> float | None:
    """Peak resident memory of this process in GiB; None where the system does not tell."""
    try:
        import resource
    except ImportError:  # Windows
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return round(peak / (1024**3 if sys.platform == "darwin" else 1024**2), 2)


class _Bars:
    """A progress bar per kind of work."""

    def __init__(self) -> None:
        self._bars: dict[str, Any] = {}

    def __call__(self, what: str, done: int, total: int) -> None:
        from tqdm import tqdm

        if what not in self._bars:
            self._bars[what] = tqdm(total=total, desc=what, leave=True)
        bar = self._bars[what]
        bar.update(done)
        if bar.n >= total:
            bar.close()


def check_before_evaluation(config: Recipe) -> None:
    """What can be wrong with an evaluation and shows without loading the policy.

    Raises:
        ConfigError: a policy that does not exist, a revision of what has none.
        HubUnreachable: a policy that is neither on this machine nor to be had.
        JudgeError, MissingDependency: the judge cannot be loaded.
    """
    policy = config.policy
    if place_of(policy.model) == "here":
        check_installed("accelerate", "scipy", "torch", "transformers")
        if is_adapter(policy.model, policy.revision):
            check_installed("peft")
        if policy.revision and (policy.model == POLICY_NAME or Path(policy.model).is_dir()):
            raise ConfigError(
                f"policy.revision: is {policy.revision!r}, but {policy.model!r} is no hub name and has "
                "none; take it out"
            )
    elif isinstance(config, EvaluateRecipe) and place_of(policy.model) == "api":
        remote_policy(config).asker.check_ready()
    if "writing" in config.evaluation.parts:
        judge = evaluation_judge(config)
        if (check := getattr(judge, "check", None)) is not None:
            check([])  # its key and its store, before a model is loaded


def how_to_answer(config: Recipe) -> How:
    """How answers of the held-out evaluation are written."""
    wanted = config.evaluation
    return How(
        wanted.answers_per_item,
        wanted.temperature,
        wanted.max_new_tokens,
        wanted.batch_size,
        config.seed,
    )


def remote_policy(config: EvaluateRecipe) -> RemotePolicy:
    """The policy behind an API, on the bill of the run.

    Raises:
        ConfigError, JudgeError: see `RemotePolicy.load`.
    """
    options = {"run": config.bill, **config.policy_options}
    return RemotePolicy.load(config.policy.model, config.evaluation.temperature, **options)


def elsewhere(config: EvaluateRecipe, data: Data) -> RemotePolicy | FilePolicy:
    """The policy that does not answer in this process, once it is known that it can be asked all of it.

    Raises:
        ConfigError, DataError, JudgeError, StoreError: see `RemotePolicy`, `FilePolicy`.
    """
    if place_of(config.policy.model) == "api":
        policy = remote_policy(config)
        policy.estimate(data.held_out, how_to_answer(config))  # an item that no API takes
        return policy
    known = {"origin", "columns", "allow_missing"}
    if strange := sorted(config.policy_options.keys() - known):
        raise ConfigError(
            f"policy_options: a file of answers has no {', '.join(strange)}; known are "
            f"{', '.join(sorted(known))}"
        )
    return FilePolicy.load(
        config.policy.model, data.held_out, section="policy_options.", **config.policy_options
    )


def check_evaluation(config: Recipe, data: Data) -> None:
    """What can be wrong with evaluating these items and shows before anything is asked or generated.

    Raises:
        ConfigError, DataError, JudgeError, StoreError: a policy that cannot be asked them, a file without
            answers to some, a judge that cannot judge them, a kind of reference answer that none has.
    """
    wanted = config.evaluation
    if not wanted.parts:
        return
    if isinstance(config, EvaluateRecipe) and place_of(config.policy.model) != "here":
        elsewhere(config, data)
    if "writing" not in wanted.parts:
        return
    judge = evaluation_judge(config)
    if (check := getattr(judge, "check", None)) is not None:
        check(data.held_out)
    for kind in wanted.references:
        if not any(r.kind == kind for item in data.held_out for r in item.references):
            raise DataError(
                [
                    f"evaluation.references: none of the {len(data.held_out)} items has an answer of kind "
                    f"{kind}"
                ]
            )
    refuse_small_budget(judge, data.held_out, [_longest(config, 0)] * len(data.held_out))


def evaluation_judge(config: Recipe) -> Judge:
    """The judge of the held-out evaluation, with its options; its bill goes by the run's folder.

    Raises:
        JudgeError, MissingDependency: the judge cannot be loaded.
    """
    wanted = config.evaluation
    options: dict[str, Any] = dict(wanted.judge_options)
    if wanted.judge.partition(":")[0] in ("anthropic", "chat", "panel"):
        # Before and after, and every resumption, are one run: its budget holds for all of them.
        options.setdefault("run", config.bill)
    return load_judge(wanted.judge, **options)


def print_estimate(
    config: Recipe, data: Data, times: int, pairs: str | None = None, plan: Sequence[str] = ()
) -> None:
    """Print what a run would do, what judging would cost and how long it would take. Sends nothing.

    Of several processes the first prints it.

    Args:
        config: of the recipe.
        data: whose held-out items will be answered.
        times: how many policies are evaluated (2: before and after).
        pairs: a line on what the pairs would take.
        plan: further lines, of the training.
    """
    if not _is_first():
        return
    wanted = config.evaluation
    dev = data.sides.select("dev")
    others = [
        f"{len(data.train)} train items: {_kinds(data.train)}",
        f"{len(dev)} dev items: {_kinds(dev)}",
    ]
    lines = [
        *([] if isinstance(config, EvaluateRecipe) else others),
        f"{len(data.held_out)} held-out items ({_named(wanted)}): {_kinds(data.held_out)}",
        *([pairs] if pairs else []),
        *plan,
        f"run folder: {RunFolder(Path(config.output_dir)).path}",
        *(f"warning: {warning}" for warning in control_warnings(config, data)),
    ]
    lines += estimates(config, data, times)
    for line in lines:
        _tell(line)


def _named(wanted: EvaluationConfig) -> str:
    return wanted.split if is_whole_side(wanted) else which_items(wanted)


def _longest(config: Recipe, n: int) -> str:
    """An answer of the longest length allowed, at four characters a token; `n` tells it from others."""
    return f"{n} " + "word " * (config.evaluation.max_new_tokens * 4 // 5)


def estimates(config: Recipe, data: Data, times: int = 1) -> list[str]:
    """What answering and judging would take now, a line for each part. Sends nothing.

    Answers that are not written yet are taken at their longest; the judge's part is exact where all are
    there.
    """
    wanted, how, items = config.evaluation, how_to_answer(config), data.held_out
    if not wanted.parts:
        return ["nothing is evaluated"]
    policy: Evaluated | None = None
    if isinstance(config, EvaluateRecipe) and place_of(config.policy.model) != "here":
        policy = elsewhere(config, data)
    lines: list[str] = []
    judged: list[tuple[Item, str]] = []
    conditions: list[Condition] = ["writing", "oracle"] if wanted.oracle else ["writing"]
    for number, condition in enumerate(conditions if "writing" in wanted.parts else []):
        asked = items if condition == "writing" else [told_the_goal(item) for item in items]
        there = False
        if isinstance(policy, RemotePolicy):
            bill = policy.estimate(asked, how)
            there = not bill.calls
            lines.append(
                f"{condition}: {len(items) * how.answers_per_item} answers of {policy.name}: {bill}"
            )
        if there or isinstance(policy, FilePolicy):
            assert policy is not None
            answers = [
                (item, one.text)
                for item, several in zip(items, write(policy, asked, how), strict=True)
                for one in several
                if one.text is not None
            ]
            judged += answers
        else:
            judged += [
                (item, _longest(config, n))
                for item in items
                for n in range(number * 1000, number * 1000 + times * how.answers_per_item)
            ]
    if "picking" in wanted.parts and isinstance(policy, RemotePolicy):
        questions = letter_questions(items)
        lines.append(
            f"picking: {len(questions)} questions to {policy.name}: "
            f"{policy.estimate_letters(questions, how)}"
        )
    if "writing" not in wanted.parts:
        return [*lines, "no answer is judged"]
    for kind in wanted.references:
        judged += [(i, r.text) for i in items for r in i.references if r.kind == kind]
    judge = evaluation_judge(config)
    return [*lines, described(judge, [item for item, _ in judged], [text for _, text in judged])]


def _kinds(items: Sequence[Item]) -> str:
    controls = sum(item.kind == "control" for item in items)
    return f"{len(items) - controls} with a hidden goal, {counted(controls, 'control')}"


def planned_steps(settings: Any, pairs: int, what: str = "pairs") -> str:
    """A line on the steps of training on so many pairs (or of what they are), as the trainer counts them."""
    processes = int(os.environ.get("WORLD_SIZE", "1"))
    at_once = (
        settings.per_device_train_batch_size * processes * settings.gradient_accumulation_steps
    )
    steps = settings.max_steps
    if steps <= 0:
        batches = math.ceil(pairs / (settings.per_device_train_batch_size * processes))
        of_epoch = max(1, math.ceil(batches / settings.gradient_accumulation_steps))
        steps = math.ceil(settings.num_train_epochs * of_epoch)
    return f"{steps} steps of {at_once} {what}, if all fit into max_length"


def control_warnings(config: Recipe, data: Data, pairs: PairSet | None = None) -> list[str]:
    """What a run without controls, or with too few, will lack, in sentences.

    Args:
        config: of the recipe.
        data: of the recipe.
        pairs: the pairs trained on, where they are known.
    """
    advice = "add {source: mini, kinds: [control]} to items"
    warned = []
    if isinstance(config, GRPORecipe) and config.prompts.control_share:
        controls = sum(item.kind == "control" for item in data.train)
        if controls < len(data.train) * config.prompts.control_share / 2:
            warned.append(
                f"prompts.control_share {config.prompts.control_share} asked, {controls} of the "
                f"{len(data.train)} train items are controls: it will learn to see a hidden goal in every "
                f"question; {advice}, or set prompts.control_share to 0"
            )
    if isinstance(config, PairsRecipe) and config.pairs.built is None:
        asked = config.pairs.control_share
        there = sum(item.kind == "control" for item in data.train)
        if asked and not there:
            warned.append(
                f"control_share {asked} asked, 0 controls there: it will learn to see a hidden goal in every "
                f"question; {advice}, or set pairs.control_share to 0"
            )
        elif asked and pairs is not None and pairs.control_share < asked / 2:
            warned.append(
                f"control_share {asked} asked, {pairs.control_share:.2f} of the pairs are of controls: too "
                f"few of the {there} controls have a direct and an overcorrecting answer; {advice}"
            )
    if "writing" in config.evaluation.parts and not any(i.kind == "control" for i in data.held_out):
        warned.append(
            f"no controls among the held-out items, so there will be no headline; {advice}"
        )
    return warned


# ---------------------------------------------------------------- training


def wrong_training(config: Mapping[str, Any], places: Places) -> list[str]:
    """What is wrong with the sections `dpo` and `lora`, as far as TRL and peft need no try-out to tell.

    Args:
        config: with these sections, as YAML gives them; other sections may be wrong in any way.
        places: where settings were given.

    Returns:
        Lines of an error message. None where TRL or peft is not installed, which others tell.
    """
    section = config.get("dpo")
    dpo: Mapping[str, Any] = section if isinstance(section, Mapping) else {}
    losses = dpo.get("loss_type", ["sigmoid"])
    found = [losses] if isinstance(losses, str) else losses
    if isinstance(section, Mapping):
        config = {**config, "dpo": {**dpo, "loss_type": found}}
    problems = wrong_sections(config, places, "dpo", "DPOConfig", DPO_LIMITS, SET_BY_RECIPE)
    is_list = isinstance(found, list) and all(isinstance(loss, str) for loss in found)
    if is_list and (not found or not DPO_LOSSES.issuperset(found)):
        problems.append(
            f"{places.of('dpo.loss_type')}: dpo.loss_type: is {losses!r}, expected some of "
            f"{', '.join(sorted(DPO_LOSSES))}"
        )
    if is_list and dpo.get("label_smoothing") and not SMOOTHED_LOSSES.intersection(found):
        problems.append(
            f"{places.of('dpo.label_smoothing')}: dpo.label_smoothing: is {dpo['label_smoothing']!r:.40}, "
            f"which loss_type {', '.join(found)} ignores; expected one of "
            f"{', '.join(sorted(SMOOTHED_LOSSES))} in loss_type ('robust' for labels of a noisy judge), or "
            "no label_smoothing"
        )
    return problems


def wrong_sections(
    config: Mapping[str, Any],
    places: Places,
    section: str,
    target: str,
    limits: Mapping[str, str],
    reserved: Mapping[str, str],
) -> list[str]:
    """What is wrong with a trainer's section and with `lora`, by their keys, types and ranges.

    Args:
        config: with these sections, as YAML gives them.
        places: where settings were given.
        section: the trainer's.
        target: TRL's class of its settings.
        limits: key -> interval, see `check_limits`.
        reserved: key -> where it is set instead.

    Returns:
        Lines of an error message. None where TRL or peft is not installed, which others tell.
    """
    try:
        import trl
        from peft import LoraConfig
    except ImportError:
        return []
    sections = (config.get(section), config.get("lora"))
    given, lora = (dict(one) if isinstance(one, Mapping) else {} for one in sections)
    problems = [
        *wrong_keys(places, section, given, getattr(trl, target), reserved),
        *wrong_keys(places, "lora", lora, LoraConfig, {}),
        *outside_limits(places, section, given, limits),
        *outside_limits(places, "lora", lora, LORA_LIMITS),
    ]
    start = lora.get("init_lora_weights", True)
    if start not in LORA_STARTS:
        problems.append(
            f"{places.of('lora.init_lora_weights')}: lora.init_lora_weights: is {start!r}, expected one of "
            f"{', '.join(map(str, LORA_STARTS))}; it changes the policy's own weights, and then neither "
            "the reference nor the saved adapter belongs to the policy any more"
        )
    return problems


def dpo_settings(config: DPORecipe, path: Path | Places) -> tuple[Any, Any]:
    """TRL's DPOConfig and peft's LoraConfig (or None) of a configuration, fitted to the machine.

    Finds everything about the configuration that can be wrong and shows without loading a model: one
    step is rehearsed on a toy (`rehearsal.py`).

    Raises:
        ConfigError: unknown keys or impossible values of `dpo` or `lora` (all of them at once), a policy
            that does not exist, `lora` for a policy that is an adapter already.
        JudgeError, MissingDependency: the judge cannot be loaded, or what `report_to` names is not installed.
    """
    return trainer_settings(config, path, "dpo", "DPOConfig", wrong_training, rehearse)


def trainer_settings(
    config: DPORecipe | GRPORecipe | RewardModelRecipe | SFTRecipe,
    path: Path | Places,
    section: str,
    target: str,
    wrong: Others,
    rehearsal: Attempt,
    fixed: Mapping[str, Any] | None = None,
    lora_fixed: Mapping[str, Any] | None = None,
) -> tuple[Any, Any]:
    """As `dpo_settings`, for any of TRL's trainers.

    Args:
        config: of the recipe.
        path: where settings were given.
        section: the trainer's section.
        target: TRL's class of its settings.
        wrong: finds what is wrong with the sections without a try-out.
        rehearsal: tries them out.
        fixed: further settings that the recipe decides.
        lora_fixed: likewise of `lora`. None: of a model that writes.

    Raises:
        ConfigError, JudgeError, MissingDependency: see `dpo_settings`.
    """
    check_installed("accelerate", "datasets", "peft", "scipy", "torch", "transformers", "trl")
    import trl
    from peft import LoraConfig

    places = path if isinstance(path, Places) else Places(path)
    if problems := wrong(config.model_dump(include={section, "lora", "sft"}), places):
        raise ConfigError("\n".join(problems))
    given: Mapping[str, Any] = getattr(config, section)
    if config.lora is not None and is_adapter(config.policy.model, config.policy.revision):
        raise ConfigError(
            f"{places.of('lora')}: policy {config.policy.model!r} is an adapter, and training goes on with "
            "it as it is; set lora: null (a new adapter on top of an old one could not be loaded alone)"
        )
    tracked = f"{section}.report_to"
    check_trackers(given.get("report_to"), f"{places.of(tracked)}: {tracked}")
    check_before_evaluation(config)
    device = default_device()
    settings = {
        # Named explicitly because TRL's default for the old name makes transformers warn.
        "activation_checkpointing": False,
        "report_to": "none",
        "run_name": RunFolder(Path(config.output_dir)).path.name,
        "ddp_timeout": PATIENCE_S,
        "logging_nan_inf_filter": False,  # True logs a loss that diverged as the mean of those before
        "bf16": bf16_is_fast(device) and not given.get("fp16", False),
        **given,
        **(fixed or {}),
        "output_dir": str(RunFolder(Path(config.output_dir)).path / "checkpoints"),
        "seed": config.seed,
        "use_cpu": device == "cpu",
    }
    of_task = {"task_type": "CAUSAL_LM"} if lora_fixed is None else lora_fixed
    adapter = None if config.lora is None else {**of_task, **config.lora}
    keys = [f"{section}.{key}" for key in given] + [f"lora.{key}" for key in config.lora or {}]
    make = getattr(trl, target)
    for attempt in (rehearsal, partial(_construct, make)):
        if (error := attempt(settings, adapter)) is not None:
            found = culprits(settings, adapter, keys, attempt) or [section]
            where = places.of(found[0])
            raise ConfigError(f"{where}: {' or '.join(found)}: {told(error)}") from error
    return make(**settings), None if adapter is None else LoraConfig(**adapter)


def _construct(
    make: Callable[..., Any], settings: Mapping[str, Any], lora: Mapping[str, Any] | None
) -> Exception | None:
    from peft import LoraConfig

    try:
        make(**settings)
        LoraConfig(**(lora or {}))
    except Exception as error:  # whatever a library finds wrong with it
        return error
    return None


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
    card = run.card(mark, trained, adapter=kind == "adapter")
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
    """Content hashes of the items that were trained on, and of whatever nearly repeats those."""
    pairs = () if isinstance(trained, Prompts) else trained.pairs
    ids = {pair.item_id for pair in pairs}
    if isinstance(trained, Prompts):
        ids = {item.id for item in trained.items}
    placements = data.splits.placements
    clusters = {placements[i.content_hash].cluster for i in data.train if i.id in ids}
    found = {key for key, placement in placements.items() if placement.cluster in clusters}
    # Pairs that were built before may be of items that this recipe does not have.
    found |= {text_hash("\n\n".join(m["content"] for m in pair.prompt)) for pair in pairs}
    return sorted(found)


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


def free_memory() -> None:
    """Give back what a trainer held: it is full of cycles, which wait for the collector."""
    import torch

    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
