/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/bench/bench.h"
#include <errno.h>
#include <math.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>
#include "common/clock.h"
#include "common/file.h"

#define PROGRESS_EVERY_MS 200

/* progress */

void bench_progress_end(struct bench *b)
{
    if (b->said)
        fputs("\r\033[K", stderr);
    b->said = false;
}

void bench_progress(struct bench *b, const char *fmt, ...)
{
    va_list ap;
    int64_t now = clock_ms();
    if (!b->progress || (b->said && now - b->said_ms < PROGRESS_EVERY_MS))
        return;
    fputs("\r\033[K", stderr);
    va_start(ap, fmt);
    vfprintf(stderr, fmt, ap);
    va_end(ap);
    fflush(stderr);
    b->said = true;
    b->said_ms = now;
}

/* ceilings */

static _Noreturn void measure_and_exit(struct bench *b, bool quick, int fd)
{
    struct team *team = NULL;
    struct q_err e = Q_ERR_INIT;
    const struct roofline_options o = {.quick = quick};
    bool ok = team_new(&team, (uint32_t)b->o.threads, true, &e) == Q_OK &&
              roofline_measure(&b->roofline, team, &o, &e) == Q_OK &&
              write(fd, &b->roofline, sizeof b->roofline) == (ssize_t)sizeof b->roofline;
    if (!ok)
        fprintf(stderr, "roofline: %s\n",
                e.code ? e.message : "cannot send the results to the parent process");
    _exit(ok ? 0 : 1);
}

/* The names in the rows are this program's strings: the child has the same at the same places. */
static bool read_all(int fd, void *p, size_t n)
{
    size_t at = 0;
    for (ssize_t got; at < n; at += (size_t)got) {
        got = read(fd, (char *)p + at, n - at);
        if (got < 0 && errno == EINTR)
            got = 0;
        else if (got <= 0)
            return false;
    }
    return true;
}

enum q_code bench_ceilings(struct bench *b, bool quick, struct q_err *e)
{
    int fds[2], status = 0;
    if (!b->o.roofline)
        return Q_OK;
    bench_progress(b, "measuring the peak bandwidth and arithmetic of this machine");
    fflush(NULL);
    if (pipe(fds) != 0)
        return q_fail(e, Q_IO, "roofline: cannot create a pipe: %s", strerror(errno));
    pid_t child = fork();
    if (child == 0)
        measure_and_exit(b, quick, fds[1]);
    close(fds[1]);
    bool ok = child > 0 && read_all(fds[0], &b->roofline, sizeof b->roofline);
    close(fds[0]);
    while (child > 0 && waitpid(child, &status, 0) < 0 && errno == EINTR)
        ;
    bench_progress_end(b);
    if (!ok)
        return q_fail(e, Q_IO,
                      "roofline: the measurement of the peaks failed; --no-roofline skips it");
    b->has_roofline = true;
    b->machine.n_thread = b->roofline.n_thread;
    return Q_OK;
}

/* results */

static void add_number(struct buf *out, const char *key, double value)
{
    buf_printf(out, "\"%s\":", key);
    if (isfinite(value))
        buf_printf(out, "%.6g", value);
    else
        buf_add_str(out, "null");
}

static void add_text(struct buf *out, const char *key, const char *value)
{
    buf_printf(out, "\"%s\":", key);
    buf_add_json_str(out, value, strlen(value));
}

static void separate(struct buf *out)
{
    if (out->len && out->data[out->len - 1] != '{')
        buf_add_char(out, ',');
}

void bench_row_begin(struct bench *b)
{
    buf_add_str(&b->results, b->n_result++ ? ",{" : "{");
}

void bench_row_number(struct bench *b, const char *key, double value)
{
    separate(&b->results);
    add_number(&b->results, key, value);
}

void bench_row_count(struct bench *b, const char *key, uint64_t value)
{
    separate(&b->results);
    buf_printf(&b->results, "\"%s\":%llu", key, (unsigned long long)value);
}

void bench_row_text(struct bench *b, const char *key, const char *value)
{
    separate(&b->results);
    add_text(&b->results, key, value);
}

void bench_row_end(struct bench *b)
{
    buf_add_char(&b->results, '}');
}

void bench_run_number(struct bench *b, const char *key, double value)
{
    separate(&b->run);
    add_number(&b->run, key, value);
}

void bench_run_text(struct bench *b, const char *key, const char *value)
{
    separate(&b->run);
    add_text(&b->run, key, value);
}

enum q_code bench_save(struct bench *b, struct q_err *e)
{
    struct buf all = BUF_INIT;
    const char *path = b->o.json_out;
    enum q_code rc = Q_OK;
    if (!*path)
        return Q_OK;
    buf_add_str(&all, "{\"machine\":");
    machine_json(&all, &b->machine, b->has_roofline ? &b->roofline : NULL);
    buf_printf(&all, ",\"run\":{%s},\"results\":[%s]}\n", buf_str(&b->run), buf_str(&b->results));
    if (b->results.failed || b->run.failed || all.failed)
        rc = q_fail(e, Q_NO_MEMORY, "out of memory for the results");
    else if (!strcmp(path, "-"))
        fwrite(all.data, 1, all.len, stdout);
    else
        rc = file_write(path, all.data, all.len, 0666, e);
    buf_release(&all);
    return rc ? q_wrap(e, "--json") : Q_OK;
}

double bench_peak_rss_mb(void)
{
    struct rusage u;
    return getrusage(RUSAGE_SELF, &u) == 0 ? (double)u.ru_maxrss / 1024 : NAN;
}
