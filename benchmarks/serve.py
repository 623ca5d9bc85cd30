"""The reward service under load: 200 clients, each with a request at a time, until 10,000 are answered.

    python benchmarks/serve.py [--judge scripted] [--judge local] [--clients 200] [--requests 10000]

The service is a process of its own, as `xyreward serve` starts it; the clients are one process beside it,
with a connection each that stays open. Every request has one answer, and what comes back is compared with
what that answer is worth: a lost, doubled or exchanged one shows. A client that is told 429, or 503,
asks again after Retry-After.

Rows: the service; the same with room for 64 answers only, so that most requests meet a full queue; and, for
its cost, the least that one would write instead: ten lines of FastAPI around `ascore()`, without token,
limits, counts or an orderly end. Seconds are those of requests that were scored, from sending to the last
byte; those of 429 apart. Memory is the most that the service's process had (VmHWM), less what it had before
the first request.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from splits import machine

from xyreward import Reward, score
from xyreward.items import Item
from xyreward.loading import bundled_splits, load_items

Rows = Sequence[tuple[str, str, float | None]]
"""Item id, answer, and its reward where it is known before."""

BARE = """
import sys
import uvicorn
from fastapi import FastAPI
from xyreward import Reward, ascore, load_items, load_judge

judge, items = load_judge(sys.argv[1]), {item.id: item for item in load_items("mini")}
app = FastAPI()

@app.post("/score")
async def score(body: dict) -> dict:
    rows = body["rows"]
    scores = await ascore(
        [items[r["item_id"]] for r in rows], [r["answer"] for r in rows], judge, Reward(soft=True)
    )
    return {"results": [{"reward": s.reward} for s in scores]}

uvicorn.run(app, port=int(sys.argv[2]), log_level="warning")
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--judge", action="append", choices=["scripted", "local"])
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--only", choices=["service", "full", "bare"], action="append")
    args = parser.parse_args()
    print(machine())
    print()
    print(
        "| judge | what | requests/s | median, s | 99 %, s | most, s | 429 | 429: most, s | 503 | MB |"
    )
    print("|---|---|---|---|---|---|---|---|---|---|")
    for judge in args.judge or ["scripted"]:
        with tempfile.TemporaryDirectory() as folder:
            rows = known_rows(args.requests) if judge == "scripted" else mini_rows(args.requests)
            name = scripted(Path(folder) / "script.jsonl", rows) if judge == "scripted" else judge
            for what in args.only or ["service", "full", "bare"]:
                limits = ["--max-waiting", "64", "--max-answers", "1"] if what == "full" else []
                with bare(name) if what == "bare" else served(name, *limits) as (pid, port):
                    # What loading the judge took for a moment is not what requests take.
                    Path(f"/proc/{pid}/clear_refs").write_text("5")
                    before = memory(pid, "VmRSS")
                    load = Load(port, rows, args.clients)
                    seconds = asyncio.run(load.run())
                    print(
                        line(judge, what, load, seconds, memory(pid, "VmHWM") - before), flush=True
                    )


def known_rows(n: int) -> Rows:
    """Answers of which a script says what they are worth; a script's labels are certain."""
    name = train_items()[0].id
    return [(name, f"answer {i}: {'Air it at night. ' * 30}", float(i % 2)) for i in range(n)]


def mini_rows(n: int) -> Rows:
    """Distinct answers to the bundled items: their references, each time with another number behind."""
    known = [(item, r.text) for item in train_items() for r in item.references]
    distinct = [known[i % len(known)] for i in range(n)]
    rows: list[tuple[str, str, float | None]] = [
        (item.id, f"{text}\n\n({i})", None) for i, (item, text) in enumerate(distinct)
    ]
    # What each is worth is asked of score() for some: for all it would take as long as the benchmark.
    asked = random.Random(0).sample(range(n), min(n, 200))
    scores = score(
        [distinct[i][0] for i in asked], [rows[i][1] for i in asked], "local", Reward(soft=True)
    )
    for i, found in zip(asked, scores, strict=True):
        rows[i] = (rows[i][0], rows[i][1], found.reward)
    return rows


def train_items() -> list[Item]:
    return list(bundled_splits().select(load_items("mini"), "train"))


def scripted(path: Path, rows: Rows) -> str:
    worst = {"has_stated_solution": False, "has_intended_solution": False,
             "focus": "neither", "identifies_misconception": False}  # fmt: skip
    best = {"has_stated_solution": False, "has_intended_solution": True,
            "focus": "intended", "identifies_misconception": True}  # fmt: skip
    with path.open("w", encoding="utf-8") as file:
        for _, answer, reward in rows:
            file.write(json.dumps({"answer": answer, "labels": best if reward else worst}) + "\n")
    return f"scripted:{path}"


# ---------------------------------------------------------------- the two services


@contextlib.contextmanager
def served(judge: str, *arguments: str) -> Iterator[tuple[int, int]]:
    """Process id and port of `xyreward serve`."""
    process = subprocess.Popen(
        [sys.executable, "-m", "xyreward", "serve", "--judge", judge, "--port", "0", *arguments],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    try:
        begun = process.stderr.readline()
        found = re.search(r"http://\S+?:(\d+)", begun)
        assert found is not None, begun + process.stderr.read()
        yield process.pid, int(found[1])
        process.terminate()
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.wait()
        process.stderr.close()


@contextlib.contextmanager
def bare(judge: str) -> Iterator[tuple[int, int]]:
    port = 18_123
    process = subprocess.Popen([sys.executable, "-c", BARE, judge, str(port)])
    try:
        end = time.monotonic() + 60
        while True:
            with contextlib.suppress(OSError):
                asyncio.run(_connect(port))
                break
            assert time.monotonic() < end
            assert process.poll() is None
            time.sleep(0.1)
        yield process.pid, port
    finally:
        process.kill()
        process.wait()


async def _connect(port: int) -> None:
    _, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.close()


def memory(pid: int, name: str) -> float:
    """In MB; VmRSS: now, VmHWM: at most until now."""
    found = re.search(rf"{name}:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert found is not None
    return int(found[1]) / 1000


# ---------------------------------------------------------------- the clients


@dataclass
class Load:
    """Clients that ask one thing after another until all rows are answered."""

    port: int
    rows: Rows
    clients: int
    scored_s: list[float] = field(default_factory=list)
    full_s: list[float] = field(default_factory=list)
    late_s: list[float] = field(default_factory=list)
    rewards: dict[int, float] = field(default_factory=dict)

    async def run(self) -> float:
        """Ask all; seconds. Fails where an answer is lost or another one's."""
        todo = iter(range(len(self.rows)))
        begun = time.perf_counter()
        async with asyncio.TaskGroup() as group:
            for _ in range(self.clients):
                group.create_task(self._client(todo))
        seconds = time.perf_counter() - begun
        assert sorted(self.rewards) == list(range(len(self.rows))), "answers were lost"
        for i, (_, _, known) in enumerate(self.rows):
            # Embeddings differ in their last digits with what is in the same lot.
            assert known is None or abs(self.rewards[i] - known) < 1e-3, (i, self.rewards[i], known)
        return seconds

    async def _client(self, todo: Iterator[int]) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        for i in todo:
            item_id, answer, _ = self.rows[i]
            body = json.dumps({"rows": [{"item_id": item_id, "answer": answer}]}).encode()
            while True:
                begun = time.perf_counter()
                writer.write(
                    b"POST /score HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                    b"Content-Length: %d\r\n\r\n%b" % (len(body), body)
                )
                status, headers, text = await self._response(reader)
                seconds = time.perf_counter() - begun
                if status in (429, 503):
                    (self.full_s if status == 429 else self.late_s).append(seconds)
                    # As clients are told to: not all at the same moment.
                    await asyncio.sleep(int(headers["retry-after"]) * random.uniform(0.5, 1.0))
                    continue
                assert status == 200, (status, text[:500])
                self.scored_s.append(seconds)
                assert i not in self.rewards
                self.rewards[i] = json.loads(text)["results"][0]["reward"]
                break
        writer.close()
        await writer.wait_closed()

    async def _response(self, reader: asyncio.StreamReader) -> tuple[int, dict[str, str], bytes]:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        headers = {
            name.lower(): value.strip()
            for name, _, value in (part.partition(":") for part in head[1:] if part)
        }
        text = await reader.readexactly(int(headers["content-length"]))
        return int(head[0].split()[1]), headers, text


def line(judge: str, what: str, load: Load, seconds: float, megabytes: float) -> str:
    names = {"service": "service", "full": "room for 64", "bare": "ten lines of FastAPI"}
    full = f"{max(load.full_s):.2f}" if load.full_s else "-"
    return (
        f"| {judge} | {names[what]} | {len(load.rows) / seconds:,.0f} | {np.median(load.scored_s):.2f} "
        f"| {np.quantile(load.scored_s, 0.99):.2f} | {max(load.scored_s):.2f} | {len(load.full_s):,} "
        f"| {full} | {len(load.late_s):,} | {megabytes:.0f} |"
    )


if __name__ == "__main__":
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    main()
