"""Which threads are worth a model's time: a cheap look at phrases, scores and words.

Threads without a sign are dropped unread, but for a share that is sent to the model regardless. What the
model finds among those says how many the look misses, so that its recall is known without a person's labels.

The marks were chosen on the train side of the bundled items; docs/build.md has what they keep of the others.
Not here: what a thread is about (`forum.py`).
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice

from scipy import stats

from xyreward.construct.stages import Dropped, Kept
from xyreward.construct.threads import Post, Thread
from xyreward.errors import ConfigError
from xyreward.items import text_hash

_TAG = re.compile(r"<[^>]{0,400}>")
_WORD = re.compile(r"[^\W\d_]{3,}")

MARKS: Mapping[str, tuple[float, str]] = {
    "instead": (
        1.0,
        r"\binstead\b|\brather than\b|\bbetter (?:to|way|off|idea|approach)\b|\bnot the \w+ (?:but|it'?s)|"
        r"\bleave (?:the|it|your|that)\b|\bforget (?:the|about)\b|\bskip (?:the|it)\b|\bstop \w+ing\b",
    ),
    "then_it_is": (
        1.0,
        r"\b(?:so|then|which means|that means|sounds like|points? (?:to|at))\b[^.!?\n]{0,80}"
        r"\b(?:is|are|isn'?t|it'?s|not|comes? from|sits?|already)\b|\bit'?s (?:not|the|your)\b|\bactually\b",
    ),
    "advises_against": (
        1.0,
        r"\b(?:should not|shouldn'?t|wouldn'?t|would not|do not|don'?t|never|please don'?t|avoid|bad idea|"
        r"anti-?pattern|i'?d advise against|discouraged|dangerous|mistake)\b",
    ),
    "xy": (3.0, r"\bxy[- ]problem|\ba/?b problem\b"),
    "asks_why": (
        2.0,
        r"\bwhat (?:are|is it) you(?:'re)? (?:really |actually )?(?:trying|after)|\bwhy (?:do|would) you "
        r"(?:want|need|think)|\bwhat(?:'s| is) (?:the|your) (?:end |real |actual |ultimate )?goal|"
        r"\bwhat you (?:really|actually) (?:want|need)",
    ),
    "not_needed": (
        2.0,
        r"\b(?:do not|don'?t|no) need (?:to|for|any)?|\bneedn'?t|\bno need\b|\bunnecessary|\bnot necessary|"
        r"\bis not needed|\bisn'?t needed|\bno reason to\b|\bdon'?t bother|\bwaste of",
    ),
    "will_not_help": (
        2.0,
        r"\b(?:won'?t|will not|wouldn'?t|would not|doesn'?t|does not|don'?t|can'?t|cannot|can not|never) "
        r"(?:\w+ ){0,2}(?:help|fix|solve|change|cure|bring|get|make|stop|work|matter|reach|remove|save|do)\b|"
        r"\bno (?:amount of|use)\b|\bnot going to (?:help|fix|solve|work)|\bmakes? it worse|\bonly hides?",
    ),
    "not_the_cause": (
        2.0,
        r"\b(?:isn'?t|is not|aren'?t|are not|wasn'?t|was not|not) (?:really |actually )?"
        r"(?:the|your|a) (?:\w+ ){0,2}(?:problem|issue|cause|culprit|reason|question|point|fault|bottleneck)|"
        r"\b(?:real|actual|underlying|root|true) (?:problem|issue|cause|question|reason)|"
        r"\bwrong (?:place|tool|end|question|problem|approach|way|layer|level)|\bfor another reason",
    ),
}
"""Mark -> (weight, pattern), looked for in the answers; each counts once per thread. The most frequent come
first: a look ends as soon as there are signs enough."""

_MARKS = {name: (weight, re.compile(pattern)) for name, (weight, pattern) in MARKS.items()}


@dataclass(frozen=True, slots=True)
class PreFilter:
    """How the look is taken.

    Raises:
        ConfigError: a field outside its range.
    """

    at_least: float = 1.0
    """A thread is sent where its signs add up to this, >= 0; 0 sends all. Of the test side of the bundled
    items, which no mark was chosen on, 1 sends 85 % of those with another goal and 42 % of the others; 2
    sends 59 % and 21 %."""
    sample: float = 0.05
    """Share of the others that is sent regardless, in [0, 1]: what recall is estimated from."""
    seed: int = 0
    """Of that sample, which is drawn by a hash of the thread's id."""
    embedding: float | None = None
    """Cosine distance of question and first answer, in [0, 2]: a larger one is a sign of weight 1. None: not
    looked at, as it costs some 800 times the rest of the look, and on the bundled items tells nothing."""

    def __post_init__(self) -> None:
        if not (0 <= self.at_least < math.inf):
            raise ConfigError(f"prefilter.at_least is {self.at_least!r}, expected a number >= 0")
        if not (0 <= self.sample <= 1):
            raise ConfigError(f"prefilter.sample is {self.sample!r}, expected a share in [0, 1]")
        if self.embedding is not None and not (0 <= self.embedding <= 2):
            raise ConfigError(
                f"prefilter.embedding is {self.embedding!r}, expected a cosine distance in [0, 2]"
            )

    def looks(self, threads: Iterable[Thread]) -> Iterator[tuple[Thread, Kept[Thread] | Dropped]]:
        """Look at one thread after the other; in lots where texts are embedded.

        Raises:
            MissingDependency: `embedding`, and its model is not installed.
        """
        if self.embedding is None:
            yield from ((thread, self.look(thread)) for thread in threads)
            return
        from xyreward.judges.encoder import Encoder

        encoder, them = Encoder(), iter(threads)
        while lot := list(islice(them, LOT)):
            # Only where the outcome hangs on it.
            asked = [
                thread
                for thread in lot
                if thread.answers
                and _add_up(thread, self.at_least - EMBEDDING_WEIGHT)
                and not _add_up(thread, self.at_least)
            ]
            questions = encoder.encode([thread.query for thread in asked])
            answers = encoder.encode([thread.answers[0].text for thread in asked])
            distances = 1 - (questions * answers).sum(axis=1)
            far = {
                thread.id
                for thread, distance in zip(asked, distances, strict=True)
                if distance > self.embedding
            }
            yield from ((thread, self.look(thread, far=thread.id in far)) for thread in lot)

    def look(self, thread: Thread, *, far: bool = False) -> Kept[Thread] | Dropped:
        """Whether to send the thread: kept as `signs` or as `sample`, or dropped.

        Args:
            thread: what is looked at.
            far: whether question and answer were found to lie `embedding` apart.
        """
        if _add_up(thread, self.at_least - EMBEDDING_WEIGHT * far):
            return Kept(thread, "signs")
        if draw(f"{self.seed} {thread.source} {thread.id}") < self.sample:
            return Kept(thread, "sample")
        return Dropped("no sign of another goal")


def signs(thread: Thread) -> dict[str, float]:
    """The signs of a thread and their weights: `MARKS`, `distance`, `second_opinion`. Empty: none."""
    return dict(_signs(thread))


def _add_up(thread: Thread, at_least: float) -> bool:
    """Whether the signs' weights do. The first ones settle it: each further one takes time to look for."""
    total = 0.0
    return at_least <= 0 or any((total := total + w) >= at_least for _, w in _signs(thread))


def _signs(thread: Thread) -> Iterator[tuple[str, float]]:
    if thread.accepted is not None:
        accepted = thread.answer(thread.accepted)
        others = [p.score for p in thread.answers if p.id != thread.accepted]
        # Others than the person who asked find that it is about something else.
        if accepted is not None and others and max(others) > 2 * max(accepted.score, 1):
            yield "second_opinion", 1.0
    if not thread.answers:
        return
    texts = [_bare(post) for post in thread.answers]
    together = "\n".join(texts)  # no mark goes over the end of a line
    for name, (weight, pattern) in _MARKS.items():
        if pattern.search(together):
            yield name, weight
    if distance(f"{thread.title} {_bare(thread.question)}", texts[0]) > FAR:
        yield "distance", 1.0


EMBEDDING_WEIGHT = 1.0
LOT = 256
"""Threads whose texts are embedded together."""
FAR = 0.85
"""Distance from which an answer speaks of other things than its question."""


def distance(question: str, answer: str) -> float:
    """Share of the question's words that the answer does not use, in [0, 1]; 0 where there are none."""
    asked = set(_WORD.findall(question.casefold()))
    return 1 - len(asked & set(_WORD.findall(answer.casefold()))) / len(asked) if asked else 0.0


def _bare(post: Post) -> str:
    """A post without tags, in lower case: enough for a look, in a tenth of the time of `Post.text`."""
    text = _TAG.sub(" ", post.html) if post.is_html else post.html
    return " ".join(text.casefold().replace("\u2019", "'").replace("&#39;", "'").split())


def draw(text: str) -> float:
    """A number in [0, 1) that hangs on the text alone."""
    return int(text_hash(text)[:12], 16) / 16**12


# ---------------------------------------------------------------- recall


@dataclass(frozen=True, slots=True)
class Recall:
    """What share of the threads with another goal the look sends to the model."""

    with_signs: int
    """All threads that have signs enough."""
    asked: int
    """Those of them of which the model said something; all but failures where there is no limit."""
    found: int
    """Of `asked`, those with another goal."""
    without: int
    """All threads without signs enough."""
    sampled: int
    """Those of them of which the model said something."""
    missed: int
    """Of `sampled`, those with another goal."""

    @property
    def value(self) -> float | None:
        """In [0, 1], higher is better; None where nothing was sampled or found."""
        return self._at(self.missed / self.sampled) if self.sampled else None

    @property
    def interval(self) -> tuple[float, float] | None:
        """95 %, from the exact interval of the sample's share (Clopper and Pearson)."""
        if not self.sampled or self.value is None:
            return None
        share = stats.binomtest(self.missed, self.sampled).proportion_ci(0.95)
        low, high = self._at(share.high), self._at(share.low)
        return None if low is None or high is None else (low, high)

    def _at(self, share: float) -> float | None:
        seen = self.with_signs * self.found / self.asked if self.asked else 0.0
        missed = self.without * share
        return seen / (seen + missed) if seen + missed else None

    def __str__(self) -> str:
        if not self.without:
            return "1: every thread was sent"
        if self.value is None or self.interval is None:
            return (
                "unknown: none of the threads without signs was sent, or no goal was found at all"
            )
        low, high = self.interval
        return (
            f"{self.value:.2f} [{low:.2f}, {high:.2f}] ({self.found:,} of {self.asked:,} with signs have "
            f"another goal, {self.missed:,} of {self.sampled:,} sampled without)"
        )
