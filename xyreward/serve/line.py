"""What waits for a verdict: a bounded line in front of the judge.

A judge that asks a model gets every request at once; its own dispatcher holds the concurrency. A judge
that works in this process gets one lot after the other, each made of what has come meanwhile, since it
judges many answers faster than each alone.

Work that was begun is finished, whether or not anybody still waits for it: it may have been paid for, and a
judge with a store remembers it.

Not here: bodies and statuses (`app.py`), retries and rates (`dispatch.py`).
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any

from xyreward.items import Item
from xyreward.judges import Judge
from xyreward.judges.panel import model_judges
from xyreward.reward import Reward
from xyreward.scoring import Score, ascore

Row = tuple[Item, str]
"""An item and an answer to it."""

LOT = 64
"""Answers that a judge of this process is given at a time. More are hardly faster, and later."""
PACE_OF = 32
"""So many lots, the latest, tell how fast verdicts come."""


class LineFullError(Exception):
    """Nothing more is taken now; `retry_after_s` says when to ask again."""

    def __init__(self, message: str, retry_after_s: int) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class TooLateError(Exception):
    """No verdict by the deadline. It is still being worked on."""


@dataclass(slots=True)
class _Waiting:
    rows: Sequence[Row]
    done: asyncio.Future[list[Score]] = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )


class Line:
    """Takes rows, gives scores. Belongs to one event loop."""

    def __init__(
        self,
        judge: Judge,
        reward: Reward,
        *,
        max_waiting: int,
        max_bytes: int,
        deadline_s: float,
        on_lot: Callable[[int, float], object] = lambda _answers, _seconds: None,
    ) -> None:
        """Make an empty line.

        Args:
            judge: who judges.
            reward: how labels become a number.
            max_waiting: answers without a verdict, at most.
            max_bytes: of the requests that they came with, at most.
            deadline_s: how long `score` waits.
            on_lot: told of every lot that was judged: its answers, and its seconds.
        """
        self.judge = judge
        self.reward = reward
        self.max_waiting = max_waiting
        self.max_bytes = max_bytes
        self.deadline_s = deadline_s
        self.on_lot = on_lot
        self.waiting = 0
        """Answers taken and without a verdict."""
        self.held = 0
        """Bytes of the requests that they came with."""
        self._together = not model_judges(judge)
        self._lots: deque[_Waiting] = deque()
        self._working = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._ends: deque[tuple[float, int]] = deque(maxlen=PACE_OF)
        """When a lot ended, and its answers."""

    async def score(self, rows: Sequence[Row], size: int) -> list[Score]:
        """Scores of rows, in order.

        Args:
            rows: one or more.
            size: bytes of the request that they came with.

        Raises:
            LineFullError: there is no room; nothing was begun.
            TooLateError: the deadline passed; the work goes on.
            Exception: whatever `ascore` raises for these rows.
        """
        if self.waiting + len(rows) > self.max_waiting:
            raise LineFullError(
                f"{self.waiting} answers wait for a verdict, and no more than {self.max_waiting} may",
                self.retry_after_s,
            )
        if self.held + size > self.max_bytes:
            raise LineFullError(
                f"{self.held} bytes of requests wait for verdicts, and no more than {self.max_bytes} may",
                self.retry_after_s,
            )
        waiting = _Waiting(list(rows))
        self.waiting += len(rows)
        self.held += size
        waiting.done.add_done_callback(lambda _: self._leave(len(rows), size))
        if self._together:
            self._lots.append(waiting)
            if not self._working:
                self._working = True
                self._start(self._work())
        else:
            self._start(self._judge([waiting]))
        done, _ = await asyncio.wait([waiting.done], timeout=self.deadline_s)
        if not done:
            # Someone has to look at the outcome, or asyncio complains of an error nobody saw.
            waiting.done.add_done_callback(lambda f: f.cancelled() or f.exception())
            raise TooLateError(f"no verdict within {self.deadline_s:g} seconds")
        return waiting.done.result()

    @property
    def retry_after_s(self) -> int:
        """Whole seconds until about half of what waits now will have its verdict; 1 to 60."""
        if len(self._ends) < 2:
            return 1
        answers = sum(n for _, n in list(self._ends)[1:])
        seconds_each = (self._ends[-1][0] - self._ends[0][0]) / answers
        return max(1, min(60, math.ceil(self.waiting * seconds_each / 2)))

    async def finish(self) -> None:
        """Wait until all that was begun has ended."""
        while self._tasks:
            await asyncio.wait(set(self._tasks))

    def _leave(self, answers: int, size: int) -> None:
        self.waiting -= answers
        self.held -= size

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _work(self) -> None:
        try:
            while self._lots:
                lot = [self._lots.popleft()]
                answers = len(lot[0].rows)
                while self._lots and answers + len(self._lots[0].rows) <= LOT:
                    lot.append(self._lots.popleft())
                    answers += len(lot[-1].rows)
                await self._judge(lot)
        finally:
            self._working = False

    async def _judge(self, lot: Sequence[_Waiting]) -> None:
        rows = [row for waiting in lot for row in waiting.rows]
        begun = time.monotonic()
        try:
            scores = await ascore(
                [item for item, _ in rows], [answer for _, answer in rows], self.judge, self.reward
            )
        except Exception as error:
            if len(lot) == 1:
                lot[0].done.set_exception(error)
                return
            # What is wrong with one request must not be told to those that were judged with it.
            for waiting in lot:
                await self._judge([waiting])
            return
        except asyncio.CancelledError:
            for waiting in lot:
                waiting.done.cancel()
            raise
        now = time.monotonic()
        self._ends.append((now, len(rows)))
        self.on_lot(len(rows), now - begun)
        start = 0
        for waiting in lot:
            stop = start + len(waiting.rows)
            waiting.done.set_result(scores[start:stop])
            start = stop
