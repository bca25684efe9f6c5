"""multiprocessing and fork: a child cannot touch its parent's locks, and has its own."""

import multiprocessing
import os
import warnings

import pytest

import lockwright

warnings.filterwarnings("ignore", message=".*fork.*", category=DeprecationWarning)


def in_child(work):
    """Runs `work` in a forked child and returns what it returned, as text."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            said = str(work())
        except BaseException as error:
            said = f"{type(error).__name__}: {error}"
        os.write(write, said.encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        said = pipe.read()
    assert os.waitpid(child, 0)[1] == 0
    return said


def test_a_forked_child_cannot_use_or_give_back_the_locks_of_its_parent(client):
    mutex = client.mutex("x")
    guard = mutex.lock().wait()
    assert in_child(lambda: client.mutex("y")).startswith("OtherProcess")
    assert in_child(lambda: mutex.acquire(False)).startswith("OtherProcess")
    assert in_child(lambda: mutex.acquire()).startswith("OtherProcess")
    assert in_child(guard.unlock).startswith("OtherProcess")
    assert in_child(lambda: guard.state) == "lost"
    assert guard.state == "held"
    with pytest.raises(lockwright.LockTimeout):
        mutex.lock(timeout=0).wait()
    guard.unlock()


def test_a_forked_child_that_forgets_everything_frees_nothing(space):
    client = lockwright.Client(space)
    held = [client, client.mutex("x").lock().wait()]

    def forget():
        held.clear()
        return lockwright.Client(space).mutex("x").acquire(False)

    assert in_child(forget) == "False"
    assert held[1].state == "held"


def count(space, value, rounds):
    mutex = lockwright.Client(space).mutex("x")
    for _ in range(rounds):
        with mutex:
            value.value += 1


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_processes_exclude_each_other(space, method):
    context = multiprocessing.get_context(method)
    value = context.Value("i", 0, lock=False)
    parent = lockwright.Client(space)
    with parent.mutex("x"):
        workers = [context.Process(target=count, args=(space, value, 300)) for _ in range(3)]
        for worker in workers:
            worker.start()
    for worker in workers:
        worker.join()
        assert worker.exitcode == 0
    assert value.value == 900
