"""Processes of both servers, and what the system says of them."""

import os
import shutil
import socket
import subprocess
import tempfile
import time

# The longest wait for anything that has to happen, seconds. It decides only when to give up.
PATIENCE = 60
THREADS = os.cpu_count() or 1


class Wrong(Exception):
    """An answer or a state that must not be."""


def wait_for(what, condition):
    """Waits until the condition holds; `what` says which it is, and may be a function."""
    end = time.monotonic() + PATIENCE
    while not condition():
        if time.monotonic() > end:
            raise Wrong(f"{what() if callable(what) else what}: still not after {PATIENCE} s")
        time.sleep(0.02)


class Control:
    """A connection for statistics."""

    def __init__(self, port):
        self.socket = socket.create_connection(("127.0.0.1", port), PATIENCE)
        self.reader = self.socket.makefile("rb")

    def stats(self, what=""):
        self.socket.sendall(f"stats {what}".strip().encode() + b"\r\n")
        found = {}
        while (line := self.reader.readline()) != b"END\r\n":
            words = line.split(None, 2)
            if len(words) < 2 or words[0] != b"STAT":
                raise Wrong(f"`stats {what}` was answered with {line[:80]!r}")
            found[words[1].decode()] = words[2].strip().decode() if len(words) > 2 else ""
        return found

    def stat(self, name):
        """A number; None if this server does not have it."""
        value = self.stats().get(name)
        return None if value is None else int(value)

    def set(self, key, value):
        self.socket.sendall(b"set %s 0 0 %d\r\n%s\r\n" % (key, len(value), value))
        if (line := self.reader.readline()) != b"STORED\r\n":
            raise Wrong(f"the set of {key.decode()} was answered with {line[:80]!r}")

    def close(self):
        self.reader.close()
        self.socket.close()


class Server:
    """A server process; `limit` is the maximum number of its connections."""

    def __init__(self, options, limit, threads=THREADS, wait_when_full=False):
        self.options, self.limit, self.threads, self.wait_when_full = options, limit, str(threads), wait_when_full
        self.folder = tempfile.mkdtemp(prefix="connections-", dir="/dev/shm" if os.path.isdir("/dev/shm") else None)
        self.log_path = os.path.join(self.folder, "log")
        self.process = None

    def __enter__(self):
        try:
            self.port = self.start()
        except BaseException:
            self.end()
            raise
        return self

    def __exit__(self, kind, error, _):
        code = self.process.poll()
        log = self.log()
        self.end()
        if code is not None and (kind is None or issubclass(kind, (Wrong, OSError))):
            raise Wrong(f"{self.name} ended by itself with code {code}\n{log}{error or ''}") from error

    def spawn(self, command):
        with open(self.log_path, "wb") as log:
            self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log)

    def log(self):
        with open(self.log_path, encoding="utf-8", errors="replace") as log:
            return log.read()[-2000:]

    def end(self):
        if self.process:
            self.process.kill()
            self.process.wait()
            self.process.stdout.close()
        shutil.rmtree(self.folder)

    # What the system says

    def anonymous(self):
        """The anonymous memory that is resident, in bytes."""
        return self.status("RssAnon:") << 10

    def thread_count(self):
        return self.status("Threads:")

    def status(self, name):
        try:
            with open(f"/proc/{self.process.pid}/status", encoding="ascii") as status:
                return next(int(line.split()[1]) for line in status if line.startswith(name))
        except (OSError, StopIteration):
            code = self.process.wait(PATIENCE)
            raise Wrong(f"{self.name} ended by itself with code {code}\n{self.log()}") from None

    def descriptors(self):
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    def file_bytes(self):
        """The memory of the store's file."""
        return 0


class Evermap(Server):
    name = "evermap"

    def start(self):
        self.path = os.path.join(self.folder, "store")
        command = [
            self.options.binary, "serve", "--path", self.path, "--listen", "127.0.0.1:0",
            "--threads", self.threads, "--max-connections", str(self.limit),
        ]
        if self.wait_when_full:
            command += ["--on-max-connections", "wait"]
        self.spawn(command)
        # ready on ADDRESS:PORT: FILE ...
        words = self.process.stdout.readline().decode().split()
        if words[:2] != ["ready", "on"]:
            raise Wrong(f"no server: code {self.process.wait(PATIENCE)}\n{self.log()}")
        return int(words[2].rstrip(":").rpartition(":")[2])

    def file_bytes(self):
        return os.stat(self.path).st_blocks * 512


class Memcached(Server):
    name = "memcached"

    def start(self):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        command = [
            "memcached", "-l", "127.0.0.1", "-p", str(port), "-U", "0", "-m", "1024",
            "-t", self.threads, "-c", str(self.limit),
        ]
        if os.getuid() == 0:
            command += ["-u", "root"]
        self.spawn(command)
        wait_for("memcached", lambda: self.process.poll() is not None or accepts(port))
        if self.process.poll() is not None:
            raise Wrong(f"memcached ended with code {self.process.returncode}:\n{self.log()}")
        return port


def accepts(port):
    try:
        socket.create_connection(("127.0.0.1", port), 5).close()
        return True
    except OSError:
        return False
