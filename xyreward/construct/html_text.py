"""The HTML of a post as text: what a reader sees, with Markdown for code, lists, links and quotes.

By the standard library's tokenizer, which never refuses a text. Packages that do more (markdownify,
html2text) bring a tree builder or the GPL for the dozen tags that posts have.
"""

from __future__ import annotations

import re
from html.parser import HTMLParser

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
post would grow to hundreds of times its size."""
_SPACES = re.compile(r"[ \t\n\r\f]+")
_MARK = re.compile(r" *(?:-|\d+\.) ")


def html_text(html: str) -> str:
    """The text of a fragment of HTML. Never raises; tags that nobody knows are left out."""
    reader = _Reader()
    reader.feed(html)
    reader.close()
    return "".join(reader.parts).strip()


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.parts: list[str] = []
        self._pre = 0
        self._hidden = 0
        self._lists: list[int | None] = []
        """Of each open list the number of its next entry, None for a list of bullets."""
        self._links: list[tuple[str, int]] = []
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
