"""Locks by name, between the threads and processes of one host and between hosts.

>>> from lockwright import Client
>>> client = Client("mem:")  # "shm:" for all processes of this user, "tcp://db7/stock" for a server's space
>>> with client.mutex("orders/42") as guard:
...     guard.token
1

Every call that may wait returns an `Acquire`: use it in `with` or `async with`, `await` it, or call its `wait()`.
Timeouts are in seconds, None waits as long as it takes, and what is not granted in time raises `LockTimeout`, which is a
`TimeoutError`. Locks are not re-entrant.
"""

from ._errors import (
    BadRequest,
    Disconnected,
    Evicted,
    LockLost,
    LockTimeout,
    LockwrightError,
    NotHeld,
    OtherProcess,
    Refused,
    TooMany,
    Unsupported,
    WouldDeadlock,
)
from ._lockwright import Acquire, Client, Guard, Mutex, RangeLock, RwLock, Semaphore, __version__, acquire_all

__all__ = [
    "Acquire",
    "BadRequest",
    "Client",
    "Disconnected",
    "Evicted",
    "Guard",
    "LockLost",
    "LockTimeout",
    "LockwrightError",
    "Mutex",
    "NotHeld",
    "OtherProcess",
    "RangeLock",
    "Refused",
    "RwLock",
    "Semaphore",
    "TooMany",
    "Unsupported",
    "WouldDeadlock",
    "__version__",
    "acquire_all",
]
