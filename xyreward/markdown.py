"""Text from data and configuration, made safe for a Markdown page that is read in viewers and terminals.

Not here: terminals and exceptions (`errors.printable`), HTML (the template of `pairs/page.py`).
"""

from __future__ import annotations

import html
import re
import unicodedata


def plain(value: object) -> str:
    """A name or text from data or configuration, on one line and without any mark-up of its own.

    What holds more than words and harmless signs is shown as code, where Markdown knows no links, images,
    emphasis or HTML; escaping each sign would leave bare addresses, which many viewers turn into links.
    """
    text = printable(" ".join(str(value).split()))
    harmless = not text or (_HARMLESS.fullmatch(text) and not _ADDRESS.search(text))
    return text if harmless else code(text)


def code(value: object) -> str:
    """A name as Markdown's code."""
    text = html.escape(printable(" ".join(str(value).split())), quote=False)
    return f"`{text.replace('`', chr(39)).replace('|', chr(0xA6))}`"


_HARMLESS = re.compile(r"[^\W_][\w .,:;/%+=?'()\u2019-]*")
_ADDRESS = re.compile(r":\s*//|\bwww\.|\b_|_\b", re.IGNORECASE)


def printable(text: str) -> str:
    r"""The text without characters that steer a terminal or turn the direction of writing.

    Those of Unicode's category C (control, format, private, unassigned, half a surrogate pair) are shown
    as escapes, `\x1b`; line ends and tabs stay.
    """
    if text.replace("\n", "").replace("\t", "").isprintable():
        return text  # most texts, in a hundredth of the time
    return "".join(
        c
        if c in "\n\t" or unicodedata.category(c)[0] != "C"
        else c.encode("unicode_escape").decode()
        for c in text
    )


def fenced(text: str, language: str = "") -> str:
    """A text of many lines as a block of code, whose fence is longer than any run of backticks in it."""
    longest = max((len(run) for run in re.findall("`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}{language}\n{printable(text)}\n{fence}"
