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


OTHERS = """import sys
from xyreward.recipe.console import plain_errors
with plain_errors():
    print("a line of a trainer, which writes past us " * 1000, flush=True)
    print("a bar", file=sys.stderr, flush=True)
    open(sys.argv[1], "w").write("trained")
"""


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_what_a_trainer_cannot_print_does_not_end_a_recipe(unbuffered: str, tmp_path: Path) -> None:
    reading, gone = os.pipe()
    os.close(reading)
    with Path("/dev/full").open("w") as full:
        for number, into in enumerate((gone, full.fileno())):
            done = subprocess.run(
                [sys.executable, "-c", OTHERS, str(tmp_path / str(number))],
                check=False, timeout=120, stdout=into, stderr=into,
                env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
            )  # fmt: skip
            assert done.returncode == 0
            assert (tmp_path / str(number)).read_text() == "trained"
    os.close(gone)


def test_a_line_of_a_recipe_is_in_the_log_when_it_is_printed(tmp_path: Path) -> None:
    code = (
        "import os\nfrom xyreward.recipe.console import plain_errors\n"
        "with plain_errors():\n    print('step 1')\n    os._exit(9)\n"  # killed
    )
    with (tmp_path / "log").open("w") as log:
        assert status(code, "stdout", log.fileno()) == 9
    assert (tmp_path / "log").read_text() == "step 1\n"
