"""The command line, as a hostile user meets it: statuses, messages, kills, full disks, closed pipes.

Real processes where the operating system has a part in it, `main()` elsewhere.
"""

import errno
import json
import os
import re
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from tqdm import tqdm

import xyreward
from xyreward import cli
from xyreward.items import Item
from xyreward.judges import Judge
from xyreward.judges.model import ModelJudge
from xyreward.judges.panel import model_judges
from xyreward.loading import load_items
from xyreward.score_file import begun_run
from xyreward.store import VerdictStore
from xyreward.testing import FakeAPI, Faults

ITEM = "cleaning-cellar-summer-airing"
GOOD_REPLY = {
    "suggestions": [{"quote": "Go to bed on Sunday", "reason": "sleep", "serves": "intended"}],
    "focus_reason": "all of it",
    "focus": "intended",
    "misconception_reason": "says why",
    "identifies_misconception": True,
}
"""To the question of `judge check`."""


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-test-0123456789")
    monkeypatch.setenv("XYREWARD_STORE", str(tmp_path / "store" / "v.sqlite"))
    monkeypatch.chdir(tmp_path)
    for name in ("XYREWARD_RUN", "TORCHELASTIC_RUN_ID", "XYREWARD_PRICES", "OPENAI_API_KEY"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def api() -> Iterator[FakeAPI]:
    with FakeAPI() as running:
        yield running


def write(rows: Sequence[dict[str, Any]], path: str = "answers.jsonl") -> str:
    Path(path).write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    return path


def answers(n: int, start: int = 0) -> list[dict[str, Any]]:
    return [
        {"item_id": ITEM, "answer": f"Air the cellar at night, number {i}.", "n": i}
        for i in range(start, start + n)
    ]


def script(outcomes: dict[str, Any], path: str = "script.jsonl") -> str:
    """A scripted judge: answer -> kind of failure, or None for labels of a good answer."""
    labels = {
        "has_stated_solution": False,
        "has_intended_solution": True,
        "focus": "intended",
        "identifies_misconception": True,
    }
    write(
        [
            {"answer": text, **({"labels": labels} if failure is None else {"failure": failure})}
            for text, failure in outcomes.items()
        ],
        path,
    )
    return f"scripted:{path}"


def read(path: str = "out.jsonl") -> list[dict[str, Any]]:
    return [json.loads(line) for line in Path(path).read_bytes().splitlines()]


class Ended:
    """What a command said and how it ended."""

    def __init__(self, status: int | str | None, out: str, err: str) -> None:
        self.status, self.out, self.err = status, out, err


@pytest.fixture
def run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., Ended]:
    """`xyreward` in this process."""

    def command(*arguments: str | Path | float) -> Ended:
        monkeypatch.setattr(sys, "argv", ["xyreward", *map(str, arguments)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            cli.main()
        captured = capsys.readouterr()
        return Ended(ended.value.code, captured.out, captured.err)

    return command


def start(*arguments: str | Path, **options: Any) -> subprocess.Popen[str]:
    """`xyreward` in a process of its own."""
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    command = [sys.executable, "-W", "error", "-m", "xyreward", *map(str, arguments)]
    return subprocess.Popen(command, text=True, **{**streams, **options})


def ended(process: subprocess.Popen[str]) -> Ended:
    out, err = process.communicate(timeout=120)
    return Ended(process.returncode, out, err)


def chat(api: FakeAPI) -> str:
    """A judge whose process starts without the second that importing the SDK takes."""
    return f"chat:qwen@{api.base_url}"


# ---------------------------------------------------------------- help


def test_help_comes_without_loading_what_only_commands_need() -> None:
    for arguments in (["--help"], ["score", "--help"], ["judge", "compare", "--help"]):
        code = (
            f"import sys; sys.argv = ['xyreward', *{arguments}]\n"
            "from xyreward.cli import main\n"
            "try: main()\n"
            "except SystemExit as e: assert e.code == 0\n"
            "heavy = {'anthropic', 'torch', 'numpy', 'asyncio', 'sqlite3', 'xyreward.judges'}\n"
            "assert not heavy & set(sys.modules), heavy & set(sys.modules)\n"
        )
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert done.stdout.startswith("Usage: ")


def test_without_arguments_it_shows_its_help(run: Callable[..., Ended]) -> None:
    for arguments in ([], ["judge"], ["store"]):
        assert "Commands:" in run(*arguments).err + run(*arguments).out


def test_every_option_of_judges_is_in_the_help_with_its_name_on_the_command_line(
    run: Callable[..., Ended],
) -> None:
    told = run("score", "--help").out
    for option in (
        "--votes",
        "--budget-usd",
        "--run",
        "--store",
        "--concurrency",
        "--rpm",
        "--tpm",
    ):
        assert option in told
    for option in ("--max-tokens", "--effort", "--schema", "--base-url", "--batches", "--dry-run"):
        assert option in told
    told = run("judge", "check", "--help").out
    assert "--effort" in told
    assert "--votes" not in told


def test_options_of_the_command_line_are_options_of_load_judge() -> None:
    from xyreward.judges import options_of

    assert set(cli.JUDGE_OPTIONS) <= options_of("anthropic")


def test_the_version_is_told(run: Callable[..., Ended]) -> None:
    done = run("--version")
    assert (done.status, done.out) == (0, f"xyreward {xyreward.__version__}\n")


def test_no_summary_of_a_command_is_cut(run: Callable[..., Ended]) -> None:
    for group in ([], ["build"], ["judge"], ["store"]):
        told = run(*group, "--help").out.partition("Commands:")[2]
        assert told
        assert "..." not in told
    assert "key, model, form of reply, cache, price." in " ".join(
        run("judge", "--help").out.split()
    )


def test_the_help_of_score_has_the_exit_statuses(run: Callable[..., Ended]) -> None:
    told = " ".join(run("score", "--help").out.split())
    assert "Exit status: 0 every answer has a verdict; 1 some have none" in told
    assert "130 after Ctrl-C." in told


# ---------------------------------------------------------------- items of other names


THEIRS = [
    {"text": f"How do I do {n}?", "y": "Do it.", "goal": "Be done.", "why": "It is not needed.",
     "y_sol": ["this"], "x_sol": ["that"], "part": part, "id": f"i{n}"}
    for n, part in enumerate(["train", "train", "validation", "test", "test", "test"])
]  # fmt: skip
MAPPED = [
    *("--column", "query=text", "--column", "intended_request = goal"),
    *("--column", "misconception=why", "--column", "stated_solutions=y_sol"),
    *("--column", "intended_solutions=x_sol", "--column", "hub_split=part"),
]


def test_columns_of_items_are_mapped_on_the_command_line(run: Callable[..., Ended]) -> None:
    write(THEIRS, "items.jsonl")
    write([{"item_id": "i1", "answer": "a"}])
    given = ["score", "answers.jsonl", "--items", "items.jsonl", "--judge", script({"a": None})]
    plain = run(*given, "--out", "out.jsonl")
    assert plain.status == 2
    assert "no column for query" in plain.err
    done = run(*given, *MAPPED, "--out", "out.jsonl")
    assert (done.status, done.err.count("Error")) == (0, 0)
    assert read()[0]["reward"] == 1
    # Only those of one split of the source.
    other = run(*given, *MAPPED, "--hub-split", "test", "--out", "o.jsonl")
    assert other.status == 2
    assert "item_id 'i1' is not among the 3 items" in other.err


def test_items_without_a_kind_can_be_said_to_be_controls(run: Callable[..., Ended]) -> None:
    rows = [{"id": "c", "query": "q?", "stated_request": "s", "stated_solutions": ["a"]}]
    write(rows, "items.jsonl")
    write([{"item_id": "c", "answer": "a"}])
    given = ["score", "answers.jsonl", "--items", "items.jsonl", "--judge", script({"a": None})]
    assert "no column for intended_request" in run(*given, "--out", "out.jsonl").err
    done = run(*given, "--kind", "control", "--out", "out.jsonl")
    assert done.status == 0
    assert "mean reward, controls: " in done.out


def test_a_side_does_not_depend_on_which_split_of_the_source_is_asked_for(
    run: Callable[..., Ended],
) -> None:
    write(THEIRS, "items.jsonl")
    given = ["attack", "--judge", "anthropic", "--dry-run", "--items", "items.jsonl", *MAPPED]

    def attacks(*more: str) -> str:
        done = run(*given, "--limit", "9", *more)
        assert done.status == 0, done.err
        return done.out

    # All six are near-duplicates of each other, so those that the source calls train are on our test side.
    for split, n in (("test", 3), ("train", 2), ("validation", 1)):
        assert f"That is for {74 * n} known attacks" in attacks("--hub-split", split)
    assert f"That is for {74 * 6} known attacks" in attacks()


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (["--column", "query"], "'query' has no =, expected OURS=THEIRS"),
        (["--column", "=text"], "'=text' has no ="),
        (["--column", "query=a", "--column", "query=b"], "'query=b' names a field for the second"),
        (["--kind", "xyz"], "'xyz', expected xy or control"),
        (["--column", "stated_requst=y"], "names 'stated_requst' .did you mean 'stated_request'"),
        (["--column", "query=txt"], "maps query to 'txt' .did you mean 'text'"),
        (["--hub-split", "none"], "no split 'none'"),
    ],
)
def test_what_is_given_wrong_for_items_is_named(
    run: Callable[..., Ended], given: list[str], told: str
) -> None:
    write(THEIRS, "items.jsonl")
    if given[0] == "--hub-split":
        given = [*given, *MAPPED]
    paid = ["--judge", "anthropic", "--dry-run"]  # loads nothing, as `local` would
    for command in (
        ["score", write(answers(1)), "--out", "o", *paid],
        ["attack", *paid],
        ["judge", "compare", "anthropic", "--dry-run"],
    ):
        done = run(*command, "--items", "items.jsonl", *given)
        assert done.status == 2
        assert re.search(told, " ".join(done.err.split())), done.err


# ---------------------------------------------------------------- score


def test_a_file_is_scored_and_the_bill_is_shown(run: Callable[..., Ended], api: FakeAPI) -> None:
    done = run(
        "score", write(answers(3)), "--judge", "anthropic", "--base-url", api.base_url,
        "--out", "new/out.jsonl", "--run", "mine",
    )  # fmt: skip
    assert done.status == 0
    assert "3 answers in new/out.jsonl\n" in done.out
    assert re.search(
        r"anthropic:claude-sonnet-5-5: 3 calls, 0 from the store; US dollars: 0\.\d{4}", done.out
    )
    assert re.search(r"run 'mine' in all, US dollars: 0\.\d{4}\n", done.out)
    assert [row["n"] for row in read("new/out.jsonl")] == [0, 1, 2]
    again = run(
        "score", "answers.jsonl", "--judge", "anthropic", "--base-url", api.base_url,
        "--out", "again.jsonl", "--run", "mine",
    )  # fmt: skip
    assert "0 calls, 3 from the store; US dollars: 0.0000" in again.out
    assert api.stats.calls == 3


def test_failures_end_with_status_1_and_are_counted_by_kind(run: Callable[..., Ended]) -> None:
    judge = script({"a": None, "b": "timeout", "c": "refused", "d": "timeout"})
    write([{"item_id": ITEM, "answer": text} for text in "abcd"])
    done = run("score", "answers.jsonl", "--judge", judge, "--out", "out.jsonl")
    assert done.status == 1
    assert "without a verdict: 3 (timeout 2, refused 1); their reward is null" in done.out
    assert [row["reward"] for row in read()] == [1.0, None, None, None]


def test_the_closing_lines_count_and_average_by_kind_of_item(run: Callable[..., Ended]) -> None:
    control = next(i.id for i in load_items("mini") if i.kind == "control")
    others = [i.id for i in load_items("mini") if i.kind == "xy"][:5]
    rows = [{"item_id": name, "answer": "good"} for name in others]
    rows += [{"item_id": others[0], "answer": " "}, {"item_id": control, "answer": ""}]
    rows += [{"item_id": others[0], "answer": "late"}]
    judge = script({"good": None, "late": "timeout"})
    done = run("score", write(rows), "--judge", judge, "--out", "out.jsonl")
    assert (
        "8 answers in out.jsonl\njudged 5, without a verdict 1, empty 2 (reward 0, no call)\n"
        in done.out
    )
    assert "mean reward, controls: 0.000 (no interval: one cluster), n 1\n" in done.out
    hidden = r"mean reward, items with a hidden goal: 0.833 .95 % interval over items 0\.\d+ to 1.000., n 6"
    assert re.search(hidden, done.out), done.out
    assert "without a verdict: 1 (timeout 1); its reward is null\n" in done.out
    assert {row["judge"] for row in read()} == {judge}
    one = run("score", write([rows[0]]), "--judge", judge, "--out", "one.jsonl")
    assert "1 answer in one.jsonl\njudged 1, without a verdict 0, empty 0\n" in one.out


def test_a_failed_call_is_asked_for_again_with_another_out(
    run: Callable[..., Ended], api: FakeAPI
) -> None:
    api.change(faults=Faults(script=(None, "refusal")))
    given = ["score", write(answers(4)), "--judge", chat(api), "--schema", "json_schema"]
    first = run(*given, "--out", "out.jsonl")
    assert first.status == 1
    assert "The same with another --out asks for this alone" in first.out
    second = run(*given, "--out", "second.jsonl")
    assert second.status == 0
    assert "1 call, 3 from the store" in second.out


def test_an_unknown_price_shows_in_the_bill(run: Callable[..., Ended], api: FakeAPI) -> None:
    done = run("score", write(answers(2)), "--judge", chat(api), "--out", "out.jsonl")
    # One request found out whether the server takes a schema.
    assert (
        "3 calls, 0 from the store; US dollars: unknown, for 3 calls of unknown price;" in done.out
    )
    assert re.search(
        r"run '.*' in all, US dollars: unknown, for \d calls of unknown price\n", done.out
    )


def test_lost_calls_show_in_the_bill_and_never_as_0(
    run: Callable[..., Ended], api: FakeAPI
) -> None:
    api.change(faults=Faults(script=("reset_after",)))
    given = ["--judge", chat(api), "--schema", "json_schema"]
    done = run("score", write(answers(1)), *given, "--out", "out.jsonl")
    assert done.status == 0
    assert (
        "1 call without a reply is possibly billed, at most unknown, for 1 call of unknown price"
        in done.out
    )
    assert "and possibly an unknown sum for 1 call without a reply\n" in done.out
    assert not re.search(r"\b0\.0000", done.out)
    api.change(faults=Faults(script=("reset_after",)))
    done = run("score", write(answers(1)), "--base-url", api.base_url, "--judge", "anthropic",
               "--out", "priced.jsonl")  # fmt: skip
    assert re.search(r"1 call without a reply is possibly billed, at most 0\.1\d\d\d;", done.out)
    assert re.search(
        r"in all, US dollars: 0\.00\d\d, and possibly 0\.1\d\d\d for 1 call without a reply\n",
        done.out,
    )
    assert re.search(r"possibly 0\.1\d\d\d for 1 call without a reply", run("store", "info").out)


def test_the_bill_shows_what_the_prompt_cache_saved(
    run: Callable[..., Ended], api: FakeAPI
) -> None:
    given = ["score", write(answers(20)), "--judge", "anthropic", "--base-url", api.base_url]
    done = run(*given, "--out", "out.jsonl")
    (share,) = re.findall(r"(\d+) % of the prompts' tokens came from the prompt cache", done.out)
    assert 60 < int(share) < 100
    assert "prompt cache" not in run(*given, "--out", "again.jsonl").out  # all from the store


def test_own_keys_that_are_replaced_are_named_once(run: Callable[..., Ended]) -> None:
    write([{"item_id": ITEM, "answer": "a", "reward": 3, "judge": "me"}])
    done = run("score", "answers.jsonl", "--judge", script({"a": None}), "--out", "out.jsonl")
    assert done.status == 0
    assert "the rows' own judge, reward are replaced in out.jsonl\n" in done.err


def test_rows_whose_query_is_not_their_items_are_named(run: Callable[..., Ended]) -> None:
    item = next(i for i in load_items("mini") if i.id == ITEM)
    rows = [{"item_id": ITEM, "answer": "a", "query": query} for query in (
        f" {item.query_text}\n", "Another question?", [{"role": "user", "content": "A third?"}],
        [{"role": "user", "content": item.query_text}], 5, None,
    )]  # fmt: skip
    done = run("score", write(rows), "--judge", script({"a": None}), "--out", "out.jsonl")
    assert done.status == 0
    assert "2 rows have a query that is not that of their item_id, the first is line 2" in done.err
    done = run("score", write(answers(1)), "--judge", script({}), "--out", "other.jsonl")
    assert "not that of their item_id" not in done.err


def test_soft_rewards_are_another_number(run: Callable[..., Ended]) -> None:
    from xyreward.loading import load_items

    item = next(i for i in load_items("mini") if i.id == ITEM)
    write([{"item_id": ITEM, "answer": item.references[0].text}])
    assert run("score", "answers.jsonl", "--out", "hard.jsonl").status == 0
    assert run("score", "answers.jsonl", "--out", "soft.jsonl", "--soft").status == 0
    assert read("hard.jsonl")[0]["reward"] == 1
    assert 0.5 < read("soft.jsonl")[0]["reward"] < 1


def test_items_of_ones_own_are_taken_from_a_file(run: Callable[..., Ended]) -> None:
    item = Item(id="mine", query="q?", stated_request="s", intended_request="i", misconception="m",
                stated_solutions=("a",), intended_solutions=("b",))  # fmt: skip
    Path("items.jsonl").write_text(item.model_dump_json() + "\n", "utf-8")
    write([{"item_id": "mine", "answer": "a"}])
    given = ["score", "answers.jsonl", "--judge", script({"a": None}), "--out", "out.jsonl"]
    assert run(*given, "--items", "items.jsonl").status == 0
    Path("out.jsonl").unlink()
    refused = run(*given)
    assert refused.status == 2
    assert "item_id 'mine' is not among the" in refused.err


def test_a_panel_has_a_bill_and_an_estimate(run: Callable[..., Ended], api: FakeAPI) -> None:
    panel = "panel:anthropic:claude-sonnet-5-5,anthropic:claude-haiku-5-5"
    given = ["score", write(answers(2)), "--judge", panel, "--base-url", api.base_url]
    dry = run(*given, "--out", "out.jsonl", "--dry-run")
    assert f"{panel}: 4 calls to make, 0 already in the store" in dry.out
    done = run(*given, "--out", "out.jsonl")
    assert done.status == 0
    assert done.out.count("2 calls, 0 from the store") == 2
    assert len(re.findall(r"run 'panel \w+' in all, US dollars: 0\.\d{4}", done.out)) == 1
    assert {row["verdict"]["votes"] for row in read()} == {2}


# ---------------------------------------------------------------- status 2: nothing was sent


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere.jsonl", "--out", "o"], "DataError: .*nowhere.jsonl: cannot be read"),
        ([".", "--out", "o"], "DataError: .*expected a regular file"),
        (["bad.jsonl", "--out", "o"], "DataError: .*bad.jsonl: line 1: is not JSON"),
        (["answers.jsonl"], "Missing option '--out'"),
        (["answers.jsonl", "--out", "-"], "expected a file's name"),
        (["answers.jsonl", "--out", "answers.jsonl"], "RunFolderError: answers.jsonl: exists"),
        (["answers.jsonl", "--out", "."], "RunFolderError: .: exists"),
        (["answers.jsonl", "--out", "answers.jsonl/o"], "RunFolderError: .*cannot be made"),
        (["answers.jsonl", "--out", "/dev/null"], "RunFolderError: /dev/null: exists"),
        (["answers.jsonl", "--out", "o", "--items", "no.jsonl"], "items 'no.jsonl': no such file"),
        (["answers.jsonl", "--out", "o", "--judge", "nobody"], "JudgeError: judge 'nobody'"),
        (["answers.jsonl", "--out", "o", "--judge", "chat:m"], "JudgeError: .*chat:"),
        (["answers.jsonl", "--out", "o", "--judge", "local", "--votes", "3"], "takes no options"),
        (["answers.jsonl", "--out", "o", "--votes", "0"], "--votes"),
        (
            ["answers.jsonl", "--out", "o", "--judge", "anthropic", "--rpm", "0"],
            "ConfigError: .*per",
        ),
        (["answers.jsonl", "--out", "o", "--judge", "anthropic", "--rpm", "nan"], "ConfigError: "),
        (
            ["answers.jsonl", "--out", "o", "--judge", "anthropic", "--budget-usd", "0"],
            "budget_usd",
        ),
        (
            ["answers.jsonl", "--out", "o", "--judge", "anthropic", "--budget-usd", "nan"],
            "budget_u",
        ),
        (["answers.jsonl", "--out", "o", "--judge", "anthropic", "--effort", "huge"], "effort is"),
        (["answers.jsonl", "--out", "o", "--judge", "anthropic", "--schema", "xml"], "schema is"),
        (["answers.jsonl", "--out", "o", "--judge", "anthropic", "--base-url", "x"], "base_url"),
        (["answers.jsonl", "--out", "o", "--judge", "anthropic", "--store", "."], "is a folder"),
        (
            ["answers.jsonl", "--out", "o", "--judge", "chat:m@http://h", "--budget-usd", "5"],
            "the price of chat:m@http://h is unknown",
        ),
        (["bare.jsonl", "--out", "o"], "JudgeError: bare.jsonl: 1 row brings a query"),
    ],
    ids=lambda given: " ".join(given[1:] or given) if isinstance(given, list) else "",
)
def test_what_is_given_wrong_ends_with_status_2_and_a_message(
    run: Callable[..., Ended], tmp_path: Path, arguments: list[str], message: str
) -> None:
    write(answers(1))
    write([{"query": "How do I?", "answer": "x"}], "bare.jsonl")
    Path("bad.jsonl").write_text("nonsense\n", "utf-8")
    before = sorted(p.name for p in tmp_path.iterdir())
    done = run("score", *arguments)
    assert done.status == 2
    assert re.search(message, done.err, re.DOTALL), done.err
    assert "Traceback" not in done.err
    assert done.out == ""
    made = {p.name for p in tmp_path.iterdir()} - set(before)
    assert made <= {"store"}  # a judge's store is opened to see that it can be


def test_a_missing_key_ends_with_status_2(
    run: Callable[..., Ended], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, api: FakeAPI
) -> None:
    monkeypatch.delenv("ANTHROPIC_API_KEY")
    monkeypatch.setenv("HOME", str(tmp_path))
    given = ["--judge", "anthropic", "--base-url", api.base_url]
    done = run("score", write(answers(1)), *given, "--out", "out.jsonl")
    assert done.status == 2
    assert "Set ANTHROPIC_API_KEY" in done.err
    done = run("judge", "compare", "anthropic", "--limit", "1", "--base-url", api.base_url)
    assert done.status == 2
    assert api.stats.requests == 0


def test_a_partial_file_of_another_command_ends_with_status_2(run: Callable[..., Ended]) -> None:
    judge = script({"a": None})
    write([{"item_id": ITEM, "answer": "a"}])
    Path("out.jsonl.partial").write_text("", "utf-8")
    Path("out.jsonl.partial.job").write_text("{}", "utf-8")
    done = run("score", "answers.jsonl", "--judge", judge, "--out", "out.jsonl")
    assert done.status == 2
    assert "is of another job" in done.err


def test_twenty_problems_and_the_count_of_the_rest(run: Callable[..., Ended]) -> None:
    write([{"item_id": 3, "answer": n} for n in range(50)])
    done = run("score", "answers.jsonl", "--out", "out.jsonl")
    assert done.status == 2
    assert done.err.count("expected a string") == 20
    assert "answers.jsonl: 30 more lines have problems" in done.err


# ---------------------------------------------------------------- dry run


def test_a_dry_run_sends_nothing_and_makes_nothing(
    run: Callable[..., Ended], api: FakeAPI, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ANTHROPIC_API_KEY")
    write(answers(5))
    before = sorted(tmp_path.rglob("*"))
    given = ["--judge", "anthropic", "--base-url", api.base_url, "--dry-run"]
    done = run("score", "answers.jsonl", "--out", "new/out.jsonl", *given, "--rpm", 10)
    assert done.status == 0
    assert re.search(
        r"anthropic: 5 calls to make, 0 already in the store; about [\d,]+ input and [\d,]+ output "
        r"tokens; US dollars: about \d\.\d\d, at most \d\.\d\d; \d minutes at these limits. "
        r"Nothing was sent.\n$",
        done.out,
    )
    judges = run("judge", "compare", "local", "anthropic", "--limit", "1", *given[2:])
    assert judges.status == 0
    assert "local: makes no calls" in judges.out
    assert re.search(r"anthropic:claude-sonnet-5-5: \d+ calls to make", judges.out)
    attacks = run("attack", *given, "--limit", "1", "--tries", "0")
    assert attacks.status == 0
    assert "calls to make" in attacks.out
    assert api.stats.requests == 0
    assert sorted(tmp_path.rglob("*")) == before


def test_a_dry_run_with_the_local_judge_loads_no_model(tmp_path: Path) -> None:
    write(answers(3))
    code = (
        "import sys\n"
        "from xyreward.cli import main\n"
        "for command in (['score', 'answers.jsonl', '--out', 'o'], ['attack', '--limit', '1'], "
        "['judge', 'compare', 'local'], ['judge', 'check', 'local']):\n"
        "    sys.argv = ['xyreward', *command, '--dry-run']\n"
        "    try: main()\n"
        "    except SystemExit as e: assert e.code == 0, command\n"
        "assert not {'torch', 'transformers'} & set(sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("local: makes no calls. Nothing was sent.\n") == 4
    assert not (tmp_path / "o.partial").exists()


def test_a_dry_run_takes_off_what_the_store_has(run: Callable[..., Ended], api: FakeAPI) -> None:
    given = ["--judge", "anthropic", "--base-url", api.base_url]
    run("score", write(answers(2)), *given, "--out", "out.jsonl")
    done = run("score", write(answers(5)), *given, "--out", "more.jsonl", "--dry-run")
    assert "3 calls to make, 2 already in the store" in done.out
    assert api.stats.calls == 2


def test_a_dry_run_finds_what_is_wrong_with_the_file(run: Callable[..., Ended]) -> None:
    write([{"item_id": "z", "answer": "a"}])
    given = ["--judge", "anthropic", "--out", "out.jsonl", "--dry-run"]
    assert run("score", "answers.jsonl", *given).status == 2


# ---------------------------------------------------------------- status 3: stopped on the way


@pytest.mark.parametrize(
    ("fault", "message"), [("401", "Check the key"), ("429_spend_limit", "limit is spent")]
)
def test_what_no_call_can_survive_ends_with_status_3_and_keeps_what_was_paid(
    run: Callable[..., Ended], api: FakeAPI, fault: str, message: str
) -> None:
    api.change(faults=Faults(script=(None,) * 5 + (fault,) * 50))
    given = ["score", write(answers(20)), "--judge", "anthropic", "--base-url", api.base_url]
    done = run(*given, "--schema", "json_schema", "--out", "out.jsonl")
    assert done.status == 3
    assert "Stopped: anthropic:claude-sonnet-5-5: " in done.err
    assert message in done.err
    assert not Path("out.jsonl").exists()
    api.change(faults=Faults())
    assert run(*given, "--schema", "json_schema", "--out", "out.jsonl").status == 0
    assert api.stats.delivered == 20


def test_a_budget_that_is_spent_is_no_stop_but_failures(
    run: Callable[..., Ended], api: FakeAPI
) -> None:
    given = ["score", write(answers(40)), "--judge", "anthropic", "--base-url", api.base_url]
    done = run(*given, "--out", "out.jsonl", "--budget-usd", 0.15, "--run", "r")
    assert done.status == 1
    assert re.search(r"without a verdict: \d+ \(over_budget \d+\)", done.out)
    more = run(*given, "--out", "more.jsonl", "--budget-usd", 5, "--run", "r")
    assert more.status == 0
    assert api.stats.calls == 40


def test_what_did_not_fit_into_the_budget_is_said_in_the_closing_lines(
    run: Callable[..., Ended], api: FakeAPI
) -> None:
    given = ["score", write(answers(40)), "--judge", "anthropic", "--base-url", api.base_url]
    done = run(*given, "--out", "out.jsonl", "--budget-usd", 0.15, "--run", "r")
    assert re.search(r"the first over_budget: run 'r' has spent .* raise budget_usd", done.out)


def test_a_budget_below_one_call_is_refused_before_anything_is_sent(
    run: Callable[..., Ended], api: FakeAPI
) -> None:
    asked = ["--judge", "anthropic", "--base-url", api.base_url]
    budget = ["--budget-usd", "0.0001"]
    told = r"budget_usd is 0.0001, and one call of anthropic:claude-sonnet-5-5 may cost 0\.[01]\d+"
    for command in (
        ["score", write(answers(4)), *asked, "--out", "out.jsonl"],
        ["attack", *asked, "--limit", "1", "--tries", "0"],
        ["judge", "compare", "local", "anthropic", *asked[2:], "--limit", "1"],
    ):
        done = run(*command, *budget)
        assert done.status == 2, done.out
        assert re.search(told, done.err)
    assert api.stats.requests == 0
    assert not Path("out.jsonl.partial").exists()
    # What the store has can be had for nothing.
    assert run("score", write(answers(2)), *asked, "--out", "two.jsonl").status == 0
    again = run("score", write(answers(2)), *asked, *budget, "--out", "again.jsonl")
    assert again.status == 0
    more = run("score", write(answers(4)), *asked, *budget, "--out", "more.jsonl")
    assert more.status == 1
    assert "over_budget 2" in more.out


def test_a_mistake_of_ours_is_a_traceback_with_a_status_of_its_own(
    run: Callable[..., Ended], monkeypatch: pytest.MonkeyPatch
) -> None:
    def mistake(*_: Any, **__: Any) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("xyreward.score_file.score_file", mistake)
    write([{"item_id": ITEM, "answer": "a"}])
    done = run("score", "answers.jsonl", "--judge", script({"a": None}), "--out", "out.jsonl")
    assert done.status == 3
    assert "ZeroDivisionError" in done.err


# ---------------------------------------------------------------- killed, interrupted


def wait_until(condition: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    end = time.monotonic() + 120
    while not condition():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < end
        time.sleep(0.005)


def test_killed_again_and_again_it_goes_on_exactly_and_pays_nothing_twice() -> None:
    n = 1600
    with FakeAPI(latency=(0.01, 0.05)) as api:
        given = ["score", write(answers(n)), "--judge", chat(api), "--run", "r"]
        given += ["--schema", "json_schema"]  # else each process asks whether there are any
        for kill in range(3):
            process = start(*given, "--out", "out.jsonl")
            before = api.stats.billed
            wait_until(lambda before=before: api.stats.billed > before + 450, process)  # type: ignore[misc]
            process.send_signal(signal.SIGKILL)
            process.communicate(timeout=60)
            api.wait_idle()
            assert not Path("out.jsonl").exists(), kill
        assert len(read("out.jsonl.partial")) >= 512
        done = ended(start(*given, "--out", "out.jsonl"))
        assert done.status == 0, done.err
        assert re.search(r"1600 answers in out.jsonl\n\d+ of them by an earlier run", done.out)
        stats = api.wait_idle()
    with VerdictStore.open("store/v.sqlite") as store:
        spent = store.ledger.spent("r")
    # A killed process may have had 64 calls on their way.
    assert stats.billed <= n + 3 * 64
    assert spent.calls == n
    assert stats.billed - spent.calls <= spent.lost_calls <= 3 * 64
    assert [row["n"] for row in read()] == list(range(n))
    # The same as a run that nobody disturbed, but for who paid.
    with FakeAPI() as api:
        whole = start(
            "score", "answers.jsonl", "--judge", chat(api), "--out", "whole.jsonl", "--store", "o"
        )
        assert ended(whole).status == 0
    assert comparable(read()) == comparable(read("whole.jsonl"))
    assert not list(Path().glob("*.partial*"))


def comparable(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    for row in rows:
        row.pop("judge")  # has the port in its name
        for name in ("usage", "cost_usd", "cached"):
            row["verdict"].pop(name)
    return rows


def test_ctrl_c_ends_with_status_130_and_the_same_command_goes_on() -> None:
    with FakeAPI(latency=(0.02, 0.05)) as api:
        given = ["score", write(answers(1200)), "--judge", chat(api), "--out", "out.jsonl"]
        process = start(*given)
        wait_until(lambda: api.stats.billed > 600, process)
        process.send_signal(signal.SIGINT)
        done = ended(process)
        assert done.status == 130
        assert "interrupted; what was received is kept, run the same command again" in done.err
        assert "Traceback" not in done.err
        assert not Path("out.jsonl").exists()
        assert ended(start(*given)).status == 0
        # What was on its way may have been answered into the void; each process asks once for schemas.
        assert api.wait_idle().billed <= 1200 + 64 + 2
    assert [row["n"] for row in read()] == list(range(1200))


@pytest.mark.parametrize(
    "calls", [50, 2_000, 20_000, 120_000, 300_000, 500_000, 900_000, 1_300_000]
)
def test_ctrl_c_while_things_are_loaded_is_one_line_and_130(calls: int) -> None:
    write([{"item_id": ITEM, "answer": "x"}])
    code = (
        "import os, signal, sys\n"
        f"sys.argv = ['xyreward', 'score', 'answers.jsonl', '--judge', {script({'x': None})!r}]\n"
        "sys.argv += ['--out', 'out.jsonl']\n"
        "from xyreward.__main__ import main\n"
        f"left = {calls}\n"
        "def count(*_):\n"
        "    global left\n"
        "    left -= 1\n"
        "    if left == 0:\n"
        "        sys.setprofile(None)\n"
        "        os.kill(os.getpid(), signal.SIGINT)\n"
        "sys.setprofile(count)\n"
        "main()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    if done.returncode == 0:  # it was done before, on another release of what is loaded
        assert calls >= 500_000
        return
    assert done.returncode == 130
    assert done.stderr == "interrupted\n"


def test_ctrl_c_that_a_library_made_another_error_of_is_130_all_the_same(
    run: Callable[..., Ended], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = signal.getsignal(signal.SIGINT)

    def load(*_: Any, **__: Any) -> None:
        try:
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(5)
        except KeyboardInterrupt:
            raise TypeError("a half made class") from None

    monkeypatch.setattr("xyreward.loading.load_items", load)
    done = run("score", write(answers(1)), "--out", "out.jsonl", "--judge", script({}))
    assert (done.status, done.err) == (130, "interrupted\n")
    assert signal.getsignal(signal.SIGINT) is before
    monkeypatch.undo()
    # And the next command knows nothing of it.
    assert run("--version").status == 0


@pytest.mark.parametrize(
    ("command", "told"),
    [
        (
            ["attack", "--limit", "1"],
            "nothing was paid and nothing is kept; the same command begins",
        ),
        (["judge", "compare", "local"], "nothing was paid and nothing is kept"),
        (["score", "answers.jsonl", "--out", "o"], "the rows in o.partial are kept, run the same"),
    ],
    ids=["attack", "compare", "score"],
)
def test_what_ctrl_c_leaves_of_a_judge_without_a_store_is_said_as_it_is(
    run: Callable[..., Ended], monkeypatch: pytest.MonkeyPatch, command: list[str], told: str
) -> None:
    from xyreward.judges.local import LocalJudge

    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(LocalJudge, "judge", interrupted)
    write(answers(1))
    done = run(*command)
    assert done.status == 130
    assert f"interrupted; {told}" in done.err
    assert "what was received" not in done.err


def test_the_same_command_goes_on_with_its_bill_and_its_budget(
    run: Callable[..., Ended], api: FakeAPI, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("XYREWARD_RUN", raising=False)
    given = ["score", write(answers(5)), "--judge", "anthropic", "--base-url", api.base_url]
    given += ["--schema", "json_schema", "--out", "out.jsonl", "--budget-usd", "0.5"]
    api.change(faults=Faults({"429_spend_limit": 1.0}))
    stopped = run(*given)
    assert stopped.status == 3
    named = json.loads(Path("out.jsonl.partial.job").read_text("utf-8"))["run"]
    with VerdictStore.open("store/v.sqlite") as store:
        spent = store.ledger.reserve(named, 0.45)
        assert spent is not None
        store.ledger.settle(spent, 0.45)
    api.change(faults=Faults())
    done = run(*given)
    assert done.status == 1
    assert "over_budget" in done.out
    assert re.search(rf"run {re.escape(repr(named))}.* 0\.4500", done.out)
    # Another output is another job, unless it is told whose bill it goes on.
    other = run(*[a if a != "out.jsonl" else "other.jsonl" for a in given])
    assert other.status == 0
    assert named not in other.out


@pytest.mark.parametrize("job", ["", "[]", "{}", '{"run": 5}', '{"run": " "}'])
def test_a_job_that_names_no_run_begins_none(job: str) -> None:
    assert begun_run(Path("out.jsonl")) is None
    Path("out.jsonl.partial.job").write_text(job, "utf-8")
    Path("out.jsonl.partial").touch()
    assert begun_run(Path("out.jsonl")) is None
    Path("out.jsonl.partial.job").write_text('{"run": "r"}', "utf-8")
    assert begun_run(Path("out.jsonl")) == "r"
    Path("out.jsonl.partial").unlink()  # a job without rows is of nothing that goes on
    assert begun_run(Path("out.jsonl")) is None


def test_two_processes_on_one_output_do_not_mix(api: FakeAPI) -> None:
    api.change(latency=0.05)
    given = ["score", write(answers(200)), "--judge", chat(api), "--out", "out.jsonl"]
    first = start(*given)
    wait_until(lambda: Path("out.jsonl.partial").exists(), first)
    second = ended(start(*given))
    assert second.status == 2
    assert "another process is writing it" in second.err
    assert ended(first).status == 0
    assert len(read()) == 200


def test_two_processes_with_one_store_pay_once(api: FakeAPI) -> None:
    api.change(latency=0.02)
    given = ["score", write(answers(300)), "--judge", chat(api), "--schema", "json_schema"]
    both = [start(*given, "--out", f"{n}.jsonl") for n in range(2)]
    assert [ended(process).status for process in both] == [0, 0]
    assert api.stats.calls == 300
    assert comparable(read("0.jsonl")) == comparable(read("1.jsonl"))


# ---------------------------------------------------------------- full disks, closed pipes


def limited(kib: int) -> Callable[[], None]:
    """Files of the process cannot grow beyond so many KiB: a write then fails as on a full disk."""
    return lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (kib * 1024, kib * 1024))


def test_a_full_disk_ends_with_status_3_and_the_same_command_goes_on() -> None:
    judge = script({row["answer"]: None for row in answers(1000)})
    given = ["score", write(answers(1000)), "--judge", judge, "--out", "out.jsonl"]
    stopped = ended(start(*given, preexec_fn=limited(200)))
    assert stopped.status == 3
    assert re.search(
        r"ScoringStopped: out.jsonl.partial: cannot be written .*make room", stopped.err
    )
    assert "Traceback" not in stopped.err
    assert Path("out.jsonl.partial").stat().st_size == 200 * 1024  # the last row is cut somewhere
    done = ended(start(*given))
    assert done.status == 0
    assert re.search(r"\n[1-9]\d+ of them by an earlier run", done.out)
    assert [row["n"] for row in read()] == list(range(1000))


def test_a_full_disk_under_the_store_ends_with_status_3(api: FakeAPI) -> None:
    given = ["score", write(answers(400)), "--judge", chat(api), "--out", "out.jsonl", "--run", "r"]
    stopped = ended(start(*given, preexec_fn=limited(300)))
    assert stopped.status == 3, stopped.err
    assert "StoreError" in stopped.err
    assert "Traceback" not in stopped.err
    assert ended(start(*given)).status == 0
    assert len(read()) == 400


def test_a_reader_of_stdout_that_left_changes_neither_result_nor_status() -> None:
    judge = script({"a": None, "b": "timeout"})
    for text, status in (("a", 0), ("b", 1)):
        write([{"item_id": ITEM, "answer": text}])
        given = ["score", "answers.jsonl", "--judge", judge, "--out", f"{text}.jsonl"]
        reading, writing = os.pipe()
        os.close(reading)
        process = start(*given, stdout=writing)
        os.close(writing)
        done = ended(process)
        assert (done.status, len(read(f"{text}.jsonl"))) == (status, 1)
        assert "Broken" not in done.err


def test_a_reader_of_stderr_that_left_does_not_end_a_paid_job(api: FakeAPI) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    given = ["score", write(answers(600)), "--judge", chat(api), "--out", "out.jsonl"]
    process = start(*given, stderr=writing)
    os.close(writing)
    out, _ = process.communicate(timeout=120)
    assert process.returncode == 0
    assert "600 answers in out.jsonl" in out
    assert len(read()) == 600


def test_a_full_disk_under_stdout_is_said_and_has_a_status() -> None:
    write([{"item_id": ITEM, "answer": "a"}])
    given = ["score", "answers.jsonl", "--judge", script({"a": None}), "--out", "out.jsonl"]
    with Path("/dev/full").open("w") as full:
        done = ended(start(*given, stdout=full))
    assert done.status == 3
    assert "No space left on device" in done.err
    assert len(read()) == 1


def test_a_disk_that_fills_once_something_may_have_been_sent_is_no_usage_error(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit) as ended, cli._sending():
        raise OSError(errno.ENOSPC, "No space left on device")
    assert ended.value.code == 3
    assert "No space left" in capsys.readouterr().err


def test_in_a_log_file_there_is_no_line_per_answer(api: FakeAPI) -> None:
    api.change(latency=0.02)
    done = ended(start("score", write(answers(300)), "--judge", chat(api), "--out", "out.jsonl"))
    assert done.status == 0
    assert done.err.count("%|") <= 3  # at its begin and end
    assert "300/300" in done.err
    assert "calls=3" in done.err


def test_the_bar_moves_with_each_decided_answer(
    api: FakeAPI, monkeypatch: pytest.MonkeyPatch
) -> None:
    from xyreward.judges import load_judge

    panel = load_judge("panel:anthropic,anthropic:claude-haiku-5-5", base_url=api.base_url)
    judge, other = model_judges(panel)
    judge.votes = 2
    made: list[tqdm[Any]] = []

    class Bar(tqdm):  # type: ignore[misc]
        def __init__(self, **options: Any) -> None:
            super().__init__(**options)
            made.append(self)

    monkeypatch.setattr("tqdm.tqdm", Bar)
    cases: list[tuple[Judge, list[ModelJudge], int]] = [
        (panel, [judge, other], 3),
        (other, [other], 1),
    ]
    for of, judges, per_answer in cases:
        with cli._bar(10, [of]) as advance:
            bar = made[-1]
            for one in judges:
                one.stats.decided = 0
            advance(2)  # an earlier run did two
            assert bar.n == 2
            for n in range(1, 3 * per_answer + 1):
                one = judges[n % len(judges)]
                one._tick()
                assert bar.n == 2 + n // per_answer
            advance(4)  # the lot is done; one of its answers was asked for twice, or was empty
            assert bar.n == 6
            for _ in range(100 * per_answer):
                judges[0]._tick()
            assert bar.n == 10  # never beyond the end


# ---------------------------------------------------------------- judges


def test_check_tells_and_has_a_status(run: Callable[..., Ended], api: FakeAPI) -> None:
    api.change(reply=lambda body: GOOD_REPLY)
    given = ["judge", "check", "anthropic", "--base-url", api.base_url]
    good = run(*given, "--effort", "low")
    assert good.status == 0
    assert "one verdict: " in good.out
    assert run(*given, "--budget-usd", "0.01").status == 2
    calls = api.stats.calls
    dry = run(*given, "--dry-run")
    assert dry.status == 0
    assert "2 calls, " in dry.out
    assert api.stats.calls == calls
    api.change(reply=lambda body: {**GOOD_REPLY, "focus": "stated"})
    odd = run(*given)
    assert odd.status == 1
    assert "problem: the verdict: focus stated" in odd.out
    api.change(api_key="another")
    bad = run("judge", "check", "anthropic", "--base-url", api.base_url)
    assert bad.status == 1
    assert "problem: " in bad.out
    assert run("judge", "check", "nobody").status == 2
    assert run("judge", "check", "local", "--effort", "low").status == 2


def test_what_a_server_calls_itself_cannot_play_with_the_terminal(
    run: Callable[..., Ended],
) -> None:
    said = json.dumps({"model": "m\x1b[2Jx", "choices": [{"message": {"content": "{}"}}]})

    class Hostile(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.send_response(200)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(said)))
            self.end_headers()
            self.wfile.write(said.encode())

        def log_message(self, *_: Any) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Hostile) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        done = run("judge", "check", f"chat:m@http://127.0.0.1:{server.server_port}")
        server.shutdown()
    assert done.status == 1
    assert r"model as served: m\x1b[2Jx" in done.out
    assert "\x1b" not in done.out


def test_compare_prints_a_column_per_judge_and_one_bill(
    run: Callable[..., Ended], api: FakeAPI
) -> None:
    given = ["judge", "compare", "local", "anthropic", chat(api), "--limit", "1"]
    done = run(*given, "--base-url", api.base_url, "--effort", "low")
    assert done.status == 0
    assert f"| | local | anthropic:claude-sonnet-5-5 | {chat(api)} |" in done.out
    assert "2 items of mini, side test; 95 % intervals over clusters of items" in done.out
    assert len(re.findall(r"run 'compare \w+' in all", done.out)) == 1
    assert run(*given, "--base-url", api.base_url, "--tempo", "1").status == 2


def test_compare_has_status_1_where_answers_failed(run: Callable[..., Ended], api: FakeAPI) -> None:
    api.change(faults=Faults({"refusal": 1.0}))
    done = run("judge", "compare", chat(api), "--limit", "1", "--schema", "json_schema")
    assert done.status == 1
    assert "refused 1" in done.out


def test_compare_refuses_options_that_no_judge_takes(run: Callable[..., Ended]) -> None:
    done = run("judge", "compare", "local", "--votes", "3")
    assert done.status == 2
    assert "none of local takes votes" in done.err


def test_compare_refuses_a_side_that_is_none_and_items_without_labels(
    run: Callable[..., Ended],
) -> None:
    assert "expected train, dev or test" in run("judge", "compare", "local", "--split", "all").err
    item = Item(id="x", query="q?", stated_request="s", intended_request="i", misconception="m",
                stated_solutions=("a",), intended_solutions=("b",))  # fmt: skip
    Path("items.jsonl").write_text(item.model_dump_json() + "\n", "utf-8")
    for side in ("train", "dev", "test"):
        for more in ([], ["--dry-run"]):
            done = run(
                "judge", "compare", "local", "--items", "items.jsonl", "--split", side, *more
            )
            assert done.status == 2
            assert "nothing to compare judges on" in done.err


def test_attack_has_status_1_where_something_was_paid_and_writes_its_report(
    run: Callable[..., Ended],
) -> None:
    done = run("attack", "--limit", "1", "--tries", "1", "--out", "new/report.json")
    assert done.status in (0, 1)
    assert json.loads(Path("new/report.json").read_text("utf-8"))["judge"] == "local"
    taken = run("attack", "--out", "new/report.json")
    assert taken.status == 2
    assert "give another name" in taken.err


# ---------------------------------------------------------------- store


def test_a_store_is_shown_exported_imported_merged_and_pruned(
    run: Callable[..., Ended], api: FakeAPI
) -> None:
    run("score", write(answers(3)), "--judge", chat(api), "--out", "out.jsonl", "--run", "mine")
    told = run("store", "info")
    assert told.status == 0
    assert "3 verdict" in told.out
    assert "run mine: " in told.out
    assert "3 records in all.jsonl" in run("store", "export", "all.jsonl").out
    assert run("store", "export", "all.jsonl").status == 2
    assert "3 new records; 0" in run("store", "import", "all.jsonl", "--store", "o.sqlite").out
    assert "0 new records; 3" in run("store", "import", "all.jsonl", "--store", "o.sqlite").out
    assert "0 new records; 3" in run("store", "merge", "o.sqlite").out
    assert "0 records would" in run("store", "prune", "--before", "2000-01-01").out
    assert run("store", "prune").status == 2
    for wrong in (["--judge", "chat:qwem", "--yes"], ["--judge", "local"], ["--rubric", "xy-0"]):
        none = run("store", "prune", *wrong)
        assert none.status == 2
        assert re.search(
            r"no record has (judge|rubric version) '.*'; there is (chat:qwen|xy-)", none.err
        )
    # As every other command spells it: with the address, or as one of a panel.
    for name in (chat(api), "chat:qwen", f"panel:local,{chat(api)}"):
        assert "3 records would be removed" in run("store", "prune", "--judge", name).out
    assert "3 records removed" in run("store", "prune", "--judge", chat(api), "--yes").out
    assert "it is empty" in run("store", "prune", "--judge", "chat:qwen").err


def test_prune_knows_the_short_name_of_the_vendors_judge(
    run: Callable[..., Ended], api: FakeAPI
) -> None:
    given = ["--judge", "anthropic", "--base-url", api.base_url, "--out", "out.jsonl"]
    run("score", write(answers(1)), *given)
    assert "1 record removed" in run("store", "prune", "--judge", "anthropic", "--yes").out


def test_on_a_fresh_install_nothing_is_stored_yet(
    run: Callable[..., Ended], tmp_path: Path
) -> None:
    done = run("store", "info")
    assert done.status == 0
    assert "nothing is stored yet; " in done.out
    assert not (tmp_path / "store").exists()


@pytest.mark.parametrize(
    "command", [["info", "--store", "x"], ["export", "x.jsonl"], ["prune", "--judge", "x"]]
)
def test_looking_for_a_store_makes_none(
    run: Callable[..., Ended], tmp_path: Path, command: list[str]
) -> None:
    done = run("store", *command)
    assert done.status == 2
    assert "no verdict store is there" in done.err
    assert not (tmp_path / "store").exists()
