/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cuda/trial.h"
#include <math.h>
#include <string.h>
#include "kernels/cuda/layout.h"

#define SEQS      3u
#define BLOCKS    32u
#define HEADS     8u
#define KV_HEADS  2u
#define DIM_MAX   128u
#define ROWS      99u /* of all sequences */
#define Q_FLOATS  (ROWS * HEADS * DIM_MAX)
#define KV_HALVES (BLOCKS * KV_HEADS * KERN_BLOCK * DIM_MAX)
#define PLAN_MAX  (16u << 10)
#define WORST     0x1p-9

struct room {                            /* on the host, and the same on the device */
    uint16_t k[KV_HALVES], v[KV_HALVES]; /* first: as aligned as a cache is */
    float q[Q_FLOATS], sinks[HEADS];
    float got[2][Q_FLOATS]; /* of each kernel */
    uint32_t blocks[BLOCKS];
    struct attention_seq seqs[SEQS];
    _Alignas(16) unsigned char plan[PLAN_MAX];
};
struct trial {
    const struct device_link *on;
    struct room *host, *card;
    void *scratch;
    size_t scratch_bytes;
    uint64_t rng;
};
struct problem {
    uint32_t head_dim, window;
    float soft_cap;
    bool sinks;
};
static const struct problem problems[] = {
    {128, 0, 0, true},
    {128, 130, 15, false},
    {64, 0, 0, false},
};
/* A long prompt's later chunk, a prompt, one that decodes. */
static const uint32_t starts[SEQS] = {260, 0, 77}, queries[SEQS] = {77, 21, 1};

static float draw_value(struct trial *t) /* -1 … 1 */
{
    t->rng ^= t->rng << 13; /* xorshift64 */
    t->rng ^= t->rng >> 7;
    t->rng ^= t->rng << 17;
    return (float)(t->rng >> 40) * 0x1p-23f - 1;
}

static void fill_head(struct trial *t, uint16_t *to, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        const float f = draw_value(t);
        uint32_t bits;
        memcpy(&bits, &f, 4);
        to[i] = (uint16_t)(bits >> 16);
    }
}

/* Shuffled blocks of the pool, and random contents of the cache. */
static void fill_cache(struct trial *t, const struct problem *p)
{
    struct room *h = t->host;
    uint32_t n_used = 0, row = 0;
    memset(h->k, 0xff, sizeof h->k);
    memset(h->v, 0xff, sizeof h->v);
    for (uint32_t i = 0; i < BLOCKS; i++)
        h->blocks[i] = i * 13 % BLOCKS;
    for (uint32_t i = 0; i < Q_FLOATS; i++)
        h->q[i] = 4 * draw_value(t);
    for (uint32_t i = 0; i < HEADS; i++)
        h->sinks[i] = draw_value(t);
    for (uint32_t s = 0; s < SEQS; s++) {
        const uint32_t n = starts[s] + queries[s];
        h->seqs[s] = (struct attention_seq){t->card->blocks + n_used, row, queries[s], starts[s]};
        row += queries[s];
        for (uint32_t at = 0; at < n * KV_HEADS; at++) {
            const uint32_t c = at / KV_HEADS, block = h->blocks[n_used + c / KERN_BLOCK];
            const size_t to =
                ((size_t)(block * KV_HEADS + at % KV_HEADS) * KERN_BLOCK + c % KERN_BLOCK) *
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
        .n_row_max = ROWS,
        .n_seq_max = SEQS,
        .n_logit_max = 1,
        .context_max = BLOCKS * KERN_BLOCK,
        .n_head = HEADS,
        .n_kv_head = KV_HEADS,
        .head_dim = p->head_dim,
        .vocab_size = 1,
        .kv_dtype = DT_BF16,
    };
}

static struct attention_args args_of(const struct trial *t, const struct problem *p)
{
    const size_t width = (size_t)HEADS * p->head_dim;
    uint32_t n_row = 0;
    for (uint32_t s = 0; s < SEQS; s++)
        n_row += queries[s];
    return (struct attention_args){
        .out_dtype = DT_F32,
        .q = t->card->q,
        .out_stride = width,
        .q_stride = width,
        .k_cache = t->card->k,
        .v_cache = t->card->v,
        .kv_dtype = DT_BF16,
        .seqs = t->card->seqs,
        .n_seq = SEQS,
        .n_head = HEADS,
        .n_kv_head = KV_HEADS,
        .head_dim = p->head_dim,
        .context_max = BLOCKS * KERN_BLOCK,
        .scale = 1.0f / sqrtf((float)p->head_dim),
        .soft_cap = p->soft_cap,
        .window = p->window,
        .sinks = p->sinks ? t->card->sinks : NULL,
        .plan = t->card->plan,
        .n_row = n_row,
    };
}

static void compare_result(struct attention_trial *r, const struct trial *t, uint32_t n)
{
    double most = 0, difference = 0;
    for (uint32_t i = 0; i < n; i++) {
        const float want = t->host->got[0][i], got = t->host->got[1][i];
        uint32_t want_bits, got_bits;
        memcpy(&want_bits, &want, sizeof want);
        memcpy(&got_bits, &got, sizeof got);
        r->n_differ += want_bits != got_bits;
        most = fmax(most, fabs((double)want));
        if (isfinite(got) && isfinite(want))
            difference = fmax(difference, fabs((double)want - (double)got));
        else
            r->worst = INFINITY;
    }
    r->n += n;
    r->worst = fmax(r->worst, most > 0 ? difference / most : INFINITY);
}

static FALLIBLE solve(struct attention_trial *r, struct trial *t, const struct problem *p,
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
    struct attention_args a = args_of(t, p);
    const size_t n = (size_t)a.n_row * a.out_stride;
    enum q_code rc;
    fill_cache(t, p);
    if (on->t->plan_bytes(on->d, &l) > PLAN_MAX)
        return q_fail(e, Q_NO_SPACE,
                      "trial of attention: the plan has %zu bytes, more than the buffer's %u",
                      on->t->plan_bytes(on->d, &l), PLAN_MAX);
    on->t->plan(on->d, t->host->plan, &l, t->host->seqs, SEQS);
    on->t->copy(on->s, t->card, t->host, sizeof *t->host);
    for (unsigned i = 0; i < 2; i++) {
        on->t->fill(on->s, t->card->got[i], 0xff, n * sizeof(float));
        a.out = t->card->got[i];
        fn[i](&a, &x);
        on->t->copy(on->s, t->host->got[i], t->card->got[i], n * sizeof(float));
    }
    if ((rc = on->t->sync(on->s, e)) || (rc = on->t->check(on->d, e)))
        return rc;
    compare_result(r, t, (uint32_t)n);
    return Q_OK;
}

static FALLIBLE make_room(struct trial *t, struct q_err *e)
{
    static const char what[] = "the trial of attention";
    const struct device_table *d = t->on->t;
    void *host, *card;
    enum q_code rc;
    for (size_t i = 0; i < sizeof problems / sizeof *problems; i++) {
        const struct device_limits l = limits_of(&problems[i]);
        const size_t n = d->workspace_bytes(t->on->d, &l);
        t->scratch_bytes = n > t->scratch_bytes ? n : t->scratch_bytes;
    }
    if ((rc = d->host_alloc(t->on->d, &host, sizeof *t->host, what, e)))
        return rc;
    t->host = host;
    if ((rc = d->alloc(t->on->d, &card, sizeof *t->card, what, e)))
        return rc;
    t->card = card;
    return d->alloc(t->on->d, &t->scratch, t->scratch_bytes, what, e);
}

static void drop_room(struct trial *t)
{
    const struct device_table *d = t->on->t;
    if (t->scratch)
        d->release(t->on->d, t->scratch);
    if (t->card)
        d->release(t->on->d, t->card);
    if (t->host)
        d->host_free(t->on->d, t->host);
}

enum q_code attention_trial_run(struct attention_trial *out, const struct device_link *on,
                                attention_fn *known, attention_fn *tried, struct q_err *e)
{
    attention_fn *const fn[2] = {known, tried};
    struct trial t = {.on = on, .rng = 88172645463325252u};
    enum q_code rc = make_room(&t, e);
    *out = (struct attention_trial){0};
    for (size_t i = 0; i < sizeof problems / sizeof *problems && !rc; i++)
        rc = solve(out, &t, &problems[i], fn, e);
    drop_room(&t);
    return rc;
}

bool attention_trial_holds(const struct attention_trial *r, bool same_bits)
{
    return r->n > 0 && r->worst <= WORST && (!same_bits || r->n_differ == 0);
}
