"""Before a long job: can this judge judge, how does it answer, what does one verdict cost.

`xyreward judge check` prints it. A long job finds the same by itself at its first call, which is sent
alone; the check does so before the job exists, and also measures the prompt cache.

Not here: what an endpoint is asked (`judges/preflight.py`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from xyreward import rubric
from xyreward.items import Item
from xyreward.judges import Judge, load_judge
from xyreward.judges.model import ModelJudge
from xyreward.judges.panel import PanelJudge
from xyreward.judges.scripted import ScriptedJudge
from xyreward.reading import ReadingProblem, read_reply
from xyreward.scoring import ascore
from xyreward.verdict import Usage

SAMPLE = Item(
    id="check",
    query="How do I make my alarm clock louder? I sleep through it every Monday.",
    stated_request="Make an alarm clock louder.",
    intended_request="Get up on time on Mondays.",
    misconception="A louder alarm does not help someone who sleeps too little on Sundays.",
    stated_solutions=("Put the clock on an empty metal tray, which amplifies the sound.",),
    intended_solutions=("Keep the same bedtime on Sundays as on other days.",),
)
ANSWER = (
    "A louder clock will not change much, because on Mondays you are simply short of sleep. Go to bed on "
    "Sunday as early as on other days, and you will hear the clock you have."
)


@dataclass(frozen=True, slots=True)
class Preflight:
    """What was found, for people."""

    ok: bool
    lines: tuple[str, ...]


async def preflight(judge: str, **options: Any) -> Preflight:
    """Ask a judge for the verdict on a small example; for one that asks a model, twice.

    Costs two calls at most. Options that are None are left out.

    Raises:
        JudgeError, MissingDependency, ConfigError: see `load_judge`.
    """
    loaded = load_judge(judge, **{k: v for k, v in options.items() if v is not None})
    members = loaded.members if isinstance(loaded, PanelJudge) else (loaded,)
    lines: list[str] = []
    ok = True
    for member in members:
        one = await _of_model(member) if isinstance(member, ModelJudge) else await _of_other(member)
        ok &= one.ok
        lines += one.lines
    return Preflight(ok, tuple(lines))


async def _of_other(judge: Judge) -> Preflight:
    if isinstance(judge, ScriptedJudge):  # it knows the answers of its file and no others
        return Preflight(True, (f"{judge.name}: ready ({judge.rubric_version}); makes no calls",))
    score = await ascore(SAMPLE, ANSWER, judge)
    if score.failure is not None:
        return Preflight(False, (f"{judge.name}: {score.failure.kind}: {score.failure.detail}",))
    return Preflight(True, (f"{judge.name}: ready ({judge.rubric_version}); makes no calls",))


async def _of_model(judge: ModelJudge) -> Preflight:
    grounding = rubric.Grounding.of(SAMPLE)
    assert grounding is not None
    call = rubric.verdict_call(SAMPLE, grounding, ANSWER)
    found = await judge.endpoint.check(call)
    lines = [f"{judge.name} at {found.base_url}, rubric {judge.rubric_version}"]
    lines += [f"problem: {problem}" for problem in found.problems]
    ok = found.ok
    for reply in found.replies[-1:] if ok else ():  # else it is said already what is wrong with it
        read = read_reply(reply, ANSWER, "xy")
        if isinstance(read, ReadingProblem):
            ok = False
            lines.append(f"problem: its reply is no verdict, {read.kind}: {read.detail}")
        else:
            lines.append(
                f"verdict: focus {read.labels.focus}, intended solution "
                f"{'yes' if read.labels.has_intended_solution else 'no'} (expected: intended, yes)"
            )
    if found.schema is not None:
        lines.append(
            f"form of replies: {found.schema}; model as served: {found.model or 'not named'}"
        )
    if found.replies:
        estimate = rubric.estimate_tokens(call.prefix)
        counted = (
            "not counted by the server" if found.prefix_tokens is None else f"{found.prefix_tokens}"
        )
        cached = "not reported" if found.cache_read_tokens is None else f"{found.cache_read_tokens}"
        lines.append(
            f"shared prefix: {counted} tokens (estimated offline: {estimate}); from the prompt cache in "
            f"the second call: {cached}"
        )
        counts = found.replies[-1].usage_reported
        cost = judge.prices.cost(found.per_call, judge.name) if counts else None
        price = "price unknown, give it in a file named by XYREWARD_PRICES (docs/cost.md)"
        if not counts:
            price = "cost unknown: the server does not say how many tokens it used"
        if cost is not None:
            checked = judge.prices.checked
            price = f"{cost:.5f} US dollars, 1,000 of them {1000 * cost:.2f} (prices of {checked})"
        lines.append(f"one verdict: {_tokens(found.per_call)}; {price}")
    lines += [f"note: {warning}" for warning in found.warnings]
    return Preflight(ok, tuple(lines))


def _tokens(usage: Usage) -> str:
    read = usage.input_tokens + usage.cache_read_tokens + usage.cache_write_tokens
    return f"{read:,} input and {usage.output_tokens:,} output tokens"
