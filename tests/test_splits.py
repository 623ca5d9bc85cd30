"""Sides: no cluster divided, nothing known moves, nothing held out leaks; locks that go wrong."""

import json
import logging
import random
import resource
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from xyreward.errors import ConfigError, DataError, LeakError
from xyreward.items import XY_KINDS, Item
from xyreward.loading import bundled_splits, load_items
from xyreward.splits import (
    SIDES,
    Placement,
    Side,
    Splits,
    assign_splits,
    check_no_overlap,
    clusters_of,
    leave_one_source_out,
    near_duplicates,
    official_side,
    tokens,
)
from xyreward.testing import make_item, make_reference

WORDS = [a + b for a in "bdfgklmnprst" for b in ("ala", "ero", "imu", "osa", "uti", "eny")]


def question(seed: int) -> str:
    """24 words of 72; two seeds have no three words in a row in common."""
    return " ".join(random.Random(seed).choices(WORDS, k=24))


def variant(seed: int, change: int) -> str:
    """The question with one word replaced: 19 of 22 shingles stay, similarity 19 / 25 = 0.76."""
    text = question(seed).split()
    text[3 + change] = f"changed{change}"
    return " ".join(text)


def item(id: str, query: str, **fields: Any) -> Item:  # noqa: A002
    return make_item(id=id, query=query, **fields)


def strangers(n: int, start: int = 0, **fields: Any) -> list[Item]:
    return [item(f"i{seed}", question(seed), **fields) for seed in range(start, start + n)]


def locked(path: Path, placements: dict[str, Side | None]) -> Path:
    """A lock with these queries on these sides, each its own cluster."""
    hashes = {make_item(query=query).content_hash: side for query, side in placements.items()}
    path.write_text(
        Splits({h: Placement(side, h) for h, side in hashes.items()}).to_json(), "utf-8"
    )
    return path


def clusters_by_hand(items: Sequence[Item]) -> list[set[int]]:
    """Every pair compared: what `assign_splits` must agree with."""

    def shingles(text: str) -> set[tuple[str, ...]]:
        tokens = text.split()
        return {tuple(tokens[i : i + 3]) for i in range(len(tokens) - 2)}

    def same(a: Item, b: Item) -> bool:
        x, y = shingles(a.query_text), shingles(b.query_text)
        in_group = a.group is not None and (a.source, a.group) == (b.source, b.group)
        return in_group or len(x & y) / len(x | y) >= 0.5

    found: list[set[int]] = []
    for i, one in enumerate(items):
        joined = [c for c in found if any(same(one, items[j]) for j in c)]
        found = [c for c in found if c not in joined] + [{i}.union(*joined)]
    return found


@st.composite
def data_sets(draw: st.DrawFn, hub_splits: bool = False) -> list[Item]:
    """Items of which many nearly repeat each other or share a group."""
    n = draw(st.integers(1, 25))
    official = st.sampled_from(["train", "test", "validation", None] if hub_splits else [None])
    made = []
    for i in range(n):
        seed, change = draw(st.integers(0, 12)), draw(st.integers(-1, 2))
        hub_split = draw(official)
        kind = draw(st.sampled_from(["xy", "control"]))
        made.append(
            item(
                f"i{i}",
                question(seed) if change < 0 else variant(seed, change),
                kind=kind,
                source=draw(st.sampled_from(["so", "wikihow"])),
                group=draw(st.sampled_from([None, None, None, "g", "h"])),
                meta={"hub_split": hub_split} if hub_split else {},
            )
        )
    return made


quick = settings(
    max_examples=40,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)

# ---------------------------------------------------------------- properties


@quick
@given(data_sets())
def test_no_cluster_is_ever_divided(items: list[Item]) -> None:
    splits = assign_splits(items)
    by_hand = clusters_by_hand(items)
    for cluster in by_hand:
        assert len({splits.placements[items[i].content_hash] for i in cluster}) == 1
    assert len({p.cluster for p in splits.placements.values()}) == len(by_hand)
    assert splits.unplaced == ()


@quick
@given(data_sets(hub_splits=True), st.randoms(use_true_random=False))
def test_the_order_of_items_does_not_matter(items: list[Item], chance: random.Random) -> None:
    shuffled = list(items)
    chance.shuffle(shuffled)
    assert assign_splits(shuffled) == assign_splits(items)


@quick
@given(data_sets(), data_sets())
def test_adding_items_with_a_lock_keeps_every_known_side(
    tmp_path: Path, first: list[Item], more: list[Item]
) -> None:
    lock = tmp_path / "splits.json"
    lock.unlink(missing_ok=True)
    more = [i.model_copy(update={"id": f"more-{i.id}"}) for i in more]
    before = assign_splits(first, lock)
    after = assign_splits([*first, *more], lock)
    for key, placement in before.placements.items():
        assert after.placements[key].side == placement.side
    on_train, on_test = (
        after.select([*first, *more], "train"),
        after.select([*first, *more], "test"),
    )
    known = {i.content_hash for i in first}
    # Two known items may turn out to be linked by a newcomer; the newcomer itself never leaks.
    newcomers = [i for i in on_train if i.content_hash not in known]
    check_no_overlap(newcomers, on_test)
    assert set(after.unplaced) == {
        i.id for i in [*first, *more] if after.placements[i.content_hash].side is None
    }
    assert assign_splits([*first, *more], lock).placements == after.placements


@quick
@given(data_sets(hub_splits=True))
def test_an_official_test_split_never_enters_train_nor_does_what_repeats_it(
    items: list[Item],
) -> None:
    splits = assign_splits(items)
    for cluster in clusters_by_hand(items):
        official = {official_side(items[i]) for i in cluster}
        (side,) = {splits.side(items[i]) for i in cluster}
        if "test" in official:
            assert side == "test"
        elif "dev" in official:
            assert side == "dev"


@quick
@given(data_sets())
def test_train_and_held_out_sides_pass_the_check_that_every_recipe_makes(items: list[Item]) -> None:
    splits = assign_splits(items)
    train = splits.select(items, "train")
    check_no_overlap(train, splits.select(items, "dev"))
    check_no_overlap(train, splits.select(items, "test"))


def test_every_stratum_has_its_shares() -> None:
    all_kinds = tuple(make_reference(kind, f"A {kind} answer.") for kind in sorted(XY_KINDS))
    strata = {
        "control": strangers(80, kind="control"),
        "all kinds": strangers(60, start=1000, references=all_kinds),
        "two kinds": strangers(100, start=2000),
    }
    items = [i.model_copy(update={"id": f"{s}-{i.id}"}) for s, made in strata.items() for i in made]
    splits = assign_splits(items)
    for stratum, made in strata.items():
        count = Counter(splits.side(i) for i in made)
        n = len(made)
        assert abs(count["train"] - 0.60 * n) <= 1, stratum
        assert abs(count["dev"] - 0.15 * n) <= 1, stratum
        assert abs(count["test"] - 0.25 * n) <= 1, stratum


def test_shares_can_be_set_and_are_checked() -> None:
    items = strangers(40)
    halves = assign_splits(items, shares={"train": 0.5, "dev": 0.0, "test": 0.5})
    assert Counter(halves.side(i) for i in items) == {"train": 20, "test": 20}
    for wrong in ({"train": 1.0}, {"train": 0.6, "dev": 0.2, "test": 0.25}):
        with pytest.raises(ValueError, match=r"expected train, dev, test >= 0 with sum 1"):
            assign_splits(items, shares=wrong)  # type: ignore[arg-type]


def test_no_items_make_empty_splits(tmp_path: Path) -> None:
    assert assign_splits([]).placements == {}
    assert assign_splits([], tmp_path / "splits.json").placements == {}


def test_a_cluster_of_both_kinds_is_dealt_alike_in_either_order() -> None:
    for start in range(0, 200, 20):
        mixed = [
            item(f"{kind}{n}", variant(start + n, change), kind=kind)
            for n in range(4)
            for change, kind in enumerate(("xy", "control"))
        ]
        items = [*mixed, *strangers(3, start + 10), *strangers(2, start + 15, kind="control")]
        assert assign_splits(items) == assign_splits(items[::-1])


def test_items_with_the_same_query_are_on_one_side_whatever_else_they_say() -> None:
    a = item("a", question(1))
    b = item("b", f"  {question(1)}\n", kind="control")
    splits = assign_splits([a, b, *strangers(10, start=5)])
    assert a.content_hash == b.content_hash
    assert splits.side(a) == splits.side(b)
    assert len(splits.placements) == 11


def test_an_item_that_was_not_there_has_no_side_and_the_message_says_what_to_do() -> None:
    splits = assign_splits(strangers(3))
    with pytest.raises(KeyError, match=r"'late'.*assign_splits\(items, lock=\.\.\.\) adds it"):
        splits.side(item("late", question(99)))


# ---------------------------------------------------------------- locks


def test_a_lock_is_text_that_a_diff_can_show_and_reads_back_the_same(tmp_path: Path) -> None:
    lock = tmp_path / "new" / "splits.json"
    splits = assign_splits(strangers(6), lock)
    text = lock.read_text("utf-8")
    assert Splits.from_json(text) == splits
    assert text.count("\n") == 1 + 6 + 1  # one line for each query
    assert Splits.from_json(text).hash == splits.hash
    assert sorted(json.loads(text)["placements"]) == list(json.loads(text)["placements"])


def test_a_newcomer_joins_the_side_and_the_cluster_of_what_it_nearly_repeats(
    tmp_path: Path,
) -> None:
    for side in SIDES:
        lock = locked(tmp_path / f"{side}.json", {question(1): side})
        splits = assign_splits([item("old", question(1)), item("new", variant(1, 0))], lock)
        assert splits.side(item("new", variant(1, 0))) == side
        assert len({p.cluster for p in splits.placements.values()}) == 1


def test_a_newcomer_that_would_join_two_sides_goes_to_neither_and_is_reported(
    tmp_path: Path,
) -> None:
    lock = locked(tmp_path / "splits.json", {question(1): "train", question(2): "test"})
    old = [item("a", question(1)), item("b", question(2), group="g")]
    between = item("between", variant(1, 0), group="g")  # repeats a, shares its group with b
    splits = assign_splits([*old, between, *strangers(5, start=10)], lock)
    assert [splits.side(i) for i in (*old, between)] == ["train", "test", None]
    assert splits.unplaced == ("between",)
    assert all(between not in splits.select([between], side) for side in SIDES)
    # and it stays out, also where only one of the two is there
    again = assign_splits([old[0], between], lock)
    assert again.side(between) is None
    assert again.unplaced == ("between",)


def test_a_newcomer_that_links_two_clusters_of_one_side_makes_them_one_cluster(
    tmp_path: Path,
) -> None:
    lock = locked(tmp_path / "splits.json", {question(1): "dev", question(2): "dev"})
    items = [
        item("a", question(1)),
        item("b", question(2), group="g"),
        item("between", variant(1, 0), group="g"),
    ]
    splits = assign_splits(items, lock)
    assert {p.side for p in splits.placements.values()} == {"dev"}
    assert len({p.cluster for p in splits.placements.values()}) == 1


def test_two_known_near_duplicates_on_two_sides_stay_and_the_check_finds_them(
    tmp_path: Path,
) -> None:
    lock = locked(tmp_path / "splits.json", {question(1): "train", variant(1, 0): "test"})
    a, b = item("a", question(1)), item("b", variant(1, 0))
    splits = assign_splits([a, b], lock)
    assert (splits.side(a), splits.side(b)) == ("train", "test")
    with pytest.raises(LeakError) as caught:
        check_no_overlap([a], [b])
    assert caught.value.offending == ["a"]


def test_entries_of_items_that_are_not_given_stay_in_the_lock(tmp_path: Path) -> None:
    lock = tmp_path / "splits.json"
    first = assign_splits(strangers(5), lock)
    assign_splits(strangers(5, start=50), lock)
    kept = Splits.from_json(lock.read_text("utf-8"))
    assert kept.placements.items() >= first.placements.items()
    assert len(kept.placements) == 10


def test_a_lock_of_another_data_set_is_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    lock = tmp_path / "splits.json"
    with caplog.at_level(logging.WARNING, "xyreward.splits"):
        assign_splits(strangers(5), lock)
        assert f"{lock} is not there: all sides are assigned anew and kept there" in caplog.text
        caplog.clear()
        assign_splits(strangers(6), lock)
        assert caplog.text == ""
        assign_splits(strangers(4, start=50), lock)
    assert "has 6 queries and none of these 4 items" in caplog.text


def test_a_lock_that_needs_no_change_is_not_written(tmp_path: Path) -> None:
    folder = tmp_path / "package"
    lock = folder / "splits.json"
    before = assign_splits(strangers(5), lock)
    for lying in folder.iterdir():
        if lying != lock:
            lying.unlink()
    written = lock.stat().st_mtime_ns
    assert assign_splits(strangers(5), lock) == before
    assert lock.stat().st_mtime_ns == written
    assert list(folder.iterdir()) == [lock]  # not even a file lock: the folder may be read-only


def test_a_lock_is_never_seen_half_written(tmp_path: Path) -> None:
    lock = tmp_path / "splits.json"
    assign_splits(strangers(5), lock)
    whole = lock.read_text("utf-8")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(whole) + 10, hard))  # as on a full disk
    try:
        with pytest.raises(ConfigError, match=r"cannot be written .*choose a path where it can"):
            assign_splits(strangers(9), lock)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert lock.read_text("utf-8") == whole
    assert {p.name for p in tmp_path.iterdir()} == {lock.name, ".splits.json.lock"}
    with lock.open(encoding="utf-8") as reading:  # whoever reads meanwhile reads the old one
        assign_splits(strangers(9), lock)
        assert reading.read() == whole
    assert lock.read_text("utf-8") != whole


@pytest.mark.parametrize(
    ("lock", "said"),
    [
        ("", "expected the path of a splits.json, or null for none"),
        (" ", "expected the path of a splits.json, or null for none"),
        ("a\0b", "expected the path of a splits.json, or null for none"),
        (".", r"is a folder, expected a file, e\.g\. .*splits\.json"),
        ("items.jsonl/splits.json", r"cannot be read \(Not a directory\)"),
        ("/dev/null", "is a device or pipe, expected a file"),
        ("/proc/new/splits.json", "cannot be written"),
        ("x" * 300, "cannot be read .File name too long"),
    ],
)
def test_a_lock_that_cannot_be_is_told_in_one_line(
    tmp_path: Path, lock: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("items.jsonl").touch()
    with pytest.raises(ConfigError, match=rf"^splits lock .*{said}") as caught:
        assign_splits(strangers(2), lock)
    assert "\n" not in str(caught.value)
    assert [p.name for p in tmp_path.iterdir()] == ["items.jsonl"]


def test_a_lock_in_the_home_folder_is_found_without_a_shell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    assign_splits(strangers(2), "~/locks/splits.json")
    assert (tmp_path / "locks" / "splits.json").is_file()
    assert not (tmp_path / "~").exists()


def test_a_linked_lock_is_written_where_it_lies(tmp_path: Path) -> None:
    real = tmp_path / "shared" / "splits.json"
    real.parent.mkdir()
    link = tmp_path / "splits.json"
    link.symlink_to(real)
    assign_splits(strangers(3), link)
    assert link.is_symlink()
    assert len(Splits.from_json(real.read_text("utf-8")).placements) == 3


WRITER = """
import sys
from xyreward.splits import assign_splits
from xyreward.testing import make_item
name, lock = sys.argv[1:]
assign_splits([], None)
print("ready", flush=True)
sys.stdin.readline()
for n in range(20):
    assign_splits([make_item(query=f"{name}{n} asks {name}{n} for {name}{n}")], lock)
"""


def test_two_processes_with_one_lock_lose_nothing(tmp_path: Path) -> None:
    lock = tmp_path / "splits.json"
    writers = [
        subprocess.Popen(
            [sys.executable, "-c", WRITER, name, str(lock)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for name in ("anna", "ben")
    ]
    for writer in writers:
        assert writer.stdout
        assert writer.stdout.readline() == "ready\n"
    for writer in writers:  # both have imported what they need and start together
        assert writer.stdin
        writer.stdin.write("\n")
        writer.stdin.flush()
    for writer in writers:
        writer.communicate(timeout=60)
        assert writer.returncode == 0
    assert len(Splits.from_json(lock.read_text("utf-8")).placements) == 2 * 20


H = "a" * 64


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "not a splits file"),
        ("<<<<<<< HEAD\n{}", "not a splits file"),
        ("[" * 5000, "not a splits file (is nested"),
        ('{"version": 1, "placements": {"a": ' + "[" * 900 + "]" * 900 + "}}", "is nested"),
        ('{"version": NaN, "placements": {}}', "not a splits file (NaN"),
        ('{"train": ["a"], "test": ["b"]}', "no object with version and placements"),
        ("[]", "no object with version and placements"),
        ('{"version": 1}', "no object with version and placements"),
        ('{"version": 2, "placements": {}}', "version 2, this release of xyreward reads 1"),
        (f'{{"version": 1, "placements": {{"{H}": ["tset", "c"]}}}}', "tset"),
        (f'{{"version": 1, "placements": {{"{H}": [["test"], "c"]}}}}', "expected sha256"),
        (f'{{"version": 1, "placements": {{"{H}": "train"}}}}', "train | dev | test | null"),
        (f'{{"version": 1, "placements": {{"{H}": ["test"]}}}}', "expected sha256"),
        ('{"version": 1, "placements": {"abc": ["test", "c"]}}', "'abc'"),
        (
            f'{{"version": 1, "placements": {{"{H}": ["test", "c"], "{H}": ["train", "c"]}}}}',
            "is there twice",
        ),
    ],
)
def test_a_malformed_lock_is_named_with_what_is_wrong_and_stays_as_it_is(
    tmp_path: Path, text: str, said: str
) -> None:
    lock = tmp_path / "my-splits.json"
    lock.write_text(text, "utf-8")
    with pytest.raises(DataError) as caught:
        assign_splits(strangers(2), lock)
    assert said in str(caught.value)
    assert "my-splits.json" in str(caught.value)
    assert lock.read_text("utf-8") == text


def test_a_lock_that_is_no_text_is_named(tmp_path: Path) -> None:
    lock = tmp_path / "splits.json"
    lock.write_bytes(b"\xff\xfe")
    with pytest.raises(DataError, match=r"splits\.json: not a splits file"):
        assign_splits(strangers(2), lock)


def test_all_wrong_entries_of_a_lock_are_told_at_once() -> None:
    entries = {H: ["tset", "c"], "b" * 64: ["dve", "c"], "c" * 64: ["test", "c"]}
    with pytest.raises(DataError) as caught:
        Splits.from_json(json.dumps({"version": 1, "placements": entries}))
    assert len(caught.value.problems) == 2


# ---------------------------------------------------------------- sides from elsewhere


def test_known_sides_hold_and_the_lock_wins_over_them(tmp_path: Path) -> None:
    a, b = item("a", question(1)), item("b", question(2))
    known = Splits({i.content_hash: Placement("test", i.content_hash) for i in (a, b)})
    assert {assign_splits([a, b], known=known).side(i) for i in (a, b)} == {"test"}
    lock = locked(tmp_path / "splits.json", {question(1): "dev"})
    splits = assign_splits([a, b], lock, known=known)
    assert (splits.side(a), splits.side(b)) == ("dev", "test")
    # what was known is in the lock from now on
    assert assign_splits([a, b], lock).placements == splits.placements


def test_a_newcomer_that_repeats_a_known_test_item_is_a_test_item() -> None:
    a, b = item("a", question(1)), item("b", variant(1, 1))
    known = Splits({a.content_hash: Placement("test", a.content_hash)})
    assert assign_splits([a, b], known=known).side(b) == "test"


@pytest.mark.parametrize(
    ("name", "side"),
    [
        ("test", "test"),
        ("Test", "test"),
        ("test_hard", "test"),
        ("eval", "test"),
        ("validation", "dev"),
        ("dev", "dev"),
        ("testset", "test"),
        ("XYBenchTest", "test"),
        ("held-out", "test"),
        ("hidden", "test"),
        ("valset", "dev"),
        ("train", None),
        ("latest", None),
        ("contest", None),
        ("", None),
    ],
)
def test_the_name_of_an_official_split_says_what_it_holds_out(name: str, side: Side | None) -> None:
    assert official_side(make_item(meta={"hub_split": name})) == side
    assert official_side(make_item()) is None


def test_an_official_test_item_that_the_lock_has_on_train_is_an_error(tmp_path: Path) -> None:
    lock = locked(tmp_path / "splits.json", {question(1): "train", question(2): "train"})
    items = [item(f"i{n}", question(n), meta={"hub_split": "test"}) for n in (1, 2, 3)]
    with pytest.raises(DataError, match="start a new lock") as caught:
        assign_splits(items, lock)
    assert len(caught.value.problems) == 2
    assert "'i1'" in caught.value.problems[0]


def test_splits_that_have_an_official_test_item_on_train_give_no_train_side() -> None:
    a, b = item("a", question(1), meta={"hub_split": "testset"}), item("b", question(2))
    old = Splits({i.content_hash: Placement("train", i.content_hash) for i in (a, b)})
    with pytest.raises(
        DataError, match=r"'a' is of the source's official test split \('testset'\)"
    ):
        old.select([a, b], "train")
    assert old.select([b], "train") == [b]
    assert old.select([a, b], "test") == []


def test_an_official_test_item_that_repeats_a_locked_train_item_goes_to_neither(
    tmp_path: Path,
) -> None:
    lock = locked(tmp_path / "splits.json", {question(1): "train"})
    for name in ("test", "validation"):
        new = item("new", variant(1, 0), meta={"hub_split": name})
        splits = assign_splits([item("old", question(1)), new], lock)
        assert splits.side(new) is None
        assert splits.unplaced == ("new",)


def test_official_items_count_towards_the_shares() -> None:
    official = strangers(25, meta={"hub_split": "test"})
    rest = strangers(75, start=100)
    splits = assign_splits([*official, *rest])
    count = Counter(splits.side(i) for i in rest)
    assert abs(count["train"] - 60) <= 1
    assert abs(count["dev"] - 15) <= 1
    assert count["test"] <= 1


# ---------------------------------------------------------------- leave one source out


def test_each_source_is_held_out_once_and_the_rest_is_train_or_dev() -> None:
    items = [
        *strangers(20, source="so"),
        *[i.model_copy(update={"id": f"w{i.id}"}) for i in strangers(30, 100, source="wikihow")],
    ]
    seen = {}
    for source, splits in leave_one_source_out(items):
        held_out = splits.select(items, "test")
        assert {i.source for i in held_out} == {source}
        assert len(held_out) == sum(i.source == source for i in items)
        rest = Counter(splits.side(i) for i in items if i.source != source)
        assert abs(rest["dev"] - 0.2 * rest.total()) <= 1
        assert rest["train"] + rest["dev"] == rest.total()
        assert splits.note == f"held out: {source}"
        seen[source] = splits.unplaced
    assert seen == {"so": (), "wikihow": ()}


@quick
@given(data_sets(hub_splits=True))
def test_leaving_a_source_out_leaks_nothing_of_it(items: list[Item]) -> None:
    if len({i.source for i in items}) < 2:
        return
    for source, splits in leave_one_source_out(items):
        train, test = splits.select(items, "train"), splits.select(items, "test")
        check_no_overlap(train, test)
        assert all(official_side(i) is None for i in train)
        assert not any(i.source == source for i in train)
        assert {i.id for i in items if splits.side(i) is None} == set(splits.unplaced)


def test_an_item_that_repeats_the_held_out_source_is_on_no_side() -> None:
    items = [
        item("so-1", question(1), source="so"),
        item("wiki-1", variant(1, 0), source="wikihow"),
        item("wiki-2", question(2), source="wikihow"),
    ]
    so = dict(leave_one_source_out(items))["so"]
    assert [so.side(i) for i in items] == ["test", None, "train"]
    assert so.unplaced == ("wiki-1",)


def test_one_source_cannot_be_left_out() -> None:
    with pytest.raises(DataError, match=r"found \['test'\], expected items of two sources"):
        next(iter(leave_one_source_out(strangers(3))))


# ---------------------------------------------------------------- the check


@pytest.mark.parametrize(
    ("train", "held_out"),
    [
        (item("same", question(1)), item("same", question(2))),
        (item("a", question(1)), item("b", f" {question(1)} ")),
        (item("a", question(1)), item("b", variant(1, 2))),
        (item("a", question(1), group="g"), item("b", question(2), group="g")),
        (item("a", "???"), item("b", "???")),
        (item("a", question(1).upper()), item("b", question(1))),
    ],
    ids=["id", "query", "near-duplicate", "group", "no words at all", "case"],
)
def test_what_is_held_out_is_not_trained_on(train: Item, held_out: Item) -> None:
    clean, other = item("clean", question(50)), item("other", question(51))
    with pytest.raises(LeakError) as caught:
        check_no_overlap([clean, train], [other, held_out])
    assert caught.value.offending == [train.id]
    assert f"{train.id} (held out: {held_out.id})" in str(caught.value)
    assert "1 training items are, or nearly repeat, held-out items" in str(caught.value)


def test_the_very_same_object_on_both_sides_is_found() -> None:
    a = item("a", question(1))
    with pytest.raises(LeakError):
        check_no_overlap([a], [a])


def test_strangers_do_not_overlap_even_where_sources_number_alike() -> None:
    check_no_overlap(
        [item("1", question(1), source="so", group="7")],
        [item("1", question(2), source="wikihow", group="7")],
    )
    check_no_overlap([], strangers(3))
    check_no_overlap(strangers(3), [])
    check_no_overlap([item("a", "???")], [item("b", "!!!")])


def test_a_long_list_of_leaks_is_cut_in_the_message_and_whole_in_offending() -> None:
    with pytest.raises(LeakError, match=r"^12 training items.*, \.\.\.\. Take them out") as caught:
        check_no_overlap(strangers(12), strangers(12))
    assert len(caught.value.offending) == 12


# ---------------------------------------------------------------- near-duplicates


def test_near_duplicates_are_found_at_the_threshold_and_not_below() -> None:
    def pair(common: int) -> list[str]:
        """Two texts of 12 shingles, `common` of them the same: similarity c / (24 - c)."""
        text = [f"w{i}" for i in range(14)]
        return [
            " ".join(text),
            " ".join([*text[: common + 2], *(f"v{i}" for i in range(12 - common))]),
        ]

    assert list(near_duplicates(pair(8))) == [(1, 0)]  # 8 / 16 = 0.5
    assert list(near_duplicates(pair(7))) == []  # 7 / 17 = 0.41


# Few words, so that similarities of all sizes occur, and lengths that differ.
wordy = st.lists(st.sampled_from("abcd"), max_size=14).map(" ".join)


@quick
@given(st.lists(wordy, max_size=14), st.sampled_from([0.1, 0.3, 0.5, 0.8, 1.0]))
def test_all_near_duplicates_are_found_and_no_others(texts: list[str], threshold: float) -> None:
    def shingles(text: str) -> set[tuple[str, ...]]:
        tokens = text.split()
        if len(tokens) < 3:
            return {tuple(tokens)}
        return {tuple(tokens[i : i + 3]) for i in range(len(tokens) - 2)}

    sets = [shingles(text) for text in texts]
    by_hand = [
        (i, j)
        for i in range(len(sets))
        for j in range(i)
        if len(sets[i] & sets[j]) >= threshold * len(sets[i] | sets[j])
    ]
    assert sorted(near_duplicates(texts, threshold)) == by_hand


def test_the_search_misses_none_among_many() -> None:
    texts = [text for seed in range(150) for text in (question(seed), variant(seed, seed % 15))]
    assert {(2 * n + 1, 2 * n) for n in range(150)} == set(near_duplicates(texts))


@quick
@given(data_sets())
def test_pairs_within_a_cluster_are_left_out_and_those_that_are_left_connect_the_same(
    items: list[Item],
) -> None:
    texts = [item.query_text for item in items]

    def connected(pairs: Iterable[tuple[int, int]]) -> set[frozenset[int]]:
        for i, j in pairs:
            joined = names[i] | names[j]
            names.update(dict.fromkeys(joined, joined))
        return set(names.values())

    names = {i: frozenset([i]) for i in range(len(texts))}
    everything = connected(near_duplicates(texts))
    names = {i: frozenset([i]) for i in range(len(texts))}
    few = []
    for pair in near_duplicates(texts, cluster=lambda i: min(names[i])):
        few.append(pair)
        connected([pair])
    assert set(names.values()) == everything
    assert len(few) == len(texts) - len(everything)  # a spanning forest: no pair more than it takes


@pytest.mark.parametrize(
    "form",
    [
        "How do I install {} on {}?",
        "After days of looking for it I have to ask here: how do I install {} on {} without breaking "
        "what is already there on the old machine of my mother, who needs it daily?",
    ],
    ids=["few words in common", "most words in common"],
)
def test_questions_of_one_form_are_compared_only_where_they_may_be_alike(form: str) -> None:
    n = 600
    asked = 0

    def cluster(i: int) -> int:
        nonlocal asked
        asked += 1
        return names[i]

    texts = [form.format(f"tool{i}", f"system{i % 7}") for i in range(n)]
    names = list(range(n))
    for i, j in near_duplicates(texts, cluster=cluster):
        old, new = names[i], names[j]
        names[:] = [new if name == old else name for name in names]
    # Each pair would be n * n / 2 = 180,000 comparisons, and each asks twice.
    assert asked < 200 * n


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("怎样才能让我的闹钟响得更大声一点呢", "怎样才能让我的闹钟响得更大声一些呢"),
        ("ทำอย่างไรให้นาฬิกาปลุกของฉันดังขึ้น", "ทำอย่างไรให้นาฬิกาปลุกของฉันดังขึ้นครับ"),
        (
            "wie mache ich den wecker für müde lauter",
            "wie mache ich den wecker fu\u0308r mu\u0308de lauter",
        ),
    ],
    ids=["Chinese", "Thai", "composed and decomposed"],
)
def test_near_duplicates_are_found_in_other_scripts_and_unicode_forms(one: str, other: str) -> None:
    assert list(near_duplicates([one, other])) == [(1, 0)]


def test_real_questions_that_occur_many_times_stay_together(external_data: Path) -> None:
    """283 pairs on 119 questions by people (SYCON-Bench, MIT): a question is on one side only."""
    lines = (external_data / "sycon_crepe.jsonl").read_text("utf-8").split("\n")
    rows = [json.loads(line) for line in lines if line]
    items = [make_item(id=row["id"], query=row["query"]) for row in rows]
    splits = assign_splits(items)
    assert len(items) == 283
    assert len(splits.placements) == len({item.content_hash for item in items}) == 119
    train, test = splits.select(items, "train"), splits.select(items, "test")
    assert not {i.query for i in train} & {i.query for i in test}
    check_no_overlap(train, test)


# ---------------------------------------------------------------- what is not seen, and clusters

HIDING = {
    "zero-width space": "\u200b",
    "zero-width no-break space": "\ufeff",
    "soft hyphen": "\u00ad",
    "word joiner": "\u2060",
    "right-to-left mark": "\u200f",
    "tag": "\U000e0041",
    "grapheme joiner": "\u034f",
    "variation selector": "\ufe0f",
    "filler": "\u3164",
}


@pytest.mark.parametrize("hidden", HIDING.values(), ids=HIDING.keys())
def test_what_is_not_seen_hides_no_near_duplicate(hidden: str) -> None:
    query = "How do I keep the cellar of a house from the thirties dry in a wet spring?"
    stuffed = " ".join(f"{word[:1]}{hidden}{word[1:]}" for word in query.split())
    assert tokens(stuffed) == tokens(query)
    one, other = make_item(id="one", query=query), make_item(id="other", query=stuffed)
    assert one.content_hash != other.content_hash
    assert len(set(clusters_of([one, other]).values())) == 1
    with pytest.raises(LeakError):
        check_no_overlap([other], [one])


def test_the_sides_and_clusters_of_mini_are_those_that_it_is_published_with() -> None:
    items = load_items("mini")
    assert assign_splits(items).placements == bundled_splits().placements


def test_clusters_are_those_of_the_splits_and_else_of_what_nearly_repeats() -> None:
    first = make_item(id="a", query="How do I mend the old wooden fence behind my house?")
    again = make_item(id="b", query="How do I mend the old wooden fence behind our house?")
    apart = make_item(id="c", query="Where can I buy fresh yeast on a Sunday evening?")
    friend = make_item(id="d", query="Is sourdough safe for a dog?", group="thread-1", source="s")
    reply = make_item(id="e", query="And what about a cat?", group="thread-1", source="s")
    found = clusters_of([first, again, apart, friend, reply])
    assert found["a"] == found["b"] == min(first.content_hash, again.content_hash)
    assert found["c"] == apart.content_hash
    assert found["d"] == found["e"]
    assert len(set(found.values())) == 3
    assert found == clusters_of([reply, apart, again, friend, first])
    placed = Splits(
        {first.content_hash: Placement("train", "x"), apart.content_hash: Placement("train", "x")}
    )
    joined = clusters_of([first, again, apart, friend], placed)
    assert (joined["a"], joined["b"], joined["c"]) == ("x", "x", "x")
    assert joined["d"] == friend.content_hash
    assert clusters_of([apart], placed) == {"c": "x"}


def test_a_look_at_what_would_be_leaves_the_lock_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    lock = tmp_path / "folder" / "splits.json"
    would_be = assign_splits(strangers(5), lock, write=False)
    assert list(tmp_path.iterdir()) == []
    assert caplog.text.rstrip().endswith(f"{lock} is not there: all sides are assigned anew")
    assert assign_splits(strangers(5), lock).placements == would_be.placements
    before = lock.read_bytes()
    assert len(assign_splits(strangers(8), lock, write=False).placements) == 8
    assert lock.read_bytes() == before
