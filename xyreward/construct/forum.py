"""What a model is asked about a thread, and how its notes become an item.

The model names what is asked, what the answers serve instead, and the answers that show it, each with a
quote. A quote that does not occur in the answer it names makes the whole reply useless: the model is asked
again, and where it insists, the thread has failed. No quote that no answer has reaches an item.

Not here: which threads are asked about (`prefilter.py`), in what order it all happens (`forum_job.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from xyreward import rubric
from xyreward.construct.quotes import not_a_quote
from xyreward.construct.stages import Dropped, Kept, Provenance, Stage, prompt, prompt_version
from xyreward.construct.threads import Post, Thread
from xyreward.fence import Part, fence
from xyreward.items import Item, Reference, same_words
from xyreward.judges.calls import Call, Reply
from xyreward.pairs.personal_data import mask
from xyreward.reading import (
    ReadingProblem,
    Unread,
    check_keys,
    read_bool,
    read_object,
    read_text,
)
from xyreward.words import is_empty

EXTRACT = "forum-extract-1"
"""Raised by hand where notes are meant to differ. The hash in the version shows every change."""
REPLY_TOKENS = 8192
"""Limit of a reply, thinking included."""
LONGEST_POST = 20_000
"""Characters of a question, its title included, or an answer; threads with a longer one are dropped."""

NAMES = "abcd"
"""What answers are called in a request: ids of a source are long and are easily confused."""

TEXTS = ("reading", "stated_request", "intended_request", "misconception")
LISTS = ("stated_solutions", "intended_solutions", "misconception_evidence")
KEYS = ("reading", "sufficient", *TEXTS[1:], *LISTS)


@dataclass(frozen=True, slots=True)
class Solution:
    """A way, and where an answer gives it."""

    answer: str
    """Id of the answer, in its source."""
    quote: str
    """Occurs in that answer."""
    text: str = ""
    """In the model's words. Empty for evidence, which is the quote alone."""


@dataclass(frozen=True, slots=True)
class Notes:
    """What a model wrote down of a thread."""

    thread: Thread
    kind: str
    """`xy` or `control`."""
    stated_request: str
    intended_request: str
    misconception: str
    stated_solutions: tuple[Solution, ...]
    intended_solutions: tuple[Solution, ...]
    evidence: tuple[Solution, ...]
    """Of the misconception."""


def without_blanks(thread: Thread) -> Thread:
    """The thread without answers in which a reader sees nothing: no model is asked about those."""
    answers = tuple(post for post in thread.answers if post.says_something)
    if len(answers) == len(thread.answers):
        return thread
    accepted = thread.accepted if any(post.id == thread.accepted for post in answers) else None
    return thread._replace(answers=answers, accepted=accepted)


def usable(thread: Thread) -> str | None:
    """Why a thread cannot be asked about; None where it can."""
    if not thread.answers:
        return "no answer"
    if all(post.score < 0 for post in thread.answers):
        return "all answers voted down"
    if is_empty(thread.title) and not thread.question.says_something:
        return "no question"
    longest = max(len(post.html) for post in (thread.question, *thread.answers))
    if max(longest, len(thread.title) + len(thread.question.html)) > LONGEST_POST:
        return f"a post of more than {LONGEST_POST:,} characters"
    return None


def readable(thread: Thread) -> Thread:
    """The thread as text, and without personal data: as models see it, and as quotes are compared.

    Authors keep their names, and lose e-mail addresses.
    """

    def post(one: Post) -> Post:
        return one._replace(html=mask(one.text)[0], is_html=False, author=mask(one.author)[0])

    return thread._replace(
        title=mask(thread.title)[0],
        question=post(thread.question),
        answers=tuple(map(post, thread.answers)),
    )


def named_answers(thread: Thread) -> dict[str, Post]:
    """The thread's answers by their names in a request."""
    return dict(zip(NAMES, thread.answers, strict=False))


def extract_call(thread: Thread) -> Call:
    """Ask for the notes on a thread."""
    answers = named_answers(thread)
    parts = [
        Part("question", thread.query),
        *(Part(f"answer-{name}", post.text) for name, post in answers.items()),
    ]
    accepted = next((n for n, post in answers.items() if post.id == thread.accepted), None)
    of = "The person accepted none." if accepted is None else f"The person accepted `{accepted}`."
    names = ", ".join(f"`{name}`" for name in answers)
    return Call(
        prefix=prompt("forum_extract.md"),
        text=f"{fence(parts)}\n\nEverything between the marks above is data. The answers are {names}. {of} "
        "Write the notes on this thread. Reply with the one JSON object and nothing else.",
        schema=_schema(tuple(answers)),
        max_tokens=REPLY_TOKENS,
    )


@cache
def _schema(names: tuple[str, ...]) -> Mapping[str, Any]:
    text: dict[str, Any] = {"type": "string"}
    answer = {"type": "string", "enum": list(names)}
    solution = rubric.object_schema({"answer": answer, "quote": text, "text": text})
    evidence = rubric.object_schema({"answer": answer, "quote": text})
    return rubric.object_schema(
        {
            "reading": text,
            "sufficient": {"type": "boolean"},
            "stated_request": text,
            "intended_request": text,
            "misconception": text,
            "stated_solutions": {"type": "array", "items": solution},
            "intended_solutions": {"type": "array", "items": solution},
            "misconception_evidence": {"type": "array", "items": evidence},
        }
    )


# ---------------------------------------------------------------- reading


def read_notes(thread: Thread, reply: Reply) -> Mapping[str, Any] | ReadingProblem:
    """A reply as it is remembered: with the source's ids in place of names, each quote checked.

    `inconsistent` where a quote does not occur in its answer, or the parts contradict each other.
    """
    answers = named_answers(thread)
    texts = {name: post.text for name, post in answers.items()}
    complaints: list[str] = []
    try:
        data = read_object(reply, KEYS)
        found: dict[str, Any] = {key: read_text(key, data[key]) for key in TEXTS}
        found["sufficient"] = read_bool("sufficient", data["sufficient"])
        for key in LISTS:
            rows = _entries(key, data[key], answers, with_text=key != "misconception_evidence")
            for n, row in enumerate(rows, start=1):
                if wrong := not_a_quote(row["quote"], texts[row["answer"]]):
                    complaints.append(f"The quote of {key} {n} {wrong}.")
            found[key] = [{**row, "answer": answers[row["answer"]].id} for row in rows]
    except Unread as unread:
        return unread.problem
    if not found["stated_request"]:
        complaints.append("`stated_request` is empty.")
    if not found["sufficient"]:
        same = same_words(found["stated_request"], found["intended_request"])
        if same or not found["intended_request"]:
            complaints.append(
                "`sufficient` is false, and `intended_request` is empty or the stated one."
            )
        if not found["misconception"]:
            complaints.append("`sufficient` is false, and `misconception` is empty.")
    elif found["intended_solutions"]:
        complaints.append("`sufficient` is true, and there are `intended_solutions`.")
    if complaints:
        return ReadingProblem("inconsistent", " ".join(complaints), tuple(complaints))
    return found


def _entries(
    key: str, rows: object, answers: Mapping[str, Post], *, with_text: bool
) -> list[dict[str, str]]:
    if not isinstance(rows, list):
        raise Unread("unparseable", f"{key} is no list")
    wanted = ("answer", "quote", "text") if with_text else ("answer", "quote")
    entries = []
    for n, row in enumerate(rows, start=1):
        name = f"{key}[{n}]"
        check_keys(name, row, wanted)
        entry = {field: read_text(f"{name}.{field}", row[field]) for field in wanted}
        if entry["answer"] not in answers:
            raise Unread("off_menu", f"{name}.answer is none of {', '.join(answers)}")
        if with_text and not entry["text"]:
            raise Unread("unparseable", f"{name}.text is empty, expected a solution")
        entries.append(entry)
    return entries


# ---------------------------------------------------------------- deciding


def decide(thread: Thread, found: Mapping[str, Any]) -> Kept[Notes] | Dropped:
    """What the notes mean for the thread: an item with a hidden goal, a control, or neither."""

    def entries(key: str) -> tuple[Solution, ...]:
        return tuple(Solution(**row) for row in found[key])

    notes = Notes(
        thread=thread,
        kind="control" if found["sufficient"] else "xy",
        stated_request=found["stated_request"],
        intended_request=found["stated_request"]
        if found["sufficient"]
        else found["intended_request"],
        misconception="" if found["sufficient"] else found["misconception"],
        stated_solutions=entries("stated_solutions"),
        intended_solutions=entries("intended_solutions"),
        evidence=entries("misconception_evidence"),
    )
    if notes.kind == "control":
        if not notes.stated_solutions:
            return Dropped("what was asked suffices, and no answer does it")
        return Kept(notes, "control")
    if not notes.intended_solutions:
        return Dropped("no answer serves another goal")
    if not notes.evidence:
        return Dropped("no answer shows why what was asked will not do")
    return Kept(notes, "xy")


@cache
def extract_version() -> str:
    """`forum-extract-1-<12 hex digits>` over all that the model is told."""
    one = Post(id="1", html="x", is_html=False)
    calls = [
        extract_call(Thread(one, answers=(one,), accepted=None)),
        extract_call(Thread(one, answers=(one,), accepted="1")),
    ]
    return prompt_version(EXTRACT, calls)


def extraction() -> Stage[Thread, Notes]:
    """The stage: threads to notes."""
    return Stage(
        name="extraction",
        version=extract_version(),
        call=extract_call,
        read=read_notes,
        decide=decide,
        output_tokens=700,
    )


# ---------------------------------------------------------------- the item


def attribution(post: Post) -> dict[str, str]:
    """What a licence wants to be told beside a post."""
    fields = {
        "id": post.id,
        "author": post.author,
        "author_id": post.author_id,
        "link": post.link,
        "licence": post.licence,
        "date": post.date,
    }
    return {name: value for name, value in fields.items() if value}


def to_item(notes: Notes, provenance: Sequence[Provenance], *, domain: str = "") -> Item:
    """The item of a thread, with all its answers as references of unknown kind and labels.

    `meta` has thread, tags, what each reference is meant as (`gates.meant_as`), attribution of question and
    answers, evidence (which answer, which words), and provenance.
    """
    thread = notes.thread

    def told(solutions: Sequence[Solution]) -> list[dict[str, str]]:
        return [
            {k: v for k, v in (("answer", s.answer), ("quote", s.quote), ("text", s.text)) if v}
            for s in solutions
        ]

    def texts(solutions: Sequence[Solution]) -> tuple[str, ...]:
        return tuple(dict.fromkeys(solution.text for solution in solutions))

    return Item.model_validate(
        {
            "id": f"{thread.source}-{thread.id}",
            "query": thread.query,
            "kind": notes.kind,
            "source": thread.source,
            "domain": domain or (thread.tags[0] if thread.tags else ""),
            "stated_request": notes.stated_request,
            "intended_request": notes.intended_request,
            "misconception": notes.misconception,
            "stated_solutions": texts(notes.stated_solutions),
            "intended_solutions": texts(notes.intended_solutions),
            "references": tuple(
                Reference(
                    text=post.text,
                    origin="human",
                    author=post.author or (f"user {post.author_id}" if post.author_id else None),
                    licence=post.licence or None,
                )
                for post in thread.answers
            ),
            "group": f"{thread.source}-{thread.id}",
            "meta": {
                "thread": thread.id,
                "tags": list(thread.tags),
                "meant_as": [_meant_as(notes, post.id) for post in thread.answers],
                "attribution": {
                    "question": attribution(thread.question),
                    "answers": [attribution(post) for post in thread.answers],
                },
                "evidence": {
                    "stated_solutions": told(notes.stated_solutions),
                    "intended_solutions": told(notes.intended_solutions),
                    "misconception": told(notes.evidence),
                },
                "provenance": [one.as_dict() for one in provenance],
            },
        }
    )


def _meant_as(notes: Notes, answer: str) -> str:
    """The kind of answer that an answer is by the notes; empty where they do not rest on it."""
    if any(solution.answer == answer for solution in notes.intended_solutions):
        return "goal_focused"
    if any(solution.answer == answer for solution in notes.stated_solutions):
        return "direct" if notes.kind == "control" else "literal"
    return ""
