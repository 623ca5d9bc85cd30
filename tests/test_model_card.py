"""What lies beside a trained policy says what it is, and names no folder of the machine of its training."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from xyreward.embedded import POLICY_NAME
from xyreward.items import Item
from xyreward.locate import Mark, base_of_adapter
from xyreward.model_card import add_report, model_card, write_card
from xyreward.pairs import PairSet, build_pairs


@pytest.fixture(scope="module")
def pairs(mini: list[Item]) -> PairSet:
    return build_pairs(mini[:30] + [i for i in mini if i.kind == "control"][:20], split="train")


def card(mark: Mark, pairs: PairSet) -> str:
    facts = {"steps": 7, "train hash": "0123456789ab"}
    return model_card(
        mark, pairs, facts, {"beta": 0.1, "deepspeed": "/home/ada/x"}, adapter=True, method="DPO"
    )


def test_the_card_says_base_counts_hashes_and_licences(pairs: PairSet) -> None:
    text = card(Mark("owner/base", "abc"), pairs)
    front = YAML(typ="safe").load(text.split("---\n")[1])
    assert front["base_model"] == "owner/base"
    assert front["library_name"] == "peft"
    assert f"{len(pairs.pairs)} pairs of " in text
    assert pairs.hash[:12] in text
    assert "- steps: 7\n- train hash: 0123456789ab\n- beta: 0.1\n" in text
    assert f"Apache-2.0 ({len(pairs.pairs)} pairs)" in text
    assert "/ada" not in text


@pytest.mark.parametrize("name", ["/home/ada/models/base", POLICY_NAME])
def test_a_base_that_no_hub_has_is_named_without_its_folder(name: str, pairs: PairSet) -> None:
    text = card(Mark(name), pairs)
    assert "base_model" not in text.split("---\n")[1]
    assert "/ada" not in text
    assert f"`{name.rpartition('/')[2]}`" in text


def adapter(folder: Path, **config: Any) -> Path:
    folder.mkdir()
    (folder / "adapter_config.json").write_text(json.dumps({"r": 2, **config}))
    return folder


def test_an_adapter_names_its_base_and_not_the_folder_of_a_cache(
    tmp_path: Path, pairs: PairSet
) -> None:
    folder = adapter(tmp_path / "a", base_model_name_or_path="/home/ada/.cache/xyreward/policy")
    for mark in (Mark(POLICY_NAME), Mark("owner/base", "abc")):
        write_card(folder, card(mark, pairs), mark)
        for file in folder.iterdir():
            assert "/ada" not in file.read_text()
        assert base_of_adapter(str(folder)) == mark
        (folder / "xyreward.json").unlink()  # without the mark, too
        assert base_of_adapter(str(folder)) == mark
    local = tmp_path / "base"
    local.mkdir()
    config = {"base_model_name_or_path": str(local), "r": 2}
    other = adapter(tmp_path / "b", **config)
    write_card(other, card(Mark(str(local)), pairs), Mark(str(local)))
    assert json.loads((other / "adapter_config.json").read_text()) == config


def test_modules_have_one_order_whatever_the_process_made_of_their_set(
    tmp_path: Path, pairs: PairSet
) -> None:
    mark = Mark(str(tmp_path))  # a local base
    texts = []
    for n, modules in enumerate((["v", "k", "q"], ["q", "v", "k"], "all-linear")):
        folder = adapter(tmp_path / str(n), target_modules=modules)
        write_card(folder, card(mark, pairs), mark)
        texts.append((folder / "adapter_config.json").read_text())
    assert texts[0] == texts[1]
    assert json.loads(texts[0])["target_modules"] == ["k", "q", "v"]
    assert json.loads(texts[2])["target_modules"] == "all-linear"


def test_the_report_takes_its_place_once(tmp_path: Path, pairs: PairSet) -> None:
    add_report(tmp_path / "nowhere", "# Held-out evaluation\n\nfigures\n")
    write_card(tmp_path, card(Mark("owner/base"), pairs), Mark("owner/base"))
    assert "None yet." in (tmp_path / "README.md").read_text()
    os.link(tmp_path / "README.md", tmp_path / "as_it_was")
    for figures in ("first", "second"):
        add_report(tmp_path, f"# Held-out evaluation\n\n{figures}\n\n## By source\n\nmore\n")
    text = (tmp_path / "README.md").read_text()
    assert text.endswith("\n## Held-out evaluation\n\nsecond\n\n### By source\n\nmore\n")
    assert "None yet." not in text
    assert text.count("## Held-out evaluation") == 1
    # A new file took the old one's place: at no time was there half a card.
    assert "None yet." in (tmp_path / "as_it_was").read_text()
