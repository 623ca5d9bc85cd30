"""Rate and peak memory of streaming a forum's dump, beside a bare expat pass over the same file.

    python benchmarks/construct.py --gb 1
    python benchmarks/construct.py --gb 5        # needs 10 GB of disk: the dump, and its posts by thread

The dump repeats the plan of `xyreward.testing.forum` with other ids. Steps, each in a process of its own:
bare expat with a handler that does nothing; `xml_rows`; `read_threads`; and what `xyreward build forum`
does before it counts tokens (read, look, write down what would be sent).

CPU seconds are of the process, so that other work on the machine counts less than in wall time.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from xml.parsers import expat

from xyreward.construct.forum_job import ForumJob, ForumSettings
from xyreward.construct.job import Spool
from xyreward.construct.posts_xml import xml_rows
from xyreward.construct.stages import Funnel
from xyreward.construct.thread_files import Problems, ReadCounts, Source, read_threads
from xyreward.judges import load_asker
from xyreward.testing.forum import SITE, forum_plan, xml_row

STEPS = ("bare expat", "rows", "threads", "look")
IDS = 1_000_000_000


def write(path: Path, size: int) -> None:
    rows = list(forum_plan().rows())
    written = n = 0
    with path.open("w", encoding="utf-8", newline="") as file:
        file.write('<?xml version="1.0" encoding="utf-8"?>\r\n<posts>\r\n')
        while written < size:
            for row in rows:
                moved = {
                    name: str(int(value) + n * IDS)
                    if name in ("Id", "ParentId", "AcceptedAnswerId")
                    else value
                    for name, value in row.items()
                }
                written += file.write(xml_row(moved))
            n += 1
        file.write("</posts>")


def bare(path: Path) -> int:
    parser = expat.ParserCreate()
    parser.StartElementHandler = lambda _name, _attributes: None
    with path.open("rb") as file:
        parser.ParseFile(file)
    return 0


def look(path: Path, problems: Problems) -> int:
    job = ForumJob(Source(path, SITE), load_asker("chat:none@http://127.0.0.1:9"), ForumSettings())
    with tempfile.TemporaryFile() as file:
        return len(job._look(Spool(file), Funnel(), problems, ReadCounts()))


def step(name: str, path: Path) -> None:
    problems = Problems()
    wall, cpu = time.perf_counter(), time.process_time()
    match name:
        case "bare expat":
            found = bare(path)
        case "rows":
            found = sum(1 for _ in xml_rows(path, problems.tell))
        case "threads":
            found = sum(1 for _ in read_threads(Source(path, SITE), problems))
        case _:
            found = look(path, problems)
    result = {
        "found": found,
        "wall_s": time.perf_counter() - wall,
        "cpu_s": time.process_time() - cpu,
        "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "problems": problems.count,
    }
    print(json.dumps(result))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--gb", type=float, default=1.0, help="size of the dump, 10^9 bytes")
    parser.add_argument("--step", choices=STEPS, help=argparse.SUPPRESS)
    parser.add_argument("--file", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.step:
        step(given.step, given.file)
        return
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "Posts.xml")
        write(path, int(given.gb * 1e9))
        size = path.stat().st_size / 1e6
        print(f"{size:,.0f} MB", flush=True)
        for name in STEPS:
            command = [sys.executable, __file__, "--step", name, "--file", str(path)]
            found = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
            print(
                f"{name:12} {size / found['cpu_s']:6.0f} MB per CPU second, {size / found['wall_s']:6.0f} "
                f"MB/s wall, peak {found['peak_mib']:5.0f} MiB, {found['found']:,} found, "
                f"{found['problems']} problems",
                flush=True,
            )


if __name__ == "__main__":
    main()
