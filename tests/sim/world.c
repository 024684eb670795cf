/* SPDX-License-Identifier: Apache-2.0 */
#include "world.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "common/mem.h"
#include "engine/sched/scheduler.h"
#include "fake_worker.h"

#define STEP_US      1000 /* virtual time of a step, beside that of its rows */
#define STOP_IDS_MAX 3
#define N_FRONTEND   3

struct client { /* one request as its frontend sees it */
    struct msg_submit m;
    uint32_t *prompt; /* [m.prompt.n] */
    uint32_t stop_ids[STOP_IDS_MAX];
    char salt[8]; /* by its seed, as in the fake worker */
    uint32_t frontend_id;
    int64_t arrives_us, submitted_us;
    int64_t started_us; /* time of the first step in this engine; -1 = unknown */
    int64_t deadline_us;
    uint32_t *want; /* [n_want] the output it gives alone */
    uint32_t n_want, want_stop_id;
    enum finish_reason want_finish;
    uint32_t *got;               /* [n_got] */
    uint32_t n_got, prompt_next; /* next prompt position whose logprobs come */
    bool submitted, over, aborted;
};

struct world {
    const struct scenario *sc;
    struct scheduler_config config;
    struct scheduler *scheduler;
    struct fake_worker *worker;
    struct fake_model model;
    struct client *clients; /* [n_client] in order of arrival */
    uint32_t n_client, n_over, n_tenant, n_priority;
    int64_t now_us, row_us; /* row_us: of a row of a step */
    uint64_t random;
    void *step_memory[SCHEDULER_IN_FLIGHT_MAX], *result_memory;
    size_t step_bytes, result_bytes;
    uint32_t i_step, n_in_flight; /* ring over step_memory */
    struct scheduler_output *outputs;
    struct world_report *report;
};

static uint32_t eos_ids[] = {FAKE_EOS};

static uint64_t next_random(struct world *w)
{
    w->random ^= w->random << 13; /* xorshift64; never 0 */
    w->random ^= w->random >> 7;
    w->random ^= w->random << 17;
    return w->random * UINT64_C(0x2545f4914f6cdd1d) >> 16;
}

static uint32_t pick(struct world *w, struct range r)
{
    return r.min + (uint32_t)(next_random(w) % ((uint64_t)r.max - r.min + 1));
}

static bool chance(struct world *w, uint32_t in_10000)
{
    return next_random(w) % 10000 < in_10000;
}

static void *need(void *p)
{
    if (!p)
        sim_fail("no memory");
    return p;
}

static void compute_alone(struct world *w, struct client *c)
{
    struct fake_answer a = {.ids = c->want};
    fake_model_answer(&w->model, &c->m, w->config.limits.max_model_len, &a);
    c->n_want = a.n;
    c->want_stop_id = a.stop_id;
    c->want_finish = a.finish;
}

/* Whose it is and how urgent. In a flood the last ones are each of another tenant. */
static void set_policy(struct world *w, struct client *c, uint32_t i)
{
    if (w->sc->flood)
        c->m.tenant = i + w->n_tenant > w->n_client ? w->n_client - i : 0;
    else if (w->n_tenant)
        c->m.tenant = next_random(w) % w->n_tenant;
    if (!w->sc->flood && w->n_tenant)
        c->m.weight = 1 + (uint32_t)(c->m.tenant % 3);
    if (w->n_priority)
        c->m.priority = (uint32_t)(next_random(w) % w->n_priority) - 2; /* -2, -1, 0, … */
}

/* The prompt begins with a part of an earlier client's prompt, or all of it and a part of the
 * answer, as in a conversation; nothing, a little or a lot follows. */
static void begin_alike(struct world *w, struct client *c, uint32_t i)
{
    const struct client *like = &w->clients[next_random(w) % i];
    uint32_t n_prompt = (uint32_t)like->m.prompt.n, n_all = n_prompt + like->n_want;
    uint32_t n = chance(w, 3000) ? n_prompt : 1 + (uint32_t)(next_random(w) % n_all);
    uint32_t n_more = chance(w, 3000) ? 0 : (uint32_t)(next_random(w) % 40);
    uint32_t n_max = w->config.limits.max_model_len - 1;
    n = n < n_max ? n : n_max;
    n_more = n_more < n_max - n ? n_more : n_max - n;
    q_free(c->prompt);
    c->prompt = need(q_calloc(n + n_more, sizeof *c->prompt));
    for (uint32_t j = 0; j < n; j++)
        c->prompt[j] = j < n_prompt ? like->prompt[j] : like->want[j - n_prompt];
    for (uint32_t j = n; j < n + n_more; j++)
        c->prompt[j] = (uint32_t)(next_random(w) % w->model.vocab_size);
    c->m.prompt = (struct proto_u32s){c->prompt, n + n_more};
    if (chance(w, 7000)) /* the client whose answer it continues */
        c->m.seed = like->m.seed;
}

static void make_client(struct world *w, struct client *c, uint32_t i, int64_t arrives_us)
{
    uint32_t max_len = w->config.limits.max_model_len;
    uint32_t n_prompt = pick(w, w->sc->n_prompt);
    n_prompt = n_prompt < max_len ? n_prompt : max_len - 1;
    c->prompt = need(q_calloc(n_prompt, sizeof *c->prompt));
    for (uint32_t j = 0; j < n_prompt; j++)
        c->prompt[j] = (uint32_t)(next_random(w) % w->model.vocab_size);
    for (uint32_t j = 0; j < STOP_IDS_MAX; j++)
        c->stop_ids[j] = (uint32_t)(next_random(w) % w->model.vocab_size);
    uint32_t max_tokens = pick(w, w->sc->n_new);
    c->m = (struct msg_submit){
        .req_id = i + 1,
        .prompt = {c->prompt, n_prompt},
        .temperature = (float)(next_random(w) % 3) / 2.0f,
        .top_p = 1.0f,
        .repetition_penalty = 1.0f,
        .seed = next_random(w),
        .max_tokens = max_tokens,
        .min_tokens = chance(w, 3000) ? (uint32_t)(next_random(w) % (max_tokens + 1)) : 0,
        .ignore_eos = chance(w, 3000),
        .n_logprob = chance(w, 300) ? w->model.vocab_size + 1 : (uint32_t)(next_random(w) % 4),
        .n_prompt_logprob = chance(w, 2500)  ? 1 + (uint32_t)(next_random(w) % 3)
                            : chance(w, 300) ? w->model.vocab_size + 1
                                             : 0,
        .stop_ids = {c->stop_ids, chance(w, 3000) ? STOP_IDS_MAX : 0},
        .no_prefix_cache = chance(w, 500),
    };
    set_policy(w, c, i);
    if (w->config.n_forced && chance(w, 3000)) { /* the fake worker ignores its contents */
        static const uint8_t program[] = "a grammar's words"; /* a multiple of 4 is taken */
        c->m.grammar_kind = 1;
        c->m.grammar = (struct proto_bytes){program, 16};
    }
    if (i && chance(w, w->sc->alike))
        begin_alike(w, c, i);
    int n_salt = snprintf(c->salt, sizeof c->salt, "%u", (unsigned)(c->m.seed % FAKE_SALTS));
    if (c->m.seed % FAKE_SALTS)
        c->m.cache_salt = (struct proto_bytes){(const uint8_t *)c->salt, (size_t)n_salt};
    c->frontend_id = i % N_FRONTEND;
    c->arrives_us = arrives_us;
    c->started_us = -1;
    c->prompt_next = 1;
    c->want = need(q_calloc(max_tokens, sizeof *c->want));
    c->got = need(q_calloc(max_tokens, sizeof *c->got));
    compute_alone(w, c);
}

/* Add the statistics of one scheduler. */
static void add_stats(struct world *w, const struct scheduler_stats *s)
{
    w->report->n_hit += s->prefix_hits;
    w->report->n_preemption += s->n_preemption;
    w->report->n_swap_out += s->n_swap_out;
    w->report->n_swap_in += s->n_swap_in;
}

static void new_scheduler(struct world *w)
{
    struct q_err e = Q_ERR_INIT;
    if (w->scheduler) {
        struct scheduler_stats stats;
        scheduler_stats(w->scheduler, &stats);
        add_stats(w, &stats);
        scheduler_free(w->scheduler);
    }
    if (scheduler_new(&w->scheduler, &w->config, &e))
        sim_fail("%s", e.message);
}

static void new_worker(struct world *w)
{
    fake_worker_free(w->worker);
    w->worker =
        fake_worker_new(&w->model, &w->config.limits, w->config.n_block, w->config.n_swap_block);
    w->n_in_flight = 0;
}

static void init_policy(struct world *w)
{
    struct scheduler_policy *p = &w->config.policy;
    w->n_tenant = pick(w, w->sc->n_tenant);
    w->n_priority = pick(w, w->sc->n_priority);
    p->by_priority = w->n_priority;
    p->long_prefill_token_threshold = pick(w, w->sc->threshold);
    p->max_num_partial_prefills = pick(w, w->sc->n_partial);
    p->max_long_partial_prefills = pick(w, w->sc->n_long);
    p->delay_factor = w->sc->delay_percent / 100.0;
    p->request_timeout_us = pick(w, w->sc->timeout_us);
}

static void world_init(struct world *w, const struct scenario *sc, uint64_t seed)
{
    struct q_err e = Q_ERR_INIT;
    *w = (struct world){.sc = sc, .random = seed * UINT64_C(0x9e3779b97f4a7c15) | 1};
    w->row_us = (int64_t)(seed % 4) * STEP_US / 10;
    w->model = (struct fake_model){.vocab_size = 97, .eos_every = 60};
    struct step_limits *l = &w->config.limits;
    l->max_num_seqs = pick(w, sc->max_num_seqs);
    l->max_num_batched_tokens = pick(w, sc->max_num_batched_tokens);
    l->max_model_len = pick(w, sc->max_model_len);
    l->logit_rows_max = l->max_num_seqs + pick(w, sc->logit_rows_more);
    l->top_more = 2 * w->model.vocab_size; /* two requests with full logprobs, in one step */
    l->known_max = l->max_model_len + (uint32_t)(next_random(w) % l->max_model_len);
    w->config.n_draft_token = pick(w, sc->n_draft_token);
    w->config.n_forced = chance(w, 3000) ? 1 + (uint32_t)(next_random(w) % 16) : 0;
    if (sc->has_states) {
        l->n_state = l->max_num_seqs + pick(w, sc->n_state_more);
        w->config.n_forced = 0;
    }
    uint32_t n_block_min = (l->max_model_len + STEP_BLOCK_TOKENS - 1) / STEP_BLOCK_TOKENS;
    w->config.n_block = n_block_min + pick(w, sc->n_block_more);
    w->config.n_swap_block = pick(w, sc->n_swap);
    l->copies_max = n_block_min + (uint32_t)(next_random(w) % n_block_min);
    w->config.policy.preemption = (enum preemption_mode)pick(w, sc->preemption);
    w->config.vocab_size = w->model.vocab_size;
    w->config.eos_ids = eos_ids;
    w->config.n_eos = 1;
    w->config.prefix_cache = chance(w, 8000);
    if (chance(w, 2000))
        w->config.prompt_free_len = w->model.prompt_free_len = 1 + (uint32_t)(next_random(w) % 60);
    w->n_client = pick(w, sc->n_request);
    w->config.queue_max = 1 + (uint32_t)(next_random(w) % w->n_client);
    w->clients = need(q_calloc(w->n_client, sizeof *w->clients));
    init_policy(w);
    int64_t at = 0;
    for (uint32_t i = 0; i < w->n_client; i++) {
        make_client(w, &w->clients[i], i, at);
        at += sc->flood && i + w->n_tenant < w->n_client ? 0 : pick(w, sc->gap_us);
    }
    if (step_bytes_max(&w->step_bytes, &w->result_bytes, l, &e))
        sim_fail("%s", e.message);
    for (uint32_t i = 0; i < SCHEDULER_IN_FLIGHT_MAX; i++)
        w->step_memory[i] = need(q_alloc(w->step_bytes));
    w->result_memory = need(q_alloc(w->result_bytes));
    w->outputs = need(q_calloc(l->logit_rows_max, sizeof *w->outputs));
    new_scheduler(w);
    new_worker(w);
}

static void world_release(struct world *w)
{
    for (uint32_t i = 0; i < w->n_client; i++) {
        q_free(w->clients[i].prompt);
        q_free(w->clients[i].want);
        q_free(w->clients[i].got);
    }
    q_free(w->clients);
    for (uint32_t i = 0; i < SCHEDULER_IN_FLIGHT_MAX; i++)
        q_free(w->step_memory[i]);
    q_free(w->result_memory);
    q_free(w->outputs);
    scheduler_free(w->scheduler);
    fake_worker_free(w->worker);
}

/* Requests that the scheduler ended: evicted ones are submitted again later, others have ended. */
static void take_ends(struct world *w)
{
    struct scheduler_output o;
    while (scheduler_take_end(w->scheduler, w->now_us, &o)) {
        struct client *c = &w->clients[o.req_id - 1];
        if (o.req_id > w->n_client || c->frontend_id != o.frontend_id || !c->submitted || c->over)
            sim_fail("end of request %llu", (unsigned long long)o.req_id);
        if (o.seq != c->n_got || o.finish != (c->n_got ? FINISH_ABORT : FINISH_ERROR))
            sim_fail("request %llu: ended with %u tokens, has %u", (unsigned long long)o.req_id,
                     o.seq, c->n_got);
        if (o.code == Q_NO_SPACE && w->n_tenant > 1 && c->started_us < 0) {
            c->submitted = false;
            w->report->n_pushed_out++;
        } else if (o.code == Q_TIMEOUT && w->now_us >= c->deadline_us) {
            c->over = true;
            w->n_over++;
            w->report->n_timeout++;
        } else {
            sim_fail("request %llu: ended with code %d", (unsigned long long)o.req_id, o.code);
        }
    }
    for (uint32_t i = 0; i < w->n_client; i++)
        if (w->clients[i].submitted && !w->clients[i].over &&
            w->now_us >= w->clients[i].deadline_us)
            sim_fail("request %u is open after its time", i + 1);
}

/* False when the queue is full; the frontend tries again later. */
static bool submit_client(struct world *w, struct client *c)
{
    struct q_err e = Q_ERR_INIT;
    c->m.emitted = (struct proto_u32s){c->got, c->n_got};
    c->m.age_ms = (uint64_t)(w->now_us - c->arrives_us) / 1000;
    enum q_code rc = scheduler_submit(w->scheduler, c->frontend_id, &c->m, w->now_us, &e);
    if (rc == Q_NO_SPACE)
        return false;
    if (rc)
        sim_fail("request %llu: %s", (unsigned long long)c->m.req_id, e.message);
    c->prompt_next = 1;
    c->submitted = true;
    c->submitted_us = w->now_us;
    c->started_us = -1;
    c->deadline_us =
        w->config.policy.request_timeout_us
            ? w->now_us + w->config.policy.request_timeout_us - (int64_t)c->m.age_ms * 1000
            : INT64_MAX;
    take_ends(w);
    return true;
}

/* All that have arrived and are not with the engine, in order, while it takes them. */
static void submit_due(struct world *w)
{
    for (uint32_t i = 0; i < w->n_client; i++) {
        struct client *c = &w->clients[i];
        if (c->arrives_us > w->now_us)
            return;
        if (!c->submitted && !c->over && !submit_client(w, c) && w->n_tenant < 2)
            return;
    }
}

static bool is_open(const struct client *c)
{
    return c->submitted && !c->over;
}

static void abort_client(struct world *w, struct client *c)
{
    c->over = c->aborted = true;
    w->n_over++;
    w->report->n_aborted++;
}

static void abort_one(struct world *w)
{
    struct client *c = &w->clients[next_random(w) % w->n_client];
    if (scheduler_abort(w->scheduler, c->frontend_id, c->m.req_id) != is_open(c))
        sim_fail("abort of request %llu", (unsigned long long)c->m.req_id);
    if (is_open(c))
        abort_client(w, c);
}

static void lose_frontend(struct world *w)
{
    uint32_t frontend_id = (uint32_t)(next_random(w) % N_FRONTEND), n = 0;
    for (uint32_t i = 0; i < w->n_client; i++)
        if (is_open(&w->clients[i]) && w->clients[i].frontend_id == frontend_id) {
            abort_client(w, &w->clients[i]);
            n++;
        }
    if (scheduler_abort_frontend(w->scheduler, frontend_id) != n)
        sim_fail("frontend %u had %u requests open", frontend_id, n);
}

/* Might b have started before a, which was submitted earlier? */
static bool may_overtake(const struct world *w, const struct client *a, const struct client *b)
{
    if (w->config.policy.max_long_partial_prefills) /* a may be a long one */
        return true;
    if ((int32_t)a->m.priority != (int32_t)b->m.priority)
        return (int32_t)b->m.priority < (int32_t)a->m.priority;
    return a->m.tenant != b->m.tenant;
}

/* Requests that waited while another one was started: the policy must permit the overtaking. At
 * most one request of a flooding tenant is started while another tenant waits, because its charge
 * is then larger. */
static void check_policy(const struct world *w)
{
    for (uint32_t i = 0; i < w->n_client; i++) {
        const struct client *a = &w->clients[i];
        uint32_t n_flood = 0;
        for (uint32_t j = 0; j < w->n_client && a->started_us >= 0; j++) {
            const struct client *b = &w->clients[j];
            bool waited = a->submitted_us <= b->started_us && b->started_us < a->started_us;
            bool earlier = a->submitted_us < b->submitted_us ||
                           (int32_t)a->m.priority < (int32_t)b->m.priority;
            if (waited && earlier && !may_overtake(w, a, b))
                sim_fail("request %u started while request %u waited", j + 1, i + 1);
            n_flood += waited && w->sc->flood && a->m.tenant && b->m.tenant == 0;
        }
        if (n_flood > 1)
            sim_fail("%u of the flood started while request %u waited", n_flood, i + 1);
    }
}

/* First come, first served: clients are in order of submission, and no client started before an
 * earlier one. */
static void check_fair(const struct world *w)
{
    int64_t latest_us = 0;
    check_policy(w);
    if (w->n_tenant > 1 || w->n_priority || w->config.policy.max_long_partial_prefills)
        return;
    for (uint32_t i = 0; i < w->n_client; i++) {
        const struct client *c = &w->clients[i];
        if (c->started_us < 0)
            continue;
        if (c->started_us < latest_us)
            sim_fail("request %u started %lld us before one that came earlier", i + 1,
                     (long long)(latest_us - c->started_us));
        latest_us = c->started_us;
    }
}

/* The engine restarts; frontends resubmit open requests with the tokens received so far. */
static void lose_engine(struct world *w)
{
    check_fair(w);
    new_scheduler(w);
    new_worker(w);
    for (uint32_t i = 0; i < w->n_client; i++) {
        w->clients[i].started_us = -1;
        w->clients[i].submitted = w->clients[i].over;
    }
    submit_due(w);
}

/* Some are blamed for it: they are tried alone, and one that was alone too often ends. */
static void lose_worker(struct world *w)
{
    struct scheduler_output culprit;
    if (chance(w, 2000)) {
        scheduler_worker_lost(w->scheduler);
    } else if (scheduler_worker_died(w->scheduler, &culprit)) {
        struct client *c = &w->clients[culprit.req_id - 1];
        if (!is_open(c) || c->frontend_id != culprit.frontend_id ||
            culprit.finish != FINISH_ERROR || culprit.has_token || culprit.seq != c->n_got)
            sim_fail("request %llu is blamed", (unsigned long long)culprit.req_id);
        abort_client(w, c);
        w->report->n_culprit++;
    }
    scheduler_check(w->scheduler);
    new_worker(w);
}

static void play_events(struct world *w)
{
    take_ends(w);
    if (chance(w, w->sc->n_abort))
        abort_one(w);
    if (chance(w, w->sc->n_frontend_gone))
        lose_frontend(w);
    if (chance(w, w->sc->n_reset))
        scheduler_reset_prefix_cache(w->scheduler);
    submit_due(w); /* an entry of the scheduler's may be used again while its rows are in flight */
    if (chance(w, w->sc->n_worker_lost))
        lose_worker(w);
    if (chance(w, w->sc->n_engine_lost))
        lose_engine(w);
    scheduler_check(w->scheduler);
}

static void take_prompt_rows(struct client *c, const struct scheduler_output *o)
{
    for (uint32_t i = 0; i < o->n_prompt_row; i++) {
        const struct step_row *row = &o->prompt_rows[i];
        if (!c->m.n_prompt_logprob || row->position != c->prompt_next ||
            c->prompt_next >= c->m.prompt.n || row->token != c->prompt[row->position])
            sim_fail("request %llu: prompt row %u, wanted %u", (unsigned long long)c->m.req_id,
                     row->position, c->prompt_next);
        c->prompt_next++;
    }
}

static void check_finish(struct world *w, struct client *c, const struct scheduler_output *o)
{
    if (o->finish != c->want_finish || o->stop_id != c->want_stop_id || c->n_got != c->n_want)
        sim_fail("request %llu: finish %d with %u tokens, wanted %d with %u",
                 (unsigned long long)c->m.req_id, o->finish, c->n_got, c->want_finish, c->n_want);
    if (c->m.n_prompt_logprob && c->prompt_next != c->m.prompt.n)
        sim_fail("request %llu: prompt rows up to %u came", (unsigned long long)c->m.req_id,
                 c->prompt_next);
    c->over = true;
    w->n_over++;
}

static void take_output(struct world *w, const struct scheduler_output *o)
{
    struct client *c = &w->clients[o->req_id - 1];
    if (o->req_id > w->n_client || c->frontend_id != o->frontend_id || !is_open(c))
        sim_fail("output for request %llu", (unsigned long long)o->req_id);
    c->started_us = c->submitted_us + (int64_t)o->queue_us;
    take_prompt_rows(c, o);
    if (o->has_token) {
        if (o->seq != c->n_got || c->n_got == c->n_want || o->token != c->want[c->n_got])
            sim_fail("request %llu: token %u is %u, wanted token %u: %u",
                     (unsigned long long)c->m.req_id, o->seq, o->token, c->n_got,
                     c->want[c->n_got]);
        if (o->row->n_top != (c->m.n_logprob ? c->m.n_logprob - 1 : 0))
            sim_fail("request %llu: %u alternatives", (unsigned long long)c->m.req_id,
                     o->row->n_top);
        c->got[c->n_got++] = o->token;
        w->report->n_token++;
    }
    if (o->finish)
        check_finish(w, c, o);
}

static uint32_t step_rows(const struct world *w, void *memory)
{
    struct q_err e = Q_ERR_INIT;
    struct step_view v;
    if (step_view(&v, memory, w->step_bytes, &w->config.limits, &e))
        sim_fail("%s", e.message);
    return v.head->n_token;
}

static void settle_one(struct world *w)
{
    struct q_err e = Q_ERR_INIT;
    struct step_result r;
    uint32_t n_output;
    void *memory = w->step_memory[w->i_step];
    memset(w->result_memory, 0xa5, w->result_bytes);
    fake_worker_execute(w->worker, memory, w->step_bytes, w->result_memory, w->result_bytes);
    w->now_us += STEP_US + w->row_us * step_rows(w, memory);
    if (step_result_view(&r, w->result_memory, w->result_bytes, &w->config.limits, &e))
        sim_fail("%s", e.message);
    alloc_freeze();
    if (scheduler_settle(w->scheduler, &r, w->now_us, w->outputs, &n_output, &e))
        sim_fail("%s", e.message);
    alloc_thaw();
    scheduler_check(w->scheduler);
    for (uint32_t i = 0; i < n_output; i++)
        take_output(w, &w->outputs[i]);
    w->i_step = (w->i_step + 1) % SCHEDULER_IN_FLIGHT_MAX;
    w->n_in_flight--;
}

/* No chunk of a prompt beyond the threshold, and for each tenant no more prompts left in the middle
 * than may be. */
static void check_limits(const struct world *w, void *memory)
{
    const struct scheduler_policy *p = &w->config.policy;
    struct q_err e = Q_ERR_INIT;
    struct step_view v;
    uint32_t n_partial = 0;
    if (step_view(&v, memory, w->step_bytes, &w->config.limits, &e))
        sim_fail("%s", e.message);
    for (uint32_t i = 0; i < v.head->n_seq; i++) {
        const struct step_seq *q = &v.seqs[i];
        uint32_t threshold = q->flags & STEP_SPECULATE ? 0 : p->long_prefill_token_threshold;
        if (threshold && q->n_token > threshold)
            sim_fail("%u rows of a prompt, %u are the most", q->n_token, threshold);
        n_partial += !(q->flags & STEP_SAMPLE);
    }
    const uint32_t n_max = p->max_num_partial_prefills * (w->n_tenant ? w->n_tenant : 1);
    if (n_max && n_partial > n_max)
        sim_fail("%u prompts in the middle, %u are the most", n_partial, n_max);
}

/* True when a step was planned. */
static bool plan_one(struct world *w)
{
    struct q_err e = Q_ERR_INIT;
    bool planned;
    void *memory = w->step_memory[(w->i_step + w->n_in_flight) % SCHEDULER_IN_FLIGHT_MAX];
    memset(memory, 0x5a, w->step_bytes < 4096 ? w->step_bytes : 4096);
    alloc_freeze();
    if (scheduler_plan(w->scheduler, memory, w->step_bytes, w->now_us, &planned, &e))
        sim_fail("%s", e.message);
    alloc_thaw();
    scheduler_check(w->scheduler);
    if (planned)
        check_limits(w, memory);
    w->n_in_flight += planned;
    w->report->n_step += planned;
    return planned;
}

/* One iteration of the engine's loop. With depth 2 it sometimes settles early, as a fast worker
 * would have it. */
static void play_iteration(struct world *w)
{
    play_events(w);
    while (w->n_in_flight < w->sc->depth && plan_one(w))
        if (chance(w, 2000))
            break;
    while (chance(w, w->sc->n_preempt) && scheduler_preempt_last(w->scheduler))
        scheduler_check(w->scheduler);
    if (w->n_in_flight) {
        settle_one(w);
        return;
    }
    /* Nothing to compute: then no client may be waiting. */
    int64_t next_us = INT64_MAX;
    for (uint32_t i = 0; i < w->n_client; i++) {
        const struct client *c = &w->clients[i];
        if (is_open(c))
            sim_fail("deadlock: request %u is open and no step is planned", i + 1);
        if (!c->over && c->arrives_us < next_us)
            next_us = c->arrives_us;
    }
    if (next_us != INT64_MAX && next_us > w->now_us)
        w->now_us = next_us;
}

/* Steps that surely suffice: every token of every request alone, recomputed for every fault and
 * preemption. */
static uint64_t iteration_bound(const struct world *w)
{
    uint64_t n = 100;
    for (uint32_t i = 0; i < w->n_client; i++)
        n += 2 * w->clients[i].n_want + w->clients[i].m.prompt.n + 2;
    return n * (w->sc->n_worker_lost || w->sc->n_engine_lost || w->sc->n_preempt ? 8 : 2);
}

static void check_end(struct world *w)
{
    struct scheduler_stats stats;
    while (w->n_in_flight) /* steps of requests that are over */
        settle_one(w);
    check_fair(w);
    scheduler_stats(w->scheduler, &stats);
    if (stats.kv_blocks_used || stats.n_running || stats.n_waiting || stats.n_in_flight ||
        stats.n_swapped || stats.swap_blocks_used)
        sim_fail("left over: %u blocks, %u running, %u waiting, %u in flight; %u swapped, %u "
                 "blocks in host memory",
                 stats.kv_blocks_used, stats.n_running, stats.n_waiting, stats.n_in_flight,
                 stats.n_swapped, stats.swap_blocks_used);
    if (stats.prefix_hits > stats.prefix_queries || (stats.prefix_hits && !w->config.prefix_cache))
        sim_fail("%llu of %llu tokens found", (unsigned long long)stats.prefix_hits,
                 (unsigned long long)stats.prefix_queries);
    add_stats(w, &stats);
}

void world_run(const struct scenario *sc, uint64_t seed, struct world_report *report)
{
    struct world w;
    memset(report, 0, sizeof *report);
    world_init(&w, sc, seed);
    w.report = report;
    uint64_t bound = iteration_bound(&w);
    for (; w.n_over < w.n_client; report->n_iteration++) {
        if (report->n_iteration == bound)
            sim_fail("%u of %u requests are not over after %llu turns", w.n_client - w.n_over,
                     w.n_client, (unsigned long long)bound);
        play_iteration(&w);
    }
    check_end(&w);
    world_release(&w);
}
