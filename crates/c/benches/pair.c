/* What a lock and its unlock cost from C, on shared memory, when nobody else wants the lock. Prints nanoseconds. */
#define _GNU_SOURCE
#include "../tests/check.h"
#include <time.h>

enum { PAIRS = 200000, ROUNDS = 9 };

static double now_ns(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec * 1e9 + (double)time.tv_nsec;
}

int main(void)
{
    lw_client *client;
    lw_lock *lock;
    double best = 1e18;
    OK(lw_open(own_space(), NULL, &client));
    OK(lw_lock_new(client, "pair", &lock));
    for (int round = 0; round < ROUNDS; round++) {
        double start = now_ns();
        for (int i = 0; i < PAIRS; i++) {
            lw_guard *guard;
            OK(lw_lock_acquire(lock, LW_FOREVER, &guard));
            OK(lw_guard_unlock(guard));
        }
        double each = (now_ns() - start) / PAIRS;
        best = each < best ? each : best;
    }
    forget_space();
    printf("%.1f\n", best);
    return 0;
}
