"""The command line: `xyreward score | eval | pairs | compare | agree | attack | serve | judge | store | ...`.

    xyreward score answers.jsonl --items mini --judge anthropic --out verdicts.jsonl --dry-run
    xyreward eval --policy chat:qwen3.5-9b@http://127.0.0.1:8000 --judge anthropic --out runs/qwen
    xyreward pairs --items mini --out pairs/mini
    xyreward annotate answers.jsonl --items mini --out sheet.html
    xyreward agree labels.jsonl verdicts.jsonl --record
    xyreward compare runs/one runs/other
    xyreward attack --judge local
    xyreward serve --judge local
    xyreward judge check anthropic:claude-sonnet-5-5
    xyreward judge compare local anthropic
    xyreward store info

Exit status: 0 done; 1 done, but some answers have no verdict (or a check found a problem); 2 nothing was
sent, because something given is wrong; 3 stopped on the way (wrong key, spent limit, full disk, or a
mistake of ours); 130 interrupted, at whatever time. What was paid for is in the store in every case.

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
from xyreward.cli_build import GATE_OPTIONS, apply, forum, guides, review
from xyreward.cli_build import STATUSES as BUILD_STATUSES
from xyreward.cli_compare import compare as compare_runs
from xyreward.cli_compare import eval_results
from xyreward.cli_eval import evaluate
from xyreward.cli_pairs import pairs
from xyreward.cli_serve import serve
from xyreward.errors import NO_ROOM, JudgeError, StoreError, XYRewardError, printable
from xyreward.interrupts import INTERRUPT, INTERRUPTED
from xyreward.words import dollars, noun

if TYPE_CHECKING:  # --help is to come at once, so each command imports what it needs
    from xyreward.items import Item
    from xyreward.judges import Judge
    from xyreward.judges.asking import ModelAsker
    from xyreward.splits import Splits

T = TypeVar("T")

FAILED, WRONG, STOPPED = 1, 2, 3

STATUSES = (
    "Exit status: 0 every answer has a verdict; 1 some have none, or something was found; 2 something given "
    "is wrong, and nothing was sent; 3 stopped on the way (wrong key, spent limit, full disk); 130 "
    "after Ctrl-C."
)

app = typer.Typer(
    help="Rewards for serving the goal behind a question.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
judge_app = typer.Typer(
    help="Check a judge, or see judges side by side.\n\nNames: local, anthropic:<model>, "
    "chat:<model>@<base_url>, panel:<judge>,<judge>, reward_model:<folder>, "
    "scripted:<file>.",
    no_args_is_help=True,
)
store_app = typer.Typer(help="Look after the verdict store.", no_args_is_help=True)
build_app = typer.Typer(
    help="Make items of your own forum or how-to guides.",
    no_args_is_help=True,
)
app.add_typer(judge_app, name="judge")
app.add_typer(build_app, name="build")
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
    "max_wait_h": Annotated[
        float | None,
        typer.Option("--max-wait", help="Hours that one batch is waited for. [default: 25]"),
    ],
}
"""Options of `load_judge` for judges that ask a model. None: not given, and then not handed on, so that
judges which take none can be used without them."""


ITEM_OPTIONS: Mapping[str, Any] = {
    "columns": Annotated[
        list[str] | None,
        typer.Option(
            "--column",
            metavar="OURS=THEIRS",
            help="Which column of --items holds a field; may be repeated. OURS= alone: there is none.",
        ),
    ],
    "kind": Annotated[
        str | None,
        typer.Option(help="Of items without a column kind: xy or control. [default: xy]"),
    ],
    "hub_split": Annotated[
        str | None, typer.Option(help="Only items of this split of the source.")
    ],
    "revision": Annotated[str | None, typer.Option(help="Commit of a hub data set.")],
}
"""Options of `load_items` beside the source."""


def _options(
    table: Mapping[str, Any], to: str, names: Sequence[str] = ()
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command options of a table (all where none are named); it gets those given as `to`."""

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        signature = inspect.signature(command, eval_str=True)
        own = [p for p in signature.parameters.values() if p.name != to]
        added = [
            inspect.Parameter(
                name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=table[name]
            )
            for name in names or table
        ]

        def with_options(**given: Any) -> None:
            taken = {p.name: given.pop(p.name) for p in added}
            command(**given, **{to: {k: v for k, v in taken.items() if v is not None}})

        with_options.__name__, with_options.__doc__ = command.__name__, command.__doc__
        with_options.__signature__ = signature.replace(parameters=[*own, *added])  # type: ignore[attr-defined]
        return with_options

    return decorate


def _judge_options(*names: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    return _options(JUDGE_OPTIONS, "options", names)


def _item_options() -> Callable[[Callable[..., None]], Callable[..., None]]:
    return _options(ITEM_OPTIONS, "loading")


def _command(of: typer.Typer, name: str | None = None, **settings: Any) -> Callable[[T], T]:
    """As `of.command`, but the list of commands has the whole first sentence of each."""

    def add(command: Any) -> Any:
        first = " ".join((command.__doc__ or "").split("\n\n")[0].split())
        return of.command(name, short_help=first, **settings)(command)

    return add


def main() -> None:
    """Entry point of the `xyreward` command."""
    with _errors():
        app()


def _say_version(wanted: bool) -> None:
    if wanted:
        from xyreward import __version__

        _say(f"xyreward {__version__}")
        raise typer.Exit


@app.callback()
def _all_commands(
    *,
    version: Annotated[  # its callback has said it
        bool,
        typer.Option("--version", callback=_say_version, is_eager=True, help="Say it and exit."),
    ] = False,
) -> None:
    """Rewards for serving the goal behind a question."""


@_command(app, epilog=STATUSES)
@_judge_options()
@_item_options()
def score(
    answers: Annotated[Path, typer.Argument(help="JSONL with item_id (or query) and answer.")],
    *,
    out: Annotated[Path, typer.Option(help="JSONL to write; must not exist.")],
    items: Items = "mini",
    judge: JudgeName = "local",
    soft: Annotated[bool, typer.Option("--soft", help="Reward from probabilities.")] = False,
    dry_run: DryRun = False,
    loading: Mapping[str, Any],
    options: Mapping[str, Any],
) -> None:
    """Score a file of answers. The same command goes on where it was stopped."""
    from xyreward.calibrate import covered_by
    from xyreward.judges import load_judge, makes_calls, options_of
    from xyreward.judges.asking import run_of_environment
    from xyreward.judges.panel import model_judges
    from xyreward.reward import Reward
    from xyreward.score_file import (
        AnswersFile,
        begun_run,
        estimate_file,
        refuse_existing,
        score_file,
    )
    from xyreward.shown import in_words

    if str(out) == "-":
        raise typer.BadParameter(
            "-, expected a file's name: a run that was stopped goes on from what it holds",
            param_hint="--out",
        )
    refuse_existing(out)
    if "run" in options_of(judge) and not ("run" in options or run_of_environment()):
        # The same command goes on with its bill, or each start would have the whole budget anew.
        options = {**options, "run": begun_run(out)}
    # For a bill the local judge need not be loaded, which takes seconds.
    chosen = load_judge(judge, **options) if not dry_run or makes_calls(judge, options) else None
    file = AnswersFile(answers, _load_items(items, loading))
    if dry_run or chosen is None:
        bill = None if chosen is None else estimate_file(file, chosen)
        _say(f"{judge}: {bill or 'makes no calls'}. Nothing was sent.")
        return
    file.check(chosen)
    if lines := file.other_queries:
        have, whose = ("row has", "its") if len(lines) == 1 else ("rows have", "their")
        _note(
            f"{len(lines)} {have} a query that is not that of {whose} item_id, the first is line "
            f"{lines[0]}; what counts is the item"
        )
    if file.replaced:
        _note(f"the rows' own {', '.join(file.replaced)} are replaced in {out}")
    kept = KEPT if model_judges(chosen) else f"the rows in {out}.partial are kept, {AGAIN}"
    with _sending(kept), _bar(file.rows, [chosen]) as advance:
        report = _run(score_file(file, out, chosen, Reward(soft=soft), on_rows=advance))
    _say(f"{report.rows} {noun(report.rows, 'answer')} in {out}")
    if report.resumed:
        _say(f"{report.resumed} of them by an earlier run")
    failed = report.failed.total()
    text = f"judged {report.rows - report.empty - failed}, without a verdict {failed}"
    _say(f"{text}, empty {report.empty}" + (" (reward 0, no call)" if report.empty else ""))
    for name, reward in report.means().items():
        over = in_words(reward, digits=3, over="items")
        _say(
            f"mean {'soft ' if soft else ''}reward, {name}: {reward.value:.3f} ({over}), n {reward.n}"
        )
    _say_bill(model_judges(chosen))
    _say(
        covered_by(
            chosen.name, chosen.rubric_version, grounded=any(i.is_grounded for i in file.named)
        )
    )
    if report.failed:
        kinds = ", ".join(f"{kind} {n}" for kind, n in report.failed.most_common())
        text = (
            f"without a verdict: {failed} ({kinds}); {noun(failed, 'its', 'their')} reward is null"
        )
        if model_judges(chosen):
            text += f". The same with another --out asks for {noun(failed, 'this', 'these')} alone"
        _say(text)
        for kind, reason in report.reasons.items():
            _say(f"the first {kind}: {reason if len(reason) <= 400 else reason[:397] + '...'}")
        raise typer.Exit(FAILED)


@_command(app)
@_judge_options()
@_item_options()
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
    loading: Mapping[str, Any],
    options: Mapping[str, Any],
) -> None:
    """What a judge pays for texts that help nobody: known ones, and a search for better ones.

    Exit status 1 where something was paid.
    """
    import json

    from xyreward.attack import aattack, calls_needed, known_answers
    from xyreward.judges import described, load_judge, makes_calls
    from xyreward.judges.panel import model_judges
    from xyreward.whole_file import write_whole

    if out is not None and out.exists():
        raise typer.BadParameter(f"{out} exists; give another name", param_hint="--out")
    side, _ = _items_of(items, split, loading)
    chosen = [i for kind in ("xy", "control") for i in [i for i in side if i.kind == kind][:limit]]
    total = calls_needed(chosen, tries=tries)
    known = known_answers(chosen)
    asked = [i for i, _ in known], [text for _, text in known]
    if dry_run:
        if makes_calls(judge, options):
            _say(described(load_judge(judge, **options), *asked))
        else:
            _say(f"{judge}: makes no calls. Nothing was sent.")
        more = total - len(known)
        _say(
            f"That is for {len(known)} known {noun(len(known), 'attack')}. The search adds {more} "
            f"{noun(more, 'answer')}."
        )
        return
    one = load_judge(judge, **options)
    _check([one], chosen, asked)
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
    with _sending(KEPT if model_judges(one) else NOT_KEPT), _bar(total, [one]) as advance:
        report = _run(aattack(one, chosen, tries=tries, seed=seed, progress=advance))
    _say(report.to_markdown())
    if out is None:
        _say("--out FILE keeps all rows.")
    if out is not None:
        try:
            write_whole(out, json.dumps(report.to_dict(), indent=1) + "\n")
        except OSError as error:
            _end(error, STOPPED)
    _say_bill(model_judges(one))
    if report.paid:
        raise typer.Exit(FAILED)


_command(app, "eval")(_judge_options()(evaluate))
_command(app)(_judge_options()(pairs))
_command(app)(_judge_options()(agree))
_command(app)(annotate)
_command(app, "compare")(compare_runs)
_command(app, "eval-results")(eval_results)
_command(app)(_options(ITEM_OPTIONS, "loading")(_judge_options()(serve)))
_command(build_app)(review)
_command(build_app)(apply)
for _source in (forum, guides):
    _command(build_app, epilog=BUILD_STATUSES)(
        _options(GATE_OPTIONS, "gating")(
            _judge_options(*(n for n in JUDGE_OPTIONS if n != "votes"))(_source)
        )
    )


# ---------------------------------------------------------------- judges


@_command(judge_app)
@_judge_options("budget_usd", "max_tokens", "effort", "schema", "base_url")
def check(
    judge: Annotated[str, typer.Argument(help="A judge's name.")],
    *,
    dry_run: DryRun = False,
    options: Mapping[str, Any],
) -> None:
    """Ask a judge two small questions before a long job: key, model, form of reply, cache, price.

    Neither is taken from the store nor kept in it. Exit status 1 where a problem was found: also where the
    verdict on the small example, which leaves no doubt, is not the expected one.
    """
    from xyreward.preflight import described, preflight

    if dry_run:
        for line in described(judge, **options):
            _say(line)
        return
    with _sending("what was asked is asked anew by the same command", stopped=WRONG):
        report = _run(preflight(judge, **options))
    for line in report.lines:
        _say(line)
    if not report.ok:
        raise typer.Exit(FAILED)


@_command(judge_app)
@_judge_options()
@_item_options()
def compare(
    judges: Annotated[list[str], typer.Argument(help="Judges' names.")],
    *,
    items: Items = "mini",
    split: Split = "test",
    limit: Annotated[int | None, typer.Option(min=1, help="Items of each kind.")] = None,
    dry_run: DryRun = False,
    loading: Mapping[str, Any],
    options: Mapping[str, Any],
) -> None:
    """Agreement with known labels, ranking, failures, cost: a column per judge.

    Each judge gets those of the options that it takes; one budget is for all of them together. The local
    judge was fitted on train and dev of mini, so only test shows what it can.
    """
    from xyreward.compare import compare as compare_judges
    from xyreward.compare import known_answers, labelled, to_markdown
    from xyreward.judges import described, makes_calls
    from xyreward.judges.panel import model_judges, refuse_same

    free = [] if not dry_run else [name for name in judges if not makes_calls(name, {})]
    loaded_judges = _load_all(judges, options, left_out=free)
    refuse_same(loaded_judges)
    side, splits = _items_of(items, split, loading)
    chosen = labelled(side, limit)
    known = known_answers(chosen)
    asked = [i for i, _ in known], [r.text for _, r in known]
    if dry_run:
        for name in free:
            _say(f"{name}: makes no calls. Nothing was sent.")
        for one in loaded_judges:
            _say(described(one, *asked))
        return
    _check(loaded_judges, chosen, asked)
    clusters = {i.id: splits.placements[i.content_hash].cluster for i in chosen}
    asking = [m for one in loaded_judges for m in model_judges(one)]
    total = len(known) * len(judges)
    with _sending(KEPT if asking else NOT_KEPT), _bar(total, loaded_judges) as advance:
        figures = _run(compare_judges(loaded_judges, chosen, clusters, on_judged=advance))
    _say(
        f"{len(chosen)} {noun(len(chosen), 'item')} of {items}, side {split}; 95 % intervals over clusters "
        "of items\n"
    )
    _say(to_markdown(figures))
    _say_bill(asking)
    if any(f.failed for f in figures):
        raise typer.Exit(FAILED)


# ---------------------------------------------------------------- store


@_command(store_app)
def info(store: Store = None) -> None:
    """What is in the store: verdicts by judge, rubric and kind, size, spending of runs."""
    from xyreward.store import VerdictStore, store_path
    from xyreward.store.upkeep import info as look_through

    if store is None and not (path := store_path(None)).exists():
        _say(f"nothing is stored yet; {path} is made when a judge asks a model for the first time")
        return
    with VerdictStore.open(store, create=False) as opened:
        _say(str(look_through(opened)))


@_command(store_app)
def export(
    path: Annotated[Path, typer.Argument(help="A .jsonl or .parquet file.")],
    store: Store = None,
) -> None:
    """Write all verdicts to a file, to share or to keep: those of a retired judge stay usable."""
    from xyreward.store import VerdictStore, exchange

    if path.exists():
        raise StoreError(f"{path}: exists; choose another name, or remove it first")
    with VerdictStore.open(store, create=False) as opened:
        n = exchange.export(opened, path)
        _say(f"{n} {noun(n, 'record')} in {path}")


@_command(store_app, "import")
def import_(
    path: Annotated[Path, typer.Argument(help="A file that `export` wrote.")],
    store: Store = None,
) -> None:
    """Add the verdicts of a file. Those that are there already stay as they are."""
    from xyreward.store import VerdictStore, exchange

    with VerdictStore.open(store) as opened:
        added = exchange.import_(opened, path)
        _say(f"{added.added} new records; {added.present} were there already")


@_command(store_app)
def merge(
    other: Annotated[Path, typer.Argument(help="Another store, perhaps of another machine.")],
    store: Store = None,
) -> None:
    """Add the verdicts of another store, which is left as it is."""
    from xyreward.store import VerdictStore, exchange

    with VerdictStore.open(store) as opened:
        added = exchange.merge(opened, other)
        _say(f"{added.added} new records; {added.present} were there already")


@_command(store_app)
def prune(
    store: Store = None,
    judge: Annotated[str | None, typer.Option(help="Only verdicts of this judge.")] = None,
    rubric: Annotated[str | None, typer.Option(help="Only those of this rubric version.")] = None,
    before: Annotated[datetime | None, typer.Option(help="Only older ones (UTC).")] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Remove; without it only count.")] = False,
) -> None:
    """Remove verdicts. They were paid for: `export` first if in doubt."""
    from xyreward.judges import names_in_store
    from xyreward.store import VerdictStore
    from xyreward.store.upkeep import prune as remove
    from xyreward.store.upkeep import values_of

    if judge is None and rubric is None and before is None:
        raise StoreError(
            "prune needs --judge, --rubric or --before. To remove all, delete the file with its -wal and "
            "-shm while nobody uses it."
        )
    since = None if before is None else before.replace(tzinfo=UTC)
    with VerdictStore.open(store, create=False) as opened:
        wanted: list[dict[str, str]] = [{}]
        for name, given in (("judge", judge), ("rubric_version", rubric)):
            if given is None:
                continue
            there = values_of(opened, name)
            spelled = names_in_store(given) if name == "judge" else {given}
            if not (found := [value for value in there if value in spelled]):
                have = f"there is {', '.join(there)}" if there else "it is empty"
                raise StoreError(
                    f"{opened.path}: no record has {name.replace('_', ' ')} {given!r}; {have}"
                )
            wanted = [{**identity, name: value} for identity in wanted for value in found]
        n = sum(
            remove(opened, identity=identity, before=since, dry_run=not yes).removed
            for identity in wanted
        )
        done = "removed" if yes else "would be removed; add --yes to do it"
        _say(f"{n} {noun(n, 'record')} {done}")


# ---------------------------------------------------------------- what the commands share


KEPT = "what was received is kept, run the same command again to go on"
AGAIN = "run the same command again to go on"
NOT_KEPT = "nothing was paid and nothing is kept; the same command begins anew"


def _load_items(source: str, loading: Mapping[str, Any]) -> list[Item]:
    """`load_items` with what `ITEM_OPTIONS` were given."""
    from xyreward.loading import load_items

    given = dict(loading)
    if given.get("kind", "xy") not in ("xy", "control"):
        raise typer.BadParameter(f"{given['kind']!r}, expected xy or control", param_hint="--kind")
    columns: dict[str, str | None] = {}
    for text in given.pop("columns", None) or ():
        ours, equals, theirs = text.partition("=")
        if not equals or not ours.strip() or ours.strip() in columns:
            why = "names a field for the second time" if equals and ours.strip() else "has no ="
            raise typer.BadParameter(
                f"{text!r} {why}, expected OURS=THEIRS such as stated_request=question_y",
                param_hint="--column",
            )
        columns[ours.strip()] = theirs.strip() or None
    return load_items(source, columns=columns, **given)


def _items_of(source: str, side: str, loading: Mapping[str, Any]) -> tuple[list[Item], Splits]:
    """Items of one side, and the sides of all. A side does not depend on --hub-split."""
    from xyreward.loading import bundled_splits
    from xyreward.splits import assign_splits

    name = _side(side)
    loaded = _load_items(source, {k: v for k, v in loading.items() if k != "hub_split"})
    splits = assign_splits(loaded, known=bundled_splits() if source == "mini" else None)
    if "hub_split" in loading:
        loaded = _load_items(source, loading)
    return list(splits.select(loaded, name)), splits


def _load_all(
    names: Sequence[str], options: Mapping[str, Any], left_out: Sequence[str] = ()
) -> list[Judge]:
    """Judges with those of the options that each takes, and one bill; without those `left_out`."""
    from xyreward.judges import load_judge, options_of
    from xyreward.judges.asking import new_run

    taken = {name: options_of(name) for name in names}
    if unused := [option for option in options if not any(option in of for of in taken.values())]:
        raise typer.BadParameter(f"none of {', '.join(names)} takes {', '.join(unused)}")
    run = options.get("run") or new_run("compare", options.get("budget_usd"))
    given = {**options, "run": run}
    return [
        load_judge(name, **{o: v for o, v in given.items() if o in taken[name]})
        for name in names
        if name not in left_out
    ]


def _check(
    judges: Sequence[Judge],
    items: Sequence[Any],
    asked: tuple[Sequence[Any], Sequence[str]] = ((), ()),
) -> None:
    """Find what would stop a judge while nothing was sent yet."""
    from xyreward.judges.panel import refuse_small_budget

    for judge in judges:
        if check := getattr(judge, "check", None):
            check(items)
        refuse_small_budget(judge, *asked)


def _run(work: Coroutine[Any, Any, T]) -> T:
    import asyncio

    return asyncio.run(work)


@contextmanager
def _sending(kept: str = KEPT, *, stopped: int = STOPPED) -> Iterator[None]:
    """Around what may cost money: where it stops from here on, something may have been sent.

    Args:
        kept: what is true after Ctrl-C.
        stopped: the status where the judge, the store or the disk stops it.
    """
    from xyreward.score_file import ScoringStopped

    if INTERRUPT.came:
        raise KeyboardInterrupt
    watching = INTERRUPT.watching
    INTERRUPT.unwatch()
    try:
        yield
    except (JudgeError, ScoringStopped, StoreError) as error:
        _end(error, stopped)
    except OSError as error:
        if error.errno not in NO_ROOM:
            raise
        _end(error, stopped)
    except KeyboardInterrupt:
        INTERRUPT.end(f"interrupted; {kept}")
    finally:
        if watching:
            INTERRUPT.watch()


@contextmanager
def _errors() -> Iterator[None]:
    """An error of ours is one message and a status, not a traceback through five libraries."""
    if not INTERRUPT.watching:
        INTERRUPT.forget()
        INTERRUPT.watch()
    try:
        yield
    except KeyboardInterrupt:
        INTERRUPT.end()
    except SystemExit as end:
        if (
            INTERRUPT.came or end.code == INTERRUPTED
        ):  # typer has that status too, and no word for it
            INTERRUPT.end()
        raise
    except (XYRewardError, OSError) as error:
        if INTERRUPT.came:
            INTERRUPT.end()
        _end(error, WRONG)
    except Exception:
        if INTERRUPT.came:
            INTERRUPT.end()
        import traceback

        traceback.print_exc()  # a mistake of ours; Python's own status for it, 1, means another thing
        raise SystemExit(STOPPED) from None
    finally:
        INTERRUPT.unwatch()


def _end(error: Exception, status: int) -> NoReturn:
    _note(f"{type(error).__name__}: {error}")
    raise SystemExit(status) from None


def _say(text: str) -> None:
    try:
        typer.echo(_harmless(text))
    except BrokenPipeError:
        pass  # `| head` has seen enough; the status still tells how it went
    except OSError as error:
        _end(error, STOPPED)


def _note(text: str) -> None:
    with contextlib.suppress(OSError):
        typer.echo(_harmless(text), err=True)


def _harmless(text: str) -> str:
    """Some of what is said comes from servers, files and other people's stores."""
    return "\n".join(map(printable, text.split("\n")))


@contextmanager
def _bar(total: int, judges: Sequence[Judge | ModelAsker]) -> Iterator[Callable[[int], object]]:
    """A bar of answers on stderr, with what the judges did and what it cost; in a log a line a minute."""
    from tqdm import tqdm

    weights = [one for judge in judges for one in _weights(judge)]
    asking = [one for one, _ in weights]
    terminal = sys.stderr is not None and sys.stderr.isatty()
    seconds = 0.1 if terminal else 60.0
    try:
        bar = tqdm(total=total, unit=" answers", disable=not sys.stderr, mininterval=seconds)
    except OSError:  # nobody reads stderr any more, which must not end a paid job
        bar = tqdm(disable=True)
    lots = shown = 0.0
    accounted = sum(one.stats.decided * weight for one, weight in weights)  # before this bar

    def advance(rows: int) -> None:
        nonlocal lots, accounted, shown
        # Rows come in whole lots; between two of them the questions that were decided are what is known.
        decided = sum(one.stats.decided * weight for one, weight in weights)
        lots += rows
        accounted += min(rows, decided - accounted)
        now = max(shown, min(lots + decided - accounted, total))
        moved, shown = int(now + 1e-6) - int(shown + 1e-6), now
        if asking:
            done = [one.stats for one in asking]
            usd, unpriced = sum(s.cost_usd for s in done), any(s.unpriced_calls for s in done)
            bar.set_postfix(
                {
                    "calls": sum(s.calls for s in done),
                    "store": sum(s.from_store for s in done),
                    "failed": sum(sum(s.failed.values()) for s in done),
                    "$": f"{usd:.2f}{'+?' * unpriced}" if usd or not unpriced else "?",
                },
                refresh=False,
            )
        try:
            bar.update(moved)
        except OSError:
            bar.disable = True

    for one in asking:
        one.on_outcome = functools.partial(advance, 0)
    try:
        yield advance
    finally:
        with contextlib.suppress(OSError):
            bar.close()


def _weights(judge: Judge | ModelAsker) -> list[tuple[ModelAsker, float]]:
    """Who asks, and what part of an answer one of the questions is: votes, members of a panel."""
    from xyreward.judges.asking import ModelAsker
    from xyreward.judges.model import ModelJudge
    from xyreward.judges.panel import model_judges

    if isinstance(judge, ModelAsker) and not isinstance(judge, ModelJudge):
        return [(judge, 1.0)]
    judges = model_judges(judge)
    return [(one, 1 / sum(m.votes for m in judges)) for one in judges]


def _say_bill(
    judges: Sequence[ModelAsker],
    say: Callable[[str], object] | None = None,
    *,
    roles: Sequence[str] = (),
) -> None:
    """What each of them did and what it cost, a line each, and a line per run. `roles`: what each was for."""
    from xyreward.store.upkeep import bill

    say = say or _say
    for n, one in enumerate(judges):
        stats = one.stats
        text = f"{roles[n]}, " if roles else ""
        text += f"{one.name}: {stats.calls} {noun(stats.calls, 'call')}, {stats.from_store} from the store; "
        text += f"US dollars: {dollars(stats.cost_usd, stats.unpriced_calls)}"
        if n := stats.lost_calls:
            text += f"; {n} {noun(n, 'call')} without a reply {noun(n, 'is', 'are')} possibly billed, at "
            text += "most " + dollars(stats.possibly_usd, stats.unpriced_lost_calls)
        if stats.usage.input_tokens and not one.in_batches:
            read = stats.usage.cache_read_tokens
            prompt = read + stats.usage.cache_write_tokens + stats.usage.input_tokens
            text += (
                f"; {100 * read / prompt:.0f} % of the prompts' tokens came from the prompt cache"
            )
        say(text)
    for run, one in {one.run: one for one in judges}.items():
        say(f"run {run!r} in all, US dollars: {bill(one.store.ledger.spent(run))}")


def _side(name: str) -> Any:
    if name not in ("train", "dev", "test"):
        raise typer.BadParameter(f"{name!r}, expected train, dev or test", param_hint="--split")
    return name


if __name__ == "__main__":
    main()
