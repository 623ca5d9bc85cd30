"""A judge whose labels follow from the answer's text by chance, for loops of random policies."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field

from xyreward.items import Item
from xyreward.verdict import (
    FOCUS_VALUES,
    FailureKind,
    JudgeFailure,
    LabelProbabilities,
    Labels,
    Verdict,
)


@dataclass
class LabelJudge:
    """Labels and failures are drawn from a hash of item and answer: the same everywhere and every time."""

    failing: float = 0.0
    """Share of answers that cannot be judged."""
    kind: FailureKind = "unparseable"
    out_for: int = 0
    """So many calls of `judge` fail as a whole, of kind `transport`."""
    name: str = "labels"
    rubric_version: str = "labels-1"
    asked: list[tuple[str, str]] = field(default_factory=list)
    calls: int = 0

    async def judge(
        self, items: Sequence[Item], answers: Sequence[str]
    ) -> list[Verdict | JudgeFailure]:
        self.calls += 1
        self.asked += [(item.id, answer) for item, answer in zip(items, answers, strict=True)]
        if self.calls <= self.out_for:
            return [JudgeFailure("transport", "no route to host")] * len(items)
        return [self.outcome(item, answer) for item, answer in zip(items, answers, strict=True)]

    def outcome(self, item: Item, answer: str) -> Verdict | JudgeFailure:
        draw = hashlib.sha256(f"{item.content_hash} {answer}".encode("utf-8", "surrogatepass"))
        bits = draw.digest()
        if bits[0] / 256 < self.failing:
            return JudgeFailure(self.kind, "by chance")
        labels = Labels(
            bits[1] % 2 == 0, bits[2] % 2 == 0, FOCUS_VALUES[bits[3] % 4], bits[4] % 2 == 0
        )
        return Verdict(labels, LabelProbabilities.certain(labels), self.name, self.rubric_version)
