"""A backend for Flask-Caching that is warm again directly after a restart.

    app.config.update(
        CACHE_TYPE="evermap.flask.EvermapCache",
        CACHE_EVERMAP_PATH="/dev/shm/app.map",
        CACHE_OPTIONS={"memory_limit": "256M", "evict": True},
    )
    cache = flask_caching.Cache(app)

CACHE_OPTIONS are those of evermap.open(). One process at a time can have the file open:
docs/use/python.md says how to run several workers. Values are pickled, so the file must not come
from strangers.
"""

from __future__ import annotations

import os
import pickle

from cachelib.base import BaseCache as _CachelibCache
from flask_caching.backends.base import BaseCache

import evermap


class EvermapCache(BaseCache, _CachelibCache):
    def __init__(self, path, default_timeout=300, ignore_delete_many_errors=None, **options):
        super().__init__(default_timeout=default_timeout)
        self._path, self._options, self._opened = path, options, None

    @classmethod
    def factory(cls, app, config, arguments, options):
        path = config.get("CACHE_EVERMAP_PATH")
        if not path:
            raise ValueError("CACHE_EVERMAP_PATH says where the cache is; it is not set")
        options.setdefault("default_timeout", config.get("CACHE_DEFAULT_TIMEOUT", 300))
        return cls(path, *arguments, **options)

    @property
    def _map(self):
        """The store, opened when it is first used: after a server has forked its workers."""
        if self._opened is None or self._opened[0] != os.getpid():
            self._opened = os.getpid(), evermap.open(self._path, **self._options)
        return self._opened[1]

    def _ttl(self, timeout):
        """Returns the seconds that something lives; 0 and -1 are for ever, None is the default."""
        timeout = self.default_timeout if timeout is None else timeout
        return timeout if timeout > 0 else None

    def get(self, key):
        found = self._map.get(key.encode())
        return None if found is None else pickle.loads(found)

    def get_many(self, *keys):
        found = self._map.get_many([key.encode() for key in keys])
        return [None if value is None else pickle.loads(value) for value in found]

    def set(self, key, value, timeout=None):
        self._map.set(key.encode(), pickle.dumps(value, protocol=5), self._ttl(timeout))
        return True

    def add(self, key, value, timeout=None):
        return self._map.add(key.encode(), pickle.dumps(value, protocol=5), self._ttl(timeout))

    def set_many(self, mapping, timeout=None):
        pairs, ttl = dict(mapping), self._ttl(timeout)
        self._map.update(
            ((key.encode(), pickle.dumps(value, protocol=5)) for key, value in pairs.items()),
            ttl=ttl,
        )
        return list(pairs)

    def delete(self, key):
        return self._map.delete(key.encode())

    def delete_many(self, *keys):
        return [key for key in keys if self._map.delete(key.encode())]

    def has(self, key):
        return key.encode() in self._map

    def clear(self):
        self._map.clear()
        return True
