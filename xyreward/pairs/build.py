"""Build preference pairs: judge candidates, apply the rule and the guards, balance, and count it all.

Not here: where candidates come from (`candidates.py`, `sampling.py`, `contrastive.py`), measuring what
came out (`audit.py`), writing it (`formats.py`).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

from xyreward.errors import ConfigError, DataError
from xyreward.items import Item, text_hash
from xyreward.judges import Judge, load_judge
from xyreward.pairs.candidates import Candidate, Judged, by_judge, by_labels, references
from xyreward.pairs.pair import EXAMPLES, LeftOut, Pair, PairRule, PairSet, pair_of
from xyreward.pairs.rule import NEITHER, NEITHER_OVERCORRECTS, Rule
from xyreward.scoring import run_sync


def build_pairs(
    items: Sequence[Item],
    *,
    split: str,
    answers: Sequence[Candidate] | None = None,
    judge: str | Judge | None = None,
    rule: Rule | None = None,
    control_share: float = 0.25,
    max_pairs: int | None = None,
    clusters: Mapping[str, str] | None = None,
    seed: int = 0,
) -> PairSet:
    """Make preference pairs.

    Args:
        items: the items of one side of the splits.
        split: its name, recorded in every pair.
        answers: candidates; those to other items are an error. None: the items' reference answers.
        judge: judges every candidate; a name or a judge. None: reference answers by their labels, or
            where a person gave none, by the labels that their kind has.
        rule: which two answers make a pair.
        control_share: share of pairs from controls, in [0, 1). Fewer where there are not enough.
        max_pairs: at most this many pairs, > 0. None: all. Every item's pair with the first of
            `rule.rejected_kinds` is taken before any with the second.
        clusters: item id -> name of its cluster (`Splits`); the item's own hash where it has none.
        seed: decides which pairs are taken where there are too many, and their order.

    Raises:
        ConfigError: a share outside [0, 1), or no pairs wanted.
        DataError: an answer to an item that is not there, an answer without labels and no judge, or no
            pair can be made of these.
        JudgeError: the judge cannot judge these items.
    """
    rule = rule or Rule()
    if not 0 <= control_share < 1:
        raise ConfigError(f"control_share is {control_share}, expected in [0, 1)")
    if max_pairs is not None and max_pairs < 1:
        raise ConfigError(f"max_pairs is {max_pairs}, expected > 0, or None for all")
    by_id = {item.id: item for item in items}
    candidates = references(items) if answers is None else list(answers)
    if strange := sorted({c.item_id for c in candidates} - by_id.keys()):
        raise DataError(
            [f"answer to item {name!r}, which is not among the {len(items)}" for name in strange]
        )
    judged = judge_candidates(by_id, candidates, judge)

    of_item: dict[str, list[Judged]] = defaultdict(list)
    for one in judged:
        of_item[one.answer.item_id].append(one)
    ledger = _Ledger()
    ranked: list[tuple[int, str, Pair]] = []
    controls: list[tuple[int, str, Pair]] = []
    for item in items:
        cluster = (clusters or {}).get(item.id)
        made = _of_item(item, of_item.get(item.id, ()), rule, split, cluster, seed, ledger)
        for pair in made:
            kinds = rule.rejected_kinds
            rank = kinds.index(pair.rejected_kind) if pair.rejected_kind in kinds else 0
            side = controls if item.kind == "control" else ranked
            side.append((rank, _order(pair, seed), pair))
    ranked.sort(key=lambda entry: entry[:2])
    controls.sort(key=lambda entry: entry[:2])

    xy_wanted, controls_wanted = _counts(len(ranked), len(controls), control_share, max_pairs)
    for _, _, pair in ranked[xy_wanted:]:
        ledger.drop("above max_pairs", pair)
    for _, _, pair in controls[controls_wanted:]:
        ledger.drop("above control_share", pair)
    pairs = [pair for _, _, pair in ranked[:xy_wanted] + controls[:controls_wanted]]
    if not pairs:
        raise DataError(
            [
                f"no pair can be made of {len(items)} {split} items with {len(candidates)} answers; "
                f"dropped: {dict(ledger.dropped) or 'nothing'}. Of reference answers an xy item needs a "
                f"goal_focused one and one of {', '.join(rule.rejected_kinds)}, a control needs direct "
                "and overcorrecting; of other answers, one that is to be taught and one that is not"
            ]
        )
    # One order for all: pairs of one kind in a row would give batches of one kind.
    pairs.sort(key=lambda pair: _order(pair, seed))
    return PairSet(
        tuple(pairs),
        MappingProxyType(dict(sorted(ledger.dropped.items()))),
        candidates=ledger.candidates,
        examples=tuple(ledger.examples),
    )


def judge_candidates(
    items: Mapping[str, Item], candidates: Sequence[Candidate], judge: str | Judge | None
) -> list[Judged]:
    """A verdict for each candidate, in order.

    Raises:
        DataError: no judge, and nothing says what labels a candidate has.
        JudgeError: the judge cannot judge these items.
    """
    if judge is not None:
        return run_sync(by_judge(items, candidates, load_judge(judge)))
    judged = [by_labels(items[c.item_id], c) for c in candidates]
    known = [one for one in judged if one is not None]
    without = len(judged) - len(known)
    if without and any(c.source != "references" for c in candidates):
        raise DataError(
            [f"{without} of {len(candidates)} answers have neither labels nor kind; give a judge"]
        )
    return known


class _Ledger:
    """Counts of candidate pairs and of what was dropped, with examples."""

    def __init__(self) -> None:
        self.candidates = 0
        self.dropped: Counter[str] = Counter()
        self.examples: list[LeftOut] = []

    def drop(self, reason: str, pair: Pair | Callable[[], Pair | None], item_id: str = "") -> None:
        self.dropped[reason] += 1
        if self.dropped[reason] <= EXAMPLES:
            shown = pair() if callable(pair) else pair
            self.examples.append(LeftOut(shown, shown.item_id if shown else item_id, reason))


def _of_item(
    item: Item,
    answers: Sequence[Judged],
    rule: Rule,
    split: str,
    cluster: str | None,
    seed: int,
    ledger: _Ledger,
) -> list[Pair]:
    """The pairs of one item; everything else goes into the ledger."""

    def put(chosen: Judged, rejected: Judged, why: PairRule = "goal_focused") -> Pair:
        return pair_of(item, chosen, rejected, split=split, cluster=cluster, rule=why)

    eligible: list[tuple[Judged, Judged, PairRule]] = []
    undecided: list[tuple[str, Judged, Judged]] = []
    for one, other in rule.proposals(item, answers):
        ledger.candidates += 1
        found = rule.decide(item, one, other)
        if not isinstance(found, str):
            eligible.append(found)
        elif found in (NEITHER, NEITHER_OVERCORRECTS):
            undecided.append((found, one, other))
        else:
            ledger.drop(found, lambda a=one, b=other: _shown(put, a, b), item.id)
    for reason, one, other in undecided:
        found = reason
        if rule.margin_pairs is not None and not any(e[2] == "goal_focused" for e in eligible):
            again = rule.decide(item, one, other, by_margin=True)
            if not isinstance(again, str):
                eligible.append(again)
                continue
            found = again
        ledger.drop(found, lambda a=one, b=other: _shown(put, a, b), item.id)

    made = [put(*found) for found in eligible]
    limit = rule.max_pairs_per_item
    made.sort(key=lambda pair: (-pair.margin, _order(pair, seed)))
    kept: list[Pair] = []
    seen: set[tuple[str, str]] = set()
    used: set[int] = set()
    later: list[Pair] = []
    for fresh_only, queue in ((True, made), (False, later)):
        for pair in queue:
            sides = {id(pair.chosen_answer), id(pair.rejected_answer)}
            if limit is not None and fresh_only and sides & used:
                later.append(pair)
            elif limit is not None and len(kept) >= limit:
                ledger.drop("above max_pairs_per_item", pair)
            elif reason := _objection(pair, seen):
                ledger.drop(reason, pair)
            else:
                kept.append(pair)
                used |= sides
    return kept


def _objection(pair: Pair, seen: set[tuple[str, str]]) -> str | None:
    sides = text_hash(pair.chosen), text_hash(pair.rejected)
    if sides[0] == sides[1]:
        return "both sides read the same"
    if sides in seen:
        return "repeats another pair of its item"
    seen.add(sides)
    return None


def _shown(put: Callable[[Judged, Judged], Pair], one: Judged, other: Judged) -> Pair | None:
    """A dropped candidate as a pair to look at, the better answer first; None without verdicts."""
    if one.reward is None or other.reward is None:
        return None
    return put(one, other) if one.reward >= other.reward else put(other, one)


def _counts(xy: int, controls: int, share: float, limit: int | None) -> tuple[int, int]:
    """How many pairs of either kind: the share holds as long as there are controls."""
    limit = limit if limit is not None else xy + controls
    controls = min(controls, round(share * limit), round(xy * share / (1 - share)))
    return min(xy, limit - controls), controls


def _order(pair: Pair, seed: int) -> str:
    return text_hash(f"{seed} {pair.id}")
