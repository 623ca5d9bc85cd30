"""`xyreward agree | annotate`: the command line of `agreement.py`, `calibrate.py`, `annotate.py`.

xyreward annotate answers.jsonl --items mini --out sheet.html
xyreward agree labels-ann.jsonl labels-bo.jsonl verdicts.jsonl --record
xyreward agree labels.jsonl --human annotator1,annotator2 --judge judge_a --failure-labels garbage
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from xyreward.errors import DataError
from xyreward.words import counted, noun

if TYPE_CHECKING:
    from xyreward.ratings import Labelled


def agree(
    files: Annotated[
        list[Path],
        typer.Argument(
            help="Labels of people, files that `xyreward score` wrote; or one table with a column per "
            "rater. JSONL, JSON, CSV or Parquet."
        ),
    ],
    *,
    human: Annotated[
        str | None, typer.Option(help="Columns of people, comma-separated: the file is a table.")
    ] = None,
    judge: Annotated[
        str | None, typer.Option(help="Columns of judges, comma-separated: the file is a table.")
    ] = None,
    failure_labels: Annotated[
        str | None,
        typer.Option(help="What such a column holds where its judge failed, comma-separated."),
    ] = None,
    mapping: Annotated[
        list[str] | None,
        typer.Option(
            "--map", metavar="FROM=TO", help="Read one label as another; may be repeated."
        ),
    ] = None,
    id_column: Annotated[
        str | None, typer.Option("--id", help="Column that tells rows apart. [default: id]")
    ] = None,
    cluster: Annotated[
        str | None,
        typer.Option(help="Column of rows that belong together. [default: each row is its own]"),
    ] = None,
    as_text: Annotated[
        bool, typer.Option("--as-text", help="Read 0 and '0' as the same label.")
    ] = False,
    label: Annotated[str, typer.Option(help="What the columns' labels are of.")] = "label",
    items: Annotated[
        str, typer.Option(help="mini, a file or folder, or a hub name; for --ask, --against-store.")
    ] = "mini",
    ask: Annotated[
        str | None, typer.Option(metavar="JUDGE", help="Ask this judge now about the answers.")
    ] = None,
    against_store: Annotated[
        str | None,
        typer.Option(
            metavar="JUDGE", help="Add the stored verdicts of a judge, which may be retired."
        ),
    ] = None,
    record: Annotated[
        bool, typer.Option("--record", help="Keep a calibration record of each judge.")
    ] = False,
    record_folder: Annotated[
        Path | None,
        typer.Option(help="[default: XYREWARD_CALIBRATION, or the user's data folder]"),
    ] = None,
    note: Annotated[str, typer.Option(help="What the answers are, for the record.")] = "",
    output: Annotated[str, typer.Option("--format", help="markdown or json.")] = "markdown",
    seed: Annotated[int, typer.Option(min=0, help="Of the intervals.")] = 0,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check everything, print the bill; send nothing.")
    ] = False,
    options: Mapping[str, Any],
) -> None:
    """How far a judge agrees with people, people with each other, or two judges.

    Exit status 1 where a judge that was asked now failed on some answers.
    """
    from dataclasses import asdict

    from xyreward import cli
    from xyreward.agreement import figures, to_dict, to_markdown
    from xyreward.calibrate import check_people, keep, records_of
    from xyreward.ratings import Source, read_answers, read_columns

    if output not in ("markdown", "json"):
        raise typer.BadParameter(f"{output!r}, expected markdown or json", param_hint="--format")
    of_columns = {
        "--failure-labels": failure_labels,
        "--map": mapping,
        "--id": id_column,
        "--cluster": cluster,
        "--as-text": as_text,
    }
    of_answers = {
        "--ask": ask,
        "--against-store": against_store,
        "--record": record,
        "--dry-run": dry_run,
    }
    table = human is not None or judge is not None
    if used := [name for name, value in (of_answers if table else of_columns).items() if value]:
        raise typer.BadParameter(
            f"{', '.join(used)}: for answers with the four labels; leave --human and --judge out"
            if table
            else f"{', '.join(used)}: for a table with a column per rater; name them with --human and --judge"
        )
    labelled, failed = None, 0
    if table:
        if len(files) != 1:
            raise typer.BadParameter(f"{len(files)} files, expected one table", param_hint="FILES")
        ratings, notes = read_columns(
            files[0],
            humans=_listed(human),
            judges=_listed(judge),
            failure_labels=_listed(failure_labels),
            mapping=_mapping(mapping or ()),
            id_column=id_column,
            cluster_column=cluster,
            as_text=as_text,
            label=label,
        )
        tables, sources = [ratings], [Source.of(files[0])]
    else:
        labelled = read_answers(files)
        if record:
            check_people(labelled)
        if ask is not None or against_store is not None:
            failed = _add_judges(labelled, items, ask, against_store, options, dry_run=dry_run)
        if dry_run:
            return
        tables, sources, notes = labelled.ratings(), labelled.sources, labelled.notes
    found = [figures(one, seed=seed) for one in tables]
    judges = {} if labelled is None else labelled.judges()
    if output == "json":
        # ASCII, so that nothing in it is text that a terminal would obey.
        data = to_dict(found, judges=judges, sources=[asdict(s) for s in sources], notes=notes)
        cli._say(json.dumps(data, indent=1, allow_nan=False))
    else:
        cli._say(to_markdown(found, judges=judges, notes=notes).rstrip())
    if labelled is not None and record:
        try:
            for one in records_of(found, labelled, note=note):
                cli._note(
                    f"{keep(one, record_folder)}: {one.judge} ({one.rubric_version}) {one.line()}"
                )
        except (DataError, OSError) as error:
            if ask is None:
                raise
            cli._end(error, cli.STOPPED)  # its verdicts may have been paid for
    if failed:
        which = noun(failed, "which is", "which are")
        cli._note(f"{ask}: no verdict on {counted(failed, 'answer')}, {which} in no figure")
        raise typer.Exit(cli.FAILED)


def annotate(
    answers: Annotated[Path, typer.Argument(help="JSONL with item_id (or query) and answer.")],
    *,
    out: Annotated[Path, typer.Option(help="HTML file to write; must not exist.")],
    items: Annotated[str, typer.Option(help="mini, a file or folder, or a hub name.")] = "mini",
    seed: Annotated[int, typer.Option(help="Of the order.")] = 0,
    limit: Annotated[
        int | None, typer.Option(min=1, help="So many of the answers, drawn at random.")
    ] = None,
    without_notes: Annotated[
        bool,
        typer.Option("--without-notes", help="Leave out the items' requests and solutions."),
    ] = False,
) -> None:
    """Make the labelling sheet: one page for people, offline, blind, in random order.

    Who wrote an answer and what a judge said of it are not in the page. Give each person a copy; each saves
    a file of labels, which `xyreward agree` reads.
    """
    from xyreward import cli
    from xyreward.annotate import sheet
    from xyreward.loading import load_items
    from xyreward.score_file import AnswersFile, refuse_existing
    from xyreward.whole_file import write_whole

    refuse_existing(out)
    file = AnswersFile(answers, load_items(items))
    made = sheet(file, seed=seed, notes=not without_notes, limit=limit)
    out.parent.mkdir(parents=True, exist_ok=True)
    write_whole(out, made.html)
    cli._say(f"{counted(made.answers, 'answer')} to label in {out} (sheet {made.hash})")
    if made.repeated:
        cli._say(f"{counted(made.repeated, 'row')} had an answer that is there already")
    if made.empty:
        are = noun(made.empty, "is left out: its", "are left out: their")
        cli._say(f"{counted(made.empty, 'empty answer')} {are} labels are known")
    if lines := file.other_queries:
        cli._note(
            f"{counted(len(lines), 'row has', 'rows have')} a query that is not that of "
            f"{noun(len(lines), 'its', 'their')} item, first line {lines[0]}"
        )


def _add_judges(
    labelled: Labelled,
    items: str,
    ask: str | None,
    against_store: str | None,
    options: Mapping[str, Any],
    *,
    dry_run: bool,
) -> int:
    """Add judges that are in no file: asked now, or as the store has them. How many answers failed."""
    from xyreward import cli
    from xyreward.calibrate import add_stored, ask_judge, open_answers
    from xyreward.judges import described, load_judge
    from xyreward.judges.panel import model_judges
    from xyreward.loading import load_items
    from xyreward.store import VerdictStore

    known = {item.id: item for item in load_items(items)}
    if ask is None and (unused := sorted(options.keys() - {"store"})):
        raise typer.BadParameter(
            f"{', '.join(unused)}: only a judge that is asked (--ask) takes them"
        )
    # Both before anything is sent: a store without the old judge is no reason to pay for the new one.
    if against_store is not None:
        with VerdictStore.open(options.get("store"), create=False) as store:
            counts = add_stored(labelled, store, against_store, known)
        for version, count in counts.items():
            what = counted(count, "verdict")
            cli._note(f"store: {what} of {against_store} ({version}) on these answers")
    if ask is None:
        if dry_run:
            cli._say("makes no calls. Nothing was sent.")
        return 0
    judge = load_judge(ask, **options)
    asked = open_answers(labelled, known)
    if dry_run:
        rows = list(asked.values())
        cli._say(described(judge, [item for item, _ in rows], [text for _, text in rows]))
        return 0
    cli._check([judge], [item for item, _ in asked.values() if not item.bare])
    with cli._sending(), cli._bar(len(asked), [judge]) as advance:
        failed = cli._run(ask_judge(labelled, judge, asked))
        advance(len(asked))
    cli._say_bill(model_judges(judge), cli._note)
    return failed


def _listed(text: str | None) -> list[str]:
    return [part.strip() for part in (text or "").split(",") if part.strip()]


def _mapping(pairs: Sequence[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for pair in pairs:
        old, equals, new = (part.strip() for part in pair.partition("="))
        if not (old and equals and new) or "=" in new:
            raise typer.BadParameter(
                f"{pair!r}, expected FROM=TO, and the option again for another", param_hint="--map"
            )
        if found.setdefault(old, new) != new:
            raise typer.BadParameter(f"{old!r} is mapped to two labels", param_hint="--map")
    return found
