"""A page of HTML or Markdown as a guide has it: title, sections with steps, warnings, tips.

Markdown becomes HTML first (markdown-it-py), so that both are read by one reader, a tokenizer that refuses no
text. Nothing is fetched and no script is run.

    page -> blocks (heading, text, entry of a list, each in a zone of warnings or tips or in none) -> sections

Not here: files, and JSONL (`guides.py`).
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Literal

from markdown_it import MarkdownIt

from xyreward.construct.html_text import Tokenizer, html_text
from xyreward.strict_json import parse_json

Zone = Literal["", "warning", "tip", "needs", "apart"]
"""Of a block: a warning, a tip, what is needed, or not of the guide (references, comments, contents)."""

_ZONES: Mapping[Zone, str] = {
    "warning": r"(?:warnings?|cautions?|dangers?|attention|safety|common mistakes|pitfalls|important|"
    r"warnung(?:en)?|achtung|vorsicht|advertencias?|precauci[oó]n(?:es)?|avisos?|avertissements?|注意(?:事项)?|警告)",
    "tip": r"(?:tips?|hints?|tips and tricks|notes?|tipps?|hinweise?|consejos?|conseils?|提示|小贴士|小提示)",
    "needs": r"(?:(?:things|what) you(?:(?:'|\u2019)ll| will)? need|you will need|ingredients|materials|"
    r"supplies|tools|equipment|requirements|prerequisites|before you (?:begin|start)|overview|"
    r"was du brauchst|zutaten|materiales|ingredientes|cosas que necesitar[aá]s)",
    "apart": r"(?:references|sources(?: and citations)?|see also|related(?: articles)?|further reading|"
    r"(?:table of )?contents|on this page|about this (?:article|guide)|comments|community q ?(?:&|and) ?a|"
    r"questions (?:&|and) answers|faq|credits|licen[cs]e|changelog)",
}
"""Headings that say what stands below them."""

_HEADINGS = {zone: re.compile(pattern, re.IGNORECASE) for zone, pattern in _ZONES.items()}
_BEGINS: Mapping[Zone, re.Pattern[str]] = {
    zone: re.compile(
        rf"\W{{0,8}}(?:\[!)?{_ZONES[zone]}\W{{0,4}}?(?:\]|[:!\uff1a])\W{{0,8}}", re.IGNORECASE
    )
    for zone in ("warning", "tip")
}
"""`Warning: ...`, `[!WARNING] ...`: how a paragraph says what it is."""
_CLASSES: Mapping[str, Zone] = {
    **dict.fromkeys(("warning", "warnings", "caution", "danger", "attention"), "warning"),
    **dict.fromkeys(("tip", "tips", "hint"), "tip"),
}
_STEP = re.compile(
    r"(?:(?:step|schritt|paso|étape)\s+\d+\s*(?:[.):\uff1a-]|\u2013|\u2014|$)|\d{1,2}[.)]\s)\s*(.*)",
    re.IGNORECASE | re.DOTALL,
)
"""A heading that is a step: `Step 3: Rinse it`, `3. Rinse it`."""


@dataclass(frozen=True, slots=True)
class Section:
    """A part of a guide, or all of it."""

    title: str = ""
    text: str = ""
    """What is said beside the steps."""
    steps: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Page:
    """What a page says of itself."""

    title: str = ""
    sections: tuple[Section, ...] = ()
    warnings: tuple[str, ...] = ()
    tips: tuple[str, ...] = ()
    facts: Mapping[str, str] = field(default_factory=dict)
    """`author`, `licence`, `link`, where the page names them."""


def markdown_page(text: str) -> Page:
    """A page of Markdown without front matter: CommonMark, tables, the usual forms of warnings."""
    parser = MarkdownIt("commonmark").enable("table")
    return html_page(parser.render("\n".join(_quoted(text.replace("\r\n", "\n").split("\n")))))


def html_page(text: str) -> Page:
    """A page, or a part of one. schema.org's HowTo is preferred to lists, where the page has one."""
    reader = _Reader()
    reader.read(text)
    reader.end()
    page = _page(reader.blocks, "".join(reader.title))
    facts = {k: v for k, v in reader.facts.items() if v}
    for document in reader.documents:
        found = _how_to(document)
        if found is not None and any(section.steps for section in found.sections):
            return Page(
                title=found.title or page.title,
                sections=found.sections,
                warnings=page.warnings,
                tips=found.tips or page.tips,
                facts={**facts, **found.facts},
            )
    return Page(page.title, page.sections, page.warnings, page.tips, facts)


# ---------------------------------------------------------------- Markdown's forms of warnings


_BANGS = re.compile(r"(?:!!!|\?\?\?\+?)\s+([\w-]+)(?:\s+\"(.*)\")?\s*")
_COLONS = re.compile(r":{3,}\s*\{?\s*\.?([a-z-]+)\s*\}?.*", re.IGNORECASE)
_CODE = re.compile(r"\s{0,3}(`{3,}|~{3,})")


def _quoted(lines: Sequence[str]) -> Iterator[str]:
    """`!!! warning` with its indented lines, and `::: warning` to `:::`, as block quotes."""
    code, bangs, colons = "", False, False
    for line in lines:
        if match := _CODE.match(line):
            code = "" if code and match[1].startswith(code) else code or match[1]
        elif not code and (match := _BANGS.fullmatch(line)):
            bangs, colons = True, False
            yield from ("", f"> [!{match[1].upper()}] {match[2] or ''}")
            continue
        elif not code and not colons and (match := _COLONS.fullmatch(line)):
            bangs, colons = False, True
            yield from ("", f"> [!{match[1].upper()}]")
            continue
        elif colons and not code and re.fullmatch(r":{3,}\s*", line):
            colons = False
            yield ""
            continue
        if bangs and line.strip() and not line.startswith(("    ", "\t")):
            bangs = False
            yield ""
        if bangs:
            line = line.removeprefix("\t") if line.startswith("\t") else line[4:]
        yield f"> {line}" if bangs or colons else line


# ---------------------------------------------------------------- HTML to blocks


@dataclass(frozen=True, slots=True)
class _Block:
    kind: Literal["heading", "text", "numbered", "bullet"]
    text: str
    zone: Zone = ""
    level: int = 0


DEEPEST_LIST = 20
"""Lists inside each other; deeper ones count as part of that one. Each level indents, so that a hostile page
would grow with its square."""

_ENDS_BLOCK = frozenset(
    [
        *(
            "article",
            "aside",
            "blockquote",
            "body",
            "dd",
            "details",
            "div",
            "dl",
            "dt",
            "figcaption",
        ),
        *("figure", "header", "hr", "main", "p", "section", "summary"),
    ]
)
_HIDDEN = frozenset(
    ["button", "footer", "form", "iframe", "nav", "noscript", "script", "style", "svg", "template"]
)
_VOID = frozenset(
    [
        "area",
        "base",
        "br",
        "col",
        "embed",
        "hr",
        "img",
        "input",
        "link",
        "meta",
        "source",
        "track",
        "wbr",
    ]
)
_WHOLE = frozenset(["article", "body", "html", "main"])
"""Whose classes are about more than one remark."""


class _Reader(Tokenizer):
    """Blocks in order. What a list's entry holds, lists included, is one block."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks: list[_Block] = []
        self.title: list[str] = []
        self.facts: dict[str, str] = {"author": "", "licence": "", "link": ""}
        self.documents: list[Any] = []
        self._raw: list[str] = []
        self._kind: Literal["heading", "text", "numbered", "bullet"] = "text"
        self._level = 0
        self._lists: list[str] = []
        self._hidden: list[str] = []
        self._script: list[str] | None = None
        self._in_title = False
        self._zones: list[list[Any]] = []
        """Of each open one: its tag, its zone (None: the first words tell), how many of the tag are open."""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if self._hidden:
            if tag == self._hidden[0]:
                self._hidden.append(tag)
            return
        given = {name: value or "" for name, value in attrs}
        if tag in _HIDDEN:
            self._hidden.append(tag)
            if tag == "script" and given.get("type", "").strip().lower() == "application/ld+json":
                self._script = []
            return
        self._note(tag, given)
        if tag == "title":
            self._in_title = True
            return
        if tag in ("meta", "link"):
            return
        if tag == "a" and "license" in given.get("rel", "").lower():
            self._hidden.append("a")  # it is no remark of the guide
            return
        if self._zones and tag == self._zones[-1][0] == "p":
            self.end()  # paragraphs may be left open, and hold no others
            self._zones.pop()
        if self._zones and tag == self._zones[-1][0]:
            self._zones[-1][2] += 1
        elif not self._in_entry and tag not in _VOID:
            zone = None if tag in _WHOLE else _zone_of_class(given)
            if zone or tag == "blockquote":
                self.end()
                self._zones.append([tag, zone, 1])
                return
        if self._in_entry and not (tag == "li" and len(self._lists) == 1):
            if tag in ("ul", "ol"):
                self._lists.append(tag)
                if len(self._lists) > DEEPEST_LIST:
                    return
            self._raw.append(self.get_starttag_text() or "")
            return
        if tag in ("h1", "h2", "h3", "h4", "h5", "h6"):
            self.end()
            self._kind, self._level = "heading", int(tag[1])
        elif tag in ("ul", "ol"):
            self.end()
            self._lists.append(tag)
        elif tag == "li":
            self.end()
            self._kind = "numbered" if self._lists[-1:] == ["ol"] else "bullet"
        elif tag in _ENDS_BLOCK:
            if self._kind == "text":
                self.end()
        else:
            self._raw.append(self.get_starttag_text() or "")

    def handle_endtag(self, tag: str) -> None:
        if self._hidden:
            if tag == self._hidden[0]:
                self._hidden.pop()
                if not self._hidden:
                    self._end_script()
            return
        if tag == "title":
            self._in_title = False
            return
        if self._in_entry and len(self._lists) > 1:
            if tag in ("ul", "ol"):
                self._lists.pop()
                if len(self._lists) >= DEEPEST_LIST:
                    return
            self._raw.append(f"</{tag}>")
        elif tag in ("ul", "ol"):
            self.end()
            if self._lists:
                self._lists.pop()
        elif (
            tag == "li"
            or (self._kind == "heading" and tag[:1] == "h" and tag[1:].isdigit())
            or (self._kind == "text" and tag in _ENDS_BLOCK)
        ):
            self.end()
        else:
            self._raw.append(f"</{tag}>")
        if self._zones and tag == self._zones[-1][0]:
            self._zones[-1][2] -= 1
            if not self._zones[-1][2]:
                self.end()
                self._zones.pop()

    def handle_data(self, data: str) -> None:
        if self._script is not None:
            self._script.append(data)
        elif self._in_title:
            self.title.append(data)
        elif not self._hidden:
            self._raw.append(html.escape(data, quote=False))

    def end(self) -> None:
        """End the block that is open, if it says anything."""
        text = re.sub(r"\n{3,}", "\n\n", html_text("".join(self._raw)))
        kind, self._kind, self._raw = self._kind, "text", []
        if not text:
            return
        zone: Zone = next((known for _, known, _ in reversed(self._zones) if known), "")
        if kind != "heading":
            told, rest = _told(text)
            if self._zones and self._zones[-1][1] is None:
                self._zones[-1][1] = told  # "" where it is a quotation and nothing else
            zone, text = told or zone, rest
        if text:
            self.blocks.append(_Block(kind, text, zone, self._level))

    @property
    def _in_entry(self) -> bool:
        return self._kind in ("numbered", "bullet")

    def _note(self, tag: str, given: Mapping[str, str]) -> None:
        rel = given.get("rel", "").lower().split()
        if tag == "meta" and given.get("name", "").lower() == "author":
            self.facts["author"] = given.get("content", "").strip()
        elif tag == "link" and "canonical" in rel:
            self.facts["link"] = given.get("href", "").strip()
        elif tag in ("link", "a") and "license" in rel:
            self.facts["licence"] = given.get("href", "").strip()

    def _end_script(self) -> None:
        if self._script is not None:
            with suppress(ValueError):  # the page has lists, too
                self.documents.append(parse_json("".join(self._script)))
            self._script = None


def _zone_of_class(given: Mapping[str, str]) -> Zone | None:
    words = [*re.split(r"[\s_-]+", given.get("class", "").lower()), given.get("id", "").lower()]
    return next((_CLASSES[word] for word in words if word in _CLASSES), None)


def _told(text: str) -> tuple[Zone, str]:
    """What a text says it is, and the text without that."""
    for zone, pattern in _BEGINS.items():
        if match := pattern.match(text):
            return zone, text[match.end() :]
    # A mark without a word of ours: [!INFO]
    return "", re.sub(r"\A\[![A-Z-]+\]\s*", "", text)


# ---------------------------------------------------------------- blocks to sections


@dataclass
class _Open:
    title: str = ""
    texts: list[str] = field(default_factory=list)
    numbered: list[str] = field(default_factory=list)
    bullets: list[str] = field(default_factory=list)
    needs: bool = False


def _page(blocks: Sequence[_Block], title: str) -> Page:
    found: dict[Zone, list[str]] = {"warning": [], "tip": []}
    sections = [_Open()]
    first = next((block.text for block in blocks if block.kind == "heading"), "")
    heading = next((b.text for b in blocks if b.kind == "heading" and b.level == 1), first)
    if _STEP.fullmatch(heading) or _zone_of_heading(heading):
        heading = ""
    named = False
    below: Zone = ""  # what the last heading says of all below it
    level, step = 0, False
    for block in blocks:
        if block.kind == "heading":
            if block.text == heading and not named:
                named = True
                continue
            if block.zone or (below and block.level > level):
                continue
            below, level, step = _zone_of_heading(block.text), block.level, False
            if match := _STEP.fullmatch(block.text):
                step = True
                sections[-1].numbered.append(_line(match[1] or block.text))
            elif below in ("", "needs"):
                sections.append(_Open(_line(block.text), needs=below == "needs"))
            continue
        zone = block.zone or below
        if zone in found:
            found[zone].append(block.text)
        elif zone == "apart":
            continue
        elif step:
            sections[-1].numbered[-1] += f"\n{block.text}"
        elif block.kind == "numbered" and zone != "needs":
            sections[-1].numbered.append(block.text)
        elif block.kind == "bullet":
            sections[-1].bullets.append(block.text)
        else:
            sections[-1].texts.append(block.text)
    # Where nothing is numbered, bullets are the steps; else they are remarks.
    numbered = any(section.numbered for section in sections)
    return Page(
        title=_line(heading or title),
        sections=tuple(
            made for one in sections if (made := _section(one, numbered)) != Section(made.title)
        ),
        warnings=tuple(found["warning"]),
        tips=tuple(found["tip"]),
    )


def _section(one: _Open, numbered: bool) -> Section:
    bullets = [f"- {text}" for text in one.bullets]
    if numbered or one.needs:
        return Section(one.title, "\n\n".join([*one.texts, *bullets]), tuple(one.numbered))
    return Section(one.title, "\n\n".join(one.texts), tuple(one.bullets))


def _zone_of_heading(text: str) -> Zone:
    bare = text.strip(" \t\n:.!\uff1a#")
    return next((zone for zone, heading in _HEADINGS.items() if heading.fullmatch(bare)), "")


def _line(text: str) -> str:
    return " ".join(text.split())


# ---------------------------------------------------------------- schema.org


def _how_to(document: Any) -> Page | None:
    """The HowTo of a JSON-LD document, wherever it lies near the top."""
    if isinstance(document, list):
        return next((page for one in document if (page := _how_to(one))), None)
    if not isinstance(document, dict):
        return None
    if not _is_a(document, "HowTo"):
        return _how_to(document.get("@graph")) or _how_to(document.get("mainEntity"))
    sections: list[Section] = []
    plain: list[str] = []
    for one in _listed(document.get("step")):
        if _is_a(one, "HowToSection"):
            steps = [_step(step) for step in _listed(one.get("itemListElement"))]
            sections.append(Section(_line(_text(one.get("name"))), "", tuple(filter(None, steps))))
        elif step := _step(one):
            plain.append(step)
    if plain:
        sections.insert(0, Section(steps=tuple(plain)))
    if told := _text(document.get("description")):
        sections.insert(0, Section(text=told))
    facts = {
        "author": ", ".join(
            _text(one.get("name") if isinstance(one, dict) else one)
            for one in _listed(document.get("author"))
        ),
        "licence": _text(document.get("license")),
        "link": _text(document.get("url")),
    }
    return Page(
        title=_line(_text(document.get("name"))),
        sections=tuple(sections),
        tips=tuple(filter(None, map(_step, _listed(document.get("tip"))))),
        facts={k: v for k, v in facts.items() if v},
    )


def _is_a(value: Any, kind: str) -> bool:
    if not isinstance(value, dict):
        return False
    return any(
        isinstance(name, str) and name.rsplit("/", 1)[-1] == kind
        for name in _listed(value.get("@type"))
    )


def _step(value: Any) -> str:
    if not isinstance(value, dict):
        return _text(value)
    name, text = _text(value.get("name")), _text(value.get("text"))
    if not text:
        inner = [_step(one) for one in _listed(value.get("itemListElement"))]
        text = "\n".join(filter(None, inner))
    return text if text.startswith(name) else f"{name}\n{text}".strip()


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [] if value is None else [value]


def _text(value: Any) -> str:
    return html_text(value) if isinstance(value, str) else ""
