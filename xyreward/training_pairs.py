"""Which pairs a recipe trains on: of reference answers, of sampled ones, of files, or built before.

Not here: making pairs (`pairs/`), fitting them to the trainer (`recipe.fit_to_length`).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from xyreward.config import DPORecipe
from xyreward.errors import ConfigError, DataError, LeakError
from xyreward.judges import Judge, load_judge
from xyreward.pairs import PairSet, build_pairs
from xyreward.pairs.answers import read_answers
from xyreward.pairs.audit import Audit, AuditLimits, audit_pairs
from xyreward.pairs.candidates import Candidate, references
from xyreward.pairs.formats import read_pairs

if TYPE_CHECKING:
    from xyreward.recipe import Data


def are_sampled(config: DPORecipe) -> bool:
    """Whether the pairs need answers of the policy, and so have to wait until it is loaded."""
    return config.pairs.built is None and "on_policy" in config.pairs.sources


def pairs_judge(config: DPORecipe) -> Judge | None:
    """The judge of the candidates, or None where reference answers are taken by their labels.

    Raises:
        ConfigError: an option that would be written into the run folder and must not be.
        JudgeError, MissingDependency: it cannot be loaded.
    """
    wanted = config.pairs
    if wanted.judge is None:
        return None
    options: dict[str, Any] = dict(wanted.judge_options)
    if "api_key" in options:
        raise ConfigError(
            "pairs.judge_options.api_key: would be written into the run folder; set the key in the "
            "environment (ANTHROPIC_API_KEY, XYREWARD_CHAT_KEY)"
        )
    if wanted.judge.partition(":")[0] in ("anthropic", "chat", "panel"):
        folder = Path(config.output_dir).expanduser().resolve()
        options.setdefault("run", f"{folder} pairs")  # a bill apart from the evaluation's
    return load_judge(wanted.judge, **options)


def make_pairs(config: DPORecipe, data: Data, sampled: Sequence[Candidate] = ()) -> PairSet:
    """The pairs that a recipe trains on.

    Args:
        config: of the recipe.
        data: whose train side they are of.
        sampled: answers of the policy, where `are_sampled`.

    Raises:
        DataError: no pair can be made; a file of answers or a folder of pairs that cannot be used.
        LeakError: pairs that were built with something else held out than this recipe evaluates on.
        JudgeError: the judge cannot judge these items.
    """
    wanted = config.pairs
    if wanted.built is not None:
        return _built(wanted.built, data)
    answers: list[Candidate] = []
    if "references" in wanted.sources:
        answers += references(data.train)
    for file in wanted.answers:
        # A file may have answers to the whole set.
        answers += read_answers(
            Path(file).expanduser(), data.train, source="cross_model", skip_unknown=True
        ).candidates
    answers += sampled
    return build_pairs(
        data.train,
        split="train",
        answers=answers,
        judge=pairs_judge(config),
        rule=wanted.rule,
        guards=wanted.guards,
        held_out=data.sides.held_out,
        balance=wanted.balance,
        control_share=wanted.control_share,
        max_pairs=wanted.max_pairs,
        clusters=data.sides.clusters(data.train),
        seed=config.seed,
    )


def _built(name: str, data: Data) -> PairSet:
    folder = read_pairs(Path(name).expanduser())
    if not folder.audit.ok:
        raise DataError(
            [
                f"{name}: its audit failed: {problem}. Build it anew, or allow it there"
                for problem in folder.audit.problems
            ]
        )
    built, here = folder.meta.get("held_out_hash"), data.sides.held_out.hash
    if built != here:
        raise LeakError(
            f"{name}: was built with other items held out ({built!s:.12}) than dev and test of this recipe "
            f"({here:.12}); build it with the same items and splits_lock, or it may hold what is evaluated"
        )
    return folder.pairs


def audited(config: DPORecipe, pairs: PairSet) -> Audit:
    """The audit of what will be trained on.

    Raises:
        DataError: it failed; says what is wrong with the pairs.
    """
    wanted = config.pairs
    limits = AuditLimits(
        simple=wanted.balance if wanted.balance is not None else AuditLimits().simple,
        balanced=wanted.balance is not None,
        allow_origin=wanted.allow_origin or wanted.built is not None,  # asked when it was built
    )
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
