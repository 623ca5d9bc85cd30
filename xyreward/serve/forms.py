"""The bodies of requests and answers, as pydantic models: they are the OpenAPI description too.

Not here: the form of OpenRLHF's queries (`openrlhf.py`), statuses (`app.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag

from xyreward.errors import printable
from xyreward.items import Item, Query
from xyreward.reward import Reward
from xyreward.scoring import Score
from xyreward.verdict import FailureKind, Focus, JudgeFailure


class _Form(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


# ---------------------------------------------------------------- /score


class RowOfId(_Form):
    """An answer to an item that the service has loaded."""

    item_id: str = Field(min_length=1)
    answer: str
    """What the user would read. Empty or blank: reward 0, no judge call."""


class RowOfItem(_Form):
    """An answer to an item that comes along."""

    item: Item
    answer: str


class RowOfQuery(_Form):
    """An answer to a bare query, whose goal the judge infers, if it is one that asks a model."""

    query: Query
    answer: str


def _kind_of_row(row: object) -> str:
    if isinstance(row, Mapping):
        return next((key for key in ("item_id", "item", "query") if key in row), "item_id")
    if isinstance(row, RowOfItem):
        return "item"
    return "query" if isinstance(row, RowOfQuery) else "item_id"


# Tagged, so that a bad row is reported once, for the form it has, and not for all three.
ScoreRow = Annotated[
    Annotated[RowOfId, Tag("item_id")]
    | Annotated[RowOfItem, Tag("item")]
    | Annotated[RowOfQuery, Tag("query")],
    Discriminator(_kind_of_row),
]


class ScoreRequest(_Form):
    """Rows as `xyreward score` reads them from a file."""

    rows: list[ScoreRow] = Field(min_length=1)


class LabelsOut(_Form):
    """The four labels of an answer."""

    has_stated_solution: bool
    has_intended_solution: bool
    focus: Focus
    identifies_misconception: bool


class ScoreOut(_Form):
    """One answer's score. There is none without a verdict."""

    reward: float = Field(ge=0, le=1, description="Higher is better.")
    labels: LabelsOut
    metrics: dict[str, float] = Field(description="Parts of the reward under hard labels.")
    grounded: bool = Field(description="False where the goal was inferred from the query.")
    cached: bool = Field(description="Whether the verdict came from the store.")
    cost_usd: float | None = Field(description="null where the price is unknown.")
    flags: list[str]

    @classmethod
    def of(cls, score: Score) -> ScoreOut:
        """The form of a score that has a verdict."""
        verdict, reward = score.verdict, score.reward
        assert verdict is not None
        assert reward is not None
        return cls(
            reward=reward,
            labels=LabelsOut(
                has_stated_solution=verdict.has_stated_solution,
                has_intended_solution=verdict.has_intended_solution,
                focus=verdict.focus,
                identifies_misconception=verdict.identifies_misconception,
            ),
            metrics=score.metrics,
            grounded=verdict.grounded,
            cached=verdict.cached,
            cost_usd=verdict.cost_usd,
            flags=list(verdict.flags),
        )


class ScoreResponse(_Form):
    """Scores in the order of the rows. Rewards compare within one judge and rubric version only."""

    judge: str
    rubric_version: str
    soft: bool = Field(
        description="Whether rewards are expectations under the judge's probabilities."
    )
    results: list[ScoreOut]

    @classmethod
    def of(cls, scores: Sequence[Score], judge: str, version: str, reward: Reward) -> ScoreResponse:
        """The answer to a request all of whose rows have verdicts."""
        return cls(
            judge=judge,
            rubric_version=version,
            soft=reward.soft,
            results=[ScoreOut.of(score) for score in scores],
        )


# ---------------------------------------------------------------- /get_reward


class OpenRLHFRequest(_Form):
    """What OpenRLHF sends to `--reward.remote_url` (`--remote_rm_url` in older releases)."""

    # Later releases may add columns, and those must not stop a training.
    model_config = ConfigDict(extra="ignore", frozen=True)

    query: list[str] = Field(
        min_length=1, description="Prompt and answer as one text, special tokens included."
    )
    prompts: list[str] = Field(min_length=1, description="The prompts alone, as in `query`.")
    labels: list[str | dict[str, Any]] = Field(
        min_length=1,
        description="The data set's label column: an item's id, or an item as JSON.",
    )


class OpenRLHFResponse(_Form):
    """Of the same length as `query`, in order."""

    rewards: list[float] = Field(description="In [0, 1], higher is better.")
    scores: list[float] = Field(description="The same, for OpenRLHF's dynamic filtering.")
    extra_logs: dict[str, list[float]] = Field(description="Parts of the reward, for the log.")

    @classmethod
    def of(cls, scores: Sequence[Score]) -> OpenRLHFResponse:
        """The answer to a request all of whose answers have verdicts."""
        rewards = [score.reward for score in scores if score.reward is not None]
        assert len(rewards) == len(scores)
        names = scores[0].metrics
        return cls(
            rewards=rewards,
            scores=rewards,
            extra_logs={f"xy_{name}": [s.metrics[name] for s in scores] for name in names},
        )


# ---------------------------------------------------------------- what is not a 200


ErrorType = Literal[
    "bad_json",
    "body_timeout",
    "body_too_large",
    "draining",
    "internal",
    "invalid_request",
    "judge_failed",
    "judge_stopped",
    "method_not_allowed",
    "not_found",
    "queue_full",
    "too_late",
    "unauthorized",
    "wrong_host",
]


class FailureOut(_Form):
    """An answer without a verdict."""

    index: int = Field(description="Of the row.")
    kind: FailureKind
    detail: str

    @classmethod
    def of(cls, index: int, failure: JudgeFailure) -> FailureOut:
        """Without the judge's raw text, which may be long and anything."""
        return cls(index=index, kind=failure.kind, detail=printable(failure.detail)[:1000])


class Problem(_Form):
    """One thing that is wrong with a request."""

    where: str = Field(description="Such as rows.3.answer.")
    message: str


class ErrorBody(_Form):
    """What happened, and what to do."""

    type: ErrorType
    message: str
    retry_after_s: int | None = Field(
        default=None, description="As in the header Retry-After; null: do not ask again like this."
    )
    problems: list[Problem] = Field(default_factory=list)
    failures: list[FailureOut] = Field(default_factory=list)


class ErrorResponse(_Form):
    """The body of everything that is not a 200."""

    error: ErrorBody


class Health(_Form):
    """Of /health and /ready."""

    status: Literal["ok"]
    judge: str
    rubric_version: str
    items: int = Field(description="Loaded, and named by item_id.")
    waiting: int = Field(description="Answers without a verdict yet.")


def problems_of(errors: Sequence[Any], *, shown: int = 20) -> list[Problem]:
    """Errors of pydantic without the input, which may be long and anything."""
    return [
        Problem(
            where=_place(error["loc"])[:200],
            message=printable(str(error["msg"]).removeprefix("Value error, "))[:500],
        )
        for error in errors[:shown]
    ]


def _place(loc: Sequence[int | str]) -> str:
    """`rows.3.answer`, without the tags that tell the forms of a row and of a query apart."""
    parts = [str(part) for part in loc if part != "body"]
    if parts[:1] == ["rows"] and len(parts) > 2:
        del parts[2]
    if "query" in parts and parts[parts.index("query") + 1 :][:1] in (["text"], ["messages"]):
        del parts[parts.index("query") + 1]
    return printable(".".join(parts)) or "the body"
