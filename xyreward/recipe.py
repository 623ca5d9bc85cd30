"""What the recipes share: data with checked splits, trainer settings for this machine, evaluation, report.

A recipe (recipes/*.py) is then a page that reads from top to bottom. Everything that can be checked is
checked before the first answer is generated.

Not here: the training itself, which is TRL's.
"""

from __future__ import annotations

import gc
import importlib.util
import json
import math
import os
import shlex
import signal
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from xyreward import report as reports
from xyreward.config import (
    Arguments,
    DPORecipe,
    Places,
    PolicyConfig,
    Recipe,
    outside_limits,
    wrong_keys,
)
from xyreward.embedded import POLICY_NAME
from xyreward.errors import (
    ConfigError,
    DataError,
    LeakError,
    MissingDependency,
    RunFolderError,
    XYRewardError,
    told,
)
from xyreward.eval_results import model_index
from xyreward.evaluation import Evaluation, Row, evaluate
from xyreward.items import Item, items_hash, text_hash
from xyreward.judges import Judge, described, load_judge
from xyreward.judges.model import ModelJudge
from xyreward.locate import (
    Mark,
    fingerprint,
    is_adapter,
    mark_of_training,
    short_hash,
    trained_on,
)
from xyreward.markdown import printable
from xyreward.model_card import CARD, add_report, model_card, write_card
from xyreward.pairs import PairSet
from xyreward.pairs.candidates import Candidate
from xyreward.pairs.guards import TokenGuard
from xyreward.pairs.sampling import sample
from xyreward.partial import Partial
from xyreward.policy import Policy, bf16_is_fast, default_device, load_policy
from xyreward.rehearsal import culprits, rehearse
from xyreward.runs import LOGS, PARTIAL_EVALUATION, ROUND, RunFolder
from xyreward.sides import Sides, limited, load_sides
from xyreward.splits import Splits
from xyreward.tracking import check_trackers, log_report, tensorboard_in

T = TypeVar("T")

Card = Callable[[Mapping[str, Any]], str]
"""Facts to the text of a card."""

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

DPO_LIMITS: Mapping[str, str] = {
    "adam_beta1": "[0, 1)",
    "adam_beta2": "[0, 1)",
    "adam_epsilon": "(0, inf)",
    "beta": "(0, inf)",
    "dataloader_num_workers": "[0, inf)",
    "gradient_accumulation_steps": "[1, inf)",
    "label_smoothing": "[0, 0.5)",
    "ld_alpha": "[0, 1]",
    "learning_rate": "[0, inf)",
    "logging_steps": "(0, inf)",
    "max_grad_norm": "[0, inf]",
    "max_length": "[2, inf)",
    "max_steps": "[-1, inf)",
    "num_train_epochs": "(0, inf)",
    "per_device_train_batch_size": "[1, inf)",
    "save_steps": "(0, inf)",
    "warmup_steps": "[0, inf)",
    "weight_decay": "[0, inf)",
}
LORA_LIMITS: Mapping[str, str] = {
    "r": "[1, inf)",
    "lora_alpha": "(0, inf)",
    "lora_dropout": "[0, 1)",
}
"""Numbers that TRL, peft or torch take without a word, or refuse in words that name no key."""

PATIENCE_S = 7 * 24 * 3600
"""How long processes wait for each other: while the first one judges, or one has longer answers to
sample. torch's own 10 or 30 minutes would end such a run."""

LORA_STARTS = (True, False, "gaussian", "eva", "orthogonal")
"""Values of `init_lora_weights` that leave the policy's own weights alone."""


def say_hello() -> None:
    """Tell at once that something goes on: importing takes a minute where a machine is busy."""
    if os.environ.get("RANK", "0") == "0":
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
        if os.environ.get("RANK", "0") == "0":
            with suppress(OSError):
                print(f"\n{printable(how_to_go_on())}", file=sys.stderr, flush=True)  # noqa: T201
        raise SystemExit(INTERRUPTED) from None
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


def _close_bars() -> None:
    """Leave progress bars where they stand: at exit each would be drawn once more, below the last word."""
    if (tqdm := getattr(sys.modules.get("tqdm"), "tqdm", None)) is not None:
        for bar in list(getattr(tqdm, "_instances", ())):
            bar.close()


INTERRUPTED = 128 + signal.SIGINT
"""Exit status after Ctrl-C, as shells have it."""

_begun: list[RunFolder] = []
"""Folders that this process runs in, the first one first; of several rounds it is that of the whole."""


def how_to_go_on() -> str:
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
        return f"Interrupted before anything was computed. Begin again with: {command}"
    return f"Interrupted. {_begun[0].path} keeps {', '.join(kept)}. Go on with: {command}"


def _end(said: str, error: Exception) -> NoReturn:
    if os.environ.get("XYREWARD_TRACEBACK"):
        raise error
    with suppress(OSError):  # nobody listens any more
        print(printable(said), file=sys.stderr)  # noqa: T201  # this is the output
    raise SystemExit(2) from None


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
    """What is evaluated: one side, controls included; never `train` items."""
    sides: Sides

    @property
    def splits(self) -> Splits:
        """The side of every item."""
        return self.sides.splits

    @property
    def clusters(self) -> dict[str, str]:
        """Item id -> cluster, of the held-out items."""
        return self.sides.clusters(self.held_out)


def load_data(config: Recipe) -> Data:
    """Load every source, put every item on a side, and make sure that nothing held out is trained on.

    Raises:
        DataError: see `load_sides`; also: nothing to evaluate.
        LeakError: see `load_sides`; also: what would be evaluated is what a recipe has trained the policy
            on.
    """
    sides = load_sides(config.items, config.splits_lock)
    held_out = sides.select(config.evaluation.split)
    if config.evaluation.parts and not held_out:
        raise DataError([f"no item is on the {config.evaluation.split} side: nothing to evaluate"])
    evaluated = limited(held_out, config.evaluation.limit) if config.evaluation.parts else []
    _check_not_trained_on(config.policy, evaluated)
    return Data(sides.select("train"), tuple(evaluated), sides)


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
    state = _state()
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

    of_rounds = [read(folder, "report.json", json.loads)["facts"] for folder in folders]
    facts = {
        "rounds": config.rounds,
        "report of each round": f"{ROUND}1/report.md, ...",
        **{
            f"round {n}": {name: facts[name] for name in OF_ROUNDS if name in facts}
            for n, facts in enumerate(of_rounds, start=1)
        },
    }
    report = reports.build_report(
        read(folders[0], "before.jsonl", Evaluation.from_jsonl),
        read(folders[-1], "after.jsonl", Evaluation.from_jsonl),
        facts=facts,
        max_failure_rate=config.evaluation.max_failure_rate,
        seed=config.seed,
    )
    top.write("report.md", reports.to_markdown(report))
    top.write("report.json", reports.to_json(report))
    _tell(f"=== all {config.rounds} rounds\n\n{reports.to_markdown(report)}")
    _tell(f"All of it is in {top.path}")


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
        self.state: Any = _state()
        self.device: str = self.state.device.type
        if self.device == "cpu":
            _use_all_cores()
        self.seconds: dict[str, float] = {}
        """What each step of this session took; a resumed run counts anew."""
        self.is_main: bool = self.state.is_main_process
        self.folder = RunFolder(Path(config.output_dir))
        self.on_main(self._open)
        if self.folder.changed:
            self.say(
                f"== training with other settings than before: {'; '.join(self.folder.changed)}"
            )

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
    def timed(self, what: str) -> Iterator[None]:
        """Announce a step and record how many seconds it took."""
        self.say(f"== {what}")
        start = time.perf_counter()
        yield
        self.seconds[what] = round(time.perf_counter() - start, 1)

    def write(self, name: str, text: str) -> None:
        """Write a file into the run folder. The first process only."""
        if self.is_main:
            self.folder.write(name, text)

    def record_data(self, data: Data, pairs: PairSet | None = None) -> dict[str, Any]:
        """Write down what is trained and evaluated, on what, with hashes. Returns the same as facts.

        Raises:
            RunFolderError: the run that is resumed had other data or another policy. What its checkpoint
                was trained on could be among what would be evaluated now.
        """
        facts: dict[str, Any] = {
            "policy hash": self.on_main(self._fingerprint),
            "sources": list(data.sides.sources),
            "train items": len(data.train),
            "held-out items": len(data.held_out),
            "train hash": items_hash(data.train)[:12],
            "held-out hash": items_hash(data.held_out)[:12],
            "splits hash": data.splits.hash[:12],
        }
        if data.splits.unplaced:
            facts["items on no side"] = len(data.splits.unplaced)
        if pairs is not None:
            facts["pairs"] = len(pairs.pairs)
            facts["pairs from controls"] = f"{pairs.control_share:.0%}"
            facts["pairs left out"] = dict(pairs.dropped)
            facts["pairs with an answer cut at max_length"] = pairs.cut
            facts["pairs hash"] = pairs.hash[:12]
            if pairs.masked:
                facts["personal data masked in pairs"] = dict(pairs.masked)
        self.on_main(lambda: self._write_data(facts, data, pairs))
        return facts

    def _fingerprint(self) -> str:
        wanted: PolicyConfig = self.config.policy
        return fingerprint(wanted.model, wanted.revision)

    def _write_data(self, facts: Mapping[str, Any], data: Data, pairs: PairSet | None) -> None:
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
                and (self.folder.trained or not key.startswith("pairs"))
            ]
            if differing:
                raise RunFolderError(
                    f"{self.folder.path}: the run that is resumed had other data or another policy; "
                    + "; ".join(f"{k} was {old.get(k)}, is {facts.get(k)}" for k in differing)
                    + ". Restore them (splits_lock keeps sides stable), or choose another --output-dir."
                )
        if pairs is not None:
            rows = (json.dumps(pair.as_row(), ensure_ascii=False) + "\n" for pair in pairs.pairs)
            self.folder.write("pairs.jsonl", "".join(rows))
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
        items = limited(data.train, wanted.limit)
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

    def evaluate(self, name: str, policy: Policy, data: Data) -> Evaluation | None:
        """Evaluate on the held-out items and keep every answer in `<name>.jsonl`.

        A resumed run reads the file instead; where it is not there yet, it goes on after the last batch
        that is kept. Processes share the items, and each keeps its own batches. None where evaluation is
        switched off.
        """
        config = self.config.evaluation
        if not config.parts:
            return None
        kept = self.on_main(lambda: self._kept(name, data))
        if kept is not None:
            self.say(f"== {_evaluation(name)}: kept from before")
            return Evaluation.from_jsonl(kept)
        mine = data.held_out[self.state.process_index :: self.state.num_processes]
        with self.timed(_evaluation(name)):
            partial = self._partial(name, policy, mine)
            part = evaluate(
                policy,
                mine,
                judge=evaluation_judge(self.config) if "writing" in config.parts else config.judge,
                parts=config.parts,
                clusters=data.clusters,
                max_new_tokens=config.max_new_tokens,
                batch_size=config.batch_size,
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

    def _kept(self, name: str, data: Data) -> str | None:
        """The text of an evaluation that a stopped run finished, once it is known to be whole."""
        file = f"{name}.jsonl"
        text = self.folder.read(file)
        earlier = self.arguments.before if name == "before" else None
        if text is None and earlier is not None:
            text = RunFolder(earlier.parent).read(earlier.name)
            if text is not None:
                self.write(file, text)
        if text is None:
            return None
        try:
            ids = [row.item_id for row in Evaluation.from_jsonl(text).rows]
            if ids != [item.id for item in data.held_out]:
                raise ValueError(f"{len(ids)} rows that are not the {len(data.held_out)} items")
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise self.folder.damaged(file, error) from None
        return text

    def _gather(self, part: Evaluation, items: Sequence[Item]) -> Evaluation:
        if self.state.num_processes == 1:
            return part
        from accelerate.utils import gather_object

        rows: dict[str, Row] = {row.item_id: row for row in gather_object(list(part.rows))}
        return replace(part, rows=tuple(rows[item.id] for item in items))

    def finish(
        self, before: Evaluation | None, after: Evaluation | None, facts: Mapping[str, Any]
    ) -> None:
        """Write report.json and report.md and print the latter."""
        if before is None:
            self.say(f"No evaluation was asked for. The run is in {self.folder.path}")
        if before is None or not self.is_main:
            return
        report = reports.build_report(
            before,
            after,
            facts={
                **facts,
                **self._bill(),
                "seconds": self.seconds,
                "peak memory, GiB": peak_memory_gib(),
            },
            max_failure_rate=self.config.evaluation.max_failure_rate,
            seed=self.config.seed,
        )
        self.write("report.md", reports.to_markdown(report))
        self.write("report.json", reports.to_json(report))
        self._complete_cards(report)
        settings: Mapping[str, Any] = getattr(self.config, "dpo", {})
        for lost in log_report(report, settings, self.folder.path, facts.get("steps", 0)):
            self.say(f"== {lost}")
        self.say("\n" + reports.to_markdown(report))
        self.say(f"All of it is in {self.folder.path}")

    def card(self, mark: Mark, pairs: PairSet, *, adapter: bool) -> Card:
        """What makes the card of something trained from further facts; see `model_card`.

        It does not hold the run: the trainer, which is full of cycles, would keep the folder's lock.
        """
        recorded = json.loads(self.folder.read("data.json") or "{}")
        wanted = ("policy hash", "train items", "train hash", "held-out hash", "splits hash")
        known = {key: recorded[key] for key in wanted if key in recorded}
        settings: Mapping[str, Any] = getattr(self.config, "dpo", {})
        return lambda facts: model_card(mark, pairs, {**known, **facts}, settings, adapter=adapter)

    def _complete_cards(self, report: Mapping[str, Any]) -> None:
        """Put the report into the card of what was trained, without names of this machine's folders."""
        if "after" not in report["policies"]:
            return
        named = {**report, "policies": {"before": "the base", "after": "this"}, "facts": {}}
        items = [one.model_dump() for one in self.config.items]
        index = model_index(report, items, self.folder.path.name, self.config.evaluation.split)
        for name in ("adapter", "model"):
            add_report(self.folder.path / name, reports.to_markdown(named), index)

    def _bill(self) -> dict[str, Any]:
        """What judges cost over all processes, resumptions and rounds, where they are such as may cost."""
        from xyreward.training_pairs import pairs_judge

        judges: dict[str, Judge | None] = {}
        if "writing" in self.config.evaluation.parts:
            judges["judge"] = evaluation_judge(self.config)
        if isinstance(self.config, DPORecipe):
            judges["judge of pairs"] = pairs_judge(self.config)
        facts: dict[str, Any] = {}
        for name, judge in judges.items():
            if not isinstance(judge, ModelJudge):
                continue
            spent = judge.store.ledger.spent(judge.run)
            facts |= {
                f"{name} calls": spent.calls,
                f"{name}, US dollars": round(spent.settled_usd, 4),
                f"{name}, possibly billed at most, US dollars": round(spent.possibly_usd, 4),
                f"{name} calls of unknown price": spent.unpriced_calls,
            }
        return facts


def _state() -> Any:
    """This process among those of the run."""
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
    check_installed("accelerate", "scipy", "torch", "transformers")
    if is_adapter(policy.model, policy.revision):
        check_installed("peft")
    if policy.revision and (policy.model == POLICY_NAME or Path(policy.model).is_dir()):
        raise ConfigError(
            f"policy.revision: is {policy.revision!r}, but {policy.model!r} is no hub name and has none; "
            "take it out"
        )
    if "writing" in config.evaluation.parts:
        judge = evaluation_judge(config)
        if (check := getattr(judge, "check", None)) is not None:
            check([])  # its key and its store, before a model is loaded


def evaluation_judge(config: Recipe) -> Judge:
    """The judge of the held-out evaluation, with its options; its bill goes by the run's folder.

    Raises:
        ConfigError: an option that would be written into the run folder and must not be.
        JudgeError, MissingDependency: the judge cannot be loaded.
    """
    wanted = config.evaluation
    options: dict[str, Any] = dict(wanted.judge_options)
    if "api_key" in options:
        raise ConfigError(
            "evaluation.judge_options.api_key: would be written into the run folder; set the key in the "
            "environment (ANTHROPIC_API_KEY, XYREWARD_CHAT_KEY)"
        )
    if wanted.judge.partition(":")[0] in ("anthropic", "chat", "panel"):
        # Before and after, and every resumption, are one run: its budget holds for all of them.
        options.setdefault("run", config.bill)
    return load_judge(wanted.judge, **options)


def print_estimate(
    config: Recipe, data: Data, times: int, pairs: str | None = None, plan: Sequence[str] = ()
) -> None:
    """Print what a run would do, what judging would cost and how long it would take. Sends nothing.

    Args:
        config: of the recipe.
        data: whose held-out items will be answered.
        times: how many policies are evaluated (2: before and after).
        pairs: a line on what the pairs would take.
        plan: further lines, of the training.
    """
    wanted = config.evaluation
    dev = data.sides.select("dev")
    lines = [
        f"{len(data.train)} train items: {_kinds(data.train)}",
        f"{len(dev)} dev items: {_kinds(dev)}",
        f"{len(data.held_out)} held-out items ({wanted.split}): {_kinds(data.held_out)}",
        *([pairs] if pairs else []),
        *plan,
        f"run folder: {RunFolder(Path(config.output_dir)).path}",
        *(f"warning: {warning}" for warning in control_warnings(config, data)),
    ]
    if "writing" not in wanted.parts:
        lines.append("no answer is judged")
    else:
        judge = evaluation_judge(config)
        # Answers are not written yet: their length is the longest allowed, at four characters a token.
        answers = [f"{n} " + "word " * (wanted.max_new_tokens * 4 // 5) for n in range(times)]
        items = [item for item in data.held_out for _ in answers]
        lines.append(described(judge, items, answers * len(data.held_out)))
    for line in lines:
        _tell(line)


def _kinds(items: Sequence[Item]) -> str:
    controls = sum(item.kind == "control" for item in items)
    return f"{len(items) - controls} with a hidden goal, {controls} controls"


def planned_steps(settings: Any, pairs: int) -> str:
    """A line on the steps of training on so many pairs, as the trainer counts them."""
    processes = int(os.environ.get("WORLD_SIZE", "1"))
    at_once = (
        settings.per_device_train_batch_size * processes * settings.gradient_accumulation_steps
    )
    steps = settings.max_steps
    if steps <= 0:
        batches = math.ceil(pairs / (settings.per_device_train_batch_size * processes))
        of_epoch = max(1, math.ceil(batches / settings.gradient_accumulation_steps))
        steps = math.ceil(settings.num_train_epochs * of_epoch)
    return f"{steps} steps of {at_once} pairs, if all fit into max_length"


def control_warnings(config: Recipe, data: Data, pairs: PairSet | None = None) -> list[str]:
    """What a run without controls, or with too few, will lack, in sentences.

    Args:
        config: of the recipe.
        data: of the recipe.
        pairs: the pairs trained on, where they are known.
    """
    advice = "add {source: mini, kinds: [control]} to items"
    warned = []
    if isinstance(config, DPORecipe) and config.pairs.built is None:
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
    try:
        from peft import LoraConfig
        from trl import DPOConfig
    except ImportError:
        return []
    sections = (config.get("dpo"), config.get("lora"))
    dpo, lora = (dict(section) if isinstance(section, Mapping) else {} for section in sections)
    losses = dpo.get("loss_type", ["sigmoid"])
    given = {**dpo, "loss_type": [losses] if isinstance(losses, str) else losses}
    problems = [
        *wrong_keys(places, "dpo", given, DPOConfig, SET_BY_RECIPE),
        *wrong_keys(places, "lora", lora, LoraConfig, {}),
        *outside_limits(places, "dpo", dpo, DPO_LIMITS),
        *outside_limits(places, "lora", lora, LORA_LIMITS),
    ]
    found = given["loss_type"]
    is_list = isinstance(found, list) and all(isinstance(loss, str) for loss in found)
    if is_list and (not found or not DPO_LOSSES.issuperset(found)):
        problems.append(
            f"{places.of('dpo.loss_type')}: dpo.loss_type: is {losses!r}, expected some of "
            f"{', '.join(sorted(DPO_LOSSES))}"
        )
    start = lora.get("init_lora_weights", True)
    if start not in LORA_STARTS:
        problems.append(
            f"{places.of('lora.init_lora_weights')}: lora.init_lora_weights: is {start!r}, expected one of "
            f"{', '.join(map(str, LORA_STARTS))}; it changes the policy's own weights, and then neither "
            "DPO's reference nor the saved adapter belongs to the policy any more"
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
    check_installed("accelerate", "datasets", "peft", "scipy", "torch", "transformers", "trl")
    from peft import LoraConfig
    from trl import DPOConfig

    places = path if isinstance(path, Places) else Places(path)
    if problems := wrong_training(config.model_dump(include={"dpo", "lora"}), places):
        raise ConfigError("\n".join(problems))
    if config.lora is not None and is_adapter(config.policy.model, config.policy.revision):
        raise ConfigError(
            f"{places.of('lora')}: policy {config.policy.model!r} is an adapter, and training goes on with "
            "it as it is; set lora: null (a new adapter on top of an old one could not be loaded alone)"
        )
    where = f"{places.of('dpo.report_to')}: dpo.report_to"
    check_trackers(config.dpo.get("report_to"), where)
    check_before_evaluation(config)
    device = default_device()
    settings = {
        # Named explicitly because TRL's default for the old name makes transformers warn.
        "activation_checkpointing": False,
        "report_to": "none",
        "run_name": RunFolder(Path(config.output_dir)).path.name,
        "ddp_timeout": PATIENCE_S,
        "logging_nan_inf_filter": False,  # True logs a loss that diverged as the mean of those before
        "bf16": bf16_is_fast(device) and not config.dpo.get("fp16", False),
        **config.dpo,
        "output_dir": str(RunFolder(Path(config.output_dir)).path / "checkpoints"),
        "seed": config.seed,
        "use_cpu": device == "cpu",
    }
    adapter = None if config.lora is None else {"task_type": "CAUSAL_LM", **config.lora}
    keys = [f"dpo.{key}" for key in config.dpo] + [f"lora.{key}" for key in config.lora or {}]
    for attempt in (rehearse, _construct):
        if (error := attempt(settings, adapter)) is not None:
            found = culprits(settings, adapter, keys, attempt) or ["dpo"]
            where = places.of(found[0])
            raise ConfigError(f"{where}: {' or '.join(found)}: {told(error)}") from error
    return DPOConfig(**settings), None if adapter is None else LoraConfig(**adapter)


def _construct(dpo: Mapping[str, Any], lora: Mapping[str, Any] | None) -> Exception | None:
    from peft import LoraConfig
    from trl import DPOConfig

    try:
        DPOConfig(**dpo)
        LoraConfig(**(lora or {}))
    except Exception as error:  # whatever a library finds wrong with it
        return error
    return None


@contextmanager
def building(run: Run, policy: Policy) -> Iterator[None]:
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


def _lora_culprits(config: Recipe, policy: Policy) -> list[str]:
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


def fit_to_length(pairs: PairSet, policy: Policy, max_length: int | None) -> PairSet:
    """Leave out pairs that the trainer would drop or learn nothing from, and count them.

    TRL drops a pair whose prompt alone fills `max_length`, without a word, and cuts the end of longer
    answers; two answers may then read the same.

    Raises:
        ConfigError: no pair is left.
    """
    if max_length is None:
        return pairs
    guard = TokenGuard(policy, max_length)
    kept = []
    dropped = Counter(pairs.dropped)
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
            f"none of {len(pairs.pairs)} pairs fits into dpo.max_length={max_length} tokens of "
            f"{policy.name}; raise it ({dict(dropped)})"
        )
    return replace(pairs, pairs=tuple(kept), dropped=dict(dropped), cut=cut)


def fit(
    run: Run, trainer: Any, policy: Policy, pairs: PairSet, data: Data
) -> tuple[Path, dict[str, Any]]:
    """Train `policy` with `trainer`, from the last checkpoint where there is one, and save the result.

    Beside every adapter or model that is saved, checkpoints included, lies a mark of what it was trained
    on (`locate.Mark`) and a card (`model_card.py`).

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
    mark = run.on_main(
        lambda: mark_of_training(
            wanted.model, wanted.revision, policy.chat_template_kwargs, _hashes(pairs, data)
        )
    )
    card = run.card(mark, pairs, adapter=kind == "adapter")
    trainer.add_callback(_marks_checkpoints(mark, card))
    checkpoint, damaged = run.on_main(run.folder.last_checkpoint)
    if damaged:
        run.say(f"== {', '.join(damaged)}: not whole, left out")
    if checkpoint:
        run.say(f"== going on from {checkpoint}")
    with run.timed("training"):
        trainer.train(resume_from_checkpoint=checkpoint)
    trainer.save_model(str(target))
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    facts = {
        "steps": trainer.state.global_step,
        # Of the whole training, also where it was resumed; what train() returns is of this session.
        "mean training loss": _told_loss(losses),
        "precision": "bf16" if trainer.args.bf16 else "fp16" if trainer.args.fp16 else "fp32",
    }
    if run.is_main:
        write_card(target, card(facts), mark)
        # A pickle of TRL's settings, with the run's folder; config.yaml has them.
        (target / "training_args.bin").unlink(missing_ok=True)
        log = (json.dumps(entry) + "\n" for entry in trainer.state.log_history)
        run.write("log.jsonl", "".join(log))
        run.write("training.json", json.dumps(facts) + "\n")
    run.state.wait_for_everyone()
    return target, facts


def _hashes(pairs: PairSet, data: Data) -> list[str]:
    """Content hashes of the items that the pairs are of, and of whatever nearly repeats those."""
    ids = {pair.item_id for pair in pairs.pairs}
    placements = data.splits.placements
    clusters = {placements[i.content_hash].cluster for i in data.train if i.id in ids}
    found = {key for key, placement in placements.items() if placement.cluster in clusters}
    # Pairs that were built before may be of items that this recipe does not have.
    found |= {text_hash("\n\n".join(m["content"] for m in pair.prompt)) for pair in pairs.pairs}
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
        return "not logged (dpo.logging_steps is above the number of steps)"
    loss = sum(losses) / len(losses)
    return round(loss, 4) if math.isfinite(loss) else "not finite: it diverged"


def free_memory() -> None:
    """Give back what a trainer held: it is full of cycles, which wait for the collector."""
    import torch

    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
