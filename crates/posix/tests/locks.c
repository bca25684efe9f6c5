/* A program that knows nothing of us: what it says of its locks must be what it says with the kernel's. Every function is a
 * story, and prints what it sees of it. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#define NEED(condition) \
    do { \
        if (!(condition)) { \
            printf("line %d: %s: %s\n", __LINE__, #condition, strerror(errno)); \
            exit(1); \
        } \
    } while (0)

static const char *program, *folder;

static const char *path_of(const char *name)
{
    static char path[4096];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return path;
}

static int opened(const char *name, int flags)
{
    int fd = open(path_of(name), flags | O_CREAT, 0600);
    NEED(fd >= 0);
    return fd;
}

/* 0, or the error number. */
static int lock(int fd, int command, short type, off_t start, off_t len)
{
    struct flock asked = {.l_type = type, .l_whence = SEEK_SET, .l_start = start, .l_len = len};
    return fcntl(fd, command, &asked) == 0 ? 0 : errno;
}

static int flocked(int fd, int operation)
{
    return flock(fd, operation) == 0 ? 0 : errno;
}

static const char *number(int error)
{
    return error == 0 ? "0" : strerrorname_np(error);
}

/* What another process sees of a range. */
static void seen(const char *what, const char *name, off_t start, off_t len)
{
    fflush(stdout);
    pid_t us = getpid(), child = fork();
    NEED(child >= 0);
    if (child == 0) {
        int fd = opened(name, O_RDWR);
        struct flock asked = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = start, .l_len = len};
        NEED(fcntl(fd, F_GETLK, &asked) == 0);
        if (asked.l_type == F_UNLCK)
            printf("%s: free, and then %s\n", what, number(lock(fd, F_SETLK, F_WRLCK, start, len)));
        else
            printf("%s: %s %ld %ld, %s, and then %s\n", what, asked.l_type == F_RDLCK ? "read" : "write",
                   (long)asked.l_start, (long)asked.l_len,
                   asked.l_pid == us ? "ours" : asked.l_pid == -1 ? "a description's" : "another's",
                   number(lock(fd, F_SETLK, F_WRLCK, start, len)));
        fflush(stdout);
        _exit(0);
    }
    int status;
    NEED(waitpid(child, &status, 0) == child && status == 0);
}

/* Another process that holds a range until it is told to end. */
static int ends_it = -1;
static pid_t holder;

static void held_elsewhere(const char *name, short type, off_t start, off_t len)
{
    int tell[2], told[2];
    char byte;
    NEED(pipe(tell) == 0 && pipe(told) == 0);
    fflush(stdout);
    holder = fork();
    NEED(holder >= 0);
    if (holder == 0) {
        close(tell[1]);
        close(told[0]);
        int fd = opened(name, O_RDWR);
        NEED(start < 0 ? flock(fd, LOCK_EX) == 0 : lock(fd, F_SETLK, type, start, len) == 0);
        NEED(write(told[1], "h", 1) == 1);
        while (read(tell[0], &byte, 1) < 0 && errno == EINTR)
            ;
        _exit(0);
    }
    close(tell[0]);
    close(told[1]);
    NEED(read(told[0], &byte, 1) == 1);
    close(told[0]);
    ends_it = tell[1];
}

static void ended(void)
{
    close(ends_it);
    NEED(waitpid(holder, NULL, 0) == holder);
}

static volatile sig_atomic_t handled;
static volatile int handler_closes = -1, handler_ends_at = 0;

static void handler(int signal)
{
    (void)signal;
    int error = errno;
    handled = handled + 1;
    if (handled == 1 && handler_closes >= 0)
        close(handler_closes);
    if (handled == handler_ends_at)
        NEED(write(ends_it, "e", 1) == 1);
    errno = error;
}

/* From now on the handler is called again and again, so that it comes while something waits. */
static void disturbed(int flags, int ends_at, int closes)
{
    struct sigaction action = {.sa_handler = handler, .sa_flags = flags};
    struct itimerval often = {{0, 30000}, {0, 30000}};
    handled = 0;
    handler_ends_at = ends_at;
    handler_closes = closes;
    NEED(sigaction(SIGALRM, &action, NULL) == 0 && setitimer(ITIMER_REAL, &often, NULL) == 0);
}

static void undisturbed(void)
{
    struct itimerval never = {{0, 0}, {0, 0}};
    NEED(setitimer(ITIMER_REAL, &never, NULL) == 0);
    signal(SIGALRM, SIG_IGN);
}

static void a_signal_ends_a_wait_unless_its_handler_restarts_calls(void)
{
    int fd = opened("signals", O_RDWR);
    held_elsewhere("signals", F_WRLCK, 0, 10);
    disturbed(0, 0, -1);
    printf("interrupted: %s\n", number(lock(fd, F_SETLKW, F_WRLCK, 5, 10)));
    printf("and of a description: %s\n", number(lock(fd, F_OFD_SETLKW, F_WRLCK, 5, 10)));
    undisturbed();
    printf("handled: %d\n", handled >= 2);
    disturbed(SA_RESTART, 3, -1);
    printf("restarted: %s\n", number(lock(fd, F_SETLKW, F_WRLCK, 5, 10)));
    undisturbed();
    printf("handled: %d\n", handled >= 3);
    ended();
    seen("held", "signals", 0, 100);
    close(fd);
    int whole = opened("flocks", O_RDWR);
    held_elsewhere("flocks", F_WRLCK, -1, 0);
    disturbed(0, 0, -1);
    printf("flock interrupted: %s\n", number(flocked(whole, LOCK_EX)));
    disturbed(SA_RESTART, 3, -1);
    printf("flock restarted: %s\n", number(flocked(whole, LOCK_EX)));
    undisturbed();
    ended();
    close(whole);
}

static void signals_that_are_blocked_or_mean_nothing_end_no_wait(void)
{
    int fd = opened("quiet", O_RDWR);
    sigset_t one;
    sigemptyset(&one);
    sigaddset(&one, SIGALRM);
    held_elsewhere("quiet", F_WRLCK, 0, 10);
    NEED(sigprocmask(SIG_BLOCK, &one, NULL) == 0);
    disturbed(0, 0, -1);
    fflush(stdout);
    pid_t us = getpid(), other = fork();
    NEED(other >= 0);
    if (other == 0) {
        for (int i = 0; i < 5; i++) {
            usleep(20000);
            kill(us, SIGWINCH);
            kill(us, SIGCONT);
        }
        NEED(write(ends_it, "e", 1) == 1);
        _exit(0);
    }
    printf("not interrupted: %s\n", number(lock(fd, F_SETLKW, F_WRLCK, 0, 10)));
    printf("handled: %d\n", (int)handled);
    struct itimerval never = {{0, 0}, {0, 0}};
    NEED(setitimer(ITIMER_REAL, &never, NULL) == 0);
    NEED(sigprocmask(SIG_UNBLOCK, &one, NULL) == 0);
    printf("handled when it is let through: %d\n", (int)handled);
    undisturbed();
    NEED(waitpid(other, NULL, 0) == other);
    ended();
    close(fd);
}

static void a_handler_closes_a_descriptor_during_a_wait(void)
{
    int fd = opened("closing", O_RDWR), other = opened("closing", O_RDWR);
    NEED(lock(fd, F_SETLK, F_WRLCK, 0, 10) == 0);
    held_elsewhere("closing", F_WRLCK, 20, 10);
    disturbed(SA_RESTART, 3, other);
    printf("another is closed: %s\n", number(lock(fd, F_SETLKW, F_WRLCK, 20, 10)));
    undisturbed();
    ended();
    seen("held before", "closing", 0, 10);
    seen("waited for", "closing", 20, 10);
    held_elsewhere("closing", F_WRLCK, 40, 10);
    disturbed(SA_RESTART, 3, fd);
    printf("its own is closed: %s\n", number(lock(fd, F_SETLKW, F_WRLCK, 40, 10)));
    undisturbed();
    kill(holder, SIGKILL);
    ended();
    seen("after", "closing", 0, 0);
}

static void what_closes_a_descriptor_frees_the_locks_and_what_fails_to_does_not(void)
{
    int fd = opened("dup", O_RDWR), other = opened("other", O_RDWR);
    NEED(lock(fd, F_SETLK, F_RDLCK, 3, 4) == 0);
    printf("dup2 of nothing: %s\n", dup2(987, fd) < 0 ? number(errno) : "0");
    printf("dup3 of itself: %s\n", dup3(fd, fd, 0) < 0 ? number(errno) : "0");
    printf("dup2 of itself: %d\n", dup2(fd, fd) == fd);
    seen("still held", "dup", 0, 0);
    printf("dup2 of another: %d\n", dup2(other, fd) == fd);
    seen("no longer", "dup", 0, 0);
    printf("the number is the other's: %s\n", number(lock(fd, F_SETLK, F_WRLCK, 0, 1)));
    seen("so it is", "other", 0, 0);
    close(dup(other));
    seen("a duplicate was closed", "other", 0, 0);
    close(fd);
    close(other);

    FILE *file = fopen(path_of("stream"), "w+");
    NEED(file != NULL && lock(fileno(file), F_SETLK, F_WRLCK, 0, 0) == 0);
    seen("a stream's", "stream", 0, 0);
    file = freopen("/dev/null", "w", file);
    NEED(file != NULL);
    seen("reopened", "stream", 0, 0);
    fclose(file);
    file = fopen(path_of("stream"), "w+");
    NEED(file != NULL && lock(fileno(file), F_SETLK, F_WRLCK, 0, 0) == 0);
    fclose(file);
    seen("closed", "stream", 0, 0);

    int range = opened("range", O_RDWR);
    NEED(lock(range, F_SETLK, F_WRLCK, 0, 0) == 0);
    NEED(close_range((unsigned)range, (unsigned)range, 0) == 0);
    seen("close_range", "range", 0, 0);
}

static void a_number_that_was_closed_unseen_is_that_of_the_new_file(void)
{
    for (int how = 0; how < 3; how++) {
        int fd = opened("old", O_RDWR), source = opened("new", O_RDWR), again = -1;
        NEED(lock(fd, F_SETLK, F_WRLCK, 0, 10) == 0);
        NEED(syscall(SYS_close, fd) == 0);
        if (how == 0)
            again = opened("new", O_RDWR);
        else if (how == 1)
            again = fcntl(source, F_DUPFD, 0);
        else
            again = fileno(fopen(path_of("new"), "r+"));
        NEED(again == fd);
        printf("%d: %s\n", how, number(lock(again, F_SETLK, F_WRLCK, 5, 10)));
        seen("the old one", "old", 0, 0);
        seen("the new one", "new", 0, 0);
        close(again);
        close(source);
    }
}

static void mistakes_have_their_numbers(void)
{
    int fd = opened("mistakes", O_RDWR), reads = opened("mistakes", O_RDONLY), writes = opened("mistakes", O_WRONLY);
    struct flock asked = {.l_type = F_WRLCK, .l_whence = 9};
    printf("closed: %s %s\n", number(lock(987, F_SETLK, F_WRLCK, 0, 1)), number(flocked(987, LOCK_SH)));
    printf("to read, written: %s\n", number(lock(reads, F_SETLK, F_WRLCK, 0, 1)));
    printf("to write, read: %s\n", number(lock(writes, F_SETLK, F_RDLCK, 0, 1)));
    printf("to read, read: %s\n", number(lock(reads, F_SETLK, F_RDLCK, 0, 1)));
    printf("to write, written: %s\n", number(lock(writes, F_SETLK, F_WRLCK, 0, 1)));
    printf("flock of either: %s\n", number(flocked(reads, LOCK_EX | LOCK_NB)));
    printf("whence: %s\n", fcntl(fd, F_SETLK, &asked) < 0 ? number(errno) : "0");
    printf("type: %s\n", number(lock(fd, F_SETLK, 77, 0, 1)));
    printf("before the file: %s\n", number(lock(fd, F_SETLK, F_WRLCK, -5, 1)));
    printf("behind all files: %s\n", number(lock(fd, F_SETLK, F_WRLCK, INT64_MAX, 2)));
    printf("nowhere: %s\n", fcntl(fd, F_SETLK, NULL) < 0 ? number(errno) : "0");
    printf("asks for nothing: %s\n", number(lock(fd, F_GETLK, F_UNLCK, 0, 1)));
    asked = (struct flock){.l_type = F_WRLCK, .l_pid = 1};
    printf("a description's has no process: %s\n", fcntl(fd, F_OFD_SETLK, &asked) < 0 ? number(errno) : "0");
    printf("flock of no kind: %s\n", number(flocked(fd, 16)));
    printf("and of one that is ignored: %s\n", number(flocked(fd, 32 | LOCK_EX)));
    printf("lockf of no kind: %s\n", lockf(fd, 99, 0) < 0 ? number(errno) : "0");
    close(fd);
    close(reads);
    close(writes);
}

static void descriptions_are_owners_of_their_own(void)
{
    int one = opened("descriptions", O_RDWR), two = opened("descriptions", O_RDWR), same = dup(one);
    printf("one: %s\n", number(lock(one, F_OFD_SETLK, F_WRLCK, 0, 10)));
    printf("two: %s\n", number(lock(two, F_OFD_SETLK, F_RDLCK, 5, 1)));
    printf("one's duplicate: %s\n", number(lock(same, F_OFD_SETLK, F_RDLCK, 5, 1)));
    printf("the process: %s\n", number(lock(two, F_SETLK, F_WRLCK, 0, 1)));
    seen("another process", "descriptions", 0, 1);
    close(one);
    seen("a duplicate is left", "descriptions", 0, 1);
    close(same);
    seen("none is left", "descriptions", 0, 1);
    close(two);

    int first = opened("flock", O_RDWR), second = opened("flock", O_RDWR), third = dup(first);
    printf("shared: %s\n", number(flocked(first, LOCK_SH)));
    printf("and again: %s\n", number(flocked(second, LOCK_SH)));
    printf("to be alone: %s\n", number(flocked(first, LOCK_EX | LOCK_NB)));
    printf("the other one then is: %s\n", number(flocked(second, LOCK_EX | LOCK_NB)));
    printf("by the duplicate: %s\n", number(flocked(third, LOCK_SH | LOCK_NB)));
    close(second);
    printf("after it was closed: %s\n", number(flocked(third, LOCK_EX | LOCK_NB)));
    close(first);
    second = opened("flock", O_RDWR);
    printf("a duplicate keeps it: %s\n", number(flocked(second, LOCK_SH | LOCK_NB)));
    close(third);
    printf("until that is closed: %s\n", number(flocked(second, LOCK_SH | LOCK_NB)));
    printf("records do not mind: %s\n", number(lock(second, F_SETLK, F_WRLCK, 0, 0)));
    close(second);
}

static void a_child_has_none_of_its_parents_locks(void)
{
    int fd = opened("forked", O_RDWR), status;
    NEED(lock(fd, F_SETLK, F_WRLCK, 0, 10) == 0);
    fflush(stdout);
    pid_t child = fork();
    NEED(child >= 0);
    if (child == 0) {
        struct flock asked = {.l_type = F_RDLCK, .l_whence = SEEK_SET, .l_start = 9, .l_len = 1};
        NEED(fcntl(fd, F_GETLK, &asked) == 0);
        printf("it is the parent's: %d\n", asked.l_pid == getppid() && asked.l_start == 0 && asked.l_len == 10);
        printf("and not the child's: %s\n", number(lock(fd, F_SETLK, F_RDLCK, 9, 1)));
        printf("who has others: %s\n", number(lock(fd, F_SETLK, F_WRLCK, 10, 1)));
        printf("nor can it give it back: %s\n", number(lock(fd, F_SETLK, F_UNLCK, 0, 0)));
        close(fd);
        fflush(stdout);
        _exit(0);
    }
    NEED(waitpid(child, &status, 0) == child && status == 0);
    seen("after the child", "forked", 0, 0);
    NEED(system("true") == 0);
    seen("after a command", "forked", 0, 0);
    close(fd);
}

static void *locks_too(void *fd)
{
    return (void *)number(lock(*(int *)fd, F_SETLK, F_RDLCK, 0, 5));
}

static void threads_are_one_owner(void)
{
    int fd = opened("threads", O_RDWR);
    void *said;
    pthread_t thread;
    NEED(lock(fd, F_SETLK, F_WRLCK, 0, 10) == 0);
    NEED(pthread_create(&thread, NULL, locks_too, &fd) == 0 && pthread_join(thread, &said) == 0);
    printf("another thread: %s\n", (const char *)said);
    seen("as it left it", "threads", 0, 5);
    seen("the rest", "threads", 5, 5);
    close(fd);
}

static void lockf_is_where_the_descriptor_is(void)
{
    int fd = opened("lockf", O_RDWR);
    NEED(lseek(fd, 10, SEEK_SET) == 10);
    printf("%d\n", lockf(fd, F_LOCK, -5));
    seen("before it", "lockf", 0, 0);
    printf("%d\n", lockf(fd, F_TLOCK, 0));
    seen("all behind", "lockf", 0, 0);
    printf("%d\n", lockf(fd, F_ULOCK, 10));
    seen("but for ten", "lockf", 10, 0);
    for (int write = 0; write < 2; write++) {
        held_elsewhere("lockf", write ? F_WRLCK : F_RDLCK, 12, 1);
        printf("tested: %s, ", lockf(fd, F_TEST, 5) < 0 ? number(errno) : "0");
        printf("tried: %s\n", lockf(fd, F_TLOCK, 5) < 0 ? number(errno) : "0");
        printf("beside it: %d\n", lockf(fd, F_TEST, 2));
        ended();
    }
    close(fd);
}

/* What the library cannot give, or not as the kernel does. */
static void what_differs(void)
{
    int fd = opened("inherited", O_RDWR), status;
    fflush(stdout);
    pid_t child = fork();
    NEED(child >= 0);
    if (child == 0) {
        printf("inherited, flock: %s\n", number(flocked(fd, LOCK_EX | LOCK_NB)));
        printf("inherited, of its description: %s\n", number(lock(fd, F_OFD_SETLK, F_WRLCK, 0, 1)));
        printf("inherited, of the process: %s\n", number(lock(fd, F_SETLK, F_WRLCK, 2, 1)));
        fflush(stdout);
        _exit(0);
    }
    NEED(waitpid(child, &status, 0) == child && status == 0);
    close(fd);

    fd = opened("raw", O_RDWR);
    NEED(lock(fd, F_SETLK, F_WRLCK, 0, 1) == 0 && syscall(SYS_close, fd) == 0);
    seen("closed past libc", "raw", 0, 0);

    int told[2];
    char byte;
    NEED(pipe(told) == 0);
    child = fork();
    NEED(child >= 0);
    if (child == 0) {
        char number[16];
        snprintf(number, sizeof number, "%d", told[1]);
        fd = opened("executed", O_RDWR);
        NEED(lock(fd, F_SETLK, F_WRLCK, 0, 1) == 0);
        execl(program, program, "executed", number, NULL);
        _exit(1);
    }
    close(told[1]);
    NEED(read(told[0], &byte, 1) == 1);
    const char *tenths = getenv("TENTHS_AFTER_EXEC");
    for (int left = tenths ? atoi(tenths) : 3; left > 0; left--) {
        fd = opened("executed", O_RDWR);
        int error = lock(fd, F_SETLK, F_WRLCK, 0, 1);
        close(fd);
        if (error == 0)
            break;
        usleep(100000);
    }
    seen("some time after exec", "executed", 0, 0);
    kill(child, SIGKILL);
    NEED(waitpid(child, NULL, 0) == child);
}

int main(int argc, char **argv)
{
    NEED(argc == 3);
    if (strcmp(argv[1], "executed") == 0) {
        NEED(write(atoi(argv[2]), "x", 1) == 1);
        pause();
    }
    program = argv[0];
    folder = argv[2];
    if (strcmp(argv[1], "differs") == 0) {
        what_differs();
        return 0;
    }
#define STORY(name) (printf("== %s\n", #name), name())
    STORY(mistakes_have_their_numbers);
    STORY(what_closes_a_descriptor_frees_the_locks_and_what_fails_to_does_not);
    STORY(a_number_that_was_closed_unseen_is_that_of_the_new_file);
    STORY(descriptions_are_owners_of_their_own);
    STORY(a_child_has_none_of_its_parents_locks);
    STORY(threads_are_one_owner);
    STORY(lockf_is_where_the_descriptor_is);
    STORY(a_signal_ends_a_wait_unless_its_handler_restarts_calls);
    STORY(signals_that_are_blocked_or_mean_nothing_end_no_wait);
    STORY(a_handler_closes_a_descriptor_during_a_wait);
    return 0;
}
