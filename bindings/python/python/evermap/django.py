"""A cache backend for Django that is warm again directly after a restart.

    CACHES = {
        "default": {
            "BACKEND": "evermap.django.EvermapCache",
            "LOCATION": "/dev/shm/app.map",
            "OPTIONS": {"memory_limit": "256M", "evict": True},
        }
    }

OPTIONS are those of evermap.open(); with `map`, the name of a map in the file, which then may hold
other things too. One process at a time can have the file open: docs/use/python.md says how to run
several workers. Values are pickled, except for integers, so the file must not come from strangers.
"""

from __future__ import annotations

import os
import pickle
import threading
import time

from django.core.cache.backends.base import DEFAULT_TIMEOUT, BaseCache

import evermap

# The flags of a record: what its value is.
_PICKLED, _INTEGER = 1, 2
# Changes that are made together: any number of keys must fit into the cache one after the other.
_TOGETHER = 100

_stores = {}
_lock = threading.Lock()


def _store(path, options):
    """Returns the store in a file. Django makes a backend for each thread; they share one."""
    # A child process cannot write by what its parent has opened.
    at = os.getpid(), os.path.abspath(path)
    with _lock:
        if at not in _stores:
            _stores[at] = evermap.open(path, **options)
        return _stores[at]


class EvermapCache(BaseCache):
    def __init__(self, location, params):
        super().__init__(params)
        self._path = location
        self._options = dict(params.get("OPTIONS") or {})
        # Those of BaseCache.
        for name in ("MAX_ENTRIES", "CULL_FREQUENCY"):
            self._options.pop(name, None)
        self._name = self._options.pop("map", None)
        self._opened = None

    @property
    def _map(self):
        """The map, opened when it is first used: after a server has forked its workers."""
        if self._opened is None or self._opened[0] != os.getpid():
            store = _store(self._path, self._options)
            self._opened = os.getpid(), store.map(self._name) if self._name else store
        return self._opened[1]

    def _key(self, key, version):
        return self.make_and_validate_key(key, version=version).encode()

    def _ttl(self, timeout):
        """Returns the seconds that something lives; None is for ever."""
        at = self.get_backend_timeout(timeout)
        return None if at is None else max(at - time.time(), 0)

    def add(self, key, value, timeout=DEFAULT_TIMEOUT, version=None):
        value, flags = _encoded(value)
        return self._map.add(self._key(key, version), value, self._ttl(timeout), flags=flags)

    def get(self, key, default=None, version=None):
        item = self._map.item(self._key(key, version))
        return default if item is None else _decoded(item)

    def set(self, key, value, timeout=DEFAULT_TIMEOUT, version=None):
        value, flags = _encoded(value)
        self._map.set(self._key(key, version), value, self._ttl(timeout), flags=flags)

    def touch(self, key, timeout=DEFAULT_TIMEOUT, version=None):
        return self._map.expire(self._key(key, version), self._ttl(timeout))

    def delete(self, key, version=None):
        return self._map.delete(self._key(key, version))

    def has_key(self, key, version=None):
        return self._key(key, version) in self._map

    def incr(self, key, delta=1, version=None):
        at = self._key(key, version)
        while True:
            item = self._map.item(at)
            if item is None:
                raise ValueError(f"Key '{key}' not found")
            value = _decoded(item) + delta
            encoded, flags = _encoded(value)
            stored = self._map.compare_exchange(at, item.version, encoded, item.ttl, flags=flags)
            if stored is not None:
                return value

    def set_many(self, data, timeout=DEFAULT_TIMEOUT, version=None):
        batch, ttl = self._map.batch(), self._ttl(timeout)
        for key, value in data.items():
            value, flags = _encoded(value)
            batch.set(self._key(key, version), value, ttl, flags=flags)
            _apply(batch, _TOGETHER)
        _apply(batch, 1)
        return []

    def delete_many(self, keys, version=None):
        batch = self._map.batch()
        for key in keys:
            batch.delete(self._key(key, version))
            _apply(batch, _TOGETHER)
        _apply(batch, 1)

    def clear(self):
        self._map.clear()


def _apply(batch, least):
    """Makes the changes of a batch, if it has as many, and empties it."""
    if len(batch) >= least:
        batch.apply()
        batch.clear()


def _encoded(value):
    # A bool is an int, and is to be a bool again.
    if type(value) is int and -(2**63) <= value < 2**63:
        return value.to_bytes(8, "little", signed=True), _INTEGER
    return pickle.dumps(value, protocol=5), _PICKLED


def _decoded(item):
    return evermap.counter(item.value) if item.flags == _INTEGER else pickle.loads(item.value)
