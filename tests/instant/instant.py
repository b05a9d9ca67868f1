#!/usr/bin/env python3
"""Measures how soon a server answers after it was started, whatever the size of its store.

For each directory and number of records it fills a store and then, in each repetition:

1. starts the server after a clean shutdown: time from exec to the first right answer;
2. kills it, waits until it is gone, starts it again: the same after an unclean shutdown, and the time of the
   sweep with nothing else to do;
3. once the sweep has touched every record, so that all of the store is mapped, kills the server and starts
   the next at once: time from the kill to the first right answer; then stores random records for a second,
   one request at a time on each of two connections;
4. does that again with 32 requests at a time.

With `--ordered`, the store has the order of its keys in the file, and is also scanned after a kill: time from
exec of `evermap scan` until it has shown the first hundred records. `--only-scans` measures only that, each time
after a kill while clients store, at real-time priority if that is permitted: so other load counts little.

A SET stores the value that was there already, so that every answer can be checked at any time.
"""

import argparse
import json
import os
import platform
import random
import select
import signal
import socket
import statistics
import subprocess
import sys
import time

MARKS = ("<!-- begin of the table -->\n", "<!-- end of the table -->\n")
PATIENCE = 600
DEPTH = 32
SCANNED = 100


def key_of(record):
    return b"key:%012d" % record


def value_of(record, size):
    unit = b"%d|" % record
    return (unit * (size // len(unit) + 1))[:size]


def set_realtime(wanted):
    """Runs this process, and those that it starts, before all others, or as usual."""
    policy, priority = (os.SCHED_FIFO, 1) if wanted else (os.SCHED_OTHER, 0)
    try:
        os.sched_setscheduler(0, policy, os.sched_param(priority))
    except PermissionError:
        pass


class Server:
    """A process of `evermap serve`, started when this is made."""

    def __init__(self, options, path):
        command = [options.binary, "serve", "--path", path, "--listen", options.address]
        command += ["--ordered", "persistent"] if options.ordered else []
        reader, writer = os.pipe()
        redirect = [(os.POSIX_SPAWN_DUP2, writer, 1)]
        self.pid = os.posix_spawn(options.binary, command, os.environ, file_actions=redirect)
        os.close(writer)
        self.output = reader

    def wait_ready(self):
        if not select.select([self.output], [], [], PATIENCE)[0] or not os.read(self.output, 1000):
            raise SystemExit("the server did not get ready")

    def kill(self):
        os.kill(self.pid, signal.SIGKILL)

    def stop(self):
        os.kill(self.pid, signal.SIGTERM)
        self.wait_gone()

    def wait_gone(self):
        os.waitpid(self.pid, 0)
        os.close(self.output)

    def huge_share(self):
        """How much of the resident store is in huge pages, 0 to 1."""
        resident = huge = 0
        ours = False
        with open(f"/proc/{self.pid}/smaps") as smaps:
            for line in smaps:
                name, _, rest = line.partition(" ")
                if not name.endswith(":"):
                    ours = " rw-s " in line
                elif ours and name == "Rss:":
                    resident += int(rest.split()[0])
                elif ours and name in ("ShmemPmdMapped:", "FilePmdMapped:"):
                    huge += int(rest.split()[0])
        return huge / max(resident, 1)


class Store:
    """One store of the table."""

    def __init__(self, options, directory, records):
        self.options, self.records = options, records
        self.path = os.path.join(directory, f"instant-{os.getpid()}.evermap")
        self.rows = []
        self.huge = 0
        self.bytes = 0

    def ask(self, request):
        """The whole answer to one request."""
        host, port = self.options.address.split(":")
        with socket.create_connection((host, int(port)), PATIENCE) as stream:
            stream.sendall(request)
            answer = b""
            while not answer.endswith(b"END\r\n"):
                part = stream.recv(1 << 16)
                if not part:
                    raise SystemExit(f"the server closed the connection after {answer!r}")
                answer += part
        return answer

    def first_answer(self, since):
        """Seconds from `since` until a random record was read rightly."""
        record = random.randrange(self.records)
        value = value_of(record, self.options.value_bytes)
        answer = self.ask(b"get %s\r\n" % key_of(record))
        took = time.perf_counter() - since
        if answer != b"VALUE %s 0 %d\r\n%s\r\nEND\r\n" % (key_of(record), len(value), value):
            raise SystemExit(f"wrong answer for record {record}: {answer!r}")
        return took

    def start(self, since=None):
        """Starts a server; returns it and the seconds until its first right answer."""
        since = since or time.perf_counter()
        server = Server(self.options, self.path)
        server.wait_ready()
        return server, self.first_answer(since)

    def first_scan(self):
        """Seconds until a command has shown the first records of a store that was not closed."""
        command = [self.options.binary, "scan", self.path, "--limit", str(SCANNED)]
        set_realtime(self.options.only_scans)
        since = time.perf_counter()
        with subprocess.Popen(command, stdout=subprocess.PIPE) as scanning:
            keys = [scanning.stdout.readline().split(b"\t")[0] for _ in range(SCANNED)]
            took = time.perf_counter() - since
            set_realtime(False)
            more = scanning.stdout.read()
        if more or scanning.returncode != 0:
            raise SystemExit(f"the scan ended with {scanning.returncode} and {more!r}")
        if keys != [key_of(record) for record in range(SCANNED)]:
            raise SystemExit(f"a scan shows {keys}")
        return took

    def kill_and_start(self, server):
        since = time.perf_counter()
        server.kill()
        following, took = self.start(since)
        server.wait_gone()
        return following, took

    def stats(self):
        lines = [line.split(b" ", 2) for line in self.ask(b"stats\r\n").split(b"\r\n")]
        return {line[1].decode(): line[2].decode() for line in lines if len(line) == 3}

    def sweep(self):
        """Waits for the sweep; returns its seconds, as the server took them."""
        while not (state := self.stats()["evermap_sweep"]).startswith("done_in_"):
            if state not in ("pending", "running"):
                raise SystemExit(f"the sweep is {state}")
            time.sleep(0.02)
        return float(state.split("_")[2]) / 1e3

    def client_command(self, job, *arguments):
        command = [self.options.client, job, self.options.address]
        return command + [str(argument) for argument in (self.records, self.options.value_bytes, *arguments)]

    def client(self, job, *arguments):
        command = self.client_command(job, *arguments)
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout

    def sets(self, depth):
        return json.loads(self.client("sets", 1, depth))

    def fill(self):
        server = Server(self.options, self.path)
        server.wait_ready()
        self.client("fill")
        stored = int(self.stats()["curr_items"])
        if stored != self.records:
            raise SystemExit(f"{self.records} records were stored, but the server counts {stored}")
        server.stop()
        status = os.stat(self.path)
        self.bytes = status.st_blocks * 512

    def repeat(self):
        row = {}
        server, row["exec, clean"] = self.start()
        server.kill()
        server.wait_gone()
        if self.options.ordered:
            row["scan"] = self.first_scan()
            server, _ = self.start()
            server.kill()
            server.wait_gone()
        server, row["exec, killed"] = self.start()
        row["sweep"] = self.sweep()
        self.huge = server.huge_share()
        server, row["kill"] = self.kill_and_start(server)
        one = self.sets(1)
        row["sweep, loaded"] = self.sweep()
        steady = self.sets(1)
        server, row["kill again"] = self.kill_and_start(server)
        many = self.sets(DEPTH)
        self.sweep()
        server.stop()
        row["sets"], row["p99.9"], row["longest"] = one["sets_per_second"], one["p999_us"], one["max_us"]
        row["steady sets"], row["steady p99.9"] = steady["sets_per_second"], steady["p999_us"]
        row["many sets"] = many["sets_per_second"]
        self.rows.append(row)
        print(f"  {' '.join(f'{name} {value:.4g},' for name, value in row.items())}", file=sys.stderr, flush=True)

    def scan_after_kill(self):
        """Kills a server that clients store to, and scans."""
        server, _ = self.start()
        quiet = subprocess.DEVNULL
        storing = subprocess.Popen(self.client_command("sets", 1, 1), stdout=quiet, stderr=quiet)
        time.sleep(0.5)
        server.kill()
        server.wait_gone()
        storing.wait()
        self.rows.append({"scan": self.first_scan()})
        print(f"  scan {self.rows[-1]['scan']:.4g}", file=sys.stderr, flush=True)

    def median(self, *names):
        return statistics.median(row[name] for row in self.rows for name in names)

    def most(self, *names):
        return max(row[name] for row in self.rows for name in names)

    def cells(self):
        def times(*names):
            return f"{self.median(*names) * 1e3:.1f} ({self.most(*names) * 1e3:.1f})"

        if self.options.only_scans:
            return [times("scan")]
        return [
            times("exec, clean"),
            times("exec, killed"),
            times("kill", "kill again"),
            f"{self.median('sweep') * 1e3:.0f}",
            f"{self.median('sweep, loaded') * 1e3:.0f}",
            f"{self.median('sets') / 1e3:.0f}k",
            f"{self.median('p99.9') / 1e3:.2f}",
            f"{self.median('steady sets') / 1e3:.0f}k",
            f"{self.median('steady p99.9') / 1e3:.2f}",
            f"{self.median('many sets') / 1e3:.0f}k",
            *([times("scan")] if self.options.ordered else []),
        ]


def file_system(directory):
    """Name of the file system that holds a directory."""
    directory = os.path.realpath(directory)
    best = ("", "unknown")
    with open("/proc/mounts") as mounts:
        for line in mounts:
            _, point, kind = line.split()[:3]
            inside = directory == point or directory.startswith(point.rstrip("/") + "/")
            if inside and len(point) >= len(best[0]):
                best = (point, kind)
    return best[1]


def count(records):
    return f"{records // 1_000_000} million" if records >= 1_000_000 else f"{records // 1000} thousand"


def table(options, stores, load):
    head = [
        "Store", "File, GiB", "exec to answer, ms", "after kill, ms", "kill to answer, ms", "Sweep idle, ms",
        "under load, ms", "SETs/s", "p99.9, ms", "SETs/s later", "p99.9 later, ms", f"SETs/s, {DEPTH} deep",
        *(["exec to scan after kill, ms"] if options.ordered else []),
    ]
    if options.only_scans:
        head = head[:2] + head[-1:]
    lines = [head, ["---"] + ["---:"] * (len(head) - 1)]
    for directory, store in stores:
        kind = file_system(directory)
        pages = f"{store.huge:.0%} huge pages" if store.huge else "4 KiB pages"
        lines.append([f"{count(store.records)}, {kind}, {pages}", f"{store.bytes / 2**30:.2f}", *store.cells()])
    kernel, cores = platform.release(), os.cpu_count()
    caption = (
        f"Medians of {options.repetitions} repetitions, the longest in parentheses; values of "
        f"{options.value_bytes} bytes; {cores} cores shared by server, client and whatever else ran (load "
        f"average {load[0]:.1f} before, {os.getloadavg()[0]:.1f} after); Linux {kernel}.\n"
    )
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines) + "\n" + caption


def write(path, text):
    """Puts the table between the marks in a document."""
    with open(path) as document:
        before, rest = document.read().split(MARKS[0])
    after = rest.split(MARKS[1])[1]
    with open(path, "w") as document:
        document.write(before + MARKS[0] + text + MARKS[1] + after)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, nargs="+", default=[100_000, 1_000_000, 5_000_000, 20_000_000])
    parser.add_argument("--directories", nargs="+", default=["/dev/shm", "target"])
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--value-bytes", type=int, default=100)
    parser.add_argument("--ordered", action="store_true", help="keep the order of the keys in the file")
    parser.add_argument("--only-scans", action="store_true", help="measure only the first scan after a kill")
    parser.add_argument("--address", default="127.0.0.1:21211")
    parser.add_argument("--binary", default="target/release/evermap")
    parser.add_argument("--client", required=True, help="client.rs, compiled")
    parser.add_argument("--write", metavar="FILE", help="document that holds the table")
    options = parser.parse_args()
    options.ordered |= options.only_scans
    # An exception, so that the store of gigabytes does not stay.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    load = os.getloadavg()
    stores = []
    for directory in options.directories:
        for records in options.records:
            store = Store(options, directory, records)
            print(f"{records} records in {directory}", file=sys.stderr, flush=True)
            try:
                store.fill()
                for _ in range(options.repetitions):
                    store.scan_after_kill() if options.only_scans else store.repeat()
            finally:
                if os.path.exists(store.path):
                    os.remove(store.path)
            stores.append((directory, store))
    text = table(options, stores, load)
    print(text)
    if options.write:
        write(options.write, text)


if __name__ == "__main__":
    main()
