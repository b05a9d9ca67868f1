#!/usr/bin/env python3
"""Kills a server again and again under clients of all protocols, and looks whether it has kept its promises.

* Nothing that was acknowledged is lost. With --memory items are evicted: an absent key is counted, and there must
  be an eviction for each.
* No CAS id is given twice, and that of an older version never stores.
* Nothing comes back that was deleted, overwritten or has expired; counters count every increment once.
* The counters of the server go on.

Servers are killed while serving, while closing, while opening, and a few milliseconds after the start. Every 50
kills one is shut down cleanly and the file is checked. How soon a killed server's successor answers is measured.
"""

import argparse
import multiprocessing
import os
import random
import select
import socket
import subprocess
import sys
import time

from worker import Text, Violation, Worker

PATIENCE = 60
CHECK_EVERY = 50
# How often the driver looks at the number of evictions, seconds.
POLL = 0.02


class Server:
    """A process of `evermap serve`."""

    def __init__(self, options):
        command = [options.binary, "serve", "--path", options.path, "--listen", f"127.0.0.1:{options.port}"]
        if options.memory:
            command += ["--memory", options.memory]
        with open(options.path + ".log", "ab") as log:
            self.process = subprocess.Popen(
                command + options.server_options.split(), stdout=subprocess.PIPE, stderr=log
            )

    def wait_ready(self):
        readable, _, _ = select.select([self.process.stdout], [], [], PATIENCE)
        line = self.process.stdout.readline().decode() if readable else ""
        if not line:
            raise Violation(f"no server: code {self.process.poll()}")
        return line

    def stop(self):
        self.process.terminate()
        code = self.process.wait(PATIENCE)
        if code != 0:
            raise Violation(f"the server ended with code {code} after SIGTERM")


class Run:
    def __init__(self, options):
        self.options = options
        self.rng = random.Random(options.seed)
        self.server = None
        self.dying = []
        self.kills = 0
        self.ready, self.first = [], []
        self.cas_ids = {}
        self.reports = {}
        # Evictions that were seen in all processes; those of the last poll; the most between two polls.
        self.evictions, self.largest_step = 0, 0
        self.workers = [self.fork(number) for number in range(options.workers)]

    def fork(self, number):
        ours, theirs = multiprocessing.Pipe()
        context = multiprocessing.get_context("fork")
        process = context.Process(target=Worker(number, self.options, theirs).run, daemon=True)
        process.start()
        theirs.close()
        return process, ours

    def ask_all(self, command, meanwhile=None):
        """Has all workers do something, and takes their reports."""
        for _, pipe in self.workers:
            pipe.send(command)
        try:
            if meanwhile:
                meanwhile()
        finally:
            complaints = [complaint for number in range(len(self.workers)) if (complaint := self.answer(number))]
        if complaints:
            raise Violation("\n".join(complaints))

    def answer(self, number):
        _, pipe = self.workers[number]
        try:
            if not pipe.poll(2 * PATIENCE):
                return f"worker {number} hangs"
            complaint, report = pipe.recv()
        except EOFError:
            return f"worker {number} failed: see above"
        self.reports[number] = report
        for cas in report.pop("cas_ids"):
            if self.cas_ids.setdefault(cas, number) != number:
                complaint = complaint or f"CAS id {cas} was given to workers {self.cas_ids[cas]} and {number}"
        return complaint

    def total(self, name):
        return sum(report[name] for report in self.reports.values())

    # Servers

    def start(self, since):
        """Starts a server, and measures from `since`, and from when it is ready, to the first answer."""
        self.server = Server(self.options)
        self.server.wait_ready()
        ready = time.monotonic()
        client = Text(self.options.port)
        client.get(b"first")
        self.first.append(time.monotonic() - ready)
        if since:
            self.ready.append(time.monotonic() - since)
        self.seen = int(client.stats()["evictions"])
        self.client = client

    def kill(self):
        self.server.process.kill()
        self.dying = [process for process in self.dying if process.poll() is None] + [self.server.process]
        self.kills += 1

    def look(self):
        """Counts the evictions since the last look."""
        try:
            now = int(self.client.stats()["evictions"])
        except OSError as error:
            raise Violation(f"the server is gone ({error}), code {self.server.process.poll()}") from None
        step = now - self.seen
        if step < 0:
            raise Violation(f"evictions went from {self.seen} to {now}")
        self.seen = now
        self.evictions += step
        self.largest_step = max(self.largest_step, step)

    def crash(self, how):
        wait = self.rng.uniform(0, 0.05 if how == "soon" else self.options.seconds)
        end = time.monotonic() + wait
        while (left := end - time.monotonic()) > 0:
            time.sleep(min(POLL, left))
            self.look()
        if self.server.process.poll() is not None:
            raise Violation(f"the server ended by itself with code {self.server.process.returncode}")
        if how == "closing":
            self.server.process.terminate()
            time.sleep(self.rng.uniform(0, 0.03))
        killed = time.monotonic()
        self.kill()
        for _ in range(self.rng.randint(1, 3) if how == "opening" else 0):
            self.server = Server(self.options)
            time.sleep(self.rng.uniform(0, 0.02))
            killed = time.monotonic()
            self.kill()
        self.start(killed)

    def round(self):
        how = self.rng.choices(["serving", "closing", "opening", "soon"], [6, 1, 1, 2])[0]
        before = self.total("operations") if self.reports else 0
        self.ask_all("work", lambda: self.crash(how))
        self.ask_all("resume")
        self.explain()
        if self.options.verbose:
            print(
                f"kill {self.kills:4}: {how:8} {self.total('operations') - before:7} operations, "
                f"{self.ready[-1] * 1e3:6.1f} ms to the first answer, {self.total('absent')} absent, "
                f"{self.evictions} evictions",
                flush=True,
            )

    def explain(self):
        """Every absence needs an eviction. Of each killed server those since the last look are not known."""
        absent = self.total("absent")
        unseen = (self.kills + 1) * self.largest_step
        if absent > self.evictions + unseen:
            raise Violation(f"{absent} keys are absent, but there were at most {self.evictions} + {unseen} evictions")

    def stop_and_check(self):
        self.client.close()
        self.server.stop()
        check = subprocess.run([self.options.binary, "check", self.options.path, "--deep"], capture_output=True, text=True)
        if check.returncode != 0:
            raise Violation(f"check --deep ended with code {check.returncode}:\n{check.stdout}{check.stderr}")

    def whole(self):
        self.start(None)
        self.ask_all("resume")
        self.ask_all("fill")
        self.look()
        checked = 0
        while self.kills < self.options.kills:
            self.round()
            if self.kills - checked >= CHECK_EVERY:
                checked = self.kills
                self.stop_and_check()
                self.start(None)
                self.ask_all("resume")
        self.ask_all("verify")
        self.explain()
        stats = self.client.stats()
        self.stop_and_check()
        self.summary(stats)

    def summary(self, stats):
        def distribution(name, seconds):
            seconds = sorted(seconds)
            cuts = [seconds[min(len(seconds) - 1, int(len(seconds) * part))] * 1e3 for part in (0.5, 0.9, 0.99)]
            print(f"{name:26} median {cuts[0]:.1f}, 90 % {cuts[1]:.1f}, 99 % {cuts[2]:.1f}, most {seconds[-1] * 1e3:.1f} ms")

        print(
            f"{self.kills} kills, {self.total('operations')} operations over {', '.join(self.options.protocols)}, "
            f"{len(self.cas_ids)} CAS ids, {self.total('expired')} expired, {self.total('refused')} refused; nothing lost"
        )
        print(
            f"{self.total('absent')} keys absent, {self.evictions} evictions seen "
            f"(`evictions` of the last server: {stats['evictions']})"
        )
        distribution("ready to first answer", self.first)
        distribution("kill to first answer", self.ready)

    def end(self):
        for process in self.dying + ([self.server.process] if self.server else []):
            process.kill()
            process.wait()
        for process, pipe in self.workers:
            pipe.close()
            process.kill()
            process.join()


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def parse_options():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--short", action="store_true", help="5 kills, 4,000 keys for each worker")
    parser.add_argument("--kills", type=int)
    parser.add_argument("--keys", type=int, help="for each worker")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=0.6, help="longest time until the kill")
    parser.add_argument("--memory", help="limit of the server, so that it evicts; none by default")
    parser.add_argument("--protocols", default="text,meta,binary")
    parser.add_argument("--server-options", default="", help="more options of `evermap serve`")
    parser.add_argument("--binary", default="target/release/evermap")
    parser.add_argument("--path", help="file of the store, which must not exist yet; removed after success")
    parser.add_argument("--port", type=int, default=0, help="0: a free one")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    parser.add_argument("--verbose", action="store_true", help="a line for each kill")
    options = parser.parse_args()
    for name, default in (("kills", 5 if options.short else 500), ("keys", 4_000 if options.short else 20_000)):
        if getattr(options, name) is None:
            setattr(options, name, default)
    options.protocols = options.protocols.split(",")
    options.port = options.port or free_port()
    options.path = options.path or f"{'/dev/shm' if os.path.isdir('/dev/shm') else '.'}/kills-{os.getpid()}.evermap"
    if os.path.exists(options.path):
        parser.error(f"{options.path} exists")
    return options


def main():
    options = parse_options()
    print(
        f"{options.kills} kills, {options.workers} workers with {options.keys} keys each, "
        f"memory {options.memory or 'without limit'}, seed {options.seed}", flush=True,
    )
    run = Run(options)
    try:
        run.whole()
    except Violation as violation:
        sys.exit(f"{violation}\nkills    {run.kills}\nseed     {options.seed}\nfile     {options.path} (kept; log beside it)")
    finally:
        run.end()
    os.remove(options.path)
    os.remove(options.path + ".log")


if __name__ == "__main__":
    main()
