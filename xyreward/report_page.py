"""report.html: the figures of an evaluation, and a browser of all its answers.

One file without any request to anywhere, or, where answers take more than `MAX_BYTES`, a file and a folder
of data beside it (`report_data/`), whose parts are loaded as they are looked at. Parts are scripts, since a
page that was opened from a disk may load scripts and nothing else. Either way answers lie in parts of about a
megabyte that are read when they are shown or searched, so that a page of 40,000 answers opens as fast as one
of a hundred.

Texts from data reach the page as JSON in script elements that browsers do not run, or through a template that
escapes; see `self_contained.py`.

Not here: figures (`figures.py`), what is measured (`evaluation.py`, `report.py`).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from markupsafe import Markup

from xyreward import figures
from xyreward.evaluation import Evaluation, Row
from xyreward.items import Item
from xyreward.markdown import printable
from xyreward.published import beside_of_report
from xyreward.report_tables import (
    FromData,
    Table,
    Text,
    fact_lines,
    failure_lines,
    main_below,
    main_rows,
    several,
    tables,
)
from xyreward.rubric import Grounding
from xyreward.runs import RunFolder
from xyreward.self_contained import as_script, render
from xyreward.shown import headline
from xyreward.verdict import FOCUS_VALUES
from xyreward.words import of_whom

PAGE = "report.html"
DATA = "report_data"
"""The folder beside a page whose answers are not in it."""
FIGURES = "figures"

MAX_BYTES = 60_000_000
"""Of answers in the page itself. Browsers open larger files, but mail and viewers do not take them."""
PART_BYTES = 1_000_000
"""Of answers that are read together: some 600 of them, which a browser parses in 10 ms."""
MAX_TEXT = 20_000
"""Characters of a text that the page holds; the run folder's JSONL has all."""
GIST = 120


def write_page(
    folder: RunFolder | Path,
    report: Mapping[str, Any],
    evaluations: Mapping[str, Evaluation],
    items: Sequence[Item] = (),
    *,
    max_bytes: int = MAX_BYTES,
) -> list[Path]:
    """Write `report.html`, where needed its data, and the figures as files.

    Args:
        folder: the run's.
        report: of `report.build_report`, or `report.json` read back.
        evaluations: `before`, with two policies also `after`; further conditions and references by the names
            of their files (`before.oracle`, `reference.literal`). The first two are shown first.
        items: those that were evaluated, for questions and goals; without one its answers are still shown.
        max_bytes: of answers in the page itself.

    Returns:
        The files written, the page first.

    Raises:
        RunFolderError: they cannot be written.
    """
    if not isinstance(folder, RunFolder):
        folder.mkdir(parents=True, exist_ok=True)
        folder = RunFolder(folder)
    rows = _rows(evaluations)
    known = {item.id: item for item in items}
    parts, starts = _parts(rows, known)
    whole = sum(len(part.encode()) for part in parts) <= max_bytes
    drawn = figures.drawn(report)
    page = render(
        "report.html.jinja",
        {
            **_index(rows, evaluations, known),
            "starts": starts,
            "folder": None if whole else DATA,
            "cut": MAX_TEXT,
        },
        styles=["base.css", "report.css"],
        scripts=["base.js", "report.js"],
        more_css=figures.page_css(),
        loads=not whole,
        parts=[Markup(part) for part in parts] if whole else [],  # noqa: S704  # of as_script
        figures={f.name: Markup(f.svg(alone=False)) for f in drawn},  # noqa: S704  # of a template
        answers=len(rows),
        **_tables(report, {figure.name for figure in drawn}),
    )
    written = [folder.write(PAGE, page)]
    written += _write_parts(folder, [] if whole else parts)
    for figure in drawn:
        written.append(folder.write(f"{FIGURES}/{figure.name}.svg", figure.svg()))
        if (png := figure.png()) is not None:
            written.append(folder.write(f"{FIGURES}/{figure.name}.png", png))
    return written


def _write_parts(folder: RunFolder, parts: Sequence[str]) -> list[Path]:
    """The folder of data; parts of an earlier page go."""
    written = [
        folder.write(f"{DATA}/part-{n}.js", [f"xyrewardPart({n},", part, ");\n"])
        for n, part in enumerate(parts)
    ]
    data = folder.path / DATA
    if data.is_dir():
        for old in data.iterdir():
            if re.fullmatch(r"part-\d+\.js", old.name) and old not in written:
                old.unlink()
        if not any(data.iterdir()):
            data.rmdir()
    return written


# ---------------------------------------------------------------- rows


@dataclass(frozen=True, slots=True)
class _Entry:
    """What the page shows together: one question, and the answer that each policy gave to it."""

    item_id: str
    answer_index: int
    answers: tuple[Row | None, ...]
    """One per evaluation; None: not in that one."""

    @property
    def any(self) -> Row:
        return next(row for row in self.answers if row is not None)


def _rows(evaluations: Mapping[str, Evaluation]) -> list[_Entry]:
    found: dict[tuple[str, int], list[Row | None]] = {}
    for place, evaluation in enumerate(evaluations.values()):
        for row in evaluation.rows:
            key = (row.item_id, row.answer_index)
            found.setdefault(key, [None] * len(evaluations))[place] = row
    return [_Entry(*key, tuple(answers)) for key, answers in found.items()]


def _text(text: str) -> str:
    """As the page shows it: what steers the direction of writing, or cannot be seen, as escapes."""
    return printable(text[:MAX_TEXT])


def _turns(item: Item | None) -> list[tuple[str, str]]:
    if item is None:
        return []
    return [(m["role"], _text(m["content"])) for m in item.messages]


class _Values:
    """Names by number: a column of few different values."""

    def __init__(self) -> None:
        self.values: dict[str, int] = {}
        self.of: list[int] = []

    def add(self, name: str) -> None:
        self.of.append(self.values.setdefault(_text(name), len(self.values)))

    def to_dict(self) -> dict[str, Any]:
        return {"values": list(self.values), "of": self.of}


def _index(
    rows: Sequence[_Entry], evaluations: Mapping[str, Evaluation], items: Mapping[str, Item]
) -> dict[str, Any]:
    """What the page filters and lists by, of all rows, as columns."""
    every = (row.failure["kind"] for e in rows for row in e.answers if row and row.failure)
    failures = {kind: n for n, kind in enumerate(sorted(set(every)))}
    columns = {name: _Values() for name in ("kind", "source", "domain", "language")}
    gists = []
    for entry in rows:
        row = entry.any
        for name, values in columns.items():
            values.add(getattr(row, name))
        turns = _turns(items.get(entry.item_id))
        gists.append((turns[-1][1] if turns else _text(row.answer or ""))[:GIST])
    return {
        "names": [of_whom(name, two="after" in evaluations) for name in evaluations],
        "policies": [_text(e.policy) for e in evaluations.values()],
        "failures": list(failures),
        "focus": list(FOCUS_VALUES),
        "ids": [_text(entry.item_id) for entry in rows],
        "nth": [entry.answer_index for entry in rows],
        "gists": gists,
        **{name: values.to_dict() for name, values in columns.items()},
        "codes": [[_code(e.answers[p], failures) for e in rows] for p in range(len(evaluations))],
        "soft": [[_soft(e.answers[p]) for e in rows] for p in range(len(evaluations))],
        "lengths": [[_length(e.answers[p]) for e in rows] for p in range(len(evaluations))],
        "picked": [[_picked(e.answers[p]) for e in rows] for p in range(len(evaluations))],
    }


MISSING, UNJUDGED, FAILED = -1, -2, -3
"""Codes of rows without labels: not evaluated, not judged, and from here down by kind of failure."""


def _code(row: Row | None, failures: Mapping[str, int]) -> int:
    """The labels of a row as one number: bits of stated, intended, misconception, then the focus.

    Args:
        failures: kinds of failure with their numbers.
    """
    if row is None:
        return MISSING
    if row.failure is not None:
        return FAILED - failures[row.failure["kind"]]
    v = row.verdict
    if v is None:
        return UNJUDGED
    bits = (v["has_stated_solution"], v["has_intended_solution"], v["identifies_misconception"])
    focus: int = FOCUS_VALUES.index(v["focus"])
    return sum(int(bit) << i for i, bit in enumerate(bits)) + (focus << 3)


def _soft(row: Row | None) -> float | None:
    return None if row is None or row.soft_reward is None else round(row.soft_reward, 3)


def _length(row: Row | None) -> int:
    return -1 if row is None or row.answer is None else len(row.answer)


def _picked(row: Row | None) -> float | None:
    return None if row is None else row.picked


# ---------------------------------------------------------------- parts


def _parts(rows: Sequence[_Entry], items: Mapping[str, Item]) -> tuple[list[str], list[int]]:
    """The texts of all rows as JSON in parts, and the number of the first row of each part."""
    parts: list[str] = []
    starts: list[int] = []
    held: list[str] = []
    size = 0
    for place, entry in enumerate(rows):
        text = as_script(_entry(entry, items.get(entry.item_id)))
        if not held:
            starts.append(place)
        held.append(text)
        size += len(text)
        if size >= PART_BYTES or place == len(rows) - 1:
            parts.append(f"[{','.join(held)}]")
            held, size = [], 0
    return parts, starts


def _entry(entry: _Entry, item: Item | None) -> dict[str, Any]:
    return {
        "query": _turns(item),
        "notes": _notes(item),
        "answers": [None if row is None else _cell(row) for row in entry.answers],
    }


def _notes(item: Item | None) -> list[tuple[str, list[str]]]:
    """Headings with their texts: what the answer was measured against."""
    grounding = None if item is None else Grounding.of(item)
    if grounding is None:
        return []
    control = grounding.kind == "control"
    found: list[tuple[str, Sequence[str]]] = [
        ("asked, and wanted" if control else "stated request", [grounding.stated_request])
    ]
    if not control:
        found.append(("intended request", [grounding.intended_request]))
        found.append(("misconception", [grounding.misconception]))
    found.append(("stated solutions", grounding.stated_solutions))
    if not control:
        found.append(("intended solutions", grounding.intended_solutions))
    return [
        (heading, [_text(text) for text in texts if text.strip()])
        for heading, texts in found
        if any(text.strip() for text in texts)
    ]


def _cell(row: Row) -> dict[str, Any]:
    """One answer, without what there is nothing of."""
    answer = row.answer
    verdict = row.verdict or {}
    cell: dict[str, Any] = {}
    if answer is not None:
        cell["text"] = _text(answer)
        suggestions = verdict.get("suggestions") or ()
        if suggestions:
            cell["suggestions"] = [
                {
                    "serves": s["serves"],
                    "quote": _text(s["quote"]),
                    "reason": _text(s.get("reason", "")),
                    "spans": _spans(s["quote"], answer[:MAX_TEXT]),
                }
                for s in suggestions
            ]
    if verdict:
        p = verdict.get("p") or {}
        if p:
            cell["p"] = [
                round(p["has_stated_solution"], 3), round(p["has_intended_solution"], 3),
                round(p["identifies_misconception"], 3), round(p["focus"][verdict["focus"]], 3),
            ]  # fmt: skip
        cell["reason"] = _text(verdict.get("reason") or "")
        cell["flags"] = [_text(flag).replace("_", " ") for flag in verdict.get("flags") or ()]
        cell["votes"] = verdict["votes"] if verdict.get("votes", 1) > 1 else None
        cell["inferred"] = not verdict.get("grounded", True)
    if row.failure is not None:
        cell["failure"] = [row.failure["kind"], _text(str(row.failure.get("detail") or ""))]
        if row.failure.get("raw_text"):
            cell["raw"] = _text(row.failure["raw_text"])
    if row.better is not None and row.worse is not None:
        cell["prefers"] = round(row.better.per_token - row.worse.per_token, 4)
    cell |= {
        "tokens": row.answer_tokens,
        "truncated": row.truncated,
        "reward": None if row.reward is None else round(row.reward, 3),
        "margin": None if row.pick_margin is None else round(row.pick_margin, 3),
    }
    # By identity where it matters: a reward of 0 is one.
    return {
        name: value
        for name, value in cell.items()
        if name == "text" or (value is not None and value is not False and value not in ("", []))
    }


def _spans(quote: str, answer: str) -> list[tuple[int, int]]:
    """Where a judge's quote stands in the answer as the page shows it, in JavaScript's units.

    Judges copy with other blanks, quotation marks and bullets, and leave out with an ellipsis; so a quote is
    looked for by its words, its pieces in order. Nothing where a piece is not found: half of a quote marked
    would look like a short quote.
    """
    spans = []
    at = 0
    for piece in re.split(r"\.{3,}|…|\[…\]", quote):
        words = re.findall(r"\w+", piece)
        if not words:
            continue
        found = re.compile(r"\W+".join(map(re.escape, words)), re.IGNORECASE).search(answer, at)
        if found is None:
            return []
        spans.append((found.start(), found.end()))
        at = found.end()
    return [(_units(answer[:start]), _units(answer[:end])) for start, end in spans]


def _units(text: str) -> int:
    """Length of the text as the page shows it, in UTF-16 units."""
    shown = printable(text)
    return len(shown) + sum(c > "\uffff" for c in shown)


# ---------------------------------------------------------------- tables


BELOW = {"label-tests": "changes", "picking-writing": "picking"}
"""Tables that stand below a figure, where it is drawn."""


def _tables(report: Mapping[str, Any], drawn: Collection[str]) -> dict[str, Any]:
    """What stands above the answers: the tables of report.md, in its words.

    Args:
        drawn: names of the figures that the page has.
    """
    two = "after" in report["policies"]
    found = {table.key: _shown(table) for table in tables(report)}
    in_place = {key: table for key, table in found.items() if BELOW.get(key) in drawn}
    return {
        "two": two,
        "policies": [(name, _text(policy)) for name, policy in report["policies"].items()],
        "judge": _text(report["judge"] or ""),
        "rubric": _text(report["rubric_version"] or ""),
        "counts": report["items"],
        "several": f"{many:.3g}" if (many := several(report)) else "",
        "headline": [(name, *_headline(told)) for name, told in report["headline"].items()],
        "metrics": main_rows(report),
        "bands": bool(beside_of_report(report.get("published"))),
        "below": [_said(line) for line in main_below(report)],
        "tables": [table for key, table in found.items() if key not in in_place],
        "in_place": in_place,
        "failures": [_said(line) for line in failure_lines(report, only_failed=True)],
        "notes": [_text(note) for note in (*report.get("headline_notes", ()), *report["notes"])],
        "facts": [(_text(name), _said(value)) for name, value in fact_lines(report)],
    }


def _headline(told: Mapping[str, Any]) -> tuple[str, str]:
    """The number, and its interval or why there is none; no number where it is withheld."""
    text = headline(**told)
    if told["value"] is None:
        return "", text
    number, _, interval = text.partition(" ")
    return number, interval


def _shown(table: Table) -> dict[str, Any]:
    return {
        "key": table.key,
        "heading": table.heading,
        "said": _said(table.said),
        "header": [_said(cell) for cell in table.header],
        "rows": [[_said(cell) for cell in row] for row in table.rows],
        "below": [_said(line) for line in table.below],
    }


def _said(text: Text) -> str:
    """A sentence or a cell; the template escapes it."""
    pieces = (text,) if isinstance(text, str) else text
    return "".join(_text(one) if isinstance(one, FromData) else one for one in pieces)
