/* The C interface as its users call it, and as they call it by mistake. Every function is a test; its name says of what. */
#define _GNU_SOURCE
#include "check.h"
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>

enum { THREADS = 4 };
/* How often the tests with threads and processes repeat themselves: the program's argument. */
static int rounds = 500;

static lw_client *opened(const char *address)
{
    lw_client *client = NULL;
    OK(lw_open(address, NULL, &client));
    return client;
}

static lw_lock *named(lw_client *client, const char *name)
{
    lw_lock *lock = NULL;
    OK(lw_lock_new(client, name, &lock));
    return lock;
}

static lw_guard *taken(lw_lock *lock)
{
    lw_guard *guard = NULL;
    OK(lw_lock_acquire(lock, LW_FOREVER, &guard));
    return guard;
}

static void tokens_rise_with_every_grant(const char *address)
{
    lw_client *client = opened(address);
    lw_lock *lock = named(client, "tokens");
    uint64_t before = 0, token = 0;
    for (int i = 0; i < 100; i++) {
        lw_guard *guard = taken(lock);
        lw_state state;
        OK(lw_guard_token(guard, &token));
        CHECK(token > before);
        before = token;
        OK(lw_guard_state(guard, &state));
        CHECK(state == LW_STATE_HELD);
        OK(lw_guard_unlock(guard));
    }
    OK(lw_lock_free(lock));
    OK(lw_client_close(client));
}

static void a_taken_lock_is_busy_for_a_try_and_late_for_a_timeout(const char *address)
{
    lw_client *client = opened(address);
    lw_lock *lock = named(client, "busy");
    lw_guard *guard = taken(lock), *second = NULL;
    CHECK(lw_lock_acquire(lock, 0, &second) == LW_BUSY);
    CHECK(strcmp(lw_last_error(), "the lock is held by another holder") == 0);
    CHECK(lw_lock_acquire(lock, 5, &second) == LW_TIMED_OUT);
    CHECK(lw_lock_acquire_shared(lock, 0, &second) == LW_BUSY);
    CHECK(second == NULL);
    OK(lw_guard_unlock(guard));
    OK(lw_client_settle(client, 10000));
    OK(lw_lock_acquire(lock, 10000, &second));
    OK(lw_guard_unlock(second));
    OK(lw_lock_free(lock));
    OK(lw_client_close(client));
}

static void readers_share_and_writers_do_not(const char *address)
{
    lw_client *client = opened(address);
    lw_lock *lock = named(client, "readers");
    lw_guard *one, *two, *writer;
    bool shared = false;
    OK(lw_lock_acquire_shared(lock, LW_FOREVER, &one));
    OK(lw_lock_acquire_shared(lock, LW_FOREVER, &two));
    OK(lw_guard_is_shared(one, &shared));
    CHECK(shared);
    CHECK(lw_lock_acquire(lock, 0, &writer) == LW_BUSY);
    OK(lw_guard_unlock(one));
    OK(lw_guard_unlock(two));
    OK(lw_lock_acquire(lock, 0, &writer));
    OK(lw_guard_is_shared(writer, &shared));
    CHECK(!shared);
    OK(lw_guard_unlock(writer));
    OK(lw_lock_free(lock));
    OK(lw_client_close(client));
}

static void ranges_that_overlap_wait_and_others_do_not(const char *address)
{
    lw_client *client = opened(address);
    lw_range_lock *lock;
    lw_guard *head, *tail, *middle;
    uint64_t start = 0, end = 0;
    OK(lw_range_lock_new(client, "ranges", &lock));
    OK(lw_range_lock_acquire(lock, 0, 10, LW_FOREVER, &head));
    OK(lw_range_lock_acquire_shared(lock, 10, 20, LW_FOREVER, &tail));
    CHECK(lw_range_lock_acquire(lock, 9, 11, 0, &middle) == LW_BUSY);
    CHECK(lw_range_lock_acquire(lock, 9, 11, 5, &middle) == LW_TIMED_OUT);
    OK(lw_range_lock_acquire_shared(lock, 15, 16, 0, &middle));
    OK(lw_guard_range(middle, &start, &end));
    CHECK(start == 15 && end == 16);
    OK(lw_guard_range(middle, NULL, NULL));
    OK(lw_guard_unlock(middle));
    CHECK(lw_range_lock_acquire(lock, 5, 5, 0, &middle) == LW_BAD_RANGE);
    CHECK(lw_range_lock_acquire_shared(lock, 6, 5, LW_FOREVER, &middle) == LW_BAD_RANGE);
    OK(lw_guard_unlock(head));
    OK(lw_guard_unlock(tail));
    OK(lw_range_lock_free(lock));
    OK(lw_client_close(client));
}

static void a_semaphore_gives_out_so_many_permits_and_no_more(const char *address)
{
    lw_client *client = opened(address);
    lw_semaphore *gpus, *other;
    lw_guard *two, *one, *more = NULL;
    OK(lw_semaphore_new(client, "gpu", 3, &gpus));
    OK(lw_semaphore_acquire(gpus, 2, LW_FOREVER, &two));
    CHECK(lw_semaphore_acquire(gpus, 2, 0, &more) == LW_BUSY);
    CHECK(lw_semaphore_acquire(gpus, 2, 5, &more) == LW_TIMED_OUT);
    OK(lw_client_settle(client, 10000));
    OK(lw_semaphore_acquire(gpus, 1, 10000, &one));
    CHECK(lw_semaphore_acquire(gpus, 1, 0, &more) == LW_BUSY);
    OK(lw_guard_unlock(two));
    OK(lw_semaphore_acquire(gpus, 2, 10000, &two));
    CHECK(lw_guard_range(two, NULL, NULL) == LW_UNSUPPORTED);

    CHECK(lw_semaphore_acquire(gpus, 0, 0, &more) == LW_REFUSED);
    CHECK(lw_semaphore_acquire(gpus, 4, LW_FOREVER, &more) == LW_REFUSED);
    OK(lw_semaphore_new(client, "gpu", 4, &other));
    CHECK(lw_semaphore_acquire(other, 1, 0, &more) == LW_REFUSED);
    OK(lw_semaphore_free(other));
    CHECK(lw_semaphore_new(client, "gpu", 0, &other) == LW_BAD_ARGUMENT);
    CHECK(lw_semaphore_new(client, "", 1, &other) == LW_BAD_NAME);
    CHECK(lw_semaphore_acquire((lw_semaphore *)(void *)client, 1, 0, &more) == LW_BAD_HANDLE);
    CHECK(more == NULL);

    OK(lw_semaphore_free(gpus));
    CHECK(lw_semaphore_free(gpus) == LW_BAD_HANDLE);
    CHECK(lw_semaphore_acquire(gpus, 1, 0, &more) == LW_BAD_HANDLE);
    OK(lw_guard_unlock(one));
    OK(lw_guard_unlock(two));
    OK(lw_client_close(client));
}

struct room {
    lw_semaphore *permits;
    atomic_int inside;
};

static void *enter(void *argument)
{
    struct room *room = (struct room *)argument;
    for (int i = 0; i < rounds; i++) {
        lw_guard *permit;
        OK(lw_semaphore_acquire(room->permits, 1, LW_FOREVER, &permit));
        CHECK(atomic_fetch_add(&room->inside, 1) < 2);
        atomic_fetch_sub(&room->inside, 1);
        OK(lw_guard_unlock(permit));
    }
    return NULL;
}

static void threads_have_no_more_permits_than_there_are(const char *address)
{
    lw_client *client = opened(address);
    struct room room = {NULL, 0};
    pthread_t threads[THREADS];
    OK(lw_semaphore_new(client, "room", 2, &room.permits));
    for (int i = 0; i < THREADS; i++)
        CHECK(pthread_create(&threads[i], NULL, enter, &room) == 0);
    for (int i = 0; i < THREADS; i++)
        CHECK(pthread_join(threads[i], NULL) == 0);
    OK(lw_semaphore_free(room.permits));
    OK(lw_client_close(client));
}

static void a_set_is_taken_whole_or_not_at_all_and_in_the_order_in_which_it_was_filled(const char *address)
{
    lw_client *client = opened(address);
    lw_lock *a = named(client, "set a"), *b = named(client, "set b");
    lw_range_lock *ranges;
    lw_semaphore *permits;
    lw_set *set = NULL;
    lw_guard *guards[4] = {NULL, NULL, NULL, NULL}, *held, *other = NULL;
    uint64_t start = 0, end = 0;
    bool shared = false;
    OK(lw_range_lock_new(client, "set", &ranges));
    OK(lw_semaphore_new(client, "set", 2, &permits));
    OK(lw_set_new(&set));
    OK(lw_set_add(set, b));
    OK(lw_set_add_range(set, ranges, 10, 20));
    OK(lw_set_add_shared(set, a));
    OK(lw_set_add_permits(set, permits, 2));
    CHECK(lw_set_add(set, (lw_lock *)(void *)set) == LW_BAD_HANDLE);
    CHECK(lw_set_add_permits(set, permits, 3) == LW_REFUSED);
    CHECK(lw_set_acquire(set, 0, guards, 3) == LW_BAD_ARGUMENT);
    CHECK(lw_set_acquire(set, 0, NULL, 4) == LW_BAD_ARGUMENT);

    held = taken(a);
    CHECK(lw_set_acquire(set, 0, guards, 4) == LW_BUSY);
    CHECK(lw_set_acquire(set, 5, guards, 4) == LW_TIMED_OUT);
    CHECK(guards[0] == NULL);
    OK(lw_guard_unlock(held));
    OK(lw_client_settle(client, 10000));
    OK(lw_lock_acquire(b, 10000, &other)); /* nothing of the set was kept */
    OK(lw_guard_unlock(other));

    OK(lw_set_acquire(set, 10000, guards, 4));
    OK(lw_guard_is_shared(guards[0], &shared));
    CHECK(!shared);
    OK(lw_guard_range(guards[1], &start, &end));
    CHECK(start == 10 && end == 20);
    OK(lw_guard_is_shared(guards[2], &shared));
    CHECK(shared);
    CHECK(lw_semaphore_acquire(permits, 1, 0, &other) == LW_BUSY);
    CHECK(lw_lock_acquire(b, 0, &other) == LW_BUSY);
    OK(lw_set_free(set));
    CHECK(lw_set_free(set) == LW_BAD_HANDLE);
    CHECK(lw_set_acquire(set, LW_FOREVER, guards, 4) == LW_BAD_HANDLE);
    for (int i = 0; i < 4; i++)
        OK(lw_guard_unlock(guards[i]));

    OK(lw_set_new(&set));
    OK(lw_set_add_range_shared(set, ranges, 0, 5));
    OK(lw_set_add_range(set, ranges, 4, 6));
    CHECK(lw_set_acquire(set, LW_FOREVER, guards, 2) == LW_DUPLICATE);
    OK(lw_set_free(set));
    OK(lw_semaphore_free(permits));
    OK(lw_range_lock_free(ranges));
    OK(lw_lock_free(a));
    OK(lw_lock_free(b));
    OK(lw_client_close(client));
}

struct account {
    lw_lock *from, *to;
    int *balance;
};

/* Takes two locks together, in an order of its own. */
static void *transfer(void *argument)
{
    struct account *account = (struct account *)argument;
    lw_set *both;
    OK(lw_set_new(&both));
    OK(lw_set_add(both, account->from));
    OK(lw_set_add(both, account->to));
    for (int i = 0; i < rounds; i++) {
        lw_guard *guards[2];
        OK(lw_set_acquire(both, LW_FOREVER, guards, 2));
        *account->balance = *account->balance + 1;
        OK(lw_guard_unlock(guards[0]));
        OK(lw_guard_unlock(guards[1]));
    }
    OK(lw_set_free(both));
    return NULL;
}

static void sets_that_name_the_same_locks_in_other_orders_do_not_wait_for_each_other(const char *address)
{
    lw_client *client = opened(address);
    lw_lock *a = named(client, "account a"), *b = named(client, "account b");
    int balance = 0;
    struct account there = {a, b, &balance}, back = {b, a, &balance};
    pthread_t threads[2];
    CHECK(pthread_create(&threads[0], NULL, transfer, &there) == 0);
    CHECK(pthread_create(&threads[1], NULL, transfer, &back) == 0);
    for (int i = 0; i < 2; i++)
        CHECK(pthread_join(threads[i], NULL) == 0);
    CHECK(balance == 2 * rounds);
    OK(lw_lock_free(a));
    OK(lw_lock_free(b));
    OK(lw_client_close(client));
}

static void a_held_lock_is_upgraded_downgraded_and_given_back_in_part(const char *address)
{
    lw_client *client = opened(address);
    lw_lock *lock = named(client, "changes");
    lw_guard *guard, *other, *rest = NULL;
    uint64_t before = 0, after = 0, start = 0, end = 0;
    OK(lw_lock_acquire_shared(lock, LW_FOREVER, &guard));
    OK(lw_lock_acquire_shared(lock, LW_FOREVER, &other));
    CHECK(lw_guard_upgrade(guard, 0) == LW_BUSY);
    CHECK(lw_guard_upgrade(guard, 5) == LW_TIMED_OUT);
    OK(lw_guard_unlock(other));
    OK(lw_guard_token(guard, &before));
    OK(lw_guard_upgrade(guard, LW_FOREVER));
    OK(lw_guard_token(guard, &after));
    CHECK(after > before);
    OK(lw_guard_downgrade(guard));
    CHECK(lw_guard_unlock_part(guard, 0, 1, &rest) == LW_BAD_RANGE);
    CHECK(lw_guard_range(guard, &start, &end) == LW_UNSUPPORTED);
    OK(lw_guard_unlock(guard));

    lw_range_lock *ranges;
    OK(lw_range_lock_new(client, "changes", &ranges));
    OK(lw_range_lock_acquire(ranges, 0, 10, LW_FOREVER, &guard));
    OK(lw_guard_unlock_part(guard, 4, 6, &rest));
    OK(lw_guard_range(guard, &start, &end));
    CHECK(start == 0 && end == 4);
    OK(lw_guard_range(rest, &start, &end));
    CHECK(start == 6 && end == 10);
    OK(lw_guard_unlock(rest));
    OK(lw_guard_unlock_part(guard, 0, 1, &rest));
    CHECK(rest == NULL);
    OK(lw_guard_unlock(guard));
    OK(lw_range_lock_free(ranges));
    OK(lw_lock_free(lock));
    OK(lw_client_close(client));
}

static void a_guard_outlives_its_lock_and_its_client(const char *address)
{
    lw_client *client = opened(address);
    lw_lock *lock = named(client, "outlives");
    lw_guard *guard = taken(lock);
    lw_client *other = opened(address);
    lw_lock *same = named(other, "outlives");
    lw_guard *second;
    uint64_t token;
    OK(lw_client_close(client));
    OK(lw_lock_free(lock));
    OK(lw_guard_token(guard, &token));
    if (strcmp(address, "mem:") != 0) /* in which every client has a space of its own */
        CHECK(lw_lock_acquire(same, 0, &second) == LW_BUSY);
    OK(lw_guard_unlock(guard));
    OK(lw_lock_acquire(same, LW_FOREVER, &second));
    OK(lw_guard_unlock(second));
    OK(lw_lock_free(same));
    OK(lw_client_close(other));
}

static void what_is_gone_null_or_of_another_type_is_refused(const char *address)
{
    lw_client *client = opened(address);
    lw_lock *lock = named(client, "gone");
    lw_guard *guard = taken(lock), *second = NULL;
    lw_range_lock *ranges = NULL;
    uint64_t token;
    lw_state state;

    OK(lw_guard_unlock(guard));
    CHECK(lw_guard_unlock(guard) == LW_BAD_HANDLE);
    CHECK(lw_guard_token(guard, &token) == LW_BAD_HANDLE);
    CHECK(lw_guard_state(guard, &state) == LW_BAD_HANDLE);
    CHECK(lw_guard_upgrade(guard, 0) == LW_BAD_HANDLE);
    CHECK(strlen(lw_last_error()) > 0);
    guard = taken(lock); /* in the same slot */
    CHECK(lw_guard_unlock((lw_guard *)lock) == LW_BAD_HANDLE);
    CHECK(lw_guard_unlock((lw_guard *)client) == LW_BAD_HANDLE);
    CHECK(lw_lock_free((lw_lock *)guard) == LW_BAD_HANDLE);
    CHECK(lw_lock_acquire((lw_lock *)client, 0, &second) == LW_BAD_HANDLE);
    CHECK(lw_guard_unlock((lw_guard *)&token) == LW_BAD_HANDLE);
    OK(lw_guard_unlock(guard));
    OK(lw_lock_free(lock));
    CHECK(lw_lock_free(lock) == LW_BAD_HANDLE);
    CHECK(lw_lock_acquire(lock, LW_FOREVER, &second) == LW_BAD_HANDLE);
    OK(lw_client_close(client));
    CHECK(lw_client_close(client) == LW_BAD_HANDLE);
    CHECK(lw_lock_new(client, "gone", &lock) == LW_BAD_HANDLE);
    CHECK(lw_range_lock_new(client, "gone", &ranges) == LW_BAD_HANDLE);
    CHECK(lw_client_settle(client, 0) == LW_BAD_HANDLE);

    CHECK(lw_client_close(NULL) == LW_BAD_HANDLE);
    CHECK(lw_lock_free(NULL) == LW_BAD_HANDLE);
    CHECK(lw_range_lock_free(NULL) == LW_BAD_HANDLE);
    CHECK(lw_guard_unlock(NULL) == LW_BAD_HANDLE);
    CHECK(lw_guard_downgrade(NULL) == LW_BAD_HANDLE);
    CHECK(lw_guard_on_lost(NULL, NULL, NULL) == LW_BAD_ARGUMENT);
    CHECK(lw_set_new(NULL) == LW_BAD_ARGUMENT);
    CHECK(lw_set_add(NULL, NULL) == LW_BAD_HANDLE);
    CHECK(lw_set_free(NULL) == LW_BAD_HANDLE);
    CHECK(lw_open(NULL, NULL, &client) == LW_BAD_ARGUMENT);
    CHECK(lw_open("mem:", NULL, NULL) == LW_BAD_ARGUMENT);
    CHECK(lw_open("\xff\xfe", NULL, &client) == LW_BAD_ARGUMENT);
    CHECK(lw_open("carrier-pigeon:", NULL, &client) == LW_BAD_ADDRESS);
    CHECK(second == NULL);
}

static void names_and_options_that_cannot_be_are_refused(void)
{
    char long_name[257];
    lw_client *client = opened("mem:"), *other = NULL;
    lw_lock *lock = NULL;
    lw_options options;
    memset(long_name, 'x', sizeof long_name - 1);
    long_name[sizeof long_name - 1] = 0;
    CHECK(lw_lock_new(client, long_name, &lock) == LW_BAD_NAME);
    CHECK(lw_lock_new(client, "", &lock) == LW_BAD_NAME);
    CHECK(lw_lock_new(client, NULL, &lock) == LW_BAD_ARGUMENT);
    CHECK(lw_lock_new(client, "a", NULL) == LW_BAD_ARGUMENT);
    memset(&options, 0, sizeof options);
    CHECK(lw_open("mem:", &options, &other) == LW_BAD_ARGUMENT);
    options.size = sizeof options;
    options.lease_ms = 30000;
    OK(lw_open("mem:", &options, &other));
    OK(lw_client_close(other));
    options.secret = "short";
    CHECK(lw_open("tcp://127.0.0.1:1/a", &options, &other) == LW_BAD_CREDENTIALS);
    options.secret = NULL;
    /* Builds without clusters refuse all that is about etcd. */
    const char *cluster = "cluster://127.0.0.1:1/prod/a";
    options.etcd_cert = "no certificate";
    lw_status refused = lw_open(cluster, &options, &other);
    CHECK(refused == LW_BAD_ARGUMENT || refused == LW_UNSUPPORTED);
    options.etcd_cert = NULL;
    options.etcd_user = "a user without a password";
    refused = lw_open(cluster, &options, &other);
    CHECK(refused == LW_BAD_ARGUMENT || refused == LW_UNSUPPORTED);
    options.etcd_user = NULL;
    options.etcd_roots = "no certificate";
    refused = lw_open(cluster, &options, &other);
    CHECK(refused == LW_BAD_CREDENTIALS || refused == LW_UNSUPPORTED);
    options.etcd_roots = NULL;
    options.timeout_ms = 100;
    CHECK(lw_open("tcp://127.0.0.1:1/a", &options, &other) == LW_DISCONNECTED);
    OK(lw_client_close(client));
}

struct counter {
    lw_lock *lock;
    int value;
};

static void *count(void *argument)
{
    struct counter *counter = (struct counter *)argument;
    for (int i = 0; i < rounds; i++) {
        lw_guard *guard = taken(counter->lock);
        counter->value++;
        OK(lw_guard_unlock(guard));
    }
    return NULL;
}

static void threads_that_share_a_lock_exclude_each_other(const char *address)
{
    lw_client *client = opened(address);
    struct counter counter = {named(client, "threads"), 0};
    pthread_t threads[THREADS];
    for (int i = 0; i < THREADS; i++)
        CHECK(pthread_create(&threads[i], NULL, count, &counter) == 0);
    for (int i = 0; i < THREADS; i++)
        CHECK(pthread_join(threads[i], NULL) == 0);
    CHECK(counter.value == THREADS * rounds);
    OK(lw_lock_free(counter.lock));
    OK(lw_client_close(client));
}

struct race {
    _Atomic(lw_guard *) guard;
    _Atomic(lw_lock *) lock;
    atomic_int unlocked, stop;
};

/* Uses and frees whatever lies there, at the same time as the other threads. */
static void *misuse(void *argument)
{
    struct race *race = (struct race *)argument;
    while (!race->stop) {
        uint64_t token;
        lw_state state;
        lw_guard *guard = race->guard;
        lw_status status = lw_guard_token(guard, &token);
        CHECK(status == LW_OK || status == LW_BAD_HANDLE);
        status = lw_guard_state(guard, &state);
        CHECK(status == LW_OK || status == LW_BAD_HANDLE);
        status = lw_guard_unlock(guard);
        CHECK(status == LW_OK || status == LW_BAD_HANDLE);
        race->unlocked += status == LW_OK;
        status = lw_lock_free(race->lock);
        CHECK(status == LW_OK || status == LW_BAD_HANDLE);
    }
    return NULL;
}

static void of_threads_that_unlock_the_same_guard_one_succeeds(const char *address)
{
    lw_client *client = opened(address);
    struct race race = {NULL, NULL, 0, 0};
    pthread_t threads[THREADS];
    for (int i = 0; i < THREADS; i++)
        CHECK(pthread_create(&threads[i], NULL, misuse, &race) == 0);
    for (int i = 0; i < rounds; i++) {
        lw_lock *lock = named(client, "race");
        race.guard = taken(lock); /* Only after the round before was unlocked. */
        race.lock = lock;
    }
    lw_lock *lock = named(client, "race");
    OK(lw_guard_unlock(taken(lock)));
    race.stop = 1;
    for (int i = 0; i < THREADS; i++)
        CHECK(pthread_join(threads[i], NULL) == 0);
    CHECK(race.unlocked == rounds);
    OK(lw_lock_free(lock));
    OK(lw_client_close(client));
}

static void *fail_in_a_thread(void *argument)
{
    CHECK(strcmp(lw_last_error(), "") == 0);
    CHECK(lw_client_close(NULL) == LW_BAD_HANDLE);
    (void)argument;
    return NULL;
}

static void an_error_is_kept_for_the_thread_that_made_it(void)
{
    lw_client *client = NULL;
    pthread_t thread;
    CHECK(lw_open("nonsense", NULL, &client) == LW_BAD_ADDRESS);
    CHECK(strstr(lw_last_error(), "nonsense") != NULL);
    CHECK(pthread_create(&thread, NULL, fail_in_a_thread, NULL) == 0);
    CHECK(pthread_join(thread, NULL) == 0);
    CHECK(strstr(lw_last_error(), "nonsense") != NULL);
    CHECK(lw_version()[0] >= '0');
}

static int in_child(lw_client *client, lw_lock *lock, lw_guard *guard, const char *address)
{
    lw_guard *other = NULL;
    lw_state state;
    uint64_t token;
    CHECK(lw_lock_acquire(lock, 0, &other) == LW_OTHER_PROCESS);
    CHECK(lw_lock_acquire(lock, LW_FOREVER, &other) == LW_OTHER_PROCESS);
    OK(lw_guard_state(guard, &state));
    CHECK(state == LW_STATE_LOST);
    OK(lw_guard_token(guard, &token));
    CHECK(lw_guard_unlock(guard) == LW_OTHER_PROCESS);
    CHECK(lw_guard_unlock(guard) == LW_BAD_HANDLE);
    OK(lw_lock_free(lock));
    OK(lw_client_close(client));

    lw_client *own = opened(address);
    lw_lock *same = named(own, "forked");
    CHECK(lw_lock_acquire(same, 0, &other) == LW_BUSY);
    OK(lw_lock_free(same));
    OK(lw_client_close(own));
    return 0;
}

static void a_forked_child_cannot_touch_the_locks_of_its_parent(const char *address)
{
    lw_client *client = opened(address);
    lw_lock *lock = named(client, "forked");
    lw_guard *guard = taken(lock);
    lw_state state;
    int status = 0;
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0)
        _exit(in_child(client, lock, guard, address));
    CHECK(waitpid(child, &status, 0) == child);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    OK(lw_guard_state(guard, &state));
    CHECK(state == LW_STATE_HELD);
    OK(lw_guard_unlock(guard));
    OK(lw_lock_free(lock));
    OK(lw_client_close(client));
}

static void processes_exclude_each_other(const char *address)
{
    enum { PROCESSES = 3 };
    const int shared = MAP_SHARED | MAP_ANONYMOUS;
    volatile int *value = (volatile int *)mmap(NULL, sizeof *value, PROT_READ | PROT_WRITE, shared, -1, 0);
    CHECK((void *)value != MAP_FAILED);
    pid_t children[PROCESSES];
    for (int i = 0; i < PROCESSES; i++) {
        children[i] = fork();
        CHECK(children[i] >= 0);
        if (children[i] == 0) {
            lw_client *client = opened(address);
            lw_lock *lock = named(client, "processes");
            for (int round = 0; round < rounds; round++) {
                lw_guard *guard = taken(lock);
                *value = *value + 1;
                OK(lw_guard_unlock(guard));
            }
            _exit(0);
        }
    }
    for (int i = 0; i < PROCESSES; i++) {
        int status = 0;
        CHECK(waitpid(children[i], &status, 0) == children[i]);
        CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    }
    CHECK(*value == PROCESSES * rounds);
    munmap((void *)value, sizeof *value);
}

int main(int argc, char **argv)
{
    if (argc > 1)
        rounds = atoi(argv[1]);
    const char *space = own_space();
    /* A server's, if one is there. */
    const char *addresses[] = {"mem:", space, getenv("LOCKWRIGHT_SERVER")};
    const int count = addresses[2] == NULL ? 2 : 3;
    for (int i = 0; i < count; i++) {
        tokens_rise_with_every_grant(addresses[i]);
        a_taken_lock_is_busy_for_a_try_and_late_for_a_timeout(addresses[i]);
        readers_share_and_writers_do_not(addresses[i]);
        ranges_that_overlap_wait_and_others_do_not(addresses[i]);
        a_semaphore_gives_out_so_many_permits_and_no_more(addresses[i]);
        threads_have_no_more_permits_than_there_are(addresses[i]);
        a_set_is_taken_whole_or_not_at_all_and_in_the_order_in_which_it_was_filled(addresses[i]);
        sets_that_name_the_same_locks_in_other_orders_do_not_wait_for_each_other(addresses[i]);
        a_guard_outlives_its_lock_and_its_client(addresses[i]);
        what_is_gone_null_or_of_another_type_is_refused(addresses[i]);
        threads_that_share_a_lock_exclude_each_other(addresses[i]);
        of_threads_that_unlock_the_same_guard_one_succeeds(addresses[i]);
        a_held_lock_is_upgraded_downgraded_and_given_back_in_part(addresses[i]);
    }
    names_and_options_that_cannot_be_are_refused();
    an_error_is_kept_for_the_thread_that_made_it();
    for (int i = 1; i < count; i++) {
        a_forked_child_cannot_touch_the_locks_of_its_parent(addresses[i]);
        processes_exclude_each_other(addresses[i]);
    }
    forget_space();
    puts("ok");
    return 0;
}
