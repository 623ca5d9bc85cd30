"""Calibration records: how far a judge was found to agree with people, kept beside the judge's name.

A number of a judge is worth what its agreement is worth, so what prints such a number also prints which
record covers the judge, or that none does (`covered_by`). A record holds for one judge and one rubric
version. Records lie in the user's data folder (XYREWARD_CALIBRATION names another) and, for the local
judge, in the package.

Also here: a judge's verdicts on answers that others labelled, asked now (`ask_judge`) or as the store has
them (`add_stored`).

Not here: the figures (`agreement.py`), reading files (`ratings.py`).
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from importlib import resources
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

import xyreward
from xyreward.agreement import LabelFigures
from xyreward.errors import DataError, StoreError
from xyreward.items import Item
from xyreward.judges import Judge, check_gives_labels
from xyreward.judges.votes import combine
from xyreward.prices import without_url
from xyreward.ratings import LABELS, THREE, Key, Labelled
from xyreward.scoring import ascore
from xyreward.shown import percent
from xyreward.stats import Estimate
from xyreward.store import StoredVerdict, VerdictStore
from xyreward.strict_json import parse_json
from xyreward.verdict import LabelProbabilities, Labels, Verdict
from xyreward.whole_file import write_whole
from xyreward.words import is_empty

SHORT = {
    "has_stated_solution": "stated solution",
    "has_intended_solution": "intended solution",
    "focus": "focus",
    "identifies_misconception": "misconception",
}


class _Strict(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Figure(_Strict):
    """A number with its 95 % interval, as `stats.Estimate`."""

    value: float
    low: float | None = None
    high: float | None = None
    n: int = Field(ge=0)


class LabelRecord(_Strict):
    """What is known of one label."""

    agreement: Figure
    """Share of equal labels with a person, averaged over the people, in [0, 1]."""
    kappa: Figure | None = None
    """Cohen's kappa, averaged over the people."""
    alpha: Figure | None = None
    """Krippendorff's alpha of people and judge together."""
    people: Figure | None = None
    """Agreement of two people with each other. None where one person labelled."""
    failed: int = Field(ge=0)
    """Answers on which the judge gave no label; they are in none of the figures."""


class SourceRecord(_Strict):
    """A file that the labels came from."""

    name: str
    sha256: str = Field(pattern="^[0-9a-f]{64}$")


class Record(_Strict):
    """How one judge with one rubric agreed with people on some answers."""

    schema_: Literal[1] = Field(default=1, alias="schema")
    judge: str = Field(min_length=1)
    """Without the address of its server."""
    rubric_version: str = Field(min_length=1)
    grounded: bool = True
    """False: the goals were inferred by the judge, which holds for bare queries alone."""
    date: date
    xyreward: str
    """Version of the package that made it."""
    answers: int = Field(ge=1)
    """Labelled by at least one person and judged."""
    annotators: int = Field(ge=1)
    source: tuple[SourceRecord, ...] = Field(min_length=1)
    labels: Mapping[str, LabelRecord] = Field(min_length=1)
    note: str = ""
    """What the answers are, for who reads the figures."""

    @model_validator(mode="after")
    def _known_labels(self) -> Record:
        if unknown := sorted(self.labels.keys() - {*LABELS, THREE}):
            raise ValueError(f"labels are {', '.join(unknown)}, known are {', '.join(LABELS)}")
        return self

    def to_json(self) -> str:
        """The record's file."""
        return json.dumps(self.model_dump(mode="json", by_alias=True), indent=1) + "\n"

    @property
    def file_name(self) -> str:
        """Same judge, rubric and labels: same name, so that a repeated measurement replaces the former."""
        told = [self.judge, self.rubric_version, self.grounded]
        told += sorted(source.sha256 for source in self.source)
        digest = hashlib.sha256(json.dumps(told).encode()).hexdigest()[:12]
        return f"{re.sub(r'[^A-Za-z0-9.]+', '-', self.judge).strip('-')[:60]}-{digest}.json"

    def line(self) -> str:
        """Its figures on one line."""
        people = "1 person" if self.annotators == 1 else f"{self.annotators} people"
        shown = ", ".join(
            f"{SHORT[label]} {_percent(found.agreement)}"
            for label in LABELS
            if (found := self.labels.get(label)) is not None
        )
        failed = max((found.failed for found in self.labels.values()), default=0)
        out = f"agrees with {people} on {self.answers} answers: {shown}"
        out += f"; failed on {failed}" if failed else ""
        return f"{out} ({self.note + '; ' if self.note else ''}{self.date})"


def _percent(figure: Figure) -> str:
    value = percent(figure.value, 0)
    if figure.low is None or figure.high is None:
        return value
    return f"{value} [{100 * figure.low:.0f}, {100 * figure.high:.0f}]"


# ---------------------------------------------------------------- making and keeping records


def records_of(
    labels: Sequence[LabelFigures],
    labelled: Labelled,
    *,
    note: str = "",
    on: date | None = None,
) -> list[Record]:
    """A record for each judge that was compared with people.

    Args:
        labels: the figures, see `agreement.figures`.
        labelled: what they were computed from.
        note: what the answers are.
        on: the date; today by default.

    Raises:
        DataError: no judge was compared with a person, or one judge has two sets of verdicts.
    """
    records = []
    for shown, (judge, version, grounded) in labelled.judges().items():
        found: dict[str, LabelRecord] = {}
        answers = annotators = 0
        for one in labels:
            against = next((a for a in one.judges if a.judge == shown), None)
            if against is None or against.mean is None:
                continue
            failed = next(r["failed"] for r in one.raters if r["name"] == shown)
            with_labels = [pair for pair in against.pairs if pair.n]
            found[one.label] = LabelRecord(
                agreement=_figure(against.mean),
                kappa=_maybe(against.kappa),
                alpha=_maybe(against.alpha),
                people=_maybe(one.people_mean),
                failed=failed,
            )
            answers = max(answers, against.mean.n)
            annotators = max(annotators, len(with_labels))
        if found and version:
            records.append(
                Record(
                    judge=without_url(judge),
                    rubric_version=version,
                    grounded=grounded,
                    date=on or datetime.now(UTC).date(),
                    xyreward=xyreward.__version__,
                    answers=answers,
                    annotators=annotators,
                    source=tuple(
                        SourceRecord(name=s.name, sha256=s.sha256) for s in labelled.sources
                    ),
                    labels=found,
                    note=note,
                )
            )
    if len({record.file_name for record in records}) < len(records):
        raise DataError(
            [
                "two files have verdicts of one judge with one rubric, so which of them is to be recorded? "
                "Give one of them"
            ]
        )
    if not records:
        raise DataError([_NOTHING])
    return records


_NOTHING = "nothing to record: no judge with a verdict was compared with a person's labels"


def check_people(labelled: Labelled) -> None:
    """Find out before a judge is asked that no record could be made, since no person labelled anything.

    Raises:
        DataError: so it is.
    """
    if not any(rater.role == "human" for rater in labelled.given):
        raise DataError([_NOTHING])


def _figure(estimate: Estimate) -> Figure:
    return Figure(value=estimate.value, low=estimate.low, high=estimate.high, n=estimate.n)


def _maybe(estimate: Estimate | None) -> Figure | None:
    return None if estimate is None else _figure(estimate)


def records_folder() -> Path:
    """Where records of this user lie: XYREWARD_CALIBRATION, by default the user's data folder."""
    import platformdirs

    named = os.environ.get("XYREWARD_CALIBRATION")
    return Path(named) if named else Path(platformdirs.user_data_dir("xyreward")) / "calibration"


def keep(record: Record, folder: Path | None = None) -> Path:
    """Write a record into the user's folder, or another. An earlier one of the same labels is replaced.

    Raises:
        OSError: it cannot be written.
    """
    folder = folder or records_folder()
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / record.file_name
    write_whole(path, record.to_json())
    return path


# ---------------------------------------------------------------- finding records


@dataclass(frozen=True, slots=True)
class _Found:
    records: tuple[Record, ...]
    damaged: tuple[str, ...]


def _read_all(folder: Path | None) -> _Found:
    texts: list[tuple[str, str]] = []
    damaged: list[str] = []
    shipped = resources.files("xyreward").joinpath("data/calibration")
    own = folder or records_folder()
    try:
        files = sorted(own.glob("*.json"))
    except OSError:
        files = []
    packed = sorted(
        (f for f in shipped.iterdir() if f.name.endswith(".json")), key=lambda f: f.name
    )
    for file in [*packed, *files]:
        try:
            texts.append((file.name, file.read_text("utf-8")))
        except (OSError, UnicodeDecodeError) as error:
            damaged.append(f"{file.name} ({type(error).__name__})")
    records = []
    for name, text in texts:
        try:
            records.append(Record.model_validate(parse_json(text)))
        except (RecursionError, ValidationError, ValueError):
            damaged.append(name)
    return _Found(tuple(records), tuple(damaged))


def record_for(
    judge: str, rubric_version: str, *, grounded: bool = True, folder: Path | None = None
) -> Record | None:
    """The record that covers a judge: the one of most answers, of equal ones the latest.

    Args:
        judge: its name; the address of its server does not matter.
        rubric_version: a record of another version does not count.
        grounded: False for verdicts on goals that were inferred.
        folder: where to look beside the package; see `records_folder`.
    """
    return _best(_read_all(folder).records, judge, rubric_version, grounded)


def _best(
    records: Sequence[Record], judge: str, rubric_version: str, grounded: bool
) -> Record | None:
    covering = [
        r
        for r in records
        if (r.judge, r.rubric_version, r.grounded) == (without_url(judge), rubric_version, grounded)
    ]
    return max(covering, key=lambda r: (r.answers, r.date), default=None)


def covered_by(
    judge: str, rubric_version: str, *, grounded: bool = True, folder: Path | None = None
) -> str:
    """One line: which record covers a judge's numbers, or that none does. Raises nothing.

    For what prints numbers of a judge. See `record_for` for the arguments.
    """
    try:
        found = _read_all(folder)
    except OSError as error:
        return f"calibration records cannot be read ({type(error).__name__})"
    unread = f" ({', '.join(found.damaged)}: no calibration record)" if found.damaged else ""
    record = _best(found.records, judge, rubric_version, grounded)
    if record is not None:
        return f"{judge} ({rubric_version}) {record.line()}{unread}"
    others = sorted({r.rubric_version for r in found.records if r.judge == without_url(judge)})
    known = f"; there are records of {', '.join(others)}, which do not count" if others else ""
    return (
        f"no calibration record covers {judge} ({rubric_version}){known}: how far it agrees with people "
        f"is not known; xyreward annotate and xyreward agree --record make one{unread}"
    )


# ---------------------------------------------------------------- a judge that is asked now


def open_answers(labelled: Labelled, items: Mapping[str, Item]) -> dict[Key, tuple[Item, str]]:
    """Answers that a judge can be asked about, with their items.

    Where some are labelled, or have stored verdicts, the others are left out: a verdict on them would be
    compared with nothing.

    Raises:
        DataError: rows whose item is not known, or that have a hash in place of the answer.
    """
    problems = []
    found: dict[Key, tuple[Item, str]] = {}
    compared = {key for by in labelled.given.values() for key in by}
    for key, answer in labelled.answers.items():
        if compared and key not in compared:
            continue
        item = answer.item(items)
        if item is None:
            problems.append(
                f"{answer.where}: item_id {answer.item_id!r:.60} is not among the {len(items)} items; check "
                "--items"
            )
        elif answer.text is None:
            problems.append(f"{answer.where}: has answer_hash and no answer, expected its text")
        elif not is_empty(answer.text):
            found[key] = (item, answer.text)
    if problems:
        raise DataError(problems)
    return found


async def ask_judge(labelled: Labelled, judge: Judge, asked: Mapping[Key, tuple[Item, str]]) -> int:
    """Let a judge label the answers, and add it as a rater. How many it failed on.

    Raises:
        JudgeError, StoreError: see `Judge`.
    """
    check_gives_labels(judge)
    scores = await ascore([i for i, _ in asked.values()], [t for _, t in asked.values()], judge)
    by_kind: dict[bool, dict[Key, Labels | None]] = defaultdict(dict)
    for (key, (item, _)), score in zip(asked.items(), scores, strict=True):
        labels = None if score.verdict is None else score.verdict.labels
        by_kind[item.is_grounded][key] = labels
    for grounded, outcomes in sorted(by_kind.items(), reverse=True):
        labelled.add_judge(
            judge.name, judge.rubric_version, outcomes, grounded=grounded, where="asked now"
        )
    return sum(score.failure is not None for score in scores)


# ---------------------------------------------------------------- a judge that cannot be asked any more


def add_stored(
    labelled: Labelled, store: VerdictStore, judge: str, items: Mapping[str, Item]
) -> dict[str, int]:
    """Add what the store has of a judge on these answers: a rater for each rubric version.

    Votes on one answer count as the judge's own majority (`judges/votes.py`). Where the store has
    verdicts that contradict each other under one vote (of other parameters, say), none is taken.

    Returns:
        Rubric version -> how many of the answers it has.

    Raises:
        DataError: rows whose item is not known.
        StoreError: it has no verdict of this judge on any of the answers, or one that cannot be read.
    """
    wanted, name = _by_hash(labelled, items), without_url(judge)
    votes: dict[str, dict[Key, dict[str, set[Labels]]]] = defaultdict(lambda: defaultdict(dict))
    there: set[str] = set()
    of_judge = 0
    for record in store.records():
        identity = record.identity
        if record.kind != "verdict":
            continue
        there.add(identity.get("judge", ""))
        if identity.get("judge") != name:
            continue
        of_judge += 1
        for key in wanted.get((identity.get("query", ""), identity.get("answer", "")), ()):
            by_vote = votes[identity.get("rubric_version", "")][key]
            by_vote.setdefault(identity.get("vote", "0"), set()).add(_labels(store, record))
    if not votes:
        if of_judge:
            found = f"{of_judge} verdicts of {name}, none on these answers"
        else:
            found = f"no verdict of {name}; it has those of {', '.join(sorted(there)) or 'nobody'}"
        raise StoreError(
            f"{store.path}: {found}. Name the old judge as `xyreward store info` shows it, and give the "
            "answers that it judged"
        )
    counts = {}
    contradicting = 0
    for version, by_key in sorted(votes.items()):
        outcomes: dict[Key, Labels | None] = {}
        for key, by_vote in by_key.items():
            if any(len(said) > 1 for said in by_vote.values()):
                contradicting += 1
                continue
            item = labelled.answers[key].item(items)
            assert item is not None  # `_by_hash` has looked
            outcomes[key] = _majority(
                [next(iter(s)) for s in by_vote.values()], item, name, version
            )
        labelled.add_judge(name, version, outcomes, where="store")
        counts[version] = len(outcomes)
    if contradicting:
        labelled.notes.append(
            f"{contradicting} answers have stored verdicts of {name} that contradict each other (asked with "
            "other parameters, or with other notes on the item); they are left out"
        )
    return counts


def _by_hash(labelled: Labelled, items: Mapping[str, Item]) -> dict[tuple[str, str], list[Key]]:
    """Hashes as the store's identities have them -> answers."""
    wanted: dict[tuple[str, str], list[Key]] = defaultdict(list)
    problems = []
    for key, answer in labelled.answers.items():
        item = answer.item(items)
        if item is None:
            problems.append(
                f"{answer.where}: item_id {answer.item_id!r:.60} is not among the {len(items)} items; check "
                "--items"
            )
        else:
            wanted[item.content_hash[:16], key[1][:16]].append(key)
    if problems:
        raise DataError(problems)
    return wanted


def _labels(store: VerdictStore, record: StoredVerdict) -> Labels:
    try:
        return Labels(**json.loads(record.payload)["labels"])
    except (KeyError, RecursionError, TypeError, ValueError) as error:
        raise StoreError(
            f"{store.path}: the record with key {record.key:.16} is no verdict as this release writes it "
            f"({type(error).__name__}); was it imported or edited? Remove it with `xyreward store prune`"
        ) from None


def _majority(said: Sequence[Labels], item: Item, judge: str, version: str) -> Labels:
    if len(said) == 1:
        return said[0]
    verdicts: list[Any] = [
        Verdict(one, LabelProbabilities.certain(one), judge, version) for one in said
    ]
    both = combine(verdicts, item.kind, judge=judge, rubric_version=version)
    assert isinstance(both, Verdict)  # of nothing but verdicts
    return both.labels
