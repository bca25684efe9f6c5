"""What the tests share: a space of the test's own, in shared memory or in this process."""

import os
import uuid

import pytest

import lockwright


@pytest.fixture
def space():
    """The address of a space in shared memory that nobody else has."""
    path = f"/dev/shm/lockwright-py-{os.getpid()}-{uuid.uuid4().hex}"
    yield f"shm:{path}"
    if os.path.exists(path):
        os.unlink(path)


@pytest.fixture
def shm(space):
    return lockwright.Client(space)


@pytest.fixture(params=["mem:", "shm:"])
def client(request, space):
    return lockwright.Client(space if request.param == "shm:" else "mem:")
