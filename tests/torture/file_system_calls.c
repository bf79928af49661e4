/* Preloaded into a process: counts its calls that change files, and at one of them kills the process or fails.

   Calls are those of libc, by whatever library they are made. Of writes only those to regular files count. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

enum action { NOTHING, COUNT, KILL, FAIL, FULL };
/* What a call does: takes space, changes without taking any, removes, or reads. */
enum kind { TAKES, CHANGES, REMOVES, READS };

static atomic_int action = NOTHING;
static atomic_long calls, chosen;
static atomic_int error_number;
static atomic_int is_full;

void faults_arm(int what, long number, int error) {
    calls = 0;
    is_full = 0;
    chosen = number;
    error_number = error;
    action = what;
}

long faults_disarm(void) {
    action = NOTHING;
    return calls;
}

static int is_counted(enum kind kind) {
    switch (action) {
    case COUNT: case KILL: return kind != READS;
    case FAIL: return kind == TAKES || kind == CHANGES;
    case FULL: return kind == TAKES;
    default: return 0;
    }
}

/* 0 to go on, 1 to fail, 2 to do a half first. */
static int is_struck(enum kind kind) {
    if (!is_counted(kind))
        return 0;
    if (is_full)
        return 1;
    if (atomic_fetch_add(&calls, 1) + 1 != chosen || action == COUNT)
        return 0;
    if (action == FULL)
        is_full = 1;
    return 2;
}

static void die(void) {
    kill(getpid(), SIGKILL);
    for (;;)
        pause();
}

static int is_regular(int file) {
    struct stat about;
    int before = errno;
    int regular = fstat(file, &about) == 0 && S_ISREG(about.st_mode);
    errno = before;
    return regular;
}

static enum kind kind_of_opening(int folder, const char *path, int flags) {
    int before = errno;
    int is_new = (flags & O_CREAT) && faccessat(folder, path, F_OK, 0) != 0;
    errno = before;
    return is_new ? TAKES : (flags & O_TRUNC) ? CHANGES : READS;
}

#define REAL(name) \
    static __typeof__(&name) real; \
    if (!real) real = (__typeof__(&name))dlsym(RTLD_NEXT, #name)

#define STRIKE(kind) \
    do { \
        if (action != NOTHING && is_struck(kind)) { \
            if (action == KILL) die(); \
            errno = error_number; \
            return -1; \
        } \
    } while (0)

#define OPENING() \
    mode_t mode = 0; \
    if (flags & (O_CREAT | __O_TMPFILE)) { \
        va_list more; \
        va_start(more, flags); \
        mode = va_arg(more, mode_t); \
        va_end(more); \
    }

int open(const char *path, int flags, ...) {
    REAL(open);
    OPENING()
    if (action != NOTHING) STRIKE(kind_of_opening(AT_FDCWD, path, flags));
    return real(path, flags, mode);
}

int open64(const char *path, int flags, ...) {
    REAL(open64);
    OPENING()
    if (action != NOTHING) STRIKE(kind_of_opening(AT_FDCWD, path, flags));
    return real(path, flags, mode);
}

int openat(int folder, const char *path, int flags, ...) {
    REAL(openat);
    OPENING()
    if (action != NOTHING) STRIKE(kind_of_opening(folder, path, flags));
    return real(folder, path, flags, mode);
}

int openat64(int folder, const char *path, int flags, ...) {
    REAL(openat64);
    OPENING()
    if (action != NOTHING) STRIKE(kind_of_opening(folder, path, flags));
    return real(folder, path, flags, mode);
}

static int is_opening_struck(const char *path, const char *mode) {
    int flags = mode[0] == 'r' ? O_RDONLY : O_CREAT | (mode[0] == 'w' ? O_TRUNC : 0);
    STRIKE(kind_of_opening(AT_FDCWD, path, flags));
    return 0;
}

FILE *fopen(const char *path, const char *mode) {
    REAL(fopen);
    if (action != NOTHING && is_opening_struck(path, mode)) return NULL;
    return real(path, mode);
}

FILE *fopen64(const char *path, const char *mode) {
    REAL(fopen64);
    if (action != NOTHING && is_opening_struck(path, mode)) return NULL;
    return real(path, mode);
}

/* A struck write of several bytes is done by half: before a kill for a torn file, otherwise for a short count, as full
   disks have it, and the next one fails. */
#define WRITING(short_call) \
    if (action != NOTHING && is_regular(file)) { \
        int struck = is_struck(TAKES); \
        if (struck == 2 && count > 1) { \
            ssize_t done = (short_call); \
            if (action == KILL) die(); \
            if (action == FULL) return done; \
            errno = error_number; \
            return -1; \
        } \
        if (struck) { \
            if (action == KILL) die(); \
            errno = error_number; \
            return -1; \
        } \
    }

ssize_t write(int file, const void *data, size_t count) {
    REAL(write);
    WRITING(real(file, data, count / 2))
    return real(file, data, count);
}

ssize_t pwrite(int file, const void *data, size_t count, off_t offset) {
    REAL(pwrite);
    WRITING(real(file, data, count / 2, offset))
    return real(file, data, count, offset);
}

ssize_t pwrite64(int file, const void *data, size_t count, off64_t offset) {
    REAL(pwrite64);
    WRITING(real(file, data, count / 2, offset))
    return real(file, data, count, offset);
}

ssize_t writev(int file, const struct iovec *parts, int count) {
    REAL(writev);
    WRITING(real(file, parts, count / 2))
    return real(file, parts, count);
}

/* Struck by what the call does, and otherwise the call itself. */
#define WRAP(kind, name, parameters, arguments) \
    int name parameters { \
        REAL(name); \
        STRIKE(kind); \
        return real arguments; \
    }

WRAP(CHANGES, ftruncate, (int file, off_t length), (file, length))
WRAP(CHANGES, ftruncate64, (int file, off64_t length), (file, length))
WRAP(CHANGES, fsync, (int file), (file))
WRAP(CHANGES, fdatasync, (int file), (file))
WRAP(CHANGES, rename, (const char *before, const char *after), (before, after))
WRAP(CHANGES, renameat, (int folder, const char *before, int other, const char *after), (folder, before, other, after))
WRAP(CHANGES, chmod, (const char *path, mode_t mode), (path, mode))
WRAP(REMOVES, unlink, (const char *path), (path))
WRAP(REMOVES, unlinkat, (int folder, const char *path, int flags), (folder, path, flags))
WRAP(REMOVES, rmdir, (const char *path), (path))

int mkdir(const char *path, mode_t mode) {
    REAL(mkdir);
    if (action != NOTHING && access(path, F_OK) != 0) STRIKE(TAKES);
    return real(path, mode);
}
