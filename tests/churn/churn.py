#!/usr/bin/env python3
"""Kills a server again and again while clients change its records, and looks whether anything is missing.

Each round: two connections overwrite, delete and insert until SIGKILL at a random moment; a new server
starts at once, on the same port and file, while the old process is still dying; its first SET is timed;
a thousand random keys, and those changed last, are compared byte by byte with what was acknowledged. Some
rounds also kill servers that are only opening, that are closing, or a few milliseconds after the start.
Every 20 rounds the server is shut down cleanly and the file checked.

The full form runs 200 rounds at 5 million records; --short is for every day.
"""

import argparse
import json
import multiprocessing
import os
import random
import select
import signal
import socket
import subprocess
import sys
import time

from pymemcache.client.base import Client
from pymemcache.exceptions import MemcacheError, MemcacheUnexpectedCloseError

from oracle import Oracle
from values import BANDS, ROUNDS_MAX, SEQUENCE_BITS, Values, bands_of_rounds, key_bytes, version_of

CONNECTIONS = 2
# The driver's own connection, whose keys are the last ones: the first SET after each start.
DRIVER = CONNECTIONS
DRIVER_KEYS = 1000
# Keys for each record that is live on average. Deleting one live key in four that are drawn keeps it so.
SPREAD = 1.25
DELETE_SHARE = 0.25
GET_SHARE = 0.15
VERIFIED = 1000
CHECK_EVERY = 20
# The file may not grow much after this round.
BASE_ROUND = BANDS
GROWTH_LIMIT = 1.3
# Longest time for any answer, and for a server to start or stop, seconds.
PATIENCE = 60
CONNECTION_LOST = (ConnectionError, MemcacheUnexpectedCloseError)


class Violation(Exception):
    """Something that must not happen."""


def wrong_value(values, key, version, found):
    return Violation(
        f"key      {key} ({key_bytes(key).decode()})\n"
        f"expected {values.describe(values.value(key, version))} (the last that was acknowledged)\n"
        f"found    {values.describe(found)}"
    )


class Server:
    """A process of `evermap serve`."""

    def __init__(self, options):
        command = [options.binary, "serve", "--path", options.path, "--listen", f"127.0.0.1:{options.port}"]
        with open(options.path + ".log", "ab") as log:
            self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log)

    def wait_ready(self):
        """Waits for the line that says so."""
        readable, _, _ = select.select([self.process.stdout], [], [], PATIENCE)
        if not readable:
            raise Violation(f"the server was not ready after {PATIENCE} s")
        if not self.process.stdout.readline():
            raise Violation(f"the server ended with code {self.process.wait()} instead of getting ready")

    def ensure_alive(self):
        if self.process.poll() is not None:
            raise Violation(f"the server ended by itself with code {self.process.returncode}")

    def kill(self):
        """Kills it and does not wait for its end."""
        self.process.kill()

    def stop(self):
        """Shuts it down cleanly."""
        self.process.terminate()
        code = self.process.wait(PATIENCE)
        if code != 0:
            raise Violation(f"the server ended with code {code} after SIGTERM")


def connect(port):
    client = Client(
        ("127.0.0.1", port), connect_timeout=PATIENCE, timeout=PATIENCE, no_delay=True, default_noreply=False
    )
    # It connects with its first request.
    client.version()
    return client


def change(client, values, oracle, connection, key, version):
    """Gives a key another version (0: deletes it) and notes the answer."""
    value = values.value(key, version)
    oracle.begin(connection, key, version)
    if value is None:
        done = client.delete(key_bytes(key))
    elif oracle.versions[key] == 0:
        done = client.add(key_bytes(key), value)
    else:
        done = client.replace(key_bytes(key), value) if version % 2 else client.set(key_bytes(key), value)
    if not done:
        verb = "insert" if oracle.versions[key] == 0 else "change" if version else "delete"
        raise Violation(f"the server refused to {verb} key {key} ({key_bytes(key).decode()}), "
                        f"acknowledged version {oracle.versions[key]:#x}")
    oracle.acknowledge(connection, key, version)


class Run:
    """One run of the test."""

    def __init__(self, options):
        self.options = options
        rng = random.Random(options.seed)
        self.rng = rng
        self.values = Values(bands_of_rounds(rng, options.rounds))
        self.keys = int(options.records * SPREAD) // CONNECTIONS * CONNECTIONS
        self.oracle = Oracle(self.keys + DRIVER_KEYS, CONNECTIONS + 1)
        self.round = 0
        self.server = None
        self.dying = []
        self.kills = 0
        self.starts = []
        self.first_sets = []
        self.base = None
        self.largest_growth = (0, 0, 0)

    # Servers

    def start(self):
        self.server = Server(self.options)

    def kill(self):
        self.server.kill()
        self.dying = [process for process in self.dying if process.poll() is None] + [self.server.process]
        self.kills += 1

    def restart(self, since):
        """Starts a server and times it: from `since` until it is ready, and its first SET."""
        self.start()
        self.server.wait_ready()
        ready = time.monotonic()
        client = connect(self.options.port)
        key = self.keys + self.rng.randrange(DRIVER_KEYS)
        version = version_of(self.round, self.oracle.next_sequence(DRIVER))
        change(client, self.values, self.oracle, DRIVER, key, version)
        self.first_sets.append(time.monotonic() - ready)
        self.starts.append(ready - since)
        client.close()

    # Loading

    def load(self):
        """Stores the first records."""
        begun = time.monotonic()
        self.start()
        self.server.wait_ready()
        self.in_parallel(load_share)
        client = connect(self.options.port)
        stored = int(client.stats()[b"curr_items"])
        client.close()
        live = self.oracle.live()
        if stored != live:
            raise Violation(f"loaded {live} records, but the server counts {stored}")
        took = time.monotonic() - begun
        length, blocks = self.file_size()
        print(f"loaded {live} records in {took:.1f} s: file {length >> 20} MiB, {blocks >> 20} MiB on disk", flush=True)

    def in_parallel(self, task, until=None):
        """Runs `task(run, connection, client)` in a process for each connection; `until` runs meanwhile."""
        tasks = [Task(task, self, connection) for connection in range(CONNECTIONS)]
        try:
            if until:
                until()
        finally:
            complaints = [complaint for task in tasks if (complaint := task.join())]
        if complaints:
            raise Violation("\n".join(complaints))

    # Rounds

    def play_round(self):
        self.round += 1
        for connection in range(CONNECTIONS + 1):
            self.oracle.sequences[connection] = 0
        before = sum(self.oracle.acknowledged)
        how = self.rng.choices(["serving", "closing", "opening", "soon"], [6, 1, 1, 2])[0]
        self.crash(self.rng.uniform(0, self.options.seconds_per_round), how)
        if how == "soon":
            # Again before the sweep has gone far.
            for _ in range(self.rng.randint(1, 3)):
                self.crash(self.rng.uniform(0, 0.05), how)
        self.verify_some()
        self.report(how, sum(self.oracle.acknowledged) - before)

    def crash(self, after, how):
        """Lets the connections work for `after` seconds, kills the server, and starts the next."""
        def until():
            time.sleep(after)
            self.server.ensure_alive()
            if how == "closing":
                self.server.process.terminate()
                time.sleep(self.rng.uniform(0, 0.03))
            killed = time.monotonic()
            self.kill()
            self.note_size()
            for _ in range(self.rng.randint(1, 3) if how == "opening" else 0):
                self.start()
                time.sleep(self.rng.uniform(0, 0.02))
                killed = time.monotonic()
                self.kill()
            self.restart(killed)

        self.in_parallel(churn_share, until)
        self.learn()

    def learn(self):
        """Finds out what became of the operations that were not answered."""
        client = connect(self.options.port)
        for connection in range(CONNECTIONS):
            if not (operation := self.oracle.take_under_way(connection)):
                continue
            key, old, new = operation
            found = client.get(key_bytes(key))
            outcomes = [version for version in (old, new) if self.values.value(key, version) == found]
            if not outcomes:
                raise Violation(
                    f"{wrong_value(self.values, key, old, found)}\n"
                    f"or       {self.values.describe(self.values.value(key, new))} (under way when the server was killed)"
                )
            self.oracle.versions[key] = outcomes[0]
        client.close()

    def verify_some(self):
        keys = [self.rng.randrange(len(self.oracle.versions)) for _ in range(VERIFIED)]
        for connection in range(CONNECTIONS + 1):
            keys += self.oracle.recent(connection)
        self.verify(keys)

    def verify(self, keys):
        client = connect(self.options.port)
        for first in range(0, len(keys), 100):
            batch = keys[first : first + 100]
            found = client.get_many([key_bytes(key) for key in batch])
            for key in batch:
                version, got = self.oracle.versions[key], found.get(key_bytes(key))
                if got != self.values.value(key, version):
                    raise wrong_value(self.values, key, version, got)
        client.close()

    # Files

    def file_size(self):
        status = os.stat(self.options.path)
        return status.st_size, status.st_blocks * 512

    def note_size(self):
        """Compares the file with that of round 10."""
        length, blocks = self.file_size()
        if self.round == BASE_ROUND:
            self.base = (length, blocks)
        if self.base:
            growth = (length / self.base[0], blocks / self.base[1], self.round)
            self.largest_growth = max(self.largest_growth, growth, key=lambda growth: max(growth[:2]))

    def stop_and_check(self):
        """Shuts the server down cleanly and examines the file."""
        self.server.stop()
        live = self.oracle.live()
        check = subprocess.run(
            [self.options.binary, "check", self.options.path, "--deep"], capture_output=True, text=True
        )
        if check.returncode != 0:
            raise Violation(f"check --deep ended with code {check.returncode}:\n{check.stdout}{check.stderr}")
        stat = subprocess.run(
            [self.options.binary, "stat", self.options.path, "--json"], capture_output=True, text=True, check=True
        )
        records = json.loads(stat.stdout)["records"]
        if records != live:
            raise Violation(f"{live} keys hold something, but the store counts {records} records")
        lines = check.stdout.strip().splitlines()
        print(f"         check: {lines[-1] if lines else 'clean'}", flush=True)

    # Reports

    def report(self, how, operations):
        length, blocks = self.file_size()
        print(
            f"round {self.round:3}: {how:7} {operations:7} changes, kill to ready {self.starts[-1] * 1e3:6.1f} ms, "
            f"first SET {self.first_sets[-1] * 1e3:5.1f} ms, file {length >> 20} MiB ({blocks >> 20} on disk)",
            flush=True,
        )

    def summary(self):
        def distribution(name, seconds):
            seconds = sorted(seconds)
            cuts = [seconds[min(len(seconds) - 1, int(len(seconds) * part))] * 1e3 for part in (0.5, 0.9, 0.99)]
            print(f"{name:14} median {cuts[0]:.1f}, 90 % {cuts[1]:.1f}, 99 % {cuts[2]:.1f}, most {seconds[-1] * 1e3:.1f} ms")

        print(f"{self.kills} kills, {sum(self.oracle.acknowledged)} acknowledged changes, nothing lost")
        distribution("kill to ready", self.starts)
        distribution("first SET", self.first_sets)
        if self.base:
            live = sum(self.values.length(key, version) for key, version in enumerate(self.oracle.versions) if version)
            length, blocks = self.file_size()
            print(
                f"file: {length / self.base[0]:.2f}x of round {BASE_ROUND} in length, {blocks / self.base[1]:.2f}x on disk "
                f"({blocks / live:.2f} bytes for each byte of values); "
                f"most {self.largest_growth[0]:.2f}x and {self.largest_growth[1]:.2f}x in round {self.largest_growth[2]}"
            )

    def ensure_limits(self):
        length, blocks = self.file_size()
        # In the short form the data is smaller than one extent for each block size, so growth is only reported.
        judged = self.base and not self.options.short
        if judged and max(length / self.base[0], blocks / self.base[1]) > GROWTH_LIMIT:
            raise Violation(
                f"the file grew from {self.base} bytes (length, on disk) in round {BASE_ROUND} "
                f"to {(length, blocks)}: more than {GROWTH_LIMIT}x"
            )
        limit = self.options.set_limit_ms
        slow = [seconds for seconds in self.first_sets if limit and seconds * 1e3 > limit]
        if slow:
            raise Violation(f"{len(slow)} first SETs took more than {limit} ms, up to {max(slow) * 1e3:.1f} ms")

    def whole(self):
        self.load()
        while self.round < self.options.rounds:
            self.play_round()
            if self.round % CHECK_EVERY == 0 or self.round == self.options.rounds:
                self.stop_and_check()
                self.restart(time.monotonic())
        print("verifying every key ...", flush=True)
        self.verify(range(len(self.oracle.versions)))
        self.stop_and_check()
        self.summary()
        self.ensure_limits()

    def end(self):
        """Leaves no process behind."""
        for process in self.dying + ([self.server.process] if self.server else []):
            process.kill()
            process.wait()


class Task:
    """A function in a forked process."""

    def __init__(self, function, run, connection):
        # Connected here: a process that begins late must not take the next server for the one to be killed.
        client = connect(run.options.port)
        self.reader, writer = multiprocessing.Pipe(duplex=False)
        context = multiprocessing.get_context("fork")
        self.process = context.Process(target=self.body, args=(writer, function, run, connection, client))
        self.process.start()
        writer.close()
        client.close()

    @staticmethod
    def body(writer, function, run, connection, client):
        # An interrupt is for the driver, which ends the server and so us.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            function(run, connection, client)
            writer.send("")
        except (Violation, MemcacheError, OSError) as error:
            writer.send(f"connection {connection}: {error if isinstance(error, Violation) else repr(error)}")

    def join(self):
        """Waits for its end; returns its complaint, if it has one."""
        try:
            complaint = self.reader.recv() if self.reader.poll(PATIENCE) else "a connection hangs"
        except EOFError:
            complaint = "a connection failed: see above"
        self.process.kill()
        self.process.join()
        return complaint


def load_share(run, connection, client):
    """Stores four in five keys of a connection, past the client and without waiting for answers."""
    buffer = bytearray()
    for key in range(connection, run.keys, CONNECTIONS):
        number = key // CONNECTIONS
        if number % 5 == 4:
            continue
        version = version_of(0, number % ((1 << SEQUENCE_BITS) - 1) + 1)
        value = run.values.value(key, version)
        buffer += b"set %s 0 0 %d noreply\r\n%s\r\n" % (key_bytes(key), len(value), value)
        run.oracle.versions[key] = version
        if len(buffer) > 1 << 18:
            client.sock.sendall(buffer)
            buffer.clear()
    client.sock.sendall(buffer)
    # Answered when everything before is done.
    client.version()


def churn_share(run, connection, client):
    """Changes random keys of a connection until the server is gone."""
    oracle, values = run.oracle, run.values
    rng = random.Random(f"{run.options.seed} {run.kills} {connection}")
    try:
        while True:
            key = rng.randrange(run.keys // CONNECTIONS) * CONNECTIONS + connection
            old = oracle.versions[key]
            if rng.random() < GET_SHARE:
                found = client.get(key_bytes(key))
                if found != values.value(key, old):
                    raise wrong_value(values, key, old, found)
            elif old and rng.random() < DELETE_SHARE:
                change(client, values, oracle, connection, key, 0)
            else:
                version = version_of(run.round, oracle.next_sequence(connection))
                change(client, values, oracle, connection, key, version)
    except CONNECTION_LOST:
        pass


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def parse_options():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--short", action="store_true", help="20 rounds of up to 1.2 s at 50 thousand records, no limits for the first SET and for growth")
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--records", type=int)
    parser.add_argument("--seconds-per-round", type=float, help="longest time until the kill")
    parser.add_argument("--set-limit-ms", type=float, help="longest time for the first SET after a start; 0: any")
    parser.add_argument("--binary", default="target/release/evermap")
    parser.add_argument("--path", help="file of the store, which must not exist yet; removed after success")
    parser.add_argument("--port", type=int, default=0, help="0: a free one")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    options = parser.parse_args()
    form = (20, 50_000, 1.2, 0) if options.short else (200, 5_000_000, 5, 50)
    for name, default in zip(("rounds", "records", "seconds_per_round", "set_limit_ms"), form, strict=True):
        if getattr(options, name) is None:
            setattr(options, name, default)
    options.port = options.port or free_port()
    options.path = options.path or f"{'/dev/shm' if os.path.isdir('/dev/shm') else '.'}/churn-{os.getpid()}.evermap"
    if not 1 <= options.rounds <= ROUNDS_MAX:
        parser.error(f"--rounds must be 1 to {ROUNDS_MAX}")
    if os.path.exists(options.path):
        parser.error(f"{options.path} exists")
    return options


def main():
    options = parse_options()
    print(
        f"{options.rounds} rounds, {options.records} records, {options.path}, port {options.port}, seed {options.seed}",
        flush=True,
    )
    run = Run(options)
    try:
        run.whole()
    except Violation as violation:
        sys.exit(f"{violation}\nround    {run.round}\nseed     {options.seed}\nfile     {options.path} (kept; log beside it)")
    finally:
        run.end()
    os.remove(options.path)
    os.remove(options.path + ".log")


if __name__ == "__main__":
    main()
