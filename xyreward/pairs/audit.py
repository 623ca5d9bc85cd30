"""What a set of preference pairs would teach beside what it should: the audit.

    audit_pairs(pair_set) -> Audit      .ok, .problems (errors), .warnings, .shortcuts, .to_markdown()

It counts, measures shortcuts with 95 % intervals over clusters of items, and checks itself: the same
measurements on pairs with their sides exchanged must come out the other way round (the canary).
docs/pairs_audit.md says what each row means.

Not here: the rules that are measured (`shortcuts.py`), what an objection to a pair is (`guards.py`).
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Self

import numpy as np

from xyreward import stats
from xyreward.errors import ConfigError, DataError
from xyreward.items import folded
from xyreward.markdown import plain
from xyreward.pairs.candidates import Judged
from xyreward.pairs.pair import Pair, PairSet, over
from xyreward.pairs.shortcuts import (
    RULES,
    FixedRule,
    Learned,
    bag_of_words,
    by_origin,
    picks,
    reward_picks,
    swapped,
    traits_of,
)
from xyreward.stats import Estimate
from xyreward.words import counted, noun

SCHEMA = 1


@dataclass(frozen=True, slots=True)
class AuditLimits:
    """What the audit objects to.

    Raises:
        ConfigError: a field outside its range.
    """

    simple: float = 0.05
    """How far from 0.5 the share of a fixed rule may be, in [0, 0.5]. A warning where the interval
    leaves out 0.5 too; an error with `balanced`."""
    balanced: bool = False
    """Balance was asked for: a fixed rule further away than `simple` is an error."""
    enough: int = 100
    """Pairs from which on `balanced` can be an error; a smaller set gets the warning."""
    origin: float = 0.60
    """Highest share in which who wrote an answer may tell that it is chosen, in [0.5, 1]; an error."""
    allow_origin: bool = False
    """More than `origin` is a warning only."""
    bag_of_words: float = 0.80
    """Highest share in which a bag of words may tell it, in [0.5, 1]; a warning. Answers that differ
    in what they say differ in words, so this is no error."""
    bag_pairs: int = 10_000
    """A bag of words learns from a sample of at most this many pairs, > 0."""
    few: int = 20
    """Fewer pairs than this are a warning."""

    def __post_init__(self) -> None:
        ranges = {
            "simple": (self.simple, 0, 0.5),
            "origin": (self.origin, 0.5, 1),
            "bag_of_words": (self.bag_of_words, 0.5, 1),
        }
        for name, (value, low, high) in ranges.items():
            if not low <= value <= high:
                raise ConfigError(f"{name} is {value}, expected in [{low}, {high}]")
        if self.bag_pairs < 1:
            raise ConfigError(f"bag_pairs is {self.bag_pairs}, expected > 0")

    @classmethod
    def of(cls, pair_set: PairSet, *, allow_origin: bool = False) -> Self:
        """Those that a set is held to: the defaults, and the balance that it was built for."""
        if pair_set.balance is None:
            return cls(allow_origin=allow_origin)
        return cls(simple=pair_set.balance, balanced=True, allow_origin=allow_origin)


@dataclass(frozen=True, slots=True)
class Shortcut:
    """How often a rule that knows nothing of the goal picks the chosen answer."""

    name: str
    what: str
    """What the rule goes by."""
    accuracy: Estimate | None
    """Share of pairs in which it picks chosen, in [0, 1]; where it cannot tell counts half. 0.5 is
    best: the rule is of no use in either direction. None: see `note`."""
    ties: int
    """Pairs in which it cannot tell."""
    note: str = ""
    """Why there is no accuracy, or of what sample it is."""


@dataclass(frozen=True, slots=True)
class Spread:
    """Where most values lie."""

    p5: float
    median: float
    p95: float


@dataclass(frozen=True, slots=True)
class Audit:
    """What is in a set of pairs, and what is wrong with it."""

    pairs_hash: str
    """`PairSet.hash` of the set; `is_of` compares it."""
    pairs: int
    clusters: int
    """Clusters of items behind them: what the intervals count as independent."""
    candidates: int
    """Candidate pairs, of which `pairs` were kept."""
    dropped: Mapping[str, int]
    """Reason -> candidate pairs dropped for it."""
    examined: int
    """Candidate pairs that got as far as the guards."""
    masked: Mapping[str, int]
    """Kind of personal data or key -> how many were masked in what was kept."""
    cut: int
    """Pairs with an answer longer than the trainer's `max_length`."""
    control_share: float
    """Share of pairs from controls, in [0, 1]."""
    by_source: Mapping[str, int]
    """Pairs by source of the item."""
    by_language: Mapping[str, int]
    by_licence: Mapping[str, int]
    by_pair_source: Mapping[str, int]
    """Pairs by where the answers came from (`references`, `on_policy`, ...)."""
    by_origin: Mapping[str, int]
    """Pairs by who wrote the answers; `a over b` where two did."""
    by_rule: Mapping[str, int]
    """Pairs by why they were kept (`goal_focused`, `margin`)."""
    by_kinds: Mapping[str, int]
    """Pairs by kinds of answer, `goal_focused over literal`; answers of models have no kind."""
    by_judge: Mapping[str, int]
    """Pairs by who judged the answers; `a over b` where two did."""
    lengths: Mapping[str, Spread]
    """Of `chosen` and of `rejected`, in characters. Empty without pairs."""
    margins: Spread | None
    """Of the soft reward of chosen minus that of rejected, in (0, 1]. None without pairs."""
    margin_counts: tuple[int, ...]
    """Pairs whose margin is in [0, 0.1), [0.1, 0.2), ... [0.9, 1]."""
    reward: Shortcut
    """How often the judge's own reward prefers chosen. Anything but 1 is an error."""
    shortcuts: tuple[Shortcut, ...]
    canary: tuple[Shortcut, ...]
    """`reward` and `shortcuts` measured again on the same pairs with their sides exchanged: 1 minus
    the other, or the audit itself is broken. A learned rule is not learned again for it."""
    problems: tuple[str, ...]
    """What must be put right, or allowed, before this is trained on."""
    warnings: tuple[str, ...]
    """What a reader should know."""
    seed: int = 0
    unpaired: Mapping[str, int] = field(default_factory=dict)
    """What is lacking -> items without any candidate pair, which no other count has."""
    schema: int = SCHEMA

    @property
    def ok(self) -> bool:
        """Whether there are no problems."""
        return not self.problems

    def is_of(self, pair_set: PairSet) -> bool:
        """Whether this is an audit of this set: of these pairs, and of what was left out."""
        counts = ("candidates", "dropped", "examined", "masked", "cut", "unpaired")
        return self.pairs_hash == pair_set.hash and all(
            getattr(self, name) == getattr(pair_set, name) for name in counts
        )

    def shortcut(self, name: str) -> Shortcut:
        """The shortcut of this name.

        Raises:
            KeyError: there is none.
        """
        return {s.name: s for s in self.shortcuts}[name]

    def to_dict(self) -> dict[str, Any]:
        """Everything, ready for JSON. `from_dict` reads it."""
        found: dict[str, Any] = json.loads(json.dumps(asdict(self), allow_nan=False))
        return found

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Audit:
        """Read what `to_dict` wrote.

        Raises:
            DataError: a field that is missing, unknown, or not of its type.
        """
        from pydantic import TypeAdapter, ValidationError

        if (schema := data.get("schema")) != SCHEMA:
            raise DataError([f"audit: schema is {schema!r:.40}, expected {SCHEMA}"])
        try:
            # By way of JSON, where pydantic can be strict and still take a list for a tuple.
            text = json.dumps(data, allow_nan=False)
            audit = TypeAdapter(cls).validate_json(text, strict=True)
        except ValidationError as error:
            raise DataError(
                [
                    f"audit: {'.'.join(map(str, e['loc']))}: {e['msg']}"
                    for e in error.errors(include_url=False)
                ]
            ) from None
        except ValueError as error:
            raise DataError([f"audit: {error}"]) from None
        if strange := sorted(_unknown(data, audit.to_dict())):
            raise DataError([f"audit: {place}: is not a field of an audit" for place in strange])
        return audit

    def to_markdown(self) -> str:
        """The audit as a page. Text from data (names of sources, languages, ...) is escaped."""
        return "\n".join(_markdown(self)) + "\n"


def _unknown(data: Any, known: Any, place: str = "") -> Iterable[str]:
    """Places in `data` of keys that `known` does not have."""
    if isinstance(data, Mapping) and isinstance(known, Mapping):
        for key, value in data.items():
            here = f"{place}.{key}" if place else str(key)
            if key in known:
                yield from _unknown(value, known[key], here)
            else:
                yield here
    elif isinstance(data, Sequence) and not isinstance(data, str):
        for i, (value, other) in enumerate(zip(data, known, strict=False)):
            yield from _unknown(value, other, f"{place}.{i}")


# ---------------------------------------------------------------- measuring


def audit_pairs(
    pair_set: PairSet,
    *,
    limits: AuditLimits | None = None,
    rules: Sequence[FixedRule] = RULES,
    seed: int = 0,
) -> Audit:
    """Audit a set of pairs. Time is linear in the pairs.

    Args:
        pair_set: the pairs and what was left out.
        limits: what to object to. None: the defaults, and the balance that the set was built for.
        rules: fixed rules to measure; those of `balance.balanced`.
        seed: of intervals, folds and the sample for the bag of words.

    Raises:
        ConfigError: two rules of one name.
    """
    limits = limits or AuditLimits.of(pair_set)
    names = [REWARD, ORIGIN, BAG, *(rule.name for rule in rules)]
    if twice := {name for name in names if names.count(name) > 1}:
        raise ConfigError(f"two rules are called {', '.join(sorted(twice))}; name each differently")
    pairs = pair_set.pairs
    clusters = [pair.cluster for pair in pairs]
    reward, shortcuts, canary = _measured(pairs, clusters, rules, limits, seed)
    margins = np.array([m for pair in pairs if (m := _margin(pair)) is not None])
    problems = [
        *_sums(pair_set),
        *_faulty(pairs),
        *_canary(reward, shortcuts, canary),
        *pair_set.problems,
    ]
    warnings: list[str] = []
    for shortcut in shortcuts:
        _judge_shortcut(shortcut, len(pairs), limits, problems, warnings)
    warnings += _remarks(pair_set, limits)
    return Audit(
        pairs_hash=pair_set.hash,
        pairs=len(pairs),
        clusters=len(set(clusters)),
        candidates=pair_set.candidates,
        dropped=dict(sorted(pair_set.dropped.items())),
        examined=pair_set.examined,
        masked=dict(sorted(pair_set.masked.items())),
        cut=pair_set.cut,
        control_share=pair_set.control_share,
        by_source=_counts(pair.source for pair in pairs),
        by_language=_counts(pair.language for pair in pairs),
        by_licence=_counts(pair.licence for pair in pairs),
        by_pair_source=_counts(_over(p, lambda a: a.answer.source) for p in pairs),
        by_origin=_counts(_over(p, lambda a: a.answer.origin or "unknown") for p in pairs),
        by_rule=_counts(pair.rule for pair in pairs),
        by_kinds=_counts(_over(p, lambda a: a.answer.kind or "no kind") for p in pairs),
        by_judge=_counts(pair.judge for pair in pairs),
        lengths={
            "chosen": _spread([len(pair.chosen) for pair in pairs]),
            "rejected": _spread([len(pair.rejected) for pair in pairs]),
        }
        if pairs
        else {},
        margins=_spread(margins) if len(margins) else None,
        margin_counts=_tenths(margins),
        reward=reward,
        shortcuts=tuple(shortcuts),
        canary=tuple(canary),
        problems=tuple(problems),
        warnings=tuple(warnings),
        seed=seed,
        unpaired=dict(sorted(pair_set.unpaired.items())),
    )


REWARD = "judge's reward"
ORIGIN = "origin"
BAG = "bag of words"


def _measured(
    pairs: Sequence[Pair],
    clusters: Sequence[str],
    rules: Sequence[FixedRule],
    limits: AuditLimits,
    seed: int,
) -> tuple[Shortcut, list[Shortcut], list[Shortcut]]:
    """The reward, the shortcuts, and both once more on swapped pairs."""
    turned = swapped(pairs)
    of = traits_of(pairs)

    def shortcut(name: str, what: str, found: Sequence[float], note: str = "") -> Shortcut:
        estimate = stats.mean(found, clusters, bounds=(0, 1), seed=seed)
        return Shortcut(name, what, estimate, _ties(found), note)

    what = "the answer that the judge, or its labels, are worth more"
    reward = shortcut(REWARD, what, reward_picks(pairs))
    shortcuts, canary = [], [_canary_of(REWARD, what, reward_picks(turned))]
    for rule in rules:
        shortcuts.append(shortcut(rule.name, rule.what, picks(pairs, rule, of)))
        canary.append(_canary_of(rule.name, rule.what, picks(turned, rule, of)))
    learned = [
        (ORIGIN, "who wrote it, learned on other clusters", by_origin(pairs, turned, seed)),
        (
            BAG,
            "words and pairs of words, learned on other clusters",
            bag_of_words(pairs, turned, seed, max_pairs=limits.bag_pairs),
        ),
    ]
    for name, what, found in learned:
        if isinstance(found, Learned):
            on = [clusters[i] for i in found.rows]
            sample = len(found.rows) < len(pairs)
            note = f"on a sample of {counted(len(found.rows), 'pair')}" if sample else ""
            estimate = stats.mean(found.picks, on, bounds=(0, 1), seed=seed)
            shortcuts.append(Shortcut(name, what, estimate, _ties(found.picks), note))
            canary.append(_canary_of(name, what, found.swapped_picks))
        else:
            shortcuts.append(Shortcut(name, what, None, 0, found))
            canary.append(Shortcut(name, what, None, 0, found))
    return reward, shortcuts, canary


def _canary_of(name: str, what: str, found: Sequence[float]) -> Shortcut:
    # Without an interval: it must agree to the last digit, or something is broken.
    estimate = Estimate(math.fsum(found) / len(found), None, None, len(found)) if found else None
    return Shortcut(name, what, estimate, _ties(found))


def _ties(found: Sequence[float]) -> int:
    return sum(pick == 0.5 for pick in found)


def _margin(pair: Pair) -> float | None:
    a, b = pair.chosen_answer.reward, pair.rejected_answer.reward
    return None if a is None or b is None else a - b


def _over(pair: Pair, part: Callable[[Judged], str]) -> str:
    return over(part(pair.chosen_answer), part(pair.rejected_answer))


def _counts(names: Iterable[str]) -> dict[str, int]:
    """Most frequent first, then by name."""
    return dict(sorted(Counter(names).items(), key=lambda entry: (-entry[1], entry[0])))


def _spread(values: Sequence[float] | np.ndarray) -> Spread:
    return Spread(*(float(q) for q in np.quantile(np.asarray(values, float), [0.05, 0.5, 0.95])))


def _tenths(margins: np.ndarray) -> tuple[int, ...]:
    # A little is added, since 1 - 0.7 and 0.1 * 3 both are 0.3.
    bins = np.minimum((10 * margins.clip(0, 1) + 1e-6).astype(int), 9)
    return tuple(np.bincount(bins, minlength=10).tolist())


# ---------------------------------------------------------------- objections


def _sums(pair_set: PairSet) -> Iterable[str]:
    kept, dropped = len(pair_set.pairs), sum(pair_set.dropped.values())
    if not kept:
        yield "there are no pairs; the reasons for dropping say why"
    if kept + dropped != pair_set.candidates:
        yield (
            f"{counted(kept, 'pair')} kept and {dropped:,} dropped make {kept + dropped:,} of "
            f"{counted(pair_set.candidates, 'candidate pair')}; some were lost or counted twice"
        )


def _faulty(pairs: Sequence[Pair]) -> Iterable[str]:
    """Pairs that should never have got in."""
    unjudged = sum(
        any(a.labels is None or a.reward is None for a in (p.chosen_answer, p.rejected_answer))
        for p in pairs
    )
    if unjudged:
        have = noun(unjudged, "has", "have")
        yield f"{counted(unjudged, 'pair')} {have} an answer without a verdict; a failure is never a score"
    not_better = sum((margin := _margin(p)) is not None and margin <= 0 for p in pairs)
    if not_better:
        yield f"in {counted(not_better, 'pair')} chosen is worth no more than rejected, expected more"
    apart = sum(_judged_by(p.chosen_answer) != _judged_by(p.rejected_answer) for p in pairs)
    if apart:
        yield (
            f"in {counted(apart, 'pair')} the sides were judged by different judges or rubric versions, so "
            "their margin says nothing; judge both with one judge"
        )
    same = sum(folded(p.chosen) == folded(p.rejected) for p in pairs)
    if same:
        yield f"in {counted(same, 'pair')} both sides read the same"
    twice = len(pairs) - len({p.id for p in pairs})
    if twice:
        yield f"{counted(twice, 'pair')} {noun(twice, 'is', 'are')} there more than once"


def _judged_by(side: Judged) -> tuple[str, str]:
    """Judge and rubric version. A kind's labels are labels too."""
    return "labels" if side.judge == "kind" else side.judge, side.rubric_version


def _canary(
    reward: Shortcut, shortcuts: Sequence[Shortcut], canary: Sequence[Shortcut]
) -> Iterable[str]:
    for one, turned in zip([reward, *shortcuts], canary, strict=True):
        if one.accuracy is None or turned.accuracy is None:
            continue
        expected = 1 - one.accuracy.value
        if abs(turned.accuracy.value - expected) > 1e-6:
            yield (
                f"canary: on swapped pairs the rule {one.name} picks chosen in {turned.accuracy.value:.1%}, "
                f"expected {expected:.1%}; the audit itself is broken, please report it"
            )


_SLACK = 1e-9


def _judge_shortcut(
    shortcut: Shortcut,
    pairs: int,
    limits: AuditLimits,
    problems: list[str],
    warnings: list[str],
) -> None:
    """Add what is to be said of a shortcut."""
    found = shortcut.accuracy
    if found is None:
        return
    said = f"shortcut {shortcut.name}: picks chosen in {_in_words(found)} of pairs"
    if shortcut.name == ORIGIN:
        if found.value > limits.origin + _SLACK:
            where = warnings if limits.allow_origin else problems
            where.append(
                f"{said}, expected at most {limits.origin:.0%}: training would teach who wrote an "
                "answer; pair answers of one author (same_origin)"
                + ("" if limits.allow_origin else ", or allow it (allow_origin)")
            )
    elif shortcut.name == BAG:
        certain = found.low is None or found.low > 0.5
        if found.value > limits.bag_of_words + _SLACK and certain:
            warnings.append(
                f"{said}, more than {limits.bag_of_words:.0%}: words alone give the better answer "
                "away; a trainer may learn phrases"
            )
    elif abs(found.value - 0.5) > limits.simple + _SLACK:
        expected = f"{said}, expected {0.5 - limits.simple:.0%} to {0.5 + limits.simple:.0%}"
        if limits.balanced and pairs >= limits.enough:
            problems.append(
                f"{expected}: balance was asked for and could not be reached with these pairs; add "
                "pairs in which the other side wins, or raise the limit"
            )
        elif limits.balanced or found.excludes(0.5):
            warnings.append(f"{expected}: training may teach this instead of the goal")


def _in_words(found: Estimate) -> str:
    if found.low is None or found.high is None:
        return f"{found.value:.1%} (no interval)"
    return f"{found.value:.1%} (interval {found.low:.1%} to {found.high:.1%})"


def _remarks(pair_set: PairSet, limits: AuditLimits) -> Iterable[str]:
    pairs = pair_set.pairs
    if pairs and len(pairs) < limits.few:
        yield (
            f"only {counted(len(pairs), 'pair')}: too few to train on, and too few to measure shortcuts "
            "with; the intervals say how little is known"
        )
    if pairs and all(pair.item_kind != "control" for pair in pairs):
        yield (
            "no controls: training on these pairs alone may teach distrust of every question; add "
            "pairs from items without a hidden goal"
        )
    by_margin = sum(pair.rule == "margin" for pair in pairs)
    if by_margin:
        yield (
            f"{by_margin:,} of {counted(len(pairs), 'pair')} {noun(by_margin, 'was', 'were')} made by margin "
            f"alone: {noun(by_margin, 'its', 'their')} chosen answer is better than the rejected one, but is "
            "not what training should teach"
        )
    inferred = sum(not pair.grounded for pair in pairs)
    if inferred:
        yield (
            f"{inferred:,} of {counted(len(pairs), 'pair')} {noun(inferred, 'was', 'were')} "
            "judged by goals that a model inferred from the query alone, and not by ones that came with the "
            "item; a wrong guess makes a wrong pair. Leave out those with `grounded` false, or give items "
            "with their goals"
        )
    judges = {_judged_by(side) for p in pairs for side in (p.chosen_answer, p.rejected_answer)}
    if len(judges) > 1:
        yield (
            "pairs of several judges or rubric versions, whose margins do not compare: "
            f"{'; '.join(' '.join(judge).strip() for judge in sorted(judges))}"
        )
    if pair_set.cut:
        yield (
            f"{pair_set.cut:,} of {counted(len(pairs), 'pair')} {noun(pair_set.cut, 'has', 'have')} an "
            "answer longer than the trainer's max_length, which keeps its start only"
        )


# ---------------------------------------------------------------- Markdown


def _percent(estimate: Estimate) -> str:
    if estimate.low is None or estimate.high is None:
        return f"{estimate.value:.1%}"
    return f"{estimate.value:.1%} [{estimate.low:.1%}, {estimate.high:.1%}]"


def _markdown(audit: Audit) -> Iterable[str]:
    n = len(audit.problems)
    yield "# Audit of the preference pairs"
    yield ""
    failed = f"**Failed: {counted(n, 'problem')}.**"
    yield (
        f"{'**Passed.**' if audit.ok else failed} {counted(audit.pairs, 'pair')} from "
        f"{counted(audit.clusters, 'cluster')} of items, {audit.control_share:.0%} from controls, kept of "
        f"{counted(audit.candidates, 'candidate pair')}."
    )
    yield ""
    for title, texts in (("Problem", audit.problems), ("Warning", audit.warnings)):
        yield from (f"- {title}: {plain(text)}" for text in texts)
    if n or audit.warnings:
        yield ""
    yield "## Shortcuts"
    yield ""
    yield (
        "Share of pairs in which a rule that knows nothing of the goal picks the chosen answer. Ties "
        "count half, 50 % is best, brackets are 95 % intervals over clusters. Swapped: the same on "
        "pairs with their sides exchanged."
    )
    yield ""
    yield "| rule | picks chosen | ties | swapped | it prefers |"
    yield "|---|---:|---:|---:|---|"
    for one, turned in zip([audit.reward, *audit.shortcuts], audit.canary, strict=True):
        value = _percent(one.accuracy) if one.accuracy else "n/a"
        other = f"{turned.accuracy.value:.1%}" if turned.accuracy else "n/a"
        note = f" ({plain(one.note)})" if one.note else ""
        yield f"| {plain(one.name)} | {value} | {one.ties:,} | {other} | {plain(one.what)}{note} |"
    yield ""
    yield "## Lengths and margins"
    yield ""
    yield "| | 5 % | median | 95 % |"
    yield "|---|---:|---:|---:|"
    for side, spread in audit.lengths.items():
        yield (
            f"| {plain(side)}, characters | {spread.p5:,.0f} | {spread.median:,.0f} | "
            f"{spread.p95:,.0f} |"
        )
    if audit.margins is not None:
        m = audit.margins
        yield f"| margin of the soft reward | {m.p5:.2f} | {m.median:.2f} | {m.p95:.2f} |"
    yield ""
    yield (
        "Pairs by margin, in steps of 0.1 from 0 to 1: " + ", ".join(map(str, audit.margin_counts))
    )
    yield ""
    yield "## Counts"
    yield ""
    yield "| | pairs |"
    yield "|---|---:|"
    groups = {
        "why it was kept": audit.by_rule,
        "answers": audit.by_kinds,
        "where answers came from": audit.by_pair_source,
        "who wrote them": audit.by_origin,
        "judged by": audit.by_judge,
        "source of the item": audit.by_source,
        "language": audit.by_language,
        "licence": audit.by_licence,
        "dropped": audit.dropped,
        "no candidate pair (items, not pairs)": audit.unpaired,
        "masked (pieces of text, not pairs)": audit.masked,
    }
    for title, counts in groups.items():
        if counts:
            yield f"| **{title}** | |"
            yield from (f"| {plain(name)} | {number:,} |" for name, number in counts.items())
