"""`xyreward build forum` as a user meets it: bill, statuses, kills."""

from __future__ import annotations

import json
import random
import re
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from test_cli import Ended, ended, start
from test_cli import run as run

from xyreward import load_items
from xyreward.pairs.answers import locked
from xyreward.testing import FakeAPI, Faults
from xyreward.testing.fake_api.model import ReplyFunction
from xyreward.testing.forum import SITE, ForumPlan, forum_plan

Run = Callable[..., Ended]

PLAN = {
    "xy": 20,
    "not_inferred": 2,
    "weak_goal": 1,
    "duplicate": 3,
    "sufficient": 20,
    "sufficient_marked": 15,
    "unanswered": 3,
}


@pytest.fixture
def plan(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ForumPlan:
    monkeypatch.setenv("XYREWARD_STORE", str(tmp_path / "store" / "v.sqlite"))
    monkeypatch.chdir(tmp_path)
    for name in ("XYREWARD_RUN", "TORCHELASTIC_RUN_ID", "XYREWARD_PRICES", "OPENAI_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    made = forum_plan(PLAN)
    made.write_posts_xml(tmp_path / "Posts.xml")
    return made


def command(api: FakeAPI, out: str, *more: str) -> list[str]:
    model = f"chat:reader@{api.base_url}"
    return ["build", "forum", "Posts.xml", "--site", SITE, "--model", model, "--out", out, *more]


def test_a_dry_run_prints_the_bill_and_sends_nothing(run: Run, plan: ForumPlan) -> None:
    with FakeAPI(reply=plan.reply) as api:
        found = run(*command(api, "out", "--dry-run", "--sample", "0"))
        assert api.stats.requests == 0
    assert found.status == 0
    assert "extraction: 41 calls to make" in found.out
    # Three inferences, and as many comparisons.
    assert "inference, chat:reader: at most 246 calls to make" in found.out
    assert "(as if all 41 threads became items with a hidden goal)" in found.out
    assert "in all: at most " in found.out
    assert (
        "A reply that cannot be used is asked for again, up to 5 times, which is not in these"
        in found.out
    )
    assert "Nothing was sent or written" in found.out
    assert not Path("out").exists()


def test_items_card_and_bill(run: Run, plan: ForumPlan) -> None:
    plan.write_users_xml("Users.xml")
    with FakeAPI(reply=plan.reply) as api:
        found = run(*command(api, "out"))
    assert found.status == 0, found.err
    assert "names of authors: from Users.xml, which lies beside Posts.xml" in found.out
    assert "recall of the pre-filter: " in found.out
    assert "items in out/items.jsonl" in found.out
    items = load_items("out/items.jsonl")
    assert sum(item.kind == "xy" for item in items) == 21  # nobody judged the weak one
    assert "| - the goal is not inferred from the query | | | 2 | |" in found.out
    assert "## Licences and attribution" in Path("out/card.md").read_text()


def test_a_row_that_cannot_be_used_is_told_and_with_strict_ends_it(
    run: Run, plan: ForumPlan
) -> None:
    dump = Path("Posts.xml")
    dump.write_bytes(dump.read_bytes().replace(b"</posts>", b'<row Id="9" Body=" & "/></posts>'))
    with FakeAPI(reply=plan.reply) as api:
        found = run(*command(api, "out"))
        assert found.status == 1
        assert "1 row or file of the source could not be used" in found.out
        dry = run(*command(api, "out", "--dry-run"))
        assert (dry.status, "not well-formed" in dry.out) == (0, True)
        strict = run(*command(api, "strict", "--strict"))
    assert strict.status == 2
    assert "not well-formed" in strict.err
    assert not Path("strict").exists()


def test_what_is_given_wrongly_is_told_before_anything_is_sent(run: Run, plan: ForumPlan) -> None:
    with FakeAPI(reply=plan.reply) as api:
        model = f"chat:reader@{api.base_url}"
        no_site = run("build", "forum", "Posts.xml", "--model", model, "--out", "out")
        assert (no_site.status, "give --site" in no_site.err) == (2, True)
        bad = run(*command(api, "out", "--sample", "2"))
        assert (bad.status, "prefilter.sample is 2.0" in bad.err) == (2, True)
        assert api.stats.requests == 0


def test_another_forum_s_folder_is_not_written_over_though_all_dumps_have_one_name(
    run: Run, plan: ForumPlan
) -> None:
    Path("out").mkdir()
    with FakeAPI(reply=plan.reply) as api:
        for there, status in (("other.example", 2), (SITE, 0)):
            Path("out/funnel.json").write_text(json.dumps({"source": "Posts.xml", "site": there}))
            found = run(*command(api, "out", "--dry-run"))
            assert found.status == status
            says = f"Posts.xml of {there}, and these are of Posts.xml of {SITE}"
            assert (says in found.err) == (status == 2)


def test_a_folder_that_cannot_be_one_is_told_before_anything_is_sent(
    run: Run, plan: ForumPlan
) -> None:
    with FakeAPI(reply=plan.reply) as api:
        for out in ("Posts.xml", "Posts.xml/below"):
            found = run(*command(api, out))
            assert (found.status, "Posts.xml is a file, expected a folder" in found.err) == (
                2,
                True,
            )
        assert api.stats.requests == 0


def test_two_do_not_build_into_one_folder(run: Run, plan: ForumPlan) -> None:
    with FakeAPI(reply=plan.reply) as api:
        with locked(Path("out")):
            found = run(*command(api, "out"))
        assert api.stats.requests == 0
        assert found.status == 2
        assert "out: another process is writing it" in found.err
        assert run(*command(api, "out", "--max-threads", "1")).status == 0
    assert not Path("out.lock").exists()


def test_a_folder_that_cannot_be_written_in_the_end_is_a_stop_and_no_mistake(
    run: Run, plan: ForumPlan
) -> None:
    Path("out", "items.jsonl").mkdir(parents=True)  # a file cannot take its place
    with FakeAPI(reply=plan.reply) as api:
        found = run(*command(api, "out"))
        assert found.status == 3, found.err
        assert "What was paid for is in the store" in found.err
        assert not list(Path("out").glob(".*"))
        Path("out", "items.jsonl").rmdir()
        asked = api.stats.requests
        assert run(*command(api, "out")).status == 0
        assert api.stats.requests == asked


def test_a_dry_run_afterwards_finds_all_replies_and_the_judge_s_bill_exact(
    run: Run, plan: ForumPlan
) -> None:
    with FakeAPI(reply=plan.reply) as api:
        assert run(*command(api, "out")).status == 0
        asked = api.stats.requests
        judge = ("--judge", f"chat:judge@{api.base_url}")
        found = run(*command(api, "again", "--dry-run", *judge))
        assert api.stats.requests == asked
    assert found.status == 0, found.err
    assert "second pass, chat:reader: 0 calls to make" in found.out
    assert found.out.count("second pass, ") == 1
    line = next(line for line in found.out.split("\n") if line.startswith("judge, "))
    assert ": 49 calls to make" in line  # two answers to 21, and seven controls


def test_the_judge_and_the_second_model_are_on_one_bill_with_the_reader(
    run: Run, plan: ForumPlan
) -> None:
    with FakeAPI(reply=plan.reply) as api:
        judge = ("--judge", f"chat:judge@{api.base_url}")
        second = ("--second-pass", "1", "--second-model", f"chat:other@{api.base_url}")
        found = run(*command(api, "out", *judge, *second))
    assert found.status == 0, found.err
    told = [line.partition("@")[0] for line in found.out.split("\n") if " from the store; " in line]
    assert told == ["model, chat:reader", "second model, chat:other", "judge, chat:judge"]
    assert found.out.count("in all, US dollars") == 1
    items = load_items("out/items.jsonl")
    assert sum(item.kind == "xy" for item in items) == 20
    [told] = {one["model"] for one in items[0].meta["provenance"] if one["stage"] == "second pass"}
    assert told == "chat:other"


@pytest.mark.parametrize(
    ("more", "says"),
    [
        (("--inferences", "2", "--infer-at-least", "3"), "infer_at_least is 3, expected 1 to 2"),
        (("--second-pass", "2"), "second_pass is 2.0"),
        (("--seed", "-1"), "seed is -1, expected a whole number, 0 or more"),
        (("--judge", "nobody"), "judge 'nobody' is not known"),
        (("--second-model", "local"), "no model that can be asked"),
    ],
)
def test_gates_that_cannot_be_are_told_before_anything_is_sent(
    run: Run, plan: ForumPlan, more: tuple[str, ...], says: str
) -> None:
    with FakeAPI(reply=plan.reply) as api:
        found = run(*command(api, "out", *more))
        assert api.stats.requests == 0
    assert (found.status, says in found.err) == (2, True), found.err


def test_killed_at_random_with_a_fifth_of_calls_failing_the_output_is_that_of_a_clean_run(
    run: Run, plan: ForumPlan, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def all_gates(api: FakeAPI, out: str, *more: str) -> list[str]:
        judge = ("--judge", f"chat:judge@{api.base_url}")
        return command(api, out, *judge, "--second-pass", "0.5", *more)

    with FakeAPI(reply=plan.reply) as api:
        assert run(*all_gates(api, "clean")).status == 0
        calls = api.stats.requests
    monkeypatch.setenv("XYREWARD_STORE", str(tmp_path / "store" / "rough.sqlite"))
    rng = random.Random(3)
    faults = Faults({"529": 0.1, "prose": 0.05, "wrong_quote": 0.05})
    with FakeAPI(reply=plan.reply, faults=faults, latency=0.03) as api:
        kills = 0
        for _ in range(5):
            process = start(*all_gates(api, "rough", "--concurrency", "2"))
            before, until = api.stats.requests, time.monotonic() + 120
            wanted = before + rng.randrange(2, calls // 4)
            while api.stats.requests < wanted and process.poll() is None:
                assert time.monotonic() < until
                time.sleep(0.01)
            if process.poll() is None:
                process.kill()
                kills += 1
            ended(process)
        last = ended(start(*all_gates(api, "rough")))
    assert last.status == 0, last.err
    assert kills >= 4
    for name in ("items.jsonl", "funnel.json", "card.md"):
        assert Path("rough", name).read_bytes() == Path("clean", name).read_bytes(), name


def test_stopped_by_its_budget_and_by_a_kill_it_goes_on_with_a_higher_one_and_pays_nothing_twice(
    run: Run, plan: ForumPlan, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    small = forum_plan({"xy": 6, "not_inferred": 1, "duplicate": 1, "sufficient": 4})
    small.write_posts_xml(tmp_path / "Posts.xml")
    paid_once(run, command, small.reply, monkeypatch)


def paid_once(
    run: Run,
    command: Callable[..., list[str]],
    reply: ReplyFunction,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A build that a budget stops twice and a kill once: bill and output are a clean run's."""

    def all_gates(api: FakeAPI, out: str, *more: str) -> list[str]:
        # Told how to ask, it need not find out by a call at every start; one inference asks nothing twice.
        told = ("--schema", "json_schema", "--inferences", "1", "--second-pass", "0.5")
        return command(api, out, "--judge", f"chat:judge@{api.base_url}", *told, *more)

    per_million = {"input": 1.0, "output": 1.0}
    prices = {f"chat:{name}": per_million for name in ("reader", "writer", "judge")}
    Path("prices.json").write_text(json.dumps({"models": prices}))
    monkeypatch.setenv("XYREWARD_PRICES", str(Path("prices.json").absolute()))

    def billed(api: FakeAPI) -> float:
        usage = api.wait_idle().billed_usage
        return (usage.input_tokens + usage.output_tokens) / 1e6

    with FakeAPI(reply=reply) as api:
        assert run(*all_gates(api, "clean")).status == 0
        clean, cost = api.stats, billed(api)
        assert clean.billed == clean.distinct_billed
    monkeypatch.setenv("XYREWARD_STORE", str(Path("store", "rough.sqlite").absolute()))
    with FakeAPI(reply=reply) as api:
        stopped = []
        for share in (0.5, 0.9):
            low = run(*all_gates(api, "rough", "--budget-usd", f"{share * cost}"))
            assert low.status == 3, low.err
            assert re.search(r"the budget is spent, \d+ of \d+ (rows|answers) were not", low.err)
            assert billed(api) <= share * cost
            assert api.stats.billed == api.stats.distinct_billed
            assert not Path("rough").exists()
            stopped.append(api.stats.billed)
        assert 0 < stopped[0] < stopped[-1] < clean.billed, stopped
        high = ("--budget-usd", "100", "--concurrency", "2")
        process = start(*all_gates(api, "rough", *high))
        until = time.monotonic() + 100
        while api.stats.billed < stopped[-1] + 2 and process.poll() is None:
            assert time.monotonic() < until
            time.sleep(0.002)
        process.kill()
        ended(process)
        last = run(*all_gates(api, "rough", *high))
        assert last.status == 0, last.err
        assert api.stats.distinct_billed == clean.billed
        assert api.stats.billed - clean.billed <= 2  # on their way when it was killed
    for name in ("items.jsonl", "funnel.json", "card.md"):
        assert Path("rough", name).read_bytes() == Path("clean", name).read_bytes(), name


# ---------------------------------------------------------------- message batches


def batched(api: FakeAPI, out: str, *more: str) -> list[str]:
    there = ["--model", "anthropic", "--base-url", api.base_url, "--schema", "json_schema"]
    return ["build", "forum", "Posts.xml", "--site", SITE, *there, "--out", out, *more]


def test_a_build_in_batches_makes_the_same_items_at_half_the_price(
    run: Run, plan: ForumPlan, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-test-51d0b7a2c39e8f64")
    faults = Faults({"errored": 0.1, "expired": 0.1})
    with FakeAPI(reply=plan.reply, batch_faults=faults) as api:
        worst = []
        for more in ([], ["--batches"]):
            bill = run(*batched(api, "half", "--dry-run", *more))
            worst.append(float(re.findall(r"at most (\d+\.\d+)", bill.out)[-1]))
        assert worst[1] == pytest.approx(worst[0] / 2, abs=0.011)
        assert run(*batched(api, "half", "--batches")).status == 0
        assert api.stats.calls == 0
        assert api.stats.batches > 1
        assert min(api.stats.batch_rows[end] for end in ("errored", "expired")) > 0
        # Its replies are hits for single calls.
        assert run(*batched(api, "whole")).status == 0
        assert api.stats.calls == 0
    for name in ("items.jsonl", "funnel.json", "card.md"):
        assert Path("half", name).read_bytes() == Path("whole", name).read_bytes(), name


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_ended_while_its_batch_is_on_its_way_it_pays_for_no_second_one(
    run: Run, plan: ForumPlan, monkeypatch: pytest.MonkeyPatch, how: signal.Signals
) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-test-51d0b7a2c39e8f64")
    # Without gates there is one stage, and so one batch.
    alone = ("--batches", "--inferences", "0", "--second-pass", "0")
    with FakeAPI(reply=plan.reply, batch_seconds=4.0) as api:
        process = start(*batched(api, "out", *alone))
        until = time.monotonic() + 100
        while api.stats.batches == 0:
            assert process.poll() is None
            assert time.monotonic() < until
            time.sleep(0.02)
        process.send_signal(how)
        first = ended(process)
        assert first.status == (130 if how == signal.SIGINT else -how)
        assert "Traceback" not in first.err
        assert not Path("out").exists()
        last = ended(start(*batched(api, "out", *alone)))
        assert last.status == 0, last.err
        assert (api.stats.batches, api.stats.calls) == (1, 0)
    assert len(load_items("out/items.jsonl")) > 20
