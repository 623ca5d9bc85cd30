"""What the local judge looks at: numbers that relate an answer's chunks to an item's grounding.

Six rules keep the numbers honest:

    gate        A chunk that resembles none of the item's solutions, nor its misconception (cosine
                below `GATE`), has weight 0 in every feature, its words included. So off-topic
                padding, before, between or after, changes nothing at all, as long as it forms
                chunks of its own.
    echo        A chunk that nearly repeats the query or a request, has no other words than theirs,
                or quotes them for most of its length, has weight 0. Saying the question again, or
                naming the goal, is no answer, whatever words introduce it.
    why         A chunk that is nearer to the misconception than to any solution is no solution:
                saying why a way does not work is not saying one that does.
    once        A chunk that is repeated word for word counts once.
    language    In another language than English, a chunk without words of the item has weight 0. The
                encoder was made for English and finds any two Chinese texts alike.
    content     No feature counts cue words ("instead", "not", "actually"), length, lists or
                question marks. They would lift the figures on the bundled items a little and are
                the first thing that a policy under training would learn to imitate.

The features of what an answer is about (`_about`) have a gate of their own, since an answer that
tries and fails holds nothing that passes the other one, and chunks near a request count in them
unless they copy, quote or nearly repeat it. For controls they also look for talk like `DISSUADES`.

Not here: embedding (`encoder.py`), what the numbers mean for the labels (`local.py`, fitted by
`fit_local.py`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from xyreward.items import Item, ItemKind
from xyreward.judges.encoder import Vectors, chunks, plain

Floats = NDArray[np.float64]

GATE = 0.42
"""Cosine to the nearest solution or misconception of the item at which a chunk begins to count. Low
enough to keep most of what answers say, high enough that padding in the tests never reaches it."""
GATE_FULL = 0.47
"""Cosine from which a chunk counts in full. The ramp between the two keeps every feature
continuous, so a difference in the last bit of an embedding (another batch, another CPU) does not
flip a label."""

ECHO = 0.75
"""Cosine to the query's nearest sentence, or to a request, from which a chunk counts less. Some 5 %
of the chunks of the bundled answers are above; text made of the query's sentences mostly is."""
ECHO_FULL = 0.85
"""Cosine from which it counts for nothing: it repeats the question, or only names the goal."""

COPY = 0.75
"""Share of a chunk's words that are the query's or the requests' from which it counts less. Some
3 % of the chunks of the bundled answers are above; shuffled sentences of the query all are."""
COPY_FULL = 0.90
"""Share from which it counts for nothing."""

QUOTE = 0.40
"""Share of a chunk's words that stand in runs of `RUN` words of the query or a request from which it
counts less: words put before a quoted question do not make an answer of it."""
QUOTE_FULL = 0.60
"""Share from which it counts for nothing."""
RUN = 3
"""Words, or characters in scripts without spaces, in the order of the question."""

WHY = 0.10
"""A chunk whose cosine to the misconception is above that to any solution counts less as a solution
and, from this distance on, for nothing."""

ENCODER_LANGUAGE = "en"
SHARED = 0.10
"""Share of a chunk's words that are the item's, in any part of it, at which a chunk in another
language than English begins to count. Most chunks of the bundled answers are well above; of answers
to other items and of the attack texts hardly any."""
SHARED_FULL = 0.20
"""Share from which it counts in full."""
SHARED_OF = 10
"""Words that a chunk is taken to have at least, so that one word in common is never enough."""

ABOUT_ECHO = 0.85
"""As `ECHO`, for what an answer is about: an attempt speaks of the request, mostly in its words."""
ABOUT_ECHO_FULL = 0.95
"""Cosine from which a chunk says nothing of what the answer is about."""

TOPIC = 0.42
"""Cosine to the stated request or a solution of it at which a chunk begins to be about the matter."""
TOPIC_FULL = 0.48
"""Cosine from which it is in full."""

QUERY_MARGIN = 0.04
"""So much more it has to have to a sentence of the query: of a dozen sentences, some also say where
people live and how they are."""

QUERY_CHUNKS = 24
"""At most so many chunks of a query are compared with; a pasted log says less with every line."""
PIECES = 24
"""At most so many pieces of all stated, and of all intended solutions."""

DISSUADES = (
    "What you are asking for will not solve your real problem.",
    "Doing this will not help you with what you really want.",
    "What you plan to do is beside the point; the real problem is another one.",
    "This is not worth doing, it only treats a symptom.",
    "You do not need this at all.",
    "The question is the wrong one to ask.",
    "Forget about that and do something else.",
    "What should be changed is something more fundamental.",
)
"""How a control's request is talked down, in English. A control has no misconception to compare an
answer with, so what one is like in general has to stand in for it. Talking so can only cost reward
on a control, hence nothing is won by imitating it."""

CLEAR = 0.08
"""A chunk whose cosines to the two sides differ by more than this belongs to one of them."""

Encode = Callable[[Sequence[str]], Vectors]
"""Texts, length N, to unit vectors of shape (N, 384)."""


@dataclass(frozen=True, slots=True)
class Grounding:
    """An item, ready to be compared with: one row of `vectors` per text, in named slices."""

    kind: ItemKind
    vectors: Vectors
    """Shape (T, 384)."""
    slices: dict[str, slice]
    """`stated`, `intended` (whole solutions), `stated_pieces`, `intended_pieces` (their sentences),
    `misconception`, `stated_request`, `intended_request`, `query`, `dissuades`. Empty where there
    are none."""
    terms: dict[str, frozenset[str]]
    """Words that one part of the grounding has and the other lacks; see `_item_terms`."""
    asked: frozenset[str]
    """Words of the query and the requests."""
    known: frozenset[str] | None
    """All words of the item, where chunks must share some of them to count: in other languages than
    English, in which the encoder finds too much alike."""
    runs: frozenset[tuple[str, ...]]
    """Runs of `RUN` words of the query and the requests."""
    statics: tuple[float, float]
    """Cosine of the two solutions' means, cosine of the two requests, in [-1, 1]. Where the two are
    close, contrasts are small whatever the answer says, so the head has to know."""


def grounding_texts(item: Item) -> dict[str, list[str]]:
    """The texts of an item that answers are compared with, by slice name, in a fixed order.

    A request stands in for its solutions where an item has none.
    """
    is_xy = item.kind == "xy"
    stated = item.stated_solutions or (item.stated_request,)
    intended = (item.intended_solutions or (item.intended_request,)) if is_xy else ()
    return {
        "stated": [plain(text) for text in stated[:PIECES]],
        "stated_pieces": _pieces(stated),
        "intended": [plain(text) for text in intended[:PIECES]],
        "intended_pieces": _pieces(intended),
        "misconception": chunks(item.misconception)[:PIECES] if item.misconception.strip() else [],
        "stated_request": [plain(item.stated_request)],
        "intended_request": [plain(item.intended_request)] if is_xy else [],
        "query": chunks(item.query_text)[:QUERY_CHUNKS],
        "dissuades": [] if is_xy else list(DISSUADES),
    }


def ground(item: Item, encode: Encode) -> Grounding:
    """Embed an item's texts. See `grounding_texts` for which."""
    named = grounding_texts(item)
    flat = [text for texts in named.values() for text in texts]
    vectors = encode(flat)
    slices: dict[str, slice] = {}
    start = 0
    for name, texts in named.items():
        slices[name] = slice(start, start + len(texts))
        start += len(texts)
    sides = [_unit(vectors[slices[name]].sum(axis=0)) for name in ("stated", "intended")]
    requests = [vectors[slices[name]] for name in ("stated_request", "intended_request")]
    is_xy = item.kind == "xy"
    return Grounding(
        kind=item.kind,
        vectors=vectors,
        slices=slices,
        terms=_item_terms(item),
        asked=frozenset(
            terms(" ".join([item.query_text, item.stated_request, item.intended_request]))
        ),
        known=None if item.language == ENCODER_LANGUAGE else _all_terms(item),
        runs=frozenset(
            run
            for text in (item.query_text, item.stated_request, item.intended_request)
            for run in _runs(_in_order(text))
        ),
        statics=(
            float(sides[0] @ sides[1]) if is_xy else 1.0,
            float(requests[0][0] @ requests[1][0]) if is_xy else 1.0,
        ),
    )


def _pieces(solutions: Iterable[str]) -> list[str]:
    return [piece for solution in solutions for piece in chunks(solution)][:PIECES]


# ---------------------------------------------------------------- words

_NO_SPACES = r"\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af"
_WORD = re.compile(rf"[{_NO_SPACES}]+|[^\W{_NO_SPACES}]+")
_STEM = 5
"""Letters of a word that are compared: a cheap stem for the inflection of European languages."""

_COMMON_WORDS = """
this that with from have will would should could your into than then when which what there their
them they these those only also after before more most some other each every over under about
because where while does make made take keep using used instead rather still just like here once
without within been being between
para como esta este pero cuando donde desde sobre entre también cada todo puede
eine einen einem einer nicht oder aber auch wenn dann über unter nach wird werden kann sich dass
damit diese dieser dieses
"""
_COMMON = frozenset(word[:_STEM] for word in _COMMON_WORDS.split())


def _no_spaces(word: str) -> bool:
    """Whether it is of a script without spaces, and so not one word."""
    return "\u3040" <= word[0] <= "\u9fff" or "\uac00" <= word[0] <= "\ud7af"


def terms(text: str) -> set[str]:
    """The words that may tell two solutions apart.

    Stems of words of four letters or more, identifiers, numbers, and pairs of characters in scripts
    without spaces.
    """
    out: set[str] = set()
    for word in _WORD.findall(plain(text).lower()):
        if _no_spaces(word):
            out.update(word[i : i + 2] for i in range(max(1, len(word) - 1)))
        elif word.isdigit():
            out.add(word)
        elif len(word) > 3:
            # An identifier (with digits or underscores) is kept whole: its start says too little.
            out.add(word[:_STEM] if word.isalpha() else word)
    return out - _COMMON


def _all_terms(item: Item) -> frozenset[str]:
    asked = [item.query_text, item.stated_request, item.intended_request, item.misconception]
    return frozenset(terms(" ".join([*asked, *item.stated_solutions, *item.intended_solutions])))


def _item_terms(item: Item) -> dict[str, frozenset[str]]:
    """Words by side.

    `stated`: in the stated solutions or request and not on the intended side; `intended` likewise;
    `misconception`: on neither side and not in the query. `..._new`: without the query's words,
    which an answer on either side will repeat. `request` and `solution`: all words of the stated
    ones, which also a failed attempt will use.
    """
    stated = terms(" ".join([*item.stated_solutions, item.stated_request]))
    query = terms(item.query_text)
    solution = frozenset(terms(" ".join(item.stated_solutions)))
    tried = {"request": frozenset(terms(item.stated_request)), "solution": solution}
    if item.kind == "control":
        return {"stated": frozenset(stated), "stated_new": frozenset(stated - query), **tried}
    intended = terms(" ".join([*item.intended_solutions, item.intended_request]))
    return {
        "stated": frozenset(stated - intended),
        "stated_new": frozenset(stated - intended - query),
        "intended": frozenset(intended - stated),
        "intended_new": frozenset(intended - stated - query),
        "misconception": frozenset(terms(item.misconception) - stated - intended - query),
        **tried,
    }


# ---------------------------------------------------------------- features


@dataclass(frozen=True, slots=True)
class _View:
    """One answer against one grounding, without chunks that say nothing of it or repeat each other.

    N chunks remain, at least one: an answer without any is seen as one chunk of weight 0.
    """

    about: Floats
    """Cosines of all chunks, also of those that do not remain here, shape (M, T)."""
    own: Floats
    """In [0, 1]: how far each of them is more than the question said again, length M."""
    gate: Floats
    """In (0, 1]: how far each chunk counts. Length N, as `solves`, `weight` and `relevance`."""
    solves: Floats
    """In [0, 1]: how far it counts as a solution; at most `gate`."""
    strength: float
    """The largest gate, in [0, 1]. Means are multiplied by it: one chunk that barely passes is not
    suddenly the whole answer."""
    weight: Floats
    """Non-negative, sums to 1 (or all 0): the share of a chunk in what is said of the item."""
    mean: Floats
    """Mean vector by weight, length 384; at most of length 1."""
    cosines: Floats
    """Shape (N, T)."""
    relevance: Floats
    """Cosine to the nearest solution or misconception."""
    words: list[set[str]]
    all_words: list[set[str]]
    """Of all chunks, length M."""


def _view(grounding: Grounding, texts: Sequence[str], vectors: Vectors) -> _View:
    first = list({text: i for i, text in reversed(list(enumerate(texts)))}.values())[::-1]
    # einsum, not @: matrices this small gain nothing from BLAS, whose threads spin meanwhile.
    cosines = np.einsum("nd,td->nt", vectors[first], grounding.vectors, dtype=np.float64)
    says = grounding.slices["misconception"]  # solutions come before it, requests and query after
    asks = slice(says.stop, grounding.slices["query"].stop)
    relevance = cosines[:, : says.stop].max(axis=1)
    words = [terms(texts[i]) for i in first]
    gate = _gate(relevance)
    asked = cosines[:, asks].max(axis=1)
    gate *= _down(asked, ECHO, ECHO_FULL)
    own = _down(_copied(words, grounding.asked), COPY, COPY_FULL)
    own *= _down(_quoted([texts[i] for i in first], grounding.runs), QUOTE, QUOTE_FULL)
    if grounding.known is not None:
        own *= 1.0 - _down(_copied(words, grounding.known, SHARED_OF), SHARED, SHARED_FULL)
    gate *= own
    own *= _down(asked, ABOUT_ECHO, ABOUT_ECHO_FULL)
    kept = np.flatnonzero(gate > 0)
    if len(kept) == 0:
        return _View(
            about=cosines,
            own=own,
            gate=np.zeros(1),
            solves=np.zeros(1),
            strength=0.0,
            weight=np.zeros(1),
            mean=np.zeros(vectors.shape[1]),
            cosines=np.zeros((1, len(grounding.vectors))),
            relevance=np.zeros(1),
            words=[set()],
            all_words=words,
        )
    chosen = [first[i] for i in kept]
    lengths = np.array([len(texts[i]) for i in chosen])
    # The closer to the item, the more a chunk says about the labels: a factor e per 0.1 of cosine.
    weight = gate[kept] * np.exp((relevance[kept] - 1.0) / 0.1) * np.sqrt(lengths)
    weight /= weight.sum()
    solution = cosines[kept, : says.start].max(axis=1)
    why = cosines[kept, says].max(axis=1, initial=-1.0)
    return _View(
        about=cosines,
        own=own,
        gate=gate[kept],
        solves=gate[kept] * _down(why - solution, 0.0, WHY),
        strength=float(gate.max()),
        weight=weight,
        mean=np.einsum("n,nd->d", weight, vectors[chosen], dtype=np.float64),
        cosines=cosines[kept],
        relevance=relevance[kept],
        words=[words[i] for i in kept],
        all_words=words,
    )


def _copied(words: Sequence[set[str]], known: frozenset[str], at_least: int = 3) -> Floats:
    """Share of each chunk's words that are among the known ones, in [0, 1]; of so many at least."""
    return np.array([len(chunk & known) / max(at_least, len(chunk)) for chunk in words])


def _in_order(text: str) -> list[str]:
    """Words in lower case; in scripts without spaces, characters."""
    words: list[str] = []
    for word in _WORD.findall(plain(text).lower()):
        words += word if _no_spaces(word) else [word]
    return words


def _runs(words: Sequence[str]) -> Iterator[tuple[str, ...]]:
    return zip(*(words[i:] for i in range(RUN)), strict=False)


def _quoted(texts: Sequence[str], runs: frozenset[tuple[str, ...]]) -> Floats:
    """Share of each chunk's words that stand in a run that the question has too, in [0, 1]."""
    shares = []
    for text in texts:
        words = _in_order(text)
        there = {i + k for i, run in enumerate(_runs(words)) if run in runs for k in range(RUN)}
        shares.append(len(there) / max(1, len(words)))
    return np.array(shares)


def _down(value: Floats, start: float, end: float) -> Floats:
    """1 up to `start`, 0 from `end`, linear between."""
    return np.asarray(np.clip((end - value) / (end - start), 0.0, 1.0))


def features(grounding: Grounding, texts: Sequence[str], vectors: Vectors) -> dict[str, float]:
    """Features of one answer by name; the names depend on the kind of item only.

    Args:
        grounding: the item.
        texts: the answer's chunks, length N >= 1.
        vectors: their unit vectors, shape (N, 384).
    """
    view = _view(grounding, texts, vectors)
    out = _side(grounding, view, "stated")
    out["evidence"] = float(np.log1p(view.gate.sum()))
    out["relevance_mean"] = _mean(view, view.relevance)
    out["query_mean"] = _mean(view, _nearest(grounding, view, "query"))
    out["spread"] = _spread(view)
    out |= _about(grounding, view)
    if grounding.kind == "control":
        out["first_stated"] = float(view.gate[0] * _nearest(grounding, view, "stated")[0])
        return out
    out |= _side(grounding, view, "intended")
    out |= _misconception(grounding, view)
    out |= _contrast(grounding, view)
    out["closeness_solutions"], out["closeness_requests"] = grounding.statics
    return out


def _about(grounding: Grounding, view: _View) -> dict[str, float]:
    """What the answer talks of, whether or not it says something of use: the focus of a failed one.

    An answer to another question is not about the matter; an attempt or an overcorrecting one is.
    """
    slices = grounding.slices
    matter = np.maximum(
        view.about[:, slices["query"]].max(axis=1) - QUERY_MARGIN,
        np.concatenate(
            [view.about[:, slices[n]] for n in ("stated", "stated_pieces", "stated_request")],
            axis=1,
        ).max(axis=1),
    )
    topical = view.own * (1.0 - _down(matter, TOPIC, TOPIC_FULL))
    stated = topical * view.about[:, slices["stated_request"]].max(axis=1)
    tried = topical * view.about[:, slices["stated"]].max(axis=1)
    asked = topical * view.about[:, slices["query"]].max(axis=1)
    out = {
        "about": float(np.log1p(topical.sum())),
        "about_query_top3": _top3(asked),
        "about_stated_best": float(stated.max()),
        "about_stated_top3": _top3(stated),
        "about_solution_top3": _top3(tried),
        "about_stated_terms": _share_of(view.all_words, topical, grounding.terms["request"], 3),
        "about_solution_terms": _share_of(view.all_words, topical, grounding.terms["solution"], 4),
    }
    if grounding.kind == "control":
        dissuades = topical[:, None] * np.maximum(view.about[:, slices["dissuades"]], 0.0)
        out |= {f"dissuades_{i}": float(best) for i, best in enumerate(dissuades.max(axis=0))}
    else:
        intended = topical * view.about[:, slices["intended_request"]].max(axis=1)
        out["about_intended_best"] = float(intended.max())
        out["about_intended_top3"] = _top3(intended)
        out["about_contrast"] = float((stated - intended).sum() / (1.0 + topical.sum()))
    return out


def _top3(values: Floats) -> float:
    """Mean of the three largest; where there are fewer, the others are 0."""
    return float(np.sort(values)[::-1][:3].sum() / 3)


def _gate(relevance: Floats) -> Floats:
    """0 below `GATE`, 1 above `GATE_FULL`, linear between."""
    return np.asarray(np.clip((relevance - GATE) / (GATE_FULL - GATE), 0.0, 1.0))


def _columns(grounding: Grounding, view: _View, *names: str) -> Floats:
    return np.concatenate([view.cosines[:, grounding.slices[name]] for name in names], axis=1)


def _nearest(grounding: Grounding, view: _View, *names: str) -> Floats:
    """Per chunk, the largest cosine to the texts of these slices; 0 where there are none."""
    columns = _columns(grounding, view, *names)
    return columns.max(axis=1) if columns.shape[1] else np.zeros(len(columns))


def _cover(grounding: Grounding, view: _View, gate: Floats, name: str) -> Floats:
    """Per text of a slice, the largest gated cosine to any chunk: how far it is covered."""
    gated = gate[:, None] * _columns(grounding, view, name)
    return np.asarray(gated.max(axis=0, initial=0.0))


def _share_of(
    words: Sequence[set[str]], gates: Floats, wanted: frozenset[str], at_least: int
) -> float:
    """Share of the wanted words that the chunks have, each as far as its chunk counts, in [0, 1].

    `at_least` keeps a list of one or two words from deciding alone.
    """
    found: dict[str, float] = {}
    for gate, chunk in zip(gates, words, strict=True):
        for word in chunk & wanted:
            found[word] = max(found.get(word, 0.0), float(gate))
    return sum(found[word] for word in sorted(found)) / max(at_least, len(wanted))


def _side(grounding: Grounding, view: _View, side: str) -> dict[str, float]:
    """How much of one side's solutions the answer holds."""
    near = np.sort(view.solves * _nearest(grounding, view, side, f"{side}_pieces"))[::-1]
    whole = grounding.vectors[grounding.slices[side]].sum(axis=0)
    pieces = _cover(grounding, view, view.solves, f"{side}_pieces")
    return {
        f"{side}_best": float(near[0]),
        f"{side}_top2": float(near[:2].mean()),
        f"{side}_cover": float(pieces.mean()) if len(pieces) else 0.0,
        f"{side}_solution": float(_cover(grounding, view, view.solves, side).max(initial=0.0)),
        f"{side}_mean": view.strength * float(_unit(view.mean) @ _unit(whole)),
        f"{side}_request": float(
            _cover(grounding, view, view.solves, f"{side}_request").max(initial=0.0)
        ),
        f"{side}_terms": _share_of(view.words, view.solves, grounding.terms[side], 4),
        f"{side}_terms_new": _share_of(view.words, view.solves, grounding.terms[f"{side}_new"], 4),
    }


def _misconception(grounding: Grounding, view: _View) -> dict[str, float]:
    near = view.gate * _nearest(grounding, view, "misconception")
    other = _nearest(grounding, view, "stated", "stated_pieces", "query")
    cover = _cover(grounding, view, view.gate, "misconception")
    return {
        "misconception_best": float(near.max()),
        "misconception_top2": float(np.sort(near)[::-1][:2].mean()),
        "misconception_excess": float(
            (view.gate * (_nearest(grounding, view, "misconception") - other)).max()
        ),
        "misconception_cover": float(cover.mean()) if len(cover) else 0.0,
        "misconception_terms": _share_of(
            view.words, view.gate, grounding.terms["misconception"], 3
        ),
    }


def _contrast(grounding: Grounding, view: _View) -> dict[str, float]:
    """Which side the chunks are nearer to: positive is the intended side. And in which order."""
    stated = _nearest(grounding, view, "stated", "stated_pieces")
    intended = _nearest(grounding, view, "intended", "intended_pieces")
    towards = intended - stated
    with_requests = np.maximum(
        intended, _nearest(grounding, view, "intended_request")
    ) - np.maximum(stated, _nearest(grounding, view, "stated_request"))
    # Positions in [0, 1] by weight, not by count, so that a marginal chunk moves nothing much.
    position = np.cumsum(view.weight) - view.weight / 2
    place_intended = _mean(view, position, np.exp(towards / CLEAR))
    place_stated = _mean(view, position, np.exp(-towards / CLEAR))
    return {
        "contrast_mean": _mean(view, towards),
        "contrast_requests": _mean(view, with_requests),
        "contrast_max": float((view.gate * towards).max()),
        "contrast_min": float((view.gate * towards).min()),
        "share_intended": _mean(view, _ramp(towards)),
        "share_intended_clear": _mean(view, _ramp(towards - CLEAR)),
        "share_stated_clear": _mean(view, _ramp(-towards - CLEAR)),
        "place_intended": place_intended,
        "order": place_intended - place_stated,
        "contrast_first": float(view.gate[0] * towards[0]),
        "contrast_last": float(view.gate[-1] * towards[-1]),
        "contrast_early": _mean(view, towards, 1 - position),
        "contrast_late": _mean(view, towards, position),
    }


def _spread(view: _View) -> float:
    """Mean cosine between chunks by weight, in [0, 1]: low where the answer hops between topics."""
    return view.strength * float(view.mean @ view.mean)


def _ramp(value: Floats) -> Floats:
    """0 below, 1 above, continuous around 0: a share that does not jump."""
    return np.clip(value / 0.04 + 0.5, 0.0, 1.0)


def _mean(view: _View, values: Floats, factors: Floats | float = 1.0) -> float:
    """Mean over the chunks by weight times factor, times the strength."""
    weights = view.weight * factors
    total = float(weights.sum())
    return view.strength * float(weights @ values) / total if total > 0 else 0.0


def _unit(vector: NDArray[np.floating]) -> NDArray[np.floating]:
    length = float(np.linalg.norm(vector))
    return vector / length if length > 0 else vector
