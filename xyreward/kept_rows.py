"""The lines of an evaluation's file, checked: every field of the type that a row has.

A file may be damaged, edited, or of another version of xyreward; whoever reads it must find that out here
and not in the middle of a table. Not here: what a row means (`evaluation.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, fields
from functools import cache
from typing import Annotated, Any, get_type_hints

from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model

from xyreward.answering import EvaluationPart
from xyreward.errors import OtherVersion
from xyreward.strict_json import parse_json
from xyreward.verdict import Focus

SCHEMA = 1
"""Version of these files: in their first line, as whoever reads them looks there first. Files without one are
of version 1, which was written before the number was. A key that is new, gone or of another meaning is a new
version."""

_STRICT = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)
_OPEN = ConfigDict(strict=True, extra="allow", allow_inf_nan=False)

_Probability = Annotated[float, Field(ge=0, le=1)]


class _Head(BaseModel):
    model_config = _STRICT

    version: Annotated[int, Field(alias="schema", ge=1)] = SCHEMA
    policy: str
    judge: str | None
    rubric_version: str | None
    parts: list[EvaluationPart]
    condition: str = "writing"
    remarks: list[str] = []


class _LogProb(BaseModel):
    model_config = _STRICT

    total: float
    tokens: Annotated[int, Field(ge=1)]


class _Probabilities(BaseModel):
    model_config = _OPEN

    has_stated_solution: _Probability
    has_intended_solution: _Probability
    focus: dict[Focus, _Probability]
    identifies_misconception: _Probability


class _Suggestion(BaseModel):
    model_config = _OPEN

    quote: str
    serves: str
    reason: str


class _Verdict(BaseModel):
    model_config = _OPEN

    has_stated_solution: bool
    has_intended_solution: bool
    focus: Focus
    identifies_misconception: bool
    p: _Probabilities | None = None
    judge: str = ""
    rubric_version: str = ""
    grounded: bool = True
    votes: Annotated[int, Field(ge=1)] = 1
    flags: list[str] = []
    reason: str = ""
    suggestions: list[_Suggestion] = []


class _Failure(BaseModel):
    model_config = _OPEN

    kind: str
    detail: str = ""


_NARROWER: Mapping[str, Any] = {
    **dict.fromkeys(("reward", "soft_reward", "picked", "picked_first"), _Probability | None),
    "answer_index": Annotated[int, Field(ge=0)],
    "better": _LogProb | None,
    "worse": _LogProb | None,
    "verdict": _Verdict | None,
    "failure": _Failure | None,
}
"""Fields of a row of which more is asked than their type says."""


def read_lines(text: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The description of an evaluation and the fields of its rows, as JSON has them.

    Raises:
        OtherVersion: of a later schema, or a line has a field that this version does not know.
        ValueError: it is not what `Evaluation.to_jsonl` writes; says which line, which field.
    """
    # Not splitlines(): an answer may hold U+2028, which JSON leaves as it is.
    lines = [line for line in text.split("\n") if line]
    if not lines:
        raise ValueError("is empty, expected a line on the evaluation and a line for each row")
    head = _checked(lines[0], 0, _Head)
    rows = [_checked(line, n, _row()) for n, line in enumerate(lines[1:], start=1)]
    first: dict[tuple[str, int], int] = {}
    for n, row in enumerate(rows, start=2):
        which = row["item_id"], row.get("answer_index", 0)
        if (other := first.setdefault(which, n)) != n:
            raise ValueError(
                f"line {n}: answer {which[1]} to item {which[0]!r:.80} is in line {other} already"
            )
        if (
            row.get("verdict") is None
            and (row.get("reward"), row.get("soft_reward")) != (None,) * 2
        ):
            raise ValueError(f"line {n}: has a reward and no verdict, expected none without one")
        lacking = row.get("failure") is not None
        if row.get("verdict") is not None and lacking:
            raise ValueError(f"line {n}: has a verdict and a failure, expected one of them")
        # It would count as judged, and be in no figure.
        if row.get("verdict") is None and not lacking and "writing" in head["parts"]:
            raise ValueError(f"line {n}: has no verdict and no failure, expected one of them")
    return head, rows


@cache
def _row() -> type[BaseModel]:
    from xyreward.evaluation import Row

    types = {**get_type_hints(Row), **_NARROWER}
    found: dict[str, Any] = {
        f.name: (types[f.name], ... if f.default is MISSING else f.default) for f in fields(Row)
    }
    return create_model("_Row", __config__=_STRICT, **found)


def _checked(line: str, n: int, model: type[BaseModel]) -> dict[str, Any]:
    try:
        found = parse_json(line)
    except ValueError as error:
        raise ValueError(f"line {n + 1}: {error}") from None
    if not isinstance(found, dict):
        raise ValueError(f"line {n + 1}: is no object, expected one")
    if n == 0 and type(schema := found.get("schema")) is int and schema > SCHEMA:
        raise OtherVersion(
            f"schema is {schema}, expected at most {SCHEMA}: a later version of xyreward wrote it"
        )
    try:
        model.model_validate(found)
    except ValidationError as error:
        problems = error.errors(include_url=False, include_context=False, include_input=False)
        unknown = [p for p in problems if p["type"] == "extra_forbidden"]
        if len(unknown) == len(problems):
            names = ", ".join(".".join(map(str, p["loc"])) for p in unknown)
            raise OtherVersion(f"line {n + 1}: this version does not know {names:.100}") from None
        (first, *_) = (p for p in problems if p not in unknown)
        place = ".".join(map(str, first["loc"]))
        raise ValueError(f"line {n + 1}: {place:.100}: {first['msg']}") from None
    return found
