"""People look through items: one page to keep, edit or reject by keyboard, and what they decided applied.

    items -> page -> decisions -> kept items, and the others beside them
             or a list of decisions that was made otherwise

The page works offline, and the order is random. What gates and judges said of an item is not in it, so that
nobody agrees with them by habit. `apply` changes nothing that was not decided about just this text.

Not here: labels of answers (`annotate.py`), the parts that both pages share (`templates/filled.*`).
"""

from __future__ import annotations

import hashlib
import json
import random
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from xyreward.construct.gates import meant_as
from xyreward.construct.job import as_bytes, items_text, write_items
from xyreward.errors import DataError
from xyreward.items import Item, same_words, text_hash
from xyreward.markdown import printable
from xyreward.score_file import refuse_existing
from xyreward.self_contained import render
from xyreward.strict_json import parse_json
from xyreward.whole_file import write_whole
from xyreward.words import counted, is_empty, whole

REASONS = (
    "the query says the goal",
    "nobody could tell the goal from the query",
    "what is asked is what is wanted",
    "the intended request is wrong",
    "the misconception is wrong",
    "an answer is not what it is called",
    "unclear or broken text",
    "personal or harmful",
)
"""Suggested for a rejected item; any other will do."""

UNDECIDED, CHANGED = "no decision", "changed since it was reviewed"
DIFFERING = "decided differently"


# ---------------------------------------------------------------- the page


@dataclass(frozen=True, slots=True)
class ReviewPage:
    """A page, and what is in it."""

    html: str
    hash: str
    """16 hex digits over texts and order: what a browser remembers decisions under."""
    items: int


def item_hash(item: Item) -> str:
    """16 hex digits over what a reviewer decides about: all but `meta`, which has dates of replies."""
    told = json.dumps(item.model_dump(exclude={"meta"}), sort_keys=True)
    return hashlib.sha256(told.encode("ascii")).hexdigest()[:16]


def review_page(items: Sequence[Item], *, seed: int = 0, limit: int | None = None) -> ReviewPage:
    """Make the page.

    Args:
        items: to be looked through.
        seed: of the order, and of what is drawn where there is a limit.
        limit: how many items at most.

    Raises:
        DataError: there is no item, or two have the same id.
    """
    _check_ids(items)
    if not items:
        raise DataError(["no item to review"])
    # Sorted first, so that the order of the file has no say.
    units = sorted((_unit(item) for item in items), key=lambda unit: str(unit["unit"]))
    random.Random(seed).shuffle(units)  # noqa: S311  # an order, no secret
    shown = units[:limit]
    digest = hashlib.sha256(json.dumps(shown, sort_keys=True).encode("ascii")).hexdigest()[:16]
    pieces = render(
        "review.html.jinja",
        {"sheet": digest, "reasons": REASONS, "units": shown},
        styles=["filled.css", "review.css"],
        scripts=["base.js", "filled.js", "review.js"],
        total=len(shown),
        hash=digest,
        heading=f"{counted(len(shown), 'item')} to review",
        thing="item",
        things="items",
        made="decisions",
        done="Decided",
    )
    return ReviewPage("".join(pieces), digest, len(shown))


def _unit(item: Item) -> dict[str, Any]:
    digest = item_hash(item)
    control = item.kind == "control"
    texts = [("query", "Query", item.query_text, "")]
    if control:
        texts.append(("stated_request", "What is asked, and wanted", item.stated_request, ""))
    else:
        texts += [
            ("stated_request", "Stated request", item.stated_request, ""),
            ("intended_request", "Intended request", item.intended_request, ""),
            ("misconception", "Misconception", item.misconception, ""),
        ]
    meant = meant_as(item)
    for n, reference in enumerate(item.references):
        kind = str(reference.kind or meant.get(n) or "of no kind").replace("_", "-")
        by = [reference.author or reference.origin, reference.licence or "licence unknown"]
        about = ", ".join(one for one in by if one)
        texts.append((f"references.{n}", f"Reference {n + 1}, {kind}", reference.text, about))
    fields = []
    for name, heading, text, about in texts:
        one: dict[str, Any] = {"name": name, "heading": heading, "text": text}
        one |= {"about": printable(about)} if about else {}
        if (safe := printable(text)) != text:
            one["shown"] = safe
        fields.append(one)
    if not isinstance(item.query, str):
        fields[0]["fixed"] = True  # of a conversation no turn is edited here
        fields[0]["turns"] = [
            {"role": m["role"], "text": printable(m["content"])} for m in item.messages
        ]
    solutions = [("Solutions of the stated request", item.stated_solutions)]
    solutions += [("Solutions of the intended request", item.intended_solutions)] * (not control)
    return {
        "unit": text_hash(f"{item.id}\n{digest}")[:16],
        "id": item.id,
        "hash": digest,
        "about": printable(f"{item.id}: {'no hidden goal' if control else 'a hidden goal'}"),
        "fields": fields,
        "notes": [[heading, [*map(printable, given)]] for heading, given in solutions if given],
        "sources": _sources(item.meta),
    }


def _sources(meta: Mapping[str, Any]) -> list[tuple[str, list[str]]]:
    """Headings with their texts: who wrote what the item was made of, under which licence, and quotes."""
    found = []
    for name, given in _mapping(meta.get("attribution")).items():
        lines = [
            ", ".join(str(value) for value in _mapping(one).values())
            for one in (given if isinstance(given, list) else [given])
        ]
        found.append((name.replace("_", " ").capitalize(), [*map(printable, filter(None, lines))]))
    for name, given in _mapping(meta.get("evidence")).items():
        lines = []
        for one in map(_mapping, given if isinstance(given, list) else [given]):
            where = one.get("answer") or one.get("place") or ""
            text = f"{one.get('text', '')} \u2190 " if one.get("text") else ""
            lines.append(f"{text}\u201c{one.get('quote', '')}\u201d ({where})")
        heading = f"Quotes for the {name.replace('_', ' ')}"
        found.append((heading, [*map(printable, lines)]))
    return [(printable(heading), lines) for heading, lines in found if lines]


def _mapping(given: object) -> Mapping[str, Any]:
    return given if isinstance(given, Mapping) else {}


# ---------------------------------------------------------------- decisions


class Decision(BaseModel):
    """What one person decided about one item: a row of the file that the page saves."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    item_id: str
    item_hash: str = ""
    """Of the item that was shown, see `item_hash`. Empty: the item is meant as it is now."""
    decision: Literal["keep", "edit", "reject"]
    reason: str = ""
    """Of a rejected item; there must be one."""
    edits: dict[str, str] = {}
    """Of an edited item: field (`query`, `stated_request`, ..., `references.0`) -> its text."""
    annotator: str = ""
    """Name or initials; may be empty."""
    date: str = ""
    unit: str = ""
    sheet: str = ""

    def wrong(self) -> str | None:
        """Why it cannot be; None where it can."""
        if (self.decision == "edit") != bool(self.edits):
            return f"{self.decision} with {len(self.edits)} edits"
        if self.decision == "reject" and not self.reason.strip():
            return "reject without a reason"
        texts = (self.item_id, self.reason, self.annotator, self.date, *self.edits.values())
        if any(whole(text) != text for text in texts):
            return "has half a surrogate pair, which is no character; write the text anew"
        return None


def read_decisions(paths: Sequence[Path]) -> list[Decision]:
    """The rows of one or more files.

    Raises:
        DataError: a file is missing, or a row is no decision; all of them are named.
    """
    found: list[Decision] = []
    problems: list[str] = []
    for path in paths:
        try:
            text = path.read_text("utf-8-sig")
        except (OSError, UnicodeDecodeError) as error:
            problems.append(f"{path}: cannot be read ({type(error).__name__}), expected JSONL")
            continue
        for number, line in enumerate(text.split("\n"), start=1):
            if not line.strip():
                continue
            try:
                one = Decision.model_validate(parse_json(line))
                wrong = one.wrong()
            except ValidationError as error:
                wrong = "; ".join(
                    f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors()
                )
            except ValueError as error:
                wrong = f"no JSON ({error})"
            if wrong:
                problems.append(f"{path} line {number}: {wrong}")
            else:
                found.append(one)
    if problems:
        raise DataError(problems)
    return found


@dataclass(frozen=True, slots=True)
class Reviewed:
    """What came of it. Every item is in `kept` or in `left_out`."""

    kept: tuple[Item, ...]
    """In the order of the items, edits made; `meta["review"]` says who decided."""
    left_out: tuple[Item, ...]
    """Likewise; the last of `meta["review"]` says why."""
    counts: Mapping[str, int]
    """keep, edit, reject; no decision, changed since it was reviewed, decided differently."""
    unknown: tuple[str, ...] = field(default=())
    """Ids with a decision and no item."""

    @property
    def unsettled(self) -> int:
        """Items that nobody decided about, as they are, and decisions about no item."""
        return sum(self.counts.get(why, 0) for why in (UNDECIDED, CHANGED, DIFFERING)) + len(
            self.unknown
        )


def apply(items: Sequence[Item], decisions: Sequence[Decision]) -> Reviewed:
    """Apply decisions to the items that they were made about.

    Args:
        items: as they were reviewed.
        decisions: of one or more people. Where two decided differently about an item, nothing is done.

    Raises:
        DataError: an edit makes no item, or is of a field that the item lacks; or an item's `meta["review"]`
            is none of ours; all of them are named. Or two items have the same id.
    """
    _check_ids(items)
    of: dict[str, list[Decision]] = defaultdict(list)
    for one in decisions:
        of[one.item_id].append(one)
    kept: list[Item] = []
    left: list[Item] = []
    counts: Counter[str] = Counter()
    problems: list[str] = []
    for item in items:
        digest = item_hash(item)
        given = of.pop(item.id, [])
        now = [one for one in given if one.item_hash in (digest, "")]
        if not now:
            why = CHANGED if given else UNDECIDED
        elif len({(one.decision, tuple(sorted(one.edits.items()))) for one in now}) > 1:
            why = DIFFERING
        else:
            why = now[0].decision
        counts[why] += 1
        try:
            if why in ("keep", "edit"):
                kept.append(_edited(item, now))
            else:
                records = [_record(one) for one in now] or [{"decision": why}]
                left.append(_with_review(item, {}, records))
        except ValueError as error:  # of pydantic too
            problems.append(f"item {item.id!r}: {_told(error)}")
    if problems:
        raise DataError(problems)
    return Reviewed(tuple(kept), tuple(left), dict(counts), tuple(sorted(of)))


def write_reviewed(found: Reviewed, out: Path) -> Path:
    """Write the items that were kept and, beside them, all others; the path of the others.

    The others come first, so that all is there where `out` is. What a start that was stopped in between has
    left does not stand in the way of the same command.

    Args:
        found: what was decided.
        out: of the kept items; is not there yet.

    Raises:
        RunFolderError: the file of the others is there, and is of something else.
        OSError: a file cannot be written.
    """
    left_out = out.with_name(f"{out.stem}.left_out{out.suffix}")
    text = as_bytes(items_text(found.left_out))
    if left_out.exists() and not (left_out.is_file() and left_out.read_bytes() == text):
        refuse_existing(left_out)
    out.parent.mkdir(parents=True, exist_ok=True)
    write_whole(left_out, text)
    write_items(out, found.kept)
    return left_out


def _edited(item: Item, decisions: Sequence[Decision]) -> Item:
    """The item with its edits.

    Raises:
        ValueError: they make no item.
    """
    changes: dict[str, Any] = {}
    before: dict[str, str] = {}
    references = [reference.model_dump() for reference in item.references]
    for name, text in decisions[0].edits.items():
        head, _, number = name.partition(".")
        if head == "references" and number.isdecimal() and int(number) < len(references):
            one = references[int(number)]
            before[name] = one["text"]
            # Labels are of the text that somebody labelled, and of no other.
            references[int(number)] = {**one, "text": text, "labels": None}
        elif name == "query" and isinstance(item.query, str):
            before[name], changes[name] = item.query, text
        elif name == "stated_request" or (
            name in ("intended_request", "misconception") and item.kind == "xy"
        ):
            before[name], changes[name] = getattr(item, name), text
            if item.kind == "control":
                changes["intended_request"] = text
        else:
            raise ValueError(f"{name!r} is no field of it that can be edited")
        if is_empty(text):
            raise ValueError(f"{name} is blank")
    changes["references"] = references
    edited = _with_review(item, changes, [_record(one, before) for one in decisions])
    if item.kind == "xy" and same_words(edited.stated_request, edited.intended_request):
        raise ValueError("the intended request is the stated one, and no goal is hidden; reject it")
    return edited


def _with_review(
    item: Item, changes: Mapping[str, Any], records: Sequence[Mapping[str, Any]]
) -> Item:
    before = item.meta.get("review", [])
    if not isinstance(before, list):
        raise ValueError(f"meta.review is {before!r:.60}, expected a list of earlier decisions")
    meta = {**item.meta, "review": [*before, *records]}
    return Item.model_validate({**item.model_dump(), **changes, "meta": meta})


def _record(one: Decision, before: Mapping[str, str] | None = None) -> dict[str, Any]:
    record: dict[str, Any] = {"decision": one.decision}
    told = {"reason": one.reason, "annotator": one.annotator, "date": one.date}
    record |= {name: value for name, value in told.items() if value}
    if before:
        record["before"] = dict(before)
    return record


def _told(error: ValueError) -> str:
    if isinstance(error, ValidationError):
        return "; ".join(
            f"{'.'.join(map(str, e['loc']))} {e['msg'].removeprefix('Value error, ')}"
            for e in error.errors()
        )
    return str(error)


def _check_ids(items: Sequence[Item]) -> None:
    twice = [name for name, n in Counter(item.id for item in items).items() if n > 1]
    if twice:
        raise DataError(
            [f"item {name!r} is there twice, expected ids that differ" for name in twice]
        )
