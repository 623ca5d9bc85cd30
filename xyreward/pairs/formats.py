"""Write a pair set into a folder in the forms that trainers read, and read it back.

    pairs.jsonl       every pair with all that is known of it; the set is read back from this
    dropped.jsonl     examples of candidate pairs that were left out, and why
    audit.json        what the audit measured
    meta.json         configuration, judge, seed, hashes, versions, as given by whoever built the set
    README.md         data card (`card.py`); may be edited by hand
    audit.html        the pairs to look through (`page.py`)
    <format>.jsonl    rows of a format, for each container asked for:
    <format>.parquet
    <format>/         a folder that `datasets.load_from_disk` reads
    manifest.json     sha256 and size of each of these, and the counts

Formats:

    preference   prompt, chosen, rejected, margin      TRL's DPO and reward trainers
    unpaired     prompt, completion, label             TRL's KTO trainer
    sft          prompt, completion                    TRL's SFT trainer
    prompts      prompt and the item's columns         TRL's GRPO trainer
    verl         data_source, prompt, ability, reward_model, extra_info; always Parquet

The same pairs, audit and meta give the same bytes: no time, path or host is written.

Not here: how pairs are made (`build.py`), what the audit measures (`audit.py`).
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import fields
from itertools import chain
from pathlib import Path, PurePosixPath
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, TypeVar, get_args

from xyreward.errors import (
    ConfigError,
    DataError,
    HubUnreachable,
    MissingDependency,
    RunFolderError,
    told,
)
from xyreward.home import resolved
from xyreward.items import Item, Message, text_hash
from xyreward.pairs.audit import Audit
from xyreward.pairs.beside import folder_beside
from xyreward.pairs.candidates import Candidate, Judged
from xyreward.pairs.pair import LeftOut, Pair, PairSet
from xyreward.strict_json import parse_json
from xyreward.verdict import Labels
from xyreward.words import counted, noun

Format = Literal["preference", "unpaired", "sft", "prompts", "verl"]
FORMATS: tuple[Format, ...] = get_args(Format)
Container = Literal["jsonl", "parquet", "datasets"]
CONTAINERS: tuple[Container, ...] = get_args(Container)

_T = TypeVar("_T")
_Row = TypeVar("_Row", bound=Mapping[str, Any])

SCHEMA = 1
MANIFEST = "manifest.json"
NEEDED = ("pairs.jsonl", "dropped.jsonl", "audit.json", "meta.json")
"""What a pair set is read back from. Other files may be missing: hubs and people leave them out."""
EDITABLE = frozenset({"README.md"})
"""Files that people may change: a hub asks them to complete the card."""

_OF_SET = tuple(f.name for f in fields(PairSet) if f.name not in {"pairs", "examples"})
"""What the manifest keeps of a set: counts by reason, limits that were passed."""

DATA_SOURCE = "xyreward"
"""verl picks the reward function by this name."""


class PairFolder(NamedTuple):
    """What a folder of pairs holds."""

    pairs: PairSet
    audit: Audit
    meta: dict[str, Any]


# ---------------------------------------------------------------- rows


def rows(
    pair_set: PairSet, fmt: Format, *, items: Sequence[Item] | None = None
) -> list[dict[str, Any]]:
    """The rows of a format, ready for `datasets.Dataset.from_list`.

    Prompts and answers are chat messages. What a format takes of a pair:

    - preference: every pair.
    - unpaired: every answer once. Chosen answers are `True` and rejected ones `False`. An answer that is
      better in one pair and worse in another has no label, and neither has one that was chosen by the
      margin alone, since it is only the better of two that both miss the goal.
    - sft: every chosen answer once, but for unsafe ones and those chosen by the margin alone.
    - prompts, verl: every item once, without its reference answers.

    Args:
        pair_set: the pairs.
        fmt: the format.
        items: those that the pairs are of, and maybe others, which are passed over. For `prompts` and
            `verl` only. Their notes are taken as they are; `Guards.mask_item` masks what is in them.

    Raises:
        ConfigError: no such format, or one that needs items and has none.
        DataError: an item of a pair is not among `items`.
    """
    return list(_rows(pair_set, fmt, items))


def _rows(pair_set: PairSet, fmt: Format, items: Sequence[Item] | None) -> Iterator[dict[str, Any]]:
    """The same one by one: a set's own texts are what should fill the memory, and not copies."""
    match fmt:
        case "preference":
            yield from (pair.as_row() for pair in pair_set.pairs)
        case "unpaired":
            yield from _unpaired(pair_set)
        case "sft":
            yield from _sft(pair_set)
        case "prompts" | "verl":
            make = _prompt if fmt == "prompts" else _verl
            for number, (item, pair) in enumerate(_items(pair_set, fmt, items)):
                yield make(item, pair, number)
        case _:
            raise ConfigError(f"format is {fmt!r}, expected one of {', '.join(FORMATS)}")


def _unpaired(pair_set: PairSet) -> Iterator[dict[str, Any]]:
    chosen, rejected = 1, 2
    labels: dict[bytes, int] = defaultdict(int)
    for pair, side, label in _sides(pair_set):
        labels[_key(pair, side)] |= chosen if label else rejected
    for pair, side, label in _sides(pair_set):
        if label and not is_model(pair):
            continue
        # Whoever takes it out is the first.
        if labels.pop(_key(pair, side), 0) in (chosen, rejected):
            yield {**_single(pair, side), "label": label, **_provenance(pair, side)}


def _sides(pair_set: PairSet) -> Iterator[tuple[Pair, Judged, bool]]:
    for pair in pair_set.pairs:
        yield pair, pair.chosen_answer, True
        yield pair, pair.rejected_answer, False


def _sft(pair_set: PairSet) -> Iterator[dict[str, Any]]:
    for pair in one_of_each_model(pair_set):
        yield {**_single(pair, pair.chosen_answer), **_provenance(pair, pair.chosen_answer)}


def one_of_each_model(pair_set: PairSet) -> Iterator[Pair]:
    """The first pair of every chosen answer that is worth imitating (see `is_model`), in order."""
    seen: set[bytes] = set()
    for pair in filter(is_model, pair_set.pairs):
        if (key := _key(pair, pair.chosen_answer)) not in seen:
            seen.add(key)
            yield pair


def is_model(pair: Pair) -> bool:
    """Whether the chosen answer is worth imitating, and not only better than another."""
    return pair.rule != "margin" and not pair.chosen_answer.answer.unsafe


def _key(pair: Pair, side: Judged) -> bytes:
    """What makes an answer the same one: a hash, since there is one for every answer of a set."""
    # By the prompt and not the item: two items may ask the same.
    prompt = json.dumps([dict(m) for m in pair.prompt], sort_keys=True)
    return hashlib.sha256(f"{prompt}\n{text_hash(side.text)}".encode()).digest()


def _single(pair: Pair, side: Judged) -> dict[str, Any]:
    return {
        "prompt": [dict(message) for message in pair.prompt],
        "completion": [{"role": "assistant", "content": side.text}],
    }


def _provenance(pair: Pair, side: Judged) -> dict[str, Any]:
    return {
        "item_id": pair.item_id,
        "item_kind": pair.item_kind,
        "split": pair.split,
        "cluster": pair.cluster,
        "language": pair.language,
        "source": pair.source,
        "licence": side.answer.licence or "unknown",
        "pair_source": side.answer.source,
        "origin": side.answer.origin,
        "answer_kind": side.answer.kind or "",
        "reward": side.reward,
        "judge": side.judge,
        "rubric_version": side.rubric_version,
        "grounded": side.grounded,
    }


def _items(
    pair_set: PairSet, fmt: Format, items: Sequence[Item] | None
) -> Iterator[tuple[Item, Pair]]:
    """The items of the pairs, each once, in the pairs' order, with a pair of each."""
    if items is None:
        raise ConfigError(f"format {fmt!r} holds columns of the items: pass items=...")
    by_id = {item.id: item for item in items}
    first: dict[str, Pair] = {}
    for pair in pair_set.pairs:
        first.setdefault(pair.item_id, pair)
    if strange := sorted(first.keys() - by_id.keys()):
        raise DataError(
            [f"pairs of item {name!r}, which is not among the {len(items)}" for name in strange]
        )
    return ((_as_in(pair, by_id[name]), pair) for name, pair in first.items())


def _as_in(pair: Pair, item: Item) -> Item:
    """The item with the pair's prompt, in which personal data may be masked."""
    prompt = [dict(message) for message in pair.prompt]
    if prompt == item.messages:
        return item
    return item.model_copy(update={"query": _query(prompt)})


def row_of_item(item: Item) -> dict[str, Any]:
    """The columns of an item for a reward function: its prompt and what it is judged by; no references."""
    return {
        "prompt": item.messages,
        "item_id": item.id,
        "kind": item.kind,
        "source": item.source,
        "domain": item.domain,
        "language": item.language,
        "stated_request": item.stated_request,
        "intended_request": item.intended_request,
        "misconception": item.misconception,
        "stated_solutions": list(item.stated_solutions),
        "intended_solutions": list(item.intended_solutions),
        "inferred": item.inferred,
    }


def _prompt(item: Item, pair: Pair, _number: int) -> dict[str, Any]:
    return {**row_of_item(item), "split": pair.split, "cluster": pair.cluster}


def _verl(item: Item, pair: Pair, number: int) -> dict[str, Any]:
    """The columns of verl: verl.readthedocs.io, "Prepare Data for Post-Training".

    A reward function of verl is called with `data_source, solution_str, ground_truth, extra_info` and does
    not see the prompt, so `ground_truth` is the whole item as JSON (`Item.model_validate_json`), without
    references. `style` is "rule": verl skips validation for rows of style "model".
    """
    row = _prompt(item, pair, number)
    bare = item.model_copy(update={"references": (), "meta": _meta(item.inferred)})
    return {
        "data_source": DATA_SOURCE,
        "prompt": row["prompt"],
        "ability": "pragmatics",
        "reward_model": {"style": "rule", "ground_truth": bare.model_dump_json()},
        "extra_info": {
            "index": number,
            **{k: row[k] for k in ("split", "item_id", "kind", "source", "language", "cluster")},
        },
    }


def item_of_row(row: Mapping[str, Any]) -> Item:
    """The item of a row of `prompts`, for a reward function; without references.

    Columns beside `prompt`, `stated_request` and `intended_request` may be missing: a row whose requests are
    equal is then a control's.

    Raises:
        KeyError, TypeError, pydantic.ValidationError: it is no such row.
    """
    names = ("source", "domain", "language", "stated_request", "intended_request", "misconception",
             "stated_solutions", "intended_solutions")  # fmt: skip
    equal = row["stated_request"] == row["intended_request"]
    item = Item(
        id=row.get("item_id") or "row",
        query=_query(row["prompt"]),
        kind=row.get("kind") or ("control" if equal else "xy"),
        meta=_meta(row.get("inferred") is True),
        **{name: row[name] for name in names if row.get(name) is not None},
    )
    return item if row.get("item_id") else item.model_copy(update={"id": item.content_hash[:12]})


def _query(prompt: str | Sequence[Mapping[str, str]]) -> str | tuple[Message, ...]:
    if isinstance(prompt, str):
        return prompt
    if len(prompt) == 1 and prompt[0]["role"] == "user":
        return prompt[0]["content"]
    return tuple(Message.model_validate(message) for message in prompt)


def _meta(inferred: bool) -> dict[str, Any]:
    return {"inferred": True} if inferred else {}


# ---------------------------------------------------------------- a pair as a record, and back


def record_of(pair: Pair) -> dict[str, Any]:
    """A line of pairs.jsonl: the row for training, and beside it all that rebuilds the pair exactly."""
    return {
        **pair.as_row(),
        **_side_of("chosen", pair.chosen_answer),
        **_side_of("rejected", pair.rejected_answer),
    }


def _side_of(name: str, side: Judged) -> dict[str, Any]:
    answer = side.answer
    return {
        f"{name}_reward": side.reward,  # the row's is rounded
        f"{name}_reason": side.reason,
        f"{name}_failure": side.failure,
        f"{name}_judge": side.judge,
        f"{name}_rubric_version": side.rubric_version,
        f"{name}_grounded": side.grounded,
        f"{name}_source": answer.source,
        f"{name}_licence": answer.licence,
        f"{name}_unsafe": answer.unsafe,
        f"{name}_given_labels": _labels(answer.labels),
    }


def _labels(labels: Labels | None) -> dict[str, Any] | None:
    return None if labels is None else {name: getattr(labels, name) for name in Labels.__slots__}


def pair_of_record(record: Mapping[str, Any]) -> Pair:
    """The pair of a line of pairs.jsonl.

    Raises:
        KeyError, TypeError, ValueError: it is no such line.
    """
    return Pair(
        id=record["id"],
        item_id=record["item_id"],
        item_kind=record["item_kind"],
        split=record["split"],
        cluster=record["cluster"],
        prompt=tuple(record["prompt"]),
        chosen_answer=_judged(record, "chosen"),
        rejected_answer=_judged(record, "rejected"),
        source=record["source"],
        language=record["language"],
        rule=record["rule"],
    )


def _judged(record: Mapping[str, Any], name: str) -> Judged:
    (message,) = record[name]
    labels, given = record[f"{name}_labels"], record[f"{name}_given_labels"]
    return Judged(
        answer=Candidate(
            item_id=record["item_id"],
            text=message["content"],
            source=record[f"{name}_source"],
            origin=record[f"{name}_origin"],
            kind=record[f"{name}_kind"] or None,
            labels=None if given is None else Labels(**given),
            licence=record[f"{name}_licence"],
            unsafe=record[f"{name}_unsafe"],
            details=MappingProxyType(json.loads(record[f"{name}_details"])),
        ),
        labels=None if labels is None else Labels(**labels),
        reward=record[f"{name}_reward"],
        judge=record[f"{name}_judge"],
        rubric_version=record[f"{name}_rubric_version"],
        failure=record[f"{name}_failure"],
        reason=record[f"{name}_reason"],
        grounded=record[f"{name}_grounded"],
    )


# ---------------------------------------------------------------- writing


def write_pairs(
    pair_set: PairSet,
    audit: Audit,
    folder: str | os.PathLike[str],
    *,
    meta: Mapping[str, Any],
    items: Sequence[Item] | None = None,
    formats: Sequence[Format] = ("preference",),
    containers: Sequence[Container] = CONTAINERS,
    replace: bool = False,
) -> Path:
    """Write a folder of pairs; it appears whole or not at all.

    Args:
        pair_set: the pairs.
        audit: of these pairs; one of other pairs is refused.
        folder: to be made. One that holds the same bytes already is left as it is.
        meta: what to record: `config`, `judge`, `rubric_version`, `seed`, `items_hash`, `splits_hash`,
            `versions`, ...; JSON-ready. (What was held out is in the set: `PairSet.held_out_hash`.)
        items: needed for the formats `prompts` and `verl`.
        formats: which to write.
        containers: as which files. `parquet` and `datasets` need `xyreward[train]`.
        replace: put this set in the place of one that is there, if that is as it was written (see
            `check_replaceable`). False: refuse.

    Returns:
        The folder.

    Raises:
        ConfigError: an unknown format or container, or no items where they are needed.
        DataError: the audit is of another set, a format would have no row, or a text cannot be written as
            UTF-8.
        MissingDependency: a container needs a package that is not installed.
        RunFolderError: the folder holds something else, is the one that this process is in, or cannot be
            written.
    """
    from xyreward.pairs.card import card
    from xyreward.pairs.page import page

    target = check_place(folder)
    check_wanted(formats, containers)
    if problem := _foreign(audit, pair_set):
        raise DataError([f"{problem}; pass audit_pairs(pair_set)"])
    by_format: dict[Format, Iterator[dict[str, Any]]] = {}
    empty: list[Format] = []
    for fmt in dict.fromkeys(formats):
        found = _rows(pair_set, fmt, items)
        try:
            by_format[fmt] = chain([next(found)], found)
        except StopIteration:
            empty.append(fmt)
    if empty:
        raise DataError(
            [
                f"format {fmt!r}: none of {counted(len(pair_set.pairs), 'pair')} gives a row"
                + (
                    ", since all were chosen by the margin alone"
                    if fmt in ("sft", "unpaired")
                    else ""
                )
                + "; leave it out of formats"
                for fmt in empty
            ]
        )
    try:
        with folder_beside(target) as partial:
            files: dict[str, list[str]] = {}
            _write_json(partial / "meta.json", meta)
            _write_json(partial / "audit.json", audit.to_dict())
            _write_lines(partial / "pairs.jsonl", map(record_of, pair_set.pairs))
            _write_lines(partial / "dropped.jsonl", map(_left_out, pair_set.examples))
            for fmt, found in by_format.items():
                kinds = ("parquet",) if fmt == "verl" else containers
                files[fmt] = _write_format(partial, fmt, found, kinds)
            (partial / "README.md").write_bytes(
                _utf8(card(pair_set, audit, meta=meta, formats=files), "README.md")
            )
            (partial / "audit.html").write_bytes(
                _utf8(page(pair_set, audit, meta=meta), "audit.html")
            )
            manifest = {
                "schema": SCHEMA,
                "pairs": len(pair_set.pairs),
                "pairs_hash": pair_set.hash,
                "set": {name: getattr(pair_set, name) for name in _OF_SET},
                "formats": files,
                "files": {name: _sum(partial / name) for name in _names(partial)},
            }
            _write_json(partial / MANIFEST, manifest)
            return _put_in_place(partial, target, replace=replace)
    except OSError as error:
        if isinstance(error, RunFolderError):
            raise
        raise RunFolderError(f"{target}: cannot be written: {told(error)}") from None


def _foreign(audit: Audit, pair_set: PairSet) -> str:
    """How an audit is of another set than this one; "" where it is of this one."""
    if audit.is_of(pair_set):
        return ""
    if audit.pairs_hash == pair_set.hash:
        return "the audit counts other candidates, or other reasons why some were dropped, than the set"
    return (
        f"the audit is of other pairs ({audit.pairs} with the hash {audit.pairs_hash:.12}) than these "
        f"({len(pair_set.pairs)}, {pair_set.hash:.12})"
    )


def check_wanted(formats: Sequence[Format], containers: Sequence[Container]) -> None:
    """Whether these can be written here.

    Raises:
        ConfigError, MissingDependency: see `write_pairs`.
    """
    for what, wanted, known in (
        ("formats", formats, FORMATS),
        ("containers", containers, CONTAINERS),
    ):
        if isinstance(wanted, str) or not wanted or not set(known).issuperset(wanted):
            raise ConfigError(f"{what} is {wanted!r}, expected some of {', '.join(known)}")
    if "verl" in formats or {"parquet", "datasets"} & set(containers):
        try:
            import datasets  # noqa: F401  # asked for before anything is written
            import pyarrow  # noqa: F401
        except ImportError:
            raise MissingDependency(
                "Parquet files and datasets folders need the datasets package: pip install "
                "'xyreward[train]'; or leave them out (containers=('jsonl',), no format 'verl')"
            ) from None


def _write_format(
    folder: Path,
    fmt: Format,
    found: Iterable[Mapping[str, Any]],
    containers: Sequence[Container],
) -> list[str]:
    """Write the rows of a format, in one go; returns the names of what was written."""
    names = {"jsonl": f"{fmt}.jsonl", "parquet": f"{fmt}.parquet", "datasets": f"{fmt}/"}
    paths = {name: folder / names[name] for name in CONTAINERS if name in containers}
    if "jsonl" in paths:
        found = _through_lines(paths["jsonl"], found)
    if {"parquet", "datasets"} & paths.keys():
        from xyreward.pairs.columnar import write_tables

        write_tables(found, fmt, parquet=paths.get("parquet"), folder=paths.get("datasets"))
    else:
        deque(found, maxlen=0)
    return [names[name] for name in paths]


def _left_out(example: LeftOut) -> dict[str, Any]:
    pair = None if example.pair is None else record_of(example.pair)
    return {"item_id": example.item_id, "reason": example.reason, "pair": pair}


def _write_json(path: Path, data: Mapping[str, Any]) -> None:
    try:
        text = json.dumps(data, indent=2, ensure_ascii=False, allow_nan=False, default=_plain_data)
    except (TypeError, ValueError) as error:
        raise DataError([f"{path.name}: cannot be written as JSON: {told(error)}"]) from None
    path.write_bytes(_utf8(text + "\n", path.name))


def _plain_data(value: object) -> Any:
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"{type(value).__name__} is no JSON")


def _write_lines(path: Path, records: Iterable[Mapping[str, Any]]) -> None:
    deque(_through_lines(path, records), maxlen=0)


def _through_lines(path: Path, records: Iterable[_Row]) -> Iterator[_Row]:
    """The same records, each of them a line of the file by then."""
    with path.open("wb") as file:
        for number, record in enumerate(records, start=1):
            try:
                line = json.dumps(record, ensure_ascii=False, allow_nan=False)
            except (TypeError, ValueError) as error:
                raise DataError([f"{path.name}, row {number}: {told(error)}"]) from None
            file.write(_utf8(line + "\n", f"{path.name}, row {number}"))
            yield record


def _utf8(text: str, where: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise DataError(
            [
                f"{where}: holds half a surrogate pair ({text[error.start]!a}), expected text that can "
                "be written as UTF-8; repair or leave out the answer"
            ]
        ) from None


def _names(folder: Path) -> list[str]:
    return sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file())


def _sum(path: Path) -> dict[str, Any]:
    with path.open("rb") as file:
        return {
            "sha256": hashlib.file_digest(file, "sha256").hexdigest(),
            "bytes": path.stat().st_size,
        }


def check_replaceable(folder: str | os.PathLike[str]) -> None:
    """Whether a folder of pairs is as it was written, README.md included, so that nothing of yours is lost.

    Raises:
        RunFolderError: a file was changed or added; names all.
        DataError: it is no folder of pairs.
    """
    path = Path(folder)
    expected = _manifest(path)["files"]
    there = set(_names(path)) - {MANIFEST}
    others = {name for name in there if name not in expected or _sum(path / name) != expected[name]}
    if others:
        raise RunFolderError(
            f"{path}: is not replaced, since {', '.join(sorted(others))} "
            f"{noun(len(others), 'is', 'are')} not as written with the pairs; move what is yours away, or "
            "choose another folder"
        )


def _put_in_place(partial: Path, target: Path, *, replace: bool = False) -> Path:
    if target.is_dir() and any(target.iterdir()):
        if _names(target) == _names(partial) and all(
            _sum(target / name) == _sum(partial / name) for name in _names(partial)
        ):
            return target
        if replace and (target / MANIFEST).is_file():
            check_replaceable(target)
            old = partial.with_suffix(".old")
            shutil.rmtree(old, ignore_errors=True)
            with suppress(FileNotFoundError):  # another process has just taken it away
                target.rename(old)
            try:
                return _put_in_place(partial, target)
            except BaseException:
                if not target.exists():
                    old.rename(target)
                raise
            finally:
                shutil.rmtree(old, ignore_errors=True)
        raise RunFolderError(
            f"{target}: holds something else than these pairs, and is not overwritten; choose another "
            "folder, or remove it"
        )
    if target.exists() and not target.is_dir():
        raise RunFolderError(f"{target}: is a file, expected a folder that does not exist yet")
    try:
        partial.replace(target)  # over an empty folder, too
    except OSError:
        if target.is_dir() and any(target.iterdir()):  # another process was faster
            return _put_in_place(partial, target)
        raise
    return target


def check_place(folder: str | os.PathLike[str]) -> Path:
    """Where pairs for this folder are put: itself, or what a link, `.` or `..` leads to.

    Raises:
        RunFolderError: a process is in it, this one. The set appears whole, as a new folder in the place of
            the old one, which whoever stands in it would go on looking at.
    """
    target = Path(folder)
    if target.is_symlink() or target.name in ("", ".."):
        target = resolved(target)
    try:
        here = Path.cwd()
    except FileNotFoundError:  # it was removed
        return target
    if target.is_dir() and resolved(target) in (here, *here.parents):
        raise RunFolderError(
            f"{folder}: is the folder that you are in, or holds it, and the pairs are a new folder in its "
            "place; name one to be made, such as ./pairs, or start from elsewhere"
        )
    return target


# ---------------------------------------------------------------- reading


def read_pairs(folder: str | os.PathLike[str]) -> PairFolder:
    """Read a folder that `write_pairs` wrote, with every file's hash checked.

    README.md may have been edited, and files that hold no more than pairs.jsonl does may be missing.

    Raises:
        DataError: no such folder, another version's, or a file that is missing, changed or damaged; all
            of them are named.
    """
    path = Path(folder)
    manifest = _manifest(path)
    if problems := list(_damage(path, manifest)):
        raise DataError([f"{path / name}: {what}" for name, what in problems])
    try:
        pair_set = PairSet(
            tuple(_lines(path / "pairs.jsonl", pair_of_record)),
            examples=tuple(_lines(path / "dropped.jsonl", _left_out_of)),
            **{name: _frozen(value) for name, value in manifest["set"].items()},
        )
        audit = Audit.from_dict(parse_json((path / "audit.json").read_text("utf-8")))
        meta = dict(parse_json((path / "meta.json").read_text("utf-8")))
    except DataError:
        raise
    except (
        OSError,
        AttributeError,
        KeyError,
        TypeError,
        ValueError,
        RecursionError,
    ) as error:
        raise DataError([f"{path}: not as write_pairs leaves it: {told(error)}"]) from None
    if pair_set.hash != manifest.get("pairs_hash"):
        raise DataError(
            [
                f"{path}: its pairs have the hash {pair_set.hash[:12]}, the manifest says "
                f"{str(manifest.get('pairs_hash'))[:12]}; build the pairs again"
            ]
        )
    if problem := _foreign(audit, pair_set):
        raise DataError([f"{path}: {problem}; build the pairs again"])
    return PairFolder(pair_set, audit, meta)


def _manifest(path: Path) -> dict[str, Any]:
    try:
        manifest = parse_json((path / MANIFEST).read_text("utf-8"))
    except FileNotFoundError:
        what = "has no manifest.json" if path.is_dir() else "no such folder"
        raise DataError([f"{path}: {what}, expected a folder of xyreward pairs"]) from None
    except (OSError, ValueError) as error:
        raise DataError([f"{path / MANIFEST}: cannot be read: {told(error)}"]) from None
    if not isinstance(manifest, dict) or not all(
        isinstance(manifest.get(key, {}), dict) for key in ("files", "set")
    ):
        raise DataError([f"{path / MANIFEST}: is not a manifest of pairs; build the pairs again"])
    if manifest.get("schema") != SCHEMA:
        raise DataError(
            [
                f"{path / MANIFEST}: schema {manifest.get('schema')!r}, this version of xyreward reads "
                f"{SCHEMA}; read it with the version that wrote it, or build the pairs again"
            ]
        )
    return manifest


def _damage(path: Path, manifest: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Files that are not as the manifest has them, and how."""
    files = manifest["files"]
    yield from ((name, "is not in the manifest") for name in NEEDED if name not in files)
    for name, expected in files.items():
        if ".." in PurePosixPath(name).parts or PurePosixPath(name).is_absolute():
            yield MANIFEST, f"names a file outside its folder ({name!a})"
            continue
        try:
            found = _sum(path / name)
        except FileNotFoundError:
            if name in NEEDED:
                yield name, "is missing; fetch or build the pairs again"
            continue
        except OSError as error:
            yield name, f"cannot be read: {told(error)}"
            continue
        if found != expected and name not in EDITABLE:
            yield (
                name,
                "is not what was written (its sha256 differs); fetch or build the pairs again",
            )


def _lines(path: Path, make: Callable[[Mapping[str, Any]], _T]) -> Iterator[_T]:
    # Not str.splitlines: JSON leaves U+2028 in texts as it is.
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            try:
                yield make(parse_json(line.decode()))
            except (KeyError, TypeError, ValueError) as error:
                raise DataError(
                    [f"{path}, row {number}: not as write_pairs leaves it: {told(error)}"]
                ) from None


def _frozen(value: Any) -> Any:
    if isinstance(value, dict):
        return MappingProxyType(value)
    return tuple(value) if isinstance(value, list) else value


def _left_out_of(record: Mapping[str, Any]) -> LeftOut:
    pair = record["pair"]
    return LeftOut(
        None if pair is None else pair_of_record(pair), record["item_id"], record["reason"]
    )


# ---------------------------------------------------------------- hub


def push_to_hub(
    folder: str | os.PathLike[str],
    repo_id: str,
    *,
    private: bool = True,
    token: str | None = None,
    api: Any = None,
) -> str:
    """Upload a folder of pairs as a hub data set; returns its address.

    The folder is read and checked first. Folders for `load_from_disk` stay here, since a hub serves the
    Parquet files. The hub's copy can be downloaded and read with `read_pairs`.

    Args:
        folder: written by `write_pairs`.
        repo_id: `owner/name`; made if it is not there.
        private: nobody else sees it. What a data set's licences allow is for you to judge: the card lists
            them.
        token: the hub's; None: the one you logged in with.
        api: a `huggingface_hub.HfApi`; None: one for `token`.

    Raises:
        DataError: the folder is damaged, its audit failed, or the data set is public already while
            `private` is asked for.
        HubUnreachable: the hub could not be reached, or refused.
        MissingDependency: huggingface_hub is not installed.
    """
    found = read_pairs(folder)
    if problems := dict.fromkeys([*found.audit.problems, *found.pairs.problems]):
        raise DataError(
            [f"{folder}: its audit failed, so it is not uploaded: {p}" for p in problems]
        )
    try:
        import huggingface_hub as hub
    except ImportError:
        raise MissingDependency(
            "uploading needs huggingface_hub: pip install 'xyreward[train]'"
        ) from None
    api = api or hub.HfApi(token=token)
    local_only = [
        f"{name}*"
        for names in _manifest(Path(folder))["formats"].values()
        for name in names
        if name.endswith("/")
    ]
    try:
        api.create_repo(repo_id, repo_type="dataset", private=private, exist_ok=True)
        if private and not api.repo_info(repo_id, repo_type="dataset").private:
            raise DataError(
                [
                    f"{repo_id}: is there already and public; choose another name, or pass "
                    "private=False to publish the pairs"
                ]
            )
        api.upload_folder(
            repo_id=repo_id,
            repo_type="dataset",
            folder_path=str(folder),
            commit_message=f"{counted(len(found.pairs.pairs), 'pair')}, {found.pairs.hash[:12]}",
            ignore_patterns=[*local_only, ".*"],
        )
    except DataError:
        raise
    except Exception as error:  # the hub client raises its HTTP library's own classes
        raise HubUnreachable(f"{repo_id}: could not be uploaded: {told(error)}") from None
    return f"https://huggingface.co/datasets/{repo_id}"
