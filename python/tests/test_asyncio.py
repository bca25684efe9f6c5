"""The same locks in asyncio: nothing blocks the loop, and no cancellation leaks a lock."""

import asyncio
import random

import pytest

import lockwright
from lockwright import LockTimeout, acquire_all


def test_async_with_takes_and_gives_back(client):
    async def main():
        mutex = client.mutex("x")
        async with mutex as guard:
            assert guard.state == "held" and mutex.locked()
        assert guard.state == "unlocked"
        async with client.rwlock("x").read() as one, client.rwlock("x").read() as two:
            assert one.shared and two.shared
        async with acquire_all([mutex.lock(), client.range_lock("r").write(0, 9)]) as guards:
            assert len(guards) == 2
        guard = await mutex.lock(timeout=1)
        await guard.unlock_async()
        assert guard.state == "unlocked"

    asyncio.run(main())


def test_a_timeout_is_a_timeout_error_in_asyncio_too(client):
    async def main():
        async with client.mutex("x"):
            for timeout in (0, 0.01):
                with pytest.raises(LockTimeout):
                    await client.mutex("x").lock(timeout=timeout)
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(client.mutex("x").lock().__aenter__(), 0.01)
        async with client.mutex("x").lock(timeout=10):
            pass

    asyncio.run(main())


def test_the_loop_runs_while_a_task_waits(client):
    async def main():
        order = []

        async def wait():
            async with client.mutex("x"):
                order.append("waited")

        async with client.mutex("x"):
            task = asyncio.ensure_future(wait())
            for _ in range(5):
                await asyncio.sleep(0.01)
            order.append("held")
        await task
        assert order == ["held", "waited"]

    asyncio.run(main())


def test_tasks_exclude_each_other(client):
    async def main():
        value = [0]

        async def count():
            for _ in range(50):
                async with client.mutex("x"):
                    before = value[0]
                    await asyncio.sleep(0)
                    value[0] = before + 1

        await asyncio.gather(*(count() for _ in range(8)))
        assert value == [400]

    asyncio.run(main())


def test_a_task_that_is_cancelled_at_any_moment_leaks_no_lock(client):
    """The story of redis-py#3847: a task cancelled between the grant and its return held the lock for ever."""

    seed = random.randrange(1 << 32)
    print("seed", seed)
    chance = random.Random(seed)

    async def main():
        mutex = client.mutex("x")

        async def work(pause):
            async with client.mutex("x"):
                for _ in range(pause):
                    await asyncio.sleep(0)

        for _ in range(150):
            tasks = [asyncio.ensure_future(work(chance.randrange(3))) for _ in range(4)]
            for _ in range(chance.randrange(6)):
                await asyncio.sleep(0)
            for task in tasks:
                if chance.random() < 0.7:
                    task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            # It is free again: every cancelled task has passed it on.
            async with mutex.lock(timeout=30):
                pass

    asyncio.run(main())


def test_wait_for_that_is_late_or_cancelled_leaks_no_lock(client):
    async def main():
        for n in range(100):
            holder = await client.mutex("x").lock()

            async def free():
                await asyncio.sleep(0.0005 * (n % 4))
                holder.unlock()

            freeing = asyncio.ensure_future(free())
            waiter = asyncio.ensure_future(asyncio.wait_for(client.mutex("x").lock().__aenter__(), 0.001))
            if n % 3 == 0:
                await asyncio.sleep(0.0005)
                waiter.cancel()
            try:
                await waiter
            except (asyncio.TimeoutError, asyncio.CancelledError):
                pass
            else:
                waiter.result().unlock()
            await freeing
            del waiter
            async with client.mutex("x").lock(timeout=30):
                pass

    asyncio.run(main())


def test_a_loop_that_ends_while_tasks_wait_leaves_nothing_behind(client):
    mutex = client.mutex("x")
    mutex.acquire()

    async def main():
        asyncio.ensure_future(client.mutex("x").lock().__aenter__())
        await asyncio.sleep(0.01)

    asyncio.run(main())  # cancels what is left
    mutex.release()
    with mutex.lock(timeout=30):
        pass


def test_permits_are_awaited_and_no_cancellation_leaks_one(client):
    async def main():
        gpus = client.semaphore("gpu", 3)
        async with gpus, gpus.permit(2) as two:
            assert two.permits == 2 and two.state == "held"
            with pytest.raises(LockTimeout):
                await gpus.permit(timeout=0.01)
            for pause in range(20):
                waiting = asyncio.ensure_future(gpus.permit(2).__aenter__())
                for _ in range(pause % 3):
                    await asyncio.sleep(0)
                waiting.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await waiting
        async with gpus.permit(3, timeout=30):
            pass

    asyncio.run(main())


def test_one_lock_is_shared_by_tasks_and_threads(client):
    async def main():
        loop = asyncio.get_running_loop()

        def in_thread():
            with client.mutex("x"):
                return True

        async with client.mutex("x"):
            thread = loop.run_in_executor(None, in_thread)
            await asyncio.sleep(0.02)
            assert not thread.done()
        assert await thread

    asyncio.run(main())


def test_an_upgrade_that_waits_lets_the_loop_run_and_unlocks_when_it_is_cancelled():
    client = lockwright.Client("mem:")  # shared memory has no upgrades
    lock = client.rwlock("x")

    async def main():
        one, two = await lock.read(), await lock.read()
        waiting = asyncio.ensure_future(one.upgrade_async())
        await asyncio.sleep(0)
        assert one.state == "unlocked"  # the upgrade has it
        await two.unlock_async()
        await waiting
        assert one.state == "held" and not one.shared
        one.downgrade()

        two = await lock.read()
        with pytest.raises(LockTimeout):
            await one.upgrade_async(timeout=0.01)
        assert one.state == "held" and one.shared
        waiting = asyncio.ensure_future(one.upgrade_async())
        await asyncio.sleep(0.01)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await two.unlock_async()
        async with lock.write(timeout=10):
            assert one.state == "unlocked"

    asyncio.run(main())
