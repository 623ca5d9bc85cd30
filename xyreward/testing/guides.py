"""Guides by plan: how-to articles whose fate in `xyreward build guides` is known, and a model that fits.

    plan = guide_plan()                            60 guides, by GUIDE_KINDS
    plan.write(folder)                             as Markdown, HTML and JSONL; or
    FakeAPI(reply=plan.reply)                      writes, refines and checks as the plan says

What each kind comes to is said beside it. The words mean nothing.
"""

from __future__ import annotations

import html
import json
import os
import random
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from xyreward.fence import parse_fences
from xyreward.testing.forum import NOUNS, last_text, verdict_reply

GUIDE_KINDS: Mapping[str, int] = {
    "two": 14,  # refutes two beliefs
    "one": 6,  # refutes one
    "plain": 6,  # refutes none, and the model writes nothing
    "duplicate": 3,  # as two; the first query is that of a guide of kind two, but for a word
    "unrefinable": 4,  # as two; the first query cannot be refined
    "literal_does": 4,  # as two; the literal answer to the first would mostly do
    "invents_quote": 3,  # the model insists on a quote that the guide does not have
    "talks": 2,  # the model answers in plain sentences
    "unlicensed": 3,
    "too_long": 1,
    "no_steps": 6,
    "not_utf8": 4,
    "empty": 2,  # a file without a word
    "broken_line": 2,  # a line of JSONL that ends in the middle
}
"""Kind of guide -> how many `guide_plan` makes where it is not told otherwise."""

UNREADABLE = ("no_steps", "not_utf8", "empty", "broken_line")
FORMATS = ("markdown", "html", "jsonl")
LICENCE = "CC BY-SA 4.0"


@dataclass(frozen=True, slots=True)
class PlannedGuide:
    """One guide, and its fate."""

    number: int
    kind: str
    form: str
    """One of `FORMATS`."""
    title: str
    steps: tuple[str, ...]
    warnings: tuple[str, ...]
    queries: tuple[str, ...]
    """Of its questions, before they are refined."""


@dataclass(frozen=True)
class GuidePlan:
    """Guides, their files, and what a model is to say of them."""

    guides: tuple[PlannedGuide, ...]

    @property
    def counts(self) -> dict[str, int]:
        """Kind -> how many."""
        kinds = [guide.kind for guide in self.guides]
        return {kind: kinds.count(kind) for kind in GUIDE_KINDS if kind in kinds}

    def write(self, folder: str | os.PathLike[str]) -> None:
        """Write `md/*.md`, `pages/*.html` and `rows.jsonl` below a folder, which is made."""
        root = Path(folder)
        for name in ("md", "pages"):
            (root / name).mkdir(parents=True, exist_ok=True)
        lines = []
        for guide in self.guides:
            name = f"{guide.number:03d}"
            match guide.form:
                case "markdown":
                    (root / "md" / f"{name}.md").write_bytes(_bytes(guide, _markdown(guide)))
                case "html":
                    (root / "pages" / f"{name}.html").write_bytes(_bytes(guide, _html(guide)))
                case _:
                    lines.append(_bytes(guide, _row(guide)) + b"\n")
        (root / "rows.jsonl").write_bytes(b"".join(lines))

    def reply(self, body: dict[str, Any]) -> Mapping[str, Any] | str | None:
        """What the model says to a request: for `FakeAPI(reply=...)`. None to what it does not know.

        At the quality gates nothing is wrong with its questions.
        """
        text = last_text(body)
        parts = {part.name: part for part in parse_fences(text)}
        part = parts.get("guide") or parts.get("query")
        found = re.search(r"\bcase (\d+)\b", part.text) if part else None
        if found is None:
            return None
        guide = self.guides[int(found[1])]
        if "guide" in parts:
            wanted = re.search(r"at most (\d+) questions and (\d+) controls", text)
            assert wanted is not None
            return _written(guide, int(wanted[1]), int(wanted[2]))
        first = "question 1" in parts["query"].text
        if "Rewrite the query" in text:
            possible = not (guide.kind == "unrefinable" and first)
            query = f"{parts['query'].text} It was so on Monday too." if possible else ""
            return {"reading": "As planned.", "possible": possible, "query": query}
        if not parts.keys().isdisjoint({"first", "answer", "answer-a"}) or len(parts) == 1:
            return _at_gates(guide, {name: part.text for name, part in parts.items()})
        solves = "mostly" if guide.kind == "literal_does" and first else ("partly", "no")[first]
        return {"reading": "As planned.", "literal_solves": solves}


def guide_plan(counts: Mapping[str, int] = GUIDE_KINDS, *, seed: int = 0) -> GuidePlan:
    """A plan with so many guides of each kind, in an order that the seed decides.

    Formats take turns, but for what only one of them has: empty files, lines that end in the middle.
    """
    rng = random.Random(seed)  # noqa: S311
    kinds = [kind for kind, n in counts.items() for _ in range(n)]
    rng.shuffle(kinds)
    guides: list[PlannedGuide] = []
    originals = [number for number, kind in enumerate(kinds) if kind == "two"]
    queries = {number: _queries(number, rng) for number in range(len(kinds))}
    for number, kind in enumerate(kinds):
        form = FORMATS[number % 3]
        if kind == "broken_line":
            form = "jsonl"
        elif kind == "empty" and form == "jsonl":
            form = "markdown"
        own = queries[number]
        if kind == "duplicate":
            like = rng.choice(originals)
            own = (queries[like][0].replace(f"case {like} ", f"case {number} "), own[1])
        guides.append(_planned(number, kind, form, own, rng))
    return GuidePlan(tuple(guides))


# ---------------------------------------------------------------- texts


def _queries(number: int, rng: random.Random) -> tuple[str, str]:
    one, two = (
        f"In case {number} I have question {k} about my {' '.join(rng.sample(NOUNS.split(), 40))}. "
        "How do I do the asked thing?"
        for k in (1, 2)
    )
    return one, two


def _planned(
    number: int, kind: str, form: str, queries: tuple[str, str], rng: random.Random
) -> PlannedGuide:
    words = rng.sample(NOUNS.split(), 40)
    steps = [
        f"Take the {words[k]} of case {number} to the {words[k + 1]} & wait for <{words[k + 2]}>."
        for k in (0, 3, 6)
    ]
    if kind == "too_long":
        steps[0] += f" {'0123456789 ' * 4_000}"
    warnings = [
        f"The {words[k]} of case {number} never reaches the {words[k + 1]}, since the {words[k + 2]} stays."
        for k in (9, 12)
    ]
    return PlannedGuide(
        number,
        kind,
        form,
        f"How to serve the {words[15]} of case {number}",
        tuple(steps),
        () if kind == "plain" else tuple(warnings[: 1 if kind == "one" else 2]),
        queries,
    )


def _markdown(guide: PlannedGuide) -> str:
    front = f"---\nauthor: Author {guide.number}\nurl: https://guides.example/{guide.number}\n"
    front += "---\n" if guide.kind == "unlicensed" else f"licence: {LICENCE}\n---\n"
    steps = [f"{n}. {html.escape(step)}" for n, step in enumerate(guide.steps, start=1)]
    body = ["Sentences alone."] if guide.kind == "no_steps" else ["\n".join(steps)]
    first, *others = (html.escape(text) for text in guide.warnings or ("",))
    notes = [f"> [!WARNING]\n> {first}"] if first else []
    notes += ["## Warnings\n\n" + "\n".join(f"- {text}" for text in others)] if others else []
    return front + "\n\n".join([f"# {guide.title}", "Gr\u00fc\u00dfe.", *body, *notes]) + "\n"


def _html(guide: PlannedGuide) -> str:
    items = "".join(f"<li><b>{html.escape(step)}</b>" for step in guide.steps)
    body = "<p>Sentences alone.</p>" if guide.kind == "no_steps" else f"<ol>{items}</ol>"
    warnings = "".join(f"<li>{html.escape(text)}</li>" for text in guide.warnings)
    licence = "" if guide.kind == "unlicensed" else f'<a rel="license" href="{LICENCE}">terms</a>'
    return (
        f'<html><head><meta name="author" content="Author {guide.number}">'
        f'<link rel="canonical" href="https://guides.example/{guide.number}"></head>'
        f"<body><h1>{guide.title}</h1><p>Gr\u00fc\u00dfe.</p>{body}"
        f'<div class="section warnings"><h2>Warnings</h2><ul>{warnings}</ul></div>{licence}</body></html>\n'
    )


def _row(guide: PlannedGuide) -> str:
    row: dict[str, Any] = {
        "id": f"row-{guide.number}",
        "title": guide.title,
        "text": "Gr\u00fc\u00dfe.",
        "sections": [] if guide.kind == "no_steps" else [{"title": "", "steps": guide.steps}],
        "warnings": guide.warnings,
        "author": f"Author {guide.number}",
        "url": f"https://guides.example/{guide.number}",
    }
    if guide.kind != "unlicensed":
        row["licence"] = LICENCE
    text = json.dumps(row, ensure_ascii=False)
    return text[: len(text) // 2] if guide.kind == "broken_line" else text


def _bytes(guide: PlannedGuide, text: str) -> bytes:
    if guide.kind == "empty":
        return b""
    return text.encode("latin-1" if guide.kind == "not_utf8" else "utf-8")


# ---------------------------------------------------------------- replies


def _written(guide: PlannedGuide, n_xy: int, n_controls: int) -> Mapping[str, Any] | str:
    if guide.kind == "talks":
        return "What a nice guide."
    if guide.kind == "plain":
        return {"reading": "As planned.", "questions": [], "controls": []}

    def quote(text: str) -> str:
        if guide.kind == "invents_quote":
            return "these words stand in no guide at all"
        return text

    def solution(k: int) -> dict[str, str]:
        return {"text": f"Do step {k + 1} of case {guide.number}.", "quote": quote(guide.steps[k])}

    questions = [
        {
            "stated_request": f"Do the asked thing {k + 1} of case {guide.number}.",
            "intended_request": f"Reach the goal {k + 1} of case {guide.number}.",
            "misconception": "The asked thing does not lead to the goal.",
            "misconception_evidence": [{"quote": quote(warning)}],
            "query": query,
            "stated_solutions": [f"Do it {k + 1} times."],
            "intended_solutions": [solution(k), solution(2)],
            "goal_answer": f"The asked thing will not do. Do step {k + 1} of case {guide.number}.",
            "literal_answer": f"Here is how to do the asked thing {k + 1} of case {guide.number}.",
        }
        for k, (warning, query) in enumerate(zip(guide.warnings, guide.queries, strict=False))
    ]
    rng = random.Random(guide.number)  # noqa: S311
    controls = [
        {
            "stated_request": f"Do the right thing {k + 1} of case {guide.number}.",
            "query": f"In case {guide.number} there is control {k + 1} with "
            f"{' '.join(rng.sample(NOUNS.split(), 40))}. How do I do the right thing?",
            "solutions": [solution(k % 3)],
            "answer": f"Do step {k % 3 + 1} of case {guide.number}, and that is it.",
        }
        for k in range(n_controls)
    ]
    return {"reading": "As planned.", "questions": questions[:n_xy], "controls": controls}


def _at_gates(guide: PlannedGuide, texts: Mapping[str, str]) -> Mapping[str, Any]:
    found = re.search(r"\b(question|control) (\d+)\b", texts["query"])
    assert found is not None
    hidden = found[1] == "question"
    asked = f"Do the {'asked' if hidden else 'right'} thing {found[2]} of case {guide.number}."
    wanted = f"Reach the goal {found[2]} of case {guide.number}."
    if "first" in texts:
        return {"reason": "As planned.", "same": texts["first"] == texts["second"]}
    if "answer" in texts:
        literal = texts["answer"].startswith("Here is how")
        serves = "intended" if hidden and not literal else "stated"
        return verdict_reply(texts["answer"], serves, serves, identifies=serves == "intended")
    if "answer-a" in texts:
        return {
            "reading": "As planned.",
            "stated_request": asked,
            "hidden_goal": hidden,
            "intended_request": wanted if hidden else "",
        }
    return {"reading": "As planned.", "goal": wanted}
