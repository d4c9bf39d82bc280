/* Shifts the wall clock of a process, and nothing else: preloaded by tests/faults/outside.py.
 *
 * EDGESPEC_CLOCK names a file of eight bytes: the seconds by which the clock is ahead, in the machine's byte order. The
 * file is mapped, so that a change is seen by every process at once. The monotonic clock stays as it is, and so do all
 * waits by it, which are all that CPython and the C++ library use here; `sem_timedwait` waits by the wall clock.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <semaphore.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static int64_t unshifted = 0;
static volatile int64_t *ahead_s = &unshifted;

__attribute__((constructor)) static void map_file(void) {
    const char *name = getenv("EDGESPEC_CLOCK");
    int file = name ? open(name, O_RDONLY | O_CLOEXEC) : -1;
    if (file < 0) abort();

    void *mapped = mmap(NULL, sizeof *ahead_s, PROT_READ, MAP_SHARED, file, 0);
    close(file);
    if (mapped == MAP_FAILED) abort();
    ahead_s = mapped;
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    static int (*real)(clockid_t, struct timespec *);
    if (!real) real = dlsym(RTLD_NEXT, "clock_gettime");

    int result = real(clock, now);
    if (!result && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) now->tv_sec += *ahead_s;
    return result;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    struct timespec precise;
    (void)zone;
    clock_gettime(CLOCK_REALTIME, &precise);
    now->tv_sec = precise.tv_sec;
    now->tv_usec = precise.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *stored) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (stored) *stored = now.tv_sec;
    return now.tv_sec;
}

int sem_timedwait(sem_t *restrict semaphore, const struct timespec *restrict until) {
    static int (*real)(sem_t *, const struct timespec *);
    if (!real) real = dlsym(RTLD_NEXT, "sem_timedwait");

    struct timespec kernel = *until;
    kernel.tv_sec -= *ahead_s;
    return real(semaphore, &kernel);
}
