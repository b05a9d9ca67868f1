#!/usr/bin/env python3
"""Ten thousand connections, more clients than are allowed, and clients that do not read.

* Ten thousand clients connect, store and read a key each, and stay; then all of them ask at once, in random order,
  three times. What a connection costs is printed. Afterwards all close, and come once more: nothing may be left behind.
* Beyond the maximum number of connections clients are rejected, or wait, and are served when others have gone.
* A thousand clients ask for much more than fits into memory buffers, and read nothing for some seconds. One that reads
  is served meanwhile, and the memory of the server stays within a bound. Then they read, and every byte is compared.
* A hundred clients read large values as fast as they can; another one gets its turn in between.

memcached is used in the same way, for comparison: its answers are compared too, its memory is only printed.
"""

import argparse
import random
import resource
import sys
import time

import greedy
import limit
import slow
from crowd import Crowd
from servers import Control, Evermap, Memcached, Wrong, wait_for

ROUNDS = 3
STEP = 500
# Descriptors of a process beside those of its clients.
FURTHER = 200
# An idle connection has no buffers: it is the client, its name for `stats conns`, and what the allocator adds.
IDLE_MAX = 2 << 10
# What may remain after thousands of connections: the workers' tables of clients, and what the allocator keeps.
REMAINS_MAX = 1 << 10
SLACK = 1 << 20


def say(text):
    if OPTIONS.verbose:
        print(f"    {time.strftime('%H:%M:%S')} {text}", flush=True)


def need_descriptors(count):
    """Raises the limit of open files, which the servers inherit."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        raised = hard if hard == resource.RLIM_INFINITY else max(hard, count)
        resource.setrlimit(resource.RLIMIT_NOFILE, (count, raised))
    except (ValueError, OSError) as error:
        sys.exit(
            f"client and server need {count} descriptors each, but the limit is {hard} and cannot be raised ({error}): "
            "raise it (ulimit -Hn, fs.nr_open), or use fewer --connections"
        )


def key(number):
    return b"key:%d" % number


def value(number):
    return b"%d:" % number * (1 + number % 20)


def found(number):
    return b"VALUE %s 0 %d\r\n%s\r\nEND\r\n" % (key(number), len(value(number)), value(number))


class Memory:
    """What a server has at one moment."""

    def __init__(self, server, control):
        # First, because afterwards this connection has been accepted.
        self.connections = control.stat("curr_connections")
        self.anonymous, self.file = server.anonymous(), server.file_bytes()
        self.descriptors, self.threads = server.descriptors(), server.thread_count()


def ask_all(crowd, clients):
    for client in clients:
        client.ask(b"get %s\r\n" % key(client.number), [found(client.number)])
    crowd.gather(clients)


def open_all(crowd, count, store):
    """Connects clients; each stores its key, if `store` is set, and reads it."""
    while (left := count - crowd.numbers) > 0:
        clients = crowd.connect(min(STEP, left))
        if store:
            for client in clients:
                data = value(client.number)
                client.ask(b"set %s 0 0 %d\r\n%s\r\n" % (key(client.number), len(data), data), [b"STORED\r\n"])
            crowd.gather(clients)
        ask_all(crowd, clients)
    return list(crowd.by_descriptor.values())


def close_all(crowd, server, control, before):
    crowd.close()
    wait_for(
        lambda: f"{server.descriptors()} descriptors are open, {before.descriptors} before the clients came",
        lambda: server.descriptors() <= before.descriptors,
    )
    wait_for(
        lambda: f"{control.stat('curr_connections')} `curr_connections`, {before.connections} before the clients came",
        lambda: control.stat("curr_connections") <= before.connections,
    )
    return Memory(server, control)


def many(kind, options):
    """Many clients that stay."""
    count = options.connections
    with kind(options, count + 2_000) as server:
        control = Control(server.port)
        before = Memory(server, control)
        began = time.monotonic()
        crowd = Crowd(server.port)
        clients = open_all(crowd, count, store=True)
        opened = time.monotonic() - began
        say(f"{count} clients are connected")
        opened_memory = Memory(server, control)
        rounds = []
        for _ in range(ROUNDS):
            random.shuffle(clients)
            began = time.monotonic()
            ask_all(crowd, clients)
            rounds.append(time.monotonic() - began)
        crowd.silence()
        full = Memory(server, control)
        after = close_all(crowd, server, control, before)
        say("all are closed")
        crowd = Crowd(server.port, net=1)
        open_all(crowd, count, store=False)
        again = Memory(server, control)
        last = close_all(crowd, server, control, before)
        if kind.name == "evermap":
            judge(count, before, opened_memory, full, again, last)
        control.close()

    def per_connection(memory, name):
        return (getattr(memory, name) - getattr(before, name)) / count

    return {
        f"{count:,} connections, a set and a get on each": f"{opened:.1f} s",
        "a get on each, all at once, three times": ", ".join(f"{seconds:.2f}" for seconds in rounds) + " s",
        "`curr_connections`, descriptors, threads": f"{full.connections}, {full.descriptors}, {full.threads}",
        "anonymous memory before, with all": f"{slow.mib(before.anonymous)}, {slow.mib(full.anonymous)}",
        "anonymous memory per connection": f"{per_connection(full, 'anonymous'):,.0f} bytes",
        "blocks of the file per connection, which are its item": f"{per_connection(full, 'file'):,.0f} bytes",
        "after all have closed: connections, descriptors": f"{after.connections}, {after.descriptors}",
        "anonymous memory then": slow.mib(after.anonymous),
        "with as many again, and without them": f"{slow.mib(again.anonymous)}, {slow.mib(last.anonymous)}",
    }


def judge(count, before, opened, full, again, last):
    """Whether connections are counted, small, and gone when they are closed."""
    for memory in (opened, full, again):
        limit.expect("`curr_connections`", memory.connections, before.connections + count)
        limit.expect("descriptors", memory.descriptors, before.descriptors + count)
        limit.expect("threads", memory.threads, before.threads)
    for what, memory, most in (
        ("with all connections", full, IDLE_MAX),
        ("with all connections for the second time", again, IDLE_MAX),
        ("after they are closed", last, REMAINS_MAX),
    ):
        allowed = before.anonymous + count * most + SLACK
        if memory.anonymous > allowed:
            raise Wrong(f"{slow.mib(memory.anonymous)} of anonymous memory {what}; {slow.mib(allowed)} are allowed")


def compare(title, scenario, kinds):
    """Runs a scenario with each kind of server, and prints the figures side by side."""
    print(f"{title}\n", flush=True)
    columns = {}
    for kind in kinds:
        say(f"{kind.name} ...")
        try:
            columns[kind.name] = scenario(kind)
        except Wrong as wrong:
            raise Wrong(f"{title}, {kind.name}: {wrong}") from None
    print("| | " + " | ".join(columns) + " |\n|" + "---|" * (1 + len(columns)))
    rows = dict.fromkeys(name for figures in columns.values() for name in figures)
    for row in rows:
        print(f"| {row} | " + " | ".join(str(figures.get(row, "–")) for figures in columns.values()) + " |")
    print(flush=True)


def compare_many(kinds):
    compare("Many connections", lambda kind: many(kind, OPTIONS), kinds)


def compare_limits(kinds):
    compare("More clients than are allowed", lambda kind: limit.rejecting(kind, OPTIONS), kinds)
    compare("The same, waiting", lambda kind: limit.waiting(kind, OPTIONS), [Evermap])


def compare_slow(kinds):
    for values in (slow.Values(20, 1_000_000), slow.Values(400, 20_000)):
        title = f"{OPTIONS.slow:,} clients that ask for {values} and do not read"
        compare(title, lambda kind, values=values: slow.play(kind, OPTIONS, values, say), kinds)


def compare_greedy(kinds):
    for values in (slow.Values(20, 1_000_000), slow.Values(400, 20_000)):
        title = f"{greedy.CLIENTS} clients that read {values}, beside one with small requests, one worker thread"
        compare(title, lambda kind, values=values: greedy.play(kind, OPTIONS, values), kinds)


PARTS = {"many": compare_many, "limit": compare_limits, "slow": compare_slow, "greedy": compare_greedy}


def parse_options():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--connections", type=int, default=10_000)
    parser.add_argument("--slow", type=int, default=1_000, help="clients that do not read")
    parser.add_argument("--parts", default=",".join(PARTS), help="what is done")
    parser.add_argument("--only-evermap", action="store_true", help="without memcached")
    parser.add_argument("--binary", default="target/release/evermap")
    parser.add_argument("--verbose", action="store_true", help="say what is being done")
    options = parser.parse_args()
    if unknown := set(options.parts.split(",")) - set(PARTS):
        parser.error(f"--parts: there is no {', '.join(sorted(unknown))}")
    return options


def main():
    need_descriptors(max(OPTIONS.connections, limit.CLIENTS, OPTIONS.slow) + FURTHER)
    kinds = [Evermap] if OPTIONS.only_evermap else [Evermap, Memcached]
    try:
        for part in OPTIONS.parts.split(","):
            PARTS[part](kinds)
    except (Wrong, OSError) as error:
        sys.exit(f"{type(error).__name__}: {error}")
    print("Every answer was right.")


if __name__ == "__main__":
    OPTIONS = parse_options()
    main()
