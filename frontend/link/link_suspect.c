/* SPDX-License-Identifier: Apache-2.0 */
/* Finding the generation that kills the engine, as engine/sched/scheduler_suspect.c finds the one
 * that kills the worker.
 *
 * An engine that is lost takes all running generations along. Its successor's hello says how it
 * ended. If it crashed by itself, each of them counts the death; after SUSPECT_LOST deaths it is
 * a suspect. While there are suspects, one of them is submitted at a time, the first waiting
 * one, and all other generations wait. A suspect that gets SUSPECT_TRIAL_TOKENS tokens, the
 * first of them SUSPECT_TRIAL_MS ago, is none any more and waits like the others; one that is
 * alone in the engine when it dies, for at least the CULPRIT_LOST-th time, ends with an error.
 * With several frontends each tries its own suspects; the engine gives one frontend at a time
 * its turn (submit.alone, error.alone), and the next engine says whose it was (hello.tried). */
#include <string.h>
#include "common/clock.h"
#include "common/log.h"
#include "frontend/link/link_internal.h"

#define SUSPECT_LOST         2u
#define CULPRIT_LOST         3u
#define SUSPECT_TRIAL_TOKENS 4u /* as in the scheduler … */
#define SUSPECT_TRIAL_MS     20 /* … and so long after the first of them: a crash may come late */
#define CAUSE_MAX            200 /* bytes */

static const char crash[] = "crash: "; /* hello.death of an engine that ended by itself */

static bool is_suspect(const struct generation *f)
{
    return f->n_lost >= SUSPECT_LOST;
}

/* One on trial that has no turn yet was perhaps submitted, and not accepted. */
void link_suspect_lost(struct link *l)
{
    for (struct generation *f = l->running.first; f; f = f->next)
        f->was_lost = l->state != LINK_DRAINING && /* which ends with what it has */
                      f != l->writing &&           /* without its items it has not begun */
                      (!l->suspecting || !l->has_trials || f->has_turn);
}

/* Did the engine before this one end by itself? An unknown end counts: an engine without a
 * supervisor says nothing. */
static bool crashed(struct proto_str death)
{
    return !death.n ||
           (death.n >= sizeof crash - 1 && !memcmp(death.data, crash, sizeof crash - 1));
}

/* The only generation that the engine had, if it has had enough deaths; NULL: there is none. */
static struct generation *count_death(struct link *l)
{
    struct generation *alone = NULL;
    const bool before = l->suspecting;
    uint32_t n = 0;
    for (struct generation *f = l->waiting.first; f; f = f->next) {
        if (!f->was_lost)
            continue;
        n++;
        alone = f;
        f->n_lost++;
        f->n_since_lost = 0;
        l->suspecting = l->suspecting || is_suspect(f);
    }
    if (l->suspecting && !before)
        log_warning("link: the engine crashed more than once with the same requests: they are "
                    "tried one at a time");
    return n == 1 && alone->n_lost >= CULPRIT_LOST ? alone : NULL;
}

const char *link_suspect_cause(struct proto_str death, int *n)
{
    const size_t n_prefix = death.n && crashed(death) ? sizeof crash - 1 : 0;
    *n = death.n ? (int)(death.n < CAUSE_MAX ? death.n - n_prefix : CAUSE_MAX - n_prefix) : 0;
    return death.n ? death.data + n_prefix : "";
}

/* Is the death in the hello that of the engine that had the generations? Another one may have
 * been started and ended in between, before it had any. */
static bool is_of_ours(const struct link *l, const struct msg_hello *m)
{
    const bool is_known = m->n_start && l->engine_start;
    return m->instance != l->engine_instance && (!is_known || m->n_start == l->engine_start + 1);
}

/* Had the engine before generations of this link? It had one of another frontend alone, if that one
 * was on trial, whatever this link knows: its connection may have been lost, or it was stopped. */
static bool had_ours(const struct link *l, const struct msg_hello *m)
{
    const bool is_trial = l->suspecting && l->has_trials;
    return !m->has_tried || (m->tried ? m->tried == l->instance : !is_trial);
}

struct generation *link_suspect_judge(struct link *l, const struct msg_hello *m)
{
    const bool counts = is_of_ours(l, m) && had_ours(l, m) && crashed(m->death);
    struct generation *culprit = counts ? count_death(l) : NULL;
    for (struct generation *f = l->waiting.first; f; f = f->next)
        f->was_lost = false;
    return culprit;
}

bool link_suspect_passed(struct generation *f, uint32_t n_token)
{
    const bool was = is_suspect(f);
    const int64_t now = clock_ms();
    f->n_since_lost += n_token;
    if (was && !f->trial_ms)
        f->trial_ms = now;
    if (f->n_since_lost >= SUSPECT_TRIAL_TOKENS && (!was || now - f->trial_ms >= SUSPECT_TRIAL_MS))
        f->n_lost = 0;
    return was && !f->n_lost;
}

struct generation *link_suspect_next(struct link *l)
{
    struct generation *f = l->waiting.first;
    while (f && !is_suspect(f))
        f = f->next;
    if (l->running.n)
        return NULL;
    l->suspecting = f != NULL;
    return f;
}
