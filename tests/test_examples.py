"""The examples run as they stand."""

import re
import subprocess
import sys
from pathlib import Path

EXAMPLES = Path(__file__).parent.parent / "examples"


def test_the_custom_loop_takes_steps(tiny: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", EXAMPLES / "custom_loop.py", tiny, "3"],
        capture_output=True,
        text=True,
        timeout=300,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == 3
    for n, line in enumerate(lines):
        assert re.fullmatch(rf"step {n}: 4 of 4 judged, mean reward 0\.\d+", line)


def test_its_loop_is_short() -> None:
    program = (EXAMPLES / "custom_loop.py").read_text("utf-8").split("GROUP, NEW_TOKENS")[1]
    assert len([line for line in program.splitlines() if line.strip()]) <= 36
