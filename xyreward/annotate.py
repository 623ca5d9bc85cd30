"""The labelling sheet for people: one HTML page that shows a query and an answer and takes the labels.

It works offline and asks for nothing. Who wrote an answer, what a judge said of it, and any other column
of its row are not in the file, so nobody can look; the order is random. What it saves is read by `xyreward
agree` (`ratings.read_answers`).

Not here: the figures (`agreement.py`).
"""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from xyreward.errors import DataError
from xyreward.items import Item, text_hash
from xyreward.markdown import printable
from xyreward.ratings import LABELS
from xyreward.rubric import Grounding
from xyreward.self_contained import render
from xyreward.verdict import FOCUS_VALUES
from xyreward.words import counted, is_empty


@dataclass(frozen=True, slots=True)
class Sheet:
    """A page, and what is in it."""

    html: str
    hash: str
    """16 hex digits over texts and order: what a browser remembers progress under."""
    answers: int
    repeated: int
    """Rows that are there once although they were given more often."""
    empty: int
    """Empty answers, which are left out: their labels are known."""


def sheet(
    rows: Iterable[tuple[Mapping[str, Any], Item]],
    *,
    seed: int = 0,
    notes: bool = True,
    limit: int | None = None,
) -> Sheet:
    """Make the page.

    Args:
        rows: each with its `answer`, and its item; see `score_file.AnswersFile`.
        seed: of the order, and of what is drawn where there is a limit.
        notes: whether the item's requests, misconception and solutions are in the page. People who know the
            domain may do without; they then say how a judge does that has to infer them, too.
        limit: how many answers at most.

    Raises:
        DataError: there is nothing to label.
    """
    units: dict[str, dict[str, Any]] = {}
    repeated = empty = 0
    for row, item in rows:
        answer = row["answer"]
        if is_empty(answer):
            empty += 1
            continue
        unit = _unit(item, answer, named="item_id" in row, notes=notes)
        if unit["unit"] in units:
            repeated += 1
        units.setdefault(unit["unit"], unit)
    if not units:
        raise DataError(["no answer to label: all are empty"])
    # Sorted first, so that the order of the file, which may tell one policy from another, has no say.
    order = sorted(units)
    random.Random(seed).shuffle(order)  # noqa: S311  # an order, no secret
    shown = [units[name] for name in order[:limit]]
    digest = hashlib.sha256(json.dumps(shown, sort_keys=True).encode("ascii")).hexdigest()[:16]
    data = {"sheet": digest, "labels": list(LABELS), "focus": list(FOCUS_VALUES), "units": shown}
    pieces = render(
        "sheet.html.jinja",
        data,
        styles=["filled.css", "sheet.css"],
        scripts=["base.js", "filled.js", "sheet.js"],
        total=len(shown),
        hash=digest,
        notes=notes,
        heading=f"{counted(len(shown), 'answer')} to label",
        thing="answer",
        things="answers",
        made="labels",
        done="Labelled",
    )
    return Sheet("".join(pieces), digest, len(shown), repeated, empty)


def _unit(item: Item, answer: str, *, named: bool, notes: bool) -> dict[str, Any]:
    grounding = Grounding.of(item) if notes else None
    unit: dict[str, Any] = {
        "unit": text_hash(f"{item.id if named else item.content_hash}\n{answer}")[:16],
        "row": {"item_id": item.id} if named else {"query": _query(item)},
        "answer": answer,
        "query": [{"role": m["role"], "text": printable(m["content"])} for m in item.messages],
        "ask": list(LABELS),
        "notes": None,
    }
    if (safe := printable(answer)) != answer:
        unit["shown"] = safe
    if grounding is not None:
        if grounding.kind == "control":
            # What is asked is what is wanted: one request, so its solution serves as both.
            unit["ask"].remove("has_intended_solution")
        unit["notes"] = _notes(grounding)
    return unit


def _query(item: Item) -> str | list[dict[str, str]]:
    return item.query if isinstance(item.query, str) else item.messages


def _notes(grounding: Grounding) -> list[tuple[str, Sequence[str]]]:
    """Headings with their texts."""
    control = grounding.kind == "control"
    found: list[tuple[str, Sequence[str]]] = [
        (
            "Stated request" if not control else "What is asked, and wanted",
            [grounding.stated_request],
        )
    ]
    if not control:
        found.append(("Intended request", [grounding.intended_request]))
        found.append(("Misconception", [grounding.misconception]))
    found.append(("Solutions of the stated request", grounding.stated_solutions))
    if not control:
        found.append(("Solutions of the intended request", grounding.intended_solutions))
    return [
        (heading, [printable(text) for text in texts if text.strip()])
        for heading, texts in found
        if any(text.strip() for text in texts)
    ]
