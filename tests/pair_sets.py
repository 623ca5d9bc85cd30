"""Pair sets for tests of what is made of them: every kind of pair, and texts that attack."""

from dataclasses import replace
from types import MappingProxyType
from typing import Any

from xyreward.items import DEFAULT_LABELS, AnswerKind, Item
from xyreward.pairs import Candidate, Judged, LeftOut, Pair, PairSet
from xyreward.pairs.pair import PairRule, pair_of
from xyreward.testing import make_item
from xyreward.verdict import Labels

META = {
    "config": {"items": "mini", "rule": {"margin": 0.2}},
    "judge": "local",
    "rubric_version": "local-1-abc",
    "seed": 0,
    "items_hash": "a" * 64,
    "held_out_hash": "b" * 64,
    "splits_hash": "c" * 64,
    "versions": {"xyreward": "0.1.0"},
}


def judged(text: str, kind: AnswerKind | None = None, reward: float = 0.0, **fields: Any) -> Judged:
    """An answer with the labels of its kind; `labels=` where it has no kind."""
    candidate = {
        "item_id": "item",
        "source": "references" if kind else "on_policy",
        "origin": "human" if kind else "policy",
        "licence": "Apache-2.0",
        **{k: v for k, v in fields.items() if k in Candidate.__dataclass_fields__},
    }
    labels = fields.get("verdict") or (DEFAULT_LABELS[kind] if kind else None)
    return Judged(
        Candidate(text=text, kind=kind, **candidate),
        labels,
        reward,
        fields.get("judge", "local"),
        fields.get("rubric_version", "local-1-abc"),
        reason=fields.get("reason", ""),
    )


def pair(
    item: Item, chosen: Judged, rejected: Judged, rule: PairRule = "goal_focused", **fields: Any
) -> Pair:
    chosen, rejected = (
        replace(side, answer=replace(side.answer, item_id=item.id)) for side in (chosen, rejected)
    )
    return pair_of(item, chosen, rejected, **{"split": "train", "rule": rule, **fields})


def items(n: int = 6) -> list[Item]:
    """The last third are controls."""
    return [
        make_item(id=f"i{i}", query=f"query {i}", kind="control" if 3 * i >= 2 * n else "xy",
                  source="forum" if i % 2 else "mini", language="de" if i == 1 else "en")
        for i in range(n)
    ]  # fmt: skip


def pair_set(n: int = 6) -> PairSet:
    """A pair of references per item; the first item has a second pair with the same chosen answer."""
    pairs = []
    for i, item in enumerate(items(n)):
        control = item.kind == "control"
        good: AnswerKind = "direct" if control else "goal_focused"
        bad: AnswerKind = "overcorrecting" if control else "literal"
        chosen = judged(f"good {i}", good, 1.0, reason=f"serves the goal {i}")
        pairs.append(pair(item, chosen, judged(f"bad {i}", bad, 0.25 + 0.01 * i)))
        if i == 0:
            pairs.append(pair(item, chosen, judged("dump 0", "dump", 1 / 3)))
    tie = pair(items(n)[0], judged("a", "goal_focused", 1.0), judged("b", "literal", 1.0))
    return PairSet(
        tuple(pairs),
        MappingProxyType({"different origins": 3, "tie": 2}),
        candidates=len(pairs) + 5,
        examples=(LeftOut(tie, "i0", "tie"), LeftOut(None, "i1", "different origins")),
        cut=1,
        examined=len(pairs),
        masked=MappingProxyType({"email": 2}),
    )


def sampled(item: Item) -> PairSet:
    """Three answers of a model in three pairs, kept by the margin: the middle one is on both sides."""
    a, b, c = (
        judged(text, None, reward, verdict=Labels(True, False, "stated", False),
               details={"temperature": 0.7, "sample": i})
        for i, (text, reward) in enumerate([("best", 0.6), ("middle", 0.4), ("worst", 0.1)])
    )  # fmt: skip
    pairs = [pair(item, *sides, rule="margin") for sides in ((a, b), (b, c), (a, c))]
    return PairSet(
        tuple(pairs), MappingProxyType({}), candidates=3, problems=("a limit was passed",)
    )


HOSTILE = [
    "<script>window.hacked = 1</script>",
    "</script><script>window.hacked = 2</script>",
    "<!--<script>window.hacked = 3",
    '<img src=x onerror="window.hacked = 4">',
    "<svg/onload=window.hacked=5>",
    '"><b autofocus tabindex=1 onfocus="window.hacked=6">',
    '<a href="javascript:window.hacked=7" id="pair">click</a>',
    "<style>* { display: none }</style>",
    "<meta http-equiv=refresh content='0; url=https://evil.example/'>",
    "{{ 7 * 7 }}{% raw %} ${window.hacked = 8} `+window.hacked+`",
    "\u202egpj.exe\u2066 hidden \u200b\u2028\u2029 end",
    "\x1b]8;;https://evil.example\x07link\x1b[31m\x9b2J\x00",
    "&lt;script&gt; &#60;b&#62; ]]> --> \\u003c",
    "```\n# heading\n````\n~~~\n<script>window.hacked = 9</script>\n[x](javascript:alert(1))\n---\n",
    "a,b\r\nc\rd | e",
]


def hostile_set(*more: str) -> PairSet:
    """Every hostile text in every place that data can reach."""
    pairs, examples = [], []
    for i, text in enumerate([*HOSTILE, *more]):
        item = make_item(id=f"{text[:200]}{i}", query=text, source=text[:200], language=text[:20])
        places = {"item_id": item.id, "reason": text, "details": {"note": text[:200]}}
        places |= dict.fromkeys(("origin", "licence", "judge", "rubric_version"), text[:200])
        good, bad = DEFAULT_LABELS["goal_focused"], DEFAULT_LABELS["literal"]
        chosen = judged(f"{text} good", None, 1.0, verdict=good, **places)
        rejected = judged(f"{text} bad", None, 0.0, verdict=bad, **places)
        pairs.append(pair(item, chosen, rejected))
        examples.append(LeftOut(pairs[-1], item.id, text[:200]))
        examples.append(LeftOut(None, item.id, text[:200]))
    dropped = {text[:200]: 1 for text in HOSTILE}
    return PairSet(
        tuple(pairs), MappingProxyType(dropped), candidates=len(pairs) + len(dropped),
        examples=tuple(examples),
    )  # fmt: skip
