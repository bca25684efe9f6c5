"""What the tests share: a space of the test's own, in shared memory, in this process, or in a server."""

import os
import re
import subprocess
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


@pytest.fixture(scope="session")
def server():
    """Where a server listens, which is started once and ends with the tests."""
    program = os.environ.get("LOCKWRIGHT_PROGRAM")
    if program is None:
        pytest.skip("LOCKWRIGHT_PROGRAM names no program")
    serve = [program, "serve", "--state", "none", "--listen", "127.0.0.1:0"]
    with subprocess.Popen(serve, stdout=subprocess.PIPE, text=True) as process:
        try:
            line = process.stdout.readline()
            yield re.search(r"127\.0\.0\.1:\d+", line)[0]
        finally:
            process.kill()


@pytest.fixture
def served(server):
    """The address of a space in the server that nobody else has."""
    return f"tcp://{server}/{uuid.uuid4().hex}"


@pytest.fixture(params=["mem:", "shm:", "tcp:"])
def client(request, space):
    if request.param == "tcp:":
        space = request.getfixturevalue("served")
    return lockwright.Client("mem:" if request.param == "mem:" else space)
