/* SPDX-License-Identifier: Apache-2.0 */
/* Submits with items: small ones are taken at once, large ones on the intake's thread. */
#include "common/clock.h"
#include "common/mem.h"
#include "engine/core/core_internal.h"
#include "engine/core/grammar_compiler.h"

/* Of a prompt that is only counted: any that an array of a message can be. */
#define COUNT_TOKENS_MAX (1u << 24)
#define INTAKE_STALLS    3u   /* of --stall-timeout: 256 MB are read and hashed on a busy machine */
#define LOOK_MS          1000 /* the thread's job is looked at so often … */
#define LATE_MS          2000 /* … and a loop whose look comes so late did not run meanwhile */

static struct core_items_args args_of(const struct core *c, uint32_t frontend_id, uint64_t req_id)
{
    struct scheduler_stats s;
    core_stats(c, &s);
    return (struct core_items_args){
        .owner = {frontend_id, req_id},
        .max_model_len = c->info.limits.max_model_len,
        .vocab_size = c->info.shape.vocab_size,
        .settled = s.step - s.n_in_flight,
    };
}

static void release_items(struct core *c, struct item_owner owner)
{
    struct scheduler_stats s;
    core_stats(c, &s); /* its last planned step may still read them */
    if (core_items_any(&c->items))
        item_store_drop(&c->items.store, owner, s.step);
}

/* The submit that the scheduler gets: with the program in place of the source. *known false: it is
 * being compiled and comes later. */
static FALLIBLE with_program(struct core *c, uint32_t frontend_id, struct msg_submit *m,
                             bool *known, struct q_err *e)
{
    uint32_t n_word = 0;
    *known = true;
    if (!m->grammar_kind) {
        m->grammar.n = 0;
        return Q_OK;
    }
    const uint32_t *words = grammar_compiler_known(c->grammar_compiler, m, &n_word);
    if (words) {
        m->grammar = (struct proto_bytes){(const uint8_t *)words, n_word * sizeof *words};
        return Q_OK;
    }
    *known = false;
    step_items_put(m, NULL, 0, 0); /* core_take_compiled finds them in the store */
    return grammar_compiler_add(c->grammar_compiler, frontend_id, m, e);
}

static FALLIBLE check_pooled(const struct core *c, const struct msg_submit *m, struct q_err *e)
{
    const struct step_limits *l = &c->info.limits;
    const struct pooling *p = &c->pooling;
    const uint32_t most = core_max_model_len(c);
    if (m->prompt.n > most)
        return q_fail(e, Q_INVALID,
                      "prompt: %zu tokens are more than the model's %u "
                      "(max_model_len)",
                      m->prompt.n, most);
    if (core_whole_prompts(c) && m->prompt.n > l->max_num_batched_tokens)
        return q_fail(e, Q_INVALID,
                      "prompt: %zu tokens are more than the %u of a step "
                      "(--max-num-batched-tokens), and this model computes a prompt in one",
                      m->prompt.n, l->max_num_batched_tokens);
    if (m->n_value > p->n_out)
        return q_fail(e, Q_INVALID, "dimensions: %u are more than the vector's %u", m->n_value,
                      p->n_out);
    if (m->second_text && (m->second_text > m->prompt.n || c->info.shape.n_type < 2))
        return q_fail(e, Q_INVALID,
                      "a second text from token %u on: the prompt has %zu tokens, the model %u "
                      "types of them",
                      m->second_text, m->prompt.n, c->info.shape.n_type);
    if (m->emitted.n)
        return q_fail(e, Q_INVALID, "a vector is made of a prompt's tokens alone");
    if (m->item_shapes.n && core_whole_prompts(c)) /* its length is not known yet */
        return q_fail(e, Q_INVALID,
                      "this model computes a prompt in one step, which takes tokens alone: no "
                      "images and other items");
    return Q_OK;
}

/* A request that pools is for the scheduler one that samples a single token; its vector has the
 * place of alternatives' logprobs. What is computed in one step shares no blocks. */
static FALLIBLE with_pooling(const struct core *c, struct msg_submit *m, struct q_err *e)
{
    static const char *const needs[] = {
        "this model generates text and makes no vectors; a model that does is served with "
        "--runner pooling",
        "this model makes vectors (embeddings, scores or classes) and generates no text"};
    if (m->pools != c->info.shape.pools)
        return q_fail(e, Q_INVALID, "%s", needs[c->info.shape.pools]);
    if (!m->pools)
        return Q_OK;
    const enum q_code rc = check_pooled(c, m, e);
    *m = (struct msg_submit){
        .req_id = m->req_id,
        .prompt = m->prompt,
        .priority = m->priority,
        .cache_salt = m->cache_salt,
        .tenant = m->tenant,
        .weight = m->weight,
        .age_ms = m->age_ms,
        .no_prefix_cache = m->no_prefix_cache || core_whole_prompts(c),
        .pools = true,
        .n_value = m->n_value,
        .raw_vector = m->raw_vector,
        .second_text = m->second_text,
        .temperature = 1,
        .top_p = 1,
        .repetition_penalty = 1,
        .max_tokens = 1,
        .ignore_eos = true,
        .n_logprob = 1 + (m->n_value ? m->n_value : c->pooling.n_out), /* one more on the wire */
    };
    return rc;
}

/* One whose items are in the store. After an error they are not any more. */
static FALLIBLE submit_taken(struct core *c, uint32_t frontend_id, struct msg_submit *m,
                             struct q_err *e)
{
    const uint64_t req_id = m->req_id;
    const bool has_items = m->item_data.n > 0;
    bool known = true;
    enum q_code rc = with_program(c, frontend_id, m, &known, e);
    if (!rc && known)
        rc = core_schedule(c, frontend_id, m, e);
    if (rc && has_items)
        release_items(c, (struct item_owner){frontend_id, req_id});
    if (known)
        core_give_ends(c, INT64_MIN); /* not the new one itself: its owner does not know it yet */
    return rc;
}

static FALLIBLE check_state(const struct core *c, struct q_err *e)
{
    uint32_t percent;
    if (core_state(c, &percent) == CORE_LOADING)
        return q_fail(e, Q_UNAVAILABLE, "loading %u %%", percent);
    if (c->state == CORE_FAILED)
        return q_fail(e, Q_UNAVAILABLE, "the engine failed: %s", c->failure.message);
    return Q_OK;
}

static size_t bytes_of(const struct item_array *items, uint32_t n)
{
    size_t n_byte = 0;
    for (uint32_t i = 0; i < n; i++)
        n_byte += items[i].n_byte;
    return n_byte;
}

static FALLIBLE start_intake(struct core *c, struct q_err *e)
{
    if (c->intake)
        return Q_OK;
    enum q_code rc = item_intake_new(&c->intake, e);
    return rc ? rc : core_watch(c, item_intake_fd(c->intake), e);
}

/* Reserve the store, and hand the contents to the thread. */
static FALLIBLE begin_intake(struct core *c, const struct msg_submit *m,
                             const struct core_items_args *a, struct item_contents *contents,
                             struct q_err *e)
{
    struct core_items_job job;
    bool any;
    enum q_code rc = core_items_begin(&c->items, a, &any, e);
    if (rc || (rc = start_intake(c, e)))
        return rc;
    Q_ASSERT(any); /* else items are an error */
    if ((rc = core_items_reserve(&c->items, &job, a, e)) ||
        (rc = item_intake_add(c->intake, &job, m, contents, e))) {
        item_store_drop(&c->items.store, a->owner, 0);
        return rc;
    }
    return Q_OK;
}

FALLIBLE core_submit_contents(struct core *c, uint32_t frontend_id, const struct msg_submit *m,
                              const struct core_submit_items_args *items, struct q_err *e)
{
    Q_ASSERT(m && (m->prompt.data || !m->prompt.n) && (m->grammar.data || !m->grammar.n));
    struct item_contents none = ITEM_CONTENTS_INIT,
                         *contents = items->contents ? items->contents : &none;
    struct msg_submit own = *m;
    struct core_items_args a = args_of(c, frontend_id, m->req_id);
    enum q_code rc = check_state(c, e);
    if (!rc)
        rc = with_pooling(c, &own, e);
    a.items = items->items;
    a.n = items->n;
    if (!rc)
        rc = core_adapters_find(c->adapters, &own.adapter_id, m->adapter.data, m->adapter.n, e);
    if (m->count_only)
        a.max_model_len = COUNT_TOKENS_MAX;
    if (!rc && a.n && (m->count_only || bytes_of(a.items, a.n) > ITEM_INTAKE_INLINE)) {
        rc = begin_intake(c, &own, &a, contents, e);
    } else if (!rc && !(rc = item_contents_read(contents, e)) &&
               !(rc = core_items_take(&c->items, &own, &a, e))) {
        rc = submit_taken(c, frontend_id, &own, e);
    }
    item_contents_release(contents);
    return rc;
}

FALLIBLE core_submit_items(struct core *c, uint32_t frontend_id, const struct msg_submit *m,
                           const struct item_array *items, uint32_t n, struct q_err *e)
{
    return core_submit_contents(c, frontend_id, m,
                                &(struct core_submit_items_args){.items = items, .n = n}, e);
}

FALLIBLE core_submit(struct core *c, uint32_t frontend_id, const struct msg_submit *m,
                     struct q_err *e)
{
    uint32_t n = 0;
    enum q_code rc = m->item_shapes.n ? core_items_read(&c->items, m, &n, e) : Q_OK;
    return rc ? rc : core_submit_items(c, frontend_id, m, c->items.arrays, n, e);
}

bool core_items_pending(const struct core *c, uint32_t frontend_id, uint64_t req_id)
{
    return c->intake && item_intake_has(c->intake, (struct item_owner){frontend_id, req_id});
}

/* Its items are counted; nothing is computed. */
static void end_counted(struct core *c, struct scheduler_output o)
{
    o.is_accepted = false;
    o.finish = FINISH_STOP;
    core_give(c, NULL, &o, 1); /* and releases the items */
}

/* A job whose contents are in the store: to the scheduler, or to its end. */
static void take_one(struct core *c, struct intake_job *j)
{
    const struct item_owner owner = j->items.args.owner;
    struct scheduler_output o = {
        .frontend_id = owner.frontend_id,
        .req_id = owner.req_id,
        .why = &j->error,
    };
    if (j->is_aborted || j->error.code ||
        core_items_place(&c->items, &j->items, &j->submit, &j->error))
        item_store_drop(&c->items.store, owner, 0); /* no step knows it */
    if (j->is_aborted)
        return;
    const bool is_counted = !j->error.code && j->submit.count_only;
    if (!j->error.code &&
        (is_counted || !submit_taken(c, owner.frontend_id, &j->submit, &j->error))) {
        o.is_accepted = true;
        o.why = NULL;
        c->sink(c->sink_ctx, NULL, &o, 1);
        if (is_counted)
            end_counted(c, o);
        return;
    }
    o.finish = FINISH_ERROR;
    o.code = j->error.code;
    core_give(c, NULL, &o, 1);
}

void core_take_intake(struct core *c)
{
    struct intake_job *j;
    while (c->intake && (j = item_intake_take(c->intake))) {
        take_one(c, j);
        item_intake_drop(j);
    }
}

/* A thread cannot be ended, but an engine can that has processes of its own: its supervisor starts
 * another, and the request is found by which engines end. */
static int64_t job_since_ms(const struct core *c)
{
    return c->intake && c->worker.pid && c->config.stall_timeout_s ? item_intake_since_ms(c->intake)
                                                                   : 0;
}

static int64_t intake_limit_ms(const struct core *c)
{
    return (int64_t)c->config.stall_timeout_s * INTAKE_STALLS * 1000;
}

int64_t core_intake_due_ms(const struct core *c)
{
    const int64_t job_ms = job_since_ms(c), look_ms = clock_ms() + LOOK_MS;
    const bool is_watched = job_ms == c->intake_watch.job_ms;
    const int64_t end_ms = (is_watched ? c->intake_watch.since_ms : job_ms) + intake_limit_ms(c);
    return !job_ms ? 0 : end_ms < look_ms ? end_ms : look_ms;
}

FALLIBLE core_check_intake(struct core *c, struct q_err *e)
{
    const int64_t job_ms = job_since_ms(c), now_ms = clock_ms();
    const int64_t since_ms = clock_watch_since(&c->intake_watch, job_ms, now_ms, LATE_MS);
    if (!since_ms || now_ms < since_ms + intake_limit_ms(c))
        return Q_OK;
    return q_fail(e, Q_TIMEOUT,
                  "the items of a request are not read within %u s (%u times --stall-timeout): "
                  "count_tokens or check_item of the plugin hangs",
                  c->config.stall_timeout_s * INTAKE_STALLS, INTAKE_STALLS);
}

void core_end_intake(struct core *c)
{
    if (c->intake)
        item_intake_wait(c->intake);
}
