"""What can go wrong: one class for one thing, and all of them are a LockwrightError."""


class LockwrightError(Exception):
    """The base of everything that this package raises by itself."""


class LockTimeout(LockwrightError, TimeoutError):
    """The lock was not to be had in time. Nothing is held, or nothing was changed."""


class LockLost(LockwrightError):
    """The lock was held and has been taken away: what was done under it may have been overwritten."""


class Evicted(LockwrightError):
    """This process was silent for longer than its lease, again and again."""


class Disconnected(LockwrightError, ConnectionError):
    """The space, or the server that has it, cannot be reached."""


class Refused(LockwrightError, PermissionError):
    """The server said no, or the secret or the certificates cannot be used."""


class Unsupported(LockwrightError):
    """This space, or this build, cannot do it."""


class TooMany(LockwrightError):
    """There is no more room for clients or locks."""


class WouldDeadlock(LockwrightError):
    """Another reader already waits to upgrade, and each would wait for the other."""


class BadRequest(LockwrightError, ValueError):
    """A name, an address or a range that cannot be one, or a lock named twice in a set."""


class OtherProcess(LockwrightError, RuntimeError):
    """It belongs to the process that this one was forked off from: open a client of your own."""


class NotHeld(LockwrightError, RuntimeError):
    """It is not locked, or no longer."""
