"""audit.html: one self-contained page in which a person looks through pairs and reads why each was kept.

Everything is in the file: no request leaves it, which its content security policy enforces. Texts from
data reach it as JSON in a script element of a type that browsers do not run, or through a template that
escapes; the page's own script shows them with `textContent`.

Not here: what is measured (`audit.py`), the data card (`card.py`).
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from xyreward.markdown import printable
from xyreward.pairs.audit import BAG, ORIGIN, Audit, AuditLimits
from xyreward.pairs.candidates import Judged
from xyreward.pairs.pair import LeftOut, Pair, PairSet
from xyreward.self_contained import render

MAX_BYTES = 8_000_000
"""Of the pairs in a page. A browser opens it within a second; more are sampled, and the page says so."""
MAX_TEXT = 4_000
"""Characters of a text that the page holds."""
BINS = 32


def page(
    pair_set: PairSet, audit: Audit, *, meta: Mapping[str, Any], max_bytes: int = MAX_BYTES
) -> str:
    """The page's HTML.

    Args:
        pair_set: the pairs, and examples of what was left out.
        audit: of these pairs.
        meta: see `write_pairs`; its `seed` decides which pairs are shown where there are too many.
        max_bytes: of the pairs and examples in the page, as JSON.
    """
    seed = meta.get("seed")
    seed = seed if isinstance(seed, int) else 0
    shown, data = _data(pair_set, seed, max_bytes)
    pieces = render(
        "audit.html.jinja",
        data,
        styles=["base.css", "audit.css"],
        scripts=["base.js", "audit.js"],
        total=len(pair_set.pairs),
        shown=shown,
        seed=seed,
        examples=len(pair_set.examples),
        candidates=pair_set.candidates,
        control_share=pair_set.control_share,
        dropped=sorted(
            ((_text(r), c) for r, c in pair_set.dropped.items()), key=lambda x: (-x[1], x[0])
        ),
        facts=_facts(pair_set, meta),
        problems=[
            _text(problem) for problem in dict.fromkeys([*audit.problems, *pair_set.problems])
        ],
        warnings=[_text(warning) for warning in audit.warnings],
        reward=audit.reward.accuracy,
        shortcuts=_shortcuts(audit),
        counts=_counts(audit),
    )
    return "".join(pieces)


def _text(text: str) -> str:
    """A text as the page shows it: what steers the direction of writing, or cannot be seen, as escapes."""
    return printable(text[:MAX_TEXT])


# ---------------------------------------------------------------- tables


def _facts(pair_set: PairSet, meta: Mapping[str, Any]) -> list[tuple[str, str]]:
    out = [("pairs, sha256", pair_set.hash)]
    for key, value in {"held_out_hash": pair_set.held_out_hash, **meta}.items():
        if isinstance(value, Mapping) and key != "config":
            out.append((key, ", ".join(f"{k} {v}" for k, v in value.items())))
        elif isinstance(value, (list, tuple)):
            out.append((key, "; ".join(map(str, value))))
        elif isinstance(value, (str, int, float)):
            out.append((key, str(value)))
    return [(_text(key.replace("_", " ")), _text(value)) for key, value in out if value]


LIMITS = AuditLimits()
ALLOWED = {ORIGIN: LIMITS.origin - 0.5, BAG: LIMITS.bag_of_words - 0.5}
"""How far from 0.5 a rule's share may be by default, where that is not what a fixed rule's may."""


def _shortcuts(audit: Audit) -> list[dict[str, Any]]:
    swapped = {canary.name: canary.accuracy for canary in audit.canary}
    out = []
    for shortcut in audit.shortcuts:
        accuracy = shortcut.accuracy
        row: dict[str, Any] = {
            "name": _text(shortcut.name),
            "what": _text(shortcut.what),
            "note": _text(shortcut.note),
            "ties": shortcut.ties,
            "accuracy": accuracy,
            "swapped": swapped.get(shortcut.name),
        }
        if accuracy is not None:
            low, high = accuracy.low, accuracy.high
            # Thousandths of the little plot's width.
            row["x"] = round(1000 * accuracy.value)
            row["low"] = row["x"] if low is None else round(1000 * low)
            row["high"] = row["x"] if high is None else round(1000 * high)
            allowed = ALLOWED.get(shortcut.name, LIMITS.simple)
            row["band"] = round(1000 * (0.5 - allowed)), round(2000 * allowed)
            row["away"] = abs(accuracy.value - 0.5) > allowed and accuracy.excludes(0.5)
        out.append(row)
    return out


SHOWN = 8
"""Values of a count that the page lists."""


def _counts(audit: Audit) -> list[tuple[str, list[tuple[str, int]], int]]:
    """What, its most frequent values with their counts, and how many other values there are."""
    out = []
    for what, found in (
        ("source of the item", audit.by_source),
        ("language", audit.by_language),
        ("why it was kept", audit.by_rule),
        ("answers", audit.by_kinds),
        ("where answers came from", audit.by_pair_source),
        ("who wrote them", audit.by_origin),
        ("licence", audit.by_licence),
        ("judged by", audit.by_judge),
    ):
        common = sorted(found.items(), key=lambda entry: (-entry[1], entry[0]))
        rows = [(_text(name) or "not said", count) for name, count in common[:SHOWN]]
        out.append((what, rows, max(0, len(common) - SHOWN)))
    return out


# ---------------------------------------------------------------- pairs


class _Texts:
    """Texts by number: an answer that is in four pairs is in the page once."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.bytes = 0
        self._numbers: dict[str, int] = {}

    def number(self, text: str) -> int:
        number = self._numbers.get(text)
        if number is None:
            number = self._numbers[text] = len(self.texts)
            self.texts.append(_text(text))
            self.bytes += len(self.texts[-1].encode("utf-8", "surrogatepass")) + 8
        return number


def _data(pair_set: PairSet, seed: int, max_bytes: int) -> tuple[int, dict[str, Any]]:
    """How many pairs the page holds, and its data."""
    texts = _Texts()
    left_out = [_left_out(example, texts) for example in pair_set.examples]
    size = texts.bytes + sum(map(_size, left_out))
    order = list(range(len(pair_set.pairs)))
    random.Random(seed).shuffle(order)  # noqa: S311  # a sample, no secret
    kept: dict[int, dict[str, Any]] = {}
    for place in order:
        before = texts.bytes
        kept[place] = _pair(pair_set.pairs[place], texts)
        size += _size(kept[place]) + texts.bytes - before
        if size > max_bytes:
            break
    return len(kept), {
        "texts": texts.texts,
        "cut": MAX_TEXT,
        "pairs": [*(kept[place] for place in sorted(kept)), *left_out],
        **_histograms(pair_set.pairs),
    }


def _size(row: Mapping[str, Any]) -> int:
    return len(json.dumps(row, separators=(",", ":")))


def _pair(pair: Pair, texts: _Texts) -> dict[str, Any]:
    prompt = (
        pair.prompt[0]["content"]
        if len(pair.prompt) == 1
        else "\n\n".join(f"{m['role']}: {m['content']}" for m in pair.prompt)
    )
    return {
        "id": pair.id,
        "item": _text(pair.item_id),
        "kind": pair.item_kind,
        "source": _text(pair.source),
        "origin": pair.pair_source,
        "language": _text(pair.language),
        "rule": pair.rule,
        "margin": round(pair.margin, 4),
        "prompt": texts.number(prompt),
        "length": len(prompt),
        "chosen": _side(pair.chosen_answer, texts),
        "rejected": _side(pair.rejected_answer, texts),
        "reason": "",
        "why": _why(pair),
    }


def _left_out(example: LeftOut, texts: _Texts) -> dict[str, Any]:
    reason = {"reason": _text(example.reason), "why": ""}
    if example.pair is not None:
        return {**_pair(example.pair, texts), **reason}
    return {"id": "", "item": _text(example.item_id), **reason}


def _side(side: Judged, texts: _Texts) -> dict[str, Any]:
    labels, answer = side.labels, side.answer
    return {
        "text": texts.number(side.text),
        "length": len(side.text),
        "reward": None if side.reward is None else round(side.reward, 4),
        "labels": None
        if labels is None
        else [
            labels.has_stated_solution,
            labels.has_intended_solution,
            labels.focus,
            labels.identifies_misconception,
        ],
        "kind": answer.kind or "",
        "author": _text(answer.origin),
        "licence": _text(answer.licence or "unknown"),
        "judge": _text(f"{side.judge} {side.rubric_version}".strip())
        + ("" if side.grounded else ", by a goal that it inferred"),
        "said": texts.number(side.reason),
        "unsafe": answer.unsafe,
    }


def _why(pair: Pair) -> str:
    """In words, why a pair was kept."""
    labels = pair.rejected_answer.labels
    margin = f"The margin is {pair.margin:.2f}."
    if pair.rule == "margin":
        lacking = "overcorrects" if pair.item_kind == "control" else "was goal-focused"
        return f"No answer to this item {lacking}; this one is better than the other. {margin}"
    if pair.item_kind == "control":
        return f"What is asked is what is wanted: chosen answers it, rejected invents a hidden goal. {margin}"
    if labels is None:
        return margin
    lacks = [
        words
        for words, has in (
            ("has no intended solution", labels.has_intended_solution),
            (f"has its focus on {_FOCUS[labels.focus]}", labels.focus == "intended"),
            ("does not identify the misconception", labels.identifies_misconception),
        )
        if not has
    ]
    told = " and ".join([", ".join(lacks[:-1]), lacks[-1]] if len(lacks) > 1 else lacks)
    return f"Chosen is goal-focused; rejected {told or 'is less so'}. {margin}"


_FOCUS = {
    "stated": "the stated request",
    "intended": "the intended request",
    "balanced": "both requests",
    "neither": "neither request",
}


# ---------------------------------------------------------------- plots


def _histograms(pairs: Sequence[Pair]) -> dict[str, Any]:
    """Bins and counts over all pairs; the page's script counts those that are selected."""
    lengths = [[max(1, len(p.chosen)) for p in pairs], [max(1, len(p.rejected)) for p in pairs]]
    margins = [p.margin for p in pairs]
    shortest = min((n for values in lengths for n in values), default=1)
    longest = max((n for values in lengths for n in values), default=1)
    low, high = math.log(shortest), math.log(longest + 1)
    edges = [math.exp(low + (high - low) * i / BINS) for i in range(BINS + 1)]
    steps = [i / 20 for i in range(21)]
    return {
        "lengths": {
            "edges": [round(edge, 3) for edge in edges],
            "all": [_binned(values, edges) for values in lengths],
        },
        "margins": {"edges": steps, "all": [_binned(margins, steps)]},
    }


def _binned(values: Iterable[float], edges: Sequence[float]) -> list[int]:
    """Counts per bin; what lies outside is in the first or last."""
    import numpy as np

    places = np.searchsorted(np.asarray(edges), list(values), side="right") - 1
    counts = np.bincount(places.clip(0, len(edges) - 2), minlength=len(edges) - 1)
    return [int(count) for count in counts]
