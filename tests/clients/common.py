"""The checks of clients whose functions have the usual names."""

from checks import BINARY, LARGE, expect, until


def common(client, set_multi, expires="time", values=()):
    """Returns the checks of a client, by name.

    `set_multi` is its function that sets several keys, `expires` the name of its parameter for a time to live, and
    `values` are some whose types it keeps.
    """

    def set_():
        expect(client.set("set", b"1"), True)
        expect(client.get("set"), b"1")
        expect(client.get("set-absent"), None)
        expect(set_multi({"set-1": b"1", "set-2": b"2"}), [])
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

    def delete():
        client.set("delete", b"1")
        expect(client.delete("delete"), True)
        expect(client.delete("delete"), False)
        expect(client.get("delete"), None)

    def expiry():
        client.set("expiry", b"1", **{expires: 1})
        client.set("expiry-long", b"1", **{expires: 1000})
        until("expiry", lambda: client.get("expiry") is None)
        expect(client.get("expiry-long"), b"1")

    def flags():
        # The client stores the type of a value in its flags.
        for value in values:
            client.set("flags", value)
            expect(client.get("flags"), value)

    def large():
        expect(client.set("large", LARGE), True)
        expect(client.get("large"), LARGE)

    def binary_value():
        client.set("binary", BINARY)
        expect(client.get("binary"), BINARY)

    def empty():
        client.set("empty", b"")
        expect(client.get("empty"), b"")

    def flush():
        client.set("flush", b"1")
        expect(client.flush_all(), True)
        expect(client.get("flush"), None)

    return {
        "set": set_, "add": add, "replace": replace, "append": append, "prepend": prepend, "cas": cas,
        "delete": delete, "expiry": expiry, "flags": flags, "large": large, "binary-value": binary_value,
        "empty": empty, "flush": flush,
    }


def expect_stats(found):
    """Checks the names of statistics."""
    names = {name.decode() if isinstance(name, bytes) else name for name in found}
    expect({"pid", "curr_items", "bytes", "get_hits", "evictions"} - names, set())
