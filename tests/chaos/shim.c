/* SPDX-License-Identifier: Apache-2.0
 *
 * Makes file calls below one folder fail: the n-th of them, or all from the n-th on.
 *
 * Preloaded into a process, it stands between Python, SQLite and the C library. A call counts if it
 * names a path below the folder, or a descriptor that leads there. Paths are resolved the way the
 * kernel would begin to: from the folder that a descriptor stands for, or from the working folder.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/types.h>
#include <unistd.h>

static char folder[PATH_MAX];
static size_t folder_length;
static long fail_at = -1, calls;
static int fail_errno, fail_on;
static __thread int inside;
static char last_call[64];

void chaos_arm(const char *path, long at, int error, int goes_on) {
    snprintf(folder, sizeof folder, "%s", path);
    folder_length = strlen(folder);
    fail_at = at;
    fail_errno = error;
    fail_on = goes_on;
    calls = 0;
    last_call[0] = 0;
}

void chaos_disarm(void) { folder_length = 0; }
long chaos_calls(void) { return calls; }
const char *chaos_last(void) { return last_call; }

static int is_below(const char *path) {
    return !strncmp(path, folder, folder_length) &&
           (path[folder_length] == '/' || path[folder_length] == 0);
}

/* Whether `path`, seen from the folder `descriptor`, or the descriptor itself, lies there. */
static int leads_below(int descriptor, const char *path) {
    char link[64], found[2 * PATH_MAX];
    static ssize_t (*real)(const char *, char *, size_t);
    if (!real) real = dlsym(RTLD_NEXT, "readlink");
    snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
    ssize_t length = real(link, found, PATH_MAX - 1);
    if (length < 0) return 0;
    snprintf(found + length, PATH_MAX, "%s%s", path ? "/" : "", path ? path : "");
    return is_below(found);
}

/* Whether this call is to fail. */
static int fails(const char *name, int at, const char *path) {
    if (!folder_length || inside) return 0;
    inside = 1;
    int saved = errno, hit = 0;
    if (path && path[0] == '/')
        hit = is_below(path);
    else if (at >= 0)
        hit = leads_below(at, path);
    if (hit) {
        long number = calls++;
        if (number == fail_at || (fail_on && fail_at >= 0 && number > fail_at)) {
            if (number == fail_at) snprintf(last_call, sizeof last_call, "%s", name);
            inside = 0;
            errno = fail_errno;
            return 1;
        }
    }
    inside = 0;
    errno = saved;
    return 0;
}

#define ON_PATH(type, bad, name, parameters, at, path, arguments)                                  \
    type name parameters {                                                                         \
        static __typeof__(&name) real;                                                             \
        if (!real) real = (__typeof__(&name))dlsym(RTLD_NEXT, #name);                              \
        if (fails(#name, at, path)) return bad;                                                    \
        return real arguments;                                                                     \
    }

static mode_t mode_of(int flags, va_list list) {
    return flags & (O_CREAT | __O_TMPFILE) ? va_arg(list, mode_t) : 0;
}

#define OPEN(name)                                                                                 \
    int name(const char *path, int flags, ...) {                                                   \
        static int (*real)(const char *, int, ...);                                                \
        if (!real) real = dlsym(RTLD_NEXT, #name);                                                 \
        va_list list;                                                                              \
        va_start(list, flags);                                                                     \
        mode_t mode = mode_of(flags, list);                                                        \
        va_end(list);                                                                              \
        if (fails(#name, -1, path)) return -1;                                                     \
        return real(path, flags, mode);                                                            \
    }
#define OPENAT(name)                                                                               \
    int name(int at, const char *path, int flags, ...) {                                           \
        static int (*real)(int, const char *, int, ...);                                           \
        if (!real) real = dlsym(RTLD_NEXT, #name);                                                 \
        va_list list;                                                                              \
        va_start(list, flags);                                                                     \
        mode_t mode = mode_of(flags, list);                                                        \
        va_end(list);                                                                              \
        if (fails(#name, at, path)) return -1;                                                     \
        return real(at, path, flags, mode);                                                        \
    }

OPEN(open)
OPEN(open64)
OPENAT(openat)
OPENAT(openat64)

ON_PATH(int, -1, mkdir, (const char *path, mode_t mode), -1, path, (path, mode))
ON_PATH(int, -1, mkdirat, (int at, const char *path, mode_t mode), at, path, (at, path, mode))
ON_PATH(int, -1, rmdir, (const char *path), -1, path, (path))
ON_PATH(int, -1, unlink, (const char *path), -1, path, (path))
ON_PATH(int, -1, unlinkat, (int at, const char *path, int flags), at, path, (at, path, flags))
ON_PATH(int, -1, rename, (const char *from, const char *to), -1, from, (from, to))
ON_PATH(int, -1, renameat, (int at, const char *from, int other, const char *to), at, from,
        (at, from, other, to))
ON_PATH(int, -1, linkat, (int at, const char *from, int other, const char *to, int flags), at, from,
        (at, from, other, to, flags))
ON_PATH(int, -1, access, (const char *path, int mode), -1, path, (path, mode))
ON_PATH(int, -1, chmod, (const char *path, mode_t mode), -1, path, (path, mode))
ON_PATH(int, -1, stat64, (const char *path, struct stat64 *found), -1, path, (path, found))
ON_PATH(int, -1, lstat64, (const char *path, struct stat64 *found), -1, path, (path, found))
ON_PATH(int, -1, stat, (const char *path, struct stat *found), -1, path, (path, found))
ON_PATH(int, -1, lstat, (const char *path, struct stat *found), -1, path, (path, found))
ON_PATH(int, -1, fstatat64, (int at, const char *path, struct stat64 *found, int flags), at, path,
        (at, path, found, flags))
ON_PATH(int, -1, fstatat, (int at, const char *path, struct stat *found, int flags), at, path,
        (at, path, found, flags))
ON_PATH(int, -1, fstat64, (int file, struct stat64 *found), file, NULL, (file, found))
ON_PATH(int, -1, fstat, (int file, struct stat *found), file, NULL, (file, found))
ON_PATH(int, -1, fchmod, (int file, mode_t mode), file, NULL, (file, mode))
ON_PATH(int, -1, fsync, (int file), file, NULL, (file))
ON_PATH(int, -1, fdatasync, (int file), file, NULL, (file))
ON_PATH(int, -1, flock, (int file, int kind), file, NULL, (file, kind))
ON_PATH(int, -1, ftruncate, (int file, off_t size), file, NULL, (file, size))
ON_PATH(int, -1, ftruncate64, (int file, off64_t size), file, NULL, (file, size))
ON_PATH(int, -1, futimens, (int file, const struct timespec times[2]), file, NULL, (file, times))
ON_PATH(int, -1, utimensat, (int at, const char *path, const struct timespec times[2], int flags), at,
        path, (at, path, times, flags))
ON_PATH(ssize_t, -1, read, (int file, void *data, size_t size), file, NULL, (file, data, size))
ON_PATH(ssize_t, -1, pread64, (int file, void *data, size_t size, off64_t at), file, NULL,
        (file, data, size, at))
ON_PATH(ssize_t, -1, pread, (int file, void *data, size_t size, off_t at), file, NULL,
        (file, data, size, at))
ON_PATH(ssize_t, -1, write, (int file, const void *data, size_t size), file, NULL,
        (file, data, size))
ON_PATH(ssize_t, -1, pwrite64, (int file, const void *data, size_t size, off64_t at), file, NULL,
        (file, data, size, at))
ON_PATH(ssize_t, -1, pwrite, (int file, const void *data, size_t size, off_t at), file, NULL,
        (file, data, size, at))
ON_PATH(DIR *, NULL, opendir, (const char *path), -1, path, (path))
ON_PATH(DIR *, NULL, fdopendir, (int file), file, NULL, (file))
ON_PATH(int, -1, fstatvfs64, (int file, struct statvfs64 *found), file, NULL, (file, found))
ON_PATH(int, -1, statvfs64, (const char *path, struct statvfs64 *found), -1, path, (path, found))

/* The end of a folder and an error look alike but for errno, which the caller has set to 0. */
struct dirent64 *readdir64(DIR *stream) {
    static struct dirent64 *(*real)(DIR *);
    if (!real) real = dlsym(RTLD_NEXT, "readdir64");
    if (fails("readdir64", dirfd(stream), NULL)) return NULL;
    return real(stream);
}
