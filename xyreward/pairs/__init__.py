"""Preference pairs that audit themselves: goal-focused answers over literal ones.

    candidates ─► judged ─► rule ─► guards ─► balance ─► pairs ─► audit, formats, card, page

`build_pairs` does all of it; `xyreward pairs` is the same from the command line.
"""

from xyreward.pairs.build import build_pairs
from xyreward.pairs.candidates import Candidate, Judged, PairSource
from xyreward.pairs.pair import LeftOut, Pair, PairSet
from xyreward.pairs.rule import REJECTED_KINDS, Rule

__all__ = [
    "REJECTED_KINDS",
    "Candidate",
    "Judged",
    "LeftOut",
    "Pair",
    "PairSet",
    "PairSource",
    "Rule",
    "build_pairs",
]
