"""Which items an evaluation is of, in words: the same ones in facts, cards and what is published.

Not here: choosing them (`recipe.load_data`).
"""

from __future__ import annotations

from xyreward.config import EvaluationConfig


def which_items(wanted: EvaluationConfig, of_train_side: int = 0) -> str:
    """Which items an evaluation is of.

    Args:
        wanted: the configuration's section.
        of_train_side: how many of them are on the train side.

    Returns:
        Such as `the test side, of curated, the first 30 of each kind`.
    """
    if wanted.leave_out is not None:
        told = [f"source {wanted.leave_out}, all sides"]
    else:
        told = ["all sides" if wanted.split == "all" else f"the {wanted.split} side"]
    if wanted.sources:
        told.append(f"of {', '.join(wanted.sources)}")
    if wanted.limit is not None:
        told.append(f"the first {wanted.limit} of each kind")
    if of_train_side:
        told.append(f"{of_train_side} of them on the train side")
    return ", ".join(told)


def is_whole_side(wanted: EvaluationConfig, of_train_side: int = 0) -> bool:
    """Whether it is of all of one held-out side and of nothing else, as readers take a figure to be."""
    narrowed = wanted.sources or wanted.leave_out is not None or wanted.limit is not None
    return wanted.split in ("dev", "test") and not narrowed and not of_train_side
