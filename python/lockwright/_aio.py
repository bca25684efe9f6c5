"""Awaiting what the extension has begun. It signals a file descriptor, which the event loop watches: no thread is needed."""

import asyncio


async def finish(pending):
    """Polls `pending` until it is done. Cancelled, it gives up: a lock that came meanwhile is passed on.

    There is no await between the poll that brings the lock and the return of it, so no cancellation can come between.
    """
    loop = asyncio.get_running_loop()
    try:
        while True:
            done, outcome = pending.poll()
            if done:
                return outcome
            woken = loop.create_future()
            loop.add_reader(pending.fileno(), _wake, woken)
            try:
                await woken
            finally:
                loop.remove_reader(pending.fileno())
    except BaseException:
        pending.cancel()
        raise


def _wake(woken):
    if not woken.done():
        woken.set_result(None)


async def enter(lock):
    """`__aenter__` of a lock or an acquire: keeps the guard where `__aexit__` finds it."""
    return lock._keep(await finish(lock._start()))


async def leave(lock):
    """`__aexit__` of a lock or an acquire."""
    guards = lock._take()
    lost = None
    for guard in guards:
        try:
            await finish(guard._start_unlock())
        except BaseException as error:  # the others are unlocked all the same
            lost = lost or error
    if lost is not None:
        raise lost


async def unlock(guard):
    """Unlocks, without blocking the event loop."""
    await finish(guard._start_unlock())


async def upgrade(guard, timeout):
    """Makes a shared lock exclusive, without blocking the event loop."""
    await finish(guard._start_upgrade(timeout))
