"""Text from data inside a prompt: made harmless, and set between marks that it cannot imitate.

A part stands between two lines, `<name-CODE>` and `</name-CODE>`. CODE is derived from all parts of
the request, so that no part can contain it, and the same request has the same text every time (the
verdict store's key needs that). Beyond that no untrusted text has a less-than sign any more, so
nothing in it can begin a mark, a tag, or a special token of a local model such as `<|im_end|>`.

Not here: what the parts are and what is said about them (`rubric.py`).
"""

from __future__ import annotations

import hashlib
import json
import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

LESS_THAN = "\N{SINGLE LEFT-POINTING ANGLE QUOTATION MARK}"
"""Stands for every less-than sign and for what looks like one."""
ROLE_COLON = "\N{RATIO}"
"""Stands for the colon after a role's name at the beginning of a line."""
CONTROL_BRACKET = "\N{MATHEMATICAL LEFT WHITE SQUARE BRACKET}"
"""Stands for the bracket that opens a control word such as [INST]."""

_UNUSUAL = re.compile("[^\n\t\x20-\x3b\x3d-\x7e]")
_LINE_ENDS = re.compile("\r\n|[\r\v\f\x85\u2028\u2029]")
_LOOK_LIKE_LESS_THAN = re.compile("[<\uff1c\ufe64\u2329\u27e8\u3008\u276e\u02c2]")

# Code points that show nothing: Unicode's Default_Ignorable_Code_Point (DerivedCoreProperties.txt),
# among them zero-width characters, direction overrides, variation selectors and tag characters, which
# can carry a text that no reader sees; and the blank Braille pattern.
_INVISIBLE = re.compile(
    "[\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f"
    "\u2800\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb\U0001bca0-\U0001bca3"
    "\U0001d173-\U0001d17a\U000e0000-\U000e0fff]"
)
_CONTROL = re.compile("[\x00-\x08\x0e-\x1f\x7f-\x9f\ud800-\udfff]")
_ROLE = re.compile(
    r"^([^\S\n]*[#>*_|\-\[(]{0,8}[^\S\n]*"
    r"(?:human|user|assistant|system|developer|tool|function|judge|evaluator|grader|instructions?|response)"
    r"[\])]?[*_]{0,3}[^\S\n]*)[:\uff1a]",
    re.IGNORECASE | re.MULTILINE,
)
_CONTROL_WORD = re.compile(
    r"\[(?=/?(?:INST|SYS|SYSTEM_PROMPT|AVAILABLE_TOOLS|TOOL_CALLS|TOOL_RESULTS|TOOL_CONTENT|THINK)\])",
    re.IGNORECASE,
)
_LONG_GAP = re.compile(r"[^\S\n]{81,}")
_EMPTY_LINES = re.compile(r"\n(?:[^\S\n]*\n){3,}")

_FENCED = re.compile(
    r"^<([a-z][a-z-]*)-([0-9a-f]{16})>\n(.*?)\n</\1-\2>$", re.MULTILINE | re.DOTALL
)


@dataclass(frozen=True, slots=True)
class Part:
    """One text of a request and the name of its marks."""

    name: str
    """Lower-case letters and hyphens."""
    text: str


# An item's texts come again with each of its answers, and in each epoch.
@lru_cache(maxsize=1024)
def neutralise(text: str) -> str:
    """The text as a judge is shown it; doing it twice changes nothing more.

    Less-than signs, colons after a role's name and control words' brackets are replaced by others
    that look alike; control characters become visible; characters that show nothing are removed; long
    gaps are shortened. What a reader would see and understand stays.
    """
    # Each guard is a cheap test for what its line could change: this runs over every text of every
    # request, also of those whose verdict is in the store.
    if _UNUSUAL.search(text):
        text = _LINE_ENDS.sub("\n", text)
        text = _CONTROL.sub(_visible, text)
        text = _INVISIBLE.sub("", text)
        text = _LOOK_LIKE_LESS_THAN.sub(LESS_THAN, text)
    if "    " in text or "\t" in text or not text.isascii():
        text = _LONG_GAP.sub(" " * 80, text)
    text = _EMPTY_LINES.sub("\n\n\n", text)
    if "[" in text:
        text = _CONTROL_WORD.sub(CONTROL_BRACKET, text)
    if ":" in text or "\uff1a" in text:
        text = _ROLE.sub(lambda match: match[1] + ROLE_COLON, text)
    return text


def _visible(match: re.Match[str]) -> str:
    code = ord(match[0])
    if code < 0x20:
        return chr(0x2400 + code)  # control pictures
    return "\u2421" if code == 0x7F else "\N{REPLACEMENT CHARACTER}"


def fence(parts: Sequence[Part]) -> str:
    """All parts, neutralised, each between its marks; parts are separated by an empty line.

    The texts are joined and never used as a template, so braces and the like in them do nothing.
    """
    safe = [Part(part.name, neutralise(part.text)) for part in parts]
    code = _code(safe)
    return "\n\n".join(f"<{part.name}-{code}>\n{part.text}\n</{part.name}-{code}>" for part in safe)


def parse_fences(text: str) -> list[Part]:
    """The parts of a text that holds `fence()`'s output, in order: what tests take a request apart with.

    A worked example's marks (`EXAMPLE` in place of a code) are not marks of a request.
    """
    return [Part(match[1], match[3]) for match in _FENCED.finditer(text)]


def _code(parts: Sequence[Part]) -> str:
    # 64 bits: a text that contains the code derived from itself would have to be searched for longer
    # than anyone can, and the missing less-than sign would still stop it.
    texts = json.dumps([[part.name, part.text] for part in parts])
    return hashlib.sha256(texts.encode("ascii")).hexdigest()[:16]


# For each quote of a reply the same answer.
@lru_cache(maxsize=64)
def comparable(text: str, *, bullets: bool = True) -> str:
    """A text as quotes are compared: what a careful copyist changes without noticing is folded.

    That is white space, Unicode form, case, kinds of quotation marks and dashes, the marks of bold and
    code, and this module's stand-ins; without `bullets` also what begins the lines of a list.
    """
    text = neutralise(unicodedata.normalize("NFC", text))
    if not bullets:
        text = _BULLET.sub("", text)
    return " ".join(text.translate(_FOLD).casefold().split())


_BULLET = re.compile(r"^[^\S\n]*(?:[-+•>#|][-+•>#|\s]*|\d{1,3}[.)]\s)", re.MULTILINE)
_FOLD = str.maketrans(
    {
        LESS_THAN: "<",
        ROLE_COLON: ":",
        CONTROL_BRACKET: "[",
        **dict.fromkeys("\u2018\u2019\u201a\u201b\u2032\u00b4", "'"),
        **dict.fromkeys("\u201c\u201d\u201e\u201f\u2033\u00ab\u00bb", '"'),
        **dict.fromkeys("\u2010\u2011\u2012\u2013\u2014\u2212", "-"),
        **dict.fromkeys("*`", ""),
    }
)
