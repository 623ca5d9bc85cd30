"""The held-out evaluation as a task of Inspect: `inspect eval xyreward/writing`, with its log viewer.

    inspect eval xyreward/writing --model openai/gpt-5 -T judge=anthropic -T limit=20
    inspect eval xyreward/writing --model hf/Qwen/Qwen3.5-9B -T items=items.jsonl --max-tokens 512
    inspect view

Inspect asks the model and keeps the log; items, sides, judge, labels and metrics are this package's, so
that figures mean what they mean in its reports. `inspect_scorer.xy_reward` scores answers, and a log anew:
`inspect score LOG --scorer xyreward/xy_reward -S judge=...`. A judgement that failed is `Score.unscored`:
Inspect leaves it out of every metric and counts it.

Loaded by Inspect through the entry point of this package; `xyreward[inspect]` installs it.

Not here: picking and preference, which need the policy's own probabilities (`recipes/evaluate.py`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any, cast, get_args

from inspect_ai import Task, task
from inspect_ai.dataset import MemoryDataset, Sample
from inspect_ai.log import EvalSpec
from inspect_ai.scorer import Metric, SampleScore, metric
from inspect_ai.solver import generate
from pydantic import JsonValue

from xyreward import __version__
from xyreward.errors import DataError
from xyreward.evaluation import Evaluation, Row, check_items
from xyreward.inspect_scorer import samples, xy_reward
from xyreward.judges import load_judge
from xyreward.loading import bundled_splits, load_items
from xyreward.metrics import HEADLINE_PARTS, headlines, measure
from xyreward.paired import FAMILY
from xyreward.sides import limited
from xyreward.splits import Side, assign_splits

WITH_INTERVAL = frozenset({*FAMILY, *HEADLINE_PARTS})
"""Metrics that are logged with the ends of their intervals; the others would drown these."""
PLANNED = "planned"
"""Attribute of a task's metric: its `Planned`."""


@task  # type: ignore[untyped-decorator]  # Inspect is typed, but not there where this is checked
def writing(
    items: str = "mini",
    split: str = "test",
    judge: str = "local",
    judge_options: dict[str, Any] | None = None,
    limit: int | None = None,
    max_failure_rate: float = 0.05,
) -> Task:
    """The model answers held-out queries, and a judge labels the answers.

    Args:
        items: `mini`, a file or folder, or a hub name.
        split: `train`, `dev` or `test`.
        judge: a judge's name (`xyreward judge --help`).
        judge_options: of judges that ask a model, e.g. `{budget_usd: 20}`.
        limit: only so many items of each kind. Inspect's own `--limit` leaves the headline out, since it
            cannot be told there from judgements that failed.
        max_failure_rate: no headline where more answers to a kind of item than this have no verdict, of
            those that there should be: one per item and epoch.

    Raises:
        DataError: the items are malformed, or none is on that side.
        JudgeError, MissingDependency: the judge cannot be loaded, or cannot judge such items; before
            anything is generated.
    """
    loaded = load_items(items)
    splits = assign_splits(loaded, known=bundled_splits() if items == "mini" else None)
    if split not in get_args(Side):
        raise DataError([f"split is {split!r}, expected {', '.join(get_args(Side))}"])
    chosen = limited(splits.select(loaded, cast("Side", split)), limit)
    if not chosen:
        raise DataError([f"no item of {items} is on the {split} side"])
    judged_by = load_judge(judge, **(judge_options or {}))
    check_items(chosen, judged_by)
    counts = Counter(item.kind for item in chosen)
    figures = held_out(
        xy=counts["xy"], control=counts["control"], max_failure_rate=max_failure_rate
    )
    planned = Planned()
    made = Task(
        dataset=MemoryDataset(samples(chosen, splits), name=f"{items}, {split} side"),
        solver=generate(),
        scorer=xy_reward(judge, judge_options),
        metrics=[figures],
        early_stopping=planned,
        version=__version__,
        metadata={"judge": judged_by.name, "rubric_version": judged_by.rubric_version},
    )
    setattr(figures, PLANNED, planned)
    return made


class Planned:
    """How often each item is answered, which `--epochs` decides.

    Inspect tells metrics nothing of it, nor of scores that are missing. It does tell whoever may stop a task
    early, which this never does.
    """

    epochs = 0
    """0: not told."""

    async def start_task(self, task: EvalSpec, samples: list[Sample], epochs: int) -> str:  # noqa: ARG002
        """Before the first sample."""
        self.epochs = epochs
        return "xyreward: stops nothing"

    async def schedule_sample(self, id: str | int, epoch: int) -> None:  # noqa: A002
        """No sample is left out."""

    async def complete_sample(
        self,
        id: str | int,  # noqa: A002
        epoch: int,
        scores: dict[str, SampleScore],
    ) -> None:
        """Nothing follows from one."""

    async def complete_task(self) -> dict[str, JsonValue]:
        """Nothing to tell."""
        return {}


def held_out_rows(scores: Sequence[SampleScore]) -> list[Row]:
    """Rows of an evaluation, of the answers that were judged."""
    rows = []
    known = {field.name for field in fields(Row)}
    seen: Counter[str] = Counter()
    for one in scores:
        item = (one.sample_metadata or {}).get("item")
        said = one.score.metadata or {}
        if not isinstance(item, Mapping) or "verdict" not in said:
            raise DataError(
                [
                    f"sample {one.sample_id!r}: held_out is of samples that carry their item and were scored "
                    "by xyreward/xy_reward; make them with xyreward.inspect_scorer.samples"
                ]
            )
        row = {
            "item_id": item["id"],
            **{name: item[name] for name in ("kind", "source", "domain", "language")},
            "answer_index": seen[item["id"]],
            **said,
        }
        seen[item["id"]] += 1
        rows.append(Row(**{name: value for name, value in row.items() if name in known}))
    return rows


# Unreduced: each answer counts, and the answers to one item are one cluster.
@metric(scores="unreduced")  # type: ignore[untyped-decorator]
def held_out(xy: int = 0, control: int = 0, max_failure_rate: float = 0.05) -> Metric:
    """The metrics of this package's reports, over the answers that were judged.

    Args:
        xy: items with a hidden goal that are in the task. Where they are not told, or not of what task the
            metric is, as when a log is scored anew, there is no headline: nobody knows how many answers
            have no verdict.
        control: controls that are in the task.
        max_failure_rate: see `writing`.
    """

    def compute(scores: list[SampleScore]) -> dict[str, float | None]:
        rows = held_out_rows(scores)
        evaluation = Evaluation("model", tuple(rows), "judge", "rubric", ("writing",))
        found: dict[str, float | None] = {}
        lines = measure(evaluation)
        value = headlines(lines, evaluation)["before"]
        judged = {kind: sum(row.kind == kind for row in rows) for kind in ("xy", "control")}
        planned: Planned | None = getattr(compute, PLANNED, None)
        epochs = planned.epochs if planned else 0
        enough = epochs and all(
            there and judged[kind] >= (1 - max_failure_rate) * there * epochs
            for kind, there in (("xy", xy), ("control", control))
        )
        if enough and value.value is not None:
            found |= {
                "headline": value.value,
                "headline_low": value.low,
                "headline_high": value.high,
            }
        for line in lines:
            if (estimate := line.before) is None:
                continue
            key = line.metric.key
            found[key] = estimate.value
            if key in WITH_INTERVAL:
                found |= {f"{key}_low": estimate.low, f"{key}_high": estimate.high}
        found |= {f"judged_{kind}": float(n) for kind, n in judged.items()}
        # Inspect makes a float of every value.
        return {name: number for name, number in found.items() if number is not None}

    return compute
