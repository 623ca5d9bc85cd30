"""Guides: how-to articles with steps, and what they warn of, from Markdown, HTML, JSONL and Parquet.

Files and rows that cannot be used are told with place and reason and left out.

Not here: what a page of Markdown or HTML says (`guide_pages.py`), what becomes of a guide (`guide.py`).
"""

from __future__ import annotations

import os
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from xyreward.config import parse_yaml
from xyreward.construct.guide_pages import Page, Section, html_page, markdown_page
from xyreward.construct.html_text import html_text
from xyreward.construct.thread_files import (
    LONGEST_ID,
    Problems,
    as_text,
    jsonl_rows,
    known_fields,
    looks_like_html,
    parquet_rows,
)
from xyreward.errors import ConfigError
from xyreward.published import refuse_benchmarks_name
from xyreward.words import whole

KINDS: Mapping[str, str] = {
    **dict.fromkeys((".md", ".markdown"), "markdown"),
    **dict.fromkeys((".html", ".htm", ".xhtml"), "html"),
    **dict.fromkeys((".jsonl", ".ndjson"), "jsonl"),
    ".parquet": "parquet",
}
"""End of a file's name -> how it is read."""
LARGEST_FILE = 20 << 20
"""Bytes of a file that is one guide; larger ones hold something else."""


@dataclass(frozen=True, slots=True)
class Guide:
    """A how-to article, and what its licence wants to be told beside it."""

    id: str
    """Within its source: the file's path below the folder that was given, or a row's id, or its file's path
    and its number."""
    title: str
    sections: tuple[Section, ...]
    """In order; the first has no title where it comes before all headings."""
    warnings: tuple[str, ...] = ()
    tips: tuple[str, ...] = ()
    source: str = ""
    """Name of the collection, as items have it in `source`."""
    link: str = ""
    licence: str = ""
    author: str = ""
    domain: str = ""

    @property
    def steps(self) -> tuple[str, ...]:
        """All steps, in order."""
        return tuple(step for section in self.sections for step in section.steps)

    @property
    def passages(self) -> tuple[tuple[str, str], ...]:
        """Each text of the guide with its place: `step 3`, `text 1`, `warning 2`, `tip 1`."""
        texts = [section.text for section in self.sections if section.text]
        kinds = {"step": self.steps, "text": texts, "warning": self.warnings, "tip": self.tips}
        return tuple(
            (f"{kind} {n}", text) for kind, all_ in kinds.items() for n, text in enumerate(all_, 1)
        )

    @property
    def text(self) -> str:
        """All of it as Markdown, steps numbered from 1 to the last."""
        parts = [f"# {self.title}"]
        number = 0
        for section in self.sections:
            parts += [f"## {section.title}"] if section.title else []
            parts += [section.text] if section.text else []
            for step in section.steps:
                number += 1
                parts.append(f"{number}. {_indented(step)}")
        for heading, texts in (("Warnings", self.warnings), ("Tips", self.tips)):
            parts += [f"## {heading}"] if texts else []
            parts += [f"- {_indented(text)}" for text in texts]
        return "\n\n".join(parts)


def _indented(text: str) -> str:
    return text.replace("\n", "\n  ")


@dataclass(frozen=True, slots=True)
class GuideSource:
    """Where guides are read from.

    Raises:
        ConfigError: nothing is given, a file is missing or of a kind that is not read, or a collection would
            have the name of a source of XYBench.
    """

    paths: tuple[Path, ...]
    """Files, and folders of files, in the order in which they are read."""
    name: str = ""
    """Of the collection. Empty: the name of the folder or file that a guide was found under."""
    licence: str = ""
    """Of guides that do not bring theirs."""

    def __post_init__(self) -> None:
        if not self.paths:
            raise ConfigError("no files are given, expected guides or folders of them")
        for path in self.paths:
            if not path.exists():
                raise ConfigError(f"{path}: no such file or folder")
            if not path.is_dir() and path.suffix.lower() not in KINDS:
                raise ConfigError(f"{path.name}: expected a folder or {', '.join(KINDS)}")
            refuse_benchmarks_name(self._name_of(path), "name the collection with --name")

    def _name_of(self, given: Path) -> str:
        # A name of a file may have bytes that are no text, and an item's id may not.
        return whole(self.name or (given.resolve().name if given.is_dir() else given.stem))

    def files(self) -> Iterator[tuple[Path, str, str]]:
        """Each file with its place below what was given, and the name of its source.

        Folders are walked in the order of the names, whatever the system's; hidden files and folders, links
        to folders, and files that are no guides are passed over. Where several files would have one place,
        as those of one name that are given from two folders, it begins with as many of the folders above as
        tell them apart.
        """
        found: list[tuple[Path, str, str]] = []
        for given in self.paths:
            name = self._name_of(given)
            if not given.is_dir():
                found.append((given, given.name, name))
                continue
            found += ((path, path.relative_to(given).as_posix(), name) for path in _walk(given))
        alike: dict[tuple[str, str], list[Path]] = defaultdict(list)
        for path, place, name in found:
            alike[name, place].append(_absolute(path))
        for path, place, name in found:
            yield path, _told_apart(_absolute(path), place, alike[name, place]), name


def _absolute(path: Path) -> Path:
    """The path from the root, without `..`, and by the names that it was given with: links stay."""
    return Path(os.path.abspath(path))  # noqa: PTH100  # Path.resolve() follows links


def _told_apart(path: Path, place: str, alike: Sequence[Path]) -> str:
    """The file's place, with folders above it where other files have the same one.

    Args:
        path: of the file, absolute.
        place: below what was given.
        alike: all files with that place, absolute, itself included.
    """
    for above in range(place.count("/") + 1, len(path.parts) + 1):
        if all(other == path or other.parts[-above:] != path.parts[-above:] for other in alike):
            return place if above == place.count("/") + 1 else "/".join(path.parts[-above:])
    return place


def _walk(folder: Path) -> Iterator[Path]:
    for path in sorted(folder.iterdir(), key=lambda path: path.name):
        if path.name.startswith("."):
            continue
        if path.is_dir() and not path.is_symlink():
            yield from _walk(path)
        elif path.is_file() and path.suffix.lower() in KINDS:
            yield path


def read_guides(
    source: GuideSource, problems: Problems, *, counts: Counter[str] | None = None
) -> Iterator[Guide]:
    """The guides of a source, one by one.

    Args:
        source: files and folders.
        problems: gets what cannot be used: files that are not UTF-8, lines that are no JSON, guides
            without a title or steps, an id that came before, a file that is given twice.
        counts: gets how many files or rows there were, by kind.

    Raises:
        DataError: `problems.strict`, and something cannot be used.
        OSError: a file cannot be read.
    """
    counts = Counter() if counts is None else counts
    seen: set[str] = set()
    files: set[Path] = set()
    for path, place, name in source.files():
        if path.resolve() in files:
            problems.tell(f"{place}: is given more than once; read once")
            continue
        files.add(path.resolve())
        kind = KINDS[path.suffix.lower()]
        rows = _rows(path, place, problems, counts)
        found = rows if kind in ("jsonl", "parquet") else _page(path, place, kind, problems, counts)
        for where, guide in found:
            guide = replace(guide, source=name, licence=guide.licence or source.licence)
            if not guide.title:
                problems.tell(f"{where}: has no title; left out")
            elif not guide.steps:
                problems.tell(f"{where}: has no steps, expected a list, numbered or not; left out")
            elif len(guide.id) > LONGEST_ID:
                n = f"{len(guide.id):,} characters"
                problems.tell(f"{where}: the id has {n}, expected at most {LONGEST_ID}; left out")
            elif f"{name}-{guide.id}" in seen:  # as items name their group
                problems.tell(f"{where}: the id {guide.id!r:.60} came before; left out")
            else:
                seen.add(f"{name}-{guide.id}")
                yield guide


# ---------------------------------------------------------------- a guide per file


_FRONT = re.compile(r"\A---[ \t]*\n(.*?)\n(?:---|\.\.\.)[ \t]*(?:\n|\Z)", re.DOTALL)


def _page(
    path: Path, place: str, kind: str, problems: Problems, counts: Counter[str]
) -> Iterator[tuple[str, Guide]]:
    counts[kind] += 1
    if path.stat().st_size > LARGEST_FILE:
        problems.tell(
            f"{place}: {path.stat().st_size:,} bytes, expected a guide of at most {LARGEST_FILE:,}; left out"
        )
        return
    data = path.read_bytes()
    try:
        text = data.decode("utf-8-sig").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        utf16 = data[:2] in (b"\xff\xfe", b"\xfe\xff")
        problems.tell(
            f"{place}: byte {error.start + 1} (0x{data[error.start]:02x}) is not UTF-8"
            f"{'; it begins as UTF-16 does' if utf16 else ''}; left out"
        )
        return
    if not text.strip():
        problems.tell(f"{place}: is empty; left out")
        return
    told: dict[str, Any] = {}
    if kind == "markdown" and (match := _FRONT.match(text)):
        told, text = _front(match[1], place, problems), text[match.end() :]
    page = markdown_page(text) if kind == "markdown" else html_page(text)
    facts = {**page.facts, **{k: _words(v) for k, v in told.items()}}
    yield place, _guide(facts.get("id") or place, page, facts)


def _front(text: str, place: str, problems: Problems) -> dict[str, Any]:
    try:
        data = parse_yaml(text, f"{place}: front matter")
    except ConfigError as error:
        problems.tell(f"{error}; the guide is read without it")
        return {}
    known = {name: _COLUMNS[name] for name in (*_FACTS, "id", "title")}
    return known_fields(data, known) if isinstance(data, Mapping) else {}


_FACTS = ("author", "licence", "link", "domain")


def _guide(name: str, page: Page, facts: Mapping[str, str]) -> Guide:
    return Guide(
        id=whole(name),
        title=whole(facts.get("title") or page.title),
        sections=tuple(
            Section(whole(one.title), whole(one.text), tuple(map(whole, one.steps)))
            for one in page.sections
        ),
        warnings=tuple(map(whole, page.warnings)),
        tips=tuple(map(whole, page.tips)),
        **{fact: whole(facts.get(fact, "")) for fact in _FACTS},
    )


# ---------------------------------------------------------------- a guide per row


_COLUMNS: Mapping[str, tuple[str, ...]] = {
    "id": ("id", "guideid", "articleid", "pageid"),
    "title": ("title", "name", "headingtitle"),
    "sections": ("sections", "methods", "parts"),
    "steps": ("steps", "instructions", "procedure", "step"),
    "warnings": ("warnings", "warning", "cautions"),
    "tips": ("tips", "tip", "hints", "notes"),
    "headline": ("headline",),
    "label": ("sectionlabel",),
    "text": (
        "text",
        "body",
        "content",
        "intro",
        "introduction",
        "description",
        "overview",
        "summary",
    ),
    "author": ("author", "authors", "by", "creator"),
    "licence": ("licence", "license", "contentlicense", "rights"),
    "link": ("link", "url", "href", "canonicalurl"),
    "domain": ("domain", "category", "topic"),
}
"""Ours -> names in files, without case, `_` and `-`; the first that is there is taken."""
_STEP: Mapping[str, tuple[str, ...]] = {
    "head": ("headline", "title", "name", "heading", "summary", "label"),
    "text": ("text", "description", "body", "content", "step", "instruction", "detail", "details"),
    "steps": ("steps", "instructions", "substeps", "items", "bullets"),
}


def _rows(
    path: Path, place: str, problems: Problems, counts: Counter[str]
) -> Iterator[tuple[str, Guide]]:
    kind = KINDS[path.suffix.lower()]
    read = jsonl_rows if kind == "jsonl" else parquet_rows
    empty, told = True, problems.count
    held: list[tuple[str, str, Guide]] = []
    for number, row in read(path, problems):
        empty = False
        counts[kind] += 1
        fields = known_fields(row, _COLUMNS)
        if "headline" in fields and fields.keys() & {"steps", "sections"}:
            fields.setdefault("title", fields.pop("headline"))  # as newspapers have it
        guide = _row_guide(fields, f"{place.removesuffix(path.suffix)}-{number}")
        where = f"{place} {'line' if kind == 'jsonl' else 'row'} {number}"
        if "headline" not in fields or "id" in fields:
            yield from _joined(held)
            held = []
            yield where, guide
            continue
        base = re.sub(r"(?<=\S)\d+\Z", "", guide.title)
        if held and held[-1][1] != base:
            yield from _joined(held)
            held = []
        held.append((where, base, guide))
    yield from _joined(held)
    if empty and problems.count == told:
        problems.tell(f"{place}: holds no rows")


def _joined(held: Sequence[tuple[str, str, Guide]]) -> Iterator[tuple[str, Guide]]:
    """Rows of one article, as WikiHow's dumps have them: a row per method or per step."""
    if len(held) < 2:
        yield from ((where, guide) for where, _, guide in held)
        return
    where, base, first = held[0]
    sections: list[Section] = []
    for _, _, guide in held:
        for one in guide.sections:
            if sections and sections[-1].title == one.title and one.title:
                before = sections.pop()
                text = "\n\n".join(filter(None, (before.text, one.text)))
                one = Section(one.title, text, before.steps + one.steps)
            sections.append(one)
    titles = {guide.title for _, _, guide in held}
    yield (
        where,
        replace(
            first,
            title=base if len(titles) > 1 else first.title,
            sections=tuple(sections),
            warnings=tuple(dict.fromkeys(text for _, _, guide in held for text in guide.warnings)),
            tips=tuple(dict.fromkeys(text for _, _, guide in held for text in guide.tips)),
        ),
    )


def _row_guide(fields: Mapping[str, Any], name: str) -> Guide:
    sections: list[Section] = []
    text = _words(fields.get("text"))
    if "headline" in fields:
        heads = [_words(one) for one in re.split(r",?[ \t]*\n", str(fields["headline"]))]
        heads = [one.removesuffix(".,").strip(" ,") for one in heads if one.strip(" ,.")]
        label = _words(fields.get("label"))
        if label and len(heads) == 1 and text:  # a step per row: the text is about it
            heads, text = [f"{heads[0]}\n{text}"], ""
        sections.append(Section(label, text, tuple(heads)))
    else:
        steps = _steps(fields.get("steps"))
        if text or steps:
            sections.append(Section("", text, steps))
        sections += _sections(fields.get("sections"))
    page = Page(
        title=" ".join(_words(fields.get("title")).split()),
        sections=tuple(sections),
        warnings=_steps(fields.get("warnings")),
        tips=_steps(fields.get("tips")),
    )
    facts = {name: _words(fields.get(name)) for name in _FACTS}
    return _guide(_words(fields.get("id")) or name, page, facts)


def _sections(value: Any) -> Iterator[Section]:
    if isinstance(value, Mapping):
        value = [{"title": title, "steps": steps} for title, steps in value.items()]
    for one in value if isinstance(value, list) else []:
        if not isinstance(one, Mapping):
            if text := _words(one):
                yield Section("", text)
            continue
        fields = known_fields(one, _STEP)
        section = Section(
            " ".join(_words(fields.get("head")).split()),
            _words(fields.get("text")),
            _steps(fields.get("steps")),
        )
        if section.text or section.steps:
            yield section


def _steps(value: Any) -> tuple[str, ...]:
    """Steps, warnings or tips: a list of texts or objects, or a text with a line each."""
    if isinstance(value, str):
        lines = _words(value).split("\n")
        texts = [re.sub(r"\A\s*(?:\d{1,3}[.)]|[-*\u2022])\s+", "", line).strip() for line in lines]
        return tuple(filter(None, texts))
    if isinstance(value, Mapping):
        value = [value]
    return tuple(filter(None, map(_step, value))) if isinstance(value, list | tuple) else ()


def _step(value: Any) -> str:
    if not isinstance(value, Mapping):
        return _words(value)
    fields = known_fields(value, _STEP)
    head, text = _words(fields.get("head")), _words(fields.get("text"))
    below = [f"- {one}" for one in _steps(fields.get("steps"))]
    texts = [text] if text.startswith(head) else [head, text]
    return "\n".join(filter(None, [*texts, *below]))


def _words(value: Any) -> str:
    """A value of a row as text; of a list the texts that it has."""
    if isinstance(value, list | tuple):
        return ", ".join(filter(None, map(_words, value)))
    if isinstance(value, Mapping):
        return _words(value.get("name") or value.get("text") or "")
    text = as_text(value).strip()
    return html_text(text) if looks_like_html(text) else text
