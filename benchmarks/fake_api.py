"""How fast the fake API answers: what it costs a measurement that uses it.

    python benchmarks/fake_api.py [--calls 3000] [--prefix 0] [--latency 0.1] [--concurrency 64]

Two figures, with the server in a process of its own: plain sockets without latency (the server is
the limit), and a bare loop of AsyncAnthropic with latency (the client is).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import time
from collections.abc import Iterator
from typing import Any

from xyreward.testing import FakeAPIProcess

SCHEMA = {
    "type": "object",
    "additionalProperties": False,
    "required": ["focus"],
    "properties": {"focus": {"type": "string", "enum": ["stated", "intended"]}},
}


def params(number: int, prefix: int) -> dict[str, Any]:
    text = "x" * prefix or "Judge."
    return {
        "model": "claude-sonnet-5-5",
        "max_tokens": 500,
        "system": [{"type": "text", "text": text, "cache_control": {"type": "ephemeral"}}],
        "messages": [{"role": "user", "content": f"Question {number}."}],
        "output_config": {"format": {"type": "json_schema", "schema": SCHEMA}},
    }


def cpu_seconds(pid: int) -> float:
    """User and system time of a process (Linux)."""
    with open(f"/proc/{pid}/stat") as file:  # noqa: PTH123  # one line of the kernel's
        fields = file.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def sockets(url: str, numbers: Iterator[int], prefix: int, concurrency: int) -> None:
    host, _, port = url.removeprefix("http://").partition(":")

    async def worker() -> None:
        reader, writer = await asyncio.open_connection(host, int(port))
        for number in numbers:
            body = json.dumps(params(number, prefix)).encode()
            head = (
                "POST /v1/messages HTTP/1.1\r\nhost: x\r\nx-api-key: k\r\n"
                f"anthropic-version: 2026-10-21\r\ncontent-length: {len(body)}\r\n\r\n"
            )
            writer.write(head.encode() + body)
            answer = await reader.readuntil(b"\r\n\r\n")
            assert answer.startswith(b"HTTP/1.1 200 ")
            size = answer.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]
            await reader.readexactly(int(size))
        writer.close()

    await asyncio.gather(*(worker() for _ in range(concurrency)))


async def sdk(url: str, numbers: Iterator[int], prefix: int, concurrency: int) -> None:
    from anthropic import AsyncAnthropic, DefaultAsyncHttpxClient

    async with AsyncAnthropic(
        base_url=url,
        api_key="any",
        max_retries=0,
        timeout=60,
        http_client=DefaultAsyncHttpxClient(trust_env=False),
    ) as client:

        async def worker() -> None:
            for number in numbers:
                await client.messages.create(**params(number, prefix))

        await asyncio.gather(*(worker() for _ in range(concurrency)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calls", type=int, default=3000)
    parser.add_argument("--prefix", type=int, default=0, help="characters")
    parser.add_argument("--latency", type=float, default=0.1, help="seconds")
    parser.add_argument("--concurrency", type=int, default=64)
    given = parser.parse_args()
    for name, loop, latency in [("sockets", sockets, 0.0), ("AsyncAnthropic", sdk, given.latency)]:
        with FakeAPIProcess("--latency", str(latency)) as api:
            before, client, began = cpu_seconds(api.pid), time.process_time(), time.perf_counter()
            asyncio.run(
                loop(api.base_url, iter(range(given.calls)), given.prefix, given.concurrency)
            )
            seconds = time.perf_counter() - began
            client = (time.process_time() - client) / given.calls
            server = (cpu_seconds(api.pid) - before) / given.calls
            assert api.stats.delivered == given.calls
        print(
            f"{name}, latency {latency:g} s: {given.calls / seconds:.0f} calls/s; CPU per call: "
            f"client {1000 * client:.2f} ms, server {1000 * server:.2f} ms (one core: "
            f"{1 / server:.0f}/s)"
        )


if __name__ == "__main__":
    main()
