"""Locks as a program without asyncio uses them."""

import _thread
import gc
import os
import subprocess
import sys
import threading
import time
import weakref

import pytest

import lockwright
from lockwright import BadRequest, LockTimeout, NotHeld, WouldDeadlock, acquire_all


def test_a_mutex_is_a_context_manager_and_tokens_rise(client):
    mutex = client.mutex("x")
    with mutex as first:
        assert mutex.locked() and first.state == "held"
        token = first.token
    assert not mutex.locked() and first.state == "unlocked"
    with mutex as second:
        assert second.token > token


def test_the_lock_is_given_back_when_the_block_raises(client):
    mutex = client.mutex("x")
    with pytest.raises(ZeroDivisionError):
        with mutex:
            1 / 0
    with mutex.lock(timeout=0):
        pass


def test_a_taken_lock_raises_a_timeout_error(client):
    mutex = client.mutex("x")
    with mutex:
        for timeout in (0, 0.01):
            with pytest.raises(TimeoutError):
                mutex.lock(timeout=timeout).wait()
            with pytest.raises(LockTimeout):
                with client.mutex("x").lock(timeout=timeout):
                    pass
        assert client.mutex("x").acquire(blocking=False) is False
    assert client.settle(10)


def test_a_guard_that_is_forgotten_unlocks(client):
    mutex = client.mutex("x")
    guard = mutex.lock().wait()
    gone = weakref.ref(guard)
    del guard
    gc.collect()
    assert gone() is None
    mutex.lock(timeout=0).wait().unlock()


def test_a_guard_may_be_unlocked_inside_of_its_block_and_only_once(client):
    with client.mutex("x").lock() as guard:
        guard.unlock()
        with pytest.raises(NotHeld):
            guard.unlock()
        with pytest.raises(NotHeld):
            guard.token
    with client.mutex("x") as guard:
        guard.unlock()


def test_a_guard_outlives_its_lock_and_its_client(client):
    guard = client.mutex("x").lock().wait()
    client.close()
    assert guard.state == "held"
    with pytest.raises(NotHeld):
        client.mutex("x")
    guard.unlock()


def test_readers_share_and_writers_do_not(client):
    lock = client.rwlock("x")
    with lock.read() as one, lock.read() as two:
        assert one.shared and two.shared
        with pytest.raises(LockTimeout):
            lock.write(timeout=0).wait()
    with lock.write(timeout=1) as alone:
        assert not alone.shared


def test_ranges_that_overlap_exclude_each_other(client):
    lock = client.range_lock("x")
    with lock.write(0, 10) as head, lock.write(10, 20):
        assert head.range == (0, 10)
        with pytest.raises(LockTimeout):
            lock.read(9, 11, timeout=0).wait()
    for start, stop in ((5, 5), (6, 5)):
        with pytest.raises(ValueError):
            lock.write(start, stop).wait()


def test_a_set_is_granted_in_the_order_of_the_call(client):
    a, b, c = client.mutex("a"), client.rwlock("b"), client.range_lock("c")
    with acquire_all([c.write(5, 9), a.lock(), b.read(), c.write(0, 5)]) as guards:
        assert [guard.name for guard in guards] == ["c", "a", "b", "c"]
        assert [guard.range for guard in guards] == [(5, 9), None, None, (0, 5)]
        with pytest.raises(LockTimeout):
            acquire_all([b.write(), client.mutex("d").lock()], timeout=0.01).wait()
        with client.mutex("d").lock(timeout=10):
            pass
    with pytest.raises(BadRequest):
        acquire_all([a.lock(), client.rwlock("a").read()]).wait()


def test_a_set_from_two_spaces_with_equal_names_is_granted_in_the_order_of_the_call():
    fresh, used = lockwright.Client("mem:").mutex("x"), lockwright.Client("mem:").mutex("x")
    for _ in range(100):  # so that its tokens are the larger ones
        with used:
            pass
    for order in ((fresh, used), (used, fresh)):
        with acquire_all([lock.lock() for lock in order]) as guards:
            tokens = [guard.token for guard in guards]
        assert tokens[order.index(used)] > 100 > tokens[order.index(fresh)]


def test_a_semaphore_gives_out_so_many_permits_and_no_more(client):
    gpus = client.semaphore("gpu", 3)
    assert (gpus.name, gpus.limit) == ("gpu", 3)
    with gpus.permit(2) as two:
        assert two.permits == 2 and two.range is None and two.token > 0
        with pytest.raises(LockTimeout):
            gpus.permit(2, timeout=0).wait()
        assert gpus.acquire(blocking=False) is True
        assert client.semaphore("gpu", 3).acquire(blocking=False) is False
        with pytest.raises(lockwright.Refused):
            client.semaphore("gpu", 4).acquire(blocking=False)
    with gpus, gpus.permit():
        assert gpus.acquire(timeout=0.01) is False
    assert client.settle(10)
    gpus.release()
    with pytest.raises(ValueError):
        gpus.release()
    with gpus.permit(3, timeout=10):
        pass
    for count in (0, 4, -1):
        with pytest.raises(ValueError):
            gpus.permit(count)
    for limit in (0, -1, (1 << 32) + 1):
        with pytest.raises(ValueError):
            client.semaphore("gpu", limit)


def test_permits_are_part_of_a_set(client):
    one, gpus = client.rwlock("x"), client.semaphore("x", 3)
    with acquire_all([gpus.permit(2), one.read()]) as (permits, guard):
        assert (permits.permits, guard.permits) == (2, None)
        with pytest.raises(LockTimeout):
            acquire_all([gpus.permit(2), client.mutex("y").lock()], timeout=0.01).wait()
    with gpus.permit(3, timeout=10), one.write(timeout=10):
        pass


def test_a_held_lock_is_changed_where_the_space_offers_it():
    client = lockwright.Client("mem:")
    guard = client.rwlock("x").read().wait()
    token = guard.token
    guard.upgrade(timeout=1)
    assert guard.token > token and not guard.shared
    guard.downgrade()
    assert guard.shared
    with client.rwlock("x").read():
        with pytest.raises(LockTimeout):
            guard.upgrade(timeout=0)
        with pytest.raises(LockTimeout):
            guard.upgrade(timeout=0.01)
        assert guard.state == "held"
    guard.unlock()
    left = client.range_lock("x").write(0, 10).wait()
    right = left.unlock_part(4, 6)
    assert (left.range, right.range) == ((0, 4), (6, 10))
    assert left.unlock_part(0, 1) is None


def test_of_two_readers_that_upgrade_the_second_is_refused():
    client = lockwright.Client("mem:")
    lock = client.rwlock("x")
    one, two = lock.read().wait(), lock.read().wait()

    def upgrade():
        while True:  # the other one may be first for a moment
            try:
                return one.upgrade()
            except WouldDeadlock:
                pass

    waiting = threading.Thread(target=upgrade)
    waiting.start()
    with pytest.raises(WouldDeadlock):
        while True:  # until the other one waits
            try:
                two.upgrade(timeout=0.01)
            except LockTimeout:
                pass
    two.unlock()
    waiting.join()
    assert not one.shared


def test_a_lock_in_shared_memory_is_changed_while_it_is_held(shm):
    lock = shm.rwlock("x")
    with lock.write() as guard:
        token = guard.token
        guard.downgrade()
        assert guard.shared and guard.state == "held" and guard.token > token
        with lock.read():
            with pytest.raises(LockTimeout):
                guard.upgrade(timeout=0.01)
        guard.upgrade()
        assert not guard.shared and guard.state == "held"


def test_what_cannot_be_is_refused_by_a_value_error(client):
    for name in ("", "x" * 256, b"a\0b"):
        with pytest.raises(ValueError):
            client.mutex(name)
    for address in ("carrier-pigeon:", "mem:x"):
        with pytest.raises(ValueError):
            lockwright.Client(address)
    for timeout in (-1, float("nan")):
        with pytest.raises(ValueError):
            client.mutex("x").lock(timeout=timeout)
    with pytest.raises(OverflowError):
        client.mutex("x").lock(timeout=1e100)
    with pytest.raises(TypeError):
        client.mutex(7)
    with pytest.raises(ConnectionError):
        lockwright.Client("tcp://127.0.0.1:1/a", timeout=0.1)
    with pytest.raises(PermissionError):
        lockwright.Client("tcp://127.0.0.1:1/a", secret="short")


def test_what_etcd_is_to_know_is_looked_at_before_it_is_asked():
    # Builds without clusters refuse all of it.
    for etcd in ({"etcd_cert": ("no", "no")}, {"etcd_roots": "no certificate"}):
        with pytest.raises((ValueError, lockwright.Refused, lockwright.Unsupported)) as refused:
            lockwright.Client("cluster://127.0.0.1:1/prod/a", **etcd)
        assert not isinstance(refused.value, lockwright.Disconnected)


def test_names_are_text_or_bytes(client):
    assert client.mutex("é").name == client.mutex("é".encode()).name == "é"
    client.mutex(b"\xff").lock().wait().unlock()


def test_other_threads_run_while_one_waits(client):
    mutex, order = client.mutex("x"), []

    def wait():
        with client.mutex("x"):
            order.append("waited")

    with mutex:
        thread = threading.Thread(target=wait)
        thread.start()
        for _ in range(5):  # these sleeps end only if the waiter has released the interpreter
            time.sleep(0.01)
        order.append("held")
    thread.join()
    assert order == ["held", "waited"]


def test_threads_exclude_each_other(client):
    mutex, value = client.mutex("x"), [0]

    def count():
        for _ in range(200):
            with mutex:
                before = value[0]
                time.sleep(0)
                value[0] = before + 1

    threads = [threading.Thread(target=count) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert value == [800]


def test_threads_have_no_more_permits_than_there_are(client):
    room, inside, most = client.semaphore("room", 2), [], []

    def enter():
        for _ in range(50):
            with room:
                inside.append(None)
                most.append(len(inside))
                time.sleep(0)
                inside.pop()

    threads = [threading.Thread(target=enter) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not inside and max(most) <= 2


@pytest.mark.parametrize("wait", [lambda mutex: mutex.acquire(), lambda mutex: mutex.lock().wait()])
def test_ctrl_c_ends_a_wait_and_leaves_nothing_behind(client, wait):
    holder = client.mutex("x")
    holder.acquire()
    mutex = client.mutex("x")
    timer = threading.Timer(0.1, _thread.interrupt_main)
    with pytest.raises(KeyboardInterrupt):
        timer.start()  # in here: the interrupt comes whenever it likes
        wait(mutex)
    timer.join()
    assert not mutex.locked()
    holder.release()
    with mutex.lock(timeout=10):
        pass


def test_a_lock_that_is_broken_is_told(space, lockwright_program):
    guard = lockwright.Client(space).mutex("x").lock().wait()
    told, reasons = threading.Event(), []
    guard.on_lost(lambda reason: (reasons.append(reason), told.set()))
    command = [lockwright_program, "break", "x", "--token", str(guard.token), "--space", space]
    subprocess.run(command, check=True)
    assert told.wait(60)
    assert reasons == ["an administrator broke it"]
    assert guard.state == "lost"
    with pytest.raises(lockwright.LockLost):
        guard.unlock()


@pytest.fixture
def lockwright_program():
    program = os.environ.get("LOCKWRIGHT_PROGRAM")
    if not program:
        pytest.skip("LOCKWRIGHT_PROGRAM names no program")
    return program


def test_a_closed_client_leaves_no_thread_behind(space):
    # In a process of its own: no thread of another test ends meanwhile.
    program = (
        "import lockwright, os, sys, time\n"
        "tasks = lambda: len(os.listdir('/proc/self/task'))\n"
        "before = tasks()\n"
        "for _ in range(3):\n"
        "    with lockwright.Client(sys.argv[1]) as client, client.mutex('x'):\n"
        "        pass\n"
        "end = time.monotonic() + 10\n"
        "while tasks() > before and time.monotonic() < end:\n"
        "    time.sleep(0.01)  # the kernel lists a thread for a moment after it was joined\n"
        "sys.exit(tasks() - before)\n"
    )
    subprocess.run([sys.executable, "-c", program, space], check=True, timeout=60)


def test_a_program_that_ends_with_a_held_lock_ends_at_once_and_frees_it(space):
    program = (
        "import lockwright, sys\n"
        "client = lockwright.Client(sys.argv[1])\n"
        "guard = client.mutex('x').lock().wait()\n"
        "guard.on_lost(print)\n"
        "other = client.mutex('y'); other.acquire()\n"
    )
    subprocess.run([sys.executable, "-c", program, space], check=True, timeout=60)
    client = lockwright.Client(space)
    with client.mutex("x").lock(timeout=30), client.mutex("y").lock(timeout=30):
        pass
