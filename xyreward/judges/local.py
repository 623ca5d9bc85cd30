"""The local judge: a sentence encoder, features, and a fitted linear head. CPU, no key, no network.

It is a cheap stand-in, not the benchmark's judge. It compares an answer with the solutions that the
item brings; it does not understand the answer, cannot tell a correct command from a wrong one that
looks like it, and needs items with solutions. Its agreement with the labels (figures with intervals
in `local_head.json`, printed by `python -m xyreward.judges.fit_local --check`) holds for answers
like the bundled ones. Known to be worse: whether a failed answer to a control wanders, tries, or
invents a misconception (three things that look alike without a solution in them, and of which only
trying earns anything). It does not see negation: "do not <the solution>" is the solution to it.

Use it to try things, to test a pipeline, and to rank candidates before a better judge sees them.

Not here: what it looks at (`features.py`), how the head was fitted (`fit_local.py`).
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

import numpy as np

from xyreward.errors import JudgeError
from xyreward.items import Item, ItemKind, text_hash
from xyreward.judges.encoder import Encoder, chunks
from xyreward.judges.features import Floats, Grounding, features, ground
from xyreward.verdict import (
    FOCUS_VALUES,
    Focus,
    JudgeFailure,
    LabelProbabilities,
    Labels,
    Verdict,
    odd_combinations,
)

VERSION = 2
"""Of the features and of the head's form. A head of another version is refused."""

KEPT_ITEMS = 1024
"""Items whose embeddings are kept, about 40 kB each; the least recently used one goes first."""
ANSWERS_AT_ONCE = 256
"""Answers embedded together; bounds memory to some tens of MB however long the list is."""

LABEL_COLUMNS = (
    "has_stated_solution",
    "has_intended_solution",
    *(f"focus_{focus}" for focus in FOCUS_VALUES),
    "identifies_misconception",
)
"""Order of the 7 numbers that say the labels of an answer, or of a class of answers."""


@dataclass(frozen=True, slots=True)
class Head:
    """Multinomial logistic regression over classes of answers, each of which has its labels.

    The labels are not predicted one by one: they hang together (an answer with both solutions and
    focus `neither` is a list without judgement), and one model of the classes uses that. The
    probability of a label is the sum over classes of P(class) * share of that label in the class.
    """

    features: tuple[str, ...]
    """Names, length F."""
    classes: tuple[str, ...]
    """Names, length K."""
    mean: Floats
    """Of each feature, length F; with `scale` it standardises them."""
    scale: Floats
    """Length F."""
    weights: Floats
    """Shape (K, F)."""
    bias: Floats
    """Length K."""
    labels: Floats
    """Shape (K, 7): share of each label in each class, in [0, 1]; columns as `LABEL_COLUMNS`."""

    def class_probabilities(self, values: Floats) -> Floats:
        """Features of shape (N, F) to probabilities of shape (N, K); rows sum to 1."""
        logits = ((values - self.mean) / self.scale) @ self.weights.T + self.bias
        shifted = np.exp(logits - logits.max(axis=1, keepdims=True))
        return np.asarray(shifted / shifted.sum(axis=1, keepdims=True))

    def label_probabilities(self, values: Floats) -> Floats:
        """Features of shape (N, F) to shape (N, 7), columns as `LABEL_COLUMNS`, each in [0, 1].

        The four of focus sum to 1.
        """
        return np.asarray(self.class_probabilities(values) @ self.labels)

    def to_dict(self) -> dict[str, Any]:
        """As in `local_head.json`."""
        return {
            "features": list(self.features),
            "classes": list(self.classes),
            "mean": self.mean.tolist(),
            "scale": self.scale.tolist(),
            "weights": self.weights.tolist(),
            "bias": self.bias.tolist(),
            "labels": self.labels.tolist(),
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Head:
        """The inverse of `to_dict`."""
        return cls(
            features=tuple(data["features"]),
            classes=tuple(data["classes"]),
            mean=np.array(data["mean"]),
            scale=np.array(data["scale"]),
            weights=np.array(data["weights"]),
            bias=np.array(data["bias"]),
            labels=np.array(data["labels"]),
        )


def labels_of(p: LabelProbabilities) -> Labels:
    """Hard labels: yes from a probability of 0.5, and the most probable focus (first of equals)."""
    return Labels(
        has_stated_solution=p.has_stated_solution >= 0.5,
        has_intended_solution=p.has_intended_solution >= 0.5,
        focus=max(FOCUS_VALUES, key=lambda focus: p.focus[focus]),
        identifies_misconception=p.identifies_misconception >= 0.5,
    )


def to_probabilities(row: Floats, kind: ItemKind) -> LabelProbabilities:
    """One row of `Head.label_probabilities`. A control's two solution labels are the same."""
    row = np.clip(row, 0.0, 1.0)  # the shares in the file are rounded
    focus: dict[Focus, float] = {
        name: float(row[2 + i] / row[2:6].sum()) for i, name in enumerate(FOCUS_VALUES)
    }
    return LabelProbabilities(
        has_stated_solution=float(row[0]),
        has_intended_solution=float(row[0] if kind == "control" else row[1]),
        focus=focus,
        identifies_misconception=float(row[6]),
    )


@cache
def _shared_encoder() -> Encoder:
    # One per process: 90 MB and a second to load, and score() makes a judge per call.
    return Encoder()


@cache
def head_file() -> dict[str, Any]:
    """The shipped `local_head.json`: the heads, their data, and their agreement figures."""
    text = resources.files("xyreward.judges").joinpath("local_head.json").read_text("utf-8")
    data: dict[str, Any] = json.loads(text)
    if data["version"] != VERSION:
        raise JudgeError(
            f"local_head.json has version {data['version']}, this release reads {VERSION}"
        )
    return data


class LocalJudge:
    """Judges answers to items that bring solutions. Threads and event loops may share it."""

    def __init__(self) -> None:
        """Load encoder and head.

        Raises:
            MissingDependency: torch, transformers or the encoder; the message is the command.
            DataError: the encoder's file is not the one that the head was fitted with.
        """
        self._encoder = _shared_encoder()
        heads = head_file()["heads"]
        self._heads = {kind: Head.from_dict(heads[kind]) for kind in ("xy", "control")}
        self._version = f"local-{VERSION}-{text_hash(json.dumps(heads, sort_keys=True))[:12]}"
        self._lock = threading.Lock()
        self._groundings: OrderedDict[tuple[object, ...], Grounding] = OrderedDict()

    @property
    def name(self) -> str:
        """`local`."""
        return "local"

    @property
    def rubric_version(self) -> str:
        """`local-<version of the features>-<hash of the heads>`."""
        return self._version

    def check(self, items: Sequence[Item]) -> None:
        """Make sure that answers to these items can be judged, before any is generated.

        Raises:
            JudgeError: an item has neither stated nor intended solutions; says how many do not.
        """
        bare = [item.id for item in items if not (item.stated_solutions or item.intended_solutions)]
        if bare:
            more = f" (and {len(bare) - 1} more)" if len(bare) > 1 else ""
            raise JudgeError(
                f"item {bare[0]!r}{more} has no stated_solutions and no "
                "intended_solutions; the local judge needs this grounding to compare answers with. "
                "Add them to the item, or use a judge that reads the query alone"
            )

    async def judge(
        self, items: Sequence[Item], answers: Sequence[str]
    ) -> list[Verdict | JudgeFailure]:
        """See `Judge.judge`. The work runs in a thread, so the event loop stays free.

        Raises:
            JudgeError: see `check`.
        """
        self.check(items)
        return await asyncio.to_thread(self._judge, list(items), list(answers))

    def _judge(self, items: list[Item], answers: list[str]) -> list[Verdict | JudgeFailure]:
        if len(items) != len(answers):
            raise ValueError(f"{len(items)} items and {len(answers)} answers, expected as many")
        verdicts: list[Verdict | JudgeFailure] = []
        for start in range(0, len(items), ANSWERS_AT_ONCE):
            stop = start + ANSWERS_AT_ONCE
            verdicts += self._judge_some(items[start:stop], answers[start:stop])
        return verdicts

    def _judge_some(self, items: list[Item], answers: list[str]) -> list[Verdict]:
        divided = [chunks(answer) for answer in answers]
        vectors = self._encoder.encode([text for texts in divided for text in texts])
        verdicts = []
        start = 0
        for item, texts in zip(items, divided, strict=True):
            rows = vectors[start : start + len(texts)]
            start += len(texts)
            verdicts.append(self._verdict(item, features(self._grounding(item), texts, rows)))
        return verdicts

    def _verdict(self, item: Item, named: Mapping[str, float]) -> Verdict:
        head = self._heads[item.kind]
        row = np.array([[named[name] for name in head.features]])
        classes = head.class_probabilities(row)[0]
        p = to_probabilities(head.label_probabilities(row)[0], item.kind)
        labels = labels_of(p)
        nearest = int(classes.argmax())
        return Verdict(
            labels=labels,
            p=p,
            judge=self.name,
            rubric_version=self.rubric_version,
            reason=f"most like: {head.classes[nearest]} (p {classes[nearest]:.2f})",
            flags=odd_combinations(labels),
        )

    def _grounding(self, item: Item) -> Grounding:
        key = (
            item.kind,
            item.language,
            item.query_text,
            item.stated_request,
            item.intended_request,
            item.misconception,
            item.stated_solutions,
            item.intended_solutions,
        )
        with self._lock:
            if key in self._groundings:
                self._groundings.move_to_end(key)
                return self._groundings[key]
        grounding = ground(item, self._encoder.encode)
        with self._lock:
            self._groundings[key] = grounding
            while len(self._groundings) > KEPT_ITEMS:
                self._groundings.popitem(last=False)
        return grounding
