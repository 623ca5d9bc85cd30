"""Time, stage by stage, and peak memory of building preference pairs from judged answers.

    python benchmarks/pairs.py                       # 10,000 and 64,920 answers
    python benchmarks/pairs.py --answers 1000000     # half an hour, a store of 2 GB, 10 GiB of memory

Eight answers of about 120 English words to each item of about 150, all by one policy; 2,000 held-out
items with references; a token guard with the embedded policy's tokenizer; all guards, balance and the
audit. Planted are answers that repeat or nearly repeat another, that differ only beyond `max_length`,
that are in another language, empty, without a verdict, with an e-mail address, that quote a held-out
answer, and
queries that nearly repeat a held-out one.

Verdicts come out of a store that is filled beforehand by the same judge, whose endpoint says at once what
the text decides. Each size runs in a process of its own. Beside it: what a user would write instead, the best
over the worst answer of each item by pandas, from rewards that are there already. That knows neither ties
nor failures nor what is held out nor any other guard, and measures nothing.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import re
import subprocess
import sys
import tempfile
import time
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Any

from splits import machine, peak_mib

import xyreward.pairs.build as building
import xyreward.pairs.guards as guarding
from xyreward.fence import parse_fences
from xyreward.items import DEFAULT_LABELS, AnswerKind, Item, ItemKind, text_hash
from xyreward.judges.anthropic import AnthropicEndpoint
from xyreward.judges.calls import Call, Reply
from xyreward.judges.model import ModelJudge
from xyreward.loading import load_items
from xyreward.pairs import Candidate, build_pairs, language
from xyreward.pairs.audit import AuditLimits, audit_pairs
from xyreward.pairs.formats import write_pairs
from xyreward.pairs.guards import Guards, TokenGuard
from xyreward.pairs.held_out import HeldOut
from xyreward.splits import assign_splits
from xyreward.store import VerdictStore
from xyreward.testing import make_item, make_reference
from xyreward.verdict import Usage

ANSWERS = 8
HELD_OUT = 2_000
MAX_LENGTH = 2_048  # as in configs/dpo/xybench.yaml
CHUNK = 5_000
HASHES_OF_10K = (
    "122fa8fbe861fa7274d65a892388f1d9328fd8307cccf3a64d0c76b82f5a28a6",
    "6fa4153a51ccfdeab6dd995d76fd8a3d479718c9535e7cd8b4caf90b1f6af12d",
)
"""`PairSet.hash` and the audit's hash of 10,000 answers: a change for speed must not change one byte of
what comes out."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--answers", type=int, nargs="+", default=[10_000, 64_920])
    parser.add_argument("--folder", help="of the stores, kept (default: a temporary one)")
    parser.add_argument("--child", choices=("fill", "build"), help=argparse.SUPPRESS)
    parser.add_argument("--profile", action="store_true", help="by cProfile; slow")
    args = parser.parse_args()
    if args.child:
        {"fill": fill, "build": build}[args.child](args.answers[0], Path(args.folder), args.profile)
        return
    print(machine(), flush=True)
    with tempfile.TemporaryDirectory() as temporary:
        for number in args.answers:
            for child in ("fill", "build"):
                command = [sys.executable, __file__, "--answers", str(number), "--child", child]
                command += ["--folder", args.folder or temporary]
                subprocess.run(command + ["--profile"] * args.profile, check=True)


# ---------------------------------------------------------------- what is judged

GERMAN = (
    "Das ist eine Antwort auf Deutsch, obwohl die Frage auf Englisch gestellt wurde, und genau das soll "
    "hier auffallen, weil niemand so etwas lernen soll."
)
KINDS: dict[ItemKind, Sequence[AnswerKind]] = {
    "xy": ("goal_focused",) * 5 + ("literal",) * 8 + ("balanced", "dump", "refusal"),
    "control": ("direct",) * 9 + ("overcorrecting",) * 5 + ("attempt",) * 2,
}


def kind_of(text: str, item: ItemKind) -> AnswerKind | None:
    """What the judge will say of an answer, by its beginning and end; None: it will refuse."""
    number = zlib.crc32(f"{text[:40]} {text[-40:]}".encode())
    return None if number % 1_000 == 0 else KINDS[item][number // 1_000 % 16]


class Writer:
    """Draws texts from the words of the bundled answers, as often as they occur there."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        texts = [r.text for i in load_items("mini") if i.language == "en" for r in i.references]
        plain = re.compile(r"[A-Za-z][A-Za-z'-]*[.,;:?]?")
        self.words = [word for text in texts for word in text.split() if plain.fullmatch(word)]

    def text(self, words: int) -> str:
        return " ".join(self.chance.choices(self.words, k=words))

    def item(self, number: int, prefix: str) -> Item:
        control = self.chance.random() < 0.3
        fields: dict[str, Any] = {} if control else {"misconception": self.text(15)}
        return make_item(
            id=f"{prefix}{number}",
            query=f"{self.text(self.chance.randint(50, 250))} number {number}?",
            kind="control" if control else "xy",
            stated_request=self.text(10),
            stated_solutions=(self.text(12),),
            references=(
                make_reference("direct" if control else "goal_focused", self.text(90)),
                make_reference("overcorrecting" if control else "literal", self.text(90)),
            ),
            **fields,
        )

    def answers(self, item: Item, held_out: Sequence[Item]) -> Iterator[str]:
        chance, earlier = self.chance, list[str]()
        quoting = chance.random() < 0.005
        for _ in range(ANSWERS):
            draw = chance.random()
            if earlier and draw < 0.06:  # says what another says, or nearly
                text = chance.choice(earlier)
                how = chance.randrange(3)
                if how == 0:
                    text = text.replace(" ", "  ", 1)
                elif how == 1:
                    text = f"{text} {chance.choice(self.words)}"
            elif draw < 0.065:
                text = ""
            elif draw < 0.07:
                text = f"{self.text(3)} {GERMAN} {GERMAN}"
            else:
                head, tail = self.text(12), self.text(12)
                wanted = kind_of(f"{head} {tail}", item.kind) in ("goal_focused", "direct")
                body = [self.text(chance.randint(60, 130) + 20 * wanted)]
                if wanted and chance.random() < 0.5:
                    body.append("But that is not what you need; instead:")
                if chance.random() < 0.3:
                    body.append("\n\n## How\n\n- " + "\n- ".join(self.text(6) for _ in range(3)))
                if chance.random() < 0.01:
                    body.append(f"Write to anna.{chance.randrange(10**6)}@uni-mainz.de about it.")
                if chance.random() < 0.0005:
                    body.append(chance.choice(held_out).references[0].text)
                if quoting and chance.random() < 0.5:  # what differs comes after max_length
                    head = f"{item.query_text} " * (14_000 // len(item.query_text))
                    body *= 3
                text = " ".join([head, *body, tail])
            earlier.append(text)
            yield text


@dataclass
class Work:
    """What is built from, and beside what."""

    items: list[Item]
    held_out: list[Item]
    candidates: list[Candidate]


def made(answers: int) -> Work:
    writer = Writer(seed=0)
    items = [writer.item(n, "i") for n in range(answers // ANSWERS)]
    held_out = []
    for n in range(HELD_OUT):
        item = writer.item(n, "h")
        if n < len(items) // 1_000:  # nearly repeats one of the items
            item = item.model_copy(update={"query": f"{items[n].query_text} please"})
        held_out.append(item)
    candidates = [
        Candidate(item.id, text, "on_policy", "policy", details={"sample": n})
        for item in items
        for n, text in enumerate(writer.answers(item, held_out))
    ]
    return Work(items, held_out, candidates)


class Scripted(AnthropicEndpoint):
    """Replies at once what `kind_of` says."""

    async def send(self, call: Call, *, timeout: float) -> Reply:  # noqa: ARG002
        parts = {part.name: part.text for part in parse_fences(call.text)}
        item: ItemKind = "xy" if "intended-request" in parts else "control"
        kind = kind_of(parts["answer"], item)
        if kind is None:
            return Reply("", Usage(2_000, 5), stop="refused", model=self.model)
        labels = DEFAULT_LABELS[kind]
        stated, intended = labels.has_stated_solution, labels.has_intended_solution
        serves = "both" if stated and intended else "stated" if stated else "intended"
        suggestion = {
            "quote": parts["answer"][:40],
            "reason": f"{REASON} {REASON}",
            "serves": "stated" if item == "control" else serves,
        }
        said = {
            "suggestions": [suggestion] * (stated or intended),
            "focus_reason": REASON,
            "focus": labels.focus,
            "misconception_reason": REASON,
            "identifies_misconception": labels.identifies_misconception,
        }
        return Reply(json.dumps(said), Usage(2_000, 300), model=self.model)


REASON = "It says what to do in so many words, and the steps lead to what was asked for."


def judge_of(store: VerdictStore) -> ModelJudge:
    return ModelJudge(Scripted("claude-sonnet-5-5", schema="json_schema"), store=store)


def fill(answers: int, folder: Path, _profile: bool) -> None:
    """Judge all of them, into a store."""
    path = folder / f"{answers}.sqlite"
    if path.exists():
        return
    work = made(answers)
    by_id = {item.id: item for item in work.items}
    guards = Guards()
    with VerdictStore.open(path) as store:
        judge = judge_of(store)
        for start in range(0, len(work.candidates), CHUNK):
            some = work.candidates[start : start + CHUNK]
            texts = [(by_id[c.item_id], guards.mask(c.text)[0]) for c in some if c.text]
            asyncio.run(judge.judge([item for item, _ in texts], [text for _, text in texts]))


# ---------------------------------------------------------------- the measurement


class Clock:
    """Seconds of wall and CPU time in stages; of one inside another, in the inner one only."""

    def __init__(self) -> None:
        self.wall: dict[str, float] = defaultdict(float)
        self.cpu: dict[str, float] = defaultdict(float)
        self._open: list[str] = []
        self._at = time.perf_counter(), time.process_time()

    def _book(self) -> None:
        wall, cpu = time.perf_counter(), time.process_time()
        if self._open:
            self.wall[self._open[-1]] += wall - self._at[0]
            self.cpu[self._open[-1]] += cpu - self._at[1]
        self._at = wall, cpu

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        self.enter(name)
        yield
        self.leave()

    def enter(self, name: str) -> None:
        self._book()
        self._open.append(name)

    def leave(self) -> None:
        self._book()
        self._open.pop()

    def watch(self, owner: Any, attribute: str, name: str) -> None:
        """Count what a function takes as a stage of its own."""
        work: Callable[..., Any] = getattr(owner, attribute)

        @wraps(work)
        def timed(*args: Any, **kwargs: Any) -> Any:
            self.enter(name)
            try:
                return work(*args, **kwargs)
            finally:
                self.leave()

        setattr(owner, attribute, timed)


def build(answers: int, folder: Path, profile: bool) -> None:
    """Build and audit pairs, and print what it took."""
    work = made(answers)
    store = VerdictStore.open(folder / f"{answers}.sqlite", create=False)
    before = peak_mib()
    clock = Clock()
    if not profile:
        clock.watch(building, "judge_candidates", "verdicts from the store")
        clock.watch(building, "balanced", "balance")
        clock.watch(Guards, "mask", "guard personal_data (masks all answers)")
        clock.watch(guarding, "alike", "guard nearly_identical")
        clock.watch(HeldOut, "item_objection", "guard held_out_item (near-duplicate search)")
        clock.watch(HeldOut, "answer_objection", "guard held_out_answer")
        clock.watch(language, "_each", "guard language")
        clock.watch(guarding, "answers_in_another", "guard language")
        for name in ("objection", "cuts"):
            clock.watch(TokenGuard, name, "guards same_tokens and prompt_length; what is cut")
    if profile:
        import cProfile
        import pstats

        profiler = cProfile.Profile()
        profiler.enable()
    wall, cpu = time.perf_counter(), time.process_time()
    with clock.stage("splits (near-duplicate search)"):
        splits = assign_splits([*work.items, *work.held_out])
    with clock.stage("rule, rest of guards, pairs"):
        found = build_pairs(
            work.items,
            split="train",
            answers=work.candidates,
            judge=judge_of(store),
            held_out=HeldOut(work.held_out),
            tokens=TokenGuard.load(max_length=MAX_LENGTH),
            balance=0.05,
            splits=splits,
        )
    with clock.stage("audit"):
        audit = audit_pairs(found, limits=AuditLimits(balanced=True))
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    peak = peak_mib()
    if profile:
        profiler.disable()
        pstats.Stats(profiler).sort_stats("tottime").print_stats(45)
    with clock.stage("write (not in the sum)"), tempfile.TemporaryDirectory() as out:
        write_pairs(found, audit, Path(out, "pairs"), meta={"seed": 0})
    store.close()

    print(
        f"\n{len(work.items):,} items, {len(work.candidates):,} answers, {found.candidates:,} candidate "
        f"pairs, {found.examined:,} examined, {len(found.pairs):,} kept\n"
        f"{wall:.1f} s, {cpu:.1f} s of CPU, {len(work.candidates) / wall:,.0f} answers/s; "
        f"peak {peak:,.0f} MiB, of which {before:,.0f} items and answers; after writing {peak_mib():,.0f}"
        + ("   (aim: 60 s, 2,048 MiB)" if answers == 64_920 else "")
    )
    for name, seconds in sorted(clock.wall.items(), key=lambda entry: -entry[1]):
        print(f"    {name:46}{seconds:8.1f} s{clock.cpu[name]:8.1f} s of CPU")
    for reason, count in sorted(found.dropped.items(), key=lambda entry: -entry[1]):
        print(f"    dropped {count:9,}  {reason}")
    rewards = [kind_of(c.text, "xy") == "goal_focused" for c in work.candidates]
    seconds, rows = best_over_worst(work.candidates, rewards)
    print(
        f"best over worst by pandas: {seconds:.2f} s, {rows:,} rows; ours is {wall / seconds:,.0f} times that"
    )
    hashes = found.hash, text_hash(json.dumps(audit.to_dict(), sort_keys=True))
    print(f"hash of the pairs {hashes[0]}\nhash of the audit {hashes[1]}", flush=True)
    assert answers != 10_000 or hashes == HASHES_OF_10K, "pairs or audit are not what they were"


def best_over_worst(candidates: Sequence[Candidate], rewards: Sequence[float]) -> tuple[float, int]:
    """What a user would write instead. Seconds, and rows."""
    import pandas  # type: ignore[import-untyped]
    from datasets import Dataset

    start = time.perf_counter()
    table = pandas.DataFrame(
        {
            "item": [c.item_id for c in candidates],
            "text": [c.text for c in candidates],
            "reward": [float(reward) for reward in rewards],
        }
    )
    groups = table.groupby("item", sort=False)["reward"]
    best, worst = table.loc[groups.idxmax()], table.loc[groups.idxmin()]
    rows = Dataset.from_dict({"chosen": best["text"].tolist(), "rejected": worst["text"].tolist()})
    return time.perf_counter() - start, len(rows)


if __name__ == "__main__":
    main()
