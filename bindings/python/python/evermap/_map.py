"""Maps, stores, batches and transactions, on top of what the native module has."""

from __future__ import annotations

import os
from collections.abc import ItemsView, MutableMapping, ValuesView
from typing import NamedTuple

from . import _native
from ._native import ConflictError

_ABSENT = object()


class Item(NamedTuple):
    """A value with what is stored beside it."""

    value: object
    version: int
    """Identifies this version of the record: no other one ever has the same."""
    flags: int
    ttl: float | None
    """The seconds that it has to live; None if it does not expire."""


def counter(value):
    """Returns the number in the value of a counter, as bytes."""
    if len(value) != 8:
        raise _native.CounterError(f"no counter: it has {len(value)} bytes instead of 8")
    return int.from_bytes(value, "little", signed=True)


class _Items(ItemsView):
    def __iter__(self):
        return self._mapping._walk(True)


class _Values(ValuesView):
    def __iter__(self):
        return self._mapping._walk(False)


class Map(_native.Map, MutableMapping):
    """A map in a store: a MutableMapping, for any number of threads."""

    __slots__ = ("_db",)

    def __new__(cls, db, name=None, create=True, keys=bytes, values=bytes):
        texts = [_is_text(kind, what) for kind, what in ((keys, "keys"), (values, "values"))]
        self = super().__new__(cls, db._store, name, create, *texts, db._waits)
        self._db = db
        return self

    # What is only in the native class comes before what MutableMapping has.
    __getitem__ = _native.Map.__getitem__
    __setitem__ = _native.Map.__setitem__
    __delitem__ = _native.Map.__delitem__
    __contains__ = _native.Map.__contains__

    @property
    def db(self):
        """The store that the map is in."""
        return self._db

    def items(self):
        return _Items(self)

    def values(self):
        return _Values(self)

    def set(self, key, value, ttl=None, *, flags=0):
        """Stores a value that lives for `ttl` seconds; returns its version."""
        return self._set(key, value, ttl, flags, 0)

    def add(self, key, value, ttl=None, *, flags=0):
        """Stores a value if the key is absent; returns whether it was."""
        return self._set(key, value, ttl, flags, 1) is not None

    def replace(self, key, value, ttl=None, *, flags=0):
        """Stores a value if the key is present; returns whether it was."""
        return self._set(key, value, ttl, flags, 2) is not None

    def compare_exchange(self, key, version, value, ttl=None, *, flags=0):
        """Stores a value if the record has this version; returns the new one, or None."""
        return self._exchange(key, value, version, ttl, flags)

    def item(self, key):
        """Returns the Item of a key, or None if it is absent."""
        found = self._item(key)
        return None if found is None else Item(*found)

    def decr(self, key, delta=1):
        """Subtracts from a counter; returns what it is then."""
        return self.incr(key, -delta)

    def pop(self, key, default=_ABSENT):
        value = self._pop(key)
        if value is not None:
            return value
        if default is _ABSENT:
            raise KeyError(key)
        return default

    def popitem(self):
        for key in self:
            # Another thread may have been faster.
            value = self._pop(key)
            if value is not None:
                return key, value
        raise KeyError("the map is empty")

    def update(self, other=(), /, *, ttl=None, **pairs):
        """Stores pairs, each for itself; with a log they share syncs. A batch stores all or none."""
        self._update(other, ttl=ttl, **pairs)

    def batch(self):
        """Returns a Batch whose changes concern this map."""
        return Batch(self)

    def __eq__(self, other):
        # MutableMapping copies both into dicts.
        if self is other:
            return True
        if not isinstance(other, MutableMapping | dict):
            return NotImplemented
        return len(self) == len(other) and all(
            other.get(key, _ABSENT) == value for key, value in self.items()
        )

    __hash__ = object.__hash__

    def __repr__(self):
        name = "" if self.name is None else f" {self.name!r} of"
        return f"<{type(self).__name__}{name} {self.db._path or 'in memory'}>"


class Evermap(Map):
    """A store, used as its default map. `open` and `in_memory` make one."""

    __slots__ = ("_store", "_path", "_waits", "_kinds")

    def __new__(cls, store, path, waits, keys, values):
        # What Map.__new__ needs of a store.
        opened = _Opened(store, path, waits)
        self = super().__new__(cls, opened, None, True, keys, values)
        self._store, self._path, self._waits = store, path, waits
        self._kinds = keys, values
        # A reference to itself would keep the store open until the garbage is collected.
        self._db = None
        return self

    @property
    def db(self):
        return self

    def map(self, name, *, create=True, keys=None, values=None):
        """Returns the map of this name in the same file."""
        keys, values = keys or self._kinds[0], values or self._kinds[1]
        return Map(self, name, create, keys, values)

    def maps(self):
        """Returns the names of all maps but the default one."""
        return self._store.maps()

    def drop_map(self, name):
        """Removes a map with all that is in it; returns whether there was one."""
        return self._store.drop_map(name)

    def transaction(self, body, *, attempts=None):
        """Calls `body` with a Transaction until nothing came in between; returns its result."""
        attempt = 0
        while True:
            transaction = Transaction(self)
            result = body(transaction)
            refused = transaction._commit()
            if refused is None:
                return result
            attempt += 1
            if attempts is not None and attempt >= attempts:
                raise ConflictError(
                    f"transaction was overtaken in {attempt} attempts: "
                    f"key {refused!r} was changed meanwhile; try again"
                )

    def snapshot(self, limit=None):
        """Returns the store as it is now, to be read while it is changed."""
        store = self._store.snapshot(limit)
        return Evermap(store, self._path, False, *self._kinds)

    def backup(self, path):
        """Writes a copy of the store as it is now to a new file; returns its bytes."""
        return self._store.backup(path)

    def check(self, *, deep=False):
        """Returns what is wrong with the store, as a list of sentences."""
        return self._store.check(deep)

    def compact(self):
        """Returns free space of sparse parts of the file to the system; returns the bytes."""
        return self._store.compact()

    def sync(self):
        """Waits until what this thread has changed is durable, if the store has a log."""
        self._store.sync()

    def close(self):
        """Closes the store for all handles of it and of its maps. Closing again does nothing."""
        self._store.close()

    def __enter__(self):
        return self

    def __exit__(self, *raised):
        self.close()


class _Opened:
    """A store before there is an Evermap of it."""

    __slots__ = ("_store", "_path", "_waits")

    def __init__(self, store, path, waits):
        self._store, self._path, self._waits = store, path, waits


class Batch:
    """Changes of several keys, of several maps, that happen together or not at all.

    As a context manager it is applied at the end, unless there was an exception; then it raises
    ConflictError if a condition does not hold.
    """

    __slots__ = ("_map", "_native")

    def __init__(self, map, native=None):
        self._map, self._native = map, native or _native.Batch()

    def on(self, map):
        """Returns this batch, for changes of another map of the same store."""
        return Batch(map, self._native)

    def set(self, key, value, ttl=None, *, flags=0):
        self._native.put(self._map, key, value, ttl, flags)

    def delete(self, key):
        """Removes a key, if it is present."""
        self._native.remove(self._map, key)

    def incr(self, key, delta=1):
        self._native.incr(self._map, key, delta)

    def expect(self, key, version):
        """Adds the condition that a record has this version, or is absent if that is None."""
        self._native.expect(self._map, key, version)

    def __setitem__(self, key, value):
        self._native.put(self._map, key, value, None, 0)

    def __delitem__(self, key):
        self._native.remove(self._map, key)

    def __len__(self):
        return len(self._native)

    def apply(self):
        """Makes all changes, or none; returns whether all conditions held."""
        return self._native.apply(self._map.db._store) is None

    def clear(self):
        self._native.clear()

    def __enter__(self):
        return self

    def __exit__(self, kind, *raised):
        if kind is None:
            refused = self._native.apply(self._map.db._store)
            if refused is not None:
                raise ConflictError(
                    f"a condition on key {refused!r} does not hold; nothing was changed"
                )


class Transaction:
    """Reads and changes of several keys, as if nobody else were there.

    What was read becomes the conditions of a batch, what was changed its changes. If a condition
    does not hold, the transaction is run again.
    """

    __slots__ = ("_db", "_batch", "_reads", "_changes", "_added")

    def __init__(self, db):
        self._db, self._batch = db, _native.Batch()
        self._reads, self._changes, self._added = {}, {}, {}

    def get(self, key, default=None, *, map=None):
        map = self._db if map is None else map
        at = (map.name, key)
        if at in self._added:
            raise ValueError("a counter that was added to cannot be read in the same transaction")
        if at in self._changes:
            value = self._changes[at]
        else:
            if at not in self._reads:
                item = map.item(key)
                self._reads[at] = item
                self._batch.expect(map, key, None if item is None else item.version)
            item = self._reads[at]
            value = _ABSENT if item is None else item.value
        return default if value is _ABSENT else value

    def set(self, key, value, ttl=None, *, map=None):
        map = self._db if map is None else map
        self._batch.put(map, key, value, ttl, 0)
        self._added.pop((map.name, key), None)
        self._changes[map.name, key] = value

    def delete(self, key, *, map=None):
        map = self._db if map is None else map
        self._batch.remove(map, key)
        self._added.pop((map.name, key), None)
        self._changes[map.name, key] = _ABSENT

    def incr(self, key, delta=1, *, map=None):
        """Adds to a counter without reading it, so that two that add are no conflict."""
        map = self._db if map is None else map
        self._batch.incr(map, key, delta)
        self._added[map.name, key] = True

    def _commit(self):
        return self._batch.apply(self._db._store) if len(self._batch) else None


def _is_text(kind, what):
    if kind is bytes:
        return False
    if kind is str:
        return True
    raise TypeError(f"{what} is bytes or str, not {kind!r}")


def _texts(options):
    """Returns options as the native module takes them."""
    texts = {}
    for name, value in options.items():
        if value is None:
            continue
        if isinstance(value, bool):
            texts[name] = "true" if value else "false"
        elif isinstance(value, os.PathLike):
            texts[name] = os.fspath(value)
        else:
            texts[name] = str(value)
    return texts


def open(path, *, keys=bytes, values=bytes, **options):
    """Opens the store in a file, or creates it. The options are in docs/use/python.md."""
    waits = options.get("durability") == "log"
    path = os.fspath(path)
    store = _native.Store(path, _texts(options))
    return Evermap(store, path, waits, keys, values)


def in_memory(*, keys=bytes, values=bytes, **options):
    """Creates a store in memory, which is gone with the process."""
    return Evermap(_native.Store(None, _texts(options)), None, False, keys, values)
