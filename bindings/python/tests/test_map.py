"""That a map is a MutableMapping, and what else it can do."""

import gc
import random
import threading
import time
from collections.abc import MutableMapping

import pytest

import evermap


def test_it_is_a_mutable_mapping(db):
    assert isinstance(db, MutableMapping)
    assert not db and len(db) == 0
    db[b"a"] = b"1"
    db[b"b"] = bytearray(b"2")
    db[memoryview(b"c")] = b"3"
    assert db[b"b"] == b"2" and db[b"c"] == b"3"
    assert db and len(db) == 3 and b"a" in db and b"x" not in db
    assert sorted(db) == sorted(db.keys()) == [b"a", b"b", b"c"]
    assert sorted(db.values()) == [b"1", b"2", b"3"]
    assert dict(db.items()) == dict(db) == {b"a": b"1", b"b": b"2", b"c": b"3"}
    assert (b"a", b"1") in db.items() and b"1" in db.values() and len(db.items()) == 3
    assert db == {b"a": b"1", b"b": b"2", b"c": b"3"} and db != {b"a": b"1"}
    assert db.get(b"x") is None and db.get(b"x", 7) == 7 and db.get(b"a", 7) == b"1"
    assert db.setdefault(b"a", b"9") == b"1" and db.setdefault(b"d", b"4") == b"4"
    assert db.pop(b"d") == b"4" and db.pop(b"d", None) is None
    for missing in (lambda: db[b"x"], lambda: db.pop(b"x"), lambda: db.ttl(b"x")):
        with pytest.raises(KeyError) as raised:
            missing()
        assert raised.value.args == (b"x",)
    with pytest.raises(KeyError):
        del db[b"x"]
    del db[b"a"]
    left = {db.popitem(), db.popitem()}
    assert left == {(b"b", b"2"), (b"c", b"3")}
    with pytest.raises(KeyError):
        db.popitem()


def test_it_agrees_with_a_dict(db):
    chance, model = random.Random(7), {}
    for _ in range(5000):
        key, value = b"%d" % chance.randrange(100), chance.randbytes(chance.randrange(50))
        match chance.randrange(7):
            case 0 | 1:
                db[key] = model[key] = value
            case 2:
                assert db.pop(key, None) == model.pop(key, None)
            case 3:
                assert db.setdefault(key, value) == model.setdefault(key, value)
            case 4:
                assert db.get(key) == model.get(key)
            case 5:
                some = [b"%d" % chance.randrange(100) for _ in range(chance.randrange(40))]
                assert db.get_many(some) == [model.get(one) for one in some]
            case 6:
                pairs = {b"%d" % chance.randrange(100): value for _ in range(3)}
                db.update(pairs)
                model.update(pairs)
    assert db == model and sorted(db) == sorted(model)
    assert list(db.scan()) == sorted(model.items())


def test_update_takes_what_a_dict_takes(folder):
    with evermap.in_memory(keys=str, values=str) as db:
        db.update({"a": "1"}, b="2")
        db.update([("c", "3"), ["d", "4"]])
        db.update(db)
        db.update((str(number), "x") for number in range(2000))
        assert len(db) == 2004 and db["b"] == "2" and db["1999"] == "x"
        # What comes before a mistake is stored.
        with pytest.raises(TypeError, match="a value is str here, not int"):
            db.update([("good", "1"), ("bad", 7), ("late", "1")])
        assert "good" in db and "late" not in db
        db.update({"short": "lived"}, ttl=100)
        assert 98 <= db.ttl("short") <= 101


def test_keys_and_values_are_of_one_type(db):
    with pytest.raises(TypeError, match="a key is bytes here, not str; open the store with keys=str"):
        db["a"] = b"1"
    with pytest.raises(TypeError, match="a value is bytes here, not int"):
        db[b"a"] = 1
    with pytest.raises(TypeError):
        b"a" in db.map("text", keys=str)
    with pytest.raises(TypeError, match="keys is bytes or str"):
        evermap.in_memory(keys=int)
    text = db.map("text", keys=str, values=str)
    text["schlüssel"] = "wert ✓"
    assert text["schlüssel"] == "wert ✓" and list(text.items()) == [("schlüssel", "wert ✓")]
    assert list(db.map("text").items()) == [("schlüssel".encode(), "wert ✓".encode())]
    db.map("text")[b"\xff"] = b"\xff"
    with pytest.raises(UnicodeDecodeError):
        list(text)


def test_limits_are_errors(db):
    for wrong in (
        lambda: db.set(b"k" * 65537, b""),
        lambda: db.set(b"k", b"", ttl=1e12),
        lambda: db.set(b"k", b"", ttl=float("nan")),
        lambda: evermap.in_memory(memory_limit="lots"),
        lambda: evermap.in_memory(speed="high"),
    ):
        with pytest.raises(ValueError):
            wrong()
    with pytest.raises(evermap.NoSpaceError), evermap.in_memory(memory_limit="1M") as small:
        for number in range(1000):
            small[b"%d" % number] = bytes(10_000)


def test_get_many(db):
    db.update((b"%d" % number, bytes(number)) for number in range(500))
    keys = [b"%d" % number for number in range(-3, 500)]
    expected = [None] * 3 + [bytes(number) for number in range(500)]
    assert db.get_many(keys) == db.get_many(tuple(keys)) == db.get_many(iter(keys)) == expected
    assert db.get_many([b"x", b"1"], b"?") == [b"?", b"\0"]
    assert db.get_many([]) == []
    with pytest.raises(TypeError):
        db.get_many([b"1", "1"])


def test_scans_are_in_order(db):
    db.update((b"%03d" % number, b"%d" % number) for number in range(1000))
    every = [(b"%03d" % number, b"%d" % number) for number in range(1000)]
    assert list(db.scan()) == every
    assert list(db.scan(b"100", b"103")) == every[100:103]
    assert list(db.scan(b"995")) == every[995:]
    assert list(db.scan(reverse=True, limit=3)) == every[:-4:-1]
    assert list(db.prefix(b"99")) == every[990:]
    assert list(db.prefix(b"99", reverse=True, limit=1)) == every[-1:]
    assert db.first() == every[0] and db.last() == every[-1]
    assert db.pop_first() == every[0] and db.pop_last() == every[-1]
    assert db.remove_prefix(b"5") == 100 and db.remove_range(b"6", b"7") == 100
    assert len(db) == 798
    scan = db.scan()
    assert next(scan) == every[1]
    db.close()
    with pytest.raises(evermap.ClosedError):
        list(scan)


def test_without_an_order_there_is_no_scan():
    with evermap.in_memory() as db, pytest.raises(evermap.NotOrderedError, match="ordered"):
        db.scan()


def test_what_changes_while_it_is_walked_through(db):
    db.update((b"%d" % number, b"") for number in range(2000))
    seen = []
    for key in db:
        seen.append(key)
        db.pop(key)
        db[b"new" + key] = b""
    old = [key for key in seen if not key.startswith(b"new")]
    assert sorted(old) == sorted(b"%d" % number for number in range(2000))


def test_expiry(db):
    db.set(b"short", b"1", ttl=1)
    db.set(b"long", b"1", ttl=3600)
    db[b"ever"] = b"1"
    assert 0 < db.ttl(b"long") <= 3601 and db.ttl(b"ever") is None
    assert db.expire(b"ever", 60) and not db.expire(b"none", 60)
    assert db.ttl(b"ever") <= 61 and db.expire(b"ever", None) and db.ttl(b"ever") is None
    assert b"short" in db
    deadline = time.monotonic() + 10
    while b"short" in db:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert db.get(b"short") is None and b"long" in db
    db.set(b"past", b"1", ttl=0)
    assert b"past" not in db


def test_counters(db):
    assert db.incr(b"visits") == 1 and db.incr(b"visits", 41) == 42 and db.decr(b"visits") == 41
    assert evermap.counter(db[b"visits"]) == 41
    db[b"text"] = b"7"
    for wrong in (lambda: db.incr(b"text"), lambda: db.incr(b"visits", 2**63 - 1)):
        with pytest.raises(evermap.CounterError):
            wrong()
    assert db.incr(b"visits", 0) == 41
    db.append(b"text", b"8")
    assert db[b"text"] == b"78"


def test_versions(db):
    version = db.set(b"key", b"1", flags=7)
    item = db.item(b"key")
    assert item == (b"1", version, 7, None) and item.version == version
    assert db.item(b"none") is None
    assert db.compare_exchange(b"key", version + 1, b"2") is None
    newer = db.compare_exchange(b"key", version, b"2")
    assert newer > version and not db.delete(b"key", version) and db.delete(b"key", newer)
    assert db.add(b"key", b"1") and not db.add(b"key", b"2") and db[b"key"] == b"1"
    assert db.replace(b"key", b"3") and not db.replace(b"none", b"3")
    assert not db.delete(b"none") and b"none" not in db


def test_batches_are_all_or_nothing(db):
    users = db.map("users")
    with db.batch() as batch:
        batch[b"a"] = b"1"
        batch.set(b"b", b"2", ttl=60)
        batch.incr(b"count", 5)
        batch.on(users)[b"ann"] = b"here"
        del batch[b"none"]
        assert len(batch) == 5 and b"a" not in db
    assert db[b"a"] == b"1" and users[b"ann"] == b"here" and db.incr(b"count", 0) == 5
    with pytest.raises(RuntimeError), db.batch() as batch:
        batch[b"a"] = b"never"
        raise RuntimeError
    with pytest.raises(evermap.ConflictError, match="b'a'"), db.batch() as batch:
        batch.expect(b"a", None)
        batch[b"a"] = b"never"
    with pytest.raises(evermap.CounterError), db.batch() as batch:
        batch[b"c"] = b"never"
        batch.incr(b"a")
    assert db[b"a"] == b"1" and b"c" not in db
    batch = users.batch()
    batch.expect(b"ann", users.item(b"ann").version)
    batch[b"ann"] = b"gone"
    assert batch.apply() and not batch.apply()
    batch.clear()
    assert len(batch) == 0 and batch.apply()


def test_transactions_lose_no_update(db):
    cash, savings = db, db.map("savings")
    cash[b"ann"] = b"1000"

    def move(transaction):
        has = int(transaction.get(b"ann", b"0"))
        saved = int(transaction.get(b"ann", b"0", map=savings))
        transaction.set(b"ann", b"%d" % (has - 1))
        transaction.set(b"ann", b"%d" % (saved + 1), map=savings)
        transaction.incr(b"moves")
        assert transaction.get(b"ann") == b"%d" % (has - 1)
        return has

    threads = [
        threading.Thread(target=lambda: [db.transaction(move) for _ in range(100)])
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (cash[b"ann"], savings[b"ann"]) == (b"600", b"400") and db.incr(b"moves", 0) == 400

    def fails(transaction):
        transaction.get(b"ann")
        transaction.delete(b"ann")
        assert transaction.get(b"ann") is None
        raise RuntimeError

    with pytest.raises(RuntimeError):
        db.transaction(fails)

    def always_late(transaction):
        transaction.get(b"ann")
        db[b"ann"] = b"changed"
        transaction.set(b"x", b"")

    with pytest.raises(evermap.ConflictError, match="in 3 attempts"):
        db.transaction(always_late, attempts=3)
    assert b"x" not in db


def test_threads(db):
    def work(number):
        for round in range(300):
            db.incr(b"count")
            db[b"own%d" % number] = b"%d" % round * 100
            assert db[b"own%d" % number] == b"%d" % round * 100
            assert len(db.get_many([b"own%d" % other for other in range(8)])) == 8
        sum(1 for _ in db.scan())

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert db.incr(b"count", 0) == 2400


def test_one_cursor_in_many_threads(db):
    db.update((b"%05d" % number, b"") for number in range(20_000))
    walk, found = iter(db), []
    threads = [threading.Thread(target=lambda: found.extend(walk)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(found) == [b"%05d" % number for number in range(20_000)]


def test_a_map_keeps_its_store_alive(path):
    users = evermap.open(path).map("users")
    gc.collect()
    users[b"ann"] = b"1"
    with pytest.raises(evermap.InUseError):
        evermap.open(path, lock_wait=0)
    users = None
    gc.collect()
    with evermap.open(path) as db:
        assert db.maps() == ["users"] and db.map("users")[b"ann"] == b"1"
        with pytest.raises(evermap.NotFoundError):
            db.map("none", create=False)
        users = db.map("users")
        assert "users" in repr(users) and path in repr(db)
        assert db.drop_map("users") and not db.drop_map("users")
        with pytest.raises(evermap.ClosedError):
            users[b"ann"]
