/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cuda/trial_attention.h"
#include <math.h>
#include <string.h>
#include "kernels/cuda/layout.h"

#define SEQS     3u
#define HEAD_MAX 64u
#define WORST    0x1p-9

/* A long prompt's later chunk, a prompt, a sequence that decodes. */
struct shape {
    uint32_t starts[SEQS], queries[SEQS];
    uint32_t n_head, n_kv_head, n_block;
};
struct problem {
    const struct shape *shape;
    uint32_t head_dim, window;
    float soft_cap;
    bool sinks;
};
static const struct shape small = {
    .starts = {260, 0, 77},
    .queries = {77, 21, 1},
    .n_head = 8,
    .n_kv_head = 2,
    .n_block = 32,
};
static const struct shape large = {
    .starts = {3000, 0, 2077},
    .queries = {900, 1100, 1},
    .n_head = 32,
    .n_kv_head = 8,
    .n_block = 512,
};
static const struct problem problems[] = {
    {&small, 128, 0, 0, true},  {&small, 128, 130, 15, false}, {&small, 64, 0, 0, false},
    {&large, 128, 0, 0, false}, {&large, 128, 1024, 0, true},  {&large, 64, 0, 30, false},
};
#define N_SMALL   3u
#define N_PROBLEM (sizeof problems / sizeof *problems)

struct arrays { /* of one problem, in host memory or in the device's */
    uint16_t *k, *v;
    float *q, *sinks, *got[2];
    uint32_t *blocks;
    struct attention_seq *seqs;
    void *plan;
};
struct trial {
    const struct device_link *on;
    void *host, *card, *scratch;
    size_t bytes, scratch_bytes; /* of host and of card alike; of scratch */
    uint64_t rng;
};

static uint32_t n_row_of(const struct problem *p)
{
    uint32_t n = 0;
    for (uint32_t s = 0; s < SEQS; s++)
        n += p->shape->queries[s];
    return n;
}

static size_t n_cache_of(const struct problem *p) /* values of K, and of V */
{
    return (size_t)p->shape->n_block * p->shape->n_kv_head * KERN_BLOCK * p->head_dim;
}

static size_t n_float_of(const struct problem *p) /* values of q, and of the output */
{
    return (size_t)n_row_of(p) * p->shape->n_head * p->head_dim;
}

static struct arrays arrays_at(void *base, const struct problem *p, size_t plan_bytes,
                               size_t *bytes)
{
    const size_t n_cache = n_cache_of(p) * sizeof(uint16_t),
                 n_float = n_float_of(p) * sizeof(float);
    size_t n = 0;
    struct arrays a;
    a.k = trial_take(base, &n, n_cache);
    a.v = trial_take(base, &n, n_cache);
    a.q = trial_take(base, &n, n_float);
    a.sinks = trial_take(base, &n, HEAD_MAX * sizeof(float));
    a.blocks = trial_take(base, &n, p->shape->n_block * sizeof(uint32_t));
    a.seqs = trial_take(base, &n, SEQS * sizeof(struct attention_seq));
    a.plan = trial_take(base, &n, plan_bytes);
    a.got[0] = trial_take(base, &n, n_float);
    a.got[1] = trial_take(base, &n, n_float);
    *bytes = n;
    return a;
}

static void fill_head(struct trial *t, uint16_t *to, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        to[i] = f32_to_bf16(trial_draw_f32(&t->rng));
}

/* Shuffled blocks of the pool, and random contents of the cache. card: the arrays that the device
 * reads. */
static void fill_cache(struct trial *t, const struct problem *p, const struct arrays *h,
                       const struct arrays *card)
{
    const struct shape *shape = p->shape;
    uint32_t n_used = 0, row = 0;
    memset(h->k, 0xff, n_cache_of(p) * sizeof *h->k);
    memset(h->v, 0xff, n_cache_of(p) * sizeof *h->v);
    for (uint32_t i = 0; i < shape->n_block; i++)
        h->blocks[i] = i * 13 % shape->n_block;
    for (size_t i = 0; i < n_float_of(p); i++)
        h->q[i] = 4 * trial_draw_f32(&t->rng);
    for (uint32_t i = 0; i < HEAD_MAX; i++)
        h->sinks[i] = trial_draw_f32(&t->rng);
    for (uint32_t s = 0; s < SEQS; s++) {
        const uint32_t n = shape->starts[s] + shape->queries[s];
        h->seqs[s] =
            (struct attention_seq){card->blocks + n_used, row, shape->queries[s], shape->starts[s]};
        row += shape->queries[s];
        for (uint32_t at = 0; at < n * shape->n_kv_head; at++) {
            const uint32_t c = at / shape->n_kv_head, block = h->blocks[n_used + c / KERN_BLOCK];
            const size_t to =
                ((size_t)(block * shape->n_kv_head + at % shape->n_kv_head) * KERN_BLOCK +
                 c % KERN_BLOCK) *
                p->head_dim;
            fill_head(t, h->k + to, p->head_dim);
            fill_head(t, h->v + to, p->head_dim);
        }
        n_used += (n + KERN_BLOCK - 1) / KERN_BLOCK;
    }
}

static struct device_limits limits_of(const struct problem *p)
{
    return (struct device_limits){
        .n_row_max = n_row_of(p),
        .n_seq_max = SEQS,
        .n_logit_max = 1,
        .context_max = p->shape->n_block * KERN_BLOCK,
        .n_head = p->shape->n_head,
        .n_kv_head = p->shape->n_kv_head,
        .head_dim = p->head_dim,
        .vocab_size = 1,
        .kv_dtype = DT_BF16,
    };
}

static struct attention_args args_of(const struct problem *p, const struct arrays *card)
{
    const size_t width = (size_t)p->shape->n_head * p->head_dim;
    return (struct attention_args){
        .out_dtype = DT_F32,
        .q = card->q,
        .out_stride = width,
        .q_stride = width,
        .k_cache = card->k,
        .v_cache = card->v,
        .kv_dtype = DT_BF16,
        .seqs = card->seqs,
        .n_seq = SEQS,
        .n_head = p->shape->n_head,
        .n_kv_head = p->shape->n_kv_head,
        .head_dim = p->head_dim,
        .context_max = p->shape->n_block * KERN_BLOCK,
        .scale = 1.0f / sqrtf((float)p->head_dim),
        .soft_cap = p->soft_cap,
        .window = p->window,
        .sinks = p->sinks ? card->sinks : NULL,
        .plan = card->plan,
        .n_row = n_row_of(p),
    };
}

static FALLIBLE solve(struct trial_result *r, struct trial *t, const struct problem *p,
                      attention_fn *const fn[2], struct q_err *e)
{
    const struct device_link *on = t->on;
    const struct device_limits l = limits_of(p);
    const struct kern_exec x = {
        .nth = 1,
        .scratch = t->scratch,
        .scratch_bytes = t->scratch_bytes,
        .stream = on->s,
    };
    const size_t plan_bytes = on->t->plan_bytes(on->d, &l), n = n_float_of(p);
    size_t bytes;
    const struct arrays host = arrays_at(t->host, p, plan_bytes, &bytes);
    const struct arrays card = arrays_at(t->card, p, plan_bytes, &bytes);
    struct attention_args a = args_of(p, &card);
    enum q_code rc;
    fill_cache(t, p, &host, &card);
    on->t->plan(on->d, host.plan, &l, host.seqs, SEQS);
    on->t->copy(on->s, t->card, t->host, bytes);
    for (unsigned i = 0; i < 2; i++) {
        on->t->fill(on->s, card.got[i], 0xff, n * sizeof(float));
        a.out = card.got[i];
        fn[i](&a, &x);
        on->t->copy(on->s, host.got[i], card.got[i], n * sizeof(float));
    }
    if ((rc = on->t->sync(on->s, e)) || (rc = on->t->check(on->d, e)))
        return rc;
    trial_compare(r, host.got[0], host.got[1], n);
    return Q_OK;
}

static FALLIBLE alloc_buffers(struct trial *t, size_t n_problem, struct q_err *e)
{
    static const char what[] = "the trial of attention";
    const struct device_table *d = t->on->t;
    enum q_code rc;
    for (size_t i = 0; i < n_problem; i++) {
        const struct device_limits l = limits_of(&problems[i]);
        const size_t n = d->workspace_bytes(t->on->d, &l);
        size_t bytes;
        (void)arrays_at(NULL, &problems[i], d->plan_bytes(t->on->d, &l), &bytes);
        t->scratch_bytes = n > t->scratch_bytes ? n : t->scratch_bytes;
        t->bytes = bytes > t->bytes ? bytes : t->bytes;
    }
    if ((rc = d->host_alloc(t->on->d, &t->host, t->bytes, what, e)) ||
        (rc = d->alloc(t->on->d, &t->card, t->bytes, what, e)))
        return rc;
    return d->alloc(t->on->d, &t->scratch, t->scratch_bytes, what, e);
}

static void release_buffers(struct trial *t)
{
    const struct device_table *d = t->on->t;
    if (t->scratch)
        d->release(t->on->d, t->scratch);
    if (t->card)
        d->release(t->on->d, t->card);
    if (t->host)
        d->host_free(t->on->d, t->host);
}

enum q_code attention_trial_run(struct trial_result *out, const struct device_link *on,
                                attention_fn *known, attention_fn *tried, enum trial_size size,
                                struct q_err *e)
{
    attention_fn *const fn[2] = {known, tried};
    const size_t n_problem = size == TRIAL_LARGE ? N_PROBLEM : N_SMALL;
    struct trial t = {.on = on, .rng = TRIAL_SEED};
    enum q_code rc = alloc_buffers(&t, n_problem, e);
    *out = (struct trial_result){0};
    for (size_t i = 0; i < n_problem && !rc; i++)
        rc = solve(out, &t, &problems[i], fn, e);
    release_buffers(&t);
    return rc;
}

bool attention_trial_holds(const struct trial_result *r, bool same_bits)
{
    return r->n > 0 && r->worst <= WORST && (!same_bits || r->n_differ == 0);
}
