"""Rows of evaluations made by hand."""

from dataclasses import asdict
from typing import Any

from xyreward.evaluation import Evaluation, Row
from xyreward.items import ItemKind
from xyreward.verdict import JudgeFailure, Labels

GOAL = Labels(False, True, "intended", True)
LITERAL = Labels(True, False, "stated", False)
REFUSAL = Labels(False, False, "neither", False)
BALANCED = Labels(True, True, "balanced", True)
INVENTS = Labels(False, False, "neither", True)
DIRECT = Labels(True, True, "stated", False)


def row(name: str, labels: Labels | None = None, kind: ItemKind = "xy", **fields: Any) -> Row:
    """A row of one answer; each is its own cluster unless told otherwise."""
    base: dict[str, Any] = {
        "source": "t",
        "domain": "d",
        "language": "en",
        "cluster": name,
        "verdict": asdict(labels) if labels else None,
    }
    return Row(item_id=name, kind=kind, **{**base, **fields})


def failed(name: str, kind: ItemKind = "xy", why: Any = "timeout", **fields: Any) -> Row:
    """A row whose answer was not judged."""
    return row(name, None, kind, failure=asdict(JudgeFailure(why, "late")), **fields)


def evaluation(
    *rows: Row, parts: Any = ("writing", "preference", "picking"), **fields: Any
) -> Evaluation:
    """Of these rows, by judge `j` with rubric `v`."""
    return Evaluation(
        **{
            "policy": "p",
            "rows": rows,
            "judge": "j",
            "rubric_version": "v",
            "parts": parts,
            **fields,
        }
    )
