"""docs/items.md: its rows load, its program runs, its YAML is that of a recipe, its table is the loader's."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from xyreward.config import DPORecipe, load_config
from xyreward.items import ANSWER_KINDS, Item
from xyreward.loading import REQUIRED, load_items
from xyreward.pairs import build_pairs
from xyreward.sides import load_sides

PAGE = (Path(__file__).parent.parent / "docs/items.md").read_text("utf-8")
BLOCKS = re.findall(r"```(\w+)\n(.*?)```", PAGE, re.DOTALL)


def blocks(language: str) -> list[str]:
    return [text for name, text in BLOCKS if name == language]


def test_every_block_is_tried_here() -> None:
    assert sorted(name for name, _ in BLOCKS) == ["json", "json", "python", "yaml"]


def test_the_rows_are_one_of_each_kind_and_make_a_pair_each(tmp_path: Path) -> None:
    file = tmp_path / "items.jsonl"
    file.write_text("".join(blocks("json")), "utf-8")
    items = load_items(file)
    assert [item.kind for item in items] == ["xy", "control"]
    pairs = build_pairs(items, split="train", control_share=0.5)
    assert {pair.item_id for pair in pairs.pairs} == {item.id for item in items}


@pytest.mark.parametrize("n", [0, 1])
def test_what_the_table_calls_required_is_missed_and_nothing_else(tmp_path: Path, n: int) -> None:
    row = json.loads(blocks("json")[n])
    kind = row["kind"]
    cells = {
        cell: (xy, control)
        for line in PAGE.splitlines()
        if line.startswith("| `")
        for cell, xy, control in [re.findall(r"^\| (.*?) \| .*? \| (.*?) \| (.*?) \|", line)[0]]
    }
    required = {c.strip("`") for c, of in cells.items() if of[n] == "required"}
    assert required == set(REQUIRED[kind])
    named = set(re.findall(r"`(\w+)`", " ".join(cells)))
    assert named == set(Item.model_fields) - {"meta"} | {"split"}
    file = tmp_path / "items.jsonl"
    for field in list(row):
        file.write_text(json.dumps({k: v for k, v in row.items() if k != field}) + "\n")
        if field in required:
            with pytest.raises(ValueError, match=field):
                load_items(file)
        elif field != "kind":
            assert len(load_items(file)) == 1
    assert set(re.findall(r"`(\w+)`", PAGE)) >= set(ANSWER_KINDS)


def test_the_program_and_the_yaml_read_the_same_foreign_file(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", blocks("python")[0]],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "Sleep undisturbed. Take the battery out.\n"
    file = tmp_path / "c.yaml"
    text = blocks("yaml")[0].replace("forum.csv", str(tmp_path / "forum.csv"))
    file.write_text(f"output_dir: runs/x\n{text}")
    sides = load_sides(load_config(DPORecipe, file).items, None)
    assert {i.kind for i in sides.items if i.source == "mini"} == {"control"}
    assert [i.intended_request for i in sides.items if i.kind == "xy"] == ["Sleep undisturbed."]
