"""The HTML of a post as text: what a reader sees, with Markdown for code, lists, links and quotes.

By the standard library's tokenizer. Packages that do more (markdownify, html2text) bring a tree builder or
the GPL for the dozen tags that posts have.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable
from html.parser import HTMLParser

from xyreward.words import is_empty

_BLOCKS = frozenset(
    {
        "p",
        "div",
        "h1",
        "h2",
        "h3",
        "h4",
        "h5",
        "h6",
        "hr",
        "table",
        "tr",
        "dl",
        "dt",
        "dd",
        "section",
    }
)
_HIDDEN = frozenset({"script", "style", "template", "head"})
DEEPEST = 8
"""Lists, or quotes, inside each other; deeper ones stand on that level. Each level indents, so that a hostile
post would grow to hundreds of times its size. Of links so many may be open: each looks back on its words."""
UNCLOSED = 100
"""Of so many tags and comments without an end it is looked for to the end of the text; then all are text."""
_SPACES = re.compile(r"[ \t\n\r\f]+")
_MARK = re.compile(r" {0,16}(?:-|\d{1,9}\.) ")
_ENDLESS_NUMBER = re.compile(r"&#[0-9]{600,};?")
"""No character has it, and Python refuses to read it as a number."""
_FIRST_WORD = re.compile(
    r"""(?:<(?!script|style|template|head)[a-z/](?:[^<>"']|"[^"]*"|'[^']*')*+>|[^\w<&])*+\w""",
    re.IGNORECASE,
)


def html_text(html: str) -> str:
    """The text of a fragment of HTML. Never raises; tags that nobody knows are left out."""
    reader = _Reader()
    reader.read(html)
    return "".join(reader.parts).strip()


def says_something(html: str) -> bool:
    """Whether a reader sees a letter, a sign or a picture, and not only blanks and markup."""
    # Of nearly all posts the first words say so, and a dump has millions.
    if (match := _FIRST_WORD.match(html)) and not is_empty(match[0][-1]):
        return True
    reader = _Reader()
    reader.read(html)
    return reader.says_something


class Tokenizer(HTMLParser):
    """The standard library's, which never refuses a text here, and takes time in proportion to its length.

    Left alone it looks for the end of each open tag and comment to the end of the text, seconds for a post
    of `<a <a <a`, and raises an error at `<![x[` and at `&#` with thousands of digits. What it makes of a
    tag without an end is another thing in each release of Python, and newer ones lose all text behind it.
    """

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self._unclosed = 0

    def read(self, html: str) -> None:
        """Take all of a text apart."""
        html = _ENDLESS_NUMBER.sub("\ufffd", html)
        end = html.rfind(">") + 1  # nothing that begins behind it has an end
        self.feed(html[:end] + html[end:].replace("<", "&lt;"))
        self.close()

    def parse_starttag(self, i: int) -> int:
        """As the base class, of which these are the parts that may look far ahead."""
        return self._parsed(super().parse_starttag, i)

    def parse_endtag(self, i: int) -> int:
        """As the base class."""
        return self._parsed(super().parse_endtag, i)

    def parse_comment(self, i: int, report: bool = True) -> int:
        """As the base class."""
        return self._parsed(lambda at: super(Tokenizer, self).parse_comment(at, report), i)

    def parse_html_declaration(self, i: int) -> int:
        """As the base class; sections other than CDATA are comments, as in browsers."""
        if self.rawdata.startswith("<![", i) and not self.rawdata.startswith("<![CDATA[", i):
            return self._parsed(self.parse_bogus_comment, i)
        return self._parsed(super().parse_html_declaration, i)

    def _parsed(self, parse: Callable[[int], int], i: int) -> int:
        """Where what begins at `i` ends. Where it does not, or was not looked for, its first sign is text."""
        end = -1 if self._unclosed >= UNCLOSED else parse(i)
        if end < 0:
            self._unclosed += 1
            self.handle_data("<")
            end = i + 1
        return end


class _Reader(Tokenizer):
    def __init__(self) -> None:
        super().__init__()
        self.parts: list[str] = []
        self.says_something = False
        self._pre = 0
        self._hidden = 0
        self._lists: list[int | None] = []
        """Of each open list the number of its next entry, None for a list of bullets."""
        self._links: deque[tuple[str, int]] = deque(maxlen=DEEPEST)
        self._quotes: list[int | None] = []
        """Of each open one where it begins; None below the deepest."""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in _HIDDEN:
            self._hidden += 1
        elif tag == "pre":
            if not self._pre:
                self._block("```\n")
            self._pre += 1
        elif tag == "code" and not self._pre:
            self.parts.append("`")
        elif tag == "br":
            self.parts.append("\n")
        elif tag in ("ul", "ol"):
            self._lists.append(1 if tag == "ol" else None)
            self._block("", lines=2 if len(self._lists) == 1 else 1)
        elif tag == "li":
            number = self._lists[-1] if self._lists else None
            mark = "- " if number is None else f"{number}. "
            if number is not None:
                self._lists[-1] = number + 1
            self._block("  " * min(max(len(self._lists) - 1, 0), DEEPEST) + mark, lines=1)
        elif tag == "blockquote":
            self._block("")
            self._quotes.append(len(self.parts) if len(self._quotes) < DEEPEST else None)
        elif tag == "a":
            self._links.append((dict(attrs).get("href") or "", len(self.parts)))
        elif tag == "img":
            self.says_something = True
            alt = (dict(attrs).get("alt") or "").strip()
            self.parts.append(f"[image: {alt}]" if alt else "[image]")
        elif tag in _BLOCKS:
            self._block("")

    def handle_endtag(self, tag: str) -> None:
        if tag in _HIDDEN:
            self._hidden = max(self._hidden - 1, 0)
        elif tag == "pre" and self._pre:
            self._pre -= 1
            if not self._pre:
                self._block("```", lines=1)
                self._block("")
        elif tag == "code" and not self._pre:
            self.parts.append("`")
        elif tag in ("ul", "ol") and self._lists:
            self._lists.pop()
            self._block("", lines=1 if self._lists else 2)
        elif tag == "blockquote" and self._quotes:
            if (at := self._quotes.pop()) is None:
                self._block("")
                return
            inner = "".join(self.parts[at:]).strip()
            del self.parts[at:]
            self.parts.append("\n".join(f"> {line}".rstrip() for line in inner.split("\n")))
            self._block("")
        elif tag == "a" and self._links:
            target, at = self._links.pop()
            words = "".join(self.parts[at:]).strip()
            if target.startswith(("http://", "https://")) and target.rstrip("/") != words.rstrip(
                "/"
            ):
                self.parts.append(f" ({target})")
        elif tag in _BLOCKS:
            self._block("")

    def handle_data(self, data: str) -> None:
        if self._hidden:
            return
        self.says_something = self.says_something or not is_empty(data)
        if self._pre:
            self.parts.append(data)
            return
        words = _SPACES.sub(" ", data)
        if words.startswith(" ") and (not self.parts or self.parts[-1].endswith(("\n", " "))):
            words = words[1:]
        if words:
            self.parts.append(words)

    def _block(self, begins: str, *, lines: int = 2) -> None:
        """End the line, with an empty one after it where `lines` is 2, and begin the next."""
        if not begins and self.parts and _MARK.fullmatch(self.parts[-1]):
            return  # a paragraph that begins an entry of a list
        if self.parts and not self._pre and not _MARK.fullmatch(self.parts[-1]):
            self.parts[-1] = self.parts[-1].rstrip(" ")
        tail = "".join(self.parts[-3:])
        if tail.strip() or len(self.parts) > 3:
            there = len(tail) - len(tail.rstrip("\n"))
            self.parts.append("\n" * max(lines - there, 0))
        self.parts.append(begins)
