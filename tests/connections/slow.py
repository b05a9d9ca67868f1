"""Clients that ask for much and do not read, beside one that wants quick answers.

A slow client behaves as one behind an ordinary network: its segments are those of Ethernet. Over the loopback interface
the system would otherwise keep megabytes for each connection itself, and the server would have nothing to keep.
"""

import multiprocessing
import random
import socket
import threading
import time

from crowd import Crowd
from servers import PATIENCE, THREADS, Control, Wrong, wait_for

SEGMENT = 1448
RECEIVE_BUFFER = 16 << 10
# While the replies are read, so that it does not take minutes.
LARGE_RECEIVE_BUFFER = 1 << 20
FAST_KEYS = 100
PAUSE = 0.001
STALL = 5
# What a worker keeps for replies between two uses, what it may need while it collects some, and its read buffer.
RETAINED = 1 << 20
WORKER = 2 * RETAINED + (64 << 10)
# A connection without its replies.
CONNECTION = 4 << 10
# The allocator, and the store's own growth.
SLACK = 32 << 20


class Values:
    """What the slow clients ask for: each of them all values, in an order of its own."""

    def __init__(self, count, size):
        self.count, self.size = count, size
        rng = random.Random(count * size)
        self.values = [rng.randbytes(size) for _ in range(count)]
        self.replies = [
            b"VALUE %s 0 %d\r\n%s\r\nEND\r\n" % (self.key(number), size, value)
            for number, value in enumerate(self.values)
        ]

    @staticmethod
    def key(number):
        return b"slow:%d" % number

    def order(self, client):
        return [(client.number + i) % self.count for i in range(self.count)]

    def request(self, client):
        return b"".join(b"get %s\r\n" % self.key(number) for number in self.order(client))

    def expected(self, client):
        return [self.replies[number] for number in self.order(client)]

    def __str__(self):
        return f"{self.count} values of {self.size / 1000:,.0f} kB"


class Fast:
    """A process that makes one request at a time and measures how long each takes."""

    def __init__(self, port):
        context = multiprocessing.get_context("fork")
        self.pipe, theirs = multiprocessing.Pipe()
        self.process = context.Process(target=self.run, args=(port, theirs), daemon=True)
        self.process.start()
        theirs.close()

    def next_phase(self):
        """Ends a phase, and returns its latencies in seconds, sorted."""
        try:
            self.pipe.send("next")
            if not self.pipe.poll(2 * PATIENCE):
                raise Wrong("the fast client hangs")
            outcome = self.pipe.recv()
        except (EOFError, OSError):
            outcome = "it has ended"
        if isinstance(outcome, str):
            raise Wrong(f"the fast client: {outcome}")
        return outcome

    def end(self):
        self.pipe.close()
        self.process.kill()
        self.process.join()

    @staticmethod
    def run(port, pipe):
        try:
            with socket.create_connection(("127.0.0.1", port), PATIENCE) as connection:
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                with connection.makefile("rb") as reader:
                    Fast.requests(connection, reader, pipe)
        except (Wrong, OSError) as error:
            pipe.send(f"{type(error).__name__}: {error}")
        except EOFError:
            pass

    @staticmethod
    def requests(connection, reader, pipe):
        values = [b""] * FAST_KEYS
        latencies, rng, count = [], random.Random(1), 0
        while True:
            number = rng.randrange(FAST_KEYS)
            key = b"fast:%d" % number
            began = time.perf_counter()
            if not values[number] or rng.random() < 0.1:
                values[number] = b"%d:%d:" % (number, count) + b"x" * (count % 200)
                connection.sendall(b"set %s 0 0 %d\r\n%s\r\n" % (key, len(values[number]), values[number]))
                expected = b"STORED\r\n"
            else:
                connection.sendall(b"get %s\r\n" % key)
                expected = b"VALUE %s 0 %d\r\n%s\r\nEND\r\n" % (key, len(values[number]), values[number])
            # Not `read(len(expected))`, which would wait for the rest of an answer that is too short.
            found = reader.readline()
            while found.startswith(b"VALUE") and len(found) < len(expected) and not found.endswith(b"END\r\n"):
                found += reader.readline()
            latencies.append(time.perf_counter() - began)
            if found != expected:
                raise Wrong(f"{found[:80]!r} instead of {expected[:80]!r} for {key.decode()}")
            count += 1
            if pipe.poll(PAUSE):
                pipe.recv()
                pipe.send(sorted(latencies))
                latencies = []


class Peak(threading.Thread):
    """Observes the anonymous memory of a server."""

    def __init__(self, server):
        super().__init__(daemon=True)
        self.server, self.bytes, self.wrong = server, 0, None
        self.ended = threading.Event()
        self.start()

    def run(self):
        while not self.ended.wait(0.01):
            try:
                self.bytes = max(self.bytes, self.server.anonymous())
            except Wrong as wrong:
                self.wrong = wrong
                return

    def end(self):
        self.ended.set()
        self.join()
        if self.wrong:
            raise self.wrong


def bound(values, clients, output_limit, request_bytes):
    """The most anonymous memory that slow clients may need, in bytes.

    A session appends replies until they have `output_limit` bytes or more, and goes on when the socket has taken all
    of them. So a client holds less than the limit and one reply; here all replies are of one length. What the socket
    has not taken is copied into memory of just that length, if it is at most 1 MiB, which it is here. The requests
    that have not been executed are kept too.
    """
    longest = max(map(len, values.replies))
    held = -(-output_limit // longest) * longest
    if held > RETAINED:
        raise Wrong(f"{held} bytes of replies at once: no bound is known")
    return clients * (held + request_bytes + CONNECTION) + THREADS * WORKER + SLACK


def latency(latencies):
    def part(share):
        return latencies[min(len(latencies) - 1, int(len(latencies) * share))] * 1e3

    return f"{part(0.5):.2f} / {part(0.99):.1f} / {part(1):.1f} ms ({len(latencies):,} requests)"


def mib(count):
    return f"{count / (1 << 20):,.1f} MiB"


def play(kind, options, values, say):
    """Runs slow clients against a server; returns figures."""
    with kind(options, options.slow + 200) as server:
        control = Control(server.port)
        fast = Fast(server.port)
        crowd = Crowd(server.port)
        peak = None
        try:
            for number, value in enumerate(values.values):
                control.set(values.key(number), value)
            fast.next_phase()
            time.sleep(STALL / 2)
            figures = {"fast client alone, p50 / p99 / most": latency(fast.next_phase())}
            before = server.anonymous()
            peak = Peak(server)
            clients = crowd.connect(options.slow, RECEIVE_BUFFER, SEGMENT)
            say(f"{len(clients)} slow clients are connected")
            stall(server, control, clients, values, figures)
            figures["fast client while they ask and nobody reads"] = latency(fast.next_phase())
            say("and stuck; now they read")
            read_all(crowd, clients, values, figures)
            figures["fast client while they read"] = latency(fast.next_phase())
            peak.end()
            figures["anonymous memory before"] = mib(before)
            each = mib((peak.bytes - before) / options.slow)
            figures["anonymous memory, the most at any time"] = f"{mib(peak.bytes)}, {each} per slow client"
            if kind.name == "evermap":
                judge(server, control, values, before, peak.bytes, figures)
            crowd.close()
            wait_for(
                lambda: f"the server has still {server.descriptors()} descriptors",
                lambda: server.descriptors() < options.slow // 2 + 50,
            )
            figures["after all are gone"] = mib(server.anonymous())
        finally:
            fast.end()
            if peak:
                peak.ended.set()
        control.close()
        return figures


def stall(server, control, clients, values, figures):
    """All clients ask, and none reads until the server has been waiting for them for some seconds."""
    for client in clients:
        client.ask(values.request(client), values.expected(client))
    written = -1
    # Unchanged but for the replies to the fast client and this one.
    while (now := control.stat("bytes_written")) - written > 1 << 20 or written < 0:
        written = now
        time.sleep(1)
    time.sleep(STALL)
    total = len(clients) * sum(map(len, values.replies))
    if written > total / 2:
        raise Wrong(f"the system itself has taken {mib(written)} of {mib(total)}: the clients are not slow enough")
    figures["asked for by all"] = mib(total)
    figures["taken by the system for the sockets"] = mib(written)
    figures["anonymous memory of the server while nobody reads"] = mib(server.anonymous())
    if (unsent := control.stat("evermap_unsent_bytes")) is not None:
        figures["of that, for unsent replies (`evermap_unsent_bytes`)"] = mib(unsent)
        stuck = sum(value == "conn_mwrite" for name, value in control.stats("conns").items() if name.endswith(":state"))
        if stuck != len(clients):
            raise Wrong(f"{stuck} of {len(clients)} connections wait for their clients, according to `stats conns`")


def read_all(crowd, clients, values, figures):
    began = time.monotonic()
    for client in clients:
        client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, LARGE_RECEIVE_BUFFER)
    crowd.gather(clients)
    crowd.silence()
    total, expected = sum(client.received for client in clients), len(clients) * sum(map(len, values.replies))
    if total != expected:
        raise Wrong(f"{total} of {expected} bytes have been read")
    figures["read and verified"] = f"{mib(total)} in {time.monotonic() - began:.1f} s"


def judge(server, control, values, before, peak, figures):
    """The memory must have been within bounds, and be free again."""
    limit = int(control.stats("settings")["output_limit"])
    clients = server.options.slow
    request_bytes = values.count * len(b"get %s\r\n" % values.key(values.count))
    most = before + bound(values, clients, limit, request_bytes)
    figures["allowed at most"] = mib(most)
    if peak > most:
        raise Wrong(f"{clients} slow clients took {mib(peak)} of anonymous memory; at most {mib(most)} are allowed")
    if unsent := control.stat("evermap_unsent_bytes"):
        raise Wrong(f"everything has been read, and `evermap_unsent_bytes` is {unsent}")
    allowed = before + THREADS * WORKER + clients * CONNECTION + SLACK
    wait_for(
        lambda: f"all replies are read, and the server has {mib(server.anonymous())}; expected: {mib(allowed)}",
        lambda: server.anonymous() <= allowed,
    )
