"""The line in front of a judge: room, lots, lateness, and errors that belong to one request."""

import asyncio
from collections.abc import Sequence

import pytest

from xyreward.errors import JudgeError
from xyreward.items import Item
from xyreward.reward import Reward
from xyreward.scoring import Score
from xyreward.serve.line import LOT, Line, LineFullError, TooLateError
from xyreward.testing import make_item
from xyreward.verdict import JudgeFailure, LabelProbabilities, Labels, Verdict

ITEM = make_item()


class Slow:
    """Judges a lot when it is let; `good` is worth 1, `wrong` cannot be judged at all."""

    name, rubric_version = "slow", "1"

    def __init__(self) -> None:
        self.lots: list[list[str]] = []
        self.open = asyncio.Event()

    async def judge(
        self, items: Sequence[Item], answers: Sequence[str]
    ) -> list[Verdict | JudgeFailure]:
        self.lots.append(list(answers))
        await self.open.wait()
        if "wrong" in answers:
            raise JudgeError("cannot judge 'wrong'")
        worth = {
            "good": Labels(False, True, "intended", True),
            "bad": Labels(False, False, "neither", False),
        }
        labels = [worth[answer] for answer in answers]
        return [Verdict(one, LabelProbabilities.certain(one), self.name, "1") for one in labels]


def line(judge: Slow, **changes: float) -> Line:
    given = {"max_waiting": 1000, "max_bytes": 1000, "deadline_s": 10.0, **changes}
    return Line(judge, Reward(), **given)  # type: ignore[arg-type]


def ask(one: Line, *answers: str, size: int = 1) -> "asyncio.Task[list[Score]]":
    return asyncio.create_task(one.score([(ITEM, answer) for answer in answers], size))


async def begun(judge: Slow, lots: int = 1) -> None:
    while len(judge.lots) < lots:
        await asyncio.sleep(0)


def test_what_comes_meanwhile_is_judged_together_and_each_gets_its_own() -> None:
    async def main() -> None:
        judge = Slow()
        one = line(judge)
        first = ask(one, "good")
        await begun(judge)
        rest = [ask(one, "good", "bad"), ask(one, "bad"), ask(one, "good")]
        await asyncio.sleep(0.01)
        assert one.waiting == 5
        judge.open.set()
        found = [[score.reward for score in await task] for task in (first, *rest)]
        assert found == [[1.0], [1.0, 0.0], [0.0], [1.0]]
        assert judge.lots == [["good"], ["good", "bad", "bad", "good"]]
        assert (one.waiting, one.held) == (0, 0)

    asyncio.run(main())


def test_lots_are_no_larger_than_they_should_be_but_a_request_is_never_divided() -> None:
    async def main() -> None:
        judge = Slow()
        judge.open.set()
        one = line(judge)
        first = ask(one, *["good"] * 2 * LOT)
        rest = [ask(one, *["bad"] * (LOT // 2 + 1)) for _ in range(3)]
        await asyncio.gather(first, *rest)
        assert [len(lot) for lot in judge.lots] == [2 * LOT, *[LOT // 2 + 1] * 3]

    asyncio.run(main())


def test_a_full_line_takes_nothing_and_has_room_again() -> None:
    async def main() -> None:
        judge = Slow()
        one = line(judge, max_waiting=3, max_bytes=100)
        taken = ask(one, "good", "bad")
        await begun(judge)
        with pytest.raises(LineFullError, match="2 answers wait for a verdict, and no more than 3"):
            await ask(one, "good", "good")
        with pytest.raises(LineFullError, match="1 bytes of requests wait"):
            await ask(one, "good", size=100)
        last = ask(one, "good", size=99)
        await asyncio.sleep(0.01)
        judge.open.set()
        assert [score.reward for score in await taken] == [1.0, 0.0]
        assert [score.reward for score in await last] == [1.0]
        assert [score.reward for score in await ask(one, *["good"] * 3, size=100)] == [1.0] * 3

    asyncio.run(main())


def test_what_is_wrong_with_one_request_is_told_to_no_other() -> None:
    async def main() -> None:
        judge = Slow()
        one = line(judge)
        first = ask(one, "good")
        await begun(judge)
        good, wrong, bad = ask(one, "good"), ask(one, "wrong"), ask(one, "bad")
        await asyncio.sleep(0.01)
        judge.open.set()
        await first
        assert [score.reward for score in await good + await bad] == [1.0, 0.0]
        with pytest.raises(JudgeError, match="cannot judge 'wrong'"):
            await wrong
        assert judge.lots == [["good"], ["good", "wrong", "bad"], ["good"], ["wrong"], ["bad"]]
        assert [score.reward for score in await ask(one, "good")] == [1.0]

    asyncio.run(main())


def test_late_work_goes_on_and_counts_until_it_ends() -> None:
    async def main() -> None:
        judge = Slow()
        one = line(judge, deadline_s=0.01)
        with pytest.raises(TooLateError):
            await ask(one, "good")
        assert (one.waiting, one.held) == (1, 1)
        ending = asyncio.create_task(one.finish())
        await asyncio.sleep(0.01)
        assert not ending.done()
        judge.open.set()
        await ending
        assert (one.waiting, one.held) == (0, 0)

    asyncio.run(main())


def test_late_work_that_fails_leaves_no_error_that_nobody_saw() -> None:
    async def main() -> None:
        told: list[object] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context))
        judge = Slow()
        one = line(judge, deadline_s=0.01)
        with pytest.raises(TooLateError):
            await ask(one, "wrong")
        judge.open.set()
        await one.finish()
        await asyncio.sleep(0.01)
        assert told == []

    asyncio.run(main())


def test_a_client_that_left_does_not_end_the_work() -> None:
    async def main() -> None:
        judge = Slow()
        one = line(judge)
        gone = ask(one, "good")
        await begun(judge)
        gone.cancel()
        await asyncio.sleep(0.01)
        assert one.waiting == 1
        judge.open.set()
        await one.finish()
        assert one.waiting == 0

    asyncio.run(main())


def test_retry_after_follows_the_pace() -> None:
    async def main() -> None:
        judge = Slow()
        judge.open.set()
        one = line(judge)
        assert one.retry_after_s == 1
        for _ in range(2):
            await ask(one, "good")
        one._ends.clear()
        one._ends.extend([(0.0, 5), (10.0, 5)])  # 2 seconds for each
        one.waiting = 12
        assert one.retry_after_s == 12
        one.waiting = 1000
        assert one.retry_after_s == 60

    asyncio.run(main())
