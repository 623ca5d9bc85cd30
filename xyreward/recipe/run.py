"""One run of a recipe: its folder, its evaluations, its report.

Not here: the folder's files (`runs.py`), its bill, notes and cards (`account.py`), training (`training.py`).
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from xyreward import report as reports
from xyreward.answering import FILE, Evaluated, FilePolicy, described_how, described_picks, place_of
from xyreward.config import (
    Arguments,
    DPORecipe,
    EvaluateRecipe,
    GRPORecipe,
    PolicyConfig,
    Recipe,
)
from xyreward.errors import RunFolderError
from xyreward.eval_results import OF_TRAIN_SIDE
from xyreward.evaluation import (
    Condition,
    Evaluation,
    Row,
    ask_again,
    asks_again,
    evaluate,
    evaluate_references,
    judge_name,
)
from xyreward.home import expanded
from xyreward.items import AnswerKind, Item, items_hash
from xyreward.judges import Judge
from xyreward.locate import fingerprint
from xyreward.pairs import PairSet
from xyreward.pairs.candidates import Candidate
from xyreward.pairs.formats import row_of_item
from xyreward.pairs.sampling import sample
from xyreward.partial import Partial
from xyreward.policy import Policy, load_policy
from xyreward.recipe.account import bill_of, calibration, complete_cards, headline_notes
from xyreward.recipe.checks import elsewhere, evaluation_judge, how_to_answer
from xyreward.recipe.console import Bars, begins, tell
from xyreward.recipe.data import Data
from xyreward.recipe.processes import Alone, on_main, peak_memory_gib, state_of, use_all_cores
from xyreward.report_page import write_page
from xyreward.runs import PARTIAL_EVALUATION, RunFolder, name_in_run
from xyreward.sides import limited
from xyreward.tracking import log_report
from xyreward.training_prompts import Prompts
from xyreward.which_items import is_whole_side, which_items

T = TypeVar("T")

REWARDED_BY = "prompts rewarded by version"
"""The fact that says which version of the reward's judge a GRPO run is trained on."""


class Run:
    """One run of a recipe: its folder, its place among the processes, its clock."""

    def __init__(self, config: Recipe, arguments: Arguments) -> None:
        self.config = config
        self.arguments = arguments
        self.state: Any = state_of(config)
        self.conditions: dict[str, Evaluation] = {}
        """What was evaluated beside the policy as it is: name of its file -> evaluation."""
        self.device: str = self.state.device.type
        if self.device == "cpu" and not isinstance(self.state, Alone):
            use_all_cores()
        self.trained_by: frozenset[str] = frozenset()
        """Names of the judges of the pairs that are trained on."""
        self.seconds: dict[str, float] = {}
        """What each step of this session took; a resumed run counts anew."""
        self.held_out: tuple[Item, ...] = ()
        """What was evaluated."""
        self.is_main: bool = self.state.is_main_process
        self.folder = RunFolder(Path(config.output_dir))
        self.on_main(self._open)
        part = (self.folder.path.parent / "config.yaml").is_file()  # a round, or an SFT before GRPO
        if self.is_main and self.arguments.resume and not part and not self.folder.kept():
            self.say(f"== {self.folder.path} has nothing to go on with; the run begins")
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
        begins(self.folder)

    def on_main(self, work: Callable[[], T]) -> T:
        """Let the first process do something and tell the others what came out, errors included.

        Only it may decide by looking at the folder: others may not see it (another node), and if two
        processes decided differently, one would wait for the other for ever.
        """
        return on_main(self.state, work)

    def pairs(self, make: Callable[[], PairSet]) -> PairSet:
        """Pairs that the first process makes, for all: two judges can differ, and cost twice."""
        if self.state.num_processes == 1:
            return make()
        from xyreward.training_pairs import packed, unpacked

        return unpacked(self.on_main(lambda: packed(make())))

    def say(self, text: str) -> None:
        """Tell the user what is being done. The first process only."""
        if self.is_main:
            tell(text)

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
            path = expanded(wanted.model.removeprefix(FILE))
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
        bars = Bars() if self.is_main else None
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
                progress=Bars() if self.is_main else None,
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
                    progress=Bars(),
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
                    progress=Bars(),
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
                **calibration(before),
            },
            headline_notes=headline_notes(self.config, before, self.trained_by),
            max_failure_rate=self.config.evaluation.max_failure_rate,
            seed=self.config.seed,
        )
        self.write("report.md", reports.to_markdown(report))
        shown = {"before": before, **({"after": after} if after else {}), **conditions}
        write_page(self.folder, report, shown, self.held_out)
        self.write("report.json", reports.to_json(report))
        complete_cards(self.config, self.folder, report)
        for lost in log_report(
            report, self.config.of_trainer, self.folder.path, facts.get("steps", 0)
        ):
            self.say(f"== {lost}")
        self.say("\n" + reports.to_markdown(report))
        self.say(f"All of it is in {self.folder.path}")

    def bill(self) -> dict[str, Any]:
        """What its judges cost; see `bill_of`."""
        return bill_of(self.config, lambda: self.judge)


def _evaluation(name: str) -> str:
    """What is said of the evaluation that a file is named after."""
    return name if name == "evaluation" else f"evaluation {name}"
