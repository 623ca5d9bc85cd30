"""How the local judge does on answers that a model wrote: 50 by the embedded policy, labelled by hand.

    python benchmarks/model_answers.py

The answers are cut at 192 tokens and come from a model of 135M parameters: none of them holds a usable
solution, so for the solution labels this measures false positives only. See docs/local_judge.md.
"""

import json
from pathlib import Path

from xyreward import load_items, score
from xyreward.stats import mean

LABELLED = Path(__file__).parent.parent / "tests/data/model_answers.jsonl"
LABELS = ("has_stated_solution", "has_intended_solution", "focus", "identifies_misconception")


def main() -> None:
    items = {item.id: item for item in load_items("mini")}
    rows = [json.loads(line) for line in LABELLED.read_text("utf-8").split("\n") if line]
    scores = score([items[r["item_id"]] for r in rows], [r["answer"] for r in rows])
    verdicts = [s.verdict for s in scores]
    for kind in ("xy", "control"):
        mine = [i for i, r in enumerate(rows) if items[r["item_id"]].kind == kind]
        print(f"{kind}: {len(mine)} answers")
        for label in LABELS:
            told = [rows[i]["labels"][label] for i in mine]
            said = [getattr(verdicts[i], label) for i in mine]
            agree = mean([float(a == b) for a, b in zip(told, said, strict=True)], bounds=(0, 1))
            assert agree is not None
            print(
                f"  {label:26s} agreement {agree.value:.2f} [{agree.low:.2f}, {agree.high:.2f}]"
                f"   by hand {_counts(told)}   judge {_counts(said)}"
            )


def _counts(values: list[object]) -> str:
    return (
        ", ".join(f"{value} {values.count(value)}" for value in sorted(set(map(str, values))))
        if isinstance(values[0], str)
        else f"yes {sum(map(bool, values))}"
    )


if __name__ == "__main__":
    main()
