"""report.md: the report as a page that reads in a terminal; the main table first, then what says something.

A section is left out where it has nothing to say (a single source, no votes, no second policy). Text
from data enters the page as code only; answers are in the run folder's JSONL.

Not here: what the figures are and their intervals (`report.py`), the page with charts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from xyreward.breakdown import FEW
from xyreward.evaluation import METRICS, Headline
from xyreward.markdown import code, plain
from xyreward.published import Band, beside_of_report
from xyreward.stats import Estimate
from xyreward.words import counted, noun, of_whom, with_failures

EXPLAINED = "xyreward's docs/report.md"
KINDS = {"xy": "items with a hidden goal", "control": "controls", None: "all items"}
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

Row = Sequence[str]
Data = Mapping[str, Any]


def to_markdown(report: Data) -> str:
    """The report as a page. Reports of schema 1 have fewer sections."""
    two = "after" in report["policies"]
    out = [*_intro(report, two), "", *_headline_lines(report), "", *_main_table(report, two), ""]
    for section in (
        _label_tests(report),
        _moved(report),
        _co_movement(report),
        _picking_writing(report),
        *_breakdowns(report, two),
        _told(report),
        _references(report),
        _noise(report),
        _published(report),
    ):
        if section:
            out += [*section, ""]
    out += ["## Notes", "", *_failure_lines(report)]
    out += [f"- {plain(note)}" for note in report["notes"]]
    out += [f"- every row and every key of report.json is explained in {EXPLAINED}"]
    if report["facts"]:
        out += ["", "## Facts", ""]
        out += [f"- {plain(k)}: {_fact(v)}" for k, v in report["facts"].items()]
    return "\n".join(out).rstrip() + "\n"


def _intro(report: Data, two: bool) -> list[str]:
    counts = report["items"]
    answers = f", {several:.3g} answers to each" if (several := _several(report)) else ""
    judge = (
        f"Judge: {code(report['judge'])} ({code(report['rubric_version'])}). "
        if report["judge"]
        else ""
    )
    return [
        "# Held-out evaluation",
        "",
        f"{counted(counts['xy'], 'item')} with a hidden goal, {counted(counts['control'], 'control')}"
        f"{answers}. {judge}"
        "Brackets are 95 % intervals over clusters of items (BCa bootstrap, expanded for few clusters)"
        + ("; changes are paired by item." if two else "."),
        "",
        "; ".join(
            f"{name if two else 'policy'}: {code(policy)}"
            for name, policy in report["policies"].items()
        )
        + ".",
    ]


def _several(report: Data) -> float:
    """Answers to each item, on average; 0 where there is one to each."""
    several = [
        c["rows"] / sum(c["items"].values())
        for c in report.get("conditions") or []
        if c["condition"] == "writing" and c["rows"]
    ]
    return max(several) if several and max(several) > 1 else 0


def _headline_lines(report: Data) -> list[str]:
    out = [
        "Headline, P(intended solution and focus | hidden goal) + P(direct answer | control) - 1, "
        "in [-1, 1]; a policy that ignores the query cannot exceed 0:",
        "",
    ]
    for name, value in report["headline"].items():
        head = Headline(**value)
        name = name if len(report["headline"]) > 1 else "value"
        if head.value is None:
            out.append(f"- {name}: {head.why}")
        else:
            interval = with_interval(head.value, head.low, head.high, "+.2f", head.why)
            out.append(f"- {name}: {interval}")
    if notes := report.get("headline_notes"):
        out += ["", *map(plain, notes)]
    return out


# ---------------------------------------------------------------- the main table


def _main_table(report: Data, two: bool) -> list[str]:
    header = ["", "n", "before", "after", "change"] if two else ["", "n", "value"]
    published = report.get("published")
    bands = beside_of_report(published)
    if bands:
        header.append("published range, %")
    rows: list[Row] = []
    for kind, heading in KINDS.items():
        metrics = [m for m in report["metrics"] if m["kind"] == kind]
        if metrics:
            rows.append([f"**{heading}**"] + [""] * (len(header) - 1))
        for m in metrics:
            beside = [str(bands.get(m["key"], ""))] if bands else []
            rows.append([*_cells(m, two), *beside])
    out = _table(header, rows)
    below: list[str] = []
    if two and any(len(set(_counts(m, two))) > 1 for m in report["metrics"]):
        below.append(
            "Where n is three numbers: measured before / after / both times. Changes are over the answers "
            "that were measured both times, so they can differ from after minus before."
        )
    if two and (many := by_chance([m["change"] for m in report["metrics"]])):
        below.append(f"Intervals are not corrected for being many: {many}.")
    if few := few_clusters((m, [m[name] for name in _names(two)]) for m in report["metrics"]):
        below.append(few)
    if published and bands:
        below.append(_published_line(published, report["judge"]))
    for line in below:
        out += ["", line]
    return out


def _cells(metric: Data, two: bool) -> Row:
    names = _names(two)
    counts = _counts(metric, two)
    cells = [title(metric), " / ".join(map(str, counts if len(set(counts)) > 1 else counts[:1]))]
    for name in names:
        cells.append(cell(_estimate(metric[name]), metric["unit"], signed=name == "change"))
        found = metric["failure_bounds"].get(name)
        if bounds := with_failures(found, metric["unit"], signed=name == "change"):
            cells[-1] += f" ({bounds})"
    return cells


def _names(two: bool) -> tuple[str, ...]:
    return ("before", "after", "change") if two else ("before",)


def _counts(metric: Data, two: bool) -> list[int]:
    """Rows behind each figure: they differ where a judge failed, or an answer's focus is `neither`."""
    return [metric[name]["n"] if metric[name] else 0 for name in _names(two)]


def few_clusters(metrics: Iterable[tuple[Data, Iterable[Data | None]]]) -> str:
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


def _least_clusters(estimates: Iterable[Data | None]) -> int:
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


def _few_below(named: Mapping[str, Iterable[Data | None]]) -> list[str]:
    """Lines below a section's table of what is over few clusters, by the names of its rows."""
    least = {name: _least_clusters(estimates) for name, estimates in named.items()}
    few = _few({name: n for name, n in least.items() if 0 < n < FEW})
    return ["", few] if few else []


def _published(report: Data) -> list[str]:
    """The published ranges where they may not stand beside the table."""
    published = report.get("published")
    if not published or beside_of_report(published):
        return []
    return ["## What the paper published", "", _published_line(published, report["judge"])]


def _published_line(published: Data, judge: str | None) -> str:
    """Where the published ranges come from, and whether they may be compared with the table."""
    by = (
        f"published in the paper of {plain(published['source'])}, judge {plain(published['judge'])}"
    )
    if beside_of_report(published):
        yours = f"yours is {code(judge)}" if judge else "here nothing was judged"
        return (
            f"Published range: over models (five; picking: six) on {plain(published['beside'])}, "
            f"{by}; {yours}. "
            "Figures of different judges compare only as far as the judges were found to agree."
        )
    ranges: dict[str, list[str]] = {}
    for band in (Band(**b) for b in published["bands"]):
        ranges.setdefault(f"{band.over} on {band.items}", []).append(
            f"{_METRICS[band.metric].title} {band}"
        )
    return (
        "For orientation, not for comparison: other items and another judge. In %, "
        + by
        + ": "
        + "; ".join(f"{over}: {', '.join(values)}" for over, values in ranges.items())
        + "."
    )


# ---------------------------------------------------------------- two policies


def _label_tests(report: Data) -> list[str]:
    tests = report.get("label_tests")
    if not tests:
        return []
    alone = all(test["p"] == test["p_rows"] for test in tests)
    several = bool(_several(report))
    how = "of McNemar's exact test" if alone and not several else "exact, over clusters"
    also = "those over items, which ignore" if several else "McNemar's, which ignores"
    rows = [
        [
            title(_METRICS[test["key"]], unit=False),
            *(str(test[name]) for name in ("n", "gained", "lost")),
            _p(test["p"]),
            _p(test["p_holm"]),
        ]
        for test in tests
    ]
    return [
        "## Did labels change?",
        "",
        "Items that gained and lost a label"
        + (" (the sum over their answers)" if several else "")
        + f"; p-values are {how}"
        + ("" if alone else f" (report.json also has {also} clusters)")
        + f", and corrected for testing {len(tests)} {noun(len(tests), 'label')} (Holm).",
        "",
        *_table(["", "n", "gained", "lost", "p", "p, corrected"], rows),
    ]


def _p(p: float) -> str:
    return "< 0.001" if p < 0.001 else f"{p:.3f}"


def _moved(report: Data) -> list[str]:
    implicit = {k: v for k, v in report["implicit_reward"].items() if v}
    if not implicit:
        return []
    titles = {"xy": "goal-focused against literal", "control": "direct against overcorrecting"}
    rows = []
    for kind, value in implicit.items():
        e = {name: Estimate(**v) for name, v in value.items() if isinstance(v, Mapping)}
        rows.append(
            [
                titles[kind],
                str(e["accuracy"].n),
                cell(e["accuracy"], "%", signed=False),
                cell(e["accuracy_per_token"], "%", signed=False),
                _nats(e["margin"], 2),
                _nats(e["margin_per_token"], 3),
                _nats(e["better_change"], 2),
                _nats(e["worse_change"], 2),
            ]
        )
    header = [
        "",
        "n",
        "moved towards the better answer, %",
        "per token, %",
        "margin, nats",
        "margin, nats/token",
        "better answer, nats",
        "worse answer, nats",
    ]
    return [
        "## What training moved",
        "",
        "Change in log-probability, after minus before, of reference answers.",
        "",
        *_table(header, rows),
        *_few_below({titles[kind]: [value["accuracy"]] for kind, value in implicit.items()}),
    ]


def _nats(estimate: Estimate, digits: int) -> str:
    return with_interval(
        estimate.value, estimate.low, estimate.high, f"+.{digits}f", _why(estimate)
    )


def _co_movement(report: Data) -> list[str]:
    found = report.get("co_movement") or []
    rows = [
        [
            _METRICS[pair["first"]].title,
            str(pair["improved_too"]["n"]),
            _METRICS[pair["second"]].title,
            *(
                cell(_estimate(pair[name]), "%", signed=False)
                for name in ("improved_too", "improved_otherwise", "worsened")
            ),
        ]
        for pair in found
        # What an earlier version wrote does not tell its clusters.
        if (e := pair["improved_too"]) and (e.get("clusters") or e["n"]) >= FEW
    ]
    if not rows:
        return []
    header = [
        "items that improved on",
        "n",
        "improved on",
        "too, %",
        "other items, %",
        "got worse, %",
    ]
    return [
        "## Do gains come together?",
        "",
        "Of the items that improved on one label, how many improved on another: against the share among "
        "all other items.",
        "",
        *_table(header, rows),
    ]


# ---------------------------------------------------------------- picking, groups, conditions


def _picking_writing(report: Data) -> list[str]:
    gaps = report.get("picking_writing_gap") or {}
    two = "after" in report["policies"]
    rows = []
    for name in report["policies"]:
        gap = gaps.get(name)
        if gap:
            e = {key: _estimate(value) for key, value in gap.items()}
            rows.append(
                [
                    name if two else "value",
                    str(gap["gap"]["n"]),
                    cell(e["picking"], "%", signed=False),
                    cell(e["writing"], "%", signed=False),
                    cell(e["gap"], "%", signed=True),
                    cell(e["picked_though_not_written"], "%", signed=False),
                ]
            )
    if not rows:
        return []
    if change := _estimate(gaps.get("change")):
        rows.append(["change", str(change.n), "", "", cell(change, "%", signed=True), ""])
    header = [
        "",
        "n",
        "picks it, %",
        "writes it, %",
        "gap, points",
        "picks it where it does not write it, %",
    ]
    out = [
        "## Picking against writing",
        "",
        "Items where both were measured: how often the goal-focused answer is picked, and how often the "
        "written answer's focus is the intended request"
        + (" (of several answers to an item their mean)." if _several(report) else "."),
        "",
        *_table(header, rows),
        *_few_below(
            {
                "change" if name == "change" else name if two else "value": (
                    [gap] if name == "change" else gap.values()
                )
                for name, gap in gaps.items()
                if gap
            }
        ),
    ]
    if biased := _picks_a_position(report, two):
        out += ["", biased]
    return out


def _picks_a_position(report: Data, two: bool) -> str:
    """A warning where picks are mostly of one position, which makes them near 50 whatever a policy knows."""
    for metric in report["metrics"]:
        if metric["key"] != "position":
            continue
        shares = {name: e.value for name in _names(two)[:2] if (e := _estimate(metric[name]))}
        if any(max(share, 1 - share) >= POSITION for share in shares.values()):
            told = ", ".join(
                f"{100 * share:.0f} % of the time" + (f" {name}" if two else "")
                for name, share in shares.items()
            )
            return (
                f"Answer A is picked {told}: picks are of a position and near 50 whatever the policy knows. "
                "Read the rows with *position cancelled* instead."
            )
    return ""


def _breakdowns(report: Data, two: bool) -> list[list[str]]:
    """A section for each way to group that shows at least two groups, none twice."""
    out: list[list[str]] = []
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
            out.append(_breakdown(by, told, two))
    if withheld:
        out.append(
            [
                f"No table by {' or '.join(withheld)}: fewer than two groups have {FEW} clusters of items."
            ]
        )
    return out


def _breakdown(by: str, groups: Sequence[Data], two: bool) -> list[str]:
    found = [{m["key"]: m for m in group["metrics"]} for group in groups]
    keys = [key for key in CORE if any(key in of for of in found)]
    rows = []
    for group, of in list(zip(groups, found, strict=True))[:GROUPS]:
        name = plain(group["name"]) if group["name"] is not None else ""
        if group["name"] is None:
            name = f"{len(group['pooled'])} smaller, pooled"
        elif not name:
            name = "(none)"
        cells = [_both(of.get(key), _METRICS[key].unit, two) for key in keys]
        rows.append([name, _n_of_kinds(of, two), *cells])
    out = [
        f"## By {by}",
        "",
        f"{'Before → after: change' if two else 'Values'}. n: answers to items with a hidden goal"
        + (" / to controls, which the last column is of." if "control_direct" in keys else "."),
        "",
        *_table(["", "n", *(title(_METRICS[key]) for key in keys)], rows),
    ]
    below = []
    if (more := len(groups) - GROUPS) > 0:
        below.append(f"{more} more in report.json.")
    changes = [of[key]["change"] for of in found[:GROUPS] for key in keys if key in of]
    if two and (many := by_chance(changes)):
        below.append(f"Not corrected for being many: {many}.")
    if below:
        out += ["", " ".join(below)]
    return out


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
    before = _estimate(metric["before"])
    if not two:
        return cell(before, unit, signed=False)
    return _told_cell(before, _estimate(metric["after"]), _estimate(metric["change"]), unit)


def _told_cell(
    before: Estimate | None, after: Estimate | None, change: Estimate | None, unit: str
) -> str:
    values = (
        "n/a" if e is None else f"{e.value * (100 if unit == '%' else 1):.0f}"
        for e in (before, after)
    )
    return f"{' → '.join(values)}: {cell(change, unit, signed=True)}"


def _told(report: Data) -> list[str]:
    """What policies write that were told the goal, beside what they write without."""
    told = [c for c in report.get("conditions") or [] if c["condition"] == "oracle"]
    if not told:
        return []
    found = [{m["key"]: m for m in one["metrics"]} for one in told]
    two = len(report["policies"]) > 1
    rows = []
    for key in TOLD:
        metrics = [of.get(key) for of in found]
        if any(metrics):
            n = [str((m["change"] or m["value"] or {}).get("n", 0)) if m else "0" for m in metrics]
            cells = [_told_and_not(m, _METRICS[key].unit) for m in metrics]
            rows.append([title(_METRICS[key]), " / ".join(n if len(set(n)) > 1 else n[:1]), *cells])
    names = [c["against"] or plain(c["name"]) if two else "not told → told" for c in told]
    return [
        "## Told the goal",
        "",
        "The same items, with the intended request given to the policy. Not told → told: change.",
        "",
        *_table(["", "n", *names], rows),
        *_few_below(
            {
                _METRICS[key].title: [
                    of[key][name]
                    for of in found
                    if key in of
                    for name in ("value", "against", "change")
                ]
                for key in TOLD
            }
        ),
    ]


def _told_and_not(metric: Data | None, unit: str) -> str:
    if metric is None:
        return ""
    value, against, change = (_estimate(metric[name]) for name in ("value", "against", "change"))
    if against is None:
        return cell(value, unit, signed=False)
    return _told_cell(against, value, change, unit)


def _references(report: Data) -> list[str]:
    """What the judge says of answers that are not the policies'."""
    found = [
        c for c in report.get("conditions") or [] if c["condition"] != "oracle" and c["metrics"]
    ]
    if not found:
        return []
    metrics = [{m["key"]: m for m in one["metrics"]} for one in found]
    keys = [key for key in JUDGED if any(key in of for of in metrics)]
    rows = []
    for one, of in zip(found, metrics, strict=True):
        values = [_estimate(of[key]["value"]) if key in of else None for key in keys]
        rows.append(
            [
                plain(one["condition"].removeprefix("reference:").replace("_", " ")),
                str(one["rows"]),
                *(
                    cell(e, _METRICS[k].unit, signed=False) if e else ""
                    for k, e in zip(keys, values, strict=True)
                ),
            ]
        )
    return [
        "## Reference answers",
        "",
        "What the judge says of the items' own answers: what a perfect and a literal policy would get.",
        "",
        *_table(["", "n", *(title(_METRICS[key]) for key in keys)], rows),
        *_few_below(
            {
                row[0]: [of[key]["value"] for key in keys if key in of]
                for row, of in zip(rows, metrics, strict=True)
            }
        ),
    ]


def _noise(report: Data) -> list[str]:
    two = len(report["policies"]) > 1
    rows = []
    for name, labels in (report.get("judge_noise") or {}).items():
        for label in labels:
            mean = label["share_of_mean"]
            rows.append(
                [
                    f"{name}, {_label(label['label'])}" if two else _label(label["label"]),
                    str(label["n"]),
                    f"{label['votes']:.1f}",
                    cell(_estimate(label["share"]), "%", signed=False)
                    if label["share"]
                    else "all votes alike",
                    "" if mean is None else f"{100 * mean:.0f}",
                ]
            )
    if not rows:
        return []
    return [
        "## The judge's noise",
        "",
        "The judge's part of the variance of a label, from several votes on each answer; the rest is the "
        "answers'. 0: it never wavers, which does not make it right.",
        "",
        *_table(["", "n", "votes", "of one vote, %", "of their mean, %"], rows),
        *_few_below(
            {
                f"{name}, {_label(one['label'])}" if two else _label(one["label"]): [one["share"]]
                for name, labels in report["judge_noise"].items()
                for one in labels
            }
        ),
    ]


def _label(name: str) -> str:
    return name.removeprefix("has_").removeprefix("identifies_").replace("_", " ")


# ---------------------------------------------------------------- failures and facts


def _failure_lines(report: Data) -> list[str]:
    two = "after" in report["policies"]
    found = dict(report["failures"])
    found |= {c["name"]: c["failures"] for c in report.get("conditions") or [] if c["metrics"]}
    counts = [(name, f) for name, kinds in found.items() for f in kinds]
    if counts and not any(f["failed"] for _, f in counts):
        answers = sum(f["judged"] for _, f in counts)
        return [f"- no judgement failed, of {answers:,} {noun(answers, 'answer')}"]
    rates = {
        (name, rate["kind"]): rate
        for name, kinds in (report.get("failure_rates") or {}).items()
        for rate in kinds
    }
    out = []
    for name, f in counts:
        reasons = ", ".join(f"{n} {k}" for k, n in sorted(f["by_kind"].items()))
        rate = rates.get((name, f["kind"]))
        share = f"{f['rate']:.1%}"
        if rate and (e := _estimate(rate["failed"])) and e.low is not None and e.high is not None:
            share += f" [{100 * e.low:.1f}, {100 * e.high:.1f}]"
        out.append(
            f"- without labels, {plain(of_whom(name, two=two))}, {f['kind']} items: {f['failed']} of "
            f"{f['judged'] + f['failed']} {noun(f['judged'] + f['failed'], 'answer')} ({share})"
            + (f": {reasons}" if reasons else "")
        )
    return out


def _fact(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{plain(k)} {plain(v)}" for k, v in value.items()) or "none"
    if isinstance(value, Sequence) and not isinstance(value, str):
        return ", ".join(plain(v) for v in value)
    return plain(value)


# ---------------------------------------------------------------- cells


def _table(header: Row, rows: Iterable[Row]) -> list[str]:
    return [
        "| " + " | ".join(header) + " |",
        "|---|" + "---:|" * (len(header) - 1),
        *("| " + " | ".join(row) + " |" for row in rows),
    ]


def by_chance(changes: Iterable[Any]) -> str:
    """How many of these intervals would exclude 0 if nothing had changed; empty of few."""
    n = sum(e is not None and e["low"] is not None for e in changes)
    return f"if nothing had changed, about {n / 20:.0f} of {n} would exclude 0" if n >= 20 else ""


def _estimate(data: Data | None) -> Estimate | None:
    return Estimate(**data) if data else None


def title(metric: Any, *, unit: bool = True) -> str:
    """Title, unit and direction of a metric, or of its entry in a report."""
    title, of, better = (
        (metric[name] if isinstance(metric, Mapping) else getattr(metric, name))
        for name in ("title", "unit", "better")
    )
    arrow = {"higher": " ↑", "lower": " ↓"}.get(better, "")
    return f"{title}{f', {of}' if unit and of else ''}{arrow}"


def cell(estimate: Estimate | None, unit: str, *, signed: bool) -> str:
    """A number with its interval in the unit of its metric; signed: as a change."""
    if estimate is None:
        return "n/a"
    scale = 100 if unit == "%" else 1
    digits = 2 if unit == "" else 0
    spec = f"{'+' if signed else ''}.{digits}f"  # "-0" tells that 0 is within
    low = None if estimate.low is None else estimate.low * scale
    high = None if estimate.high is None else estimate.high * scale
    return with_interval(estimate.value * scale, low, high, spec, _why(estimate))


def _why(estimate: Estimate) -> str:
    """Why an estimate has no interval; without bounds n equal values tell nothing of the next one."""
    return f"{estimate.n} {estimate.why}" if estimate.why == "all alike" else estimate.why


def with_interval(
    value: float, low: float | None, high: float | None, spec: str, why: str = ""
) -> str:
    """`35 [30, 40]` with each number formatted by `spec`; `why` where there is no interval."""
    if low is None or high is None:
        interval = "no interval" + f": {why}" * bool(why)
    else:
        interval = f"{low:{spec}}, {high:{spec}}"
    return f"{value:{spec}} [{interval}]"
