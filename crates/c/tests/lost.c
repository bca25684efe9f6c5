/*
 * A guard whose lock is taken away hears of it. Run as `lost SPACE`: takes the lock `lost`, prints its token, and waits for
 * another process to break it.
 */
#include "check.h"
#include <inttypes.h>
#include <string.h>

static volatile int heard = -1;

static void lost(void *context, lw_lost reason)
{
    CHECK(strcmp((const char *)context, "context") == 0);
    heard = (int)reason;
}

int main(int argc, char **argv)
{
    lw_client *client;
    lw_lock *lock;
    lw_guard *guard;
    lw_state state = LW_STATE_HELD;
    uint64_t token;
    static char context[] = "context";
    CHECK(argc == 2);
    OK(lw_open(argv[1], NULL, &client));
    OK(lw_lock_new(client, "lost", &lock));
    OK(lw_lock_acquire(lock, LW_FOREVER, &guard));
    CHECK(lw_guard_on_lost(guard, NULL, NULL) == LW_BAD_ARGUMENT);
    OK(lw_guard_on_lost(guard, lost, context));
    OK(lw_guard_token(guard, &token));
    printf("%" PRIu64 "\n", token);
    fflush(stdout);
    for (int tenths = 0; heard < 0 && tenths < 600; tenths++)
        usleep(100000);
    CHECK(heard == (int)LW_LOST_BROKEN);
    OK(lw_guard_state(guard, &state));
    CHECK(state == LW_STATE_LOST);
    CHECK(lw_guard_unlock(guard) == LW_LOST);
    CHECK(lw_guard_unlock(guard) == LW_BAD_HANDLE);
    OK(lw_lock_free(lock));
    OK(lw_client_close(client));
    puts("ok");
    return 0;
}
