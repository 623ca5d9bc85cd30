"""A scorer for Inspect: this package's reward for any task whose samples carry their item.

    from xyreward.inspect_scorer import xy_reward

    Task(dataset=..., solver=generate(), scorer=xy_reward())          # inspect eval --model-role grader=...
    Task(dataset=..., solver=generate(), scorer=xy_reward("anthropic"))

Without a judge's name the model of the role `grader` judges, asked with this package's rubric. The role is
required: there is no way in which the model under test grades itself unsaid. A log is scored anew with
`inspect_ai.score(log, xy_reward(...), model_roles={"grader": ...}, action="append")`.

A sample's item is `metadata["item"]` (`item.model_dump(mode="json")`); a sample without one is a bare query,
whose goal the judge infers. A judgement that failed is `Score.unscored`: it is in the log with its reason,
and in no metric.

Needs `inspect_ai` (`xyreward[inspect]`).
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from inspect_ai.model import (
    ChatMessageSystem,
    ChatMessageUser,
    GenerateConfig,
    Model,
    get_model,
    model_roles,
)
from inspect_ai.scorer import Score, Scorer, Target, mean, scorer, stderr
from inspect_ai.solver import TaskState
from pydantic import ValidationError

from xyreward.errors import DataError, told
from xyreward.items import Item, text_hash
from xyreward.judges import Judge, check_gives_labels, load_judge
from xyreward.judges.calls import Call, CallError, Reply
from xyreward.judges.model import ModelJudge
from xyreward.judges.panel import PanelJudge
from xyreward.judges.preflight import EndpointCheck, check_sending
from xyreward.reward import Reward
from xyreward.scoring import EMPTY, ascore
from xyreward.verdict import Usage, Verdict

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


@scorer(metrics=[mean(), stderr()])
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
        JudgeError, MissingDependency: the judge cannot be loaded.
    """
    given = dict(judge_options or {})
    named = None if judge is None else load_judge(judge, **given)
    if named is not None:
        check_gives_labels(named)
    reward = Reward(soft=soft)
    of_role: dict[str, Judge] = {}

    async def score(state: TaskState, target: Target) -> Score:  # noqa: ARG001  # Inspect's signature
        chosen = named or _judge_of_role(grader, given, of_role)
        answer = state.output.completion
        result = await ascore(_item(state), answer, chosen, reward)
        if result.verdict is None:
            failure = result.failure
            assert failure is not None
            return Score.unscored(
                reason="grader_failed",
                answer=answer,
                explanation=f"{failure.kind}: {failure.detail}",
                metadata={"judge": result.source, "failure": asdict(failure)},
            )
        verdict = result.verdict
        assert result.reward is not None
        return Score(
            value=result.reward,
            answer=answer,
            explanation=verdict.reason or None,
            reason="no_response" if EMPTY in verdict.flags else None,
            metadata={"metrics": result.metrics, **_plain(verdict)},
        )

    return score


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


def _plain(verdict: Verdict) -> dict[str, Any]:
    whole = asdict(verdict)
    return {name: whole[name] for name in ("labels", "p", "judge", "rubric_version", "grounded",
                                           "suggestions", "cached", "cost_usd", "flags")}  # fmt: skip


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
