"""The data card of items that were built: where they come from, the funnel, licences, examples."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from xyreward.construct.gates import GateFigures
from xyreward.construct.stages import Funnel
from xyreward.items import Item
from xyreward.markdown import code, fenced, plain
from xyreward.shown import estimated

EXAMPLES = 3
PROBLEMS = 50

OF_THREADS = (
    "Requests, misconceptions and solutions were written by a model and not checked by a person. Each "
    "solution and misconception names the text that supports it, in `meta.evidence`; every quote occurs "
    "there. References have no labels."
)


def card(
    *,
    title: str,
    made_of: str,
    items: Sequence[Item],
    funnel: Funnel,
    gates: GateFigures,
    facts: Mapping[str, str],
    problems: Sequence[str],
    problem_count: int,
    notes: str = OF_THREADS,
) -> str:
    """The card as Markdown.

    Args:
        title: of the page.
        made_of: source, model and prompt, in a line.
        items: those that were built.
        funnel: all stages.
        gates: what the quality gates saw.
        facts: what else was counted, name to figure.
        problems: rows that could not be used, a line each, as many as were kept.
        problem_count: how many there were.
        notes: what was written by whom, and what was checked.
    """
    kinds = Counter(item.kind for item in items)
    spread = ", ".join(step.name for step in funnel.steps if step.spread)
    dates = sorted({one["date"] for item in items for one in item.meta.get("provenance", ())})
    lines = [
        f"# {plain(title)}",
        "",
        f"{len(items):,} items: {kinds['xy']:,} with a hidden goal, {kinds['control']:,} controls. "
        f"Made of {plain(made_of)}"
        + (f"; replies of {dates[0]} to {dates[-1]}." if dates else "."),
        "",
        notes,
        "",
        "## Stages",
        "",
        funnel.to_markdown(),
        "In = kept + dropped + failed, in every line"
        + (f" but {spread}, where each row becomes several." if spread else "."),
        "",
        *(f"- {name}: {plain(value)}" for name, value in facts.items()),
        "",
        *_gates(gates),
        "## Licences and attribution",
        "",
        "Author, link and licence of each text are in `meta.attribution` and go with the item.",
        "",
        "| licence | texts |",
        "|---|---:|",
        *(f"| {plain(name)} | {n:,} |" for name, n in _licences(items).most_common()),
        "",
    ]
    if items:
        lines += ["## Examples", ""]
    for item in _examples(items):
        lines += [f"### {code(item.id)}, {item.kind}", "", fenced(item.query_text), ""]
        lines += [f"- asked: {plain(item.stated_request)}"]
        if item.kind == "xy":
            lines += [
                f"- wanted: {plain(item.intended_request)}",
                f"- misconception: {plain(item.misconception)}",
            ]
            for one in item.meta.get("gates", {}).get("inference", ()):
                hit = "the same" if one["same"] else "another"
                lines += [f"- inferred from the query alone: {plain(one['goal'])} ({hit})"]
        lines += [""]
    if problem_count:
        lines += ["## Rows that could not be used", ""]
        lines += [f"- {plain(line)}" for line in problems[:PROBLEMS]]
        if problem_count > PROBLEMS:
            lines += [f"- and {problem_count - PROBLEMS:,} more"]
        lines += [""]
    return "\n".join(lines)


def _gates(gates: GateFigures) -> list[str]:
    lines = [
        "## Quality gates",
        "",
        "Figures are of all items that reached a gate, also those that it dropped; brackets are 95 % "
        "intervals over groups of items. n counts what was measured; replies that failed are no part of it.",
        "",
        "| figure | value | n |",
        "|---|---:|---:|",
    ]
    for name, figure in gates.figures.items():
        n = 0 if figure is None else figure.n
        lines.append(f"| {plain(name)} | {estimated(figure, digits=2)} | {n:,} |")
    lines += [""]
    for gate, version in gates.prompts.items():
        whom = f" by {code(gates.models[gate])}" if gate in gates.models else ""
        lines.append(f"- {gate}:{whom} {code(version)}")
    lines += [f"- {gate}: off, {why}" for gate, why in gates.off.items()]
    return [*lines, ""]


def _licences(items: Sequence[Item]) -> Counter[str]:
    found: Counter[str] = Counter()
    for item in items:
        for told in item.meta.get("attribution", {}).values():
            for one in told if isinstance(told, list) else [told]:
                found[one.get("licence", "unknown")] += 1
    return found


def _examples(items: Sequence[Item]) -> list[Item]:
    shown = [item for item in items if item.kind == "xy"][: EXAMPLES - 1]
    return shown + [item for item in items if item.kind == "control"][:1]
