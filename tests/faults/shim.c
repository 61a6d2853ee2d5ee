/* Makes the file calls of one process fail, crawl, stop or kill it, as the environment says; loaded by LD_PRELOAD.
 *
 *   SHIM_READ, SHIM_WRITE, SHIM_FSYNC, SHIM_LINK, SHIM_RENAME, SHIM_FLOCK, SHIM_UNLINK hold words, separated by commas:
 *     match=TEXT    only calls on a file whose path holds TEXT
 *     after=N       from the N-th byte on (READ, WRITE), or from the N-th call on (the others)
 *     errno=N       fail with this errno
 *     delay=N       sleep N microseconds first
 *     short=N       do at most N bytes
 *     hold=DIR      create DIR/reached, once, and wait until DIR/go is there
 *   SHIM_FREE=N     statvfs says that N blocks are free (of N blocks in all)
 *   SHIM_KILL=N     SIGKILL before the N-th call that changes something (from 0)
 *   SHIM_LOG=FILE   one line for each such call
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

struct rule {
    int on, error, held;
    long long after, seen;
    useconds_t delay;
    size_t cut;
    char match[512], hold[512];
};

static struct rule reads, writes, syncs, links, renames, flocks, unlinks;
static long long kill_at = -1, changes = 0, free_blocks = -1;
static const char *log_path;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

static void parse(struct rule *rule, const char *variable)
{
    const char *text = getenv(variable);
    char copy[2048], *word, *rest = NULL;
    if (text == NULL)
        return;
    rule->on = 1;
    snprintf(copy, sizeof copy, "%s", text);
    for (word = strtok_r(copy, ",", &rest); word != NULL; word = strtok_r(NULL, ",", &rest)) {
        char *value = strchr(word, '=');
        if (value == NULL)
            continue;
        *value++ = '\0';
        if (strcmp(word, "match") == 0)
            snprintf(rule->match, sizeof rule->match, "%s", value);
        else if (strcmp(word, "hold") == 0)
            snprintf(rule->hold, sizeof rule->hold, "%s", value);
        else if (strcmp(word, "after") == 0)
            rule->after = atoll(value);
        else if (strcmp(word, "errno") == 0)
            rule->error = atoi(value);
        else if (strcmp(word, "delay") == 0)
            rule->delay = (useconds_t)atoll(value);
        else if (strcmp(word, "short") == 0)
            rule->cut = (size_t)atoll(value);
    }
}

__attribute__((constructor)) static void begin(void)
{
    const char *text;
    parse(&reads, "SHIM_READ");
    parse(&writes, "SHIM_WRITE");
    parse(&syncs, "SHIM_FSYNC");
    parse(&links, "SHIM_LINK");
    parse(&renames, "SHIM_RENAME");
    parse(&flocks, "SHIM_FLOCK");
    parse(&unlinks, "SHIM_UNLINK");
    if ((text = getenv("SHIM_KILL")) != NULL)
        kill_at = atoll(text);
    if ((text = getenv("SHIM_FREE")) != NULL)
        free_blocks = atoll(text);
    log_path = getenv("SHIM_LOG");
}

static const char *path_of(int fd, char *buffer, size_t size)
{
    char link[64];
    ssize_t length;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    length = readlink(link, buffer, size - 1);
    buffer[length < 0 ? 0 : length] = '\0';
    return buffer;
}

static void wait_for(const char *folder)
{
    char path[600];
    int fd;
    snprintf(path, sizeof path, "%s/reached", folder);
    fd = REAL(open)(path, O_WRONLY | O_CREAT, 0666);
    if (fd >= 0)
        close(fd);
    snprintf(path, sizeof path, "%s/go", folder);
    while (access(path, F_OK) != 0)
        usleep(2000);
}

/* Apply a rule to a call on `path` for `size` bytes (1 where a call is the unit). Returns the errno to fail with, or 0;
 * `allowed` is how many bytes may be done. */
static int apply(struct rule *rule, const char *path, size_t size, size_t *allowed)
{
    int due, hold = 0;
    *allowed = size;
    if (!rule->on || (rule->match[0] && strstr(path, rule->match) == NULL))
        return 0;
    pthread_mutex_lock(&lock);
    due = rule->seen + (long long)size > rule->after;
    if (rule->error && due && rule->seen < rule->after) { /* up to the limit, as a disk does */
        *allowed = (size_t)(rule->after - rule->seen);
        due = 0;
    }
    rule->seen += (long long)*allowed;
    if (due && rule->hold[0] && !rule->held)
        hold = rule->held = 1;
    pthread_mutex_unlock(&lock);
    if (hold)
        wait_for(rule->hold);
    if (due && rule->delay)
        usleep(rule->delay);
    if (rule->cut && *allowed > rule->cut)
        *allowed = rule->cut;
    return due ? rule->error : 0;
}

/* A call that changes something is about to happen. */
static void change(const char *what, const char *path)
{
    long long number;
    if (kill_at < 0 && log_path == NULL)
        return;
    pthread_mutex_lock(&lock);
    number = changes++;
    if (log_path != NULL) {
        char line[700];
        int fd = REAL(open)(log_path, O_WRONLY | O_CREAT | O_APPEND, 0666);
        int length = snprintf(line, sizeof line, "%s %s\n", what, path);
        if (fd >= 0) {
            if (REAL(write)(fd, line, (size_t)length) < 0)
                abort();
            close(fd);
        }
    }
    pthread_mutex_unlock(&lock);
    if (number == kill_at) {
        kill(getpid(), SIGKILL);
        pause();
    }
}

/* --- reading and writing ------------------------------------------------------------------------------------------ */

static size_t total(const struct iovec *iov, int count)
{
    size_t sum = 0;
    for (int i = 0; i < count; i++)
        sum += iov[i].iov_len;
    return sum;
}

#define READ_BEGIN(size)                                                                                               \
    char path[4096];                                                                                                   \
    size_t allowed;                                                                                                    \
    int error = reads.on ? apply(&reads, path_of(fd, path, sizeof path), size, &allowed) : (allowed = (size), 0);      \
    if (error) {                                                                                                       \
        errno = error;                                                                                                 \
        return -1;                                                                                                     \
    }

#define WRITE_BEGIN(size)                                                                                              \
    char path[4096];                                                                                                   \
    size_t allowed;                                                                                                    \
    int error;                                                                                                         \
    path_of(fd, path, sizeof path);                                                                                    \
    change("write", path);                                                                                             \
    error = apply(&writes, path, size, &allowed);                                                                      \
    if (error) {                                                                                                       \
        errno = error;                                                                                                 \
        return -1;                                                                                                     \
    }

ssize_t read(int fd, void *data, size_t size)
{
    READ_BEGIN(size)
    return REAL(read)(fd, data, allowed);
}

ssize_t pread(int fd, void *data, size_t size, off_t at)
{
    READ_BEGIN(size)
    return REAL(pread)(fd, data, allowed, at);
}

ssize_t pread64(int fd, void *data, size_t size, off64_t at)
{
    READ_BEGIN(size)
    return REAL(pread64)(fd, data, allowed, at);
}

/* A vector that was cut is done as one plain call on its first buffer: a short count is allowed. */
#define VECTOR_READ(name, offset_type, plain, ...)                                                                     \
    READ_BEGIN(total(iov, count))                                                                                      \
    if (allowed < total(iov, count))                                                                                   \
        return REAL(plain)(fd, iov[0].iov_base, allowed < iov[0].iov_len ? allowed : iov[0].iov_len, at);              \
    return REAL(name)(__VA_ARGS__);

ssize_t preadv(int fd, const struct iovec *iov, int count, off_t at)
{
    VECTOR_READ(preadv, off_t, pread, fd, iov, count, at)
}

ssize_t preadv64(int fd, const struct iovec *iov, int count, off64_t at)
{
    VECTOR_READ(preadv64, off64_t, pread64, fd, iov, count, at)
}

ssize_t preadv2(int fd, const struct iovec *iov, int count, off_t at, int flags)
{
    VECTOR_READ(preadv2, off_t, pread, fd, iov, count, at, flags)
}

ssize_t preadv64v2(int fd, const struct iovec *iov, int count, off64_t at, int flags)
{
    VECTOR_READ(preadv64v2, off64_t, pread64, fd, iov, count, at, flags)
}

ssize_t write(int fd, const void *data, size_t size)
{
    WRITE_BEGIN(size)
    return REAL(write)(fd, data, allowed);
}

ssize_t pwrite(int fd, const void *data, size_t size, off_t at)
{
    WRITE_BEGIN(size)
    return REAL(pwrite)(fd, data, allowed, at);
}

ssize_t pwrite64(int fd, const void *data, size_t size, off64_t at)
{
    WRITE_BEGIN(size)
    return REAL(pwrite64)(fd, data, allowed, at);
}

#define VECTOR_WRITE(name, plain, ...)                                                                                 \
    WRITE_BEGIN(total(iov, count))                                                                                     \
    if (allowed < total(iov, count))                                                                                   \
        return REAL(plain)(fd, iov[0].iov_base, allowed < iov[0].iov_len ? allowed : iov[0].iov_len, at);              \
    return REAL(name)(__VA_ARGS__);

ssize_t pwritev(int fd, const struct iovec *iov, int count, off_t at)
{
    VECTOR_WRITE(pwritev, pwrite, fd, iov, count, at)
}

ssize_t pwritev64(int fd, const struct iovec *iov, int count, off64_t at)
{
    VECTOR_WRITE(pwritev64, pwrite64, fd, iov, count, at)
}

ssize_t pwritev2(int fd, const struct iovec *iov, int count, off_t at, int flags)
{
    VECTOR_WRITE(pwritev2, pwrite, fd, iov, count, at, flags)
}

ssize_t pwritev64v2(int fd, const struct iovec *iov, int count, off64_t at, int flags)
{
    VECTOR_WRITE(pwritev64v2, pwrite64, fd, iov, count, at, flags)
}

/* --- names and durability ----------------------------------------------------------------------------------------- */

#define CALL(rule, what, where, ...)                                                                                   \
    size_t allowed;                                                                                                    \
    int error;                                                                                                         \
    change(what, where);                                                                                               \
    error = apply(&rule, where, 1, &allowed);                                                                          \
    if (error) {                                                                                                       \
        errno = error;                                                                                                 \
        return -1;                                                                                                     \
    }                                                                                                                  \
    return __VA_ARGS__;

int fsync(int fd)
{
    char path[4096];
    path_of(fd, path, sizeof path);
    CALL(syncs, "fsync", path, REAL(fsync)(fd))
}

int fdatasync(int fd)
{
    char path[4096];
    path_of(fd, path, sizeof path);
    CALL(syncs, "fsync", path, REAL(fdatasync)(fd))
}

int link(const char *from, const char *to)
{
    CALL(links, "link", to, REAL(link)(from, to))
}

int linkat(int a, const char *from, int b, const char *to, int flags)
{
    CALL(links, "link", to, REAL(linkat)(a, from, b, to, flags))
}

int rename(const char *from, const char *to)
{
    CALL(renames, "rename", to, REAL(rename)(from, to))
}

int renameat(int a, const char *from, int b, const char *to)
{
    CALL(renames, "rename", to, REAL(renameat)(a, from, b, to))
}

int unlink(const char *path)
{
    CALL(unlinks, "unlink", path, REAL(unlink)(path))
}

int unlinkat(int folder, const char *path, int flags)
{
    CALL(unlinks, "unlink", path, REAL(unlinkat)(folder, path, flags))
}

int flock(int fd, int operation)
{
    char path[4096];
    path_of(fd, path, sizeof path);
    CALL(flocks, "flock", path, REAL(flock)(fd, operation))
}

int mkdir(const char *path, mode_t mode)
{
    change("mkdir", path);
    return REAL(mkdir)(path, mode);
}

#define OPEN(name)                                                                                                     \
    int name(const char *path, int flags, ...)                                                                         \
    {                                                                                                                  \
        va_list arguments;                                                                                             \
        mode_t mode = 0;                                                                                               \
        if (flags & (O_CREAT | O_TMPFILE)) {                                                                           \
            va_start(arguments, flags);                                                                                \
            mode = va_arg(arguments, mode_t);                                                                          \
            va_end(arguments);                                                                                         \
        }                                                                                                              \
        if (flags & O_CREAT)                                                                                           \
            change("create", path);                                                                                    \
        return REAL(name)(path, flags, mode);                                                                          \
    }

OPEN(open)
OPEN(open64)

#define STATVFS(name, type)                                                                                            \
    {                                                                                                                  \
        int result = REAL(name)(target, status);                                                                       \
        if (result == 0 && free_blocks >= 0)                                                                           \
            status->f_blocks = status->f_bfree = status->f_bavail = (fsblkcnt_t)free_blocks;                           \
        return result;                                                                                                 \
    }

int statvfs(const char *target, struct statvfs *status) STATVFS(statvfs, struct statvfs)
int statvfs64(const char *target, struct statvfs64 *status) STATVFS(statvfs64, struct statvfs64)
int fstatvfs(int target, struct statvfs *status) STATVFS(fstatvfs, struct statvfs)
int fstatvfs64(int target, struct statvfs64 *status) STATVFS(fstatvfs64, struct statvfs64)
