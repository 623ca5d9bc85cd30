"""Runs side by side: every metric of each, with intervals, and their differences paired by item.

A run is the folder of a recipe. Of one of `recipes/dpo.py` the policy after training is taken, of one of
`recipes/evaluate.py` the policy that it measured; `FOLDER:before` takes another evaluation of the folder.

Figures of different items, judges or rubric versions differ for reasons that are not the policy's. Such
runs are refused, all reasons at once, unless each kind of difference was asked for; the table then says at
every figure concerned that it is such a difference.

Not here: two evaluations in memory (`metrics.measure`, `paired.py`), judges side by side (`compare.py`).
"""

from __future__ import annotations

import json
import math
import string
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import combinations
from pathlib import Path
from typing import Any

from xyreward import shown
from xyreward.config import parse_yaml
from xyreward.errors import ConfigError, DataError
from xyreward.evaluation import Decider, Evaluation, Row
from xyreward.items import ITEM_KINDS
from xyreward.markdown import code, plain
from xyreward.metrics import (
    HEADLINE_PARTS,
    METRICS,
    Headline,
    Metric,
    column,
    failure_bounds,
    failure_bounds_of_change,
    failures,
    headline,
    headline_of,
)
from xyreward.paired import label_tests
from xyreward.published import Published, beside_of_report
from xyreward.report_markdown import in_markdown
from xyreward.report_tables import published_line
from xyreward.runs import PARTIAL_EVALUATION, ROUND, RunFolder
from xyreward.stats import Column, holm, means
from xyreward.words import counted, noun

SCHEMA = 2
LAST = ("after", "evaluation")
"""Names of the evaluation that a run ends with."""
NO_EVALUATIONS = ("pairs", "log", "samples")
"""Beginnings of the names of other JSONL files in a run's folder."""
WITHOUT_EFFECT = frozenset(
    {
        "batch_size", "controls", "judge", "leave_out", "limit", "max_failure_rate", "oracle", "parts",
        "references", "sources", "split",
    }
)  # fmt: skip
"""Settings of an evaluation that change no answer and no label, or that the table has anyway."""


@dataclass(frozen=True)
class Read:
    """One evaluation out of a run's folder."""

    label: str
    """A letter, by which the table calls it."""
    name: str
    """The folder as it was given, and which of its evaluations."""
    evaluation: Evaluation
    items_hash: str | None = None
    """Of everything in the held-out items, as data.json has it. None: not known."""
    settings: Mapping[str, Any] | None = None
    """Of the configuration's section `evaluation`, those that can change an answer or a label."""


def read_runs(names: Sequence[str]) -> list[Read]:
    """The evaluations of these runs; of one run alone, before and after its training.

    Args:
        names: `FOLDER` or `FOLDER:NAME`, where the folder has a file `NAME.jsonl`.

    Raises:
        DataError: a folder is none, or has no such evaluation; all of them at once.
        RunFolderError: a file is not as a run left it.
    """
    problems: list[str] = []
    found: list[tuple[str, RunFolder, str]] = []
    for name in names:
        folder, asked = _parted(name)
        if not folder.is_dir():
            problems.append(
                f"{name}: is no folder, expected the folder of a run (or FOLDER:before)"
            )
            continue
        there = _evaluations(folder)
        wanted = [asked] if asked else [last for last in LAST if last in there][:1]
        if len(names) == 1 and not asked and {"before", "after"} <= there.keys():
            wanted = ["before", "after"]
        if not wanted or wanted[0] not in there:
            problems.append(f"{name}: {_absent(folder, asked, sorted(there))}")
        found += [(f"{folder}:{one}", there[one], one) for one in wanted if one in there]
    if not problems and len(found) < 2:
        others: list[str] = []
        for _, _, which in found:
            folder, _ = _parted(names[0])
            others = [f"{folder}:{one}" for one in sorted(_evaluations(folder)) if one != which]
        problems.append(
            f"{', '.join(names)}: one evaluation, expected two or more; name another run"
            + (f", or one more of this: {', '.join(others)}" if others else "")
        )
    if len(found) > len(string.ascii_uppercase):
        problems.append(f"{len(found)} runs, expected at most {len(string.ascii_uppercase)}")
    if problems:
        raise DataError(problems)
    return [
        _read(label, name, folder, which)
        for label, (name, folder, which) in zip(string.ascii_uppercase, found, strict=False)
    ]


def _parted(name: str) -> tuple[Path, str]:
    folder, colon, which = name.rpartition(":")
    if colon and folder and which and not Path(name).is_dir():
        return Path(folder), which
    return Path(name), ""


def _evaluations(folder: Path) -> dict[str, RunFolder]:
    """Names of evaluations -> the folder that each lies in: of several rounds the first or the last."""
    there = {
        file.stem: RunFolder(folder)
        for file in folder.glob("*.jsonl")
        if not file.name.endswith(PARTIAL_EVALUATION) and not file.name.startswith(NO_EVALUATIONS)
    }
    rounds = sorted(
        (path for path in folder.glob(f"{ROUND}*") if path.name[len(ROUND) :].isdecimal()),
        key=lambda path: int(path.name[len(ROUND) :]),
    )
    for path in rounds:
        if "before" not in there and (path / "before.jsonl").is_file():
            there["before"] = RunFolder(path)
    if rounds and (rounds[-1] / "after.jsonl").is_file():
        there.setdefault("after", RunFolder(rounds[-1]))
    return there


def _absent(folder: Path, asked: str, there: Sequence[str]) -> str:
    wanted = f"{asked}.jsonl" if asked else " or ".join(f"{last}.jsonl" for last in LAST)
    if any(folder.glob(f"*{PARTIAL_EVALUATION}")):
        return (
            f"has no {wanted} yet, its evaluation was stopped; run its command again "
            "(a recipe with --resume)"
        )
    return f"has no {wanted}; there is {', '.join(there) or 'no evaluation'}"


def _read(label: str, name: str, folder: RunFolder, which: str) -> Read:
    def parsed(file: str, parse: Callable[[str], Any]) -> Any:
        text = folder.read(file)
        try:
            return None if text is None else parse(text)
        except (
            ConfigError,
            ValueError,
            TypeError,
            KeyError,
            AttributeError,
            RecursionError,
        ) as error:
            raise folder.damaged(file, error, only_read=True) from None

    evaluation = parsed(f"{which}.jsonl", Evaluation.from_jsonl)
    data = parsed("data.json", lambda text: dict(json.loads(text)))
    config = parsed("config.yaml", _sections)
    section = (config or {}).get("evaluation") or {}
    return Read(
        label,
        name,
        evaluation,
        (data or {}).get("held-out hash"),
        None
        if config is None
        else {key: value for key, value in section.items() if key not in WITHOUT_EFFECT},
    )


def _sections(text: str) -> dict[str, Any]:
    """Of a configuration, of which the section `evaluation` is looked at."""
    found = dict(parse_yaml(text, "config.yaml"))
    if not isinstance(section := found.get("evaluation") or {}, Mapping):
        raise ValueError(f"evaluation is {section!r:.80}, expected keys with values")
    return found


# ---------------------------------------------------------------- what may be compared


def _differences(reads: Sequence[Read]) -> dict[str, list[str]]:
    """Kind of difference -> sentences on what differs from the first run."""
    first = reads[0]
    found: dict[str, list[str]] = {"items": [], "judges": [], "rubrics": []}
    keys = {_key(row): row.kind for row in first.evaluation.rows}
    for other in reads[1:]:
        theirs = {_key(row): row.kind for row in other.evaluation.rows}
        items, their_items = ({name for name, _ in one} for one in (keys, theirs))
        both = f"{other.name} and {first.name}"
        if items != their_items:
            found["items"].append(
                f"{both} are of different items: {len(their_items - items)} and {len(items - their_items)} "
                f"are in one of them alone, {len(items & their_items)} in both"
            )
        elif keys.keys() != theirs.keys():
            found["items"].append(
                f"{both} have different numbers of answers to the same items: {len(theirs)} and {len(keys)}"
            )
        elif first.items_hash and other.items_hash and first.items_hash != other.items_hash:
            found["items"].append(
                f"{both} have items of the same ids and different content (held-out hash "
                f"{other.items_hash} and {first.items_hash}), or other versions of xyreward wrote the hash"
            )
        for kind, field, how in (
            ("judges", _FIELDS[0], "by"),
            ("rubrics", _FIELDS[1], "with rubric version"),
        ):
            if _differ(first, other, field):
                its, mine = (
                    " + ".join(map(repr, one.evaluation.decided_by(field)))
                    for one in (other, first)
                )
                found[kind].append(f"{both} were judged {how} {its} and {mine}")
    return {kind: told for kind, told in found.items() if told}


_FIELDS: tuple[Decider, Decider] = ("judge", "rubric_version")


def _differ(one: Read, other: Read, field: Decider) -> bool:
    """Whether their verdicts, and not only their first lines, are of different judges or versions.

    An evaluation without writing has no judge, and then no figure that depends on one.
    """
    mine, its = one.evaluation.decided_by(field), other.evaluation.decided_by(field)
    return bool(mine and its and mine != its)


def _key(row: Row) -> tuple[str, int]:
    return row.item_id, row.answer_index


def _aligned(reads: Sequence[Read]) -> list[Read]:
    """The same rows of every run, in the order of the first.

    Raises:
        DataError: no row is common to all, or an item has one kind here and another there.
    """
    rows = [{_key(row): row for row in read.evaluation.rows} for read in reads]
    common = [key for key in rows[0] if all(key in other for other in rows[1:])]
    if not common:
        raise DataError(["no item is common to these runs, so there is nothing to compare"])
    kinds = list(dict.fromkeys(key[0] for key in common if len({of[key].kind for of in rows}) > 1))
    if kinds:
        raise DataError(
            [
                f"{len(kinds)} items have a hidden goal in one run and are controls in another, the first is "
                f"{kinds[0]!r}; they are not the same items"
            ]
        )
    clusters = {key: rows[0][key].cluster for key in common}
    return [
        replace(
            read,
            evaluation=replace(
                read.evaluation,
                rows=tuple(replace(of[key], cluster=clusters[key]) for key in common),
            ),
        )
        for read, of in zip(reads, rows, strict=True)
    ]


# ---------------------------------------------------------------- figures


def compare_runs(
    names: Sequence[str],
    *,
    all_pairs: bool = False,
    other_items: bool = False,
    other_judges: bool = False,
    other_rubrics: bool = False,
    max_failure_rate: float = 0.05,
    seed: int = 0,
) -> dict[str, Any]:
    """Every metric of each run and their paired differences, as JSON-ready data.

    Args:
        names: folders of runs, see `read_runs`.
        all_pairs: differences of every two runs. False: of each from the first.
        other_items: take the items that all runs have, where they do not have the same.
        other_judges: compare although different judges judged.
        other_rubrics: compare although rubric versions differ.
        max_failure_rate: above it there is no headline.
        seed: of the intervals.

    Raises:
        DataError: a folder has no evaluation, or runs are not comparable and it was not asked for.
        RunFolderError: a file is not as a run left it.
    """
    read = read_runs(names)
    differing = _differences(read)
    asked = {"items": other_items, "judges": other_judges, "rubrics": other_rubrics}
    if refused := {kind: told for kind, told in differing.items() if not asked[kind]}:
        raise DataError(
            [
                f"{one}; --other-{kind} compares all the same"
                for kind, told in refused.items()
                for one in told
            ]
        )
    runs = _aligned(read)
    pairs = [
        (runs[i], runs[j]) for j in range(1, len(runs)) for i in range(j) if all_pairs or i == 0
    ]
    metrics = _metrics(runs, pairs, seed)
    heads = {run.label: headline(run.evaluation, max_failure_rate=max_failure_rate) for run in runs}
    return {
        "schema": SCHEMA,
        "runs": [
            {
                "label": run.label,
                "name": run.name,
                "policy": run.evaluation.policy,
                "condition": run.evaluation.condition,
                "judge": run.evaluation.judge,
                "rubric_version": run.evaluation.rubric_version,
                "answers": len(whole.evaluation.rows),
                "compared": len(run.evaluation.rows),
                "failures": [
                    {**asdict(f), "by_kind": dict(f.by_kind), "rate": f.rate}
                    for f in failures(run.evaluation)
                ],
                "headline": _headline([heads[run.label]], metrics, "runs", run.label),
            }
            for run, whole in zip(runs, read, strict=True)
        ],
        "items": {
            kind: len({r.item_id for r in runs[0].evaluation.rows if r.kind == kind})
            for kind in ITEM_KINDS
        },
        "differences": [
            {
                "name": _named(old, new),
                "other": _other(old, new),
                "headline": _headline(
                    [heads[old.label], heads[new.label]], metrics, "differences", _named(old, new)
                ),
            }
            for old, new in pairs
        ],
        "metrics": metrics,
        "label_tests": _tests(pairs),
        "published": Published.load().to_report(
            {row.source for run in runs for row in run.evaluation.rows if row.kind == "xy"}
        ),
        "notes": _notes(read, runs, differing),
    }


def _headline(
    of_runs: Sequence[Headline], metrics: Sequence[Mapping[str, Any]], column: str, name: str
) -> dict[str, Any]:
    """The headline of a run, or of a difference, from the intervals of its two lines of the table.

    Args:
        of_runs: the headlines of the runs that it is of; where one has none, there is none.
        metrics: as `_metrics` gives them.
        column: `runs` or `differences`.
        name: of the run or difference.
    """
    if without := [one for one in of_runs if one.value is None]:
        return asdict(without[0])
    lines = {line["key"]: line[column][name] for line in metrics}
    served, direct = (shown.estimate_of(lines.get(key)) for key in HEADLINE_PARTS)
    return asdict(headline_of(served, direct, -1 if column == "runs" else 0))


def _named(old: Read, new: Read) -> str:
    return f"{new.label} - {old.label}"


def _other(old: Read, new: Read) -> list[str]:
    """What a difference of judged figures is also a difference of."""
    return [field.replace("_", " ") for field in _FIELDS if _differ(old, new, field)]


def _metrics(
    runs: Sequence[Read], pairs: Sequence[tuple[Read, Read]], seed: int
) -> list[dict[str, Any]]:
    """Every metric that some run measured. All columns share their resamples.

    With two runs the columns are those of `metrics.measure` in its order, and so are the figures.
    """
    wanted: list[tuple[Metric, Read, Read | None]] = []
    columns: list[Column] = []
    for metric in METRICS:
        values = {run.label: column(metric, run.evaluation) for run in runs}
        low, high = metric.bounds or (-math.inf, math.inf)
        for run in runs:
            wanted.append((metric, run, None))
            columns.append(Column(values[run.label], metric.bounds))
            for old, new in pairs:
                if new is not run:
                    continue
                paired = zip(values[old.label], values[new.label], strict=True)
                changes = [None if a is None or b is None else b - a for a, b in paired]
                wanted.append((metric, new, old))
                columns.append(Column(changes, (low - high, high - low) if metric.bounds else None))
    clusters = [row.cluster for row in runs[0].evaluation.rows]
    found = means(columns, clusters, expand=True, seed=seed)
    lines: dict[str, dict[str, Any]] = {}
    for (metric, run, base), estimate in zip(wanted, found, strict=True):
        line = lines.setdefault(
            metric.key,
            {
                "key": metric.key,
                "title": metric.title,
                "kind": metric.kind,
                "part": metric.part,
                "better": metric.better,
                "unit": metric.unit,
                "runs": {},
                "differences": {},
            },
        )
        told = None if estimate is None else asdict(estimate)
        if base is None:
            bounds = failure_bounds(run.evaluation, metric)
            line["runs"][run.label] = told and {**told, "failure_bounds": bounds}
        else:
            bounds = failure_bounds_of_change(base.evaluation, run.evaluation, metric)
            line["differences"][_named(base, run)] = told and {**told, "failure_bounds": bounds}
    return [line for line in lines.values() if any(line["runs"].values())]


def _tests(pairs: Sequence[tuple[Read, Read]]) -> list[dict[str, Any]]:
    """Exact tests of labels between runs of one judge and rubric, corrected for all of them together."""
    rows: list[dict[str, Any]] = []
    for old, new in pairs:
        # What was measured beside writing makes no difference to labels.
        before, after = (replace(run.evaluation, parts=("writing",)) for run in (old, new))
        heads = ((one.judge, one.rubric_version) for one in (before, after))
        if len(set(heads)) > 1 or _other(old, new):
            continue
        rows += [
            {
                "key": test.metric.key,
                "title": test.metric.title,
                "difference": _named(old, new),
                "n": test.n,
                "gained": test.gained,
                "lost": test.lost,
                "p": test.p,
            }
            for test in label_tests(before, after)
        ]
    corrected = holm({str(i): row["p"] for i, row in enumerate(rows)})
    return [{**row, "p_holm": corrected[str(i)]} for i, row in enumerate(rows)]


def _notes(
    read: Sequence[Read], runs: Sequence[Read], differing: Mapping[str, Sequence[str]]
) -> list[str]:
    """What a reader of the table must know, in sentences."""
    notes = [one for told in differing.values() for one in told]
    if "items" in differing:
        notes.append(
            f"all figures are over the {len(runs[0].evaluation.rows)} answers to items that all runs have"
        )
    of_first = {_key(row): row.cluster for row in read[0].evaluation.rows}
    for run in read[1:]:
        moved = len(
            {
                row.item_id
                for row in run.evaluation.rows
                if of_first.get(_key(row), row.cluster) != row.cluster
            }
        )
        if moved:
            notes.append(
                f"{run.name}: {moved} {noun(moved, 'item')} in other clusters than in {read[0].name}, whose "
                "clusters are taken"
            )
    for a, b in combinations(read, 2):
        if a.settings is None or b.settings is None:
            continue
        notes += [
            f"evaluation.{key}: {a.label} has {a.settings[key]!r:.60}, {b.label} {b.settings[key]!r:.60}"
            for key in sorted(a.settings.keys() & b.settings.keys())  # versions have other keys
            if a.settings[key] != b.settings[key]
        ]
    for run in read:
        notes += [f"{run.label}: {note}" for note in run.evaluation.notes]
    return list(dict.fromkeys(notes))


def to_json(comparison: Mapping[str, Any]) -> str:
    """The comparison as strict JSON, in ASCII: nothing in it is text that a terminal would obey."""
    return json.dumps(comparison, indent=2, allow_nan=False) + "\n"


# ---------------------------------------------------------------- Markdown


def to_markdown(comparison: Mapping[str, Any]) -> str:
    """Who is compared, the table, exact tests of the labels, and what must be known."""
    runs, differences = comparison["runs"], comparison["differences"]
    items = comparison["items"]
    out = [
        "# Comparison of runs",
        "",
        f"{counted(items['xy'], 'item')} with a hidden goal, {counted(items['control'], 'control')}. "
        "Brackets are 95 % intervals over clusters of items; "
        "differences are paired by item.",
        "",
        "| | run | policy | condition |",
        "|---|---|---|---|",
        *(
            f"| {run['label']} | {code(run['name'])} | {code(run['policy'])} | {plain(run['condition'])} |"
            for run in runs
        ),
        "",
    ]
    published = comparison["published"]
    beside = {"published range, %": beside_of_report(published)}
    if any(run["condition"].startswith("reference:") for run in runs):
        beside["published range, people, %"] = beside_of_report(published, over="human")
    beside = {heading: bands for heading, bands in beside.items() if bands}
    names = [run["label"] for run in runs] + [one["name"] for one in differences]
    judge = plain(published["judge"])
    rows = [
        ["", "n", *names, *beside],
        *(
            [*row, *([judge if row[0] == "judge" else ""] * len(beside))]
            for row in _head_rows(runs, differences)
        ),
        [*_headline_row(runs, differences), *[""] * len(beside)],
    ]
    for kind in (*ITEM_KINDS, None):
        of_kind = [line for line in comparison["metrics"] if line["kind"] == kind]
        if of_kind:
            rows.append([f"**{shown.KINDS[kind]}**", *[""] * (len(rows[0]) - 1)])
            rows += [
                [
                    *_row(line, runs, differences),
                    *(str(bands.get(line["key"], "")) for bands in beside.values()),
                ]
                for line in of_kind
            ]
    lines = ["| " + " | ".join(cells) + " |" for cells in rows]
    out += [lines[0], "|---|" + "---:|" * (len(rows[0]) - 1), *lines[1:], ""]
    named = [one["name"] for one in differences]
    below = (
        shown.few_clusters(
            (line, [*line["runs"].values(), *line["differences"].values()])
            for line in comparison["metrics"]
        ),
        shown.by_chance(
            line["differences"][name] for line in comparison["metrics"] for name in named
        ),
    )
    if below[0]:
        out += [below[0], ""]
    if below[1]:
        out += [f"Intervals are not corrected for being many: {below[1]}.", ""]
    told = any(run["condition"] != "writing" for run in runs)
    line = published_line(published, [run["judge"] for run in runs], told=told)
    out += [in_markdown(line), ""]
    if tests := comparison["label_tests"]:
        out += [*_test_lines(tests), ""]
    out += [f"- {plain(note)}" for note in comparison["notes"]]
    out.append(
        "- every row is explained in xyreward's docs/report.md, this page in docs/compare.md"
    )
    return "\n".join(out).rstrip() + "\n"


def _head_rows(
    runs: Sequence[Mapping[str, Any]], differences: Sequence[Mapping[str, Any]]
) -> list[list[str]]:
    """By whom, with what, on what: the rows that say whether the others may be compared."""
    rows: list[list[str]] = []
    for word, field in (("judge", "judge"), ("rubric version", "rubric_version")):
        cells = [code(run[field]) if run[field] else "none" for run in runs]
        cells += [f"**other {word}**" if word in one["other"] else "" for one in differences]
        rows.append([word, "", *cells])
    cells = [
        f"{run['compared']}"
        + (f" of {run['answers']}" if run["answers"] != run["compared"] else "")
        for run in runs
    ]
    rows.append(["answers compared", "", *cells, *[""] * len(differences)])
    cells = [
        "; ".join(
            f"{shown.KINDS[one['kind']]}: {shown.failed_of(one['failed'], one['judged'] + one['failed'])}"
            for one in run["failures"]
        )
        or "not judged"
        for run in runs
    ]
    rows.append(["answers without labels", "", *cells, *[""] * len(differences)])
    return rows


def _headline_row(
    runs: Sequence[Mapping[str, Any]], differences: Sequence[Mapping[str, Any]]
) -> list[str]:
    cells = [shown.headline(**run["headline"]) for run in runs]
    cells += [shown.headline(**one["headline"]) + _mark(one) for one in differences]
    return ["headline, in [-1, 1] ↑", "", *cells]


def _mark(difference: Mapping[str, Any]) -> str:
    """What else differs, at the figure itself: a cell is quoted without its table."""
    return f" (other {', other '.join(difference['other'])})" if difference["other"] else ""


JUDGED = frozenset(
    metric.key
    for metric in METRICS
    if metric.part == "writing" and metric.key not in ("length", "empty", "truncated")
)
"""Metrics that a judge's verdicts decide."""


def _row(
    line: Mapping[str, Any],
    runs: Sequence[Mapping[str, Any]],
    differences: Sequence[Mapping[str, Any]],
) -> list[str]:
    told = [line["runs"][run["label"]] for run in runs]
    changes = [line["differences"][one["name"]] for one in differences]
    cells = [shown.title(line), shown.counts([one["n"] if one else 0 for one in (*told, *changes)])]
    cells += [_figure(one, line["unit"], signed=False) for one in told]
    for change, one in zip(changes, differences, strict=True):
        mark = _mark(one) if change and line["key"] in JUDGED else ""
        cells.append(_figure(change, line["unit"], signed=True) + mark)
    return cells


def _figure(told: Mapping[str, Any] | None, unit: str, *, signed: bool) -> str:
    text = shown.figure(shown.estimate_of(told), unit, signed=signed)
    bounds = shown.with_failures(told["failure_bounds"] if told else None, unit, signed=signed)
    return f"{text} ({bounds})" if bounds else text


def _test_lines(tests: Sequence[Mapping[str, Any]]) -> list[str]:
    return [
        "Did a label change beyond chance? Exact tests over clusters of items; the last column is corrected "
        f"for all {len(tests)} of them (Holm).",
        "",
        "| label | difference | n | gained | lost | p | p, corrected |",
        "|---|---|---:|---:|---:|---:|---:|",
        *(
            f"| {one['title']} | {one['difference']} | {one['n']} | {one['gained']} | {one['lost']} | "
            f"{shown.p_value(one['p'])} | {shown.p_value(one['p_holm'])} |"
            for one in tests
        ),
    ]
