"""The command line: `xyreward score | judge | store`.

    xyreward score answers.jsonl --items mini --judge anthropic --out verdicts.jsonl --dry-run
    xyreward judge check anthropic:claude-sonnet-5-5
    xyreward judge compare local anthropic
    xyreward store info

Exit status: 0 done; 1 done, but some answers have no verdict (or a check found a problem); 2 nothing was
sent, because something given is wrong; 3 stopped on the way (wrong key, spent limit, full disk); 130
interrupted. What was paid for is in the store in every case.

Not here: what the commands do (`score_file.py`, `compare.py`, `store/`).
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, NoReturn, TypeVar

import typer

from xyreward.errors import XYRewardError

T = TypeVar("T")

FAILED, WRONG, STOPPED, INTERRUPTED = 1, 2, 3, 130

app = typer.Typer(
    help="Rewards for serving the goal behind a question.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
judge_app = typer.Typer(help="Check a judge, or see judges side by side.", no_args_is_help=True)
store_app = typer.Typer(help="Look after the verdict store.", no_args_is_help=True)
app.add_typer(judge_app, name="judge")
app.add_typer(store_app, name="store")

Items = Annotated[str, typer.Option(help="mini, a file or folder, or a hub name.")]
Store = Annotated[
    Path | None, typer.Option(help="Verdict store. [default: XYREWARD_STORE, or the cache folder]")
]
Votes = Annotated[int, typer.Option(min=1, help="How many times each answer is judged.")]
Budget = Annotated[
    float | None, typer.Option(help="Hard cap in US dollars, over all processes of the same run.")
]
RunName = Annotated[
    str | None, typer.Option("--run", help="Whose bill it is; give the same name to go on with it.")
]
Concurrency = Annotated[int, typer.Option(min=1, help="Calls in flight at a time, at most.")]
Rpm = Annotated[float | None, typer.Option("--rpm", help="Requests per minute, at most.")]
Tpm = Annotated[float | None, typer.Option("--tpm", help="Tokens per minute, at most.")]
Effort = Annotated[
    str | None, typer.Option(help="low, medium, high, xhigh or max (anthropic judges).")
]
BaseUrl = Annotated[
    str | None, typer.Option(help="Address of a Messages API other than Anthropic's.")
]


def main() -> None:
    """Entry point of the `xyreward` command."""
    with _errors():
        app()


@app.command()
def score(
    answers: Annotated[Path, typer.Argument(help="JSONL with item_id (or query) and answer.")],
    out: Annotated[Path, typer.Option(help="JSONL to write; must not exist.")],
    items: Items = "mini",
    judge: Annotated[str, typer.Option(help="A judge's name, see `xyreward judge --help`.")] = "local",
    soft: Annotated[bool, typer.Option(help="Reward from probabilities, for ranking.")] = False,
    votes: Votes = 1,
    budget_usd: Budget = None,
    run: RunName = None,
    store: Store = None,
    concurrency: Concurrency = 64,
    rpm: Rpm = None,
    tpm: Tpm = None,
    effort: Effort = None,
    base_url: BaseUrl = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the bill; send nothing.")] = False,
) -> None:
    """Score a file of answers. Goes on where an interrupted run of the same command stopped."""
    from xyreward.judges import load_judge
    from xyreward.loading import load_items
    from xyreward.reward import Reward
    from xyreward.score_file import AnswersFile, estimate_file, score_file

    chosen = load_judge(
        judge, **_options(judge, votes, budget_usd, run, store, concurrency, rpm, tpm, effort, base_url)
    )
    file = AnswersFile(answers, load_items(items))
    if dry_run:
        _print_estimate(judge, estimate_file(file, chosen))
        return
    with _bar(file.rows, chosen) as advance:
        report = _run(score_file(file, out, chosen, Reward(soft=soft), on_rows=advance))
    _say(f"{report.rows} answers in {out}")
    if report.resumed:
        _say(f"{report.resumed} of them by an earlier run")
    _say_bill(chosen)
    if report.failed:
        kinds = ", ".join(f"{kind} {n}" for kind, n in report.failed.most_common())
        _say(f"without a verdict: {sum(report.failed.values())} ({kinds}); their reward is null")
        raise typer.Exit(FAILED)


# ---------------------------------------------------------------- judges


@judge_app.command()
def check(
    judge: Annotated[str, typer.Argument(help="A judge's name.")],
    effort: Effort = None,
    base_url: BaseUrl = None,
) -> None:
    """Ask a judge two small questions before a long job: key, model, form of reply, cache, price.

    Names: local, anthropic:<model>, chat:<model>@<base_url>, panel:<judge>,<judge>, scripted:<file>.
    """
    from xyreward.preflight import preflight

    report = _run(preflight(judge, effort=effort, base_url=base_url))
    for line in report.lines:
        _say(line)
    if not report.ok:
        raise typer.Exit(FAILED)


@judge_app.command()
def compare(
    judges: Annotated[list[str], typer.Argument(help="Judges' names.")],
    items: Items = "mini",
    split: Annotated[str, typer.Option(help="train, dev or test.")] = "test",
    limit: Annotated[int | None, typer.Option(min=1, help="Items of each kind.")] = None,
    votes: Votes = 1,
    budget_usd: Budget = None,
    run: RunName = None,
    store: Store = None,
    concurrency: Concurrency = 64,
    rpm: Rpm = None,
    tpm: Tpm = None,
    effort: Effort = None,
    base_url: BaseUrl = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the bill; send nothing.")] = False,
) -> None:
    """Agreement with known labels, ranking, failures, cost: a column per judge.

    The local judge was fitted on train and dev of mini, so only test shows what it can.
    """
    from xyreward.compare import compare as compare_judges
    from xyreward.compare import labelled, to_markdown
    from xyreward.judges import load_judge
    from xyreward.judges.model import ModelJudge
    from xyreward.loading import bundled_splits, load_items
    from xyreward.splits import assign_splits

    loaded = load_items(items)
    splits = assign_splits(loaded, known=bundled_splits() if items == "mini" else None)
    chosen = labelled(splits.select(loaded, _side(split)), limit)
    loaded_judges = [
        load_judge(
            name, **_options(name, votes, budget_usd, run, store, concurrency, rpm, tpm, effort, base_url)
        )
        for name in judges
    ]
    if dry_run:
        known = [(i, r.text) for i in chosen for r in i.references if r.labels is not None]
        for name, one in zip(judges, loaded_judges, strict=True):
            found = None
            if isinstance(one, ModelJudge):
                found = one.estimate([i for i, _ in known], [text for _, text in known])
            _print_estimate(name, found)
        return
    clusters = {i.id: splits.placements[i.content_hash].cluster for i in chosen}
    figures = _run(compare_judges(loaded_judges, chosen, clusters))
    _say(f"{len(chosen)} items of {items}, side {split}; 95 % intervals over clusters of items\n")
    _say(to_markdown(figures))
    if any(f.failed for f in figures):
        raise typer.Exit(FAILED)
