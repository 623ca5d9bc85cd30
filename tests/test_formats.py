"""Pair sets as files: every trainer's form, the same bytes each time, and read back exactly."""

import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pair_sets import META, hostile_set, items, judged, pair, pair_set, sampled

from xyreward.errors import ConfigError, DataError, HubUnreachable, RunFolderError
from xyreward.items import Item, text_hash
from xyreward.pairs import PairSet
from xyreward.pairs.audit import Audit, audit_pairs
from xyreward.pairs.formats import (
    FORMATS,
    Format,
    item_of_row,
    pair_of_record,
    push_to_hub,
    read_pairs,
    record_of,
    rows,
    write_pairs,
)
from xyreward.testing import make_item

IMPORTS = {"PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])}


def written(folder: Path, pairs: PairSet | None = None, **more: Any) -> Path:
    pairs = pairs or pair_set()
    audit = more.pop("audit", None) or audit_pairs(pairs)
    base: dict[str, Any] = {"meta": META, "items": items(), "formats": FORMATS}
    return write_pairs(pairs, audit, folder, **{**base, **more})


def contents(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


# ---------------------------------------------------------------- rows


def test_preference_rows_are_explicit_conversational_and_have_a_margin() -> None:
    row = rows(pair_set(), "preference")[0]
    assert row["prompt"] == [{"role": "user", "content": "query 0"}]
    assert row["chosen"] == [{"role": "assistant", "content": "good 0"}]
    assert row["rejected"] == [{"role": "assistant", "content": "bad 0"}]
    assert row["margin"] == 0.75


def test_unpaired_has_every_answer_once_with_its_label() -> None:
    found = {r["completion"][0]["content"]: r["label"] for r in rows(pair_set(), "unpaired")}
    assert found == {
        **{f"good {i}": True for i in range(6)},
        **{f"bad {i}": False for i in range(6)},
        "dump 0": False,
    }
    assert len(rows(pair_set(), "unpaired")) == len(found)  # good 0 is in two pairs


def test_an_answer_on_both_sides_has_no_label_and_one_that_is_only_better_is_not_called_good() -> (
    None
):
    found = rows(sampled(items()[0]), "unpaired")
    assert [(r["completion"][0]["content"], r["label"]) for r in found] == [("worst", False)]


def test_the_same_answer_to_the_same_prompt_of_two_items_has_one_label() -> None:
    one, two = make_item(id="one"), make_item(id="two")
    good, bad = judged("x", "goal_focused", 1.0), judged("y", "literal", 0.0)
    turned = judged("y  ", "goal_focused", 1.0), judged("X", "literal", 0.0)
    found = rows(PairSet((pair(one, good, bad), pair(two, *turned)), {}), "unpaired")
    assert [r["completion"][0]["content"] for r in found] == ["x", "X"]


def test_sft_has_each_chosen_answer_once_and_no_unsafe_one() -> None:
    pairs = pair_set()
    unsafe = pair(items()[5], judged("danger", "direct", 1.0, unsafe=True), judged("no", "literal"))
    found = rows(replace(pairs, pairs=(*pairs.pairs, unsafe)), "sft")
    assert [r["completion"] for r in found] == [
        [{"role": "assistant", "content": f"good {i}"}] for i in range(6)
    ]
    assert all(
        r["prompt"] == [{"role": "user", "content": f"query {i}"}] for i, r in enumerate(found)
    )
    assert rows(sampled(items()[0]), "sft") == []


def test_prompts_have_the_columns_of_their_item_once_and_give_it_back() -> None:
    found = rows(pair_set(), "prompts", items=[*items(), make_item(id="without a pair")])
    assert [row["item_id"] for row in found] == [item.id for item in items()]
    for row, item in zip(found, items(), strict=True):
        assert item_of_row(row) == item.model_copy(update={"references": ()})
    talk = make_item(id="talk", query=[
        {"role": "user", "content": "a"}, {"role": "assistant", "content": "b"},
        {"role": "user", "content": "c"},
    ])  # fmt: skip
    one = PairSet((pair(talk, judged("x", "goal_focused", 1.0), judged("y", "literal")),), {})
    (row,) = rows(one, "prompts", items=[talk])
    assert item_of_row(row) == talk.model_copy(update={"references": ()})


def test_what_was_masked_in_a_pair_is_masked_in_its_item() -> None:
    item = make_item(query="I am ada@example.org and my key is lost.")
    masked = item.model_copy(update={"query": "I am [email] and my key is lost."})
    one = pair(masked, judged("x", "goal_focused", 1.0), judged("y", "literal"))
    wanted: tuple[Format, ...] = ("prompts", "verl")
    for fmt in wanted:
        found = rows(PairSet((one,), {}), fmt, items=[item])
        assert "ada@example.org" not in json.dumps(found)
        assert "[email]" in json.dumps(found)


def test_verl_rows_have_its_five_columns_and_the_whole_item_as_ground_truth() -> None:
    found = rows(pair_set(), "verl", items=items())
    for number, (row, item) in enumerate(zip(found, items(), strict=True)):
        assert list(row) == ["data_source", "prompt", "ability", "reward_model", "extra_info"]
        assert row["reward_model"]["style"] == "rule"
        grounding = Item.model_validate_json(row["reward_model"]["ground_truth"])
        assert grounding == item.model_copy(update={"references": ()})
        assert row["extra_info"]["index"] == number
        assert row["extra_info"]["item_id"] == item.id


def test_what_needs_items_says_so_and_names_those_that_are_missing() -> None:
    for fmt in ("prompts", "verl"):
        with pytest.raises(ConfigError, match="pass items="):
            rows(pair_set(), fmt)
        with pytest.raises(DataError, match="pairs of item 'i5'"):
            rows(pair_set(), fmt, items=items()[:-1])
    with pytest.raises(ConfigError, match="expected one of preference"):
        rows(pair_set(), "dpo")  # type: ignore[arg-type]


LABELLED = st.sampled_from(["goal_focused", "literal", "dump", "balanced"])


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 5), st.integers(0, 5), st.booleans())))
def test_no_answer_of_unpaired_rows_is_there_twice_and_sft_only_holds_good_ones(
    picks: list[tuple[int, int, int, bool]],
) -> None:
    all_items = items(3)
    pairs = tuple(
        pair(all_items[i], judged(f"answer {a}", "goal_focused", 1.0, item_id=f"i{i}"),
             judged(f"answer {b}", "literal", 0.0, item_id=f"i{i}"),
             rule="margin" if margin else "goal_focused")
        for i, a, b, margin in picks
    )  # fmt: skip
    found = rows(PairSet(pairs, {}), "unpaired")
    keys = [(r["item_id"], text_hash(r["completion"][0]["content"])) for r in found]
    assert len(set(keys)) == len(keys)
    rejected = {(p.item_id, text_hash(p.rejected)) for p in pairs}
    good = {(p.item_id, text_hash(p.chosen)) for p in pairs if p.rule == "goal_focused"}
    for row, key in zip(found, keys, strict=True):
        assert key in (good - rejected if row["label"] else rejected)
    assert {
        (r["item_id"], text_hash(r["completion"][0]["content"]))
        for r in rows(PairSet(pairs, {}), "sft")
    } == good


# ---------------------------------------------------------------- the folder


def test_what_is_written_is_read_back_equal_pair_by_pair(tmp_path: Path) -> None:
    for name, pairs in (("references", pair_set()), ("sampled", sampled(items()[0]))):
        folder = written(tmp_path / name, pairs, formats=["preference"])
        found = read_pairs(folder)
        assert found.pairs == pairs
        assert found.pairs.hash == pairs.hash
        assert found.audit == audit_pairs(pairs)
        assert found.meta == META


_TEXT = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=40)


@settings(max_examples=80, deadline=None)
@given(_TEXT, _TEXT, st.floats(0.01, 1), st.floats(0, 0.009), _TEXT, st.booleans(), st.booleans())
def test_any_pair_survives_its_record(
    chosen: str, rejected: str, high: float, low: float, name: str, unsafe: bool, given_labels: bool
) -> None:
    base = judged(chosen, "goal_focused", high, origin=name, licence=name, reason=name, judge=name)
    labels = base.labels if given_labels else None
    answer = replace(base.answer, unsafe=unsafe, labels=labels, details={"note": name, "n": 0.1})
    whole = pair(
        make_item(), replace(base, answer=answer), judged(rejected, "dump", low), cluster=name
    )
    assert pair_of_record(json.loads(json.dumps(record_of(whole)))) == whole


def test_hostile_texts_are_read_back_as_they_were(tmp_path: Path) -> None:
    pairs = hostile_set()
    assert (
        read_pairs(written(tmp_path / "out", pairs, formats=["preference", "sft"])).pairs == pairs
    )


def test_datasets_reads_every_form_and_they_hold_the_same_rows(tmp_path: Path) -> None:
    import datasets

    folder = written(tmp_path / "out")
    for fmt in FORMATS:
        expected = rows(pair_set(), fmt, items=items())
        assert (
            datasets.Dataset.from_parquet(
                str(folder / f"{fmt}.parquet"), cache_dir=str(tmp_path / "c")
            ).to_list()
            == expected
        )
        if fmt != "verl":
            assert datasets.load_from_disk(str(folder / fmt)).to_list() == expected
            lines = (folder / f"{fmt}.jsonl").read_bytes().split(b"\n")[:-1]
            assert [json.loads(line) for line in lines] == expected
    assert not (folder / "verl.jsonl").exists()
    # The canonical file is one that trainers can read, too.
    loaded = datasets.load_dataset(
        "json", data_files=str(folder / "pairs.jsonl"), split="train", cache_dir=str(tmp_path / "c")
    )
    assert loaded["chosen"] == [row["chosen"] for row in rows(pair_set(), "preference")]


@pytest.mark.parametrize("trainer", ["DPO", "Reward", "KTO", "SFT"])
def test_trl_takes_the_rows(trainer: str, tiny: str, tmp_path: Path) -> None:
    import trl
    from datasets import Dataset
    from transformers import AutoTokenizer

    formats: dict[str, Format] = {"DPO": "preference", "Reward": "preference", "KTO": "unpaired"}
    fmt = formats.get(trainer, "sft")
    config = getattr(trl, f"{trainer}Config")(
        output_dir=str(tmp_path), max_steps=1, per_device_train_batch_size=2, use_cpu=True, bf16=False,
        report_to="none", activation_checkpointing=False, save_strategy="no", disable_tqdm=True,
    )  # fmt: skip
    made = getattr(trl, f"{trainer}Trainer")(
        model=tiny,
        args=config,
        train_dataset=Dataset.from_list(rows(pair_set(), fmt)),
        processing_class=AutoTokenizer.from_pretrained(tiny),
    )
    made.train()
    assert made.state.global_step == 1


def test_the_same_input_gives_the_same_bytes_in_another_process_on_another_day(
    tmp_path: Path,
) -> None:
    first = contents(written(tmp_path / "one"))
    code = (
        "import sys; from pathlib import Path; from test_formats import written; "
        "written(Path(sys.argv[1]))"
    )
    subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "elsewhere" / "two")],
        check=True, timeout=300,
        env={**os.environ, "PYTHONHASHSEED": "7", "TZ": "Asia/Tokyo", **IMPORTS},
    )  # fmt: skip
    assert contents(tmp_path / "elsewhere" / "two") == first
    assert str(tmp_path).encode() not in b"".join(first.values())


def test_the_manifest_has_the_sum_of_every_file(tmp_path: Path) -> None:
    import hashlib

    found = contents(written(tmp_path / "out"))
    manifest = json.loads(found.pop("manifest.json"))
    assert {name: entry["sha256"] for name, entry in manifest["files"].items()} == {
        name: hashlib.sha256(data).hexdigest() for name, data in found.items()
    }


def test_a_folder_that_holds_the_same_is_left_and_any_other_is_refused(tmp_path: Path) -> None:
    folder = written(tmp_path / "out", formats=["sft"])
    before = folder.stat().st_ino
    assert written(tmp_path / "out", formats=["sft"]) == folder
    assert folder.stat().st_ino == before
    with pytest.raises(RunFolderError, match="holds something else"):
        written(tmp_path / "out", formats=["preference"])
    (folder / "note.txt").write_text("mine")
    with pytest.raises(RunFolderError, match="holds something else"):
        written(tmp_path / "out", formats=["sft"])
    assert (folder / "note.txt").read_text() == "mine"
    (tmp_path / "file").write_text("")
    with pytest.raises(RunFolderError, match="is a file"):
        written(tmp_path / "file")
    (tmp_path / "empty").mkdir()
    assert read_pairs(written(tmp_path / "empty")).pairs == pair_set()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["empty", "file", "out"]


def test_what_cannot_be_written_leaves_nothing(tmp_path: Path) -> None:
    half = pair(items()[0], judged("\ud800", "goal_focused", 1.0), judged("b", "literal"))
    with pytest.raises(DataError, match="half a surrogate"):
        written(tmp_path / "out", PairSet((half,), {}, candidates=1), formats=["preference"])
    with pytest.raises(DataError, match="chosen by the margin alone; leave it out"):
        written(tmp_path / "out", sampled(items()[0]), formats=["sft"])
    with pytest.raises(DataError, match=r"meta\.json"):
        written(tmp_path / "out", meta={"when": object()})
    with pytest.raises(ConfigError, match="formats is"):
        written(tmp_path / "out", formats="sft")
    with pytest.raises(ConfigError, match="containers is"):
        written(tmp_path / "out", containers=["csv"])
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_leaves_nothing_whichever_file_it_stops(tmp_path: Path) -> None:
    import resource

    formats = ["sft", "verl"]
    whole = contents(written(tmp_path / "whole", formats=formats))
    sizes = sorted({len(data) for data in whole.values()})
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    for size in sizes:  # each file in turn is the first that has no room
        try:
            resource.setrlimit(resource.RLIMIT_FSIZE, (size - 1, hard))
            with pytest.raises(RunFolderError, match="out: cannot be written"):
                written(tmp_path / "out", formats=formats)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert [path.name for path in tmp_path.iterdir()] == ["whole"]


def test_without_the_train_extra_jsonl_alone_is_written(tmp_path: Path) -> None:
    code = """
import sys
from pathlib import Path
for name in ("datasets", "pyarrow"):
    sys.modules[name] = None
from test_formats import written
from xyreward.errors import MissingDependency
from xyreward.pairs.formats import read_pairs
try:
    written(Path(sys.argv[1]), formats=["preference"])
except MissingDependency as error:
    print(error)
print(len(read_pairs(written(Path(sys.argv[1]), formats=["preference"], containers=["jsonl"])).pairs.pairs))
"""
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "out")], check=True, capture_output=True, text=True,
        env={**os.environ, **IMPORTS}, timeout=300,
    )  # fmt: skip
    assert done.stdout.splitlines()[0].endswith(
        "or leave them out (containers=('jsonl',), no format 'verl')"
    )
    assert done.stdout.splitlines()[1] == "7"


# ---------------------------------------------------------------- damage


@pytest.mark.parametrize(
    "name", ["pairs.jsonl", "audit.json", "meta.json", "dropped.jsonl", "sft.parquet", "audit.html"]
)
def test_a_changed_file_is_named(tmp_path: Path, name: str) -> None:
    folder = written(tmp_path / "out")
    data = (folder / name).read_bytes()
    (folder / name).write_bytes(data[:-9] + b"?" + data[-8:])
    with pytest.raises(DataError, match=f"{name}: is not what was written"):
        read_pairs(folder)


def test_everything_that_is_damaged_is_told_at_once(tmp_path: Path) -> None:
    folder = written(tmp_path / "out")
    (folder / "pairs.jsonl").unlink()
    (folder / "audit.json").write_text("{}")
    with pytest.raises(DataError) as caught:
        read_pairs(folder)
    assert len(caught.value.problems) == 2
    assert "pairs.jsonl: is missing" in str(caught.value)


def test_an_edited_card_and_left_out_copies_are_fine(tmp_path: Path) -> None:
    folder = written(tmp_path / "out")
    (folder / "README.md").write_text("My own words.")
    shutil.rmtree(folder / "preference")
    (folder / "sft.parquet").unlink()
    (folder / ".gitattributes").write_text("*.parquet filter=lfs")
    assert read_pairs(folder).pairs == pair_set()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"schema": 2}, "schema 2, this version of xyreward reads 1"),
        ({"pairs_hash": "0" * 64}, "the manifest says 000000000000"),
        ({"files": []}, "is not a manifest of pairs"),
        ({"set": []}, "is not a manifest of pairs"),
        ({"set": {"candidates": []}}, "not as write_pairs leaves it"),
        ({"files": {"../secret": {}}}, "names a file outside its folder"),
        ({"files": {"/etc/hostname": {}}}, "names a file outside its folder"),
        ({"set": {"candidates": 12}}, "not as write_pairs leaves it"),
        ({"set": {"dropped": {}, "more": 1}}, "not as write_pairs leaves it"),
    ],
)
def test_a_manifest_that_is_not_ours_is_refused(
    tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    folder = written(tmp_path / "out", formats=["sft"])
    manifest = json.loads((folder / "manifest.json").read_text())
    (folder / "manifest.json").write_text(json.dumps({**manifest, **change}))
    with pytest.raises(DataError, match=message):
        read_pairs(folder)


def test_what_is_no_folder_of_pairs_is_told(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no such folder"):
        read_pairs(tmp_path / "none")
    with pytest.raises(DataError, match=r"has no manifest\.json"):
        read_pairs(tmp_path)
    (tmp_path / "manifest.json").write_text("{")
    with pytest.raises(DataError, match="cannot be read"):
        read_pairs(tmp_path)


# ---------------------------------------------------------------- hub


class Hub:
    """What `push_to_hub` calls of `huggingface_hub.HfApi`, with repositories in memory."""

    def __init__(self, folder: Path, *, public: bool = False) -> None:
        self.folder = folder
        self.private = not public
        self.calls: list[tuple[str, dict[str, Any]]] = []

    def create_repo(self, repo_id: str, **options: Any) -> None:
        self.calls.append(("create", {"repo_id": repo_id, **options}))

    def repo_info(self, repo_id: str, *, repo_type: str) -> SimpleNamespace:
        return SimpleNamespace(private=self.private)

    def upload_folder(self, **options: Any) -> None:
        from huggingface_hub.utils import filter_repo_objects

        self.calls.append(("upload", options))
        names = filter_repo_objects(
            contents(Path(options["folder_path"])), ignore_patterns=options["ignore_patterns"]
        )
        for name in names:
            target = self.folder / name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes((Path(options["folder_path"]) / name).read_bytes())


def test_an_upload_is_private_and_its_copy_can_be_read(tmp_path: Path) -> None:
    folder = written(tmp_path / "out")
    hub = Hub(tmp_path / "hub")
    assert push_to_hub(folder, "ada/pairs", api=hub).endswith("/datasets/ada/pairs")
    assert hub.calls[0] == (
        "create",
        {"repo_id": "ada/pairs", "repo_type": "dataset", "private": True, "exist_ok": True},
    )
    assert hub.calls[1][1]["repo_type"] == "dataset"
    found = contents(tmp_path / "hub")
    assert found == {k: v for k, v in contents(folder).items() if "/" not in k}
    assert read_pairs(tmp_path / "hub").pairs == pair_set()


def test_the_methods_that_an_upload_calls_are_those_of_the_hub_client() -> None:
    import inspect

    from huggingface_hub import HfApi

    for method, names in {
        "create_repo": {"repo_id", "repo_type", "private", "exist_ok"},
        "repo_info": {"repo_id", "repo_type"},
        "upload_folder": {
            "repo_id",
            "repo_type",
            "folder_path",
            "commit_message",
            "ignore_patterns",
        },
    }.items():
        assert names <= inspect.signature(getattr(HfApi, method)).parameters.keys()


def test_pairs_whose_audit_failed_or_that_would_become_public_are_not_uploaded(
    tmp_path: Path,
) -> None:
    pairs = pair_set()
    bad: Audit = replace(audit_pairs(pairs), problems=("too few",))
    folder = write_pairs(pairs, bad, tmp_path / "bad", meta=META, containers=["jsonl"])
    hub = Hub(tmp_path / "hub")
    with pytest.raises(DataError, match="its audit failed, so it is not uploaded: too few"):
        push_to_hub(folder, "ada/pairs", api=hub)
    assert hub.calls == []
    good = written(tmp_path / "good", formats=["sft"])
    public = Hub(tmp_path / "hub", public=True)
    with pytest.raises(DataError, match="is there already and public"):
        push_to_hub(good, "ada/pairs", api=public)
    push_to_hub(good, "ada/pairs", api=public, private=False)
    assert [name for name, _ in public.calls] == ["create", "create", "upload"]


def test_without_a_network_an_upload_says_so(tmp_path: Path) -> None:
    with pytest.raises(
        HubUnreachable, match="ada/pairs: could not be uploaded: OfflineModeIsEnabled"
    ):
        push_to_hub(written(tmp_path / "out", formats=["sft"]), "ada/pairs")


# ---------------------------------------------------------------- its own audit, a set in place of one


def test_an_audit_of_other_pairs_is_refused_when_it_is_written_and_when_it_is_read(
    tmp_path: Path,
) -> None:
    pairs, other = pair_set(), pair_set(9)
    with pytest.raises(
        DataError, match=r"the audit is of other pairs \(10 with the hash .*than these \(7, "
    ):
        written(tmp_path / "a", pairs, audit=audit_pairs(other))
    counted = replace(pairs, dropped={"tie": 5})
    with pytest.raises(DataError, match="counts other candidates, or other reasons"):
        written(tmp_path / "a", pairs, audit=audit_pairs(counted))
    assert list(tmp_path.iterdir()) == []
    folder = written(tmp_path / "a", pairs)
    foreign = written(tmp_path / "b", other, items=items(9))
    shutil.copy(foreign / "audit.json", folder / "audit.json")
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["files"]["audit.json"] = json.loads((foreign / "manifest.json").read_text())["files"][
        "audit.json"
    ]
    (folder / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(DataError, match="the audit is of other pairs"):
        read_pairs(folder)


def test_a_set_takes_the_place_of_another_only_where_that_is_asked_for_and_nothing_is_lost(
    tmp_path: Path,
) -> None:
    folder = written(tmp_path / "out", pair_set())
    before = contents(folder)
    with pytest.raises(RunFolderError, match="is not overwritten"):
        written(folder, pair_set(9), items=items(9))
    card = before["README.md"]
    for name in ("README.md", "notes.txt"):
        (folder / name).write_bytes(card + b"of mine")
        with pytest.raises(
            RunFolderError, match=rf"is not replaced, since {name} is not as written"
        ):
            written(folder, pair_set(9), items=items(9), replace=True)
        (folder / name).unlink()
    (folder / "README.md").write_bytes(card)
    assert contents(folder) == before
    written(folder, pair_set(9), items=items(9), replace=True)
    assert contents(folder) == contents(written(tmp_path / "straight", pair_set(9), items=items(9)))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["out", "straight"]
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis/main.tex").write_text("years of work")
    with pytest.raises(RunFolderError, match="is not overwritten"):
        written(tmp_path / "thesis", pair_set(9), items=items(9), replace=True)


@pytest.mark.skipif(os.name == "nt", reason="needs flock")
def test_what_killed_processes_left_is_removed_and_what_others_work_at_is_not(
    tmp_path: Path,
) -> None:
    code = f"""
import os, signal, sys
from pathlib import Path
from test_formats import items, pair_set, written
from xyreward.pairs import formats
def stop(*_, **__):
    print("there", flush=True)
    signal.pause()
{{}}
written(Path({str(tmp_path / "out")!r}), pair_set(int(sys.argv[1])), replace=True, containers=["jsonl"],
        formats=["sft"])
"""
    before_it_is_whole = "formats._put_in_place = stop"
    while_the_old_one_is_aside = "Path.replace = stop"

    def start(where: str, n: int) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-c", code.format(where), str(n)],
            env={**os.environ, **IMPORTS},
            stdout=subprocess.PIPE,
            text=True,
        )
        assert process.stdout is not None
        assert process.stdout.readline() == "there\n"
        return process

    def kill(process: subprocess.Popen[str]) -> None:
        process.kill()
        process.communicate()

    def beside() -> list[str]:
        return sorted(p.name for p in tmp_path.iterdir() if p.name.startswith(".out."))

    (tmp_path / ".out.d.deadbeef.partial").mkdir()  # of another target, `out.d`
    (tmp_path / ".out.mine.partial").mkdir()
    kill(start(before_it_is_whole, 6))
    (left,) = set(beside()) - {".out.d.deadbeef.partial", ".out.mine.partial"}
    at_work = start(before_it_is_whole, 6)
    assert left not in beside()
    (others,) = set(beside()) - {".out.d.deadbeef.partial", ".out.mine.partial"}
    written(tmp_path / "out", pair_set(6), containers=["jsonl"], formats=["sft"])
    assert others in beside()
    kill(at_work)
    kill(start(while_the_old_one_is_aside, 9))
    assert not (tmp_path / "out").exists()
    assert ".old" in {Path(name).suffix for name in beside()}
    written(tmp_path / "out", pair_set(9), containers=["jsonl"], formats=["sft"])
    assert beside() == [".out.d.deadbeef.partial", ".out.mine.partial"]


def test_what_was_held_out_and_inferred_and_the_limits_come_back(tmp_path: Path) -> None:
    pairs = pair_set()
    first = pairs.pairs[0]
    guessed = replace(first, chosen_answer=replace(first.chosen_answer, grounded=False))
    pairs = replace(
        pairs, pairs=(guessed, *pairs.pairs[1:]), held_out_hash="d" * 64, limits={"language": 0.2}
    )
    meta = {k: v for k, v in META.items() if k != "held_out_hash"}
    folder = written(tmp_path / "out", pairs, meta=meta)
    back = read_pairs(folder).pairs
    assert back == pairs
    assert [p.grounded for p in back.pairs] == [False, *[True] * 6]
    assert "held-out items, sha256: " + "d" * 64 in (folder / "README.md").read_text()
    assert "d" * 64 in (folder / "audit.html").read_text()
    assert [row["grounded"] for row in rows(pairs, "sft")][:2] == [False, True]
