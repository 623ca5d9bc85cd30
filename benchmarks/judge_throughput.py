"""Verdicts per second of a judge that asks a model, beside the least and beside its peers.

    python benchmarks/judge_throughput.py [--verifiers-python P] [--inspect-python P]

The fake API, in a process of its own, answers each call after 100 ms. In turns, 64 calls at a time:
a bare loop of AsyncAnthropic that sends the same bodies and reads no verdict; our judge with a new
store, which builds the requests, claims, reserves, reads and keeps each verdict; the same with
default limits, which begin with 8 places. Then the judges of `verifiers` and `inspect_ai`, whose
Pythons are given: the same texts as chat completions, as one message of a user.

Then without HTTP: 8,115 verdicts into a store, and scored from it. CPU is that of this process.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import os
import random
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from fake_api import cpu_seconds
from judge_peers import MODEL
from splits import machine

from xyreward import rubric, score
from xyreward.dispatch import Limits
from xyreward.items import Item
from xyreward.judges.anthropic import AnthropicEndpoint
from xyreward.judges.calls import Call, Reply
from xyreward.judges.model import ModelJudge
from xyreward.loading import load_items
from xyreward.testing import FakeAPIProcess
from xyreward.testing.fake_api.replies import fill
from xyreward.verdict import Usage, Verdict

STORED = 8_115  # items of XYBench
Pairs = Sequence[tuple[Item, str]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--answers", type=int, default=3_000)
    parser.add_argument("--peer-answers", type=int, default=320)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--concurrency", type=int, default=64)
    parser.add_argument("--latency", type=float, default=0.1, help="seconds")
    parser.add_argument("--verifiers-python", help="of an environment that has verifiers")
    parser.add_argument("--inspect-python", help="of one that has inspect_ai and openai")
    args = parser.parse_args()

    os.environ["ANTHROPIC_API_KEY"] = "any"
    # For `--reply`: the server imports judge_peers.
    paths = [str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    print(machine())
    side_by_side(args)
    without_http()


# ---------------------------------------------------------------- with HTTP


def side_by_side(args: argparse.Namespace) -> None:
    pairs = answers(args.answers)
    n = args.concurrency
    peers = {"verifiers": args.verifiers_python, "inspect_ai": args.inspect_python}
    for name, python in peers.items():
        if python is None:
            print(f"{name}: skipped, its Python was not given")
    with (
        FakeAPIProcess("--latency", str(args.latency), "--reply", "judge_peers:reply") as api,
        tempfile.TemporaryDirectory() as folder,
    ):
        url = api.base_url
        prompts = Path(folder, "prompts.jsonl")
        calls = [call_of(item, answer) for item, answer in pairs[: args.peer_answers]]
        lines = [rubric.prefix("xy"), *(call.text for call in calls)]
        prompts.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")

        ways: dict[str, Callable[[], Mapping[str, float]]] = {
            "bare AsyncAnthropic": lambda: bare(url, pairs, n),
            "our judge": lambda: ours(url, pairs, Limits(max_concurrency=n, start_concurrency=n)),
            "ours, default ramp": lambda: ours(url, pairs, Limits(max_concurrency=n)),
        }
        for name, python in peers.items():
            if python is not None:
                ways[name] = lambda name=name, python=python: peer(python, name, url, prompts, n)  # type: ignore[misc]
        bare(url, pairs[:n], n)  # imports, and the server's first connections
        found: dict[str, list[Mapping[str, float]]] = {name: [] for name in ways}
        before = cpu_seconds(api.pid), api.stats.delivered
        for _ in range(args.repeats):
            for name, way in ways.items():
                gc.collect()
                found[name].append(way())
        delivered = api.stats.delivered - before[1]
        server = (cpu_seconds(api.pid) - before[0]) / delivered
    print(
        f"\n{len(pairs):,} answers ({args.peer_answers} of peers), {n} at a time, {args.latency:g} s "
        f"of latency: at most {n / args.latency:.0f}/s; medians of {args.repeats} (range)\n"
        f"{'':22}{'verdicts/s':>22}{'ms of CPU each':>22}   of the bare loop: speed, CPU"
    )
    base = found["bare AsyncAnthropic"]
    for name, runs in found.items():
        shares = [ratio(runs, base, key) for key in ("rate", "cpu_ms")]
        print(
            f"{name:22}{span([r['rate'] for r in runs], 0):>22}"
            f"{span([r['cpu_ms'] for r in runs], 2):>22}   {shares[0]:.1%}, {shares[1]:.2f} times"
        )
    print(
        f"aim: our judge at least 90 % of the bare loop's speed. The server took {1000 * server:.2f} ms "
        f"of CPU per call, so it answers at most {1 / server:.0f}/s"
    )


def answers(n: int) -> Pairs:
    """Distinct answers: the reference answers of the bundled items with hidden goals, numbered."""
    known = [(i, r.text) for i in load_items("mini") if i.kind == "xy" for r in i.references]
    return [(item, f"{text} ({k})") for k in range(n // len(known) + 1) for item, text in known][:n]


def call_of(item: Item, answer: str) -> Call:
    grounding = rubric.Grounding.of(item)
    assert grounding is not None
    return rubric.verdict_call(item, grounding, answer)


def bare(url: str, pairs: Pairs, concurrency: int) -> Mapping[str, float]:
    from anthropic import AsyncAnthropic, DefaultAsyncHttpxClient

    endpoint = AnthropicEndpoint(MODEL, base_url=url, schema="json_schema")
    bodies = iter([endpoint.body(call_of(*pair)) for pair in pairs])

    async def run() -> None:
        async with AsyncAnthropic(
            base_url=url, max_retries=0, http_client=DefaultAsyncHttpxClient(trust_env=False)
        ) as client:

            async def worker() -> None:
                for body in bodies:
                    await client.messages.create(**body)

            await asyncio.gather(*(worker() for _ in range(concurrency)))

    return timed(lambda: asyncio.run(run()), len(pairs))


def ours(url: str, pairs: Pairs, limits: Limits) -> Mapping[str, float]:
    items, texts = [item for item, _ in pairs], [text for _, text in pairs]
    with tempfile.TemporaryDirectory() as folder:
        endpoint = AnthropicEndpoint(MODEL, base_url=url, schema="json_schema")
        judge = ModelJudge(endpoint, store=Path(folder, "verdicts.sqlite"), limits=limits)

        def run() -> None:
            outcomes = asyncio.run(judge.judge(items, texts))
            assert all(isinstance(outcome, Verdict) for outcome in outcomes)

        found = timed(run, len(pairs))
        assert judge.stats.calls == len(pairs)
        judge.store.close()
    return found


def peer(python: str, name: str, url: str, prompts: Path, concurrency: int) -> Mapping[str, float]:
    script = Path(__file__).with_name("judge_peers.py")
    # Not our path: what is imported there shall be what is installed there.
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    done = subprocess.run(
        [python, script, name.partition("_")[0], url, prompts, str(concurrency)],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        env={**environment, "NO_PROXY": "127.0.0.1"},
    )
    found = json.loads(done.stdout.splitlines()[-1])
    return {
        "rate": found["calls"] / found["seconds"],
        "cpu_ms": 1000 * found["cpu"] / found["calls"],
    }


def timed(run: Callable[[], None], calls: int) -> Mapping[str, float]:
    wall, cpu = time.perf_counter(), time.process_time()
    run()
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    return {"rate": calls / wall, "cpu_ms": 1000 * cpu / calls}


def ratio(
    runs: Sequence[Mapping[str, float]], base: Sequence[Mapping[str, float]], key: str
) -> float:
    """The median of the quotients of each repeat, since a slow moment hits both of one."""
    return statistics.median(r[key] / b[key] for r, b in zip(runs, base, strict=True))


def span(values: Sequence[float], digits: int) -> str:
    low, middle, high = min(values), statistics.median(values), max(values)
    return f"{middle:.{digits}f} ({low:.{digits}f}-{high:.{digits}f})"


# ---------------------------------------------------------------- without HTTP


class Scripted(AnthropicEndpoint):
    """Replies at once, with what was written beforehand."""

    def __init__(self, replies: Mapping[str, Reply]) -> None:
        super().__init__(MODEL, schema="json_schema")
        self._replies = replies

    async def send(self, call: Call, *, timeout: float) -> Reply:  # noqa: ARG002
        return self._replies[call.text]


def without_http() -> None:
    pairs = answers(STORED)
    items, texts = [item for item, _ in pairs], [text for _, text in pairs]
    draws = random.Random(0)
    replies = {}
    for item, answer in pairs:
        call = call_of(item, answer)
        text = json.dumps(fill(call.schema, draws, answer))
        replies[call.text] = Reply(text, Usage(1_000, 300, 4_500, 0), model=MODEL)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "verdicts.sqlite")

        def scored() -> None:
            judge = ModelJudge(Scripted(replies), store=path)
            assert all(one.verdict is not None for one in score(items, texts, judge))
            judge.store.close()

        gc.collect()
        cold = timed(scored, STORED)
        warm = []
        for _ in range(5):
            gc.collect()
            warm.append(timed(scored, STORED))
    print(f"\nwithout HTTP: {cold['cpu_ms']:.2f} ms of CPU per new verdict, all in")
    seconds = [STORED / run["rate"] for run in warm]
    cpu = [run["cpu_ms"] * STORED / 1000 for run in warm]
    print(
        f"{STORED:,} verdicts read back and scored in {span(seconds, 2)} s, "
        f"{span(cpu, 2)} s of CPU   (aim: at most 0.5 s)"
    )


if __name__ == "__main__":
    main()
