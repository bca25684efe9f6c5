"""Every class once, without pytest: what `cargo xtask test` runs. The tests are in the files beside."""

import asyncio
import sys

import lockwright
from lockwright import acquire_all


def blocking(client):
    ranges, gpus = client.range_lock("r"), client.semaphore("gpu", 2)
    with client.mutex("a") as first, client.rwlock("b").read(), ranges.write(0, 9), gpus, gpus.permit():
        token = first.token
        assert first.state == "held" and not gpus.acquire(blocking=False)
        try:
            acquire_all([ranges.read(5, 6), client.mutex("c").lock()], timeout=0.01).wait()
            raise AssertionError("two holders")
        except lockwright.LockTimeout:
            pass
    with client.mutex("a").lock(timeout=30) as second:
        assert second.token > token


async def awaited(client):
    async with client.mutex("a").lock(timeout=30), client.semaphore("gpu", 2).permit(2) as permits:
        assert permits.permits == 2


for address in sys.argv[1:]:
    with lockwright.Client(address) as opened:
        blocking(opened)
        asyncio.run(awaited(opened))
print("ok", lockwright.__version__)
