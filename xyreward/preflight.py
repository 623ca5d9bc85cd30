"""Before a long job: can this judge judge, how does it answer, what does one verdict cost.

`xyreward judge check` prints it. A long job finds the same by itself at its first call, which is sent
alone; the check does so before the job exists, and also measures the prompt cache.

Not here: what an endpoint is asked (`judges/preflight.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from xyreward import rubric
from xyreward.errors import JudgeError
from xyreward.items import Item
from xyreward.judges import Judge, RewardJudge, load_judge, makes_calls
from xyreward.judges.model import ModelJudge
from xyreward.judges.panel import PanelJudge
from xyreward.judges.scripted import ScriptedJudge
from xyreward.reading import ReadingProblem, read_reply
from xyreward.scoring import ascore
from xyreward.verdict import Labels, Usage

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


def described(judge: str, **options: Any) -> list[str]:
    """What `preflight` would send, a line per judge. Sends nothing.

    Raises:
        JudgeError, MissingDependency, ConfigError: see `load_judge`.
    """
    if not makes_calls(judge, options):
        return [f"{judge}: makes no calls. Nothing was sent."]
    lines = []
    for member in _loaded(judge, options):
        if not isinstance(member, ModelJudge):
            lines.append(f"{member.name}: makes no calls. Nothing was sent.")
            continue
        worst = member.least_worst([SAMPLE], [ANSWER])
        most = (
            "at a price that is unknown"
            if worst is None
            else f"US dollars: at most {2 * worst:.2f}"
        )
        lines.append(
            f"{member.name}: 2 calls, and a tiny one where it is to be found out whether the server takes "
            f"schemas; {most}. Nothing was sent."
        )
    return lines


def _loaded(judge: str, options: Mapping[str, Any]) -> Sequence[Judge]:
    loaded = load_judge(judge, **{k: v for k, v in options.items() if v is not None})
    return loaded.members if isinstance(loaded, PanelJudge) else (loaded,)


async def preflight(judge: str, **options: Any) -> Preflight:
    """Ask a judge for the verdict on a small example; for one that asks a model, twice.

    Costs two calls at most, and no verdict is stored. Options that are None are left out.

    A verdict that is not the expected one is a problem: the example leaves no doubt, and a judge that errs
    on it errs on more.

    Raises:
        JudgeError, MissingDependency, ConfigError: see `load_judge`; JudgeError also where a budget has no
            room for the two calls.
    """
    members = _loaded(judge, options)
    for member in members:
        worst = member.least_worst([SAMPLE], [ANSWER]) if isinstance(member, ModelJudge) else None
        budget = options.get("budget_usd")
        if worst is not None and budget is not None and budget < 2 * worst:
            raise JudgeError(
                f"budget_usd is {budget:g}, and the two calls to {member.name} may cost {2 * worst:.4f} in "
                "the worst case; give more"
            )
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
    if isinstance(judge, RewardJudge) and score.reward is not None:
        return Preflight(
            True, (f"{judge.name}: ready ({judge.rubric_version}); rewards alone, makes no calls",)
        )
    if score.verdict is None:
        failure = score.failure
        told = "no verdict" if failure is None else f"{failure.kind}: {failure.detail}"
        return Preflight(False, (f"{judge.name}: {told}",))
    wrong = _unexpected(score.verdict.labels)
    return Preflight(
        not wrong, (f"{judge.name}: ready ({judge.rubric_version}); makes no calls", *wrong)
    )


def _verdict(labels: Labels) -> str:
    yes_no = "yes" if labels.has_intended_solution else "no"
    return f"verdict: focus {labels.focus}, intended solution {yes_no} (expected: intended, yes)"


def _unexpected(labels: Labels) -> list[str]:
    if labels.focus == "intended" and labels.has_intended_solution:
        return []
    return [
        f"problem: the {_verdict(labels)} is wrong on an example that leaves no doubt; see with `xyreward "
        "judge compare` what else it gets wrong before you use it"
    ]


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
            lines.append(_verdict(read.labels))
            wrong = _unexpected(read.labels)
            ok = not wrong
            lines += wrong
    if found.schema is not None:
        lines.append(
            f"form of replies: {found.schema}; model as served: {found.model or 'not named'}"
        )
    if found.replies:
        estimate = rubric.estimate_tokens(call.prefix)
        counted = f"about {estimate} tokens (an offline estimate; the server does not count them)"
        if found.prefix_tokens is not None:
            counted = f"{found.prefix_tokens} tokens (estimated offline: {estimate})"
        cached = "not reported" if found.cache_read_tokens is None else f"{found.cache_read_tokens}"
        lines.append(
            f"shared prefix: {counted}; from the prompt cache in the second call: {cached}"
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
