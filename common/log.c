/* SPDX-License-Identifier: Apache-2.0 */
#include "common/log.h"
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include "common/buf.h"
#include "common/clock.h"

#define LINE_MAX_BYTES 2048

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

void log_line(enum log_level level, const char *fmt, ...)
{
    if (!log_enabled(level))
        return;
    char message[LINE_MAX_BYTES];
    char line[3 * LINE_MAX_BYTES + 256]; /* JSON escapes make a text longer */
    char stamp[40];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(message, sizeof message, fmt, ap);
    va_end(ap);
    q_shorten(message, sizeof message); /* no incomplete character at its end */
    make_printable(message);
    clock_iso8601(stamp, sizeof stamp);
    int n;
    if (log_state.json) {
        struct buf b = BUF_INIT;
        buf_add_json_str(&b, message, strlen(message));
        n = snprintf(
            line, sizeof line,
            "{\"time\":\"%s\",\"level\":\"%s\",\"component\":\"%s\",\"pid\":%ld,\"message\":%s}\n",
            stamp, names[level], log_state.component, (long)getpid(), buf_str(&b));
        buf_release(&b);
    } else {
        n = snprintf(line, sizeof line, "%s %-7s %s: %s\n", stamp, names[level],
                     log_state.component, message);
    }
    if (n >= (int)sizeof line) {
        n = (int)sizeof line - 1;
        line[n - 1] = '\n';
    }
    ssize_t ignored = write(STDERR_FILENO, line, (size_t)n);
    (void)ignored; /* nowhere left to report it */
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
