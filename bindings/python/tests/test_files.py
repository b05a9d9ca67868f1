"""Kills, snapshots, backups, and processes."""

import os
import re
import signal
import subprocess
import sys
import time

import pytest

import evermap

COUNTS = """
import sys, evermap
db = evermap.open(sys.argv[1], **eval(sys.argv[2]))
other = db.map("other")
while True:
    with db.batch() as batch:
        batch.incr(b"here")
        batch.on(other).incr(b"there")
    print(db.incr(b"acknowledged"), flush=True)
"""


@pytest.mark.parametrize("how", [{}, {"durability": "log", "log_in_memory": True}])
def test_kill_9_loses_nothing(path, how):
    least = 0
    for kills in range(1, 4):
        child = subprocess.Popen(
            [sys.executable, "-c", COUNTS, path, repr(how)], stdout=subprocess.PIPE
        )
        last = child.stdout.readline()
        until = time.monotonic() + 0.3
        while time.monotonic() < until:
            last = child.stdout.readline()
        child.send_signal(signal.SIGKILL)
        rest = child.stdout.read().splitlines(True)
        child.wait()
        last = next((line for line in reversed(rest) if line.endswith(b"\n")), last)
        assert int(last) > least
        least = int(last)
        with evermap.open(path, **how) as db:
            counts = [db.incr(b"here", 0), db.map("other").incr(b"there", 0)]
            acknowledged = db.incr(b"acknowledged", 0)
            # Each kill may come between a batch and the change after it.
            assert counts[0] == counts[1] in range(acknowledged, acknowledged + kills + 1)
            assert acknowledged in (least, least + 1)
            assert len(db) == 2 and not db.stat()["clean_open"]
            assert db.check(deep=True) == []
            least = acknowledged


def test_snapshots_are_of_one_moment(db):
    db.update((b"%d" % number, b"old") for number in range(100))
    with db.snapshot() as then:
        db.update((b"%d" % number, b"new") for number in range(200))
        assert len(then) == 100 and set(then.values()) == {b"old"}
        assert list(then.prefix(b"99")) == [(b"99", b"old")]
        with pytest.raises(evermap.ReadOnlyError):
            then[b"1"] = b""
        with pytest.raises(evermap.ReadOnlyError):
            then.update({b"1": b""})
    assert db[b"1"] == b"new"
    with pytest.raises(ValueError), evermap.in_memory() as memory:
        memory.snapshot()


def test_backups(db, folder):
    db[b"key"] = b"value"
    backup, restored = (os.path.join(folder, name) for name in ("backup", "restored"))
    assert db.backup(backup) > 0
    db[b"key"] = b"later"
    with pytest.raises(ValueError, match="exists"):
        db.backup(backup)
    evermap.restore([backup], restored)
    with evermap.open(restored) as other:
        assert other[b"key"] == b"value"


def test_a_log_shares_syncs_in_an_update(path):
    with evermap.open(path, durability="log", log_in_memory=True) as db:
        db.update((b"%d" % number, b"") for number in range(1000))
        db.sync()
        assert len(db) == 1000
    with pytest.raises(ValueError, match="log"):
        evermap.open(path)


def test_readers_beside_a_writer(path):
    with evermap.open(path, offers_copies=True) as db:
        db[b"key"] = b"value"
        read = "import sys, evermap; print(evermap.open(sys.argv[1], read_only=True)[b'key'])"
        shown = subprocess.run([sys.executable, "-c", read, path], capture_output=True, text=True)
        assert shown.stdout == "b'value'\n", shown.stderr


def test_errors_say_what_to_do(path, folder):
    with pytest.raises(evermap.NotFoundError, match="create"):
        evermap.open(path, create=False)
    other = os.path.join(folder, "other")
    with open(other, "wb") as file:
        file.write(b"something else" * 1000)
    with pytest.raises(evermap.Error, match="other"):
        evermap.open(other)
    with evermap.open(path), pytest.raises(evermap.InUseError):
        evermap.open(path, lock_wait=0)
    db = evermap.open(path)
    db.close()
    db.close()
    with pytest.raises(evermap.ClosedError, match="closed"):
        db[b"key"]


def in_child(body):
    """Runs `body` in a forked child, and returns what it returns, as text."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        text = "no result"
        try:
            text = str(body())
        except BaseException as error:
            text = f"{type(error).__name__}: {error}"
        finally:
            os.write(writing, text.encode())
            # As a worker that ends: the interpreter's own end is tested, too.
            os.close(writing)
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as file:
        text = file.read()
    assert os.waitpid(child, 0)[1] == 0
    return text


def test_a_forked_child_reads_and_is_told_why_it_cannot_write(path):
    with evermap.open(path) as db:
        db[b"key"] = b"value"
        assert in_child(lambda: db[b"key"]) == "b'value'"
        assert in_child(lambda: list(db.items())) == "[(b'key', b'value')]"
        for change in (
            lambda: db.__setitem__(b"key", b"child"),
            lambda: db.incr(b"count"),
            lambda: db.update({b"key": b"child"}),
            lambda: db.batch().__setitem__(b"key", b"child") or db.clear(),
        ):
            told = in_child(change)
            assert told.startswith("ForkedError: ") and "fork" in told, told
        # The parent has it.
        told = in_child(lambda: evermap.open(path, lock_wait=0))
        assert told.startswith("InUseError: "), told
        db[b"key"] = b"parent"
        assert db.check(deep=True) == []


def test_each_child_opens_a_file_of_its_own(folder):
    def work(number):
        with evermap.open(os.path.join(folder, f"{number}.map")) as db:
            db[b"key"] = b"%d" % number
            return db[b"key"]

    assert [in_child(lambda n=n: work(n)) for n in range(3)] == ["b'0'", "b'1'", "b'2'"]
    for number in range(3):
        with evermap.open(os.path.join(folder, f"{number}.map")) as db:
            assert db[b"key"] == b"%d" % number


def test_one_child_writes_if_the_parent_has_closed_before_the_fork(path):
    with evermap.open(path) as db:
        db[b"key"] = b"parent"

    def work():
        with evermap.open(path) as db:
            db[b"key"] = b"child"
            return db[b"key"]

    assert in_child(work) == "b'child'"
    with evermap.open(path) as db:
        assert db[b"key"] == b"child"


def test_a_child_that_ends_as_usual_harms_nothing(path):
    script = """
import os, sys, evermap
db = evermap.open(sys.argv[1])
db[b"key"] = b"value"
child = os.fork()
if child == 0:
    assert db[b"key"] == b"value"
    sys.exit(0)
assert os.waitpid(child, 0)[1] == 0
db[b"key"] = b"later"
print(db[b"key"], db.check(deep=True))
"""
    shown = subprocess.run(
        [sys.executable, "-c", script, path], capture_output=True, text=True, timeout=60
    )
    assert shown.stdout == "b'later' []\n", shown.stderr


def test_a_child_cannot_open_what_it_has_inherited(path):
    db = evermap.open(path)

    def work():
        # There is nothing to close but the child's own handles, and that is no error.
        db.close()
        return evermap.open(path, lock_wait=0)

    told = in_child(work)
    assert told.startswith("InUseError: "), told
    db[b"key"] = b"value"
    db.close()


def test_a_closed_store_can_be_opened_again_whoever_refers_to_it(path):
    db = evermap.open(path, ordered=True)
    users = db.map("users")
    users[b"ann"] = b"1"
    then = db.snapshot()
    assert then.map("users")[b"ann"] == b"1"
    then.close()
    with pytest.raises(evermap.ClosedError):
        then.maps()
    db.close()
    for use in (lambda: users[b"ann"], lambda: list(users), lambda: db.maps(), lambda: len(db)):
        with pytest.raises(evermap.ClosedError):
            use()
    with evermap.open(path) as again:
        assert again.map("users")[b"ann"] == b"1"


def test_the_first_program_of_the_guide_goes_on_after_a_kill(folder):
    guide = os.path.join(os.path.dirname(__file__), "..", "..", "..", "docs", "use", "python.md")
    with open(guide) as file:
        program = re.search(r"^```python\n(import time.*?)^```", file.read(), re.M | re.S)[1]
    shown = b""
    for _ in range(2):
        child = subprocess.Popen(
            [sys.executable, "-c", program], cwd=folder, stdout=subprocess.PIPE
        )
        shown += child.stdout.readline()
        child.kill()
        child.communicate()
    assert shown == b"visit 1\nvisit 2\n"
