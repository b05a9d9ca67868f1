#!/usr/bin/env python3
"""Values that are refused, between the gets of other clients on a shared connection.

twemproxy sends the requests of all its clients over one connection to a server, and takes what it receives for the
reply to the oldest of them. So a reply that comes before the request is complete, one too many or one too few gives a
client the reply to somebody else's request. Some clients get, each time another key, while another sets values that are
larger than the server accepts. Every reply must be the right one, and come in time.
"""

import argparse
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time

from fleet import Node, Wrong, accepts, free_ports, stats, wait_for

KEYS = 500
CLIENTS = 4
# A reply that comes later than this is late: twemproxy is told to wait no longer.
PATIENCE_MS = 20_000
SIZES = (8 << 20, 20 << 20)
TOO_LARGE = b"SERVER_ERROR object too large for cache\r\n"


def value(number):
    return b"%d:" % number + b"v" * (number * 7 % 300)


class Client:
    """A connection, through the proxy or not."""

    def __init__(self, port):
        self.socket = socket.create_connection(("127.0.0.1", port), PATIENCE_MS / 1000)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.replies = self.socket.makefile("rb")

    def send(self, request):
        self.socket.sendall(request)

    def expect(self, reply, request):
        found = self.replies.readline()
        while len(found) < len(reply) and found.endswith(b"\n"):
            found += self.replies.readline()
        if found != reply:
            raise Wrong(f"{request[:60]!r} was answered with {found[:100]!r} instead of {reply[:100]!r}")

    def set(self, key, data, reply=b"STORED\r\n"):
        head = b"set %s 0 0 %d\r\n" % (key, len(data))
        self.send(head + data + b"\r\n")
        self.expect(reply, head)

    def get(self, number):
        request = b"get key-%d\r\n" % number
        self.send(request)
        data = value(number)
        self.expect(b"VALUE key-%d 0 %d\r\n%s\r\nEND\r\n" % (number, len(data), data), request)


def proxy(server, folder):
    """twemproxy in front of a server, with one connection to it."""
    port, admin = free_ports(2)
    config = os.path.join(folder, "nutcracker.yml")
    with open(config, "w", encoding="ascii") as file:
        file.write(
            f"one:\n  listen: 127.0.0.1:{port}\n  hash: fnv1a_64\n  distribution: ketama\n  server_connections: 1\n"
            f"  auto_eject_hosts: false\n  timeout: {PATIENCE_MS}\n  servers:\n   - 127.0.0.1:{server}:1\n"
        )
    command = ["nutcracker", "-c", config, "-o", os.path.join(folder, "log"), "-a", "127.0.0.1", "-s", str(admin)]
    # Large mbufs, because twemproxy needs one for each part of a value.
    process = subprocess.Popen([*command, "-m", "65536"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    wait_for("twemproxy", lambda: accepts(port))
    return process, port


class Getters:
    """Clients that get as long as they are asked to."""

    def __init__(self, port, gets):
        self.each, self.errors, self.done = gets // CLIENTS, [], 0
        self.threads = [threading.Thread(target=self.run, args=(port, i)) for i in range(CLIENTS)]
        for thread in self.threads:
            thread.start()

    def run(self, port, seed):
        try:
            client = Client(port)
            for i in range(self.each):
                client.get((seed * 131 + i * 17) % KEYS)
                self.done += 1
        except Exception as error:  # noqa: BLE001: whatever it is, it is reported
            self.errors.append(error)

    def running(self):
        return any(thread.is_alive() for thread in self.threads)

    def join(self):
        for thread in self.threads:
            thread.join()
        if self.errors:
            raise Wrong(f"{len(self.errors)} of {CLIENTS} clients failed: {self.errors[0]}")


def play(server, folder, gets):
    """Returns the number of values that were refused while the clients got."""
    process, port = proxy(server, folder)
    try:
        setter = Client(port)
        for number in range(KEYS):
            setter.set(b"key-%d" % number, value(number))
        getters, refused = Getters(port, gets), 0
        while getters.running() and not getters.errors:
            setter.set(b"large", b"\r\nget key-1\r\n".ljust(SIZES[refused % len(SIZES)], b"x"), TOO_LARGE)
            refused += 1
            # A value that is accepted, on the same connection.
            setter.set(b"key-7", value(7))
        getters.join()
        return refused
    finally:
        process.kill()
        process.wait()


def commands(options, folder, port):
    user = ["-u", "root"] if os.getuid() == 0 else []
    path = os.path.join(folder, "store.map")
    return {
        "evermap": [options.binary, "serve", "--path", path, "--listen", f"127.0.0.1:{port}"],
        "memcached": ["memcached", "-l", "127.0.0.1", "-p", str(port), "-m", "64", *user],
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", default="target/release/evermap")
    parser.add_argument("--gets", type=int, default=10_000)
    options = parser.parse_args()
    failed = False
    for kind in ("evermap", "memcached"):
        folder = tempfile.mkdtemp(prefix="fleet-", dir="/dev/shm" if os.path.isdir("/dev/shm") else None)
        [port] = free_ports(1)
        node = Node(commands(options, folder, port)[kind], port)
        try:
            node.start()
            began = time.monotonic()
            refused = play(port, folder, options.gets)
            # What twemproxy holds back is lost with it, so this is a lower bound.
            if int(stats(port)["store_too_large"]) < refused:
                raise Wrong("the server has refused fewer values than the client was told")
            seconds = time.monotonic() - began
            print(f"{kind}: {refused} values refused between {options.gets} gets, {seconds:.1f} s; all replies right")
        except (Wrong, OSError) as wrong:
            failed = True
            print(f"{kind}: {wrong}", file=sys.stderr)
        finally:
            if node.process:
                node.kill()
            shutil.rmtree(folder)
    sys.exit(failed)


if __name__ == "__main__":
    main()
