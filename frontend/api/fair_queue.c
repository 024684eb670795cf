/* SPDX-License-Identifier: Apache-2.0 */
#include "frontend/api/fair_queue.h"
#include <stdbool.h>
#include <string.h>

void fair_queue_init(struct fair_queue *l, uint32_t n_thread)
{
    memset(l, 0, sizeof *l);
    l->n_thread = n_thread < FAIR_QUEUE_THREAD_MIN ? FAIR_QUEUE_THREAD_MIN : n_thread;
}

static uint32_t lane_of(size_t bytes)
{
    uint32_t c = 0;
    for (size_t limit = FAIR_QUEUE_FIRST; c + 1 < LANES && bytes >= limit; limit *= 4)
        c++;
    return c;
}

/* Number of threads that process bodies of this lane or a longer one. */
static uint32_t busy_from(const struct fair_queue *l, uint32_t lane)
{
    uint32_t n = 0;
    for (uint32_t c = lane; c < LANES; c++)
        n += l->n_busy[c];
    return n;
}

uint32_t fair_queue_n_busy(const struct fair_queue *l)
{
    return busy_from(l, 0);
}

enum q_code fair_queue_add(struct fair_queue *l, struct fair_queue_job *job, size_t bytes,
                           uint64_t key, struct q_err *e)
{
    uint32_t lane = lane_of(bytes);
    uint64_t start = l->now[lane];
    if (l->n_wait == FAIR_QUEUE_WAIT_MAX)
        return q_fail(e, Q_NO_SPACE,
                      "too many long prompts: %d are waiting to be tokenized; retry later",
                      FAIR_QUEUE_WAIT_MAX);
    for (const struct fair_queue_job *j = l->wait[lane]; j; j = j->next)
        if (j->key == key && j->start + j->bytes > start)
            start = j->start + j->bytes;
    *job = (struct fair_queue_job){NULL, bytes, key, start, lane};
    struct fair_queue_job **at = &l->wait[lane];
    while (*at && (*at)->start <= start)
        at = &(*at)->next;
    job->next = *at;
    *at = job;
    l->n_wait++;
    return Q_OK;
}

/* Is a body waiting, and are fewer threads than allowed busy with its lane and the longer ones? */
static bool may_start(const struct fair_queue *l, uint32_t lane)
{
    return l->wait[lane] && busy_from(l, lane) < l->n_thread - lane;
}

struct fair_queue_job *fair_queue_next(struct fair_queue *l)
{
    uint32_t best = LANES;
    if (fair_queue_n_busy(l) == l->n_thread)
        return NULL;
    for (uint32_t c = LANES; c-- > 0;)
        if (may_start(l, c) && (best == LANES || l->passed[best] < FAIR_QUEUE_PATIENCE))
            best = c;
    if (best == LANES)
        return NULL;
    for (uint32_t c = 0; c < LANES; c++)
        l->passed[c] += c != best && may_start(l, c);
    struct fair_queue_job *job = l->wait[best];
    l->passed[best] = 0;
    l->now[best] = job->start;
    l->wait[best] = job->next;
    l->n_busy[best]++;
    l->n_wait--;
    return job;
}

void fair_queue_done(struct fair_queue *l, const struct fair_queue_job *job)
{
    Q_ASSERT(l->n_busy[job->lane] > 0);
    l->n_busy[job->lane]--;
}

void fair_queue_remove(struct fair_queue *l, struct fair_queue_job *job)
{
    struct fair_queue_job **at = &l->wait[job->lane];
    while (*at != job) {
        Q_ASSERT(*at);
        at = &(*at)->next;
    }
    *at = job->next;
    l->n_wait--;
}
