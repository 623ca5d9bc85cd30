"""`xyreward pairs`: answers of every source, judged, paired, audited, written.

Everything that can be wrong and shows without a call is checked first; what was paid for is in the store,
so that the same command goes on where it stopped and gives the same bytes.

Not here: making pairs (`pairs/`), what a recipe does with them (`training_pairs.py`).
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import json
import os
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from xyreward import locate
from xyreward.config import PairsJob
from xyreward.differing import differences, was_and_is
from xyreward.errors import ConfigError, DataError, MissingDependency, RunFolderError, told
from xyreward.home import expanded, resolved
from xyreward.items import Item, items_hash
from xyreward.judges import (
    OF_BATCHES,
    Judge,
    described,
    joined_options,
    load_asker,
    load_judge,
    options_of,
)
from xyreward.judges.asking import ModelAsker, nothing_sent, run_of_environment
from xyreward.judges.panel import model_judges
from xyreward.judges.transport import without_credentials
from xyreward.pairs.answers import line_of, none_belongs, read_answers
from xyreward.pairs.audit import Audit, AuditLimits, audit_pairs
from xyreward.pairs.build import NoPairs, build_pairs, pairs_to_check
from xyreward.pairs.candidates import Candidate, Judged, check_numbers, references
from xyreward.pairs.contrastive import (
    contrast_version,
    estimate_contrast,
    only_judge_is_writer,
    write_contrast,
)
from xyreward.pairs.formats import (
    PairFolder,
    check_place,
    check_replaceable,
    check_wanted,
    read_pairs,
    write_pairs,
)
from xyreward.pairs.guards import TokenGuard
from xyreward.pairs.held_out import HeldOut
from xyreward.pairs.order import (
    check_comparable,
    estimate_order,
    order_version,
)
from xyreward.pairs.pair import Pair, PairSet, pair_of
from xyreward.pairs.sampling import estimate_samples, load_sampler, sample
from xyreward.runs import OF_THE_BILL
from xyreward.scoring import stop_over_budget
from xyreward.sides import Sides, limited, load_sides
from xyreward.verdict import FailureKind
from xyreward.words import counted, noun

Bar = Callable[[str, int, Sequence[ModelAsker]], AbstractContextManager[Callable[[int], object]]]
"""A title, a total and the models at work -> what is told how many more pieces are done."""

PASSING: frozenset[FailureKind] = frozenset({"transport", "rate_limited", "timeout"})
"""Failures of a server on a bad day, which the next start of the command may not meet. Others (a refusal, a
reply that cannot be read) are what the model makes of it."""


def no_bar(
    _title: str, _total: int, _models: Sequence[ModelAsker]
) -> AbstractContextManager[Callable[[int], object]]:
    """Show nothing."""
    return nullcontext(lambda _n: None)


def with_options(job: PairsJob, options: Mapping[str, Any]) -> PairsJob:
    """A job whose judge, policy and writer have these options too, each those that it takes.

    Raises:
        ConfigError: none of them takes an option.
    """
    takes: dict[str, frozenset[str]] = {}
    if job.judge is not None:
        takes["judge_options"] = options_of(job.judge)
    if "on_policy" in job.sources and job.policy_is_remote:
        set_by_sampling = {"votes", *OF_BATCHES, "schema", "max_tokens", "temperature"}
        takes["policy_options"] = options_of(job.policy.model) - set_by_sampling
    if job.writer is not None:
        takes["writer_options"] = options_of(job.writer) - {"votes"}
    if unused := sorted(set(options) - frozenset[str]().union(*takes.values())):
        raise ConfigError(
            f"{', '.join(unused)}: neither judge nor policy nor writer of this job takes that; leave it out"
        )
    return job.model_copy(
        update={
            name: joined_options(
                getattr(job, name), {k: v for k, v in options.items() if k in known}
            )
            for name, known in takes.items()
        }
    )


@dataclass
class PairsReport:
    """What came of a job."""

    pairs: PairSet
    audit: Audit
    folder: Path
    notes: list[str]
    """What a reader should know of the answers: how many were cut, failed, paid for."""


class PreparedJob:
    """A job whose items, files, models and tokenizer were found to be in order. Nothing was sent yet.

    Raises:
        DataError: items or files of answers with problems; all of them.
        LeakError: what is held out is among the items of `split`.
        JudgeError, StoreError, ConfigError: a judge, policy, writer or option that cannot be.
        MissingDependency: a container or a policy needs a package that is not installed.
        RunFolderError: `out` cannot be written, or holds something else than these pairs.
    """

    def __init__(self, job: PairsJob, out: Path, *, dry_run: bool = False) -> None:
        """Prepare a job.

        Args:
            job: what to do.
            out: the folder to be.
            dry_run: nothing will be done, so that nothing may be left either: a splits lock stays as it is.
                No key is wanted.
        """
        self.job = job
        self.out = expanded(out, RunFolderError)
        if self.out.name in ("", ".."):
            self.out = resolved(self.out)  # what is written beside it goes by its name
        check_wanted(job.formats, job.containers)
        self.sides: Sides = load_sides(job.items, job.splits_lock, write_lock=not dry_run)
        self.items = self.sides.select(job.split)
        self.held_out = self._held_out()
        # What leaves this process: policy, writer and judge may be other companies'.
        self.shown = self._masked(self.items)
        self.sampled_items = self._masked(limited(self.items, job.on_policy.limit))
        self.judge: Judge | None = None
        if job.judge is not None:
            self.judge = load_judge(job.judge, **self._billed(job.judge, job.judge_options))
            if (check := getattr(self.judge, "check", None)) is not None:
                with nothing_sent(dry_run):
                    check(list(self.items))
        if job.order_check:
            assert self.judge is not None
            check_comparable(self.items, self.judge)  # here and not after hours of judging
        self.sampling = job.on_policy.sampling(job.seed)
        self.policy: ModelAsker | str | None = None
        if "on_policy" in job.sources:
            with nothing_sent(dry_run):
                self.policy = self._policy()
        self.writer: ModelAsker | None = None
        if job.writer is not None:
            options = self._billed(job.writer, job.writer_options)
            self.writer = load_asker(job.writer, **options)
            with nothing_sent(dry_run):
                self.writer.check_ready()
            # Raises for items that no answers can be written to, before anything is sampled.
            estimate_contrast(self.shown, self.writer, job.contrast)
        self.tokens = self._tokens()
        self.of_files: list[Candidate] = []
        self._notes: list[str] = []
        problems: list[str] = []
        for file in job.answers:
            path = expanded(file)
            found = read_answers(
                path,
                self.items,
                columns=job.columns,
                source="cross_model",
                origin=job.origin,
                skip_unknown=True,
                section="",
            )
            problems += none_belongs(found, path, f"the {job.split} side", self.items)
            self.of_files += found.candidates
            self._notes.append(
                f"{file}: {len(found.candidates):,} of {counted(found.rows, 'answer')}; "
                f"{found.unknown} {noun(found.unknown, 'is', 'are')} to other items, {found.truncated} "
                f"{noun(found.truncated, 'was', 'were')} cut at {noun(found.truncated, 'its', 'their')} limit"
            )
        if problems:
            raise DataError(problems)
        check_numbers(self._answers_to())  # here and not after days of sampling
        self.there: PairFolder | None = self._there()
        """What an earlier start of this job has left in `out`."""

    def _answers_to(self) -> Counter[str]:
        """Item id -> how many answers to it there will be."""
        found = Counter(c.item_id for c in self.of_files)
        if "references" in self.job.sources:
            found.update(c.item_id for c in references(self.items))
        if self.policy is not None:
            found.update({item.id: self.sampling.k for item in self.sampled_items})
        if self.writer is not None:
            found.update({item.id: 2 * self.job.contrast.k for item in self.items})
        return found

    @property
    def is_done(self) -> bool:
        """Whether all that this job would make is there. Else it is not, or lacks what failed on the way."""
        return self.there is not None and not self.there.meta.get("unfinished")

    def _masked(self, items: Iterable[Item]) -> list[Item]:
        return [self.job.guards.mask_item(item)[0] for item in items]

    @property
    def models(self) -> list[ModelAsker]:
        """All that is asked and may cost something."""
        judges = [] if self.judge is None else model_judges(self.judge)
        return [m for m in (self.policy, self.writer, *judges) if isinstance(m, ModelAsker)]

    def _billed(self, name: str, options: Mapping[str, Any]) -> dict[str, Any]:
        """Options with a run's name: one for all models, and the same for every start of the command."""
        if "run" not in options_of(name) or options.get("run") or run_of_environment():
            return dict(options)
        return {**options, "run": f"pairs {resolved(self.out)}"}

    def _policy(self) -> ModelAsker | str:
        job = self.job
        name = job.policy.model
        if not job.policy_is_remote:
            missing = [p for p in ("torch", "transformers") if importlib.util.find_spec(p) is None]
            if missing:
                raise MissingDependency(
                    f"sampling from {name} needs {', '.join(missing)}: pip install 'xyreward[train]'"
                )
            locate.folder_of(name, job.policy.revision)
            return name
        asker = load_sampler(name, self.sampling, **self._billed(name, job.policy_options))
        asker.check_ready()
        # Raises for items that an API cannot be asked.
        estimate_samples(asker, self.sampled_items, self.sampling)
        return asker

    def _tokens(self) -> TokenGuard | None:
        wanted, policy = self.job.tokens, self.job.policy
        if wanted is None:
            return None
        of = wanted if wanted.model is not None else policy
        return TokenGuard.load(
            of.model or policy.model,
            wanted.max_length,
            revision=of.revision,
            chat_template_kwargs=of.chat_template_kwargs,
        )

    def _there(self) -> PairFolder | None:
        """The set of this job that is there already, whole or not.

        Finds what would keep the folder from being written, before anything is paid for.
        """
        out = self.out
        if not out.parent.is_dir():
            raise RunFolderError(
                f"{out.parent}: is no folder, expected one to make {out.name} in; make it with mkdir"
            )
        if not os.access(out.parent, os.W_OK):
            raise RunFolderError(f"{out.parent}: cannot be written; choose another --out")
        # What is written beside it until all is there, names that are longer than its own.
        longest = f".{out.name}.samples.jsonl.job.01234567.partial"
        try:
            (out.parent / longest).lstat()
        except FileNotFoundError:
            pass
        except (OSError, ValueError) as error:
            raise RunFolderError(f"{out!s:.200}: cannot be made: {told(error)}") from None
        if not out.exists() or (out.is_dir() and not any(out.iterdir())):
            check_place(out)
            return None
        if not (out / "manifest.json").is_file():
            raise RunFolderError(f"{out}: is there and is no folder of pairs; give another --out")
        found = read_pairs(out)
        new = json.loads(json.dumps(self._meta([], {})))
        old = {**found.meta, "notes": [], "unfinished": {}}
        differing = [
            f"{place} ({was_and_is(before, now)})"
            for place, before, now in sorted(differences(old, new), key=lambda found: found[0])
        ]
        if differing:
            raise RunFolderError(
                f"{out}: holds pairs of another job, and is not overwritten; it differs in "
                f"{'; '.join(differing[:5])}{'; ...' if len(differing) > 5 else ''}. Give another --out, or "
                "remove it"
            )
        if found.meta.get("unfinished"):
            check_place(out)
            check_replaceable(out)
        return found

    # ---------------------------------------------------------------- what it would take

    def estimates(self) -> list[str]:
        """A line for each part of the work: what it would take now. Sends nothing.

        Answers that are not there yet are taken at their longest; the judge's part is exact where all
        are.
        """
        job, lines = self.job, []
        if self.is_done:
            return [f"the pairs of this job are in {self.out}: nothing is left to do"]
        expected = [
            *(references(self.items) if "references" in job.sources else ()),
            *self.of_files,
        ]
        if self.policy is not None:
            n = len(self.sampled_items) * self.sampling.k
            there: Sequence[Candidate] | None = None
            if isinstance(self.policy, ModelAsker):
                found = estimate_samples(self.policy, self.sampled_items, self.sampling)
                assert found is not None
                lines.append(
                    f"sampling {counted(n, 'answer')} of {self.policy.name_without_url}: {found}"
                )
                if not found.calls:
                    there = self._sample(None).candidates
            elif self.samples_file.exists():
                there = self._sample(self.samples_file).candidates
                lines.append(f"sampling {counted(n, 'answer')} of {self.policy}: they are there")
            else:
                lines.append(f"sampling {counted(n, 'answer')} of {self.policy}, on this machine")
            if there is None:
                # At four characters a token.
                longest = "word " * (job.on_policy.max_new_tokens * 4 // 5)
                expected += [
                    Candidate(item.id, f"{k} {longest}", "on_policy", "policy")
                    for item in self.sampled_items
                    for k in range(self.sampling.k)
                ]
            else:
                expected += there
        if self.writer is not None:
            found = estimate_contrast(self.shown, self.writer, job.contrast)
            n = 2 * len(self.items) * job.contrast.k
            lines.append(
                f"writing {counted(n, 'answer')} with {self.writer.name_without_url}: {found}"
            )
            if found.calls:
                expected += [
                    Candidate(
                        item.id, f"{k} {'words ' * job.contrast.words}", "contrastive", "writer"
                    )
                    for item in self.items
                    for k in range(2 * job.contrast.k)
                ]
            else:
                expected += write_contrast(self.shown, self.writer, job.contrast).candidates
        n = len(expected)
        if self.judge is None:
            lines.append(f"{counted(n, 'answer')} with labels, which no model judges")
            return lines
        of = {item.id: item for item in self.shown}
        items = [of[c.item_id] for c in expected]
        texts = [job.guards.mask(c.text)[0] for c in expected]
        told = described(self.judge, items, texts).removesuffix(" Nothing was sent.")
        lines.append(f"judging {counted(n, 'answer')} with {told}")
        if job.order_check:
            known = not any(
                judge.estimate(items, texts).calls for judge in model_judges(self.judge)
            )
            pairs = self._pairs_to_check(expected, known=known)
            found = estimate_order(pairs, self.shown, self.judge)
            lines.append(
                f"order-swapped check of {'' if known else 'at most '}{counted(len(pairs), 'pair')}: {found}"
            )
        return lines

    def _pairs_to_check(self, expected: Sequence[Candidate], *, known: bool) -> list[Pair]:
        """The pairs that the order-swapped check would be asked about.

        Args:
            expected: answers, some of them not written yet.
            known: the store has a verdict on each. Else there may be fewer pairs than these: as many as
                any verdicts could make.
        """
        job = self.job
        rule = job.rule
        if known:
            assert self.judge is not None
            return pairs_to_check(
                self.items,
                expected,
                self.judge,
                rule=rule,
                guards=job.guards,
                held_out=self.held_out,
                tokens=self.tokens,
                seed=job.seed,
            )
        of_item: dict[str, list[Judged]] = defaultdict(list)
        for candidate in expected:
            of_item[candidate.item_id].append(Judged(candidate, None, None, ""))
        pairs: list[Pair] = []
        for item in self.shown:
            possible: dict[tuple[str, str] | None, list[tuple[Judged, Judged]]] = defaultdict(list)
            for one, other in rule.proposals(item, of_item[item.id]):
                same = one.answer.provenance == other.answer.provenance
                if same or not rule.same_origin:
                    # Of n answers without a kind k are chosen over n - k, which is most at a half.
                    kindless = one.answer.kind is None and rule.margin_pairs is None and same
                    possible[one.answer.provenance if kindless else None].append((one, other))
            found: list[tuple[Judged, Judged]] = []
            for provenance, proposed in possible.items():
                n = sum(
                    a.answer.kind is None and a.answer.provenance == provenance
                    for a in of_item[item.id]
                )
                found += proposed if provenance is None else proposed[: n * n // 4]
            found = found[: rule.max_pairs_per_item]
            pairs += (pair_of(item, one, other, split=job.split) for one, other in found)
        return pairs

    # ---------------------------------------------------------------- the work

    @property
    def samples_file(self) -> Path:
        """Where the policy's answers are kept: beside the folder, which appears whole or not at all."""
        return self.out.with_name(f"{self.out.name}.samples.jsonl")

    def run(self, bar: Bar = no_bar) -> PairsReport:
        """Do it all; where `is_done`, read what is there.

        Raises:
            NoPairs: no pair can be made; nothing is written then. `dropped` has what failed for reasons that
                pass: empty where the same command would end so again.
            DataError: an answer with neither labels nor a judge, a format without a row.
            JudgeError, StoreError: see `build_pairs`; or a budget was spent on the way. What was paid for is
                in the store.
            RunFolderError: the samples' file is of another job, or something cannot be written.
        """
        job, notes = self.job, list(self._notes)
        if self.is_done:
            assert self.there is not None
            told = [*self.there.meta["notes"], "the pairs of this job were there; nothing was done"]
            return PairsReport(self.there.pairs, self.there.audit, self.out, told)
        failed: Counter[str] = Counter()
        answers: list[Candidate] = []
        if "references" in job.sources:
            answers += references(self.items)
        answers += self.of_files
        if self.policy is not None:
            total = len(self.sampled_items) * self.sampling.k
            asked = [self.policy] if isinstance(self.policy, ModelAsker) else []
            with bar("sampling", total, asked) as advance:
                sampled = self._sample(self.samples_file, advance)
            stop_over_budget(
                Counter(sampled.failed).elements(), "answers were not sampled", of=sampled.wanted
            )
            answers += sampled.candidates
            failed.update({f"sampling: {kind}": n for kind, n in sampled.failed.items()})
            notes.append(
                f"sampled {len(sampled.candidates):,} of {counted(sampled.wanted, 'answer')}; "
                f"{sampled.truncated} reached {self.sampling.max_new_tokens} tokens; failed: "
                f"{dict(sampled.failed) or 'none'}"
            )
        if self.writer is not None:
            with bar("writing", len(self.items) * job.contrast.k, [self.writer]) as advance:
                written = write_contrast(
                    self.shown, self.writer, job.contrast, on_reply=lambda: advance(1)
                )
            asked_for = len(self.items) * job.contrast.k
            stop_over_budget(
                Counter(written.failed).elements(),
                "replies of the writer were not asked for",
                of=asked_for,
            )
            answers += written.candidates
            failed.update({f"writing: {kind}": n for kind, n in written.failed.items()})
            notes.append(
                f"written {counted(len(written.candidates), 'answer')}; failed replies: "
                f"{dict(written.failed) or 'none'}"
            )
        writers = {a.origin for a in answers if a.source == "contrastive"}
        if warning := only_judge_is_writer(writers, self.judge):
            notes.append(warning)
        judges = [] if self.judge is None else model_judges(self.judge)
        votes = sum(judge.votes for judge in judges)
        with bar("judging and pairing", len(answers) * votes, judges):
            try:
                pairs = self._build(answers)
            except NoPairs as error:  # what came of sampling, and of files, says why
                failed.update(error.dropped)
                unfinished = _passing(failed)
                if unfinished:
                    notes.append(
                        f"{_listed(unfinished)}: the same command asks again for what failed"
                    )
                raise NoPairs([*error.problems, *notes], dropped=unfinished) from None
            except DataError as error:
                raise DataError([*error.problems, *notes]) from None
        failed.update(pairs.dropped)  # reasons, of which some are failures of the judge
        unfinished = _passing(failed)
        if unfinished:
            notes.append(
                f"not all that was wanted: {_listed(unfinished)}. The "
                "same command asks again for what failed, and replaces these pairs"
            )
        audit = audit_pairs(
            pairs, limits=AuditLimits.of(pairs, allow_origin=job.allow_origin), seed=job.seed
        )
        folder = write_pairs(
            pairs,
            audit,
            self.out,
            meta=self._meta(notes, unfinished),
            items=self.shown,
            formats=job.formats,
            containers=job.containers,
            replace=self.there is not None,
        )
        return PairsReport(pairs, audit, folder, notes)

    def _sample(self, out: Path | None, advance: Callable[[int], object] | None = None) -> Any:
        policy, wanted = self.job.policy, self.job.on_policy
        assert self.policy is not None
        options: dict[str, Any] = {}
        if isinstance(self.policy, str):
            options = {
                "revision": policy.revision,
                "dtype": policy.dtype,
                "chat_template_kwargs": policy.chat_template_kwargs,
            }
        return sample(
            self.policy,
            self.sampled_items,
            self.sampling,
            out=out,
            keep_truncated=wanted.keep_truncated,
            batch_size=wanted.batch_size,
            on_answers=advance,
            **options,
        )

    def _build(self, answers: list[Candidate]) -> PairSet:
        job = self.job
        return build_pairs(
            self.items,
            split=job.split,
            answers=answers,
            judge=self.judge,
            rule=job.rule,
            guards=job.guards,
            held_out=self.held_out,
            tokens=self.tokens,
            balance=job.balance,
            order_check=job.order_check,
            control_share=job.control_share,
            max_pairs=job.max_pairs,
            splits=self.sides.splits,
            seed=job.seed,
        )

    def _held_out(self) -> HeldOut:
        if self.job.split == "train":
            return self.sides.held_out
        mine = {item.id for item in self.items}
        return HeldOut([i for i in self.sides.items if i.id not in mine], self.sides.splits)

    def _meta(self, notes: Sequence[str], unfinished: Mapping[str, int]) -> dict[str, Any]:
        """What is recorded beside the pairs. All but notes and `unfinished` is known beforehand."""
        job = self.job
        of_files = hashlib.sha256(b"".join(map(line_of, self.of_files))).hexdigest()
        return {
            "config": _config(job),
            "judge": "reference labels"
            if self.judge is None
            else getattr(self.judge, "name_without_url", without_credentials(self.judge.name)),
            "rubric_version": "" if self.judge is None else self.judge.rubric_version,
            "seed": job.seed,
            "sources": list(self.sides.sources),
            "items_hash": items_hash(self.items),
            "held_out_hash": self.held_out.hash,
            "splits_hash": self.sides.splits.hash,
            **({"answers_hash": of_files} if job.answers else {}),
            **({"contrast_version": contrast_version()} if job.writer else {}),
            **({"order_version": order_version()} if job.order_check else {}),
            "notes": list(notes),
            "unfinished": dict(unfinished),
            "versions": {"xyreward": importlib.metadata.version("xyreward")},
        }


def _passing(failed: Mapping[str, int]) -> dict[str, int]:
    """Of what failed, that which the next start of the command may not meet."""
    return {what: n for what, n in failed.items() if what.rpartition(": ")[2] in PASSING and n}


def _listed(failed: Mapping[str, int]) -> str:
    return ", ".join(f"{what} {n}" for what, n in failed.items())


def _config(job: PairsJob) -> dict[str, Any]:
    """The configuration as it is written beside the pairs: what decides them, and no secret."""
    found = job.model_dump(
        mode="json", exclude={"judge_options", "policy_options", "writer_options"}
    )
    for name in ("judge", "writer"):
        if found[name] is not None:
            found[name] = without_credentials(found[name])
    found["policy"]["model"] = without_credentials(found["policy"]["model"])
    for name in ("judge_options", "policy_options", "writer_options"):
        found[name] = {k: v for k, v in getattr(job, name).items() if k not in OF_THE_BILL}
    return found
