"""xyreward: a training signal for serving what a person needs, not only what they literally ask.

    import xyreward

    item = xyreward.load_items("mini", split="test")[0]
    xyreward.score(item, "an answer", judge="local").reward  # in [0, 1], None if the judge failed

Importing this package loads no torch, transformers, trl, datasets or anthropic: names are looked up
when they are first used (PEP 562).
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_WHERE = {
    "Item": "items",
    "Judge": "judges",
    "JudgeFailure": "verdict",
    "Reward": "reward",
    "Score": "scoring",
    "Verdict": "verdict",
    "XYRewardError": "errors",
    "ascore": "scoring",
    "assign_splits": "splits",
    "build_pairs": "pairs",
    "check_no_overlap": "splits",
    "evaluate": "evaluation",
    "load_items": "loading",
    "load_judge": "judges",
    "load_policy": "policy",
    "score": "scoring",
}

__all__ = [
    "Item",
    "Judge",
    "JudgeFailure",
    "Reward",
    "Score",
    "Verdict",
    "XYRewardError",
    "ascore",
    "assign_splits",
    "build_pairs",
    "check_no_overlap",
    "evaluate",
    "load_items",
    "load_judge",
    "load_policy",
    "score",
]

if TYPE_CHECKING:
    from xyreward.errors import XYRewardError
    from xyreward.evaluation import evaluate
    from xyreward.items import Item
    from xyreward.judges import Judge, load_judge
    from xyreward.loading import load_items
    from xyreward.pairs import build_pairs
    from xyreward.policy import load_policy
    from xyreward.reward import Reward
    from xyreward.scoring import Score, ascore, score
    from xyreward.splits import assign_splits, check_no_overlap
    from xyreward.verdict import JudgeFailure, Verdict


def __getattr__(name: str) -> Any:
    if name in _WHERE:
        value = getattr(importlib.import_module(f"xyreward.{_WHERE[name]}"), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module 'xyreward' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
