"""What a run says beside its figures: its bill, notes at the headline, the cards of what it trained.

Not here: the figures (`report.py`), the text of a card (`model_card.py`).
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from xyreward import report as reports
from xyreward.answering import place_of
from xyreward.calibrate import covered_by
from xyreward.config import (
    DPORecipe,
    EvaluateRecipe,
    GRPORecipe,
    PairsRecipe,
    Recipe,
    RewardModelRecipe,
    SFTRecipe,
)
from xyreward.eval_results import OF_TRAIN_SIDE, model_index
from xyreward.evaluation import Evaluation
from xyreward.judges import Judge
from xyreward.judges.asking import ModelAsker
from xyreward.judges.panel import model_judges
from xyreward.judges.reward_model import RewardModelJudge
from xyreward.locate import Mark
from xyreward.model_card import Method, add_report, model_card
from xyreward.pairs import PairSet
from xyreward.prices import without_url
from xyreward.recipe.checks import remote_policy
from xyreward.runs import RunFolder
from xyreward.training_prompts import Prompts

Card = Callable[[Mapping[str, Any]], str]
"""Facts to the text of a card."""

METHODS: Mapping[type[Recipe], Method] = {
    DPORecipe: "DPO",
    GRPORecipe: "GRPO",
    RewardModelRecipe: "reward modelling",
    SFTRecipe: "SFT",
}
"""What a recipe does, in words of its cards."""

CALIBRATION = "judge against people"
"""The fact that says which calibration record covers a run's judge."""


def bill_of(config: Recipe, judge: Callable[[], Judge]) -> dict[str, Any]:
    """What judges cost over all processes, resumptions and rounds, where they are such as may cost.

    Args:
        config: of the run.
        judge: gives that of the evaluation; called only where something was written.
    """
    from xyreward.grpo import judges_of_training
    from xyreward.reward_model import distilled_judge
    from xyreward.training_pairs import pairs_judge

    judges: dict[str, Judge | ModelAsker] = {}
    if place_of(config.policy.model) == "api" and isinstance(config, EvaluateRecipe):
        judges["policy"] = remote_policy(config).asker
    if "writing" in config.evaluation.parts:
        judges["judge"] = judge()
    judge_of_pairs = pairs_judge(config) if isinstance(config, PairsRecipe) else None
    if judge_of_pairs is not None:
        judges["judge of pairs"] = judge_of_pairs
    if isinstance(config, RewardModelRecipe):
        judges["distilled judge"] = distilled_judge(config)
    if isinstance(config, GRPORecipe):
        judges |= judges_of_training(config)
    of_runs: dict[tuple[str, str], list[str]] = {}
    asked: dict[tuple[str, str], ModelAsker] = {}
    for name, asks in judges.items():
        for one in [asks] if isinstance(asks, ModelAsker) else model_judges(asks):
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


def headline_notes(config: Recipe, found: Evaluation, trained_by: frozenset[str]) -> list[str]:
    """What a reader must know of the difference: also whether its judge made the training signal, too.

    Args:
        config: of the run.
        found: the evaluation.
        trained_by: names of the judges of the pairs that are trained on.
    """
    notes: list[str] = []
    made = {"judged the pairs": trained_by}
    if isinstance(config, GRPORecipe):
        if config.sft is not None:
            notes.append(
                "Before is the policy as it was named: what changed since is the work of an SFT on "
                "chosen answers and of GRPO after it, together."
            )
        from xyreward.grpo import judges_of_training

        rewards = judges_of_training(config)["judge of rewards"]
        made["gave the rewards"] = frozenset({rewards.name})
        if isinstance(rewards, RewardModelJudge):  # it has that judge's errors, and its own
            made["gave the rewards"] |= {rewards.distilled.judge}
    shared: dict[str, list[str]] = defaultdict(list)
    for judge in sorted(_single_judges({found.judge or ""})):
        did = [what for what, names in made.items() if judge in _single_judges(names)]
        if did:
            shared[" and ".join(did)].append(judge)
    return notes + [
        f"Judge {', '.join(judges)} evaluates here and {did} of the training: what the policy "
        "learned of its errors looks like progress. evaluation.judge sets another."
        for did, judges in shared.items()
    ]


def card_of(
    config: Recipe, folder: RunFolder, mark: Mark, trained: PairSet | Prompts, *, adapter: bool
) -> Card:
    """What makes the card of something trained from further facts; see `model_card`.

    It does not hold the run: the trainer, which is full of cycles, would keep the folder's lock.
    """
    recorded = json.loads(folder.read("data.json") or "{}")
    wanted = ("policy hash", "train items", "train hash", "held-out hash", "splits hash")
    known = {key: recorded[key] for key in wanted if key in recorded}
    settings = config.of_trainer
    made = METHODS[type(config)]
    return lambda facts: model_card(
        mark, trained, {**known, **facts}, settings, adapter=adapter, method=made
    )


def complete_cards(config: Recipe, folder: RunFolder, report: Mapping[str, Any]) -> None:
    """Put the report into the card of what was trained, without names of this machine's folders."""
    if "after" not in report["policies"]:
        return
    told = {
        key: report["facts"][key] for key in ("evaluated", OF_TRAIN_SIDE) if key in report["facts"]
    }
    named = {**report, "policies": {"before": "the base", "after": "this"}, "facts": told}
    items = [one.model_dump() for one in config.items]
    index = model_index(report, items, folder.path.name, config.evaluation)
    for name in ("adapter", "model"):
        add_report(folder.path / name, reports.to_markdown(named), index)


def calibration(evaluation: Evaluation) -> dict[str, str]:
    """As it is known when the run ends: records made later do not change a report that is built again."""
    if not (evaluation.judge and evaluation.rubric_version):
        return {}
    # An empty answer's verdict is no one's, and says of no goal whether it was inferred.
    grounded = all(row.verdict.get("grounded", True) for row in evaluation.rows if row.verdict)
    return {CALIBRATION: covered_by(evaluation.judge, evaluation.rubric_version, grounded=grounded)}


def _sum_of(usd: float, unpriced: int) -> float | str:
    """A sum of money for a report; never 0 where that only means that no price is known."""
    return "unknown" if unpriced and not usd else round(usd, 4)


def _single_judges(names: Iterable[str]) -> frozenset[str]:
    """Judges by these names, members of panels one by one, without addresses of servers."""
    singles = (one for name in names for one in name.removeprefix("panel:").split(","))
    return frozenset(without_url(one.strip()) for one in singles) - {""}
