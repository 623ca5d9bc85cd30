"""`xyreward compare | eval-results`: the command line of `compare_runs.py` and `eval_results.py`.

xyreward compare runs/dpo-quickstart
xyreward compare runs/base runs/lr-1e-4 runs/lr-3e-4 --all-pairs
xyreward compare runs/tuned:before runs/other --format json
xyreward eval-results runs/xybench
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def compare(
    runs: Annotated[
        list[str],
        typer.Argument(
            help="Run folders. FOLDER:NAME takes its NAME.jsonl, such as FOLDER:before; one folder alone "
            "is compared with itself before training.",
            metavar="RUN...",
        ),
    ],
    *,
    all_pairs: Annotated[
        bool,
        typer.Option(
            "--all-pairs", help="Differences of every two runs. [default: from the first]"
        ),
    ] = False,
    other_items: Annotated[
        bool,
        typer.Option(
            "--other-items", help="Compare runs on different items, over those that all have."
        ),
    ] = False,
    other_judges: Annotated[
        bool, typer.Option("--other-judges", help="Compare although different judges judged.")
    ] = False,
    other_rubrics: Annotated[
        bool, typer.Option("--other-rubrics", help="Compare although rubric versions differ.")
    ] = False,
    max_failure_rate: Annotated[
        float,
        typer.Option(min=0, max=1, help="Share of failed judgements above which is no headline."),
    ] = 0.05,
    output: Annotated[str, typer.Option("--format", help="markdown or json.")] = "markdown",
    out: Annotated[
        Path | None, typer.Option(help="A file to write; must not exist. [default: print]")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of the intervals.")] = 0,
) -> None:
    """Runs side by side: each metric with its interval, and differences paired by item.

    Runs on different items, or by different judges or rubric versions, are refused unless that is asked for;
    the table then says so at each figure concerned. Sends nothing.
    """
    from xyreward import cli
    from xyreward.compare_runs import compare_runs, to_json, to_markdown
    from xyreward.score_file import refuse_existing
    from xyreward.whole_file import write_whole

    if output not in ("markdown", "json"):
        raise typer.BadParameter(f"{output!r}, expected markdown or json", param_hint="--format")
    if out is not None:
        refuse_existing(out)
    comparison = compare_runs(
        runs,
        all_pairs=all_pairs,
        other_items=other_items,
        other_judges=other_judges,
        other_rubrics=other_rubrics,
        max_failure_rate=max_failure_rate,
        seed=seed,
    )
    text = to_json(comparison) if output == "json" else to_markdown(comparison)
    if out is None:
        cli._say(text.rstrip())
    else:
        out.parent.mkdir(parents=True, exist_ok=True)
        write_whole(out, text)
        cli._say(f"{len(comparison['runs'])} evaluations compared in {out}")


def eval_results(
    run: Annotated[Path, typer.Argument(help="The folder of a run that ended.")],
    *,
    dataset: Annotated[
        str | None,
        typer.Option(help="The benchmark's name on the hub, where its items came from a folder."),
    ] = None,
    revision: Annotated[
        str | None, typer.Option(help="Its commit. [default: the one that was loaded]")
    ] = None,
    tasks: Annotated[
        list[str] | None,
        typer.Option(
            "--task",
            metavar="METRIC=TASK",
            help="A metric and the task's id in the benchmark's eval.yaml; may be repeated. "
            "[default: the paper's metrics, each by its own key]",
        ),
    ] = None,
    policy: Annotated[
        str | None, typer.Option(help="before or after. [default: what the run ended with]")
    ] = None,
    source_url: Annotated[str | None, typer.Option(help="Where readers find more.")] = None,
    max_failure_rate: Annotated[
        float,
        typer.Option(
            min=0, max=1, help="More failed judgements, or failed picks, than this are refused."
        ),
    ] = 0.05,
    any_items: Annotated[
        bool,
        typer.Option(
            "--any-items",
            help="Also of some sources, of the first few items, or of items of the train side.",
        ),
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(
            help="YAML to write; must not exist. [default: .eval_results/ in the run's adapter or model]"
        ),
    ] = None,
) -> None:
    """Write a run's figures as the hub shows them on a model's page (.eval_results/*.yaml).

    Only for items of one benchmark on the hub, all of a held-out side. Sends nothing.
    """
    from xyreward import cli
    from xyreward import eval_results as hub_forms
    from xyreward.score_file import refuse_existing
    from xyreward.whole_file import write_whole
    from xyreward.words import noun

    named: dict[str, str] = {}
    for text in tasks or ():
        metric, equals, task = (part.strip() for part in text.partition("="))
        if not (metric and equals and task) or metric in named:
            raise typer.BadParameter(
                f"{text!r}, expected METRIC=TASK, each metric once", param_hint="--task"
            )
        named[metric] = task
    text = hub_forms.eval_results(
        run,
        dataset=dataset,
        revision=revision,
        tasks=named or None,
        policy=policy,
        source_url=source_url,
        max_failure_rate=max_failure_rate,
        any_items=any_items,
    )
    if out is None:
        trained = [run / name for name in ("adapter", "model") if (run / name).is_dir()]
        benchmark = hub_forms.benchmark_of(text).rpartition("/")[2]
        out = (trained or [run])[0] / hub_forms.FOLDER / f"{benchmark}.yaml"
    refuse_existing(out)
    out.parent.mkdir(parents=True, exist_ok=True)
    write_whole(out, text)
    n = text.count("task_id:")
    cli._say(f"{n} {noun(n, 'result')} in {out}")
    cli._say("The hub shows them once the file is in .eval_results/ of the model's repository.")
