"""The data card: front matter that a hub reads, figures of the set, and hostile texts shown as code."""

import json
import re
import unicodedata
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
from markdown_it import MarkdownIt
from pair_sets import HOSTILE, META, hostile_set, items, judged, pair, pair_set, sampled
from ruamel.yaml import YAML

from xyreward.pairs import PairSet
from xyreward.pairs.audit import audit_pairs
from xyreward.pairs.card import card
from xyreward.pairs.formats import FORMATS, write_pairs

FILES = {"preference": ["preference.jsonl", "preference.parquet", "preference/"]}


def carded(pairs: PairSet, **fields: Any) -> str:
    return card(pairs, audit_pairs(pairs), **{"meta": META, "formats": FILES, **fields})


def front_matter(text: str) -> dict[str, Any]:
    _, yaml, _ = text.split("---\n", 2)
    found: dict[str, Any] = YAML(typ="safe").load(yaml)
    return found


def test_the_front_matter_says_what_a_hub_asks_for() -> None:
    found = front_matter(carded(pair_set()))
    assert found["license"] == "apache-2.0"
    assert found["language"] == ["de", "en"]
    assert found["size_categories"] == ["n<1K"]
    assert {"preference", "dpo"} <= set(found["tags"])
    assert found["configs"] == [
        {
            "config_name": "preference",
            "data_files": [{"split": "train", "path": "preference.parquet"}],
            "default": True,
        }
    ]


def test_the_hub_library_takes_the_front_matter() -> None:
    from huggingface_hub import DatasetCard

    data = DatasetCard(carded(pair_set())).data.to_dict()
    assert data["license"] == "apache-2.0"
    assert data["configs"][0]["config_name"] == "preference"


@pytest.mark.parametrize(
    ("licences", "expected"),
    [
        (["Apache-2.0", "Apache-2.0"], {"license": "apache-2.0"}),
        (["CC BY-SA 4.0", "MIT"], {"license": ["cc-by-sa-4.0", "mit"]}),
        (["", ""], {"license": "unknown"}),
        (["MIT", ""], {"license": "other", "license_name": "see-sources-and-licences"}),
        (["my own", "MIT"], {"license": "other", "license_name": "see-sources-and-licences"}),
    ],
)
def test_a_licence_is_named_as_the_hub_names_it_or_not_at_all(
    licences: list[str], expected: dict[str, Any]
) -> None:
    sides = (
        judged("a", "goal_focused", 1.0, licence=licences[0]),
        judged("b", "literal", 0.0, licence=licences[1]),
    )
    found = front_matter(carded(PairSet((pair(items()[0], *sides),), {}, candidates=1)))
    assert {k: v for k, v in found.items() if k.startswith("license")} == expected


def test_the_card_has_counts_hashes_judge_rule_and_the_audit() -> None:
    text = carded(pair_set())
    assert "7 pairs of 6 items" in text
    assert "- rule `goal_focused`, 7 pairs:" in text
    assert "- candidate pairs: 12; left out: different origins 3; tie 2" in text
    assert f"`{pair_set().hash}`" in text
    assert "- personal data and keys masked: email 2\n" in text
    for name, value in (
        ("judge", "local"),
        ("rubric", "local-1-abc"),
        ("items, sha256", "a" * 64),
        ("held-out items, sha256", "b" * 64),
    ):
        assert f"- {name}: {value}\n" in text
    assert "| mini | references | human | Apache-2.0 | 8 |" in text
    assert "| forum | references | human | Apache-2.0 | 6 |" in text
    assert "## Audit of the preference pairs" in text
    assert "margin" in carded(sampled(items()[0]))
    assert "neither is, and chosen is the better one" in carded(sampled(items()[0]))


def test_there_are_three_examples_of_different_kinds() -> None:
    text = carded(pair_set())
    assert re.findall(r"^### \d\. Item (\S+)", text, re.MULTILINE) == ["i0", "i0", "i4"]
    assert text.count("Chosen:\n") == 3


def test_a_long_text_is_cut_in_an_example() -> None:
    long = pair(items()[0], judged("x" * 1_000_000, "goal_focused", 1.0), judged("y", "literal"))
    text = carded(PairSet((long,), {}, candidates=1))
    assert len(text) < 10_000
    assert "[998,500 more characters]" in text


def texts_outside_code(markdown: str) -> str:
    """What a reader of Markdown takes for text, as HTML of it shows."""
    parser = MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"])
    out = []
    for token in parser.parse(markdown):
        assert token.type != "html_block", token.content
        if token.type == "inline":
            for child in token.children or []:
                assert child.type not in {"html_inline", "image"}, child.content
                if child.type == "link_open":
                    assert str(child.attrs["href"]).startswith("https://pypi.org/project/xyreward/")
                if child.type == "text":
                    out.append(child.content)
        elif token.type == "heading_open":
            assert token.level == 0
    return "\n".join(out)


def test_hostile_texts_are_nothing_but_code() -> None:
    meta = {**META, "judge": HOSTILE[1], **{text: {text: [text]} for text in HOSTILE}}
    for start in range(0, len(HOSTILE), 3):  # three examples a card
        pairs = hostile_set()
        pairs = replace(pairs, pairs=pairs.pairs[start : start + 3])
        text = carded(pairs, meta=meta)
        body = text.split("---\n", 2)[2]
        outside = texts_outside_code(body)
        for word in ("hacked", "evil", "javascript", "script>", "onerror"):
            assert word not in outside
        assert [t.tag for t in MarkdownIt().parse(body) if t.type == "heading_open"].count(
            "h1"
        ) == 1
        assert {unicodedata.category(c)[0] for c in text.replace("\n", "").replace("\t", "")} & {
            "C"
        } == set()
        assert set(front_matter(text)) >= {"license", "configs", "tags"}


def test_the_code_of_the_card_loads_the_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    pairs = pair_set()
    for containers in (["parquet"], ["jsonl"], ["datasets"]):
        folder = write_pairs(
            pairs, audit_pairs(pairs), tmp_path / containers[0], meta=META, items=items(),
            formats=FORMATS if containers == ["parquet"] else ["preference"], containers=containers,  # type: ignore[arg-type]
        )  # fmt: skip
        (code,) = re.findall(r"```python\n(.*?)```", (folder / "README.md").read_text(), re.DOTALL)
        monkeypatch.chdir(folder)
        found: dict[str, Any] = {}
        exec(code, found)
        assert found["preference"]["chosen"] == [p.as_row()["chosen"] for p in pairs.pairs]
        named = {
            c["data_files"][0]["path"]
            for c in front_matter((folder / "README.md").read_text()).get("configs", [])
        }
        assert named <= set(json.loads((folder / "manifest.json").read_text())["files"])
        assert len(named) == {"parquet": 5, "jsonl": 1, "datasets": 0}[containers[0]]


def test_an_empty_set_has_a_card() -> None:
    assert "0 pairs of 0 items" in carded(PairSet((), MappingProxyType({"tie": 1}), candidates=1))


def test_a_fact_that_says_nothing_has_no_line() -> None:
    said = carded(pair_set(), meta={**META, "rubric_version": "", "notes": [], "unfinished": {}})
    made = said.partition("## How it was made")[2].partition("## ")[0]
    assert "rubric" not in made
    assert not [line for line in made.splitlines() if re.fullmatch(r"- [^:]*: *(none)?", line)]
    assert "failed on the way" not in made
    unfinished = carded(pair_set(), meta={"unfinished": {"failed verdict: timeout": 3}})
    assert "failed verdict: timeout 3" in unfinished


def test_one_pair_is_one_pair_and_both_its_judges_are_named() -> None:
    one = pair(items()[0], judged("a", "goal_focused", 1.0), judged("b", "literal", judge="panel"))
    said = carded(PairSet((one,), {}, candidates=1))
    assert "1 pair of 1 item:" in said
    assert "**Failed: 1 problem.** 1 pair from 1 cluster of items" in said
    assert "judged by local over panel" in said
    assert not re.search(r"(?<![\d,.])1 (pairs|items|clusters|problems|candidate pairs)\b", said)
