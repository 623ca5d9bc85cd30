"""Which pairs a recipe trains on: of reference answers, of sampled ones, of files, or built before.

Not here: making pairs (`pairs/`), fitting them to the trainer (`recipe.fit_to_length`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from xyreward.config import DPORecipe, PairsRecipe
from xyreward.errors import DataError, LeakError
from xyreward.home import expanded
from xyreward.judges import Judge, billed_to, described, load_judge
from xyreward.pairs import PairSet, build_pairs
from xyreward.pairs.answers import none_belongs, read_answers
from xyreward.pairs.audit import Audit, AuditLimits, audit_pairs
from xyreward.pairs.candidates import Candidate, references
from xyreward.pairs.formats import pair_of_record, read_pairs, record_of
from xyreward.sides import limited
from xyreward.words import counted

if TYPE_CHECKING:
    from xyreward.recipe import Data


class TrainingPairs:
    """The pairs of a recipe, of which everything was checked that shows before a model is loaded.

    Raises:
        DataError: no pair can be made of reference answers; a file of answers or a folder of pairs that
            cannot be used.
        LeakError: pairs that were built with something else held out than this recipe evaluates on.
        JudgeError, StoreError, MissingDependency: the judge cannot be loaded, or cannot judge these
            items.
    """

    def __init__(self, config: PairsRecipe, data: Data) -> None:
        self.config = config
        self.data = data
        wanted = config.pairs
        self.are_sampled = "on_policy" in wanted.sources
        """Whether answers of the policy are needed, and so have to wait until it is loaded."""
        self.judge = pairs_judge(config)
        if self.judge is not None and (check := getattr(self.judge, "check", None)) is not None:
            check(list(data.train))
        self.answers: list[Candidate] = []
        if "references" in wanted.sources and wanted.built is None:
            self.answers += references(data.train)
        problems: list[str] = []
        for file in wanted.answers:
            path = expanded(file)
            found = read_answers(
                path,
                data.train,
                columns=wanted.columns,
                source="cross_model",
                origin=wanted.origin,
                skip_unknown=True,  # a file may have answers to the whole set
                section="pairs.",
            )
            problems += none_belongs(found, path, "the train side", data.train)
            self.answers += found.candidates
        if problems:
            raise DataError(problems)
        self._made: PairSet | None = None
        if wanted.built is not None:
            self._made = _built(wanted.built, data)
        elif self.judge is None:
            self._made = self._build(self.answers)

    def make(self, sampled: Sequence[Candidate] = ()) -> PairSet:
        """The pairs.

        Args:
            sampled: answers of the policy, where `are_sampled`.

        Raises:
            DataError: no pair can be made.
            JudgeError, StoreError: see `build_pairs`; what was paid for is in the store.
        """
        return self._made or self._build([*self.answers, *sampled])

    def _build(self, answers: Sequence[Candidate]) -> PairSet:
        wanted, data = self.config.pairs, self.data
        return build_pairs(
            data.train,
            split="train",
            answers=answers,
            judge=self.judge,
            rule=wanted.rule,
            guards=wanted.guards,
            held_out=data.kept_out,
            balance=wanted.balance,
            control_share=wanted.control_share,
            max_pairs=wanted.max_pairs,
            splits=data.splits,
            seed=self.config.seed,
        )

    def estimate(self) -> str:
        """A line on what making them would take, all rounds together. Sends nothing.

        Answers that are to be sampled are taken at their longest.
        """
        if self._made is not None:
            made = self._made
            left_out = ", ".join(f"{reason} {n}" for reason, n in sorted(made.dropped.items()))
            return (
                f"{counted(len(made.pairs), 'pair')}, {made.control_share:.0%} from controls"
                + (f" (left out: {left_out})" if left_out else "")
                + "; no model judges their answers"
            )
        assert self.judge is not None
        of = {item.id: item for item in self.data.train}
        expected = [(of[c.item_id], c.text) for c in self.answers]
        wanted = self.config.pairs.on_policy
        if self.are_sampled:
            assert isinstance(self.config, DPORecipe)
            longest = "word " * (wanted.max_new_tokens * 4 // 5)  # at four characters a token
            expected += [
                (item, f"{number} {longest}")
                for item in limited(self.data.train, wanted.limit)
                for number in range(wanted.samples * self.config.rounds)
            ]
        told = described(self.judge, [i for i, _ in expected], [text for _, text in expected])
        return f"pairs of {counted(len(expected), 'answer')}, judged by {told}"

    def plan(self, settings: Any) -> list[str]:
        """Lines on the training, where the pairs are known before the policy is loaded.

        Args:
            settings: TRL's DPOConfig.
        """
        from xyreward.recipe import planned_steps

        return [] if self._made is None else [planned_steps(settings, len(self._made.pairs))]


def make_pairs(config: PairsRecipe, data: Data, sampled: Sequence[Candidate] = ()) -> PairSet:
    """The pairs that a recipe trains on; see `TrainingPairs`."""
    return TrainingPairs(config, data).make(sampled)


def pairs_judge(config: PairsRecipe) -> Judge | None:
    """The judge of the candidates, or None where reference answers are taken by their labels.

    Raises:
        JudgeError, MissingDependency: it cannot be loaded.
    """
    wanted = config.pairs
    if wanted.judge is None or wanted.built is not None:
        return None
    # A bill apart from the evaluation's.
    options = billed_to(wanted.judge, wanted.judge_options, f"{config.bill} pairs")
    return load_judge(wanted.judge, **options)


def packed(pairs: PairSet) -> dict[str, Any]:
    """Pairs as plain data, for another process; without the examples of what was dropped."""
    plain = {f.name: getattr(pairs, f.name) for f in fields(PairSet)}
    plain |= {name: dict(value) for name, value in plain.items() if isinstance(value, Mapping)}
    return {**plain, "examples": (), "pairs": [record_of(pair) for pair in pairs.pairs]}


def unpacked(plain: Mapping[str, Any]) -> PairSet:
    """What `packed` packed."""
    return PairSet(**{**plain, "pairs": tuple(map(pair_of_record, plain["pairs"]))})


def _built(name: str, data: Data) -> PairSet:
    folder = read_pairs(expanded(name))
    if not folder.audit.ok or folder.pairs.problems:
        raise DataError(
            [
                f"{name}: its audit failed: {problem}. Build it anew, or allow it there"
                for problem in dict.fromkeys([*folder.audit.problems, *folder.pairs.problems])
            ]
        )
    built, here = folder.pairs.held_out_hash, data.kept_out.hash
    if built is None:
        raise LeakError(
            f"{name}: was built without anything held out, so that it may hold what this recipe evaluates; "
            "build it with `xyreward pairs`, or with build_pairs(held_out=...)"
        )
    if built != here:
        raise LeakError(
            f"{name}: was built with other items held out ({built:.12}) than dev and test of this recipe "
            f"({here:.12}); build it with the same items and splits_lock, or it may hold what is evaluated"
        )
    _refuse_held_out(name, folder.pairs, data)
    return folder.pairs


def _refuse_held_out(name: str, pairs: PairSet, data: Data) -> None:
    """What the folder says of itself is a hash; what its pairs say decides."""
    held_out = data.kept_out
    offending = {
        pair.item_id: reason
        for pair in pairs.pairs
        if (
            reason := held_out.query_objection("\n\n".join(m["content"] for m in pair.prompt))
            or held_out.answer_objection(pair.chosen)
            or held_out.answer_objection(pair.rejected)
        )
    }
    if offending:
        raise LeakError(
            f"{name}: pairs of {counted(len(offending), 'item')} hold what this recipe evaluates on "
            f"({'; '.join(sorted(set(offending.values())))}), the first is {next(iter(offending))!a}; build "
            "it with the same items and splits_lock",
            list(offending),
        )


def audited(config: PairsRecipe, pairs: PairSet) -> Audit:
    """The audit of what will be trained on.

    Raises:
        DataError: it failed; says what is wrong with the pairs.
    """
    wanted = config.pairs
    allow_origin = wanted.allow_origin or wanted.built is not None  # asked when it was built
    limits = AuditLimits.of(pairs, allow_origin=allow_origin)
    audit = audit_pairs(pairs, limits=limits, seed=config.seed)
    if not audit.ok:
        raise DataError([f"the pairs' audit: {problem}" for problem in audit.problems])
    return audit


def audit_facts(audit: Audit) -> dict[str, Any]:
    """The audit's summary for a recipe's report."""
    found: dict[str, Any] = {}
    for shortcut in audit.shortcuts:
        e = shortcut.accuracy
        if e is None:
            found[shortcut.name] = shortcut.note
        elif e.low is None or e.high is None:
            found[shortcut.name] = f"{e.value:.2f} (no interval)"
        else:
            found[shortcut.name] = f"{e.value:.2f} ({e.low:.2f} to {e.high:.2f})"
    return {
        "audit of the pairs, shortcut: share in which it picks chosen": found,
        "pairs by rule": dict(audit.by_rule),
        "pairs by judge": dict(audit.by_judge),
        "audit warnings": list(audit.warnings) or "none",
    }
