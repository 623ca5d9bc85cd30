"""A judge that says what it was told to say: for tests, for replays, for trying a training loop.

Each line of a script (JSONL) names an answer and its labels or its failure:

    {"item_id": "x", "answer": "...", "labels": {"has_stated_solution": true, ...}}
    {"item_id": "x", "answer": "...", "failure": "timeout", "detail": "..."}

`item_id` may be left out: the line then holds for that answer to any item. Other keys, and two
lines that disagree about one answer, are errors: a misspelt `item_id` would hold for every item.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeGuard

from xyreward.errors import JudgeError
from xyreward.items import Item, ReferenceLabels, text_hash
from xyreward.verdict import (
    FAILURE_KINDS,
    JudgeFailure,
    LabelProbabilities,
    Labels,
    Verdict,
    odd_combinations,
)

Outcome = Labels | JudgeFailure
Key = tuple[str | None, str]
"""(item id, or None for any item; answer)"""


class ScriptedJudge:
    """Looks outcomes up by (item id, answer), then by answer alone.

    An answer that the script does not have is a JudgeFailure of kind `off_menu`, so a gap in a
    script shows as a failure and not as a label.
    """

    def __init__(self, script: Mapping[Key, Outcome], name: str = "scripted") -> None:
        for key, outcome in script.items():
            if not _is_key(key) or not isinstance(outcome, Labels | JudgeFailure):
                raise JudgeError(
                    f"scripted judge: {key!r:.80} -> {outcome!r:.80}; expected "
                    "(item id or None, answer) -> Labels or JudgeFailure"
                )
        self._script = dict(script)
        self._name = name
        told = sorted(f"{key!r}: {outcome!r}" for key, outcome in self._script.items())
        self._version = f"script-{text_hash(chr(10).join(told))[:12]}"

    @property
    def name(self) -> str:
        """As given; `scripted:<file>` for a script from a file."""
        return self._name

    @property
    def rubric_version(self) -> str:
        """Hash of the script."""
        return self._version

    @classmethod
    def from_file(cls, path: str | os.PathLike[str]) -> ScriptedJudge:
        """Read a script.

        Raises:
            JudgeError: the file is missing or a line is malformed; all bad lines are named.
        """
        if not Path(path).is_file():
            raise JudgeError(f"scripted judge: no file {path}")
        try:
            text = Path(path).read_text("utf-8-sig")
        except UnicodeDecodeError as error:
            raise JudgeError(f"scripted judge: {path}: not UTF-8 ({error})") from None
        script: dict[Key, Outcome] = {}
        problems = []
        # Not splitlines(): an answer may hold U+2028 and its like, which JSON does not escape.
        for number, line in enumerate(text.split("\n"), start=1):
            if not line.strip():
                continue
            try:
                key, outcome = _entry(json.loads(line))
                if script.setdefault(key, outcome) != outcome:
                    raise ValueError("another line says something else of the same answer")
            except ValueError as error:  # of json and pydantic too
                problems.append(f"line {number}: {' '.join(str(error).split())}")
            except RecursionError:
                problems.append(f"line {number}: is nested too deep")
        if problems:
            raise JudgeError(f"scripted judge: {path}:\n  " + "\n  ".join(problems))
        return cls(script, name=f"scripted:{path}")

    async def judge(
        self, items: Sequence[Item], answers: Sequence[str]
    ) -> list[Verdict | JudgeFailure]:
        """What the script says of each answer."""
        return [self._one(item, answer) for item, answer in zip(items, answers, strict=True)]

    def _one(self, item: Item, answer: str) -> Verdict | JudgeFailure:
        outcome = self._script.get((item.id, answer), self._script.get((None, answer)))
        if outcome is None:
            return JudgeFailure(
                "off_menu", f"the script has no line for this answer to {item.id!r}"
            )
        if isinstance(outcome, JudgeFailure):
            return outcome
        return Verdict(
            labels=outcome,
            p=LabelProbabilities.certain(outcome),
            judge=self.name,
            rubric_version=self.rubric_version,
            flags=odd_combinations(outcome),
        )


def _is_key(key: object) -> TypeGuard[Key]:
    match key:
        case (None | str(), str()):
            return True
        case _:
            return False


def _entry(row: Any) -> tuple[Key, Outcome]:
    if not isinstance(row, dict):
        raise ValueError(f"is {type(row).__name__}, expected an object")
    unknown = sorted(row.keys() - {"item_id", "answer", "labels", "failure", "detail"})
    if unknown:
        raise ValueError(f"unknown keys {', '.join(unknown)}")
    key = (row.get("item_id"), row.get("answer"))
    if not _is_key(key):
        raise ValueError(f"(item_id, answer) is {key!r:.80}, expected (string or none, string)")
    return key, _outcome(row)


def _outcome(row: Mapping[str, Any]) -> Outcome:
    if ("labels" in row) == ("failure" in row):
        raise ValueError("expected exactly one of labels, failure")
    if "labels" in row:
        return ReferenceLabels.model_validate(row["labels"]).as_labels()
    if row["failure"] not in FAILURE_KINDS:
        raise ValueError(f"failure {row['failure']!r}, expected one of {', '.join(FAILURE_KINDS)}")
    return JudgeFailure(row["failure"], str(row.get("detail", "as the script says")))
