#!/usr/bin/env python3
"""Runs each client against a server of its own, and prints a table: clients and protocols by checks."""

import argparse
import os
import re
import select
import socket
import subprocess
import sys
import tempfile
import time

from checks import META, NAMES

HERE = os.path.dirname(os.path.abspath(__file__))
PATIENCE = 300
SIGNS = {"pass": "+", "fail": "**FAIL**", "skip": ""}


class Server:
    """`evermap serve` on a free port, with an empty store; or memcached, to see what is the client's doing."""

    def __init__(self, options, folder):
        if options.memcached:
            return self.start_memcached()
        command = [options.binary, "serve", "--listen", "127.0.0.1:0", "--path", os.path.join(folder, "store.map")]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        if not select.select([self.process.stdout], [], [], 30)[0]:
            raise SystemExit("the server was not ready after 30 s")
        ready = self.process.stdout.readline()
        found = re.match(r"ready on (\S+): ", ready)
        if not found:
            raise SystemExit(f"the server said {ready!r}")
        self.address = found[1]

    def start_memcached(self):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        user = ["-u", "root"] if os.getuid() == 0 else []
        self.process = subprocess.Popen(["memcached", "-l", "127.0.0.1", "-p", str(port), *user])
        self.address = f"127.0.0.1:{port}"
        for _ in range(200):
            try:
                return socket.create_connection(("127.0.0.1", port), 1).close()
            except OSError:
                time.sleep(0.05)
        raise SystemExit("memcached was not ready after 10 s")

    def stop(self):
        self.process.terminate()
        code = self.process.wait(30)
        if code != 0:
            raise SystemExit(f"the server ended with code {code}")


def commands(clients):
    """Client, protocol, and the command to which the address and the protocol are added."""
    python = [sys.executable]
    java = ["java", "-cp", f"{clients}/java/classes:{clients}/java/lib/*", "Spymemcached"]
    ruby, node = ["ruby", f"{HERE}/client_dalli.rb"], ["node"]
    return [
        ("pymemcache", "text", [*python, f"{HERE}/client_pymemcache.py"]),
        ("pylibmc (libmemcached)", "text", [*python, f"{HERE}/client_pylibmc.py"]),
        ("pylibmc (libmemcached)", "binary", [*python, f"{HERE}/client_pylibmc.py"]),
        ("python-binary-memcached", "binary", [*python, f"{HERE}/client_bmemcached.py"]),
        ("meta-memcache", "meta", [*python, f"{HERE}/client_meta.py"]),
        ("gomemcache", "text", [f"{clients}/gomemcache"]),
        ("spymemcached", "text", java),
        ("spymemcached", "binary", java),
        ("memcached (npm)", "text", [*node, f"{HERE}/node/memcached.js"]),
        ("memjs", "binary", [*node, f"{HERE}/node/memjs.js"]),
        ("dalli", "binary", ruby),
    ]


def run(command, clients):
    environment = os.environ | {"NODE_PATH": f"{clients}/node/node_modules"}
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, env=environment)
        return done.stdout, done.stderr, done.returncode
    except FileNotFoundError as error:
        return "", str(error), 127
    except subprocess.TimeoutExpired as error:
        return (error.stdout or b"").decode(), f"no end after {PATIENCE} s", 124


def results(output):
    """The outcome and reason of each check."""
    found = {}
    for line in output.splitlines():
        if match := re.match(r"(pass|fail|skip) ([\w-]+)(?:: (.*))?$", line):
            found[match[2]] = (match[1], match[3])
    return found


def try_client(name, protocol, command, options):
    with tempfile.TemporaryDirectory() as folder:
        server = Server(options, folder)
        output, errors, _ = run([*command, server.address, protocol], options.clients)
        server.stop()
    found = results(output)
    for check in META:
        found.setdefault(check, ("skip", "the client has no function for it"))
    for check in NAMES:
        if check not in found:
            found[check] = ("fail", f"no result; {errors.strip()[-300:]}")
    for check, (outcome, reason) in found.items():
        if outcome == "fail" or options.verbose and reason:
            print(f"{name}, {protocol}: {check}: {outcome}: {reason}", file=sys.stderr)
    return found


def memccapable(protocol, options):
    """libmemcached's own suite, which has checks of its own."""
    option = {"text": "-a", "binary": "-b"}[protocol]
    with tempfile.TemporaryDirectory() as folder:
        server = Server(options, folder)
        host, port = server.address.rsplit(":", 1)
        output, errors, code = run(["memccapable", "-h", host, "-p", port, option], options.clients)
        server.stop()
    text = output + errors
    passed = len(re.findall(r"\[pass\]", text))
    failed = re.findall(r"^(.*\S)\s*\[FAIL\]", text, re.MULTILINE)
    for check in failed:
        print(f"memccapable, {protocol}: {check}: fail", file=sys.stderr)
    print(f"memccapable, {protocol}: {passed} of {passed + len(failed)} passed", flush=True)
    if not passed:
        print(text[-500:], file=sys.stderr)
    return code == 0 and passed > 0 and not failed


def table(rows):
    """Checks by clients."""
    print("| check | " + " | ".join(f"{name}, {protocol}" for name, protocol, _ in rows) + " |")
    print("|---" * (len(rows) + 1) + "|")
    for check in NAMES + META:
        print(f"| {check} | " + " | ".join(SIGNS[found[check][0]] for _, _, found in rows) + " |")
    totals = [sum(outcome == "pass" for outcome, _ in found.values()) for _, _, found in rows]
    print("| passed | " + " | ".join(map(str, totals)) + " |")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--binary", default="target/release/evermap")
    parser.add_argument("--clients", default="target/clients", help="where the clients are installed")
    parser.add_argument("--protocols", default="text,meta,binary")
    parser.add_argument("--only", help="clients whose name contains this")
    parser.add_argument("--memcached", action="store_true", help="try Debian's memcached instead")
    parser.add_argument("--verbose", action="store_true", help="also say why checks are skipped")
    options = parser.parse_args()
    protocols = options.protocols.split(",")
    rows = [
        (name, protocol, try_client(name, protocol, command, options))
        for name, protocol, command in commands(options.clients)
        if protocol in protocols and (options.only or "") in name
    ]
    rows = [row for row in rows if row[2]]
    whole = True
    if (options.only or "") in "memccapable":
        whole = all([memccapable(protocol, options) for protocol in ("text", "binary") if protocol in protocols])
    table(rows)
    failures = sum(outcome == "fail" for _, _, found in rows for outcome, _ in found.values())
    print(f"{failures} checks failed" if failures else "every check passed; empty: the client cannot do it")
    sys.exit(not whole or failures > 0)


if __name__ == "__main__":
    main()
