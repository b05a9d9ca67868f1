"""python-binary-memcached: the binary protocol."""

import bmemcached
from bmemcached.exceptions import MemcachedException

from checks import TOO_LARGE, address, expect, run
from common import common, expect_stats

client = bmemcached.Client(("%s:%d" % address(),), compression=None)


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


def too_large():
    try:
        stored = client.set("large", TOO_LARGE)
    except MemcachedException:
        stored = False
    expect(stored, False)
    expect(client.get("large"), None)


def binary_key():
    key = "key with spaces\r\nand lines \u00e9"
    client.set(key, b"1")
    expect(client.get(key), b"1")


def stats():
    (found,) = client.stats().values()
    expect_stats(found)


# The client has no append and prepend.
shared = common(client, client.set_multi, values=[b"bytes", "text", 5, {"a": [1, 2]}])
del shared["append"], shared["prepend"]
run(shared | {
    "get-multi": get_multi, "incr": incr, "decr": decr, "delete": delete, "too-large": too_large,
    "binary-key": binary_key, "stats": stats,
})
