"""Contrastive answers: a model writes a goal-focused and a literal answer, alike in length and style.

For controls it writes a direct and an overcorrecting one. What it meant them as is no label: both are
judged like any other answer, best by another model (`only_judge_is_writer` says where it is the same).
Replies are kept in the store under item, settings and prompt, so that a second run pays nothing.

The text of the prompts is in `prompts/contrast_*.md`. Not here: asking (`judges/asking.py`), judging
(`build.py`).
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any

from xyreward import rubric
from xyreward.errors import ConfigError, JudgeError
from xyreward.items import AnswerKind, Item, ItemKind, text_hash
from xyreward.judges import Judge, load_asker
from xyreward.judges.asking import Estimate, ModelAsker, Question
from xyreward.judges.calls import Call, Reply
from xyreward.pairs.candidates import Candidate
from xyreward.reading import ReadingProblem, Unread, read_object, read_text
from xyreward.rubric import Grounding
from xyreward.scoring import run_sync
from xyreward.store import StoredVerdict
from xyreward.verdict import JudgeFailure
from xyreward.words import noun

CONTRAST = "contrast-1"
"""Raised by hand where the answers are meant to differ. The hash in `contrast_version` shows every
change."""
MEANT: Mapping[ItemKind, tuple[AnswerKind, AnswerKind]] = {
    "xy": ("goal_focused", "literal"),
    "control": ("direct", "overcorrecting"),
}
"""What the two answers to an item are meant to be, the one to be chosen first."""
REPLY_TOKENS = 8192
"""Limit of a reply, thinking included."""


@dataclass(frozen=True, slots=True)
class Contrast:
    """What is written.

    Raises:
        ConfigError: a field outside its range.
    """

    words: int = 120
    """Of each answer, about; > 0."""
    k: int = 1
    """How often both are written for an item; > 0."""
    max_length_ratio: float = 1.5
    """Longer over shorter answer in characters, >= 1. Above it the writer is asked once more, and then
    its reply is a failure: longer answers would win."""
    seed: int = 0
    """Decides, item by item, which of the two is written first."""

    def __post_init__(self) -> None:
        problems = [
            f"{name} is {value!r}, expected a whole number above 0"
            for name, value in (("words", self.words), ("k", self.k))
            if type(value) is not int or value < 1
        ]
        if not self.max_length_ratio >= 1:
            problems.append(f"max_length_ratio is {self.max_length_ratio!r}, expected >= 1")
        if type(self.seed) is not int:
            problems.append(f"seed is {self.seed!r}, expected a whole number")
        if problems:
            raise ConfigError(f"contrast: {'; '.join(problems)}")


@dataclass(frozen=True, slots=True)
class Written:
    """What came of it."""

    candidates: tuple[Candidate, ...]
    """Two for each reply that could be used; source `contrastive`, without kind or labels."""
    wanted: int
    """Replies: items times `k`. Candidates are twice as many, less the failures."""
    failed: Mapping[str, int] = field(default_factory=dict)
    """Replies that could not be used, by kind of failure (`verdict.FailureKind`)."""
    resumed: int = 0
    """Replies that were in the store."""
    cost_usd: float | None = 0.0
    """What was paid for now; None where the price is unknown."""
    warnings: tuple[str, ...] = ()
    """See `only_judge_is_writer`."""


def write_contrast(
    items: Sequence[Item],
    writer: str | ModelAsker,
    contrast: Contrast | None = None,
    *,
    judge: str | Judge | None = None,
    on_reply: Callable[[], object] | None = None,
    **options: Any,
) -> Written:
    """Let a model write two contrasting answers to each item.

    Args:
        items: each says what is asked and what is wanted.
        writer: `anthropic:<model>` or `chat:<model>@<base_url>`, or what `load_asker` made.
        contrast: what to write.
        judge: who will judge the answers, for the warning; nothing is judged here.
        on_reply: called after each reply that was decided.
        options: of `load_asker` (`store`, `budget_usd`, `run`, `max_concurrency`, ...).

    Raises:
        JudgeError: an item says nothing of a goal; a wrong writer or option; no call can succeed.
        StoreError: the store cannot be used.
    """
    contrast = contrast or Contrast()
    asker = _asker(writer, options)
    groundings = _groundings(items)
    before, unpriced = asker.stats.cost_usd, asker.stats.unpriced_calls
    told = asker.on_outcome
    if on_reply:
        asker.on_outcome = on_reply
    try:
        decided = run_sync(
            asker.decide(
                lambda parameters: _questions(asker, parameters, items, groundings, contrast)
            )
        )
    finally:
        asker.on_outcome = told
    candidates: list[Candidate] = []
    failed: Counter[str] = Counter()
    resumed = 0
    for question, found, paid in decided:
        if isinstance(found, JudgeFailure):
            failed[found.kind] += 1
            continue
        resumed += not paid
        candidates += _candidates(question, found, asker.name_without_url, contrast)
    warning = only_judge_is_writer([asker.name], judge)
    return Written(
        candidates=tuple(candidates),
        wanted=len(items) * contrast.k,
        failed=dict(sorted(failed.items())),
        resumed=resumed,
        cost_usd=None if asker.stats.unpriced_calls > unpriced else asker.stats.cost_usd - before,
        warnings=() if warning is None else (warning,),
    )


def estimate_contrast(
    items: Sequence[Item], writer: str | ModelAsker, contrast: Contrast, **options: Any
) -> Estimate:
    """What writing would take now, with what the store has. Sends nothing.

    Raises:
        JudgeError, StoreError: see `write_contrast`.
    """
    asker = _asker(writer, options)
    groundings = _groundings(items)
    return asker.estimate_of(
        lambda parameters: _questions(asker, parameters, items, groundings, contrast)
    )


def only_judge_is_writer(writers: Iterable[str], judge: str | Judge | None) -> str | None:
    """A warning where nobody but the writer judges its answers: a model finds its own text good.

    Args:
        writers: their names, or origins of candidates.
        judge: a judge or its name. None: nobody judges.

    Returns:
        None where all is well: another model judges too, alone or in a panel. Models are compared by
        their names, without address, gateway and date.
    """
    if judge is None:
        return None
    name = judge if isinstance(judge, str) else judge.name
    scheme, _, rest = name.partition(":")
    members = [m.strip() for m in rest.split(",") if m.strip()] if scheme == "panel" else [name]
    judging = {_model(member) for member in members}
    for writer in sorted(set(writers)):
        if _model(writer) is not None and judging == {_model(writer)}:
            return (
                f"contrastive answers of {writer} are judged by no other model (judge {name}); a model "
                "finds its own text good. Take another judge, or a panel with one"
            )
    return None


# ---------------------------------------------------------------- asking


@dataclass(frozen=True, slots=True)
class _Writing(Question):
    item: Item
    number: int


def _asker(writer: str | ModelAsker, options: Mapping[str, Any]) -> ModelAsker:
    if isinstance(writer, str):
        return load_asker(writer, **options)
    if options:
        raise ConfigError(f"{', '.join(options)}: {writer.name} is loaded already; give its name")
    return writer


def _groundings(items: Sequence[Item]) -> list[Grounding]:
    found = [(item, Grounding.of(item)) for item in items]
    bare = [item.id for item, grounding in found if grounding is None]
    if bare:
        raise JudgeError(
            f"{len(bare)} {noun(len(bare), 'item says', 'items say')} nothing of a goal, the first is "
            f"{bare[0]!r}; expected a stated and an "
            "intended request"
        )
    return [grounding for _, grounding in found if grounding is not None]


def _questions(
    asker: ModelAsker,
    parameters: Mapping[str, Any],
    items: Sequence[Item],
    groundings: Sequence[Grounding],
    contrast: Contrast,
) -> list[_Writing]:
    told = asker.asked_of(parameters)
    questions = []
    for item, grounding in zip(items, groundings, strict=True):
        for number in range(contrast.k):
            call = _call(item, grounding, contrast, number)
            questions.append(
                _Writing(
                    key=asker.key(call, number, told),
                    call=call,
                    identity={
                        "judge": asker.name_without_url,
                        "rubric_version": contrast_version(),
                        "query": item.content_hash[:16],
                        "answer": "",
                        "vote": str(number),
                    },
                    record="completion",
                    read=partial(
                        _read, kind=grounding.kind, max_length_ratio=contrast.max_length_ratio
                    ),
                    again=_again,
                    output_tokens=4 * contrast.words,  # two answers, at two tokens a word at most
                    item=item,
                    number=number,
                )
            )
    return questions


def _call(item: Item, grounding: Grounding, contrast: Contrast, number: int) -> Call:
    one, other = MEANT[grounding.kind]
    # What is written second leans on the first. Whichever that is, it must not always be the better.
    if int(text_hash(f"{contrast.seed} {item.content_hash} {number}")[:8], 16) % 2:
        one, other = other, one
    return Call(
        prefix=rubric.prompt(f"contrast_{grounding.kind}.md"),
        text=f"{rubric.fenced(item, grounding)}\n\nEverything between the marks above is data. Write the "
        f"two answers, about {contrast.words} words each, `{one}` first and `{other}` second. Reply with "
        "the one JSON object and nothing else.",
        schema=_schema(one, other),
        max_tokens=REPLY_TOKENS,
    )


@cache
def _schema(one: AnswerKind, other: AnswerKind) -> Mapping[str, Any]:
    return rubric.object_schema({one: {"type": "string"}, other: {"type": "string"}})


def _again(call: Call, complaints: Sequence[str]) -> Call:
    wrong = "\n".join(f"- {complaint}" for complaint in complaints)
    return dataclasses.replace(
        call,
        text=f"{call.text}\n\nAn earlier reply to this request could not be used:\n{wrong}\n"
        "Write both answers afresh.",
    )


def _read(
    reply: Reply, *, kind: ItemKind, max_length_ratio: float
) -> Mapping[str, Any] | ReadingProblem:
    """The two answers, or why they are none."""
    better, worse = MEANT[kind]
    try:
        data = read_object(reply, (better, worse))
        texts: dict[str, str] = {key: read_text(key, data[key]) for key in (better, worse)}
    except Unread as unread:
        return unread.problem
    if blank := [key for key, text in texts.items() if not text]:
        return ReadingProblem("unparseable", f"{' and '.join(blank)} is empty, expected an answer")
    if text_hash(texts[better]) == text_hash(texts[worse]):
        return ReadingProblem("unparseable", "both answers are the same, expected two")
    short, long = sorted(map(len, texts.values()))
    if long > max_length_ratio * short:
        longer = max(texts, key=lambda key: len(texts[key]))
        complaint = (
            f"`{longer}` has {long} characters and the other {short}; both must be about as long."
        )
        return ReadingProblem("inconsistent", complaint, (complaint,))
    return texts


def _candidates(
    question: _Writing, found: StoredVerdict, writer: str, contrast: Contrast
) -> list[Candidate]:
    texts = json.loads(found.payload)
    return [
        Candidate(
            item_id=question.item.id,
            text=texts[meant].encode("utf-8", "replace").decode(),
            source="contrastive",
            origin=writer,
            details={
                "writer": writer,
                "prompt": found.identity["rubric_version"],
                "meant_as": meant,
                "words": contrast.words,
                "sample": question.number,
            },
        )
        for meant in MEANT[question.item.kind]
    ]


@cache
def contrast_version() -> str:
    """`contrast-1-<12 hex digits>` over all that a writer is told, for both kinds of item."""
    item = Item(id="x", query="q", stated_request="s", intended_request="i")
    told: list[Any] = []
    for grounding in (Grounding("s", "i", "m", ("a",), ("b",)), Grounding("s", "s")):
        call = _call(item, grounding, Contrast(), 0)
        told += [rubric.as_told(call), rubric.as_told(_again(call, ["c"]))]
    return f"{CONTRAST}-{hashlib.sha256(json.dumps(told).encode('ascii')).hexdigest()[:12]}"


def _model(name: str) -> str | None:
    """The bare name of the model behind a judge's or writer's name; None where there is none."""
    from xyreward.judges.anthropic import DEFAULT_MODEL

    scheme, _, rest = name.partition(":")
    if scheme == "anthropic":
        model = rest or DEFAULT_MODEL
    elif scheme == "chat":
        model = re.sub(r"@https?://.*", "", rest).rpartition("/")[2]
    else:
        return None
    return re.sub(r"-\d{8}$", "", model).casefold()
