"""`xyreward build`: the command line of `construct/`."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from operator import add
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from xyreward.words import counted

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from xyreward.construct.base_job import BaseJob, ConstructionT
    from xyreward.construct.gates import GateSettings
    from xyreward.construct.job import Begin, Bill
    from xyreward.construct.stages import Funnel
    from xyreward.construct.thread_files import Problems
    from xyreward.judges import Judge
    from xyreward.judges.asking import ModelAsker

STATUSES = (
    "Exit status: 0 done; 1 done, but rows of the source or replies could not be used; 2 something given is "
    "wrong, and nothing was sent; 3 stopped on the way (wrong key, spent limit, full disk); 130 after "
    "Ctrl-C. The same command goes on where it was stopped."
)


def forum(
    source: Annotated[
        Path, typer.Argument(help="Posts.xml of a dump; Parquet or JSONL of posts or of threads.")
    ],
    *,
    model: Annotated[
        str, typer.Option(help="Who reads the threads: anthropic:<model> or chat:<model>@<url>.")
    ],
    out: Annotated[Path, typer.Option(help="Folder for items.jsonl, card.md and funnel.json.")],
    site: Annotated[
        str,
        typer.Option(help="Host of the forum, such as stackoverflow.com: dumps do not name it."),
    ] = "",
    licence: Annotated[
        str, typer.Option(help="Of posts that do not say, such as 'CC BY-SA 4.0'.")
    ] = "",
    users: Annotated[
        Path | None,
        typer.Option(
            help="Users.xml, for names of authors. [default: the one beside Posts.xml, if any]"
        ),
    ] = None,
    at_least: Annotated[
        float | None,
        typer.Option(help="Signs of another goal that a thread needs; 0 sends all. [default: 1]"),
    ] = None,
    sample: Annotated[
        float | None,
        typer.Option(help="Share of the others that is sent regardless. [default: 0.05]"),
    ] = None,
    embedding: Annotated[
        float | None,
        typer.Option(
            help="Cosine distance of question and first answer that is a sign, too, by the local judge's "
            "encoder. Slow. [default: not looked at]"
        ),
    ] = None,
    max_threads: Annotated[
        int | None, typer.Option(help="Threads that are sent at most. [default: all]")
    ] = None,
    controls: Annotated[
        float | None, typer.Option(help="Share of controls among items. [default: 0.25]")
    ] = None,
    seed: Annotated[int, typer.Option(help="Of the draws.")] = 0,
    strict: Annotated[
        bool, typer.Option("--strict", help="Stop at the first row that cannot be used.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Read the source and print the bill; send nothing.")
    ] = False,
    gating: Mapping[str, Any],
    options: Mapping[str, Any],
) -> None:
    """Make items of a forum's threads.

    What is asked, what is wanted, and the answers that show it.
    """
    from xyreward import cli
    from xyreward.construct.forum_job import ForumJob, ForumSettings, write
    from xyreward.construct.job import check_source
    from xyreward.construct.prefilter import PreFilter
    from xyreward.construct.thread_files import Source
    from xyreward.judges import load_asker
    from xyreward.judges.asking import nothing_sent

    _check_folder(out)
    options = _billed(out, options)
    gates, judge, second = _gates(gating, options, dry_run=dry_run)
    look = {"at_least": at_least, "sample": sample, "seed": seed, "embedding": embedding}
    settings = ForumSettings(
        prefilter=PreFilter(**{k: v for k, v in look.items() if v is not None}),  # type: ignore[arg-type]
        max_threads=max_threads,
        strict=strict,
        gates=gates,
    )
    if controls is not None:
        settings = dataclasses.replace(settings, controls=controls)
    asker = load_asker(model, **options)
    job = ForumJob(
        Source(source, site, licence, users), asker, settings, judge=judge, second=second
    )
    check_source(out, job.source.path.name, site)
    with nothing_sent(dry_run):
        job.check()
    if users is None and (beside := job.source.users_file) is not None:
        cli._say(f"names of authors: from {beside.name}, which lies beside {source.name}")
    _build(
        job,
        lambda built: write(built, job, out),
        out,
        dry_run=dry_run,
        said=lambda built: [f"recall of the pre-filter: {built.recall}"],
    )


def guides(
    files: Annotated[
        list[Path],
        typer.Argument(help="Guides, and folders of them: Markdown, HTML, JSONL, Parquet."),
    ],
    *,
    model: Annotated[
        str,
        typer.Option(
            help="Who writes, refines and checks: anthropic:<model> or chat:<model>@<url>."
        ),
    ],
    out: Annotated[Path, typer.Option(help="Folder for items.jsonl, card.md and funnel.json.")],
    name: Annotated[
        str, typer.Option(help="Of the collection. [default: that of each file or folder given]")
    ] = "",
    licence: Annotated[
        str, typer.Option(help="Of guides that do not say, such as 'CC BY-SA 4.0'.")
    ] = "",
    per_guide: Annotated[
        int | None,
        typer.Option(help="Questions with a hidden goal per guide, at most. [default: 2]"),
    ] = None,
    max_guides: Annotated[
        int | None, typer.Option(help="Guides that are sent at most. [default: all]")
    ] = None,
    controls: Annotated[
        float | None, typer.Option(help="Share of controls among items. [default: 0.25]")
    ] = None,
    seed: Annotated[int, typer.Option(help="Of the draws.")] = 0,
    strict: Annotated[
        bool, typer.Option("--strict", help="Stop at the first guide that cannot be used.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Read the guides and print the bill; send nothing.")
    ] = False,
    gating: Mapping[str, Any],
    options: Mapping[str, Any],
) -> None:
    """Make items of how-to guides.

    Questions around what a guide refutes, and answers of both kinds.
    """
    from xyreward.construct.guide_job import GuideJob, GuideSettings, write
    from xyreward.construct.guides import GuideSource
    from xyreward.construct.job import check_source
    from xyreward.judges import load_asker
    from xyreward.judges.asking import nothing_sent

    _check_folder(out)
    options = _billed(out, options)
    gates, judge, second = _gates(gating, options, dry_run=dry_run)
    given = {"per_guide": per_guide, "controls": controls}
    settings = GuideSettings(
        max_guides=max_guides,
        seed=seed,
        strict=strict,
        gates=gates,
        **{k: v for k, v in given.items() if v is not None},  # type: ignore[arg-type]
    )
    source = GuideSource(tuple(files), name, licence)
    asker = load_asker(model, **options)
    job = GuideJob(source, asker, settings, judge=judge, second=second)
    check_source(out, [path.name for path in source.paths])
    with nothing_sent(dry_run):
        job.check()
    _build(job, lambda built: write(built, job, out), out, dry_run=dry_run)


def review(
    items: Annotated[Path, typer.Argument(help="Items, as `xyreward build` writes them.")],
    *,
    out: Annotated[Path, typer.Option(help="HTML file to write; must not exist.")],
    seed: Annotated[int, typer.Option(help="Of the order.")] = 0,
    limit: Annotated[
        int | None, typer.Option(min=1, help="So many of the items, drawn at random.")
    ] = None,
) -> None:
    """Make a page on which people keep, edit or reject items: offline, by keyboard, in random order.

    What gates and judges said is not in the page. Each person saves a file of decisions, which `xyreward
    build apply` reads.
    """
    from xyreward import cli
    from xyreward.construct.review import review_page
    from xyreward.loading import load_items
    from xyreward.score_file import refuse_existing
    from xyreward.whole_file import write_whole

    refuse_existing(out)
    made = review_page(load_items(items), seed=seed, limit=limit)
    out.parent.mkdir(parents=True, exist_ok=True)
    write_whole(out, made.html)
    cli._say(f"{counted(made.items, 'item')} to review in {out} (sheet {made.hash})")


def apply(
    items: Annotated[Path, typer.Argument(help="The items that were reviewed.")],
    decisions: Annotated[
        list[Path],
        typer.Argument(help="Files that the page saved, or JSONL of decisions made otherwise."),
    ],
    *,
    out: Annotated[Path, typer.Option(help="JSONL of the items to write; must not exist.")],
) -> None:
    """Write the items that people kept, with their edits, and beside them those that they did not.

    A decision holds for the text that was shown and for no other; one without item_hash for the item as it
    is. Exit status 1 where an item has none, or decisions that differ, or a decision has no item.
    """
    from xyreward import cli
    from xyreward.construct.review import apply as apply_decisions
    from xyreward.construct.review import read_decisions, write_reviewed
    from xyreward.loading import load_items
    from xyreward.score_file import refuse_existing

    refuse_existing(out)
    found = apply_decisions(load_items(items), read_decisions(decisions))
    left_out = write_reviewed(found, out)
    cli._say(f"{counted(len(found.kept), 'item')} in {out}, {len(found.left_out):,} in {left_out}")
    for what, n in sorted(found.counts.items()):
        cli._say(f"{what}: {n:,}")
    if found.unknown:
        cli._say(
            f"decisions about items that are not there: {len(found.unknown):,}, the first is "
            f"{found.unknown[0]!r}"
        )
    if found.unsettled:
        raise typer.Exit(cli.FAILED)


GATE_OPTIONS: Mapping[str, Any] = {
    "judge": Annotated[
        str | None,
        typer.Option(
            help="Who judges whether answers are what they are meant as, see `xyreward judge "
            "--help`. [default: nobody]"
        ),
    ],
    "inferences": Annotated[
        int | None,
        typer.Option(help="Times that the goal is inferred from the query alone. [default: 3]"),
    ],
    "infer_at_least": Annotated[
        int | None, typer.Option(help="Of these that must be the intended request. [default: 1]")
    ],
    "second_pass": Annotated[
        float | None,
        typer.Option(help="Share of items that is labelled a second time. [default: 0.1]"),
    ],
    "second_model": Annotated[
        str | None, typer.Option(help="Who labels a second time. [default: --model]")
    ],
    "max_goal_words": Annotated[
        float | None,
        typer.Option(help="Of the goal's own words that may be in the query. [default: 0.85]"),
    ],
    "max_correction_words": Annotated[
        float | None,
        typer.Option(help="Of the misconception's, likewise. [default: 0.5]"),
    ],
}
"""Options of the quality gates, for every source."""


def _say_problems(problems: Problems) -> None:
    """What of the source cannot be used, as a run would say it."""
    from xyreward import cli

    for line in problems.lines[:5]:
        cli._say(line)
    if problems.count > 5:
        cli._say(f"... and {problems.count - 5:,} more")


def _gates(
    gating: Mapping[str, Any], options: Mapping[str, Any], *, dry_run: bool
) -> tuple[GateSettings, Judge | None, ModelAsker | None]:
    """The gates' settings, judge and second model, with those of the options that each takes."""
    from xyreward.construct.gates import GateSettings
    from xyreward.judges import load_asker, load_judge, makes_calls, options_of

    def taken(name: str) -> dict[str, Any]:
        return {k: v for k, v in options.items() if k in options_of(name)}

    given = dict(gating)
    judge: str | None = given.pop("judge", None)
    second: str | None = given.pop("second_model", None)
    settings = GateSettings(**given)
    asker = None if second is None else load_asker(second, **taken(second))
    # For a bill the local judge need not be loaded, which takes seconds.
    if judge is None or (dry_run and not makes_calls(judge, taken(judge))):
        return settings, None, asker
    return settings, load_judge(judge, **taken(judge)), asker


def _build(
    job: BaseJob[Any, Any, ConstructionT],
    write: Callable[[ConstructionT], None],
    out: Path,
    *,
    dry_run: bool,
    said: Callable[[ConstructionT], Sequence[str]] = lambda _: (),
) -> None:
    """Run a job, write its folder and say what came of it; or say what it would take.

    Args:
        job: was checked.
        write: writes the folder.
        out: the folder.
        dry_run: send and write nothing.
        said: further lines on what was built.
    """
    from xyreward import cli
    from xyreward.construct.thread_files import Problems
    from xyreward.pairs.answers import locked

    if dry_run:
        problems = Problems(job.settings.strict)
        funnel, bills = job.estimate(problems)
        cli._say(funnel.to_markdown())
        _say_problems(problems)
        _say_bills(bills)
        return
    # Two with other settings would pay for both, and one would tell of the other's items.
    with locked(out), cli._sending():
        with _bar(job.gates.asked) as begin:
            built = job.run(begin)
        _written(lambda: write(built), out)
    cli._say(built.funnel.to_markdown())
    for line in said(built):
        cli._say(line)
    _say_problems(built.problems)
    cli._say(f"{counted(len(built.items), 'item')} in {out / 'items.jsonl'}, described in card.md")
    billed = job.gates.billed
    cli._say_bill([one for _, one in billed], roles=[role for role, _ in billed])
    if built.problems.count:
        unusable = counted(built.problems.count, "row or file", "rows and files")
        cli._say(f"{unusable} of the source could not be used; card.md has them")
    if _say_failed(built.funnel) or built.problems.count:
        raise typer.Exit(cli.FAILED)


def _check_folder(out: Path) -> None:
    """Raises ConfigError where the folder cannot be one: found before anything is paid for."""
    from xyreward.errors import ConfigError

    above = next((path for path in (out, *out.absolute().parents) if path.exists()), out)
    if not above.is_dir():
        raise ConfigError(f"--out {out}: {above} is a file, expected a folder")
    if not os.access(above, os.W_OK | os.X_OK):
        raise ConfigError(f"--out {out}: {above} cannot be written to")


def _written(write: Callable[[], None], out: Path) -> None:
    """Write the folder; what goes wrong comes after the calls, and says that they are kept."""
    from xyreward.errors import StoreError

    try:
        write()
    except OSError as error:
        raise StoreError(
            f"{out}: cannot be written ({error.strerror or error}). What was paid for is in the store; the "
            "same command writes it"
        ) from error


def _billed(out: Path, options: Mapping[str, Any]) -> dict[str, Any]:
    """Options with a run's name: one bill for all models, and for every start of the command."""
    from xyreward.judges.asking import run_of_environment

    if options.get("run") or run_of_environment():
        return dict(options)
    return {**options, "run": f"build {out.resolve()}"}


def _say_failed(funnel: Funnel) -> int:
    from xyreward import cli

    failed = sum(sum(step.failed.values()) for step in funnel.steps)
    if failed:
        cli._say(
            f"{counted(failed, 'row')} failed for want of a reply that could be used; the same command asks "
            "again"
        )
    return failed


def _say_bills(bills: Sequence[Bill]) -> None:
    from xyreward import cli
    from xyreward.construct.stages import TRIES

    for bill in bills:
        cli._say(str(bill))
    if len(bills) > 1:
        bounded = "at most " * any(bill.at_most for bill in bills)
        cli._say(f"in all: {bounded}{reduce(add, (bill.estimate for bill in bills))}")
    if any(bill.estimate.calls for bill in bills):
        # Each of the tries has a second asking, that says what was wrong.
        cli._say(
            f"A reply that cannot be used is asked for again, up to {2 * TRIES - 1} times, which is not in "
            "these figures; --budget-usd is a limit to that, too."
        )
    cli._say(f"{'' if bills else 'Nothing to ask. '}Nothing was sent or written.")


class _bar:  # noqa: N801  # a context manager
    """A bar for one stage after the other: each begins when it is known how much is asked."""

    def __init__(self, models: Sequence[Judge | ModelAsker]) -> None:
        self._models = models
        self._open: AbstractContextManager[Callable[[int], object]] | None = None

    def __enter__(self) -> Begin:
        return self._begin

    def _begin(self, total: int) -> Callable[[], object] | None:
        from xyreward import cli

        self.__exit__()
        self._open = cli._bar(total, self._models)
        advance = self._open.__enter__()
        return lambda: advance(0)

    def __exit__(self, *error: Any) -> None:
        if self._open is not None:
            self._open.__exit__(*(error or (None, None, None)))
            self._open = None
