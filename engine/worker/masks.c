/* SPDX-License-Identifier: Apache-2.0 */
/* Three counters, each with a futex: `begun` counts steps whose jobs are ready, `done` the jobs of
 * the step with a finished mask, `ended` the steps that the thread has finished. Within a step they
 * only grow; `done` is reset before `begun` changes, when the thread is idle. */
#include "engine/worker/masks.h"
#include <linux/futex.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>
#include "common/mem.h"

struct masks {
    struct mask_provider provider;
    uint32_t n_word;
    uint32_t *bits;               /* [n_row, n_word] by job */
    uint32_t *forced;             /* [n_row] by job: the only token, MASKS_FREE = none is */
    struct mask_job *jobs;        /* [n_job] of this step */
    uint32_t *job_of_row;         /* [n_row] a row's job */
    struct slots *slots;          /* of this step */
    const struct step_view *step; /* while its tokens are drafted, else NULL */
    uint32_t n_job, n_admitted;   /* of the step's fresh slots, the first are known */
    atomic_uint begun, done, ended, stop;
    pthread_t thread;
    bool running;
};

static void sleep_while(atomic_uint *word, unsigned value)
{
    syscall(SYS_futex, (void *)word, FUTEX_WAIT_PRIVATE, value, NULL, NULL, 0);
}

static void wake_all(atomic_uint *word)
{
    syscall(SYS_futex, (void *)word, FUTEX_WAKE_PRIVATE, INT32_MAX, NULL, NULL, 0);
}

#define MASKS_FREE (UINT32_MAX - 1) /* the provider may say UINT32_MAX */

static struct mask_job job_of(const struct slots *s, const struct slot *slot, uint32_t n_known)
{
    return (struct mask_job){
        .grammar = slot->params.grammar,
        .slot = (uint32_t)(slot - s->slots),
        .history = slot->history,
        .n_known = n_known,
        .n_prompt = slot->n_prompt,
        .stop_ids = slot->stop_ids,
        .n_stop_id = slot->params.n_stop_id,
        .thinking = slot->thinking,
        .n_thinking = slot->params.n_thinking,
        .n_admitted = slot->n_admitted,
        .is_known = n_known <= slot->n_known,
    };
}

static bool drafts_by_grammar(const struct slots *s, const struct step_seq *q)
{
    return q->flags & STEP_SPECULATE && q->n_token > 1 && s->slots[q->slot].params.grammar;
}

static void admit_fresh(struct masks *m)
{
    for (; m->provider.admit && m->n_admitted < m->slots->n_fresh; m->n_admitted++)
        m->provider.admit(m->provider.ctx, &m->slots->fresh[m->n_admitted]);
}

static void propose_all(struct masks *m)
{
    for (uint32_t i = 0; i < m->step->head->n_seq; i++) {
        const struct step_seq *q = &m->step->seqs[i];
        struct slot *slot = &m->slots->slots[q->slot];
        if (!drafts_by_grammar(m->slots, q))
            continue;
        const struct mask_job job = job_of(m->slots, slot, slot->n_known);
        slot->n_draft_token = m->provider.propose(m->provider.ctx, &job,
                                                  slot->history + slot->n_known, q->n_token - 1);
        slot->is_forced = slot->n_draft_token > 0;
    }
}

static void make_mask(struct masks *m, uint32_t i)
{
    const struct mask_provider *p = &m->provider;
    const struct mask_job *job = &m->jobs[i];
    uint32_t *bits = m->bits + (size_t)i * m->n_word;
    m->forced[i] = MASKS_FREE;
    if (job->n_thinking && p->force && p->force(p->ctx, job, &m->forced[i]))
        return;
    m->forced[i] = MASKS_FREE;
    if (!job->grammar)
        return;
    memset(bits, 0, m->n_word * sizeof *bits);
    p->fill(p->ctx, job, bits);
}

static void *run_masks(void *arg)
{
    struct masks *m = arg;
    for (unsigned seen = 0;;) {
        while (atomic_load_explicit(&m->begun, memory_order_acquire) == seen)
            sleep_while(&m->begun, seen);
        seen++;
        if (atomic_load(&m->stop))
            return NULL;
        admit_fresh(m);
        if (m->step)
            propose_all(m);
        for (uint32_t i = 0, n = m->n_job; i < n; i++) {
            make_mask(m, i);
            atomic_store_explicit(&m->done, i + 1, memory_order_release);
            wake_all(&m->done);
        }
        atomic_store_explicit(&m->ended, seen, memory_order_release);
        wake_all(&m->ended);
    }
}

FALLIBLE masks_new(struct masks **out, const struct mask_provider *p, uint32_t n_row,
                   uint32_t n_vocab, struct q_err *e)
{
    Q_ASSERT(p && n_row && n_vocab);
    struct masks *m = q_calloc(1, sizeof *m);
    if (!m)
        return q_fail(e, Q_NO_MEMORY, "worker: out of memory for masks");
    m->provider = *p;
    m->n_word = (uint32_t)SAMPLE_MASK_WORDS(n_vocab);
    m->bits = q_calloc((size_t)n_row * m->n_word, sizeof *m->bits);
    m->forced = q_calloc(n_row, sizeof *m->forced);
    m->jobs = q_calloc(n_row, sizeof *m->jobs);
    m->job_of_row = q_calloc(n_row, sizeof *m->job_of_row);
    if (!m->bits || !m->forced || !m->jobs || !m->job_of_row) {
        masks_free(m);
        return q_fail(e, Q_NO_MEMORY, "worker: out of memory for masks of %u rows", n_row);
    }
    int rc = pthread_create(&m->thread, NULL, run_masks, m);
    if (rc) {
        masks_free(m);
        return q_fail(e, Q_IO, "worker: cannot start the thread for masks: %s", strerror(rc));
    }
    m->running = true;
    pthread_setname_np(m->thread, "quire-masks");
    *out = m;
    return Q_OK;
}

static void begin_jobs(struct masks *m)
{
    atomic_fetch_add_explicit(&m->begun, 1, memory_order_release);
    wake_all(&m->begun);
}

void masks_free(struct masks *m)
{
    if (!m)
        return;
    if (m->running) {
        atomic_store(&m->stop, 1);
        begin_jobs(m);
        pthread_join(m->thread, NULL);
    }
    q_free(m->bits);
    q_free(m->forced);
    q_free(m->jobs);
    q_free(m->job_of_row);
    q_free(m);
}

void masks_propose(struct masks *m, struct slots *s, const struct step_view *v)
{
    bool any = false;
    m->slots = s;
    m->n_admitted = m->n_job = 0;
    for (uint32_t i = 0; m->provider.propose && i < v->head->n_seq && !any; i++)
        any = drafts_by_grammar(s, &v->seqs[i]);
    if (!any)
        return;
    m->step = v;
    begin_jobs(m);
    masks_end(m);
    m->step = NULL;
}

void masks_begin(struct masks *m)
{
    const struct slots *s = m->slots;
    Q_ASSERT(s && atomic_load(&m->begun) == atomic_load(&m->ended)); /* masks_end came before */
    for (uint32_t i = 0; i < s->batch.n_logit; i++) {
        const struct logit_row *row = &s->rows[i];
        if (row->is_prompt || !slots_masks(row->slot))
            continue;
        m->job_of_row[i] = m->n_job;
        m->jobs[m->n_job++] = job_of(s, row->slot, row->position);
    }
    if (!m->n_job && m->n_admitted == s->n_fresh)
        return;
    atomic_store_explicit(&m->done, 0, memory_order_relaxed);
    begin_jobs(m);
}

void masks_end(struct masks *m)
{
    unsigned begun = atomic_load_explicit(&m->begun, memory_order_relaxed), ended;
    while ((ended = atomic_load_explicit(&m->ended, memory_order_acquire)) != begun)
        sleep_while(&m->ended, ended);
}

struct row_mask masks_wait(struct masks *m, uint32_t i_row)
{
    uint32_t i = m->job_of_row[i_row], done;
    Q_ASSERT(i < m->n_job); /* the row has a mask */
    while ((done = atomic_load_explicit(&m->done, memory_order_acquire)) <= i)
        sleep_while(&m->done, done);
    return (struct row_mask){
        .bits = m->jobs[i].grammar ? m->bits + (size_t)i * m->n_word : NULL,
        .forced = m->forced[i] == MASKS_FREE ? NULL : &m->forced[i],
    };
}
