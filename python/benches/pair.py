"""What a lock and its unlock cost from Python when nobody else wants the lock: ours on shared memory, filelock's, and
redis-py's with a server on this host. Prints a table, and says whether the claims hold. Needs filelock, redis and redis-server;
what is missing is left out.
"""

import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time

import lockwright


def best(lock, pairs, rounds=9):
    """Nanoseconds of a pair, in the best of some rounds."""
    seen = []
    for _ in range(rounds):
        start = time.perf_counter()
        for _ in range(pairs):
            with lock:
                pass
        seen.append((time.perf_counter() - start) / pairs * 1e9)
    return min(seen)


def of_filelock(folder):
    import filelock

    return best(filelock.FileLock(os.path.join(folder, "pair.lock")), 2000)


def of_redis(folder):
    import redis

    program = shutil.which("redis-server")
    if not program:
        raise ImportError("there is no redis-server")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    options = ["--port", str(port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--dir", folder]
    server = subprocess.Popen([program, *options], stdout=subprocess.DEVNULL)
    try:
        client = redis.Redis(port=port)
        for _ in range(100):
            try:
                client.ping()
                break
            except redis.ConnectionError:
                time.sleep(0.1)
        return best(client.lock("pair", timeout=30), 1000)
    finally:
        server.terminate()
        server.wait()


def main():
    path = f"/dev/shm/lockwright-pair-{os.getpid()}"
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        ours = best(lockwright.Client(f"shm:{path}").mutex("pair"), 50000)
        os.unlink(path)
        print(f"{'lockwright, shm:':24}{ours:12.0f} ns")
        print(f"{'threading.Lock':24}{best(threading.Lock(), 50000):12.0f} ns  (one process only)")
        held = True
        for name, measure, wanted in (("filelock", of_filelock, 3), ("redis-py", of_redis, 20)):
            try:
                theirs = measure(folder)
            except ImportError as error:
                print(f"{name:24}     left out: {error}")
                continue
            ratio = theirs / ours
            verdict = "ok" if ratio >= wanted else "MISS"
            held = held and ratio >= wanted
            print(f"{name:24}{theirs:12.0f} ns  {ratio:6.1f}x, at least {wanted}x claimed: {verdict}")
    return 0 if held else 1


if __name__ == "__main__":
    sys.exit(main())
