"""`xyreward pairs`: answers of every source, judged, paired, audited, written.

Everything that can be wrong and shows without a call is checked first; what was paid for is in the store,
so that the same command goes on where it stopped and gives the same bytes.

Not here: making pairs (`pairs/`), what a recipe does with them (`training_pairs.py`).
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from xyreward import locate
from xyreward.config import PairsJob
from xyreward.errors import ConfigError, DataError, MissingDependency, RunFolderError, told
from xyreward.items import Item, items_hash
from xyreward.judges import Judge, described, joined_options, load_asker, load_judge, options_of
from xyreward.judges.asking import ModelAsker, run_of_environment
from xyreward.judges.panel import model_judges
from xyreward.judges.transport import without_credentials
from xyreward.pairs.answers import read_answers
from xyreward.pairs.audit import Audit, AuditLimits, audit_pairs
from xyreward.pairs.build import build_pairs
from xyreward.pairs.candidates import Candidate, references
from xyreward.pairs.contrastive import estimate_contrast, only_judge_is_writer, write_contrast
from xyreward.pairs.formats import check_wanted, read_pairs, write_pairs
from xyreward.pairs.guards import TokenGuard
from xyreward.pairs.held_out import HeldOut
from xyreward.pairs.order import askers_of, stop_over_budget
from xyreward.pairs.pair import PairSet
from xyreward.pairs.sampling import estimate_samples, load_sampler, sample
from xyreward.runs import OF_THE_BILL
from xyreward.sides import Sides, limited, load_sides

Bar = Callable[[str, int, Sequence[ModelAsker]], AbstractContextManager[Callable[[int], object]]]
"""A title, a total and the models at work -> what is told how many more pieces are done."""


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
        set_by_sampling = {"votes", "batches", "schema", "max_tokens", "temperature"}
        takes["policy_options"] = options_of(job.policy.model) - set_by_sampling
    if job.writer is not None:
        takes["writer_options"] = options_of(job.writer) - {"votes", "batches"}
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

    def __init__(self, job: PairsJob, out: Path) -> None:
        self.job = job
        self.out = out.expanduser()
        check_wanted(job.formats, job.containers)
        self.sides: Sides = load_sides(job.items, job.splits_lock)
        self.items = self.sides.select(job.split)
        self.held_out = self._held_out()
        self.sampled_items: list[Item] = limited(self.items, job.on_policy.limit)
        self.judge: Judge | None = None
        if job.judge is not None:
            self.judge = load_judge(job.judge, **self._billed(job.judge, job.judge_options))
            if (check := getattr(self.judge, "check", None)) is not None:
                check(list(self.items))
        if job.order_check:
            assert self.judge is not None
            askers_of(self.judge)  # refused here and not after hours of judging
        self.sampling = job.on_policy.sampling(job.seed)
        self.policy: ModelAsker | str | None = None
        if "on_policy" in job.sources:
            self.policy = self._policy()
        self.writer: ModelAsker | None = None
        if job.writer is not None:
            options = self._billed(job.writer, job.writer_options)
            self.writer = load_asker(job.writer, **options)
            self.writer.check_ready()
            # Raises for items that no answers can be written to, before anything is sampled.
            estimate_contrast(self.items, self.writer, job.contrast)
        self.tokens = self._tokens()
        self.of_files: list[Candidate] = []
        self._notes: list[str] = []
        for file in job.answers:
            found = read_answers(
                Path(file).expanduser(),
                self.items,
                columns=job.columns,
                source="cross_model",
                skip_unknown=True,
            )
            self.of_files += found.candidates
            self._notes.append(
                f"{file}: {len(found.candidates)} of {found.rows} answers; {found.unknown} are to other "
                f"items, {found.truncated} were cut at their limit"
            )
        self._refuse_others()

    @property
    def models(self) -> list[ModelAsker]:
        """All that is asked and may cost something."""
        judges = [] if self.judge is None else model_judges(self.judge)
        return [m for m in (self.policy, self.writer, *judges) if isinstance(m, ModelAsker)]

    def _billed(self, name: str, options: Mapping[str, Any]) -> dict[str, Any]:
        """Options with a run's name: one for all models, and the same for every start of the command."""
        if "run" not in options_of(name) or options.get("run") or run_of_environment():
            return dict(options)
        return {**options, "run": f"pairs {self.out.resolve()}"}

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

    def _refuse_others(self) -> None:
        """Find what would keep the folder from being written, before anything is paid for."""
        out = self.out
        if not out.parent.is_dir():
            raise RunFolderError(f"{out.parent}: is no folder, expected one to make {out.name} in")
        if not os.access(out.parent, os.W_OK):
            raise RunFolderError(f"{out.parent}: cannot be written; choose another --out")
        # What is written beside it until all is there, names that are longer than its own.
        longest = max(
            f"{out.name}.samples.jsonl.partial", f".{out.name}.0123456789.partial", key=len
        )
        try:
            (out.parent / longest).lstat()
        except FileNotFoundError:
            pass
        except (OSError, ValueError) as error:
            raise RunFolderError(f"{out!s:.200}: cannot be made: {told(error)}") from None
        if not out.exists() or (out.is_dir() and not any(out.iterdir())):
            return
        if not (out / "manifest.json").is_file():
            raise RunFolderError(f"{out}: is there and is no folder of pairs; give another --out")
        old = read_pairs(out).meta
        new = json.loads(json.dumps(self._meta([])))
        differing = _differences({**old, "notes": []}, new)
        if differing:
            raise RunFolderError(
                f"{out}: holds pairs of another job, and is not overwritten; it differs in "
                f"{'; '.join(differing[:5])}{'; ...' if len(differing) > 5 else ''}. Give another --out, or "
                "remove it"
            )

    # ---------------------------------------------------------------- what it would take

    def estimates(self) -> list[str]:
        """A line for each part of the work: what it would take now. Sends nothing.

        Answers that are not there yet are taken at their longest; the judge's part is exact where all
        are.
        """
        job, lines = self.job, []
        of = {item.id: item for item in self.items}
        answers = [*(references(self.items) if "references" in job.sources else ()), *self.of_files]
        expected = [(of[c.item_id], c.text) for c in answers]
        if self.policy is not None:
            n = len(self.sampled_items) * self.sampling.k
            there: Sequence[Candidate] | None = None
            if isinstance(self.policy, ModelAsker):
                found = estimate_samples(self.policy, self.sampled_items, self.sampling)
                assert found is not None
                lines.append(f"sampling {n} answers of {self.policy.name_without_url}: {found}")
                if not found.calls:
                    there = self._sample(None).candidates
            elif self.samples_file.exists():
                there = self._sample(self.samples_file).candidates
                lines.append(f"sampling {n} answers of {self.policy}: they are there")
            else:
                lines.append(f"sampling {n} answers of {self.policy}, on this machine")
            if there is None:
                # At four characters a token.
                longest = "word " * (job.on_policy.max_new_tokens * 4 // 5)
                expected += [
                    (item, f"{k} {longest}")
                    for item in self.sampled_items
                    for k in range(self.sampling.k)
                ]
            else:
                expected += [(of[c.item_id], c.text) for c in there]
        if self.writer is not None:
            found = estimate_contrast(self.items, self.writer, job.contrast)
            n = 2 * len(self.items) * job.contrast.k
            lines.append(f"writing {n} answers with {self.writer.name_without_url}: {found}")
            if found.calls:
                expected += [
                    (item, f"{k} {'words ' * job.contrast.words}")
                    for item in self.items
                    for k in range(2 * job.contrast.k)
                ]
            else:
                written = write_contrast(self.items, self.writer, job.contrast).candidates
                expected += [(of[c.item_id], c.text) for c in written]
        if self.judge is not None:
            items, texts = [item for item, _ in expected], [text for _, text in expected]
            told = described(self.judge, items, texts).removesuffix(" Nothing was sent.")
            lines.append(f"judging {len(texts)} answers with {told}")
        else:
            lines.append(f"{len(expected)} answers with labels, which no model judges")
        if job.order_check:
            lines.append("order-swapped check: two calls more for each pair that is made")
        return lines

    # ---------------------------------------------------------------- the work

    @property
    def samples_file(self) -> Path:
        """Where the policy's answers are kept: beside the folder, which appears whole or not at all."""
        return self.out.with_name(f"{self.out.name}.samples.jsonl")

    def run(self, bar: Bar = no_bar) -> PairsReport:
        """Do it all.

        Raises:
            DataError: no pair can be made; nothing is written then.
            JudgeError, StoreError: see `build_pairs`; or a budget was spent on the way. What was paid for is
                in the store.
            RunFolderError: the samples' file is of another job, or something cannot be written.
        """
        job, notes = self.job, list(self._notes)
        answers: list[Candidate] = []
        if "references" in job.sources:
            answers += references(self.items)
        answers += self.of_files
        if self.policy is not None:
            total = len(self.sampled_items) * self.sampling.k
            asked = [self.policy] if isinstance(self.policy, ModelAsker) else []
            with bar("sampling", total, asked) as advance:
                sampled = self._sample(self.samples_file, advance)
            _stop_over_budget(sampled.failed, sampled.wanted, "answers were not sampled")
            answers += sampled.candidates
            notes.append(
                f"sampled {len(sampled.candidates)} of {sampled.wanted} answers; {sampled.truncated} reached "
                f"{self.sampling.max_new_tokens} tokens; failed: {dict(sampled.failed) or 'none'}"
            )
        if self.writer is not None:
            with bar("writing", len(self.items) * job.contrast.k, [self.writer]) as advance:
                written = write_contrast(
                    self.items, self.writer, job.contrast, on_reply=lambda: advance(1)
                )
            asked_for = len(self.items) * job.contrast.k
            _stop_over_budget(written.failed, asked_for, "replies of the writer were not asked for")
            answers += written.candidates
            notes.append(
                f"written {len(written.candidates)} answers; failed replies: "
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
            except DataError as error:  # what came of sampling, and of files, says why
                raise DataError([*error.problems, *notes]) from None
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
            items=[job.guards.mask_item(item)[0] for item in self.items],
            formats=job.formats,
            containers=job.containers,
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
            clusters=self.sides.clusters(self.items),
            seed=job.seed,
        )

    def _held_out(self) -> HeldOut:
        if self.job.split == "train":
            return self.sides.held_out
        mine = {item.id for item in self.items}
        return HeldOut([i for i in self.sides.items if i.id not in mine], self.sides.splits)

    def _meta(self, notes: Sequence[str]) -> dict[str, Any]:
        job = self.job
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
            "notes": list(notes),
            "versions": {"xyreward": importlib.metadata.version("xyreward")},
        }


def _stop_over_budget(failed: Mapping[str, int], wanted: int, what: str) -> None:
    missing = failed.get("over_budget", 0)
    stop_over_budget(["over_budget"] * missing + [""] * (wanted - missing), what)


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


def _differences(old: Any, new: Any, place: str = "") -> list[str]:
    """Places in which two values of JSON differ, with both."""
    if isinstance(old, dict) and isinstance(new, dict):
        return [
            line
            for key in sorted({*old, *new})
            for line in _differences(old.get(key), new.get(key), f"{place}.{key}".lstrip("."))
        ]
    return [] if old == new else [f"{place} (was {old!r:.60}, is {new!r:.60})"]
