/*
 * Takes a lock that all processes of this user share, works under it, and gives it back.
 *
 *     gcc orders.c $(pkg-config --cflags --libs lockwright) -o orders && ./orders
 */
#include <lockwright.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

/* Ends the program with what the library said, unless all is well. */
static void must(lw_status status, const char *what)
{
    if (status == LW_OK)
        return;
    fprintf(stderr, "orders: %s: %s\n", what, lw_last_error());
    exit(EXIT_FAILURE);
}

/* Called by a thread of the library: this process was stopped for too long, or a user broke the lock. */
static void stop_writing(void *context, lw_lost reason)
{
    (void)reason;
    *(volatile int *)context = 1;
}

int main(int argc, char **argv)
{
    static volatile int lost;
    lw_client *client;
    lw_lock *lock;
    lw_guard *guard;
    uint64_t token;

    must(lw_open(argc > 1 ? argv[1] : "shm:", NULL, &client), "cannot open the space");
    must(lw_lock_new(client, "orders/42", &lock), "cannot name the lock");

    lw_status status = lw_lock_acquire(lock, 5000, &guard);
    if (status == LW_TIMED_OUT) {
        puts("another program has the order; try again later");
        return EXIT_SUCCESS;
    }
    must(status, "cannot lock");
    must(lw_guard_on_lost(guard, stop_writing, (void *)&lost), "cannot watch the lock");

    must(lw_guard_token(guard, &token), "no token");
    printf("alone here; writes carry token %" PRIu64 "\n", token);

    status = lw_guard_unlock(guard);
    if (status == LW_LOST || lost)
        puts("the lock was lost: another program may have written since");
    else
        must(status, "cannot unlock");

    lw_lock_free(lock);
    lw_client_close(client);
    return EXIT_SUCCESS;
}
