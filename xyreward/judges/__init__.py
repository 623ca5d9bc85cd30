"""Judges: an item and an answer go in, a Verdict or a JudgeFailure comes out.

`load_judge(name)` knows:

    local              the offline judge of this package (`judges/local.py`): no key, a stand-in
    scripted:<file>    verdicts read from a JSONL file (`judges/scripted.py`): for tests and replays

A judge is any object with the members of `Judge`; pass one in place of a name to use your own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from xyreward.errors import JudgeError
from xyreward.items import Item
from xyreward.verdict import JudgeFailure, Verdict


@runtime_checkable
class Judge(Protocol):
    """What score(), evaluation and recipes need of a judge.

    A judge may also have `check(items)`, which raises JudgeError for items that it cannot judge. It is
    called before answers are generated, so that an hour of generation is not thrown away.
    """

    @property
    def name(self) -> str:
        """As `load_judge` takes it; part of every verdict."""
        ...

    @property
    def rubric_version(self) -> str:
        """Version and hash of what decides the labels; part of every verdict."""
        ...

    async def judge(
        self, items: Sequence[Item], answers: Sequence[str]
    ) -> list[Verdict | JudgeFailure]:
        """Judge answers[i] as an answer to items[i].

        Args:
            items: length N; one item may occur many times.
            answers: length N, none empty (`score()` deals with empty answers itself).

        Returns:
            Length N, in order. A failed judgement is a JudgeFailure in its place, no exception.

        Raises:
            JudgeError: the judge cannot judge such items at all (a wrong set-up).
        """
        ...


def load_judge(judge: str | Judge) -> Judge:
    """The judge of this name, or the object itself where it is one already.

    Raises:
        JudgeError: unknown name, or a scripted file that cannot be used.
        MissingDependency: the judge needs an extra or a model package; the message is the command.
    """
    if isinstance(judge, type):
        raise JudgeError(f"judge is the class {judge.__name__}, expected one of its instances")
    if not isinstance(judge, str):
        missing = [m for m in ("name", "rubric_version", "judge") if not hasattr(judge, m)]
        if missing:
            raise JudgeError(
                f"judge is {type(judge).__name__}, which lacks {', '.join(missing)}; expected a "
                "name, or an object with name, rubric_version and async judge(items, answers)"
            )
        return judge
    scheme, _, rest = judge.partition(":")
    if judge == "local":
        from xyreward.judges.local import LocalJudge

        return LocalJudge()
    if scheme == "scripted" and rest:
        from xyreward.judges.scripted import ScriptedJudge

        return ScriptedJudge.from_file(rest)
    raise JudgeError(f'judge {judge!r} is not known; expected "local" or "scripted:<file>"')
