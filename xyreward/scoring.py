"""score(): an answer in, a number out, or None and the reason why there is none.

Not here: how to judge (`judges/`), how labels become a number (`reward.py`).
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import threading
from collections.abc import Coroutine, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any, TypeVar, overload

from pydantic import ValidationError

from xyreward.errors import JudgeError
from xyreward.items import Item
from xyreward.judges import Judge, RewardJudge, load_judge
from xyreward.reward import WORST_LABELS, Reward, parts
from xyreward.verdict import JudgeFailure, LabelProbabilities, Verdict
from xyreward.words import is_empty

T = TypeVar("T")

EMPTY = "empty_answer"
"""Flag of the verdict on an empty answer, about which no judge was asked."""


@dataclass(frozen=True, slots=True)
class Score:
    """What score() says of one answer."""

    reward: float | None
    """In [0, 1], higher is better. None where the judge failed: never a 0 in disguise."""
    verdict: Verdict | None
    """None where the judge failed, and from a reward model, which gives a reward alone."""
    failure: JudgeFailure | None
    source: str
    """Name of the judge, also where there was nothing to judge: such a verdict has the flag `EMPTY`."""
    metrics: dict[str, float] = field(default_factory=dict)
    """The parts of the reward under hard labels (`solution, focus, misconception`, see `reward.py`)
    and `has_stated_solution, has_intended_solution, identifies_misconception` as 0.0 or 1.0. Empty
    where there is no verdict."""


Outcome = Verdict | JudgeFailure | float
"""What a judge says of one answer: a reward model a number in [0, 1]."""

Question = Item | str | Sequence[Mapping[str, str]]
"""An item, or a bare query: what the user wrote, or chat messages that end with it."""


@overload  # a str is a Sequence[str] too; the overload that comes first takes it
def score(  # type: ignore[overload-overlap]
    items: Question, answers: str, judge: str | Judge = ..., reward: Reward | None = ...
) -> Score: ...
@overload
def score(
    items: Question | Sequence[Question],
    answers: Sequence[str],
    judge: str | Judge = ...,
    reward: Reward | None = ...,
) -> list[Score]: ...
def score(
    items: Question | Sequence[Question],
    answers: str | Sequence[str],
    judge: str | Judge = "local",
    reward: Reward | None = None,
) -> Score | list[Score]:
    """Score answers. One item and one answer in, one Score out; lists in, a list out, in order.

    One item with a list of answers scores every answer against that item.

    Args:
        items: an Item, or N of them. A bare query (a string, or chat messages) in place of an Item has
            its goal inferred by the judge from the query alone, if it is one that asks a model; the
            verdict then says `grounded=False`, and is not to be averaged with others.
        answers: a string, or N of them. Empty or blank: reward 0, all labels "no", no judge call; the
            verdict has the flag `empty_answer`.
        judge: a name that `load_judge` knows, or a judge. Load one yourself to use it many times.
        reward: how labels become a number; `Reward()` by default, `Reward(soft=True)` for training.

    Raises:
        ValueError: the lists differ in length.
        TypeError: an item is not an Item, an answer not a string, either is no list (a table, a
            set), or `reward` is no Reward.
        JudgeError, MissingDependency: see `load_judge`; JudgeError also where a judge of yours does
            not return one Verdict or JudgeFailure per answer.

    It can be called inside a running event loop (a notebook): it then works in a thread of its own.
    """
    return run_sync(ascore(items, answers, judge, reward))


@overload
async def ascore(  # type: ignore[overload-overlap]
    items: Question, answers: str, judge: str | Judge = ..., reward: Reward | None = ...
) -> Score: ...
@overload
async def ascore(
    items: Question | Sequence[Question],
    answers: Sequence[str],
    judge: str | Judge = ...,
    reward: Reward | None = ...,
) -> list[Score]: ...
async def ascore(
    items: Question | Sequence[Question],
    answers: str | Sequence[str],
    judge: str | Judge = "local",
    reward: Reward | None = None,
) -> Score | list[Score]:
    """As `score`, for async code."""
    single = _is_one(items) and isinstance(answers, str)
    item_list, answer_list = _align(items, answers)
    if reward is None:
        reward = Reward()
    elif not isinstance(reward, Reward):
        raise TypeError(f"reward is {reward!r:.80}, expected xyreward.Reward(...)")
    judge = load_judge(judge)

    outcomes: dict[int, Outcome] = {}
    if any(item.bare for item in item_list):
        for i, grounded in (await _grounded(judge, item_list, answer_list)).items():
            if isinstance(grounded, JudgeFailure):
                outcomes[i] = grounded
            else:
                item_list[i] = grounded
    asked = [i for i, a in enumerate(answer_list) if not is_empty(a) and i not in outcomes]
    if asked:
        judged = await _judged(
            judge, [item_list[i] for i in asked], [answer_list[i] for i in asked], reward
        )
        outcomes |= zip(asked, judged, strict=True)
    scores = [
        _score(item, answer, outcomes.get(i), judge, reward)
        for i, (item, answer) in enumerate(zip(item_list, answer_list, strict=True))
    ]
    return scores[0] if single else scores


def _is_one(items: object) -> bool:
    """Whether it is one item or query: an Item, a string, or messages (a list of mappings)."""
    if isinstance(items, Sequence) and not isinstance(items, str) and len(items) > 0:
        return all(isinstance(m, Mapping) and "role" in m for m in items)
    return isinstance(items, Item | str)


def _align(
    items: Question | Sequence[Question], answers: str | Sequence[str]
) -> tuple[list[Item], list[str]]:
    answer_list = [answers] if isinstance(answers, str) else _list("answers", answers, "a string")
    if _is_one(items):
        item_list = [_item(items)] * len(answer_list)
    else:
        item_list = [_item(item, i) for i, item in enumerate(_list("items", items, "an Item"))]
        if isinstance(answers, str):
            raise ValueError(
                f"items is a list of {len(item_list)} and answers is one string; expected a list "
                f"of {len(item_list)} answers (or one Item)"
            )
        if len(item_list) != len(answer_list):
            raise ValueError(
                f"{len(item_list)} items and {len(answer_list)} answers; expected as many answers "
                "as items (or one Item and many answers)"
            )
    for i, answer in enumerate(answer_list):
        if not isinstance(answer, str):
            raise TypeError(
                f"answers[{i}] is {type(answer).__name__}, expected a string; of chat messages "
                "pass the assistant's text"
            )
    return item_list, answer_list


def _item(given: Any, i: int | None = None) -> Item:
    if isinstance(given, Item):
        return given
    name = "items" if i is None else f"items[{i}]"
    if not _is_one(given):
        raise TypeError(
            f"{name} is {type(given).__name__}, expected xyreward.Item, or a bare query: a string or "
            "chat messages"
        )
    try:
        return Item.of_query(given)
    except ValidationError as error:
        found = "; ".join(e["msg"].removeprefix("Value error, ") for e in error.errors())
        raise ValueError(f"{name} as a bare query: {found}") from None


async def _grounded(
    judge: Judge, items: list[Item], answers: list[str]
) -> dict[int, Item | JudgeFailure]:
    """What the judge makes of bare queries, by position. Empty answers need no grounding."""
    at = [i for i, item in enumerate(items) if item.bare and not is_empty(answers[i])]
    if not at or (isinstance(judge, RewardJudge) and judge.reads_query_alone):
        return {}
    check_can_ground(judge)
    ground = getattr(judge, "ground")  # noqa: B009  # not every judge has it, and so the protocol has not
    return dict(zip(at, await ground([items[i] for i in at]), strict=True))


def check_can_ground(judge: Judge) -> None:
    """Make sure that a judge can infer what bare queries are after.

    Raises:
        JudgeError: it cannot; says which judges can.
    """
    if isinstance(judge, RewardJudge) and judge.reads_query_alone:
        return
    if getattr(judge, "ground", None) is None:
        raise JudgeError(
            f"judge {judge.name!r} cannot infer what a bare query is after; give items with their "
            "stated and intended requests and solutions, or take a judge that asks a model "
            "(anthropic:<model>, chat:<model>@<base_url>, or a panel of nothing but such)"
        )


def _list(name: str, given: Any, one: str) -> list[Any]:
    # What iterates, but not over what it seems to hold: a dict and a table give their column names,
    # a set any order, a string its letters.
    misleading = isinstance(given, str | bytes | Mapping | Set) or getattr(given, "ndim", 1) != 1
    if misleading or not hasattr(given, "__iter__"):
        raise TypeError(f"{name} is {type(given).__name__}, expected {one} or a list of them")
    return list(given)


async def _judged(
    judge: Judge, items: list[Item], answers: list[str], reward: Reward
) -> Sequence[Outcome]:
    """Ask the judge, and hold it to its contract: an outcome for every answer, and nothing else.

    A None that slipped through would read as "nothing to judge", which is worth 0.
    """
    rewards = isinstance(judge, RewardJudge)
    asked = (
        judge.rewards(items, answers, reward)
        if isinstance(judge, RewardJudge)
        else judge.judge(items, answers)
    )
    if not inspect.isawaitable(asked):
        raise JudgeError(f"judge {judge.name!r}: its judge() is not async; write `async def judge`")
    judged: list[Outcome] = list(await asked)
    if len(judged) != len(answers):
        raise JudgeError(
            f"judge {judge.name!r} returned {len(judged)} outcomes for {len(answers)} answers; "
            "expected one for each, in order"
        )
    for i, outcome in enumerate(judged):
        if rewards and isinstance(outcome, float) and 0 <= outcome <= 1:
            continue
        if not isinstance(outcome, JudgeFailure if rewards else Verdict | JudgeFailure):
            wanted = "a float in [0, 1]" if rewards else "a Verdict"
            raise JudgeError(
                f"judge {judge.name!r} returned {type(outcome).__name__} as outcome {i}; expected "
                f"{wanted}, or a JudgeFailure where it could not judge"
            )
    return judged


def _score(item: Item, answer: str, outcome: Outcome | None, judge: Judge, reward: Reward) -> Score:
    if isinstance(outcome, float):
        return Score(reward.of_estimate(outcome, answer), None, None, judge.name)
    if isinstance(outcome, JudgeFailure):
        return Score(reward=None, verdict=None, failure=outcome, source=judge.name)
    if outcome is None:
        # The policy said nothing. That is its failure, not the judge's, and needs no call to know.
        outcome = Verdict(
            labels=WORST_LABELS,
            p=LabelProbabilities.certain(WORST_LABELS),
            judge=judge.name,
            rubric_version=judge.rubric_version,
            flags=(EMPTY,),
        )
    labels = outcome.labels
    metrics = {
        **parts(LabelProbabilities.certain(labels), item.kind),
        "has_stated_solution": float(labels.has_stated_solution),
        "has_intended_solution": float(labels.has_intended_solution),
        "identifies_misconception": float(labels.identifies_misconception),
    }
    return Score(
        reward=reward(outcome, item.kind, answer),
        verdict=outcome,
        failure=None,
        source=judge.name,
        metrics=metrics,
    )


def over_budget(scores: Sequence[Score]) -> JudgeFailure | None:
    """The first judgement that a budget forbade: none can succeed any more until it is raised."""
    failures = (score.failure for score in scores)
    return next((one for one in failures if one and one.kind == "over_budget"), None)


def stop_over_budget(kinds: Iterable[object], what: str, *, of: int | None = None) -> None:
    """Stop where a budget kept some from being asked. Any other failure is counted and left out.

    What was asked before the money ended is no sample of the whole; and what is made of it would be in the
    way of the whole, once the budget was raised and that was paid for.

    Args:
        kinds: of failures (a judge's, or a policy's, which begin with `policy_`); whatever else is none.
        what: were not asked, in words: `answers were not judged`.
        of: how many were to be asked; None: as many as `kinds`.

    Raises:
        JudgeError: "over_budget" is among `kinds`.
    """
    kinds = list(kinds)
    missing = sum(isinstance(kind, str) and kind.endswith("over_budget") for kind in kinds)
    if missing:
        raise JudgeError(
            f"the budget is spent: {missing} of {len(kinds) if of is None else of} {what}. Nothing is made "
            "of the others; what was paid for is in the store. Raise budget_usd and run the same again (a "
            "recipe with --resume)"
        )


def run_sync(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end from synchronous code, whether or not a loop runs here."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(work)
    box: list[T] = []
    errors: list[BaseException] = []
    begun: list[tuple[asyncio.AbstractEventLoop, asyncio.Task[Any]]] = []

    async def known() -> T:
        task = asyncio.current_task()
        assert task is not None
        begun.append((asyncio.get_running_loop(), task))
        if interrupted.is_set():
            work.close()
            raise asyncio.CancelledError
        return await work

    def target() -> None:
        try:
            box.append(asyncio.run(known()))
        except BaseException as error:  # handed to the caller's thread, which raises it
            errors.append(error)
        finally:
            ended.set()

    # Not thread.join: Python before 3.13 takes a thread for ended once Ctrl-C came while it was waited for.
    interrupted, ended = threading.Event(), threading.Event()
    thread = threading.Thread(target=target, name="xyreward-score")
    try:
        thread.start()
        ended.wait()
    except BaseException:
        # Ctrl-C in a notebook: the thread does not hear of it, and would go on paying.
        interrupted.set()
        for loop, task in begun:
            with contextlib.suppress(RuntimeError):  # it has just ended
                loop.call_soon_threadsafe(task.cancel)
        if thread.ident is not None:
            ended.wait()
        raise
    if errors:
        raise errors[0]
    return box[0]
