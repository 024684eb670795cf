/* SPDX-License-Identifier: Apache-2.0 */
/* The times of each step, written to at most two files: that of --trace, from the first step to the
 * last, and a profile, from core_profile_start to core_profile_stop. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "common/clock.h"
#include "common/file.h"
#include "common/log.h"
#include "engine/core/core_internal.h"

#define PROFILE (CORE_TRACES - 1) /* its place among the traces */

bool core_tracing(const struct core *c)
{
    bool any = false;
    for (int i = 0; i < CORE_TRACES; i++)
        any = any || c->traces[i];
    return any;
}

static void add_step(struct core *c, const struct trace_step *t)
{
    for (int i = 0; i < CORE_TRACES; i++)
        if (c->traces[i])
            trace_add(c->traces[i], t);
}

void core_trace_decided(void *core)
{
    struct core *c = core;
    if (core_tracing(c))
        c->decided_us = clock_us();
}

void core_trace_planned(struct core *c, const struct step_head *h, int64_t start_us)
{
    if (!core_tracing(c))
        return;
    struct trace_step *t = &c->traced[h->step % RING_DEPTH];
    *t = (struct trace_step){
        .step = h->step,
        .n_row = h->n_token,
        .n_seq = h->n_seq,
        .n_admit = h->n_admit,
        .n_out = h->n_out,
        .n_in = h->n_in,
    };
    t->parts[TRACE_PLAN].start_us = start_us;
    t->parts[TRACE_PLAN].end_us = t->parts[TRACE_ENCODE].start_us = c->decided_us;
    t->parts[TRACE_ENCODE].end_us = t->parts[TRACE_WAIT].start_us = clock_us();
}

void core_trace_settled(struct core *c, const struct step_result_head *h, int64_t start_us,
                        int64_t settled_us)
{
    struct trace_step *t = &c->traced[h->step % RING_DEPTH];
    if (!core_tracing(c) || t->step != h->step) /* planned before there was a trace */
        return;
    int64_t copied_us = h->start_us + h->copy_us, forward_end_us = copied_us + h->forward_us;
    t->parts[TRACE_WAIT].end_us = h->start_us;
    if (t->n_out || t->n_in) {
        t->parts[TRACE_COPY].start_us = h->start_us;
        t->parts[TRACE_COPY].end_us = copied_us;
    }
    t->parts[TRACE_FORWARD].start_us = copied_us;
    t->parts[TRACE_FORWARD].end_us = t->parts[TRACE_SAMPLE].start_us = forward_end_us;
    t->parts[TRACE_SAMPLE].end_us = h->start_us + h->total_us;
    t->parts[TRACE_SETTLE].start_us = start_us;
    t->parts[TRACE_SETTLE].end_us = t->parts[TRACE_OUTBOX].start_us = settled_us;
    t->parts[TRACE_OUTBOX].end_us = clock_us();
    add_step(c, t);
    t->step = 0;
}

void core_trace_lost(struct core *c)
{
    for (uint32_t i = 0; i < RING_DEPTH; i++)
        if (c->traced[i].step)
            add_step(c, &c->traced[i]);
    memset(c->traced, 0, sizeof c->traced);
}

FALLIBLE core_profile_start(struct core *c, struct q_err *e)
{
    char name[64];
    enum q_code rc;
    if (!c->config.profiler_dir)
        return q_fail(e, Q_UNSUPPORTED,
                      "profiling is disabled: start the server with --profiler-dir DIR, the folder "
                      "for profiles");
    if (c->traces[PROFILE])
        return q_fail(e, Q_INVALID,
                      "the profile %s is still being recorded: call /stop_profile first",
                      c->profile_path);
    if (mkdir(c->config.profiler_dir, 0777) && errno != EEXIST)
        return q_fail(e, Q_IO, "--profiler-dir %s: %s", c->config.profiler_dir, strerror(errno));
    snprintf(name, sizeof name, "quire-%lld-%d-%u.trace.json", (long long)clock_unix(),
             (int)getpid(), ++c->n_profile);
    if ((rc =
             path_join(c->profile_path, sizeof c->profile_path, c->config.profiler_dir, name, e)) ||
        (rc = trace_new(&c->traces[PROFILE], c->profile_path, e)))
        return rc;
    log_info("profile started: %s", c->profile_path);
    return Q_OK;
}

FALLIBLE core_profile_stop(struct core *c, struct q_err *e)
{
    if (!c->traces[PROFILE])
        return q_fail(e, Q_INVALID, "no profile is being recorded: call /start_profile first");
    trace_free(c->traces[PROFILE]);
    c->traces[PROFILE] = NULL;
    log_info("profile finished: %s", c->profile_path);
    return Q_OK;
}

const char *core_profile_path(const struct core *c)
{
    return c->profile_path;
}
