/* SPDX-License-Identifier: Apache-2.0 */
#include "frontend/api/lanes.h"
#include <stdbool.h>
#include <string.h>

void lanes_init(struct lanes *l, uint32_t n_thread)
{
    memset(l, 0, sizeof *l);
    l->n_thread = n_thread < LANES_THREAD_MIN ? LANES_THREAD_MIN : n_thread;
}

static uint32_t lane_of(size_t bytes)
{
    uint32_t c = 0;
    for (size_t limit = LANES_FIRST; c + 1 < LANES && bytes >= limit; limit *= 4)
        c++;
    return c;
}

/* Busy with bodies of this lane or a longer one. */
static uint32_t busy_from(const struct lanes *l, uint32_t lane)
{
    uint32_t n = 0;
    for (uint32_t c = lane; c < LANES; c++)
        n += l->n_busy[c];
    return n;
}

uint32_t lanes_n_busy(const struct lanes *l)
{
    return busy_from(l, 0);
}

enum q_code lanes_add(struct lanes *l, struct lane_job *job, size_t bytes, uint64_t key,
                      struct q_err *e)
{
    uint32_t lane = lane_of(bytes);
    uint64_t start = l->now[lane];
    if (l->n_wait == LANES_WAIT_MAX)
        return q_fail(e, Q_NO_SPACE,
                      "too many long prompts: %d are waiting to be tokenized; retry later",
                      LANES_WAIT_MAX);
    for (const struct lane_job *j = l->wait[lane]; j; j = j->next)
        if (j->key == key && j->start + j->bytes > start)
            start = j->start + j->bytes;
    *job = (struct lane_job){NULL, bytes, key, start, lane};
    struct lane_job **at = &l->wait[lane];
    while (*at && (*at)->start <= start)
        at = &(*at)->next;
    job->next = *at;
    *at = job;
    l->n_wait++;
    return Q_OK;
}

/* One waits, and fewer than may be of its lane and the longer ones are busy. */
static bool may_start(const struct lanes *l, uint32_t lane)
{
    return l->wait[lane] && busy_from(l, lane) < l->n_thread - lane;
}

struct lane_job *lanes_next(struct lanes *l)
{
    uint32_t best = LANES;
    if (lanes_n_busy(l) == l->n_thread)
        return NULL;
    for (uint32_t c = LANES; c-- > 0;)
        if (may_start(l, c) && (best == LANES || l->passed[best] < LANES_PATIENCE))
            best = c;
    if (best == LANES)
        return NULL;
    for (uint32_t c = 0; c < LANES; c++)
        l->passed[c] += c != best && may_start(l, c);
    struct lane_job *job = l->wait[best];
    l->passed[best] = 0;
    l->now[best] = job->start;
    l->wait[best] = job->next;
    l->n_busy[best]++;
    l->n_wait--;
    return job;
}

void lanes_done(struct lanes *l, const struct lane_job *job)
{
    Q_ASSERT(l->n_busy[job->lane] > 0);
    l->n_busy[job->lane]--;
}

void lanes_remove(struct lanes *l, struct lane_job *job)
{
    struct lane_job **at = &l->wait[job->lane];
    while (*at != job) {
        Q_ASSERT(*at);
        at = &(*at)->next;
    }
    *at = job->next;
    l->n_wait--;
}
