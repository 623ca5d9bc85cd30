"""`xyreward pairs` as a user meets it: help, flags, statuses, kills."""

import inspect
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from test_cli import Ended, ended, start
from test_cli import run as run
from test_pairs_job import answered, bytes_of, failing, few

from xyreward.cli_pairs import pairs
from xyreward.config import PairsJob
from xyreward.loading import load_items
from xyreward.testing import FakeAPI

Run = Callable[..., Ended]


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-test-0123456789")
    monkeypatch.setenv("XYREWARD_STORE", str(tmp_path / "store" / "v.sqlite"))
    monkeypatch.chdir(tmp_path)
    for name in ("XYREWARD_RUN", "TORCHELASTIC_RUN_ID", "XYREWARD_PRICES", "OPENAI_API_KEY"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def api() -> Iterator[FakeAPI]:
    with FakeAPI(reply=answered) as running:
        yield running


def command(api: FakeAPI, tmp_path: Path, *more: str) -> list[str]:
    """A policy behind an API is sampled, and another model judges."""
    return [
        "pairs", "--items", few(tmp_path)[0]["source"], "--sources", "on_policy",
        "--policy", f"chat:policy@{api.base_url}", "--samples", "3", "--judge", f"chat:judge@{api.base_url}",
        "--margin", "0.01", "--margin-pairs", "0.01", "--set", "guards.language=false",
        "--set", "on_policy.keep_truncated=true", *more,
    ]  # fmt: skip


# ---------------------------------------------------------------- help


def test_help_comes_without_loading_what_only_the_command_needs() -> None:
    code = (
        "import sys; sys.argv = ['xyreward', 'pairs', '--help']\n"
        "from xyreward.cli import main\n"
        "try: main()\n"
        "except SystemExit as e: assert e.code == 0\n"
        "heavy = {'anthropic', 'torch', 'numpy', 'asyncio', 'xyreward.judges', 'xyreward.config'}\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_every_default_in_the_help_is_the_one_of_the_configuration() -> None:
    default = PairsJob().model_dump(mode="json")
    places = {
        "samples": "on_policy.samples",
        "temperature": "on_policy.temperature",
        "policy": "policy.model",
        "margin": "rule.margin",
        "margin_pairs": "rule.margin_pairs",
        "max_pairs_per_item": "rule.max_pairs_per_item",
    }
    told = {}
    for name, parameter in inspect.signature(pairs, eval_str=True).parameters.items():
        option = getattr(parameter.annotation, "__metadata__", [None])[0]
        if found := re.search(r"\[default: (.+)\]", getattr(option, "help", None) or ""):
            told[name] = found[1]
    words = {"none": None, "all": None, "no balancing": None, "labels of references": None}
    assert {*places, "sources", "split", "formats", "containers", "seed", "control_share"} <= {
        *told
    }
    for name, text in told.items():
        if name in ("config", "items"):
            continue
        value: Any = default
        for key in places.get(name, name).split("."):
            value = value[key]
        if isinstance(value, list):
            value = ",".join(value)
        assert str(value) == str(words.get(text, text)), name


# ---------------------------------------------------------------- statuses


def test_items_of_several_sources_are_those_of_a_configuration(run: Run, tmp_path: Path) -> None:
    lines = Path(few(tmp_path)[0]["source"]).read_text("utf-8").splitlines(keepends=True)
    for name, part in (("a", lines[::2]), ("b", lines[1::2])):
        Path(f"{name}.jsonl").write_text("".join(part), "utf-8")
    Path("job.yaml").write_text("items:\n  - source: a.jsonl\n  - source: b.jsonl\n")
    both = run("pairs", "--items", "a.jsonl", "--items", "b.jsonl", "--out", "mine", "--dry-run")
    file = run("pairs", "--config", "job.yaml", "--out", "mine", "--dry-run")
    assert (both.status, both.out) == (0, file.out), both.err
    alone = run("pairs", "--items", "a.jsonl", "--out", "mine", "--dry-run")
    assert alone.out != both.out
    missing = run("pairs", "--items", "a.jsonl", "--items", "nowhere.jsonl", "--out", "mine")
    assert (missing.status, "nowhere.jsonl" in missing.err) == (2, True)


def test_a_set_is_written_and_its_audit_shown(run: Run, tmp_path: Path) -> None:
    done = run("pairs", "--items", few(tmp_path)[0]["source"], "--out", "mine")
    assert done.status == 0, done.err
    assert "# Audit of the preference pairs" in done.out
    assert "pairs in mine; look through them in audit.html" in done.out
    assert (tmp_path / "mine/manifest.json").is_file()
    again = run("pairs", "--items", few(tmp_path)[0]["source"], "--out", "mine")
    assert again.status == 0, again.err
    assert "the pairs of this job were there; nothing was done" in again.out
    assert "# Audit of the preference pairs" in again.out


def test_pairs_whose_audit_failed_are_written_with_status_1(run: Run, tmp_path: Path) -> None:
    # The writer tells which answer is chosen: a person wrote all of those, a model the others.
    rows = [
        {
            "item_id": item.id,
            "answer": reference.text,
            "kind": reference.kind,
            "model": "person" if reference.kind in ("goal_focused", "direct") else "model",
        }
        for item in load_items("mini", split="train")[:48]  # the local judge reads thirty a second
        for reference in item.references
        if reference.kind in ("goal_focused", "literal", "direct", "overcorrecting")
    ]
    Path("answers.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    given = ("--sources", "cross_model", "--answers", "answers.jsonl", "--judge", "local")
    done = run("pairs", "--out", "mine", *given, "--set", "rule.same_origin=false")
    assert done.status == 1, done.err
    assert "Problem: shortcut origin" in done.out
    assert (tmp_path / "mine/manifest.json").is_file()
    allowed = run(
        "pairs",
        "--out",
        "allowed",
        *given,
        "--set",
        "rule.same_origin=false",
        "--set",
        "allow_origin=true",
    )
    assert allowed.status == 0, allowed.err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--set", "rul.margin=0.3"], "options: rul: unknown key; did you mean 'rule'?"),
        (["--set", "rule.margn=0.3"], "options: rule.margn: unknown key; did you mean 'margin'?"),
        (["--sources", "refs"], "options: sources.0: "),
        (["--split", "training"], "options: split: "),
        (["--formats", "csv"], "options: formats.0: "),
        (["--sources", "on_policy"], "options: sources on_policy need a judge"),
        (["--writer", "chat:w@http://127.0.0.1:1"], "contrastive and writer go together"),
        (["--judge", "nobody"], "judge 'nobody' is not known"),
        (["--votes", "3"], "votes: neither judge nor policy nor writer"),
        (["--judge", "local", "--budget-usd", "3"], "budget_usd: neither judge"),
        (["--items", "nowhere.jsonl"], "nowhere.jsonl"),
        (["--config", "nowhere.yaml"], "nowhere.yaml: no such configuration file"),
        (["--max-length", "64", "--policy", "chat:m@http://127.0.0.1:1"], "has no tokenizer here"),
    ],
)
def test_what_is_wrong_ends_with_status_2_and_leaves_nothing(
    run: Run, tmp_path: Path, arguments: list[str], said: str
) -> None:
    done = run("pairs", "--out", "mine", *arguments)
    assert done.status == 2
    assert said in done.err
    assert done.out == ""
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_refused_is_refused_before_anything_is_sent(
    run: Run, api: FakeAPI, tmp_path: Path
) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/thesis.tex").write_text("years of work")
    done = run(*command(api, tmp_path, "--out", "mine"))
    assert done.status == 2
    assert "is no folder of pairs" in done.err
    assert api.stats.calls == 0


@pytest.mark.parametrize(("failed", "status"), [(0, 2), (1, 3)])
def test_no_pair_ends_with_the_status_that_says_whether_the_same_command_can_do_better(
    run: Run, tmp_path: Path, failed: int, status: int
) -> None:
    with FakeAPI(reply=answered, faults=failing("policy", failed)) as api:
        more = ["--samples", "1", "--set", "policy_options.max_attempts=1"]
        done = run(*command(api, tmp_path, "--out", "mine", "--set", "on_policy.limit=2", *more))
        assert api.stats.requests > 0
    assert done.status == status, done.err
    assert "no pair can be made" in done.err
    assert ("asks again for what failed" in done.err) is (status == 3)


def test_an_error_after_judging_does_not_say_that_nothing_was_sent(
    run: Run, tmp_path: Path
) -> None:
    with FakeAPI(
        reply=lambda body: "always the same" if body["model"] == "policy" else None
    ) as dull:
        done = run(*command(dull, tmp_path, "--out", "mine"))
        assert dull.stats.billed > 0
    assert done.status == 2
    assert "no pair can be made" in done.err
    assert not (tmp_path / "mine").exists()


def test_what_a_message_on_a_file_of_answers_says_can_be_given(run: Run, tmp_path: Path) -> None:
    """An answer column of its own, two of them, and nobody who wrote them."""
    items = few(tmp_path)[0]["source"]
    given = ["pairs", "--items", items, "--sources", "cross_model", "--judge", "local"]
    given += ["--out", "mine", "--dry-run", "--answers"]
    names = [item.id for item in load_items(items)]
    (tmp_path / "theirs.jsonl").write_text(
        "".join(json.dumps({"item_id": n, "text": f"Do {n}."}) + "\n" for n in names)
    )
    done = run(*given, "theirs.jsonl")
    assert done.status == 2
    told = set(re.findall(r"--set (?:'([^']+)'|(\S+))", done.err))
    assert told == {("columns={answer: THEIR_COLUMN}", ""), ("", "origin=NAME")}
    sets = ["--set", "columns={answer: text}", "--set", "origin=them"]
    done = run(*given, "theirs.jsonl", *sets)
    assert done.status == 0, done.err
    assert re.search(r"judging \d+ answers with local", done.out)


def test_a_file_that_answers_none_of_the_items_is_told_before_anything_is_judged(
    run: Run, tmp_path: Path
) -> None:
    row = {"item_id": "mistyped", "answer": "x", "origin": "m"}
    (tmp_path / "theirs.jsonl").write_text(json.dumps(row) + "\n")
    given = ["--items", few(tmp_path)[0]["source"], "--sources", "cross_model", "--judge", "local"]
    done = run("pairs", *given, "--answers", "theirs.jsonl", "--out", "mine")
    assert done.status == 2
    first = done.err.splitlines()[1]
    assert "no answer of the file belongs to an item of the train side" in first
    assert "the first to 'mistyped'" in first


def test_a_dry_run_sends_and_writes_nothing(run: Run, api: FakeAPI, tmp_path: Path) -> None:
    arguments = command(api, tmp_path, "--out", "mine", "--dry-run")
    before = sorted(tmp_path.iterdir())
    done = run(*arguments)
    assert done.status == 0, done.err
    assert re.search(r"sampling \d+ answers of chat:policy: \d+ calls to make", done.out)
    assert re.search(r"judging \d+ answers with chat:judge", done.out)
    assert "Nothing was sent or written." in done.out
    assert api.stats.calls == 0
    assert sorted(tmp_path.iterdir()) == before


def test_a_dry_run_wants_no_key_and_the_command_itself_does(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ANTHROPIC_API_KEY", raising=False)
    monkeypatch.setenv("XYREWARD_STORE", str(tmp_path / "store.sqlite"))
    haiku, sonnet = "anthropic:claude-haiku-4-5", "anthropic:claude-sonnet-5-5"
    asked = ["--sources", "contrastive,on_policy", "--writer", haiku, "--policy", haiku]
    given = ["pairs", "--items", "mini", *asked, "--judge", sonnet, "--out", "mine"]
    planned = run(*given, "--dry-run")
    assert planned.status == 0, planned.err
    assert f"writing 288 answers with {haiku}: 144 calls to make" in planned.out
    done = run(*given)
    assert done.status == 2
    assert "no key was found" in done.err
    assert list(tmp_path.iterdir()) == []


def test_the_bill_of_sampling_and_judging_is_shown(run: Run, api: FakeAPI, tmp_path: Path) -> None:
    done = run(*command(api, tmp_path, "--out", "mine", "--run", "together"))
    assert done.status in (0, 1), done.err
    assert re.search(r"chat:policy\S*: \d+ calls, 0 from the store", done.out)
    assert re.search(r"chat:judge\S*: \d+ calls, 0 from the store", done.out)
    assert done.out.count("run 'together' in all") == 1


# ---------------------------------------------------------------- kills


def test_a_killed_job_goes_on_and_pays_at_most_for_what_was_in_flight(tmp_path: Path) -> None:
    with FakeAPI(reply=answered, latency=0.05) as api:
        arguments = command(api, tmp_path, "--concurrency", "4")
        environment = {**os.environ, "XYREWARD_STORE": str(tmp_path / "killed.sqlite")}
        process = start(*arguments, "--out", "mine", env=environment)
        deadline = time.monotonic() + 60
        while api.stats.billed < 12:
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < deadline
            time.sleep(0.005)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        assert not (tmp_path / "mine").exists()
        done = ended(start(*arguments, "--out", "mine", env=environment))
        assert done.status in (0, 1), done.err
        paid = api.stats.billed
        straight = ended(
            start(
                *arguments, "--out", "other",
                env={**os.environ, "XYREWARD_STORE": str(tmp_path / "straight.sqlite")},
            )
        )  # fmt: skip
        assert straight.status == done.status, straight.err
        needed = api.stats.billed - paid
        assert needed <= paid <= needed + 4 + 2  # in flight; a server is asked once for its ways
        assert bytes_of(tmp_path / "mine") == bytes_of(tmp_path / "other")


def test_configurations_of_jobs_read_back_from_what_they_left(run: Run, tmp_path: Path) -> None:
    run("pairs", "--items", few(tmp_path)[0]["source"], "--out", "mine", "--seed", "3")
    config: dict[str, Any] = json.loads((tmp_path / "mine/meta.json").read_text())["config"]
    (tmp_path / "again.yaml").write_text(json.dumps(config))
    done = run("pairs", "--config", "again.yaml", "--out", "mine")
    assert done.status == 0, done.err
