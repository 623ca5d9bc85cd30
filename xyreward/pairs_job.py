"""`xyreward pairs`: answers of every source, judged, paired, audited, written.

Everything that can be wrong and shows without a call is checked first; what was paid for is in the store,
so that the same command goes on where it stopped and gives the same bytes.

Not here: making pairs (`pairs/`), what a recipe does with them (`training_pairs.py`).
"""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from xyreward.config import PairsJob
from xyreward.errors import RunFolderError
from xyreward.items import Item, items_hash
from xyreward.judges import Judge, described, load_judge
from xyreward.pairs.answers import read_answers
from xyreward.pairs.audit import Audit, AuditLimits, audit_pairs
from xyreward.pairs.build import build_pairs
from xyreward.pairs.candidates import Candidate, references
from xyreward.pairs.contrastive import estimate_contrast, only_judge_is_writer, write_contrast
from xyreward.pairs.formats import write_pairs
from xyreward.pairs.guards import TokenGuard
from xyreward.pairs.held_out import HeldOut
from xyreward.pairs.order import askers_of
from xyreward.pairs.pair import PairSet
from xyreward.pairs.sampling import REMOTE, estimate_samples, sample
from xyreward.sides import Sides, limited, load_sides

Bar = Callable[[str, int, Sequence[Judge]], AbstractContextManager[Callable[[int], object]]]
"""A title, a total and the judges at work -> what is told how many more pieces are done."""


def no_bar(
    _title: str, _total: int, _judges: Sequence[Judge]
) -> AbstractContextManager[Callable[[int], object]]:
    """Show nothing."""
    return nullcontext(lambda _n: None)


@dataclass
class PairsReport:
    """What came of a job."""

    pairs: PairSet
    audit: Audit
    folder: Path
    notes: list[str] = field(default_factory=list)
    """What a reader should know of the answers: how many were cut, failed, paid for."""


class PreparedJob:
    """A job whose items, files, judge and tokenizer were found to be in order. Nothing was sent yet.

    Raises:
        DataError: items or files of answers with problems; all of them.
        LeakError: what is held out is among the items of `split`.
        JudgeError, ConfigError: a judge or an option that cannot be.
        RunFolderError: `out` holds something already that is no folder of pairs.
    """

    def __init__(self, job: PairsJob, out: Path) -> None:
        self.job = job
        self.out = out
        if out.exists() and not (out.is_dir() and (out / "manifest.json").is_file()):
            raise RunFolderError(f"{out}: is there and is no folder of pairs; give another --out")
        if not out.parent.is_dir():
            raise RunFolderError(f"{out.parent}: is no folder, expected one to make {out.name} in")
        self.sides: Sides = load_sides(job.items, job.splits_lock)
        self.items = self.sides.select(job.split)
        self.judge: Judge | None = (
            None if job.judge is None else load_judge(job.judge, **self._billed(job.judge_options))
        )
        if self.judge is not None and (check := getattr(self.judge, "check", None)) is not None:
            check(list(self.items))
        if job.order_check:
            assert self.judge is not None
            askers_of(self.judge)  # refused here and not after hours of judging
        self.tokens = None
        if job.tokens is not None:
            self.tokens = TokenGuard.load(
                job.tokens.model,
                job.tokens.max_length,
                revision=job.tokens.revision,
                chat_template_kwargs=job.tokens.chat_template_kwargs,
            )
        self.of_files: list[Candidate] = []
        for file in job.answers:
            found = read_answers(
                Path(file).expanduser(),
                self.items,
                columns=job.columns,
                source="cross_model",
                skip_unknown=True,
            )
            self.of_files += found.candidates
        self.sampled_items: list[Item] = limited(self.items, job.on_policy.limit)

    def _billed(self, options: dict[str, Any]) -> dict[str, Any]:
        """Options with a run's name, so that the budget holds for all repetitions of the command."""
        if not options.get("budget_usd") or options.get("run"):
            return options
        return {**options, "run": f"pairs {self.out.resolve()}"}

    def estimates(self) -> list[str]:
        """A line for each paid part: what it would take now. Sends nothing."""
        job, lines = self.job, []
        if "on_policy" in job.sources:
            n = len(self.sampled_items) * job.on_policy.samples
            if job.policy.model.startswith(REMOTE):
                found = estimate_samples(
                    job.policy.model,
                    self.sampled_items,
                    job.on_policy.sampling(job.seed),
                    **job.policy_options,
                )
                lines.append(f"sampling {n} answers of {job.policy.model}: {found}")
            else:
                lines.append(f"sampling {n} answers of {job.policy.model}, here")
        if job.writer is not None:
            found = estimate_contrast(self.items, job.writer, job.contrast, **job.writer_options)
            lines.append(f"writing with {job.writer}: {found}")
        known = [*(references(self.items) if "references" in job.sources else ()), *self.of_files]
        if self.judge is not None:
            of = {item.id: item for item in self.items}
            expected = [(of[c.item_id], c.text) for c in known]
            # What is not written yet, at its longest: four characters a token, or six a word.
            if "on_policy" in job.sources:
                longest = "word " * (job.on_policy.max_new_tokens * 4 // 5)
                expected += [
                    (item, f"{n} {longest}")
                    for item in self.sampled_items
                    for n in range(job.on_policy.samples)
                ]
            if job.writer is not None:
                expected += [
                    (item, f"{n} {'words ' * job.contrast.words}")
                    for item in self.items
                    for n in range(2 * job.contrast.k)
                ]
            items, answers = [item for item, _ in expected], [text for _, text in expected]
            lines.append(f"judging {len(answers)} answers: {described(self.judge, items, answers)}")
            if job.order_check:
                lines.append("order-swapped check: up to two more calls for each pair")
        return lines

    def run(self, bar: Bar = no_bar) -> PairsReport:
        """Do it all.

        Raises:
            DataError: no pair can be made; nothing is written then.
            JudgeError, StoreError: see `build_pairs`; what was paid for is in the store.
            RunFolderError: the folder holds other pairs, or cannot be written.
        """
        job, notes = self.job, []
        answers: list[Candidate] = []
        if "references" in job.sources:
            answers += references(self.items)
        answers += self.of_files
        if "on_policy" in job.sources:
            total = len(self.sampled_items) * job.on_policy.samples
            remote = job.policy.model.startswith(REMOTE)
            options: dict[str, Any] = (
                self._billed(job.policy_options)
                if remote
                else {
                    "revision": job.policy.revision,
                    "dtype": job.policy.dtype,
                    "chat_template_kwargs": job.policy.chat_template_kwargs,
                }
            )
            with bar("sampling", total, ()) as advance:
                sampled = sample(
                    job.policy.model,
                    self.sampled_items,
                    job.on_policy.sampling(job.seed),
                    out=self.out.with_name(f"{self.out.name}.samples.jsonl"),
                    keep_truncated=job.on_policy.keep_truncated,
                    batch_size=job.on_policy.batch_size,
                    on_answers=advance,
                    **options,
                )
            answers += sampled.candidates
            notes.append(
                f"sampled {len(sampled.candidates)} of {sampled.wanted} answers; {sampled.truncated} reached "
                f"{job.on_policy.max_new_tokens} tokens; failed: {dict(sampled.failed) or 'none'}"
            )
        if job.writer is not None:
            with bar("writing", len(self.items) * job.contrast.k, ()) as advance:
                written = write_contrast(
                    self.items,
                    job.writer,
                    job.contrast,
                    judge=self.judge,
                    on_reply=lambda: advance(1),
                    **self._billed(job.writer_options),
                )
            answers += written.candidates
            notes.append(
                f"written {len(written.candidates)} answers; failed replies: "
                f"{dict(written.failed) or 'none'}"
            )
        if self.judge is not None and (
            warning := only_judge_is_writer(
                {a.origin for a in answers if a.source == "contrastive"}, self.judge
            )
        ):
            notes.append(warning)
        judges = [] if self.judge is None else [self.judge]
        with bar("judging", len(answers) if judges else 0, judges):
            pairs = self._build(answers)
        limits = AuditLimits(
            simple=AuditLimits().simple if job.balance is None else job.balance,
            balanced=job.balance is not None,
            allow_origin=job.allow_origin,
        )
        audit = audit_pairs(pairs, limits=limits, seed=job.seed)
        folder = write_pairs(
            pairs,
            audit,
            self.out,
            meta=self._meta(notes),
            items=self.items,
            formats=job.formats,
            containers=job.containers,
        )
        return PairsReport(pairs, audit, folder, notes)

    def _build(self, answers: list[Candidate]) -> PairSet:
        job = self.job
        return build_pairs(
            self.items,
            split=job.split,
            answers=answers,
            judge=self.judge,
            rule=job.rule,
            guards=job.guards,
            held_out=self._held_out(),
            tokens=self.tokens,
            balance=job.balance,
            order_check=job.order_check,
            control_share=job.control_share,
            max_pairs=job.max_pairs,
            clusters=self.sides.clusters(self.items),
            seed=job.seed,
        )

    def _held_out(self) -> HeldOut:
        if self.job.split == "train":
            return self.sides.held_out
        mine = {item.id for item in self.items}
        return HeldOut([i for i in self.sides.items if i.id not in mine], self.sides.splits)

    def _meta(self, notes: list[str]) -> dict[str, Any]:
        job = self.job
        return {
            "config": job.model_dump(mode="json"),
            "judge": "reference labels" if self.judge is None else self.judge.name,
            "rubric_version": "" if self.judge is None else self.judge.rubric_version,
            "seed": job.seed,
            "sources": list(self.sides.sources),
            "items_hash": items_hash(self.items),
            "held_out_hash": self._held_out().hash,
            "splits_hash": self.sides.splits.hash,
            "notes": notes,
            "versions": {"xyreward": importlib.metadata.version("xyreward")},
        }
