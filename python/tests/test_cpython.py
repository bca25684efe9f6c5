"""CPython's own tests of its locks, from where they are installed, on mutexes and semaphores of shared memory.

Left out: `_at_fork_reinit` (CPython's private reset of a lock that a child inherited; ours belong to their process), the
test of a condition variable that takes its lock twice (ours are not re-entrant), and the text of a semaphore, which has the number
of free permits: ours cannot know it. RLockTests and the tests of the unbounded semaphore do not apply: locks are not re-entrant,
and a semaphore has its limit. What bounded and unbounded ones have in common is tested.
"""

import itertools
import os
import threading
import unittest

import lockwright

lock_tests = None
try:
    from test import lock_tests
except ImportError:  # some distributions leave CPython's tests out
    import pytest

    pytest.skip("CPython's test.lock_tests is not installed", allow_module_level=True)

PATH = f"/dev/shm/lockwright-py-cpython-{os.getpid()}"
CLIENT = lockwright.Client(f"shm:{PATH}")
NUMBERS = itertools.count()


def new_mutex():
    return CLIENT.mutex(f"lock {next(NUMBERS)}")


def tearDownModule():
    if os.path.exists(PATH):
        os.unlink(PATH)


class LockTests(lock_tests.LockTests):
    locktype = staticmethod(new_mutex)
    test_at_fork_reinit = None


class ConditionTests(lock_tests.ConditionTests):
    """CPython's condition variable on top of our mutex."""

    @staticmethod
    def condtype(lock=None):
        return threading.Condition(lock if lock is not None else new_mutex())

    locktype = staticmethod(new_mutex)
    test_acquire = None


class SemaphoreTests(lock_tests.BoundedSemaphoreTests):
    @staticmethod
    def semtype(value=1):
        return CLIENT.semaphore(f"semaphore {next(NUMBERS)}", value)

    test_repr = None


if __name__ == "__main__":
    unittest.main()
