"""A dict that outlives its process: a crash-surviving key-value store.

    import evermap

    with evermap.open("fruit.map", keys=str, values=str) as fruit:
        fruit["apple"] = "red"

The guide is docs/use/python.md in the repository.
"""

from ._cache import cache
from ._map import Batch, Evermap, Item, Map, Transaction, counter, in_memory, open
from ._native import (
    ClosedError,
    ConflictError,
    CounterError,
    DamagedError,
    Error,
    ForkedError,
    HeldError,
    InUseError,
    NoSpaceError,
    NotFoundError,
    NotOrderedError,
    ReadOnlyError,
    SuspectError,
    __version__,
    restore,
)

__all__ = [
    "Batch",
    "ClosedError",
    "ConflictError",
    "CounterError",
    "DamagedError",
    "Error",
    "Evermap",
    "ForkedError",
    "HeldError",
    "InUseError",
    "Item",
    "Map",
    "NoSpaceError",
    "NotFoundError",
    "NotOrderedError",
    "ReadOnlyError",
    "SuspectError",
    "Transaction",
    "__version__",
    "cache",
    "counter",
    "in_memory",
    "open",
    "restore",
]
