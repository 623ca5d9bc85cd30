"""`python -m xyreward.testing.fake_api`: serves until it is ended. Its first line is its URL."""

from __future__ import annotations

import argparse
import contextlib
import importlib
import os
import signal
import sys
import threading
from typing import Any

from xyreward.testing.fake_api.api import FakeAPI
from xyreward.testing.fake_api.faults import FAULTS, Faults


def main() -> None:
    """Parse the command line and serve."""
    parser = argparse.ArgumentParser(
        prog="python -m xyreward.testing.fake_api",
        description="A fake Messages API and chat-completions server on 127.0.0.1. "
        "Prints its URL, then serves until it is ended. Counts: GET /fake/stats.",
    )
    parser.add_argument("--port", type=int, default=0, help="0 takes a free one (default)")
    parser.add_argument("--latency", type=latency, default=0.0, help="seconds, or shortest,longest")
    parser.add_argument(
        "--faults",
        type=faults,
        default=Faults(),
        help="mix:0.3 or 529:0.1,prose:0.05 or script:529,ok; kinds: " + ", ".join(FAULTS),
    )
    parser.add_argument("--batch-faults", type=faults, default=Faults(), help="of rows")
    parser.add_argument("--batch-seconds", type=float, default=0.05)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--api-key", help="the only key that is accepted (default: any)")
    parser.add_argument("--model", action="append", help="a model that exists (default: all do)")
    parser.add_argument("--concurrency-limit", type=int, help="calls beyond it are a 429")
    parser.add_argument("--reply", type=named, help="module:function that decides what is said")
    parser.add_argument("--until-stdin-closes", action="store_true", help="end with the parent")
    given = parser.parse_args()
    with FakeAPI(
        port=given.port,
        latency=given.latency,
        faults=given.faults,
        batch_faults=given.batch_faults,
        batch_seconds=given.batch_seconds,
        seed=given.seed,
        api_key=given.api_key,
        models=given.model,
        concurrency_limit=given.concurrency_limit,
        reply=given.reply,
    ) as api:
        print(api.base_url, flush=True)  # noqa: T201  # the contract of this command
        ended = threading.Event()
        signal.signal(signal.SIGTERM, lambda *_: ended.set())
        if given.until_stdin_closes:
            threading.Thread(target=wait_for_end, args=(ended,), daemon=True).start()
        with contextlib.suppress(KeyboardInterrupt):
            ended.wait()
    sys.exit(0)


def wait_for_end(ended: threading.Event) -> None:
    """Set the event when standard input has ended."""
    # Not sys.stdin: its lock would be held while the interpreter shuts down.
    while os.read(0, 4096):
        pass
    ended.set()


def faults(text: str) -> Faults:
    """As `Faults.parse` reads them, with its message."""
    try:
        return Faults.parse(text)
    except ValueError as problem:
        raise argparse.ArgumentTypeError(str(problem)) from None


def latency(text: str) -> float | tuple[float, float]:
    """Seconds, or a pair of them with a comma."""
    first, comma, second = text.partition(",")
    return (float(first), float(second)) if comma else float(first)


def named(text: str) -> Any:
    """What `module:name` names."""
    module, _, name = text.partition(":")
    return getattr(importlib.import_module(module), name)


if __name__ == "__main__":
    main()
