"""Choose pairs on which the fixed rules of `shortcuts.py` are of no use.

Pairs fall into cells: the kind of item, and what each rule says of the pair (it picks chosen, picks
rejected, cannot tell). A mixed integer programme finds how many to take from each cell so that as
many pairs as possible are kept and every rule picks chosen in a share of 0.5 +- tolerance. Within a
cell, pairs whose answers are closest in length are taken first.

Not here: the measuring afterwards (`audit.py`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from xyreward.errors import ConfigError
from xyreward.items import text_hash
from xyreward.pairs.pair import Pair
from xyreward.pairs.shortcuts import RULES, FixedRule, traits_of


def balanced(
    pairs: Sequence[Pair],
    *,
    tolerance: float = 0.05,
    limit: int | None = None,
    control_share: float | None = None,
    min_keep: float = 0.5,
    rules: Sequence[FixedRule] = RULES,
    seed: int = 0,
) -> tuple[list[Pair], list[Pair]]:
    """Keep as many pairs as possible such that each rule picks chosen in half of them.

    Where that would leave less than `min_keep` of the pairs (all chosen answers are longer, say),
    the rules that stand in the way are allowed as little more than `tolerance` as lets that many
    stay; the others hold. The audit reports what is left of the imbalance. The time is linear in the
    pairs; which are kept does not depend on their order.

    Args:
        pairs: ids distinct.
        tolerance: how far from 0.5 the share of a rule may be, ties counted half, in [0, 0.5].
        limit: keep at most this many, > 0. None: any number.
        control_share: at most this share of what is kept comes from controls, in [0, 1]. None: any.
        min_keep: in [0, 1], of the pairs that could be kept if balance were no matter.
        rules: what is balanced.
        seed: which pairs are taken among those that are alike.

    Returns:
        The pairs kept and the pairs left, each in the order in which they came.

    Raises:
        ConfigError: an argument outside its range.
    """
    for name, value, high in (
        ("tolerance", tolerance, 0.5),
        ("min_keep", min_keep, 1),
        ("control_share", 0 if control_share is None else control_share, 1),
    ):
        if not 0 <= value <= high:
            raise ConfigError(f"{name} is {value}, expected in [0, {high}]")
    if limit is not None and limit < 1:
        raise ConfigError(f"limit is {limit}, expected > 0, or None for any number")
    if not pairs:
        return [], []

    of = traits_of(pairs)
    cells: dict[tuple[float, ...], list[Pair]] = defaultdict(list)
    for pair in pairs:
        a, b = of[pair.chosen], of[pair.rejected]
        # The first is no rule: controls are apart, so that their share can be held.
        said = (float(pair.item_kind == "control"), *(rule.picks(a, b) for rule in rules))
        cells[said].append(pair)
    order = sorted(cells)  # so that the solution does not depend on the order of pairs
    there = np.array([len(cells[name]) for name in order])
    table = np.array(order)  # [cells, 1 + rules]
    take = _how_many(
        there,
        is_control=table[:, 0] == 1,
        off=table[:, 1:] - 0.5,
        tolerance=tolerance,
        limit=limit,
        control_share=control_share,
        min_keep=min_keep,
    )
    kept: set[str] = set()
    for cell, number in zip(order, take, strict=True):
        alike = sorted(cells[cell], key=lambda pair: _preferred(pair, seed))
        kept.update(pair.id for pair in alike[:number])
    return [p for p in pairs if p.id in kept], [p for p in pairs if p.id not in kept]


_STEPS = (1.1, 1.25, 1.5, 2.0, 3.0)


def _preferred(pair: Pair, seed: int) -> tuple[int, str]:
    """Closest in length first, in steps, so that the seed has a say among pairs that are alike."""
    short, long = sorted((len(pair.chosen), len(pair.rejected)))
    step = sum(long > ratio * max(short, 1) for ratio in _STEPS)
    return step, text_hash(f"{seed} {pair.id}")


def _how_many(
    there: np.ndarray,
    *,
    is_control: np.ndarray,
    off: np.ndarray,
    tolerance: float,
    limit: int | None,
    control_share: float | None,
    min_keep: float,
) -> list[int]:
    """How many pairs to take from each cell.

    Args:
        there: [cells], pairs in a cell.
        is_control: [cells], whether they are of controls.
        off: [cells, rules], what a rule says minus 0.5.
        tolerance: see `balanced`, as are the others.
        limit: of the sum.
        control_share: of the sum.
        min_keep: of the sum that is possible without rules.
    """
    cells, rules = off.shape
    ones = np.ones(cells)
    fixed: list[_Row] = []
    worth = ones
    if control_share is not None:
        fixed.append((is_control - control_share, -np.inf, 0.0))
        # Up to their share controls are wanted, where it is one pair or another.
        worth = ones + 1e-3 * is_control

    def within(allowed: np.ndarray) -> list[_Row]:
        """|sum of off| <= allowed * number taken, for each rule."""
        return [
            (sign * off[:, r] - allowed[r], -np.inf, 0.0) for r in range(rules) for sign in (1, -1)
        ]

    possible = int(_solve(worth, fixed, there).sum())
    floor = int(min_keep * min(possible, limit or possible))
    allowed = np.full(rules, tolerance)
    take = _solve(worth, [*fixed, *within(allowed)], there)
    if take.sum() < floor:
        # Beside the cells one unknown per rule: by how many pairs it is further away than the
        # tolerance when exactly `floor` pairs are taken. Their sum is to be small.
        rows = [_wider(row, np.zeros(rules)) for row in [*fixed, (ones, floor, floor)]]
        for i, row in enumerate(within(allowed)):
            rows.append(_wider(row, -np.eye(rules)[i // 2]))
        cost = np.concatenate([1e-6 * ones, np.ones(rules)])
        most = np.concatenate([there, np.full(rules, there.sum())])
        found = _solve(-cost, rows, most, whole=cells)
        # With the shares of that solution allowed, as many as possible.
        allowed = np.maximum(allowed, np.abs(found @ off) / floor)
        take = _solve(worth, [*fixed, *within(allowed)], there)
    if limit is not None and take.sum() > limit:
        # All constraints hold for a part of a solution too, but for rounding. The nearest whole
        # numbers to it, so that no cell goes empty that need not: unknowns above and below it.
        part = take * (limit / take.sum())
        zero, eye = np.zeros(2 * cells), np.eye(cells)
        rows = [_wider(row, zero) for row in [*fixed, *within(allowed), (ones, 0.0, float(limit))]]
        for c in range(cells):
            rows.append((np.concatenate([eye[c], -eye[c], eye[c]]), part[c], part[c]))
        value = np.concatenate([ones, np.full(2 * cells, -1e-2)])
        most = np.concatenate([there, there, there])
        take = _solve(value, rows, most, whole=cells)
    return [int(number) for number in take]


_Row = tuple[np.ndarray, float, float]
"""low <= row @ unknowns <= high"""


def _wider(row: _Row, more: np.ndarray) -> _Row:
    return np.concatenate([row[0], more]), row[1], row[2]


_SLACK = 1e-9


def _solve(
    worth: np.ndarray, rows: Sequence[_Row], most: np.ndarray, whole: int | None = None
) -> np.ndarray:
    """The unknowns, in [0, most], of greatest total worth within these rows.

    Only the first `whole` of them, which are whole numbers, are returned; None: all.
    """
    from scipy.optimize import Bounds, LinearConstraint, milp

    whole = len(worth) if whole is None else whole
    constraints = []
    if rows:
        matrix, low, high = (np.array(column, float) for column in zip(*rows, strict=True))
        constraints = [LinearConstraint(matrix, low - _SLACK, high + _SLACK)]
    found = milp(
        -worth,
        integrality=(np.arange(len(worth)) < whole).astype(int),
        bounds=Bounds(0, most),
        constraints=constraints,
        # A node limit and not a time limit: the same pairs on a slow machine.
        options={"mip_rel_gap": 1e-3, "node_limit": 2_000},
    )
    if found.x is None:
        raise RuntimeError(f"no way to balance was found ({found.message})")
    return np.asarray(np.round(found.x[:whole]).astype(int))
