"""Who is evaluated, and how it answers: a model in this process, one behind an API, or a file of answers.

    runs/tuned, a hub name, embedded:...       transformers, in this process (`policy.py`)
    chat:<model>@<base_url>                    vLLM, any OpenAI-compatible server
    anthropic:<model>                          the Messages API
    answers:<file>                             answers that are there already (`pairs/answers.py`)

The names are those of `xyreward pairs`. What an API says is asked for by way of `judges/asking.py`, like a
verdict: stored, within a budget, retried, paid for once.

Not here: what is measured of the answers (`evaluation.py`).
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial as partially
from typing import Any, Literal, get_args

from xyreward.errors import ConfigError, DataError
from xyreward.home import expanded
from xyreward.items import Item
from xyreward.judges import load_asker
from xyreward.judges.asking import Estimate, ModelAsker
from xyreward.pairs.answers import none_belongs, read_answers
from xyreward.pairs.candidates import Candidate
from xyreward.pairs.sampling import (
    REMOTE,
    Completion,
    Sampling,
    answer_seed,
    complete,
    estimate_completions,
)
from xyreward.partial import Through, directly
from xyreward.policy import Answer, Policy
from xyreward.prices import without_url
from xyreward.scoring import run_sync
from xyreward.verdict import JudgeFailure
from xyreward.words import noun, whole

FILE = "answers:"
"""Beginning of the name of a policy that is a file of answers."""

Place = Literal["here", "api", "file"]

EvaluationPart = Literal["writing", "preference", "picking"]
PARTS: tuple[EvaluationPart, ...] = get_args(EvaluationPart)
PARTS_OF: Mapping[Place, tuple[EvaluationPart, ...]] = {
    "here": PARTS,
    "api": ("writing", "picking"),
    "file": ("writing",),
}
"""What can be measured of a policy, by where it answers."""

LETTER_TOKENS = 8
"""Of a reply that is one letter, for bills and rates."""

_LETTER = re.compile(r"[\s*_`\"'(\[]*(?:answer\s*:?\s*)?[\s*_`\"'(\[]*([AB])[\s*_`\"').\]]*", re.I)


def place_of(name: str) -> Place:
    """Where a policy of this name answers."""
    if name.startswith(REMOTE):
        return "api"
    return "file" if name.startswith(FILE) else "here"


@dataclass(frozen=True, slots=True)
class How:
    """How answers are written.

    Raises:
        ConfigError: a field outside its range.
    """

    answers_per_item: int = 1
    temperature: float | None = None
    """> 0. None: greedy. A Messages API takes none, and samples at its own. Of an API its picks are drawn
    at it, too."""
    max_new_tokens: int = 192
    """An answer is cut there, and marked `truncated`."""
    batch_size: int = 16
    """Answers that a policy in this process writes at a time."""
    seed: int = 0
    """Of what is drawn; nothing is where it is greedy."""

    def __post_init__(self) -> None:
        self.sampling  # noqa: B018  # its checks are ours
        if type(self.batch_size) is not int or self.batch_size < 1:
            raise ConfigError(f"batch_size is {self.batch_size!r}, expected a whole number above 0")

    @property
    def sampling(self) -> Sampling:
        """The same, as `complete` takes it."""
        return Sampling(
            self.answers_per_item, self.temperature, 1.0, self.max_new_tokens, self.seed
        )


@dataclass(frozen=True, slots=True)
class Written:
    """One answer to an item, or why there is none."""

    text: str | None
    tokens: int | None = None
    """None where nobody counted."""
    truncated: bool | None = None
    """None where nobody knows."""
    failure: Mapping[str, Any] | None = None
    """kind: `policy_` and a `verdict.FailureKind`, or `policy_missing`; detail. None: there is a text."""

    def __post_init__(self) -> None:
        if (
            self.text is not None
        ):  # a tokenizer leaves half a surrogate pair, which no file can hold
            object.__setattr__(self, "text", whole(self.text))


class RemotePolicy:
    """A policy behind an API. See `judges/asking.py` for store, budget and bill."""

    def __init__(self, asker: ModelAsker) -> None:
        self.asker = asker

    @classmethod
    def load(cls, name: str, temperature: float | None = None, **options: Any) -> RemotePolicy:
        """One that was asked nothing yet.

        Args:
            name: `chat:<model>@<base_url>` or `anthropic:<model>`.
            temperature: of its answers, see `How`.
            options: of `load_asker`: `store`, `budget_usd`, `run`, `max_concurrency`, ...

        Raises:
            ConfigError: a temperature that the policy does not take, or an option that is set here.
            JudgeError: an unknown or impossible name or option.
        """
        if clashing := sorted({"schema", "temperature", "top_p", "max_tokens"} & options.keys()):
            raise ConfigError(
                f"{', '.join(clashing)}: no option of a policy that is evaluated; see temperature and "
                "max_new_tokens of the evaluation"
            )
        chat = name.startswith("chat:")
        if not chat and temperature not in (None, 1.0):
            raise ConfigError(
                f"temperature is {temperature}, but {name} takes none and samples at 1; leave it out"
            )
        if chat:
            options["temperature"] = 0.0 if temperature is None else temperature
        return cls(load_asker(name, schema="plain", **options))

    @property
    def name(self) -> str:
        """Without the server's address."""
        return self.asker.name_without_url

    @property
    def is_greedy(self) -> bool:
        """Whether it is asked for its likeliest answer: temperature 0."""
        return self.asker.endpoint.possible_parameters[0].get("temperature") == 0

    def estimate(self, items: Sequence[Item], how: How) -> Estimate:
        """What answering these would take now. Sends nothing."""
        return estimate_completions(self.asker, items, how.sampling)

    def estimate_letters(self, questions: Sequence[Item], how: How) -> Estimate:
        """What replying to questions of `picking` would take now. Sends nothing."""
        return estimate_completions(self.asker, questions, _once(how), LETTER_TOKENS)


@dataclass(frozen=True)
class FilePolicy:
    """Answers of one model to items, from a file."""

    name: str
    """Who wrote them, as the file says, else the file's name without its ending."""
    answers: Mapping[str, tuple[Candidate, ...]]
    """Item id -> its answers, in the file's order."""
    fingerprint: str
    """12 hex digits of the file's sha256."""
    missing: tuple[str, ...] = ()
    """Ids of the items that it has no answer to."""
    notes: tuple[str, ...] = field(default=(), compare=False)

    @classmethod
    def load(
        cls,
        name: str,
        items: Sequence[Item],
        *,
        origin: str | None = None,
        columns: Mapping[str, str] | None = None,
        allow_missing: bool = False,
        section: str | None = None,
    ) -> FilePolicy:
        """Read `answers:<file>`, as `pairs.answers.read_answers` does; rows of other items are left out.

        Args:
            name: of the policy.
            items: what is evaluated.
            origin: whose answers, where the file has those of several.
            columns: see `read_answers`.
            allow_missing: items without an answer count as failures. False: they are an error.
            section: see `read_answers`.

        Raises:
            ConfigError: answers of several models and no `origin`, or of another than that.
            DataError: the file cannot be read, rows cannot be used, or items have no answer.
        """
        path = expanded(name.removeprefix(FILE))
        found = read_answers(
            path,
            items,
            columns=columns,
            source="cross_model",
            otherwise_of=path.stem,
            skip_unknown=True,
            keep_truncated=True,
            section=section,
        )
        if problems := none_belongs(found, path, "the evaluation", items):
            raise DataError(problems)
        origins = sorted({candidate.origin for candidate in found.candidates})
        if len(origins) > 1 and origin is None:
            raise ConfigError(
                f"{path}: has answers of {len(origins)} models ({', '.join(origins)[:200]}), expected one; "
                "name it with policy_options.origin"
            )
        if origin is not None and origin not in origins:
            raise ConfigError(
                f"{path}: has no answer of {origin!r}, only of {', '.join(origins)[:200] or 'nobody'}"
            )
        chosen = [c for c in found.candidates if origin in (None, c.origin)]
        answers: dict[str, list[Candidate]] = {}
        for candidate in chosen:
            answers.setdefault(candidate.item_id, []).append(candidate)
        missing = [item.id for item in items if item.id not in answers]
        if missing and not (allow_missing and answers):
            raise DataError(
                [
                    f"{path}: {len(missing)} of {len(items)} items have no answer, the first is "
                    f"{missing[0]!r:.80}; add them"
                    + (
                        ", at least one: allow_missing leaves out some, not all"
                        if allow_missing
                        else ", or set policy_options.allow_missing to true, and they count as failures"
                    )
                ]
            )
        notes = []
        if found.unknown:
            notes.append(
                f"{found.unknown} {noun(found.unknown, 'answer')} of the file to other items left out"
            )
        if missing:
            notes.append(f"{len(missing)} of {len(items)} items have no answer in the file")
        return cls(
            name=origin or (origins[0] if origins else path.stem),
            answers={item_id: tuple(several) for item_id, several in answers.items()},
            fingerprint=hashlib.sha256(path.read_bytes()).hexdigest()[:12],
            missing=tuple(missing),
            notes=tuple(notes),
        )


Evaluated = Policy | RemotePolicy | FilePolicy
"""Whatever can be evaluated."""


def described_how(policy: Evaluated, how: How) -> str:
    """How its answers come about, in a few words for a report."""
    k = how.answers_per_item
    if isinstance(policy, FilePolicy):
        most = max(map(len, policy.answers.values()), default=0)
        return f"from a file, {'up to ' * (most > 1)}{most} per item"
    if how.temperature is not None:
        return f"{k} per item, temperature {how.temperature:g}"
    if isinstance(policy, RemotePolicy) and not policy.is_greedy:
        return f"{k} per item, sampled at the API's own temperature: it takes none"
    return f"{k} per item, greedy"


def described_picks(policy: Evaluated, how: How) -> str:
    """How its picks come about, in a few words for a report; empty where they are its likeliest ones.

    Those of a policy in this process are: it writes nothing, and its logits are read at no temperature.
    """
    if not isinstance(policy, RemotePolicy) or policy.is_greedy:
        return ""
    drawn = (
        "the API's own temperature"
        if how.temperature is None
        else f"temperature {how.temperature:g}"
    )
    return f"one reply in each order, sampled at {drawn}"


def check_how(name: str, how: How) -> None:
    """Refuse several answers that would be one and the same.

    Raises:
        ConfigError: greedy, and more than one answer per item; or several, or a temperature, for a file,
            which has its own.
    """
    in_file = place_of(name) == "file"
    if in_file and how.temperature is not None:
        raise ConfigError(
            f"temperature is {how.temperature:g}, but the answers of {name} are there already; leave it out"
        )
    if how.answers_per_item == 1:
        return
    if in_file:
        raise ConfigError(
            f"answers_per_item is {how.answers_per_item}, but {name} has as many as it has; leave it out"
        )
    if how.temperature is None and not name.startswith("anthropic:"):
        raise ConfigError(
            f"answers_per_item is {how.answers_per_item}, but greedy answers to an item are all the same; "
            "set temperature, such as 0.7"
        )


def check_conditions(
    policy: Evaluated | str, parts: Sequence[EvaluationPart], *, oracle: bool = False
) -> None:
    """Refuse what a policy, or one of this name, cannot be measured by.

    Raises:
        ConfigError: says which parts there are for it.
    """
    if isinstance(policy, str):
        place, name = place_of(policy), without_url(policy)
    else:
        remote = isinstance(policy, RemotePolicy)
        place = "api" if remote else "file" if isinstance(policy, FilePolicy) else "here"
        name = policy.name
    possible = PARTS_OF[place]
    if impossible := [part for part in parts if part not in possible]:
        why = {
            "preference": "nobody tells how likely it finds a given text",
            "picking": "a file of answers answers no other question",
        }
        raise ConfigError(
            f"evaluation.parts: {', '.join(impossible)} cannot be measured of {name!r:.80} "
            f"({'; '.join(why[part] for part in impossible)}); expected some of {', '.join(possible)}"
        )
    if oracle and place == "file":
        raise ConfigError(
            f"evaluation.oracle: nobody can tell the author of {name!r:.80} the goal; leave it out"
        )


def write(
    policy: Evaluated,
    items: Sequence[Item],
    how: How,
    *,
    progress: Callable[[int], object] | None = None,
    through: Through[Answer] = directly,
) -> list[list[Written]]:
    """Answers of a policy.

    Args:
        policy: who answers.
        items: N, whose messages are answered.
        how: a file's answers are as they are.
        progress: told how many more answers are there.
        through: see `partial.py`; for policies in this process. What an API said is in the store.

    Returns:
        N lists, none empty.

    Raises:
        JudgeError, StoreError: no call can succeed, or the store cannot be used.
        ConfigError: a temperature that the policy does not take.
    """
    if isinstance(policy, FilePolicy):
        return [_of_file(policy, item) for item in items]
    k = how.answers_per_item
    if isinstance(policy, RemotePolicy):
        replies = _asked(policy, items, how.sampling, progress)
        found = [_of_reply(reply) for reply in replies]
    elif how.temperature is None:
        answers = policy.answer(
            [item.messages for item in items],
            max_new_tokens=how.max_new_tokens,
            batch_size=how.batch_size,
            progress=progress,
            through=through,
        )
        return [[Written(a.text, a.tokens, a.truncated)] * k for a in answers]
    else:
        found = _sampled(policy, items, how, progress, through)
    return [found[i * k : (i + 1) * k] for i in range(len(items))]


def replies_in_letters(
    policy: RemotePolicy,
    questions: Sequence[Item],
    how: How,
    *,
    progress: Callable[[int], object] | None = None,
) -> list[str]:
    """What an API replies where one letter is asked for.

    Returns:
        N of: `A`, `B`, or a kind of failure: `unparseable` (no letter, or more than a letter), `truncated`
        (cut off, so that the rest is unknown), or what kept the reply from coming.

    Raises:
        JudgeError, StoreError: no call can succeed, or the store cannot be used.
    """
    replies = _asked(policy, questions, _once(how), progress, LETTER_TOKENS)
    found: list[str] = []
    for reply in replies:
        if isinstance(reply, JudgeFailure):
            found.append(reply.kind)
        elif reply.truncated:
            found.append("truncated")
        else:
            found.append(read_letter(reply.text) or "unparseable")
    return found


def read_letter(text: str) -> Literal["A", "B"] | None:
    """The letter that a reply is, marks and the word Answer aside; None where it says anything else.

    A sentence that has a letter in it is no choice: "A is shorter, but" is not one of A.
    """
    found = _LETTER.fullmatch(text)
    if found is None:
        return None
    return "A" if found[1] in "aA" else "B"


def _once(how: How) -> Sampling:
    return Sampling(1, how.temperature, 1.0, how.max_new_tokens, how.seed)


def _asked(
    policy: RemotePolicy,
    items: Sequence[Item],
    sampling: Sampling,
    progress: Callable[[int], object] | None,
    typical: int | None = None,
) -> list[Completion | JudgeFailure]:
    asker, before = policy.asker, policy.asker.on_outcome
    if progress:
        told = progress
        progress(0)
        asker.on_outcome = lambda: told(1)
    try:
        return run_sync(complete(asker, items, sampling, typical))
    finally:
        asker.on_outcome = before


def _of_reply(reply: Completion | JudgeFailure) -> Written:
    if isinstance(reply, JudgeFailure):
        return Written(None, failure={"kind": f"policy_{reply.kind}", "detail": reply.detail})
    return Written(reply.text, reply.tokens, reply.truncated)


def _of_file(policy: FilePolicy, item: Item) -> list[Written]:
    if item.id not in policy.answers:
        detail = "the file has no answer to it"
        return [Written(None, failure={"kind": "policy_missing", "detail": detail})]
    found = []
    for candidate in policy.answers[item.id]:
        tokens, cut = (candidate.details.get(name) for name in ("tokens", "truncated"))
        found.append(
            Written(
                candidate.text,
                tokens if type(tokens) is int else None,
                cut if isinstance(cut, bool) else None,
            )
        )
    return found


def _sampled(
    policy: Policy,
    items: Sequence[Item],
    how: How,
    progress: Callable[[int], object] | None,
    through: Through[Answer],
) -> list[Written]:
    """Item by item, in batches of whole items."""
    assert how.temperature is not None
    k, found = how.answers_per_item, []
    group = max(1, how.batch_size // k)
    if progress:
        progress(0)

    def drawn(batch: Sequence[Item]) -> list[Answer]:
        answers = policy.sample(
            [item.messages for item in batch],
            seeds=[[answer_seed(how.seed, item, n) for n in range(k)] for item in batch],
            max_new_tokens=how.max_new_tokens,
            temperature=how.temperature or 1.0,
        )
        return [answer for several in answers for answer in several]

    for start in range(0, len(items), group):
        batch = items[start : start + group]
        rows = range(start * k, (start + len(batch)) * k)
        found += through(rows, partially(drawn, batch))
        if progress:
            progress(len(rows))
    return [Written(a.text, a.tokens, a.truncated) for a in found]
