"""docs/forum_walkthrough.md keeps its word: its commands before the training, run as they stand."""

from __future__ import annotations

import re
import runpy
import shlex
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from test_cli import Ended
from test_cli import run as run

from xyreward.testing import FakeAPI

Run = Callable[..., Ended]

PAGE = (Path(__file__).parent.parent / "docs/forum_walkthrough.md").read_text("utf-8")
PARTS = re.compile(
    r"^```text\n(?P<printed>.*?)^```\n|(?P<block>(?:^    [^\n]*\n|^\n(?=    ))+)",
    re.DOTALL | re.MULTILINE,
)
COMMAND = re.compile(r"(?P<line>[^\n]+?)(?: <<'EOF'\n(?P<text>.*?\n)EOF)?\n+", re.DOTALL)
SHELL = [
    "mkdir walk && cd walk",
    "python -m xyreward.testing.fake_api --port 8123 --reply forum_model:reply & sleep 5",
    "export ANTHROPIC_BASE_URL=http://127.0.0.1:8123 ANTHROPIC_API_KEY=any NO_PROXY=127.0.0.1",
    "export XYREWARD_STORE=$PWD/store.sqlite",
]
"""Commands that the test has means of its own for."""
PAID = re.compile(r"US dollars: \d+\.\d{4}|\d+ % of the prompts' tokens")
"""Hangs on which of several calls at a time came first. Estimates have two digits."""


@dataclass
class Step:
    """An indented block, and what the page shows below it, one text for each of its `xyreward` commands."""

    commands: list[tuple[str, str]]
    """With what each reads up to EOF."""
    printed: list[list[str]] = field(default_factory=list)


def steps(page: str) -> Iterator[Step]:
    found: list[Step] = []
    for part in PARTS.finditer(page):
        if part["block"] is None:
            found[-1].printed.append(part["printed"].splitlines())
            continue
        block = "".join(line[4:] or "\n" for line in part["block"].splitlines(keepends=True))
        given = COMMAND.finditer(block.lstrip("\n"))
        found.append(Step([(one["line"], one["text"] or "") for one in given]))
    yield from found


def words_of(command: str) -> Iterator[str]:
    """The words of a command as a shell has them, names of files found."""
    for word in shlex.split(command)[1:]:
        yield from (sorted(map(str, Path().glob(word))) if "*" in word else [word])


def test_the_commands_before_the_training_do_and_print_what_the_page_says(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = tmp_path / "walk"
    work.mkdir()
    monkeypatch.chdir(work)
    monkeypatch.setenv("XYREWARD_STORE", str(work / "store.sqlite"))
    monkeypatch.setenv("ANTHROPIC_API_KEY", "any")
    for name in ("XYREWARD_RUN", "TORCHELASTIC_RUN_ID", "XYREWARD_PRICES"):
        monkeypatch.delenv(name, raising=False)
    shell = list(SHELL)
    ended: list[tuple[int | str | None, int]] = []  # status and calls of each command of ours
    with ExitStack() as stack:
        api: FakeAPI | None = None
        for step in steps(PAGE.split("## Training\n")[0]):
            said: list[str] = []
            for command, text in step.commands:
                if command.startswith("cat > "):
                    Path(command.removeprefix("cat > ")).write_text(text, "utf-8")
                elif command == "python forum_model.py":
                    model = runpy.run_path("forum_model.py", run_name="__main__")
                    api = stack.enter_context(FakeAPI(reply=model["reply"]))
                    monkeypatch.setenv("ANTHROPIC_BASE_URL", api.base_url)
                elif command == "python -":
                    exec(compile(text, "forum_walkthrough.md", "exec"), {})
                elif command == "mkdir pairs":
                    Path("pairs").mkdir()
                elif command.startswith("xyreward "):
                    assert api is not None
                    before = api.stats.calls
                    done = run(*words_of(command))
                    ended.append((done.status, api.stats.calls - before))
                    said.append(done.out.replace(str(work), "/.../walk"))
                else:
                    assert command == shell.pop(0)
            assert len(step.printed) in (0, len(said))
            for out, shown in zip(said, step.printed, strict=False):
                lines = iter(PAID.sub("...", out).splitlines())
                for line in shown:  # these lines, in this order
                    assert PAID.sub("...", line) in lines, (line, out)
    assert not shell
    (told,) = re.findall(r"The second command made (\d+) calls, and its exit status is (\d)", PAGE)
    assert ended[:2] == [(0, 0), (int(told[1]), int(told[0]))]
    assert [status for status, _ in ended[2:]] == [0] * 4
