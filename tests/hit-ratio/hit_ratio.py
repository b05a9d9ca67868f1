#!/usr/bin/env python3
"""Compares Evermap's server with memcached: hit ratios at equal memory, and what eviction costs.

The load is that of the example `eviction`, with its option --server. Four parts, chosen by --what:

* table: each trace with a fresh memcached, whose resident set is read at the end; then with a fresh Evermap, whose
  limit is such that its anonymous memory, the resident pages of its program and the blocks of its file together are
  not more than that. The file is on a tmpfs: its mapped pages are these blocks, and are counted once. The blocks are
  also sampled while the trace runs.
* kill: hit ratios of the requests right before and right after `kill -9` and a restart in the middle of a trace, and
  of the same requests without that.
* latency: times of single stores with constant eviction and without, in turns, with the same keys.
* churn: the blocks of the file, sampled each second while keys come and go and their lengths drift.
"""

import argparse
import json
import os
import pwd
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time

MIB = 1 << 20
TRACES = ("Zipf 0.8", "Zipf 0.99", "Zipf 1.2", "scans", "read once", "popularity shifts", "sizes shift", "short-lived")
# Requests in a second, for traces that need time rather than requests. memcached's page mover decides by windows of
# several seconds, so a trace of seconds would be over before it moved a page; and items expire by the clock, so the
# rate has to be one that both servers can serve.
PACES = {"sizes shift": 5_000, "short-lived": 20_000}
# Requests of each trace at a scale of 1, and how many are compared on each side of a kill.
REQUESTS = 400_000
WINDOW = 50_000


def free_port():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return taken.getsockname()[1]


def memory_of(pid):
    """Returns the resident memory of a process in bytes by its kind: VmRSS, RssAnon, RssFile, RssShmem."""
    with open(f"/proc/{pid}/status") as status:
        fields = (line.split() for line in status if line.startswith(("VmRSS", "Rss")))
        return {words[0].rstrip(":"): int(words[1]) * 1024 for words in fields}


class Server:
    """A server that is a child of this process."""

    def __init__(self, options):
        self.options = options
        self.port = free_port()
        self.child = None

    def start(self):
        self.child = subprocess.Popen(self.command(), stdout=subprocess.DEVNULL)
        deadline = time.monotonic() + 60
        while True:
            try:
                return self.stats()
            except OSError:
                if self.child.poll() is not None or time.monotonic() > deadline:
                    raise SystemExit(f"{self.name} does not answer") from None
                time.sleep(0.01)

    @property
    def address(self):
        return f"127.0.0.1:{self.port}"

    def stats(self):
        with socket.create_connection(("127.0.0.1", self.port), timeout=60) as connection:
            connection.sendall(b"stats\r\nquit\r\n")
            text = b"".join(iter(lambda: connection.recv(65536), b""))
        words = (line.split() for line in text.decode().splitlines() if line.startswith("STAT "))
        return {line[1]: line[2] for line in words if len(line) > 2}

    def kill(self):
        self.child.kill()
        self.child.wait()

    def stop(self):
        if self.child is not None:
            self.kill()
            self.child = None

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *_):
        self.stop()


class Memcached(Server):
    name = "memcached"

    def __init__(self, options, mib):
        super().__init__(options)
        self.mib = mib

    def command(self):
        command = [self.options.memcached, "-l", "127.0.0.1", "-p", str(self.port), "-U", "0"]
        command += ["-m", str(self.mib), "-t", str(self.options.threads)]
        return command + (["-u", pwd.getpwuid(0).pw_name] if os.getuid() == 0 else [])

    def memory(self):
        return memory_of(self.child.pid)["VmRSS"]


class Evermap(Server):
    name = "Evermap"

    def __init__(self, options, limit):
        super().__init__(options)
        self.limit = limit
        self.folder = tempfile.mkdtemp(prefix="hit-ratio-", dir=options.directory)
        self.path = os.path.join(self.folder, "store.map")

    def command(self):
        command = [self.options.binary, "serve", "--path", self.path, "--listen", self.address]
        return command + ["--memory", str(self.limit), "--threads", str(self.options.threads)]

    def blocks(self):
        """Returns the bytes of memory that the file takes."""
        return os.stat(self.path).st_blocks * 512

    def process(self):
        """Returns the bytes that the process takes beside the file."""
        memory = memory_of(self.child.pid)
        return memory["RssAnon"] + memory["RssFile"]

    def memory(self):
        return self.process() + self.blocks()

    def stop(self):
        super().stop()
        shutil.rmtree(self.folder, ignore_errors=True)


class Samples(threading.Thread):
    """Samples of the memory of a file, until the block ends."""

    def __init__(self, server, period):
        super().__init__(daemon=True)
        self.server, self.period = server, period
        self.ended = threading.Event()
        self.taken = []

    def run(self):
        while not self.ended.wait(self.period):
            self.taken.append(self.server.blocks())

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *_):
        self.ended.set()
        self.join()


def example(options, *arguments):
    command = [options.example, *map(str, arguments)]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True)
    return [json.loads(line) for line in done.stdout.splitlines()]


def scale_of(options, footprints, trace, part):
    """Returns the scale at which a cache of the wanted size is this part of what the items of the trace take."""
    return round(options.mib * MIB / part / footprints[trace], 2)


def trace_arguments(options, trace, scale):
    arguments = ["--trace", trace, "--scale", scale, "--window", WINDOW, REQUESTS]
    pace = PACES.get(trace)
    return arguments + (["--pace", pace] if pace else [])


def run_trace(options, server, trace, scale):
    return example(options, "--server", server.address, *trace_arguments(options, trace, scale))[0]


def print_row(*cells):
    print("| " + " | ".join(map(str, cells)) + " |", flush=True)


def print_header(*names):
    print()
    print_row(*names)
    print("|" + "---|" * len(names), flush=True)


def note(text):
    print(text, file=sys.stderr, flush=True)


def table(options, footprints):
    """Hit ratios at equal memory."""
    print_header(
        "trace", "cache", "requests", "memory of memcached", "memory of Evermap", "limit of Evermap",
        "hit ratio of memcached", "hit ratio of Evermap", "difference", "most blocks, part of the limit", "refused",
    )  # fmt: skip
    beside_file = 9 * MIB
    for trace in options.traces:
        for part in options.parts:
            scale = scale_of(options, footprints, trace, part)
            with Memcached(options, options.mib) as server:
                theirs = run_trace(options, server, trace, scale)
                budget = server.memory()
                movers = server.stats().get("slabs_moved")
            note(f"{trace}: memcached: {theirs['seconds']} s, late by {theirs['late']} s, {movers} pages moved")
            limit = budget - beside_file
            while True:
                with Evermap(options, limit) as server, Samples(server, 0.01) as samples:
                    ours = run_trace(options, server, trace, scale)
                    beside_file, total = server.process() + MIB // 4, server.memory()
                    direct = server.stats().get("evermap_evicted_directly")
                note(f"{trace}: Evermap: {ours['seconds']} s, late by {ours['late']} s, {direct} evicted directly")
                if total <= budget:
                    break
                limit -= total - budget + MIB // 4
            print_row(
                trace, f"{part:.0%}".replace("%", " %"), ours["requests"], f"{budget / MIB:.1f} MiB",
                f"{total / MIB:.1f} MiB", f"{limit / MIB:.1f} MiB", f"{theirs['ratio']:.2%}", f"{ours['ratio']:.2%}",
                f"{(ours['ratio'] - theirs['ratio']) * 100:+.2f}", f"{max(samples.taken) / limit:.2%}",
                f"{theirs['refused']}, {ours['refused']}",
            )  # fmt: skip


def run_killed(options, server, trace, scale, middle):
    """Runs a trace, and kills and restarts the server before one of the requests."""
    command = [options.example, "--server", server.address, "--pause", middle]
    command += trace_arguments(options, trace, scale)
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([str(word) for word in command], text=True, **pipes) as client:
        if client.stdout.readline() != "paused\n":
            raise SystemExit("the trace ended too early")
        server.kill()
        server.start()
        client.stdin.write("\n")
        client.stdin.flush()
        return json.loads(client.stdout.readline())


def kill(options, footprints):
    """Hit ratios before and after a kill."""
    print_header(
        "trace", "server", f"{WINDOW} requests before", f"{WINDOW} requests after", "difference",
        "difference without a kill", "refused",
    )  # fmt: skip
    for trace in [trace for trace in ("Zipf 0.99", "read once", "popularity shifts") if trace in options.traces]:
        scale = scale_of(options, footprints, trace, options.parts[0])
        middle = int(REQUESTS * scale) * 6 // 10 // WINDOW
        for make in (lambda: Evermap(options, options.mib * MIB), lambda: Memcached(options, options.mib)):
            with make() as server:
                undisturbed = run_trace(options, server, trace, scale)["windows"]
            with make() as server:
                result = run_killed(options, server, trace, scale, middle * WINDOW)
            before, after = (result["windows"][at] / WINDOW for at in (middle - 1, middle))
            usual = (undisturbed[middle] - undisturbed[middle - 1]) / WINDOW
            print_row(
                trace, server.name, f"{before:.2%}", f"{after:.2%}", f"{(after - before) * 100:+.2f}",
                f"{usual * 100:+.2f}", result["refused"],
            )  # fmt: skip


def latency(options, _):
    """Times of stores with eviction and without."""
    keys = options.mib * MIB * 4 // 1150
    quantiles = ("p50", "p99", "p99.9")
    print_header("server", "of the rounds", "eviction", *(f"{name}, µs" for name in quantiles), "refused")
    for make in (lambda mib: Evermap(options, mib * MIB), lambda mib: Memcached(options, mib)):
        with make(options.mib) as small, make(options.mib * 16) as large:
            rounds = {small: [], large: []}
            for server in rounds:
                example(options, "--server", server.address, "--fill", "--keys", keys)
            for number in range(options.rounds):
                for server in list(rounds)[:: 1 if number % 2 else -1]:
                    arguments = ["--sets", options.sets, "--keys", keys, "--seed", number]
                    rounds[server] += example(options, "--server", server.address, *arguments)
            if int(large.stats()["evictions"]) > 0 or int(small.stats()["evictions"]) == 0:
                raise SystemExit("the wrong server evicts")
            # The least of all rounds is what other programs have disturbed least.
            for word, of in (("median", statistics.median), ("least", min)):
                times = {one: [of(it[name] for it in rounds[one]) for name in quantiles] for one in rounds}
                for one, eviction in ((large, "none"), (small, "constant")):
                    refused = sum(it["refused"] for it in rounds[one])
                    print_row(one.name, word, eviction, *(f"{time:.0f}" for time in times[one]), refused)
                ratios = [f"{with_it / without:.2f}" for with_it, without in zip(times[small], times[large])]
                print_row(one.name, word, "ratio", *ratios, "")


def churn(options, _):
    """The memory of the file while lengths drift."""
    limit = options.mib * MIB
    steady = []
    with Evermap(options, limit) as server, Samples(server, 1) as samples:
        command = [options.example, "--server", server.address, "--churn", str(options.churn)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as client:
            while client.poll() is None and int(server.stats()["evictions"]) == 0:
                time.sleep(1)
            begin = len(samples.taken) + 5
            result = json.loads(client.stdout.readline())
        steady = [blocks / limit for blocks in samples.taken[begin:]]
        evictions = server.stats()["evictions"]
    if not steady:
        raise SystemExit("the run was too short")
    print_header("seconds", "samples", "requests", "evictions", "hit ratio", "min", "median", "max", "refused")
    print_row(
        options.churn, len(steady), result["requests"], evictions, f"{result['hits'] / result['requests']:.2%}",
        f"{min(steady):.2%}", f"{statistics.median(steady):.2%}", f"{max(steady):.2%}", result["refused"],
    )  # fmt: skip


PARTS = {"table": table, "kill": kill, "latency": latency, "churn": churn}


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", required=True, help="the program evermap")
    parser.add_argument("--example", required=True, help="the example eviction, built with optimizations")
    parser.add_argument("--memcached", default=shutil.which("memcached") or "memcached")
    parser.add_argument("--directory", default="/dev/shm", help="a folder on a tmpfs")
    parser.add_argument("--what", type=lambda text: text.split(","), default=list(PARTS), help=",".join(PARTS))
    parser.add_argument("--mib", type=int, default=64, help="memory of memcached's items (-m)")
    parser.add_argument("--threads", type=int, default=2, help="worker threads of both servers")
    parser.add_argument("--traces", type=lambda text: text.split(","), default=list(TRACES))
    parts = lambda text: [float(part) / 100 for part in text.split(",")]  # noqa: E731
    parser.add_argument("--parts", type=parts, default=[0.1, 0.25], help="percent of the footprint that fit: 10,25")
    parser.add_argument("--rounds", type=int, default=20, help="of the latencies")
    parser.add_argument("--sets", type=int, default=20_000, help="of each round of the latencies")
    parser.add_argument("--churn", type=float, default=60, metavar="SECONDS")
    return parser.parse_args()


def main():
    options = parse()
    footprints = {line["trace"]: line["footprint"] for line in example(options, "--footprint", REQUESTS)}
    for what in options.what:
        PARTS[what](options, footprints)


if __name__ == "__main__":
    main()
