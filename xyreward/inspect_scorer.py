"""The scorer for Inspect: this package's reward for any task whose samples carry their item.

    from xyreward.inspect_scorer import samples, xy_reward

    data = MemoryDataset(samples(load_items("mini", split="test")))
    Task(dataset=data, solver=generate(), scorer=xy_reward())          # inspect eval --model-role grader=...
    Task(dataset=data, solver=generate(), scorer=xy_reward("anthropic"))

Without a judge's name the model of the role `grader` judges, asked with this package's rubric. The role is
required: there is no way in which the model under test grades itself unsaid. A log is scored anew with
`inspect_ai.score(log, xy_reward(...), model_roles={"grader": ...}, action="append")`.

A sample's item is `metadata["item"]` (`item.model_dump(mode="json")`), and its cluster of near-duplicates
`metadata["cluster"]`; `samples` sets both. A sample without an item is a bare query, whose goal the judge
infers; such verdicts are averaged apart from the others. A judgement that failed is `Score.unscored`, with
Inspect's own reason `grader_failed`, an explanation that begins with the kind of failure, and the failure in
its metadata: it is in the log, and in no metric.

The benchmark as a task, with all metrics of a report, is `inspect_task.py`; it scores with this.

Needs `inspect_ai` (`xyreward[inspect]`).
"""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from inspect_ai.dataset import Sample
from inspect_ai.model import (
    ChatMessage,
    ChatMessageAssistant,
    ChatMessageSystem,
    ChatMessageUser,
    GenerateConfig,
    Model,
    get_model,
    model_roles,
)
from inspect_ai.scorer import (
    Metric,
    SampleScore,
    Score,
    Scorer,
    Target,
    mean,
    metric,
    scorer,
    stderr,
)
from inspect_ai.solver import TaskState
from pydantic import ValidationError

from xyreward.errors import DataError, JudgeError, told
from xyreward.evaluation import judged_fields
from xyreward.items import Item, text_hash
from xyreward.judges import Judge, check_gives_labels, load_judge
from xyreward.judges.calls import Call, CallError, Reply
from xyreward.judges.model import ModelJudge
from xyreward.judges.panel import PanelJudge
from xyreward.judges.preflight import EndpointCheck, check_sending
from xyreward.prices import without_url
from xyreward.scoring import EMPTY, ascore, over_budget
from xyreward.splits import Splits, clusters_of
from xyreward.verdict import Usage

OPERATIONAL = frozenset(
    {
        "adaptive_connections",
        "attempt_timeout",
        "batch",
        "cache",
        "max_connections",
        "max_retries",
        "timeout",
    }
)
"""Settings of a model that decide how it is asked and not what it says: no part of a verdict's key."""


MESSAGES = {
    "user": ChatMessageUser,
    "assistant": ChatMessageAssistant,
    "system": ChatMessageSystem,
}


def samples(items: Sequence[Item], splits: Splits | None = None) -> list[Sample]:
    """Samples that carry their item, without the answers that others wrote, and their cluster.

    Args:
        items: each id once.
        splits: for the names of clusters; without them near-duplicates are looked for among these items.
    """
    cluster = clusters_of(items, splits)
    return [_sample(item, cluster[item.id]) for item in items]


def _sample(item: Item, cluster: str) -> Sample:
    messages: list[ChatMessage] = [MESSAGES[m["role"]](content=m["content"]) for m in item.messages]
    return Sample(
        input=messages,
        # What the goal's rubric asks for, for the reader of the log; the judge has the item.
        target=list(item.intended_solutions or item.stated_solutions) or "",
        id=item.id,
        metadata={
            "kind": item.kind,
            "cluster": cluster,
            # No judge sees the answers of others, and a log is read by people who should not.
            "item": item.model_copy(update={"references": ()}).model_dump(mode="json"),
        },
    )


@metric
def rewards() -> Metric:
    """Mean reward and its standard error over clusters: `mean`, `stderr`, `clusters`.

    Verdicts on goals that a judge inferred are a measurement of their own: `mean_inferred`,
    `stderr_inferred`, `clusters_inferred`. A single cluster has no standard error.
    """

    def compute(scores: list[SampleScore]) -> dict[str, float]:
        found: dict[str, float] = {}
        for inferred, suffix in ((False, ""), (True, "_inferred")):
            ours = [
                # Inspect looks for a cluster in a sample's own metadata, where there need not be one.
                SampleScore(score=one.score, sample_id=one.sample_id, sample_metadata=said)
                for one in scores
                if (said := one.score.metadata or {}).get("goal_inferred", False) is inferred
            ]
            if not ours:
                continue
            clusters = len({one.sample_metadata["cluster"] for one in ours})
            found[f"mean{suffix}"] = mean()(ours)
            if clusters > 1:
                found[f"stderr{suffix}"] = stderr(cluster="cluster")(ours)
            found[f"clusters{suffix}"] = float(clusters)
        return found or {"mean": math.nan}

    return compute


@scorer(metrics=[rewards()])
def xy_reward(
    judge: str | None = None,
    judge_options: dict[str, Any] | None = None,
    grader: str = "grader",
    soft: bool = False,
) -> Scorer:
    """The reward of an answer, in [0, 1], with labels and parts of the reward beside it.

    Args:
        judge: a judge's name, as `xyreward.load_judge` takes it. None: the model of the role `grader`.
        judge_options: of judges that ask a model; `store` and `budget_usd` also hold for the role.
        grader: the role's name. A list of models bound to it is a panel.
        soft: expectation under the judge's probabilities, for training; False: of its labels.

    Raises:
        JudgeError, MissingDependency: the judge cannot be loaded. The scorer: it cannot go on (a wrong key,
            a spent budget).
    """
    given = dict(judge_options or {})
    named = None if judge is None else load_judge(judge, **given)
    if named is not None:
        check_gives_labels(named)
    of_role: dict[str, Judge] = {}

    async def score(state: TaskState, target: Target) -> Score:  # noqa: ARG001  # Inspect's signature
        chosen = named or _judge_of_role(grader, given, of_role)
        item, answer = _item(state), state.output.completion
        result = await ascore(item, answer, chosen)
        if (spent := over_budget([result])) is not None:
            raise JudgeError(f"{without_url(result.source)}: {spent.detail}")
        about = {
            "judge": without_url(result.source),
            "cluster": _cluster(state, item),
            "goal_inferred": not item.is_grounded,
        }
        # Those of a row of an evaluation, of which `inspect_task.held_out` makes one.
        row = {
            **judged_fields(item, answer, result),
            "answer": answer,
            "answer_tokens": state.output.usage.output_tokens if state.output.usage else None,
            "truncated": state.output.stop_reason == "max_tokens",
        }
        if result.verdict is None:
            failure = result.failure
            assert failure is not None
            return Score.unscored(
                reason="grader_failed",  # Inspect's word for each of our kinds
                answer=answer,
                explanation=f"{failure.kind}: {failure.detail}",
                metadata={**about, "failure": asdict(failure)},
            )
        verdict = result.verdict
        return Score(
            value=row["soft_reward" if soft else "reward"],
            answer=answer,
            explanation=verdict.reason or _told(row["verdict"]),
            reason="no_response" if EMPTY in verdict.flags else None,
            metadata={
                **about,
                **row,
                "metrics": result.metrics,
                "cached": verdict.cached,
                "cost_usd": verdict.cost_usd,
            },
        )

    return score


def _told(verdict: Mapping[str, Any]) -> str:
    """The labels in words, of a judge that gives no reason."""
    says = {
        "has_stated_solution": "a solution for the stated request",
        "has_intended_solution": "a solution for the intended request",
        "identifies_misconception": "identifies the misconception",
    }
    return "; ".join(
        [f"focus {verdict['focus']}"]
        + [f"{'yes' if verdict[label] else 'no'}: {words}" for label, words in says.items()]
    )


def _cluster(state: TaskState, item: Item) -> str:
    if (named := state.metadata.get("cluster")) is not None:
        return str(named)
    return item.content_hash if item.group is None else f"{item.source}: {item.group}"


def _item(state: TaskState) -> Item:
    found = state.metadata.get("item")
    if isinstance(found, Item):
        return found
    if found is None:
        if isinstance(state.input, str):
            return Item.of_query(state.input)
        return Item.of_query([{"role": m.role, "content": m.text} for m in state.input])
    try:
        if isinstance(found, str):
            return Item.model_validate_json(found)
        return Item.model_validate(found)
    except ValidationError as error:
        raise DataError(
            [f"sample {state.sample_id!r}: metadata['item'] is no item: {error}"]
        ) from None


# ---------------------------------------------------------------- the model of a role as a judge


def _judge_of_role(role: str, options: Mapping[str, Any], known: dict[str, Judge]) -> Judge:
    """The judge that asks what is bound to a role now; roles are bound when an evaluation begins."""
    bound = model_roles().get(role)
    # Raises where nothing is bound: never the model under test.
    models = bound if isinstance(bound, list) else [get_model(role=role, required=True)]
    judges = []
    for model in models:
        endpoint = RoleEndpoint(model)
        key = f"{endpoint.name} {json.dumps(endpoint.parameters, sort_keys=True)}"
        if key not in known:
            known[key] = ModelJudge(endpoint, **options)
        judges.append(known[key])
    return judges[0] if len(judges) == 1 else PanelJudge(judges)


class RoleEndpoint:
    """A model of Inspect as an endpoint of this package: Inspect sends, retries and keeps the usage."""

    settled = True
    base_url = ""

    def __init__(self, model: Model) -> None:
        self._model = model
        config = model.config.model_dump(mode="json", exclude_none=True)
        self.parameters: Mapping[str, Any] = {
            "api": "inspect",
            "schema": "plain",
            # Its own settings are many, and change with Inspect; what counts is whether they are the same.
            "config": text_hash(
                json.dumps(
                    {k: v for k, v in config.items() if k not in OPERATIONAL}, sort_keys=True
                )
            )[:16],
        }

    @property
    def name(self) -> str:
        """`inspect:<model>`, as Inspect names it."""
        return f"inspect:{self._model}"

    @property
    def model(self) -> str:
        """As Inspect names it."""
        return str(self._model)

    @property
    def possible_parameters(self) -> tuple[Mapping[str, Any], ...]:
        """One."""
        return (self.parameters,)

    def check_key(self) -> None:
        """Inspect looked for it when it made the model."""

    async def settle(self) -> Usage:
        """Nothing is to be found out: the form of a reply is left to the prompt."""
        return Usage()

    async def send(self, call: Call, *, timeout: float) -> Reply:
        """Send once, as far as Inspect does: it has retries of its own, so no other try is asked for.

        Raises:
            CallError: no reply.
        """
        messages = [ChatMessageUser(content=call.text)]
        if call.prefix:
            messages.insert(0, ChatMessageSystem(content=call.prefix))
        limit = self._model.config.max_tokens or call.max_tokens
        try:
            async with asyncio.timeout(timeout):
                output = await self._model.generate(
                    messages, config=GenerateConfig(max_tokens=limit)
                )
        except TimeoutError:
            raise CallError(
                "timeout", f"no reply within {timeout:g} s", retry=False, possibly_billed=True
            ) from None
        except Exception as error:
            raise CallError("transport", told(error), retry=False, possibly_billed=True) from None
        used = output.usage
        usage = Usage()
        if used is not None:
            usage = Usage(
                used.input_tokens,
                used.output_tokens,
                used.input_tokens_cache_read or 0,
                used.input_tokens_cache_write or 0,
            )
        said = {"usage": usage, "usage_reported": used is not None, "model": output.model}
        match output.stop_reason:
            case "content_filter":
                return Reply(output.completion, stop="refused", detail="content_filter", **said)
            case "max_tokens" | "model_length":
                return Reply(output.completion, stop="truncated", detail=f"{limit} tokens", **said)
            case _:
                return Reply(output.completion, **said)

    async def check(self, call: Call, *, timeout: float = 60.0) -> EndpointCheck:
        """Send a call twice."""
        return await check_sending(self, call, timeout=timeout)

    async def aclose(self) -> None:
        """Inspect closes its models."""
