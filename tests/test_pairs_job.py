"""A job of pairs: what is refused before anything is sent, what it would take, what it leaves."""

import json
import re
import shutil
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from xyreward.config import PairsJob, load_config
from xyreward.errors import ConfigError, DataError, JudgeError, RunFolderError
from xyreward.loading import load_items
from xyreward.pairs import REJECTED_KINDS
from xyreward.pairs.formats import read_pairs, write_pairs
from xyreward.pairs_job import PreparedJob, with_options
from xyreward.testing import FakeAPI, Faults


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XYREWARD_STORE", str(tmp_path / "store.sqlite"))
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-test")
    for name in ("XYREWARD_RUN", "TORCHELASTIC_RUN_ID"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def api() -> Iterator[FakeAPI]:
    with FakeAPI(reply=answered) as running:
        yield running


def answered(body: dict[str, Any]) -> str | None:
    """The policy never says the same twice; a judge's labels are drawn."""
    if body["model"] != "policy":
        return None
    return (
        f"Advice number {body['seed']}: begin at the top, and mind the {body['seed'] % 7} corners."
    )


def few(tmp_path: Path, n: int = 6) -> list[dict[str, Any]]:
    """A source of `n` items of each kind, of mini."""
    file = tmp_path / "few.jsonl"
    if not file.exists():
        items = load_items("mini")
        kept = [i for kind in ("xy", "control") for i in [x for x in items if x.kind == kind][:n]]
        file.write_text("".join(i.model_dump_json() + "\n" for i in kept), "utf-8")
    return [{"source": str(file)}]


def job(**keys: Any) -> PairsJob:
    return PairsJob.model_validate(keys)


def sampled(tmp_path: Path, api: FakeAPI, **keys: Any) -> PairsJob:
    """Answers of a policy behind an API, judged by another model there; margin pairs, as it knows little."""
    return job(
        **{
            "items": few(tmp_path),
            "sources": ["on_policy"],
            "policy": {"model": f"chat:policy@{api.base_url}"},
            "on_policy": {"samples": 3, "limit": 3, "max_new_tokens": 32, "keep_truncated": True},
            "judge": f"chat:judge@{api.base_url}",
            "rule": {"margin": 0.01, "margin_pairs": 0.01},
            "guards": {"language": False},
            **keys,
        }
    )


def bytes_of(folder: Path) -> dict[str, bytes]:
    return {
        p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file()
    }


def test_the_same_job_gives_the_same_bytes_and_pays_once(tmp_path: Path, api: FakeAPI) -> None:
    wanted = sampled(tmp_path, api)
    first = PreparedJob(wanted, tmp_path / "a").run()
    paid = api.stats.billed
    assert paid > 0
    again = PreparedJob(wanted, tmp_path / "b").run()
    assert api.stats.billed == paid
    assert bytes_of(first.folder) == bytes_of(again.folder)
    # Neither does it matter how fast it goes, what it may cost and whose bill it is.
    slower = with_options(wanted, {"max_concurrency": 1, "run": "mine"})
    assert bytes_of(PreparedJob(slower, tmp_path / "a").run().folder) == bytes_of(again.folder)
    text = json.dumps(read_pairs(first.folder).meta)
    assert "max_concurrency" not in text
    assert str(tmp_path / "a") not in text


def test_what_a_job_would_take_counts_what_the_store_has(tmp_path: Path, api: FakeAPI) -> None:
    wanted = sampled(tmp_path, api)
    planned = PreparedJob(wanted, tmp_path / "a").estimates()
    assert planned[0].startswith("sampling 18 answers of chat:policy: 18 calls to make, 0 already")
    assert "judging 18 answers with chat:judge" in planned[1]
    assert "18 calls to make" in planned[1]
    assert api.stats.calls == 0
    PreparedJob(wanted, tmp_path / "a").run()
    calls = api.stats.calls
    planned = PreparedJob(wanted, tmp_path / "b").estimates()
    assert "0 calls to make, 18 already in the store" in planned[0]
    assert ": 0 calls to make" in planned[1]
    assert api.stats.calls == calls
    assert not (tmp_path / "b.samples.jsonl").exists()


def test_more_samples_than_can_be_compared_are_refused_before_any_is_drawn(
    tmp_path: Path, api: FakeAPI
) -> None:
    wanted = sampled(tmp_path, api, on_policy={"samples": 1_001})
    with pytest.raises(DataError, match="1,001 answers, expected at most 1,000"):
        PreparedJob(wanted, tmp_path / "a")
    assert api.stats.calls == 0


def test_a_writer_is_part_of_the_estimate(tmp_path: Path, api: FakeAPI) -> None:
    wanted = job(
        items=few(tmp_path),
        sources=["references", "contrastive"],
        writer=f"chat:writer@{api.base_url}",
        judge="local",
    )
    prepared = PreparedJob(wanted, tmp_path / "a")
    n = len(prepared.items)
    writing, judging = prepared.estimates()
    assert writing.startswith(f"writing {2 * n} answers with chat:writer: {n} calls to make")
    references = sum(len(item.references) for item in prepared.items)
    assert f"judging {references + 2 * n} answers" in judging
    assert api.stats.calls == 0


@pytest.mark.parametrize(
    ("keys", "error", "said"),
    [
        ({"sources": ["on_policy"]}, ConfigError, "need a judge"),
        ({"sources": ["cross_model"], "judge": "local"}, ConfigError, "go together"),
        ({"answers": ["x.jsonl"]}, ConfigError, "go together"),
        (
            {"columns": {"answer": "text"}},
            ConfigError,
            "columns are of files of answers, and none is",
        ),
        ({"writer": "anthropic:claude-sonnet-5-5"}, ConfigError, "go together"),
        ({"on_policy": {"samples": 3}}, ConfigError, "on_policy has settings, but sources has no"),
        ({"judge_options": {"votes": 3}}, ConfigError, "judge_options are of no judge"),
        ({"policy_options": {"store": "x"}}, ConfigError, "for a policy behind an API"),
        ({"order_check": True}, ConfigError, "order_check needs a judge"),
        ({"judge": "local", "order_check": True}, (ConfigError, JudgeError), "local"),
        (
            {"tokens": {"max_length": 64}, "policy": {"model": "chat:m@http://127.0.0.1:1"}},
            ConfigError,
            "policy chat:m is behind an API and has no tokenizer here; name the model",
        ),
        ({"tokens": {"max_length": 64, "revision": "main"}}, ConfigError, "no model; name it in"),
        (
            {
                "sources": ["on_policy"],
                "judge": "local",
                "policy": {"model": "anthropic:claude-haiku-5-5"},
                "on_policy": {"temperature": 0.5},
            },
            ConfigError,
            "samples at 1 and takes neither",
        ),
        (
            {"sources": ["on_policy"], "judge": "local", "policy": {"model": "./nowhere"}},
            ConfigError,
            "no such folder",
        ),
        (
            {"judge": "anthropic", "judge_options": {"api_key": "k"}},
            ConfigError,
            "would be written",
        ),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_sent(
    tmp_path: Path, keys: dict[str, Any], error: Any, said: str
) -> None:
    overrides = [f"{name}={json.dumps(value)}" for name, value in keys.items()]
    with pytest.raises(error) as caught:
        PreparedJob(load_config(PairsJob, None, overrides), tmp_path / "out")
    assert said in str(caught.value)
    assert "Value error" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_a_writer_or_a_policy_without_a_key_is_found_before_the_other_is_asked(
    tmp_path: Path, api: FakeAPI, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ANTHROPIC_API_KEY")
    wanted = sampled(
        tmp_path, api, sources=["on_policy", "contrastive"], writer="anthropic:claude-sonnet-5-5"
    )
    with pytest.raises(JudgeError, match="ANTHROPIC_API_KEY"):
        PreparedJob(wanted, tmp_path / "out")
    assert api.stats.calls == 0


def test_a_section_that_is_left_out_is_named_by_what_it_set(tmp_path: Path) -> None:
    out = tmp_path / "out"
    PreparedJob(job(items=few(tmp_path), tokens={"max_length": 2048}), out).run()
    with pytest.raises(RunFolderError) as refused:
        PreparedJob(job(items=few(tmp_path)), out)
    assert "; it differs in config.tokens.max_length (was 2048, is None). Give" in str(
        refused.value
    )


def test_a_folder_of_other_pairs_is_refused_before_anything_is_sent(
    tmp_path: Path, api: FakeAPI
) -> None:
    out = tmp_path / "out"
    PreparedJob(job(items=few(tmp_path)), out).run()
    with pytest.raises(RunFolderError, match=r"another job.*config\.judge \(was None"):
        PreparedJob(sampled(tmp_path, api), out)
    (out / "pairs.jsonl").write_text("")
    with pytest.raises(DataError, match="is not what was written"):
        PreparedJob(job(items=few(tmp_path)), out)
    (tmp_path / "empty").mkdir()
    assert PreparedJob(job(items=few(tmp_path)), tmp_path / "empty").run().pairs.pairs
    (tmp_path / "file").write_text("mine")
    with pytest.raises(RunFolderError, match="is there and is no folder of pairs"):
        PreparedJob(job(items=few(tmp_path)), tmp_path / "file")
    with pytest.raises(RunFolderError, match="is no folder, expected one to make out in"):
        PreparedJob(job(items=few(tmp_path)), tmp_path / "nowhere/out")
    assert api.stats.calls == 0


def test_one_bill_is_for_all_models_of_a_job(tmp_path: Path, api: FakeAPI) -> None:
    wanted = sampled(
        tmp_path, api, sources=["on_policy", "contrastive"], writer=f"chat:writer@{api.base_url}"
    )
    with_store = with_options(wanted, {"store": str(tmp_path / "mine.sqlite"), "votes": 2})
    prepared = PreparedJob(with_store, tmp_path / "out")
    assert {m.run for m in prepared.models} == {f"pairs {(tmp_path / 'out').resolve()}"}
    assert len(prepared.models) == 3
    assert with_store.judge_options["votes"] == 2
    assert "votes" not in with_store.writer_options
    assert "votes" not in with_store.policy_options
    assert not (tmp_path / "store.sqlite").exists()
    with pytest.raises(ConfigError, match="votes: neither judge nor policy nor writer"):
        with_options(job(), {"votes": 2})


def test_answers_of_files_are_counted_in_the_notes(tmp_path: Path) -> None:
    items = few(tmp_path)
    first = PreparedJob(job(items=items), tmp_path / "x").items[0]
    file = tmp_path / "answers.jsonl"
    rows = [{"item_id": first.id, "answer": r.text, "model": "m"} for r in first.references] + [
        {"item_id": "another", "answer": "x", "model": "m"},
        {"item_id": first.id, "answer": "cut", "model": "m", "truncated": True},
    ]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    wanted = job(
        items=items,
        sources=["cross_model"],
        answers=[str(file)],
        judge="local",
        rule={"margin_pairs": 0.01, "margin": 0.01},
    )
    report = PreparedJob(wanted, tmp_path / "out").run()
    n = len(first.references)
    assert report.notes == [
        f"{file}: {n} of {n + 2} answers; 1 is to other items, 1 was cut at its limit"
    ]
    assert {p.chosen_answer.answer.source for p in report.pairs.pairs} == {"cross_model"}


def test_a_policy_on_this_machine_is_sampled_once_and_its_tokens_are_looked_at(
    tmp_path: Path, tiny: str
) -> None:
    wanted = job(
        items=few(tmp_path),
        sources=["on_policy"],
        policy={"model": tiny},
        on_policy={"samples": 2, "limit": 1, "max_new_tokens": 8, "keep_truncated": True},
        judge="local",
        rule={"margin_pairs": 0.01, "margin": 0.0},
        guards={"language": False},
        tokens={"max_length": 2048},
    )
    prepared = PreparedJob(wanted, tmp_path / "out")
    assert prepared.tokens is not None
    assert "on this machine" in prepared.estimates()[0]
    with suppress(DataError):  # what it says is noise: perhaps no pair
        prepared.run()
    file = tmp_path / "out.samples.jsonl"
    before = file.read_bytes()
    assert len(before.splitlines()) == 4
    assert PreparedJob(wanted, tmp_path / "out").estimates()[0].endswith("they are there")
    other = wanted.model_copy(
        update={"on_policy": wanted.on_policy.model_copy(update={"temperature": 0.5})}
    )
    shutil.rmtree(tmp_path / "out", ignore_errors=True)
    with pytest.raises(RunFolderError, match=r"is of another job \(temperature was 1\.0, is 0\.5"):
        PreparedJob(other, tmp_path / "out").run()
    assert file.read_bytes() == before


# ---------------------------------------------------------------- budgets


def priced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A dollar a token that is written."""
    each = {"input": 0, "output": 1e6}
    file = tmp_path / "prices.json"
    models = {"chat:policy": each, "chat:judge": each, "chat:writer": each}
    file.write_text(json.dumps({"models": models}), "utf-8")
    monkeypatch.setenv("XYREWARD_PRICES", str(file))


@pytest.mark.parametrize("who", ["policy", "writer", "judge"])
def test_a_budget_that_is_spent_on_the_way_leaves_no_half_set_and_one_that_is_raised_the_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, api: FakeAPI, who: str
) -> None:
    priced(tmp_path, monkeypatch)
    wanted = (
        job(
            items=few(tmp_path),
            sources=["references", "contrastive"],
            writer=f"chat:writer@{api.base_url}",
            judge="local",
        )
        if who == "writer"
        else sampled(tmp_path, api)
    )
    one_at_a_time = {f"{who}_options": {"budget_usd": 100.0, "max_concurrency": 1}}
    low = wanted.model_copy(update=one_at_a_time)
    with pytest.raises(JudgeError, match=r"the budget is spent: \d+ of \d+ .*Raise budget_usd"):
        PreparedJob(low, tmp_path / "out").run()
    assert not (tmp_path / "out").exists()
    if who == "writer":
        return  # the server writes no answers
    straight = PreparedJob(wanted, tmp_path / "straight").run()
    assert bytes_of(PreparedJob(wanted, tmp_path / "out").run().folder) == bytes_of(straight.folder)


def test_a_budget_of_all_leaves_a_lower_one_of_a_model_alone() -> None:
    wanted = job(
        sources=["references", "contrastive"],
        writer="chat:writer@http://127.0.0.1:1",
        writer_options={"budget_usd": 5, "max_concurrency": 2},
        judge="chat:judge@http://127.0.0.1:1",
        judge_options={"budget_usd": 50},
    )
    found = with_options(wanted, {"budget_usd": 20.0, "max_concurrency": 8})
    assert found.writer_options == {"budget_usd": 5, "max_concurrency": 8}
    assert found.judge_options == {"budget_usd": 20.0, "max_concurrency": 8}


# ---------------------------------------------------------------- places


@pytest.mark.parametrize("name", ["a" * 240, "nul\0"])
def test_a_name_that_cannot_be_written_is_refused_before_anything_is_done(
    tmp_path: Path, name: str
) -> None:
    with pytest.raises(RunFolderError, match=r"cannot be made: |no path has a null character"):
        PreparedJob(job(items=few(tmp_path)), tmp_path / name)


@pytest.mark.parametrize("name", [".", "", "../here", "in/..", "{here}"])
def test_the_folder_that_one_is_in_is_refused_before_anything_is_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """A new folder takes its place, and a shell would go on looking at the old one."""
    items, here = few(tmp_path), tmp_path / "here"
    (here / "in").mkdir(parents=True)
    if name != "in/..":
        (here / "in").rmdir()
    monkeypatch.chdir(here)
    out = Path(name.format(here=here))
    with pytest.raises(RunFolderError, match=r"the folder that you are in|no folder of pairs"):
        PreparedJob(job(items=items), out)
    made = PreparedJob(job(items=items), tmp_path / "out").run()
    with pytest.raises(RunFolderError, match="the folder that you are in"):
        write_pairs(made.pairs, made.audit, out, meta={})


def test_a_link_to_an_empty_folder_or_to_none_yet_is_followed(tmp_path: Path) -> None:
    wanted = job(items=few(tmp_path))
    (tmp_path / "empty").mkdir()
    for name in ("empty", "none-yet"):
        link = tmp_path / f"link-{name}"
        link.symlink_to(tmp_path / name)
        for _ in range(2):
            assert PreparedJob(wanted, link).run().audit.ok
        assert link.is_symlink()
        assert read_pairs(tmp_path / name).audit.ok


def test_why_no_pair_is_left_says_what_was_read_and_which_limit_left_none(tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    items = few(tmp_path)
    name = load_items(items[0]["source"])[0].id
    rows: list[dict[str, Any]] = [
        {"item_id": n, "answer": "x", "model": "m"} for n in ("elsewhere", name)
    ]
    rows[1]["truncated"] = True
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    none = job(items=items, sources=["cross_model"], answers=[str(file)], judge="local")
    with pytest.raises(DataError, match="0 of 2 answers; 1 is to other items, 1 was cut"):
        PreparedJob(none, tmp_path / "out").run()
    with pytest.raises(
        DataError, match=r"no pair is left of \d+ that were made.*control_share=0.25"
    ):
        PreparedJob(job(items=few(tmp_path), balance=0.0, max_pairs=1), tmp_path / "out").run()


def test_of_two_processes_that_finish_at_once_neither_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rename = Path.replace

    def slower(self: Path, target: Path) -> Path:
        if self.is_dir() and not target.exists():
            shutil.copytree(self, target)  # what the other process put there
        return rename(self, target)

    monkeypatch.setattr(Path, "replace", slower)
    report = PreparedJob(job(items=few(tmp_path)), tmp_path / "out").run()
    assert read_pairs(report.folder).audit.ok
    assert [p.name for p in tmp_path.iterdir() if p.name.startswith(".out")] == []


def test_rows_of_prompts_hold_no_personal_data_of_notes(tmp_path: Path) -> None:
    items = [
        item.model_copy(
            update={"stated_request": f"{item.stated_request} Write to ada@lovelace.org"}
        )
        for item in load_items("mini")
        if item.kind == "xy"
    ][:12]
    file = tmp_path / "items.jsonl"
    file.write_text("".join(i.model_dump_json() + "\n" for i in items), "utf-8")
    wanted = job(items=[{"source": str(file)}], formats=["preference", "prompts"])
    folder = PreparedJob(wanted, tmp_path / "out").run().folder
    assert "Write to [email]" in (folder / "prompts.jsonl").read_text("utf-8")
    assert not [name for name, data in bytes_of(folder).items() if b"ada@" in data]


# ---------------------------------------------------------------- what failed on the way


def failing(what: str, n: int) -> Faults:
    """The first `n` questions to the model `what` fail for good, as on a bad day of its server."""
    left = [n]

    def choose(body: dict[str, Any], _seen: int) -> str | None:
        is_question = what == "policy" or "Advice number" in json.dumps(body)
        if body["model"] != what or not is_question or not left[0]:
            return None
        left[0] -= 1
        return "500"

    return Faults(choose=choose)


@pytest.mark.parametrize("who", ["policy", "judge"])
def test_the_same_command_goes_on_after_a_bad_day_of_the_server_and_pays_nothing_twice(
    tmp_path: Path, who: str
) -> None:
    with FakeAPI(reply=answered, faults=failing(who, 4)) as api:
        wanted = sampled(tmp_path, api, **{f"{who}_options": {"max_attempts": 1}})
        first = PreparedJob(wanted, tmp_path / "out").run()
        paid, distinct = api.stats.billed, api.stats.distinct_billed
        unfinished = read_pairs(first.folder).meta["unfinished"]
        what = "sampling: transport" if who == "policy" else "failed verdict: transport"
        assert list(unfinished) == [what]
        assert unfinished[what] >= 4
        assert f"not all that was wanted: {what} {unfinished[what]}" in first.notes[-1]
        # Looked at, it says what is left to pay for.
        again = PreparedJob(wanted, tmp_path / "out")
        assert not again.is_done
        assert any(re.search(r"\b4 calls to make", line) for line in again.estimates())
        second = again.run()
        assert len(second.pairs.pairs) > len(first.pairs.pairs)
        needed = 4 if who == "judge" else 8  # sampled, and then judged
        assert api.stats.distinct_billed - distinct == needed
        assert api.stats.billed - paid == needed + 1  # a server is asked anew for its ways
        straight = PreparedJob(wanted, tmp_path / "straight").run()
        assert bytes_of(second.folder) == bytes_of(straight.folder)
        assert read_pairs(second.folder).meta["unfinished"] == {}
        # Now all is there, and nothing is asked any more.
        calls = api.stats.requests
        third = PreparedJob(wanted, tmp_path / "out")
        assert third.is_done
        assert third.estimates() == [
            f"the pairs of this job are in {tmp_path / 'out'}: nothing is left to do"
        ]
        report = third.run()
        assert report.pairs == second.pairs
        assert report.audit == second.audit
        assert report.notes == [*second.notes, "the pairs of this job were there; nothing was done"]
        assert api.stats.requests == calls
    assert sorted(
        p.name for p in tmp_path.iterdir() if "out" in p.name and "samples" not in p.name
    ) == ["out"]


def test_a_folder_that_somebody_changed_is_not_gone_on_with_and_nothing_is_asked(
    tmp_path: Path,
) -> None:
    with FakeAPI(reply=answered, faults=failing("judge", 4)) as api:
        wanted = sampled(tmp_path, api, judge_options={"max_attempts": 1})
        folder = PreparedJob(wanted, tmp_path / "out").run().folder
        calls = api.stats.requests
        with (folder / "README.md").open("a") as card:
            card.write("My words.")
        with pytest.raises(
            RunFolderError, match=r"not replaced, since README\.md is not as written"
        ):
            PreparedJob(wanted, tmp_path / "out")
        assert api.stats.requests == calls


def test_what_a_model_makes_of_an_answer_is_no_bad_day(tmp_path: Path) -> None:
    """A refusal would come again: the set is all there is, and another start pays for none of it."""

    def choose(body: dict[str, Any], _seen: int) -> str | None:
        return "refusal" if body["model"] == "judge" and "number 1" in json.dumps(body) else None

    with FakeAPI(reply=answered, faults=Faults(choose=choose)) as api:
        wanted = sampled(tmp_path, api)
        first = PreparedJob(wanted, tmp_path / "out").run()
        assert first.pairs.dropped["failed verdict: refused"] > 0
        calls = api.stats.requests
        assert PreparedJob(wanted, tmp_path / "out").run().pairs == first.pairs
        assert api.stats.requests == calls


def test_a_file_of_answers_that_changed_is_another_job_before_anything_is_asked(
    tmp_path: Path, api: FakeAPI
) -> None:
    items = few(tmp_path)
    mine = PreparedJob(job(items=items), tmp_path / "x").items
    file = tmp_path / "answers.jsonl"

    def write(texts: list[str]) -> None:
        rows = [
            {"item_id": i.id, "answer": f"{t} {i.id}.", "model": "m"} for i in mine for t in texts
        ]
        file.write_text("".join(json.dumps(row) + "\n" for row in rows))

    write(["Begin at the top", "Mind the corners", "Leave it to the morning"])
    wanted = job(
        items=items,
        sources=["cross_model"],
        answers=[str(file)],
        judge=f"chat:judge@{api.base_url}",
        rule={"margin": 0.01, "margin_pairs": 0.01},
        guards={"language": False, "nearly_identical": None},
    )
    PreparedJob(wanted, tmp_path / "out").run()
    calls = api.stats.requests
    write(["Begin at the top", "Mind the corners", "Ask a neighbour"])
    with pytest.raises(RunFolderError, match=r"another job.*differs in answers_hash \(was"):
        PreparedJob(wanted, tmp_path / "out")
    assert api.stats.requests == calls


# ---------------------------------------------------------------- what it would take, and dry runs


def test_the_order_check_is_on_the_bill_at_most_and_to_the_pair_once_verdicts_are_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, api: FakeAPI
) -> None:
    file = tmp_path / "prices.json"
    file.write_text(json.dumps({"models": {"chat:judge": {"input": 1.0, "output": 5.0}}}), "utf-8")
    monkeypatch.setenv("XYREWARD_PRICES", str(file))
    wanted = job(
        items=few(tmp_path, 20),
        judge=f"chat:judge@{api.base_url}",
        rule={"needs": ["misconception"]},
        order_check=True,
    )
    prepared = PreparedJob(wanted, tmp_path / "out")
    judging, order = prepared.estimates()
    most = 0
    for item in prepared.items:
        kinds = Counter(reference.kind for reference in item.references)
        most += kinds["direct"] * kinds["overcorrecting"]
        most += kinds["goal_focused"] * sum(kinds[kind] for kind in REJECTED_KINDS)
    assert order.startswith(
        f"order-swapped check of at most {most} pairs: {2 * most} calls to make"
    )
    dollars = re.search(r"US dollars: about (\d+\.\d+), at most (\d+\.\d+)$", order)
    assert dollars is not None
    assert 0 < float(dollars[1]) < float(dollars[2])
    # Verdicts that the store has say which pairs there are.
    unchecked = PreparedJob(wanted.model_copy(update={"order_check": False}), tmp_path / "free")
    made = unchecked.run().pairs
    n = len(made.pairs) + made.dropped.get("above control_share", 0)
    assert 0 < n < most
    judging, order = PreparedJob(wanted, tmp_path / "out").estimates()
    assert ": 0 calls to make" in judging
    assert order.startswith(f"order-swapped check of {n} pairs: {2 * n} calls to make")
    assert api.stats.requests > 0


@pytest.mark.parametrize(
    ("rule", "n"),
    [
        ({}, 4),  # 2 over 2 of four answers
        ({"margin_pairs": 0.1}, 6),  # any two of four
        ({"max_pairs_per_item": 3}, 3),
    ],
)
def test_of_answers_that_are_not_sampled_yet_as_many_pairs_are_assumed_as_there_may_be(
    tmp_path: Path, api: FakeAPI, rule: dict[str, Any], n: int
) -> None:
    on_policy = {"samples": 4, "limit": 2, "max_new_tokens": 32}
    wanted = sampled(tmp_path, api, on_policy=on_policy, rule=rule, order_check=True)
    prepared = PreparedJob(wanted, tmp_path / "out")
    pairs = n * len(prepared.sampled_items)
    assert (
        f"order-swapped check of at most {pairs} pairs: {2 * pairs} calls"
        in prepared.estimates()[-1]
    )
    assert api.stats.requests == 0


def test_a_dry_run_leaves_no_store_and_no_lock(tmp_path: Path, api: FakeAPI) -> None:
    wanted = sampled(
        tmp_path,
        api,
        sources=["on_policy", "contrastive"],
        writer=f"chat:writer@{api.base_url}",
        splits_lock=str(tmp_path / "splits.json"),
        order_check=True,
    )
    before = sorted(tmp_path.iterdir())
    assert len(PreparedJob(wanted, tmp_path / "out", dry_run=True).estimates()) == 4
    assert sorted(tmp_path.iterdir()) == before
    PreparedJob(wanted, tmp_path / "out")
    assert (tmp_path / "splits.json").is_file()
    assert not (tmp_path / "store.sqlite").exists()


# ---------------------------------------------------------------- what is sent


def test_neither_writer_nor_policy_is_sent_personal_data(tmp_path: Path) -> None:
    items = [
        item.model_copy(
            update={
                "query": f"{item.query_text} Write to ada@lovelace.org",
                "stated_request": f"{item.stated_request} Ring +44 20 7183 8750",
            }
        )
        for item in load_items("mini")
        if item.kind == "xy"
    ][:12]
    file = tmp_path / "items.jsonl"
    file.write_text("".join(i.model_dump_json() + "\n" for i in items), "utf-8")
    with FakeAPI(reply=answered, log_bodies=True) as api:
        wanted = sampled(
            tmp_path,
            api,
            items=[{"source": str(file)}],
            sources=["on_policy", "contrastive"],
            writer=f"chat:writer@{api.base_url}",
            order_check=True,
        )
        with suppress(DataError):  # the server writes no answers, and a judge's labels are drawn
            PreparedJob(wanted, tmp_path / "out").run()
        bodies = [entry.body for entry in api.log if entry.body]
    asked = {model: [json.dumps(b) for b in bodies if b.get("model") == model] for model in
             ("policy", "writer", "judge")}  # fmt: skip
    for model, texts in asked.items():
        texts = [text for text in texts if "ovelace" in text or "[email]" in text or "7183" in text]
        assert texts, model
        assert not [text for text in texts if "ada@" in text or "7183" in text], model
