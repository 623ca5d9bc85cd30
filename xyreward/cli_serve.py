"""`xyreward serve`: the command line of `serve/`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from xyreward.interrupts import INTERRUPT
from xyreward.words import noun

if TYPE_CHECKING:
    from xyreward.items import Item
    from xyreward.serve.settings import Settings

_DEFAULT = "127.0.0.1"


def serve(
    *,
    items: Annotated[str, typer.Option(help="mini, a file or folder, or a hub name.")] = "mini",
    split: Annotated[
        str, typer.Option(help="Whose items are served: train, dev, test or all.")
    ] = "train",
    splits_lock: Annotated[
        Path | None, typer.Option(help="splits.json that keeps sides stable over runs.")
    ] = None,
    judge: Annotated[
        str, typer.Option(help="A judge's name, see `xyreward judge --help`.")
    ] = "local",
    hard: Annotated[
        bool, typer.Option("--hard", help="Reward from labels. [default: from probabilities]")
    ] = False,
    host: Annotated[
        str, typer.Option(help="Where to listen; others than loopback need a token.")
    ] = _DEFAULT,
    port: Annotated[int, typer.Option(min=0, max=65535, help="0: any free one.")] = 8123,
    token_file: Annotated[
        Path | None,
        typer.Option(help="File with the token. [default: XYREWARD_SERVE_TOKEN, else no token]"),
    ] = None,
    max_body_bytes: Annotated[
        int | None, typer.Option(min=1, help="Of one request; above it 413. [default: 4194304]")
    ] = None,
    max_held_bytes: Annotated[
        int | None,
        typer.Option(min=1, help="Of all requests in work; above it 429. [default: 67108864]"),
    ] = None,
    max_answers: Annotated[
        int | None, typer.Option(min=1, help="Of one request; above it 422. [default: 256]")
    ] = None,
    max_waiting: Annotated[
        int | None,
        typer.Option(min=1, help="Answers without a verdict yet; above it 429. [default: 1024]"),
    ] = None,
    deadline_s: Annotated[
        float | None,
        typer.Option(
            help="Seconds after which a request without verdicts is a 503. [default: 150]"
        ),
    ] = None,
    read_s: Annotated[
        float | None,
        typer.Option(help="Seconds in which a body must be there, or 408. [default: 30]"),
    ] = None,
    keep_thinking: Annotated[
        bool,
        typer.Option(
            "--keep-thinking", help="Judge what OpenRLHF's answers have before </think> too."
        ),
    ] = False,
    loading: Mapping[str, Any],
    options: Mapping[str, Any],
) -> None:
    """Serve rewards over HTTP: /score, and /get_reward for OpenRLHF.

    SIGTERM and Ctrl-C end it once all that was taken is answered; a second Ctrl-C at once.
    """
    from xyreward import cli
    from xyreward.judges import check_gives_labels, load_judge
    from xyreward.judges.panel import model_judges
    from xyreward.reward import Reward
    from xyreward.serve.settings import Settings, token_of

    if split not in (*_SIDES, "all"):
        raise typer.BadParameter(
            f"{split!r}, expected train, dev, test or all", param_hint="--split"
        )
    if options.get("batches"):
        raise typer.BadParameter(
            "a message batch takes up to a day, and whoever asks waits for a reward; leave it out",
            param_hint="--batches",
        )
    given = {
        "max_body_bytes": max_body_bytes,
        "max_held_bytes": max_held_bytes,
        "max_answers": max_answers,
        "max_waiting": max_waiting,
        "deadline_s": deadline_s,
        "read_s": read_s,
    }
    settings = Settings(
        host=host,
        port=port,
        token=token_of(token_file),
        **{name: value for name, value in given.items() if value is not None},  # type: ignore[arg-type]
    )
    server, service = _needed()
    bound = server.bind(settings)
    try:
        served, held_out = _sides(items, split, splits_lock, loading)
        one = load_judge(judge, **options)
        check_gives_labels(one, "replies of the service hold labels and metrics")
        cli._check([one], served)
        for asker in model_judges(one):
            asker.check_ready()
        made = service(
            one,
            items=served,
            held_out=held_out,
            reward=Reward(soft=not hard),
            settings=settings,
            thinking=keep_thinking,
        )
        with cli._sending():
            try:
                server.run(made, bound, lambda: cli._note(_begun(made, server.address_of(bound))))
            except KeyboardInterrupt:
                INTERRUPT.end(f"interrupted; {_kept(made)}")
            finally:
                cli._say_bill(model_judges(one))
    finally:
        bound.close()


_SIDES = ("train", "dev", "test")


def _needed() -> tuple[Any, Any]:
    from xyreward.errors import MissingDependency

    try:
        import fastapi  # noqa: F401
        import prometheus_client  # noqa: F401
        import uvicorn  # noqa: F401
    except ModuleNotFoundError as error:
        raise MissingDependency(
            f"xyreward serve needs {error.name}: pip install 'xyreward[serve]'"
        ) from None
    from xyreward.serve import server
    from xyreward.serve.app import Service

    return server, Service


def _sides(
    source: str, split: str, lock: Path | None, loading: Mapping[str, Any]
) -> tuple[list[Item], list[Item]]:
    """The items that are served, and those that must not be trained on."""
    from xyreward import cli
    from xyreward.loading import bundled_splits
    from xyreward.splits import assign_splits

    loaded = cli._load_items(source, {k: v for k, v in loading.items() if k != "hub_split"})
    splits = assign_splits(loaded, lock, known=bundled_splits() if source == "mini" else None)
    chosen = cli._load_items(source, loading) if "hub_split" in loading else loaded
    if split == "all":
        return chosen, []
    side: Any = split
    held_out = [item for item in loaded if splits.side(item) not in ("train", split)]
    return list(splits.select(chosen, side)), held_out


def _begun(service: Any, address: str) -> str:
    settings: Settings = service.settings
    who = "whoever has the token" if settings.token is not None else "this machine alone, no token"
    n = len(service.catalogue)
    return (
        f"xyreward serve: {address}, for {who}; {n} items, judge {service.judge.name} "
        f"({service.judge.rubric_version})"
    )


def _kept(service: Any) -> str:
    if n := service.unanswered:
        return f"{n} {noun(n, 'answer')} of what was taken {noun(n, 'has', 'have')} no verdict"
    return "all that was taken is answered"
