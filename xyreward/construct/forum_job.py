"""`xyreward build forum`: from a forum's file to a folder of items, a funnel and a data card.

    threads -> usable -> pre-filter -> extraction -> licence -> duplicates -> gates -> items

The same command goes on where it was stopped: replies are in the store, and everything else is worked out
anew. The same store, source and settings give the same bytes.
"""

from __future__ import annotations

import dataclasses
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from xyreward.construct.authors import with_authors
from xyreward.construct.base_job import BaseJob
from xyreward.construct.card import card
from xyreward.construct.forum import (
    Notes,
    extract_version,
    extraction,
    readable,
    to_item,
    usable,
    without_blanks,
)
from xyreward.construct.gates import GateFigures, GateSettings
from xyreward.construct.job import (
    Begin,
    Bill,
    Spool,
    check_controls,
    lot_of,
    without_duplicates,
    write_folder,
)
from xyreward.construct.prefilter import PreFilter, Recall, draw
from xyreward.construct.stages import Dropped, Failed, Funnel, Kept
from xyreward.construct.thread_files import Problems, ReadCounts, Source, read_threads
from xyreward.construct.threads import Thread
from xyreward.errors import ConfigError
from xyreward.items import Item, Reference


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
    gates: GateSettings = field(default_factory=GateSettings)

    @property
    def seed(self) -> int:
        """Of all draws: the pre-filter's."""
        return self.prefilter.seed

    def __post_init__(self) -> None:
        check_controls(self.controls)
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
    gates: GateFigures


@dataclass(frozen=True, slots=True)
class _Candidate:
    thread: Thread
    how: str


class ForumJob(BaseJob[Source, ForumSettings, Built]):
    """Items of a forum's threads."""

    def estimate(self, problems: Problems | None = None) -> tuple[Funnel, list[Bill]]:
        """See `BaseJob`."""
        funnel, total = Funnel(), None
        with tempfile.TemporaryFile() as file:
            spool: Spool[_Candidate] = Spool(file)
            problems = problems or Problems(self.settings.strict)
            offsets = self._look(spool, funnel, problems, ReadCounts())
            for lot in spool.lots(offsets, lot_of(self.asker)):
                found = extraction().estimate([one.thread for one in lot], self.asker)
                total = found if total is None else total + found
            if total is None:
                return funnel, []
            at_most = ""
            if total.calls:
                items = [
                    _stand_in(one.thread)
                    for lot in spool.lots(offsets, lot_of(self.asker))
                    for one in lot
                ]
                at_most = f"as if all {len(items):,} threads became items with a hidden goal"
            else:  # all replies are there, so that nothing is asked
                _, rows = self._extracted(spool, offsets, funnel, lambda _: None)
                items = [one.value for one in rows]
        return funnel, [Bill("extraction", total), *self.gates.estimate(items, at_most=at_most)]

    def run(self, begin: Begin = lambda _: None) -> Built:
        """See `BaseJob`."""
        funnel, counts = Funnel(), ReadCounts()
        problems = Problems(self.settings.strict)
        with tempfile.TemporaryFile() as file:
            spool: Spool[_Candidate] = Spool(file)
            offsets = self._look(spool, funnel, problems, counts)
            recall, rows = self._extracted(spool, offsets, funnel, begin)
        rows, gates = self.gates.run(rows, funnel, begin)
        source = self.source
        items = tuple(one.value for one in rows)
        items = with_authors(items, source.site, source.users_file, problems.tell)
        return Built(items, funnel, recall, problems, counts, gates)

    def _extracted(
        self, spool: Spool[_Candidate], offsets: Sequence[int], funnel: Funnel, begin: Begin
    ) -> tuple[Recall, list[Kept[Item]]]:
        """Ask about threads, and make items of those that have a licence and repeat no other."""
        tick = begin(len(offsets))
        asked: list[tuple[str, Kept[Notes] | Dropped | Failed]] = []
        stage = extraction()
        for lot in spool.lots(offsets, lot_of(self.asker)):
            outcomes = stage.run([one.thread for one in lot], self.asker, on_reply=tick)
            asked += zip((one.how for one in lot), outcomes, strict=True)
        funnel.add("extraction", (outcome for _, outcome in asked))
        kept = [outcome for _, outcome in asked if isinstance(outcome, Kept)]
        licensed = [_licensed(one) for one in kept]
        funnel.add("licence", licensed)
        kept = [one for one in licensed if isinstance(one, Kept)]
        kept.sort(key=lambda one: _rank(one.value.thread))
        once = without_duplicates(kept, lambda notes: notes.thread.query)
        funnel.add("duplicates", once)
        return self._recall(funnel, asked), [
            Kept(to_item(one.value, [one.provenance] if one.provenance else []))
            for one in once
            if isinstance(one, Kept)
        ]

    # ------------------------------------------------------------ before the model

    def _look(
        self, spool: Spool[_Candidate], funnel: Funnel, problems: Problems, counts: ReadCounts
    ) -> list[int]:
        """Write what is to be asked about into a file; where each begins in it."""
        unusable: Counter[str] = Counter()
        unseen: Counter[str] = Counter()
        sent: Counter[str] = Counter()
        offsets: list[tuple[float, int, str]] = []

        def usable_threads() -> Iterator[Thread]:
            for read in read_threads(self.source, problems, counts=counts):
                thread = without_blanks(read)
                if blank := len(read.answers) - len(thread.answers):
                    counts.rows["blank answer"] += blank
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
                    at = spool.put(_Candidate(readable(thread), how))
                    offsets.append((draw(lot), at, how))
        usable_ones = sum(sent.values()) + sum(unseen.values())
        funnel.counted("usable threads", {"": usable_ones}, unusable)
        funnel.counted("pre-filter", sent, unseen)
        return self._within(offsets, self.settings.max_threads, funnel, "beyond max_threads")

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


def _stand_in(thread: Thread) -> Item:
    """An item such as might be made of a thread, with all of its answers to judge: for a bill."""
    words = "word " * 25
    return Item(
        id=f"{thread.source}-{thread.id}",
        query=thread.query,
        stated_request=f"stated {words}",
        intended_request=f"intended {words}",
        misconception=f"misconception {words}",
        stated_solutions=(words,),
        intended_solutions=(words,),
        references=tuple(Reference(text=post.text, kind="goal_focused") for post in thread.answers),
    )


def _licensed(one: Kept[Notes]) -> Kept[Notes] | Dropped:
    thread = one.value.thread
    if all(post.licence for post in (thread.question, *thread.answers)):
        return replace(one)
    return Dropped("a post without a licence")


def _rank(thread: Thread) -> tuple[int, int, str]:
    number = int(thread.id) if thread.id.isascii() and thread.id.isdigit() else 0
    return -thread.question.score, number, thread.id


# ---------------------------------------------------------------- the folder


def write(built: Built, job: ForumJob, folder: Path) -> None:
    """Write `items.jsonl`, `funnel.json` and `card.md`; each is there as a whole or not at all."""
    recall = built.recall
    facts = {
        "source": job.source.path.name,
        "settings": dataclasses.asdict(job.settings),
        "site": job.source.site,
        "model": job.asker.name_without_url,
        "prompt": extract_version(),
        "read": dict(sorted(built.counts.rows.items())),
        "unusable_rows": built.problems.count,
        "funnel": built.funnel.to_dict(),
        "prefilter_recall": {"value": recall.value, "interval": recall.interval},
        "gates": built.gates.to_dict(),
    }
    write_folder(
        folder,
        built.items,
        facts,
        lambda items: card(
            title=f"Items from {job.source.name}",
            made_of=f"{job.source.path.name}, by {job.asker.name_without_url}, prompt {extract_version()}",
            items=items,
            funnel=built.funnel,
            gates=built.gates,
            facts={
                **{f"{name} rows": f"{n:,}" for name, n in sorted(built.counts.rows.items())},
                "rows that could not be used": f"{built.problems.count:,}",
                "recall of the pre-filter, in [0, 1], 95 % interval": str(recall),
            },
            problems=built.problems.lines,
            problem_count=built.problems.count,
        ),
    )
