"""Held-out evaluation of a policy: writing, preference, picking; and what changed between two policies.

    writing      the policy answers, a judge labels the answers (one answer per item, greedy)
    preference   which of two reference answers the policy itself finds likelier, per token: the
                 goal-focused or the literal one (controls: the direct or the overcorrecting one)
    picking      both answers are shown and the policy is asked which is better, in both orders

    implicit reward   needs two policies: the change in summed log-probability, tuned minus base, of
                      the better answer minus that of the worse one. DPO's own measure of what it
                      learned (Rafailov et al. 2023, arXiv:2305.18290), without its factor beta.

Not here: intervals (`stats.py`), tables (`report.py`).
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial as partially
from typing import Any

from xyreward.config import PARTS, EvaluationPart
from xyreward.items import AnswerKind, Item, ItemKind, Reference
from xyreward.judges import Judge, load_judge
from xyreward.partial import Partial
from xyreward.policy import Answer, LogProb, Policy
from xyreward.reward import Reward
from xyreward.scoring import Score, score
from xyreward.stats import Column, Estimate, mean, means

OPTIONS = ("A", "B")

PICKING_PROMPT = """Someone asked an assistant:

{query}

Answer A:

{a}

Answer B:

{b}

Which answer is better for this person? Reply with one letter, A or B."""
"""The question says nothing of goals: whether the policy thinks of them is what is measured."""

Progress = Callable[[str, int, int], object]
"""Called with what is being done, how much was just done, and how much there is in all."""


@dataclass(frozen=True)
class Row:
    """All that was measured on one item. Fields of a part that was not run, or not possible, are None."""

    item_id: str
    kind: ItemKind
    source: str
    domain: str
    language: str
    cluster: str
    comparable: bool = False
    """It has the two reference answers that preference and picking compare."""
    answer: str | None = None
    answer_tokens: int | None = None
    truncated: bool | None = None
    """The answer reached max_new_tokens."""
    verdict: dict[str, Any] | None = None
    """Labels, probabilities, judge and rubric version, the judge's reason and the suggestions that it
    found; None where the judge failed."""
    failure: dict[str, Any] | None = None
    reward: float | None = None
    """Hard-label reward, in [0, 1], higher is better."""
    soft_reward: float | None = None
    """Expected reward under the judge's probabilities, in [0, 1], higher is better."""
    better: LogProb | None = None
    """Of the goal-focused answer (control: direct)."""
    worse: LogProb | None = None
    """Of the literal answer (control: overcorrecting)."""
    picked: float | None = None
    """Share of the two orders in which the better answer was picked: 0, 0.5 or 1 (ties count half)."""
    picked_first: float | None = None
    """Share of the two orders in which answer A was picked: 0.5 shows no preference for a position."""
    pick_margin: float | None = None
    """Logit of the better answer's letter minus the other's, mean over both orders, in nats. A preference
    for a position cancels out, so its sign tells what a policy that always says A would hide."""


@dataclass(frozen=True)
class Evaluation:
    """Rows of one policy, and who judged them."""

    policy: str
    rows: tuple[Row, ...]
    judge: str | None
    rubric_version: str | None
    parts: tuple[EvaluationPart, ...]

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader of the figures must know, in sentences."""
        if not {"preference", "picking"} & set(self.parts):
            return ()
        notes = []
        total = len(self.rows)
        if bare := sum(not row.comparable for row in self.rows):
            notes.append(
                f"{bare} of {total} items have no pair of reference answers: no preference and no "
                "picking on those"
            )
        diverged = [
            row
            for row in self.rows
            if row.comparable
            and (
                ("preference" in self.parts and row.better is None)
                or ("picking" in self.parts and row.picked is None)
            )
        ]
        if diverged:
            notes.append(
                f"{self.policy} gave numbers that are not finite on {len(diverged)} of {total} items "
                "(training diverged?); they are left out of preference and picking"
            )
        return tuple(notes)

    def to_jsonl(self) -> str:
        """A line that describes the evaluation, then a line per item."""
        head = {
            "policy": self.policy,
            "judge": self.judge,
            "rubric_version": self.rubric_version,
            "parts": self.parts,
        }
        lines = [head, *(asdict(row) for row in self.rows)]
        return "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)

    @classmethod
    def from_jsonl(cls, text: str) -> Evaluation:
        """What `to_jsonl` wrote."""
        # Not splitlines(): an answer may hold U+2028, which JSON leaves as it is.
        head, *lines = (json.loads(line) for line in text.split("\n") if line)
        rows = []
        for line in lines:
            for name in ("better", "worse"):
                line[name] = LogProb(**line[name]) if line[name] else None
            rows.append(Row(**line))
        return cls(
            policy=head["policy"],
            rows=tuple(rows),
            judge=head["judge"],
            rubric_version=head["rubric_version"],
            parts=tuple(head["parts"]),
        )


def evaluate(
    policy: Policy,
    items: Sequence[Item],
    *,
    judge: str | Judge = "local",
    parts: Sequence[EvaluationPart] = PARTS,
    clusters: Mapping[str, str] | None = None,
    max_new_tokens: int = 192,
    batch_size: int = 16,
    progress: Progress | None = None,
    partial: Partial | None = None,
) -> Evaluation:
    """Measure a policy on held-out items.

    Args:
        items: what to measure on. Items without the two reference answers have no preference and no
            picking; they are counted in `notes`.
        judge: for `writing`.
        parts: which measurements.
        clusters: item id -> cluster, for intervals; None: every item is its own.
        max_new_tokens, batch_size: of the generated answers.
        partial: where finished batches are kept and taken from; the same policy, items and settings are
            the caller's to see to (its `job`). Answers are judged together, and verdicts are kept when
            all are there; failed ones are not, so that they are asked for again.

    Raises:
        JudgeError, MissingDependency: before anything is generated, if the judge cannot be loaded or
            says that it cannot judge such items.
        ValueError: items share an id, or the goals of some were inferred by a model and those of others not.
    """
    judged_by = load_judge(judge) if "writing" in parts else None
    if (check := getattr(judged_by, "check", None)) is not None:
        check(items)
    rows: dict[str, dict[str, Any]] = {
        item.id: {
            "item_id": item.id,
            "kind": item.kind,
            "source": item.source,
            "domain": item.domain,
            "language": item.language,
            "cluster": (clusters or {}).get(item.id, item.id),
        }
        for item in items
    }
    if len(rows) != len(items):
        raise ValueError("items of an evaluation need distinct ids; two sources share some")
    inferred = sum(item.inferred or item.bare for item in items)
    if judged_by is not None and 0 < inferred < len(items):
        raise ValueError(
            f"a model infers the goals of {inferred} of the {len(items)} items, and the others bring theirs; "
            "verdicts on the two are not averaged, so evaluate them apart"
        )

    kept = Partial() if partial is None else partial

    def tick(what: str, total: int) -> Callable[[int], object] | None:
        return (lambda done: progress(what, done, total)) if progress else None

    if judged_by is not None:
        answers = policy.answer(
            [item.messages for item in items],
            max_new_tokens=max_new_tokens,
            batch_size=batch_size,
            progress=tick("writing", len(items)),
            through=kept.step("writing", asdict, lambda found: Answer(**found)),
        )
        for item, answer in zip(items, answers, strict=True):
            rows[item.id].update(
                answer=answer.text, answer_tokens=answer.tokens, truncated=answer.truncated
            )
        texts = [answer.text for answer in answers]
        judged = kept.whole(
            "judging",
            {"judge": judged_by.name, "rubric_version": judged_by.rubric_version},
            partially(_all_judged, items, texts, judged_by),
            lambda found: not any(one.get("failure") for one in found),
        )
        for item, verdict in zip(items, judged, strict=True):
            rows[item.id].update(verdict)

    compared = [(item, *pair) for item in items if (pair := contrast(item))]
    for item, _, _ in compared:
        rows[item.id]["comparable"] = True
    if "preference" in parts:
        prompts = [item.messages for item, _, _ in compared]
        values = policy.log_probs(
            prompts + prompts,
            [better.text for _, better, _ in compared] + [worse.text for _, _, worse in compared],
            progress=tick("preference", 2 * len(compared)),
            through=kept.step("preference", asdict, lambda found: LogProb(**found)),
        )
        for i, (item, _, _) in enumerate(compared):
            # A policy that diverged gives NaN: not measured, and said so in `notes`.
            both = (values[i], values[i + len(compared)])
            if all(math.isfinite(value.total) for value in both):
                rows[item.id].update(better=both[0], worse=both[1])
    if "picking" in parts:
        asked = [picking_prompt(item, better.text, worse.text) for item, better, worse in compared]
        asked += [picking_prompt(item, worse.text, better.text) for item, better, worse in compared]
        logits = policy.option_logits(
            asked,
            OPTIONS,
            progress=tick("picking", len(asked)),
            through=kept.step("picking", list, list),
        )
        for i, (item, _, _) in enumerate(compared):
            gaps = [logits[j][0] - logits[j][1] for j in (i, i + len(compared))]
            if not all(math.isfinite(gap) for gap in gaps):
                continue
            first = [_wins(gap) for gap in gaps]
            rows[item.id].update(
                picked=(first[0] + 1 - first[1]) / 2,
                picked_first=(first[0] + first[1]) / 2,
                pick_margin=(gaps[0] - gaps[1]) / 2,
            )

    return Evaluation(
        policy=policy.name,
        rows=tuple(Row(**row) for row in rows.values()),
        judge=judged_by.name if judged_by else None,
        rubric_version=judged_by.rubric_version if judged_by else None,
        parts=tuple(parts),
    )


def contrast(item: Item) -> tuple[Reference, Reference] | None:
    """The better and the worse reference answer that preference and picking compare, if both are there."""
    kinds: tuple[AnswerKind, AnswerKind] = (
        ("direct", "overcorrecting") if item.kind == "control" else ("goal_focused", "literal")
    )
    better, worse = (item.reference(kind) for kind in kinds)
    return (better, worse) if better and worse else None


def picking_prompt(item: Item, a: str, b: str) -> list[dict[str, str]]:
    """The question of `picking` about two answers, as chat messages."""
    # One pass over the template: a query that contains "{a}" must not pull the answer in.
    text = PICKING_PROMPT.format(query=item.query_text, a=a, b=b)
    return [{"role": "user", "content": text}]


def _wins(gap: float) -> float:
    """1 for a positive difference, 0 for a negative one, ties half."""
    return 0.5 if gap == 0 else float(gap > 0)


def _all_judged(
    items: Sequence[Item], answers: Sequence[str], judge: Judge
) -> list[dict[str, Any]]:
    scores: list[Score] = score(list(items), list(answers), judge=judge)
    return [_judged(*one) for one in zip(items, answers, scores, strict=True)]


def _judged(item: Item, answer: str, judged: Score) -> dict[str, Any]:
    if judged.failure is not None or judged.verdict is None:
        return {"failure": asdict(judged.failure) if judged.failure else None}
    verdict = judged.verdict
    return {
        "verdict": {
            **asdict(verdict.labels),
            "p": {**asdict(verdict.p), "focus": dict(verdict.p.focus)},
            "judge": verdict.judge,
            "rubric_version": verdict.rubric_version,
            "grounded": verdict.grounded,
            "votes": verdict.votes,
            "flags": list(verdict.flags),
            "reason": verdict.reason,
            "suggestions": [asdict(suggestion) for suggestion in verdict.suggestions],
        },
        "reward": judged.reward,
        "soft_reward": Reward(soft=True)(verdict, item.kind, answer),
    }


# ---------------------------------------------------------------- metrics


@dataclass(frozen=True, slots=True)
class Metric:
    """How a row becomes a number, and how to read it."""

    key: str
    title: str
    kind: ItemKind | None
    """Which items it is about; None: all."""
    part: EvaluationPart
    value: Callable[[Row], float | None]
    """None: not measured on this row."""
    better: str
    """`higher`, `lower`, or empty where neither is better in itself."""
    bounds: tuple[float, float] | None = (0.0, 1.0)
    unit: str = "%"


def _label(name: str) -> Callable[[Row], float | None]:
    return lambda row: float(row.verdict[name]) if row.verdict else None


def _focus(name: str) -> Callable[[Row], float | None]:
    return lambda row: float(row.verdict["focus"] == name) if row.verdict else None


def _paper_focus(name: str) -> Callable[[Row], float | None]:
    """Among answers with one of the paper's three focuses; `neither`, which is ours, is left out."""
    of_four = _focus(name)
    return lambda row: None if row.verdict and row.verdict["focus"] == "neither" else of_four(row)


def _direct(row: Row) -> float | None:
    if not row.verdict:
        return None
    return float(row.verdict["has_stated_solution"] and not row.verdict["identifies_misconception"])


def _no_solution(row: Row) -> float | None:
    if not row.verdict:
        return None
    v = row.verdict
    return float(not v["has_stated_solution"] and not v["has_intended_solution"])


def _empty(row: Row) -> float | None:
    return None if row.answer is None else float(not row.answer.strip())


def _goal_served(row: Row) -> float | None:
    if not row.verdict:
        return None
    return float(row.verdict["has_intended_solution"] and row.verdict["focus"] == "intended")


def _prefers(row: Row) -> float | None:
    if row.better is None or row.worse is None:
        return None
    return _wins(row.better.per_token - row.worse.per_token)


def _picks_by_margin(row: Row) -> float | None:
    return None if row.pick_margin is None else _wins(row.pick_margin)


def _length(row: Row) -> float | None:
    return float(len(row.answer)) if row.answer is not None else None


METRICS: tuple[Metric, ...] = (
    Metric("stated_solution", "stated solution", "xy", "writing", _label("has_stated_solution"), ""),
    Metric(
        "intended_solution", "intended solution", "xy", "writing", _label("has_intended_solution"),
        "higher",
    ),
    Metric("focus_intended", "focus intended", "xy", "writing", _focus("intended"), "higher"),
    Metric("focus_balanced", "focus balanced", "xy", "writing", _focus("balanced"), ""),
    Metric("focus_stated", "focus stated", "xy", "writing", _focus("stated"), ""),
    Metric("focus_neither", "focus neither", "xy", "writing", _focus("neither"), "lower"),
    Metric(
        "paper_focus_intended", "focus intended, of the paper's three", "xy", "writing",
        _paper_focus("intended"), "higher",
    ),
    Metric(
        "paper_focus_balanced", "focus balanced, of the paper's three", "xy", "writing",
        _paper_focus("balanced"), "",
    ),
    Metric(
        "paper_focus_stated", "focus stated, of the paper's three", "xy", "writing",
        _paper_focus("stated"), "",
    ),
    Metric(
        "misconception", "misconception identified", "xy", "writing",
        _label("identifies_misconception"), "higher",
    ),
    Metric(
        "goal_served", "intended solution and focus", "xy", "writing", _goal_served, "higher"
    ),
    Metric(
        "no_solution", "no solution (refusal, question back, ...)", "xy", "writing", _no_solution,
        "lower",
    ),
    Metric("soft_reward", "soft reward", "xy", "writing", lambda r: r.soft_reward, "higher", unit=""),
    Metric("preference", "prefers goal-focused", "xy", "preference", _prefers, "higher"),
    Metric("picking", "picks goal-focused", "xy", "picking", lambda r: r.picked, "higher"),
    Metric(
        "picking_margin", "picks goal-focused, position cancelled", "xy", "picking", _picks_by_margin,
        "higher",
    ),
    Metric("control_direct", "answers directly", "control", "writing", _direct, "higher"),
    Metric(
        "control_invents", "invents a misconception", "control", "writing",
        _label("identifies_misconception"), "lower",
    ),
    Metric(
        "control_soft_reward", "soft reward", "control", "writing", lambda r: r.soft_reward, "higher",
        unit="",
    ),
    Metric("control_preference", "prefers direct", "control", "preference", _prefers, "higher"),
    Metric("control_picking", "picks direct", "control", "picking", lambda r: r.picked, "higher"),
    Metric(
        "control_picking_margin", "picks direct, position cancelled", "control", "picking",
        _picks_by_margin, "higher",
    ),
    Metric(
        "length", "answer length", None, "writing", _length, "", bounds=None, unit="characters"
    ),
    Metric("empty", "empty answers", None, "writing", _empty, "lower"),
    Metric(
        "truncated", "answers cut off", None, "writing",
        lambda r: float(r.truncated) if r.truncated is not None else None, "lower",
    ),
    Metric("position", "picks answer A", None, "picking", lambda r: r.picked_first, ""),
)  # fmt: skip


HEADLINE_PARTS = ("goal_served", "control_direct")


@dataclass(frozen=True)
class Line:
    """One line of a report: a metric of one policy, or of two and what changed between them."""

    metric: Metric
    before: Estimate | None
    after: Estimate | None = None
    change: Estimate | None = None
    """Mean paired difference, after minus before, over the items measured in both."""


def metrics_of(keys: Sequence[str]) -> tuple[Metric, ...]:
    """The metrics of these keys.

    Raises:
        ValueError: there is no such metric; the message lists those there are.
    """
    known = {metric.key: metric for metric in METRICS}
    if unknown := [key for key in keys if key not in known]:
        raise ValueError(
            f"no such metric: {', '.join(unknown)}; expected some of {', '.join(known)}"
        )
    return tuple(known[key] for key in keys)


def measure(
    before: Evaluation,
    after: Evaluation | None = None,
    *,
    metrics: Sequence[Metric] = METRICS,
    seed: int = 0,
) -> list[Line]:
    """Every metric that was measured, with intervals; with two evaluations also the paired changes.

    Raises:
        ValueError: the evaluations are of different items, judges or rubric versions.
    """
    if after is not None:
        check_comparable(before, after)
    # All columns at once: they share their resamples.
    metrics = [metric for metric in metrics if metric.part in before.parts]
    columns = []
    for metric in metrics:
        first = column(metric, before)
        columns.append(Column(first, metric.bounds))
        if after is not None:
            second = column(metric, after)
            change = [
                None if a is None or b is None else b - a
                for a, b in zip(first, second, strict=True)
            ]
            low, high = metric.bounds or (-math.inf, math.inf)
            columns.append(Column(second, metric.bounds))
            columns.append(Column(change, (low - high, high - low) if metric.bounds else None))
    found = means(columns, [row.cluster for row in before.rows], expand=True, seed=seed)
    per = 1 if after is None else 3
    lines = [Line(metric, *found[per * i : per * (i + 1)]) for i, metric in enumerate(metrics)]
    return [line for line in lines if line.before or line.after]


def column(metric: Metric, evaluation: Evaluation) -> list[float | None]:
    """The metric's value of every row; None: not measured, or not about such items."""
    value, kind = metric.value, metric.kind
    return [value(row) if kind in (None, row.kind) else None for row in evaluation.rows]


def _values(metric: Metric, evaluation: Evaluation) -> dict[str, float]:
    return {
        row.item_id: value
        for row in evaluation.rows
        if metric.kind in (None, row.kind) and (value := metric.value(row)) is not None
    }


def _mean(
    values: Mapping[str, float],
    evaluation: Evaluation,
    bounds: tuple[float, float] | None,
    seed: int,
) -> Estimate | None:
    cluster = {row.item_id: row.cluster for row in evaluation.rows}
    names = [cluster[key] for key in values]
    return mean(list(values.values()), names, bounds=bounds, expand=True, seed=seed)


def check_comparable(before: Evaluation, after: Evaluation) -> None:
    """Refuse to compare what is not comparable.

    Raises:
        ValueError: the evaluations are of different items, judges, rubric versions or parts.
    """
    if [row.item_id for row in before.rows] != [row.item_id for row in after.rows]:
        raise ValueError("the two evaluations are of different items")
    for name in ("judge", "rubric_version", "parts"):
        a, b = getattr(before, name), getattr(after, name)
        if a != b:
            raise ValueError(f"the two evaluations differ in {name}: {a!r} and {b!r}")


@dataclass(frozen=True)
class ImplicitReward:
    """What training moved, by DPO's own measure, on one kind of item."""

    kind: ItemKind
    accuracy: Estimate
    """Share of items on which the change favours the better answer, summed log-ratio; ties half."""
    accuracy_per_token: Estimate
    """The same with log-ratios per token of the answer."""
    margin: Estimate
    """Mean change of better minus worse, in nats (sum over the answer)."""
    margin_per_token: Estimate
    """The same, in nats per token."""
    better_change: Estimate
    """Mean change of the better answer's log-probability, in nats. Below 0: displacement."""
    worse_change: Estimate


def implicit_reward(
    before: Evaluation, after: Evaluation, kind: ItemKind, *, seed: int = 0
) -> ImplicitReward | None:
    """The change from `before` to `after` in log-probabilities; None where none were measured."""
    check_comparable(before, after)
    better: dict[str, tuple[float, float]] = {}
    worse: dict[str, tuple[float, float]] = {}
    for old, new in zip(before.rows, after.rows, strict=True):
        if old.kind != kind or not (old.better and new.better and old.worse and new.worse):
            continue
        better[old.item_id] = _change(old.better, new.better)
        worse[old.item_id] = _change(old.worse, new.worse)
    if not better:
        return None

    def gap(i: int) -> dict[str, float]:
        return {key: better[key][i] - worse[key][i] for key in better}

    def wins(gaps: Mapping[str, float]) -> dict[str, float]:
        return {key: _wins(value) for key, value in gaps.items()}

    def estimate(
        values: Mapping[str, float], bounds: tuple[float, float] | None = None
    ) -> Estimate:
        result = _mean(values, after, bounds, seed)
        assert result is not None  # `better` is not empty
        return result

    return ImplicitReward(
        kind=kind,
        accuracy=estimate(wins(gap(0)), (0, 1)),
        accuracy_per_token=estimate(wins(gap(1)), (0, 1)),
        margin=estimate(gap(0)),
        margin_per_token=estimate(gap(1)),
        better_change=estimate({key: value[0] for key, value in better.items()}),
        worse_change=estimate({key: value[0] for key, value in worse.items()}),
    )


def _change(old: LogProb, new: LogProb) -> tuple[float, float]:
    return new.total - old.total, new.per_token - old.per_token


@dataclass(frozen=True)
class Headline:
    """P(intended solution and intended focus | xy) + P(direct answer | control) - 1.

    In [-1, 1], higher is better. A policy that ignores the query cannot exceed 0: what it gains on one
    kind of item it loses on the other.
    """

    value: float | None
    """None: not to be had; `why` says so. It also says why there is no interval."""
    low: float | None = None
    high: float | None = None
    why: str = ""


@dataclass(frozen=True)
class Failures:
    """Judgements that failed on one kind of item."""

    kind: ItemKind
    judged: int
    failed: int
    by_kind: Mapping[str, int]

    @property
    def rate(self) -> float:
        """Share of failed judgements, in [0, 1]."""
        total = self.judged + self.failed
        return self.failed / total if total else 0.0


def failures(evaluation: Evaluation) -> list[Failures]:
    """Failed judgements per kind of item, also where there are none. Empty without `writing`."""
    if "writing" not in evaluation.parts:
        return []
    out = []
    kinds: tuple[ItemKind, ...] = ("xy", "control")
    for kind in kinds:
        rows = [row for row in evaluation.rows if row.kind == kind]
        if not rows:
            continue
        by_kind: dict[str, int] = {}
        for row in rows:
            if row.failure:
                by_kind[row.failure["kind"]] = by_kind.get(row.failure["kind"], 0) + 1
        failed = sum(by_kind.values())
        out.append(Failures(kind, len(rows) - failed, failed, by_kind))
    return out


def failure_bounds(evaluation: Evaluation, metric: Metric) -> tuple[float, float] | None:
    """The metric's value if all failed judgements were worst, and if all were best.

    None where nothing failed, or where the metric does not come from the judge's labels.
    """
    rows = [row for row in evaluation.rows if metric.kind in (None, row.kind)]
    failed = sum(row.failure is not None for row in rows)
    values = [value for row in rows if (value := metric.value(row)) is not None]
    if not failed or metric.part != "writing" or metric.bounds is None or len(values) == len(rows):
        return None
    total = len(values) + failed
    low, high = metric.bounds
    return (sum(values) + failed * low) / total, (sum(values) + failed * high) / total


def failure_bounds_of_change(
    before: Evaluation, after: Evaluation, metric: Metric
) -> tuple[float, float] | None:
    """The paired change if every judgement that failed, before or after, had been as bad, and as good.

    As bad for the change: a failed one before was the best, one after the worst. None where nothing
    failed, or where the metric does not come from the judge's labels.
    """
    if metric.part != "writing" or metric.bounds is None:
        return None
    worst, best = metric.bounds
    low = high = 0.0
    n = failed = 0
    for old, new in zip(before.rows, after.rows, strict=True):
        if metric.kind not in (None, old.kind):
            continue
        first, second = metric.value(old), metric.value(new)
        if (first is None and old.failure is None) or (second is None and new.failure is None):
            continue  # not a failure: the metric leaves this answer out
        n += 1
        failed += first is None or second is None
        low += (worst if second is None else second) - (best if first is None else first)
        high += (best if second is None else second) - (worst if first is None else first)
    return (low / n, high / n) if failed else None


def headline(evaluation: Evaluation, *, max_failure_rate: float = 0.05, seed: int = 0) -> Headline:
    """One number that a policy which ignores the query cannot push above 0. See `Headline`."""
    if "writing" not in evaluation.parts:
        return Headline(None, why="n/a: writing was not evaluated")
    served, direct = (_values(metric, evaluation) for metric in metrics_of(HEADLINE_PARTS))
    for failed in failures(evaluation):
        if failed.rate > max_failure_rate:
            return Headline(
                None,
                why=f"n/a: {failed.rate:.1%} of judgements on {failed.kind} items failed, "
                f"more than max_failure_rate={max_failure_rate:.1%}",
            )
    if not direct:
        return Headline(None, why="n/a: no controls; add {source: mini, kinds: [control]} to items")
    if not served:
        return Headline(None, why="n/a: no items with a hidden goal (kind xy); add some to items")
    return _sum(
        _mean(served, evaluation, (0, 1), seed), _mean(direct, evaluation, (0, 1), seed), -1
    )


def headline_change(
    before: Evaluation, after: Evaluation, *, max_failure_rate: float = 0.05, seed: int = 0
) -> Headline:
    """The change of the headline, in [-2, 2], from paired differences by item."""
    for evaluation in (before, after):
        if (one := headline(evaluation, max_failure_rate=max_failure_rate)).value is None:
            return Headline(None, why=one.why)
    changes = []
    for metric in metrics_of(HEADLINE_PARTS):
        old, new = _values(metric, before), _values(metric, after)
        paired = {key: new[key] - old[key] for key in old if key in new}
        changes.append(_mean(paired, after, (-1, 1), seed))
    return _sum(changes[0], changes[1], 0)


def _sum(first: Estimate | None, second: Estimate | None, offset: float) -> Headline:
    """Sum of two estimates from different items, which are therefore independent.

    The interval squares and adds the distances to the limits, which keeps their asymmetry (MOVER; Zou
    & Donner 2008, doi:10.1002/sim.3095).
    """
    if first is None or second is None:
        return Headline(None, why="n/a: no item was judged both times")
    value = first.value + second.value + offset
    if first.low is None or first.high is None or second.low is None or second.high is None:
        return Headline(value, why=first.why or second.why)
    return Headline(
        value,
        value - math.hypot(first.value - first.low, second.value - second.low),
        value + math.hypot(first.high - first.value, second.high - second.value),
    )
