#!/usr/bin/env python3
"""Three servers behind a client that distributes the keys: one is killed under load and comes back.

A program in front of a database reads through the cache: what it misses, it loads from the database and stores; what
it changes there, it stores in the cache too. The clients are twemproxy, pymemcache's HashClient and libmemcached's
ketama; the servers are Evermap, which comes back warm, Evermap with --rejoin flush, and memcached, which comes back
empty. Each combination sees the same requests.

Nothing may be answered with a value of another key or one that was never stored. A value that the database has
replaced in the meantime is *stale*: such answers are counted.
"""

import argparse
import itertools
import os
import random
import shutil
import socket
import subprocess
import sys
import tempfile
import time

NODES = 3
PATIENCE = 30
ZIPF = 0.99
# The requests after the return are counted in this number of parts.
PARTS = 8


class Wrong(Exception):
    """An answer or a state that must not be."""


def free_ports(count):
    probes = [socket.socket() for _ in range(count)]
    for probe in probes:
        probe.bind(("127.0.0.1", 0))
    ports = [probe.getsockname()[1] for probe in probes]
    for probe in probes:
        probe.close()
    return ports


def wait_for(what, condition):
    end = time.monotonic() + PATIENCE
    while not condition():
        if time.monotonic() > end:
            raise Wrong(f"timeout while waiting for {what}")
        time.sleep(0.02)


def answers(port):
    try:
        with socket.create_connection(("127.0.0.1", port), 5) as connection:
            connection.sendall(b"version\r\n")
            return connection.recv(100).startswith(b"VERSION")
    except OSError:
        return False


def stats(port):
    """The statistics of one node, asked directly."""
    with socket.create_connection(("127.0.0.1", port), 5) as connection, connection.makefile("rb") as reader:
        connection.sendall(b"stats\r\n")
        lines = iter(lambda: reader.readline().split(), [b"END"])
        return {words[1].decode(): b" ".join(words[2:]).decode() for words in lines}


class Node:
    """A server process that can be killed and started again."""

    def __init__(self, command, port):
        self.command, self.port = command, port
        self.process = None

    def start(self):
        self.process = subprocess.Popen(self.command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        wait_for(f"the server on port {self.port}", lambda: answers(self.port))

    def kill(self):
        self.process.kill()
        self.process.wait()


class Twemproxy:
    """twemproxy, and a plain client of it."""

    name = "twemproxy, ketama"

    def __init__(self, ports, folder):
        from pymemcache.client.base import Client

        port, admin = free_ports(2)
        config = os.path.join(folder, "nutcracker.yml")
        with open(config, "w", encoding="ascii") as file:
            file.write(
                f"fleet:\n  listen: 127.0.0.1:{port}\n  hash: fnv1a_64\n  distribution: ketama\n"
                "  auto_eject_hosts: true\n  server_retry_timeout: 500\n  server_failure_limit: 1\n"
                "  timeout: 2000\n  servers:\n"
            )
            file.writelines(f"   - 127.0.0.1:{node}:1 node{i}\n" for i, node in enumerate(ports))
        log = os.path.join(folder, "nutcracker.log")
        self.process = subprocess.Popen(
            ["nutcracker", "-c", config, "-o", log, "-a", "127.0.0.1", "-s", str(admin)],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )
        wait_for("twemproxy", lambda: accepts(port))
        self.client = Client(("127.0.0.1", port), timeout=5, connect_timeout=5, default_noreply=False)

    def get(self, key):
        return self.client.get(key)

    def set(self, key, value):
        self.client.set(key, value)

    def close(self):
        self.client.close()
        self.process.kill()
        self.process.wait()


def accepts(port):
    try:
        socket.create_connection(("127.0.0.1", port), 5).close()
        return True
    except OSError:
        return False


class Hash:
    """pymemcache's HashClient."""

    name = "pymemcache HashClient"

    def __init__(self, ports, _):
        from pymemcache.client.hash import HashClient

        self.client = HashClient(
            [("127.0.0.1", port) for port in ports],
            retry_attempts=0, retry_timeout=0.2, dead_timeout=0.5, timeout=5, connect_timeout=5, default_noreply=False,
        )

    def get(self, key):
        return self.client.get(key)

    def set(self, key, value):
        self.client.set(key, value)

    def close(self):
        self.client.close()


class Ketama:
    """libmemcached with ketama, through pylibmc."""

    name = "libmemcached ketama"

    def __init__(self, ports, _):
        import pylibmc

        self.client = pylibmc.Client(
            [f"127.0.0.1:{port}" for port in ports],
            behaviors={
                "ketama": True, "remove_failed": 1, "retry_timeout": 1, "dead_timeout": 1, "tcp_nodelay": True,
                "connect_timeout": 5000, "receive_timeout": 5_000_000,
            },
        )

    def get(self, key):
        return self.client.get(key)

    def set(self, key, value):
        self.client.set(key, value)

    def close(self):
        self.client.disconnect_all()


class Program:
    """What reads through the cache, and its database."""

    def __init__(self, client, options):
        self.client, self.options = client, options
        self.rng = random.Random(options.seed)
        self.versions = [1] * options.keys
        weights = [1 / (rank + 1) ** ZIPF for rank in range(options.keys)]
        self.rng.shuffle(weights)
        self.weights = list(itertools.accumulate(weights))

    @staticmethod
    def key(number):
        return f"user:{number}"

    @staticmethod
    def value(number, version):
        return b"%d:%d:" % (number, version) + b"x" * (50 + number * 37 % 400)

    def load(self):
        for number in range(self.options.keys):
            self.client.set(self.key(number), self.value(number, 1))

    def requests(self, count):
        """Makes requests, and returns what came of them."""
        result = dict.fromkeys(("reads", "hits", "stale", "errors"), 0)
        for number in self.rng.choices(range(self.options.keys), cum_weights=self.weights, k=count):
            change = self.rng.random() < self.options.changes
            try:
                if change:
                    self.versions[number] += 1
                    self.client.set(self.key(number), self.value(number, self.versions[number]))
                    continue
                result["reads"] += 1
                self.read(number, result)
            except Wrong:
                raise
            except Exception:  # noqa: BLE001: every client has its own for a node that is gone
                result["errors"] += 1
        return result

    def read(self, number, result):
        found = self.client.get(self.key(number))
        if found is None:
            self.client.set(self.key(number), self.value(number, self.versions[number]))
            return
        version = self.check(number, found)
        if version < self.versions[number]:
            result["stale"] += 1
        else:
            result["hits"] += 1

    def check(self, number, found):
        """Returns the version of an answer, which must be one that the database had for this key."""
        try:
            version = int(found.split(b":")[1])
        except (IndexError, ValueError):
            version = 0
        if not 1 <= version <= self.versions[number] or found != self.value(number, version):
            raise Wrong(f"{self.key(number)} was answered with {found[:60]!r}")
        return version


def servers(kind, options, folder, ports):
    """The nodes of one kind of server."""
    def command(i, port):
        if kind == "memcached":
            user = ["-u", "root"] if os.getuid() == 0 else []
            return ["memcached", "-l", "127.0.0.1", "-p", str(port), "-m", "64", *user]
        rejoin = "flush" if kind == "evermap --rejoin flush" else "keep"
        path = os.path.join(folder, f"node{i}.map")
        return [options.binary, "serve", "--path", path, "--listen", f"127.0.0.1:{port}", "--rejoin", rejoin]

    return [Node(command(i, port), port) for i, port in enumerate(ports)]


def wait_until_used(program, node):
    """Makes requests until the client uses a node again. Their answers are checked, but not counted."""
    before = int(stats(node.port)["cmd_get"])

    def used():
        program.requests(50)
        return int(stats(node.port)["cmd_get"]) > before + 5

    wait_for("the return of the node", used)


def play(client_kind, kind, ports, options):
    """One combination; returns a line of the table."""
    folder = tempfile.mkdtemp(prefix="fleet-", dir="/dev/shm" if os.path.isdir("/dev/shm") else None)
    nodes = servers(kind, options, folder, ports)
    client = None
    try:
        for node in nodes:
            node.start()
        client = client_kind(ports, folder)
        program = Program(client, options)
        program.load()
        items = [int(stats(port)["curr_items"]) for port in ports]
        before = program.requests(options.requests)
        victim = nodes[1]
        victim.kill()
        program.requests(200)
        outage = program.requests(options.requests)
        victim.start()
        wait_until_used(program, victim)
        after = [program.requests(options.requests // PARTS) for _ in range(PARTS)]
        victim.kill()
        program.requests(200)
        second = program.requests(options.requests)
        return items, before, outage, after, second
    finally:
        if client:
            client.close()
        for node in nodes:
            if node.process:
                node.kill()
        shutil.rmtree(folder)


def percent(result, name="hits"):
    return f"{100 * result[name] / max(1, result['reads']):.1f}"


def line(client_kind, kind, outcome):
    items, before, outage, after, second = outcome
    if min(items) < 0.4 * sum(items) / NODES:
        raise Wrong(f"the keys are distributed unevenly: {items}")
    return [
        client_kind.name, kind, "/".join(map(str, items)), percent(before), percent(outage), percent(after[0]),
        percent(after[-1]), percent(after[0], "stale"), percent(after[-1], "stale"), percent(second, "stale"),
        str(outage["errors"] + second["errors"]),
    ]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", default="target/release/evermap")
    parser.add_argument("--keys", type=int, default=20_000)
    parser.add_argument("--requests", type=int, default=8_000, help="in each phase")
    parser.add_argument("--changes", type=float, default=0.01, help="the share of requests that change a record")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--clients", default="twemproxy,hash,ketama")
    options = parser.parse_args()
    kinds = {"twemproxy": Twemproxy, "hash": Hash, "ketama": Ketama}
    header = [
        "client", "servers", "keys per node", "current, %: before", "in the outage", "after the return, first eighth",
        "last eighth", "stale, %: first eighth", "last eighth", "in a second outage", "errors in both outages",
    ]
    print("| " + " | ".join(header) + " |\n|" + "---|" * len(header), flush=True)
    failed = False
    for client in options.clients.split(","):
        # The same for all kinds of servers, because the clients distribute the keys by the addresses.
        ports = free_ports(NODES)
        for kind in ("evermap", "evermap --rejoin flush", "memcached"):
            try:
                print("| " + " | ".join(line(kinds[client], kind, play(kinds[client], kind, ports, options))) + " |", flush=True)
            except Wrong as wrong:
                failed = True
                print(f"{kinds[client].name}, {kind}: {wrong}", file=sys.stderr)
    sys.exit(failed)


if __name__ == "__main__":
    main()
