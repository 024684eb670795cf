/* SPDX-License-Identifier: Apache-2.0 */
/* A job is a grammar source and the requests that wait for its program, each as an encoded submit.
 * The core's loop owns all jobs and hands a few to each stage's thread. While a job is handed out,
 * the thread owns its source and result, and the loop owns its requests. */
#include "engine/core/grammar_compiler.h"
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include "common/buf.h"
#include "common/cpus.h"
#include "common/mem.h"
#include "common/queue.h"
#include "engine/core/program_cache.h"

struct item { /* a request */
    struct item *next;
    uint32_t frontend_id;
    uint64_t req_id;
    struct buf frame;   /* the submit without its source, encoded */
    struct arena arena; /* of its decoding */
};
struct job {
    struct job *next;
    struct item *items;         /* first come first */
    struct owned_source source; /* the thread's while handed */
    uint64_t tenant;            /* of the first request */
    uint64_t round;             /* round robin among tenants in this stage; the job with the
                                 * least round is next */
    enum grammar_compiler_stage stage;
    bool is_handed;
    atomic_bool stop; /* set by the loop, read by the thread */
    uint32_t *words;  /* the thread's work */
    uint32_t n_word;
    struct q_err error;
};
struct stage {
    struct queue jobs; /* of struct job *, handed out */
    pthread_t thread;
    bool running;
    uint32_t n_handed;
    uint64_t round; /* of the job handed out last */
};
struct grammar_compiler {
    struct stage stages[GRAMMAR_COMPILER_STAGES];
    struct queue done;    /* of struct job * */
    struct job *jobs;     /* all but `finished`, first come first */
    struct job *finished; /* its requests are given out one by one */
    struct item *taken;   /* given out last */
    uint32_t n_item;
    struct program_cache cache;
    struct grammar_compiler_stats stats;
};

static void item_free(struct grammar_compiler *c, struct item *x)
{
    if (!x)
        return;
    c->stats.bytes -= x->frame.len;
    buf_release(&x->frame);
    arena_release(&x->arena);
    q_free(x);
}

static void job_free(struct grammar_compiler *c, struct job *j)
{
    struct item *next;
    if (!j)
        return;
    for (struct item *x = j->items; x; x = next) {
        next = x->next;
        c->n_item--;
        item_free(c, x);
    }
    c->stats.bytes -= source_bytes(&j->source);
    source_release(&j->source);
    q_free(j->words);
    q_free(j);
}

static void compile(struct job *j)
{
    struct grammar_source source = source_view(&j->source);
    source.stop = &j->stop;
    source.try_max = j->stage == GRAMMAR_COMPILER_IS_SHORT ? GRAMMAR_COMPILER_SHORT : 0;
    j->error = (struct q_err)Q_ERR_INIT;
    if (grammar_compile(&j->words, &j->n_word, &source, &j->error))
        j->words = NULL;
}

bool grammar_compiler_work(struct grammar_compiler *c, enum grammar_compiler_stage stage,
                           int timeout_ms)
{
    struct job *j;
    struct q_err ignored = Q_ERR_INIT;
    if (!queue_pop(&c->stages[stage].jobs, &j, timeout_ms))
        return false;
    compile(j);
    if (queue_push(&c->done, &j, &ignored)) {
        /* never: the queue has room for all handed-out jobs and is not closed */
    }
    return true;
}

static void *run_short(void *arg)
{
    cpus_run_later();
    while (grammar_compiler_work(arg, GRAMMAR_COMPILER_IS_SHORT, -1))
        ;
    return NULL;
}

static void *run_long(void *arg)
{
    cpus_run_later();
    while (grammar_compiler_work(arg, GRAMMAR_COMPILER_IS_LONG, -1))
        ;
    return NULL;
}

static enum q_code start_threads(struct grammar_compiler *c, struct q_err *e)
{
    static void *(*const runs[GRAMMAR_COMPILER_STAGES])(void *) = {run_short, run_long};
    static const char *const names[GRAMMAR_COMPILER_STAGES] = {"quire-grammar", "quire-grammar+"};
    for (int i = 0; i < GRAMMAR_COMPILER_STAGES; i++) {
        int failed = pthread_create(&c->stages[i].thread, NULL, runs[i], c);
        if (failed)
            return q_fail(e, Q_IO, "engine: cannot start a thread for grammars: %s",
                          strerror(failed));
        pthread_setname_np(c->stages[i].thread, names[i]);
        c->stages[i].running = true;
    }
    return Q_OK;
}

FALLIBLE grammar_compiler_new(struct grammar_compiler **out, bool threads, struct q_err *e)
{
    struct grammar_compiler *c = q_calloc(1, sizeof *c);
    if (!c)
        return q_fail(e, Q_NO_MEMORY, "engine: out of memory for grammars");
    size_t n_handed = (size_t)GRAMMAR_COMPILER_HANDED * GRAMMAR_COMPILER_STAGES;
    enum q_code rc = queue_init(&c->done, sizeof(struct job *), n_handed, true, e);
    if (!rc)
        rc = queue_reserve(&c->done, e);
    for (int i = 0; i < GRAMMAR_COMPILER_STAGES && !rc; i++)
        rc =
            queue_init(&c->stages[i].jobs, sizeof(struct job *), GRAMMAR_COMPILER_HANDED, false, e);
    if (!rc && threads)
        rc = start_threads(c, e);
    if (rc)
        grammar_compiler_free(c);
    else
        *out = c;
    return rc;
}

void grammar_compiler_free(struct grammar_compiler *c)
{
    struct job *next;
    if (!c)
        return;
    for (struct job *j = c->jobs; j; j = j->next)
        atomic_store(&j->stop, true);
    for (int i = 0; i < GRAMMAR_COMPILER_STAGES; i++) {
        if (c->stages[i].running) {
            queue_close(&c->stages[i].jobs);
            pthread_join(c->stages[i].thread, NULL);
        }
        queue_release(&c->stages[i].jobs);
    }
    for (struct job *j = c->jobs; j; j = next) {
        next = j->next;
        job_free(c, j);
    }
    job_free(c, c->finished);
    item_free(c, c->taken);
    program_cache_release(&c->cache);
    queue_release(&c->done);
    q_free(c);
}

int grammar_compiler_fd(const struct grammar_compiler *c)
{
    return queue_fd(&c->done);
}

const uint32_t *grammar_compiler_known(struct grammar_compiler *c, const struct msg_submit *m,
                                       uint32_t *n_word)
{
    return program_cache_get(&c->cache, m, n_word);
}

/* The round of a job that joins this stage: after the rounds of its tenant's jobs, and not before
 * the stage's current round. */
static uint64_t round_of(const struct grammar_compiler *c, const struct job *job)
{
    uint64_t round = c->stages[job->stage].round;
    for (const struct job *j = c->jobs; j; j = j->next)
        if (j != job && j->stage == job->stage && j->tenant == job->tenant && j->round >= round)
            round = j->round + 1;
    return round;
}

static void hand_out(struct grammar_compiler *c, enum grammar_compiler_stage stage)
{
    struct stage *s = &c->stages[stage];
    struct q_err ignored = Q_ERR_INIT;
    while (s->n_handed < GRAMMAR_COMPILER_HANDED) {
        struct job *next = NULL;
        for (struct job *j = c->jobs; j; j = j->next)
            if (j->stage == stage && !j->is_handed && (!next || j->round < next->round))
                next = j;
        if (!next || queue_push(&s->jobs, &next, &ignored)) /* memory is tried for again later */
            return;
        next->is_handed = true;
        s->round = next->round;
        s->n_handed++;
    }
}

static struct job *find_job(struct grammar_compiler *c, const struct msg_submit *m)
{
    for (struct job *j = c->jobs; j; j = j->next)
        if (!atomic_load(&j->stop) && source_is(&j->source, m))
            return j;
    return NULL;
}

/* A job at the end of the list, without requests yet. NULL: no memory. */
static struct job *add_job(struct grammar_compiler *c, const struct msg_submit *m)
{
    struct job *j = q_calloc(1, sizeof *j), **at = &c->jobs;
    if (!j || !source_own(&j->source, m)) {
        q_free(j);
        return NULL;
    }
    j->tenant = m->tenant;
    j->round = round_of(c, j);
    while (*at)
        at = &(*at)->next;
    *at = j;
    c->stats.bytes += source_bytes(&j->source);
    return j;
}

static void add_item(struct grammar_compiler *c, struct job *j, struct item *x)
{
    struct item **at = &j->items;
    while (*at)
        at = &(*at)->next;
    *at = x;
    c->n_item++;
}

FALLIBLE grammar_compiler_add(struct grammar_compiler *c, uint32_t frontend_id,
                              const struct msg_submit *m, struct q_err *e)
{
    struct msg_submit own = *m;
    struct item *x;
    enum q_code rc;
    if (c->n_item == GRAMMAR_COMPILER_MAX)
        return q_fail(
            e, Q_NO_SPACE,
            "too many grammars to compile: %u requests are waiting for theirs; retry later",
            GRAMMAR_COMPILER_MAX);
    if (!(x = q_calloc(1, sizeof *x)))
        return q_fail(e, Q_NO_MEMORY, "engine: out of memory for a request");
    own.grammar = own.grammar_after = own.reasoning_tags = (struct proto_bytes){NULL, 0};
    x->arena = (struct arena)ARENA_INIT(PROTO_FRAME_MAX);
    x->frontend_id = frontend_id;
    x->req_id = m->req_id;
    rc = msg_submit_encode(&own, &x->frame, e);
    c->stats.bytes += x->frame.len;
    size_t n_source = m->grammar.n + m->grammar_after.n + m->reasoning_tags.n;
    if (!rc && c->stats.bytes + n_source > GRAMMAR_COMPILER_BYTES)
        rc = q_fail(e, Q_NO_SPACE,
                    "too many grammars to compile: the waiting requests would take %zu MB, the "
                    "limit is %zu MB; retry later",
                    (c->stats.bytes + n_source) >> 20, GRAMMAR_COMPILER_BYTES >> 20);
    struct job *j = rc ? NULL : find_job(c, m);
    c->stats.n_shared += j != NULL;
    if (!rc && !j && !(j = add_job(c, m)))
        rc = q_fail(e, Q_NO_MEMORY, "engine: out of memory for a grammar");
    if (rc) {
        item_free(c, x);
        return rc;
    }
    add_item(c, j, x);
    hand_out(c, j->stage);
    return Q_OK;
}

static void unlink_job(struct grammar_compiler *c, const struct job *j)
{
    struct job **at = &c->jobs;
    while (*at != j)
        at = &(*at)->next;
    *at = j->next;
}

/* A job comes back from a thread. True: it is finished, and its requests with it. */
static bool take_back(struct grammar_compiler *c, struct job *j)
{
    enum grammar_compiler_stage stage = j->stage;
    bool is_stopped = atomic_load(&j->stop), again = false;
    c->stages[stage].n_handed--;
    c->stats.n_job[stage]++;
    j->is_handed = false;
    if (!is_stopped && stage == GRAMMAR_COMPILER_IS_SHORT && j->error.code == Q_TIMEOUT) {
        again = true;
        j->stage = GRAMMAR_COMPILER_IS_LONG;
        j->round = round_of(c, j);
        hand_out(c, j->stage);
    } else {
        unlink_job(c, j);
    }
    hand_out(c, stage);
    if (is_stopped) {
        c->stats.n_stopped += j->error.code == Q_CANCELLED;
        job_free(c, j);
    } else if (!again) {
        c->finished = j;
    }
    return c->finished != NULL;
}

/* The next request of the job that is finished. */
static struct item *next_item(struct grammar_compiler *c)
{
    struct item *x = c->finished ? c->finished->items : NULL;
    if (x) {
        c->finished->items = x->next;
        c->n_item--;
    }
    return x;
}

bool grammar_compiler_take(struct grammar_compiler *c, struct compiled *out)
{
    struct item *x;
    struct job *j;
    while (!(x = next_item(c))) {
        job_free(c, c->finished);
        c->finished = NULL;
        if (!queue_pop(&c->done, &j, 0))
            return false;
        if (!take_back(c, j) || j->error.code)
            continue;
        c->stats.bytes -= source_bytes(&j->source);
        program_cache_put(&c->cache, &j->source, j->words, j->n_word);
        c->stats.bytes += source_bytes(&j->source); /* it may have been taken */
    }
    j = c->finished;
    item_free(c, c->taken);
    c->taken = x;
    *out = (struct compiled){.frontend_id = x->frontend_id, .req_id = x->req_id, .error = j->error};
    /* it was encoded here, so only memory can be missing: the request ends with that */
    if (!out->error.code &&
        !msg_submit_decode(&out->submit, x->frame.data, x->frame.len, &x->arena, &out->error))
        out->submit.grammar =
            (struct proto_bytes){(const unsigned char *)j->words, j->n_word * sizeof *j->words};
    return true;
}

/* Drop the requests that `is` fits: of all origins or one, of all ids or one. */
struct drop {
    bool any_frontend, any_id, once;
    uint32_t frontend_id;
    uint64_t req_id;
    uint32_t n; /* dropped */
};

static void drop_items(struct grammar_compiler *c, struct job *j, struct drop *d)
{
    for (struct item **at = &j->items; *at && !(d->once && d->n);) {
        struct item *x = *at;
        if ((!d->any_frontend && x->frontend_id != d->frontend_id) ||
            (!d->any_id && x->req_id != d->req_id)) {
            at = &x->next;
            continue;
        }
        d->frontend_id = x->frontend_id;
        d->req_id = x->req_id;
        d->n++;
        *at = x->next;
        c->n_item--;
        item_free(c, x);
    }
}

static void drop(struct grammar_compiler *c, struct drop *d)
{
    struct job *next;
    if (c->finished)
        drop_items(c, c->finished, d);
    for (struct job *j = c->jobs; j && !(d->once && d->n); j = next) {
        next = j->next;
        drop_items(c, j, d);
        if (j->items)
            continue;
        atomic_store(&j->stop, true); /* no request waits for it */
        if (!j->is_handed) {
            unlink_job(c, j);
            job_free(c, j);
        }
    }
}

bool grammar_compiler_abort(struct grammar_compiler *c, uint32_t frontend_id, uint64_t req_id)
{
    struct drop d = {.once = true, .frontend_id = frontend_id, .req_id = req_id};
    drop(c, &d);
    return d.n;
}

uint32_t grammar_compiler_abort_frontend(struct grammar_compiler *c, uint32_t frontend_id)
{
    struct drop d = {.any_id = true, .frontend_id = frontend_id};
    drop(c, &d);
    return d.n;
}

bool grammar_compiler_abort_next(struct grammar_compiler *c, uint32_t *frontend_id,
                                 uint64_t *req_id)
{
    struct drop d = {.any_frontend = true, .any_id = true, .once = true};
    drop(c, &d);
    if (!d.n)
        return false;
    *frontend_id = d.frontend_id;
    *req_id = d.req_id;
    return true;
}

uint32_t grammar_compiler_count(const struct grammar_compiler *c)
{
    return c->n_item;
}

bool grammar_compiler_works(const struct grammar_compiler *c)
{
    uint32_t n = 0;
    for (int i = 0; i < GRAMMAR_COMPILER_STAGES; i++)
        n += c->stages[i].n_handed;
    return n;
}

void grammar_compiler_stats(const struct grammar_compiler *c, struct grammar_compiler_stats *out)
{
    *out = c->stats;
    for (const struct job *j = c->jobs; j; j = j->next)
        out->n_waiting[j->stage]++;
}
