import asyncio
import json
import os
import pickle
import signal
import sqlite3
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from store_processes import finish, lines, record, sound, start, wait_until

from xyreward.errors import StoreError
from xyreward.store import BatchRow, Spent, StoredVerdict, VerdictStore, database, owners
from xyreward.store.database import (
    MIGRATIONS,
    SCHEMA_VERSION,
    checked_version,
    connect,
    refuse_network,
)
from xyreward.store.owners import Owner


@pytest.fixture
def store(tmp_path: Path) -> Iterator[VerdictStore]:
    with VerdictStore.open(tmp_path / "v.sqlite") as store:
        yield store


# ---------------------------------------------------------------- records


def test_what_was_put_comes_back_the_same_also_after_opening_anew(tmp_path: Path) -> None:
    first = record("a", raw_text="line\n\x00 ü 漢 \U0001f600", cost_usd=None)
    second = record("b", kind="grounding", payload="{}")
    with VerdictStore.open(tmp_path / "v") as store:
        store.put(first)
        store.put(second)
    with VerdictStore.open(tmp_path / "v") as store:
        assert store.get_many([first.key, "absent", second.key, first.key]) == {
            first.key: first,
            second.key: second,
        }
        assert list(store.records()) == [first, second]


def test_thousands_of_keys_are_looked_up_at_once(store: VerdictStore) -> None:
    records = [record(str(i)) for i in range(1_203)]
    assert store.add_many(records) == 1_203
    assert store.add_many(records[:5]) == 0
    assert store.get_many(r.key for r in records) == {r.key: r for r in records}
    assert list(store.records()) == records


def test_the_first_verdict_of_a_key_stays(store: VerdictStore) -> None:
    store.put(record("a"))
    store.put(record("a", payload='"another sample"', cost_usd=9.0))
    assert store.get_many([record("a").key]) == {record("a").key: record("a")}


def test_a_hit_with_another_identity_is_an_error_that_names_both(store: VerdictStore) -> None:
    store.put(record("a"))
    key, identity = record("a").key, dict(record("a").identity)
    assert set(store.get_many([key], {key: identity, "absent": {}})) == {key}
    other = {**identity, "judge": "anthropic:n", "run": "x"}
    for ask in (
        lambda: store.get_many([key], {key: other}),
        lambda: asyncio.run(store.wait_for(key, other)),
        lambda: store.put(record("a", identity=other)),
    ):
        with pytest.raises(StoreError) as caught:
            ask()
        assert str(caught.value).startswith(
            f"key {key[:16]}: judge is 'anthropic:m' in the store and 'anthropic:n' was asked for; "
            "run is None in the store and 'x' was asked for. One key cannot stand for both"
        )


@pytest.mark.parametrize(
    ("field", "value", "error"),
    [
        ("kind", "failure", ValueError),
        ("key", "", ValueError),
        ("key", None, TypeError),
        ("payload", None, TypeError),
        ("payload", {"a": 1}, TypeError),
        ("identity", {"vote": 1}, TypeError),
        ("cost_usd", float("nan"), ValueError),
        ("cost_usd", -0.01, ValueError),
    ],
)
def test_a_record_with_a_field_of_another_kind_is_refused(
    store: VerdictStore, field: str, value: Any, error: type[Exception]
) -> None:
    with pytest.raises(error):
        store.put(record("a", **{field: value}))
    assert list(store.records()) == []


def test_half_of_a_surrogate_pair_in_a_reply_loses_no_verdict(store: VerdictStore) -> None:
    store.put(record("a", raw_text="\ud800!", payload='"\udc00"'))
    assert next(store.records()) == record("a", raw_text="?!", payload='"?"')


# ---------------------------------------------------------------- single flight


def test_a_key_is_granted_once_until_it_is_released(store: VerdictStore, tmp_path: Path) -> None:
    with VerdictStore.open(store.path) as other:
        assert store.claim(["a", "b", "a"]) == {"a", "b"}
        assert store.claim(["a"]) == set()
        assert other.claim(["a", "b", "c"]) == {"c"}
        other.release(["a"])  # it is not the other's
        assert other.claim(["a"]) == set()
        store.release(["a"])
        assert other.claim(["a", "b"]) == {"a"}


def test_a_key_that_is_there_is_not_granted(store: VerdictStore) -> None:
    # Between looking and claiming somebody else may have paid for it.
    store.put(record("a"))
    assert store.claim([record("a").key, "b"]) == {"b"}


def test_a_put_ends_the_claim(store: VerdictStore) -> None:
    key = record("a").key
    store.claim([key])
    store.put(record("a"))
    with store.database.read() as connection:
        assert connection.execute("SELECT COUNT(*) FROM claims").fetchone() == (0,)


def test_closing_lets_go_of_claims(store: VerdictStore) -> None:
    with VerdictStore.open(store.path) as other:
        other.claim(["a"])
    assert store.claim(["a"]) == {"a"}


def test_waiting_brings_the_verdict_as_soon_as_another_puts_it(store: VerdictStore) -> None:
    async def wait() -> StoredVerdict | None:
        waiting = asyncio.create_task(store.wait_for(record("a").key, record("a").identity))
        await asyncio.sleep(0.1)
        assert not waiting.done()
        store.put(record("a"))
        return await asyncio.wait_for(waiting, 1)

    store.claim([record("a").key])
    assert asyncio.run(wait()) == record("a")


def test_waiting_ends_with_none_when_the_claim_is_given_up(store: VerdictStore) -> None:
    async def wait() -> StoredVerdict | None:
        waiting = asyncio.create_task(store.wait_for("a"))
        await asyncio.sleep(0.05)
        store.release(["a"])
        return await asyncio.wait_for(waiting, 1)

    assert asyncio.run(store.wait_for("a")) is None  # nobody claimed it
    store.claim(["a"])
    assert asyncio.run(wait()) is None


def test_waiting_can_have_a_limit(store: VerdictStore) -> None:
    store.claim(["a"])
    with pytest.raises(TimeoutError, match=r"key a: still on its way after 0\.1 s"):
        asyncio.run(store.wait_for("a", timeout=0.1))


def test_waiting_asks_ever_less_often_down_to_twice_a_second(
    store: VerdictStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float] = []

    async def no_time_passes(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 100:
            store.release(["a"])

    store.claim(["a"])
    monkeypatch.setattr(asyncio, "sleep", no_time_passes)
    assert asyncio.run(store.wait_for("a")) is None
    assert 0.01 < pauses[0] <= 0.02
    assert 0.37 < min(pauses[20:]) < max(pauses[20:]) <= 0.5


def test_waiting_keeps_no_other_task_from_running(store: VerdictStore) -> None:
    async def wait() -> int:
        waiting = [asyncio.create_task(store.wait_for(str(i))) for i in range(200)]
        ticks, end = 0, time.monotonic() + 1.0
        while time.monotonic() < end:
            await asyncio.sleep(0.01)
            ticks += 1
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        return ticks

    store.claim(map(str, range(200)))
    assert asyncio.run(wait()) > 20


def test_one_store_serves_threads_and_event_loops(store: VerdictStore) -> None:
    key = record("shared").key
    store.claim([key])
    got: list[StoredVerdict | None] = []
    errors: list[BaseException] = []

    def work(thread: int) -> None:
        try:
            for i in range(40):
                store.put(record(f"{thread}-{i}"))
            got.append(asyncio.run(store.wait_for(key)))
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    store.put(record("shared"))
    for thread in threads:
        thread.join()
    assert errors == []
    assert got == [record("shared")] * 8
    assert len(list(store.records())) == 8 * 40 + 1


def test_eight_processes_that_want_the_same_500_pay_for_each_once(tmp_path: Path) -> None:
    code = """
async def judge(i):
    name = str(i)
    key = record(name).key
    while True:
        if found := store.get_many([key], {key: record(name).identity}):
            return found[key]
        if store.claim([key]):
            told(i)
            await asyncio.sleep(random.uniform(0, 0.02))
            store.put(record(name))
        elif found := await store.wait_for(key):
            return found

async def main():
    todo = iter(random.sample(range(500), 500))
    async def work():
        for i in todo:
            assert await judge(i) == record(str(i))
    await asyncio.gather(*(work() for _ in range(16)))

asyncio.run(main())
"""
    path, log = tmp_path / "v", tmp_path / "payments"
    finish(start(code, path, log, copies=8))
    assert sorted(map(int, lines(log))) == list(range(500))
    with VerdictStore.open(path) as store:
        assert len(list(store.records())) == 500


def test_a_store_that_another_process_makes_at_this_moment_is_ours(tmp_path: Path) -> None:
    path = tmp_path / "v"
    with closing(connect(path)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        made: list[str] = []

        def between(statement: str) -> None:
            if "sqlite_master" in statement and not made:
                made.append(statement)
                VerdictStore.open(path).close()

        connection.set_trace_callback(between)
        assert checked_version(connection, path) == 0  # as it was when the first was read
        connection.set_trace_callback(None)
        assert made
        assert checked_version(connection, path) == SCHEMA_VERSION


# ---------------------------------------------------------------- death


def test_kill_at_any_moment_loses_no_verdict_and_leaves_none_half(tmp_path: Path) -> None:
    code = """
store.close()

def write(writer):
    store = VerdictStore.open(sys.argv[1])
    for n in range(10**9):
        name = f"{writer}-{n}"
        reservation = store.ledger.reserve("run", 0.01)
        store.claim([record(name).key])
        store.put(record(name), reservation=reservation)
        told(name)

for kill in range(20):
    writers = []
    for writer in "ab":
        if (child := os.fork()) == 0:
            write(f"{kill}{writer}")
        writers.append(child)
    before = len(lines(Path(sys.argv[2])))
    wait_until(lambda: len(lines(Path(sys.argv[2]))) > before)
    time.sleep(random.uniform(0, 0.06))
    for child in writers:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
"""
    path, log = tmp_path / "v", tmp_path / "log"
    finish(start(code, path, log))
    assert sound(path)
    names = lines(log)
    assert len(names) >= 20
    with VerdictStore.open(path) as store:
        found = {r.key: r for r in store.records()}
        assert {record(name).key for name in names} <= found.keys()
        for r in found.values():
            assert r == record(json.loads(r.payload)["name"])
        # Paid and there cannot come apart.
        spent = store.ledger.spent("run")
        assert spent.calls == len(found)
        assert spent.open_calls == 0
        assert spent.lost_calls <= 40


def test_claims_of_a_killed_process_are_granted_within_a_second(
    store: VerdictStore, tmp_path: Path
) -> None:
    code = """
store.claim(["a", "b"])
store.ledger.reserve("run", 0.25)
told("claimed")
time.sleep(60)
"""
    log = tmp_path / "log"
    process = start(code, store.path, log)
    wait_until(lambda: lines(log) == ["claimed"])
    assert store.claim(["a"]) == set()
    assert store.ledger.spent("run") == Spent(reserved_usd=0.25, open_calls=1)

    async def killed_while_waiting() -> float:
        waiting = asyncio.create_task(store.wait_for("a"))
        await asyncio.sleep(1.2)  # its pause has grown
        os.kill(process.pid, signal.SIGKILL)  # and nobody waits for it: it stays as a zombie
        started = time.monotonic()
        assert await waiting is None
        return time.monotonic() - started

    assert asyncio.run(killed_while_waiting()) < 1
    assert store.claim(["a"]) == {"a"}
    assert store.claim(["b"]) == {"b"}
    assert store.ledger.spent("run") == Spent(possibly_usd=0.25, lost_calls=1)
    process.wait()


def test_a_pid_that_now_is_another_process_is_dead() -> None:
    me = Owner()
    beat, wall = time.monotonic(), time.time()
    same = Owner(boot=me.boot, namespace=me.namespace, pid=me.pid, started=me.started)
    assert me.sees_alive(same, beat, wall)
    reused = Owner(boot=me.boot, namespace=me.namespace, pid=me.pid, started="1")
    assert not me.sees_alive(reused, beat, wall)
    init = Owner(boot=me.boot, namespace=me.namespace, pid=1)
    assert not me.sees_alive(init, beat, wall)


def test_where_a_pid_says_nothing_the_heartbeat_decides() -> None:
    me = Owner()
    beat, wall = time.monotonic(), time.time()
    old, long_ago = beat - owners.LEASE_S - 1, wall - owners.LEASE_S - 1
    container = Owner(boot=me.boot, namespace="pid:[1]", pid=me.pid, started="1")
    assert me.sees_alive(container, beat, long_ago)  # clocks may be set; this one is not
    assert not me.sees_alive(container, old, wall)
    machine = Owner(boot="another", namespace=me.namespace, pid=me.pid, started=me.started)
    assert me.sees_alive(machine, old, wall)
    assert not me.sees_alive(machine, beat, long_ago)
    stopped = Owner(boot=me.boot, namespace=me.namespace, pid=me.pid, started=me.started)
    assert not me.sees_alive(stopped, old, wall)


def test_an_owner_that_is_silent_for_long_keeps_its_claims(
    store: VerdictStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(owners, "BEAT_EVERY_S", 0.05)
    monkeypatch.setattr(owners, "LEASE_S", 0.5)
    with VerdictStore.open(store.path) as other:
        other.claim(["a"])
        time.sleep(1)
        assert store.claim(["a"]) == set()


def test_a_store_that_was_forgotten_without_closing_loses_its_claims(
    store: VerdictStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(owners, "BEAT_EVERY_S", 0.05)
    monkeypatch.setattr(owners, "LEASE_S", 0.5)
    VerdictStore.open(store.path).claim(["a"])
    time.sleep(1)
    assert store.claim(["a"]) == {"a"}


def test_a_forked_child_has_a_connection_and_claims_of_its_own(tmp_path: Path) -> None:
    code = """
key = record("parent").key
assert store.claim([key, "b"]) == {key, "b"}
child = os.fork()
if child == 0:
    assert store.claim([key]) == set()
    store.release([key])  # not the child's
    assert store.claim([key, "c"]) == {"c"}
    for i in range(200):
        store.put(record(f"child-{i}"))
    store.close()
    os._exit(0)
for i in range(200):
    store.put(record(f"parent-{i}"))
assert os.waitpid(child, 0)[1] == 0
if (child := os.fork()) == 0:
    store.close()
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
with VerdictStore.open(sys.argv[1]) as other:
    assert other.claim([key, "b"]) == set()  # what a child closes is not the parent's
store.put(record("parent"))
assert store.claim(["c"]) == {"c"}  # the child closed
assert len(list(store.records())) == 401
store.close()
"""
    path = tmp_path / "v"
    finish(start(code, path, tmp_path / "log"))
    assert sound(path)


def test_a_fork_while_other_threads_write_blocks_neither_side(tmp_path: Path) -> None:
    code = """
stop = threading.Event()
def write(n):
    i = 0
    while not stop.is_set():
        store.put(record(f"{n}-{i}"))
        i += 1
threads = [threading.Thread(target=write, args=(n,)) for n in range(4)]
for thread in threads: thread.start()
for fork in range(10):
    if (child := os.fork()) == 0:
        store.put(record(f"child-{fork}"))
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
stop.set()
for thread in threads: thread.join()
assert len(store.get_many(record(f"child-{i}").key for i in range(10))) == 10
store.close()
"""
    if sys.version_info >= (3, 12):  # it warns of what is tested here
        code = f"import warnings\nwarnings.simplefilter('ignore', DeprecationWarning)\n{code}"
    path = tmp_path / "v"
    finish(start(code, path, tmp_path / "log"))
    assert sound(path)


def test_a_store_goes_to_a_spawned_process_as_its_path(store: VerdictStore) -> None:
    store.put(record("a"))
    with pickle.loads(pickle.dumps(store)) as other:
        assert other.path == store.path
        assert list(other.records()) == [record("a")]


# ---------------------------------------------------------------- money


def test_a_reservation_is_settled_released_or_lost(store: VerdictStore) -> None:
    ledger = store.ledger
    a, b, c, _ = (str(ledger.reserve("run", 0.1, 0.4)) for _ in range(4))
    assert ledger.spent("run") == Spent(reserved_usd=0.4, open_calls=4)
    assert ledger.reserve("run", 0.1, 0.4) is None
    ledger.settle(a, 0.03)
    ledger.release(b)
    ledger.lose(c)
    assert ledger.spent("run") == Spent(0.03, 0.1, 0.1, calls=1, lost_calls=1, open_calls=1)
    assert ledger.reserve("run", 0.18, 0.4) is None
    assert ledger.reserve("run", 0.17, 0.4)
    assert ledger.reserve("another", 0.4, 0.4)
    assert ledger.runs() == ["another", "run"]
    assert ledger.spent("unknown") == Spent()


def test_a_lost_reply_that_comes_after_all_is_settled(store: VerdictStore) -> None:
    reservation = store.ledger.reserve("run", 0.1)
    assert reservation
    store.ledger.lose(reservation)
    store.ledger.lose(reservation)
    assert store.ledger.spent("run") == Spent(possibly_usd=0.1, lost_calls=1)
    store.ledger.settle(reservation, 0.02)
    store.ledger.settle(reservation, 0.02)
    store.ledger.lose(reservation)
    store.ledger.release(reservation)
    assert store.ledger.spent("run") == Spent(settled_usd=0.02, calls=1)


def test_a_verdict_settles_its_call_in_the_same_commit(store: VerdictStore) -> None:
    first, second = store.ledger.reserve("run", 0.1), store.ledger.reserve("run", 0.1)
    store.put(record("a", cost_usd=0.02), reservation=first)
    store.put(record("b", cost_usd=0.05), reservation=second, paid_usd=0.03)
    assert store.ledger.spent("run") == Spent(settled_usd=0.05, calls=2)
    with pytest.raises(StoreError, match="reservation '99' is not in this store"):
        store.put(record("c"), reservation="99")
    assert store.get_many([record("c").key]) == {record("c").key: record("c")}  # it was paid for


def test_a_verdict_that_contradicts_is_paid_for_all_the_same(store: VerdictStore) -> None:
    store.put(record("a"))
    reservation = store.ledger.reserve("run", 0.1)
    with pytest.raises(StoreError, match="One key cannot stand for both"):
        store.put(record("a", identity={"judge": "other"}), reservation=reservation)
    assert store.ledger.spent("run") == Spent(settled_usd=0.0078, calls=1)


def test_an_unknown_price_is_counted_and_is_not_free(store: VerdictStore) -> None:
    with pytest.raises(ValueError, match="a cap needs a price for every call"):
        store.ledger.reserve("run", None, 1.0)
    reservation = store.ledger.reserve("run", None)
    assert store.ledger.spent("run") == Spent(open_calls=1, unpriced_calls=1)
    store.put(record("a", cost_usd=None), reservation=reservation)
    assert store.ledger.spent("run") == Spent(calls=1, unpriced_calls=1)


@pytest.mark.parametrize("usd", [-0.1, float("nan"), float("inf"), "1", True])
def test_an_amount_that_is_no_amount_is_refused(store: VerdictStore, usd: Any) -> None:
    with pytest.raises(ValueError, match=r"usd_worst is .* expected US dollars, 0 or more"):
        store.ledger.reserve("run", usd)


def test_parts_of_a_nanodollar_are_rounded_so_that_the_cap_holds(store: VerdictStore) -> None:
    assert store.ledger.reserve("run", 1.4e-9, 1.9e-9) is None
    assert store.ledger.reserve("run", 1.4e-9, 2e-9) is not None


def test_a_thousand_tenths_of_a_cent_fill_a_dollar_to_the_last(store: VerdictStore) -> None:
    # In floating point a thousand times 0.001 is more than 1.
    for _ in range(1_000):
        reservation = store.ledger.reserve("run", 0.001, 1.0)
        assert reservation
        store.ledger.settle(reservation, 0.001)
    assert store.ledger.spent("run") == Spent(settled_usd=1.0, calls=1_000)
    assert store.ledger.reserve("run", 1e-9, 1.0) is None


def test_room_that_another_process_took_meanwhile_is_not_given_twice(store: VerdictStore) -> None:
    got: list[str | None] = []
    with VerdictStore.open(store.path) as other:
        thread = threading.Thread(target=lambda: got.append(other.ledger.reserve("run", 0.6, 1.0)))
        with store.database.write() as connection:
            thread.start()
            time.sleep(0.2)  # it has seen room, and waits for its turn to write
            connection.execute("INSERT INTO runs (run) VALUES ('run')")
            connection.execute(
                "INSERT INTO ledger (run, owner, state, worst_nusd) "
                "VALUES ('run', 'x', 'reserved', 600000000)"
            )
        thread.join()
    assert got == [None]


def test_eight_processes_never_exceed_the_cap(tmp_path: Path) -> None:
    code = """
while reservation := store.ledger.reserve("run", 0.01, 1.0):
    spent = store.ledger.spent("run")
    assert spent.settled_usd + spent.possibly_usd + spent.reserved_usd <= 1.0
    cents = random.choice([0.0025, 0.005, 0.01])
    told(cents)
    store.put(record(f"{os.getpid()}-{reservation}", cost_usd=cents), reservation=reservation)
"""
    path, log = tmp_path / "v", tmp_path / "payments"
    finish(start(code, path, log, copies=8))
    paid = sum(map(float, lines(log)))
    with VerdictStore.open(path) as store:
        spent = store.ledger.spent("run")
        assert spent == Spent(spent.settled_usd, calls=len(lines(log)))
        assert spent.settled_usd == pytest.approx(paid)
        assert 0.98 < spent.settled_usd <= 1.0


# ---------------------------------------------------------------- batches


def test_a_batch_outlives_the_process_that_sent_it(tmp_path: Path) -> None:
    rows = [BatchRow("1", "k1", '{"text": "é"}', "7"), BatchRow("0", "k0", "{}")]
    with VerdictStore.open(tmp_path / "v") as store:
        name = store.batches.add(rows, judge="anthropic:m", run="run")
        assert [b.state for b in store.batches.find()] == ["submitting"]
        store.batches.submitted(name, "msgbatch_1")
    with VerdictStore.open(tmp_path / "v") as store:
        (batch,) = store.batches.find(run="run", state="open")
        assert (batch.batch_id, batch.judge, batch.rows) == ("msgbatch_1", "anthropic:m", 2)
        assert store.batches.rows("msgbatch_1") == rows
        assert store.batches.on_their_way(["k0", "k2"]) == {"k0": "msgbatch_1"}
        assert store.batches.find(run="other") == []
        store.batches.close("msgbatch_1")
        assert store.batches.find(state="open") == []
        assert store.batches.on_their_way(["k0"]) == {}
        assert [(b.state, b.rows) for b in store.batches.find()] == [("closed", 0)]


def test_a_batch_that_is_not_there_cannot_change(store: VerdictStore) -> None:
    with pytest.raises(StoreError, match="'x' is not in this store"):
        store.batches.submitted("x", "msgbatch_1")
    with pytest.raises(StoreError, match="'x' is not in this store"):
        store.batches.close("x")
    with pytest.raises(ValueError, match="the same custom_id"):
        store.batches.add([BatchRow("1", "a", ""), BatchRow("1", "b", "")], judge="j", run="r")
    assert store.batches.find() == []


# ---------------------------------------------------------------- opening


def test_the_path_comes_from_the_call_the_environment_or_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XYREWARD_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("XYREWARD_STORE", raising=False)
    with VerdictStore.open() as store:
        assert store.path == tmp_path / "cache" / "verdicts.sqlite"
    monkeypatch.setenv("XYREWARD_STORE", str(tmp_path / "deep" / "v"))
    with VerdictStore.open() as store:
        assert store.path == tmp_path / "deep" / "v"
    with VerdictStore.open(tmp_path / "named with ? and # and %20") as store:
        store.put(record("a"))
        assert store.path.is_file()


@pytest.mark.parametrize(
    "path", ["~nosuchuserhere/v.sqlite", "a\0b", "n" * 300, "/etc/passwd/x/v.sqlite"]
)
def test_a_path_that_no_file_can_have_is_told_with_the_way_out(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XYREWARD_STORE", path) if "\0" not in path else None
    for given in (path, None if "\0" not in path else path):
        with pytest.raises(StoreError, match="Name another path"):
            VerdictStore.open(given)


def test_a_store_that_is_not_there_is_not_made_where_it_is_only_to_be_read(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="no verdict store is there; check the path"):
        VerdictStore.open(tmp_path / "v", create=False)
    assert list(tmp_path.iterdir()) == []


def test_eight_processes_open_a_new_store_at_once(tmp_path: Path) -> None:
    code = "store.put(record(str(number))); told(1)"
    finish(start(code, tmp_path / "v", tmp_path / "log", copies=8))
    assert len(lines(tmp_path / "log")) == 8
    with VerdictStore.open(tmp_path / "v") as store:
        assert len(list(store.records())) == 8


def test_a_closed_store_says_so(tmp_path: Path) -> None:
    store = VerdictStore.open(tmp_path / "v")
    store.close()
    store.close()
    with pytest.raises(StoreError, match="was closed; open it again"):
        store.get_many(["a"])


def test_a_file_that_was_removed_or_replaced_in_use_is_not_written_into_the_void(
    store: VerdictStore, tmp_path: Path
) -> None:
    store.put(record("a"))
    store.claim(["x"])
    (tmp_path / "moved").mkdir()
    for file in tmp_path.glob("v.sqlite*"):
        file.rename(tmp_path / "moved" / file.name)
    for _ in range(2):
        with pytest.raises(StoreError, match="was removed or replaced while it was in use"):
            store.put(record("b"))
        VerdictStore.open(store.path).close()  # another in its place
    with VerdictStore.open(tmp_path / "moved" / "v.sqlite") as moved:
        assert list(moved.records()) == [record("a")]


def test_ctrl_c_within_a_transaction_blocks_nobody(store: VerdictStore) -> None:
    def interrupted() -> None:
        with store.database.write() as connection:
            connection.execute("INSERT INTO claims VALUES ('a', 'nobody')")
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    with VerdictStore.open(store.path) as other:
        assert other.claim(["a"]) == {"a"}


def test_an_older_schema_is_migrated_and_keeps_what_it_holds(tmp_path: Path) -> None:
    path = tmp_path / "v"
    with VerdictStore.open(path) as store:
        store.put(record("a"))
    with closing(sqlite3.connect(path)) as connection:  # back to schema 1
        connection.executescript(
            "DROP TABLE batches; DROP TABLE batch_rows; PRAGMA user_version = 1"
        )
    with VerdictStore.open(path) as store:
        assert list(store.records()) == [record("a")]
        store.batches.add([BatchRow("1", "k", "{}")], judge="j", run="r")
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA user_version").fetchone() == (SCHEMA_VERSION,)
    assert len(MIGRATIONS) == SCHEMA_VERSION


def test_a_newer_schema_is_refused_with_the_way_out(tmp_path: Path) -> None:
    VerdictStore.open(tmp_path / "v").close()
    with closing(sqlite3.connect(tmp_path / "v")) as connection:
        connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION + 1}")
    with pytest.raises(
        StoreError, match=rf"has schema {SCHEMA_VERSION + 1}, this release reads up to"
    ):
        VerdictStore.open(tmp_path / "v")


def test_a_file_of_another_kind_is_refused_and_left_alone(tmp_path: Path) -> None:
    text = tmp_path / "notes.txt"
    text.write_text("not a database, " * 100)
    with pytest.raises(StoreError, match="is not an SQLite file, expected a verdict store"):
        VerdictStore.open(text)
    assert text.read_text() == "not a database, " * 100
    foreign = tmp_path / "other.sqlite"
    with closing(sqlite3.connect(foreign)) as connection:
        connection.execute("CREATE TABLE mine (x)")
    before = foreign.read_bytes()
    with pytest.raises(StoreError, match="is an SQLite file of another program"):
        VerdictStore.open(foreign)
    assert foreign.read_bytes() == before
    with pytest.raises(
        StoreError, match=r"is a folder, expected a file such as .*verdicts\.sqlite"
    ):
        VerdictStore.open(tmp_path)


def test_a_damaged_file_is_told_as_such(tmp_path: Path) -> None:
    path = tmp_path / "v"
    with VerdictStore.open(path) as store:
        store.add_many([record(str(i)) for i in range(200)])
    content = bytearray(path.read_bytes())
    content[4096:] = os.urandom(len(content) - 4096)
    path.write_bytes(content)
    with (
        pytest.raises(StoreError, match=r"is damaged .* Move it away .* \.recover"),
        VerdictStore.open(path) as store,
    ):
        store.get_many([record("1").key])


def test_a_folder_that_cannot_be_written_is_told_with_the_way_out(tmp_path: Path) -> None:
    code = """
if os.getuid() == 0:  # who may write anywhere
    os.setresgid(65534, 65534, 65534)
    os.setresuid(65534, 65534, 65534)
for path in sys.argv[3:]:
    try:
        VerdictStore.open(path)
    except StoreError as error:
        told(error)
"""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name, "v")
        VerdictStore.open(folder / "there").close()
        paths = [folder / "there", folder / "new", folder / "deep" / "new"]
        folder.chmod(0o555)
        folder.parent.chmod(0o555)
        finish(start(code, tmp_path / "first", tmp_path / "log", *paths))
        folder.parent.chmod(0o755)
        folder.chmod(0o755)
    errors = lines(tmp_path / "log")
    assert len(errors) == 3
    for path, error in zip(paths, errors, strict=True):
        assert error.startswith(f"{path}: ")
        assert error.endswith("Name another path in the call, the configuration or XYREWARD_STORE.")


def test_a_full_disk_is_told_and_costs_only_what_did_not_fit(tmp_path: Path) -> None:
    # A limit on the size of files stands in for a full disk.
    code = """
resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, resource.RLIM_INFINITY))
n = 0
try:
    while True:
        store.put(record(str(n)))
        told(n)
        n += 1
except StoreError as error:
    assert "nothing was half written. Make room" in str(error), error
assert len(list(store.records())) == n > 20
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
store.put(record(str(n)))  # there is room again
told(n)
store.close()
"""
    path, log = tmp_path / "v", tmp_path / "log"
    finish(start(code, path, log))
    assert sound(path)
    with VerdictStore.open(path) as store:
        assert list(store.records()) == [record(name) for name in lines(log)]


def test_what_a_full_disk_kept_out_is_written_when_there_is_room(tmp_path: Path) -> None:
    code = """
def room(size):
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))
def refused(write, *arguments, **named):
    try:
        write(*arguments, **named)
    except StoreError as error:
        assert "Make room" in str(error), error
    else:
        raise AssertionError("there was room")
a, b, c = (record(name) for name in "abc")
assert store.claim([a.key, b.key, c.key]) == {a.key, b.key, c.key}
calls = [store.ledger.reserve("run", 0.01) for _ in range(3)]
room(os.stat(f"{sys.argv[1]}-wal").st_size)
refused(store.put, a, reservation=calls[0])
refused(store.release, [a.key, b.key])
refused(store.ledger.release, calls[1])
refused(store.ledger.lose, calls[2])
refused(store.claim, ["d"])
assert store.ledger.spent("run").open_calls == 3
if os.fork() == 0:  # what the parent owes is not the child's
    room(resource.RLIM_INFINITY)
    assert store.claim(["e"]) == {"e"}
    assert list(store.records()) == []
    os._exit(0)
assert os.wait()[1] == 0
room(resource.RLIM_INFINITY)
assert store.claim([a.key, b.key, c.key]) == {b.key}  # c was never let go of
assert list(store.records()) == [a]
spent = store.ledger.spent("run")
assert (spent.settled_usd, spent.possibly_usd, spent.open_calls) == (0.0078, 0.01, 0)
room(os.stat(f"{sys.argv[1]}-wal").st_size)
refused(store.put, b)
room(resource.RLIM_INFINITY)
store.close()
"""
    path = tmp_path / "v"
    finish(start(code, path, tmp_path / "log"))
    with VerdictStore.open(path) as store:
        assert list(store.records()) == [record("a"), record("b")]
        assert store.claim([record("c").key])


def test_a_store_that_another_program_keeps_busy_is_told(
    store: VerdictStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "BUSY_TIMEOUT_S", 0.2)
    with closing(sqlite3.connect(store.path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with VerdictStore.open(store.path) as late:
            assert late.get_many(["a"]) == {}  # reading waits for nobody
            with pytest.raises(StoreError, match="another process has kept it busy"):
                late.put(record("a"))


MOUNTS = r"""
sysfs /sys sysfs rw 0 0
/dev/sda1 / ext4 rw,relatime 0 0
/dev/sdb1 /home ext4 rw 0 0
server:/export /home/ada nfs4 rw,vers=4.2 0 0
tmpfs /home/ada/scratch tmpfs rw 0 0
//server/share /mnt/my\040share cifs rw 0 0
auto /data autofs rw 0 0
store@tcp:/fs /data lustre rw 0 0
server:/old /srv nfs rw 0 0
/dev/sdc1 /srv xfs rw 0 0
sshfs /mnt/ssh fuse.sshfs rw 0 0
broken
"""


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/home/ada/v.sqlite", "nfs4"),
        ("/home/ada/not/there/yet/v.sqlite", "nfs4"),
        ("/mnt/my share/v", "cifs"),
        ("/data/v", "lustre"),
        ("/mnt/ssh/v", "fuse.sshfs"),
        ("/home/ada/scratch/v", None),
        ("/home/adam/v", None),
        ("/var/tmp/v", None),
        ("/srv/v", None),
    ],
)
def test_a_network_file_system_is_refused_with_the_way_out(path: str, kind: str | None) -> None:
    if kind is None:
        refuse_network(Path(path), MOUNTS)
        return
    with pytest.raises(StoreError) as caught:
        refuse_network(Path(path), MOUNTS)
    assert f"lies on a network file system ({kind})" in str(caught.value)
    assert "xyreward store merge" in str(caught.value)
