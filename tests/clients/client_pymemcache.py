"""pymemcache: the text protocol."""

from pymemcache.client.base import Client
from pymemcache.exceptions import MemcacheError, MemcacheServerError

from checks import TOO_LARGE, Skip, address, expect, run, until
from common import common, expect_stats

client = Client(address(), timeout=10, connect_timeout=10, default_noreply=False)
shared = common(client, client.set_many, expires="expire")


def cas():
    client.delete("cas")
    expect(client.cas("cas", b"0", b"1"), None)
    shared["cas"]()
    expect(set(client.gets_many(["cas", "cas-absent"])), {"cas"})


def expiry():
    client.set("expiry-past", b"1", expire=-1)
    expect(client.get("expiry-past"), None)
    shared["expiry"]()


def get_multi():
    for key in range(100):
        client.set(f"multi-{key}", b"%d" % key)
    found = client.get_many([f"multi-{key}" for key in range(150)])
    expect(found, {f"multi-{key}": b"%d" % key for key in range(100)})


def incr():
    client.delete("incr")
    expect(client.incr("incr", 1), None)
    client.set("incr", b"41")
    expect(client.incr("incr", 1), 42)
    client.set("incr", b"18446744073709551615")
    expect(client.incr("incr", 2), 1)
    client.set("incr", b"word")
    try:
        client.incr("incr", 1)
    except MemcacheError:
        return
    raise AssertionError("a word was incremented")


def decr():
    client.delete("decr")
    expect(client.decr("decr", 1), None)
    client.set("decr", b"10")
    expect(client.decr("decr", 1), 9)
    expect(client.get("decr"), b"9 ")
    expect(client.decr("decr", 100), 0)


def touch():
    client.delete("touch")
    expect(client.touch("touch", 100), False)
    client.set("touch", b"1", expire=1)
    expect(client.touch("touch", 100), True)
    client.touch("touch", 1)
    until("expiry", lambda: client.get("touch") is None)


def gat():
    if not hasattr(client, "gat"):
        raise Skip("not in this version")
    client.set("gat", b"1")
    expect(client.gat("gat", 1), b"1")
    value, token = client.gats("gat", 1)
    expect((value, bool(token)), (b"1", True))
    until("expiry", lambda: client.get("gat") is None)


def flags():
    raw = Client(address(), default_noreply=False, deserializer=lambda key, value, flags: (value, flags))
    raw.set("flags", b"1", flags=0xFFFFFFFF)
    expect(raw.get("flags"), (b"1", 0xFFFFFFFF))
    raw.close()


def too_large():
    try:
        client.set("large", TOO_LARGE)
    except MemcacheServerError as error:
        expect(b"object too large for cache" in str(error).encode(), True)
    expect(client.get("large"), None)


def binary_key():
    # The text protocol allows all bytes above the space.
    key = bytes(byte for byte in range(0x21, 0x100) if byte != 0x7F)
    client.set(key, b"1")
    expect(client.get(key), b"1")
    longest = b"k" * 250
    client.set(longest, b"1")
    expect(client.get(longest), b"1")


def noreply():
    for number in range(100):
        client.set("noreply", b"%d" % number, noreply=True)
    client.incr("noreply", 1, noreply=True)
    expect(client.get("noreply"), b"100")
    client.delete("noreply", noreply=True)
    expect(client.get("noreply"), None)


def stats():
    found = client.stats()
    expect_stats(found)
    expect(b"maxconns" in client.stats("settings"), True)


def version():
    expect(client.version()[:2], b"1.")


run(shared | {
    "cas": cas, "get-multi": get_multi, "incr": incr, "decr": decr, "touch": touch, "get-and-touch": gat,
    "expiry": expiry, "flags": flags, "too-large": too_large, "binary-key": binary_key, "noreply": noreply,
    "stats": stats, "version": version,
})
