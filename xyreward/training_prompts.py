"""Which train items a policy answers while it is trained by reward.

Not here: rewards (`trl_rewards.py`), pairs for other trainers (`training_pairs.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from xyreward.config import PromptsConfig
from xyreward.errors import DataError
from xyreward.items import Item, items_hash


@dataclass(frozen=True)
class Prompts:
    """Items whose queries are answered."""

    items: tuple[Item, ...]
    judge: str
    """Name of the judge whose reward they are answered for."""
    dropped: Mapping[str, int] = field(default_factory=dict)
    """Reason -> train items that were left out."""
    behind_reward: frozenset[str] = frozenset()
    """`short_hash` of the items that a reward model was trained or calibrated on: what they teach reaches the
    policy."""

    @property
    def control_share(self) -> float:
        """In [0, 1]."""
        return sum(item.kind == "control" for item in self.items) / len(self.items)

    @property
    def hash(self) -> str:
        """sha256 (hex) of the items."""
        return items_hash(self.items)


def choose_prompts(wanted: PromptsConfig, train: Sequence[Item], judge: str) -> Prompts:
    """The prompts of a recipe: controls up to their share, then as many as wanted, first by content hash.

    Raises:
        DataError: there is none.
    """
    ordered = sorted(train, key=lambda item: item.content_hash)
    hidden = [item for item in ordered if item.kind != "control"]
    controls = [item for item in ordered if item.kind == "control"]
    if not hidden:
        room = len(controls)
    else:
        room = round(len(hidden) * wanted.control_share / (1 - wanted.control_share))
    kept = [*hidden, *controls[:room]]
    dropped = {"control_share": len(controls) - len(controls[:room])}
    if wanted.max_prompts is not None and len(kept) > wanted.max_prompts:
        of_controls = round(len(kept[len(hidden) :]) / len(kept) * wanted.max_prompts)
        cut = [*hidden[: wanted.max_prompts - of_controls], *controls[:of_controls]]
        dropped["max_prompts"] = len(kept) - len(cut)
        kept = cut
    if not kept:
        raise DataError(["no item is on the train side: nothing to answer"])
    return Prompts(tuple(kept), judge, {reason: n for reason, n in dropped.items() if n})
