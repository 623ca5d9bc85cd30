"""Judges side by side on answers whose labels are known: agreement, ranking, cost, failures.

Before a judge is changed or trusted, see what it makes of `mini`'s test items: eight kinds of answer to
questions with a hidden goal, and the counter-test, controls where an answer that invents a goal must
rank below the one that just answers.

Not here: people's labels of your own answers (`agreement.py`, `xyreward agree`), the report's form
(`cli.py` prints what `to_markdown` gives).
"""

from __future__ import annotations

import statistics
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from xyreward.errors import DataError
from xyreward.items import Item, Reference
from xyreward.judges import Judge, check_gives_labels
from xyreward.judges.panel import refuse_same
from xyreward.reward import Reward
from xyreward.scoring import Score, ascore
from xyreward.shown import estimated
from xyreward.stats import Estimate, mean

LABELS = ("has_stated_solution", "has_intended_solution", "focus", "identifies_misconception")
BEST = ("goal_focused", "direct")


@dataclass(frozen=True, slots=True)
class JudgeFigures:
    """What one judge made of the labelled answers."""

    judge: str
    rubric_version: str
    answers: int
    failures: Mapping[str, Counter[str]]
    """By kind of answer, then by kind of failure. Failed answers are in no agreement and no ranking."""
    agreement: Mapping[str, Estimate | None]
    """Label -> share of judged answers on which it equals the reference's, in [0, 1], higher is better."""
    ranking: Mapping[str, Estimate | None]
    """`goal_focused above literal` -> share of items where the soft reward says so; ties count half."""
    seconds: float
    """All answers together, by the clock."""
    latency_s: float | None
    """Median of a call. None for a judge that makes none, or had all in its store."""
    cost_usd: float | None
    """Of what was paid now. None where the price is unknown."""

    @property
    def failed(self) -> int:
        """Answers without a verdict."""
        return sum(sum(kinds.values()) for kinds in self.failures.values())


def labelled(items: Sequence[Item], limit: int | None = None) -> list[Item]:
    """Items that have a labelled reference, the same `limit` of each kind whatever their order."""
    kept: list[Item] = []
    for kind in ("xy", "control"):
        of_kind = [i for i in items if i.kind == kind and any(_is_known(r) for r in i.references)]
        kept += sorted(of_kind, key=lambda item: item.content_hash)[:limit]
    return kept


def known_answers(items: Sequence[Item]) -> list[tuple[Item, Reference]]:
    """What judges are compared on: reference answers with a kind and labels.

    Raises:
        DataError: there are none.
    """
    known = [(item, r) for item in items for r in item.references if _is_known(r)]
    if not known:
        raise DataError(
            [
                f"no reference answer of these {len(items)} items has a kind and labels, so there is "
                "nothing to compare judges on; give `references` with labels, or use mini"
            ]
        )
    return known


def _is_known(reference: Reference) -> bool:
    return reference.labels is not None and reference.kind is not None


async def compare(
    judges: Sequence[Judge],
    items: Sequence[Item],
    clusters: Mapping[str, str] | None = None,
    *,
    on_judged: Callable[[int], object] | None = None,
) -> list[JudgeFigures]:
    """Let each judge label the `known_answers` of the items. One judge after the other.

    Args:
        judges: at least one.
        items: with labelled references.
        clusters: item id -> cluster for the intervals. None: every item is its own.
        on_judged: told how many more answers were judged.

    Raises:
        DataError: no reference has labels.
        JudgeError: see `Judge`; all judges are checked before the first one is asked. Also where two of
            them ask the same model at two addresses.
    """
    known = known_answers(items)
    refuse_same(judges)
    for judge in judges:
        check_gives_labels(judge)
        if check := getattr(judge, "check", None):
            check([item for item, _ in known])
    figures = []
    for judge in judges:
        figures.append(await _figures(judge, known, clusters or {}))
        if on_judged:
            on_judged(len(known))
    return figures


async def _figures(
    judge: Judge, known: Sequence[tuple[Item, Reference]], clusters: Mapping[str, str]
) -> JudgeFigures:
    stats = getattr(judge, "stats", None)
    unpriced = stats.unpriced_calls if stats else 0
    start = time.perf_counter()
    scores = await ascore(
        [item for item, _ in known], [r.text for _, r in known], judge, Reward(soft=True)
    )
    seconds = time.perf_counter() - start
    failures: dict[str, Counter[str]] = defaultdict(Counter)
    for (_, reference), score in zip(known, scores, strict=True):
        if score.failure is not None:
            failures[str(reference.kind)][score.failure.kind] += 1
    costs = [o.cost_usd for s in scores if (o := s.verdict or s.failure) is not None]
    unknown = any(c is None for c in costs) or (stats and stats.unpriced_calls > unpriced)
    return JudgeFigures(
        judge=judge.name,
        rubric_version=judge.rubric_version,
        answers=len(known),
        failures=dict(failures),
        agreement=_agreement(known, scores, clusters),
        ranking=ranking(known, scores, clusters),
        seconds=seconds,
        latency_s=statistics.median(stats.latencies) if stats and stats.latencies else None,
        cost_usd=None if unknown else sum(c for c in costs if c is not None),
    )


def _agreement(
    known: Sequence[tuple[Item, Reference]], scores: Sequence[Score], clusters: Mapping[str, str]
) -> dict[str, Estimate | None]:
    judged = [
        (clusters.get(item.id, item.id), reference.labels, score.verdict)
        for (item, reference), score in zip(known, scores, strict=True)
        if score.verdict is not None
    ]
    return {
        label: mean(
            [
                float(getattr(labels, label) == getattr(verdict, label))
                for _, labels, verdict in judged
            ],
            [cluster for cluster, _, _ in judged],
            bounds=(0, 1),
        )
        for label in LABELS
    }


def ranking(
    known: Sequence[tuple[Item, Reference]], scores: Sequence[Score], clusters: Mapping[str, str]
) -> dict[str, Estimate | None]:
    """How often the best answer to an item has the higher reward: `goal_focused above literal`, ...

    Args:
        known: answers of known kind.
        scores: of each, in order.
        clusters: item id -> cluster.

    Returns:
        Name -> share in [0, 1]; ties count half.
    """
    rewards: dict[str, dict[str, float]] = defaultdict(dict)
    seen: set[tuple[str, str]] = set()
    for (item, reference), score in zip(known, scores, strict=True):
        # Of several references of one kind the first counts, as everywhere, also where it failed.
        kind = str(reference.kind)
        if score.reward is not None and (item.id, kind) not in seen:
            rewards[item.id][kind] = score.reward
        seen.add((item.id, kind))
    wins: dict[str, list[tuple[float, str]]] = defaultdict(list)
    for item_id, by_kind in rewards.items():
        best = next((kind for kind in BEST if kind in by_kind), None)
        for kind, reward in by_kind.items():
            if best is not None and kind != best:
                win = (by_kind[best] > reward) + 0.5 * (by_kind[best] == reward)
                wins[f"{best} above {kind}"].append((win, clusters.get(item_id, item_id)))
    return {
        name: mean([w for w, _ in won], [c for _, c in won], bounds=(0, 1))
        for name, won in sorted(wins.items())
    }


def to_markdown(figures: Sequence[JudgeFigures]) -> str:
    """One table, a column per judge. Shares in %, with 95 % intervals over clusters of items."""
    rows: list[tuple[str, list[str]]] = [
        ("answers", [str(f.answers) for f in figures]),
        ("failed", [_failed(f) for f in figures]),
    ]
    rows += [(f"{label}, %", [cell(f.agreement[label]) for f in figures]) for label in LABELS]
    names = sorted({name for f in figures for name in f.ranking})
    rows += [(f"{name}, %", [cell(f.ranking.get(name)) for f in figures]) for name in names]
    rows += [
        ("US dollars", [_dollars(f.cost_usd) for f in figures]),
        ("median call, s", [_seconds(f.latency_s) for f in figures]),
        ("all answers, s", [f"{f.seconds:.1f}" for f in figures]),
        ("rubric", [f.rubric_version for f in figures]),
    ]
    lines = [
        "| | " + " | ".join(f.judge for f in figures) + " |",
        "|---|" + "---:|" * len(figures),
    ]
    lines += [f"| {name} | {' | '.join(cells)} |" for name, cells in rows]
    return "\n".join(lines)


def cell(estimate: Estimate | None) -> str:
    """A share in %, with its interval."""
    return estimated(estimate, digits=1, ends=0, scale=100)


def _failed(figures: JudgeFigures) -> str:
    by_kind = [
        f"{kind}: " + ", ".join(f"{failure} {n}" for failure, n in counts.most_common())
        for kind, counts in sorted(figures.failures.items())
    ]
    return f"{figures.failed} ({'; '.join(by_kind)})" if by_kind else "0"


def _dollars(cost: float | None) -> str:
    return "unknown" if cost is None else f"{cost:.4f}"


def _seconds(seconds: float | None) -> str:
    return "n/a" if seconds is None else f"{seconds:.2f}"
