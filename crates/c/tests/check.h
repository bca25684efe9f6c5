/* What the tests share: a check that says where it failed, and a space of the test's own. */
#ifndef CHECK_H
#define CHECK_H

#include <lockwright.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define CHECK(what)                                                                                      \
    do {                                                                                                 \
        if (!(what)) {                                                                                   \
            fprintf(stderr, "%s:%d: %s (%s)\n", __FILE__, __LINE__, #what, lw_last_error());             \
            _exit(1);                                                                                    \
        }                                                                                                \
    } while (0)

#define OK(call) CHECK((call) == LW_OK)

/* The address of a space in shared memory that nobody else has; gone with `forget_space`. */
static char space_path[128];
static char space_address[160];

static inline const char *own_space(void)
{
    snprintf(space_path, sizeof space_path, "/dev/shm/lockwright-c-test-%d", (int)getpid());
    snprintf(space_address, sizeof space_address, "shm:%s", space_path);
    return space_address;
}

static inline void forget_space(void)
{
    unlink(space_path);
}

#endif
