"""`xyreward build`: the command line of `construct/`."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from functools import reduce
from operator import add
from pathlib import Path
from typing import Annotated, Any

import typer

from xyreward.words import counted

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
    options: Mapping[str, Any],
) -> None:
    """Make items of a forum's threads: what is asked, what is wanted, and the answers that show it."""
    from xyreward import cli
    from xyreward.construct.forum_job import ForumJob, ForumSettings, write
    from xyreward.construct.prefilter import PreFilter
    from xyreward.construct.thread_files import Source
    from xyreward.judges import load_asker

    look = {"at_least": at_least, "sample": sample, "seed": seed, "embedding": embedding}
    settings = ForumSettings(
        prefilter=PreFilter(**{k: v for k, v in look.items() if v is not None}),  # type: ignore[arg-type]
        max_threads=max_threads,
        strict=strict,
    )
    if controls is not None:
        settings = dataclasses.replace(settings, controls=controls)
    asker = load_asker(model, **options)
    job = ForumJob(Source(source, site, licence, users), asker, settings)
    if users is None and (beside := job.source.users_file) is not None:
        cli._say(f"names of authors: from {beside.name}, which lies beside {source.name}")
    if dry_run:
        funnel, estimate = job.estimate()
        cli._say(funnel.to_markdown())
        cli._say(f"{asker.name}: {estimate or 'nothing to ask'}. Nothing was sent or written.")
        return
    asker.check_ready()  # a dry run sends nothing, and needs no key
    with cli._sending():
        with _bar(asker) as begin:
            built = job.run(begin)
        write(built, job, out)
    cli._say(built.funnel.to_markdown())
    cli._say(f"recall of the pre-filter: {built.recall}")
    for line in built.problems.lines[:5]:
        cli._say(line)
    cli._say(f"{counted(len(built.items), 'item')} in {out / 'items.jsonl'}, described in card.md")
    cli._say_bill([asker])
    failed = any(step.failed for step in built.funnel.steps)
    if failed or built.problems.count:
        cli._say(
            f"{counted(built.problems.count, 'row')} of the source could not be used; card.md has them"
        )
        raise typer.Exit(cli.FAILED)


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
    options: Mapping[str, Any],
) -> None:
    """Make items of how-to guides: questions around what a guide refutes, and answers of both kinds."""
    from xyreward import cli
    from xyreward.construct.guide_job import GuideJob, GuideSettings, write
    from xyreward.construct.guides import GuideSource
    from xyreward.judges import load_asker

    given = {"per_guide": per_guide, "controls": controls}
    settings = GuideSettings(
        max_guides=max_guides,
        seed=seed,
        strict=strict,
        **{k: v for k, v in given.items() if v is not None},  # type: ignore[arg-type]
    )
    source = GuideSource(tuple(files), name, licence)
    asker = load_asker(model, **options)
    job = GuideJob(source, asker, settings)
    if dry_run:
        funnel, bills = job.estimate()
        cli._say(funnel.to_markdown())
        for bill in bills:
            cli._say(str(bill))
        if len(bills) > 1:
            bounded = "at most " if any(bill.at_most for bill in bills) else ""
            cli._say(f"in all: {bounded}{reduce(add, (bill.estimate for bill in bills))}")
        cli._say(f"{asker.name}: {'' if bills else 'nothing to ask. '}Nothing was sent or written.")
        return
    asker.check_ready()
    with cli._sending():
        with _bar(asker) as begin:
            built = job.run(begin)
        write(built, job, out)
    cli._say(built.funnel.to_markdown())
    for line in built.problems.lines[:5]:
        cli._say(line)
    cli._say(f"{counted(len(built.items), 'item')} in {out / 'items.jsonl'}, described in card.md")
    cli._say_bill([asker])
    if built.problems.count:
        cli._say(
            f"{counted(built.problems.count, 'guide or row', 'guides and rows')} could not be used; "
            "card.md has them"
        )
    if built.problems.count or any(step.failed for step in built.funnel.steps):
        raise typer.Exit(cli.FAILED)


class _bar:  # noqa: N801  # a context manager
    """A bar for one stage after the other: each begins when it is known how much is asked."""

    def __init__(self, asker: Any) -> None:
        self._asker = asker
        self._open: Any = None

    def __enter__(self) -> Callable[[int], Callable[[], object] | None]:
        return self._begin

    def _begin(self, total: int) -> Callable[[], object] | None:
        from xyreward import cli

        self.__exit__(None, None, None)
        self._open = cli._bar(total, [self._asker])
        advance = self._open.__enter__()
        return lambda: advance(0)

    def __exit__(self, *error: Any) -> None:
        if self._open is not None:
            self._open.__exit__(*error)
            self._open = None
