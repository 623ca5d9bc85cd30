"""Every key of report.json: its type, range, unit and what null means.

The JSON schema in the package (`report.schema.json`) and the tables of docs/report.md are made of this:

    python -m xyreward.report_schema schema > xyreward/report.schema.json
    python -m xyreward.report_schema keys       # the tables

Not here: how a report is built and read (`report.py`).
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

Part = Literal["writing", "preference", "picking"]
Kind = Literal["xy", "control"]
Policy = Literal["before", "after"]
Compared = Literal["before", "after", "change"]
Count = Annotated[int, Field(ge=0)]
Probability = Annotated[float, Field(ge=0, le=1)]
Bounds = Annotated[list[float], Field(min_length=2, max_length=2)]


class _Strict(BaseModel):
    model_config = ConfigDict(
        strict=True, extra="forbid", allow_inf_nan=False, use_attribute_docstrings=True
    )


class Estimate(_Strict):
    """A number with its 95 % interval over clusters of items. Rates are shares in [0, 1], not per cent."""

    value: float
    """The number; of a change: after minus before, paired by item."""
    low: float | None
    """Lower end of the interval; null where there is none."""
    high: float | None
    """Upper end."""
    n: Count
    """Rows behind it; of a change: those measured both times."""
    why: str = ""
    """Why there is no interval, in a few words."""
    clusters: Count = 0
    """Different clusters of these rows, which the interval is over; 0: not told (an earlier version)."""


class Headline(_Strict):
    """P(intended solution and focus | hidden goal) + P(direct answer | control) - 1, higher is better."""

    value: Annotated[float, Field(ge=-2, le=2)] | None
    """In [-1, 1], its change in [-2, 2]; null: not to be had, and `why` says so."""
    low: float | None
    """Lower end of the 95 % interval."""
    high: float | None
    """Upper end."""
    why: str
    """Why there is no headline, or no interval."""


class FailureBounds(_Strict):
    """From where to where a metric may lie, whatever failures have left unmeasured; null: nothing."""

    before: Bounds | None
    """Lowest and highest value, in the metric's unit; of `%` as shares."""
    after: Bounds | None = None
    """Likewise."""
    change: Bounds | None = None
    """All before highest and all after lowest, and the reverse."""


class _Described(_Strict):
    key: str
    """Of the metric; the key stays, the title may change."""
    title: str
    """As in the table, without unit and direction."""
    kind: Kind | None
    """Items it is about; null: all."""
    part: Part
    """Part of the evaluation that it comes from."""
    better: Literal["higher", "lower", ""]
    """Empty: neither is better in itself."""
    unit: str
    """`%`: values are shares and shown times 100; `characters`; empty: a reward in [0, 1]."""


class Metric(_Described):
    """A row of the main table."""

    before: Estimate | None
    """Null: not measured."""
    after: Estimate | None
    """Null: not measured, or a single policy."""
    change: Estimate | None
    """Paired; null: measured on no item both times."""
    failure_bounds: FailureBounds
    """How much failed judgements could change it."""


class LabelTest(_Strict):
    """Whether a label changed beyond chance; five labels are a family."""

    key: str
    """Of the metric."""
    title: str
    """As in the table."""
    kind: Kind | None
    """Items it is about."""
    n: Count
    """Items judged both times."""
    gained: Count
    """Items that went up, e.g. from no to yes; of several answers their sum."""
    lost: Count
    """Items that went down."""
    p: Probability
    """Exact p-value over clusters."""
    p_rows: Probability
    """The same, items taken for independent: McNemar's test; too small where clusters have several."""
    p_holm: Probability
    """`p` corrected for the family (Holm)."""


class Directions(_Strict):
    """Items by what the second metric did."""

    improved: Count
    """It moved to what is better for the metric."""
    unchanged: Count
    """It did not move."""
    worse: Count
    """It moved away."""


class CoMovementTable(_Strict):
    """Items by what the first metric did, then by what the second did."""

    improved: Directions
    """The first improved."""
    unchanged: Directions
    """The first did not change."""
    worse: Directions
    """The first got worse."""


class CoMovement(_Strict):
    """Whether gains on one metric come with gains on another."""

    first: str
    """Key of a metric."""
    second: str
    """Key of the other."""
    table: CoMovementTable
    """All nine counts."""
    improved_too: Estimate | None
    """Share on which the second improved, of items on which the first did; null: on none."""
    worsened: Estimate | None
    """Share on which the second got worse, of the same items."""
    improved_otherwise: Estimate | None
    """Share on which the second improved, of items on which the first did not: to hold it against."""
    correlation: Estimate | None
    """Pearson's, of the two directions, in [-1, 1]; null: one never changed."""


class Gap(_Strict):
    """Picking against writing, over items with both."""

    picking: Estimate
    """Share of the two orders in which the goal-focused answer was picked."""
    writing: Estimate
    """Share of an item's written answers whose focus is the intended request, mean over items."""
    gap: Estimate
    """Picking minus writing, in [-1, 1]; above 0: it picks what it does not write."""
    picked_though_not_written: Estimate | None
    """Share picked of items none of whose written answers has this focus; null: there are none."""


class Gaps(_Strict):
    """Picking against writing of each policy; null: no item has both."""

    before: Gap | None
    """Before training, or the single policy."""
    after: Gap | None = None
    """After training."""
    change: Estimate | None = None
    """Of `gap`, paired by item, in [-2, 2]."""


class ImplicitReward(_Strict):
    """What training moved: change of the log-probability of reference answers."""

    kind: Kind
    """Of the items."""
    accuracy: Estimate
    """Share on which the better answer gained more; ties half."""
    accuracy_per_token: Estimate
    """The same, per token."""
    margin: Estimate
    """Change of the better minus that of the worse answer, in nats."""
    margin_per_token: Estimate
    """The same in nats per token."""
    better_change: Estimate
    """Of the better answer alone, in nats; below 0: displacement."""
    worse_change: Estimate
    """Of the worse answer alone, in nats."""


class GroupMetric(_Strict):
    """A metric on one group."""

    key: str
    """Of the metric."""
    before: Estimate | None
    """As in the main table."""
    after: Estimate | None
    """Likewise."""
    change: Estimate | None
    """Likewise."""


class Group(_Strict):
    """Items that share a source, a domain, a language or a kind."""

    name: str | None
    """As the items have it; null: pooled from groups with fewer than 20 clusters."""
    items: Count
    """Different items."""
    clusters: Count
    """What intervals are over."""
    metrics: list[GroupMetric]
    """Those measured on 20 clusters or more."""
    too_few: list[str]
    """Keys of metrics that were measured on fewer, and are not given."""
    pooled: list[str]
    """Names of the groups that were pooled."""


class Breakdown(_Strict):
    """The main metrics in groups, the largest first. Not corrected for being many."""

    source: list[Group]
    """By source of the items."""
    domain: list[Group]
    """By domain."""
    language: list[Group]
    """By language."""
    kind: list[Group]
    """Hidden goal (`xy`) and controls (`control`)."""


class ItemCounts(_Strict):
    """Different items of each kind."""

    xy: Count
    """With a hidden goal."""
    control: Count
    """Without one."""


class Failures(_Strict):
    """Judgements that did not come."""

    kind: Kind
    """Of the items."""
    judged: Count
    """Answers with a verdict."""
    failed: Count
    """Answers without one."""
    by_kind: dict[str, Count]
    """Kind of failure, how many: `timeout`, `refused`, `unparseable`, ..."""
    rate: Probability
    """`failed` of all."""


class FailureRates(_Strict):
    """The same with intervals, lower is better."""

    kind: Kind
    """Of the items."""
    failed: Estimate
    """Share of answers without a verdict."""
    abstained: Estimate
    """Share that the judge refused to judge; among `failed`."""


class ConditionMetric(_Described):
    """A metric under a condition."""

    value: Estimate | None
    """Under the condition."""
    against: Estimate | None
    """Of the same items as the policy writes without being told; null: nothing to compare with."""
    change: Estimate | None
    """Value minus that, paired by item."""
    failure_bounds: Bounds | None
    """Lowest and highest value, whatever failures have left unmeasured; null: nothing."""


class Condition(_Strict):
    """Something that was judged: the policies, a policy that was told the goal, reference answers."""

    name: str
    """`before` (of a single policy its file is `evaluation.jsonl`), `after`, `before.oracle`, `after.oracle`,
    `reference.<kind of answer>`."""
    condition: str
    """`writing`; `oracle`: the policy was told the goal; `reference:<kind of answer>`."""
    policy: str
    """Who wrote the answers."""
    parts: list[Part]
    """What was measured."""
    items: ItemCounts
    """On how many items."""
    rows: Count
    """Rows; more than items where several answers were written to each."""
    against: Policy | None
    """Whose answers `change` compares with."""
    metrics: list[ConditionMetric]
    """Empty for `before` and `after`, whose metrics are the report's."""
    failures: list[Failures]
    """Likewise."""


class JudgeNoise(_Strict):
    """The judge's part of the variance of a label, where each answer has several votes."""

    label: str
    """Of the verdict."""
    n: Count
    """Answers with at least two votes."""
    votes: float
    """Mean votes per answer."""
    share: Estimate | None
    """Of the variance of one vote: 0 votes always agree, 1 as if cast blindly; null: all votes alike."""
    share_of_mean: Probability | None
    """Of the variance of the mean of the votes."""


class Band(_Strict):
    """A published range."""

    metric: str
    """Key of the metric."""
    items: str
    """`Stack Overflow` or `all sources`."""
    low: float | None
    """In per cent; null: not known."""
    high: float | None
    """In per cent; null: not known."""
    over: str
    """What the range runs over: five models, human answers."""


class Published(_Strict):
    """What the paper published. Part of no statistic here."""

    source: str
    """The paper."""
    judge: str
    """Its judge."""
    models: str
    """The models behind the ranges."""
    bands: list[Band]
    """All of them."""
    beside: str | None
    """Items whose bands may stand beside these figures; null: the items are not the benchmark's."""


class Report(_Strict):
    """The whole file."""

    schema_: Literal[2] = Field(alias="schema")
    """Version of this table. In version 1 there was no `label_tests`, `co_movement`,
    `picking_writing_gap`, `breakdown`, `conditions`, `failure_rates` and `judge_noise`."""
    policies: dict[Policy, str]
    """Their names; a single one is `before`."""
    judge: str | None
    """Null: nothing was judged."""
    rubric_version: str | None
    """What decided the labels; figures of two versions do not compare."""
    items: ItemCounts
    """Held-out items."""
    headline: dict[Compared, Headline]
    """Of each policy, and the change."""
    metrics: list[Metric]
    """The main table."""
    label_tests: list[LabelTest]
    """Empty with a single policy."""
    co_movement: list[CoMovement]
    """Empty with a single policy."""
    picking_writing_gap: Gaps
    """Of each policy, and the change."""
    implicit_reward: dict[Kind, ImplicitReward | None]
    """Empty with a single policy; null: no log-probabilities of such items."""
    breakdown: Breakdown
    """By source, domain, language, kind."""
    conditions: list[Condition]
    """What was judged."""
    failures: dict[Policy, list[Failures]]
    """Counts."""
    failure_rates: dict[Policy, list[FailureRates]]
    """The same as rates with intervals."""
    judge_noise: dict[Policy, list[JudgeNoise]]
    """Empty where no answer has two votes."""
    published: Published | None
    """Null in reports of early versions."""
    notes: list[str]
    """What a reader must know, in sentences."""
    facts: dict[str, Any]
    """What was run: hashes, counts, versions, bill; free in form."""


def json_schema() -> dict[str, Any]:
    """JSON Schema (draft 2020-12) of report.json."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **Report.model_json_schema(),
    }


def keys() -> str:
    """The tables of docs/report.md: every key of every object, in the order in which objects appear."""
    schema = json_schema()
    out: list[str] = []
    for name, node in _objects(schema):
        out += [
            f"**{name}**: {node['description']}",
            "",
            "| key | type | meaning |",
            "|---|---|---|",
        ]
        for key, field in node["properties"].items():
            meaning = " ".join(field.get("description", "").split())
            out.append(f"| `{key}` | {_type(field)} | {meaning} |")
        out.append("")
    return "\n".join(out)


def _objects(schema: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The report, then every object that it holds, each once and after what holds it."""
    waiting, seen = ["Report"], {"Report"}
    while waiting:
        name = waiting.pop(0)
        node = schema if name == "Report" else schema["$defs"][name]
        yield name, node
        found = [
            ref.rpartition("/")[2]
            for field in node["properties"].values()
            for ref in _references(field)
        ]
        fresh = [one for one in dict.fromkeys(found) if one not in seen]
        seen.update(fresh)
        waiting += fresh


def _references(node: Any) -> Iterator[str]:
    if isinstance(node, Mapping):
        if "$ref" in node:
            yield node["$ref"]
        for below in node.values():
            yield from _references(below)
    elif isinstance(node, list):
        for below in node:
            yield from _references(below)


def _type(field: Mapping[str, Any]) -> str:
    if "$ref" in field:
        return str(field["$ref"]).rpartition("/")[2]
    if "anyOf" in field:
        return " or ".join(map(_type, field["anyOf"]))
    if "const" in field:
        return f"`{field['const']}`"
    if "enum" in field:
        return ", ".join(f"`{value}`" if value else "empty" for value in field["enum"])
    if field.get("type") == "array":
        size = f"{field['maxItems']} " if "maxItems" in field else ""
        return f"list of {size}{_type(field['items'])}"
    if field.get("type") == "object" and isinstance(field.get("additionalProperties"), Mapping):
        names = field.get("propertyNames", {}).get("enum")
        by = ", ".join(f"`{name}`" for name in names) if names else "name"
        return f"by {by}: {_type(field['additionalProperties'])}"
    return str(field.get("type", "anything"))


if __name__ == "__main__":
    made = keys() if sys.argv[1:] == ["keys"] else json.dumps(json_schema(), indent=1) + "\n"
    sys.stdout.write(made)
