"""`xyreward build guides` as a user meets it: bill, statuses, kills."""

from __future__ import annotations

import json
import random
import re
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from test_cli import Ended, ended, start
from test_cli import run as run
from test_cli_build import paid_once

from xyreward import load_items
from xyreward.testing import FakeAPI, Faults
from xyreward.testing.guides import GuidePlan, guide_plan

Run = Callable[..., Ended]

PLAN = {"two": 10, "one": 4, "plain": 2, "duplicate": 1, "unrefinable": 1, "literal_does": 2}


@pytest.fixture
def plan(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> GuidePlan:
    monkeypatch.setenv("XYREWARD_STORE", str(tmp_path / "store" / "v.sqlite"))
    monkeypatch.chdir(tmp_path)
    for name in ("XYREWARD_RUN", "TORCHELASTIC_RUN_ID", "XYREWARD_PRICES", "OPENAI_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    made = guide_plan(PLAN)
    made.write(tmp_path / "guides")
    return made


def command(api: FakeAPI, out: str, *more: str) -> list[str]:
    model = f"chat:writer@{api.base_url}"
    return ["build", "guides", "guides", "--model", model, "--out", out, *more]


def test_a_dry_run_prints_the_bill_and_sends_nothing(run: Run, plan: GuidePlan) -> None:
    with FakeAPI(reply=plan.reply) as api:
        found = run(*command(api, "out", "--dry-run", "--controls", "0"))
        assert api.stats.requests == 0
    assert found.status == 0, found.err
    assert "writing: 20 calls to make" in found.out
    assert "refining: at most 40 calls to make" in found.out
    assert "as if every guide that was not asked about yet brought all 40 questions" in found.out
    assert "literal answer: at most 40 calls" in found.out
    # Three inferences, and as many comparisons.
    assert "inference, chat:writer: at most 240 calls to make" in found.out
    *calls, in_all = (
        int(n.replace(",", "")) for n in re.findall(r"([\d,]+) calls to make", found.out)
    )
    assert "in all: at most" in found.out
    assert in_all == sum(calls)
    assert "Nothing was sent or written" in found.out
    assert not Path("out").exists()


def test_a_dry_run_tells_what_cannot_be_used(run: Run, plan: GuidePlan) -> None:
    for n in range(7):
        Path(f"guides/md/broken-{n}.md").write_text("# A title\n\nNo list.\n")
    with FakeAPI(reply=plan.reply) as api:
        found = run(*command(api, "out", "--dry-run"))
    assert found.status == 0, found.err
    assert found.out.count("has no steps, expected a list") == 5
    assert "... and 2 more" in found.out


def test_a_folder_of_other_sources_is_not_written_over(run: Run, plan: GuidePlan) -> None:
    Path("out").mkdir()
    Path("out/funnel.json").write_text('{"source": ["handbook"]}')
    with FakeAPI(reply=plan.reply) as api:
        found = run(*command(api, "out", "--dry-run"))
        Path("out/funnel.json").write_text("[]")
        broken = run(*command(api, "out"))
        assert api.stats.requests == 0
    assert (found.status, broken.status) == (2, 2)
    assert "out holds items built from ['handbook'], and these are of ['guides']" in found.err
    assert "is not as a build writes it" in broken.err


def test_items_card_and_bill(run: Run, plan: GuidePlan) -> None:
    with FakeAPI(reply=plan.reply) as api:
        found = run(*command(api, "out", "--name", "house", "--controls", "0.2"))
    assert found.status == 0, found.err
    items = load_items("out/items.jsonl")
    assert json.loads(Path("out/funnel.json").read_text())["settings"]["controls"] == 0.2
    # 10, 1, 1 and 2 with two, 4 with one; one is a duplicate, one not refined, two would do
    assert sum(item.kind == "xy" for item in items) == 28 + 4 - 1 - 1 - 2
    assert sum(item.kind == "control" for item in items) == 7
    assert {item.source for item in items} == {"house"}
    assert "35 items in out/items.jsonl" in found.out
    assert "## Licences and attribution" in Path("out/card.md").read_text()


def test_a_guide_that_cannot_be_used_is_told_and_with_strict_ends_it(
    run: Run, plan: GuidePlan
) -> None:
    Path("guides", "zz.md").write_text("# An essay\n\nNo steps.\n")
    with FakeAPI(reply=plan.reply) as api:
        found = run(*command(api, "out", "--max-guides", "2"))
        assert found.status == 1
        assert "zz.md: has no steps" in found.out
        assert "1 row or file of the source could not be used" in found.out
        strict = run(*command(api, "strict", "--strict"))
    assert strict.status == 2
    assert "zz.md: has no steps" in strict.err
    assert not Path("strict").exists()


def test_what_is_given_wrongly_is_told_before_anything_is_sent(run: Run, plan: GuidePlan) -> None:
    with FakeAPI(reply=plan.reply) as api:
        bad = run(*command(api, "out", "--per-guide", "11"))
        assert (bad.status, "per_guide is 11, expected 1 to 10" in bad.err) == (2, True)
        model = f"chat:writer@{api.base_url}"
        missing = run("build", "guides", "nowhere", "--model", model, "--out", "out")
        assert (missing.status, "nowhere: no such file or folder" in missing.err) == (2, True)
        assert api.stats.requests == 0


def test_killed_at_random_with_a_fifth_of_calls_failing_the_output_is_that_of_a_clean_run(
    run: Run, plan: GuidePlan, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def all_gates(api: FakeAPI, out: str, *more: str) -> list[str]:
        judge = ("--judge", f"chat:judge@{api.base_url}")
        return command(api, out, *judge, "--second-pass", "0.5", "--inferences", "1", *more)

    with FakeAPI(reply=plan.reply) as api:
        assert run(*all_gates(api, "clean")).status == 0
        calls = api.stats.requests
    monkeypatch.setenv("XYREWARD_STORE", str(tmp_path / "store" / "rough.sqlite"))
    rng = random.Random(3)
    faults = Faults({"529": 0.1, "prose": 0.05, "wrong_quote": 0.05})
    with FakeAPI(reply=plan.reply, faults=faults, latency=0.05) as api:
        kills = 0
        for _ in range(4):
            process = start(*all_gates(api, "rough", "--concurrency", "2"))
            before, until = api.stats.requests, time.monotonic() + 60
            wanted = before + rng.randrange(4, calls // 3)
            while api.stats.requests < wanted and process.poll() is None:
                assert time.monotonic() < until
                time.sleep(0.01)
            if process.poll() is None:
                process.kill()
                kills += 1
            ended(process)
        last = ended(start(*all_gates(api, "rough")))
    assert last.status == 0, last.err
    assert kills >= 3
    for name in ("items.jsonl", "funnel.json", "card.md"):
        assert Path("rough", name).read_bytes() == Path("clean", name).read_bytes(), name


def test_stopped_by_its_budget_and_by_a_kill_it_goes_on_with_a_higher_one_and_pays_nothing_twice(
    run: Run, plan: GuidePlan, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    shutil.rmtree("guides")
    small = guide_plan({"two": 3, "one": 1, "duplicate": 1, "unrefinable": 1, "literal_does": 1})
    small.write(tmp_path / "guides")
    paid_once(run, command, small.reply, monkeypatch)
