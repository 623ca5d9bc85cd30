"""Auditing and balancing 8,115 and 125,000 pairs of answers of about 150 words: CPU time and peak memory.

    python benchmarks/pairs_audit.py               # about two minutes on one core
    python benchmarks/pairs_audit.py 8115          # that many pairs only

Words are drawn at random from a vocabulary of 20,000, so nearly every pair of words is new: the bag of
words has more to learn from than in real text.
"""

import random
import resource
import sys
import time
from collections.abc import Callable

from xyreward.items import DEFAULT_LABELS, AnswerKind
from xyreward.pairs import Candidate, Judged, Pair, PairSet
from xyreward.pairs.audit import audit_pairs
from xyreward.pairs.balance import balanced

WORDS = [f"word{i}" for i in range(20_000)] + ["not", "but", "instead"] * 300


def answer(rng: random.Random, kind: AnswerKind, reward: float) -> Judged:
    text = " ".join(rng.choices(WORDS, k=rng.randint(75, 225)))
    text = ("Why? " if rng.random() < 0.1 else "") + text
    text = ("# Title\n\n- one\n- two\n\n" if rng.random() < 0.4 else "") + text
    return Judged(Candidate("item", text, "on_policy", "m"), DEFAULT_LABELS[kind], reward, "local")


def pairs(number: int) -> list[Pair]:
    rng = random.Random(0)
    found = []
    for i in range(number):
        control = i % 4 == 0
        found.append(
            Pair(
                id=f"pair-{i:08}",
                item_id=f"item-{i}",
                item_kind="control" if control else "xy",
                split="train",
                cluster=f"cluster-{i}",
                prompt=({"role": "user", "content": "query"},),
                chosen_answer=answer(rng, "direct" if control else "goal_focused", 1.0),
                rejected_answer=answer(rng, "overcorrecting" if control else "literal", 0.0),
                source="benchmark",
                language="en",
            )
        )
    return found


def measure(name: str, number: int, work: Callable[[], object]) -> None:
    start = time.process_time()
    work()
    seconds = time.process_time() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"{number:>9,} pairs  {name:9}{seconds:7.1f} s of CPU, peak {peak:,.0f} MiB", flush=True)


def main() -> None:
    for number in map(int, sys.argv[1:] or ["8115", "125000"]):
        made = pairs(number)
        measure("made", number, lambda: None)
        measure("balanced", number, lambda made=made: balanced(made, control_share=0.25))  # type: ignore[misc]
        whole = PairSet(tuple(made), {}, candidates=number)
        measure("audited", number, lambda whole=whole: audit_pairs(whole))  # type: ignore[misc]


if __name__ == "__main__":
    main()
