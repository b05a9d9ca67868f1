import os
import shutil
import tempfile

import pytest

import evermap


@pytest.fixture
def folder():
    """A folder in memory: file systems that Evermap refuses are common under /tmp."""
    path = tempfile.mkdtemp(dir="/dev/shm" if os.path.isdir("/dev/shm") else None)
    yield path
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture
def path(folder):
    return os.path.join(folder, "test.map")


@pytest.fixture
def db(path):
    with evermap.open(path, ordered=True) as db:
        yield db
