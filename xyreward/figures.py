"""Figures of an evaluation as SVG, for the page and as files, and as PNG where an extra is installed.

    goals      share of answers that mention, focus on and steer to the intended request, per policy and
               reference, in the manner of the figure in the benchmark's announcement
    picking    how often a policy picks the goal-focused answer against how often it writes one
    changes    paired changes of all labels between two policies

Drawn by a template of our own: what is drawn are dots, lines and words, and matplotlib would be 40 MB of
dependencies for a file in which the page's colours, dark mode and screen readers find nothing to hold on
to. PNG needs a renderer of SVG: the extra `figures` (resvg). Colours are those of Okabe & Ito, darkened
where they would fade on white; shapes tell everything that colours do.

Published ranges stand in rows of their own, hatched, below a rule, and never behind a figure of yours.

Not here: the numbers (`metrics.py`, `paired.py`).
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from string import Template
from typing import Any

from markupsafe import Markup

from xyreward import shown
from xyreward.markdown import printable
from xyreward.published import Band, beside_of_report
from xyreward.self_contained import environment
from xyreward.stats import Estimate
from xyreward.words import of_whom

GOALS = (
    ("intended_solution", "mentions it", "intended solution, %"),
    ("focus_intended", "focuses on it", "focus intended, %"),
    ("paper_focus_intended", "of the paper's three", "focus neither left out, %"),
    ("misconception", "steers to it", "misconception identified, %"),
)
"""Keys of metrics, with what the announcement's verbs and our labels call them."""

OF_THREE = (
    "Ranges of writing are shares of the answers with one of the paper's three labels of focus; marks above "
    "are shares of all answers, with our four."
)
"""In the figure itself, as it is quoted without its page."""

WIDTH = 960
ROW = 24
HEADING = 26


@dataclass(frozen=True)
class Series:
    """A policy or a reference, as a row of a figure."""

    name: str
    style: str
    """`s0` (before) to `s4`, with ` hollow` where the intended request was given away."""
    lines: Mapping[str, Estimate]
    """Metric key to its figure; what was not measured is not there."""
    gap: Mapping[str, Estimate] = field(default_factory=dict)
    """`picking`, `writing` and `gap`, of `paired.Gap`; empty where no item has both."""


@dataclass(frozen=True)
class Figure:
    """A figure that is laid out and can be written."""

    name: str
    """Of its file, and of the ids in it."""
    title: str
    description: str
    """Everything that the figure shows, in words: for those who do not see it."""
    width: int
    height: int
    texts: Sequence[Mapping[str, Any]] = field(repr=False)
    lines: Sequence[Mapping[str, Any]] = field(repr=False)
    bands: Sequence[Mapping[str, Any]] = field(repr=False)
    marks: Sequence[Mapping[str, Any]] = field(repr=False)

    def svg(self, *, alone: bool = True) -> str:
        """The figure's SVG.

        Args:
            alone: as a file of its own, on white; False: for a page that has `page_css()`.
        """
        return environment().get_template("figure.svg.jinja").render(
            alone=alone,
            css=Markup(_rules(LIGHT)),  # noqa: S704  # ours
            **{name: getattr(self, name) for name in self.__dataclass_fields__},
        ) + "\n"  # fmt: skip

    def png(self, *, scale: float = 2.0) -> bytes | None:
        """The figure as PNG, `scale` pixels per unit.

        None where the extra `figures` is not installed, or the machine has no font: resvg would leave
        out all words without saying so.
        """
        return _render(self.svg(), scale) if can_render() else None


@cache
def can_render() -> bool:
    """Whether there is a renderer, and whether it finds a font."""
    if importlib.util.find_spec("resvg_py") is None:
        return False
    ns = "http://www.w3.org/2000/svg"
    word = f'<svg xmlns="{ns}" width="40" height="20"><text y="15">x</text></svg>'
    return _render(word, 1) != _render(word.replace("x</", "</"), 1)


def _render(svg: str, scale: float) -> bytes:
    import resvg_py

    # Wherever the families of the figure are missing, any sans serif will do.
    png = resvg_py.svg_to_bytes(svg_string=svg, zoom=scale, font_family="DejaVu Sans")
    return bytes(png)


# ---------------------------------------------------------------- colours

LIGHT = {
    "ink": "#21201d", "quiet": "#66625a", "line": "#ddd8cd", "ground": "#ffffff", "rule": "#8a8578",
    "s0": "#0072b2", "s1": "#c95500", "s2": "#00795a", "s3": "#a8437e", "s4": "#7a5c00",
}  # fmt: skip
DARK = {
    "ink": "#ece8df", "quiet": "#a8a294", "line": "#3b3833", "ground": "#211f1c", "rule": "#8f897b",
    "s0": "#56b4e9", "s1": "#f0a04b", "s2": "#3fc7a0", "s3": "#e39ac4", "s4": "#e6d05a",
}  # fmt: skip
STYLES = ("s0", "s1", "s2", "s3", "s4")
_SHAPES = {
    "s0": "circle",
    "s1": "M-4.2,-4.2H4.2V4.2H-4.2Z",
    "s2": "M0,-5.6L5.4,4H-5.4Z",
    "s3": "M0,-6L6,0L0,6L-6,0Z",
    "s4": "M0,5.6L5.4,-4H-5.4Z",
}
_PICKS = "M0,-6L6,0L0,6L-6,0Z"

_RULES = Template("""
.figure text { font: 12px "DejaVu Sans", "Noto Sans", "Segoe UI", system-ui, sans-serif; fill: $ink; }
.figure .small { font-size: 11px; fill: $quiet; }
.figure .strong { font-weight: 600; }
.figure .grid { stroke: $line; stroke-width: 1; }
.figure .zero { stroke: $rule; stroke-width: 1; }
.figure .rule { stroke: $rule; stroke-width: 1; stroke-dasharray: 2 3; }
.figure .join { stroke: $rule; stroke-width: 1.5; }
.figure .whisker { stroke-width: 2; fill: none; }
.figure .mark { stroke-width: 2; }
.figure .published { stroke: $rule; stroke-width: 1; }
.figure .hatch { stroke: $rule; stroke-width: 1.5; }
.figure .hatch-ground { fill: $ground; }
.figure .ground { fill: $ground; }
""")
_STYLE = Template(
    ".figure .$s { stroke: $c; fill: $c; }\n.figure .hollow.$s { fill: $ground; stroke: $c; }\n"
)


def _rules(colours: Mapping[str, str]) -> str:
    styles = "".join(_STYLE.substitute(s=s, c=colours[s], ground=colours["ground"]) for s in STYLES)
    return _RULES.substitute(colours) + styles


def page_css() -> str:
    """The rules of all figures in a page, in its light and dark colours."""
    light = {**LIGHT, "ground": "#fbfaf7"}
    dark = {**DARK, "ground": "#191816"}
    return f"{_rules(light)}@media screen and (prefers-color-scheme: dark) {{{_rules(dark)}}}\n"


# ---------------------------------------------------------------- what is drawn


def series_of(report: Mapping[str, Any]) -> list[Series]:
    """A row for every policy, condition and reference of which answers were judged, in that order."""
    two = "after" in report["policies"]
    found = [
        Series(
            of_whom(name, two=two),
            _style(name),
            {m["key"]: Estimate(**m[name]) for m in report["metrics"] if m[name]},
            _gap(report.get("picking_writing_gap", {}).get(name)),
        )
        for name in report["policies"]
    ]
    found += [
        Series(
            of_whom(condition["name"], two=two),
            _style(condition["name"]),
            {m["key"]: Estimate(**m["value"]) for m in condition["metrics"] if m["value"]},
        )
        for condition in report.get("conditions", ())
        if condition["metrics"]
    ]
    keys = [key for key, _, _ in GOALS]
    return [one for one in found if any(key in one.lines for key in keys)]


def _style(name: str) -> str:
    first, _, condition = name.partition(".")
    style = {"before": "s0", "after": "s1", "reference": "s2"}.get(first, "s3")
    return style + " hollow" * bool(condition and first != "reference")


def _gap(gap: Mapping[str, Any] | None) -> Mapping[str, Estimate]:
    return {name: Estimate(**value) for name, value in (gap or {}).items() if value}


def goals(report: Mapping[str, Any]) -> Figure | None:
    """Mention, focus on, steer to the intended request: a panel each. None where nothing was judged."""
    series = series_of(report)
    if not series:
        return None
    sheet = _Sheet(len(GOALS), low=0, high=100, ticks=(0, 50, 100))
    for i, (_, verb, label) in enumerate(GOALS):
        sheet.title(i, verb, label)
    for one in series:
        sheet.row(one.name)
        for i, (key, verb, _) in enumerate(GOALS):
            sheet.mark(i, one.lines.get(key), one.style, said=f"{one.name} {verb}")
    of_people = any(one.style == "s2" for one in series)
    panels = {key: i for i, (key, _, _) in enumerate(GOALS)}
    _published(sheet, report, panels, of_people=of_people)
    return sheet.figure(
        "goals",
        "Share of answers that mention, focus on and steer to the intended request, %",
    )


def picking(report: Mapping[str, Any]) -> Figure | None:
    """Picking against writing, over items with both; None where nothing was picked."""
    rows = [(one, one.gap) for one in series_of(report) if one.gap]
    if not rows:
        return None
    sheet = _Sheet(1, low=0, high=100, ticks=(0, 25, 50, 75, 100))
    sheet.title(
        0, "diamond: picks the goal-focused answer; other mark: writes one (focus intended)", ""
    )
    for one, gap in rows:
        sheet.row(one.name, height=ROW + 8)
        sheet.join(0, gap["writing"], gap["picking"])
        sheet.mark(0, gap["writing"], one.style, dy=5, said=f"{one.name} writes", text=False)
        sheet.mark(
            0, gap["picking"], one.style, dy=-5, said=f"{one.name} picks", text=False, picks=True
        )
        sheet.value(0, shown.figure(gap["gap"], signed=True))
        sheet.say(f"{one.name}, picking minus writing: {shown.figure(gap['gap'], signed=True)}")
    _published(sheet, report, {"picking": 0, "paper_focus_intended": 0}, named=True)
    return sheet.figure(
        "picking", "Picking the goal-focused answer against writing one, % of items"
    )


def changes(report: Mapping[str, Any]) -> Figure | None:
    """Paired changes of labels, picking and preference; None with one policy."""
    rows = [
        m for m in report["metrics"]
        if m["change"] and m["unit"] == "%" and m["kind"] and not m["key"].startswith("paper_")
    ]  # fmt: skip
    if not rows:
        return None
    furthest = max(
        abs(x)
        for m in rows
        for x in (m["change"]["low"], m["change"]["high"], m["change"]["value"])
        if x is not None
    )
    end = next(e for e in (10, 25, 50, 100) if 100 * furthest <= e)
    sheet = _Sheet(1, low=-end, high=end, ticks=(-end, -end / 2, 0, end / 2, end))
    sheet.title(0, "after minus before, percentage points", "")
    kind = None
    for m in rows:
        if m["kind"] != kind:
            kind = m["kind"]
            sheet.heading(shown.KINDS[kind])
        sheet.row(m["title"] + shown.ARROWS.get(m["better"], ""))
        change = Estimate(**m["change"])
        sheet.mark(
            0, change, "s1" if change.excludes(0) else "s1 hollow", said=m["title"], signed=True
        )
    return sheet.figure("changes", "Paired changes, after minus before, in percentage points")


def _published(
    sheet: _Sheet,
    report: Mapping[str, Any],
    panels: Mapping[str, int],
    *,
    named: bool = False,
    of_people: bool = False,
) -> None:
    """Rows of published ranges, below a rule.

    Args:
        panels: which one a metric's range stands in.
        named: picks and what is written share a panel, and the names of rows tell them apart.
        of_people: answers that are no policy's are drawn, beside which ranges of people may stand.
    """
    published = report.get("published")
    if not published:
        return
    beside = beside_of_report(published)
    bands = [*beside.values()]
    if of_people:
        bands += beside_of_report(published, over="human").values()
    bands = bands or [Band(**band) for band in published["bands"]]
    rows: dict[str, list[Band]] = {}
    for band in bands:
        if band.metric in panels:
            verb = " pick" * (band.metric == "picking") or " write"
            label = f"{band.over.partition(' (')[0]}{verb if named else ''}, {band.items}"
            rows.setdefault(label, []).append(band)
    if not rows:
        return
    sheet.rule()
    where = f"on {published['beside']}" if beside else "on other items, not for comparison"
    sheet.heading(
        f"Published by {published['source']}, judge {published['judge']}, {where}: ranges"
    )
    if named and any(b.metric.startswith("paper_") for found in rows.values() for b in found):
        sheet.heading(OF_THREE)
        sheet.say(OF_THREE.removesuffix("."))
    for label, found in rows.items():
        sheet.row(label, quiet=True)
        for band in found:
            sheet.band(panels[band.metric], band, said=label)


def drawn(report: Mapping[str, Any]) -> list[Figure]:
    """All figures for which there is something to draw."""
    figures = goals(report), picking(report), changes(report)
    return [figure for figure in figures if figure is not None]


# ---------------------------------------------------------------- layout


class _Sheet:
    """Rows with a mark in each panel, from top to bottom."""

    def __init__(self, panels: int, *, low: float, high: float, ticks: Iterable[float]) -> None:
        self.low, self.high, self.ticks = low, high, tuple(ticks)
        # One panel leaves room for longer labels and signed values.
        self.label, value, self.letters = (206, 84, 31) if panels > 1 else (300, 114, 46)
        room = (WIDTH - self.label) / panels
        self.panels = [
            (self.label + i * room + 8, self.label + (i + 1) * room - value) for i in range(panels)
        ]
        self.texts: list[dict[str, Any]] = []
        self.lines: list[dict[str, Any]] = []
        self.bands: list[dict[str, Any]] = []
        self.marks: list[dict[str, Any]] = []
        self.said: list[str] = []
        self.grid: list[dict[str, Any]] = []
        self.axis = 52.0 if panels > 1 else 36.0
        self.top = self.y = 62.0 if panels > 1 else 46.0
        """Where a block of rows begins, and where the next row will."""
        self.middle = 0.0

    def x(self, panel: int, value: float) -> float:
        left, right = self.panels[panel]
        return round(left + (value - self.low) / (self.high - self.low) * (right - left), 1)

    def text(self, x: float, y: float, text: str, css: str = "", anchor: str = "start") -> None:
        self.texts.append(
            {"x": round(x, 1), "y": round(y, 1), "text": text, "css": css, "anchor": anchor}
        )

    def line(self, css: str, x1: float, y1: float, x2: float, y2: float) -> None:
        self.lines.append(_line(css, x1, y1, x2, y2))

    def say(self, text: str) -> None:
        self.said.append(text)

    def title(self, panel: int, first: str, second: str) -> None:
        self.text(self.panels[panel][0], 16, first, "strong")
        self.text(self.panels[panel][0], 32, second, "small")

    def row(self, label: str, *, height: float = ROW, quiet: bool = False) -> None:
        self.middle = self.y + height / 2
        self.y += height
        self.text(
            0, self.middle + 4, short(printable(label), self.letters), "small" if quiet else ""
        )

    def heading(self, text: str) -> None:
        self.block()
        self.y += HEADING
        self.top = self.y
        self.text(0, self.y - 7, text, "small")

    def rule(self) -> None:
        self.block()
        self.y = self.top = self.y + 8
        self.line("rule", 0, self.y, WIDTH, self.y)

    def mark(
        self, panel: int, estimate: Estimate | None, style: str, *, said: str, dy: float = 0,
        text: bool = True, signed: bool = False, picks: bool = False,
    ) -> None:  # fmt: skip
        told = shown.figure(estimate, signed=signed)
        self.say(f"{said}: {told}")
        if text:
            self.value(panel, told)
        if estimate is None:
            return
        ends = (estimate.low, estimate.high)
        low, high = (None if end is None else self.x(panel, 100 * end) for end in ends)
        shape = _PICKS if picks else _SHAPES[style[:2]]
        self.marks.append(
            {
                "css": style, "shape": "circle" if shape == "circle" else "path", "path": shape,
                "x": self.x(panel, 100 * estimate.value), "y": round(self.middle + dy, 1),
                "low": low, "high": high,
            }
        )  # fmt: skip

    def join(self, panel: int, first: Estimate, second: Estimate) -> None:
        self.line(
            "join", self.x(panel, 100 * first.value), self.middle + 5,
            self.x(panel, 100 * second.value), self.middle - 5,
        )  # fmt: skip

    def value(self, panel: int, text: str) -> None:
        short_text = text.partition(" [no interval")[0]
        self.text(self.panels[panel][1] + 10, self.middle + 4, short_text, "small")

    def band(self, panel: int, band: Band, *, said: str) -> None:
        low = self.x(panel, self.low if band.low is None else band.low)
        high = self.x(panel, self.high if band.high is None else band.high)
        self.bands.append(
            {"x": low, "y": round(self.middle - 6, 1), "width": round(high - low, 1), "height": 12}
        )
        self.value(panel, str(band))
        self.say(f"published, {said}: {band}")

    def block(self) -> None:
        """Draw the grid behind the rows since the last heading."""
        if self.y > self.top:
            for panel in range(len(self.panels)):
                for tick in self.ticks:
                    x = self.x(panel, tick)
                    css = "zero" if tick == 0 else "grid"
                    self.grid.append(_line(css, x, self.top, x, self.y))

    def figure(self, name: str, title: str) -> Figure:
        self.block()
        for panel in range(len(self.panels)):
            for tick in self.ticks:
                self.text(self.x(panel, tick), self.axis, f"{tick:g}", "small", "middle")
        return Figure(
            name, title, "; ".join(map(printable, self.said)) + ".", WIDTH, round(self.y + 8),
            self.texts, [*self.grid, *self.lines], self.bands, self.marks,
        )  # fmt: skip


def _line(css: str, x1: float, y1: float, x2: float, y2: float) -> dict[str, Any]:
    ends = {"x1": x1, "y1": y1, "x2": x2, "y2": y2}
    return {"css": css, **{name: round(value, 1) for name, value in ends.items()}}


def short(text: str, letters: int) -> str:
    """The text with its middle left out where it is longer than `letters`: names differ at their ends."""
    if len(text) <= letters:
        return text
    head = (letters - 1) // 3
    return f"{text[:head]}…{text[len(text) - (letters - 1 - head) :]}"
