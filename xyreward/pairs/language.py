"""The language that a text is written in, where that can be told.

By py3langid, a naive Bayes classifier over byte n-grams: no dependency but numpy, 4.6 MB, some tenths of a
millisecond, and a third of that where many texts are told at once (`Told`). (lingua-language-detector made
the same errors on the bundled answers, at 96 MB and ten times the time.) It knows no code, so code is taken
out first; and what is left must be enough.

Not here: what a text's language should be (`guards.py`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import islice
from types import MappingProxyType
from typing import Any, NamedTuple

MIN_BYTES = 60
"""UTF-8 bytes of letters that a text must have outside code: 60 Latin letters or 20 Chinese characters."""

CONFIDENT = 0.95
"""Probability at or above which a language is believed, in (0, 1]. The classifier's own; of the bundled
answers one in twenty is below 0.99 and one in a hundred below 0.92."""

ENDS = 100
"""Characters at either end that are looked at first; whole texts only where these do not bear out what is
expected. The beginning alone misses who answers in another language after two sentences of greeting."""

TOGETHER = 2_000
"""Texts that are classified at once, and characters of the longest of them: a table of 16 MB, or four
times that where a character has four bytes."""

# Each alternative reads a character once or twice: an answer can be anything.
_BLOCK = re.compile(
    r"```.*?(?:```|\Z)"  # a fence, also one that the end of the answer cut
    r"|~~~.*?(?:~~~|\Z)"
    r"|`[^`\n]+`"
    r"|^(?: {4}|\t)[^\n]+"  # an indented block
    r"|^(?:\$|>>>|PS>|In \[\d+\]:) [^\n]+",  # a line of a console
    re.DOTALL | re.MULTILINE,
)
# Without any of these there is no block, and most answers have none.
_MARKS = ("`", "~~~", "    ", "\t", "$ ", ">>> ", "PS> ", "In [")
_IN_WORD = r"[^\s\u3000-\u9fff]"
# Names, paths, addresses, operators: `x_y`, `/usr/bin`, `a=b`, `df.merge(on)`, `app.py`. It begins where a
# word does and nowhere else, so that it reads each word once.
_NO_WORD = re.compile(
    rf"(?<!{_IN_WORD}){_IN_WORD}*?"
    r"(?:[\\/_=<>{}\[\]|$#@;+*~^&]|[^\W\u3000-\u9fff][.(][^\W\u3000-\u9fff])"
    rf"{_IN_WORD}*"
)


# Written so alike that a short text of one may be taken for another; each group counts as one language.
_ALIKE = (
    {"bs", "hr", "sr"},
    {"da", "nb", "nn", "no"},
    {"id", "ms"},
    {"cs", "sk"},
    {"gl", "pt"},
    {"an", "es"},
    {"af", "nl"},
    {"de", "lb"},
)
_GROUP = {language: "/".join(sorted(alike)) for alike in _ALIKE for language in alike}


def prose(text: str) -> str:
    """A text without what is code: blocks, quoted names, console lines, paths, operators."""
    return _words(_without_blocks(text))


def _ends(text: str) -> str:
    """What is looked at first of the prose of a text: both its ends, or all of it where it is short."""
    text = _without_blocks(text)
    # Words are looked at one by one, so what lies beyond a space makes no difference.
    some = ENDS * 3 // 2
    begin, end = text.rfind(" ", 0, some), text.find(" ", max(0, len(text) - some))
    if 0 < begin < end:
        first, last = _words(text[:begin]), _words(text[end:])
        if min(len(first), len(last)) >= ENDS:
            return f"{first[:ENDS]} {last[-ENDS:]}"
    written = _words(text)
    return written if len(written) <= 2 * ENDS else f"{written[:ENDS]} {written[-ENDS:]}"


def _without_blocks(text: str) -> str:
    return _BLOCK.sub(" ", text) if any(mark in text for mark in _MARKS) else text


def _words(text: str) -> str:
    return " ".join(_NO_WORD.sub(" ", text).split())


@lru_cache(maxsize=4096)
def language_of(text: str) -> str | None:
    """ISO 639-1 code of the language of a text; None where it is too short or mixed to tell."""
    return _classify(prose(text))


class Told(NamedTuple):
    """Languages that were told beforehand, of many texts at once: a third of the time of one by one."""

    wholes: Mapping[str, str | None] = MappingProxyType({})
    """Text -> what `language_of` says of it."""
    ends: Mapping[str, str | None] = MappingProxyType({})
    """Text -> the language of its ends, which are what `speaks_another` looks at first."""

    @classmethod
    def of(cls, *, wholes: Iterable[str], ends: Iterable[str]) -> Told:
        """Tell the languages of these texts, and of the ends of those."""
        return cls(_each(wholes, prose), _each(ends, _ends))


NOTHING = Told()


def _each(texts: Iterable[str], read: Callable[[str], str]) -> dict[str, str | None]:
    found: dict[str, str | None] = {}
    rest = iter(dict.fromkeys(texts))
    while some := list(islice(rest, TOGETHER)):
        found |= zip(some, _classify_all([read(text) for text in some]), strict=True)
    return found


def speaks_another(text: str, expected: str, told: Told = NOTHING) -> bool:
    """Whether a text is surely in another language than `expected` (ISO 639-1, `zh-TW` read as `zh`).

    A text of which that cannot be told is not. Languages written alike count as one.

    Args:
        text: an answer.
        expected: the language.
        told: languages of texts, maybe of this one.
    """
    expected = expected.lower().replace("_", "-").partition("-")[0]
    # Most texts are in the language expected, and their ends say so.
    found = told.ends[text] if text in told.ends else _of_ends(text)
    if found is None or _differ(found, expected):
        found = language_of(text)
    return _differ(found, expected)


@lru_cache(maxsize=4096)
def _of_ends(text: str) -> str | None:
    return _classify(_ends(text))


def _differ(found: str | None, expected: str) -> bool:
    return found is not None and _GROUP.get(found, found) != _GROUP.get(expected, expected)


def _enough(written: str) -> bool:
    letters = "".join(filter(str.isalpha, written))
    return len(letters.encode("utf-8", "surrogatepass")) >= MIN_BYTES


def _classify(written: str) -> str | None:
    if not _enough(written):
        return None
    language, confidence = _identifier().classify(written)
    return _believed(language, confidence)


def _believed(language: str, confidence: float) -> str | None:
    return language if confidence >= CONFIDENT and language != "zxx" else None


def _classify_all(written: Sequence[str]) -> list[str | None]:
    """As `_classify` of each: the classifier's steps, each for all texts at once."""
    import numpy as np
    from scipy.sparse import csr_array

    identifier = _identifier()
    found: list[str | None] = [None] * len(written)
    places, encoded = [], []
    for i, text in enumerate(written):
        if len(text) > TOGETHER:
            found[i] = _classify(text)
        elif _enough(text):
            places.append(i)
            encoded.append(identifier._encode(text))
    if not places:
        return found
    lengths = np.array([len(text) for text in encoded])
    width = int(lengths.max())
    letters = np.frombuffer(b"".join(text.ljust(width) for text in encoded), np.uint8)
    moves, rows, features = (
        np.asarray(table)
        for table in (identifier.tk_nextmove, identifier.tk_row, identifier.tk_output)
    )
    # [letters, texts]: the feature that each text's automaton comes upon with each letter, or -1.
    visited = np.empty((width, len(places)), features.dtype)
    state = np.zeros(len(places), np.intp)
    for at, column in enumerate(letters.reshape(len(places), width).T):
        state = moves[rows[state].astype(np.intp) * 256 + column]
        visited[at] = features[state]
    visited[np.arange(width)[:, None] >= lengths] = -1
    place, row = np.nonzero(visited >= 0)
    shape = len(places), len(identifier.nb_ptc)
    counts = csr_array((np.ones(len(place), np.float32), (row, visited[place, row])), shape)
    scores = (counts.log1p() @ identifier.nb_ptc + identifier.nb_pc) / np.sqrt(lengths)[:, None]
    p = np.exp(scores - scores.max(axis=1, keepdims=True))
    p /= p.sum(axis=1, keepdims=True)
    for first, double in identifier._alias_pairs:
        p[:, first] += p[:, double]
        p[:, double] = 0
    best, confidence = p.argmax(axis=1), p.max(axis=1)
    # Sums in another order differ in their last digits: where those might decide, one by one. So, too,
    # without any feature, which is a case of its own.
    unsure = (abs(confidence - CONFIDENT) < 1e-3) | (np.diff(counts.indptr) == 0)
    for n, i in enumerate(places):
        language = identifier.nb_classes[best[n]]
        found[i] = _classify(written[i]) if unsure[n] else _believed(language, confidence[n])
    return found


@lru_cache(maxsize=1)
def _identifier() -> Any:
    from array import array

    import numpy as np
    from py3langid.langid import MODEL_FILE, LanguageIdentifier

    identifier = LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)
    # Without those that have no code of two letters, of which an item could not be either: Wu and
    # Cantonese would take a share of every Chinese text. `zxx` is no language at all.
    identifier.set_languages(
        [code for code in identifier.labels if len(code) == 2 or code == "zxx"]
    )
    # The same numbers, which are read in a third of the time where they lie side by side: they were in
    # half precision, a column after the other, and in a list.
    identifier.nb_ptc = np.ascontiguousarray(identifier.nb_ptc, dtype=np.float32)
    identifier.tk_output = array("i", identifier.tk_output)
    return identifier
