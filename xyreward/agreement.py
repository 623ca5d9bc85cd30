"""How far labels agree: of a judge with people, of people with each other, of two judges.

Raw agreement, Cohen's kappa and Krippendorff's alpha (nominal), each with a 95 % interval over clusters,
and the confusion table. What a rater did not label, and where a judge failed, is no disagreement: it is
left out and counted.

Not here: reading labels from files (`ratings.py`), keeping figures (`calibrate.py`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import Enum
from itertools import combinations
from typing import Any, Literal

import numpy as np

from xyreward.markdown import code, plain
from xyreward.shown import NONE, estimated, percent
from xyreward.stats import Estimate, of_sums
from xyreward.words import counted

SCHEMA = 1
"""Of `to_dict`. Raised where a key changes its meaning or goes."""

Role = Literal["human", "judge"]

Judged = tuple[str, str, bool]
"""A judge's name, its rubric version, and whether goals came with the items."""


class Gap(Enum):
    """Why a rater has no label for something."""

    MISSING = "missing"
    """Nobody asked, or nobody answered."""
    FAILED = "failed"
    """A judge was asked and gave no label."""


Cell = str | Gap


@dataclass(frozen=True, slots=True)
class Rater:
    """A person or a judge, and what they say of each of N rows."""

    name: str
    role: Role
    cells: Sequence[Cell]
    """Length N."""

    def count(self, gap: Gap) -> int:
        """Rows without a label, for this reason."""
        return sum(cell is gap for cell in self.cells)

    @property
    def labelled(self) -> int:
        """Rows with a label."""
        return sum(isinstance(cell, str) for cell in self.cells)


@dataclass(frozen=True, slots=True)
class Ratings:
    """What several raters say of the same N rows, for one label."""

    label: str
    raters: Sequence[Rater]
    clusters: Sequence[str]
    """Length N: which rows belong together."""

    def of(self, role: Role) -> list[Rater]:
        """The people, or the judges."""
        return [rater for rater in self.raters if rater.role == role]


@dataclass(frozen=True, slots=True)
class Pair:
    """Two raters on the rows that both labelled."""

    first: str
    second: str
    n: int
    agreement: Estimate | None
    """Share of equal labels, in [0, 1]."""
    kappa: Estimate | None
    """Cohen's, in [-1, 1]: 0 is what chance gives. None where one label is all that either said."""
    alpha: Estimate | None
    """Krippendorff's for nominal labels, at most 1: 0 is what chance gives. None likewise."""
    confusion: tuple[tuple[int, ...], ...]
    """Rows: what `first` said; columns: what `second` said; both in the order of the categories."""


@dataclass(frozen=True, slots=True)
class Against:
    """One judge against the people."""

    judge: str
    pairs: tuple[Pair, ...]
    """With each person; the judge is `second`."""
    mean: Estimate | None
    """Agreement with a person, averaged over the people, as the XYBench paper reports it."""
    kappa: Estimate | None
    """Kappa, averaged over the people."""
    if_failures_disagree: float | None
    """The mean if every failure counted as a disagreement: the lower bound for a judge that fails."""
    majority: Pair | None
    """With what more than half of the people who labelled a row say. None with fewer than two people."""
    no_majority: int
    """Rows that are no part of `majority` because the people are tied."""
    alpha: Estimate | None
    """Of the people and the judge together."""


@dataclass(frozen=True, slots=True)
class LabelFigures:
    """All figures for one label."""

    label: str
    categories: tuple[str, ...]
    raters: tuple[dict[str, Any], ...]
    """Per rater: name, role, labelled, failed, missing."""
    people: tuple[Pair, ...]
    """Each two of them."""
    people_mean: Estimate | None
    """Agreement of two people, averaged over the pairs."""
    people_kappa: Estimate | None
    people_alpha: Estimate | None
    judges: tuple[Against, ...]
    judge_pairs: tuple[Pair, ...]
    """Each two judges."""


def figures(ratings: Ratings, *, seed: int = 0) -> LabelFigures:
    """All figures for one label."""
    people, judges = ratings.of("human"), ratings.of("judge")
    categories = tuple(
        sorted({cell for r in ratings.raters for cell in r.cells if isinstance(cell, str)})
    )
    on = _On(ratings, categories, seed)
    pairs = tuple(on.pair(a, b) for a, b in combinations(people, 2))
    return LabelFigures(
        label=ratings.label,
        categories=categories,
        raters=tuple(
            {
                "name": r.name,
                "role": r.role,
                "labelled": r.labelled,
                "failed": r.count(Gap.FAILED),
                "missing": r.count(Gap.MISSING),
            }
            for r in ratings.raters
        ),
        people=pairs,
        people_mean=on.mean_agreement([*combinations(people, 2)]),
        people_kappa=on.mean_kappa([*combinations(people, 2)]),
        people_alpha=on.alpha(people) if len(people) > 1 else None,
        judges=tuple(on.against(people, judge) for judge in judges) if people else (),
        judge_pairs=tuple(on.pair(a, b) for a, b in combinations(judges, 2)),
    )


# ---------------------------------------------------------------- arithmetic


class _On:
    """The figures of one table of ratings."""

    def __init__(self, ratings: Ratings, categories: Sequence[str], seed: int) -> None:
        self._rows = len(ratings.clusters)
        self._place = {category: i for i, category in enumerate(categories)}
        self._k = len(categories)
        self._seed = seed
        order: dict[str, int] = {}
        self._cluster = np.array(
            [order.setdefault(name, len(order)) for name in ratings.clusters], dtype=int
        )

    def codes(self, rater: Rater) -> np.ndarray:
        """[N], number of the category; -1 where there is no label."""
        return np.array(
            [self._place[c] if isinstance(c, str) else -1 for c in rater.cells], dtype=int
        )

    def pair(self, first: Rater, second: Rater) -> Pair:
        a, b = self.codes(first), self.codes(second)
        both = np.flatnonzero((a >= 0) & (b >= 0))
        confusion = np.zeros((self._k, self._k), dtype=int)
        np.add.at(confusion, (a[both], b[both]), 1)
        return Pair(
            first=first.name,
            second=second.name,
            n=len(both),
            agreement=self.mean_agreement([(first, second)]),
            kappa=self._of(*self._kappa_sums([(a, b)]), n=len(both)),
            alpha=self._alpha([a, b]),
            confusion=tuple(tuple(map(int, row)) for row in confusion),
        )

    def mean_agreement(self, pairs: Sequence[tuple[Rater, Rater]]) -> Estimate | None:
        rows = np.zeros((self._rows, 2 * len(pairs)))
        labelled = np.zeros(self._rows, dtype=bool)
        for n, (first, second) in enumerate(pairs):
            a, b = self.codes(first), self.codes(second)
            both = (a >= 0) & (b >= 0)
            labelled |= both
            rows[:, 2 * n] = both & (a == b)
            rows[:, 2 * n + 1] = both
        n_rows = int(labelled.sum())
        return self._of(rows, lambda s: _mean(s[:, 0::2] / s[:, 1::2]), n=n_rows, bounds=(0, 1))

    def mean_kappa(self, pairs: Sequence[tuple[Rater, Rater]]) -> Estimate | None:
        codes = [(self.codes(a), self.codes(b)) for a, b in pairs]
        n = int(
            sum(((a >= 0) & (b >= 0) for a, b in codes), np.zeros(self._rows)).astype(bool).sum()
        )
        return self._of(*self._kappa_sums(codes), n=n)

    def alpha(self, raters: Sequence[Rater]) -> Estimate | None:
        return self._alpha([self.codes(rater) for rater in raters])

    def against(self, people: Sequence[Rater], judge: Rater) -> Against:
        pairs = tuple(self.pair(person, judge) for person in people)
        majority, tied = None, 0
        if len(people) > 1:
            agreed, tied = _majority(people)
            majority = self.pair(agreed, judge)
        return Against(
            judge=judge.name,
            pairs=pairs,
            mean=self.mean_agreement([(person, judge) for person in people]),
            kappa=self.mean_kappa([(person, judge) for person in people]),
            if_failures_disagree=_with_failures(people, judge),
            majority=majority,
            no_majority=tied,
            alpha=self.alpha([*people, judge]),
        )

    def _kappa_sums(
        self, pairs: Sequence[tuple[np.ndarray, np.ndarray]]
    ) -> tuple[np.ndarray, Callable[[np.ndarray], np.ndarray]]:
        """Per row and pair: both labelled and equal, then what the one said and what the other said."""
        k = self._k
        rows = np.zeros((self._rows, len(pairs), 1 + 2 * k))
        for n, (a, b) in enumerate(pairs):
            both = np.flatnonzero((a >= 0) & (b >= 0))
            rows[both, n, 0] = a[both] == b[both]
            rows[both, n, 1 + a[both]] = 1
            rows[both, n, 1 + k + b[both]] = 1

        def kappa(sums: np.ndarray) -> np.ndarray:
            one = sums.reshape(len(sums), -1, 1 + 2 * k)
            said, heard = one[..., 1 : 1 + k], one[..., 1 + k :]
            n = said.sum(axis=-1)
            by_chance = (said * heard).sum(axis=-1) / n**2
            return _mean((one[..., 0] / n - by_chance) / (1 - by_chance))

        return rows.reshape(self._rows, -1), kappa

    def _alpha(self, raters: Sequence[np.ndarray]) -> Estimate | None:
        # Per row: pairs of labels that differ, over the labels but one; and the labels of each category.
        # Rows with one label say nothing about agreement (Krippendorff 2011, "Computing alpha").
        counts = np.zeros((self._rows, self._k))
        for codes in raters:
            there = np.flatnonzero(codes >= 0)
            counts[there, codes[there]] += 1
        labels = counts.sum(axis=1)
        counts[labels < 2] = 0
        several = labels >= 2
        differing = np.zeros(self._rows)
        differing[several] = (labels[several] ** 2 - (counts[several] ** 2).sum(axis=1)) / (
            labels[several] - 1
        )

        def alpha(sums: np.ndarray) -> np.ndarray:
            n = sums[:, 1:].sum(axis=1)
            expected = n**2 - (sums[:, 1:] ** 2).sum(axis=1)
            out: np.ndarray = 1 - (n - 1) * sums[:, 0] / expected
            return out

        return self._of(
            np.concatenate([differing[:, None], counts], axis=1), alpha, n=int(several.sum())
        )

    def _of(
        self,
        rows: np.ndarray,
        statistic: Callable[[np.ndarray], np.ndarray],
        *,
        n: int,
        bounds: tuple[float, float] | None = None,
    ) -> Estimate | None:
        if n == 0:
            return None
        sums = np.zeros((int(self._cluster.max()) + 1, rows.shape[1]))
        np.add.at(sums, self._cluster, rows)
        # Clusters without a label would be drawn and add nothing.
        return of_sums(sums[sums.any(axis=1)], statistic, n=n, bounds=bounds, seed=self._seed)


def _mean(values: np.ndarray) -> np.ndarray:
    """Over the last axis, of those that are defined."""
    there = np.isfinite(values)
    out: np.ndarray = np.where(there, values, 0).sum(axis=-1) / there.sum(axis=-1)
    return out


def _majority(people: Sequence[Rater]) -> tuple[Rater, int]:
    """What more than half of those who labelled a row say, and how many rows have no such label."""
    cells: list[Cell] = []
    tied = 0
    for row in zip(*(person.cells for person in people), strict=True):
        said = Counter(cell for cell in row if isinstance(cell, str))
        label, votes = said.most_common(1)[0] if said else ("", 0)
        if 2 * votes > said.total():
            cells.append(label)
        else:
            cells.append(Gap.MISSING)
            tied += bool(said)
    return Rater(f"majority of {len(people)} people", "human", cells), tied


def _with_failures(people: Sequence[Rater], judge: Rater) -> float | None:
    shares = []
    for person in people:
        asked = [
            (said, judged)
            for said, judged in zip(person.cells, judge.cells, strict=True)
            if isinstance(said, str) and judged is not Gap.MISSING
        ]
        if asked:
            shares.append(sum(said == judged for said, judged in asked) / len(asked))
    return sum(shares) / len(shares) if shares else None


# ---------------------------------------------------------------- what is printed


def to_dict(
    labels: Sequence[LabelFigures],
    *,
    judges: Mapping[str, Judged] | None = None,
    sources: Sequence[dict[str, Any]] = (),
    notes: Sequence[str] = (),
) -> dict[str, Any]:
    """The figures as JSON-ready data, described in docs/agree.md.

    Args:
        labels: the figures.
        judges: shown name -> which judge with which rubric that is, where it is known.
        sources: files with their hashes.
        notes: what is to be known beside the figures.
    """
    return {
        "schema": SCHEMA,
        "sources": list(sources),
        "judges": {
            shown: {"judge": name, "rubric_version": version, "grounded": grounded}
            for shown, (name, version, grounded) in (judges or {}).items()
        },
        "labels": {one.label: _of_label(one) for one in labels},
        "notes": list(notes),
    }


def _of_label(one: LabelFigures) -> dict[str, Any]:
    data = asdict(one)
    del data["label"]
    return data


def to_markdown(
    labels: Sequence[LabelFigures],
    *,
    judges: Mapping[str, Judged] | None = None,
    notes: Sequence[str] = (),
) -> str:
    """The figures as tables. Shares in %, brackets are 95 % intervals over clusters."""
    out = []
    for shown, (_, version, grounded) in (judges or {}).items():
        inferred = "" if grounded else "; it inferred the goals itself"
        out.append(f"- {code(shown)}: rubric {code(version or 'unknown')}{inferred}")
    out += [""] if out else []
    if len(labels) > 1:
        out += [*_summary(labels), ""]
    for one in labels:
        out += [*_label_lines(one), ""]
    out += [f"- {plain(note)}" for note in notes]
    return "\n".join(out).rstrip() + "\n"


def _summary(labels: Sequence[LabelFigures]) -> list[str]:
    judges = list(dict.fromkeys(against.judge for one in labels for against in one.judges))
    people = any(one.people for one in labels)
    header = ["agreement, %", *(["people, two of them"] if people else [])]
    header += [f"{code(judge)} with people" for judge in judges]
    rows = []
    for one in labels:
        by_judge = {against.judge: against.mean for against in one.judges}
        cells = [plain(one.label), *([_percent(one.people_mean)] if people else [])]
        rows.append([*cells, *(_percent(by_judge.get(judge)) for judge in judges)])
    return _table(header, rows) if len(header) > 1 else []


def _label_lines(one: LabelFigures) -> list[str]:
    out = [f"## {plain(one.label)}", ""]
    out += _table(
        ["rater", "labelled", "failed", "missing"],
        [
            [code(r["name"]), *(str(r[key]) for key in ("labelled", "failed", "missing"))]
            for r in one.raters
        ],
    )
    rows: list[list[str]] = []

    def add(name: str, n: int, *cells: str) -> None:
        rows.append([name, str(n), *cells])

    def pair(two: Pair, name: str = "") -> None:
        named = name or f"{code(two.first)}, {code(two.second)}"
        numbers = (_number(two.kappa, two.n), _number(two.alpha, two.n))
        add(named, two.n, _percent(two.agreement), *numbers)

    for two in one.people:
        pair(two)
    if len(one.people) > 1:
        count = sum(r["role"] == "human" for r in one.raters)
        n = one.people_mean.n if one.people_mean else 0
        numbers = (_number(one.people_kappa, n), _number(one.people_alpha, n))
        add(f"{count} people", n, _percent(one.people_mean), *numbers)
    for against in one.judges:
        for two in against.pairs:
            pair(two)
        if len(against.pairs) > 1:
            name = code(against.judge)
            over = counted(sum(two.n > 0 for two in against.pairs), "person", "people")
            n = against.mean.n if against.mean else 0
            cells = (_percent(against.mean), _number(against.kappa, n), "")
            add(f"{name}, mean over {over}", n, *cells)
            n = against.alpha.n if against.alpha else n
            together = f"{name} and {len(against.pairs)} people together"
            add(together, n, "", "", _number(against.alpha, n))
        if against.majority is not None:
            pair(against.majority, f"{code(against.judge)}, {against.majority.first}")
    for two in one.judge_pairs:
        pair(two)
    out += ["", *_table(["", "n", "agreement, %", "kappa", "alpha"], rows)]
    for against in one.judges:
        if against.no_majority:
            out += ["", f"{against.no_majority} rows have no majority."]
            break
    for against in one.judges:
        failed = next(r["failed"] for r in one.raters if r["name"] == against.judge)
        if failed and against.if_failures_disagree is not None:
            out += [
                "",
                f"{code(against.judge)} failed on {failed}; counted as disagreement its mean would be "
                f"{percent(against.if_failures_disagree)}.",
            ]
    for two in [a.majority or a.pairs[0] for a in one.judges if a.pairs] or [
        *one.judge_pairs,
        *one.people,
    ][:1]:
        out += ["", *_confusion(two, one.categories)]
    return out


def _confusion(two: Pair, categories: Sequence[str]) -> list[str]:
    header = [f"{code(two.first)} (rows), {code(two.second)} (columns)", *map(plain, categories)]
    rows = [
        [plain(name), *map(str, counts)]
        for name, counts in zip(categories, two.confusion, strict=True)
    ]
    return _table(header, rows)


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    lines = ["| " + " | ".join(header) + " |", "|---|" + "---:|" * (len(header) - 1)]
    return lines + ["| " + " | ".join(row) + " |" for row in rows]


def _percent(estimate: Estimate | None) -> str:
    return estimated(estimate, digits=1, scale=100)


def _number(estimate: Estimate | None, n: int) -> str:
    """Kappa or alpha, or why there is none."""
    if estimate is None and n:
        return f"{NONE}: one label only"
    return estimated(estimate, digits=3)
