"""A reader who left, or a full disk behind a stream, does not decide the status of a process."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

FORGIVES = "from xyreward.streams import forgive_at_exit\nforgive_at_exit()\n"
RECIPE = "from xyreward.recipe.console import plain_errors, tell\nwith plain_errors():\n    tell('said')\n"


def status(code: str, stream: str, into: int) -> int:
    command = [sys.executable, "-c", code]
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, stream: into}
    return subprocess.run(command, check=False, timeout=120, **streams).returncode  # type: ignore[call-overload,no-any-return]


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
@pytest.mark.parametrize("end", ["", "raise SystemExit(3)\n"])
def test_what_cannot_be_written_is_dropped_at_exit(stream: str, end: str) -> None:
    says = f"import sys\nsys.{stream}.write('said')\n{end}"
    expected = 3 if end else 0
    reading, gone = os.pipe()
    os.close(reading)
    full = os.open("/dev/full", os.O_WRONLY)
    for into in (gone, full):
        assert status(FORGIVES + says, stream, into) == expected
        if stream == "stdout":
            assert status(says, stream, into) == 120  # what Python makes of it
    os.close(gone)
    os.close(full)


def test_a_recipe_whose_output_nobody_reads_ends_as_it_would_have() -> None:
    with Path("/dev/full").open("w") as full:
        assert status(RECIPE, "stdout", full.fileno()) == 0
