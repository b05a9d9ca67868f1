#!/usr/bin/env python3
"""Sends the same requests to Evermap and to memcached, and compares the replies byte by byte.

The reference of docs/use/memcached.md is memcached 1.6.45; Debian's is older. So a few replies differ from both or from the
older one only: those are listed here with the reason, and what Evermap replies is checked. A difference that is not
listed is an error, and so is one that is listed and does not exist.

A request with data is also cut in two in front of each of some bytes. Nothing of the reply to it may come before its
last byte has been sent, because a client that shares its connection would take it for the reply to another request.
"""

import argparse
import os
import re
import select
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import time

from cases import CASES, OLDER, OURS, REFUSED

# The time in which no more bytes may arrive after the reply, seconds.
QUIET = 0.05
# A request behind all others, so that the end of the replies is known.
LAST = b"get no-such-key-behind-all\r\n"
LAST_REPLY = b"END\r\n"


class Server:
    def __init__(self, command, port):
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.port = port
        end = time.monotonic() + 30
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), 5).close()
                return
            except OSError:
                if time.monotonic() > end:
                    raise
                time.sleep(0.02)

    def stop(self):
        self.process.kill()
        self.process.wait()

    def connect(self):
        connection = socket.create_connection(("127.0.0.1", self.port), 10)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return connection

    def ask(self, request):
        """Returns the replies to a request of a new connection, and whether the server has closed it."""
        with self.connect() as connection:
            connection.sendall(b"flush_all\r\n")
            assert connection.recv(100) == b"OK\r\n"
            try:
                connection.sendall(request + LAST)
            except OSError:
                return b"", True
            return receive(connection, LAST_REPLY)

    def reply_comes_last(self, request, cut):
        """Sends a request in two parts. Returns what came before the second part, and the rest."""
        with self.connect() as connection:
            connection.sendall(request[:cut])
            early = b""
            if select.select([connection], [], [], QUIET)[0]:
                early = connection.recv(1 << 16)
            connection.sendall(request[cut:] + LAST)
            return early, receive(connection, LAST_REPLY)[0]


def receive(connection, last):
    replies = b""
    while not replies.endswith(last) or select.select([connection], [], [], QUIET)[0]:
        try:
            received = connection.recv(1 << 16)
        except ConnectionError:
            received = b""
        if not received:
            return replies, True
        replies += received
    return replies[: -len(last)], False


def plain(replies):
    """Replaces what two servers cannot have in common: CAS ids, times and versions."""
    replies = re.sub(rb"(VALUE \S+ \d+ \d+) \d+\r", rb"\1 CAS\r", replies)
    replies = re.sub(rb" c\d+", rb" cN", replies)
    replies = re.sub(rb"cas=\d+", rb"cas=N", replies)
    replies = re.sub(rb"la=\d{6,}", rb"la=TIME", replies)
    return re.sub(rb"VERSION [^\r]*", rb"VERSION N", replies)


def binary(opcode, key=b"", extras=b"", value=b""):
    head = struct.pack(">BBHBBHIIQ", 0x80, opcode, len(key), len(extras), 0, 0, len(extras + key + value), 7, 0)
    return head + extras + key + value


def ask_binary(server, request):
    with server.connect() as connection:
        connection.sendall(request + binary(0x0A))
        replies, end = b"", struct.pack(">BBHBBHIIQ", 0x81, 0x0A, 0, 0, 0, 0, 0, 7, 0)
        return receive(connection, end)


def compare(evermap, memcached, verbose):
    failures = []
    for request in CASES:
        ours, theirs = (server.ask(request) for server in (evermap, memcached))
        ours, theirs = (plain(ours[0]), ours[1]), (plain(theirs[0]), theirs[1])
        listed = OLDER.get(request) or OURS.get(request)
        if listed is None and ours != theirs:
            failures.append(f"{request[:80]!r}: {ours} here, {theirs} by memcached")
        elif listed is not None and ours == theirs:
            failures.append(f"{request[:80]!r}: listed as different, and both reply {ours}")
        elif listed is not None and ours[0] != listed[0]:
            failures.append(f"{request[:80]!r}: {ours} here instead of {listed[0]!r}")
        elif verbose and listed:
            print(f"{request[:60]!r}: {listed[1]}: {ours[0]!r} here, {theirs[0]!r} by memcached")
    return failures


def long_list(evermap, memcached):
    """A get with five megabytes of keys, of which some exist."""
    sets = b"".join(b"set listed-%d 0 0 10\r\n0123456789\r\n" % i for i in range(100))
    keys = [b"absent-".ljust(245, b"k") + b"%d" % i for i in range(20_000)]
    keys[::200] = [b"listed-%d" % i for i in range(100)]
    request = sets + b"get " + b" ".join(keys) + b"\r\n"
    (ours, _), (theirs, _) = (server.ask(request) for server in (evermap, memcached))
    if ours != theirs or ours.count(b"VALUE ") != 100:
        return [f"a get of {len(keys)} keys: {len(ours)} bytes here, {len(theirs)} by memcached: {ours[-60:]!r}"]
    return []


def names(server, request):
    """The names of statistics, without the numbers of connections. Each line must have three words."""
    replies, _ = server.ask(request)
    lines = [line.split(b" ") for line in replies.split(b"\r\n") if line.startswith(b"STAT ")]
    wrong = [b" ".join(words).decode() for words in lines if len(words) != 3]
    return {re.sub(rb"^\d+:", b"", words[1]).decode() for words in lines}, wrong


def compare_names(evermap, memcached):
    failures = []
    for request in (b"stats\r\n", b"stats settings\r\n", b"stats conns\r\n"):
        (ours, wrong), (theirs, _) = names(evermap, request), names(memcached, request)
        if missing := theirs - ours:
            failures.append(f"{request!r}: only memcached has {sorted(missing)}")
        failures += [f"{request!r}: not three words: {line}" for line in wrong]
    return failures


def refuse(evermap, memcached):
    """Requests that are refused, with the data behind them, in two parts."""
    failures, tried = [], 0
    for line, reply in REFUSED:
        data = b"\r\nflush_all\r\n".ljust(1_500_000, b"x")
        request = line.replace(b"LEN", b"%d" % len(data)) + b"\r\n" + data + b"\r\n"
        for cut in (len(line), len(line) + 20, 100_000, len(request) // 2, len(request) - 2, len(request) - 1):
            tried += 1
            for server, name in ((evermap, "here"), (memcached, "by memcached")):
                early, replies = server.reply_comes_last(request, cut)
                if early or replies != reply:
                    failures.append(f"{line!r} cut at {cut}: {early!r} too soon, then {replies!r} {name}")
    value = b"x" * 1_500_000
    for opcode in (0x01, 0x02, 0x03, 0x11):
        tried += 1
        request = binary(opcode, b"large", b"\0" * 8, value)
        ours, theirs = (ask_binary(server, request) for server in (evermap, memcached))
        if ours != theirs:
            failures.append(f"opcode {opcode}: {ours!r} here, {theirs!r} by memcached")
    return failures, tried


def free_ports(count):
    probes = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [probe.getsockname()[1] for probe in probes]
    for probe in probes:
        probe.close()
    return ports


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", default="target/release/evermap")
    parser.add_argument("--verbose", action="store_true", help="show the differences that are listed, too")
    options = parser.parse_args()
    folder = tempfile.mkdtemp(prefix="replies-", dir="/dev/shm" if os.path.isdir("/dev/shm") else None)
    ports, servers = free_ports(2), []
    user = ["-u", "root"] if os.getuid() == 0 else []
    path = os.path.join(folder, "store.map")
    try:
        listen = f"127.0.0.1:{ports[0]}"
        serve = [options.binary, "serve", "--listen", listen, "--path", path, "--memory", "64M"]
        servers.append(Server(serve, ports[0]))
        servers.append(Server(["memcached", "-l", "127.0.0.1", "-p", str(ports[1]), "-U", "0", *user], ports[1]))
        failures = compare(*servers, options.verbose) + compare_names(*servers) + long_list(*servers)
        refused, tried = refuse(*servers)
    finally:
        for server in servers:
            server.stop()
        shutil.rmtree(folder)
    for failure in failures + refused:
        print(failure, file=sys.stderr)
    listed = len(OLDER) + len(OURS)
    print(f"{len(CASES)} requests, of which {listed} are answered differently on purpose; {tried} refusals with data")
    sys.exit(bool(failures + refused))


if __name__ == "__main__":
    main()
