"""pylibmc, and so libmemcached's C interface: text or binary, with ketama over a list of one."""

import sys

import pylibmc

from checks import BINARY, TOO_LARGE, Skip, expect, run, until
from common import common, expect_stats

binary = sys.argv[2] == "binary"
client = pylibmc.Client(
    [sys.argv[1]], binary=binary, behaviors={"ketama": True, "cas": True, "tcp_nodelay": True}
)


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


def touch():
    if not hasattr(client, "touch"):
        raise Skip("not in this version")
    client.set("touch", b"1", time=1)
    expect(client.touch("touch", 100), True)
    expect(client.touch("touch-absent", 100), False)
    client.touch("touch", 1)
    until("expiry", lambda: client.get("touch") is None)


def too_large():
    try:
        client.set("too-large", TOO_LARGE)
        raise AssertionError("stored")
    except pylibmc.Error:
        pass
    expect(client.get("too-large"), None)


def binary_key():
    key = bytes(range(0xA1, 0x100)) if not binary else BINARY[1:250]
    client.set(key, b"1")
    expect(client.get(key), b"1")


def stats():
    (_, found), = client.get_stats()
    expect_stats(found)


run(common(client, client.set_multi, values=[b"bytes", "text", 5, 1 << 40, True, {"a": [1, 2]}]) | {
    "replace": replace, "get-multi": get_multi, "incr": incr, "decr": decr, "touch": touch, "too-large": too_large,
    "binary-key": binary_key, "stats": stats,
})
