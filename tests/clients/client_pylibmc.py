"""pylibmc, and so libmemcached's C interface: text or binary, with ketama over a list of one."""

import sys

import pylibmc

from checks import BINARY, LARGE, TOO_LARGE, Skip, address, expect, run, until

binary = sys.argv[2] == "binary"
client = pylibmc.Client(
    [sys.argv[1]], binary=binary, behaviors={"ketama": True, "cas": True, "tcp_nodelay": True}
)


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
    try:
        expect(client.replace("replace", b"1"), False)
    except pylibmc.NotFound:
        # The answer of the binary protocol.
        pass
    client.set("replace", b"1")
    expect(client.replace("replace", b"2"), True)
    expect(client.get("replace"), b"2")


def append():
    client.delete("append")
    expect(client.append("append", b"x"), False)
    client.set("append", b"ab")
    expect(client.append("append", b"cd"), True)
    expect(client.get("append"), b"abcd")


def prepend():
    client.delete("prepend")
    expect(client.prepend("prepend", b"x"), False)
    client.set("prepend", b"cd")
    expect(client.prepend("prepend", b"ab"), True)
    expect(client.get("prepend"), b"abcd")


def cas():
    client.set("cas", b"1")
    value, token = client.gets("cas")
    expect(value, b"1")
    expect(client.cas("cas", b"2", token), True)
    expect(client.cas("cas", b"3", token), False)
    expect(client.get("cas"), b"2")


def get_multi():
    client.set_multi({str(key): b"%d" % key for key in range(100)}, key_prefix="multi-")
    found = client.get_multi([str(key) for key in range(150)], key_prefix="multi-")
    expect(found, {str(key): b"%d" % key for key in range(100)})
    expect(client.delete_multi([str(key) for key in range(100)], key_prefix="multi-"), True)


def incr():
    client.delete("incr")
    try:
        client.incr("incr")
        raise AssertionError("a missing key was incremented")
    except pylibmc.NotFound:
        pass
    client.set("incr", 41)
    expect(client.incr("incr"), 42)
    expect(client.incr("incr", 8), 50)


def decr():
    client.set("decr", 10)
    expect(client.decr("decr"), 9)
    expect(client.decr("decr", 100), 0)


def delete():
    client.set("delete", b"1")
    expect(client.delete("delete"), True)
    expect(client.delete("delete"), False)
    expect(client.get("delete"), None)


def touch():
    if not hasattr(client, "touch"):
        raise Skip("not in this version")
    client.set("touch", b"1", time=1)
    expect(client.touch("touch", 100), True)
    expect(client.touch("touch-absent", 100), False)
    client.touch("touch", 1)
    until("expiry", lambda: client.get("touch") is None)


def expiry():
    client.set("expiry", b"1", time=1)
    client.set("expiry-long", b"1", time=1000)
    until("expiry", lambda: client.get("expiry") is None)
    expect(client.get("expiry-long"), b"1")


def flags():
    # The client stores the type of a value in its flags.
    for value in [b"bytes", "text", 5, 1 << 40, True, {"a": [1, 2]}]:
        client.set("flags", value)
        expect(client.get("flags"), value)


def large():
    expect(client.set("large", LARGE), True)
    expect(client.get("large"), LARGE)


def too_large():
    try:
        client.set("too-large", TOO_LARGE)
        raise AssertionError("stored")
    except pylibmc.Error:
        pass
    expect(client.get("too-large"), None)


def binary_value():
    client.set("binary", BINARY)
    expect(client.get("binary"), BINARY)


def binary_key():
    key = bytes(range(0xA1, 0x100)) if not binary else BINARY[1:250]
    client.set(key, b"1")
    expect(client.get(key), b"1")


def empty():
    client.set("empty", b"")
    expect(client.get("empty"), b"")


def stats():
    (_, found), = client.get_stats()
    expect({"pid", "curr_items", "bytes", "get_hits", "evictions"} - {str(name) for name in found}, set())


def flush():
    client.set("flush", b"1")
    expect(client.flush_all(), True)
    expect(client.get("flush"), None)


run({
    "set": set_, "add": add, "replace": replace, "append": append, "prepend": prepend, "cas": cas,
    "get-multi": get_multi, "incr": incr, "decr": decr, "delete": delete, "touch": touch,
    "expiry": expiry, "flags": flags, "large": large, "too-large": too_large, "binary-value": binary_value,
    "binary-key": binary_key, "empty": empty, "stats": stats, "flush": flush,
})
