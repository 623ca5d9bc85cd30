"""Reading forums: any form of file, any mistake in it, told with place and reason."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import random
import tracemalloc
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from xyreward.construct import posts_xml
from xyreward.construct.guide_pages import html_page
from xyreward.construct.html_text import DEEPEST, UNCLOSED, Tokenizer, html_text, says_something
from xyreward.construct.posts_xml import xml_rows
from xyreward.construct.thread_files import Problems, ReadCounts, Source, read_threads
from xyreward.construct.threads import Post, chosen_answers
from xyreward.errors import ConfigError, DataError
from xyreward.testing.forum import SITE, forum_plan

HEAD = b'<?xml version="1.0" encoding="utf-8"?>\n<posts>\n'
KINDS = {"xy": 6, "sufficient": 9, "unanswered": 2}


def row(number: int, body: bytes = b"b") -> bytes:
    return b'  <row Id="%d" Body="%s" />\n' % (number, body)


def ids(data: bytes, folder: Path) -> tuple[list[int], list[str]]:
    file = folder / "Posts.xml"
    file.write_bytes(data)
    told: list[str] = []
    return [int(r["Id"]) for _, r in xml_rows(file, told.append, root="posts")], told


@pytest.mark.parametrize("chunk", [7, 64, 1 << 20])
@pytest.mark.parametrize(
    ("data", "read", "told"),
    [
        pytest.param(row(1) + row(2) + b"</posts>", [1, 2], [], id="well formed"),
        pytest.param(
            row(1) + row(2, b" & ") + row(3) + b"</posts>",
            [1, 3],
            ["line 4, column 23: not well-formed (invalid token)"],
            id="bare ampersand",
        ),
        pytest.param(
            row(1) + row(2, b"&nope;") + row(3) + b"</posts>",
            [1, 3],
            ["line 4, column 3: undefined entity"],
            id="unknown entity",
        ),
        pytest.param(
            row(1) + b'  <row Id="2" Body="open />\n' + row(3) + row(4) + b"</posts>",
            [1, 3, 4],
            [
                "line 5, column 3: a row begins within another one; there a quotation mark is missing"
            ],
            id="missing quotation mark",
        ),
        pytest.param(
            row(1) + b'  <row Id="2" Id="3" Body="" />\n' + row(4) + b"</posts>",
            [1, 4],
            ["line 4, column 15: duplicate attribute"],
            id="attribute twice",
        ),
        pytest.param(
            row(1) + row(2, b"caf\xe9 au lait") + row(3) + b"</posts>",
            [1, 3],
            ["line 4, column 24: byte 0xe9 is not UTF-8; convert the file"],
            id="Latin-1 under a UTF-8 declaration",
        ),
        pytest.param(
            row(1) + row(2)[:14], [1], ["line 4: the file ends too early"], id="cut in a row"
        ),
        pytest.param(
            row(1) + row(2, b"half of a sen")[:32],
            [1],
            ["line 4: the file ends too early (unclosed token)"],
            id="cut in an attribute",
        ),
        pytest.param(
            row(1) + row(2, b"bell \x07") + row(3) + b"</posts>",
            [1, 3],
            ["line 4, column 26: control character 0x07, which XML does not allow"],
            id="control character",
        ),
        pytest.param(
            row(1) + row(2, b"bell &#7;") + row(3) + b"</posts>",
            [1, 3],
            ["line 4, column 26: reference to invalid character number"],
            id="control character by number",
        ),
        pytest.param(
            row(1) + row(2, b"zero \0") + row(3) + b"</posts>",
            [1, 3],
            ["line 4, column 26: control character 0x00, which XML does not allow"],
            id="zero byte",
        ),
        pytest.param(
            row(1) + row(2), [1, 2], ["line 5: the file ends too early"], id="cut after a row"
        ),
        pytest.param(
            row(1) + row(2, b" & ") + row(3, b" & ") + row(4) + row(5, b" & ") + b"</posts>",
            [1, 4],
            ["line 4, ", "line 5, ", "line 7, "],
            id="three mistakes",
        ),
        pytest.param(
            row(1) + b"</posts>\n<row/>", [1], ["text after the end"], id="text after the end"
        ),
    ],
)
def test_a_mistake_costs_its_row_and_no_other(
    data: bytes, read: list[int], told: list[str], chunk: int, tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.setattr(posts_xml, "CHUNK", chunk)
    found, lines = ids(HEAD + data, tmp_path)
    assert found == read
    assert len(lines) == len(told)
    for line, part in zip(lines, told, strict=True):
        assert line.startswith("Posts.xml line ")
        assert part in line


LAUGHS = (
    b'<?xml version="1.0"?>\n<!DOCTYPE posts [<!ENTITY l0 "ha">'
    + b"".join(b'<!ENTITY l%d "%s">' % (n, b"&l%d;" % (n - 1) * 10) for n in range(1, 10))
    + b"]>\n<posts>\n"
    + row(1, b"&l9;")
    + b"</posts>"
)


@pytest.mark.parametrize(
    ("data", "says"),
    [
        pytest.param(b"", "is empty, expected XML", id="empty"),
        pytest.param(
            b"7z\xbc\xaf\x27\x1c and more", "is an archive, expected XML; unpack it first", id="7z"
        ),
        pytest.param(b"PK\3\4 and more", "is an archive, expected XML; unpack it first", id="zip"),
        pytest.param(
            b"\n<!doctype html>\n<title>404<br></title>",
            "is a web page, expected a dump",
            id="HTML",
        ),
        pytest.param(
            HEAD.replace(b"utf-8", b"klingon") + row(1) + b"</posts>",
            "declares an unknown encoding: klingon",
            id="encoding that nobody knows",
        ),
        pytest.param(
            HEAD.replace(b"utf-8", b"gbk") + row(1) + b"</posts>",
            "declares encoding 'gbk': multi-byte encodings are not supported; convert it to UTF-8",
            id="encoding of several bytes",
        ),
        pytest.param(
            HEAD.replace(b"<posts>", b"<users>") + row(1) + b"</users>",
            "its outermost element is <users>, expected <posts>",
            id="another file of the dump",
        ),
        pytest.param(LAUGHS, "has a document type declaration", id="billion laughs"),
        pytest.param(
            b'<!DOCTYPE posts [<!ENTITY a SYSTEM "SECRET">]>\n<posts>\n'
            + row(1, b"&a;")
            + b"<row>&a;</row></posts>",
            "has a document type declaration",
            id="external entity",
        ),
        pytest.param(
            b'<!DOCTYPE posts SYSTEM "SECRET">\n<posts>\n' + row(1, b"&a;") + b"</posts>",
            "has a document type declaration",
            id="external document type",
        ),
    ],
)
def test_what_is_no_dump_is_told_and_not_read(data: bytes, says: str, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("<!ENTITY a 'read'>")
    found, lines = ids(data.replace(b"SECRET", secret.as_uri().encode()), tmp_path)
    assert found == []
    [line] = lines
    assert line.startswith(f"Posts.xml: {says}")
    assert line.endswith("; the file was not read")


def test_a_file_that_says_utf_16_and_is_not_is_told_and_read(tmp_path: Path) -> None:
    data = HEAD.replace(b"utf-8", b"utf-16") + row(1) + row(2) + b"</posts>"
    found, [line] = ids(data, tmp_path)
    assert found == [1, 2]
    assert "line 1, column 31: encoding specified in XML declaration is incorrect" in line


@pytest.mark.parametrize("pack", [gzip.compress, bz2.compress, lzma.compress])
def test_compressed_data_that_is_cut_or_damaged_is_told(pack: Any, tmp_path: Path) -> None:
    words = random.Random(0)
    data = HEAD + b"".join(row(n, words.randbytes(500).hex().encode()) for n in range(200))
    whole = pack(data + b"</posts>")
    found, [line] = ids(whole[: len(whole) // 2], tmp_path)
    assert found == list(range(len(found)))
    assert "its compressed data ends early or is damaged" in line
    found, lines = ids(whole[:5000] + bytes(64) + whole[5064:], tmp_path)
    assert len(found) < 200
    assert "its compressed data ends early or is damaged" in lines[-1]


def test_a_row_without_end_costs_no_memory_and_no_other_row(
    tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.setattr(posts_xml, "LONGEST_ROW", 1 << 19)
    long = b'  <row Id="2" Body="%s" />\n' % (b"open\n" * (20 << 18))  # 25 MiB, and as many lines
    file = tmp_path / "Posts.xml"
    file.write_bytes(HEAD + row(1) + long + row(3) + row(4, b" & ") + row(5) + b"</posts>")
    told: list[str] = []
    tracemalloc.start()
    found = [int(r["Id"]) for _, r in xml_rows(file, told.append, root="posts")]
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert found == [1, 3, 5]
    assert told[0] == ("Posts.xml line 4: no row ends within 0.5 MiB; left out up to the next one")
    assert told[1].startswith(f"Posts.xml line {4 + (20 << 18) + 2}, column 23: not well-formed")
    assert peak < 2 << 20


def test_other_encodings_that_are_declared_are_read(tmp_path: Path) -> None:
    text = (HEAD + row(1, b"caf\xc3\xa9") + row(2) + b"</posts>").decode()
    wide = text.replace("utf-8", "utf-16").encode("utf-16")
    assert ids(wide, tmp_path) == ([1, 2], [])
    western = text.replace("utf-8", "windows-1252").encode("cp1252")
    assert ids(western, tmp_path) == ([1, 2], [])


def threads_of(write: Callable[[Path], None], path: Path, site: str = SITE) -> Any:
    write(path)
    problems = Problems(strict=True)
    threads = list(read_threads(Source(path, site), problems))
    return {t.id: (t.title, t.accepted, [(a.id, a.score) for a in t.answers]) for t in threads}


def test_all_forms_of_a_forum_hold_the_same_threads(tmp_path: Path) -> None:
    plan = forum_plan(KINDS)
    xml = threads_of(plan.write_posts_xml, tmp_path / "Posts.xml")
    assert len(xml) == 17
    assert threads_of(plan.write_posts_jsonl, tmp_path / "posts.jsonl") == xml
    assert threads_of(plan.write_threads_jsonl, tmp_path / "threads.jsonl", "") == xml

    def packed(path: Path) -> None:
        path.write_bytes(gzip.compress((tmp_path / "Posts.xml").read_bytes()))

    assert threads_of(packed, tmp_path / "Posts.xml.gz") == xml

    def parquet(path: Path) -> None:
        pa = pytest.importorskip("pyarrow")
        import pyarrow.json
        import pyarrow.parquet

        assert pa
        table = pyarrow.json.read_json(tmp_path / "posts.jsonl")
        pyarrow.parquet.write_table(table, path)

    assert threads_of(parquet, tmp_path / "posts.parquet") == xml


def test_many_lots_in_many_blocks_change_nothing_but_the_order(
    tmp_path: Path, monkeypatch: Any
) -> None:
    plan = forum_plan(KINDS)
    one = threads_of(plan.write_posts_xml, tmp_path / "Posts.xml")
    monkeypatch.setattr("xyreward.construct.thread_files.POSTS_PER_LOT", 2000)
    monkeypatch.setattr("xyreward.construct.thread_files.HELD", 5000)
    monkeypatch.setattr("xyreward.construct.thread_files.BLOCK", 100)
    assert threads_of(plan.write_posts_xml, tmp_path / "Posts.xml") == one


def test_the_accepted_answer_comes_first_and_three_others_by_score() -> None:
    posts = [Post(str(n), "x", score=score) for n, score in enumerate([1, 5, 5, -2, 0, 9])]
    assert [p.id for p in chosen_answers(posts, "3")] == ["3", "5", "1", "2"]
    assert [p.id for p in chosen_answers(posts, "5")] == ["5", "1", "2"]
    assert [p.id for p in chosen_answers(posts, None)] == ["5", "1", "2"]


def test_rows_that_make_no_thread_are_told_and_counted(tmp_path: Path) -> None:
    dump = tmp_path / "Posts.xml"
    dump.write_text(
        "<posts>\n"
        '<row Id="1" PostTypeId="1" Body="q" />\n'
        '<row Id="2" PostTypeId="2" ParentId="1" Body="a" Score="much" />\n'
        '<row Id="3" PostTypeId="2" ParentId="99" Body="a" />\n'
        '<row Id="1" PostTypeId="1" Body="again" />\n'
        '<row Id="4" PostTypeId="1" />\n'
        '<row Id="5" Body="what?" />\n'
        "</posts>"
    )
    problems, counts = Problems(), ReadCounts()
    [thread] = read_threads(Source(dump, SITE), problems, counts=counts)
    assert thread.question.html == "q"
    assert counts.rows == {"question": 3, "answer": 2, "orphan": 1}
    assert sorted(problems.lines) == [
        "Posts.xml line 3: Score is 'much', expected a whole number; left out",
        "Posts.xml line 5: question 1 is there twice; the first one was taken",
        "Posts.xml line 6: has no Body; left out",
        "Posts.xml line 7: has no PostTypeId, expected 1 (question), 2 (answer), ...; left out",
    ]


def test_half_a_surrogate_pair_of_json_is_in_no_thread(tmp_path: Path) -> None:
    """Nor in an item then, whose file nothing could read."""
    rows = tmp_path / "t.jsonl"
    one = {
        "id": 1,
        "title": "t\ud83d",
        "body": "\ud83d\ude00",
        "tags": ["\udc00"],
        "author": "\ud800",
    }
    rows.write_text(json.dumps({**one, "answers": [{"body": "a\udfff"}]}) + "\n")
    [thread] = read_threads(Source(rows), Problems())
    assert (thread.title, thread.question.html, thread.tags) == ("t?", "\U0001f600", ("?",))
    assert (thread.question.author, thread.answers[0].html) == ("?", "a?")


def test_threads_with_an_id_that_came_before_or_odd_tags_are_told(tmp_path: Path) -> None:
    rows = tmp_path / "t.jsonl"
    one = {"id": 1, "body": "q", "answers": [{"body": "a"}]}
    given = [one, {**one, "body": "again"}, {**one, "id": 2, "tags": 5}]
    rows.write_text("".join(f"{json.dumps(row)}\n" for row in given))
    problems = Problems()
    [thread] = read_threads(Source(rows), problems)
    assert thread.question.html == "q"
    assert problems.lines == [
        "t.jsonl line 2: thread '1' is there twice; the first one was taken",
        "t.jsonl line 3: tags is int, expected a list; left out",
    ]


def test_bad_lines_of_jsonl_are_told_with_their_line(tmp_path: Path) -> None:
    file = tmp_path / "threads.jsonl"
    good = b'{"id": 1, "title": "t", "body": "b", "answers": [{"text": "a", "pm_score": 3}]}\n'
    file.write_bytes(
        good
        + b'{"id": 2, "body": "caf\xe9", "answers": []}\n{"id": 3,\n[]\n'
        + b'{"id": 4, "body": "b", "answers": [{"text": null}]}\n'
        + b'{"id": 5, "body": "b", "answers": "none"}\n{"body": "b", "answers": []}\n'
    )
    problems = Problems()
    [thread] = read_threads(Source(file), problems)
    assert (thread.id, thread.answers[0].score, thread.source) == ("1", 3, "threads")
    assert [line.split(";")[0].split(" (")[0] for line in problems.lines] == [
        "threads.jsonl line 2: byte 23",
        "threads.jsonl line 3: is not JSON",
        "threads.jsonl line 4: is a list, expected an object",
        "threads.jsonl line 5: answers[1] has no text",
        "threads.jsonl line 6: answers is str, expected a list",
        "threads.jsonl line 7: has no id",
    ]


def test_jsonl_that_is_no_lines_of_text_costs_one_line_of_complaint(
    tmp_path: Path, monkeypatch: Any
) -> None:
    file = tmp_path / "threads.jsonl"
    good = b'{"id": 1, "title": "t", "body": "b", "answers": []}\n'
    for data, says in (
        (good.decode().encode("utf-16"), "is UTF-16, convert it to UTF-8 first"),
        (gzip.compress(good), "is gzip data, unpack it first"),
        (b"", "holds no rows"),
    ):
        file.write_bytes(data)
        problems = Problems()
        assert list(read_threads(Source(file), problems)) == []
        [line] = problems.lines
        assert says in line
    monkeypatch.setattr("xyreward.construct.thread_files.LONGEST_LINE", 1000)
    file.write_bytes(
        b"\xef\xbb\xbf"
        + good
        + b'{"id": 2, "body": "%s"}\n' % (b"b" * 5000)
        + good.replace(b"1", b"3")
        + good.replace(b"1", b"1" * 500)
        + good.replace(b"1", b"5")
        + b"[" * 3000
    )
    problems = Problems()
    assert len(list(read_threads(Source(file), problems))) == 3
    assert problems.lines == [
        "threads.jsonl line 2: is longer than 0.000953674 MiB; left out",
        "threads.jsonl line 4: body.id has 500 characters, expected at most 200; left out",
        "threads.jsonl line 6: is longer than 0.000953674 MiB; left out",
    ]


@pytest.mark.parametrize("data", [b"", b"<html><p>404</p></html>", b"PAR1 and no more PAR1"])
def test_what_is_no_parquet_is_told(data: bytes, tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    (tmp_path / "posts.parquet").write_bytes(data)
    problems = Problems()
    assert list(read_threads(Source(tmp_path / "posts.parquet", SITE), problems)) == []
    assert "posts.parquet after row 0: cannot be read" in problems.lines[0]


def test_a_number_of_many_digits_is_no_id(tmp_path: Path) -> None:
    many = "9" * 5000
    (tmp_path / "Posts.xml").write_text(
        f'<posts><row Id="{many}" PostTypeId="1" Body="q" />\n'
        f'<row Id="2" PostTypeId="1" Body="q" Score="-{many}" />\n'
        '<row Id="\u0663" PostTypeId="1" Body="q" /><row Id="4" PostTypeId="1" Body="q" /></posts>',
        encoding="utf-8",
    )
    problems = Problems()
    [thread] = read_threads(Source(tmp_path / "Posts.xml", SITE), problems)
    assert thread.id == "4"
    assert [line[:32] for line in problems.lines] == [
        "Posts.xml line 1: Id is '9999999",
        "Posts.xml line 2: Score is '-999",
        "Posts.xml line 3: Id is '\u0663', exp",
    ]


def test_a_dump_needs_its_site_and_files_of_other_kinds_are_refused(tmp_path: Path) -> None:
    (tmp_path / "Posts.xml").write_text("<posts/>")
    with pytest.raises(ConfigError, match="give --site"):
        Source(tmp_path / "Posts.xml")
    with pytest.raises(ConfigError, match=r"a folder; give the file in it, such as Posts.xml"):
        Source(tmp_path, SITE)
    (tmp_path / "cooking.7z").write_bytes(b"7z")
    with pytest.raises(ConfigError, match=r"expected \.xml .* unpack it first"):
        Source(tmp_path / "cooking.7z", SITE)
    (tmp_path / "Posts.txt").write_text("")
    with pytest.raises(ConfigError, match=r"expected \.xml"):
        Source(tmp_path / "Posts.txt")
    with pytest.raises(ConfigError, match="no such file"):
        Source(tmp_path / "nothing.xml")
    (tmp_path / "other.jsonl").write_text('{"a": 1}\n')
    with pytest.raises(DataError, match="has columns a; expected those of posts"):
        list(read_threads(Source(tmp_path / "other.jsonl"), Problems()))


def test_licences_of_old_dumps_follow_the_date_and_only_on_their_network(tmp_path: Path) -> None:
    dump = tmp_path / "Posts.xml"
    dump.write_text(
        '<posts><row Id="1" PostTypeId="1" Body="q" CreationDate="2010-01-01T00:00:00" />'
        '<row Id="2" PostTypeId="1" Body="q" CreationDate="2019-01-01T00:00:00" /></posts>'
    )

    def licences(site: str, licence: str = "") -> list[str]:
        return [t.question.licence for t in read_threads(Source(dump, site, licence), Problems())]

    assert licences("cooking.stackexchange.com") == ["CC BY-SA 2.5", "CC BY-SA 4.0"]
    assert licences("forum.example") == ["", ""]
    assert licences("forum.example", "CC0") == ["CC0", "CC0"]


@pytest.mark.parametrize(
    ("html", "text"),
    [
        ("<p>a <b>b</b> &amp; c</p>\n<p>d</p>", "a b & c\n\nd"),
        (
            "<p>x</p><pre><code>a  = 1\n\n\n  b &lt; 2\n</code></pre><p>y</p>",
            "x\n\n```\na  = 1\n\n\n  b < 2\n```\n\ny",
        ),
        ("<ul>\n<li>one</li>\n<li><p>two</p></li>\n</ul>", "- one\n- two"),
        ("<ol><li>a<ul><li>b</li></ul></li><li>c</li></ol>", "1. a\n  - b\n2. c"),
        ("<blockquote><p>q</p><p>r</p></blockquote><p>s</p>", "> q\n>\n> r\n\ns"),
        (
            'see <a href="https://x.org/a">this</a>, <code>f(x)</code>',
            "see this (https://x.org/a), `f(x)`",
        ),
        ('<a href="https://x.org/">https://x.org</a>', "https://x.org"),
        ("<script>bad()</script>a<br>b", "a\nb"),
        ("a < b <unknown> c", "a < b c"),
        ("if a <b then\n x <b&lt;y", "if a <b then x <b<y"),
        ("<p>a <b c='d> e</p> f <!-- g", "a <b c='d> e\n\n f <!-- g"),
        ('<a name="x">a<p><a href="http://b.c">d</a> e', "a\n\nd (http://b.c) e"),
        ("a &#60<b", "a <<b"),
        ("<![if IE]>a<![endif]>b", "ab"),
        ("", ""),
    ],
)
def test_html_becomes_what_a_reader_sees(html: str, text: str) -> None:
    assert html_text(html) == text


@pytest.mark.parametrize(
    "html",
    [
        "<ul><li>x" * 2000,
        "<blockquote>" * 400 + "a<br>b" * 800 + "</blockquote>" * 400,
    ],
)
def test_a_hostile_post_does_not_grow_to_many_times_its_size(html: str) -> None:
    text = html_text(html)
    assert len(text) < 5 * len(html)
    assert text.count("x" if "x" in html else "b") == (2000 if "x" in html else 800)


@pytest.mark.parametrize(
    ("html", "text"),
    [
        ("<p>a<![x[b]]>c", "ac"),
        ("<p>a<![CDATA[b]]>c", "ac"),
        (f"a&#{'9' * 5000};b", "a\ufffdb"),
        (f"<a title='&#{'9' * 5000};'>b</a>", "b"),
        ("a<![", "a<!["),
    ],
)
def test_what_the_tokenizer_raises_errors_at_is_read_too(html: str, text: str) -> None:
    assert html_text(html) == text


ENDLESS = (
    "<a ",
    "<a",
    "<a b='",
    '<a b=">" ',
    "<!--x>",
    "<![CDATA[>",
    "<!--",
    "</",
    "<?",
    "<x y=z ",
)


@pytest.mark.parametrize("piece", ENDLESS)
@pytest.mark.parametrize("read", [html_text, html_page])
def test_the_end_of_a_tag_that_has_none_is_not_looked_for_again_and_again(
    read: Callable[[str], object], piece: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked = 0
    for name in (
        "parse_starttag",
        "parse_comment",
        "parse_html_declaration",
        "parse_endtag",
        "parse_pi",
    ):
        of_base = getattr(HTMLParser, name)

        def counted(self: HTMLParser, i: int, *more: Any, of_base: Any = of_base) -> int:
            nonlocal looked
            end: int = of_base(self, i, *more)
            looked += (len(self.rawdata) if end < 0 else end) - i
            return end

        monkeypatch.setattr(HTMLParser, name, counted)
    html = piece * (20_000 // len(piece))
    read(html)
    # Without the limit up to thousands of times its length.
    assert looked <= (UNCLOSED + 1) * len(html)
    if read is html_text:
        assert "".join(html_text(html).split()) == "".join(html.split())


@pytest.mark.parametrize("piece", ENDLESS)
def test_the_base_class_is_never_told_that_something_has_no_end(
    piece: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it does then hangs on the release of Python: newer ones lose the rest of the post."""
    for name in (
        "parse_starttag",
        "parse_comment",
        "parse_html_declaration",
        "parse_endtag",
        "parse_pi",
    ):
        of_ours = getattr(Tokenizer, name)

        def checked(self: Tokenizer, i: int, *more: Any, of_ours: Any = of_ours) -> int:
            end: int = of_ours(self, i, *more)
            assert end > i
            return end

        monkeypatch.setattr(Tokenizer, name, checked)
    assert html_text(f"a {piece}<p>b</p>{piece * 150}<p>c</p>{piece}").startswith("a")


def test_links_that_are_left_open_are_looked_back_on_a_few_at_a_time() -> None:
    text = html_text("<a href='http://x.y'>b" * 50 + "</a>" * 60)
    assert text == "b" * 50 + " (http://x.y)" * DEEPEST


@pytest.mark.parametrize(
    "html",
    [
        *(
            "",
            " \n",
            "<p></p>",
            "<p>&nbsp;</p>\n",
            "<ul><li></li></ul>",
            "<pre><code>\n</code></pre>",
        ),
        *(
            "<blockquote></blockquote>",
            "<!-- a -->",
            "<script>x</script>",
            "\u200b",
            "&#8203;",
            "\u3164",
        ),
        '<a title="a>b" href=http://x.y></a>',
    ],
)
def test_markup_and_blanks_say_nothing(html: str) -> None:
    assert not says_something(html)
    assert not says_something(f"{html}<div>{html}</div>")
    assert says_something(f"{html}?")


@pytest.mark.parametrize("html", ["<img src=x>", "?", "<p>!", "&#65;", "1 < 2", "<", "\U0001f600"])
def test_a_sign_or_a_picture_says_something(html: str) -> None:
    assert says_something(html)
