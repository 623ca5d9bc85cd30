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
from typing import Any

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

    def with_room(rows: list[_Row], most: np.ndarray, least: np.ndarray | None) -> np.ndarray:
        """At least `floor`: what parts of pairs can do, whole ones may need a pair or two more for."""
        for room in range(floor + 1):
            wider = allowed + room / max(floor, 1)
            found = _solve(worth, [*rows, *within(wider)], most, least=least)
            if found.sum() >= floor:
                break
        return found

    possible = int(_solve(worth, fixed, there, whole=False).sum() + _SLACK)
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
        found = _solve(-cost, rows, most, whole=False)[:cells]
        # With the shares of that solution allowed, as many as possible.
        allowed = np.maximum(allowed, np.abs(found @ off) / floor)
        take = with_room(fixed, there, None)
    if limit is not None and take.sum() > limit:
        # All rows hold for a part of a solution too, but for rounding. So each cell keeps its part,
        # rounded one way or the other, and no cell goes empty that need not.
        part = take * (limit / take.sum())
        rows = [*fixed, (ones, 0.0, float(limit))]
        take = with_room(rows, np.ceil(part), np.floor(part))
    return [int(number) for number in take]


_Row = tuple[np.ndarray, float, float]
"""low <= row @ unknowns <= high"""


def _wider(row: _Row, more: np.ndarray) -> _Row:
    return np.concatenate([row[0], more]), row[1], row[2]


_SLACK = 1e-9


def _solve(
    worth: np.ndarray,
    rows: Sequence[_Row],
    most: np.ndarray,
    *,
    least: np.ndarray | None = None,
    whole: bool = True,
) -> np.ndarray:
    """The unknowns, in [least, most], of greatest total worth within these rows; of whole numbers, nearly.

    Where there are none, `least` is given up.
    """
    from scipy.optimize import Bounds, LinearConstraint, milp

    matrix = np.array([row for row, _, _ in rows]).reshape(len(rows), len(worth))
    low = np.array([low for _, low, _ in rows]) - _SLACK
    high = np.array([high for _, _, high in rows]) + _SLACK
    none = np.zeros(len(worth))

    def solved(least: np.ndarray, gap: float, whole: bool) -> Any:
        return milp(
            -worth,
            integrality=np.full(len(worth), int(whole)),
            bounds=Bounds(least, most),
            constraints=[LinearConstraint(matrix, low, high)] if rows else [],
            # A node limit and not a time limit: the same pairs on a slow machine.
            options={"mip_rel_gap": gap, "node_limit": 100},
        )

    parts = solved(none if least is None else least, 0.0, whole=False).x
    if parts is None:
        parts = solved(none, 0.0, whole=False).x
    if not whole:
        return np.asarray(parts)
    # At most as many unknowns as there are rows are not whole in such a solution. Rounding them down
    # and mending what that breaks loses a few pairs at most; the search for the last of them can take
    # minutes, so it is made where there are few.
    rounded = _mended(np.floor(parts + 1e-6), matrix, high)
    lost = parts.sum() - rounded.sum()
    if lost < 1 or lost <= 0.005 * parts.sum():
        return rounded.astype(int)
    found = solved(none, min(0.01, 3 / parts.sum()), whole=True).x
    best = rounded if found is None or found.sum() < rounded.sum() else np.round(found)
    return np.asarray(best.astype(int))


def _mended(taken: np.ndarray, matrix: np.ndarray, high: np.ndarray) -> np.ndarray:
    """Take away one pair at a time, the one that mends most, until matrix @ taken <= high."""
    taken = taken.copy()
    value = matrix @ taken
    while (value > high).any():
        without = np.maximum(value[:, None] - matrix - high[:, None], 0).sum(axis=0)
        cell = int(np.where(taken > 0, without, np.inf).argmin())
        taken[cell] -= 1
        value -= matrix[:, cell]
    return taken
