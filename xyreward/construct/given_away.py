"""Whether a query says what it is not to say: the goal, or why the stated request will not get there.

Words are compared, cheaply and without a model: an item whose goal stands in the query is no test of
seeing it. docs/build.md has what the bundled items score, from which the limits were chosen.

Not here: whether the goal can be inferred all the same (`gates.py`).
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Set
from dataclasses import dataclass

from xyreward.items import Item

MAX_GOAL_WORDS = 0.85
"""Of the intended request's own words that may stand in the query, in [0, 1]. The goal of a fair item is told
in the words of its subject, which are the query's words too: half of them in most bundled items."""
MAX_CORRECTION_WORDS = 0.5
"""Of the misconception's own words, likewise."""

SHORTEST = 4
"""Letters of a word that counts: shorter ones are mostly there for grammar."""
STEM = 5
"""Letters by which two words are compared, an s at the end left out: `door` and `doors` are one word, and so
are `freeze` and `freezing`."""

_WORD = re.compile(r"[^\W_]+")
_UNSPACED = re.compile("[\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff]")
"""Of scripts that put no space between words."""


@dataclass(frozen=True, slots=True)
class Shares:
    """What part of the words that a query should not have stands in it, each in [0, 1].

    Words of the stated request are left out: whoever asks must use them.
    """

    goal: float
    """Of the intended request's words. 0 where it has none of its own."""
    correction: float
    """Of the misconception's, likewise."""


def shares(item: Item) -> Shares:
    """The shares of an item with a hidden goal; a control gives nothing away and has 0."""
    if item.kind == "control":
        return Shares(0.0, 0.0)
    query, stated = content_words(item.query_text), content_words(item.stated_request)

    def share(text: str) -> float:
        own = content_words(text) - stated
        return len(own & query) / len(own) if own else 0.0

    return Shares(share(item.intended_request), share(item.misconception))


def content_words(text: str) -> Set[str]:
    """The stems of a text's words, without those of grammar (English ones by list, others by length).

    Of Chinese and Japanese, which have no spaces, pairs of neighbouring characters.
    """
    from sklearn.feature_extraction.text import ENGLISH_STOP_WORDS  # an import of half a second

    found: set[str] = set()
    for word in _WORD.findall(unicodedata.normalize("NFC", text).casefold()):
        if _UNSPACED.search(word):
            found |= {word[i : i + 2] for i in range(len(word) - 1)} or {word}
        elif len(word) >= SHORTEST and word not in ENGLISH_STOP_WORDS:
            found.add(word[:STEM].removesuffix("s"))
    return found
