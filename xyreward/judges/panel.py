"""panel:<judge>,<judge>,...: several judges look at every answer; the majority decides.

Panels of different models share fewer blind spots than votes of one. See `judges/votes.py` for how
labels, probabilities and ties come about.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from xyreward.errors import JudgeError
from xyreward.items import Item
from xyreward.judges import Judge
from xyreward.judges.asking import Estimate
from xyreward.judges.calls import JudgeStopped
from xyreward.judges.model import ModelJudge
from xyreward.judges.votes import Outcome, combine
from xyreward.verdict import JudgeFailure


class PanelJudge:
    """Asks all members about every answer, at the same time."""

    def __init__(self, members: Sequence[Judge]) -> None:
        names = [member.name for member in members]
        if len(members) < 2 or len(set(names)) < len(names):
            raise JudgeError(
                f"a panel of {', '.join(names) or 'nobody'}; expected two or more different judges "
                "(to ask one judge several times use votes)"
            )
        refuse_same(members)
        self._members = tuple(members)

    @property
    def members(self) -> tuple[Judge, ...]:
        """In the order of the name."""
        return self._members

    @property
    def name(self) -> str:
        """`panel:` and the members' names."""
        return f"panel:{','.join(member.name for member in self._members)}"

    @property
    def rubric_version(self) -> str:
        """Those of the members."""
        return "+".join(dict.fromkeys(member.rubric_version for member in self._members))

    def check(self, items: Sequence[Item]) -> None:
        """Let every member say whether it can judge these items."""
        for member in self._members:
            if check := getattr(member, "check", None):
                check(items)

    def estimate(self, items: Sequence[Item], answers: Sequence[str]) -> Estimate | None:
        """See `ModelJudge.estimate`; the sum over members, None where none of them makes calls."""
        total: Estimate | None = None
        for member in self._members:
            if estimate := getattr(member, "estimate", None):
                one: Estimate = estimate(items, answers)
                total = one if total is None else total + one
        return total

    async def judge(self, items: Sequence[Item], answers: Sequence[str]) -> list[Outcome]:
        """See `Judge`. A member that stops for good (wrong key, spent limit) stops all members."""
        asked = [asyncio.create_task(m.judge(items, answers)) for m in self._members]
        try:
            by_member = await asyncio.gather(*asked)
        except JudgeStopped as stop:
            await self._end(stop, asked)
            raise
        finally:
            # One that goes on would spend money on verdicts that nobody waits for.
            for one in asked:
                one.cancel()
            await asyncio.gather(*asked, return_exceptions=True)
        return [
            combine(of_answer, item.kind, judge=self.name, rubric_version=self.rubric_version)
            for item, of_answer in zip(items, zip(*by_member, strict=True), strict=True)
        ]

    async def _end(self, stop: JudgeStopped, asked: Sequence[asyncio.Task[list[Outcome]]]) -> None:
        """Have nothing more sent. Replies that are on their way are paid for: let them arrive."""
        sending = []
        for member, task in zip(self._members, asked, strict=True):
            # A batch loses nothing when nobody waits for it.
            if isinstance(member, ModelJudge) and not member.in_batches:
                member.dispatcher.stop(stop)
                sending.append(task)
            else:
                task.cancel()
        await asyncio.gather(*sending, return_exceptions=True)

    @property
    def ground(self) -> Callable[[Sequence[Item]], Awaitable[list[Item | JudgeFailure]]]:
        """That of the first member, for all: they must judge the same item.

        Raises:
            AttributeError: a member cannot judge bare queries by itself, and so the panel cannot. What one
                infers may lack what another needs (`local`: solutions), and would be paid for by then.
        """
        found: Callable[[Sequence[Item]], Awaitable[list[Item | JudgeFailure]]]
        found, *_ = [member.ground for member in self._members]  # type: ignore[attr-defined]
        return found


def refuse_same(judges: Sequence[Judge]) -> None:
    """Raise JudgeError where two judges ask the same model.

    A verdict's key has no address, so that a changed port empties nothing: the second of them would get
    the verdicts of the first, which looks like perfect agreement.
    """
    first: dict[tuple[str, ...], str] = {}
    for one in (member for judge in judges for member in model_judges(judge)):
        other = first.setdefault(one.asks, one.name)
        if other != one.name:
            raise JudgeError(
                f"{other} and {one.name} ask the same model as far as the store can tell, so one would "
                "get the verdicts of the other; serve one of them under another model name"
            )


def refuse_small_budget(judge: Judge, items: Sequence[Item], answers: Sequence[str]) -> None:
    """Raise JudgeError where a budget has no room for even one of the calls that are to be made.

    Where the store has some of the verdicts nothing is refused: they can be had without a call.
    """
    for one in model_judges(judge):
        if one.budget_usd is None:
            continue
        least = one.least_worst(items, answers)
        if least is None or one.budget_usd >= least:
            continue
        if (bill := one.estimate(items, answers)).calls and not bill.in_store:
            raise JudgeError(
                f"budget_usd is {one.budget_usd:g}, and one call of {one.name} may cost {least:.4f} (its "
                "worst case, of which most is given back when the reply is there), so nothing could be "
                "sent; give more than that (docs/cost.md)"
            )


def model_judges(judge: Judge) -> list[ModelJudge]:
    """Those that ask a model and have a bill: the judge itself, or members of a panel, or none."""
    members = judge.members if isinstance(judge, PanelJudge) else (judge,)
    return [member for member in members if isinstance(member, ModelJudge)]
