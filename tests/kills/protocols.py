"""The text, meta and binary protocols, each with the same interface, one request at a time.

Requests return what they found out, and raise `Refused` if the server answers with an error, or `OSError` if the
connection is lost.
"""

import collections
import socket
import struct

Found = collections.namedtuple("Found", "value flags cas")

STORED, NOT_STORED, EXISTS, MISSING = "stored", "not stored", "exists", "missing"


class Refused(Exception):
    """An error that the server answered with."""


class Connection:
    """A socket with a buffer."""

    def __init__(self, port, patience=60):
        self.socket = socket.create_connection(("127.0.0.1", port), patience)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.buffer = bytearray()

    def close(self):
        self.socket.close()

    def send(self, data):
        self.socket.sendall(data)

    def fill(self):
        data = self.socket.recv(1 << 16)
        if not data:
            raise ConnectionResetError("the server has closed the connection")
        self.buffer += data

    def exactly(self, length):
        while len(self.buffer) < length:
            self.fill()
        data = bytes(self.buffer[:length])
        del self.buffer[:length]
        return data

    def line(self):
        """The next line, without its end. Errors are raised."""
        while (end := self.buffer.find(b"\r\n")) < 0:
            self.fill()
        line = bytes(self.buffer[:end])
        del self.buffer[: end + 2]
        if line.startswith((b"SERVER_ERROR", b"CLIENT_ERROR")) or line == b"ERROR":
            raise Refused(line.decode())
        return line

    def block(self, length):
        """A value, without the end of its line."""
        return self.exactly(length + 2)[:-2]


def unexpected(reply):
    return AssertionError(f"unexpected reply {reply!r}")


class Text(Connection):
    """The classic text protocol."""

    name = "text"
    REPLIES = {b"STORED": STORED, b"NOT_STORED": NOT_STORED, b"EXISTS": EXISTS, b"NOT_FOUND": MISSING}

    def store(self, verb, key, value, flags, ttl, cas=None):
        token = b" %d" % cas if cas is not None else b""
        self.send(b"%s %s %d %d %d%s\r\n%s\r\n" % (verb, key, flags, ttl, len(value), token, value))
        reply = self.line()
        if reply not in self.REPLIES:
            raise unexpected(reply)
        return self.REPLIES[reply]

    def set(self, key, value, flags, ttl):
        return self.store(b"set", key, value, flags, ttl)

    def add(self, key, value, flags, ttl):
        return self.store(b"add", key, value, flags, ttl)

    def replace(self, key, value, flags, ttl):
        return self.store(b"replace", key, value, flags, ttl)

    def append(self, key, value):
        return self.store(b"append", key, value, 0, 0)

    def prepend(self, key, value):
        return self.store(b"prepend", key, value, 0, 0)

    def cas(self, key, value, flags, ttl, cas):
        return self.store(b"cas", key, value, flags, ttl, cas)

    def items(self):
        """The items of a reply, by key."""
        found = {}
        while (line := self.line()) != b"END":
            _, key, flags, length, cas = line.split(b" ")
            found[key] = Found(self.block(int(length)), int(flags), int(cas))
        return found

    def get(self, key):
        self.send(b"gets %s\r\n" % key)
        return self.items().get(key)

    def get_many(self, keys):
        self.send(b"gets %s\r\n" % b" ".join(keys))
        return self.items()

    def get_and_touch(self, key, ttl):
        self.send(b"gats %d %s\r\n" % (ttl, key))
        return self.items().get(key)

    def yes_or_no(self, request, yes):
        self.send(request)
        reply = self.line()
        if reply not in (yes, b"NOT_FOUND"):
            raise unexpected(reply)
        return reply == yes

    def touch(self, key, ttl):
        return self.yes_or_no(b"touch %s %d\r\n" % (key, ttl), b"TOUCHED")

    def delete(self, key):
        return self.yes_or_no(b"delete %s\r\n" % key, b"DELETED")

    def increment(self, key, amount):
        self.send(b"incr %s %d\r\n" % (key, amount))
        reply = self.line()
        return None if reply == b"NOT_FOUND" else int(reply)

    def stats(self):
        self.send(b"stats\r\n")
        found = {}
        while (line := self.line()) != b"END":
            _, name, value = line.decode().split(" ", 2)
            found[name] = value
        return found


class Meta(Connection):
    """The meta commands."""

    name = "meta"
    REPLIES = {b"HD": STORED, b"NS": NOT_STORED, b"EX": EXISTS, b"NF": MISSING}

    def store(self, key, value, *flags):
        self.send(b"ms %s %d %s\r\n%s\r\n" % (key, len(value), b" ".join(flags), value))
        reply = self.line().split(b" ")[0]
        if reply not in self.REPLIES:
            raise unexpected(reply)
        return self.REPLIES[reply]

    def set(self, key, value, flags, ttl):
        return self.store(key, value, b"F%d" % flags, b"T%d" % ttl)

    def add(self, key, value, flags, ttl):
        return self.store(key, value, b"F%d" % flags, b"T%d" % ttl, b"ME")

    def replace(self, key, value, flags, ttl):
        return self.store(key, value, b"F%d" % flags, b"T%d" % ttl, b"MR")

    def append(self, key, value):
        return self.store(key, value, b"MA")

    def prepend(self, key, value):
        return self.store(key, value, b"MP")

    def cas(self, key, value, flags, ttl, cas):
        return self.store(key, value, b"F%d" % flags, b"T%d" % ttl, b"C%d" % cas)

    def item(self):
        """The key and item of a reply; nothing for a miss, and `MN` for the end of a batch."""
        words = self.line().split(b" ")
        if words[0] == b"MN":
            return "MN"
        if words[0] in (b"EN", b"NF"):
            return None
        if words[0] != b"VA":
            raise unexpected(words)
        flags = {word[:1]: word[1:] for word in words[2:]}
        value = self.block(int(words[1]))
        return flags.get(b"k"), Found(value, int(flags[b"f"]), int(flags[b"c"]))

    def get(self, key, *flags):
        self.send(b" ".join((b"mg", key, b"v", b"f", b"c", *flags)) + b"\r\n")
        found = self.item()
        return found and found[1]

    def get_many(self, keys):
        self.send(b"".join(b"mg %s v f c k q\r\n" % key for key in keys) + b"mn\r\n")
        found = {}
        while (item := self.item()) != "MN":
            found[item[0]] = item[1]
        return found

    def get_and_touch(self, key, ttl):
        return self.get(key, b"T%d" % ttl)

    def touch(self, key, ttl):
        self.send(b"mg %s T%d\r\n" % (key, ttl))
        return self.line().split(b" ")[0] == b"HD"

    def delete(self, key):
        self.send(b"md %s\r\n" % key)
        reply = self.line()
        if reply not in (b"HD", b"NF"):
            raise unexpected(reply)
        return reply == b"HD"

    def increment(self, key, amount):
        self.send(b"ma %s D%d v\r\n" % (key, amount))
        words = self.line().split(b" ")
        return None if words[0] == b"NF" else int(self.block(int(words[1])))


class Binary(Connection):
    """The binary protocol."""

    name = "binary"
    HEADER = struct.Struct(">BBHBBHIIQ")
    NO_ERROR, NOT_FOUND, KEY_EXISTS, ITEM_NOT_STORED = 0, 1, 2, 5

    def request(self, opcode, key=b"", value=b"", extras=b"", cas=0):
        body = extras + key + value
        return self.HEADER.pack(0x80, opcode, len(key), len(extras), 0, 0, len(body), 0, cas) + body

    def reply(self):
        """Opcode, status, extras, key, value and CAS id."""
        magic, opcode, keys, extras, _, status, length, _, cas = self.HEADER.unpack(self.exactly(24))
        if magic != 0x81:
            raise unexpected(magic)
        body = self.exactly(length)
        if status not in (self.NO_ERROR, self.NOT_FOUND, self.KEY_EXISTS, self.ITEM_NOT_STORED):
            raise Refused(f"status {status:#x}: {body!r}")
        return opcode, status, body[:extras], body[extras : extras + keys], body[extras + keys :], cas

    def ask(self, *parts, **more):
        self.send(self.request(*parts, **more))
        return self.reply()

    def outcome(self, opcode, absent, *parts, **more):
        status = self.ask(opcode, *parts, **more)[1]
        outcomes = {self.NO_ERROR: STORED, self.KEY_EXISTS: EXISTS, self.NOT_FOUND: MISSING}
        outcomes[self.ITEM_NOT_STORED] = NOT_STORED
        found = outcomes[status]
        return absent.get(found, found)

    def store(self, opcode, key, value, flags, ttl, cas=0, **absent):
        extras = struct.pack(">II", flags, ttl)
        return self.outcome(opcode, absent, key, value, extras=extras, cas=cas)

    def set(self, key, value, flags, ttl):
        return self.store(0x01, key, value, flags, ttl)

    def add(self, key, value, flags, ttl):
        return self.store(0x02, key, value, flags, ttl, exists=NOT_STORED)

    def replace(self, key, value, flags, ttl):
        return self.store(0x03, key, value, flags, ttl, missing=NOT_STORED)

    def append(self, key, value):
        return self.outcome(0x0E, {MISSING: NOT_STORED}, key, value)

    def prepend(self, key, value):
        return self.outcome(0x0F, {MISSING: NOT_STORED}, key, value)

    def cas(self, key, value, flags, ttl, cas):
        return self.store(0x01, key, value, flags, ttl, cas)

    @staticmethod
    def found(reply):
        _, status, extras, _, value, cas = reply
        return Found(value, struct.unpack(">I", extras[:4])[0], cas) if status == 0 else None

    def get(self, key):
        return self.found(self.ask(0x00, key))

    def get_many(self, keys):
        self.send(b"".join(self.request(0x0D, key) for key in keys) + self.request(0x0A))
        found = {}
        while (reply := self.reply())[0] != 0x0A:
            found[reply[3]] = self.found(reply)
        return found

    def get_and_touch(self, key, ttl):
        return self.found(self.ask(0x1D, key, extras=struct.pack(">I", ttl)))

    def touch(self, key, ttl):
        return self.ask(0x1C, key, extras=struct.pack(">I", ttl))[1] == self.NO_ERROR

    def delete(self, key):
        return self.ask(0x04, key)[1] == self.NO_ERROR

    def increment(self, key, amount):
        # An expiry of all ones: a missing number is not created.
        extras = struct.pack(">QQI", amount, 0, 0xFFFFFFFF)
        reply = self.ask(0x05, key, extras=extras)
        return struct.unpack(">Q", reply[4])[0] if reply[1] == self.NO_ERROR else None


PROTOCOLS = {protocol.name: protocol for protocol in (Text, Meta, Binary)}
