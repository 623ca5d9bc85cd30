"""Scores a trainer's batch of completions: each distinct one judged once, an outage waited out, all counted.

Not here: the trainers' ways of calling a reward function (`trl_rewards.py`), whether a run goes on
(`judge_guard.py`).
"""

from __future__ import annotations

import asyncio
import time
import uuid
import weakref
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from pydantic import ValidationError

from xyreward.completions import Completion, Visible
from xyreward.errors import ConfigError, DataError, JudgeError, XYRewardError
from xyreward.items import Item
from xyreward.judges import Judge, RewardJudge, load_judge, refuse_batches
from xyreward.pairs.formats import item_of_row
from xyreward.reward import Reward
from xyreward.scoring import EMPTY, Score, ascore, over_budget
from xyreward.verdict import FailureKind, JudgeFailure

OUTAGE: frozenset[FailureKind] = frozenset({"transport", "rate_limited", "timeout"})
"""Failures that are the service's and pass by themselves. Others say something about one answer."""

FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 30.0
"""Between two looks at whether an outage is over; the pause doubles."""

KEPT_BATCHES = 8
"""Batches that are remembered, for the other reward functions that are given the same one."""

Rows = tuple[tuple[Item, str], ...]
"""Items and what is judged of the completions to them."""

ITEM_COLUMNS = (
    "item_id", "kind", "source", "domain", "language", "stated_request", "intended_request",
    "misconception", "stated_solutions", "intended_solutions", "inferred",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Scoring:
    """How completions are scored. Plain settings, which travel to other processes."""

    judge: str | Judge = "local"
    judge_options: Mapping[str, Any] = field(default_factory=dict)
    reward: Reward = field(default_factory=lambda: Reward(soft=True))
    visible: Visible = field(default_factory=Visible)
    columns: Mapping[str, str] = field(default_factory=dict)
    """Field of an item -> the data set's column, where their names differ."""
    max_outage_s: float = 600.0
    """Seconds for which an outage of the judge is waited out, >= 0."""

    def __post_init__(self) -> None:
        if strange := sorted(set(self.columns) - set(ITEM_COLUMNS)):
            raise ConfigError(
                f"columns: {', '.join(strange)} are no fields of an item; expected some of "
                f"{', '.join(ITEM_COLUMNS)} -> the data set's column"
            )
        refuse_batches(self.judge_options)
        if not 0 <= self.max_outage_s < float("inf"):
            raise ConfigError(f"max_outage_s is {self.max_outage_s}, expected seconds, 0 or more")


@dataclass(slots=True)
class Counts:
    """What became of the answers that a judge was needed for, in this process."""

    judged: int = 0
    """Completions; those that are equal count each, empty ones do not."""
    failed: int = 0
    stopped: str | None = None
    """Why the judge cannot go on: an outage that outlasted `max_outage_s`, a wrong key, a spent budget, a
    full disk."""


@dataclass(frozen=True, slots=True)
class Batch:
    """A batch of N completions with their scores."""

    items: tuple[Item, ...]
    answers: tuple[str, ...]
    """What was judged of the completions."""
    scores: tuple[Score, ...]
    distinct: tuple[Score, ...]
    """One for each distinct pair of item and answer."""
    latencies_s: tuple[float, ...]
    """Seconds from sending to reply, of every reply; none for each vote that the store had."""
    seconds: float
    """That the trainer waited for this batch, outages included."""

    @property
    def failures(self) -> Counter[str]:
        """Completions without a score, by kind of failure."""
        return Counter(score.failure.kind for score in self.scores if score.failure is not None)


class Scorer:
    """Scores batches. Judge, store and clients are opened at the first one, in each process of its own.

    Reward functions that share a scorer share its verdicts: whichever is called first with a batch has it
    judged, and all others get the same scores, failures included. In another process (pickled) those that
    shared one share one again.
    """

    def __init__(self, scoring: Scoring | Callable[[], Scoring], token: str | None = None) -> None:
        """Nothing is loaded yet.

        Args:
            scoring: the settings, or what finds them at the first batch (a function of a module).
            token: by which scorers of other processes know that they are this one.
        """
        self._given = scoring
        self.guarded = False
        """Somebody (`judge_guard.JudgeGuard`) looks at the counts and ends the run. Otherwise a judge that
        cannot go on is an exception here, lest a run goes on without rewards."""
        self._token = token or uuid.uuid4().hex
        self._counts = Counts()
        self._recent: OrderedDict[int, _Asked] = OrderedDict()
        _scorers[self._token] = self

    def __reduce__(self) -> tuple[Any, ...]:
        return _scorer, (self._token, self._given)

    @cached_property
    def scoring(self) -> Scoring:
        """The settings.

        Raises:
            ConfigError: what finds them found something impossible.
        """
        return self._given if isinstance(self._given, Scoring) else self._given()

    @cached_property
    def judge(self) -> Judge:
        """The judge, loaded.

        Raises:
            JudgeError, ConfigError, MissingDependency: see `load_judge`.
        """
        wanted = self.scoring
        return load_judge(wanted.judge, **wanted.judge_options)

    @property
    def gives_labels(self) -> bool:
        """Whether verdicts can be had of the judge; also of one that cannot be loaded."""
        try:
            return not isinstance(self.judge, RewardJudge)
        except XYRewardError:
            return True

    def take_counts(self) -> Counts:
        """The counts since they were last taken."""
        counts, self._counts = self._counts, Counts()
        return counts

    async def score(
        self,
        prompts: Sequence[Any],
        completions: Sequence[Completion],
        columns: Mapping[str, Sequence[Any]],
    ) -> Batch:
        """Score completions[i] as an answer to prompts[i]. The same list of them is judged once.

        Args:
            prompts: N texts or conversations.
            completions: N texts or lists of messages.
            columns: of the data set, each N long.

        Raises:
            DataError: rows that are no items.
            XYRewardError: the judge cannot go on, and nobody guards the run.
        """
        rows = tuple(
            zip(
                self.items(prompts, columns),
                map(self.scoring.visible, completions),
                strict=True,
            )
        )
        loop = asyncio.get_running_loop()
        # By the list itself and not only by what it holds: functions that are called together get one list,
        # and the same answers in a later batch are asked about again where judging them failed.
        key = id(completions)
        asked = self._recent.get(key)
        usable = asked is not None and (asked.task.done() or asked.task.get_loop() is loop)
        if asked is None or not usable or asked.rows != rows:
            task = loop.create_task(self._batch(rows))
            asked = self._recent[key] = _Asked(completions, rows, task)
            while len(self._recent) > KEPT_BATCHES:
                self._recent.popitem(last=False)
        return await asyncio.shield(asked.task) if not asked.task.done() else asked.task.result()

    def items(
        self, prompts: Sequence[Any], columns: Mapping[str, Sequence[Any]]
    ) -> tuple[Item, ...]:
        """The items of rows: by the data set's columns, or of the prompts alone where it has no requests.

        Raises:
            DataError: a row that is no item; names all of them.
        """
        names = {name: self.scoring.columns.get(name, name) for name in ITEM_COLUMNS}
        there = {name: columns[column] for name, column in names.items() if column in columns}
        if absent := sorted(set(self.scoring.columns.values()) - set(columns)):
            raise DataError(
                [
                    f"the data set has no column {column!r}, which `columns` names; it has "
                    f"{', '.join(sorted(columns))}"
                    for column in absent
                ]
            )
        bare = not {"stated_request", "intended_request"} & set(there)
        made: dict[str, Item] = {}
        items, problems = [], []
        for i, prompt in enumerate(prompts):
            row = {"prompt": prompt, **{name: values[i] for name, values in there.items()}}
            try:
                known = repr(row)  # the completions to one prompt have one item
                if known not in made:
                    made[known] = Item.of_query(prompt) if bare else item_of_row(row)
                items.append(made[known])
            except KeyError as error:
                problems.append(
                    f"row {i}: the data set has {', '.join(sorted(there))} and no {error}; name its "
                    "column in `columns`"
                )
            except (TypeError, ValidationError) as error:
                problems.append(f"row {i}: {' '.join(str(error).split())}")
        if problems:
            raise DataError(problems)
        return tuple(items)

    async def _batch(self, rows: Rows) -> Batch:
        began = time.monotonic()
        distinct = list(dict.fromkeys(rows))
        try:
            calls = _calls(self.judge)
            scores = await self._scored(distinct)
            if (spent := over_budget(scores)) is not None:
                raise JudgeError(f"{self.judge.name}: {spent.detail}")
            latencies = _latencies(self.judge, calls, scores, time.monotonic() - began)
        except XYRewardError as error:
            if not self.guarded:
                raise
            self._counts.stopped = f"{type(error).__name__}: {error}"
            nothing = JudgeFailure("transport", self._counts.stopped)
            scores = [Score(None, None, nothing, "") for _ in distinct]
            latencies = ()
        by_row = dict(zip(distinct, scores, strict=True))
        batch = Batch(
            tuple(item for item, _ in rows),
            tuple(answer for _, answer in rows),
            tuple(by_row[row] for row in rows),
            tuple(scores),
            latencies,
            time.monotonic() - began,
        )
        self._counts.judged += sum(not _is_empty(score) for score in batch.scores)
        self._counts.failed += batch.failures.total()
        return batch

    async def _scored(self, rows: Sequence[tuple[Item, str]]) -> list[Score]:
        """Scores of distinct rows. While the judge is out, one of them is asked for again and again."""
        began = time.monotonic()
        scores = await self._ask(rows)
        pause = FIRST_PAUSE_S
        while _is_outage(scores):
            left = self.scoring.max_outage_s - (time.monotonic() - began)
            failed = [i for i, score in enumerate(scores) if score.failure is not None]
            if left <= 0:
                self._give_up(scores[failed[0]])
                break
            await asyncio.sleep(min(pause, left))
            pause = min(2 * pause, LONGEST_PAUSE_S)
            (probe,) = await self._ask([rows[failed[0]]])
            if _is_outage([probe]):
                continue
            scores[failed[0]] = probe
            again = await self._ask([rows[i] for i in failed[1:]])
            for i, score in zip(failed[1:], again, strict=True):
                scores[i] = score
        return scores

    def _give_up(self, last: Score) -> None:
        assert last.failure is not None
        said = (
            f"{last.source}: no verdict for {self.scoring.max_outage_s:g} s (max_outage_s); the last failure "
            f"is {last.failure.kind}: {last.failure.detail}"
        )
        if not self.guarded:
            raise JudgeError(said)
        self._counts.stopped = said

    async def _ask(self, rows: Sequence[tuple[Item, str]]) -> list[Score]:
        if not rows:
            return []
        return await ascore(
            [item for item, _ in rows],
            [answer for _, answer in rows],
            self.judge,
            self.scoring.reward,
        )


@dataclass(frozen=True, slots=True)
class _Asked:
    completions: Sequence[Completion]
    """Held, so that no other list gets its id."""
    rows: Rows
    task: asyncio.Task[Batch]


_scorers: weakref.WeakValueDictionary[str, Scorer] = weakref.WeakValueDictionary()
"""Token -> scorer of this process."""


def _scorer(token: str, scoring: Scoring | Callable[[], Scoring]) -> Scorer:
    return _scorers.get(token) or Scorer(scoring, token)


def _is_empty(score: Score) -> bool:
    return score.verdict is not None and EMPTY in score.verdict.flags


def _is_outage(scores: Sequence[Score]) -> bool:
    """Whether none of those that needed the service got a verdict, for reasons that pass."""
    needed = [
        score
        for score in scores
        if score.verdict is None or not (score.verdict.cached or _is_empty(score))
    ]
    return bool(needed) and all(s.failure is not None and s.failure.kind in OUTAGE for s in needed)


def _calls(judge: Judge) -> int:
    """Replies received until now; 0 of a judge that does not count them."""
    stats = getattr(judge, "stats", None)
    return 0 if stats is None else int(stats.calls)


def _latencies(
    judge: Judge, calls: int, scores: Sequence[Score], seconds: float
) -> tuple[float, ...]:
    stats = getattr(judge, "stats", None)
    stored = [s.verdict for s in scores if s.verdict is not None and s.verdict.cached]
    if stats is None:  # it judges all of them together
        asked = [s for s in scores if not _is_empty(s)]
        return (*[0.0] * len(stored), *[seconds] * (len(asked) - len(stored)))
    cached = [0.0] * sum(verdict.votes for verdict in stored)
    new = int(stats.calls) - calls
    return (*cached, *(list(stats.latencies)[-new:] if new else ()))
