"""A client process that changes its own keys, knows what each must hold, and outlives the server.

It works until the server is killed. When there is a server again, it finds out what became of its last request,
compares what it changed recently, and goes on. Every key belongs to one worker.
"""

import os
import random
import time
import zlib

from protocols import EXISTS, MISSING, NOT_STORED, PROTOCOLS, STORED, Refused, Text

RECENT = 300
SAMPLE = 300
BATCH = 50
# Keys with a number, which only increments change.
NUMBERS = 20
LARGE_EVERY = 400
LARGEST = 200_000


class Violation(Exception):
    """Something that must not happen."""


class Item:
    """What a key holds: a value that names its key and version, flags, and when it expires."""

    __slots__ = ("value", "flags", "expires", "cas")

    def __init__(self, value, flags, expires=None):
        self.value, self.flags = value, flags
        # The earliest and latest second from which it may be absent, and must be; nothing if never.
        self.expires = expires
        self.cas = None

    def with_value(self, value):
        return Item(value, self.flags, self.expires)

    def with_expiry(self, expires):
        item = Item(self.value, self.flags, expires)
        item.cas = self.cas
        return item

    def may_be_gone(self, now):
        return self.expires is not None and now >= self.expires[0]

    def must_be_gone(self, now):
        return self.expires is not None and now > self.expires[1]


def expires_in(ttl, before, after):
    """The bounds of an expiry, one second wide on both sides for the server's clock."""
    return (int(before) + ttl - 1, int(after) + ttl + 1) if ttl else None


class Worker:
    def __init__(self, number, options, pipe):
        self.number, self.options, self.pipe = number, options, pipe
        self.rng = random.Random(f"{options.seed} {number}")
        self.items = {}
        self.sequence = 0
        self.connections = []
        # Key, allowed items, and until when one of them may have been stored.
        self.under_way = None
        self.recent = []
        self.cas_ids = {}
        self.new_cas_ids = []
        self.operations = self.absent = self.expired = self.refused = 0

    # Life

    def run(self):
        try:
            while command := self.pipe.recv():
                try:
                    getattr(self, command)()
                    complaint = None
                except Violation as violation:
                    complaint = f"worker {self.number}: {violation}"
                self.pipe.send((complaint, self.report()))
        except EOFError:
            pass
        os._exit(0)

    def report(self):
        report = {name: getattr(self, name) for name in ("operations", "absent", "expired", "refused")}
        report["cas_ids"], self.new_cas_ids = self.new_cas_ids, []
        return report

    def connect(self):
        self.disconnect()
        for name in self.options.protocols:
            self.connections.append(PROTOCOLS[name](self.options.port))

    def disconnect(self):
        for connection in self.connections:
            connection.close()
        self.connections.clear()

    def work(self):
        """Changes keys until the server is gone."""
        try:
            while True:
                self.step()
        except TimeoutError:
            raise Violation("no answer from a server that accepts connections") from None
        except OSError:
            self.disconnect()

    def resume(self):
        """Compares what a new server has with what must be there."""
        self.connect()
        self.settle()
        keys = self.recent + [self.key() for _ in range(SAMPLE)]
        self.recent = self.recent[-RECENT:]
        for first in range(0, len(keys), BATCH):
            self.compare_many(keys[first : first + BATCH])

    def fill(self):
        """Stores something under every key, so that a limit is reached from the beginning."""
        for index in range(self.options.keys):
            key = self.key_of(index)
            connection = self.rng.choice(self.connections)
            try:
                self.set(connection, key)
            except Refused as error:
                self.refuse(connection, error)

    def verify(self):
        """Compares every key."""
        keys = list(map(self.key_of, range(self.options.keys))) + list(map(self.number_of, range(NUMBERS)))
        for first in range(0, len(keys), BATCH):
            self.compare_many(keys[first : first + BATCH])

    # Keys and values

    def key_of(self, index):
        return b"w%d:%d" % (self.number, index) + b"-" * (index % 23)

    def number_of(self, index):
        return b"w%d:number:%d" % (self.number, index)

    def key(self):
        # Half of the requests go to a tenth of the keys.
        keys = self.options.keys
        return self.key_of(self.rng.randrange(keys // 10 if self.rng.random() < 0.5 else keys))

    def new_value(self, key):
        """A value that says in every part which key and version it belongs to."""
        self.sequence += 1
        length = int(40 * 2 ** (5 * self.rng.random()))
        if self.rng.randrange(LARGE_EVERY) == 0:
            length = int(length * 2 ** (8 * self.rng.random()))
        unit = b"%s:%d:" % (key, self.sequence)
        unit += b"%08x|" % zlib.crc32(unit)
        return (unit * (min(length, LARGEST) // len(unit) + 1))[: max(length, len(unit))]

    def new_item(self, key):
        ttl = self.rng.choice((0, 0, 0, 0, 1000, 1000, 2, 3))
        return Item(self.new_value(key), self.rng.randrange(1 << 32)), ttl

    # Comparing

    def missing(self, key, now):
        """A live key was not found."""
        item = self.items.pop(key, None)
        if item is None:
            return
        if item.may_be_gone(now):
            self.expired += 1
        elif self.options.memory:
            self.absent += 1
        else:
            raise Violation(f"{key.decode()} is lost; it held {describe(item.value)}")

    def matches(self, key, item, found, before):
        return (
            item is not None
            and found.value == item.value
            and found.flags == item.flags
            and not item.must_be_gone(before)
        )

    def compare(self, key, found, before):
        """Compares an answer with what must be there. `before` is the time at which it was asked for."""
        item = self.items.get(key)
        if found is None:
            self.missing(key, time.time())
        elif not self.matches(key, item, found, before):
            raise Violation(self.difference(key, item, found, before))
        else:
            self.compare_cas(key, item, found.cas)

    def difference(self, key, item, found, before):
        expected = "nothing" if item is None else describe(item.value)
        if item is not None and item.must_be_gone(before):
            expected = f"nothing, because it expired {before - item.expires[1]:.1f} s ago"
        flags = "" if item is None or item.flags == found.flags else f" with flags {found.flags} for {item.flags}"
        return f"{key.decode()} holds {describe(found.value)}{flags}; expected {expected}"

    def compare_cas(self, key, item, cas):
        if item.cas is None:
            if cas == 0 or cas in self.cas_ids:
                raise Violation(f"CAS id {cas} of {key.decode()} was that of {self.cas_ids.get(cas)} before")
            item.cas = cas
            self.cas_ids[cas] = key.decode()
            self.new_cas_ids.append(cas)
        elif item.cas != cas:
            raise Violation(f"CAS id of {key.decode()} changed from {item.cas} to {cas} without a change")

    def compare_many(self, keys):
        before = time.time()
        found = self.rng.choice(self.connections).get_many(keys)
        for key in dict.fromkeys(keys):
            self.compare(key, found.get(key), before)

    def settle(self):
        """Finds out what became of the request that was not answered."""
        if self.under_way is None:
            return
        (key, allowed), self.under_way = self.under_way, None
        before = time.time()
        found = self.connections[0].get(key)
        old = self.items.pop(key, None)
        if found is None:
            # Deleted, expired, evicted or never stored: if both are live, it was evicted.
            live = [item is not None and not item.may_be_gone(time.time()) for item in (old, *allowed)]
            if all(live):
                if not self.options.memory:
                    raise Violation(f"{key.decode()} is lost, and a request was under way")
                self.absent += 1
            return
        for item in (*allowed, old):
            if self.matches(key, item, found, before):
                # Which of several expiries it has is not known: another value settles it.
                break
        else:
            choices = " or ".join(describe(item and item.value) for item in (old, *allowed))
            raise Violation(f"{key.decode()} holds {describe(found.value)}; expected {choices}")
        if key.startswith(b"w%d:number" % self.number):
            self.items[key] = item
        else:
            self.set(self.connections[0], key)

    # Operations

    def step(self):
        self.operations += 1
        connection = self.rng.choice(self.connections)
        operations = (
            self.get, self.get_many, self.set, self.set, self.add, self.replace, self.cas, self.cas_of_old,
            self.append, self.delete, self.touch, self.get_and_touch, self.increment,
        )
        operation = self.rng.choices(operations, (24, 2, 14, 14, 6, 6, 7, 4, 4, 7, 4, 4, 4))[0]
        try:
            operation(connection, self.key())
        except Refused as error:
            self.refuse(connection, error)

    def refuse(self, connection, error):
        """A change was refused for lack of memory: its key holds what it did, or nothing any more."""
        if "out of memory" not in str(error) and "0x82" not in str(error) or self.under_way is None:
            raise Violation(f"{connection.name}: {error}")
        self.refused += 1
        (key, _), self.under_way = self.under_way, None
        before = time.time()
        found = connection.get(key)
        if found is None:
            self.items.pop(key, None)
        else:
            self.compare(key, found, before)

    def begin(self, key, *allowed):
        self.under_way = (key, allowed)

    def done(self, key, item):
        """A change was acknowledged."""
        self.under_way = None
        if item is None:
            self.items.pop(key, None)
        else:
            self.items[key] = item
        self.recent.append(key)
        if len(self.recent) > 4 * RECENT:
            del self.recent[: -RECENT]

    def get(self, connection, key):
        before = time.time()
        self.compare(key, connection.get(key), before)

    def get_many(self, connection, key):
        keys = [key] + [self.key() for _ in range(20)]
        before = time.time()
        found = connection.get_many(keys)
        for key in dict.fromkeys(keys):
            self.compare(key, found.get(key), before)

    def store(self, connection, key, verb, *more):
        """Stores another item under a key, and returns the outcome."""
        item, ttl = self.new_item(key)
        before = time.time()
        # As long as nobody knows when the server executes it.
        item.expires = expires_in(ttl, before, before + 120)
        self.begin(key, item)
        outcome = getattr(connection, verb)(key, item.value, item.flags, ttl, *more)
        item.expires = expires_in(ttl, before, time.time())
        if outcome == STORED:
            self.done(key, item)
        else:
            self.under_way = None
        return outcome

    def set(self, connection, key):
        outcome = self.store(connection, key, "set")
        if outcome != STORED:
            raise Violation(f"{connection.name}: set {key.decode()} was answered with {outcome}")

    def add(self, connection, key):
        item, before = self.items.get(key), time.time()
        outcome = self.store(connection, key, "add")
        if outcome == STORED:
            if item is not None:
                self.items[key], stored = item, self.items[key]
                self.missing(key, time.time())
                self.items[key] = stored
        elif item is None or item.must_be_gone(before):
            raise Violation(f"{connection.name}: add {key.decode()} was answered with {outcome}, but it holds nothing")

    def replace(self, connection, key):
        item, before = self.items.get(key), time.time()
        outcome = self.store(connection, key, "replace")
        if outcome == NOT_STORED:
            self.missing(key, time.time())
        elif item is None or item.must_be_gone(before):
            raise Violation(f"{connection.name}: replace {key.decode()} was {outcome}, but it holds nothing")

    def cas(self, connection, key):
        self.get(connection, key)
        item = self.items.get(key)
        if item is None:
            return
        outcome = self.store(connection, key, "cas", item.cas)
        if outcome == MISSING:
            self.missing(key, time.time())
        elif outcome != STORED:
            raise Violation(f"{connection.name}: cas {key.decode()} with its own id was answered with {outcome}")

    def cas_of_old(self, connection, key):
        """The id of an older version must never store."""
        item = self.items.get(key)
        if item is None or item.cas is None:
            return self.get(connection, key)
        old = item.cas
        self.set(connection, key)
        outcome = self.store(connection, key, "cas", old)
        if outcome == MISSING:
            self.missing(key, time.time())
        elif outcome != EXISTS:
            raise Violation(f"{connection.name}: cas {key.decode()} with the id of an older version was {outcome}")

    def append(self, connection, key):
        item, before = self.items.get(key), time.time()
        more = b"+%d+" % self.sequence
        side = self.rng.choice(("append", "prepend"))
        changed = item and item.with_value(item.value + more if side == "append" else more + item.value)
        self.begin(key, changed)
        outcome = getattr(connection, side)(key, more)
        if outcome == STORED:
            if item is None or item.must_be_gone(before):
                raise Violation(f"{connection.name}: {side} {key.decode()} was stored, but it holds nothing")
            return self.done(key, changed)
        self.under_way = None
        self.missing(key, time.time())

    def delete(self, connection, key):
        item, before = self.items.get(key), time.time()
        self.begin(key, None)
        deleted = connection.delete(key)
        if deleted and (item is None or item.must_be_gone(before)):
            raise Violation(f"{connection.name}: {key.decode()} was deleted, but it holds nothing")
        if not deleted:
            self.missing(key, time.time())
        self.done(key, None)

    def changed_expiry(self, key, ttl, ask):
        """Asks for another expiry; returns the answer, and the item with that expiry."""
        item, before = self.items.get(key), time.time()
        self.begin(key, item and item.with_expiry(expires_in(ttl, before, before + 120)))
        answer = ask()
        self.under_way = None
        return answer, item and item.with_expiry(expires_in(ttl, before, time.time())), before

    def touch(self, connection, key):
        ttl = self.rng.choice((0, 2, 1000))
        touched, item, before = self.changed_expiry(key, ttl, lambda: connection.touch(key, ttl))
        if not touched:
            return self.missing(key, time.time())
        if item is None or self.items[key].must_be_gone(before):
            raise Violation(f"{connection.name}: {key.decode()} was touched, but it holds nothing")
        self.done(key, item)

    def get_and_touch(self, connection, key):
        ttl = self.rng.choice((0, 2, 1000))
        found, item, before = self.changed_expiry(key, ttl, lambda: connection.get_and_touch(key, ttl))
        self.compare(key, found, before)
        if found is not None:
            item.cas = self.items[key].cas
            self.done(key, item)

    def increment(self, connection, _):
        """Counts: every acknowledged increment is there, and none twice."""
        key = self.number_of(self.rng.randrange(NUMBERS))
        item = self.items.get(key)
        if item is None:
            item = Item(b"1000000", 0)
            self.begin(key, item)
            if connection.add(key, item.value, 0, 0) != STORED:
                raise Violation(f"{connection.name}: add {key.decode()} was refused, but it holds nothing")
            return self.done(key, item)
        number = int(item.value) + 1
        changed = Item(b"%d" % number, 0)
        self.begin(key, changed)
        found = connection.increment(key, 1)
        if found is None:
            self.under_way = None
            return self.missing(key, time.time())
        if found != number:
            raise Violation(f"{connection.name}: {key.decode()} was incremented to {found}, expected {number}")
        self.done(key, changed)


def describe(value):
    if value is None:
        return "nothing"
    return f"{len(value)} bytes beginning {value[:60]!r}"


__all__ = ["Text", "Violation", "Worker"]
