"""The decorator, and the backends of Django and Flask-Caching."""

import asyncio
import os
import subprocess
import sys
import time

import pytest

import evermap


def test_the_decorator_keeps_results(path):
    calls = []

    def make(db):
        @evermap.cache(db, ttl=60, name="add")
        def add(a, b=1, *, c=0):
            """Adds."""
            calls.append((a, b, c))
            if a < 0:
                raise ValueError(a)
            return {"sum": a + b + c}

        return add

    with evermap.open(path, keys=str, values=str) as db:
        add = make(db)
        assert add.__doc__ == "Adds." and add.__wrapped__(1) == {"sum": 2}
        calls.clear()
        assert add(1) == add(1) == {"sum": 2} and add(1, c=5) == {"sum": 7}
        assert calls == [(1, 1, 0), (1, 1, 5)] and add.cache_info() == (1, 2)
        for _ in range(2):
            with pytest.raises(ValueError):
                add(-1)
        assert len(calls) == 4
    calls.clear()
    with evermap.open(path) as db:
        add = make(db)
        assert add(1) == {"sum": 2} and calls == []
        assert add.cache_delete(1) and add(1) == {"sum": 2} and len(calls) == 1
        db[b"other"] = b"1"
        add.cache_clear()
        assert list(db) == [b"other"] and add.cache_info() == (0, 0)


def test_the_decorator_takes_none_and_keys_of_its_own():
    with evermap.in_memory() as db:
        calls = []

        @evermap.cache(db, key=lambda who: who.lower().encode())
        def find(who):
            calls.append(who)
            return None

        assert find("Ann") is find("ANN") is None and calls == ["Ann"]
        assert [key.split(b"\0")[1] for key in db] == [b"ann"]


def test_the_decorator_takes_coroutines():
    with evermap.in_memory() as db:
        calls = []

        @evermap.cache(db, ttl=60)
        async def slow(number):
            calls.append(number)
            await asyncio.sleep(0)
            return number * 2

        async def twice():
            return await slow(4), await slow(4)

        assert asyncio.run(twice()) == (8, 8) and calls == [4]


DJANGO = """
import sys
from django.conf import settings
settings.configure(CACHES={"default": {
    "BACKEND": "evermap.django.EvermapCache", "LOCATION": sys.argv[1], "KEY_PREFIX": "app",
    "OPTIONS": {"memory_limit": "16M", "evict": True}, "TIMEOUT": 300}})
import django
django.setup()
from django.core.cache import cache
"""


def django(script, path):
    done = subprocess.run(
        [sys.executable, "-c", DJANGO + script, path], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_django(path):
    pytest.importorskip("django")
    shown = django(
        """
import datetime, threading, time
cache.set("text", "value"), cache.set("none", None), cache.set("bool", True)
cache.set("day", datetime.date(2026, 1, 2), timeout=None), cache.set("number", 5, timeout=3600)
assert cache.get("text") == "value" and cache.get("none", 7) is None and cache.get("x", 7) == 7
assert cache.get("bool") is True and cache.get("number") == 5
assert cache.incr("number") == 6 and cache.decr("number", 2) == 4 and cache.get("number") == 4
try:
    cache.incr("x")
    assert False
except ValueError:
    pass
assert cache.add("text", "other") is False and cache.add("new", 1) is True
assert cache.set_many({"a": 1, "b": [2]}) == []
assert cache.get_many(["a", "b", "x"]) == {"a": 1, "b": [2]}
cache.delete_many(["a", "x"])
# Many more than a batch may have, and than there is space for.
many = {str(number): bytes(300) for number in range(70_000)}
assert cache.set_many(many) == [] and cache.get("69999") == bytes(300)
cache.delete_many(many)
assert cache.get("69999") is None
assert "a" not in cache and "b" in cache and cache.delete("b") and not cache.delete("b")
assert cache.get_or_set("made", lambda: "once") == "once" == cache.get_or_set("made", lambda: 0)
cache.set("versions", 1, version=2)
assert cache.get("versions") is None and cache.get("versions", version=2) == 1
cache.set("gone", 1, timeout=0), cache.set("short", 1, timeout=1)
assert cache.get("gone") is None and cache.touch("text", 60) and not cache.touch("x")
time.sleep(2.5)
assert cache.get("short") is None and cache.get("text") == "value"
threads = [threading.Thread(target=lambda: [cache.incr("number") for _ in range(100)]) for _ in "1234"]
[thread.start() for thread in threads], [thread.join() for thread in threads]
print(cache.get("number"), flush=True)
import os
os._exit(0)  # as after a kill: nothing is closed
""",
        path,
    )
    assert shown == "404\n"
    # A restart, without a word to the cache before.
    shown = django(
        """
print(cache.get("number"), cache.get("day"), cache.get("text"))
cache.clear()
print(cache.get("number"), "text" in cache)
""",
        path,
    )
    assert shown == "404 2026-01-02 value\nNone False\n"


FLASK = """
import sys
import flask, flask_caching
app = flask.Flask("test")
app.config.update(CACHE_TYPE="evermap.flask.EvermapCache", CACHE_EVERMAP_PATH=sys.argv[1],
    CACHE_OPTIONS={"memory_limit": "16M", "evict": True})
cache = flask_caching.Cache(app)
calls = []
@app.route("/")
@cache.cached(timeout=60)
def index():
    calls.append(1)
    return "page"
@cache.memoize(60)
def double(number):
    calls.append(number)
    return number * 2
"""


def test_flask(path):
    pytest.importorskip("flask_caching")
    script = """
with app.app_context():
    assert cache.set("a", [1]) and cache.get("a") == [1] and cache.get("x") is None
    assert cache.add("b", 2) and not cache.add("b", 3) and cache.has("b")
    assert cache.set_many({"c": 3, "d": 4}, timeout=60) and cache.get_many("c", "x", "d") == [3, None, 4]
    assert cache.delete("b") and not cache.delete("b") and cache.delete_many("c", "d")
    many = {str(number): bytes(300) for number in range(70_000)}
    assert cache.set_many(many) and cache.get("69999") == bytes(300)
    assert cache.delete_many(*many)
    assert cache.get_dict("a", "c") == {"a": [1], "c": None}
    pages = [app.test_client().get("/").text for _ in range(3)]
    doubles = [double(4), double(4)]
print(pages, doubles, calls)
"""
    for expected in ("[1, 4]", "[]"):
        done = subprocess.run(
            [sys.executable, "-c", FLASK + script, path], capture_output=True, text=True, timeout=60
        )
        assert done.stdout == f"['page', 'page', 'page'] [8, 8] {expected}\n", done.stderr


def test_the_asyncio_example_and_the_types(folder):
    root = os.path.join(os.path.dirname(__file__), "..")
    example = os.path.join(root, "examples", "sessions.py")
    for number in ("1", "2"):
        done = subprocess.run(
            [sys.executable, example, os.path.join(folder, "sessions.map")],
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert f"start {number}" in done.stdout, done.stdout + done.stderr
    pytest.importorskip("mypy")
    checked = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", os.path.join(root, "tests", "typed.py")],
        capture_output=True,
        text=True,
        cwd=folder,
    )
    assert checked.returncode == 0, checked.stdout


def test_what_the_lock_of_the_interpreter_does_not_stop(db):
    """While one thread waits in the store, others run."""
    import threading

    db.update((b"%d" % number, bytes(1000)) for number in range(20_000))
    ticks, stop = [], threading.Event()

    def tick():
        while not stop.is_set():
            ticks.append(time.monotonic())
            time.sleep(0.001)

    thread = threading.Thread(target=tick)
    thread.start()
    started = time.monotonic()
    assert db.check(deep=True) == []
    ended = time.monotonic()
    stop.set()
    thread.join()
    during = sum(started < at < ended for at in ticks)
    assert during >= (ended - started) / 0.02, (during, ended - started)
