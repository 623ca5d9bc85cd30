"""Judges of other libraries on the prompts of `judge_throughput.py`, which calls this.

    python judge_peers.py verifiers|inspect URL PROMPTS.jsonl CONCURRENCY

Runs in an environment that has the library (each needs another version of openai) and no xyreward.
The first line of PROMPTS is what all prompts begin with, each other line what follows it in one, as
JSON strings. Prints one JSON object: seconds and CPU seconds of the timed calls, version, verdicts.
"""

from __future__ import annotations

import asyncio
import importlib.metadata
import json
import os
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

MODEL = "claude-sonnet-5-5"
WARM_UP = 64

One = Callable[[str], Awaitable[None]]


def reply(body: dict[str, Any]) -> str | None:
    """What the fake API says: both peers' verdict, where no schema is asked for."""
    if "output_config" in body:
        return None
    return "It does what was asked for.\n\nGRADE: C"


def of_verifiers(url: str, prefix: str, folder: str) -> One:
    from verifiers.v1.judges.reference import ReferenceJudge, ReferenceJudgeConfig

    prompt = Path(folder, "prompt.txt")
    prompt.write_text(prefix + "\n\n{response}", encoding="utf-8")
    config = ReferenceJudgeConfig(
        base_url=f"{url}/v1",
        api_key_var="PEER_API_KEY",
        model=MODEL,
        prompt=prompt,
        choices=("C", "I"),
    )

    async def one(text: str) -> None:
        # As its documentation has it: made where it is used; it opens a client per call.
        result = await ReferenceJudge(config).evaluate(response=text)
        assert result.parsed == 1.0

    return one


def of_inspect(url: str, prefix: str, concurrency: int) -> One:
    from inspect_ai.model import ChatMessageUser, GenerateConfig, ModelName, ModelOutput, get_model
    from inspect_ai.scorer import Target, model_graded_qa
    from inspect_ai.solver import TaskState

    model = get_model(
        f"openai-api/peer/{MODEL}",
        base_url=f"{url}/v1",
        api_key="any",
        config=GenerateConfig(max_connections=concurrency, max_retries=0),
    )
    template = prefix.replace("{", "{{").replace("}", "}}") + "\n\n{answer}"
    scorer = model_graded_qa(template=template, model=model)

    async def one(text: str) -> None:
        state = TaskState(
            model=ModelName(f"openai-api/peer/{MODEL}"),
            sample_id=1,
            epoch=1,
            input="",
            messages=[ChatMessageUser(content="-")],
            output=ModelOutput.from_content(MODEL, text),
        )
        score = await scorer(state, Target(""))
        assert score is not None
        assert score.value == "C"

    return one


async def judged(one: One, texts: list[str], concurrency: int) -> None:
    todo = iter(texts)

    async def worker() -> None:
        for text in todo:
            await one(text)

    await asyncio.gather(*(worker() for _ in range(concurrency)))


def main() -> None:
    name, url, path, concurrency = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])
    os.environ["PEER_API_KEY"] = "any"
    with Path(path).open(encoding="utf-8") as file:
        prefix, *texts = map(json.loads, file)
    with tempfile.TemporaryDirectory() as folder:
        if name == "verifiers":
            one, package = of_verifiers(url, prefix, folder), "verifiers"
        else:
            one, package = of_inspect(url, prefix, concurrency), "inspect_ai"

        async def run() -> dict[str, float]:
            await judged(one, texts[:WARM_UP], concurrency)
            wall, cpu = time.perf_counter(), time.process_time()
            await judged(one, texts, concurrency)
            return {"seconds": time.perf_counter() - wall, "cpu": time.process_time() - cpu}

        found = asyncio.run(run())
    version = importlib.metadata.version(package)
    print(json.dumps({**found, "version": version, "calls": len(texts)}))


if __name__ == "__main__":
    main()
