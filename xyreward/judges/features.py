"""What the local judge looks at: numbers that relate an answer's chunks to an item's grounding.

Four rules keep the numbers honest, and every feature obeys them:

    gate        A chunk that resembles none of the item's solutions, nor its misconception (cosine
                below `GATE`), has weight 0 in every feature, its words included. So off-topic
                padding, before, between or after, changes nothing at all, as long as it forms
                chunks of its own.
    echo        A chunk that nearly repeats the query or a request has weight 0. Saying the question
                again, or naming the goal, is no answer.
    once        A chunk that is repeated word for word counts once.
    content     No feature counts cue words ("instead", "not", "actually"), length, lists or
                question marks. They would lift the figures on the bundled items a little and are
                the first thing that a policy under training would learn to imitate.

One feature of controls, `topic`, is exempt from gate and echo; it has a gate of its own.

Not here: embedding (`encoder.py`), what the numbers mean for the labels (`local.py`, fitted by
`fit_local.py`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from xyreward.items import Item, ItemKind
from xyreward.judges.encoder import Vectors, chunks

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

TOPIC = 0.50
"""Cosine to the query or a request at which a chunk begins to be about the matter."""

QUERY_CHUNKS = 24
"""At most so many chunks of a query are compared with; a pasted log says less with every line."""
PIECES = 24
"""At most so many pieces of all stated, and of all intended solutions."""

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
    `stated_request`, `intended_request`, `misconception`, `query`. Empty where there are none."""
    terms: dict[str, frozenset[str]]
    """Words that one part of the grounding has and the other lacks; see `_item_terms`."""
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
        "stated": list(stated)[:PIECES],
        "stated_pieces": _pieces(stated),
        "intended": list(intended)[:PIECES],
        "intended_pieces": _pieces(intended),
        "misconception": chunks(item.misconception)[:PIECES] if item.misconception.strip() else [],
        "stated_request": [item.stated_request],
        "intended_request": [item.intended_request] if is_xy else [],
        "query": chunks(item.query_text)[:QUERY_CHUNKS],
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


def terms(text: str) -> set[str]:
    """The words that may tell two solutions apart.

    Stems of words of four letters or more, identifiers, numbers, and pairs of characters in scripts
    without spaces.
    """
    out: set[str] = set()
    for word in _WORD.findall(text.lower()):
        if "\u3040" <= word[0] <= "\u9fff" or "\uac00" <= word[0] <= "\ud7af":
            out.update(word[i : i + 2] for i in range(max(1, len(word) - 1)))
        elif word.isdigit():
            out.add(word)
        elif len(word) > 3:
            # An identifier (with digits or underscores) is kept whole: its start says too little.
            out.add(word[:_STEM] if word.isalpha() else word)
    return out - _COMMON


def _item_terms(item: Item) -> dict[str, frozenset[str]]:
    """Words by side.

    `stated`: in the stated solutions or request and not on the intended side; `intended` likewise;
    `misconception`: on neither side and not in the query. `..._new`: without the query's words,
    which an answer on either side will repeat.
    """
    stated = terms(" ".join([*item.stated_solutions, item.stated_request]))
    query = terms(item.query_text)
    if item.kind == "control":
        return {"stated": frozenset(stated), "stated_new": frozenset(stated - query)}
    intended = terms(" ".join([*item.intended_solutions, item.intended_request]))
    return {
        "stated": frozenset(stated - intended),
        "stated_new": frozenset(stated - intended - query),
        "intended": frozenset(intended - stated),
        "intended_new": frozenset(intended - stated - query),
        "misconception": frozenset(terms(item.misconception) - stated - intended - query),
    }


# ---------------------------------------------------------------- features


@dataclass(frozen=True, slots=True)
class _View:
    """One answer against one grounding, without chunks that say nothing of it or repeat each other.

    N chunks remain, at least one: an answer without any is seen as one chunk of weight 0.
    """

    topic: float
    """log(1 + number of chunks about the item's matter), whether or not they remain here."""
    gate: Floats
    """In (0, 1]: how far each chunk counts. Length N, as `weight` and `relevance`."""
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


def _view(grounding: Grounding, texts: Sequence[str], vectors: Vectors) -> _View:
    first = list({text: i for i, text in reversed(list(enumerate(texts)))}.values())[::-1]
    # einsum, not @: matrices this small gain nothing from BLAS, whose threads spin meanwhile.
    cosines = np.einsum("nd,td->nt", vectors[first], grounding.vectors, dtype=np.float64)
    says = grounding.slices["misconception"].stop  # solutions and misconception come first
    relevance = cosines[:, :says].max(axis=1)
    echo = cosines[:, says:].max(axis=1)
    gate = _gate(relevance)
    gate *= np.clip((ECHO_FULL - echo) / (ECHO_FULL - ECHO), 0.0, 1.0)
    topic = float(np.log1p(_gate(echo - (TOPIC - GATE)).sum()))
    kept = np.flatnonzero(gate > 0)
    if len(kept) == 0:
        return _View(
            topic=topic,
            gate=np.zeros(1),
            strength=0.0,
            weight=np.zeros(1),
            mean=np.zeros(vectors.shape[1]),
            cosines=np.zeros((1, len(grounding.vectors))),
            relevance=np.zeros(1),
            words=[set()],
        )
    chosen = [first[i] for i in kept]
    lengths = np.array([len(texts[i]) for i in chosen])
    # The closer to the item, the more a chunk says about the labels: a factor e per 0.1 of cosine.
    weight = gate[kept] * np.exp((relevance[kept] - 1.0) / 0.1) * np.sqrt(lengths)
    weight /= weight.sum()
    return _View(
        topic=topic,
        gate=gate[kept],
        strength=float(gate.max()),
        weight=weight,
        mean=np.einsum("n,nd->d", weight, vectors[chosen], dtype=np.float64),
        cosines=cosines[kept],
        relevance=relevance[kept],
        words=[terms(texts[i]) for i in chosen],
    )


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
    if grounding.kind == "control":
        # An answer to another question is not about the matter; an overcorrecting one is.
        out["topic"] = view.topic
        out["first_stated"] = float(view.gate[0] * _nearest(grounding, view, "stated")[0])
        return out
    out |= _side(grounding, view, "intended")
    out |= _misconception(grounding, view)
    out |= _contrast(grounding, view)
    out["closeness_solutions"], out["closeness_requests"] = grounding.statics
    return out


def _gate(relevance: Floats) -> Floats:
    """0 below `GATE`, 1 above `GATE_FULL`, linear between."""
    return np.asarray(np.clip((relevance - GATE) / (GATE_FULL - GATE), 0.0, 1.0))


def _columns(grounding: Grounding, view: _View, *names: str) -> Floats:
    return np.concatenate([view.cosines[:, grounding.slices[name]] for name in names], axis=1)


def _nearest(grounding: Grounding, view: _View, *names: str) -> Floats:
    """Per chunk, the largest cosine to the texts of these slices; 0 where there are none."""
    columns = _columns(grounding, view, *names)
    return columns.max(axis=1) if columns.shape[1] else np.zeros(len(columns))


def _cover(grounding: Grounding, view: _View, name: str) -> Floats:
    """Per text of a slice, the largest gated cosine to any chunk: how far it is covered."""
    gated = view.gate[:, None] * _columns(grounding, view, name)
    return np.asarray(gated.max(axis=0, initial=0.0))


def _share_of_terms(grounding: Grounding, view: _View, name: str, at_least: int) -> float:
    """Share of these words that the answer has, in [0, 1].

    `at_least` keeps a list of one or two words from deciding alone.
    """
    wanted = grounding.terms[name]
    found: dict[str, float] = {}
    for gate, words in zip(view.gate, view.words, strict=True):
        for word in words & wanted:
            found[word] = max(found.get(word, 0.0), float(gate))
    return sum(found[word] for word in sorted(found)) / max(at_least, len(wanted))


def _side(grounding: Grounding, view: _View, side: str) -> dict[str, float]:
    """How much of one side's solutions the answer holds."""
    near = np.sort(view.gate * _nearest(grounding, view, side, f"{side}_pieces"))[::-1]
    whole = grounding.vectors[grounding.slices[side]].sum(axis=0)
    pieces = _cover(grounding, view, f"{side}_pieces")
    return {
        f"{side}_best": float(near[0]),
        f"{side}_top2": float(near[:2].mean()),
        f"{side}_cover": float(pieces.mean()) if len(pieces) else 0.0,
        f"{side}_solution": float(_cover(grounding, view, side).max(initial=0.0)),
        f"{side}_mean": view.strength * float(_unit(view.mean) @ _unit(whole)),
        f"{side}_request": float(_cover(grounding, view, f"{side}_request").max(initial=0.0)),
        f"{side}_terms": _share_of_terms(grounding, view, side, 4),
        f"{side}_terms_new": _share_of_terms(grounding, view, f"{side}_new", 4),
    }


def _misconception(grounding: Grounding, view: _View) -> dict[str, float]:
    near = view.gate * _nearest(grounding, view, "misconception")
    other = _nearest(grounding, view, "stated", "stated_pieces", "query")
    cover = _cover(grounding, view, "misconception")
    return {
        "misconception_best": float(near.max()),
        "misconception_top2": float(np.sort(near)[::-1][:2].mean()),
        "misconception_excess": float(
            (view.gate * (_nearest(grounding, view, "misconception") - other)).max()
        ),
        "misconception_cover": float(cover.mean()) if len(cover) else 0.0,
        "misconception_terms": _share_of_terms(grounding, view, "misconception", 3),
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
