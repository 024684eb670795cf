/* SPDX-License-Identifier: Apache-2.0 */
#include "events.h"
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include "common/clock.h"
#include "common/log.h"
#include "common/mem.h"
#include "fake_worker.h"

#define EVENTS_MAX 65536
#define START_US   INT64_C(1000000000) /* 0 means "never" in several places */

struct event {
    int64_t at_us;
    uint64_t order; /* in which it was added */
    event_run *run;
    uint64_t a;
    void *p;
};

static struct event heap[EVENTS_MAX]; /* [n_event] the earliest first */
static uint32_t n_event;
static uint64_t n_added, state;
static int64_t now_us = START_US;
static bool is_log_shown;

static bool before(const struct event *a, const struct event *b)
{
    return a->at_us != b->at_us ? a->at_us < b->at_us : a->order < b->order;
}

void event_add(int64_t after_us, event_run *run, uint64_t a, void *p)
{
    const struct event added = {now_us + after_us, n_added++, run, a, p};
    uint32_t i = n_event++;
    if (n_event > EVENTS_MAX)
        sim_fail("more than %d events are pending", EVENTS_MAX);
    for (; i && before(&added, &heap[(i - 1) / 2]); i = (i - 1) / 2)
        heap[i] = heap[(i - 1) / 2];
    heap[i] = added;
}

static struct event take_first(void)
{
    const struct event first = heap[0], last = heap[--n_event];
    uint32_t i = 0;
    for (uint32_t child; (child = 2 * i + 1) < n_event; i = child) {
        if (child + 1 < n_event && before(&heap[child + 1], &heap[child]))
            child++;
        if (!before(&heap[child], &last))
            break;
        heap[i] = heap[child];
    }
    heap[i] = last;
    return first;
}

bool events_next(void)
{
    if (!n_event)
        return false;
    const struct event e = take_first();
    now_us = e.at_us;
    e.run(e.a, e.p);
    return true;
}

void events_reset(uint64_t seed)
{
    for (uint32_t i = 0; i < n_event; i++)
        q_free(heap[i].p);
    n_event = 0;
    n_added = 0;
    now_us = START_US;
    state = seed * UINT64_C(0x9e3779b97f4a7c15) | 1;
    for (int i = 0; i < 8; i++)
        (void)events_random();
}

void events_show_log(bool shown)
{
    is_log_shown = shown;
}

int64_t events_now_us(void)
{
    return now_us;
}

uint64_t events_random(void)
{
    state ^= state << 13; /* xorshift64; never 0 */
    state ^= state >> 7;
    state ^= state << 17;
    return state * UINT64_C(0x2545f4914f6cdd1d) >> 16;
}

uint32_t events_pick(uint32_t min, uint32_t max)
{
    return min + (uint32_t)(events_random() % ((uint64_t)max - min + 1));
}

bool events_chance(uint32_t in_10000)
{
    return events_random() % 10000 < in_10000;
}

/* ---- what the code under test sees of time and log (common/clock.h, common/log.h) ---- */

int64_t clock_us(void)
{
    return now_us;
}

int64_t clock_ms(void)
{
    return now_us / 1000;
}

int64_t clock_unix(void)
{
    return now_us / 1000000;
}

void clock_iso8601(char *out, size_t size)
{
    snprintf(out, size, "%.3f", (double)(now_us - START_US) / 1e6);
}

void log_setup(const char *component, enum log_level level, bool json)
{
    (void)component, (void)level, (void)json;
}

FALLIBLE log_level_parse(enum log_level *out, const char *name, struct q_err *e)
{
    (void)name, (void)e;
    *out = LOG_INFO;
    return Q_OK;
}

bool log_enabled(enum log_level level)
{
    return is_log_shown && level != LOG_DEBUG;
}

void log_line(enum log_level level, const char *fmt, ...)
{
    va_list ap;
    if (!log_enabled(level))
        return;
    va_start(ap, fmt);
    printf("\n%10.4f ", (double)(now_us - START_US) / 1e6);
    vprintf(fmt, ap);
    va_end(ap);
    fflush(stdout);
}

bool log_ratelimit(int64_t *last_ms, uint64_t *n_skipped, int64_t interval_ms)
{
    (void)last_ms, (void)n_skipped, (void)interval_ms;
    return true;
}
