"""report.json and report.md: what was measured, on what, by whom, with intervals.

Text from data never enters the Markdown table; answers are in the run folder's JSONL.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from xyreward.calibrate import covered_by
from xyreward.evaluation import (
    METRICS,
    Evaluation,
    Headline,
    ImplicitReward,
    Line,
    failure_bounds,
    failure_bounds_of_change,
    failures,
    headline,
    headline_change,
    implicit_reward,
    measure,
)
from xyreward.items import ItemKind
from xyreward.markdown import code, plain
from xyreward.published import Band, Published, beside_of_report
from xyreward.stats import Estimate

SCHEMA = 1
EXPLAINED = "xyreward's docs/report.md"
KINDS: tuple[ItemKind, ...] = ("xy", "control")


def build_report(
    before: Evaluation,
    after: Evaluation | None = None,
    *,
    conditions: Mapping[str, Evaluation] | None = None,
    facts: Mapping[str, Any] | None = None,
    max_failure_rate: float = 0.05,
    seed: int = 0,
) -> dict[str, Any]:
    """Everything that is known of one policy, or of two and their difference, as JSON-ready data.

    Args:
        conditions: what was evaluated besides: `before.oracle`, `reference.goal_focused`, ...
        facts: what to record beside the figures (hashes, versions, what was trained on).
    """
    lines = measure(before, after, seed=seed)
    evaluations = {"before": before, **({"after": after} if after else {})}
    noted = [*evaluations.values(), *(conditions or {}).values()]
    headlines = {
        name: headline(e, max_failure_rate=max_failure_rate, seed=seed)
        for name, e in evaluations.items()
    }
    if after:
        headlines["change"] = headline_change(
            before, after, max_failure_rate=max_failure_rate, seed=seed
        )
    return {
        "schema": SCHEMA,
        "policies": {name: e.policy for name, e in evaluations.items()},
        "judge": before.judge,
        "rubric_version": before.rubric_version,
        "items": {kind: sum(r.kind == kind for r in before.rows) for kind in KINDS},
        "headline": {name: asdict(value) for name, value in headlines.items()},
        "metrics": [_line(line, before, after) for line in lines],
        "implicit_reward": {
            kind: _implicit(implicit_reward(before, after, kind, seed=seed))
            for kind in KINDS
            if after is not None
        },
        "failures": {
            name: [{**asdict(f), "by_kind": dict(f.by_kind), "rate": f.rate} for f in failures(e)]
            for name, e in evaluations.items()
        },
        "published": Published.load().to_report({r.source for r in before.rows if r.kind == "xy"}),
        "notes": list(dict.fromkeys(note for evaluation in noted for note in evaluation.notes)),
        "facts": {**(facts or {}), **_calibration(before)},
    }


def _calibration(evaluation: Evaluation) -> dict[str, str]:
    if not (evaluation.judge and evaluation.rubric_version):
        return {}
    return {"judge against people": covered_by(evaluation.judge, evaluation.rubric_version)}


def _line(line: Line, before: Evaluation, after: Evaluation | None) -> dict[str, Any]:
    metric = line.metric
    return {
        "key": metric.key,
        "title": metric.title,
        "kind": metric.kind,
        "part": metric.part,
        "better": metric.better,
        "unit": metric.unit,
        "before": _estimate(line.before),
        "after": _estimate(line.after),
        "change": _estimate(line.change),
        "failure_bounds": {
            name: failure_bounds(e, metric)
            for name, e in (("before", before), ("after", after))
            if e is not None
        }
        | ({"change": failure_bounds_of_change(before, after, metric)} if after else {}),
    }


def _estimate(estimate: Estimate | None) -> dict[str, Any] | None:
    return asdict(estimate) if estimate else None


def _implicit(value: ImplicitReward | None) -> dict[str, Any] | None:
    return asdict(value) if value else None


def to_json(report: Mapping[str, Any]) -> str:
    """The report as strict JSON: a number that is not finite is an error here, not a bad file."""
    return json.dumps(report, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


# ---------------------------------------------------------------- Markdown


def to_markdown(report: Mapping[str, Any]) -> str:
    """The report as a page: headline, table, what was moved, failures, facts."""
    two = "after" in report["policies"]
    counts = report["items"]
    out = [
        "# Held-out evaluation",
        "",
        f"{counts['xy']} items with a hidden goal, {counts['control']} controls. "
        + (
            f"Judge: {code(report['judge'])} ({code(report['rubric_version'])}). "
            if report["judge"]
            else ""
        )
        + "Brackets are 95 % intervals over clusters of items (BCa bootstrap, expanded for few clusters)"
        + ("; changes are paired by item." if two else "."),
        "",
        "; ".join(
            f"{name if two else 'policy'}: {code(policy)}"
            for name, policy in report["policies"].items()
        )
        + ".",
        "",
    ]
    out += [*_headline_lines(report), ""]
    header = ["", "n", "before", "after", "change"] if two else ["", "n", "value"]
    published = report.get("published")
    bands = beside_of_report(published)
    if bands:
        header.append("published range, %")
    out += ["| " + " | ".join(header) + " |", "|---|" + "---:|" * (len(header) - 1)]
    for kind in (*KINDS, None):
        rows = [m for m in report["metrics"] if m["kind"] == kind]
        if rows:
            heading = {"xy": "**items with a hidden goal**", "control": "**controls**"}.get(
                str(kind), "**all items**"
            )
            out.append("| " + " | ".join([heading] + [""] * (len(header) - 1)) + " |")
            for m in rows:
                row = _table_row(m, two)
                if bands:
                    row += f" {bands.get(m['key'], '')} |"
                out.append(row)
    out.append("")
    if two and any(len(set(_counts(m, two))) > 1 for m in report["metrics"]):
        out += [
            "Where n is three numbers: measured before / after / both times. Changes are over the items that "
            "were measured both times, so they can differ from after minus before.",
            "",
        ]
    if published:
        out += [_published_line(published, report["judge"]), ""]
    implicit = {k: v for k, v in report["implicit_reward"].items() if v}
    if implicit:
        out += [*_implicit_lines(implicit), ""]
    out += _failure_lines(report)
    out += [f"- {plain(note)}" for note in report["notes"]]
    out += [f"- every row is explained in {EXPLAINED}"]
    if report["facts"]:
        out += ["", "## Facts", ""]
        out += [f"- {plain(k)}: {_fact(v)}" for k, v in report["facts"].items()]
    return "\n".join(out).rstrip() + "\n"


def _headline_lines(report: Mapping[str, Any]) -> list[str]:
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
            interval = _with_interval(head.value, head.low, head.high, "+.2f", head.why)
            out.append(f"- {name}: {interval}")
    return out


def _table_row(metric: Mapping[str, Any], two: bool) -> str:
    cells = [_title(metric)]
    names = _names(two)
    estimates = [Estimate(**metric[name]) if metric[name] else None for name in names]
    counts = _counts(metric, two)
    cells.append(" / ".join(map(str, counts if len(set(counts)) > 1 else counts[:1])))
    for name, estimate in zip(names, estimates, strict=True):
        cells.append(_cell(estimate, metric["unit"], signed=name == "change"))
        bounds = metric["failure_bounds"].get(name)
        if bounds:
            cells[-1] += f" (failures worst/best: {100 * bounds[0]:.0f} to {100 * bounds[1]:.0f})"
    return "| " + " | ".join(cells) + " |"


def _names(two: bool) -> tuple[str, ...]:
    return ("before", "after", "change") if two else ("before",)


def _counts(metric: Mapping[str, Any], two: bool) -> list[int]:
    """Rows behind each figure: they differ where a judge failed, or an answer's focus is `neither`."""
    return [metric[name]["n"] if metric[name] else 0 for name in _names(two)]


def _title(metric: Mapping[str, Any]) -> str:
    arrow = {"higher": " ↑", "lower": " ↓"}.get(metric["better"], "")
    unit = f", {metric['unit']}" if metric["unit"] else ""
    return f"{metric['title']}{unit}{arrow}"


def _cell(estimate: Estimate | None, unit: str, *, signed: bool) -> str:
    if estimate is None:
        return "n/a"
    scale = 100 if unit == "%" else 1
    digits = 2 if unit == "" else 0
    spec = f"{'+' if signed else ''}.{digits}f"
    low = None if estimate.low is None else estimate.low * scale
    high = None if estimate.high is None else estimate.high * scale
    return _with_interval(estimate.value * scale, low, high, spec, _why(estimate))


def _why(estimate: Estimate) -> str:
    """Why an estimate has no interval; without bounds n equal values tell nothing of the next one."""
    return f"{estimate.n} {estimate.why}" if estimate.why == "all alike" else estimate.why


def _with_interval(
    value: float, low: float | None, high: float | None, spec: str, why: str = ""
) -> str:
    if low is None or high is None:
        interval = "no interval" + f": {why}" * bool(why)
    else:
        interval = f"{low:{spec}}, {high:{spec}}"
    return f"{value:{spec}} [{interval}]"


def _published_line(published: Mapping[str, Any], judge: str | None) -> str:
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
    titles = {metric.key: metric.title for metric in METRICS}
    ranges: dict[str, list[str]] = {}
    for band in (Band(**b) for b in published["bands"]):
        ranges.setdefault(f"{band.over} on {band.items}", []).append(
            f"{titles[band.metric]} {band}"
        )
    return (
        "For orientation, not for comparison: other items and another judge. In %, "
        + by
        + ": "
        + "; ".join(f"{over}: {', '.join(values)}" for over, values in ranges.items())
        + "."
    )


def _implicit_lines(implicit: Mapping[str, Any]) -> list[str]:
    out = [
        "What training moved (change in log-probability, after minus before, of reference answers):",
        "",
        "| | n | moved towards the better answer, % | per token, % | margin, nats | margin, nats/token |"
        " better answer, nats | worse answer, nats |",
        "|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    titles = {"xy": "goal-focused against literal", "control": "direct against overcorrecting"}
    for kind, value in implicit.items():
        e = {name: Estimate(**v) for name, v in value.items() if isinstance(v, Mapping)}
        cells = [
            titles[kind],
            str(e["accuracy"].n),
            _cell(e["accuracy"], "%", signed=False),
            _cell(e["accuracy_per_token"], "%", signed=False),
            _nats(e["margin"], 2),
            _nats(e["margin_per_token"], 3),
            _nats(e["better_change"], 2),
            _nats(e["worse_change"], 2),
        ]
        out.append("| " + " | ".join(cells) + " |")
    return out


def _nats(estimate: Estimate, digits: int) -> str:
    spec = f"+.{digits}f"
    return _with_interval(estimate.value, estimate.low, estimate.high, spec, _why(estimate))


def _failure_lines(report: Mapping[str, Any]) -> list[str]:
    out = []
    for name, kinds in report["failures"].items():
        for f in kinds:
            reasons = ", ".join(f"{n} {k}" for k, n in sorted(f["by_kind"].items()))
            out.append(
                f"- judge failures {name}, {f['kind']} items: {f['failed']} of "
                f"{f['judged'] + f['failed']} ({f['rate']:.1%})"
                + (f": {reasons}" if reasons else "")
            )
    return out


def _fact(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{plain(k)} {plain(v)}" for k, v in value.items()) or "none"
    if isinstance(value, Sequence) and not isinstance(value, str):
        return ", ".join(plain(v) for v in value)
    return plain(value)
