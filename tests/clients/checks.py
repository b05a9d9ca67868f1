"""Runs the checks of a client and prints a line for each: `pass NAME`, `fail NAME: REASON` or `skip NAME: REASON`.

Every client has the same list of checks, so that the results form a table. A check that a client has no function
for is skipped with the reason.
"""

import random
import sys
import time

# In the order of the table.
NAMES = [
    "set", "add", "replace", "append", "prepend", "cas", "get-multi", "incr", "decr", "delete", "touch",
    "get-and-touch", "expiry", "flags", "large", "too-large", "binary-value", "binary-key", "empty", "noreply",
    "stats", "version", "flush",
]
# What only meta commands can do.
META = ["lease", "stale"]

LARGE = bytes(range(256)) * 3900
# Random, because some clients compress.
TOO_LARGE = random.Random(1).randbytes(2 << 20)
BINARY = bytes(range(256))


class Skip(Exception):
    """The client cannot do this, for a reason."""


def expect(found, expected):
    if found != expected:
        raise AssertionError(f"found {brief(found)}, expected {brief(expected)}")


def brief(value):
    text = repr(value)
    return text if len(text) < 100 else f"{text[:100]}... ({len(value)} long)"


def until(what, condition, patience=10):
    """Waits until a condition holds."""
    end = time.monotonic() + patience
    while not condition():
        if time.monotonic() > end:
            raise AssertionError(f"timeout while waiting for {what}")
        time.sleep(0.05)


def run(checks):
    """Runs the functions in a dictionary of checks; those that are missing are skipped."""
    failed = False
    for name in NAMES + META:
        if name not in checks:
            print(f"skip {name}: the client has no function for it", flush=True)
            continue
        try:
            checks[name]()
            print(f"pass {name}", flush=True)
        except Skip as reason:
            print(f"skip {name}: {reason}", flush=True)
        except Exception as error:  # noqa: BLE001: any exception of a client is a result
            failed = True
            print(f"fail {name}: {type(error).__name__}: {error}".replace("\n", " "), flush=True)
    sys.exit(failed)


def address():
    """The host and port of the first argument."""
    host, port = sys.argv[1].rsplit(":", 1)
    return host, int(port)
