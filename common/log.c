/* SPDX-License-Identifier: Apache-2.0 */
/* A reader of the log that stands still must not stop the program: a line waits for it for a
 * moment, once in a while, and those that follow are dropped until it reads. The flag O_NONBLOCK of
 * standard error belongs to all processes that share it, so a pipe is opened once more for each
 * line, by its name in /proc; a socket has MSG_DONTWAIT. Lines have at most PIPE_BUF bytes: the
 * kernel takes them whole or not at all. */
#include "common/log.h"
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
#include "common/buf.h"
#include "common/clock.h"

#define LINE_MAX_BYTES 2048
#define WAIT_MS        500 /* for a reader that does not keep up */
#define WAIT_EVERY_MS  10000

static const char *const names[] = {"DEBUG", "INFO", "WARNING", "ERROR"};
static struct {
    const char *component;
    enum log_level level;
    bool json;
} log_state = {"quire", LOG_INFO, false};

void log_setup(const char *component, enum log_level level, bool json)
{
    log_state.component = component;
    log_state.level = level;
    log_state.json = json;
}

enum q_code log_level_parse(enum log_level *out, const char *name, struct q_err *e)
{
    for (int i = 0; i < 4; i++)
        if (strcasecmp(name, names[i]) == 0) {
            *out = (enum log_level)i;
            return Q_OK;
        }
    return q_fail(e, Q_INVALID, "--log-level is \"%.40s\", expected debug, info, warning or error",
                  name);
}

bool log_enabled(enum log_level level)
{
    return level >= log_state.level;
}

static void make_printable(char *s)
{
    for (; *s; s++) {
        bool c1 = *s == '\xc2' && (unsigned char)s[1] >= 0x80 && (unsigned char)s[1] < 0xa0;
        if (c1)
            s[1] = ' ';
        if (c1 || (unsigned char)*s < 0x20 || *s == 0x7f)
            *s = ' ';
    }
}

static atomic_ullong n_dropped; /* lines, since the last one that was written */
static atomic_llong waited_ms;  /* when a line waited last */

/* The line of a message; its length is at most `size`. */
static size_t format_line(char *line, size_t size, enum log_level level, const char *message)
{
    char stamp[40];
    int n;
    clock_iso8601(stamp, sizeof stamp);
    if (log_state.json) {
        struct buf b = BUF_INIT;
        buf_add_json_str(&b, message, strlen(message));
        n = snprintf(
            line, size,
            "{\"time\":\"%s\",\"level\":\"%s\",\"component\":\"%s\",\"pid\":%ld,\"message\":%s}\n",
            stamp, names[level], log_state.component, (long)getpid(), buf_str(&b));
        buf_release(&b);
    } else {
        n = snprintf(line, size, "%s %-7s %s: %s\n", stamp, names[level], log_state.component,
                     message);
    }
    return n < 0 ? 0 : (size_t)n;
}

/* write(2) that does not wait. */
static ssize_t write_pipe(const char *line, size_t n)
{
    const int fd = open("/proc/self/fd/2", O_WRONLY | O_NONBLOCK | O_CLOEXEC | O_NOCTTY | O_APPEND);
    struct pollfd p = {.fd = STDERR_FILENO, .events = POLLOUT};
    if (fd < 0) { /* no /proc, or another user's terminal */
        if (poll(&p, 1, 0) == 1)
            return write(STDERR_FILENO, line, n);
        errno = EAGAIN;
        return -1;
    }
    const ssize_t written = write(fd, line, n);
    const int error = errno;
    close(fd);
    errno = error;
    return written;
}

/* False: the reader does not keep up. */
static bool write_now(const char *line, size_t n)
{
    struct stat st;
    ssize_t written;
    if (fstat(STDERR_FILENO, &st) != 0 || S_ISREG(st.st_mode))
        written = write(STDERR_FILENO, line, n);
    else if (S_ISSOCK(st.st_mode))
        written = send(STDERR_FILENO, line, n, MSG_DONTWAIT | MSG_NOSIGNAL);
    else
        written = write_pipe(line, n);
    return written >= 0 || (errno != EAGAIN && errno != EWOULDBLOCK);
}

static bool write_soon(const char *line, size_t n, bool waits)
{
    struct pollfd p = {.fd = STDERR_FILENO, .events = POLLOUT};
    const int64_t now = clock_ms(), last = atomic_load(&waited_ms);
    if (write_now(line, n))
        return true;
    if (!waits || (last && now - last < WAIT_EVERY_MS))
        return false;
    atomic_store(&waited_ms, now);
    return poll(&p, 1, WAIT_MS) == 1 && write_now(line, n);
}

static bool write_message(enum log_level level, char *message, bool waits)
{
    char line[PIPE_BUF + 1];
    size_t n = format_line(line, sizeof line, level, message);
    while (n >= sizeof line) { /* JSON escapes make a text longer */
        q_shorten(message, strlen(message) / 2 + 1);
        n = format_line(line, sizeof line, level, message);
    }
    return write_soon(line, n, waits);
}

static void report_dropped(void)
{
    char text[160];
    const unsigned long long n = atomic_exchange(&n_dropped, 0);
    if (!n)
        return;
    snprintf(text, sizeof text,
             "%llu log lines were dropped: the reader of standard error did not keep up", n);
    if (!write_message(LOG_WARNING, text, false))
        atomic_fetch_add(&n_dropped, n);
}

void log_line(enum log_level level, const char *fmt, ...)
{
    if (!log_enabled(level))
        return;
    char message[LINE_MAX_BYTES];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(message, sizeof message, fmt, ap);
    va_end(ap);
    q_shorten(message, sizeof message); /* no incomplete character at its end */
    make_printable(message);
    report_dropped();
    if (atomic_load(&n_dropped) || !write_message(level, message, true))
        atomic_fetch_add(&n_dropped, 1);
}

bool log_ratelimit(int64_t *last_ms, uint64_t *n_skipped, int64_t interval_ms)
{
    int64_t now = clock_ms();
    if (*last_ms && now - *last_ms < interval_ms) {
        ++*n_skipped;
        return false;
    }
    *last_ms = now;
    return true;
}
