"""Judges: an item and an answer go in, a Verdict or a JudgeFailure comes out.

`load_judge(name)` knows:

    local                     the offline judge of this package (`judges/local.py`): no key, a stand-in
    anthropic:<model>         Claude, or what else speaks the Messages API; `anthropic` alone is the
                              current Sonnet
    chat:<model>@<base_url>   any OpenAI-compatible server: vLLM, SGLang, llama.cpp
    panel:<judge>,<judge>     several look at every answer, the majority decides
    scripted:<file>           verdicts read from a JSONL file: for tests and replays
    reward_model:<folder>     what `recipes/reward_model.py` trained: a reward in one pass, and no verdict

A judge is any object with the members of `Judge`; pass one in place of a name to use your own.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypedDict, Unpack, cast, runtime_checkable

from xyreward.errors import ConfigError, JudgeError
from xyreward.items import Item
from xyreward.reward import Reward
from xyreward.verdict import JudgeFailure, Verdict

if TYPE_CHECKING:
    from xyreward.judges.asking import ModelAsker
    from xyreward.judges.batches import BatchLimits
    from xyreward.prices import Prices
    from xyreward.store import VerdictStore


@runtime_checkable
class Judge(Protocol):
    """What score(), evaluation and recipes need of a judge.

    A judge may also have `check(items)`, which raises JudgeError for items that it cannot judge. It is
    called before answers are generated, so that an hour of generation is not thrown away. And it may
    have `async ground(items)`, which infers what bare queries are after (`ModelJudge.ground`).
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


@runtime_checkable
class RewardJudge(Judge, Protocol):
    """A judge that knows how good an answer is and not why: it gives rewards and no labels.

    Its `judge()` raises JudgeError: what needs verdicts (metrics, evaluations, pairs) needs another judge.
    """

    reads_query_alone: bool
    """It needs nothing of an item but its query, so that a bare query will do."""

    def check_reward(self, reward: Reward) -> None:
        """Make sure that it knows this reward.

        Raises:
            JudgeError: it was made for another.
        """
        ...

    async def rewards(
        self, items: Sequence[Item], answers: Sequence[str], reward: Reward
    ) -> list[float | JudgeFailure]:
        """The reward of answers[i] to items[i], in [0, 1], higher is better; a failure in its place.

        Raises:
            JudgeError: see `check_reward`.
        """
        ...


def check_gives_labels(
    judge: Judge, why: str = "metrics, evaluations, pairs and agreement need labels"
) -> None:
    """Make sure that a judge gives verdicts and not only rewards.

    Args:
        judge: any.
        why: what needs labels, in words.

    Raises:
        JudgeError: it does not.
    """
    if isinstance(judge, RewardJudge):
        raise JudgeError(
            f"judge {judge.name!r} is a reward model: it gives a reward and no labels, so it is for score() "
            f"and as reward.judge of recipes/grpo.py; {why}. Take a judge that gives them{_distilled(judge)}"
        )


def _distilled(judge: RewardJudge) -> str:
    # One of a user's own need not have been distilled from any.
    found = getattr(judge, "distilled", None)
    return "" if found is None else f", as {found.judge!r}, for which it was trained"


class JudgeOptions(TypedDict, total=False):
    """What `load_judge` takes beside the name of a judge that asks a model."""

    store: str | os.PathLike[str] | VerdictStore | None
    """Where verdicts are kept. None: XYREWARD_STORE, or a file in the user's cache folder."""
    votes: int
    """How many times each answer is judged; see `judges/votes.py`. Default 1."""
    budget_usd: float | None
    """Hard cap on what the run may cost. Needs a model whose price is known."""
    run: str | None
    """Whose bill it is; see `ModelJudge`."""
    prices: Prices | None
    batches: bool
    """Ask through Message Batches: half the price, up to a day. Only anthropic:<model> has them."""
    max_wait_h: float
    """Hours for which one batch is waited for; see `BatchLimits.max_wait_s`. Only with `batches`."""

    # Limits; see `dispatch.Limits` for units and defaults.
    max_concurrency: int
    start_concurrency: int
    requests_per_minute: float | None
    tokens_per_minute: float | None
    call_deadline_s: float
    attempt_timeout_s: float
    batch_deadline_s: float | None
    max_retry_after_s: float
    max_attempts: int
    processes: int

    # Of the endpoint; see `AnthropicEndpoint` and `ChatEndpoint`.
    max_tokens: int | None
    schema: Literal["auto", "json_schema", "plain"]
    effort: Literal["low", "medium", "high", "xhigh", "max"] | None
    thinking: Literal["adaptive", "disabled"] | None
    temperature: float | None
    base_url: str | None
    api_key: str | None


def load_judge(judge: str | Judge, **options: Unpack[JudgeOptions]) -> Judge:
    """The judge of this name, or the object itself where it is one already.

    Args:
        judge: a name as in this module's docstring, or a judge.
        options: only for judges that ask a model (`options_of` names them). A panel hands each member
            those that it takes; its members share one run, and so one budget.

    Raises:
        JudgeError: unknown name, unknown or impossible option, a scripted file that cannot be used.
        ConfigError: an impossible limit, or a malformed price file.
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
        if options:
            raise JudgeError(
                f"judge {judge.name!r} is loaded already, found {', '.join(options)}; give options with "
                "its name"
            )
        return judge
    scheme, _, rest = judge.partition(":")
    given = cast("Mapping[str, Any]", options)
    if judge == "local":
        from xyreward.judges.local import LocalJudge

        _check_options(judge, options)
        return LocalJudge()
    if scheme == "scripted" and rest:
        from xyreward.judges.scripted import ScriptedJudge

        _check_options(judge, options)
        return ScriptedJudge.from_file(rest)
    if scheme == "reward_model" and rest:
        from xyreward.judges.reward_model import RewardModelJudge

        _check_options(judge, options)
        return RewardModelJudge(rest)
    if judge == "anthropic" or (scheme in ("anthropic", "chat") and rest):
        _check_options(judge, options)
        return _model_judge(judge, given)
    if scheme == "panel" and rest:
        _check_options(judge, options)
        return _panel(rest, given)
    from xyreward.judges.transport import without_credentials

    raise JudgeError(
        f"judge {without_credentials(judge)!r} is not known; expected local, anthropic:<model>, "
        "chat:<model>@<base_url>, panel:<judge>,<judge>, reward_model:<folder> or scripted:<file>"
    )


_OF_ENDPOINTS = {
    "anthropic": frozenset({"max_tokens", "schema", "api_key", "effort", "thinking", "base_url"}),
    "chat": frozenset({"max_tokens", "schema", "api_key", "temperature"}),
}
OF_BATCHES = frozenset({"batches", "max_wait_h"})
"""Options of how questions travel; see `JudgeOptions`."""
_OF_JUDGE = frozenset({"store", "votes", "budget_usd", "run", "prices"})


def options_of(judge: str) -> frozenset[str]:
    """Names of the options that `load_judge` takes with this name; none where no model is asked."""
    from xyreward.dispatch import Limits

    scheme, _, rest = judge.partition(":")
    if scheme == "panel":
        return frozenset[str]().union(*map(options_of, _members(rest)))
    if scheme not in _OF_ENDPOINTS:
        return frozenset()
    batches = OF_BATCHES if scheme == "anthropic" else frozenset[str]()
    return _OF_ENDPOINTS[scheme] | _OF_JUDGE | set(Limits.__dataclass_fields__) | batches


def billed_to(judge: str, options: Mapping[str, Any], run: str) -> dict[str, Any]:
    """These options of a judge, with whose bill its calls go on, where it makes any and they do not say."""
    return {"run": run, **options} if "run" in options_of(judge) else dict(options)


def refuse_batches(options: Mapping[str, Any]) -> None:
    """Make sure that no message batches are asked for, where a training waits for each verdict.

    Raises:
        ConfigError: they are.
    """
    if options.get("batches"):
        raise ConfigError(
            "judge_options.batches: a message batch takes up to a day, and every step of a training would "
            "wait for one; leave it out"
        )


def joined_options(own: Mapping[str, Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """Options of one model with those for all. A budget of its own that is lower stays."""
    found = {**own, **options}
    budgets = [one["budget_usd"] for one in (own, options) if "budget_usd" in one]
    if len(budgets) > 1 and all(type(budget) in (int, float) for budget in budgets):
        found["budget_usd"] = min(budgets)
    return found


def names_in_store(judge: str) -> frozenset[str]:
    """A judge's name, as `load_judge` takes it -> as records may have it: no address, members of a panel."""
    from xyreward.judges.anthropic import DEFAULT_MODEL
    from xyreward.prices import without_url

    scheme, _, rest = judge.strip().partition(":")
    if scheme == "panel":
        return frozenset[str]().union(*map(names_in_store, _members(rest)))
    if judge == "anthropic":
        return frozenset({f"anthropic:{DEFAULT_MODEL}"})
    return frozenset({judge, without_url(judge)})


def makes_calls(judge: str, options: Mapping[str, Any]) -> bool:
    """Whether a judge of this name may ask a model. Loads none: of `local` that takes seconds.

    Raises:
        JudgeError: the judge takes none of these options.
    """
    if judge != "local" and not judge.startswith("reward_model:"):
        return True
    _check_options(judge, cast("JudgeOptions", options))
    return False


def _members(names: str) -> list[str]:
    return [name.strip() for name in names.split(",") if name.strip()]


def _panel(members: str, given: Mapping[str, Any]) -> Judge:
    from xyreward.judges.asking import new_run
    from xyreward.judges.panel import PanelJudge

    # One bill: a budget of 5 dollars is not 5 dollars for each member.
    run = given.get("run") or new_run("panel", given.get("budget_usd"), given.get("processes"))
    given = {**given, "run": run}
    loaded = []
    for name in _members(members):
        known = options_of(name)
        its: Any = {option: value for option, value in given.items() if option in known}
        loaded.append(load_judge(name, **its))
        check_gives_labels(loaded[-1])
    return PanelJudge(loaded)


def _model_judge(judge: str, given: Mapping[str, Any]) -> Judge:
    from xyreward.judges.model import ModelJudge

    arguments = _arguments(given, _OF_JUDGE)
    if (limits := _batch_limits(given)) is None:
        return ModelJudge(_endpoint(judge, given), **arguments)
    from xyreward.judges.batch_asking import BatchJudge

    return BatchJudge(_endpoint(judge, given), batch_limits=limits, **arguments)


def _arguments(given: Mapping[str, Any], known: frozenset[str]) -> dict[str, Any]:
    from xyreward.dispatch import Limits

    limits = set(Limits.__dataclass_fields__)
    return {
        "limits": Limits(**{name: value for name, value in given.items() if name in limits}),
        **{name: value for name, value in given.items() if name in known},
    }


def _batch_limits(given: Mapping[str, Any]) -> BatchLimits | None:
    """Those of message batches; None where questions go out one by one."""
    batches, hours = given.get("batches", False), given.get("max_wait_h")
    if not isinstance(batches, bool):  # "no" is true
        raise JudgeError(f"batches is {batches!r:.80}, expected True or False")
    if hours is not None and not batches:
        raise JudgeError(
            "max_wait_h is for message batches; give batches=True too, or leave it out"
        )
    if not batches:
        return None
    from xyreward.judges.batches import BatchLimits

    if hours is None:
        return BatchLimits()
    number = isinstance(hours, int | float) and not isinstance(hours, bool)
    if not number or not 0 < hours < 1e6:
        raise JudgeError(f"max_wait_h is {hours!r:.80}, expected hours above 0")
    return BatchLimits(max_wait_s=3600 * hours)


def _endpoint(name: str, given: Mapping[str, Any]) -> Any:
    scheme, _, rest = name.partition(":")
    of_its = {k: value for k, value in given.items() if k in _OF_ENDPOINTS[scheme]}
    if scheme == "anthropic":
        from xyreward.judges.anthropic import DEFAULT_MODEL, AnthropicEndpoint

        return AnthropicEndpoint(rest or DEFAULT_MODEL, **of_its)
    from xyreward.judges.chat import ChatEndpoint

    return ChatEndpoint.from_name(rest, top_p=given.get("top_p"), **of_its)


def load_asker(name: str, **options: Any) -> ModelAsker:
    """A model that is asked for other things than verdicts: to answer, to write (`pairs/`).

    Args:
        name: `anthropic:<model>` or `chat:<model>@<base_url>`.
        options: as `load_judge` takes them with this name, but for `votes`; and `top_p` for `chat:`.

    Raises:
        JudgeError: another kind of name, an unknown or impossible option.
        ConfigError: an impossible limit, or a malformed price file.
    """
    from xyreward.judges.asking import ModelAsker

    scheme, _, rest = name.partition(":")
    if scheme not in _OF_ENDPOINTS or (scheme == "chat" and not rest):
        raise JudgeError(
            f"{name!r} is no model that can be asked; expected anthropic:<model> or "
            "chat:<model>@<base_url>"
        )
    known = (options_of(name) | ({"top_p"} if scheme == "chat" else set())) - {"votes"}
    if strange := sorted(set(options) - known):
        raise JudgeError(
            f"{name!r} has no option {', '.join(strange)}; known are {', '.join(sorted(known))}"
        )
    arguments = _arguments(options, _OF_JUDGE - {"votes"})
    if (limits := _batch_limits(options)) is None:
        return ModelAsker(_endpoint(name, options), **arguments)
    from xyreward.judges.batch_asking import BatchAsker

    return BatchAsker(_endpoint(name, options), batch_limits=limits, **arguments)


def _check_options(judge: str, options: JudgeOptions) -> None:
    known = options_of(judge)
    if options and not known:
        raise JudgeError(
            f"judge {judge!r} takes no options, found {', '.join(options)}; they are for judges that "
            "ask a model"
        )
    for name in options:
        if name not in known:
            close = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {close[0]}?" if close else f"known are {', '.join(sorted(known))}"
            if others := [scheme for scheme in _OF_ENDPOINTS if name in options_of(scheme)]:
                hint = f"only judges of {others[0]}:... have it; leave {name} out"
            raise JudgeError(f"judge {judge!r} has no option {name!r}; {hint}")


def described(judge: Judge, items: Sequence[Item], answers: Sequence[str]) -> str:
    """One line on what judging these would take now: calls, tokens, dollars. Sends nothing."""
    estimate = getattr(judge, "estimate", None)
    found = None if estimate is None else estimate(items, answers)
    return f"{judge.name}: {found or 'makes no calls'}. Nothing was sent."
