"""The items of a recipe on their sides: what is trained on, what is evaluated, and no item in both.

Not here: loading and splitting (`sides.py`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from xyreward.answering import place_of
from xyreward.config import EvaluationConfig, ItemsConfig, Recipe
from xyreward.errors import DataError, LeakError
from xyreward.items import Item
from xyreward.locate import short_hash, trained_on
from xyreward.pairs.held_out import HeldOut
from xyreward.sides import Sides, limited, load_sides
from xyreward.splits import Splits
from xyreward.which_items import which_items


@dataclass(frozen=True)
class Data:
    """The items of a recipe on their sides."""

    train: tuple[Item, ...]
    held_out: tuple[Item, ...]
    """What is evaluated: one side, controls included. Never items that are trained on here; others that are
    on the train side where the whole set, or all of a source, was asked for."""
    sides: Sides

    @property
    def splits(self) -> Splits:
        """The side of every item."""
        return self.sides.splits

    @property
    def clusters(self) -> dict[str, str]:
        """Item id -> cluster, of the held-out items."""
        return self.sides.clusters(self.held_out)

    @cached_property
    def kept_out(self) -> HeldOut:
        """What must not be trained on: dev and test, and whatever else is evaluated."""
        known = {item.id for side in ("dev", "test") for item in self.sides.select(side)}
        others = [item for item in self.held_out if item.id not in known]
        if not others:
            return self.sides.held_out
        sides = [*self.sides.select("dev"), *self.sides.select("test")]
        return HeldOut([*sides, *others], self.splits)

    @property
    def of_train_side(self) -> int:
        """How many of the items that are evaluated are train items, too: of the whole set some are."""
        train = {item.id for item in self.train}
        return sum(item.id in train for item in self.held_out)

    def hashes_near(self, items: Iterable[Item]) -> set[str]:
        """Content hashes of some of these items, and of whatever nearly repeats those."""
        placements = self.splits.placements
        clusters = {placements[item.content_hash].cluster for item in items}
        return {key for key, placement in placements.items() if placement.cluster in clusters}


def load_data(config: Recipe, *, dry_run: bool = False) -> Data:
    """Load every source, put every item on a side, and make sure that nothing held out is trained on.

    Args:
        config: of the recipe.
        dry_run: the splits' lock is left as it is.

    Raises:
        DataError: see `load_sides`; also: nothing to evaluate.
        LeakError: see `load_sides`; also: what would be evaluated is what a recipe has trained the policy
            on.
    """
    wanted = config.evaluation
    sources = list(config.items)
    added = wanted.controls == "mini" and not _bring_controls(config)
    if added:
        sources.append(ItemsConfig(source="mini", kinds=("control",)))
    sides = load_sides(sources, config.splits_lock, write_lock=not dry_run)
    held_out, train = _chosen(sides, wanted), sides.select("train")
    if added:  # of one side, also where all items are asked for
        asked = (item for item in held_out if item.kind == "xy")
        held_out = (*asked, *_side_of_controls(sides, wanted))
    if wanted.leave_out is not None:
        train = sides.train_without(held_out)
    if wanted.parts and not held_out:
        raise DataError([f"{which_items(wanted)}: no item, nothing to evaluate"])
    evaluated = limited(held_out, wanted.limit) if wanted.parts else []
    if place_of(config.policy.model) == "here":
        policy = config.policy
        check_not_trained_on(f"policy {policy.model!r}", policy.model, policy.revision, evaluated)
    return Data(train, tuple(evaluated), sides)


def _bring_controls(config: Recipe) -> bool:
    """Whether there are controls among what would be evaluated of the items alone."""
    sides = load_sides(config.items, config.splits_lock, write_lock=False)
    return any(item.kind == "control" for item in _chosen(sides, config.evaluation))


def _chosen(sides: Sides, wanted: EvaluationConfig) -> tuple[Item, ...]:
    """What is to be evaluated, all of it.

    Where one source or some are asked for and these have no controls (XYBench has none), the controls of
    the others are evaluated with them, those of one side.
    """
    if wanted.leave_out is not None:
        found = sides.of_source(wanted.leave_out)
    else:
        found = sides.items if wanted.split == "all" else sides.select(wanted.split)
    if wanted.sources:
        for source in wanted.sources:
            sides.of_source(source)  # one that does not exist is a typo
        found = tuple(item for item in found if item.source in wanted.sources)
    if wanted.controls == "none":
        return tuple(item for item in found if item.kind == "xy")
    if not any(item.kind == "control" for item in found):
        found += _side_of_controls(sides, wanted)
    return found


def _side_of_controls(sides: Sides, wanted: EvaluationConfig) -> tuple[Item, ...]:
    """The controls that are evaluated where those that were asked for have none."""
    others = sides.select("dev" if wanted.split == "dev" else "test")
    return tuple(item for item in others if item.kind == "control")


def check_not_trained_on(
    what: str,
    name: str,
    revision: str | None,
    items: Sequence[Item],
    advice: str = "Evaluate with the sides of its training (splits_lock: the splits.json of its run folder)",
) -> None:
    """Splits can differ between a model's training and what is held out now; its mark knows.

    Args:
        what: the model, for messages.
        name: where it lies; see `locate.trained_on`.
        revision: commit of a hub model.
        items: that it must not have been trained on.
        advice: what to do about it.

    Raises:
        LeakError: it was, with the ids.
        ConfigError, HubUnreachable: see `trained_on`.
    """
    check_not_seen(f"{what} was trained on", trained_on(name, revision), items, advice)


def check_not_seen(what: str, seen: Collection[str], items: Sequence[Item], advice: str) -> None:
    """Make sure that none of these items is among those that a model has learnt something from.

    Args:
        what: the model and what it did with them, for messages.
        seen: their `short_hash`es.
        items: that are held out or evaluated.
        advice: what to do about it.

    Raises:
        LeakError: there are some, with the ids.
    """
    offending = [item.id for item in items if short_hash(item.content_hash) in seen]
    if offending:
        raise LeakError(
            f"{what} {len(offending)} of the {len(items)} items that are held out or "
            f"evaluated: {', '.join(offending[:10])}{', ...' if len(offending) > 10 else ''}. {advice}",
            offending,
        )
