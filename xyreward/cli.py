"""The command line: `xyreward score | pairs | agree | annotate | attack | judge | store`.

    xyreward score answers.jsonl --items mini --judge anthropic --out verdicts.jsonl --dry-run
    xyreward pairs --items mini --out pairs/mini
    xyreward annotate answers.jsonl --items mini --out sheet.html
    xyreward agree labels.jsonl verdicts.jsonl --record
    xyreward attack --judge local
    xyreward judge check anthropic:claude-sonnet-5-5
    xyreward judge compare local anthropic
    xyreward store info

Exit status: 0 done; 1 done, but some answers have no verdict (or a check found a problem); 2 nothing was
sent, because something given is wrong; 3 stopped on the way (wrong key, spent limit, full disk, or a
mistake of ours); 130 interrupted. What was paid for is in the store in every case.

Not here: what the commands do (`score_file.py`, `attack.py`, `compare.py`, `store/`).
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import sys
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn, TypeVar

import typer

from xyreward.cli_agree import agree, annotate
from xyreward.cli_pairs import pairs
from xyreward.errors import JudgeError, StoreError, XYRewardError, printable

if TYPE_CHECKING:  # --help is to come at once, so each command imports what it needs
    from xyreward.judges import Judge
    from xyreward.judges.asking import ModelAsker

T = TypeVar("T")

FAILED, WRONG, STOPPED, INTERRUPTED = 1, 2, 3, 130

app = typer.Typer(
    help="Rewards for serving the goal behind a question.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
judge_app = typer.Typer(
    help="Check a judge, or see judges side by side.\n\nNames: local, anthropic:<model>, "
    "chat:<model>@<base_url>, panel:<judge>,<judge>, scripted:<file>.",
    no_args_is_help=True,
)
store_app = typer.Typer(help="Look after the verdict store.", no_args_is_help=True)
app.add_typer(judge_app, name="judge")
app.add_typer(store_app, name="store")

Items = Annotated[str, typer.Option(help="mini, a file or folder, or a hub name.")]
JudgeName = Annotated[str, typer.Option(help="A judge's name, see `xyreward judge --help`.")]
Split = Annotated[str, typer.Option(help="train, dev or test.")]
Store = Annotated[
    Path | None, typer.Option(help="Verdict store. [default: XYREWARD_STORE, or the cache folder]")
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print the bill; send nothing.")]

JUDGE_OPTIONS: Mapping[str, Any] = {
    "votes": Annotated[
        int | None, typer.Option(min=1, help="How many times each answer is judged. [default: 1]")
    ],
    "budget_usd": Annotated[
        float | None,
        typer.Option(help="Hard cap in US dollars, over all processes of the same run."),
    ],
    "run": Annotated[
        str | None, typer.Option(help="Whose bill it is; give the same name to go on with it.")
    ],
    "store": Store,
    "max_concurrency": Annotated[
        int | None,
        typer.Option("--concurrency", min=1, help="Calls in flight at most. [default: 64]"),
    ],
    "requests_per_minute": Annotated[
        float | None, typer.Option("--rpm", help="Requests per minute, at most.")
    ],
    "tokens_per_minute": Annotated[
        float | None, typer.Option("--tpm", help="Tokens per minute, at most.")
    ],
    "max_tokens": Annotated[
        int | None, typer.Option(min=1, help="Limit of a reply, thinking included. [default: 4096]")
    ],
    "effort": Annotated[
        str | None, typer.Option(help="low, medium, high, xhigh or max (anthropic judges).")
    ],
    "schema": Annotated[
        str | None,
        typer.Option(help="auto, json_schema or plain: how replies are asked for. [default: auto]"),
    ],
    "base_url": Annotated[
        str | None, typer.Option(help="Address of a Messages API other than Anthropic's.")
    ],
    "batches": Annotated[
        bool | None,
        typer.Option("--batches", help="Message Batches: half the price, up to a day."),
    ],
}
"""Options of `load_judge` for judges that ask a model. None: not given, and then not handed on, so that
judges which take none can be used without them."""


def _judge_options(*names: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command these options (all where none are named); it gets those given as `options`."""

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        signature = inspect.signature(command, eval_str=True)
        own = [p for p in signature.parameters.values() if p.name != "options"]
        added = [
            inspect.Parameter(
                name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=JUDGE_OPTIONS[name]
            )
            for name in names or JUDGE_OPTIONS
        ]

        def with_options(**given: Any) -> None:
            taken = {p.name: given.pop(p.name) for p in added}
            command(**given, options={k: v for k, v in taken.items() if v is not None})

        with_options.__name__, with_options.__doc__ = command.__name__, command.__doc__
        with_options.__signature__ = signature.replace(parameters=[*own, *added])  # type: ignore[attr-defined]
        return with_options

    return decorate


def main() -> None:
    """Entry point of the `xyreward` command."""
    with _errors():
        app()


@app.command()
@_judge_options()
def score(
    answers: Annotated[Path, typer.Argument(help="JSONL with item_id (or query) and answer.")],
    *,
    out: Annotated[Path, typer.Option(help="JSONL to write; must not exist.")],
    items: Items = "mini",
    judge: JudgeName = "local",
    soft: Annotated[bool, typer.Option("--soft", help="Reward from probabilities.")] = False,
    dry_run: DryRun = False,
    options: Mapping[str, Any],
) -> None:
    """Score a file of answers. Goes on where an interrupted run of the same command stopped."""
    from xyreward.calibrate import covered_by
    from xyreward.judges import load_judge, options_of
    from xyreward.judges.asking import run_of_environment
    from xyreward.judges.panel import model_judges
    from xyreward.loading import load_items
    from xyreward.reward import Reward
    from xyreward.score_file import (
        AnswersFile,
        begun_run,
        estimate_file,
        refuse_existing,
        score_file,
    )

    if str(out) == "-":
        raise typer.BadParameter(
            "-, expected a file's name: a run that was stopped goes on from what it holds",
            param_hint="--out",
        )
    refuse_existing(out)
    if "run" in options_of(judge) and not ("run" in options or run_of_environment()):
        # The same command goes on with its bill, or each start would have the whole budget anew.
        options = {**options, "run": begun_run(out)}
    chosen = load_judge(judge, **options)
    file = AnswersFile(answers, load_items(items))
    if dry_run:
        _say(f"{judge}: {estimate_file(file, chosen) or 'makes no calls'}. Nothing was sent.")
        return
    file.check(chosen)
    if lines := file.other_queries:
        _note(
            f"{len(lines)} rows have a query that is not that of their item_id, the first is line "
            f"{lines[0]}; they are judged as answers to the item"
        )
    if file.replaced:
        _note(f"the rows' own {', '.join(file.replaced)} are replaced in {out}")
    with _sending(), _bar(file.rows, [chosen]) as advance:
        report = _run(score_file(file, out, chosen, Reward(soft=soft), on_rows=advance))
    _say(f"{report.rows} answers in {out}")
    if report.resumed:
        _say(f"{report.resumed} of them by an earlier run")
    _say_bill(model_judges(chosen))
    _say(covered_by(chosen.name, chosen.rubric_version, grounded=file.bare < file.rows))
    if report.failed:
        kinds = ", ".join(f"{kind} {n}" for kind, n in report.failed.most_common())
        text = f"without a verdict: {report.failed.total()} ({kinds}); their reward is null"
        if model_judges(chosen):
            text += ". The same with another --out asks for these alone"
        _say(text)
        raise typer.Exit(FAILED)


@app.command()
@_judge_options()
def attack(
    *,
    judge: JudgeName = "local",
    items: Items = "mini",
    split: Split = "test",
    limit: Annotated[int, typer.Option(min=1, help="Items of each kind.")] = 5,
    tries: Annotated[int, typer.Option(min=0, help="Mutations per answer in the search.")] = 64,
    seed: Annotated[int, typer.Option(help="Of the search.")] = 0,
    out: Annotated[
        Path | None, typer.Option(help="A JSON file for the report; must not exist.")
    ] = None,
    dry_run: DryRun = False,
    options: Mapping[str, Any],
) -> None:
    """What a judge pays for texts that help nobody: known attacks, and a search for better ones.

    Exit status 1 where something was paid.
    """
    import json

    from xyreward.attack import aattack, calls_needed, known_answers
    from xyreward.judges import described, load_judge
    from xyreward.judges.panel import model_judges
    from xyreward.loading import bundled_splits, load_items
    from xyreward.splits import assign_splits

    if out is not None and out.exists():
        raise typer.BadParameter(f"{out} exists; give another name", param_hint="--out")
    loaded = load_items(items)
    splits = assign_splits(loaded, known=bundled_splits() if items == "mini" else None)
    side = splits.select(loaded, _side(split))
    chosen = [i for kind in ("xy", "control") for i in [i for i in side if i.kind == kind][:limit]]
    one = load_judge(judge, **options)
    total = calls_needed(chosen, tries=tries)
    if dry_run:
        known = known_answers(chosen)
        _say(described(one, [i for i, _ in known], [text for _, text in known]))
        _say(
            f"That is for {len(known)} known attacks. The search adds {total - len(known)} answers."
        )
        return
    _check([one], chosen)
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
    with _sending(), _bar(total, [one]) as advance:
        report = _run(aattack(one, chosen, tries=tries, seed=seed, progress=advance))
    _say(report.to_markdown())
    if out is not None:
        try:
            out.write_text(json.dumps(report.to_dict(), indent=1) + "\n", "utf-8")
        except OSError as error:
            _end(error, STOPPED)
    _say_bill(model_judges(one))
    if report.paid:
        raise typer.Exit(FAILED)


app.command()(_judge_options()(pairs))
app.command()(_judge_options()(agree))
app.command()(annotate)


# ---------------------------------------------------------------- judges


@judge_app.command()
@_judge_options("max_tokens", "effort", "schema", "base_url")
def check(
    judge: Annotated[str, typer.Argument(help="A judge's name.")],
    *,
    options: Mapping[str, Any],
) -> None:
    """Ask a judge two small questions before a long job: key, model, form of reply, cache, price."""
    from xyreward.preflight import preflight

    report = _run(preflight(judge, **options))
    for line in report.lines:
        _say(line)
    if not report.ok:
        raise typer.Exit(FAILED)


@judge_app.command()
@_judge_options()
def compare(
    judges: Annotated[list[str], typer.Argument(help="Judges' names.")],
    *,
    items: Items = "mini",
    split: Split = "test",
    limit: Annotated[int | None, typer.Option(min=1, help="Items of each kind.")] = None,
    dry_run: DryRun = False,
    options: Mapping[str, Any],
) -> None:
    """Agreement with known labels, ranking, failures, cost: a column per judge.

    Each judge gets those of the options that it takes; one budget is for all of them together. The local
    judge was fitted on train and dev of mini, so only test shows what it can.
    """
    from xyreward.compare import compare as compare_judges
    from xyreward.compare import known_answers, labelled, to_markdown
    from xyreward.judges import described
    from xyreward.judges.panel import model_judges, refuse_same
    from xyreward.loading import bundled_splits, load_items
    from xyreward.splits import assign_splits

    loaded_judges = _load_all(judges, options)
    refuse_same(loaded_judges)
    loaded = load_items(items)
    splits = assign_splits(loaded, known=bundled_splits() if items == "mini" else None)
    chosen = labelled(splits.select(loaded, _side(split)), limit)
    known = known_answers(chosen)
    if dry_run:
        for one in loaded_judges:
            _say(described(one, [i for i, _ in known], [r.text for _, r in known]))
        return
    _check(loaded_judges, chosen)
    clusters = {i.id: splits.placements[i.content_hash].cluster for i in chosen}
    with _sending(), _bar(len(known) * len(judges), loaded_judges) as advance:
        figures = _run(compare_judges(loaded_judges, chosen, clusters, on_judged=advance))
    _say(f"{len(chosen)} items of {items}, side {split}; 95 % intervals over clusters of items\n")
    _say(to_markdown(figures))
    _say_bill([m for one in loaded_judges for m in model_judges(one)])
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


def _load_all(names: Sequence[str], options: Mapping[str, Any]) -> list[Judge]:
    """Judges with those of the options that each takes, and one bill."""
    from xyreward.judges import load_judge, options_of
    from xyreward.judges.asking import new_run

    taken = {name: options_of(name) for name in names}
    if unused := [option for option in options if not any(option in of for of in taken.values())]:
        raise typer.BadParameter(f"none of {', '.join(names)} takes {', '.join(unused)}")
    run = options.get("run") or new_run("compare", options.get("budget_usd"))
    given = {**options, "run": run}
    return [
        load_judge(name, **{o: v for o, v in given.items() if o in taken[name]}) for name in names
    ]


def _check(judges: Sequence[Judge], items: Sequence[Any]) -> None:
    """Find what would stop a judge while nothing was sent yet."""
    for judge in judges:
        if check := getattr(judge, "check", None):
            check(items)


def _run(work: Coroutine[Any, Any, T]) -> T:
    import asyncio

    return asyncio.run(work)


@contextmanager
def _sending() -> Iterator[None]:
    """Around what may cost money: where it stops from here on, something may have been sent."""
    from xyreward.score_file import ScoringStopped

    try:
        yield
    except (JudgeError, ScoringStopped, StoreError) as error:
        _end(error, STOPPED)
    except KeyboardInterrupt:
        _note("interrupted; what was received is kept, run the same command again to go on")
        raise typer.Exit(INTERRUPTED) from None


@contextmanager
def _errors() -> Iterator[None]:
    """An error of ours is one message and a status, not a traceback through five libraries."""
    try:
        yield
    except (XYRewardError, OSError) as error:
        _end(error, WRONG)
    except Exception:
        import traceback

        traceback.print_exc()  # a mistake of ours; Python's own status for it, 1, means another thing
        raise SystemExit(STOPPED) from None


def _end(error: Exception, status: int) -> NoReturn:
    _note(f"{type(error).__name__}: {error}")
    raise SystemExit(status) from None


def _say(text: str) -> None:
    try:
        # Some of it comes from servers and from other people's stores.
        typer.echo("\n".join(map(printable, text.split("\n"))))
    except BrokenPipeError:
        pass  # `| head` has seen enough; the status still tells how it went
    except OSError as error:
        _end(error, STOPPED)


def _note(text: str) -> None:
    with contextlib.suppress(OSError):
        typer.echo(text, err=True)


@contextmanager
def _bar(total: int, judges: Sequence[Judge | ModelAsker]) -> Iterator[Callable[[int], object]]:
    """A bar of answers on stderr, with what the judges did and what it cost; in a log a line a minute."""
    from tqdm import tqdm

    from xyreward.judges.asking import ModelAsker
    from xyreward.judges.panel import model_judges

    asking: list[ModelAsker] = []
    for judge in judges:
        asking += [judge] if isinstance(judge, ModelAsker) else model_judges(judge)
    terminal = sys.stderr is not None and sys.stderr.isatty()
    seconds = 0.1 if terminal else 60.0
    try:
        bar = tqdm(total=total, unit=" answers", disable=not sys.stderr, mininterval=seconds)
    except OSError:  # nobody reads stderr any more, which must not end a paid job
        bar = tqdm(disable=True)

    def advance(rows: int) -> None:
        if asking:
            done = [one.stats for one in asking]
            cost = f"{sum(s.cost_usd for s in done):.2f}"
            bar.set_postfix(
                {
                    "calls": sum(s.calls for s in done),
                    "store": sum(s.from_store for s in done),
                    "failed": sum(sum(s.failed.values()) for s in done),
                    "$": cost + ("+?" if any(s.unpriced_calls for s in done) else ""),
                },
                refresh=False,
            )
        try:
            bar.update(rows)
        except OSError:
            bar.disable = True

    for one in asking:
        one.on_outcome = functools.partial(advance, 0)
    try:
        yield advance
    finally:
        with contextlib.suppress(OSError):
            bar.close()


def _say_bill(judges: Sequence[ModelAsker], say: Callable[[str], object] | None = None) -> None:
    say = say or _say
    for one in judges:
        stats = one.stats
        text = f"{one.name}: {stats.calls} calls, {stats.from_store} from the store; US dollars: "
        text += _dollars(stats.cost_usd, stats.unpriced_calls)
        if stats.lost_calls:
            text += f"; {stats.lost_calls} calls without a reply are possibly billed, at most "
            text += _dollars(stats.possibly_usd, stats.unpriced_lost_calls)
        if stats.usage.input_tokens and not one.in_batches:
            read = stats.usage.cache_read_tokens
            prompt = read + stats.usage.cache_write_tokens + stats.usage.input_tokens
            text += (
                f"; {100 * read / prompt:.0f} % of the prompts' tokens came from the prompt cache"
            )
        say(text)
    for run, one in {one.run: one for one in judges}.items():
        spent = one.store.ledger.spent(run)
        text = (
            f"run {run!r} in all, US dollars: {_dollars(spent.settled_usd, spent.unpriced_calls)}"
        )
        if spent.possibly_usd:
            text += f", and possibly {spent.possibly_usd:.4f} for calls without a reply"
        say(text)


def _dollars(usd: float, unpriced: int) -> str:
    """A sum of which some calls are no part, since nobody knows what they cost."""
    if unpriced and not usd:
        return f"unknown, for {unpriced} calls of unknown price"
    return f"{usd:.4f}" + (f" and {unpriced} calls of unknown price" if unpriced else "")


def _side(name: str) -> Any:
    if name not in ("train", "dev", "test"):
        raise typer.BadParameter(f"{name!r}, expected train, dev or test", param_hint="--split")
    return name


if __name__ == "__main__":
    main()
