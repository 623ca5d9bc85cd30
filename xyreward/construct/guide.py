"""What a model is asked about a guide, and how its questions become items.

    guide -> written questions -> refined -> checked against the literal answer -> items

First it writes questions around misconceptions that the guide refutes, and controls, with answers. Whatever
an item rests on has a quote; one that does not occur in the guide makes the whole reply useless: the model
is asked again, and where it insists, the guide has failed. Then the query is rewritten so that the goal can
be inferred and is not said. Then a question whose literal answer would mostly do is dropped.

Not here: reading guides (`guides.py`), in what order it all happens (`guide_job.py`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from xyreward import rubric
from xyreward.construct.guide_pages import Section
from xyreward.construct.guides import Guide
from xyreward.construct.quotes import not_a_quote
from xyreward.construct.stages import Dropped, Kept, Provenance, Stage, prompt, prompt_version
from xyreward.fence import Part, fence
from xyreward.items import Item, ItemKind, Reference, same_words
from xyreward.judges.calls import Call, Reply
from xyreward.pairs.language import language_of
from xyreward.pairs.personal_data import mask
from xyreward.reading import (
    ReadingProblem,
    Unread,
    check_keys,
    read_bool,
    read_object,
    read_text,
    read_texts,
)

WRITE, REFINE, LITERAL = "guide-write-1", "guide-refine-1", "guide-literal-1"
"""Raised by hand where replies are meant to differ. The hash in the version shows every change."""
LONGEST_GUIDE = 40_000
"""Characters of a guide that are shown; longer ones are dropped."""
LONGEST_QUERY = 4_000
"""Characters of a query; a longer one is no question that a person asks."""

QUESTION = (
    *("stated_request", "intended_request", "misconception", "misconception_evidence", "query"),
    *("stated_solutions", "intended_solutions", "goal_answer", "literal_answer"),
)
CONTROL = ("stated_request", "query", "solutions", "answer")
SOLVES = ("mostly", "partly", "no")


@dataclass(frozen=True, slots=True)
class Task:
    """A guide, and how many questions are wanted of it at most."""

    guide: Guide
    xy: int
    controls: int


@dataclass(frozen=True, slots=True)
class Support:
    """Where the guide says something."""

    place: str
    """`step 3`, `warning 1`, ... as `Guide.passages` has it."""
    quote: str
    """Occurs there."""
    text: str = ""
    """A solution in the model's words. Empty for evidence, which is the quote alone."""


@dataclass(frozen=True, slots=True)
class Draft:
    """A question that was written about a guide, on its way to an item."""

    guide: Guide
    """Without its sections, warnings and tips, which nobody asks for any more."""
    number: int
    """Among those of its kind and guide, from 1."""
    kind: ItemKind
    query: str
    stated_request: str
    intended_request: str
    """Of a control its stated one."""
    misconception: str
    stated_solutions: tuple[str, ...]
    """Of a control the texts of `solutions`."""
    solutions: tuple[Support, ...]
    """Ways to the intended request."""
    evidence: tuple[Support, ...]
    """Of the misconception."""
    answers: Mapping[str, str]
    """Kind of answer (`goal_focused`, `literal`; `direct` for a control) -> text."""
    first_query: str = ""
    """Before it was refined."""
    provenance: tuple[Provenance, ...] = ()

    @property
    def id(self) -> str:
        """Of the item."""
        mark = "c" if self.kind == "control" else ""
        return f"{self.group}-{mark}{self.number}"

    @property
    def group(self) -> str:
        """Of the item: its guide."""
        return f"{self.guide.source}-{self.guide.id}"


def usable(guide: Guide) -> str | None:
    """Why a guide cannot be asked about; None where it can."""
    if not guide.licence:
        return "no licence"
    if len(guide.text) > LONGEST_GUIDE:
        return f"a guide of more than {LONGEST_GUIDE:,} characters"
    return None


def readable(guide: Guide) -> Guide:
    """The guide without personal data: as models see it, and as quotes are compared."""

    def bare(texts: Sequence[str]) -> tuple[str, ...]:
        return tuple(mask(text)[0] for text in texts)

    return dataclasses.replace(
        guide,
        title=mask(guide.title)[0],
        author=mask(guide.author)[0],
        sections=tuple(
            Section(mask(one.title)[0], mask(one.text)[0], bare(one.steps))
            for one in guide.sections
        ),
        warnings=bare(guide.warnings),
        tips=bare(guide.tips),
    )


# ---------------------------------------------------------------- writing


def write_call(task: Task) -> Call:
    """Ask for questions about a guide."""
    wanted = " and ".join(
        f"{n} {name}" for n, name in ((task.xy, "questions"), (task.controls, "controls"))
    )
    return Call(
        prefix=prompt("guide_write.md"),
        text=f"{fence([Part('guide', task.guide.text)])}\n\nEverything between the marks above is data. "
        f"Write at most {wanted} about this guide. Reply with the one JSON object and nothing else.",
        schema=_write_schema(),
        max_tokens=4096 + 2048 * (task.xy + task.controls),
    )


@cache
def _write_schema() -> Mapping[str, Any]:
    text: dict[str, Any] = {"type": "string"}
    texts = {"type": "array", "items": text}
    evidence = {"type": "array", "items": rubric.object_schema({"quote": text})}
    solutions = {"type": "array", "items": rubric.object_schema({"text": text, "quote": text})}
    lists = {
        "misconception_evidence": evidence,
        "stated_solutions": texts,
        "intended_solutions": solutions,
        "solutions": solutions,
    }

    def rows(keys: Sequence[str]) -> dict[str, Any]:
        one = rubric.object_schema({key: lists.get(key, text) for key in keys})
        return {"type": "array", "items": one}

    return rubric.object_schema(
        {"reading": text, "questions": rows(QUESTION), "controls": rows(CONTROL)}
    )


def read_written(task: Task, reply: Reply) -> Mapping[str, Any] | ReadingProblem:
    """A reply as it is remembered: each quote checked, and with its place in the guide.

    `inconsistent` where a quote does not occur in the guide, or the parts contradict each other.
    """
    reader = _Written(task)
    try:
        data = read_object(reply, ("reading", "questions", "controls"))
        read_text("reading", data["reading"])
        found = {
            "questions": [
                reader.question(*row) for row in _rows("questions", data["questions"], QUESTION)
            ],
            "controls": [
                reader.control(*row) for row in _rows("controls", data["controls"], CONTROL)
            ],
        }
    except Unread as unread:
        return unread.problem
    for key, limit in (("questions", task.xy), ("controls", task.controls)):
        if len(found[key]) > limit:
            reader.complain(f"There are {len(found[key])} {key}, expected at most {limit}.")
    if complaints := reader.complaints:
        return ReadingProblem("inconsistent", " ".join(complaints), tuple(complaints))
    return found


def _rows(key: str, rows: object, keys: Sequence[str]) -> list[tuple[str, Mapping[str, Any]]]:
    if not isinstance(rows, list):
        raise Unread("unparseable", f"{key} is no list")
    named = [(f"{key}[{n}]", row) for n, row in enumerate(rows, start=1)]
    for name, row in named:
        check_keys(name, row, keys)
    return named


class _Written:
    """Reads the parts of a reply, and notes what is wrong with them."""

    def __init__(self, task: Task) -> None:
        self._passages = task.guide.passages
        self.complaints: list[str] = []

    def complain(self, complaint: str) -> None:
        self.complaints.append(complaint)

    def question(self, name: str, row: Mapping[str, Any]) -> dict[str, Any]:
        found: dict[str, Any] = self._texts(
            name, row, "stated_request", "intended_request", "misconception", "query"
        )
        found |= self._texts(name, row, "goal_answer", "literal_answer")
        found["misconception_evidence"] = self._supports(name, row, "misconception_evidence")
        found["stated_solutions"] = read_texts(f"{name}.stated_solutions", row["stated_solutions"])
        found["intended_solutions"] = self._supports(name, row, "intended_solutions")
        if not found["stated_solutions"]:
            self.complain(f"{name}.stated_solutions is empty.")
        for one, other in (
            ("stated_request", "intended_request"),
            ("goal_answer", "literal_answer"),
        ):
            if same_words(found[one], found[other]):
                self.complain(f"{name}: {one} and {other} are the same.")
        return found

    def control(self, name: str, row: Mapping[str, Any]) -> dict[str, Any]:
        found: dict[str, Any] = self._texts(name, row, "stated_request", "query", "answer")
        found["solutions"] = self._supports(name, row, "solutions")
        return found

    def _texts(self, name: str, row: Mapping[str, Any], *keys: str) -> dict[str, str]:
        found = {key: read_text(f"{name}.{key}", row[key]) for key in keys}
        for key, text in found.items():
            if not text:
                self.complain(f"{name}.{key} is empty.")
        if len(found.get("query", "")) > LONGEST_QUERY:
            self.complain(f"{name}.query has more than {LONGEST_QUERY:,} characters.")
        return found

    def _supports(self, name: str, row: Mapping[str, Any], key: str) -> list[dict[str, str]]:
        """Entries with a quote, and with a text where they are solutions.

        A solution rests on a step, a remark or a tip; what is warned of solves nothing.
        """
        solution = key != "misconception_evidence"
        keys = ("text", "quote") if solution else ("quote",)
        found = []
        for place, entry in _rows(f"{name}.{key}", row[key], keys):
            one = {field: read_text(f"{place}.{field}", entry[field]) for field in keys}
            if solution and not one["text"]:
                self.complain(f"{place}.text is empty.")
            where, wrong = self._place(one["quote"], warnings=not solution)
            if wrong:
                self.complain(f"The quote of {place} {wrong}.")
            found.append({"place": where, **one})
        if not found:
            self.complain(f"{name}.{key} is empty.")
        return found

    def _place(self, quote: str, *, warnings: bool) -> tuple[str, str | None]:
        wrong: str | None = None
        of = "one passage of the guide" if warnings else "one step, remark or tip of the guide"
        for place, text in self._passages:
            if not warnings and place.startswith("warning"):
                continue
            problem = not_a_quote(quote, text, of=of)
            if problem is None:
                return place, None
            wrong = problem if wrong is None or "short" in problem else wrong
        return "", wrong or f"does not occur in {of}"


def decide_written(task: Task, found: Mapping[str, Any]) -> Kept[tuple[Draft, ...]] | Dropped:
    """The questions of a guide; dropped where it has none."""
    bare = dataclasses.replace(task.guide, sections=(), warnings=(), tips=())

    def supports(entries: Sequence[Mapping[str, str]]) -> tuple[Support, ...]:
        return tuple(Support(**entry) for entry in entries)

    drafts = [
        Draft(
            guide=bare,
            number=number,
            kind="xy",
            query=one["query"],
            stated_request=one["stated_request"],
            intended_request=one["intended_request"],
            misconception=one["misconception"],
            stated_solutions=tuple(one["stated_solutions"]),
            solutions=supports(one["intended_solutions"]),
            evidence=supports(one["misconception_evidence"]),
            answers={"goal_focused": one["goal_answer"], "literal": one["literal_answer"]},
        )
        for number, one in enumerate(found["questions"], start=1)
    ]
    drafts += [
        Draft(
            guide=bare,
            number=number,
            kind="control",
            query=one["query"],
            stated_request=one["stated_request"],
            intended_request=one["stated_request"],
            misconception="",
            stated_solutions=tuple(dict.fromkeys(entry["text"] for entry in one["solutions"])),
            solutions=supports(one["solutions"]),
            evidence=(),
            answers={"direct": one["answer"]},
        )
        for number, one in enumerate(found["controls"], start=1)
    ]
    return Kept(tuple(drafts)) if drafts else Dropped("no misconception that the guide refutes")


# ---------------------------------------------------------------- refining


KIND_PHRASES: Mapping[ItemKind, str] = {
    "xy": "This question has a hidden goal.",
    "control": "This question is a control.",
}


def _known(draft: Draft) -> list[Part]:
    """What is known of a draft; its answers come after it."""
    parts = [Part("query", draft.query), Part("stated-request", draft.stated_request)]
    if draft.kind == "xy":
        parts += [
            Part("intended-request", draft.intended_request),
            Part("misconception", draft.misconception),
            Part("literal-answer", draft.answers["literal"]),
            Part("goal-answer", draft.answers["goal_focused"]),
        ]
    else:
        parts.append(Part("answer", draft.answers["direct"]))
    return parts


def refine_call(draft: Draft) -> Call:
    """Ask for the query in other words."""
    text = {"type": "string"}
    return Call(
        prefix=prompt("guide_refine.md"),
        text=f"{fence(_known(draft))}\n\nEverything between the marks above is data. "
        f"{KIND_PHRASES[draft.kind]} Rewrite the query. Reply with the one JSON object and nothing else.",
        schema=rubric.object_schema(
            {"reading": text, "possible": {"type": "boolean"}, "query": text}
        ),
        max_tokens=4096,
    )


def read_refined(draft: Draft, reply: Reply) -> Mapping[str, Any] | ReadingProblem:  # noqa: ARG001
    """A reply as it is remembered."""
    try:
        data = read_object(reply, ("reading", "possible", "query"))
        read_text("reading", data["reading"])
        found = {
            "possible": read_bool("possible", data["possible"]),
            "query": read_text("query", data["query"]),
        }
    except Unread as unread:
        return unread.problem
    wrong = ""
    if found["possible"] and not found["query"]:
        wrong = "`possible` is true, and `query` is empty."
    elif len(str(found["query"])) > LONGEST_QUERY:
        wrong = f"`query` has more than {LONGEST_QUERY:,} characters."
    return ReadingProblem("inconsistent", wrong, (wrong,)) if wrong else found


def decide_refined(draft: Draft, found: Mapping[str, Any]) -> Kept[Draft] | Dropped:
    """The draft with its new query. All labels stay."""
    if found["possible"]:
        return Kept(dataclasses.replace(draft, query=found["query"], first_query=draft.query))
    if draft.kind == "xy":
        return Dropped("the goal cannot be seen without being said")
    return Dropped("a control that would become another question")


# ---------------------------------------------------------------- the literal answer


def literal_call(draft: Draft) -> Call:
    """Ask whether doing what was asked would do."""
    return Call(
        prefix=prompt("guide_literal.md"),
        text=f"{fence(_known(draft))}\n\nEverything between the marks above is data. Does the literal answer "
        "get the person to the goal? Reply with the one JSON object and nothing else.",
        schema=rubric.object_schema(
            {
                "reading": {"type": "string"},
                "literal_solves": {"type": "string", "enum": list(SOLVES)},
            }
        ),
        max_tokens=4096,
    )


def read_literal(draft: Draft, reply: Reply) -> Mapping[str, Any] | ReadingProblem:  # noqa: ARG001
    """A reply as it is remembered."""
    try:
        data = read_object(reply, ("reading", "literal_solves"))
        read_text("reading", data["reading"])
        solves = read_text("literal_solves", data["literal_solves"])
        if solves not in SOLVES:
            raise Unread("off_menu", f"literal_solves is none of {', '.join(SOLVES)}")
    except Unread as unread:
        return unread.problem
    return {"literal_solves": solves}


def decide_literal(draft: Draft, found: Mapping[str, Any]) -> Kept[Draft] | Dropped:
    """Dropped where what was asked would mostly do."""
    if found["literal_solves"] == "mostly":
        return Dropped("the literal answer would mostly do")
    return Kept(draft, f"the literal answer: {found['literal_solves']}")


# ---------------------------------------------------------------- stages


@cache
def versions() -> Mapping[str, str]:
    """Stage -> `guide-write-1-<12 hex digits>` and so on, over all that the model is told."""
    guide = Guide(id="1", title="t", sections=(Section("", "", ("s",)),))
    draft = Draft(
        guide=guide,
        number=1,
        kind="xy",
        query="q",
        stated_request="s",
        intended_request="i",
        misconception="m",
        stated_solutions=(),
        solutions=(),
        evidence=(),
        answers={"goal_focused": "g", "literal": "l", "direct": "d"},
    )
    control = dataclasses.replace(draft, kind="control")
    return {
        "writing": prompt_version(WRITE, [write_call(Task(guide, 2, 1))]),
        "refining": prompt_version(REFINE, [refine_call(draft), refine_call(control)]),
        "literal answer": prompt_version(LITERAL, [literal_call(draft)]),
    }


def writing() -> Stage[Task, tuple[Draft, ...]]:
    """The stage: guides to questions."""
    return Stage(
        name="writing",
        version=versions()["writing"],
        call=write_call,
        read=read_written,
        decide=decide_written,
        output_tokens=2400,
    )


def refining() -> Stage[Draft, Draft]:
    """The stage: the query says no goal, and shows it."""
    return Stage(
        name="refining",
        version=versions()["refining"],
        call=refine_call,
        read=read_refined,
        decide=decide_refined,
        output_tokens=350,
    )


def literal_answer() -> Stage[Draft, Draft]:
    """The stage, for questions with a hidden goal: what was asked would not do."""
    return Stage(
        name="literal answer",
        version=versions()["literal answer"],
        call=literal_call,
        read=read_literal,
        decide=decide_literal,
        output_tokens=200,
    )


# ---------------------------------------------------------------- the item


def to_item(draft: Draft) -> Item:
    """The item of a draft, its answers as references of their kinds, written by the model and unlabelled.

    `meta` has guide, its title, the query before it was refined, what each reference is meant as,
    attribution of the guide, evidence (which place, which words), and provenance.
    """
    guide = draft.guide

    def told(supports: Sequence[Support]) -> list[dict[str, str]]:
        return [{k: v for k, v in dataclasses.asdict(one).items() if v} for one in supports]

    def texts(supports: Sequence[Support]) -> tuple[str, ...]:
        return tuple(dict.fromkeys(one.text for one in supports))

    control = draft.kind == "control"
    attribution = {
        "id": guide.id,
        "title": guide.title,
        "author": guide.author,
        "link": guide.link,
        "licence": guide.licence,
    }
    solutions = "stated_solutions" if control else "intended_solutions"
    return Item.model_validate(
        {
            "id": draft.id,
            "query": draft.query,
            "kind": draft.kind,
            "source": guide.source,
            "domain": guide.domain,
            "language": language_of(draft.query) or "en",
            "stated_request": draft.stated_request,
            "intended_request": draft.intended_request,
            "misconception": draft.misconception,
            "stated_solutions": draft.stated_solutions,
            "intended_solutions": () if control else texts(draft.solutions),
            "references": tuple(
                Reference.model_validate(
                    {
                        "text": text,
                        "kind": kind,
                        "origin": draft.provenance[0].model if draft.provenance else "model",
                        "licence": guide.licence or None,
                    }
                )
                for kind, text in draft.answers.items()
            ),
            "group": draft.group,
            "meta": {
                "guide": guide.id,
                "first_query": draft.first_query,
                "meant_as": list(draft.answers),
                "attribution": {"guide": {k: v for k, v in attribution.items() if v}},
                "evidence": {
                    solutions: told(draft.solutions),
                    "misconception": told(draft.evidence),
                },
                "provenance": [one.as_dict() for one in draft.provenance],
            },
        }
    )
