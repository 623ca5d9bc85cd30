"""Build preference pairs: judge candidates, apply the rule and the guards, balance, and count it all.

Not here: where candidates come from (`candidates.py`, `sampling.py`, `contrastive.py`), measuring what
came out (`audit.py`), writing it (`formats.py`).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

from xyreward.errors import ConfigError, DataError
from xyreward.items import Item, text_hash
from xyreward.judges import Judge, check_gives_labels, load_judge
from xyreward.pairs.balance import balanced
from xyreward.pairs.candidates import (
    Candidate,
    Judged,
    by_judge,
    by_labels,
    check_numbers,
    references,
)
from xyreward.pairs.guards import Guards, TokenGuard
from xyreward.pairs.held_out import HeldOut
from xyreward.pairs.language import NOTHING, Told
from xyreward.pairs.order import check_comparable, check_order
from xyreward.pairs.pair import EXAMPLES, LeftOut, Pair, PairRule, PairSet, pair_of
from xyreward.pairs.rule import NEITHER, NEITHER_OVERCORRECTS, NOT_JUDGED, Rule
from xyreward.scoring import run_sync, stop_over_budget
from xyreward.splits import Splits, clusters_of
from xyreward.words import counted, noun


class NoPairs(DataError):  # noqa: N818  # reads as what it is
    """No pair is left, or none can be made."""

    def __init__(
        self, problems: Sequence[str], *, dropped: Mapping[str, int] | None = None, shown: int = 20
    ) -> None:
        self.dropped = dict(dropped or {})
        """Reason -> how many candidate pairs or answers were dropped for it."""
        super().__init__(problems, shown=shown)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self)._of, (self.problems, self.dropped)

    @classmethod
    def _of(cls, problems: Sequence[str], dropped: Mapping[str, int]) -> NoPairs:
        return cls(problems, dropped=dropped)


def build_pairs(
    items: Sequence[Item],
    *,
    split: str,
    answers: Sequence[Candidate] | None = None,
    judge: str | Judge | None = None,
    rule: Rule | None = None,
    guards: Guards | None = None,
    held_out: HeldOut | None = None,
    tokens: TokenGuard | None = None,
    order_check: bool = False,
    balance: float | None = None,
    control_share: float = 0.25,
    max_pairs: int | None = None,
    splits: Splits | None = None,
    seed: int = 0,
) -> PairSet:
    """Make preference pairs. Where it stops short of the result, nothing is half made.

    Args:
        items: the items of one side of the splits.
        split: its name, recorded in every pair.
        answers: candidates; those to other items are an error. None: the items' reference answers.
        judge: judges every candidate; a name or a judge. None: reference answers by their labels, or
            where a person gave none, by the labels that their kind has.
        rule: which two answers make a pair.
        guards: what else a pair must not be; the defaults of `Guards`.
        held_out: what is evaluated, and must be neither among the items nor inside an answer.
        tokens: what the trainer sees of a pair, so that both sides differ in that.
        order_check: let the judge see both answers in both orders, and drop pairs in which it does not
            prefer chosen twice. It must be one that asks a model.
        balance: choose pairs on which fixed shortcuts (longer wins, more cue words, ...) pick chosen in a
            share of 0.5 +- this, in [0, 0.5]. None: no balancing.
        control_share: share of pairs from controls, in [0, 1). Fewer where there are not enough.
        max_pairs: at most this many pairs, > 0. None: all. Without `balance` every item's pair with the
            first of `rule.rejected_kinds` is taken before any with the second.
        splits: whose clusters the items are in. None: those of `held_out`. Items that neither knows are in
            one cluster where they nearly repeat each other or share a `group`.
        seed: decides which pairs are taken where there are too many, and their order.

    Raises:
        ConfigError: a share outside its range, or no pairs wanted.
        DataError: an answer to an item that is not there, an answer without labels and no judge, more than
            1,000 answers to an item (`candidates.MAX_ANSWERS`), or no pair can be made of these.
        JudgeError: the judge cannot judge these items, or compare answers to them where `order_check` is
            asked for; or its budget was spent before all of them were judged: pairs of what was judged by
            then are no sample of anything.
    """
    if not 0 <= control_share < 1:
        raise ConfigError(f"control_share is {control_share}, expected in [0, 1)")
    if max_pairs is not None and max_pairs < 1:
        raise ConfigError(f"max_pairs is {max_pairs}, expected > 0, or None for all")
    if balance is not None and not 0 <= balance <= 0.5:
        raise ConfigError(f"balance is {balance}, expected in [0, 0.5], or None for none")
    if order_check and judge is None:
        raise ConfigError("order_check needs a judge; give one that asks a model")
    loaded = None if judge is None else load_judge(judge)
    candidates = references(items) if answers is None else list(answers)
    by_id = {item.id: item for item in items}
    if strange := sorted({c.item_id for c in candidates} - by_id.keys()):
        raise DataError(
            [f"answer to item {name!r}, which is not among the {len(items)}" for name in strange]
        )
    check_numbers(Counter(c.item_id for c in candidates))
    if order_check:
        assert loaded is not None
        answered = {c.item_id for c in candidates}
        check_comparable((item for item in items if item.id in answered), loaded)
    if splits is None and held_out is not None:
        splits = held_out.splits
    clusters = clusters_of(items, splits)
    maker = _Maker(rule or Rule(), guards or Guards(), held_out, tokens, split, clusters, seed)
    made, shown = maker.made(items, candidates, loaded)
    if order_check:
        assert loaded is not None
        checked = check_order(made, list(shown.values()), loaded, seed=seed)
        made = list(checked.kept)
        for pair, reason in checked.dropped:
            maker.drop(reason, pair)
    if balance is None:
        pairs = maker.take(made, control_share, max_pairs)
    else:
        pairs, left = balanced(
            made, tolerance=balance, limit=max_pairs, control_share=control_share, seed=seed
        )
        for pair in left:
            maker.drop("for balance", pair)
    if not pairs and made:
        raise NoPairs(
            [
                f"no pair is left of {len(made)} that were made; dropped: {_told(maker.dropped)}. Controls "
                f"are at most a share of control_share={control_share:g}, so that they need pairs of items "
                "with a hidden goal; max_pairs and balance may leave room for none, raise them"
            ],
            dropped=maker.dropped,
        )
    if not pairs:
        raise NoPairs(
            [
                f"no pair can be made of {counted(len(items), f'{split} item')} with "
                f"{counted(len(candidates), 'answer')}; "
                f"dropped: {_told(maker.dropped)}. "
                + (
                    "Answers without labels make none: name a judge (xyreward pairs --judge, pairs.judge), "
                    "or take a set that was built with one (pairs.built)"
                    if maker.dropped.keys() == {NOT_JUDGED}
                    else "Of reference answers an xy item needs a goal_focused one and one of "
                    f"{', '.join(maker.rule.rejected_kinds)}, a control needs direct and overcorrecting; of "
                    "other answers, one that is to be taught and one that is not (rule.margin_pairs takes "
                    "others)"
                )
            ],
            dropped=maker.dropped,
        )
    # One order for all: pairs of one kind in a row would give batches of one kind.
    pairs.sort(key=lambda pair: _order(pair, seed))
    masked: Counter[str] = Counter()
    for item_id in {pair.item_id for pair in pairs}:
        masked += maker.masked.get(item_id, Counter())
    return PairSet(
        tuple(pairs),
        MappingProxyType(dict(sorted(maker.dropped.items()))),
        candidates=maker.candidates,
        examples=tuple(maker.examples),
        cut=sum(pair.id in maker.cut for pair in pairs),
        examined=maker.examined,
        unpaired=MappingProxyType(dict(sorted(maker.unpaired.items()))),
        problems=maker.guards.problems(maker.dropped, maker.examined),
        balance=balance,
        masked=MappingProxyType(dict(sorted(masked.items()))),
        held_out_hash=None if held_out is None else held_out.hash,
        limits=MappingProxyType(dict(maker.guards.limits)),
    )


def pairs_to_check(
    items: Sequence[Item],
    answers: Sequence[Candidate],
    judge: Judge,
    *,
    rule: Rule,
    guards: Guards,
    held_out: HeldOut | None = None,
    tokens: TokenGuard | None = None,
    seed: int = 0,
) -> list[Pair]:
    """The pairs that an order-swapped check is asked about: those that rule and guards leave.

    Judges all answers: for estimates, with a judge whose store has every verdict.

    Args:
        items: see `build_pairs`, and so for all.
        answers: to these items.
        judge: loaded.
        rule: which two answers make a pair.
        guards: what a pair must not be.
        held_out: what is evaluated.
        tokens: what the trainer sees.
        seed: of the order.
    """
    nowhere = {item.id: item.content_hash for item in items}
    maker = _Maker(rule, guards, held_out, tokens, "train", nowhere, seed)
    return maker.made(items, answers, judge)[0]


def judge_candidates(
    items: Mapping[str, Item], candidates: Sequence[Candidate], judge: Judge | None
) -> list[Judged]:
    """A verdict for each candidate, in order.

    Raises:
        DataError: no judge, and nothing says what labels a candidate has that is no reference.
        JudgeError: the judge cannot judge these items, or its budget was spent on the way.
    """
    if judge is not None:
        check_gives_labels(judge)
        of_judge = run_sync(by_judge(items, candidates, judge))
        stop_over_budget([one.failure for one in of_judge], "answers were not judged")
        return of_judge
    judged = [by_labels(items[c.item_id], c) for c in candidates]
    without = [
        c
        for c, one in zip(candidates, judged, strict=True)
        if one is None and c.source != "references"
    ]
    if without:
        raise DataError(
            [
                f"{len(without)} of {counted(len(candidates), 'answer')} "
                f"{noun(len(without), 'has', 'have')} neither labels nor kind; give a judge"
            ]
        )
    # A reference that says nothing of its worth makes no pair, and is counted where it might have.
    return [
        one or Judged(c, None, None, "labels", failure=NOT_JUDGED)
        for c, one in zip(candidates, judged, strict=True)
    ]


@dataclass
class _Maker:
    """Makes the pairs of one item after the other and counts what becomes of every candidate pair."""

    rule: Rule
    guards: Guards
    held_out: HeldOut | None
    tokens: TokenGuard | None
    split: str
    clusters: Mapping[str, str]
    seed: int
    told: Told = NOTHING
    """Languages of queries and answers."""
    candidates: int = 0
    examined: int = 0
    dropped: Counter[str] = field(default_factory=Counter)
    unpaired: Counter[str] = field(default_factory=Counter)
    cut: set[str] = field(default_factory=set)
    """Ids of pairs with an answer that the trainer sees only the start of."""
    examples: list[LeftOut] = field(default_factory=list)
    masked: dict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))

    def mask(self, item_id: str, text: str) -> str:
        """A text without personal data and keys."""
        text, found = self.guards.mask(text)
        if found:
            self.masked[item_id].update(found)
        return text

    def mask_item(self, item: Item) -> Item:
        """An item whose query and notes are masked; the same one where nothing is."""
        item, found = self.guards.mask_item(item)
        if found:
            self.masked[item.id].update(found)
        return item

    def drop(self, reason: str, pair: Pair | Callable[[], Pair | None], item_id: str = "") -> None:
        """Count a candidate pair that is none, and keep some as examples."""
        self.dropped[reason] += 1
        if self.dropped[reason] <= EXAMPLES:
            shown = pair() if callable(pair) else pair
            self.examples.append(LeftOut(shown, shown.item_id if shown else item_id, reason))

    def made(
        self, items: Sequence[Item], candidates: Sequence[Candidate], judge: Judge | None
    ) -> tuple[list[Pair], dict[str, Item]]:
        """Judge all candidates. The pairs of all items, in order, and item id -> item as it was shown."""
        # Masked before anything is judged: a judge may be another company's.
        shown = {item.id: self.mask_item(item) for item in items}
        candidates = [replace(c, text=self.mask(c.item_id, c.text)) for c in candidates]
        of_item: dict[str, list[Judged]] = defaultdict(list)
        judged = judge_candidates(shown, candidates, judge)
        for one in judged:
            of_item[one.answer.item_id].append(one)
        if self.guards.language:
            self.told = Told.of(
                wholes=(item.query_text for item in items),
                ends=(one.text for one in judged if one.labels is not None),
            )
        pairs = [
            pair
            for item in items
            for pair in self.pairs_of(item, shown[item.id], of_item.get(item.id, ()))
        ]
        return pairs, shown

    def pairs_of(self, item: Item, shown: Item, answers: Sequence[Judged]) -> list[Pair]:
        """The pairs of one item.

        Args:
            item: as it came, since held-out items are known by their text.
            shown: as it is trained on, its query masked.
            answers: the judged answers to it.
        """

        def put(chosen: Judged, rejected: Judged, why: PairRule = "goal_focused") -> Pair:
            cluster = self.clusters[item.id]
            return pair_of(shown, chosen, rejected, split=self.split, cluster=cluster, rule=why)

        def example(one: Judged, other: Judged) -> Callable[[], Pair | None]:
            """A dropped candidate to look at, the better answer first; nothing without verdicts."""
            if one.reward is None or other.reward is None:
                return lambda: None
            better, worse = (one, other) if one.reward >= other.reward else (other, one)
            return lambda: put(better, worse)

        made: list[Pair] = []
        undecided: list[tuple[str, Judged, Judged]] = []
        before = self.candidates
        for one, other in self.rule.proposals(item, answers):
            self.candidates += 1
            found = self.rule.decide(item, one, other)
            if not isinstance(found, str):
                made.append(put(*found))
            elif found in (NEITHER, NEITHER_OVERCORRECTS):
                undecided.append((found, one, other))
            else:
                self.drop(found, example(one, other), item.id)
        if self.candidates == before:
            self.unpaired[self.rule.lacking(item, answers)] += 1
        # Where an answer could be chosen, and only its margin, author or safety stands in the way, the
        # better of two worse ones is not the next best thing.
        by_margin = (
            self.rule.margin_pairs is not None
            and not made
            and (item.kind == "control" or not any(self.rule.is_wanted(item, a) for a in answers))
        )
        for reason, one, other in undecided:
            found = self.rule.decide(item, one, other, by_margin=True) if by_margin else reason
            if isinstance(found, str):
                self.drop(found, example(one, other), item.id)
            else:
                made.append(put(*found))
        return self._guarded(item, made)

    def _guarded(self, item: Item, made: list[Pair]) -> list[Pair]:
        """Those that no guard objects to, at most so many: the widest margins, and fresh answers, first."""
        limit = self.rule.max_pairs_per_item
        kept: list[Pair] = []
        seen: set[str] = set()
        used: set[int] = set()
        later: list[Pair] = []
        made.sort(key=lambda pair: (-pair.margin, _order(pair, self.seed)))
        for fresh_only, queue in ((True, made), (False, later)):
            for pair in queue:
                sides = {id(pair.chosen_answer), id(pair.rejected_answer)}
                if limit is not None and len(kept) >= limit:
                    self.drop("above max_pairs_per_item", pair)
                elif limit is not None and fresh_only and sides & used:
                    later.append(pair)
                elif pair.id in seen:  # also where only white space differs
                    self.drop("repeats another pair of its item", pair)
                else:
                    seen.add(pair.id)
                    self.examined += 1
                    reason = self.guards.objection(
                        item,
                        pair.chosen_answer,
                        pair.rejected_answer,
                        prompt=pair.prompt,
                        tokens=self.tokens,
                        held_out=self.held_out,
                        told=self.told,
                    )
                    if reason:
                        self.drop(reason, pair)
                    else:
                        kept.append(pair)
                        used |= sides
                        # Here, where the rendered texts are at hand; only pairs that are left count.
                        if self.tokens and self.tokens.cuts(
                            pair.prompt, pair.chosen, pair.rejected
                        ):
                            self.cut.add(pair.id)
        return kept

    def take(self, pairs: Sequence[Pair], share: float, limit: int | None) -> list[Pair]:
        """As many pairs of either kind of item as are wanted, most important kinds first."""
        kinds = self.rule.rejected_kinds

        def rank(pair: Pair) -> tuple[int, str]:
            known = pair.rejected_kind in kinds
            return (
                kinds.index(pair.rejected_kind) if known and pair.rejected_kind else 0,
                _order(pair, self.seed),
            )

        xy = sorted((pair for pair in pairs if pair.item_kind == "xy"), key=rank)
        controls = sorted((pair for pair in pairs if pair.item_kind == "control"), key=rank)
        wanted, controls_wanted = _counts(len(xy), len(controls), share, limit)
        for pair in xy[wanted:]:
            self.drop("above max_pairs", pair)
        for pair in controls[controls_wanted:]:
            self.drop("above control_share", pair)
        return [*xy[:wanted], *controls[:controls_wanted]]


def _counts(xy: int, controls: int, share: float, limit: int | None) -> tuple[int, int]:
    """How many pairs of either kind: the share holds as long as there are controls."""
    limit = limit if limit is not None else xy + controls
    controls = min(controls, round(share * limit), round(xy * share / (1 - share)))
    return min(xy, limit - controls), controls


def _told(dropped: Mapping[str, int]) -> str:
    return ", ".join(f"{reason} {count:,}" for reason, count in dropped.items()) or "nothing"


def _order(pair: Pair, seed: int) -> str:
    return text_hash(f"{seed} {pair.id}")
