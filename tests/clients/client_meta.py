"""meta-memcache: the meta commands, with leases and stale items."""

from meta_memcache import (
    CacheClient, Key, LeasePolicy, RecachePolicy, ServerAddress, SetMode, StalePolicy, connection_pool_factory_builder,
)
from meta_memcache.errors import MemcacheError

from checks import BINARY, LARGE, TOO_LARGE, address, expect, run, until

client = CacheClient.cache_client_from_servers(
    servers=[ServerAddress(*address())],
    connection_pool_factory_fn=connection_pool_factory_builder(recv_timeout=10, connection_timeout=10),
)
LONG = 1000


def set_():
    expect(client.set("set", b"1", ttl=LONG), True)
    expect(client.get("set"), b"1")
    expect(client.get("set-absent"), None)


def add():
    client.delete("add")
    expect(client.set("add", b"1", ttl=LONG, set_mode=SetMode.ADD), True)
    expect(client.set("add", b"2", ttl=LONG, set_mode=SetMode.ADD), False)
    expect(client.get("add"), b"1")


def replace():
    client.delete("replace")
    expect(client.set("replace", b"1", ttl=LONG, set_mode=SetMode.REPLACE), False)
    client.set("replace", b"1", ttl=LONG)
    expect(client.set("replace", b"2", ttl=LONG, set_mode=SetMode.REPLACE), True)
    expect(client.get("replace"), b"2")


def append():
    client.delete("append")
    expect(client.set("append", b"x", ttl=LONG, set_mode=SetMode.APPEND), False)
    client.set("append", b"ab", ttl=LONG)
    expect(client.set("append", b"cd", ttl=LONG, set_mode=SetMode.APPEND), True)
    expect(client.get("append"), b"abcd")


def prepend():
    client.set("prepend", b"cd", ttl=LONG)
    expect(client.set("prepend", b"ab", ttl=LONG, set_mode=SetMode.PREPEND), True)
    expect(client.get("prepend"), b"abcd")


def cas():
    client.set("cas", b"1", ttl=LONG)
    value, token = client.get_cas("cas")
    expect(value, b"1")
    expect(client.set("cas", b"2", ttl=LONG, cas_token=token), True)
    expect(client.set("cas", b"3", ttl=LONG, cas_token=token), False)
    expect(client.delete("cas", cas_token=token), False)
    expect(client.get("cas"), b"2")


def get_multi():
    for key in range(100):
        client.set(f"multi-{key}", b"%d" % key, ttl=LONG)
    found = client.multi_get([Key(f"multi-{key}") for key in range(150)])
    live = {key.key: value for key, value in found.items() if value is not None}
    expect(live, {f"multi-{key}": b"%d" % key for key in range(100)})


def incr():
    client.delete("incr")
    expect(client.delta_and_get("incr", 1), None)
    expect(client.delta_initialize_and_get("incr", delta=1, initial_value=41, initial_ttl=LONG), 41)
    expect(client.delta_and_get("incr", 1), 42)
    expect(client.delta("incr", 1), True)


def decr():
    client.delete("decr")
    client.delta_initialize("decr", delta=1, initial_value=10, initial_ttl=LONG)
    expect(client.delta_and_get("decr", -1), 9)
    expect(client.delta_and_get("decr", -100), 0)


def delete():
    client.set("delete", b"1", ttl=LONG)
    expect(client.delete("delete"), True)
    expect(client.get("delete"), None)


def touch():
    client.delete("touch")
    expect(client.touch("touch", 100), False)
    client.set("touch", b"1", ttl=LONG)
    expect(client.touch("touch", 1), True)
    until("expiry", lambda: client.get("touch") is None)


def gat():
    client.set("gat", b"1", ttl=LONG)
    expect(client.get("gat", touch_ttl=1), b"1")
    until("expiry", lambda: client.get("gat") is None)


def expiry():
    client.set("expiry", b"1", ttl=1)
    client.set("expiry-long", b"1", ttl=LONG)
    until("expiry", lambda: client.get("expiry") is None)
    expect(client.get("expiry-long"), b"1")


def flags():
    # The client stores the type of a value in its flags.
    for value in [b"bytes", "text", 5, {"a": [1, 2]}]:
        client.set("flags", value, ttl=LONG)
        expect(client.get("flags"), value)


def large():
    expect(client.set("large", LARGE, ttl=LONG), True)
    expect(client.get("large"), LARGE)


def too_large():
    try:
        expect(client.set("large", TOO_LARGE, ttl=LONG), False)
    except MemcacheError:
        pass
    expect(client.get("large"), None)


def binary_value():
    client.set("binary", BINARY, ttl=LONG)
    expect(client.get("binary"), BINARY)


def binary_key():
    # Keys that the text protocol does not allow are encoded in base64.
    key = Key("a key with spaces and \u00e9\u9375")
    client.set(key, b"1", ttl=LONG)
    expect(client.get(key), b"1")
    expect({found.key: value for found, value in client.multi_get([key]).items()}, {key.key: b"1"})


def empty():
    client.set("empty", b"", ttl=LONG)
    expect(client.get("empty"), b"")


def noreply():
    for number in range(100):
        client.set("noreply", b"%d" % number, ttl=LONG, no_reply=True)
    expect(client.get("noreply"), b"99")
    client.delete("noreply", no_reply=True)
    expect(client.get("noreply"), None)


def lease():
    """Of several clients that miss, one is told to fetch the value."""
    client.delete("lease")
    policy = LeasePolicy(ttl=LONG, miss_retries=1, miss_retry_wait=0.01)
    value, token = client.get_or_lease_cas("lease", lease_policy=policy)
    expect((value, bool(token)), (None, True))
    # The others wait for it, and give up.
    expect(client.get_or_lease("lease", lease_policy=policy), None)
    expect(client.set("lease", b"1", ttl=LONG, cas_token=token), True)
    expect(client.get_or_lease("lease", lease_policy=policy), b"1")


def stale():
    """An invalidated value is still served to all but one client, which fetches the new one."""
    client.set("stale", b"old", ttl=LONG)
    expect(client.delete("stale", stale_policy=StalePolicy(mark_stale_on_deletion_ttl=100)), True)
    recache = RecachePolicy(ttl=1)
    value, token = client.get_cas("stale", recache_policy=recache)
    expect((value, bool(token)), (None, True))
    expect(client.get("stale", recache_policy=recache), b"old")
    expect(client.set("stale", b"new", ttl=LONG, cas_token=token), True)
    expect(client.get("stale", recache_policy=recache), b"new")


run({
    "set": set_, "add": add, "replace": replace, "append": append, "prepend": prepend, "cas": cas,
    "get-multi": get_multi, "incr": incr, "decr": decr, "delete": delete, "touch": touch, "get-and-touch": gat,
    "expiry": expiry, "flags": flags, "large": large, "too-large": too_large, "binary-value": binary_value,
    "binary-key": binary_key, "empty": empty, "noreply": noreply, "lease": lease, "stale": stale,
})
