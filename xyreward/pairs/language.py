"""The language that a text is written in, where that can be told.

By py3langid, a naive Bayes classifier over byte n-grams: no dependency but numpy, 4.6 MB, some tenths of a
millisecond. (lingua-language-detector made the same errors on the bundled answers, at 96 MB and ten times the
time.) It knows no code, so code is taken out first; and what is left must be enough.

Not here: what a text's language should be (`guards.py`).
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any

MIN_BYTES = 60
"""UTF-8 bytes of letters that a text must have outside code: 60 Latin letters or 20 Chinese characters."""

CONFIDENT = 0.95
"""Probability at or above which a language is believed, in (0, 1]. The classifier's own; of the bundled
answers one in twenty is below 0.99 and one in a hundred below 0.92."""

ENDS = 100
"""Characters at either end that are looked at first; whole texts only where these do not bear out what is
expected. The beginning alone misses who answers in another language after two sentences of greeting."""

# Each alternative reads a character once or twice: an answer can be anything.
_BLOCK = re.compile(
    r"```.*?(?:```|\Z)"  # a fence, also one that the end of the answer cut
    r"|~~~.*?(?:~~~|\Z)"
    r"|`[^`\n]+`"
    r"|^(?: {4}|\t)[^\n]+"  # an indented block
    r"|^(?:\$|>>>|PS>|In \[\d+\]:) [^\n]+",  # a line of a console
    re.DOTALL | re.MULTILINE,
)
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
    return " ".join(_NO_WORD.sub(" ", _BLOCK.sub(" ", text)).split())


@lru_cache(maxsize=4096)
def language_of(text: str) -> str | None:
    """ISO 639-1 code of the language of a text; None where it is too short or mixed to tell."""
    return _classify(prose(text))


@lru_cache(maxsize=4096)
def speaks_another(text: str, expected: str) -> bool:
    """Whether a text is surely in another language than `expected` (ISO 639-1, `zh-TW` read as `zh`).

    A text of which that cannot be told is not. Languages written alike count as one.
    """
    written = prose(text)
    expected = expected.lower().replace("_", "-").partition("-")[0]
    if len(written) > 2 * ENDS:
        # Most texts are in the language expected, and their ends say so.
        found = _classify(f"{written[:ENDS]} {written[-ENDS:]}")
        if found is not None and not _differ(found, expected):
            return False
    return _differ(_classify(written), expected)


def _differ(found: str | None, expected: str) -> bool:
    return found is not None and _GROUP.get(found, found) != _GROUP.get(expected, expected)


def _classify(written: str) -> str | None:
    letters = "".join(filter(str.isalpha, written))
    if len(letters.encode("utf-8", "surrogatepass")) < MIN_BYTES:
        return None
    language, confidence = _identifier().classify(written)
    return language if confidence >= CONFIDENT and language != "zxx" else None


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
