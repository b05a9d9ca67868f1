"""python-binary-memcached: the binary protocol."""

import bmemcached
from bmemcached.exceptions import MemcachedException

from checks import BINARY, LARGE, TOO_LARGE, address, expect, run, until

client = bmemcached.Client(("%s:%d" % address(),), compression=None)


def set_():
    expect(client.set("set", b"1"), True)
    expect(client.get("set"), b"1")
    expect(client.get("set-absent"), None)
    expect(client.set_multi({"set-1": b"1", "set-2": b"2"}), [])
    expect(client.get("set-2"), b"2")


def add():
    client.delete("add")
    expect(client.add("add", b"1"), True)
    expect(client.add("add", b"2"), False)
    expect(client.get("add"), b"1")


def replace():
    client.delete("replace")
    expect(client.replace("replace", b"1"), False)
    client.set("replace", b"1")
    expect(client.replace("replace", b"2"), True)
    expect(client.get("replace"), b"2")


def cas():
    client.set("cas", b"1")
    value, token = client.gets("cas")
    expect(value, b"1")
    expect(client.cas("cas", b"2", token), True)
    expect(client.cas("cas", b"3", token), False)
    expect(client.get("cas"), b"2")


def get_multi():
    client.set_multi({f"multi-{key}": b"%d" % key for key in range(100)})
    found = client.get_multi([f"multi-{key}" for key in range(150)])
    expect(found, {f"multi-{key}": b"%d" % key for key in range(100)})
    client.delete_multi([f"multi-{key}" for key in range(100)])
    expect(client.get_multi([f"multi-{key}" for key in range(100)]), {})


def incr():
    client.delete("incr")
    # The binary protocol creates a missing number with its initial value.
    expect(client.incr("incr", 5, default=40), 40)
    expect(client.incr("incr", 2), 42)


def decr():
    client.delete("decr")
    expect(client.decr("decr", 5, default=10), 10)
    expect(client.decr("decr", 1), 9)
    expect(client.decr("decr", 100), 0)


def delete():
    client.set("delete", b"1")
    expect(client.delete("delete"), True)
    expect(client.get("delete"), None)


def expiry():
    client.set("expiry", b"1", time=1)
    client.set("expiry-long", b"1", time=1000)
    until("expiry", lambda: client.get("expiry") is None)
    expect(client.get("expiry-long"), b"1")


def flags():
    for value in [b"bytes", "text", 5, {"a": [1, 2]}]:
        client.set("flags", value)
        expect(client.get("flags"), value)


def large():
    expect(client.set("large", LARGE), True)
    expect(client.get("large"), LARGE)


def too_large():
    try:
        stored = client.set("large", TOO_LARGE)
    except MemcachedException:
        stored = False
    expect(stored, False)
    expect(client.get("large"), None)


def binary_value():
    client.set("binary", BINARY)
    expect(client.get("binary"), BINARY)


def binary_key():
    key = "key with spaces\r\nand lines \u00e9"
    client.set(key, b"1")
    expect(client.get(key), b"1")


def empty():
    client.set("empty", b"")
    expect(client.get("empty"), b"")


def stats():
    (found,) = client.stats().values()
    names = {name.decode() if isinstance(name, bytes) else name for name in found}
    expect({"pid", "curr_items", "bytes", "get_hits", "evictions"} - names, set())


def flush():
    client.set("flush", b"1")
    expect(client.flush_all(), True)
    expect(client.get("flush"), None)


run({
    "set": set_, "add": add, "replace": replace, "cas": cas, "get-multi": get_multi, "incr": incr, "decr": decr,
    "delete": delete, "expiry": expiry, "flags": flags, "large": large, "too-large": too_large,
    "binary-value": binary_value, "binary-key": binary_key, "empty": empty, "stats": stats, "flush": flush,
})
