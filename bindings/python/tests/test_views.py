"""Values that are read without a copy."""

import gc
import threading

import pytest

import evermap


@pytest.fixture(params=["memory", "exclusive", "file"])
def lent(request, path):
    """A store, and whether it lends its values."""
    match request.param:
        case "memory":
            with evermap.in_memory() as db:
                yield db, True
        case "exclusive":
            with evermap.open(path, exclusive=True) as db:
                yield db, True
        case "file":
            with evermap.open(path) as db:
                yield db, False


def test_a_view_stays_as_it_was(lent):
    db, is_lent = lent
    db[b"key"] = b"v" * 100_000
    view = db.view(b"key")
    assert view.readonly and view.nbytes == 100_000 and view.obj.borrowed == is_lent
    for round in range(2000):
        db[b"key"] = b"%d" % round * 1000
    del db[b"key"]
    assert view == b"v" * 100_000 and bytes(view[5:8]) == b"vvv"
    with pytest.raises(TypeError):
        view[0] = 1
    assert db.view(b"none") is None
    db[b"empty"] = b""
    assert db.view(b"empty") == b""
    view.release()


def test_the_record_is_released_with_the_view(lent):
    db, is_lent = lent
    db[b"key"] = b"value"
    view = db.view(b"key")
    part = view[1:3]
    view.release()
    del view
    gc.collect()
    # A part of a view is a view.
    if is_lent:
        for waits in (db.close, db.check, db.compact):
            with pytest.raises(evermap.HeldError, match="1 value "):
                waits()
    assert part == b"al"
    part.release()
    assert db.check(deep=True) == []
    with db.view(b"key") as view:
        assert view == b"value"
    db.close()


def test_a_view_may_end_in_another_thread(lent):
    db, _ = lent
    db[b"key"] = b"value"
    views = [db.view(b"key") for _ in range(50)]
    db[b"key"] = b"other"

    def end():
        while views:
            assert views.pop() == b"value"

    thread = threading.Thread(target=end)
    thread.start()
    thread.join()
    db.close()


def test_views_that_are_kept_hold_up_changes():
    with evermap.in_memory() as db:
        db[b"key"] = bytes(1 << 20)
        view = db.view(b"key")
        with pytest.raises(evermap.HeldError):
            for _ in range(1000):
                db[b"key"] = bytes(1 << 20)
        view.release()
        db[b"key"] = b"again"


def test_a_view_keeps_its_store(path):
    db = evermap.open(path, exclusive=True)
    db[b"key"] = b"value"
    view = db.view(b"key")
    del db
    gc.collect()
    assert view == b"value"
    del view
    gc.collect()
    evermap.open(path, lock_wait=0).close()
