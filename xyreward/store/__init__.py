"""The verdict store: what was paid for is there, once, for every process of the machine."""

from xyreward.store.batches import Batch, Batches, BatchRow
from xyreward.store.ledger import Ledger, Spent
from xyreward.store.verdicts import StoredVerdict, VerdictStore, store_path

# Not here, because a training run needs none of it: export, import_ and merge (`store.exchange`, which
# imports pydantic), info and prune (`store.upkeep`).
__all__ = [
    "Batch",
    "BatchRow",
    "Batches",
    "Ledger",
    "Spent",
    "StoredVerdict",
    "VerdictStore",
    "store_path",
]
