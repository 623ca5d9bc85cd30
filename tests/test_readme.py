"""The README keeps its word: its program prints what it shows, its links and commands exist."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text("utf-8")
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]


def test_the_program_prints_what_stands_below_it() -> None:
    found = re.findall(r"```python\n(.*?)```\s+```text\n(.*?)```", README, re.DOTALL)
    assert len(found) == 1
    program, printed = found[0]
    assert len([ln for ln in program.splitlines() if ln.strip()]) <= 14
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert [ln.rstrip() for ln in done.stdout.splitlines()] == [
        ln.rstrip() for ln in printed.splitlines()
    ]


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_every_file_that_a_page_names_is_there(page: Path) -> None:
    text = page.read_text("utf-8")
    for link in re.findall(r"\]\((?!http)([^)#]+)\)", text):
        assert (page.parent / link).exists(), link
    for path in re.findall(r"(?:recipes|configs|benchmarks)/[\w./-]+\.(?:py|yaml|md)", text):
        assert (ROOT / path).exists(), path
    assert "FILL" not in text


def test_make_targets_that_the_pages_name_exist() -> None:
    makefile = (ROOT / "Makefile").read_text("utf-8")
    for page in PAGES:
        for target in re.findall(r"^    make (\w+)", page.read_text("utf-8"), re.MULTILINE):
            assert re.search(rf"^{target}:", makefile, re.MULTILINE), target
