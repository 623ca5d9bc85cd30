"""Figures in words: an estimate, a share, a p-value, the bounds of what failed, the title of a metric.

Every report, comparison and command that shows a figure of an evaluation, of agreement or of a judge takes it
from here, so that the same figure reads the same everywhere: `35 [30, 40]`, `35 [no interval: 5 all alike]`,
`n/a: no controls`.

Not here: Markdown and HTML, and which figures are shown (`report_tables.py`, `compare_runs.py`); shares of
preference pairs, which read `54.7% [45.9%, 63.6%]` wherever pairs are told of (`pairs/audit.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from xyreward.stats import FEW, Estimate

NONE = "n/a"
"""What was not measured, or is withheld; then why follows."""
KINDS = {"xy": "items with a hidden goal", "control": "controls", None: "all items"}
"""Kinds of item, as headings have them."""
ARROWS = {"higher": " ↑", "lower": " ↓"}
"""Which direction is better, after a title; none where neither is."""


def estimate_of(told: Mapping[str, Any] | None) -> Estimate | None:
    """The estimate of a report or a comparison; what stands beside it there is left out."""
    if not told:
        return None
    return Estimate(**{name: told[name] for name in Estimate.__dataclass_fields__ if name in told})


def interval(
    value: float,
    low: float | None,
    high: float | None,
    *,
    digits: int = 0,
    ends: int | None = None,
    scale: float = 1,
    signed: bool = False,
    why: str = "",
) -> str:
    """`35 [30, 40]`, or `35 [no interval: one cluster]`.

    Args:
        value, low, high: the number and its ends; without both ends there is no interval.
        digits: decimals of all three.
        ends: decimals of the ends, where they are others.
        scale: what all three are multiplied by: 100 for shares in per cent.
        signed: with a plus where positive, as a change; "-0" tells that 0 is within.
        why: there is no interval.
    """
    sign = "+" if signed else ""
    text = f"{value * scale:{sign}.{digits}f}"
    if low is None or high is None:
        return f"{text} [no interval{f': {why}' if why else ''}]"
    spec = f"{sign}.{digits if ends is None else ends}f"
    return f"{text} [{low * scale:{spec}}, {high * scale:{spec}}]"


def estimated(
    estimate: Estimate | None,
    *,
    digits: int = 0,
    ends: int | None = None,
    scale: float = 1,
    signed: bool = False,
) -> str:
    """An estimate with its interval, see `interval`; `n/a` where there is none."""
    if estimate is None:
        return NONE
    return interval(
        estimate.value,
        estimate.low,
        estimate.high,
        digits=digits,
        ends=ends,
        scale=scale,
        signed=signed,
        why=why_no_interval(estimate),
    )


def figure(estimate: Estimate | None, unit: str = "%", *, signed: bool = False) -> str:
    """An estimate in the unit of its metric: `%` (of shares), a unit such as `characters`, or none."""
    scale, digits = _form(unit)
    return estimated(estimate, digits=digits, scale=scale, signed=signed)


def changed(
    before: Estimate | None, after: Estimate | None, change: Estimate | None, unit: str = "%"
) -> str:
    """`35 → 41: +6 [+1, +11]`."""
    scale, digits = _form(unit)
    values = (NONE if e is None else f"{e.value * scale:.{digits}f}" for e in (before, after))
    return f"{' → '.join(values)}: {figure(change, unit, signed=True)}"


def _form(unit: str) -> tuple[int, int]:
    """By what a value of this unit is multiplied, and its decimals."""
    return (100, 0) if unit == "%" else (1, 0 if unit else 2)


def why_no_interval(estimate: Estimate) -> str:
    """Why an estimate has no interval; without bounds n equal values tell nothing of the next one."""
    return f"{estimate.n} {estimate.why}" if estimate.why == "all alike" else estimate.why


def headline(value: float | None, low: float | None, high: float | None, why: str = "") -> str:
    """The headline, in [-1, 1], or its change: `+0.53 [+0.31, +0.70]`, or why it is withheld: `n/a: ...`."""
    if value is None:
        return why
    return interval(value, low, high, digits=2, signed=True, why=why)


def in_words(estimate: Estimate, *, digits: int = 2, scale: float = 1, over: str = "") -> str:
    """The interval in a sentence: `95 % interval over items 30 to 40`, `no interval: one cluster`.

    Args:
        digits: decimals of its ends.
        scale: what they are multiplied by.
        over: what it is over.
    """
    low, high = estimate.low, estimate.high
    if low is None or high is None:
        why = why_no_interval(estimate)
        return f"no interval{f': {why}' if why else ''}"
    of = f" over {over}" if over else ""
    return f"95 % interval{of} {low * scale:.{digits}f} to {high * scale:.{digits}f}"


def percent(share: float, digits: int = 1) -> str:
    """A share in per cent: `11.1 %`."""
    return f"{100 * share:.{digits}f} %"


def p_value(p: float) -> str:
    """Three decimals, and never 0."""
    return "< 0.001" if p < 0.001 else f"{p:.3f}"


def counts(numbers: Sequence[int]) -> str:
    """Rows behind several figures: `12`, or `12 / 11 / 10` where they differ."""
    return " / ".join(map(str, numbers if len(set(numbers)) > 1 else numbers[:1]))


def failed_of(failed: int, asked: int) -> str:
    """`3 of 12`: what failed, of all that was asked."""
    return f"{failed} of {asked}"


def reasons(by_kind: Mapping[str, int]) -> str:
    """Kinds of failure with their numbers: `1 refused, 2 timeout`."""
    return ", ".join(f"{n} {kind}" for kind, n in sorted(by_kind.items()))


def with_failures(bounds: Sequence[float] | None, unit: str, *, signed: bool = False) -> str:
    """From where to where a figure may lie for what failed: `with failures: 0 to 11`; nothing without bounds.

    Args:
        bounds: lowest and highest value. Which of them is the good one is the metric's to say.
        unit: of the metric; `%`: bounds are shares, and told in per cent.
        signed: as a change.
    """
    if not bounds:
        return ""
    scale, digits = _form(unit)
    low, high = (f"{end * scale:{'+' if signed else ''}.{digits}f}" for end in bounds)
    return f"with failures: {low} to {high}"


def title(metric: Any, *, unit: bool = True) -> str:
    """Title, unit and direction of a metric, or of its entry in a report."""
    title, of, better = (
        (metric[name] if isinstance(metric, Mapping) else getattr(metric, name))
        for name in ("title", "unit", "better")
    )
    return f"{title}{f', {of}' if unit and of else ''}{ARROWS.get(better, '')}"


# ---------------------------------------------------------------- what to think of many, and of few


def by_chance(changes: Iterable[Mapping[str, Any] | None]) -> str:
    """How many of these intervals would exclude 0 if nothing had changed; empty of few."""
    n = sum(e is not None and e["low"] is not None for e in changes)
    return f"if nothing had changed, about {n / 20:.0f} of {n} would exclude 0" if n >= 20 else ""


def few_clusters(metrics: Iterable[tuple[Mapping[str, Any], Iterable[Any]]]) -> str:
    """A warning of intervals over few clusters; empty where there are none.

    Args:
        metrics: each with its estimates. A kind of item is named where all its metrics have few.
    """
    found: dict[str | None, dict[str, int]] = {}
    for metric, estimates in metrics:
        if least := _least_clusters(estimates):
            found.setdefault(metric["kind"], {})[metric["title"]] = least
    named: dict[str, int | tuple[int, int]] = {}
    for kind, of in found.items():
        if max(of.values()) < FEW:
            named[KINDS[kind]] = (min(of.values()), max(of.values()))
        else:
            named |= {title: least for title, least in of.items() if least < FEW}
    return _few(named)


def few_of(named: Mapping[str, Iterable[Any]]) -> str:
    """The same of the rows of one table, by their names."""
    least = {name: _least_clusters(estimates) for name, estimates in named.items()}
    return _few({name: n for name, n in least.items() if 0 < n < FEW})


def _least_clusters(estimates: Iterable[Mapping[str, Any] | None]) -> int:
    """Of what has fewest; 0 where none is known: reports of earlier versions."""
    return min((e["clusters"] for e in estimates if e and e.get("clusters")), default=0)


def _few(named: Mapping[str, int | tuple[int, int]]) -> str:
    told = []
    for name, clusters in named.items():
        low, high = (clusters, clusters) if isinstance(clusters, int) else clusters
        told.append(f"{name}: {low}" + (f" to {high}" if high > low else ""))
    return (
        f"Intervals over fewer than {FEW} clusters ({', '.join(told)}) hold the truth less often than in 95 "
        "of 100 evaluations."
        if told
        else ""
    )
