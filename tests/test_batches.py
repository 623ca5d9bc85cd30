import asyncio
import json
import re
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from canned import Canned

from xyreward.judges.anthropic import AnthropicEndpoint
from xyreward.judges.batches import BatchLimits, BatchReport, BatchRequest, MessageBatches
from xyreward.judges.calls import Call, JudgeStopped, Reply
from xyreward.store import BatchRow, StoredVerdict, VerdictStore
from xyreward.testing.fake_api import FakeAPI, Faults
from xyreward.verdict import Usage

KEY = "sk-ant-test-5d1f0a7c3b9e8264"
SCHEMA = {
    "type": "object",
    "properties": {"focus": {"type": "string", "enum": ["stated", "intended"]}},
    "required": ["focus"],
    "additionalProperties": False,
}
CALL = Call(prefix="You judge answers.", text="", schema=SCHEMA)
QUICK = BatchLimits(first_poll_s=0.02, last_poll_s=0.1, grace_s=1.0, request_timeout_s=20)


def requests(n: int, *, worst_usd: float | None = 0.01, text: str = "answer") -> list[BatchRequest]:
    return [
        BatchRequest(f"key-{i}", replace(CALL, text=f"{text} {i}"), f'{{"row": {i}}}', worst_usd)
        for i in range(n)
    ]


class Owner:
    """What a judge does with replies: it stores those that it can read, and settles all."""

    def __init__(self, store: VerdictStore) -> None:
        self.store = store
        self.replies: dict[str, Reply] = {}
        self.memos: dict[str, str] = {}

    def received(self, row: BatchRow, reply: Reply) -> None:
        self.replies[row.key] = reply
        self.memos[row.key] = row.call
        assert row.reservation is not None
        try:
            json.loads(reply.text)
        except ValueError:
            self.store.ledger.settle(row.reservation, 0.001)
            return
        record = StoredVerdict(
            key=row.key,
            kind="verdict",
            identity={"key": row.key},
            payload=reply.text,
            raw_text=reply.text,
            usage=reply.usage,
            cost_usd=0.001,
        )
        self.store.put(record, reservation=row.reservation)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "verdicts.sqlite"


def bring_home(
    url: str,
    path: Path,
    asked: list[BatchRequest],
    *,
    limits: BatchLimits = QUICK,
    budget_usd: float | None = None,
    timeout: float = 60,
    leave: bool = False,
) -> tuple[BatchReport, Owner]:
    """What one process does: open the store, run, close. `leave`: ends as soon as all is submitted."""

    async def work() -> tuple[BatchReport, Owner]:
        with VerdictStore.open(path) as store:
            owner = Owner(store)
            endpoint = AnthropicEndpoint(base_url=url, api_key=KEY, schema="json_schema")
            batches = MessageBatches(
                endpoint,
                store,
                run="test",
                received=owner.received,
                limits=limits,
                budget_usd=budget_usd,
            )
            running = asyncio.create_task(batches.run(asked))
            try:
                async with asyncio.timeout(timeout):
                    while leave and batches.report.submitted < len(asked):
                        await asyncio.sleep(0.01)
                    if leave:
                        running.cancel()
                    await running
            except (TimeoutError, asyncio.CancelledError):
                pass
            return batches.report, owner

    return asyncio.run(work())


def spent(path: Path) -> Any:
    with VerdictStore.open(path) as store:
        return store.ledger.spent("test")


def stored(path: Path, n: int) -> int:
    with VerdictStore.open(path) as store:
        return len(store.get_many(f"key-{i}" for i in range(n)))


def on_their_way(path: Path) -> list[tuple[str, int]]:
    with VerdictStore.open(path) as store:
        return [(b.state, b.rows) for b in store.batches.find() if b.state != "closed"]


class Apart(Canned):
    """A server with one answer to every POST, and answers to GET by path."""

    def __init__(self, post: Any, by_path: Any) -> None:
        super().__init__(by_path=by_path)
        self.post = post

    def respond(self, path: str) -> Any:
        return super().respond(path) if self.asked[-1][2] is None else self.post


# ---------------------------------------------------------------- the ordinary way


def test_requests_go_out_in_batches_of_the_allowed_size_and_all_come_home(path: Path) -> None:
    with FakeAPI(log_bodies=True) as api:
        report, owner = bring_home(
            api.base_url, path, requests(25), limits=replace(QUICK, max_rows=10)
        )
        stats, log = api.stats, api.log
    assert stats.batches == 3
    assert stats.batch_rows == {"succeeded": 25}
    assert (report.submitted, report.received, report.failed, report.waiting) == (25, 25, {}, 0)
    assert len(report.batches) == 3
    assert sum((r.usage for r in owner.replies.values()), Usage()) == stats.batch_usage
    assert stored(path, 25) == 25
    assert owner.memos["key-7"] == '{"row": 7}'
    assert spent(path).calls == 25
    assert spent(path).settled_usd == pytest.approx(0.025)
    assert spent(path).reserved_usd == spent(path).possibly_usd == 0
    assert on_their_way(path) == []
    created = [e.body for e in log if e.body and "requests" in e.body]
    assert sorted(len(body["requests"]) for body in created) == [5, 10, 10]


def test_a_row_is_sent_as_it_would_be_alone_and_its_id_fits_the_api(path: Path) -> None:
    asked = requests(3)
    with FakeAPI(log_bodies=True) as api:
        bring_home(api.base_url, path, asked)
        (body,) = [e.body for e in api.log if e.body and "requests" in e.body]
        endpoint = AnthropicEndpoint(base_url=api.base_url, api_key=KEY, schema="json_schema")
    assert [row["params"] for row in body["requests"]] == [endpoint.body(r.call) for r in asked]
    assert all(re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", row["custom_id"]) for row in body["requests"])


def test_a_batch_is_no_longer_than_the_allowed_bytes(path: Path) -> None:
    asked = requests(10, text="x" * 1000)
    with FakeAPI(log_bodies=True) as api:
        bring_home(api.base_url, path, asked, limits=replace(QUICK, max_bytes=4000))
        sizes = [len(json.dumps(e.body)) for e in api.log if e.body and "requests" in e.body]
    assert len(sizes) == 5
    assert max(sizes) < 4000
    assert stored(path, 10) == 10


def test_what_is_stored_already_is_not_asked_and_nothing_to_ask_asks_nothing(path: Path) -> None:
    with FakeAPI() as api:
        bring_home(api.base_url, path, requests(3))
        report, _ = bring_home(api.base_url, path, requests(5))
        assert report.submitted == 2
        report, _ = bring_home(api.base_url, path, requests(5))
        assert (report.submitted, report.received) == (0, 0)
        before = api.stats.requests
        bring_home(api.base_url, path, [])
        assert api.stats.requests == before
        assert api.stats.batch_rows == {"succeeded": 5}


def test_replies_with_any_line_end_of_unicode_come_home_whole(path: Path) -> None:
    text = json.dumps({"focus": "one\u2028two\x85three"}, ensure_ascii=False)
    with FakeAPI(reply=lambda body: text) as api:
        _, owner = bring_home(api.base_url, path, requests(3))
    assert [reply.text for reply in owner.replies.values()] == [text] * 3


def test_a_refusal_is_a_reply_that_was_paid_for(path: Path) -> None:
    with FakeAPI(batch_faults=Faults({"refusal": 1.0})) as api:
        report, owner = bring_home(api.base_url, path, requests(2))
    assert report.received == 2
    assert {reply.stop for reply in owner.replies.values()} == {"refused"}
    assert stored(path, 2) == 0
    assert spent(path).calls == 2


# ---------------------------------------------------------------- processes that end


def test_a_batch_outlives_its_process_and_is_found_by_its_id(path: Path) -> None:
    with FakeAPI(batch_seconds=1.5) as api:
        first, owner = bring_home(api.base_url, path, requests(8), leave=True)
        assert (first.submitted, first.received, owner.replies) == (8, 0, {})
        assert on_their_way(path) == [("open", 8)]
        assert spent(path).possibly_usd == pytest.approx(0.08)  # until its replies are here
        second, owner = bring_home(api.base_url, path, requests(8))
        assert (second.submitted, second.received) == (0, 8)
        assert api.stats.batches == 1
    assert stored(path, 8) == 8
    assert spent(path).settled_usd == pytest.approx(0.008)
    assert spent(path).possibly_usd == 0


def test_batches_left_behind_are_collected_by_who_asks_for_something_else(path: Path) -> None:
    with FakeAPI(batch_seconds=0.6) as api:
        bring_home(api.base_url, path, requests(4), leave=True)
        time.sleep(0.6)
        report, owner = bring_home(api.base_url, path, [])
        assert report.received == 4
        assert owner.memos["key-3"] == '{"row": 3}'
    assert stored(path, 4) == 4


DIE = """
import asyncio, os, signal, sys
sys.path.insert(0, {tests!r})
import test_batches as t
from pathlib import Path
from xyreward.judges.anthropic import AnthropicEndpoint
from xyreward.store.batches import Batches

def die(*_, **__):
    os.kill(os.getpid(), signal.SIGKILL)

{where}
t.bring_home({url!r}, Path({path!r}), t.requests(6))
"""


@pytest.mark.parametrize(
    ("where", "taken"),
    [
        ("AnthropicEndpoint.request = die", 0),  # written down, and not sent
        ("Batches.submitted = die", 1),  # sent, and its id not written down
        ("Batches.close = die", 1),  # collected, and not closed
        ("t.Owner.received = die", 1),
    ],
    ids=["before sending", "before remembering", "before closing", "while collecting"],
)
def test_a_process_killed_at_any_moment_has_nothing_paid_for_twice(
    path: Path, where: str, taken: int
) -> None:
    with FakeAPI() as api:
        script = DIE.format(
            tests=str(Path(__file__).parent), where=where, url=api.base_url, path=str(path)
        )
        done = subprocess.run([sys.executable, "-c", script], check=False)
        assert done.returncode == -signal.SIGKILL
        assert api.stats.batches == taken
        report, _ = bring_home(api.base_url, path, requests(6))
        assert report.failed == {}
        assert api.stats.batches == 1
        assert api.stats.batch_rows == {"succeeded": 6}
    assert stored(path, 6) == 6
    assert on_their_way(path) == []
    assert spent(path).settled_usd == pytest.approx(0.006)
    assert spent(path).possibly_usd == 0


def test_a_batch_that_may_still_show_up_in_the_list_is_waited_for(path: Path) -> None:
    with FakeAPI() as api:
        with VerdictStore.open(path) as store:
            rows = [BatchRow("tag-0", "key-0", "{}", store.ledger.reserve("test", 0.01))]
            store.batches.add(rows, judge="anthropic:claude-sonnet-5-5", run="test")
        patient = replace(QUICK, grace_s=60.0)
        report, _ = bring_home(api.base_url, path, requests(2), limits=patient, timeout=2.0)
        assert report.submitted == 1  # the other one
        assert api.stats.batch_rows == {"succeeded": 1}
        report, _ = bring_home(api.base_url, path, requests(2), limits=replace(QUICK, grace_s=0.0))
        assert report.submitted == 1
    assert stored(path, 2) == 2


@pytest.mark.parametrize(
    ("what", "submitted"),
    [("submit", 0), ("msgbatch_fake000001", 1)],
    ids=["submitting", "collecting"],
)
def test_what_another_process_is_just_doing_is_left_to_it(
    path: Path, what: str, submitted: int
) -> None:
    with FakeAPI() as api, VerdictStore.open(path) as store:
        endpoint = AnthropicEndpoint(base_url=api.base_url, api_key=KEY, schema="json_schema")
        other = MessageBatches(endpoint, store, run="test", received=Owner(store).received)
        with other._alone(what) as granted:
            assert granted
            report, _ = bring_home(api.base_url, path, requests(2), timeout=2.0)
            assert (api.stats.batches, report.received) == (submitted, 0)
        report, _ = bring_home(api.base_url, path, requests(2))
        assert api.stats.batches == 1
        assert report.received == 2


@pytest.mark.parametrize("fault", ["reset_after", "truncated_body", "broken_json"])
def test_a_submission_whose_reply_was_lost_is_found_in_the_list(path: Path, fault: str) -> None:
    def choose(body: dict[str, Any], seen: int) -> str | None:
        return fault if "requests" in body and seen == 0 else None

    faults = Faults(choose=choose, on=("batches",))
    with FakeAPI(faults=faults, batch_seconds=0.3) as api:
        report, _ = bring_home(api.base_url, path, requests(5))
        assert api.stats.batches == 1
        assert report.received == 5
        assert len(report.batches) == 1
    assert spent(path).settled_usd == pytest.approx(0.005)
    assert spent(path).possibly_usd == 0


def test_a_batch_of_somebody_else_is_not_taken_for_ours(path: Path, tmp_path: Path) -> None:
    lost: list[Any] = []

    def choose(body: dict[str, Any], seen: int) -> str | None:
        if "ours" in json.dumps(body.get("requests")) and not lost:
            lost.append(body)
            return "reset_before"  # it may have been taken, as far as a client can tell
        return None

    with FakeAPI(faults=Faults(choose=choose, on=("batches",))) as api:
        bring_home(api.base_url, tmp_path / "other.sqlite", requests(5, text="theirs"))
        report, _ = bring_home(api.base_url, path, requests(5, text="ours"))
        assert report.received == 5
        assert api.stats.batches == 2
        assert report.batches == ["msgbatch_fake000002"]
    assert stored(path, 5) == 5


def lost_in_submitting(path: Path, rows: int) -> str:
    """A batch in the store of which nobody knows whether the API took it."""
    with VerdictStore.open(path) as store:
        added = [
            BatchRow(f"tag-{i:06d}", f"key-{i}", "{}", store.ledger.reserve("test", 0.01))
            for i in range(rows)
        ]
        judge = AnthropicEndpoint(api_key=KEY).name
        return store.batches.add(added, judge=judge, run="test")


def test_an_unfinished_batch_that_may_be_ours_is_waited_for_so_long_and_no_longer(
    path: Path, tmp_path: Path
) -> None:
    name = lost_in_submitting(path, 3)
    limits = replace(QUICK, max_wait_s=0.3, grace_s=0.1)
    with FakeAPI(batch_seconds=3.0) as api:
        theirs = requests(3, text="theirs")
        bring_home(api.base_url, tmp_path / "other.sqlite", theirs, leave=True)
        with pytest.raises(JudgeStopped, match="msgbatch_fake000001 of the same size") as stopped:
            bring_home(api.base_url, path, requests(3), limits=limits, timeout=10)
        assert f"close({name!r})" in str(stopped.value)
        assert api.stats.batches == 1
        assert on_their_way(path) == [("submitting", 3)]
        # Once the other has ended, it was none of ours.
        report, _ = bring_home(api.base_url, path, requests(3), limits=replace(QUICK, grace_s=0.1))
        assert report.received == 3
        assert api.stats.batches == 2


def test_a_strangers_batch_whose_results_are_gone_does_not_end_the_run(path: Path) -> None:
    lost_in_submitting(path, 2)
    listed = {
        "id": "theirs",
        "processing_status": "ended",
        "created_at": datetime.now(UTC).isoformat(),
        "request_counts": {"succeeded": 2},
    }
    gone: Any = (404, {}, {"error": {"type": "not_found_error", "message": "no such batch"}})
    by_path = {
        BATCHES: (200, {}, {"data": [listed], "has_more": False}),
        f"{BATCHES}/theirs/results": gone,
    }
    limits = replace(QUICK, grace_s=0.1, outage_s=0.5)
    with (
        Apart((429, {}, {"error": {"message": "full"}}), by_path) as server,
        pytest.raises(JudgeStopped, match="submitting a batch"),
    ):
        bring_home(server.url, path, requests(2), limits=limits, timeout=10)
    assert on_their_way(path) == []  # it was not ours; its rows were to be submitted


def test_two_processes_with_the_same_requests_pay_once(path: Path) -> None:
    with FakeAPI(batch_seconds=0.3) as api:
        found: list[BatchReport] = []

        def work() -> None:
            found.append(
                bring_home(api.base_url, path, requests(40), limits=replace(QUICK, max_rows=7))[0]
            )

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert api.stats.batch_rows == {"succeeded": 40}
    assert sum(report.submitted for report in found) == 40
    assert sum(report.received for report in found) == 40
    assert [report.failed for report in found] == [{}] * 4
    assert stored(path, 40) == 40
    assert spent(path).calls == 40


def test_what_a_live_call_is_asking_for_is_left_to_it(path: Path) -> None:
    with FakeAPI() as api, VerdictStore.open(path) as other:
        assert other.claim(["key-1"]) == {"key-1"}

        def answer() -> None:
            time.sleep(0.5)
            other.put(StoredVerdict("key-1", "verdict", {"key": "key-1"}, "{}", "{}"))

        thread = threading.Thread(target=answer)
        thread.start()
        report, _ = bring_home(api.base_url, path, requests(3))
        thread.join()
        assert report.submitted == 2
        assert api.stats.batch_rows == {"succeeded": 2}
    assert stored(path, 3) == 3


# ---------------------------------------------------------------- what goes wrong


@pytest.mark.parametrize("fault", ["expired", "errored"])
def test_rows_that_expired_or_errored_are_submitted_again(path: Path, fault: str) -> None:
    with FakeAPI(batch_faults=Faults(script=[fault, None, fault])) as api:
        report, _ = bring_home(api.base_url, path, requests(4))
        assert api.stats.batch_rows == {"succeeded": 4, fault: 2}
    assert (report.submitted, report.again, report.received) == (6, 2, 4)
    assert report.failed == {}
    assert spent(path).settled_usd == pytest.approx(0.004)
    assert spent(path).possibly_usd == spent(path).reserved_usd == 0


@pytest.mark.parametrize(("fault", "kind"), [("expired", "timeout"), ("errored", "transport")])
def test_rows_that_never_succeed_are_given_up_and_named(path: Path, fault: str, kind: str) -> None:
    with FakeAPI(batch_faults=Faults({fault: 1.0})) as api:
        report, _ = bring_home(api.base_url, path, requests(3))
        assert api.stats.batches == QUICK.submissions
    assert set(report.failed) == {"key-0", "key-1", "key-2"}
    assert {error.kind for error in report.failed.values()} == {kind}
    assert report.received == report.waiting == 0
    assert spent(path).settled_usd == spent(path).possibly_usd == spent(path).reserved_usd == 0
    assert on_their_way(path) == []


def test_a_row_that_the_api_refuses_is_not_sent_again(path: Path) -> None:
    bad = replace(CALL, text="x", schema={**SCHEMA, "additionalProperties": True})
    asked = [*requests(2), BatchRequest("key-2", bad, "{}", 0.01)]
    with FakeAPI() as api:
        report, _ = bring_home(api.base_url, path, asked)
        assert api.stats.batches == 1
    assert list(report.failed) == ["key-2"]
    assert "additionalProperties" in report.failed["key-2"].detail
    assert not report.failed["key-2"].retry


@pytest.mark.parametrize("fault", ["429", "429_retry_after", "500", "529", "408", "502_html"])
def test_a_bad_moment_of_the_api_is_waited_for(path: Path, fault: str) -> None:
    faults = Faults(script=[fault, None, fault, None, fault], on=("batches",), retry_after=0.2)
    with FakeAPI(faults=faults) as api:
        report, _ = bring_home(api.base_url, path, requests(3))
        assert api.stats.batches == 1
    assert report.received == 3
    assert spent(path).possibly_usd == 0


def test_a_gateway_that_takes_only_small_batches_gets_small_ones(path: Path) -> None:
    with FakeAPI(max_batch_rows=3) as api:
        report, _ = bring_home(api.base_url, path, requests(10))
        assert api.stats.batch_rows == {"succeeded": 10}
    assert report.received == 10
    assert spent(path).reserved_usd == 0


@pytest.mark.parametrize("fault", ["401", "429_spend_limit"])
def test_what_no_waiting_helps_against_stops_and_leaves_nothing_reserved(
    path: Path, fault: str
) -> None:
    with FakeAPI(faults=Faults(script=[fault], on=("batches",))) as api:
        with pytest.raises(JudgeStopped) as caught:
            bring_home(api.base_url, path, requests(3))
        assert KEY not in str(caught.value)
    assert spent(path).reserved_usd == spent(path).possibly_usd == 0
    assert on_their_way(path) == []


def test_a_long_outage_ends_the_run_and_not_the_batch(path: Path) -> None:
    with FakeAPI(batch_seconds=60) as api:
        bring_home(api.base_url, path, requests(3), leave=True)
    with pytest.raises(JudgeStopped, match="run again"):
        bring_home(api.base_url, path, requests(3), limits=replace(QUICK, outage_s=0.5))
    assert on_their_way(path) == [("open", 3)]


def test_a_batch_that_this_key_cannot_see_is_named_and_kept(path: Path, tmp_path: Path) -> None:
    with FakeAPI(batch_seconds=60) as api:
        bring_home(api.base_url, tmp_path / "other.sqlite", requests(1), leave=True)
        bring_home(api.base_url, path, requests(3), leave=True)
    with FakeAPI() as elsewhere:
        with pytest.raises(JudgeStopped, match="another workspace"):
            bring_home(elsewhere.base_url, path, requests(5))
        report, _ = bring_home(elsewhere.base_url, path, [])
        assert report.unreachable == ["msgbatch_fake000002"]
    assert ("open", 3) in on_their_way(path)


def test_a_budget_holds_back_what_does_not_fit_and_names_what_never_will(path: Path) -> None:
    # 10 calls of at most 0.01 dollars, which turn out to cost 0.001 each, under a cap of 0.055.
    with FakeAPI() as api:
        report, _ = bring_home(api.base_url, path, requests(10), budget_usd=0.055)
        assert report.received == 10
        assert api.stats.batches == 2  # five, and when these had cost less, the other five
    assert spent(path).settled_usd == pytest.approx(0.010)
    with FakeAPI() as api:
        more = [replace(r, key=f"more-{r.key}") for r in requests(3)]
        report, _ = bring_home(api.base_url, path, more, budget_usd=0.015)
        assert api.stats.batches == 0
    assert {error.kind for error in report.failed.values()} == {"over_budget"}
    assert len(report.failed) == 3


# ---------------------------------------------------------------- odd results


def test_results_that_are_cut_off_are_read_again(path: Path) -> None:
    faults = Faults(script=[None, *["broken_json", None, "truncated_body"] * 3], on=("batches",))
    with FakeAPI(faults=faults) as api:
        report, _ = bring_home(api.base_url, path, requests(4))
        assert api.stats.batches == 1
    assert (report.received, report.failed) == (4, {})


def test_rows_without_a_result_count_as_possibly_paid_and_are_asked_again(path: Path) -> None:
    with VerdictStore.open(path) as store:
        rows = [
            BatchRow(f"tag-{i}", f"key-{i}", "{}", store.ledger.reserve("test", 0.01))
            for i in range(5)
        ]
        name = store.batches.add(rows, judge="anthropic:claude-sonnet-5-5", run="test")
        store.batches.submitted(name, "b1")
    message = {"content": [{"type": "text", "text": "{}"}], "stop_reason": "end_turn"}
    lines: list[Any] = [
        {"custom_id": "tag-0", "result": {"type": "succeeded", "message": message}},
        {"custom_id": "tag-0", "result": {"type": "succeeded", "message": message}},  # twice
        {"custom_id": "tag-1", "result": {"type": "succeeded", "message": "none"}},
        {"custom_id": "tag-2", "result": {"type": "canceled"}},
        {"custom_id": "tag-3", "result": "unheard of"},
        {"custom_id": "of somebody else", "result": {"type": "succeeded", "message": message}},
        "no row at all",
    ]
    results = "\n\n".join(json.dumps(line) for line in lines).encode()
    refused = {"error": {"type": "invalid_request_error", "message": "no more batches"}}
    with Canned(
        by_path={
            "/v1/messages/batches/b1": (200, {}, {"id": "b1", "processing_status": "ended"}),
            "/v1/messages/batches/b1/results": (200, {}, results),
            "/v1/messages/batches": (400, {}, refused),
        }
    ) as server:
        report, owner = bring_home(server.url, path, requests(5))
    assert list(owner.replies) == ["key-0"]
    assert report.received == 1
    assert report.again == 3  # without a message, without a known end, without a result
    assert "canceled" in report.failed["key-2"].detail
    assert {k: "no more batches" in e.detail for k, e in report.failed.items() if k != "key-2"} == {
        "key-1": True,
        "key-3": True,
        "key-4": True,
    }
    found = spent(path)
    assert found.settled_usd == pytest.approx(0.001)
    assert found.possibly_usd == pytest.approx(0.03)  # rows 1, 3 and 4
    assert found.reserved_usd == 0
    assert stored(path, 5) == 1
    assert on_their_way(path) == []


def test_results_are_read_from_our_address_and_not_from_where_the_server_points(
    path: Path,
) -> None:
    elsewhere = "http://127.0.0.1:9/v1/messages/batches/b1/results"
    with VerdictStore.open(path) as store:
        row = BatchRow("tag-0", "key-0", "{}", store.ledger.reserve("test", 0.01))
        name = store.batches.add([row], judge="anthropic:claude-sonnet-5-5", run="test")
        store.batches.submitted(name, "b1")
    message = {"content": [{"type": "text", "text": "{}"}], "stop_reason": "end_turn"}
    line = {"custom_id": "tag-0", "result": {"type": "succeeded", "message": message}}
    told = {"id": "b1", "processing_status": "ended", "results_url": elsewhere}
    with Canned(
        by_path={
            "/v1/messages/batches/b1": (200, {}, told),
            "/v1/messages/batches/b1/results": (200, {}, line),
        }
    ) as server:
        report, _ = bring_home(server.url, path, requests(1))
    assert report.received == 1


@pytest.mark.parametrize(
    "limits",
    [{"max_rows": 0}, {"max_rows": 100_001}, {"max_bytes": 300_000_000}, {"submissions": 0}],
)
def test_sizes_beyond_those_of_the_api_are_refused(limits: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="expected"):
        BatchLimits(**limits)


def test_progress_is_told_as_it_happens(path: Path) -> None:
    seen: list[tuple[int, int]] = []

    async def work(url: str) -> None:
        with VerdictStore.open(path) as store:
            batches = MessageBatches(
                AnthropicEndpoint(base_url=url, api_key=KEY, schema="json_schema"),
                store,
                run="test",
                received=Owner(store).received,
                limits=replace(QUICK, max_rows=2),
                on_change=lambda report: seen.append((report.submitted, report.received)),
            )
            await batches.run(requests(4))

    with FakeAPI() as api:
        asyncio.run(work(api.base_url))
    assert (2, 0) in seen
    assert seen[-1] == (4, 4)


BATCHES = "/v1/messages/batches"
MESSAGE = {"content": [{"type": "text", "text": "{}"}], "stop_reason": "end_turn"}
TAKEN = {"id": "b1", "processing_status": "ended", "created_at": "2026-11-30T00:00:00Z"}
NONE: Any = (200, {}, {"data": [], "has_more": False})
ENDLESS: Any = {
    "data": [{"id": "z", "created_at": "2999-01-01T00:00:00Z"}],
    "has_more": True,
    "last_id": "z",
}
ERROR: Any = (500, {}, {"error": {"message": "internal"}})


@pytest.mark.parametrize(
    ("post", "by_path", "message"),
    [
        (
            (200, {}, TAKEN),
            {"/b1": (200, {}, TAKEN), "/b1/results": (200, {}, b'{"custom_id": ')},
            "collecting batch b1 has failed for .* cut off",
        ),
        (
            (200, {}, TAKEN),
            {"/b1": (200, {}, TAKEN), "/b1/results": (200, {}, b"[" * 200_000)},
            "collecting batch b1 has failed for .* cut off",
        ),
        ((200, {}, TAKEN), {"/b1": (200, {}, b"<html>Log in")}, "collecting batch b1 .*not JSON"),
        ((200, {}, TAKEN), {"/b1": (200, {}, b"[" * 200_000)}, "collecting batch b1 .*not JSON"),
        (ERROR, {}, "submitting a batch has failed for .* 500"),
        (ERROR, {"": ERROR}, "(submitting|listing) .* has failed for .* 500"),
        (ERROR, {"": (200, {}, ENDLESS)}, "submitting a batch has failed for .* 500"),
        ((200, {}, b"[" * 200_000), {}, "submitting a batch has failed for .* no id"),
        (
            (429, {"retry-after": "inf"}, {"error": {"message": "full"}}),
            {},
            "asks to wait inf s before it takes a batch",
        ),
        (
            (429, {"retry-after": "86400"}, {"error": {"message": "full"}}),
            {},
            "asks to wait 86400 s before it takes a batch",
        ),
        ((429, {}, {"error": {"message": "full"}}), {}, "submitting a batch has failed for .* 429"),
    ],
    ids=[
        "results-cut", "results-deep", "status-html", "status-deep", "post-500", "all-500",
        "endless-list", "post-deep", "wait-inf", "wait-a-day", "full",
    ],
)  # fmt: skip
def test_a_step_that_never_works_ends_the_run_whatever_else_works(
    path: Path, post: Any, by_path: Any, message: str
) -> None:
    limits = replace(QUICK, grace_s=0.1, outage_s=0.5)
    answers = {BATCHES + below: answer for below, answer in {"": NONE, **by_path}.items()}
    with Apart(post, answers) as server, pytest.raises(JudgeStopped, match=message):
        bring_home(server.url, path, requests(2), limits=limits, timeout=10)


def test_results_may_be_as_large_as_their_rows_allow_and_no_larger(path: Path) -> None:
    padding = b" " * (33 * 2**20)  # above what a single reply may have

    def results(rows: int, path: Path) -> Any:
        with VerdictStore.open(path) as store:
            added = [
                BatchRow(f"tag-{i}", f"key-{i}", "{}", store.ledger.reserve("test", 0.01))
                for i in range(rows)
            ]
            name = store.batches.add(added, judge="anthropic:claude-sonnet-5-5", run="test")
            store.batches.submitted(name, f"b{rows}")
        lines = [
            json.dumps(
                {"custom_id": f"tag-{i}", "result": {"type": "succeeded", "message": MESSAGE}}
            )
            for i in range(rows)
        ]
        return (200, {}, padding + b"\n" + "\n".join(lines).encode())

    enough = {"/b200": (200, {}, TAKEN), "/b200/results": results(200, path), "": NONE}
    with Apart(ERROR, {BATCHES + below: answer for below, answer in enough.items()}) as server:
        report, _ = bring_home(server.url, path, requests(200))
    assert report.received == 200
    other = path.with_name("other.sqlite")
    few = {"/b2": (200, {}, TAKEN), "/b2/results": results(2, other), "": NONE}
    with (
        Apart(ERROR, {BATCHES + below: answer for below, answer in few.items()}) as server,
        pytest.raises(JudgeStopped, match=r"collecting batch b2 has failed .* more than 32 MiB"),
    ):
        bring_home(server.url, other, requests(2), limits=replace(QUICK, outage_s=0.1))
