"""The tables of a report, as rows of text: report.md and report.html show the same ones.

A table is left out where it has nothing to say (a single source, no votes, no second policy).

Not here: how a page marks them up (`report_markdown.py`, `report_page.py`), how figures read (`shown.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from xyreward.metrics import METRICS
from xyreward.published import STACK_OVERFLOW, Band, beside_of_report, items_of
from xyreward.shown import (
    KINDS,
    by_chance,
    changed,
    counts,
    estimate_of,
    estimated,
    failed_of,
    few_clusters,
    few_of,
    figure,
    p_value,
    percent,
    reasons,
    title,
    with_failures,
)
from xyreward.stats import FEW, Estimate
from xyreward.words import noun, of_whom

CORE = ("intended_solution", "focus_intended", "misconception", "control_direct")
"""Metrics that groups are shown by: the paper's three, and the counter-test; report.json has others."""
TOLD = ("stated_solution", "intended_solution", "focus_intended", "misconception", "goal_served",
        "control_direct", "control_invents", "length")  # fmt: skip
"""Metrics that are shown of a policy that was told the goal."""
JUDGED = ("stated_solution", "intended_solution", "focus_intended", "misconception", "control_direct",
          "control_invents")  # fmt: skip
"""Metrics that are shown of reference answers."""
GROUPS = 12
"""Groups of one table; the others are in report.json."""
POSITION = 0.75
"""Share of picks of one position from which on picks say more about the position than about the answers."""

_METRICS = {metric.key: metric for metric in METRICS}

Data = Mapping[str, Any]


class FromData(str):
    """Text from data or configuration: a page shows it so that it is no mark-up."""

    __slots__ = ()


class Name(FromData):
    """The same, of a model, a judge or a version: a page may set it apart."""

    __slots__ = ()


Text = str | tuple[str, ...]
"""A sentence, or its pieces where some are `FromData`."""


@dataclass(frozen=True)
class Table:
    """What a page shows together; without rows its sentences alone."""

    key: str
    """Of its place in a page."""
    heading: str
    """Empty: none."""
    said: Text
    header: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()
    """Cells, the first one the row's name."""
    below: tuple[Text, ...] = ()


@dataclass(frozen=True)
class MainRow:
    """A metric in the main table."""

    title: str
    n: str
    figures: tuple[tuple[str, str], ...]
    """A figure, and from where to where it may lie for what failed; before, after and change, or one."""
    band: str
    """The published range; empty: none."""
    sure: bool
    """The change's interval excludes 0."""


def tables(report: Data) -> list[Table]:
    """All of them but the main one, in their order."""
    two = "after" in report["policies"]
    found = (
        _label_tests(report),
        _moved(report),
        _co_movement(report),
        _picking_writing(report, two),
        *_breakdowns(report, two),
        _told(report, two),
        _references(report),
        _noise(report, two),
        _published(report),
    )
    return [table for table in found if table is not None]


# ---------------------------------------------------------------- the main table


def main_rows(report: Data) -> list[tuple[str, list[MainRow]]]:
    """Kinds of item, as headings, each with its metrics."""
    two = "after" in report["policies"]
    bands = beside_of_report(report.get("published"))
    out = []
    for kind, heading in KINDS.items():
        rows = [_main_row(m, bands, two) for m in report["metrics"] if m["kind"] == kind]
        if rows:
            out.append((heading, rows))
    return out


def _main_row(metric: Data, bands: Mapping[str, Band], two: bool) -> MainRow:
    figures = tuple(
        (
            figure(estimate_of(metric[name]), metric["unit"], signed=name == "change"),
            with_failures(
                metric["failure_bounds"].get(name), metric["unit"], signed=name == "change"
            ),
        )
        for name in _names(two)
    )
    change = estimate_of(metric["change"])
    return MainRow(
        title(metric),
        counts(_counts(metric, two)),
        figures,
        str(bands.get(metric["key"], "")),
        sure=two and change is not None and change.excludes(0),
    )


def main_below(report: Data) -> list[Text]:
    """What must be known of the main table."""
    two = "after" in report["policies"]
    published = report.get("published")
    below: list[Text] = []
    if two and any(len(set(_counts(m, two))) > 1 for m in report["metrics"]):
        below.append(
            "Where n is three numbers: measured before / after / both times. Changes are over the answers "
            "that were measured both times, so they can differ from after minus before."
        )
    if two and (many := by_chance([m["change"] for m in report["metrics"]])):
        below.append(f"Intervals are not corrected for being many: {many}.")
    if few := few_clusters((m, [m[name] for name in _names(two)]) for m in report["metrics"]):
        below.append(few)
    if published and beside_of_report(published):
        below.append(published_line(published, [report["judge"]]))
    return below


def _names(two: bool) -> tuple[str, ...]:
    return ("before", "after", "change") if two else ("before",)


def _counts(metric: Data, two: bool) -> list[int]:
    """Rows behind each figure: they differ where a judge failed, or an answer's focus is `neither`."""
    return [metric[name]["n"] if metric[name] else 0 for name in _names(two)]


def several(report: Data) -> float:
    """Answers to each item, on average; 0 where there is one to each."""
    found = [
        c["rows"] / sum(c["items"].values())
        for c in report.get("conditions") or []
        if c["condition"] == "writing" and c["rows"]
    ]
    return max(found) if found and max(found) > 1 else 0


# ---------------------------------------------------------------- what the paper published


def _published(report: Data) -> Table | None:
    """The published ranges where they may not stand beside the table."""
    published = report.get("published")
    if not published or beside_of_report(published):
        return None
    said = published_line(published, [report["judge"]])
    return Table("published", "What the paper published", said)


def _published_rows(
    report: Data,
    keys: Sequence[str],
    *,
    items: Iterable[str | None] = (None,),
    over: Iterable[str] = ("models",),
) -> list[tuple[str, ...]]:
    """The published ranges of a table's columns as its last rows: one for each set of items and of models.

    None of them is a model's, and none has an n or an interval.

    Args:
        keys: of the columns after the name and n: of a metric, or of nothing that was published.
        items: of the benchmark's, those that the table has figures on; None: those of the report.
        over: see `beside_of_report`.
    """
    rows = []
    for which in items:
        for whose in over:
            bands = beside_of_report(report.get("published"), items=which, over=whose)
            # Two columns may be ranges over other models, so that each has a row.
            for said in dict.fromkeys(bands[key].over for key in keys if key in bands):
                found = {key: band for key, band in bands.items() if band.over == said}
                on = next(iter(found.values())).items
                cells = (str(found.get(key, "")) for key in keys)
                rows.append((FromData(f"published: {said} on {on}"), "", *cells))
    return list(dict.fromkeys(rows))


def _published_below(report: Data) -> Text:
    """Whose the published ranges of a table are; empty where there are none."""
    published = report.get("published")
    if not published or not beside_of_report(published):
        return ""
    judge = report["judge"]
    return (
        "Published ranges: the paper of ",
        FromData(published["source"]),
        ", judge ",
        FromData(published["judge"]),
        *(("; yours is ", Name(judge)) if judge else ()),
        ".",
    )


def published_line(
    published: Data, judges: Iterable[str | None], *, told: bool = False
) -> tuple[str, ...]:
    """Where the published ranges come from, and whether they may be compared with the table.

    Args:
        published: as `Published.to_report` gave it.
        judges: of the table's figures; None: of figures that nobody judged.
        told: the table has figures of others than policies that were asked the query alone.
    """
    by = (
        "published in the paper of ",
        FromData(published["source"]),
        ", judge ",
        FromData(published["judge"]),
    )
    if beside_of_report(published):
        names = list(dict.fromkeys(judge for judge in judges if judge))
        named = tuple(piece for name in names for piece in (", ", Name(name)))[1:]
        yours = (
            ("here nothing was judged",)
            if not names
            else ("yours is " if len(names) == 1 else "yours are ", *named)
        )
        return (
            "Published range: over models (five; picking: six)"
            + (" that were not told the goal" if told else "")
            + " on ",
            FromData(published["beside"]),
            ", ",
            *by,
            "; ",
            *yours,
            ". Figures of different judges compare only as far as the judges were found to agree.",
        )
    ranges: dict[str, list[str]] = {}
    for band in (Band(**b) for b in published["bands"]):
        ranges.setdefault(f"{band.over} on {band.items}", []).append(
            f"{_METRICS[band.metric].title} {band}"
        )
    listed = "; ".join(f"{over}: {', '.join(values)}" for over, values in ranges.items())
    return (
        "For orientation, not for comparison: other items and another judge. In %, ",
        *by,
        f": {listed}.",
    )


# ---------------------------------------------------------------- two policies


def _label_tests(report: Data) -> Table | None:
    tests = report.get("label_tests")
    if not tests:
        return None
    alone = all(test["p"] == test["p_rows"] for test in tests)
    many = bool(several(report))
    how = "of McNemar's exact test" if alone and not many else "exact, over clusters"
    also = "those over items, which ignore" if many else "McNemar's, which ignores"
    return Table(
        "label-tests",
        "Did labels change?",
        "Items that gained and lost a label"
        + (" (the sum over their answers)" if many else "")
        + f"; p-values are {how}"
        + ("" if alone else f" (report.json also has {also} clusters)")
        + f", and corrected for testing {len(tests)} {noun(len(tests), 'label')} (Holm).",
        ("", "n", "gained", "lost", "p", "p, corrected"),
        tuple(
            (
                title(_METRICS[test["key"]], unit=False),
                *(str(test[name]) for name in ("n", "gained", "lost")),
                p_value(test["p"]),
                p_value(test["p_holm"]),
            )
            for test in tests
        ),
    )


_OF_KIND = {"xy": "goal-focused against literal", "control": "direct against overcorrecting"}
"""The reference answers whose log-probabilities are compared."""


def _moved(report: Data) -> Table | None:
    implicit = {k: v for k, v in report["implicit_reward"].items() if v}
    if not implicit:
        return None
    rows = []
    for kind, value in implicit.items():
        e = {name: Estimate(**v) for name, v in value.items() if isinstance(v, Mapping)}
        rows.append(
            (
                _OF_KIND[kind],
                str(e["accuracy"].n),
                figure(e["accuracy"]),
                figure(e["accuracy_per_token"]),
                _nats(e["margin"], 2),
                _nats(e["margin_per_token"], 3),
                _nats(e["better_change"], 2),
                _nats(e["worse_change"], 2),
            )
        )
    return Table(
        "moved",
        "What training moved",
        "Change in log-probability, after minus before, of reference answers.",
        (
            "",
            "n",
            "moved towards the better answer, %",
            "per token, %",
            "margin, nats",
            "margin, nats/token",
            "better answer, nats",
            "worse answer, nats",
        ),
        tuple(rows),
        _below(few_of({_OF_KIND[kind]: [value["accuracy"]] for kind, value in implicit.items()})),
    )


def _nats(estimate: Estimate, digits: int) -> str:
    return estimated(estimate, digits=digits, signed=True)


def _below(*lines: Text) -> tuple[Text, ...]:
    """Those that say something."""
    return tuple(line for line in lines if line)


def _co_movement(report: Data) -> Table | None:
    rows = [
        (
            _METRICS[pair["first"]].title,
            str(pair["improved_too"]["n"]),
            _METRICS[pair["second"]].title,
            *(
                figure(estimate_of(pair[name]))
                for name in ("improved_too", "improved_otherwise", "worsened")
            ),
        )
        for pair in report.get("co_movement") or []
        # What an earlier version wrote does not tell its clusters.
        if (e := pair["improved_too"]) and (e.get("clusters") or e["n"]) >= FEW
    ]
    if not rows:
        return None
    return Table(
        "co-movement",
        "Do gains come together?",
        "Of the items that improved on one label, how many improved on another: against the share among "
        "all other items.",
        (
            "items that improved on",
            "n",
            "improved on",
            "too, %",
            "other items, %",
            "got worse, %",
        ),
        tuple(rows),
    )


# ---------------------------------------------------------------- picking, groups, conditions


def _picking_writing(report: Data, two: bool) -> Table | None:
    gaps = report.get("picking_writing_gap") or {}
    rows = []
    for name in report["policies"]:
        gap = gaps.get(name)
        if gap:
            e = {key: estimate_of(value) for key, value in gap.items()}
            rows.append(
                (
                    name if two else "value",
                    str(gap["gap"]["n"]),
                    figure(e["picking"]),
                    figure(e["writing"]),
                    figure(e["gap"], signed=True),
                    figure(e["picked_though_not_written"]),
                )
            )
    if not rows:
        return None
    if change := estimate_of(gaps.get("change")):
        rows.append(("change", str(change.n), "", "", figure(change, signed=True), ""))
    # Nothing beside "writes it": the paper's share of a focus leaves out the answers of none.
    published = _published_rows(report, ("picking", "", "", ""))
    few = few_of(
        {
            "change" if name == "change" else name if two else "value": (
                [gap] if name == "change" else gap.values()
            )
            for name, gap in gaps.items()
            if gap
        }
    )
    return Table(
        "picking-writing",
        "Picking against writing",
        "Items where both were measured: how often the goal-focused answer is picked, and how often the "
        "written answer's focus is the intended request"
        + (" (of several answers to an item their mean)." if several(report) else "."),
        (
            "",
            "n",
            "picks it, %",
            "writes it, %",
            "gap, points",
            "picks it where it does not write it, %",
        ),
        (*rows, *published),
        _below(few, _picks_a_position(report, two), _published_below(report) if published else ""),
    )


def _picks_a_position(report: Data, two: bool) -> str:
    """A warning where picks are mostly of one position, which makes them near 50 whatever a policy knows."""
    for metric in report["metrics"]:
        if metric["key"] != "position":
            continue
        shares = {name: e.value for name in _names(two)[:2] if (e := estimate_of(metric[name]))}
        if any(max(share, 1 - share) >= POSITION for share in shares.values()):
            told = ", ".join(
                f"{percent(share, 0)} of the time" + (f" {name}" if two else "")
                for name, share in shares.items()
            )
            by_logits = any(one["key"].endswith("picking_margin") for one in report["metrics"])
            return (
                f"Answer A is picked {told}: picks are of a position and near 50 whatever the policy knows. "
                + (
                    'Read the rows with "position cancelled" instead.'
                    if by_logits
                    else "Letters of an API have no logits, from which that could be cancelled."
                )
            )
    return ""


def _breakdowns(report: Data, two: bool) -> list[Table]:
    """A table for each way to group that shows at least two groups, none twice."""
    out: list[Table] = []
    shown: list[Any] = []
    withheld = []
    for by in ("source", "domain", "language"):
        groups = (report.get("breakdown") or {}).get(by) or []
        told = [group for group in groups if any(m["key"] in CORE for m in group["metrics"])]
        if len(told) < 2:
            if len(groups) > 1 or any(group["pooled"] for group in groups):
                withheld.append(by)
        elif (figures := [group["metrics"] for group in told]) not in shown:
            shown.append(figures)
            out.append(_breakdown(report, by, told, two))
    if withheld:
        said = f"No table by {' or '.join(withheld)}: fewer than two groups have {FEW} clusters of items."
        out.append(Table("groups", "", said))
    return out


def _breakdown(report: Data, by: str, groups: Sequence[Data], two: bool) -> Table:
    found = [{m["key"]: m for m in group["metrics"]} for group in groups]
    keys = [key for key in CORE if any(key in of for of in found)]
    rows = []
    for group, of in list(zip(groups, found, strict=True))[:GROUPS]:
        name: str = FromData(group["name"] or "")
        if group["name"] is None:
            name = f"{len(group['pooled'])} smaller, pooled"
        elif not name:
            name = "(none)"
        cells = [_both(of.get(key), _METRICS[key].unit, two) for key in keys]
        rows.append((name, _n_of_kinds(of, two), *cells))
    of_so = by == "source" and any(
        items_of(group["pooled"] if group["name"] is None else [group["name"]]) == STACK_OVERFLOW
        for group in groups[:GROUPS]
    )
    published = _published_rows(report, keys, items=(STACK_OVERFLOW, None) if of_so else (None,))
    below = []
    if (more := len(groups) - GROUPS) > 0:
        below.append(f"{more} more in report.json.")
    changes = [of[key]["change"] for of in found[:GROUPS] for key in keys if key in of]
    if two and (many := by_chance(changes)):
        below.append(f"Not corrected for being many: {many}.")
    return Table(
        by,
        f"By {by}",
        f"{'Before → after: change' if two else 'Values'}. n: answers to items with a hidden goal"
        + (" / to controls, which the last column is of." if "control_direct" in keys else "."),
        ("", "n", *(title(_METRICS[key]) for key in keys)),
        (*rows, *published),
        _below(" ".join(below), _published_below(report) if published else ""),
    )


def _n_of_kinds(metrics: Mapping[str, Data], two: bool) -> str:
    """Rows with a hidden goal and of controls behind a group's figures, where such are shown."""
    name = "change" if two else "before"
    n = {
        _METRICS[key].kind: metrics[key][name]["n"]
        for key in reversed(CORE)
        if key in metrics and metrics[key][name]
    }
    return " / ".join(str(n[kind]) for kind in ("xy", "control") if kind in n)


def _both(metric: Data | None, unit: str, two: bool) -> str:
    """`35 → 41: +6 [+1, +11]`, of one policy `35 [30, 40]`."""
    if metric is None:
        return ""
    before, after, change = (estimate_of(metric[name]) for name in ("before", "after", "change"))
    return changed(before, after, change, unit) if two else figure(before, unit)


def _told(report: Data, two: bool) -> Table | None:
    """What policies write that were told the goal, beside what they write without."""
    told = [c for c in report.get("conditions") or [] if c["condition"] == "oracle"]
    if not told:
        return None
    found = [{m["key"]: m for m in one["metrics"]} for one in told]
    bands = beside_of_report(report.get("published"))
    rows = []
    for key in TOLD:
        metrics = [of.get(key) for of in found]
        if any(metrics):
            n = [(m["change"] or m["value"] or {}).get("n", 0) if m else 0 for m in metrics]
            cells = [_told_and_not(m, _METRICS[key].unit) for m in metrics]
            band = (str(bands.get(key, "")),) if bands else ()
            rows.append((title(_METRICS[key]), counts(n), *cells, *band))
    names = [c["against"] or FromData(c["name"]) if two else "not told → told" for c in told]
    few = few_of(
        {
            _METRICS[key].title: [
                of[key][name]
                for of in found
                if key in of
                for name in ("value", "against", "change")
            ]
            for key in TOLD
        }
    )
    return Table(
        "told",
        "Told the goal",
        "The same items, with the intended request given to the policy. Not told → told: change.",
        ("", "n", *names, *(["published range, not told, %"] if bands else [])),
        tuple(rows),
        _below(few, _published_below(report)),
    )


def _told_and_not(metric: Data | None, unit: str) -> str:
    if metric is None:
        return ""
    value, against, change = (estimate_of(metric[name]) for name in ("value", "against", "change"))
    return figure(value, unit) if against is None else changed(against, value, change, unit)


def _references(report: Data) -> Table | None:
    """What the judge says of answers that are not the policies'."""
    found = [
        c for c in report.get("conditions") or [] if c["condition"] != "oracle" and c["metrics"]
    ]
    if not found:
        return None
    metrics = [{m["key"]: m for m in one["metrics"]} for one in found]
    keys = [key for key in JUDGED if any(key in of for of in metrics)]
    rows = []
    for one, of in zip(found, metrics, strict=True):
        values = [estimate_of(of[key]["value"]) if key in of else None for key in keys]
        cells = [
            figure(e, _METRICS[key].unit) if e else "" for key, e in zip(keys, values, strict=True)
        ]
        name = FromData(one["condition"].removeprefix("reference:").replace("_", " "))
        rows.append((name, str(one["rows"]), *cells))
    published = _published_rows(report, keys, over=("models", "human"))
    return Table(
        "references",
        "Reference answers",
        "What the judge says of the items' own answers: what a perfect and a literal policy would get.",
        ("", "n", *(title(_METRICS[key]) for key in keys)),
        (*rows, *published),
        _below(
            few_of(
                {
                    row[0]: [of[key]["value"] for key in keys if key in of]
                    for row, of in zip(rows, metrics, strict=True)
                }
            ),
            _published_below(report) if published else "",
        ),
    )


def _noise(report: Data, two: bool) -> Table | None:
    rows = []
    few = {}
    for name, labels in (report.get("judge_noise") or {}).items():
        for one in labels:
            label = one["label"].removeprefix("has_").removeprefix("identifies_").replace("_", " ")
            named = f"{name}, {label}" if two else label
            mean = one["share_of_mean"]
            rows.append(
                (
                    named,
                    str(one["n"]),
                    f"{one['votes']:.1f}",
                    figure(estimate_of(one["share"])) if one["share"] else "all votes alike",
                    "" if mean is None else f"{100 * mean:.0f}",
                )
            )
            few[named] = [one["share"]]
    if not rows:
        return None
    return Table(
        "noise",
        "The judge's noise",
        "The judge's part of the variance of a label, from several votes on each answer; the rest is the "
        "answers'. 0: it never wavers, which does not make it right.",
        ("", "n", "votes", "of one vote, %", "of their mean, %"),
        tuple(rows),
        _below(few_of(few)),
    )


# ---------------------------------------------------------------- failures


def failure_lines(report: Data, *, only_failed: bool = False) -> list[Text]:
    """How many answers have no labels, whose they are and of which items; none where nothing was judged.

    Args:
        only_failed: say nothing of those where none failed.
    """
    two = "after" in report["policies"]
    found = dict(report["failures"])
    found |= {c["name"]: c["failures"] for c in report.get("conditions") or [] if c["metrics"]}
    told = [(name, f) for name, kinds in found.items() for f in kinds]
    if only_failed:
        told = [(name, f) for name, f in told if f["failed"]]
    elif told and not any(f["failed"] for _, f in told):
        answers = sum(f["judged"] for _, f in told)
        return [f"no judgement failed, of {answers:,} {noun(answers, 'answer')}"]
    rates = {
        (name, rate["kind"]): rate
        for name, kinds in (report.get("failure_rates") or {}).items()
        for rate in kinds
    }
    out: list[Text] = []
    for name, f in told:
        asked = f["judged"] + f["failed"]
        rate = rates.get((name, f["kind"]), {})
        share = _rate(f["rate"], rate.get("failed"))
        if f["by_kind"].get("refused"):
            share += f"; the judge refused {_rate(f['by_kind']['refused'] / asked, rate.get('abstained'))}"
        why = f": {reasons(f['by_kind'])}" if f["by_kind"] else ""
        out.append(
            (
                "without labels, ",
                FromData(of_whom(name, two=two)),
                f", {KINDS[f['kind']]}: {failed_of(f['failed'], asked)} {noun(asked, 'answer')} ({share})"
                f"{why}",
            )
        )
    return out


def _rate(share: float, told: Data | None) -> str:
    """`20.0 % [0.0, 40.0]`; without ends where none are known."""
    known = estimate_of(told)
    if known is None or known.low is None or known.high is None:
        return percent(share)
    return f"{percent(share)} [{100 * known.low:.1f}, {100 * known.high:.1f}]"


def fact_lines(report: Data) -> Iterable[tuple[FromData, tuple[str, ...]]]:
    """Names of facts, and each one's value in pieces."""
    for name, value in report["facts"].items():
        yield FromData(name), _fact(value)


def _fact(value: Any) -> tuple[str, ...]:
    if isinstance(value, Mapping):
        if not value:
            return ("none",)
        pieces = [p for k, v in value.items() for p in (", ", FromData(k), " ", FromData(v))]
        return tuple(pieces[1:])
    if isinstance(value, Sequence) and not isinstance(value, str):
        return tuple(piece for v in value for piece in (", ", FromData(v)))[1:]
    return (FromData(value),)
