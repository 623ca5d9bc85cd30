"""Shortcuts: rules that know nothing of the goal behind a question and may still pick the chosen answer.

A trainer that finds such a rule in the pairs teaches it. Fixed rules compare what can be counted in
two texts (`RULES`); learned ones are fitted on some clusters and tested on others (`by_origin`,
`bag_of_words`). Each says of every pair: 1 it picks chosen, 0 it picks rejected, 0.5 it cannot tell.

Not here: intervals and limits (`audit.py`), choosing pairs on which the rules do not help (`balance.py`).
"""

from __future__ import annotations

import math
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, NamedTuple, Protocol

import numpy as np

from xyreward.items import text_hash
from xyreward.pairs.pair import Pair

CUES = re.compile(
    r"\b(?:no|not|never|none|cannot|can't|don't|doesn't|isn't|aren't|won't|wouldn't|shouldn't|didn't|wasn't"
    r"|weren't|but|however|instead|although|though|actually|rather|unlike|despite|incorrect|wrong|false"
    r"|misconception|mistaken|myth)\b"
)
"""Words of pushing back, in lower-case English text with straight apostrophes. A reward for them alone
looks good wherever the chosen answers correct the user."""


class Traits(NamedTuple):
    """What can be counted in an answer without understanding it."""

    characters: int
    words: int
    """Runs without white space."""
    cues: int
    """Matches of `CUES`."""
    markdown: int
    """Headings, bullets, numbered lines, table rows and blocks of code, each 1, and each bold piece."""
    asks_first: bool
    """Its first sentence is a question."""
    questions: int
    """Question marks."""


# Choosing pairs for balance asks, and then the audit of what was chosen.
@lru_cache(maxsize=100_000)
def traits(text: str) -> Traits:
    """Count. Linear in the length of the text, whatever the text."""
    return Traits(
        characters=len(text),
        words=len(text.split()),
        cues=len(CUES.findall(text.lower().replace("\u2019", "'"))),
        markdown=_markdown(text),
        asks_first=_asks_first(text),
        questions=text.count("?") + text.count("\uff1f"),
    )


def traits_of(pairs: Iterable[Pair]) -> dict[str, Traits]:
    """Text -> its traits, for the answers of these pairs; each text is counted once."""
    found: dict[str, Traits] = {}
    for pair in pairs:
        for text in (pair.chosen, pair.rejected):
            if text not in found:
                found[text] = traits(text)
    return found


_FENCED = re.compile(r"^[ \t]*(```|~~~).*?^[ \t]*\1[ \t]*$", re.MULTILINE | re.DOTALL)
_LINE = re.compile(
    r"^[ \t]*(?:\#{1,6}[ \t]+\S|[-*+\u2022][ \t]+\S|\d{1,3}[.)][ \t]+\S|\|.*\||```|~~~)",
    re.MULTILINE,
)
_BOLD = re.compile(r"\*\*[^*\n]+\*\*|\b__[^_\n]+__\b")


def _markdown(text: str) -> int:
    blocks = 0
    if "```" in text or "~~~" in text:  # a comment in a shell script is no heading
        text, blocks = _FENCED.subn("", text)
    bold = len(_BOLD.findall(text)) if "**" in text or "__" in text else 0
    return blocks + len(_LINE.findall(text)) + bold


# An ASCII full stop ends a sentence only before white space: "Do you want node.js?" is one question.
_SENTENCE_END = re.compile("([?\uff1f])|[\u3002\uff01\n]|[.!](?=\\s|$)")


def _asks_first(text: str) -> bool:
    end = _SENTENCE_END.search(text.lstrip())
    return end is not None and end[1] is not None


# ---------------------------------------------------------------- fixed rules


class FixedRule(Protocol):
    """A rule that looks at two texts and nothing else."""

    @property
    def name(self) -> str:
        """Short and constant."""

    @property
    def what(self) -> str:
        """What it prefers, in a few words."""

    def picks(self, chosen: Traits, rejected: Traits) -> float:
        """1 it picks chosen, 0 rejected, 0.5 it cannot tell."""


@dataclass(frozen=True, slots=True)
class MoreOf:
    """Prefers the answer with more of something."""

    name: str
    what: str
    amount: Callable[[Traits], float]

    def picks(self, chosen: Traits, rejected: Traits) -> float:
        """1 chosen has more, 0 rejected has more, 0.5 both have as much."""
        a, b = self.amount(chosen), self.amount(rejected)
        return 0.5 if a == b else float(a > b)


def _characters(t: Traits) -> float:
    return t.characters


def _cues(t: Traits) -> float:
    return t.cues


def _cue_rate(t: Traits) -> float:
    return t.cues / t.words if t.words else 0.0


def _amount_of_markdown(t: Traits) -> float:
    return t.markdown


def _first_asks(t: Traits) -> float:
    return t.asks_first


def _question_marks(t: Traits) -> float:
    return t.questions


RULES: tuple[FixedRule, ...] = (
    MoreOf("longer", "more characters; below 50 % the shorter answer wins", _characters),
    MoreOf("cue words", "more words such as not, but, instead, wrong", _cues),
    MoreOf("cue words per word", "more of these per white-space word", _cue_rate),
    MoreOf(
        "markdown",
        "more headings, list lines, tables, bold and blocks of code",
        _amount_of_markdown,
    ),
    MoreOf("starts with a question", "the first sentence is a question", _first_asks),
    MoreOf("question marks", "more question marks", _question_marks),
)


def picks(pairs: Sequence[Pair], rule: FixedRule, of: Mapping[str, Traits]) -> list[float]:
    """What a rule says of each pair."""
    return [
        rule.picks(of[pair.chosen_answer.answer.text], of[pair.rejected_answer.answer.text])
        for pair in pairs
    ]


def reward_picks(pairs: Sequence[Pair]) -> list[float]:
    """Which side the judge's own reward prefers; 0.5 also where a side has none."""
    found = []
    for pair in pairs:
        a, b = pair.chosen_answer.reward, pair.rejected_answer.reward
        found.append(0.5 if a is None or b is None or a == b else float(a > b))
    return found


def swapped(pairs: Sequence[Pair]) -> list[Pair]:
    """The same pairs with their sides exchanged."""
    return [
        replace(p, chosen_answer=p.rejected_answer, rejected_answer=p.chosen_answer) for p in pairs
    ]


# ---------------------------------------------------------------- learned rules


@dataclass(frozen=True, slots=True)
class Learned:
    """What a rule, learned from the pairs of other clusters, says of each pair."""

    rows: Sequence[int]
    """Positions of the pairs that were tested."""
    picks: Sequence[float]
    """One for each row."""
    swapped_picks: Sequence[float]
    """The same rule, tested on the swapped pairs."""


FOLDS = 5


def by_origin(pairs: Sequence[Pair], turned: Sequence[Pair], seed: int) -> Learned | str:
    """Guess the side by who wrote it: the origin that won more often in other clusters.

    Args:
        pairs: length N.
        turned: the same, swapped.
        seed: of the folds.

    Returns:
        The picks, or why there are none.
    """
    folds = _folds([pair.cluster for pair in pairs], seed)
    if max(folds, default=0) == 0:
        return "needs pairs of at least 2 clusters"
    won: Counter[tuple[int, tuple[str, str]]] = Counter()
    met: Counter[tuple[int, tuple[str, str]]] = Counter()
    for pair, fold in zip(pairs, folds, strict=True):
        a, b = _sides(pair)
        if a != b:
            met.update([(fold, a), (fold, b)])
            won.update({(fold, a): 1})
            won.subtract({(fold, b): 1})
    all_won: Counter[tuple[str, str]] = Counter()
    all_met: Counter[tuple[str, str]] = Counter()
    for (_, origin), count in met.items():
        all_met[origin] += count
    for (_, origin), count in won.items():
        all_won[origin] += count

    def liking(origin: tuple[str, str], fold: int) -> float:
        """Wins minus losses outside the fold, per pair; 0 where chance would do."""
        balance = all_won[origin] - won[fold, origin]
        games = all_met[origin] - met[fold, origin]
        # Without this, origins that win equally often would be guessed wrong more often than not:
        # what one fold has too much, the others have too little.
        return balance / games if abs(balance) > math.sqrt(games) else 0.0

    def guess(pair: Pair, fold: int) -> float:
        a, b = _sides(pair)
        x, y = liking(a, fold), liking(b, fold)
        return 0.5 if a == b or x == y else float(x > y)

    return Learned(
        range(len(pairs)),
        [guess(pair, fold) for pair, fold in zip(pairs, folds, strict=True)],
        [guess(pair, fold) for pair, fold in zip(turned, folds, strict=True)],
    )


def _sides(pair: Pair) -> tuple[tuple[str, str], tuple[str, str]]:
    return pair.chosen_answer.answer.provenance, pair.rejected_answer.answer.provenance


def _folds(clusters: Sequence[str], seed: int) -> list[int]:
    """A fold for each pair; clusters stay whole, and the order of pairs does not matter."""
    names = sorted(set(clusters), key=lambda name: text_hash(f"{seed} {name}"))
    fold = {name: i % FOLDS for i, name in enumerate(names)}
    return [fold[name] for name in clusters]


MIN_CLUSTERS = 20
"""Fewer, and a bag of words learns from next to nothing: its accuracy would say nothing."""

# Single characters of scripts that write without spaces; elsewhere words of at least two letters.
_WORDS = (
    r"[\u0e00-\u0eff\u3040-\u30ff\u3400-\u9fff]|[^\W\u0e00-\u0eff\u3040-\u30ff\u3400-\u9fff]{2,}"
)
_FEATURES = 2**18


def bag_of_words(
    pairs: Sequence[Pair], turned: Sequence[Pair], seed: int, *, max_pairs: int
) -> Learned | str:
    """Logistic regression on which words and pairs of words are in one answer and not in the other.

    Grouped cross-validation over clusters. A pair is the difference of its two bags, so that
    exchanging the sides changes the sign and nothing else; there is no intercept.

    Args:
        pairs: length N.
        turned: the same, swapped.
        seed: of the sample.
        max_pairs: of more than this many, a sample is taken.

    Returns:
        The picks, or why there are none.
    """
    # Sorted, so that neither the sample nor the fit depends on the order of pairs.
    rows = sorted(range(len(pairs)), key=lambda i: text_hash(f"{seed} {pairs[i].id}"))[:max_pairs]
    clusters = [pairs[i].cluster for i in rows]
    if (there := len(set(clusters))) < MIN_CLUSTERS:
        return f"needs pairs of at least {MIN_CLUSTERS} clusters, there are {there}"

    from sklearn.feature_extraction.text import HashingVectorizer
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import GroupKFold
    from threadpoolctl import threadpool_limits

    sample = [pairs[i] for i in rows]
    texts = list(dict.fromkeys(text for p in sample for text in (p.chosen, p.rejected)))
    number = {text: i for i, text in enumerate(texts)}
    vectorizer = HashingVectorizer(
        n_features=_FEATURES,
        token_pattern=_WORDS,
        ngram_range=(1, 2),
        binary=True,
        norm=None,
        alternate_sign=False,
        dtype=np.float32,
    )
    bags = vectorizer.transform(texts)  # [texts, features]
    features = _differences(sample, number, bags)
    other = _differences([turned[i] for i in rows], number, bags)

    found, found_swapped = np.empty(len(rows)), np.empty(len(rows))

    def learn_and_test(fold: tuple[Any, Any]) -> None:
        train, test = fold
        # Half of the pairs the other way round: the loss of (-x, 0) is that of (x, 1), and the
        # regression wants both classes.
        sign = np.where(np.arange(len(train)) % 2 == 0, 1.0, -1.0).astype(np.float32)
        model = LogisticRegression(C=10.0, fit_intercept=False, solver="liblinear")
        model.fit(features[train].multiply(sign[:, None]).tocsr(), sign > 0)
        for of, into in ((features, found), (other, found_swapped)):
            into[test] = (np.sign(model.decision_function(of[test])) + 1) / 2

    # Threads, since liblinear lets go of the interpreter; each fold writes to rows of its own. One thread
    # each for what BLAS adds up, which would otherwise depend on the machine in its last digits.
    with threadpool_limits(1, "blas"), ThreadPoolExecutor(min(FOLDS, os.cpu_count() or 1)) as pool:
        list(pool.map(learn_and_test, GroupKFold(FOLDS).split(features, groups=clusters)))
    return Learned(rows, found.tolist(), found_swapped.tolist())


def _differences(pairs: Sequence[Pair], number: Mapping[str, int], bags: Any) -> Any:
    """[pairs, features]: in chosen 1, in rejected -1, in both or neither 0; each row of length 1."""
    from sklearn.preprocessing import normalize

    first = bags[[number[pair.chosen] for pair in pairs]]
    second = bags[[number[pair.rejected] for pair in pairs]]
    return normalize(first - second)
