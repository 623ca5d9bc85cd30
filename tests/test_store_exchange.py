import json
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from store_processes import finish, lines, record, sound, start, wait_until

from xyreward.errors import DataError, MissingDependency, StoreError
from xyreward.store import BatchRow, Spent, VerdictStore, database
from xyreward.store.exchange import Added, export, import_, merge
from xyreward.store.upkeep import Group, Pruned, info, prune
from xyreward.verdict import Usage

RECORDS = [
    record("a", raw_text='quote " and\nline\u2028 \x00 漢 \U0001f600'),
    record("b", kind="grounding", cost_usd=None, usage=Usage(2**40, 0, 0, 0)),
    record("c", identity={}, payload="null", served_model="", base_url=""),
]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[VerdictStore]:
    with VerdictStore.open(tmp_path / "v") as store:
        yield store


def opened(path: Path, *names: str, **changes: Any) -> VerdictStore:
    store = VerdictStore.open(path)
    store.add_many([record(name, **changes) for name in names])
    return store


# ---------------------------------------------------------------- files


@pytest.mark.parametrize("name", ["out.jsonl", "out.parquet"])
def test_what_is_exported_comes_back_the_same(
    store: VerdictStore, tmp_path: Path, name: str
) -> None:
    store.add_many(RECORDS)
    path = tmp_path / name
    path.write_text("an older file")
    assert export(store, path) == 3
    assert [p.name for p in tmp_path.iterdir() if ".partial" in p.name] == []
    assert path.stat().st_mode & 0o777 == 0o644
    with opened(tmp_path / "other", "a") as other:
        assert import_(other, path) == Added(added=2, present=1)
        assert other.get_many(r.key for r in RECORDS[1:]) == {r.key: r for r in RECORDS[1:]}
        assert import_(other, path) == Added(added=0, present=3)
    with VerdictStore.open(tmp_path / "empty") as empty:
        import_(empty, path)
        assert list(empty.records()) == RECORDS


@pytest.mark.parametrize("name", ["out.jsonl", "out.parquet"])
def test_an_empty_store_gives_an_empty_file(store: VerdictStore, tmp_path: Path, name: str) -> None:
    assert export(store, tmp_path / name) == 0
    assert import_(store, tmp_path / name) == Added(0, 0)


def test_other_tools_can_read_the_columns(store: VerdictStore, tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    store.add_many(RECORDS)
    export(store, tmp_path / "out.parquet")
    table = pq.read_table(tmp_path / "out.parquet")
    assert table["cost_usd"].to_pylist() == [0.0078, None, 0.0078]
    assert dict(table["identity"].to_pylist()[0])["judge"] == "anthropic:m"
    export(store, tmp_path / "out.jsonl")
    text = (tmp_path / "out.jsonl").read_text("utf-8")
    rows = [json.loads(line) for line in text.split("\n")[:-1]]
    assert [list(row) for row in rows] == [table.column_names] * 3
    assert rows[0]["identity"]["judge"] == "anthropic:m"


def test_a_damaged_jsonl_file_is_told_row_by_row_and_nothing_is_imported(
    store: VerdictStore, tmp_path: Path
) -> None:
    with opened(tmp_path / "other", *map(str, range(9))) as other:
        export(other, tmp_path / "f.jsonl")
    good = lines(tmp_path / "f.jsonl")

    def changed(row: int, **fields: Any) -> bytes:
        data = {**json.loads(good[row]), **fields}
        return json.dumps({k: v for k, v in data.items() if v is not ...}).encode()

    bad = [
        good[0].encode(),
        b"",
        b'{"key": ',
        b"[1]",
        good[1].encode().replace("é".encode(), b"\xe9"),
        changed(2, kind="failure", cost_usd=-1),
        changed(3, payload="{", extra=1),
        changed(4, raw_text=...),
        changed(5, identity={"vote": 1}),
        changed(6, cost_usd=float("nan")),
        changed(0, identity={"judge": "another"}),
        b'{"key": "a", "key": "b"}',
        changed(7, input_tokens=2**63),
        changed(8, created="yesterday"),
        good[8].encode()[:-20],
        changed(8, payload="[" * 100_000),
        b"[" * 100_000,
    ]
    (tmp_path / "f.jsonl").write_bytes(b"\n".join(bad))
    with pytest.raises(DataError) as caught:
        import_(store, tmp_path / "f.jsonl")
    told = [p.split(":")[0].removeprefix("f.jsonl ") for p in caught.value.problems]
    assert sorted(told, key=lambda w: int(w.split()[1].strip(","))) == [
        "row 3",
        "row 4, row",
        "row 5",
        "row 6, kind",
        "row 6, cost_usd",
        "row 7, payload",
        "row 7, extra",
        "row 8, raw_text",
        "row 9, identity.vote",
        "row 10, cost_usd",
        "row 11",
        "row 12",
        "row 13, input_tokens",
        "row 14, created",
        "row 15",
        "row 16, payload",
        "row 17",
    ]
    text = "\n".join(caught.value.problems)
    assert "row 5: is not valid UTF-8 (byte 0xe9 at byte" in text
    assert "row 11: its key is in an earlier row with another identity" in text
    assert "row 12: not valid JSON ('key' is there twice)" in text
    assert list(store.records()) == []


def test_a_row_whose_key_stands_for_something_else_here_stops_the_import(
    store: VerdictStore, tmp_path: Path
) -> None:
    with opened(tmp_path / "other", "a", "b") as other:
        export(other, tmp_path / "f.jsonl")
        store.add_many([record("b", identity={**record("b").identity, "judge": "n"})])
        for take, path in ((import_, tmp_path / "f.jsonl"), (merge, other.path)):
            with pytest.raises(DataError) as caught:
                take(store, path)
            (problem,) = caught.value.problems
            assert "judge is 'n' in the store and 'anthropic:m' " in problem
            assert len(list(store.records())) == 1


def test_a_damaged_parquet_file_is_told_and_nothing_is_imported(
    store: VerdictStore, tmp_path: Path
) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = tmp_path / "f.parquet"
    with opened(tmp_path / "other", *map(str, range(700))) as other:
        export(other, path)
    whole, table = path.read_bytes(), pq.read_table(path)

    def problems() -> list[str]:
        with pytest.raises(DataError) as caught:
            import_(store, path)
        assert list(store.records()) == []
        return caught.value.problems

    path.write_bytes(whole[:-100])
    assert problems()[0].startswith("f.parquet after row 0: not a readable Parquet file (")
    path.write_bytes(whole[:4] + bytes(len(whole) // 2) + whole[4 + len(whole) // 2 :])
    assert "not a readable Parquet file (" in problems()[0]
    pq.write_table(table.drop_columns(["payload", "kind"]), path)
    assert problems() == ["f.parquet: has no column kind, payload"]
    kinds = pa.array([*["verdict"] * 698, "x", None])
    index = table.column_names.index("kind")
    pq.write_table(table.set_column(index, "kind", kinds), path)
    assert problems() == [
        f"f.parquet row {row}, kind: Input should be 'verdict', 'grounding', 'completion', 'comparison' or "
        f"'reply' (found {found})"
        for row, found in ((699, "'x'"), (700, None))
    ]


def test_a_file_that_is_not_there_or_has_another_ending_is_told(
    store: VerdictStore, tmp_path: Path
) -> None:
    for suffix in (".jsonl", ".parquet"):
        with pytest.raises(DataError, match="No such file"):
            import_(store, tmp_path / f"none{suffix}")
    for use in (export, import_):
        with pytest.raises(StoreError, match=r"ends in '\.csv', expected \.jsonl or \.parquet"):
            use(store, tmp_path / "f.csv")
    with pytest.raises(StoreError, match=r"cannot be written \(.*; name another path"):
        export(store, tmp_path / "no folder" / "f.jsonl")
    with VerdictStore.open(tmp_path / "v.jsonl") as named:
        with pytest.raises(StoreError, match="is the store itself"):
            export(named, named.path)
        with pytest.raises(StoreError, match="is the store itself"):
            merge(named, named.path)


def test_without_pyarrow_the_message_is_the_command(
    store: VerdictStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "f.parquet").write_bytes(b"")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    for use in (export, import_):
        with pytest.raises(MissingDependency, match=r"pip install pyarrow \(or use \.jsonl\)"):
            use(store, tmp_path / "f.parquet")


def test_using_a_store_loads_neither_pyarrow_nor_pydantic() -> None:
    code = "import sys, xyreward.store; print({'pyarrow', 'pydantic'} & set(sys.modules))"
    assert subprocess.check_output([sys.executable, "-c", code], text=True) == "set()\n"


# ---------------------------------------------------------------- merging


def test_stores_of_several_machines_become_one(store: VerdictStore, tmp_path: Path) -> None:
    store.add_many([record("a"), record("b")])
    with opened(tmp_path / "1", "b", "c", payload='"another sample"') as other:
        other.ledger.reserve("run", 0.1)
        other.claim(["x"])
        assert merge(store, other.path) == Added(added=1, present=1)  # it is in use
        assert merge(store, other.path) == Added(added=0, present=2)
    assert list(store.records()) == [
        record("a"),
        record("b"),
        record("c", payload='"another sample"'),
    ]
    assert store.claim(["x"]) == {"x"}  # claims and money stay behind
    assert store.ledger.spent("run") == Spent()


def test_a_store_that_a_killed_process_left_is_merged_whole(tmp_path: Path) -> None:
    code = "store.put(record('a')); told('put'); time.sleep(60)"
    process = start(code, tmp_path / "other", tmp_path / "log")
    wait_until(lambda: lines(tmp_path / "log") == ["put"])
    process.kill()
    process.wait()
    assert (tmp_path / "other-wal").stat().st_size > 0
    with VerdictStore.open(tmp_path / "v") as store:
        assert merge(store, tmp_path / "other") == Added(1, 0)


def test_a_store_on_read_only_media_can_be_merged(tmp_path: Path) -> None:
    code = """
from xyreward.store.exchange import merge
if os.getuid() == 0:
    os.setresgid(65534, 65534, 65534)
    os.setresuid(65534, 65534, 65534)
told(merge(VerdictStore.open(sys.argv[3]), sys.argv[4]).added)
"""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        (folder / "writable").mkdir()
        (folder / "writable").chmod(0o777)
        (folder / "shelf").mkdir()
        opened(folder / "shelf" / "v", "a").close()
        (folder / "shelf").chmod(0o555)
        process = start(
            code,
            tmp_path / "first",
            tmp_path / "log",
            folder / "writable" / "v",
            folder / "shelf" / "v",
        )
        finish(process)
        (folder / "shelf").chmod(0o755)
    assert lines(tmp_path / "log") == ["1"]


def test_a_store_on_a_network_file_system_is_merged_only_at_rest(
    store: VerdictStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = opened(tmp_path / "other", "a")
    monkeypatch.setattr(database, "file_system", lambda path: "nfs4")
    with pytest.raises(
        StoreError, match=r"last commits are in other-wal, which cannot be read on a"
    ):
        merge(store, other.path)
    other.close()
    assert merge(store, other.path) == Added(1, 0)
    assert not (tmp_path / "other-shm").exists()


def test_what_cannot_be_merged_is_told_and_left_alone(store: VerdictStore, tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="no verdict store is there"):
        merge(store, tmp_path / "none")
    (tmp_path / "text").write_text("no store" * 500)
    with pytest.raises(StoreError, match="text: is not an SQLite file"):
        merge(store, tmp_path / "text")
    (tmp_path / "empty").touch()
    with pytest.raises(StoreError, match="empty: is empty, expected a verdict store"):
        merge(store, tmp_path / "empty")
    opened(tmp_path / "newer", "a").close()
    with closing(sqlite3.connect(tmp_path / "newer")) as connection:
        connection.execute("PRAGMA user_version = 99")
    with pytest.raises(StoreError, match="newer: has schema 99"):
        merge(store, tmp_path / "newer")
    opened(tmp_path / "damaged", *map(str, range(200))).close()
    content = (tmp_path / "damaged").read_bytes()
    (tmp_path / "damaged").write_bytes(content[: len(content) // 2])
    with pytest.raises(StoreError, match="damaged: is damaged"):
        merge(store, tmp_path / "damaged")
    assert list(store.records()) == []


def test_an_older_store_is_merged_without_being_changed(
    store: VerdictStore, tmp_path: Path
) -> None:
    opened(tmp_path / "old", "a").close()
    with closing(sqlite3.connect(tmp_path / "old")) as connection:
        connection.executescript(
            "DROP TABLE batches; DROP TABLE batch_rows; PRAGMA user_version = 1"
        )
    before = (tmp_path / "old").read_bytes()
    assert merge(store, tmp_path / "old") == Added(1, 0)
    assert (tmp_path / "old").read_bytes() == before


# ---------------------------------------------------------------- info and prune


def test_info_says_what_is_there(store: VerdictStore) -> None:
    store.add_many([record("a"), record("b"), record("c", cost_usd=None)])
    store.add_many([record("d", kind="grounding", created="2026-10-01T00:00:00Z")])
    store.add_many([record("e", identity={"judge": "\x1b[31mred"})])
    store.claim(["x"])
    store.batches.add([BatchRow("1", "k", "{}")], judge="j", run="r")
    lost = store.ledger.reserve("run", 0.25)
    assert lost
    store.ledger.lose(lost)
    found = info(store)
    assert {k: n for k, n in store.counts().items() if n} == {"verdict": 4, "grounding": 1}
    assert found.groups[0] == Group(
        kind="verdict",
        judge="anthropic:m",
        rubric_version="xy-1",
        count=3,
        first="2026-11-30T12:00:00Z",
        last="2026-11-30T12:00:00Z",
        cost_usd=2 * 0.0078,
        unpriced=1,
    )
    assert [(g.kind, g.judge, g.count) for g in found.groups[1:]] == [
        ("grounding", "anthropic:m", 1),
        ("verdict", "\x1b[31mred", 1),
    ]
    assert found.runs == {"run": Spent(possibly_usd=0.25, lost_calls=1)}
    text = str(found)
    assert "5 records" in text
    assert "US dollars: 0.0156 and 1 record of unknown price" in text
    assert "US dollars: 0.0000, and possibly 0.2500 for 1 call without a reply" in text
    assert "1 batch submitting" in text
    assert "1 verdict on its way" in text
    assert text.replace("\n", "").isprintable()


def test_info_shows_no_unknown_price_as_0(store: VerdictStore) -> None:
    store.add_many([record("a", cost_usd=None), record("b", cost_usd=None)])
    ledger = store.ledger
    for end in (lambda r: ledger.settle(r, None), ledger.lose, lambda r: None):
        reservation = ledger.reserve("run", None)
        assert reservation
        end(reservation)
    text = str(info(store))
    assert "US dollars: unknown, for 2 records of unknown price" in text
    assert (
        "run run: 1 call, US dollars: unknown, for 3 calls of unknown price, and possibly an unknown sum for "
        "1 call without a reply; 1 call on its way"
    ) in text
    assert "0.0" not in text.partition("MiB")[2]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("rows.jsonl", b'{"item_id": "a", "answer": "x"}\n' * 61),
        ("rows.jsonl", b"item_id,answer\na,x\n" * 61),
        ("rows.jsonl", b"[1]\n" * 61),
        ("rows.jsonl", b"\n\n{}\n" * 61),
    ],
    ids=["answers", "CSV", "lists", "empty objects"],
)
def test_a_file_that_is_no_export_is_one_problem(
    store: VerdictStore, tmp_path: Path, name: str, content: bytes
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError) as caught:
        import_(store, tmp_path / name)
    (problem,) = caught.value.problems
    assert "so the file is none that `xyreward store export` wrote (found " in problem
    assert "expected key, kind, created" in problem
    assert len(problem) < 500


def test_info_of_an_empty_store(store: VerdictStore) -> None:
    assert str(info(store)).startswith(f"{store.path}: 0 records, ")
    assert set(store.counts().values()) == {0}


def test_prune_removes_what_meets_all_conditions_and_shrinks_the_file(store: VerdictStore) -> None:
    old, new = "2026-10-31T22:59:59Z", "2026-10-31T23:00:00Z"
    other = {"judge": "other", "rubric_version": "xy-1"}
    store.add_many([record(f"old{i}", created=old) for i in range(1_200)])
    store.add_many([record(f"new{i}", created=new) for i in range(10)])
    store.add_many([record("other", created=old, identity=other)])
    reservation = store.ledger.reserve("run", 0.1)
    before = datetime(2026, 11, 1, tzinfo=timezone(timedelta(hours=1)))
    conditions = {"identity": {"judge": "anthropic:m", "rubric_version": "xy-1"}, "before": before}
    assert prune(store, **conditions, dry_run=True) == Pruned(1_200, 0)  # type: ignore[arg-type]
    assert len(list(store.records())) == 1_211
    pruned = prune(store, **conditions)  # type: ignore[arg-type]
    assert pruned.removed == 1_200
    assert pruned.freed_bytes > 1_000_000
    assert len(list(store.records())) == 11
    assert prune(store, before=datetime(2026, 10, 31, 23)).removed == 1
    assert [r.created for r in store.records()] == [new] * 10
    assert reservation
    store.ledger.settle(reservation, 0.1)
    assert sound(store.path)


def test_prune_without_a_condition_removes_nothing(store: VerdictStore) -> None:
    store.put(record("a"))
    assert prune(store) == Pruned(0, 0)
    assert prune(store, identity={"judge": "nobody"}, before=datetime.now(UTC)) == Pruned(0, 0)
    with pytest.raises(ValueError, match="expected names such as judge"):
        prune(store, identity={"judge') OR 1 --": "x"})
    assert store.counts()["verdict"] == 1


def test_a_store_can_be_pruned_while_others_write(tmp_path: Path) -> None:
    code = "for i in range(300): store.put(record(f'{number}-{i}'))"
    with opened(tmp_path / "v", *map(str, range(2_000)), identity={"judge": "old"}) as store:
        writers = start(code, store.path, tmp_path / "log", copies=3)
        assert prune(store, identity={"judge": "old"}).removed == 2_000
        finish(writers)
        assert store.counts()["verdict"] == 900
    assert sound(tmp_path / "v")
