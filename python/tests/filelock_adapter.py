"""A pytest plugin under which filelock's own tests run on our mutexes: `python -m pytest -p filelock_adapter TESTS`.

filelock's base class keeps its manners (timeouts, nesting, singletons, logging); taking and giving back is ours, on a space of
shared memory that lasts for the run.
"""

import hashlib
import os

import filelock

import lockwright

PATH = f"/dev/shm/lockwright-py-filelock-{os.getpid()}"
CLIENT = lockwright.Client(f"shm:{PATH}")

# Tests of what the file of a file lock is: its mode, its place, its errors. Our locks have none.
ABOUT_FILES = (
    "test_ro_folder",
    "test_ro_file",
    "test_bad_lock_file",
    "test_cleanup_soft_lock",
    "test_lock_mode",
    "test_lock_mode_soft",
    "test_umask",
    "test_umask_soft",
    "test_wrong_platform",
    "test_flock_not_implemented_unix",
    "test_soft_errors",
    "test_mtime_zero_exit_branch",
)


class Adapter:
    """Takes and gives back a mutex where filelock would a file."""

    def _acquire(self):
        path = os.fsencode(self.lock_file)
        name = path if len(path) <= 255 else hashlib.sha256(path).hexdigest()
        try:
            guard = CLIENT.mutex(name).lock(timeout=0).wait()
        except lockwright.LockTimeout:
            return
        self._context.guard = guard
        self._context.lock_file_fd = guard.token

    def _release(self):
        self._context.lock_file_fd = None
        self._context.guard.unlock()


class MutexFileLock(Adapter, filelock.BaseFileLock):
    pass


class AsyncMutexFileLock(Adapter, filelock.BaseAsyncFileLock):
    pass


filelock.FileLock = filelock.SoftFileLock = filelock.UnixFileLock = MutexFileLock
filelock.AsyncFileLock = filelock.AsyncSoftFileLock = AsyncMutexFileLock


def pytest_collection_modifyitems(config, items):
    left_out = [item for item in items if item.originalname in ABOUT_FILES]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if item.originalname not in ABOUT_FILES]


def pytest_unconfigure():
    if os.path.exists(PATH):
        os.unlink(PATH)
