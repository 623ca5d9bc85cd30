"""`xyreward build guides`: from how-to articles to a folder of items, a funnel and a data card.

    guides -> usable -> writing -> questions -> refining -> literal answer -> duplicates -> gates -> items

The same command goes on where it was stopped: replies are in the store, and everything else is worked out
anew. The same store, source and settings give the same bytes.
"""

from __future__ import annotations

import dataclasses
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from operator import add
from pathlib import Path
from typing import TypeVar

from xyreward.construct.base_job import BaseJob
from xyreward.construct.card import card
from xyreward.construct.gates import GateFigures, GateSettings
from xyreward.construct.guide import (
    Draft,
    Task,
    literal_answer,
    readable,
    refining,
    to_item,
    usable,
    versions,
    writing,
)
from xyreward.construct.guides import Guide, GuideSource, read_guides
from xyreward.construct.job import (
    Begin,
    Bill,
    Spool,
    check_controls,
    in_lots,
    lot_of,
    without_duplicates,
    write_folder,
)
from xyreward.construct.prefilter import draw
from xyreward.construct.stages import Dropped, Failed, Funnel, Kept, Provenance, Stage, values
from xyreward.construct.thread_files import Problems
from xyreward.errors import ConfigError
from xyreward.items import Item, ItemKind
from xyreward.judges.asking import Estimate

R = TypeVar("R")
T = TypeVar("T")

MOST_PER_GUIDE = 10
"""Questions of either kind in one reply; more would not fit, and no guide refutes so many beliefs."""


@dataclass(frozen=True, slots=True)
class GuideSettings:
    """What is built.

    Raises:
        ConfigError: a field outside its range.
    """

    per_guide: int = 2
    """Questions with a hidden goal that are asked for of a guide, at most, in 1..10."""
    max_guides: int | None = None
    """So many are sent to the model at most, drawn by a hash of their ids. None: all."""
    controls: float = 0.25
    """Share of controls among the items, at most, in [0, 1)."""
    seed: int = 0
    """Of the draws."""
    strict: bool = False
    """Stop at the first guide that cannot be used."""
    gates: GateSettings = field(default_factory=GateSettings)

    def __post_init__(self) -> None:
        check_controls(self.controls)
        if not 1 <= self.per_guide <= MOST_PER_GUIDE:
            raise ConfigError(f"per_guide is {self.per_guide!r}, expected 1 to {MOST_PER_GUIDE}")
        if self.max_guides is not None and self.max_guides < 1:
            raise ConfigError(f"max_guides is {self.max_guides!r}, expected at least 1")


@dataclass(frozen=True, slots=True)
class GuidesBuilt:
    """What came of it."""

    items: tuple[Item, ...]
    funnel: Funnel
    problems: Problems
    gates: GateFigures
    counts: Counter[str] = field(default_factory=Counter)
    """Files and rows that were there, by kind."""


class GuideJob(BaseJob[GuideSource, GuideSettings, GuidesBuilt]):
    """Items of how-to guides."""

    def estimate(self, problems: Problems | None = None) -> tuple[Funnel, list[Bill]]:
        """See `BaseJob`.

        What the store has is followed; for guides whose questions are not written yet, later stages are
        taken at their most: all questions that are asked for, none dropped.
        """
        funnel = Funnel()
        bills: dict[str, list[Estimate]] = {"writing": [], "refining": [], "literal answer": []}
        guesses = {"refining": 0, "literal answer": 0, "gates": 0}
        through: list[Draft] = []
        with tempfile.TemporaryFile() as file:
            spool: Spool[Task] = Spool(file)
            problems = problems or Problems(self.settings.strict)
            offsets = self._look(spool, funnel, problems, Counter())
            for tasks in spool.lots(offsets, lot_of(self.asker)):
                bills["writing"].append(writing().estimate(tasks, self.asker))
                drafts: list[Draft] = []
                for task, found in zip(tasks, writing().known(tasks, self.asker), strict=True):
                    if isinstance(found, Kept):
                        drafts += found.value
                    elif found is None:
                        stand_ins = _stand_ins(task)
                        guesses["refining"] += len(stand_ins)
                        drafts += stand_ins
                bills["refining"].append(refining().estimate(drafts, self.asker))
                rows = [
                    (draft if found is None else found.value, found is None)
                    for draft, found in zip(
                        drafts, refining().known(drafts, self.asker), strict=True
                    )
                    if not isinstance(found, Dropped)
                ]
                hidden = [(draft, guess) for draft, guess in rows if draft.kind == "xy"]
                guesses["literal answer"] += sum(guess for _, guess in hidden)
                looked = [draft for draft, _ in hidden]
                bills["literal answer"].append(literal_answer().estimate(looked, self.asker))
                said = literal_answer().known(looked, self.asker)
                guesses["gates"] += sum(found is None for found in said)
                through += [draft for draft, _ in rows if draft.kind == "control"]
                through += [
                    draft
                    for draft, found in zip(looked, said, strict=True)
                    if not isinstance(found, Dropped)
                ]
        bounds = {
            "refining": "as if every guide that was not asked about yet brought all {n:,} questions",
            "literal answer": "as if all {n:,} questions that are not refined yet came through it",
        }
        once = without_duplicates([Kept(draft) for draft in through], lambda draft: draft.query)
        unseen = guesses["gates"]
        gates = self.gates.estimate(
            [to_item(draft) for draft in values(once)],
            at_most=f"as if all {unseen:,} questions that nobody looked at yet became items"
            if unseen
            else "",
        )
        own = [
            Bill(
                name,
                reduce(add, found),
                bounds[name].format(n=n) if (n := guesses.get(name)) else "",
            )
            for name, found in bills.items()
            if found
        ]
        return funnel, [*own, *gates] if own else []

    def run(self, begin: Begin = lambda _: None) -> GuidesBuilt:
        """See `BaseJob`."""
        funnel, problems = Funnel(), Problems(self.settings.strict)
        counts: Counter[str] = Counter()
        drafts = self._drafts(funnel, problems, counts, begin)
        once = without_duplicates([Kept(draft) for draft in drafts], lambda draft: draft.query)
        funnel.add("duplicates", once)
        rows, gates = self.gates.run([Kept(to_item(d)) for d in values(once)], funnel, begin)
        return GuidesBuilt(tuple(values(rows)), funnel, problems, gates, counts)

    def _drafts(
        self, funnel: Funnel, problems: Problems, counts: Counter[str], begin: Begin
    ) -> list[Draft]:
        """Questions that the model wrote, refined, and found of use."""
        with tempfile.TemporaryFile() as file:
            spool: Spool[Task] = Spool(file)
            offsets = self._look(spool, funnel, problems, counts)
            tick = begin(len(offsets))
            written: list[Kept[tuple[Draft, ...]] | Dropped | Failed] = []
            for lot in spool.lots(offsets, lot_of(self.asker)):
                written += writing().run(lot, self.asker, on_reply=tick)
        funnel.add("writing", written)
        drafts = [
            _from(draft, one.provenance)
            for one in written
            if isinstance(one, Kept)
            for draft in one.value
        ]
        funnel.spread("questions", Counter(_KINDS[draft.kind] for draft in drafts))
        refined = self._asked(refining(), drafts, begin)
        funnel.add("refining", refined)
        drafts = [_from(one.value, one.provenance) for one in refined if isinstance(one, Kept)]
        looked = self._asked(literal_answer(), [d for d in drafts if d.kind == "xy"], begin)
        rest = iter(looked)
        outcomes: list[Kept[Draft] | Dropped | Failed] = [
            next(rest) if draft.kind == "xy" else Kept(draft, "a control, not asked about")
            for draft in drafts
        ]
        funnel.add("literal answer", outcomes)
        return [_from(one.value, one.provenance) for one in outcomes if isinstance(one, Kept)]

    def _asked(
        self, stage: Stage[R, T], rows: Sequence[R], begin: Begin
    ) -> list[Kept[T] | Dropped | Failed]:
        tick = begin(len(rows))
        return [
            outcome
            for lot in in_lots(rows, lot_of(self.asker))
            for outcome in stage.run(lot, self.asker, on_reply=tick)
        ]

    def _look(
        self, spool: Spool[Task], funnel: Funnel, problems: Problems, counts: Counter[str]
    ) -> list[int]:
        """Write what is to be asked about into a file; where each begins in it."""
        unusable: Counter[str] = Counter()
        offsets: list[tuple[float, int, str]] = []
        for guide in read_guides(self.source, problems, counts=counts):
            if why := usable(guide):
                unusable[why] += 1
                continue
            lot = draw(f"limit {self.settings.seed} {guide.source} {guide.id}")
            offsets.append((lot, spool.put(self._task(readable(guide))), ""))
        funnel.counted("usable guides", {"": len(offsets)}, unusable)
        return self._within(offsets, self.settings.max_guides, funnel, "beyond max_guides")

    def _task(self, guide: Guide) -> Task:
        """So many controls that their share is there if all comes through, as many guides as it takes."""
        per_guide, share = self.settings.per_guide, self.settings.controls
        wanted = min(per_guide * share / (1 - share), MOST_PER_GUIDE)
        lucky = draw(f"controls {self.settings.seed} {guide.source} {guide.id}") < wanted % 1
        return Task(guide, per_guide, int(wanted) + lucky)


_KINDS = {"xy": "with a hidden goal", "control": "controls"}


def _from(draft: Draft, source: Provenance | None) -> Draft:
    """The draft, and where what was said of it last comes from."""
    return replace(draft, provenance=(*draft.provenance, source)) if source else draft


def _stand_ins(task: Task) -> list[Draft]:
    """Questions such as a model might write, as long as it may write them: for a bill."""

    def words(n: int) -> str:
        return "words " * n

    bare = replace(task.guide, sections=(), warnings=(), tips=())

    def draft(number: int, kind: ItemKind) -> Draft:
        hidden = kind == "xy"
        return Draft(
            guide=bare,
            number=number,
            kind=kind,
            # Of letters of its own, or it would nearly repeat every other one.
            query=" ".join(f"{bare.source}{bare.id}q{number}w{n}" for n in range(3)) + words(150),
            stated_request=words(25),
            intended_request=f"the goal {words(23)}" if hidden else words(25),
            misconception=words(50) if hidden else "",
            stated_solutions=(),
            solutions=(),
            evidence=(),
            answers={
                meant: f"{meant} {words(200)}"
                for meant in (("goal_focused", "literal") if hidden else ("direct",))
            },
        )

    return [
        *(draft(n, "xy") for n in range(1, task.xy + 1)),
        *(draft(n, "control") for n in range(task.xy + 1, task.xy + task.controls + 1)),
    ]


# ---------------------------------------------------------------- the folder


def write(built: GuidesBuilt, job: GuideJob, folder: Path) -> None:
    """Write `items.jsonl`, `funnel.json` and `card.md`; each is there as a whole or not at all."""
    paths = [path.name for path in job.source.paths]
    model = job.asker.name_without_url
    facts = {
        "source": paths,
        "settings": dataclasses.asdict(job.settings),
        "model": model,
        "prompts": dict(versions()),
        "read": dict(sorted(built.counts.items())),
        "unusable_rows": built.problems.count,
        "funnel": built.funnel.to_dict(),
        "gates": built.gates.to_dict(),
    }
    write_folder(
        folder,
        built.items,
        facts,
        lambda items: card(
            title=f"Items from {job.source.name or ', '.join(paths)}",
            made_of=f"{', '.join(paths)}, by {model}, prompts {', '.join(versions().values())}",
            notes="Questions and their answers were written by a model and not checked by a person. Each "
            "misconception and each solution of the goal names the passage of the guide that supports it, "
            "in `meta.evidence`; every quote occurs there. References have no labels. Items of one guide "
            "are one group.",
            items=items,
            funnel=built.funnel,
            gates=built.gates,
            facts={
                **{f"{name} files or rows": f"{n:,}" for name, n in sorted(built.counts.items())},
                "guides and rows that could not be used": f"{built.problems.count:,}",
            },
            problems=built.problems.lines,
            problem_count=built.problems.count,
        ),
    )
