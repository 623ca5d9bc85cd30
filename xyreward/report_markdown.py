"""report.md: the report as a page that reads in a terminal; the main table first, then what says something.

Text from data enters the page as code only; answers are in the run folder's JSONL.

Not here: what the tables say (`report_tables.py`), the page with charts (`report_page.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from xyreward.markdown import code, plain
from xyreward.published import beside_of_report
from xyreward.report_tables import (
    FromData,
    Name,
    Table,
    Text,
    fact_lines,
    failure_lines,
    main_below,
    main_rows,
    several,
    tables,
)
from xyreward.shown import headline
from xyreward.words import counted

EXPLAINED = "xyreward's docs/report.md"

Row = Sequence[str]
Data = Mapping[str, Any]


def to_markdown(report: Data) -> str:
    """The report as a page. Reports of schema 1 have fewer sections."""
    two = "after" in report["policies"]
    out = [*_intro(report, two), "", *_headline_lines(report), "", *_main_table(report, two), ""]
    for table in tables(report):
        out += [*_section(table), ""]
    out += ["## Notes", "", *(f"- {in_markdown(line)}" for line in failure_lines(report))]
    out += [f"- {plain(note)}" for note in report["notes"]]
    out += [f"- every row and every key of report.json is explained in {EXPLAINED}"]
    if report["facts"]:
        out += ["", "## Facts", ""]
        out += [
            f"- {in_markdown(name)}: {in_markdown(value)}" for name, value in fact_lines(report)
        ]
    return "\n".join(out).rstrip() + "\n"


def _intro(report: Data, two: bool) -> list[str]:
    numbers = report["items"]
    answers = f", {many:.3g} answers to each" if (many := several(report)) else ""
    judge = (
        f"Judge: {code(report['judge'])} ({code(report['rubric_version'])}). "
        if report["judge"]
        else ""
    )
    return [
        "# Held-out evaluation",
        "",
        f"{counted(numbers['xy'], 'item')} with a hidden goal, {counted(numbers['control'], 'control')}"
        f"{answers}. {judge}"
        "Brackets are 95 % intervals over clusters of items (BCa bootstrap, expanded for few clusters)"
        + ("; changes are paired by item." if two else "."),
        "",
        "; ".join(
            f"{name if two else 'policy'}: {code(policy)}"
            for name, policy in report["policies"].items()
        )
        + ".",
    ]


def _headline_lines(report: Data) -> list[str]:
    out = [
        "Headline, P(intended solution and focus | hidden goal) + P(direct answer | control) - 1, "
        "in [-1, 1]; a policy that ignores the query cannot exceed 0:",
        "",
    ]
    for name, value in report["headline"].items():
        name = name if len(report["headline"]) > 1 else "value"
        out.append(f"- {name}: {headline(**value)}")
    if notes := report.get("headline_notes"):
        out += ["", *map(plain, notes)]
    return out


def _main_table(report: Data, two: bool) -> list[str]:
    header = ["", "n", "before", "after", "change"] if two else ["", "n", "value"]
    bands = bool(beside_of_report(report.get("published")))
    if bands:
        header.append("published range, %")
    rows: list[Row] = []
    for heading, of_kind in main_rows(report):
        rows.append([f"**{heading}**"] + [""] * (len(header) - 1))
        for row in of_kind:
            cells = [figure + (f" ({bounds})" if bounds else "") for figure, bounds in row.figures]
            rows.append([row.title, row.n, *cells, *([row.band] if bands else [])])
    out = _table(header, rows)
    for line in main_below(report):
        out += ["", in_markdown(line)]
    return out


def _section(table: Table) -> list[str]:
    out = [f"## {table.heading}", ""] if table.heading else []
    out.append(in_markdown(table.said))
    if table.rows:
        cells = [[in_markdown(cell) for cell in row] for row in table.rows]
        out += ["", *_table([in_markdown(cell) for cell in table.header], cells)]
    for line in table.below:
        out += ["", in_markdown(line)]
    return out


def in_markdown(text: Text) -> str:
    """A sentence or a cell; names as code, other text from data so that it is no mark-up."""
    pieces = (text,) if isinstance(text, str) else text
    return "".join(
        code(one) if isinstance(one, Name) else plain(one) if isinstance(one, FromData) else one
        for one in pieces
    )


def _table(header: Row, rows: Iterable[Row]) -> list[str]:
    return [
        "| " + " | ".join(header) + " |",
        "|---|" + "---:|" * (len(header) - 1),
        *("| " + " | ".join(row) + " |" for row in rows),
    ]
