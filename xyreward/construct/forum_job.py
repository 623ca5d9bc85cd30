"""`xyreward build forum`: from a forum's file to a folder of items, a funnel and a data card.

    threads -> usable -> pre-filter -> extraction -> licence -> duplicates -> controls -> items

The same command goes on where it was stopped: replies are in the store, and everything else is worked out
anew. The same store, source and settings give the same bytes.
"""

from __future__ import annotations

import json
import pickle
import tempfile
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import IO

from xyreward.construct.authors import with_authors
from xyreward.construct.card import card
from xyreward.construct.forum import (
    Notes,
    extract_version,
    extraction,
    readable,
    to_item,
    usable,
)
from xyreward.construct.prefilter import PreFilter, Recall, draw
from xyreward.construct.stages import Dropped, Failed, Funnel, Kept
from xyreward.construct.thread_files import Problems, ReadCounts, Source, read_threads
from xyreward.construct.threads import Thread
from xyreward.errors import ConfigError
from xyreward.items import Item
from xyreward.judges.asking import Estimate, ModelAsker
from xyreward.splits import near_duplicates

LOT = 1000
"""Threads that are asked about together, and are in memory."""
LOT_BATCHED = 10_000
"""The same for message batches, of which each may take hours."""


@dataclass(frozen=True, slots=True)
class ForumSettings:
    """What is built.

    Raises:
        ConfigError: a field outside its range.
    """

    prefilter: PreFilter = field(default_factory=PreFilter)
    max_threads: int | None = None
    """So many are sent to the model at most, drawn by a hash of their ids. None: all."""
    controls: float = 0.25
    """Share of controls among the items, at most, in [0, 1)."""
    strict: bool = False
    """Stop at the first row that cannot be used."""

    def __post_init__(self) -> None:
        if not 0 <= self.controls < 1:
            raise ConfigError(f"controls is {self.controls!r}, expected a share in [0, 1)")
        if self.max_threads is not None and self.max_threads < 1:
            raise ConfigError(f"max_threads is {self.max_threads!r}, expected at least 1")


@dataclass(frozen=True, slots=True)
class Built:
    """What came of it."""

    items: tuple[Item, ...]
    funnel: Funnel
    recall: Recall
    problems: Problems
    counts: ReadCounts


@dataclass(frozen=True, slots=True)
class _Candidate:
    thread: Thread
    how: str


class ForumJob:
    """Settings that were checked; nothing is read or sent before `run` or `estimate`."""

    def __init__(self, source: Source, asker: ModelAsker, settings: ForumSettings) -> None:
        self.source = source
        self.asker = asker
        self.settings = settings

    def estimate(self) -> tuple[Funnel, Estimate | None]:
        """What the model would be asked, and what that would take. Reads the source, sends nothing.

        Raises:
            DataError: `strict`, and a row that cannot be used.
            StoreError: the store cannot be used.
        """
        funnel, total = Funnel(), None
        with tempfile.TemporaryFile() as file:
            offsets = self._look(file, funnel, Problems(self.settings.strict), ReadCounts())
            for lot in self._lots(file, offsets):
                found = extraction().estimate([one.thread for one in lot], self.asker)
                total = found if total is None else total + found
        return funnel, total

    def run(self, on_reply: Callable[[int], Callable[[], object] | None] = lambda _: None) -> Built:
        """Read, ask and filter.

        Args:
            on_reply: given how many threads are asked about, what to call after each.

        Raises:
            DataError: `strict`, and a row that cannot be used.
            JudgeError: the budget is spent, or no call can succeed. What was paid for is in the store.
            StoreError: the store cannot be used.
        """
        funnel, counts = Funnel(), ReadCounts()
        problems = Problems(self.settings.strict)
        with tempfile.TemporaryFile() as file:
            offsets = self._look(file, funnel, problems, counts)
            tick = on_reply(len(offsets))
            asked: list[tuple[str, Kept[Notes] | Dropped | Failed]] = []
            stage = extraction()
            for lot in self._lots(file, offsets):
                outcomes = stage.run([one.thread for one in lot], self.asker, on_reply=tick)
                asked += zip((one.how for one in lot), outcomes, strict=True)
        funnel.add("extraction", (outcome for _, outcome in asked))
        recall = self._recall(funnel, asked)
        kept = [outcome for _, outcome in asked if isinstance(outcome, Kept)]
        licensed = [_licensed(one) for one in kept]
        funnel.add("licence", licensed)
        kept = [one for one in licensed if isinstance(one, Kept)]
        kept.sort(key=lambda one: _rank(one.value.thread))
        once = _without_duplicates(kept)
        funnel.add("duplicates", once)
        chosen = self._with_controls([one for one in once if isinstance(one, Kept)])
        funnel.add("controls", chosen)
        items = tuple(
            to_item(one.value, [one.provenance] if one.provenance else [])
            for one in chosen
            if isinstance(one, Kept)
        )
        source = self.source
        items = with_authors(items, source.site, source.users_file, problems.tell)
        return Built(items, funnel, recall, problems, counts)

    # ------------------------------------------------------------ before the model

    def _look(
        self, file: IO[bytes], funnel: Funnel, problems: Problems, counts: ReadCounts
    ) -> list[int]:
        """Write what is to be asked about into a file; where each begins in it."""
        unusable: Counter[str] = Counter()
        unseen: Counter[str] = Counter()
        sent: Counter[str] = Counter()
        offsets: list[tuple[float, int, str]] = []

        def usable_threads() -> Iterator[Thread]:
            for thread in read_threads(self.source, problems, counts=counts):
                if why := usable(thread):
                    unusable[why] += 1
                else:
                    yield thread

        for thread, decision in self.settings.prefilter.looks(usable_threads()):
            match decision:
                case Dropped(reason):
                    unseen[reason] += 1
                case Kept(_, how):
                    sent[how] += 1
                    lot = f"limit {self.settings.prefilter.seed} {thread.source} {thread.id}"
                    offsets.append((draw(lot), file.tell(), how))
                    pickle.dump(_Candidate(readable(thread), how), file)
        usable_ones = sum(sent.values()) + sum(unseen.values())
        funnel.counted("usable threads", {"": usable_ones}, unusable)
        funnel.counted("pre-filter", sent, unseen)
        limit = self.settings.max_threads
        if limit is None:
            return [at for _, at, _ in offsets]
        within = sorted(offsets)[:limit]
        ways = Counter(how for _, _, how in within)
        beyond = Counter({"beyond max_threads": len(offsets) - len(within)})
        funnel.counted("limit", ways, +beyond)
        return sorted(at for _, at, _ in within)

    def _lots(self, file: IO[bytes], offsets: Sequence[int]) -> Iterator[list[_Candidate]]:
        def load(at: int) -> _Candidate:
            file.seek(at)
            one: _Candidate = pickle.load(file)  # noqa: S301  # written by this process
            return one

        them = map(load, offsets)
        while lot := list(islice(them, LOT_BATCHED if self.asker.in_batches else LOT)):
            yield lot

    def _recall(
        self, funnel: Funnel, asked: Sequence[tuple[str, Kept[Notes] | Dropped | Failed]]
    ) -> Recall:
        look = next(step for step in funnel.steps if step.name == "pre-filter")
        known = [(how, one) for how, one in asked if not isinstance(one, Failed)]

        def n(how: str, *, xy: bool = False) -> int:
            return sum(
                way == how and (not xy or (isinstance(one, Kept) and one.value.kind == "xy"))
                for way, one in known
            )

        return Recall(
            with_signs=look.how.get("signs", 0),
            asked=n("signs"),
            found=n("signs", xy=True),
            without=look.how.get("sample", 0) + sum(look.dropped.values()),
            sampled=n("sample"),
            missed=n("sample", xy=True),
        )

    # ------------------------------------------------------------ after it

    def _with_controls(self, kept: Sequence[Kept[Notes]]) -> list[Kept[Notes] | Dropped]:
        """No more controls than their share, drawn by a hash of their ids."""
        share, seed = self.settings.controls, self.settings.prefilter.seed
        n_xy = sum(one.value.kind == "xy" for one in kept)
        wanted = int(n_xy * share / (1 - share) + 1e-9)
        controls = [one.value.thread.id for one in kept if one.value.kind == "control"]
        taken = set(sorted(controls, key=lambda name: draw(f"control {seed} {name}"))[:wanted])
        return [
            one
            if one.value.kind == "xy" or one.value.thread.id in taken
            else Dropped("controls beyond their share")
            for one in kept
        ]


def _licensed(one: Kept[Notes]) -> Kept[Notes] | Dropped:
    thread = one.value.thread
    if all(post.licence for post in (thread.question, *thread.answers)):
        return replace(one)
    return Dropped("a post without a licence")


def _rank(thread: Thread) -> tuple[int, int, str]:
    number = int(thread.id) if thread.id.isascii() and thread.id.isdigit() else 0
    return -thread.question.score, number, thread.id


def _without_duplicates(kept: Sequence[Kept[Notes]]) -> list[Kept[Notes] | Dropped]:
    """Of near-duplicate queries the first one, in the order given."""
    like: dict[int, list[int]] = defaultdict(list)
    for later, earlier in near_duplicates([one.value.thread.query for one in kept]):
        like[later].append(earlier)
    out: set[int] = set()
    for i in range(len(kept)):
        if any(earlier not in out for earlier in like[i]):
            out.add(i)
    return [Dropped("near-duplicate query") if i in out else one for i, one in enumerate(kept)]


# ---------------------------------------------------------------- the folder


def write(built: Built, job: ForumJob, folder: Path) -> None:
    """Write `items.jsonl`, `funnel.json` and `card.md`; each is there as a whole or not at all."""
    folder.mkdir(parents=True, exist_ok=True)
    items = sorted(built.items, key=lambda item: (len(item.id), item.id))
    lines = [json.dumps(item.model_dump(mode="json"), ensure_ascii=False) for item in items]
    _put(folder / "items.jsonl", "".join(f"{line}\n" for line in lines))
    recall = built.recall
    facts = {
        "source": job.source.path.name,
        "site": job.source.site,
        "model": job.asker.name_without_url,
        "prompt": extract_version(),
        "read": dict(sorted(built.counts.rows.items())),
        "unusable_rows": built.problems.count,
        "funnel": built.funnel.to_dict(),
        "prefilter_recall": {"value": recall.value, "interval": recall.interval},
    }
    _put(folder / "funnel.json", json.dumps(facts, indent=1, ensure_ascii=False) + "\n")
    _put(
        folder / "card.md",
        card(
            title=f"Items from {job.source.name}",
            made_of=f"{job.source.path.name}, by {job.asker.name_without_url}, prompt {extract_version()}",
            items=items,
            funnel=built.funnel,
            facts={
                **{f"{name} rows": f"{n:,}" for name, n in sorted(built.counts.rows.items())},
                "rows that could not be used": f"{built.problems.count:,}",
                "recall of the pre-filter, in [0, 1], 95 % interval": str(recall),
            },
            problems=built.problems.lines,
            problem_count=built.problems.count,
        ),
    )


def _put(path: Path, text: str) -> None:
    beside = path.with_name(f".{path.name}.part")
    beside.write_text(text, encoding="utf-8", newline="\n", errors="backslashreplace")
    beside.replace(path)
