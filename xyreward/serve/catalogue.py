"""The items that a service names by id, and the ones that it keeps from being trained on."""

from __future__ import annotations

from collections.abc import Sequence

from xyreward.items import Item
from xyreward.words import did_you_mean

HINTS_UP_TO = 2_000
"""Items; among more a near miss takes longer to find than a request may cost."""


class NotServedError(Exception):
    """An item that is not known, or that is held out. The message says which."""


class Catalogue:
    """Items by id. Held-out ones are named in messages and refused in whatever form they come."""

    def __init__(self, items: Sequence[Item], held_out: Sequence[Item] = ()) -> None:
        """Make one.

        Args:
            items: those that are served, with distinct ids.
            held_out: those that are not, by their query: a reward for them would train on them.
        """
        self._items = {item.id: item for item in items}
        self._held_out = {item.content_hash for item in held_out}
        self._held_out_ids = {item.id for item in held_out}

    def __len__(self) -> int:
        return len(self._items)

    @property
    def items(self) -> tuple[Item, ...]:
        """Those that are served."""
        return tuple(self._items.values())

    def named(self, item_id: str) -> Item:
        """The item of this id.

        Raises:
            NotServedError: it is held out, or there is none.
        """
        if item_id in self._items:
            return self._items[item_id]
        if item_id in self._held_out_ids:
            raise NotServedError(f"item {item_id[:80]!r} {_HELD_OUT}")
        hint = did_you_mean(item_id[:80], self._items) if len(self) <= HINTS_UP_TO else ""
        raise NotServedError(
            f"no item {item_id[:80]!r} among the {len(self)} that are served"
            + (
                f"; {hint}"
                if hint
                else "; start the service with --items that hold it, or send the item"
            )
        )

    def checked(self, item: Item) -> Item:
        """An item that came along, if its query is not that of a held-out one.

        Raises:
            NotServedError: it is.
        """
        if self._held_out and item.content_hash in self._held_out:
            raise NotServedError(f"the query of item {item.id[:80]!r} {_HELD_OUT}")
        return item


_HELD_OUT = (
    "is held out for evaluation, and rewards are for training; to score it anyway start the service "
    "with --split all"
)
