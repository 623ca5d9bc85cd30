"""The command line: `xyreward score | attack | judge | store`.

    xyreward score answers.jsonl --items mini --judge anthropic --out verdicts.jsonl --dry-run
    xyreward attack --judge local
    xyreward judge check anthropic:claude-sonnet-5-5
    xyreward judge compare local anthropic
    xyreward store info

Exit status: 0 done; 1 done, but some answers have no verdict (or a check found a problem); 2 nothing was
sent, because something given is wrong; 3 stopped on the way (wrong key, spent limit, full disk); 130
interrupted. What was paid for is in the store in every case.

Not here: what the commands do (`score_file.py`, `attack.py`, `compare.py`, `store/`).
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, NoReturn, TypeVar

import typer

from xyreward.errors import StoreError, XYRewardError

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
    judge: Annotated[
        str, typer.Option(help="A judge's name, see `xyreward judge --help`.")
    ] = "local",
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
    batches: Annotated[
        bool, typer.Option("--batches", help="Message Batches: half the price, up to a day.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the bill; send nothing.")
    ] = False,
) -> None:
    """Score a file of answers. Goes on where an interrupted run of the same command stopped."""
    from xyreward.judges import load_judge
    from xyreward.judges.model import ModelJudge
    from xyreward.loading import load_items
    from xyreward.reward import Reward
    from xyreward.score_file import AnswersFile, estimate_file, score_file

    options = _options(votes, budget_usd, run, store, concurrency, rpm, tpm, effort, base_url)
    if batches:
        options["batches"] = True
    chosen = load_judge(judge, **options)
    file = AnswersFile(answers, load_items(items))
    if dry_run:
        _say(f"{judge}: {estimate_file(file, chosen) or 'makes no calls'}. Nothing was sent.")
        return
    if isinstance(chosen, ModelJudge):
        chosen.check([])  # its key and its store, before a bar is shown
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


@app.command()
def attack(
    judge: Annotated[
        str, typer.Option(help="A judge's name, see `xyreward judge --help`.")
    ] = "local",
    items: Items = "mini",
    split: Annotated[str, typer.Option(help="train, dev or test.")] = "test",
    limit: Annotated[int, typer.Option(min=1, help="Items of each kind.")] = 5,
    tries: Annotated[int, typer.Option(min=0, help="Mutations per answer in the search.")] = 64,
    seed: Annotated[int, typer.Option(help="Of the search.")] = 0,
    out: Annotated[
        Path | None, typer.Option(help="A JSON file for the report; must not exist.")
    ] = None,
    votes: Votes = 1,
    budget_usd: Budget = None,
    run: RunName = None,
    store: Store = None,
    concurrency: Concurrency = 64,
    rpm: Rpm = None,
    tpm: Tpm = None,
    effort: Effort = None,
    base_url: BaseUrl = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the bill; send nothing.")
    ] = False,
) -> None:
    """What a judge pays for texts that help nobody: known attacks, and a search for better ones.

    Exit status 1 where something was paid.
    """
    import json

    from xyreward.attack import aattack, calls_needed, known_answers
    from xyreward.judges import described, load_judge
    from xyreward.loading import bundled_splits, load_items
    from xyreward.splits import assign_splits

    if out is not None and out.exists():
        raise typer.BadParameter(f"{out} exists; give another name", param_hint="--out")
    loaded = load_items(items)
    splits = assign_splits(loaded, known=bundled_splits() if items == "mini" else None)
    side = splits.select(loaded, _side(split))
    chosen = [i for kind in ("xy", "control") for i in [i for i in side if i.kind == kind][:limit]]
    one = load_judge(
        judge, **_options(votes, budget_usd, run, store, concurrency, rpm, tpm, effort, base_url)
    )
    total = calls_needed(chosen, tries=tries)
    if dry_run:
        known = known_answers(chosen)
        _say(described(one, [i for i, _ in known], [text for _, text in known]))
        _say(
            f"That is for {len(known)} known attacks. The search adds {total - len(known)} answers."
        )
        return
    with _bar(total, one) as advance:
        report = _run(aattack(one, chosen, tries=tries, seed=seed, progress=advance))
    _say(report.to_markdown())
    if out is not None:
        out.write_text(json.dumps(report.to_dict(), indent=1) + "\n", "utf-8")
    _say_bill(one)
    if report.paid:
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
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the bill; send nothing.")
    ] = False,
) -> None:
    """Agreement with known labels, ranking, failures, cost: a column per judge.

    The local judge was fitted on train and dev of mini, so only test shows what it can.
    """
    from xyreward.compare import compare as compare_judges
    from xyreward.compare import labelled, to_markdown
    from xyreward.judges import described, load_judge
    from xyreward.loading import bundled_splits, load_items
    from xyreward.splits import assign_splits

    loaded = load_items(items)
    splits = assign_splits(loaded, known=bundled_splits() if items == "mini" else None)
    chosen = labelled(splits.select(loaded, _side(split)), limit)
    options = _options(votes, budget_usd, run, store, concurrency, rpm, tpm, effort, base_url)
    loaded_judges = [
        load_judge(name, **(options if _asks_a_model(name) else {})) for name in judges
    ]
    if dry_run:
        known = [(i, r.text) for i in chosen for r in i.references if r.labels is not None]
        for one in loaded_judges:
            _say(described(one, [i for i, _ in known], [text for _, text in known]))
        return
    clusters = {i.id: splits.placements[i.content_hash].cluster for i in chosen}
    figures = _run(compare_judges(loaded_judges, chosen, clusters))
    _say(f"{len(chosen)} items of {items}, side {split}; 95 % intervals over clusters of items\n")
    _say(to_markdown(figures))
    if any(f.failed for f in figures):
        raise typer.Exit(FAILED)


# ---------------------------------------------------------------- store


@store_app.command()
def info(store: Store = None) -> None:
    """What is in the store: verdicts by judge, rubric and kind, size, spending of runs."""
    from xyreward.store import VerdictStore
    from xyreward.store.upkeep import info as look_through

    with VerdictStore.open(store, create=False) as opened:
        _say(str(look_through(opened)))


@store_app.command()
def export(
    path: Annotated[Path, typer.Argument(help="A .jsonl or .parquet file.")],
    store: Store = None,
) -> None:
    """Write all verdicts to a file, to share or to keep: those of a retired judge stay usable."""
    from xyreward.store import VerdictStore, exchange

    if path.exists():
        raise StoreError(f"{path}: exists; choose another name, or remove it first")
    with VerdictStore.open(store, create=False) as opened:
        _say(f"{exchange.export(opened, path)} records in {path}")


@store_app.command("import")
def import_(
    path: Annotated[Path, typer.Argument(help="A file that `export` wrote.")],
    store: Store = None,
) -> None:
    """Add the verdicts of a file. Those that are there already stay as they are."""
    from xyreward.store import VerdictStore, exchange

    with VerdictStore.open(store) as opened:
        added = exchange.import_(opened, path)
        _say(f"{added.added} new records; {added.present} were there already")


@store_app.command()
def merge(
    other: Annotated[Path, typer.Argument(help="Another store, perhaps of another machine.")],
    store: Store = None,
) -> None:
    """Add the verdicts of another store, which is left as it is."""
    from xyreward.store import VerdictStore, exchange

    with VerdictStore.open(store) as opened:
        added = exchange.merge(opened, other)
        _say(f"{added.added} new records; {added.present} were there already")


@store_app.command()
def prune(
    store: Store = None,
    judge: Annotated[str | None, typer.Option(help="Only verdicts of this judge.")] = None,
    rubric: Annotated[str | None, typer.Option(help="Only those of this rubric version.")] = None,
    before: Annotated[datetime | None, typer.Option(help="Only older ones (UTC).")] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Remove; without it only count.")] = False,
) -> None:
    """Remove verdicts. They were paid for: `export` first if in doubt."""
    from xyreward.store import VerdictStore
    from xyreward.store.upkeep import prune as remove

    wanted = {"judge": judge, "rubric_version": rubric}
    identity = {name: value for name, value in wanted.items() if value is not None}
    if not identity and before is None:
        raise StoreError(
            "prune needs --judge, --rubric or --before. To remove all, delete the file with its -wal and "
            "-shm while nobody uses it."
        )
    since = None if before is None else before.replace(tzinfo=UTC)
    with VerdictStore.open(store, create=False) as opened:
        pruned = remove(opened, identity=identity or None, before=since, dry_run=not yes)
        done = "removed" if yes else "would be removed; add --yes to do it"
        _say(f"{pruned.removed} records {done}")


# ---------------------------------------------------------------- what the commands share


def _options(
    votes: int,
    budget_usd: float | None,
    run: str | None,
    store: Path | None,
    concurrency: int,
    rpm: float | None,
    tpm: float | None,
    effort: str | None,
    base_url: str | None,
) -> dict[str, Any]:
    """Options of `load_judge`: those that differ from the defaults, so that `local` takes them as well."""
    given = {
        "votes": votes if votes != 1 else None,
        "budget_usd": budget_usd,
        "run": run,
        "store": store,
        "max_concurrency": concurrency if concurrency != 64 else None,
        "requests_per_minute": rpm,
        "tokens_per_minute": tpm,
        "effort": effort,
        "base_url": base_url,
    }
    return {name: value for name, value in given.items() if value is not None}


def _asks_a_model(judge: str) -> bool:
    return judge.partition(":")[0] in ("anthropic", "chat", "panel")


def _say(text: str) -> None:
    typer.echo(text)


def _run(work: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(work)


@contextmanager
def _errors() -> Iterator[None]:
    """An error of ours is one message and a status, not a traceback through five libraries."""
    from xyreward.judges.calls import JudgeStopped

    try:
        yield
    except JudgeStopped as error:
        _end(error, STOPPED)
    except (XYRewardError, FileNotFoundError) as error:
        _end(error, WRONG)
    except KeyboardInterrupt:
        typer.echo(
            "interrupted; verdicts received until now are in the store, run again to go on",
            err=True,
        )
        raise SystemExit(INTERRUPTED) from None


def _end(error: Exception, status: int) -> NoReturn:
    typer.echo(f"{type(error).__name__}: {error}", err=True)
    raise SystemExit(status) from None


@contextmanager
def _bar(total: int, judge: Any) -> Iterator[Callable[[int], object]]:
    """A bar of rows on stderr, with what the judge did and what it cost."""
    from tqdm import tqdm

    with tqdm(total=total, unit=" answers", disable=None if sys.stderr.isatty() else False) as bar:
        stats = getattr(judge, "stats", None)

        def decided() -> None:
            if stats is None:
                return
            bar.set_postfix(
                {
                    "store": stats.from_store,
                    "failed": sum(stats.failed.values()),
                    "$": f"{stats.cost_usd:.2f}" + ("+?" if stats.unpriced_calls else ""),
                },
                refresh=False,
            )
            bar.update(0)

        if stats is not None:
            judge.on_outcome = decided

        def advance(rows: int) -> None:
            bar.update(rows)

        yield advance


def _say_bill(judge: Any) -> None:
    stats = getattr(judge, "stats", None)
    if stats is None:
        return
    text = (
        f"{stats.calls} calls, {stats.from_store} from the store; US dollars: {stats.cost_usd:.4f}"
    )
    if stats.unpriced_calls:
        text += f" and {stats.unpriced_calls} calls of unknown price"
    if stats.lost_calls:
        text += (
            f"; {stats.lost_calls} calls without a reply are possibly billed, at most "
            f"{stats.possibly_usd:.4f}"
        )
    spent = judge.store.ledger.spent(judge.run)
    _say(f"{text}. Run {judge.run!r} in all: {spent.settled_usd:.4f}")


def _side(name: str) -> Any:
    if name not in ("train", "dev", "test"):
        raise typer.BadParameter(f"{name!r}, expected train, dev or test", param_hint="--split")
    return name


if __name__ == "__main__":
    main()
