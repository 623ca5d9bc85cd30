"""Preference pairs that audit themselves: goal-focused answers over literal ones.

    candidates ─► judged ─► rule ─► guards ─► balance ─► pairs ─► audit, formats, card, page

`build_pairs` does all of it; `xyreward pairs` is the same from the command line. Names are looked up when
they are first used, as in `xyreward`.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

_WHERE = {
    "REJECTED_KINDS": "rule",
    "Audit": "audit",
    "AuditLimits": "audit",
    "Candidate": "candidates",
    "Guards": "guards",
    "HeldOut": "held_out",
    "Judged": "candidates",
    "LeftOut": "pair",
    "Pair": "pair",
    "PairSet": "pair",
    "PairSource": "candidates",
    "Rule": "rule",
    "Sampling": "sampling",
    "TokenGuard": "guards",
    "audit_pairs": "audit",
    "balanced": "balance",
    "build_pairs": "build",
    "push_to_hub": "formats",
    "read_answers": "answers",
    "read_pairs": "formats",
    "sample": "sampling",
    "write_pairs": "formats",
}

__all__ = [
    "REJECTED_KINDS",
    "Audit",
    "AuditLimits",
    "Candidate",
    "Guards",
    "HeldOut",
    "Judged",
    "LeftOut",
    "Pair",
    "PairSet",
    "PairSource",
    "Rule",
    "Sampling",
    "TokenGuard",
    "audit_pairs",
    "balanced",
    "build_pairs",
    "push_to_hub",
    "read_answers",
    "read_pairs",
    "sample",
    "write_pairs",
]

if TYPE_CHECKING:
    from xyreward.pairs.answers import read_answers
    from xyreward.pairs.audit import Audit, AuditLimits, audit_pairs
    from xyreward.pairs.balance import balanced
    from xyreward.pairs.build import build_pairs
    from xyreward.pairs.candidates import Candidate, Judged, PairSource
    from xyreward.pairs.formats import push_to_hub, read_pairs, write_pairs
    from xyreward.pairs.guards import Guards, TokenGuard
    from xyreward.pairs.held_out import HeldOut
    from xyreward.pairs.pair import LeftOut, Pair, PairSet
    from xyreward.pairs.rule import REJECTED_KINDS, Rule
    from xyreward.pairs.sampling import Sampling, sample


def __getattr__(name: str) -> Any:
    if name in _WHERE:
        value = getattr(importlib.import_module(f"xyreward.pairs.{_WHERE[name]}"), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module 'xyreward.pairs' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
