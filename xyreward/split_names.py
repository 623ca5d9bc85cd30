"""What a name says about the side its rows are on: of a split, a column's value, a file, a folder.

A name is read word by word, and words end at separators, digits and capitals inside (`XYBenchTest`,
`test-00000-of-00002`, `test_v2`, `held out`). `latest`, `contest` and `attestation` are other words.
Where a name speaks of several splits (`train_test`), the one that is held out counts: to hold out
too much costs some rows and is said, to train on a test split spoils every number after it.

The names of train and validation are those by which the hub itself reads files:
https://huggingface.co/docs/hub/datasets-file-names-and-splits

Not here: which names of a source are asked (`tables.py`).
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Literal, get_args

Split = Literal["train", "validation", "test"]
"""Official splits, by the names that the hub gives them. The last is the strictest."""
SPLITS: tuple[Split, ...] = get_args(Split)

_TAIL = "(?:sets?|data|splits?|mini|v)"
_WORDS: dict[Split, re.Pattern[str]] = {
    "train": re.compile(f"(?:train|training){_TAIL}?"),
    "validation": re.compile(rf"(?:\w*bench)?(?:validations?|valid|val|dev){_TAIL}?"),
    # Names are written as one word in more ways than a list can hold (testset, testB, wikihowtest), so
    # any word counts that begins or ends with `test` and is not an English one.
    "test": re.compile(
        rf"test\w*|\w*tests?{_TAIL}?|(?:\w*bench)?eval\w*"
        rf"|\w*(?:heldout|holdout)s?{_TAIL}?|(?:hidden|blind|unseen){_TAIL}?"
    ),
}
_ENGLISH = frozenset(
    re.findall(
        r"\w+",
        """
        testability testable testament testamentary testaments testate testator testbed testbeds
        tested tester testers testes testicle testicles testicular testified testifies testify
        testifying testimonial testimonials testimonies testimony testiness testis testosterone testy
        evaluative evaluator evaluators

        attest attests contest contests detest detests doctest protest protests pytest unittest
        abruptest acutest adeptest aptest astutest bluntest brightest completest correctest curtest
        cutest deftest directest exactest faintest fastest fattest fittest flattest fleetest gauntest
        greatest hottest justest latest lightest minutest moistest mutest neatest perfectest politest
        promptest quaintest quietest remotest rightest robustest scantest sedatest shortest slightest
        smartest softest stoutest straightest strictest sweetest swiftest tartest tautest tightest
        tritest uprightest vastest wettest whitest
        """,
    )
)
"""Words that begin with `test` or `eval`, or end with `test`, and speak of no split."""
_FILLERS = re.compile(
    rf"\d+|v|of|xy|xybench|official|data|(?:data)?{_TAIL}|parts?|shards?|files?|jsonl?|csv|parquet"
)
"""Words that may stand beside the name of a split without saying anything else."""


@dataclass(frozen=True, slots=True)
class Named:
    """A name that rows go by."""

    text: str
    """The name of the split, as the source writes it or as `split_in` reads it."""
    why: str
    """Where the name stands, for messages: `file 'test.jsonl'`."""


@lru_cache(maxsize=1024)  # asked for every row, and few names are different
def split_in(name: str) -> Split | None:
    """The official split that a name speaks of by one of its words; None where it speaks of none."""
    hits = {_split_of(word) for words in _readings(name) for word in words}
    return next((split for split in reversed(SPLITS) if split in hits), None)


def names_a_test_split(name: str) -> bool:
    """Whether a name says nothing but that: `test`, `XYBench-test`, `test_set_v2`, not `ab-test`."""
    return split_in(name) == "test" and any(
        all(_split_of(word) or _FILLERS.fullmatch(word) for word in words)
        for words in _readings(name)
    )


def strictest(named: Iterable[Named]) -> Named | None:
    """The name that holds out most; of equals the first."""
    rank = {None: 0, "train": 1, "validation": 2, "test": 3}
    return max(named, key=lambda n: rank[split_in(n.text)], default=None)


def names_above(folder: Path) -> Iterator[Named]:
    """What the folder in which rows lie, and the one above it, hold out.

    The folder itself counts by any word. The one above counts only where its whole name is that of a
    test split (`XYBench/test/data`), since it may be any folder that somebody works in
    (`my-test-project/data`, `dev/data`); those further up say nothing. Nor do folders that pytest
    makes, which are called after a test's function (`pytest-0/test_something0`).

    Only what is held out counts: that a folder is called `train` is no reason to train on a row.
    """
    split = split_in(folder.name)
    if split in ("validation", "test") and not _is_pytests(folder):
        yield Named(split, f"folder {folder.name!r}")
    above = folder.parent
    if names_a_test_split(above.name) and not _is_pytests(above):
        yield Named("test", f"folder {above.name!r}")


def _is_pytests(folder: Path) -> bool:
    return re.fullmatch(r"pytest-\d+|popen-gw\d+", folder.parent.name) is not None


def _split_of(word: str) -> Split | None:
    if word in _ENGLISH or re.sub(f"{_TAIL}$", "", word) in _ENGLISH:  # latestdata
        return None
    return next((s for s in reversed(SPLITS) if _WORDS[s].fullmatch(word)), None)


def _readings(name: str) -> Iterator[list[str]]:
    """The words of a name in lower case, once with capitals inside as beginnings and once without.

    Both, because `XYBenchTest` needs the one and `TESTset` the other.
    """
    name = unicodedata.normalize("NFKC", name)
    for text in (re.sub(r"(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", " ", name), name):
        words = re.findall(r"[^\W\d_]+|\d+", text.lower())
        joined = re.sub(r"\b(held|hold) (outs?)\b", r"\1\2", " ".join(words))
        # This package's own word for what an XY item has: `hidden_goals.jsonl` hides no rows.
        yield re.sub(r"\bhidden (goals?|intents?|intentions?|requests?)\b", r"\1", joined).split()
