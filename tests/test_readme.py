"""The README keeps its word: its program prints what it shows, its links and commands exist."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from xyreward.cli import app
from xyreward.testing import FakeAPI

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text("utf-8")
PAIRS = (ROOT / "docs/pairs.md").read_text("utf-8")
PROGRAM = re.compile(r"```python\n(.*?)```\s+```text\n(.*?)```", re.DOTALL)
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]


def test_the_program_prints_what_stands_below_it(tmp_path: Path) -> None:
    found = PROGRAM.findall(README)
    assert len(found) == 1
    program, printed = found[0]
    assert len([ln for ln in program.splitlines() if ln.strip()]) <= 14
    assert run(program, tmp_path) == [ln.rstrip() for ln in printed.splitlines()]


@pytest.mark.parametrize(
    ("program", "printed"), PROGRAM.findall(PAIRS), ids=["call", "files", "formats"]
)
def test_the_programs_on_pairs_print_what_stands_below_them(
    program: str, printed: str, tmp_path: Path
) -> None:
    assert run(program, tmp_path) == [ln.rstrip() for ln in printed.splitlines()]
    assert PAIRS.count("```python") == len(PROGRAM.findall(PAIRS))


def test_the_programs_on_rewards_run_and_print_what_stands_below_them(tmp_path: Path) -> None:
    page = (ROOT / "docs/grpo.md").read_text("utf-8")
    programs = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    assert len(programs) == 2
    ((shown, printed),) = PROGRAM.findall(page)
    for program in programs:
        expected = [ln.rstrip() for ln in printed.splitlines()] if program == shown else []
        assert run(program, tmp_path) == expected


def test_the_judge_of_rewards_prints_what_stands_below_it(tmp_path: Path) -> None:
    page = (ROOT / "docs/reward_model.md").read_text("utf-8")
    ((program, printed),) = PROGRAM.findall(page)
    assert run(program, tmp_path) == printed.splitlines()


def test_the_command_for_pairs_prints_the_lines_that_stand_below_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = re.compile(
        r"^    xyreward (pairs --items mini .*)$(?:\n.*){0,3}?\n```text\n((?:.*\n)*?)```", re.M
    )
    ((command, on_readme),) = shown.findall(README)
    (other, on_page), *_ = shown.findall(PAIRS)
    assert other == command
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, command.split())
    assert done.exit_code == 0, done.output
    printed = iter(done.output.splitlines())
    assert all(line in printed for line in on_readme.splitlines())  # these lines, in this order
    printed = iter(done.output.splitlines())
    assert all(line in printed for line in on_page.splitlines())


def test_the_example_of_an_evaluation_prints_the_lines_that_stand_below_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = (ROOT / "docs/evaluate.md").read_text("utf-8")
    ((program, command, shown),) = re.findall(
        r"```python\n(.*?)```\s+    xyreward (eval [^\n]*)\n\n```text\n(.*?)```", page, re.DOTALL
    )
    assert run(program, tmp_path) == []
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, command.split())
    assert done.exit_code == 0, done.output
    printed = iter(done.output.splitlines())
    assert all(line in printed for line in shown.splitlines())


def run(program: str, folder: Path) -> list[str]:
    """What a program prints, line by line."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program],
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
    )
    assert done.returncode == 0, done.stderr
    return [ln.rstrip() for ln in done.stdout.splitlines()]


def test_the_program_about_judges_runs_as_it_stands(tmp_path: Path) -> None:
    (program,) = re.findall(
        r"```python\n(.*?)```", (ROOT / "docs" / "judges.md").read_text("utf-8"), re.DOTALL
    )
    with FakeAPI() as api:
        fake = {"ANTHROPIC_BASE_URL": api.base_url, "ANTHROPIC_API_KEY": "any"}
        done = subprocess.run(
            [sys.executable, "-W", "error", "-c", program],
            capture_output=True, text=True, check=False, cwd=tmp_path, env={**os.environ, **fake},
        )  # fmt: skip
        assert api.stats.calls == 3
    assert done.returncode == 0, done.stderr
    assert "calls=3" in done.stdout
    assert (tmp_path / "verdicts.sqlite").exists()


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
