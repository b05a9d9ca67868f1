"""A server that forks its workers: what works, and what is refused and why."""

import concurrent.futures
import http.client
import os
import signal
import socket
import subprocess
import sys
import time

import pytest

import evermap

pytest.importorskip("gunicorn")

APP = '''
import os, time
import evermap

path, opened = os.environ["STORE"], os.environ["OPENED"]
db, owner = None, None
if opened == "before the fork":
    db = evermap.open(path)
    db[b"warm"] = b"by the parent"
elif opened == "and closed before the fork":
    with evermap.open(path) as warming:
        warming[b"warm"] = b"by the parent"


def store():
    global db, owner
    if opened != "before the fork" and owner != os.getpid():
        own = opened == "by each worker, one of its own"
        db, owner = evermap.open(f"{path}-{os.getpid()}" if own else path, lock_wait=0), os.getpid()
    return db


def answer(what):
    if what == "/pid":
        return os.getpid()
    if what == "/warm":
        return store()[b"warm"].decode()
    if what == "/both":
        time.sleep(0.05)
    return store().incr(b"requests")


def app(environ, start_response):
    try:
        text = str(answer(environ["PATH_INFO"]))
    except evermap.Error as error:
        text = f"{type(error).__name__}: {error}"
    start_response("200 OK", [("Content-Type", "text/plain")])
    return [text.encode()]
'''


class Connection(http.client.HTTPConnection):
    def __init__(self, path):
        super().__init__("localhost", timeout=30)
        self.path = path

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self.path)


class Gunicorn:
    def __init__(self, folder, opened, *options):
        self.path, self.store = (os.path.join(folder, name) for name in ("socket", "store"))
        with open(os.path.join(folder, "served.py"), "w") as file:
            file.write(APP)
        self.log = os.path.join(folder, "log")
        self.process = subprocess.Popen(
            [sys.executable, "-m", "gunicorn", "--chdir", folder, "--bind", f"unix:{self.path}"]
            + ["--log-file", self.log, "--no-control-socket", *options, "served:app"],
            env=os.environ | {"STORE": self.store, "OPENED": opened},
        )

    def ask(self, what):
        """Returns the answer, if need be of the next worker."""
        until = time.monotonic() + 30
        while True:
            connection = Connection(self.path)
            try:
                connection.request("GET", what)
                return connection.getresponse().read().decode()
            except (OSError, http.client.HTTPException):
                assert time.monotonic() < until and self.process.poll() is None, self.logged()
                time.sleep(0.05)
            finally:
                connection.close()

    def ask_both(self, is_enough):
        """Asks until the answers are enough: which worker gets a request is not ours to say."""
        answers = set()
        until = time.monotonic() + 30
        with concurrent.futures.ThreadPoolExecutor(4) as threads:
            while not is_enough(answers):
                assert time.monotonic() < until, f"{answers}\n{self.logged()}"
                answers.update(threads.map(self.ask, ["/both"] * 8))
        return answers

    def logged(self):
        with open(self.log) as file:
            return file.read()

    def __enter__(self):
        return self

    def __exit__(self, *raised):
        self.process.terminate()
        assert self.process.wait(60) == 0, self.logged()


@pytest.mark.parametrize("preload", [[], ["--preload"]])
@pytest.mark.parametrize("opened", ["by the worker", "and closed before the fork"])
def test_one_worker_writes_and_is_warm_after_a_kill(folder, opened, preload):
    with Gunicorn(folder, opened, "--workers", "1", "--threads", "4", *preload) as server:
        answers = [int(server.ask("/")) for _ in range(20)]
        assert answers == list(range(1, 21))
        if opened != "by the worker":
            assert server.ask("/warm") == "by the parent"
        # The next worker imports the program anew unless it was loaded before.
        os.kill(int(server.ask("/pid")), signal.SIGKILL)
        assert int(server.ask("/")) == 21
    with evermap.open(server.store) as db:
        assert db.incr(b"requests", 0) == 21 and db.check(deep=True) == []


def test_workers_with_a_file_each(folder):
    with Gunicorn(folder, "by each worker, one of its own", "--workers", "2") as server:
        server.ask_both(lambda answers: {"1", "2"} <= answers)
    stores = [name for name in os.listdir(folder) if name.startswith("store-")]
    assert 1 <= len(stores) <= 2
    for name in stores:
        with evermap.open(os.path.join(folder, name)) as db:
            assert db.check(deep=True) == []


def test_what_was_opened_before_the_fork_is_read_only(folder):
    with Gunicorn(folder, "before the fork", "--workers", "2", "--preload") as server:
        assert server.ask("/warm") == "by the parent"
        told = server.ask("/")
        assert told.startswith("ForkedError: ") and "fork" in told, told
    with evermap.open(server.store) as db:
        assert db[b"warm"] == b"by the parent" and b"requests" not in db


@pytest.mark.parametrize("preload", [[], ["--preload"]])
def test_a_second_worker_is_told_that_the_first_has_the_file(folder, preload):
    with Gunicorn(folder, "by the worker", "--workers", "2", *preload) as server:
        answers = server.ask_both(
            lambda answers: len({answer.split(":")[0].isdigit() for answer in answers}) == 2
        )
        refused = {answer for answer in answers if not answer.isdigit()}
        assert all(answer.startswith("InUseError: ") for answer in refused), refused
        assert any(server.store in answer or "use" in answer for answer in refused), refused
