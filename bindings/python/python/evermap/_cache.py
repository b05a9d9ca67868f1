"""A cache of what functions return, which outlives the process."""

from __future__ import annotations

import functools
import hashlib
import inspect
import pickle
from collections import namedtuple

CacheInfo = namedtuple("CacheInfo", ["hits", "misses"])


def cache(db, ttl=None, *, name=None, key=None):
    """Keeps what a function returns in a map, by its arguments.

        @evermap.cache(db, ttl=60)
        def slow(town, *, units="metric"): ...

    Arguments and results are pickled, so the file must not come from strangers. `name` is the first
    part of the keys, the function's module and name unless it is given; a function whose results
    have changed needs another one, or `slow.cache_clear()`. `key` makes the rest of a key of the
    arguments, as bytes. An exception is not kept. Works for `async def`, too.

    The function has `cache_info()`, which counts since the process began, `cache_clear()`, which
    forgets all that is kept of this function, `cache_delete(*arguments)`, and `__wrapped__`.
    """

    def decorate(function):
        prefix = (name or f"{function.__module__}.{function.__qualname__}").encode() + b"\0"
        map = _raw(db)
        counts = [0, 0]

        def key_of(arguments, named):
            if key is not None:
                return prefix + key(*arguments, **named)
            # Pickles of equal arguments are nearly always equal; if not, the function is called
            # once more.
            pickled = pickle.dumps((arguments, sorted(named.items())), protocol=5)
            return prefix + hashlib.blake2b(pickled, digest_size=20).digest()

        def find(at):
            found = map.get(at)
            counts[found is None] += 1
            return found

        if inspect.iscoroutinefunction(function):

            @functools.wraps(function)
            async def cached(*arguments, **named):
                at = key_of(arguments, named)
                found = find(at)
                if found is not None:
                    return pickle.loads(found)
                result = await function(*arguments, **named)
                map.set(at, pickle.dumps(result, protocol=5), ttl)
                return result

        else:

            @functools.wraps(function)
            def cached(*arguments, **named):
                at = key_of(arguments, named)
                found = find(at)
                if found is not None:
                    return pickle.loads(found)
                result = function(*arguments, **named)
                map.set(at, pickle.dumps(result, protocol=5), ttl)
                return result

        def cache_clear():
            for at in list(map):
                if at.startswith(prefix):
                    map.delete(at)
            counts[:] = 0, 0

        cached.cache_info = lambda: CacheInfo(*counts)
        cached.cache_clear = cache_clear
        cached.cache_delete = lambda *arguments, **named: map.delete(key_of(arguments, named))
        return cached

    return decorate


def _raw(map):
    """Returns the same map with keys and values as bytes."""
    from ._map import Map

    return Map(map.db, map.name, False)
