"""construct/guides.py and guide_pages.py: steps, warnings and tips of every form that guides come in."""

from __future__ import annotations

import json
import os
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from xyreward.construct.guide_pages import Section, html_page, markdown_page
from xyreward.construct.guides import Guide, GuideSource, read_guides
from xyreward.construct.thread_files import Problems, Source
from xyreward.errors import ConfigError, DataError

MARKDOWN = """\
---
title: How to Rinse a Jar
author: Jo Smith
license: CC BY-SA 4.0
url: https://guides.example/jar
date: 2020-01-01
---
# Rinsing

An intro with **bold** words.

## Method 1: Soap

1. Fill it.

   - warm water
   - one drop
2. Shake & `pour`.

> [!WARNING]
> Never use bleach.
>
> Nor acid.

!!! tip "Nice"
    Use warm water.

    And salt.

::: danger
Glass breaks.
:::

**Caution:** hot water.

> Only a quotation.

## Things You'll Need

- a jar

## Tips

- Dry it.

## Warnings

- No metal wool.

### Why

It scratches.

## References

1. A book.
"""

HTML = """\
<!doctype html><html><head><meta charset="utf-8"><title>Rinse - Guides</title>
<link rel="canonical" href="https://guides.example/jar"><meta name="author" content="Jo Smith">
<script>document.write("<ol><li>evil</li></ol>")</script></head><body class="tips">
<nav><ul><li>Home</ul></nav><h1>How to Rinse a Jar</h1><p>An intro with <b>bold</b> words.
<div class="section steps"><h3>Method 1: Soap</h3>
<ol><li><b>Fill it.</b> To the brim &amp; more.<ul><li>warm water</li></ul></li><li>Shake it.</ol></div>
<div class="section warnings" id="warnings"><h2>Warnings</h2>
<div><ul><li>No bleach.</li><li>No acid.</ul></div></div><p class="warning">Glass breaks.<p>Plain words.
<h2>Tips</h2><p>Dry it.</p><footer><ol><li>Imprint</ol></footer>
<a rel="license" href="https://creativecommons.org/licenses/by-sa/4.0/">terms</a></body></html>
"""


def read(folder: Path, **options: Any) -> tuple[list[Guide], Problems]:
    problems = Problems()
    return list(read_guides(GuideSource((folder,), **options), problems)), problems


def test_markdown_with_front_matter_and_every_form_of_warning(tmp_path: Path) -> None:
    (tmp_path / "jar.md").write_text(MARKDOWN)
    [guide], problems = read(tmp_path)
    assert problems.lines == []
    assert (guide.id, guide.title) == ("jar.md", "How to Rinse a Jar")
    assert (guide.author, guide.licence) == ("Jo Smith", "CC BY-SA 4.0")
    assert guide.link == "https://guides.example/jar"
    assert guide.steps == ("Fill it.\n\n- warm water\n- one drop", "Shake & `pour`.")
    assert guide.warnings == (
        "Never use bleach.",
        "Nor acid.",
        "Glass breaks.",
        "hot water.",
        "No metal wool.",
        "It scratches.",
    )
    assert guide.tips == ("Nice Use warm water.", "And salt.", "Dry it.")
    assert [(one.title, one.text) for one in guide.sections] == [
        ("", "An intro with bold words."),
        ("Method 1: Soap", "Only a quotation."),
        ("Things You'll Need", "- a jar"),
    ]
    assert "A book" not in guide.text


def test_html_with_sections_left_open_tags_and_classes(tmp_path: Path) -> None:
    (tmp_path / "jar.html").write_text(HTML)
    [guide], problems = read(tmp_path)
    assert problems.lines == []
    assert guide.title == "How to Rinse a Jar"
    assert guide.steps == ("Fill it. To the brim & more.\n\n- warm water", "Shake it.")
    assert guide.warnings == ("No bleach.", "No acid.", "Glass breaks.")
    assert guide.tips == ("Dry it.",)
    assert guide.licence == "https://creativecommons.org/licenses/by-sa/4.0/"
    assert (guide.link, guide.author) == ("https://guides.example/jar", "Jo Smith")
    assert "Plain words." in guide.text
    assert all(word not in guide.text for word in ("evil", "Home", "Imprint"))


def test_schema_org_how_to_is_preferred_to_lists() -> None:
    how_to = {
        "@context": "https://schema.org",
        "@graph": [
            {"@type": "Organization", "name": "x"},
            {
                "@type": ["HowTo"],
                "name": "Rinse a jar",
                "author": [{"@type": "Person", "name": "Jo"}, "Al"],
                "license": "CC0",
                "step": [
                    {
                        "@type": "HowToSection",
                        "name": "Soap",
                        "itemListElement": [
                            {"@type": "HowToStep", "name": "Fill", "text": "Fill it <b>up</b>."},
                            {"@type": "HowToStep", "itemListElement": [{"text": "Shake."}]},
                        ],
                    },
                    {"@type": "HowToStep", "text": "Pour."},
                ],
                "tip": "Dry it.",
            },
        ],
    }
    page = html_page(
        f'<h1>Jar</h1><ol><li>menu</li></ol><script type="application/ld+json">{json.dumps(how_to)}'
        "</script><h2>Warnings</h2><p>No bleach.</p>"
    )
    assert page.title == "Rinse a jar"
    assert page.sections == (
        Section(steps=("Pour.",)),
        Section("Soap", "", ("Fill it up.", "Shake.")),
    )
    assert (page.warnings, page.tips) == (("No bleach.",), ("Dry it.",))
    assert page.facts == {"author": "Jo, Al", "licence": "CC0"}


def test_steps_may_be_headings_or_bullets() -> None:
    headed = markdown_page(
        "Rinse\n=====\n\n### Step 1: Fill\n\nWith water.\n\n- warm\n\n### 2. Pour\n\nSlowly.\n"
    )
    assert headed.title == "Rinse"
    assert [one.steps for one in headed.sections] == [("Fill\nWith water.\nwarm", "Pour\nSlowly.")]
    bullets = markdown_page("# Rinse\n\n- fill\n- pour\n\n## What you need\n\n- a jar\n")
    assert [one.steps for one in bullets.sections] == [("fill", "pour"), ()]
    both = markdown_page("# Rinse\n\n- good to know\n\n1. fill\n2. pour\n")
    assert both.sections == (Section("", "- good to know", ("fill", "pour")),)


def test_rows_of_jsonl_in_common_spellings(tmp_path: Path) -> None:
    rows = [
        {"title": "A", "steps": ["one", {"headline": "two", "description": "more"}]},
        {"id": 7, "name": "B", "Instructions": "1. one\n2) two\n", "warning": "hot", "tips": ["t"]},
        {
            "title": "C",
            "url": "https://x.example",
            "licence": "CC0",
            "author": [{"name": "Jo"}],
            "methods": [{"name": "M1", "text": "first", "steps": [{"text": "<p>one</p>"}]}],
            "category": "home",
        },
        {"title": "D", "sections": {"Part 1": ["a"], "Part 2": ["b"]}},
        {"headline": "E", "steps": ["one"]},
    ]
    (tmp_path / "g.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    [a, b, c, d, e], problems = read(tmp_path / "g.jsonl", licence="CC BY 4.0")
    assert problems.lines == []
    assert (a.id, a.steps, a.licence, a.source) == ("g-1", ("one", "two\nmore"), "CC BY 4.0", "g")
    assert (b.id, b.steps, b.warnings, b.tips) == ("7", ("one", "two"), ("hot",), ("t",))
    assert c.sections == (Section("M1", "first", ("one",)),)
    assert (c.link, c.licence, c.author, c.domain) == ("https://x.example", "CC0", "Jo", "home")
    assert [one.title for one in d.sections] == ["Part 1", "Part 2"]
    assert (e.title, e.steps) == ("E", ("one",))


def test_rows_of_wikihows_dumps_are_joined_by_article(tmp_path: Path) -> None:
    rows = [
        {"title": "How to Sew1", "headline": "\nThread it.,\nKnot it.", "text": "Of needles."},
        {"title": "How to Sew2", "headline": "\nPress it.", "text": "Of irons."},
        {"title": "How to Play an MP3", "headline": "\nOpen it.", "text": ""},
        {
            "title": "Bake",
            "overview": "o",
            "headline": "Mix.",
            "text": "Well.",
            "sectionLabel": "I",
        },
        {
            "title": "Bake",
            "overview": "o",
            "headline": "Bake.",
            "text": "Long.",
            "sectionLabel": "I",
        },
    ]
    (tmp_path / "w.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    [sew, play, bake], _ = read(tmp_path / "w.jsonl")
    assert sew.title == "How to Sew"
    assert sew.sections == (
        Section("", "Of needles.", ("Thread it.", "Knot it.")),
        Section("", "Of irons.", ("Press it.",)),
    )
    assert (play.title, play.steps) == ("How to Play an MP3", ("Open it.",))
    assert bake.sections == (Section("I", "", ("Mix.\nWell.", "Bake.\nLong.")),)


def test_what_cannot_be_used_is_told_with_place_and_reason_and_hides_nothing(
    tmp_path: Path,
) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "good.md").write_text("# Good\n\n1. Do it.\n")
    (tmp_path / "a" / "essay.md").write_text("# Essay\n\nNo list at all.\n")
    (tmp_path / "b.html").write_bytes("<h1>Gr\u00fcn</h1><ol><li>x</ol>".encode("latin-1"))
    (tmp_path / "c.md").write_bytes("# T\n\n1. x\n".encode("utf-16"))
    (tmp_path / "d.md").write_text(" \n")
    (tmp_path / "e.jsonl").write_text(
        '{"title": "E", "steps": ["x"]}\n{"title": "F", "steps": ["x"\n{"title": "", "steps": ["x"]}\n'
        '[1]\n{"title": "G", "steps": ["y"]}\n{"title": "H", "warnings": ["x"]}\n'
        '{"id": "e-1", "title": "I", "steps": ["x"]}\n'
    )
    (tmp_path / "f.md").write_text("---\n{broken: [\n---\n# F\n\n1. x\n")
    (tmp_path / "g.jsonl").write_text("")
    (tmp_path / "h.txt").write_text("no guide")
    (tmp_path / "i.html").write_text("<h1>I</h1>" + "<li " * 300_000)
    (tmp_path / ".hidden.md").write_text("# Hidden\n\n1. x\n")
    guides, problems = read(tmp_path)
    assert [guide.title for guide in guides] == ["Good", "E", "G", "F"]
    assert [guide.id for guide in guides] == ["a/good.md", "e-1", "e-5", "f.md"]
    assert {guide.source for guide in guides} == {tmp_path.name}
    told = [
        "a/essay.md: has no steps, expected a list, numbered or not; left out",
        "b.html: byte 7 (0xfc) is not UTF-8; left out",
        "c.md: byte 1 (0xff) is not UTF-8; it begins as UTF-16 does; left out",
        "d.md: is empty; left out",
        "e.jsonl line 2: is not JSON (",
        "e.jsonl line 3: has no title; left out",
        "e.jsonl line 4: is a list, expected an object; left out",
        "e.jsonl line 6: has no steps",
        "e.jsonl line 7: the id 'e-1' came before; left out",
        "f.md: front matter: not valid YAML",
        "g.jsonl: holds no rows",
        "i.html: has no steps, expected a list, numbered or not; left out",
    ]
    assert len(problems.lines) == problems.count == len(told)
    for line, begins in zip(problems.lines, told, strict=True):
        assert line.startswith(begins)


def test_two_guides_never_have_items_of_the_same_id(tmp_path: Path) -> None:
    row = {"title": "T", "steps": ["x"]}
    for name, number in (("docs", "v2-1"), ("docs-v2", "1"), ("other", "1" * 201)):
        (tmp_path / f"{name}.jsonl").write_text(json.dumps({**row, "id": number}))
    problems = Problems()
    [guide] = read_guides(GuideSource(tuple(sorted(tmp_path.iterdir()))), problems)
    assert len(guide.id) < 200
    assert ["came before" in line for line in problems.lines] == [True, False]
    assert "the id has 201 characters" in problems.lines[1]


def test_files_of_one_name_are_guides_of_their_own_and_one_file_is_one_guide(
    tmp_path: Path,
) -> None:
    for folder in ("one/docs", "two/docs", "three"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "intro.md").write_text(f"# {folder}\n\n1. Do it.\n")
        (tmp_path / folder / "rows.jsonl").write_text(
            json.dumps({"title": f"{folder} row", "steps": ["x"]}) + "\n"
        )

    def found(*given: str, name: str = "") -> tuple[dict[str, str], list[str]]:
        problems = Problems()
        source = GuideSource(tuple(tmp_path / one for one in given), name)
        guides = list(read_guides(source, problems))
        return {f"{guide.source}: {guide.id}": guide.title for guide in guides}, problems.lines

    files = ("one/docs/intro.md", "three/intro.md", "three/rows.jsonl")
    assert found(*files) == (
        {
            "intro: docs/intro.md": "one/docs",
            "intro: three/intro.md": "three",
            "rows: rows-1": "three row",
        },
        [],
    )
    folders, told = found("one/docs", "two/docs", "three")
    assert folders == {
        "docs: one/docs/intro.md": "one/docs",
        "docs: one/docs/rows-1": "one/docs row",
        "docs: two/docs/intro.md": "two/docs",
        "docs: two/docs/rows-1": "two/docs row",
        "three: intro.md": "three",
        "three: rows-1": "three row",
    }
    assert told == []
    assert len(found("one/docs", "two/docs", "three", name="all")[0]) == 6
    again, told = found("three", "three/intro.md")
    assert again == {"three: intro.md": "three", "three: rows-1": "three row"}
    assert told == ["intro.md: is given more than once; read once"]


def test_a_file_s_name_that_is_no_text_gives_an_id_that_is_one(tmp_path: Path) -> None:
    Path(os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9.md")).write_text("# T\n\n1. Do it.\n")
    [guide] = read_guides(GuideSource((tmp_path,)), Problems())
    assert guide.id == "caf?.md"


def test_strict_stops_at_the_first_and_counts_are_of_all(tmp_path: Path) -> None:
    (tmp_path / "a.md").write_text("# A\n\n1. x\n")
    (tmp_path / "b.md").write_text("# B\n")
    counts: Counter[str] = Counter()
    source = GuideSource((tmp_path,))
    with pytest.raises(DataError, match=r"b\.md: has no steps"):
        list(read_guides(source, Problems(strict=True), counts=counts))
    assert counts == {"markdown": 2}
    (tmp_path / "h.txt").write_text("x")
    with pytest.raises(ConfigError, match=r"h\.txt: expected a folder or \.md"):
        GuideSource((tmp_path / "h.txt",))
    with pytest.raises(ConfigError, match="no such file"):
        GuideSource((tmp_path / "nothing.md",))


@pytest.mark.parametrize(
    "text",
    [
        "<ol><li>x" * 3_000 + "</ol>" * 2_990,
        "</li></ol></p></blockquote></div>x",
        "<p class=warning>a<div class=tip>b</p>c</div>",
        '<script type="application/ld+json">{"@type":"HowTo","step":[[[]]]}</script>',
        "<h1><ol><li><h2>a</h1><script>",
        "> " * 500 + "deep",
        "!!! \n    x\n:::\n::: \n```\n!!! warning\n```",
        " " * 20_000 + "!" * 20_000,
        "<!--" + "<![CDATA[" * 50,
    ],
)
def test_no_page_stops_the_reader(text: str) -> None:
    for page in (html_page(text), markdown_page(text)):
        size = sum(len(step) for section in page.sections for step in section.steps)
        assert size <= 2 * len(text) + 40 * text.count("<li>")


def test_every_passage_is_in_the_text_with_its_place(tmp_path: Path) -> None:
    (tmp_path / "jar.md").write_text(MARKDOWN)
    [guide], _ = read(tmp_path)
    places = dict(guide.passages)
    assert places["step 2"] == "Shake & `pour`."
    assert places["warning 1"] == "Never use bleach."
    assert places["text 1"] == "An intro with bold words."
    flat = " ".join(guide.text.split())
    assert all(" ".join(text.split()) in flat for text in places.values())


def test_rows_of_parquet(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    pq = pytest.importorskip("pyarrow.parquet")
    rows = [
        {"title": "A", "steps": ["x", "y"], "warnings": None, "id": float("nan")},
        {"title": "B", "steps": [], "warnings": ["w"], "id": 2.0},
    ]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "g.parquet")
    [guide], problems = read(tmp_path)
    assert (guide.id, guide.steps) == ("g-1", ("x", "y"))
    assert problems.lines == [
        "g.parquet row 2: has no steps, expected a list, numbered or not; left out"
    ]


def test_a_collection_does_not_bear_the_name_of_a_source_of_the_benchmark(tmp_path: Path) -> None:
    folder = tmp_path / "WikiHow"
    folder.mkdir()
    with pytest.raises(ConfigError, match=r"'WikiHow' is the name of a source of XYBench.*--name"):
        GuideSource((folder,))
    assert GuideSource((folder,), name="our wiki").name == "our wiki"
    threads = tmp_path / "stackoverflow.jsonl"
    threads.touch()
    with pytest.raises(ConfigError, match=r"'stackoverflow' is the name of a source .*--site"):
        Source(threads)
    assert Source(threads, site="stackoverflow.com").name == "stackoverflow.com"
