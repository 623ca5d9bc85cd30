"""`xyreward eval` as a user meets it: help, flags, bills, statuses, kills."""

import inspect
import json
import os
import re
import runpy
import signal
import subprocess
import sys
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from test_cli import Ended, ended, start
from test_cli import run as run

from xyreward.cli_eval import evaluate
from xyreward.config import EvaluateRecipe, load_config
from xyreward.evaluation import Evaluation
from xyreward.items import DEFAULT_LABELS
from xyreward.loading import load_items
from xyreward.testing import FakeAPI, Faults

Run = Callable[..., Ended]
ALL = "writing,oracle,picking,reference:goal_focused,reference:direct"


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-test-0123456789")
    monkeypatch.setenv("XYREWARD_STORE", str(tmp_path / "store" / "v.sqlite"))
    monkeypatch.chdir(tmp_path)
    for name in ("XYREWARD_RUN", "TORCHELASTIC_RUN_ID", "XYREWARD_PRICES", "OPENAI_API_KEY"):
        monkeypatch.delenv(name, raising=False)


def answered(body: dict[str, Any]) -> str | None:
    """The policy says the same to the same question; a judge's labels are drawn."""
    if body["model"] != "policy":
        return None
    asked = body["messages"][-1]["content"]
    number = zlib.crc32(asked.encode())
    if "Reply with one letter" in asked:
        return "I would rather not." if number % 5 == 0 else "AB"[number % 2]
    return f"Advice number {number}: begin at the top, and mind the {number % 7} corners."


@pytest.fixture
def api() -> Iterator[FakeAPI]:
    with FakeAPI(reply=answered) as running:
        yield running


def command(api: FakeAPI, *more: str) -> list[str]:
    """A policy behind an API, judged by another model there."""
    return [
        "eval", "--policy", f"chat:policy@{api.base_url}", "--judge", f"chat:judge@{api.base_url}",
        "--limit", "4", *more,
    ]  # fmt: skip


def file_of_answers(tmp_path: Path, n: int | None = None) -> tuple[str, str]:
    """A policy that answers (the first `n`) bundled items with Yes, and a judge that knows what that is."""
    lines = [{"item_id": i.id, "answer": "Yes.", "model": "them"} for i in load_items("mini")[:n]]
    (tmp_path / "theirs.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    labels = asdict(DEFAULT_LABELS["attempt"])
    (tmp_path / "script.jsonl").write_text(json.dumps({"answer": "Yes.", "labels": labels}) + "\n")
    return "answers:theirs.jsonl", "scripted:script.jsonl"


def rows(folder: Path, name: str = "evaluation") -> Evaluation:
    return Evaluation.from_jsonl((folder / f"{name}.jsonl").read_text("utf-8"))


# ---------------------------------------------------------------- help


def test_help_comes_without_loading_what_only_the_command_needs() -> None:
    code = (
        "import sys; sys.argv = ['xyreward', 'eval', '--help']\n"
        "from xyreward.cli import main\n"
        "try: main()\n"
        "except SystemExit as e: assert e.code == 0\n"
        "heavy = {'anthropic', 'torch', 'numpy', 'asyncio', 'xyreward.judges', 'xyreward.config'}\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_every_default_in_the_help_is_the_one_of_the_configuration() -> None:
    default = EvaluateRecipe(output_dir="x").model_dump(mode="json")
    places = {"policy": "policy.model", "seed": "seed", "report_to": "report_to"}
    words = {"none": None, "all": None, "greedy": None}
    told = {}
    for name, parameter in inspect.signature(evaluate, eval_str=True).parameters.items():
        option = getattr(parameter.annotation, "__metadata__", [None])[0]
        if found := re.search(r"\[default: (.+)\]", getattr(option, "help", None) or ""):
            told[name] = found[1]
    assert {"policy", "judge", "split", "answers_per_item", "temperature", "max_new_tokens"} <= {
        *told
    }
    for name, text in told.items():
        if name in ("config", "items", "conditions"):
            continue
        value: Any = default
        for key in places.get(name, f"evaluation.{name}").split("."):
            value = value[key]
        assert str(value) == str(words.get(text, text)), name


# ---------------------------------------------------------------- runs


def test_a_policy_behind_an_api_leaves_a_run_folder_and_needs_no_torch(
    api: FakeAPI, tmp_path: Path
) -> None:
    code = (
        "import sys\n"
        "from xyreward.cli import main\n"
        "try: main()\n"
        "except SystemExit as e: assert e.code in (0, None), e.code\n"
        "heavy = {'torch', 'transformers', 'accelerate', 'trl'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    arguments = command(api, "--out", "mine", "--conditions", ALL)
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    folder = tmp_path / "mine"
    there = {file.name for file in folder.iterdir()}
    assert {
        "config.yaml", "environment.json", "data.json", "splits.json", "evaluation.jsonl",
        "evaluation.oracle.jsonl", "reference.goal_focused.jsonl", "reference.direct.jsonl",
        "report.json", "report.md",
    } <= there  # fmt: skip
    assert len(rows(folder).rows) == 8
    assert rows(folder, "evaluation.oracle").condition == "oracle"
    assert {r.kind for r in rows(folder, "reference.direct").rows} == {"control"}
    facts = json.loads((folder / "report.json").read_text())["facts"]
    assert facts["policy and judge calls"] == api.stats.calls
    assert "127.0.0.1" not in (folder / "evaluation.jsonl").read_text()
    assert "# Held-out evaluation" in done.stdout


def test_picks_that_are_drawn_are_said_to_be_and_greedy_ones_are_not(
    run: Run, tmp_path: Path
) -> None:
    asked = []

    def reply(body: dict[str, Any]) -> str | None:
        if "Reply with one letter" in str(body["messages"]):
            asked.append(body["temperature"])
        return answered(body)

    with FakeAPI(reply=reply) as api:
        for out, more, temperature in (("a", [], 0.0), ("b", ["--temperature", "0.7"], 0.7)):
            asked.clear()
            assert run(*command(api, "--conditions", "picking", "--out", out, *more)).status == 0
            assert set(asked) == {temperature}
            notes = json.loads((tmp_path / out / "report.json").read_text())["notes"]
            told = "picks: one reply in each order, sampled at temperature 0.7"
            assert (told in notes) == bool(more)
            assert any("picks: " in note for note in notes) == bool(more)


def test_the_bill_is_exact_before_and_nothing_is_left_of_it_after(
    run: Run, api: FakeAPI, tmp_path: Path
) -> None:
    arguments = command(api, "--out", "mine", "--conditions", ALL)
    planned = run(*arguments, "--dry-run")
    assert planned.status == 0, planned.err
    assert "writing: 8 answers of chat:policy: 8 calls to make" in planned.out
    assert "oracle: 8 answers of chat:policy: 8 calls to make" in planned.out
    assert "picking: 16 questions to chat:policy: 16 calls to make" in planned.out
    assert re.search(r"chat:judge@\S+: 24 calls to make", planned.out)  # 8 + 8 + 4 + 4
    assert api.stats.calls == 0
    assert not (tmp_path / "mine").exists()
    done = run(*arguments)
    assert done.status == 0, done.err
    paid = api.stats.billed
    # The server is asked once for what it can do.
    assert 8 + 8 + 16 + 24 <= paid <= 8 + 8 + 16 + 24 + 1
    planned = run(*arguments, "--dry-run")
    assert planned.out.count(": 0 calls to make") == 4
    again = run(*arguments)
    assert again.status == 0
    assert "kept from before" in again.out
    assert api.stats.billed == paid


def test_a_dry_run_wants_no_key_and_the_run_itself_does(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ANTHROPIC_API_KEY", raising=False)
    monkeypatch.setenv("XYREWARD_STORE", str(tmp_path / "store.sqlite"))
    claude = "anthropic:claude-sonnet-5-5"
    given = ["eval", "--policy", claude, "--judge", f"panel:{claude},anthropic:claude-haiku-4-5"]
    planned = run(*given, "--limit", "2", "--out", "mine", "--dry-run")
    assert planned.status == 0, planned.err
    assert f"writing: 4 answers of {claude}: 4 calls to make" in planned.out
    done = run(*given, "--limit", "2", "--out", "mine")
    assert done.status == 2
    assert "no key was found" in done.err
    assert list(tmp_path.iterdir()) == []


def test_a_tracker_is_looked_for_before_anything_is_evaluated(run: Run, tmp_path: Path) -> None:
    policy, judge = file_of_answers(tmp_path)
    arguments = ["eval", "--policy", policy, "--judge", judge, "--out", "mine"]
    done = run(*arguments, "--report-to", "trackoi")
    assert done.status == 2
    assert "report_to: is 'trackoi'" in done.err
    assert "did you mean 'trackio'" in done.err
    assert not (tmp_path / "mine").exists()


def test_a_file_of_answers_is_a_policy(run: Run, tmp_path: Path) -> None:
    policy, judge = file_of_answers(tmp_path)
    arguments = ["eval", "--policy", policy, "--judge", judge]
    done = run(*arguments, "--limit", "3", "--out", "mine")
    assert done.status == 0, done.err
    assert "== mine has nothing to go on with; the run begins" in done.out
    assert "--resume" not in done.out + done.err  # nobody typed it, and there is none here
    found = rows(tmp_path / "mine")
    assert (found.policy, found.parts, found.judge) == ("them", ("writing",), judge)
    assert len(found.rows) == 6
    told = json.loads((tmp_path / "mine/report.json").read_text())["facts"]
    assert {"held-out items", "held-out hash"} <= told.keys()
    assert not any("train" in name for name in told)  # nothing is trained here
    data = tmp_path / "mine/data.json"  # an early version told it, and its run is gone on with
    data.write_text(
        json.dumps({**json.loads(data.read_text()), "train items": 144, "train hash": "0"})
    )
    assert run(*arguments, "--limit", "3", "--out", "mine").status == 0
    with (tmp_path / "theirs.jsonl").open("a") as stream:
        stream.write("\n")
    changed = ended(start(*arguments, "--limit", "3", "--out", "mine"))
    assert changed.status == 2
    assert "policy hash was" in changed.err
    file_of_answers(tmp_path, 50)
    short = run(*arguments, "--out", "third")
    assert short.status == 2
    assert "items have no answer, the first is" in short.err
    assert not (tmp_path / "third").exists()
    counted = run(*arguments, "--out", "third", "--set", "policy_options.allow_missing=true")
    assert counted.status == 1
    page = (tmp_path / "third/report.md").read_text()
    assert "policy_missing" in page
    assert re.search(
        r"n/a: [0-9.]+ % of answers to .* are missing, more than max_failure_rate", page
    )
    assert "of judgements on" not in page


def test_the_whole_set_is_said_to_hold_train_items(run: Run, tmp_path: Path) -> None:
    policy, judge = file_of_answers(tmp_path)
    arguments = ["eval", "--policy", policy, "--judge", judge]
    items = load_items("mini")
    done = run(*arguments, "--split", "all", "--out", "mine")
    assert done.status == 0, done.err
    assert len(rows(tmp_path / "mine").rows) == len(items)
    report = (tmp_path / "mine/report.md").read_text()
    assert f"144 of {len(items)} items are on the train side" in report
    assert "evaluated: all sides" in report
    of_test = run(*arguments, "--out", "held")
    assert of_test.status == 0, of_test.err
    assert "train side" not in (tmp_path / "held/report.md").read_text()


def test_one_source_that_training_left_out_is_evaluated_whole(run: Run, tmp_path: Path) -> None:
    policy, judge = file_of_answers(tmp_path)
    arguments = ["eval", "--policy", policy, "--judge", judge]
    source = load_items("mini")[0].source
    one = run(*arguments, "--leave-out", source, "--out", "one")
    assert one.status == 0, one.err
    assert {r.source for r in rows(tmp_path / "one").rows} == {source}
    wrong = run(*arguments, "--leave-out", "nowhere", "--out", "two")
    assert wrong.status == 2
    assert "no item is of source 'nowhere'; there are" in wrong.err
    both = run(*arguments, "--leave-out", source, "--sources", source, "--out", "two")
    assert both.status == 2
    assert "leave_out takes all items of one source" in both.err


# ---------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--conditions", "writing,preference"], "preference cannot be measured of 'chat:policy'"),
        (["--conditions", "writing,guessing"], "guessing, expected some of writing, oracle"),
        (["--conditions", "oracle"], "oracle: nothing would be evaluated"),
        (["--conditions", "picking,oracle"], "expected writing among parts"),
        (["--conditions", "writing,reference:good"], "evaluation.references.0"),
        (["--conditions", "writing,reference:refusal", "--items", "few.jsonl"], "answer of kind refusal"),
        (["--answers-per-item", "2"], "greedy answers to an item are all the same"),
        (["--set", "policy.dtype=float32"], "policy.dtype: for a policy in this process"),
        (["--set", "policy_options={api_key: x}"], "would be written into the run folder"),
        (["--set", "policy_options={schema: plain}"], "schema: no option of a policy"),
        (["--set", "policy_options={votes: 2}"], "has no option votes"),
        (["--effort", "low"], "neither judge nor policy of this evaluation takes that"),
        (["--split", "train"], "'dev', 'test' or 'all'"),
        (["--judge", "nobody"], "judge 'nobody' is not known"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused_before_anything_is_sent_or_written(
    run: Run, api: FakeAPI, tmp_path: Path, more: list[str], said: str
) -> None:
    items = [i for i in load_items("mini") if not i.reference("refusal")][:40]
    (tmp_path / "few.jsonl").write_text("".join(i.model_dump_json() + "\n" for i in items))
    done = run(*command(api, "--out", "mine", *more))
    assert done.status == 2, done.err
    assert said in done.err
    assert api.stats.calls == 0
    assert not (tmp_path / "mine").exists()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--conditions", "controls"), "controls: nothing would be evaluated; expected writing"),
        (("--conditions", "oracle,reference:direct"), "nothing would be evaluated"),
        (("--conditions", ""), "--conditions: is empty"),
        (("--conditions", " , "), "--conditions: is empty"),
        (("--sources", ","), "--sources: is empty"),
        (("--set", "evaluation.parts=[]"), "evaluation.parts is empty, and nothing"),
    ],
)
def test_nothing_to_evaluate_is_refused(
    run: Run, tmp_path: Path, arguments: tuple[str, ...], said: str
) -> None:
    policy, judge = file_of_answers(tmp_path)
    done = run("eval", "--policy", policy, "--judge", judge, "--out", "mine", *arguments)
    assert done.status == 2
    assert said in done.err
    assert not (tmp_path / "mine").exists()


def test_a_folder_of_another_run_is_refused_and_another_price_is_not(
    run: Run, api: FakeAPI, tmp_path: Path
) -> None:
    assert run(*command(api, "--out", "mine")).status == 0
    paid = api.stats.billed
    same = run(*command(api, "--out", "mine", "--concurrency", "2"))
    assert same.status == 0, same.err
    other = run(*command(api, "--out", "mine", "--max-new-tokens", "9"))
    assert other.status == 2
    assert "evaluation.max_new_tokens (was 192, is 9)" in other.err
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs/thesis.txt").write_text("mine")
    foreign = run(*command(api, "--out", "theirs"))
    assert foreign.status == 2
    assert "holds no config.yaml" in foreign.err
    assert api.stats.billed == paid


def test_a_policy_without_a_key_is_found_before_the_judge_is_asked(
    run: Run, api: FakeAPI, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ANTHROPIC_API_KEY")
    done = run(
        "eval", "--policy", "anthropic:claude-haiku-5-5", "--judge", f"chat:judge@{api.base_url}",
        "--out", "mine",
    )  # fmt: skip
    assert done.status == 2
    assert "ANTHROPIC_API_KEY" in done.err
    assert api.stats.calls == 0


# ---------------------------------------------------------------- budgets, kills


def test_a_budget_of_both_is_one_and_a_raised_one_goes_on(
    api: FakeAPI, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    each = {"input": 0, "output": 1e6}
    file = tmp_path / "prices.json"
    file.write_text(json.dumps({"models": {"chat:policy": each, "chat:judge": each}}), "utf-8")
    monkeypatch.setenv("XYREWARD_PRICES", str(file))
    arguments = command(api, "--out", "mine", "--conditions", "writing", "--concurrency", "1")
    # A dollar a token; an answer may cost 192, of which some 20 are spent; a verdict may cost 4,096.
    low = ended(start(*arguments, "--budget-usd", "4300"))
    assert low.status == 3, low.out
    assert "the budget is spent" in low.err
    assert not (tmp_path / "mine/report.json").exists()
    before = api.stats.billed
    assert before >= 8
    enough = ended(start(*arguments, "--budget-usd", "100000"))
    assert enough.status == 0, enough.err
    assert (
        api.stats.distinct_billed == 8 + 8 + 1
    )  # what the server can do is asked, once per process
    assert api.stats.billed == 8 + 8 + 2
    spent = json.loads((tmp_path / "mine/report.json").read_text())["facts"]
    assert spent["policy and judge, US dollars"] > 0


def bytes_of(folder: Path) -> dict[str, bytes]:
    """What came out: all files but the machine's, without what is said of time, memory and the bill."""
    of_the_bill = re.compile(rb"seconds|peak memory|policy and judge")
    found = {
        file.relative_to(folder).as_posix(): file.read_bytes()
        for file in folder.rglob("*")
        if file.is_file() and not re.match(r"\.lock|environment", file.name)
    }
    report = json.loads(found["report.json"])
    facts = {k: v for k, v in report["facts"].items() if not of_the_bill.match(k.encode())}
    assert len(report["facts"]) > len(facts) > 5
    found["report.json"] = json.dumps({**report, "facts": facts}).encode()
    for page in ("report.md", "report.html"):
        lines = found[page].split(b"\n")
        found[page] = b"\n".join(line for line in lines if not of_the_bill.search(line))
        assert len(found[page]) > 1000
    return found


@pytest.mark.parametrize("kills", [(3,), (2, 7, 12, 22, 31, 45)])
def test_killed_at_any_point_it_goes_on_and_leaves_the_same_report(
    tmp_path: Path, kills: tuple[int, ...]
) -> None:
    needed = 8 + 8 + 16 + 24
    with FakeAPI(reply=answered, latency=0.05) as api:
        arguments = command(api, "--out", "mine", "--conditions", ALL, "--concurrency", "2")
        (tmp_path / "killed").mkdir()
        (tmp_path / "straight").mkdir()

        def begun(where: str) -> subprocess.Popen[str]:
            store = str(tmp_path / f"{where}.sqlite")
            return start(
                *arguments, cwd=tmp_path / where, env={**os.environ, "XYREWARD_STORE": store}
            )

        for moment in kills:
            process = begun("killed")
            deadline = time.monotonic() + 120
            while api.stats.billed < moment and process.poll() is None:
                assert time.monotonic() < deadline
                time.sleep(0.005)
            process.send_signal(signal.SIGKILL)
            process.communicate()
            assert not (tmp_path / "killed/mine/report.json").exists()
        done = ended(begun("killed"))
        assert done.status == 0, done.err
        paid = api.stats.billed
        assert api.stats.distinct_billed == needed + 1  # what the server can do is asked, too
        # Two calls may be in flight at each kill; each process asks once what the server can do.
        assert paid <= needed + (2 + 1) * len(kills) + 1
        straight = ended(begun("straight"))
        assert straight.status == 0, straight.err
    killed, expected = (bytes_of(tmp_path / name / "mine") for name in ("killed", "straight"))
    assert killed.keys() == expected.keys()
    for name in expected:
        assert killed[name] == expected[name], name
    assert json.loads((tmp_path / "killed/mine/report.json").read_text())["headline"]


def test_what_failed_is_asked_for_again_by_the_same_command_and_nothing_else_is(
    run: Run, tmp_path: Path
) -> None:
    down = True

    def says(body: dict[str, Any]) -> str | None:
        if down and body["model"] == "judge":
            return "There are no labels tonight."
        return answered(body)

    with FakeAPI(reply=says) as api:
        arguments = command(api, "--conditions", ALL, "--concurrency", "2", "--out")
        first = ended(start(*arguments, "mine"))
        assert first.status == 1
        for name in ("evaluation", "evaluation.oracle", "reference.goal_focused"):
            assert all(row.failure for row in rows(tmp_path / "mine", name).rows), name
        by_night, down = api.stats.distinct_billed, False
        second = run(*arguments, "mine")
        assert second.status == 0, second.err
        assert "== evaluation again: what failed at 8 of 8 answers\n" in second.out
        assert re.search(r"\n- seconds: evaluation again [\d.]+, ", second.out)
        assert api.stats.distinct_billed == by_night  # the judge's own questions, all over
        paid = api.stats.billed
        assert run(*arguments, "mine").status == 0
        assert api.stats.billed == paid
        straight = run(*arguments, "straight", "--store", "straight.sqlite")
        assert straight.status == 0, straight.err
    for name in ("evaluation", "evaluation.oracle", "reference.goal_focused", "reference.direct"):
        assert rows(tmp_path / "mine", name) == rows(tmp_path / "straight", name), name
    report = json.loads((tmp_path / "mine/report.json").read_text())
    assert not any(one["failed"] for one in report["failures"]["before"])
    assert report["headline"]["before"]["value"] is not None


def test_answers_and_picks_that_did_not_come_are_asked_for_again(
    run: Run, api: FakeAPI, tmp_path: Path
) -> None:
    arguments = command(
        api, "--conditions", "writing,oracle,picking", "--concurrency", "1", "--out"
    )

    def refused(body: Mapping[str, Any], _seen: int) -> str | None:
        drawn = zlib.crc32(json.dumps(body["messages"]).encode()) % 3 == 0
        return "refusal" if drawn and body["model"] == "policy" else None

    api.change(faults=Faults(choose=refused))
    first = ended(start(*arguments, "mine"))
    assert first.status == 1
    night = rows(tmp_path / "mine")
    failed = [row for row in night.rows if row.failure or row.pick_failure == "refused"]
    assert {row.failure["kind"] for row in failed if row.failure} == {"policy_refused"}
    assert any(row.pick_failure == "refused" for row in failed)
    assert any(row.failure for row in rows(tmp_path / "mine", "evaluation.oracle").rows)
    api.change(faults=Faults())
    second = run(*arguments, "mine")
    assert second.status == 0, second.err
    found = rows(tmp_path / "mine")
    assert not any(row.failure for row in found.rows)
    assert {row.pick_failure for row in found.rows} <= {None, "unparseable"}
    assert [r for r in found.rows if r.item_id not in {f.item_id for f in failed}] == [
        row for row in night.rows if row not in failed
    ]
    for name in ("evaluation", "evaluation.oracle"):
        assert all(row.verdict and row.answer for row in rows(tmp_path / "mine", name).rows)


@pytest.mark.parametrize(
    ("failing", "conditions"),
    [
        ("What I am really after", "writing,oracle"),
        ("the reference", "writing,reference:direct"),
        ("Reply with one letter", "writing,picking"),
        ("Reply with one letter", "picking"),
    ],
)
def test_what_lacks_in_any_condition_shows_in_the_exit_status(
    tmp_path: Path, failing: str, conditions: str
) -> None:
    direct = set[str]()
    for item in load_items("mini"):
        direct |= {r.text for r in item.references if r.kind == "direct"}

    def refused(body: Mapping[str, Any], _seen: int) -> str | None:
        text = "\n".join(str(m["content"]) for m in body["messages"])
        if failing == "the reference":
            hit = body["model"] == "judge" and any(answer[:40] in text for answer in direct)
        else:
            hit = body["model"] == "policy" and failing in text
        return "refusal" if hit else None

    with FakeAPI(reply=answered, faults=Faults(choose=refused)) as api:
        arguments = command(api, "--conditions", conditions, "--out", "mine")
        assert ended(start(*arguments)).status == 1
        api.change(faults=Faults())
        assert ended(start(*arguments)).status == 0


def test_the_recipe_and_the_command_end_with_the_same_statuses(
    api: FakeAPI, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = Path(__file__).parent.parent / "recipes/evaluate.py"

    def of_recipe(out: str, *more: str) -> Any:
        given = [f"--model=chat:policy@{api.base_url}", "--output-dir", out, "--set"]
        judge = f"evaluation.judge=chat:judge@{api.base_url}"
        flags = ["--set", "evaluation.limit=1", "--set", "evaluation.parts=[writing]", *more]
        monkeypatch.setattr(sys, "argv", [str(recipe), *given, judge, *flags])
        monkeypatch.setattr("xyreward.recipe.console._begun", [])
        try:
            runpy.run_path(str(recipe), run_name="__main__")
        except SystemExit as end:
            return end.code
        return 0

    def of_command(out: str, *more: str) -> Any:
        arguments = command(api, "--conditions", "writing", "--out", out, *more)
        return run(*("1" if one == "4" else one for one in arguments)).status

    def refused(body: Mapping[str, Any], _seen: int) -> str | None:
        return "refusal" if body["model"] == "policy" else None

    def both(*expected: int, to_recipe: Sequence[str] = (), to_command: Sequence[str] = ()) -> None:
        got = of_recipe(f"r{expected}", *to_recipe), of_command(f"c{expected}", *to_command)
        assert got == expected

    both(0, 0)
    api.change(faults=Faults(choose=refused))
    monkeypatch.setenv("XYREWARD_STORE", str(tmp_path / "other.sqlite"))
    both(1, 1)
    both(2, 2, to_recipe=["--set", "evaluation.sources=[none]"], to_command=["--sources", "none"])
    api.change(faults=Faults(choose=lambda _body, _seen: "401"))
    both(3, 3)


def test_configurations_read_back_from_what_they_left(
    run: Run, api: FakeAPI, tmp_path: Path
) -> None:
    done = run(
        *command(api, "--out", "mine", "--conditions", "writing,oracle,controls", "--seed", "3")
    )
    assert done.status == 0, done.err
    again = load_config(EvaluateRecipe, tmp_path / "mine/config.yaml")
    assert (again.seed, again.evaluation.oracle, again.evaluation.controls) == (3, True, "mini")
    same = run("eval", "--config", "mine/config.yaml", "--out", "mine")
    assert same.status == 0, same.err
    assert "kept from before" in same.out


@pytest.mark.parametrize("name", ["vllm", "anthropic"])
def test_a_shipped_configuration_has_a_bill_without_a_server(run: Run, name: str) -> None:
    file = Path(__file__).parent.parent / f"configs/evaluate/{name}.yaml"
    done = run("eval", "--config", str(file), "--limit", "2", "--out", "mine", "--dry-run")
    assert done.status == 0, done.err
    n = 4 * (3 if name == "anthropic" else 1)
    assert re.search(rf"oracle: {n} answers of .*: {n} calls to make", done.out)
    assert "Nothing was sent" in done.out
