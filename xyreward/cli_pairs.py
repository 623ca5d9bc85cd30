"""`xyreward pairs`: the command line of `pairs_job.py`.

Flags are short names for keys of `config.PairsJob`; `--config` reads them from a file and `--set` sets any.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from xyreward.errors import DataError, XYRewardError
from xyreward.words import counted, noun

if TYPE_CHECKING:
    from xyreward.judges.asking import ModelAsker


def pairs(
    *,
    out: Annotated[Path, typer.Option(help="Folder to make for the pairs.")],
    config: Annotated[
        Path | None, typer.Option(help="YAML file with any of the keys below. [default: none]")
    ] = None,
    items: Annotated[
        list[str] | None,
        typer.Option(
            help="mini, a file or folder, or a hub name; may be repeated. [default: mini]"
        ),
    ] = None,
    split: Annotated[str | None, typer.Option(help="train, dev or test. [default: train]")] = None,
    splits_lock: Annotated[
        str | None, typer.Option(help="splits.json that keeps sides stable over runs.")
    ] = None,
    sources: Annotated[
        str | None,
        typer.Option(
            help="Some of references,on_policy,cross_model,contrastive. [default: references]"
        ),
    ] = None,
    policy: Annotated[
        str | None,
        typer.Option(
            help="Who is sampled: a folder, a hub name, chat:... [default: embedded:smollm2-135m]"
        ),
    ] = None,
    samples: Annotated[int | None, typer.Option(help="Answers per item. [default: 8]")] = None,
    temperature: Annotated[float | None, typer.Option(help="Of sampling. [default: 1.0]")] = None,
    answers: Annotated[
        list[str] | None, typer.Option(help="A file of answers, for cross_model; may be repeated.")
    ] = None,
    writer: Annotated[
        str | None, typer.Option(help="Who writes contrasting answers: anthropic:... or chat:...")
    ] = None,
    judge: Annotated[
        str | None, typer.Option(help="A judge's name. [default: labels of references]")
    ] = None,
    margin: Annotated[
        float | None,
        typer.Option(help="Soft reward of chosen minus rejected, at least this. [default: 0.0]"),
    ] = None,
    margin_pairs: Annotated[
        float | None,
        typer.Option(help="Pairs by margin where no answer is goal-focused. [default: none]"),
    ] = None,
    max_pairs_per_item: Annotated[int | None, typer.Option(help="[default: all]")] = None,
    max_pairs: Annotated[int | None, typer.Option(help="[default: all]")] = None,
    control_share: Annotated[float | None, typer.Option(help="[default: 0.25]")] = None,
    balance: Annotated[
        float | None,
        typer.Option(help="Shortcuts pick chosen in 0.5 +- this. [default: no balancing]"),
    ] = None,
    max_length: Annotated[
        int | None, typer.Option(help="Of the trainer, in tokens of --policy's tokenizer.")
    ] = None,
    formats: Annotated[
        str | None,
        typer.Option(help="Some of preference,unpaired,sft,prompts,verl. [default: preference]"),
    ] = None,
    containers: Annotated[
        str | None, typer.Option(help="Some of jsonl,parquet,datasets. [default: jsonl]")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="[default: 0]")] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="KEY=VALUE", help="Any other key, e.g. guards.language=false."
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check all but keys, print the bill; send nothing.")
    ] = False,
    options: Mapping[str, Any],
) -> None:
    """Build preference pairs and audit them. The same command goes on where it was stopped.

    Exit status 1 where the audit found a problem: the folder is written and says which, and recipes refuse
    it.
    """
    from xyreward import cli
    from xyreward.config import PairsJob, load_config
    from xyreward.pairs.build import NoPairs
    from xyreward.pairs_job import PreparedJob, with_options

    def listed(text: str | None) -> list[str] | None:
        return None if text is None else [part.strip() for part in text.split(",") if part.strip()]

    given: dict[str, Any] = {
        "items": [{"source": source} for source in items] if items else None,
        "split": split,
        "splits_lock": splits_lock,
        "sources": listed(sources),
        "policy.model": policy,
        "on_policy.samples": samples,
        "on_policy.temperature": temperature,
        "answers": answers or None,
        "writer": writer,
        "judge": judge,
        "rule.margin": margin,
        "rule.margin_pairs": margin_pairs,
        "rule.max_pairs_per_item": max_pairs_per_item,
        "max_pairs": max_pairs,
        "control_share": control_share,
        "balance": balance,
        "tokens.max_length": max_length,
        "formats": listed(formats),
        "containers": listed(containers),
        "seed": seed,
    }
    overrides = [f"{key}={json.dumps(value)}" for key, value in given.items() if value is not None]
    wanted = load_config(PairsJob, config, [*overrides, *(settings or ())])
    plain = {name: str(v) if isinstance(v, Path) else v for name, v in options.items()}
    job = PreparedJob(with_options(wanted, plain), out, dry_run=dry_run)
    if dry_run:
        for line in job.estimates():
            cli._say(line)
        cli._say(f"{counted(len(job.items), 'item')}. Nothing was sent or written.")
        return
    try:
        with cli._sending():
            report = job.run(_bars)
    except (XYRewardError, OSError) as error:  # something may have been sent and paid for
        would_end_so_again = isinstance(error, DataError) and not (
            isinstance(error, NoPairs) and error.dropped
        )
        cli._end(error, cli.WRONG if would_end_so_again else cli.STOPPED)
    for note in report.notes:
        cli._say(note)
    cli._say(report.audit.to_markdown())
    n = len(report.pairs.pairs)
    them = noun(n, "it", "them")
    cli._say(f"{counted(n, 'pair')} in {report.folder}; look through {them} in audit.html")
    cli._say_bill(job.models)
    if not report.audit.ok:
        raise typer.Exit(cli.FAILED)


@contextmanager
def _bars(
    title: str, total: int, models: Sequence[ModelAsker]
) -> Iterator[Callable[[int], object]]:
    from xyreward import cli

    cli._note(f"== {title}")
    if not total:
        yield lambda _: None
        return
    with cli._bar(total, models) as advance:
        if title.startswith("judging"):
            for one in models:
                one.on_outcome = functools.partial(advance, 1)
        yield advance
