"""Quality gates: what an item must pass before it is one, whatever it was made of.

    items -> words -> controls -> inference -> second pass -> judge -> controls -> items

`words`: the query does not say the goal. `inference`: a model that sees the query alone finds it all the
same, often enough. `second pass`: another reading of query and answers sees the same kind of item. `judge`:
the answers are what they are meant as. Each drops under reasons of its own, and each has figures. A reply
that could not be had is a failure and no reason to drop.

Not here: what models are asked (`gate_stages.py`), how words are compared (`given_away.py`), people
(`review.py`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any, Literal, TypeVar

from xyreward.agreement import Gap, Rater, Ratings, figures
from xyreward.construct.gate_stages import (
    Compared,
    Label,
    infer_version,
    inference,
    label_version,
    labelling,
    same_goal,
    same_goal_version,
)
from xyreward.construct.given_away import MAX_CORRECTION_WORDS, MAX_GOAL_WORDS, shares
from xyreward.construct.job import Begin, Bill, check_controls, check_seed, with_controls
from xyreward.construct.prefilter import draw
from xyreward.construct.stages import NO_USE, TRIES, Dropped, Failed, Funnel, Kept, Provenance
from xyreward.errors import ConfigError, JudgeError
from xyreward.items import Item, ItemKind
from xyreward.judges import Judge, check_gives_labels
from xyreward.judges.asking import Estimate, ModelAsker
from xyreward.judges.panel import PanelJudge, model_judges
from xyreward.prices import without_url
from xyreward.scoring import score
from xyreward.stats import Column, means
from xyreward.stats import Estimate as Figure
from xyreward.verdict import JudgeFailure, Labels, Verdict

MeantAs = Literal["goal_focused", "literal", "direct"]
MEANT_AS: Mapping[ItemKind, tuple[MeantAs, ...]] = {
    "xy": ("goal_focused", "literal"),
    "control": ("direct",),
}
"""Kinds of answer that the judge looks at, by kind of item."""

WANTED: Mapping[MeantAs, Mapping[str, Callable[[Labels], bool]]] = {
    "goal_focused": {
        "have an intended solution": lambda labels: labels.has_intended_solution,
        "have their focus on the intended request": lambda labels: labels.focus == "intended",
    },
    "literal": {
        "have a stated solution": lambda labels: labels.has_stated_solution,
        "have no intended solution": lambda labels: not labels.has_intended_solution,
    },
    "direct": {
        "have a solution": lambda labels: labels.has_stated_solution,
        "invent no misconception": lambda labels: not labels.identifies_misconception,
    },
}
"""Kind of answer -> what a judge must say of it, all of it."""

SEEN: Mapping[ItemKind, str] = {"xy": "a hidden goal", "control": "no hidden goal"}

T = TypeVar("T")
Row = Kept[Item]
Outcome = Kept[Item] | Dropped | Failed


@dataclass(frozen=True, slots=True)
class GateSettings:
    """How strict the gates are.

    Raises:
        ConfigError: a field outside its range.
    """

    inferences: int = 3
    """How often a model that sees the query alone says what it thinks the goal is, >= 0. 0: no such gate."""
    infer_at_least: int = 1
    """So many of these must be the intended request, in 1..inferences."""
    second_pass: float = 0.1
    """Share of the items that is labelled a second time, in [0, 1]. 0: no such gate."""
    max_goal_words: float = MAX_GOAL_WORDS
    """See `given_away.Shares`; an item above it is dropped. 1 drops none."""
    max_correction_words: float = MAX_CORRECTION_WORDS
    """Likewise."""

    def __post_init__(self) -> None:
        problems = [
            f"{name} is {value!r}, expected a share in [0, 1]"
            for name in ("second_pass", "max_goal_words", "max_correction_words")
            if not 0 <= (value := getattr(self, name)) <= 1
        ]
        if self.inferences < 0:
            problems.append(f"inferences is {self.inferences!r}, expected at least 0")
        elif self.inferences and not 1 <= self.infer_at_least <= self.inferences:
            problems.append(
                f"infer_at_least is {self.infer_at_least!r}, expected 1 to {self.inferences}, which is "
                "inferences"
            )
        if problems:
            raise ConfigError(f"gates: {'; '.join(problems)}")


@dataclass(slots=True)
class GateFigures:
    """What the gates saw, for the card and `funnel.json`."""

    figures: dict[str, Figure | None] = field(default_factory=dict)
    """Name -> a share in [0, 1], or kappa in [-1, 1], with its 95 % interval over groups of items. None:
    there was nothing to measure."""
    off: dict[str, str] = field(default_factory=dict)
    """Gate -> why it was not there."""
    prompts: dict[str, str] = field(default_factory=dict)
    """Gate -> version of what was asked; of the judge, of its rubric."""
    models: dict[str, str] = field(default_factory=dict)
    """Gate -> who was asked, without address."""

    def put(self, columns: Mapping[str, Sequence[float | None]], rows: Iterable[Item]) -> None:
        """Add shares.

        Args:
            columns: name -> N values in [0, 1]; None was not measured.
            rows: N, whose groups are resampled for the intervals.
        """
        clusters = [item.group or item.id for item in rows]
        found = means(
            [Column(values, (0, 1)) for values in columns.values()], clusters, expand=True
        )
        self.figures |= dict(zip(columns, found, strict=True))

    def to_dict(self) -> dict[str, Any]:
        """As JSON has it."""
        return {
            "figures": {
                name: None
                if f is None
                else {"value": f.value, "low": f.low, "high": f.high, "n": f.n}
                for name, f in self.figures.items()
            },
            "off": self.off,
            "prompts": self.prompts,
            "models": self.models,
        }


class Gates:
    """The gates of one job. Nothing is asked before `run`."""

    def __init__(
        self,
        settings: GateSettings,
        asker: ModelAsker,
        *,
        judge: Judge | None = None,
        second: ModelAsker | None = None,
        controls: float = 0.25,
        seed: int = 0,
    ) -> None:
        """Set up.

        Args:
            settings: how strict.
            asker: infers goals and compares them.
            judge: judges the answers. None: no such gate.
            second: labels a second time. None: `asker`, which is not told the first labels.
            controls: share of controls among the items, at most, in [0, 1).
            seed: of the draws, >= 0.

        Raises:
            ConfigError: no such share, or seed.
            JudgeError: the judge gives no labels.
        """
        check_controls(controls)
        check_seed(seed)
        if judge is not None:
            check_gives_labels(judge)
        self.settings = settings
        self.asker = asker
        self.judge = judge
        self.second = second or asker
        self.controls = controls
        self.seed = seed

    def check(self) -> None:
        """Find what would stop judge or second model, without a call.

        Raises:
            JudgeError, StoreError: something is missing; says what to do.
        """
        if self.settings.second_pass:
            self.second.check_ready()
        if self.judge is not None and (check := getattr(self.judge, "check", None)):
            check([])

    @property
    def asked(self) -> list[ModelAsker | Judge]:
        """Who is asked, each once, the asker first."""
        judge: list[ModelAsker | Judge] = [] if self.judge is None else [self.judge]
        found = [self.asker, self.second, *judge]
        return list({id(one): one for one in found}.values())

    @property
    def billed(self) -> list[tuple[str, ModelAsker]]:
        """Whose bills there are, each once, with what they do: `model`, `second model`, `judge`.

        Names alone would not tell them apart: one model may read the source and judge, too.
        """
        judges = [] if self.judge is None else model_judges(self.judge)
        found = [("model", self.asker), ("second model", self.second)]
        found += (("judge", one) for one in judges)
        # Backwards, so that the first of an object's roles is the one that stays.
        return list({id(one): (role, one) for role, one in reversed(found)}.values())[::-1]

    # ------------------------------------------------------------ running

    def run(
        self, rows: Sequence[Row], funnel: Funnel, begin: Begin = lambda _: None
    ) -> tuple[list[Row], GateFigures]:
        """Pass items through all gates, a step of the funnel each.

        Args:
            rows: items, as the last step of the funnel kept them.
            funnel: gets the steps.
            begin: for progress bars.

        Returns:
            Those that are left, with what the gates saw in `meta["gates"]`, and their provenance.

        Raises:
            JudgeError: a budget is spent, or no call can succeed. What was paid for is in the store.
            StoreError: the store cannot be used.
        """
        found = GateFigures()

        def step(name: str, outcomes: Sequence[Outcome]) -> list[Row]:
            funnel.add(name, outcomes)
            return _kept(outcomes)

        rows = step("words", self._words(rows, found))
        rows = step("controls", self._few_controls(rows))
        if self.settings.inferences:
            rows = step("inference", self._inference(rows, found, begin))
        else:
            found.off["inference"] = "no inferences wanted (--inferences 0)"
        if self.settings.second_pass:
            rows = step("second pass", self._second_pass(rows, found, begin))
        else:
            found.off["second pass"] = "no share wanted (--second-pass 0)"
        if self.judge is not None:
            rows = step("judge", self._judge(rows, self.judge, found, begin))
        else:
            found.off["judge"] = "no judge was given (--judge), and no answer was judged"
        if len(found.off) < 3:  # the gates may have left too many controls
            rows = step("controls, again", self._few_controls(rows))
        return rows, found

    def _few_controls(self, rows: Sequence[Row]) -> list[Row | Dropped]:
        return with_controls(
            [replace(row, how=row.value.kind) for row in rows],
            is_control=lambda item: item.kind == "control",
            name=lambda item: item.id,
            share=self.controls,
            seed=self.seed,
        )

    def _words(self, rows: Sequence[Row], found: GateFigures) -> list[Outcome]:
        outcomes: list[Outcome] = []
        goal: list[float | None] = []
        correction: list[float | None] = []
        for row in rows:
            if row.value.kind == "control":
                outcomes.append(replace(row, how="control"))
                continue
            seen = shares(row.value)
            goal.append(seen.goal)
            correction.append(seen.correction)
            if seen.goal > self.settings.max_goal_words:
                outcomes.append(Dropped("the query says the goal in so many words"))
            elif seen.correction > self.settings.max_correction_words:
                outcomes.append(Dropped("the query says why what was asked will not do"))
            else:
                noted = {"goal": round(seen.goal, 3), "correction": round(seen.correction, 3)}
                outcomes.append(_noted(replace(row, how="xy"), "words", noted))
        found.put(
            {
                "the goal's words that stand in the query": goal,
                "the correction's words that stand in the query": correction,
            },
            _xy(rows),
        )
        return outcomes

    # ------------------------------------------------------------ inference

    def _inference(self, rows: Sequence[Row], found: GateFigures, begin: Begin) -> list[Outcome]:
        k, at_least = self.settings.inferences, self.settings.infer_at_least
        xy = _xy(rows)
        # All at once, and not one time after the other: message batches take hours.
        often = [(item, n) for item in xy for n in range(k)]
        said = inference().run(
            [item for item, _ in often],
            self.asker,
            number=[n for _, n in often],
            on_reply=begin(len(often)),
        )
        asked = {
            place: Compared(item.query_text, goal.value, item.intended_request)
            for place, ((item, _), goal) in enumerate(zip(often, said, strict=True))
            if isinstance(goal, Kept)
        }
        same = _compare(asked, self.asker, begin)
        hits: list[list[float | None]] = []
        of_xy: list[Outcome] = []
        for i, row in enumerate(row for row in rows if row.value.kind == "xy"):
            tries = [(said[at], same.get(at)) for at in range(i * k, (i + 1) * k)]
            outcome, of_item = self._inferred(row, tries)
            of_xy.append(outcome)
            hits.append(of_item)
        found.put(
            {"inferences that are the intended request": list(chain.from_iterable(hits))},
            [item for item, _ in often],
        )
        enough = [None if None in one else float(_n(one) >= at_least) for one in hits]
        found.put({f"items inferred at least {at_least} of {k} times": enough}, xy)
        found.prompts |= {"inference": infer_version(), "same goal": same_goal_version()}
        found.models["inference"] = self.asker.name_without_url
        return _by_kind(rows, of_xy, "control, not asked")

    def _inferred(
        self, row: Row, tries: Sequence[tuple[Kept[str] | Dropped | Failed, Any]]
    ) -> tuple[Outcome, list[float | None]]:
        """What becomes of an item; and per inference 1 it is the goal, 0 it is not, None it failed."""
        hits: list[float | None] = []
        notes: list[dict[str, Any]] = []
        sources: list[Provenance | None] = []
        for goal, compared in tries:
            if isinstance(goal, Kept) and isinstance(compared, Kept):
                hits.append(float(compared.value))
                notes.append({"goal": goal.value, "same": compared.value})
                sources += [goal.provenance, compared.provenance]
            else:
                hits.append(None)
        at_least = self.settings.infer_at_least
        if _n(hits) >= at_least:
            return _noted(replace(row, how="inferred"), "inference", notes, sources), hits
        if _n(hits) + hits.count(None) >= at_least:
            return _failure(chain.from_iterable(tries)), hits
        return Dropped("the goal is not inferred from the query"), hits

    # ------------------------------------------------------------ second pass

    def _drawn(self, item: Item) -> bool:
        return draw(f"second {self.seed} {item.id}") < self.settings.second_pass

    def _second_pass(self, rows: Sequence[Row], found: GateFigures, begin: Begin) -> list[Outcome]:
        drawn = [row for row in rows if self._drawn(row.value)]
        items = [row.value for row in drawn]
        labels = labelling().run(items, self.second, on_reply=begin(len(items)))
        asked = {
            (i, which): pair
            for i, (item, label) in enumerate(zip(items, labels, strict=True))
            if isinstance(label, Kept)
            for which, pair in _requests(item, label.value).items()
        }
        same = _compare(asked, self.asker, begin)
        of_drawn = [
            _agreed(row, label, {w: same[i, w] for w in ("stated", "intended") if (i, w) in same})
            for i, (row, label) in enumerate(zip(drawn, labels, strict=True))
        ]
        if items:
            first = Rater("first pass", "judge", [item.kind for item in items])
            seen = [one.value.kind if isinstance(one, Kept) else Gap.FAILED for one in labels]
            both = [first, Rater("second pass", "judge", seen)]
            clusters = [item.group or item.id for item in items]
            [pair] = figures(Ratings("kind", both, clusters), seed=self.seed).judge_pairs
            found.figures["second pass, same kind"] = pair.agreement
            found.figures["second pass, kind, Cohen's kappa"] = pair.kappa
        found.put(
            {
                f"second pass, same {which} request": [
                    float(one.value) if isinstance(one := same.get((i, which)), Kept) else None
                    for i in range(len(items))
                ]
                for which in ("stated", "intended")
            },
            items,
        )
        found.prompts |= {"second pass": label_version(), "same goal": same_goal_version()}
        found.models["second pass"] = self.second.name_without_url
        left = iter(of_drawn)
        return [
            next(left) if self._drawn(row.value) else replace(row, how="not drawn") for row in rows
        ]

    # ------------------------------------------------------------ judge

    def _judge(
        self, rows: Sequence[Row], judge: Judge, found: GateFigures, begin: Begin
    ) -> list[Outcome]:
        asked = [(i, n) for i, row in enumerate(rows) for n in meant_as(row.value)]
        items = [rows[i].value for i, _ in asked]
        texts = [rows[i].value.references[n].text for i, n in asked]
        said = dict(zip(asked, judged(items, texts, judge, begin(len(asked))), strict=True))
        name = _name(judge)
        outcomes: list[Outcome] = []
        columns: dict[str, list[float | None]] = {
            f"{kind.replace('_', '-')} answers that {what}": []
            for kind, wanted in WANTED.items()
            for what in wanted
        }
        for i, row in enumerate(rows):
            meant = meant_as(row.value)
            verdicts = {n: said[i, n] for n in meant}
            told = {"judge": name, "rubric_version": judge.rubric_version}
            outcomes.append(_as_meant(row, meant, verdicts, told))
            for n, kind in meant.items():
                one = verdicts[n]
                of_one = [
                    float(holds(one.labels))
                    if of_kind == kind and isinstance(one, Verdict)
                    else None
                    for of_kind, wanted in WANTED.items()
                    for holds in wanted.values()
                ]
                for column, value in zip(columns.values(), of_one, strict=True):
                    column.append(value)
        found.put(columns, items)
        found.prompts["judge"] = judge.rubric_version
        found.models["judge"] = name
        return outcomes

    # ------------------------------------------------------------ bills

    def estimate(self, items: Sequence[Item], *, at_most: str = "") -> list[Bill]:
        """What the gates would take now, with what the store has. Sends nothing.

        Args:
            items: those that would reach the gates, or stand-ins of usual length.
            at_most: they are stand-ins, in words. Else bills are exact up to the first gate that lacks a
                reply; all items that reach it are taken to pass it.

        Raises:
            StoreError: the store cannot be used.
        """
        rows: list[Row] = [Kept(item) for item in items]
        bills: list[Bill] = []
        if not at_most:
            rows = _kept(self._words(rows, GateFigures()))
            rows = _kept(self._few_controls(rows))

        def bill(
            found: Sequence[tuple[str, ModelAsker, Estimate]],
            run: Callable[[Sequence[Row], GateFigures, Begin], list[Outcome]],
        ) -> None:
            nonlocal rows, at_most
            bills.extend(
                Bill(f"{what}, {whom.name_without_url}", one, at_most) for what, whom, one in found
            )
            if not at_most and any(one.calls for *_, one in found):
                at_most = f"as if all {len(rows):,} items at the gate before passed it"
            if not at_most:  # all replies are there
                rows = _kept(run(rows, GateFigures(), lambda _: None))

        if self.settings.inferences:
            bill(self._inference_bills(_xy(rows)), self._inference)
        if self.settings.second_pass:
            drawn = [row.value for row in rows if self._drawn(row.value)]
            bill(self._second_bills(drawn), self._second_pass)
        estimate = getattr(self.judge, "estimate", None)
        if estimate is not None:
            assert self.judge is not None
            asked = [(row.value, n) for row in rows for n in meant_as(row.value)]
            texts = [item.references[n].text for item, n in asked]
            if found := estimate([item for item, _ in asked], texts):
                bills.append(Bill(f"judge, {_name(self.judge)}", found, at_most))
        return bills

    def _inference_bills(self, items: Sequence[Item]) -> list[tuple[str, ModelAsker, Estimate]]:
        often = [(item, n) for item in items for n in range(self.settings.inferences)]
        rows, numbers = [item for item, _ in often], [n for _, n in often]
        bill = inference().estimate(rows, self.asker, number=numbers)
        goals = inference().known(rows, self.asker, number=numbers)
        pairs = [
            Compared(item.query_text, _known(goal, f"{n} {UNWRITTEN}"), item.intended_request)
            for (item, n), goal in zip(often, goals, strict=True)
        ]
        return [("inference", self.asker, bill + same_goal().estimate(pairs, self.asker))]

    def _second_bills(self, items: Sequence[Item]) -> list[tuple[str, ModelAsker, Estimate]]:
        found = labelling().estimate(items, self.second)
        labels = labelling().known(items, self.second)
        pairs = [
            pair
            for item, label in zip(items, labels, strict=True)
            for pair in _requests(item, _known(label, _unwritten(item))).values()
        ]
        compared = same_goal().estimate(pairs, self.asker)
        if self.second is self.asker:
            return [("second pass", self.asker, found + compared)]
        return [
            ("second pass, labels", self.second, found),
            ("second pass, comparisons", self.asker, compared),
        ]


UNWRITTEN = "word " * 25
"""Stands in a bill for a sentence that a model has yet to write."""


def _unwritten(item: Item) -> Label:
    return Label(item.kind, f"1 {UNWRITTEN}", f"2 {UNWRITTEN}")


def _known(found: Kept[T] | Dropped | None, otherwise: T) -> T:
    """What the store says, or what stands for it in a bill."""
    return found.value if isinstance(found, Kept) else otherwise


# ---------------------------------------------------------------- parts of gates


def meant_as(item: Item) -> dict[int, MeantAs]:
    """Number of a reference -> what it is meant as, for those that the judge looks at.

    By the reference's kind or, where it has none, by `meta["meant_as"]`, a list beside the references: who
    made the item knows which answer is to show what, and nobody has labelled it.
    """
    told = item.meta.get("meant_as", ())
    found: dict[int, MeantAs] = {}
    for n, reference in enumerate(item.references):
        name = reference.kind or (told[n] if n < len(told) else None)
        for kind in MEANT_AS[item.kind]:
            if name == kind:
                found[n] = kind
    return found


def judged(
    items: Sequence[Item],
    texts: Sequence[str],
    judge: Judge,
    tick: Callable[[], object] | None = None,
) -> list[Verdict | JudgeFailure]:
    """A judge's verdicts on texts[i] as an answer to items[i]; where it fails, it is asked again.

    Raises:
        JudgeError: the budget is spent, or no call can succeed. What was paid for is in the store.
    """
    asking = model_judges(judge)
    told = [one.on_outcome for one in asking]
    for asker in asking:
        asker.on_outcome = tick
    found: dict[int, Verdict | JudgeFailure] = {}
    todo = list(range(len(items)))
    try:
        for _ in range(TRIES if asking else 1):  # the others say the same every time
            scores = score([items[i] for i in todo], [texts[i] for i in todo], judge)
            for i, given in zip(todo, scores, strict=True):
                outcome = given.verdict or given.failure
                assert outcome is not None
                found[i] = outcome
            failed = {i: one.kind for i in todo if isinstance(one := found[i], JudgeFailure)}
            todo = [i for i, kind in failed.items() if kind not in NO_USE]
            if unpaid := [i for i, kind in failed.items() if kind == "over_budget"]:
                first = found[unpaid[0]]
                assert isinstance(first, JudgeFailure)
                raise JudgeError(
                    f"judge {judge.name!r}: the budget is spent, {len(unpaid):,} of {len(items):,} answers "
                    f"were not judged. What was paid for is in the store. Of the first: {first.detail}"
                )
            if not todo:
                break
    finally:
        for asker, before in zip(asking, told, strict=True):
            asker.on_outcome = before
    return [found[i] for i in range(len(items))]


def _as_meant(
    row: Row,
    meant: Mapping[int, MeantAs],
    verdicts: Mapping[int, Verdict | JudgeFailure],
    judge: Mapping[str, str],
) -> Outcome:
    how, failure = "as meant", None
    for kind in MEANT_AS[row.value.kind]:
        of_kind = [verdicts[n] for n, one in meant.items() if one == kind]
        labels = [one.labels for one in of_kind if isinstance(one, Verdict)]
        if any(all(holds(one) for holds in WANTED[kind].values()) for one in labels):
            continue
        name = kind.replace("_", "-")
        if not of_kind and kind == "literal":
            how = "as meant, without a literal answer"  # in a forum, nobody may have given one
        elif not of_kind:
            return Dropped(f"no answer is meant as {name}")
        elif len(labels) == len(of_kind):
            return Dropped(f"no {name} answer is one, says the judge")
        else:
            first = next(one for one in of_kind if isinstance(one, JudgeFailure))
            failure = Failed(first.kind, first.detail)
    if failure:
        return failure
    notes = {
        **judge,
        "answers": [
            {"reference": n, "meant_as": meant[n], **dataclasses.asdict(one.labels)}
            for n, one in verdicts.items()
            if isinstance(one, Verdict)
        ],
    }
    return _noted(replace(row, how=how), "judge", notes)


def _agreed(
    row: Row,
    label: Kept[Label] | Dropped | Failed,
    same: Mapping[str, Kept[bool] | Dropped | Failed],
) -> Outcome:
    if not isinstance(label, Kept):
        return _failure([label])
    if label.value.kind != row.value.kind:
        return Dropped(f"the second pass sees {SEEN[label.value.kind]}")
    known = {which: one for which, one in same.items() if isinstance(one, Kept)}
    if len(known) < len(same):
        return _failure(same.values())
    notes = {
        **dataclasses.asdict(label.value),
        **{f"same_{which}": one.value for which, one in known.items()},
    }
    sources = [label.provenance, *(one.provenance for one in known.values())]
    return _noted(replace(row, how="agreed"), "second_pass", notes, sources)


def _requests(item: Item, label: Label) -> dict[str, Compared]:
    """What of two labellings is compared, where they see the same kind of item."""
    if label.kind != item.kind:
        return {}
    query = item.query_text
    found = {"stated": Compared(query, label.stated_request, item.stated_request)}
    if item.kind == "xy":
        found["intended"] = Compared(query, label.intended_request, item.intended_request)
    return found


def _compare(
    asked: Mapping[Any, Compared], asker: ModelAsker, begin: Begin
) -> dict[Any, Kept[bool] | Dropped | Failed]:
    found = same_goal().run(list(asked.values()), asker, on_reply=begin(len(asked)))
    return dict(zip(asked, found, strict=True))


def _noted(row: Row, gate: str, notes: object, sources: Sequence[Provenance | None] = ()) -> Row:
    """The row with what a gate saw in its item's `meta`."""
    meta = dict(row.value.meta)
    meta["gates"] = {**meta.get("gates", {}), gate: notes}
    if told := [one.as_dict() for one in sources if one is not None]:
        meta["provenance"] = [*meta.get("provenance", ()), *told]
    return replace(row, value=row.value.model_copy(update={"meta": meta}))


def _by_kind(rows: Sequence[Row], of_xy: Sequence[Outcome], controls: str) -> list[Outcome]:
    left = iter(of_xy)
    return [next(left) if row.value.kind == "xy" else replace(row, how=controls) for row in rows]


def _name(judge: Judge) -> str:
    """A judge's name without the address of any server: a changed port changes no item."""
    if isinstance(judge, PanelJudge):
        return f"panel:{','.join(map(_name, judge.members))}"
    return without_url(judge.name)


def _failure(ones: Iterable[object]) -> Failed:
    return next(one for one in ones if isinstance(one, Failed))


def _kept(outcomes: Iterable[Outcome]) -> list[Row]:
    return [one for one in outcomes if isinstance(one, Kept)]


def _xy(rows: Iterable[Row]) -> list[Item]:
    return [row.value for row in rows if row.value.kind == "xy"]


def _n(hits: Iterable[float | None]) -> int:
    return sum(map(bool, hits))
