/* Preloaded into a process, puts its clock and that of all processes it starts CLOCK_AHEAD seconds ahead (CONTRIBUTING.md).

   The time of day and the times of files are ahead; monotonic clocks and the length of waits stay as they are. A deadline
   that is a time of day is passed on as the moment at which the machine's clock shows it. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>
#include <utime.h>

static long ahead(void) {
    static long seconds = -1;
    if (seconds < 0) {
        const char *text = getenv("CLOCK_AHEAD");
        seconds = text ? atol(text) : 0;
    }
    return seconds;
}

#define REAL(name) \
    static __typeof__(&name) real; \
    if (!real) real = (__typeof__(&name))dlsym(RTLD_NEXT, #name)

static int is_time_of_day(clockid_t clock) {
    return clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE || clock == CLOCK_TAI;
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    REAL(clock_gettime);
    int failed = real(clock, now);
    if (!failed && is_time_of_day(clock)) now->tv_sec += ahead();
    return failed;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    REAL(gettimeofday);
    int failed = real(now, zone);
    if (!failed) now->tv_sec += ahead();
    return failed;
}

time_t time(time_t *out) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (out) *out = now.tv_sec;
    return now.tv_sec;
}

/* Return a deadline as the machine's clock shows it. One that is not ahead is monotonic, or made from a clock that a program
   asked the kernel for directly, as the C++ library of some does. */
static const struct timespec *meant(const struct timespec *until, struct timespec *room) {
    struct timespec now;
    syscall(SYS_clock_gettime, CLOCK_REALTIME, &now);
    if (!until || until->tv_sec - now.tv_sec < ahead() / 2) return until;
    *room = *until;
    room->tv_sec -= ahead();
    return room;
}

int pthread_cond_timedwait(pthread_cond_t *restrict condition, pthread_mutex_t *restrict mutex, const struct timespec *restrict until) {
    REAL(pthread_cond_timedwait);
    struct timespec room;
    return real(condition, mutex, meant(until, &room));
}

int pthread_cond_clockwait(pthread_cond_t *restrict condition, pthread_mutex_t *restrict mutex, clockid_t clock,
                           const struct timespec *restrict until) {
    REAL(pthread_cond_clockwait);
    struct timespec room;
    return real(condition, mutex, clock, meant(until, &room));
}

int pthread_mutex_timedlock(pthread_mutex_t *restrict mutex, const struct timespec *restrict until) {
    REAL(pthread_mutex_timedlock);
    struct timespec room;
    return real(mutex, meant(until, &room));
}

int sem_timedwait(sem_t *restrict semaphore, const struct timespec *restrict until) {
    REAL(sem_timedwait);
    struct timespec room;
    return real(semaphore, meant(until, &room));
}

int sem_clockwait(sem_t *restrict semaphore, clockid_t clock, const struct timespec *restrict until) {
    REAL(sem_clockwait);
    struct timespec room;
    return real(semaphore, clock, meant(until, &room));
}

int clock_nanosleep(clockid_t clock, int flags, const struct timespec *until, struct timespec *left) {
    REAL(clock_nanosleep);
    struct timespec room;
    return real(clock, flags, (flags & TIMER_ABSTIME) ? meant(until, &room) : until, left);
}

/* the times of files */

static void shift(struct stat *found) {
    found->st_atim.tv_sec += ahead();
    found->st_mtim.tv_sec += ahead();
    found->st_ctim.tv_sec += ahead();
}

#define STAT(name, parameters, arguments) \
    int name parameters { \
        REAL(name); \
        int failed = real arguments; \
        if (!failed) shift((struct stat *)found); \
        return failed; \
    }

STAT(stat, (const char *restrict path, struct stat *restrict found), (path, found))
STAT(lstat, (const char *restrict path, struct stat *restrict found), (path, found))
STAT(fstat, (int file, struct stat *found), (file, found))
STAT(fstatat, (int base, const char *restrict path, struct stat *restrict found, int flags), (base, path, found, flags))
STAT(stat64, (const char *restrict path, struct stat64 *restrict found), (path, found))
STAT(lstat64, (const char *restrict path, struct stat64 *restrict found), (path, found))
STAT(fstat64, (int file, struct stat64 *found), (file, found))
STAT(fstatat64, (int base, const char *restrict path, struct stat64 *restrict found, int flags), (base, path, found, flags))

int statx(int base, const char *restrict path, int flags, unsigned mask, struct statx *restrict found) {
    REAL(statx);
    int failed = real(base, path, flags, mask, found);
    if (!failed) {
        found->stx_atime.tv_sec += ahead();
        found->stx_mtime.tv_sec += ahead();
        found->stx_ctime.tv_sec += ahead();
        found->stx_btime.tv_sec += ahead();
    }
    return failed;
}

static const struct timespec *unshifted(const struct timespec times[2], struct timespec room[2]) {
    if (!times) return times;
    for (int k = 0; k < 2; k++) {
        room[k] = times[k];
        if (room[k].tv_nsec != UTIME_NOW && room[k].tv_nsec != UTIME_OMIT) room[k].tv_sec -= ahead();
    }
    return room;
}

int utimensat(int base, const char *path, const struct timespec times[2], int flags) {
    REAL(utimensat);
    struct timespec room[2];
    return real(base, path, unshifted(times, room), flags);
}

int futimens(int file, const struct timespec times[2]) {
    REAL(futimens);
    struct timespec room[2];
    return real(file, unshifted(times, room));
}

int utimes(const char *path, const struct timeval times[2]) {
    REAL(utimes);
    struct timeval room[2];
    for (int k = 0; times && k < 2; k++) {
        room[k] = times[k];
        room[k].tv_sec -= ahead();
    }
    return real(path, times ? room : times);
}

int utime(const char *path, const struct utimbuf *times) {
    REAL(utime);
    struct utimbuf room;
    if (times) room = (struct utimbuf){times->actime - ahead(), times->modtime - ahead()};
    return real(path, times ? &room : times);
}
