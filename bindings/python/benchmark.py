#!/usr/bin/env python3
"""The same operations by Evermap, dict, shelve, dbm, LMDB and diskcache, in one table.

    python benchmark.py [--records 100000] [--value 256] [--rounds 7] [--folder /dev/shm]

All files are in one folder, in memory unless another is given, and nobody syncs anything: what
survives is the death of the process, except for dict. Keys are drawn at random, and are new objects
each time, as those of requests are. Every subject does a round before the next round begins, the
figures are processor time, and the best round counts, so that other programs on the machine disturb
as little as possible. Needs the packages lmdb and diskcache.

The last row is what the objects alone take: as many new `bytes` of that length, from one buffer, by
one call for each hundred. Nothing that returns values can take less.
"""

import argparse
import dbm
import gc
import os
import random
import shelve
import shutil
import struct
import sys
import tempfile
import time

import diskcache
import lmdb

import evermap

OPERATIONS = ["get", "get_many 100", "set", "set 100 together", "contains", "iterate"]


class Dict:
    """What all of them are compared to: nothing survives."""

    def __init__(self, path):
        self.map = {}

    def get(self, keys):
        map = self.map
        for key in keys:
            map[key]

    def get_many(self, groups):
        map = self.map
        for keys in groups:
            [map[key] for key in keys]

    def set(self, keys, value):
        map = self.map
        for key in keys:
            map[key] = value

    def set_many(self, groups, value):
        for keys in groups:
            self.map.update(dict.fromkeys(keys, value))

    def contains(self, keys):
        map = self.map
        for key in keys:
            key in map

    def iterate(self):
        for _ in self.map.items():
            pass


class Evermap(Dict):
    def __init__(self, path, **options):
        self.map = evermap.open(path + ".map", **options)

    def get_many(self, groups):
        get_many = self.map.get_many
        for keys in groups:
            get_many(keys)


class EvermapBatch(Evermap):
    """All or nothing for each hundred."""

    def set_many(self, groups, value):
        for keys in groups:
            with self.map.batch() as batch:
                for key in keys:
                    batch[key] = value


class Dbm(Dict):
    def __init__(self, path):
        self.map = dbm.open(path + ".dbm", "n")

    def set_many(self, groups, value):
        for keys in groups:
            self.set(keys, value)

    def iterate(self):
        for key in self.map.keys():
            self.map[key]


class Shelve(Dbm):
    """Keys are str, values are pickled."""

    def __init__(self, path):
        self.map = shelve.open(path + ".shelve", "n")

    def iterate(self):
        for _ in self.map.items():
            pass


class Lmdb:
    """A transaction for each operation, as when requests are served."""

    def __init__(self, path):
        self.env = lmdb.open(path + ".lmdb", map_size=4 << 30, sync=False, metasync=False)

    def get(self, keys):
        begin = self.env.begin
        for key in keys:
            with begin() as transaction:
                transaction.get(key)

    def get_many(self, groups):
        for keys in groups:
            with self.env.begin() as transaction:
                transaction.cursor().getmulti(keys)

    def set(self, keys, value):
        begin = self.env.begin
        for key in keys:
            with begin(write=True) as transaction:
                transaction.put(key, value)

    def set_many(self, groups, value):
        for keys in groups:
            with self.env.begin(write=True) as transaction:
                for key in keys:
                    transaction.put(key, value)

    def contains(self, keys):
        for key in keys:
            with self.env.begin() as transaction:
                transaction.cursor().set_key(key)

    def iterate(self):
        with self.env.begin() as transaction:
            for _ in transaction.cursor():
                pass


class LmdbOne(Lmdb):
    """One transaction for all reads: nothing that is written later is seen."""

    def get(self, keys):
        with self.env.begin() as transaction:
            get = transaction.get
            for key in keys:
                get(key)


class Diskcache(Dict):
    def __init__(self, path):
        self.map = diskcache.Cache(path + ".diskcache", eviction_policy="none")

    def set_many(self, groups, value):
        for keys in groups:
            with self.map.transact():
                self.set(keys, value)

    def iterate(self):
        for key in self.map:
            self.map[key]


class Objects(Dict):
    """Makes the objects, and looks nothing up."""

    def set_many(self, groups, value):
        length = len(value)
        self.buffer = value * 100
        self.unpack = struct.Struct(f"{length}s" * 100).unpack

    def get_many(self, groups):
        unpack, buffer = self.unpack, self.buffer
        for _ in groups:
            unpack(buffer)


SUBJECTS = {
    "dict": (Dict, 1),
    "evermap": (Evermap, 1),
    "evermap, batches": (EvermapBatch, 1),
    "lmdb": (Lmdb, 1),
    "lmdb, one transaction": (LmdbOne, 1),
    "dbm": (Dbm, 1),
    "shelve": (Shelve, 1),
    # It takes so long that a part of the operations has to do.
    "diskcache": (Diskcache, 20),
    "objects alone": (Objects, 1),
}


def kind_of_dbm():
    """Returns which of its libraries dbm uses here."""
    with tempfile.TemporaryDirectory() as folder, dbm.open(folder + "/kind", "n") as opened:
        return type(opened).__module__


def measured(work, operations):
    gc.collect()
    gc.disable()
    began = time.process_time_ns()
    work()
    took = time.process_time_ns() - began
    gc.enable()
    return took / operations


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--records", type=int, default=100_000)
    parser.add_argument("--operations", type=int, default=20_000)
    parser.add_argument("--value", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--folder", default="/dev/shm")
    parser.add_argument("--only", default=",".join(SUBJECTS).replace(", ", "/"))
    settings = parser.parse_args()
    folder = tempfile.mkdtemp(dir=settings.folder)
    chance, value = random.Random(1), bytes(settings.value)
    every = [b"user:%012d" % number for number in range(settings.records)]
    wanted = [name.replace("/", ", ") for name in settings.only.split(",")]
    best, opened = {}, {}
    try:
        for name in wanted:
            kind, part = SUBJECTS[name]
            opened[name] = kind(os.path.join(folder, name)), part
            keys = [key.decode() for key in every] if kind is Shelve else every
            groups = [keys[at : at + 1000] for at in range(0, len(keys), 1000)]
            opened[name][0].set_many(groups, value)
        for _ in range(settings.rounds):
            drawn = chance.choices(range(len(every)), k=settings.operations)
            for name, (subject, part) in opened.items():
                keys = [b"user:%012d" % number for number in drawn[: len(drawn) // part]]
                if isinstance(subject, Shelve):
                    keys = [key.decode() for key in keys]
                groups = [keys[at : at + 100] for at in range(0, len(keys), 100)]
                works = [
                    (lambda: subject.get(keys), len(keys)),
                    (lambda: subject.get_many(groups), len(keys)),
                    (lambda: subject.set(keys, value), len(keys)),
                    (lambda: subject.set_many(groups, value), len(keys)),
                    (lambda: subject.contains(keys), len(keys)),
                    (subject.iterate, len(every)),
                ]
                for operation, (work, count) in zip(OPERATIONS, works):
                    if part > 1 and operation == "iterate":
                        continue
                    if isinstance(subject, Objects) and operation != "get_many 100":
                        continue
                    took = measured(work, count)
                    best[name, operation] = min(took, best.get((name, operation), took))
    finally:
        for subject, _ in opened.values():
            if not isinstance(subject, Lmdb) and hasattr(subject.map, "close"):
                subject.map.close()
        shutil.rmtree(folder)
    print(
        f"Nanoseconds of processor time an operation, {settings.records:,} records of "
        f"{settings.value} bytes, best of {settings.rounds} rounds. Python "
        f"{sys.version.split()[0]}, dbm is {kind_of_dbm()}, "
        f"lmdb {lmdb.__version__}, diskcache {diskcache.__version__}.\n"
    )
    print("| | " + " | ".join(OPERATIONS) + " |")
    print("|---" * (len(OPERATIONS) + 1) + "|")
    for name in wanted:
        row = [best.get((name, operation)) for operation in OPERATIONS]
        print(f"| {name} | " + " | ".join(f"{ns:,.0f}" if ns else "–" for ns in row) + " |")


if __name__ == "__main__":
    main()
