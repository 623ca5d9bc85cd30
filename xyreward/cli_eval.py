"""`xyreward eval`: the command line of `evaluate_job.py`.

xyreward eval --policy chat:qwen3.5-9b@http://127.0.0.1:8000 --judge anthropic --out runs/qwen
xyreward eval --policy answers:mine.jsonl --conditions writing,reference:goal_focused --out runs/mine

Flags are short names for keys of `config.EvaluateRecipe`; `--config` reads them from a file and `--set` sets
any.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from xyreward.errors import XYRewardError

CONDITIONS = ("writing", "oracle", "picking", "preference", "reference:KIND", "controls")


def evaluate(
    *,
    out: Annotated[Path, typer.Option(help="The run's folder; the same command goes on in it.")],
    policy: Annotated[
        str | None,
        typer.Option(
            help="Who is evaluated: a folder, a hub name, chat:<model>@<url>, anthropic:<model>, "
            "answers:<file>. [default: embedded:smollm2-135m]"
        ),
    ] = None,
    config: Annotated[
        Path | None, typer.Option(help="YAML file with any of the keys below. [default: none]")
    ] = None,
    judge: Annotated[str | None, typer.Option(help="A judge's name. [default: local]")] = None,
    items: Annotated[
        str | None, typer.Option(help="mini, a file or folder, or a hub name. [default: mini]")
    ] = None,
    conditions: Annotated[
        str | None,
        typer.Option(
            help="Some of writing,oracle,picking,preference,reference:KIND,controls. [default: writing, "
            "picking and preference, as far as the policy has them]"
        ),
    ] = None,
    split: Annotated[
        str | None,
        typer.Option(help="Side: test or dev; all: the whole set, train too. [default: test]"),
    ] = None,
    splits_lock: Annotated[
        str | None, typer.Option(help="splits.json that keeps sides stable over runs.")
    ] = None,
    sources: Annotated[
        str | None, typer.Option(help="Only items of these sources, comma-separated.")
    ] = None,
    leave_out: Annotated[
        str | None,
        typer.Option(metavar="SOURCE", help="All of the source that training left out."),
    ] = None,
    limit: Annotated[
        int | None, typer.Option(min=1, help="So many items of each kind. [default: all]")
    ] = None,
    answers_per_item: Annotated[int | None, typer.Option(min=1, help="[default: 1]")] = None,
    temperature: Annotated[
        float | None, typer.Option(help="Of the answers. [default: greedy]")
    ] = None,
    max_new_tokens: Annotated[
        int | None, typer.Option(min=1, help="Longest answer, in tokens. [default: 192]")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="[default: 0]")] = None,
    report_to: Annotated[
        str | None,
        typer.Option(
            help="Trackers that get the figures: tensorboard,wandb,trackio. [default: none]"
        ),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="KEY=VALUE", help="Any other key, e.g. evaluation.batch_size=8."
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check all but keys, print the bill; send nothing.")
    ] = False,
    options: Mapping[str, Any],
) -> None:
    """Evaluate a policy on held-out items. The same command goes on where it was stopped.

    Options of models are for judge and policy, each those that it takes; they have one bill. Exit status 1
    where some answers have no verdict, of whatever condition, or some picks did not come.
    """
    from xyreward import cli
    from xyreward.config import Arguments, EvaluateRecipe, load_config
    from xyreward.evaluate_job import PreparedEvaluation, with_options

    def listed(text: str | None, flag: str) -> list[str] | None:
        if text is None:
            return None
        if not (found := [part.strip() for part in text.split(",") if part.strip()]):
            raise typer.BadParameter("is empty; name some, or leave it out", param_hint=flag)
        return found

    given: dict[str, Any] = {
        "output_dir": str(out),
        "policy.model": policy,
        "items": None if items is None else [{"source": items}],
        "splits_lock": splits_lock,
        "evaluation.judge": judge,
        "evaluation.split": split,
        "evaluation.sources": listed(sources, "--sources"),
        "evaluation.leave_out": leave_out,
        "evaluation.limit": limit,
        "evaluation.answers_per_item": answers_per_item,
        "evaluation.temperature": temperature,
        "evaluation.max_new_tokens": max_new_tokens,
        "seed": seed,
        "report_to": listed(report_to, "--report-to"),
        **_conditions(listed(conditions, "--conditions")),
    }
    overrides = [f"{key}={json.dumps(value)}" for key, value in given.items() if value is not None]
    wanted = load_config(EvaluateRecipe, config, [*overrides, *(settings or ())])
    plain = {name: str(v) if isinstance(v, Path) else v for name, v in options.items()}
    job = PreparedEvaluation(
        with_options(wanted, plain),
        Arguments(config or Path("options"), resume=True, dry_run=dry_run),
    )
    if dry_run:
        job.print_estimate()
        return
    job.begin()
    try:
        with cli._sending(f"what is done is kept, {cli.AGAIN}"):
            job.run()
    except (XYRewardError, OSError) as error:  # something may have been sent and paid for
        cli._end(error, cli.STOPPED)
    if job.status:
        raise typer.Exit(job.status)


def _conditions(wanted: list[str] | None) -> dict[str, Any]:
    """Names of conditions to keys of the configuration."""
    if wanted is None:
        return {}
    known = ("writing", "oracle", "picking", "preference", "controls")
    references = [name.partition(":")[2] for name in wanted if name.startswith("reference:")]
    if strange := [n for n in wanted if n not in known and not n.startswith("reference:")]:
        raise typer.BadParameter(
            f"{', '.join(strange)}, expected some of {', '.join(CONDITIONS)}",
            param_hint="--conditions",
        )
    parts = [n for n in ("writing", "preference", "picking") if n in wanted]
    if not parts:
        raise typer.BadParameter(
            f"{', '.join(wanted)}: nothing would be evaluated; expected writing, picking or preference among "
            "them (oracle and reference answers stand beside writing, controls are items)",
            param_hint="--conditions",
        )
    return {
        "evaluation.parts": parts,
        "evaluation.oracle": True if "oracle" in wanted else None,
        "evaluation.references": references or None,
        "evaluation.controls": "mini" if "controls" in wanted else None,
    }
