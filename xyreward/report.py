"""report.json: what was measured, on what, by whom, with intervals; every key is in `report_schema.py`.

Not here: the page (`report_markdown.py`), what a statistic is (`metrics.py`, `paired.py`,
`breakdown.py`, `judge_noise.py`).
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any, get_args

from xyreward.breakdown import Dimension, Group, breakdown, failure_rates
from xyreward.errors import DataError
from xyreward.evaluation import Evaluation, Row
from xyreward.items import ITEM_KINDS
from xyreward.judge_noise import judge_noise
from xyreward.metrics import (
    Line,
    Metric,
    failure_bounds,
    failure_bounds_of_change,
    failures,
    headlines,
    implicit_reward,
    measure,
)
from xyreward.paired import CoMovement, co_movement, gap_change, label_tests, picking_writing_gap
from xyreward.published import Published
from xyreward.report_markdown import EXPLAINED, to_markdown
from xyreward.stats import Estimate
from xyreward.strict_json import parse_json
from xyreward.words import of_whom

__all__ = ["EXPLAINED", "SCHEMA", "build_report", "read_report", "to_json", "to_markdown"]

SCHEMA = 2


def build_report(
    before: Evaluation,
    after: Evaluation | None = None,
    *,
    conditions: Mapping[str, Evaluation] | None = None,
    facts: Mapping[str, Any] | None = None,
    headline_notes: Sequence[str] = (),
    max_failure_rate: float = 0.05,
    seed: int = 0,
) -> dict[str, Any]:
    """Everything that is known of one policy, or of two and their difference, as JSON-ready data.

    Nothing in it depends on anything but the arguments: the same rows and facts give the same bytes, on any
    machine. What a run knows beside its rows (its bill, which calibration record covers its judge) is a fact.

    Args:
        before, after: what the policies write, prefer and pick.
        conditions: what else was judged, by name of its file without `.jsonl`: `before.oracle`,
            `after.oracle` (the policy was told the goal), `reference.<kind of answer>`. Of one judge with
            one rubric, as before and after are.
        facts: what to record beside the figures (hashes, versions, what was trained on).
        headline_notes: what must be known of the headline, in sentences; they stand beside it.
        max_failure_rate: share of failed judgements above which there is no headline.
        seed: of all resampling.

    Raises:
        ValueError: before and after, or a condition and the others, are not comparable.
    """
    lines = measure(before, after, seed=seed)
    evaluations = {"before": before} if after is None else {"before": before, "after": after}
    others = dict(conditions or {})
    heads = headlines(lines, before, after, max_failure_rate=max_failure_rate)
    # Where nothing failed no metric has bounds, and looking row by row would take a tenth of the time.
    failed = any(r.failure or r.pick_failure for one in evaluations.values() for r in one.rows)
    noise = {name: _noise(one, seed) for name, one in evaluations.items()}
    return {
        "schema": SCHEMA,
        "policies": {name: e.policy for name, e in evaluations.items()},
        "judge": before.judge,
        "rubric_version": before.rubric_version,
        "items": _items(before),
        "headline": {name: asdict(value) for name, value in heads.items()},
        "headline_notes": list(headline_notes),
        "metrics": [_line(line, before, after, failed=failed) for line in lines],
        "label_tests": [
            {"key": t.metric.key, "title": t.metric.title, "kind": t.metric.kind}
            | {name: getattr(t, name) for name in ("n", "gained", "lost", "p", "p_rows", "p_holm")}
            for t in (label_tests(before, after) if after else ())
        ],
        "co_movement": [
            _co_movement(c) for c in (co_movement(before, after, seed=seed) if after else ())
        ],
        "picking_writing_gap": {name: _gap(name, e, lines, seed) for name, e in evaluations.items()}
        | ({"change": _estimate(gap_change(before, after, seed=seed))} if after else {}),
        "implicit_reward": {
            kind: asdict(moved)
            if (moved := implicit_reward(before, after, kind, seed=seed))
            else None
            for kind in ITEM_KINDS
            if after is not None
        },
        "breakdown": {
            by: [_group(g) for g in breakdown(before, after, by=by, whole=lines, seed=seed)]
            for by in get_args(Dimension)
        },
        "conditions": [
            _condition(name, one, evaluations, lines, seed)
            for name, one in {**evaluations, **others}.items()
        ],
        "failures": {name: _failures(e) for name, e in evaluations.items()},
        "failure_rates": {
            name: [asdict(rates) for rates in failure_rates(e, seed=seed)]
            for name, e in evaluations.items()
        },
        "judge_noise": {name: found for name, (found, _) in noise.items()},
        "published": Published.load().to_report({r.source for r in before.rows if r.kind == "xy"}),
        "notes": _notes(evaluations, others) + [why for _, why in noise.values() if why],
        "facts": dict(facts or {}),
    }


def _items(evaluation: Evaluation) -> dict[str, int]:
    """How many different items there are of each kind; an item may have several rows."""
    kinds = Counter(kind for _, kind in {(row.item_id, row.kind) for row in evaluation.rows})
    return {kind: kinds[kind] for kind in ITEM_KINDS}


def _notes(evaluations: Mapping[str, Evaluation], others: Mapping[str, Evaluation]) -> list[str]:
    """Each once; those of conditions, unless they are of all, with whose they are."""
    found = dict.fromkeys(note for one in evaluations.values() for note in one.notes)
    own = [
        f"{of_whom(name, two='after' in evaluations)}: {note}"
        for name, one in others.items()
        for note in one.notes
        if note not in found
    ]
    return [*found, *own]


def _metric(metric: Metric) -> dict[str, Any]:
    names = ("key", "title", "kind", "part", "better", "unit")
    return {name: getattr(metric, name) for name in names}


def _estimates(line: Line) -> dict[str, Any]:
    return {name: _estimate(getattr(line, name)) for name in ("before", "after", "change")}


def _line(
    line: Line, before: Evaluation, after: Evaluation | None, *, failed: bool
) -> dict[str, Any]:
    metric = line.metric
    bounds = {"before": failure_bounds(before, metric) if failed else None}
    if after is not None:
        bounds |= {
            "after": failure_bounds(after, metric) if failed else None,
            "change": failure_bounds_of_change(before, after, metric) if failed else None,
        }
    return {
        **_metric(metric),
        **_estimates(line),
        "failure_bounds": {name: list(found) if found else None for name, found in bounds.items()},
    }


def _estimate(estimate: Estimate | None) -> dict[str, Any] | None:
    return asdict(estimate) if estimate else None


def _told_before(
    estimate: Estimate | None, key: str, name: str, lines: Sequence[Line]
) -> Estimate | None:
    """The main table's estimate where this one is of all its rows: one figure, one interval.

    It would differ a little, since an interval's draws are ordered by all columns that are drawn together.
    """
    of_all = next((getattr(line, name, None) for line in lines if line.metric.key == key), None)
    if estimate is None or of_all is None or estimate.n != of_all.n:
        return estimate
    # As many need not be the same ones: the gap counts items, the table answers.
    return of_all if math.isclose(estimate.value, of_all.value, abs_tol=1e-12) else estimate


def _gap(
    name: str, evaluation: Evaluation, lines: Sequence[Line], seed: int
) -> dict[str, Any] | None:
    gap = picking_writing_gap(evaluation, seed=seed)
    if gap is None:
        return None
    return {
        **asdict(gap),
        "picking": _estimate(_told_before(gap.picking, "picking", name, lines)),
        "writing": _estimate(_told_before(gap.writing, "focus_intended", name, lines)),
    }


def _co_movement(found: CoMovement) -> dict[str, Any]:
    said = {1: "improved", 0: "unchanged", -1: "worse"}
    shares = ("improved_too", "worsened", "improved_otherwise", "correlation")
    return {
        "first": found.first.key,
        "second": found.second.key,
        "table": {
            name: {other: found.table[x, y] for y, other in said.items()}
            for x, name in said.items()
        },
        **{name: _estimate(getattr(found, name)) for name in shares},
    }


def _group(group: Group) -> dict[str, Any]:
    return {
        "name": group.name,
        "items": group.items,
        "clusters": group.clusters,
        "metrics": [{"key": line.metric.key, **_estimates(line)} for line in group.lines],
        "too_few": list(group.too_few),
        "pooled": list(group.pooled),
    }


def _failures(evaluation: Evaluation) -> list[dict[str, Any]]:
    return [{**asdict(f), "by_kind": dict(f.by_kind), "rate": f.rate} for f in failures(evaluation)]


def _noise(evaluation: Evaluation, seed: int) -> tuple[list[dict[str, Any]], str]:
    """The judge's part of each label's variance; or none, and why not."""
    try:
        return [asdict(label) for label in judge_noise([evaluation], seed=seed)], ""
    except ValueError as error:  # a panel whose members give probabilities and no votes
        return [], f"no judge noise: {error}"


# ---------------------------------------------------------------- conditions


def _condition(
    name: str,
    evaluation: Evaluation,
    evaluations: Mapping[str, Evaluation],
    main: Sequence[Line],
    seed: int,
) -> dict[str, Any]:
    found: dict[str, Any] = {
        "name": name,
        "condition": _kind_of_condition(name, evaluation),
        "policy": evaluation.policy,
        "parts": list(evaluation.parts),
        "items": _items(evaluation),
        "rows": len(evaluation.rows),
        "against": None,
        "metrics": [],
        "failures": [],
    }
    if name in evaluations:
        return found
    before = evaluations["before"]
    for what in ("judge", "rubric_version"):
        a, b = getattr(before, what), getattr(evaluation, what)
        if a != b:
            raise ValueError(f"before and {name} differ in {what}: {a!r} and {b!r}")
    judged = replace(evaluation, parts=("writing",))
    against = name.partition(".")[0] if found["condition"] == "oracle" else ""
    written = _same_rows(evaluations[against], judged) if against in evaluations else None
    if written is None:
        lines = [Line(line.metric, None, line.before) for line in measure(judged, seed=seed)]
    else:
        lines = measure(written, judged, seed=seed)
    return {
        **found,
        "against": against if written is not None else None,
        "metrics": [
            {
                **_metric(line.metric),
                "value": _estimate(line.after),
                "against": _estimate(_told_before(line.before, line.metric.key, against, main)),
                "change": _estimate(line.change),
                "failure_bounds": list(bounds)
                if (bounds := failure_bounds(judged, line.metric))
                else None,
            }
            for line in lines
        ],
        "failures": _failures(judged),
    }


def _kind_of_condition(name: str, evaluation: Evaluation) -> str:
    if evaluation.condition != "writing":
        return evaluation.condition
    first, _, rest = name.partition(".")
    if first == "reference" and rest:
        return f"reference:{rest}"
    return rest or "writing"


def _same_rows(written: Evaluation, judged: Evaluation) -> Evaluation | None:
    """What was written without being told the goal, of the rows that there are; None where some lack."""
    known = {_row(row): row for row in written.rows}
    if not all(_row(row) in known for row in judged.rows):
        return None
    return replace(written, rows=tuple(known[_row(row)] for row in judged.rows), parts=("writing",))


def _row(row: Row) -> tuple[str, int]:
    return row.item_id, row.answer_index


# ---------------------------------------------------------------- files


def to_json(report: Mapping[str, Any]) -> str:
    """The report as strict JSON: a number that is not finite is an error here, not a bad file."""
    return json.dumps(report, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def read_report(text: str, name: str = "report.json") -> dict[str, Any]:
    """A report of this version or an earlier one, checked; what an earlier one lacks is there and empty.

    Args:
        text: of the file.
        name: of the file, for messages.

    Raises:
        DataError: it is no report; the message says what was found where.
    """
    from pydantic import ValidationError

    from xyreward.report_schema import Report

    try:
        report = parse_json(text)
    except ValueError as error:
        raise DataError([f"{name}: is no JSON ({error}), expected a report"]) from None
    version = report.get("schema") if isinstance(report, dict) else None
    if version not in (1, SCHEMA) or isinstance(version, bool):
        raise DataError(
            [
                f"{name}: schema is {version!r}, expected 1 or {SCHEMA}; a report of a later version needs "
                "that version of xyreward"
            ]
        )
    if version == 1:
        report = _of_schema_1(report)
    try:
        Report.model_validate(report)
    except ValidationError as error:
        raise DataError(
            [
                f"{name}: {'.'.join(map(str, e['loc']))}: {e['msg']}"
                for e in error.errors(include_url=False, include_context=False)
            ]
        ) from None
    return dict(report)


def _of_schema_1(report: Mapping[str, Any]) -> dict[str, Any]:
    policies = report.get("policies")
    names: Sequence[str] = [*policies] if isinstance(policies, Mapping) else []
    empty: dict[str, Any] = {
        "label_tests": [],
        "co_movement": [],
        "picking_writing_gap": dict.fromkeys([*names, *(["change"] if len(names) > 1 else [])]),
        "breakdown": {by: [] for by in get_args(Dimension)},
        "conditions": [],
        "failure_rates": {name: [] for name in names},
        "judge_noise": {name: [] for name in names},
        "published": None,
    }
    return {**empty, **report, "schema": SCHEMA}
