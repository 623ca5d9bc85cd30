"""The data card of a pair set: README.md with the front matter that a hub reads.

Not here: what the audit's table says (`audit.py`), the page to look through pairs (`page.py`).
"""

from __future__ import annotations

import io
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import Any

from ruamel.yaml import YAML

from xyreward.markdown import code, fenced, plain
from xyreward.pairs.audit import Audit
from xyreward.pairs.pair import Pair, PairSet
from xyreward.words import counted

EXAMPLES = 3
EXAMPLE_LENGTH = 1_500
"""Characters of a text that an example shows."""

_HUB_LICENCES = frozenset({
    "apache-2.0", "mit", "bsd-2-clause", "bsd-3-clause", "cc0-1.0", "cc-by-2.0",
    "cc-by-3.0", "cc-by-4.0", "cc-by-sa-3.0", "cc-by-sa-4.0", "cc-by-nc-4.0", "cc-by-nc-sa-3.0",
    "cc-by-nc-sa-4.0", "cc-by-nd-4.0", "cc-by-nc-nd-4.0", "gpl-3.0", "odbl", "odc-by",
    "pddl", "gfdl", "unlicense",
})  # fmt: skip
"""Those of the hub's list (huggingface.co/docs/hub/repositories-licenses) that answers come under."""

_SIZES = (
    (1_000, "n<1K"),
    (10_000, "1K<n<10K"),
    (100_000, "10K<n<100K"),
    (1_000_000, "100K<n<1M"),
    (10_000_000, "1M<n<10M"),
)

_CONTAINERS = {".parquet": "parquet", ".jsonl": "json"}
"""Suffix -> name of the loader of `datasets.load_dataset`."""

_FACTS = {
    "judge": "judge",
    "rubric_version": "rubric",
    "seed": "seed",
    "items_hash": "items, sha256",
    "held_out_hash": "held-out items, sha256",
    "splits_hash": "splits, sha256",
    "answers_hash": "answers of files, sha256",
    "contrast_version": "prompt of the writer",
    "order_version": "prompt of the order-swapped check",
    "unfinished": "failed on the way, and asked again by the same command",
}
"""Key of `meta` -> how the card names it. Other keys are listed after these, but `config`."""


def card(
    pair_set: PairSet,
    audit: Audit,
    *,
    meta: Mapping[str, Any],
    formats: Mapping[str, Sequence[str]],
) -> str:
    """README.md of a folder of pairs.

    Args:
        pair_set: the pairs.
        audit: of these pairs.
        meta: see `write_pairs`.
        formats: format -> names of its files; folders end with a slash.
    """
    n = len(pair_set.pairs)
    out = [
        "---",
        _front_matter(pair_set, formats),
        "---",
        "",
        "# Preference pairs: the goal behind a question over its letter",
        "",
        f"{counted(n, 'pair')} of {counted(len({p.item_id for p in pair_set.pairs}), 'item')}: to each "
        "prompt, `chosen` serves what the user is after, and `rejected` does not. "
        f"{pair_set.control_share:.0%} are of controls, where what is asked is what is wanted: `chosen` "
        "answers directly, `rejected` invents a hidden goal. Made with "
        "[xyreward](https://pypi.org/project/xyreward/); `audit.html` shows every pair and why it was kept.",
        "",
        "## How it was made",
        "",
        *_made(pair_set, meta),
        "",
        # One level deeper. No text from data begins a line.
        re.sub("^#", "##", audit.to_markdown().strip(), flags=re.MULTILINE),
        "",
        "## Sources and licences",
        "",
        "Sides of pairs; both sides of a pair count.",
        "",
        *_sources(pair_set.pairs),
        "",
        "What you may do with the pairs follows from the licences of the answers; prompts come under "
        "those of their sources.",
        "",
        "## Examples",
        "",
        *_examples(pair_set.pairs),
        "## Load",
        "",
        *_load(formats),
        "",
    ]
    return "\n".join(out)


# ---------------------------------------------------------------- front matter


def _front_matter(pair_set: PairSet, formats: Mapping[str, Sequence[str]]) -> str:
    answers = _answers(pair_set.pairs)
    data: dict[str, Any] = {
        "pretty_name": "Preference pairs for serving the goal behind a question",
        "language": sorted({p.language for p in pair_set.pairs if p.language}),
        **_licence({side.answer.licence for _, side in answers}),
        "size_categories": [_size(len(pair_set.pairs))],
        "task_categories": ["text-generation"],
        "tags": ["xyreward", "preference", "dpo", "rlhf", "xy-problem"],
        "configs": _configs(pair_set, formats),
    }
    stream = io.StringIO()
    yaml = YAML()
    yaml.default_flow_style = False
    yaml.allow_unicode = False  # names from data: nothing that steers a terminal
    yaml.width = 10_000
    yaml.dump({key: value for key, value in data.items() if value}, stream)
    return stream.getvalue().rstrip()


def _licence(found: set[str]) -> dict[str, Any]:
    """The hub's names for the licences; `other` for what it has none for."""
    names = {"-".join(licence.lower().split()) for licence in found}
    if names and names <= _HUB_LICENCES:
        return {"license": sorted(names) if len(names) > 1 else names.pop()}
    if not any(found):
        return {"license": "unknown"}
    return {"license": "other", "license_name": "see-sources-and-licences"}


def _size(n: int) -> str:
    return next((name for limit, name in _SIZES if n < limit), "n>10M")


def _configs(pair_set: PairSet, formats: Mapping[str, Sequence[str]]) -> list[dict[str, Any]]:
    splits = {pair.split for pair in pair_set.pairs}
    split = splits.pop() if len(splits) == 1 else "train"
    out: list[dict[str, Any]] = []
    for fmt, names in formats.items():
        if file := _served(names):
            config = {
                "config_name": fmt,
                "data_files": [{"split": split if split.isidentifier() else "train", "path": file}],
            }
            out.append(config if out else {**config, "default": True})
    return out


def _served(names: Sequence[str]) -> str | None:
    """The file of a format that `load_dataset` reads best."""
    for suffix in _CONTAINERS:
        for name in names:
            if name.endswith(suffix):
                return name
    return None


# ---------------------------------------------------------------- text


def _made(pair_set: PairSet, meta: Mapping[str, Any]) -> list[str]:
    rules = Counter(pair.rule for pair in pair_set.pairs)
    told = {
        "goal_focused": "chosen is what training should teach, rejected is not",
        "margin": "neither is, and chosen is the better one by its reward",
    }
    out = [
        f"- rule `{rule}`, {counted(count, 'pair')}: {told[rule]}" for rule, count in rules.items()
    ]
    out += [
        f"- candidate pairs: {pair_set.candidates:,}; left out: "
        + ("; ".join(f"{plain(r)} {c:,}" for r, c in pair_set.dropped.items()) or "none"),
        f"- pairs, sha256: {code(pair_set.hash)}",
    ]
    if pair_set.masked:
        told_masked = ", ".join(f"{plain(kind)} {n:,}" for kind, n in pair_set.masked.items())
        out.append(f"- personal data and keys masked: {told_masked}")
    config = meta.get("config")
    facts = {"held_out_hash": pair_set.held_out_hash, **meta}
    facts = {key: value for key, value in facts.items() if value not in (None, "", [], {}, ())}
    known = [(label, facts[key]) for key, label in _FACTS.items() if key in facts]
    others = [(k, v) for k, v in facts.items() if k not in _FACTS and k != "config"]
    out += [f"- {plain(label)}: {_fact(value)}" for label, value in [*known, *others]]
    if isinstance(config, Mapping):
        out.append("- configuration: `meta.json`")
    return out


def _fact(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{plain(k)} {plain(v)}" for k, v in value.items()) or "none"
    if isinstance(value, Sequence) and not isinstance(value, str):
        return ", ".join(map(plain, value)) or "none"
    return plain(value)


def _answers(pairs: Iterable[Pair]) -> Iterator[tuple[Pair, Any]]:
    return ((pair, side) for pair in pairs for side in (pair.chosen_answer, pair.rejected_answer))


def _sources(pairs: Sequence[Pair]) -> list[str]:
    counts = Counter(
        (pair.source, side.answer.source, side.answer.origin, side.answer.licence or "unknown")
        for pair, side in _answers(pairs)
    )
    rows = [
        "| source of the item | of the answer | author | licence | sides |",
        "|---|---|---|---|---:|",
    ]
    for (source, kind, origin, licence), count in sorted(counts.items()):
        cells = [plain(source) or "not said", plain(kind), plain(origin) or "not said"]
        rows.append(f"| {' | '.join([*cells, plain(licence)])} | {count:,} |")
    return rows


def _examples(pairs: Sequence[Pair]) -> list[str]:
    """Three pairs, of different kinds where there are such. The order of pairs is random already."""
    shown: dict[tuple[str, str, str], Pair] = {}
    for pair in pairs:
        shown.setdefault((pair.item_kind, pair.rule, pair.rejected_kind or ""), pair)
    others = (p for p in pairs if p not in shown.values())
    first = islice(chain(shown.values(), others), EXAMPLES)
    out = []
    for number, pair in enumerate(first, start=1):
        out += [
            f"### {number}. Item {plain(pair.item_id)}",
            "",
            f"Margin {pair.margin:.2f}: rewards {pair.chosen_answer.reward:.2f} and "
            f"{pair.rejected_answer.reward:.2f}, judged by {plain(pair.judge)}.",
            "",
        ]
        prompt = "\n\n".join(f"{m['role']}: {m['content']}" for m in pair.prompt)
        for name, text in (
            ("Prompt", prompt),
            ("Chosen", pair.chosen),
            ("Rejected", pair.rejected),
        ):
            out += [f"{name}:", "", fenced(_cut(text), "text"), ""]
    return out


def _cut(text: str) -> str:
    more = len(text) - EXAMPLE_LENGTH
    return text if more <= 0 else f"{text[:EXAMPLE_LENGTH]}\n[{more:,} more characters]"


_TRAINERS = {
    "preference": "trl.DPOTrainer, trl.RewardTrainer (which reads `margin`)",
    "unpaired": "trl.KTOTrainer",
    "sft": "trl.SFTTrainer",
    "prompts": "trl.GRPOTrainer",
    "verl": "verl's data.train_files",
}


def _load(formats: Mapping[str, Sequence[str]]) -> list[str]:
    lines = ["from datasets import load_dataset", ""]
    for fmt, names in formats.items():
        if file := _served(names):
            kind = _CONTAINERS[file[file.rindex(".") :]]
            lines += [
                f"# for {_TRAINERS[fmt]}",
                f'{fmt} = load_dataset("{kind}", data_files="{file}", split="train")',
            ]
    if len(lines) == 2:
        fmt = next(iter(formats))
        lines = [
            "from datasets import load_from_disk",
            "",
            f"# for {_TRAINERS[fmt]}",
            f'{fmt} = load_from_disk("{fmt}")',
        ]
    return [
        fenced("\n".join(lines), "python"),
        "",
        "In Python, `xyreward.pairs.formats.read_pairs(folder)` checks every hash and gives the pairs with "
        "their labels, judge and provenance, the audit and the settings.",
    ]
