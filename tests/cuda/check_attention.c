/* SPDX-License-Identifier: Apache-2.0 */
/* attention: against f64 over the keys and values as the cache has them, and each row's bits
 * against those of the same row in other company: alone (decoded), in other chunks. Cache lanes
 * that no token owns are NaN. On the emulation, attention_sm90a too, whose bits are those of
 * attention_cuda there: prompts, by instructions that it decodes on its own. */
#include "check.h"
#include <math.h>
#include <string.h>
#include "kernels/cuda/layout.h"
#include "kernels/cuda/plan.h"
#include "kernels/device.h"
#include "kernels/variants.h"

#define SEQ_MAX 4

CUDA_CALL(kv_store)
CUDA_CALL(attention)
REF_CALL(attention)

float emu_e4m3_to_f32(uint8_t b);

struct attention_case {
    struct attention_args a;
    struct attention_seq seqs[SEQ_MAX];
    uint32_t n_row, block_max;
};

static const uint32_t kv_dtypes[] = {DT_BF16, DT_BF16, DT_I8, DT_F8_E4M3, DT_F32, DT_F16};
static const uint32_t head_dims[] = {64, 80, 96, 128, 192, 256, 64, 128, 40, 16, 512};

/* Lengths; prompts: most sequences have many query tokens. */
static void choose_seqs(struct kcheck *k, struct attention_case *c, bool prompts)
{
    const uint32_t length_max = kc_chance(k, 30) ? 600 : 90, query_max = prompts ? 90 : 30;
    for (uint32_t i = 0; i < c->a.n_seq; i++) {
        struct attention_seq *s = &c->seqs[i];
        uint32_t length = kc_range(k, 1, length_max),
                 most = length < query_max ? length : query_max;
        s->n_query = kc_chance(k, prompts ? 20 : 50) ? 1 : kc_range(k, 0, most);
        s->start = length - s->n_query;
        s->row = c->n_row;
        c->n_row += s->n_query;
        if (length > c->a.context_max)
            c->a.context_max = length;
    }
}

enum cases {
    ANY,
    PROMPTS, /* what attention_sm90a has a kernel for */
    WIDE,    /* and what attention_wide has */
};

static void choose(struct kcheck *k, struct attention_case *c, enum cases of)
{
    uint32_t n_kv_head = kc_range(k, 1, 2),
             group = kc_chance(k, 15) ? kc_range(k, 8, 20) : kc_range(k, 1, 5);
    uint32_t dim = of == PROMPTS ? kc_range(k, 1, 2) * 64
                   : of == WIDE  ? 512
                                 : kc_pick(k, head_dims, 11);
    c->a = (struct attention_args){
        .kv_dtype = of ? DT_BF16 : (enum dtype)kc_pick(k, kv_dtypes, 6),
        .n_seq = kc_range(k, 1, 3),
        .n_head = n_kv_head * group,
        .n_kv_head = n_kv_head,
        .head_dim = dim,
        .scale = 1.0f / sqrtf((float)dim) * (kc_chance(k, 20) ? 8 : 1),
        .soft_cap = kc_chance(k, 25) ? 1.0f + 20 * fabsf((float)kc_range(k, 0, 100) / 100) : 0,
        .window = kc_chance(k, 30) ? kc_range(k, 1, 300) : 0,
        .both_ways = of != WIDE && kc_chance(k, 15),
        .out_dtype = kc_chance(k, 40)   ? DT_F32
                     : kc_chance(k, 50) ? DT_BF16
                                        : DT_F16,
    };
    choose_seqs(k, c, of == PROMPTS);
    c->a.chunked = c->a.window && !c->a.both_ways && kc_chance(k, 50);
    kc_shape(k, "%s n_seq %u rows %u heads %u/%u dim %u context %u %s %u both ways %d cap %g",
             dtype_name(c->a.kv_dtype), c->a.n_seq, c->n_row, c->a.n_head, n_kv_head, dim,
             c->a.context_max, c->a.chunked ? "chunk" : "window", c->a.window, c->a.both_ways,
             (double)c->a.soft_cap);
}

static void fill_cache(struct kcheck *k, struct attention_case *c)
{
    uint32_t n_used = 0, blocks_max = (c->a.context_max + 15) / 16 * SEQ_MAX;
    uint32_t *pool = kc_buf(k, (blocks_max + 1) * sizeof *pool);
    for (uint32_t n = 0; n < blocks_max; n++) {
        uint32_t j = kc_range(k, 0, n);
        pool[n] = pool[j];
        pool[j] = n;
    }
    size_t bytes = cuda_kv_head_bytes(c->a.kv_dtype, c->a.head_dim) * c->a.n_kv_head * blocks_max;
    void *caches[2] = {kc_buf(k, bytes), kc_buf(k, bytes)};
    size_t width = (size_t)c->a.n_kv_head * c->a.head_dim;
    for (uint32_t i = 0; i < c->a.n_seq; i++) {
        uint32_t length = c->seqs[i].start + c->seqs[i].n_query;
        uint32_t *slot = kc_buf(k, (length + 1) * sizeof *slot);
        float *kv = kc_buf(k, 2 * length * width * sizeof *kv);
        kc_fill(k, kv, 2 * length * width);
        c->seqs[i].blocks = pool + n_used;
        n_used += (length + 15) / 16;
        for (uint32_t t = 0; t < length; t++)
            slot[t] = c->seqs[i].blocks[t / 16] * 16 + t % 16;
        call_kv_store(
            &(struct kv_store_args){
                .k_cache = caches[0],
                .v_cache = caches[1],
                .kv_dtype = c->a.kv_dtype,
                .k = kv,
                .v = kv + length * width,
                .k_stride = width,
                .v_stride = width,
                .slot = slot,
                .n_row = length,
                .n_kv_head = c->a.n_kv_head,
                .head_dim = c->a.head_dim,
            },
            &(struct kern_exec){.nth = 1});
    }
    c->a.k_cache = caches[0];
    c->a.v_cache = caches[1];
}

/* Element d of position t, as the cache has it. */
static double stored(const struct attention_args *a, const void *cache, uint32_t block, uint32_t g,
                     uint32_t t, uint32_t d)
{
    const char *head = (const char *)cache + ((size_t)block * a->n_kv_head + g) *
                                                 cuda_kv_head_bytes(a->kv_dtype, a->head_dim);
    size_t at = (size_t)(t % 16) * a->head_dim + d;
    float scale;
    if (a->kv_dtype == DT_F8_E4M3)
        return (double)emu_e4m3_to_f32(((const uint8_t *)head)[at]);
    if (a->kv_dtype != DT_I8)
        return (double)kc_get(head, a->kv_dtype, at);
    memcpy(&scale, head + (size_t)16 * a->head_dim + t % 16 * 4, 4);
    return (double)((const int8_t *)head)[at] * (double)scale;
}

/* One (token, head) of sequence i in f64. With tiles q and the weights are bf16: a score is off by
 * 2^-9 of its terms, a weight by 2^-9 of itself; over caches of 8 bits they are f16: by 2^-12. */
static void near_f64(struct kcheck *k, const struct attention_args *a, uint32_t i, uint32_t token,
                     uint32_t head)
{
    static double p[1024];
    const struct attention_seq *s = &a->seqs[i];
    const uint32_t g = head / (a->n_head / a->n_kv_head), pos = s->start + token;
    const uint32_t begin = a->chunked                         ? pos / a->window * a->window
                           : a->window && pos + 1 > a->window ? pos + 1 - a->window
                                                              : 0;
    const uint32_t all = s->start + s->n_query, dim = a->head_dim;
    const double off = a->kv_dtype == DT_I8 || a->kv_dtype == DT_F8_E4M3 ? 0x1p-12 : 0x1p-9;
    const uint32_t end = !a->both_ways                        ? pos + 1
                         : a->window && pos + a->window < all ? pos + a->window
                                                              : all;
    const float *q = a->q + (s->row + token) * a->q_stride + (size_t)head * dim;
    const size_t to = (s->row + token) * a->out_stride + (size_t)head * dim;
    double max = -INFINITY, sum = 0, size = 0;
    for (uint32_t t = begin; t < end; t++) {
        double f = 0, terms = 0;
        for (uint32_t d = 0; d < dim; d++) {
            double product = (double)q[d] * stored(a, a->k_cache, s->blocks[t / 16], g, t, d);
            f += product;
            terms += product * product;
        }
        f *= (double)a->scale;
        f -= a->slopes ? (double)a->slopes[head] * fabs((double)t - pos) : 0;
        p[t] = a->soft_cap > 0 ? (double)a->soft_cap * tanh(f / (double)a->soft_cap) : f;
        max = fmax(max, p[t]);
        size = fmax(size, sqrt(terms) * (double)a->scale); /* roundings of q are independent */
    }
    for (uint32_t t = begin; t < end; t++)
        sum += p[t] = exp(p[t] - max);
    sum += a->sinks ? exp((double)a->sinks[head] - max) : 0;
    for (uint32_t d = 0; d < dim; d++) {
        double want = 0, most = 0;
        for (uint32_t t = begin; t < end; t++) {
            double v = stored(a, a->v_cache, s->blocks[t / 16], g, t, d);
            want += p[t] / sum * v;
            most = fmax(most, fabs(v));
        }
        kc_near(k, "out", (double)kc_get(a->out, a->out_dtype, to + d), want,
                most * (12 * size + 2) * off + 1e-6 +
                    (a->out_dtype == DT_BF16  ? fabs(want) * 0x1p-8
                     : a->out_dtype == DT_F16 ? fabs(want) * 0x1p-11
                                              : 0));
    }
}

/* Makes the plan of seqs and runs the kernel into `out`, which is NaN before. */
static void attend(struct kcheck *k, struct attention_args a, const struct attention_seq *seqs,
                   uint32_t n_seq)
{
    struct device_limits l = {
        .n_seq_max = n_seq,
        .context_max = a.context_max,
        .n_head = a.n_head,
        .n_kv_head = a.n_kv_head,
        .head_dim = a.head_dim,
    };
    static const uint32_t slots[] = {0, 1,
                                     3}; /* always split; whole; whole where these are filled */
    for (uint32_t i = 0; i < n_seq; i++)
        l.n_row_max += seqs[i].n_query;
    void *plan = kc_buf(k, plan_bytes(&l));
    plan_make(plan, &l, kc_pick(k, slots, 3), seqs, n_seq);
    a.seqs = kc_copy(k, seqs, n_seq * sizeof *seqs);
    a.n_seq = n_seq;
    a.n_row = l.n_row_max;
    a.plan = plan;
    a.plan_host = kc_chance(k, 70) ? plan : NULL; /* as in a step, or as recorded */
    cuda_workspace(plan_workspace_bytes(&l, 1));
    kc_run(k, k->variant, &a, 1);
    cuda_workspace(0);
    kc_drop(k, 2);
}

/* Each token of a sequence alone, at its own row of another output. */
static void alone(struct kcheck *k, const struct attention_case *c, char *out, uint32_t i)
{
    struct attention_args a = c->a;
    const size_t width = (size_t)a.n_head * a.head_dim, element = dtype_bits(a.out_dtype) / 8;
    for (uint32_t done = 0, n; done < c->seqs[i].n_query; done += n) {
        uint32_t left = c->seqs[i].n_query - done;
        n = c->a.both_ways ? left : kc_chance(k, 60) ? 1 : kc_range(k, 1, left);
        struct attention_seq s = c->seqs[i];
        s.row += done;
        s.start += done;
        s.n_query = n;
        a.q = c->a.q + s.row * a.q_stride;
        a.out = out + s.row * a.out_stride * element;
        s.row = 0;
        a.context_max = s.start + n;
        attend(k, a, &s, 1);
    }
    for (uint32_t t = 0; t < c->seqs[i].n_query; t++) {
        size_t at = (c->seqs[i].row + t) * c->a.out_stride * element;
        kc_same_bits(k, "in other chunks",
                     (struct kc_bits){out + at, (char *)c->a.out + at, a.out_dtype, width});
    }
}

static void check_case(struct kcheck *k, struct attention_case *out, enum cases of)
{
    struct attention_case c = {.n_row = 0};
    k->specials = false;
    choose(k, &c, of);
    fill_cache(k, &c);
    const size_t width = (size_t)c.a.n_head * c.a.head_dim;
    c.a.q_stride = width + kc_range(k, 0, 3) * 2;
    c.a.out_stride = width + kc_range(k, 0, 3) * 2;
    float *q = kc_buf(k, c.n_row * c.a.q_stride * sizeof *q);
    kc_fill(k, q, c.n_row * c.a.q_stride);
    c.a.q = q;
    if (kc_chance(k, 30)) {
        float *sinks = kc_buf(k, c.a.n_head * sizeof *sinks);
        for (uint32_t h = 0; h < c.a.n_head; h++) /* some heads' sinks take all, some nothing */
            sinks[h] = (float)kc_range(k, 0, 60) / 10 - 3 + (kc_chance(k, 10) ? 120 : 0);
        c.a.sinks = sinks;
    }
    if (of != WIDE && kc_chance(k, 20)) {
        float *slopes = kc_buf(k, c.a.n_head * sizeof *slopes);
        for (uint32_t h = 0; h < c.a.n_head; h++)
            slopes[h] = exp2f(-(float)kc_range(k, 0, 80) / 10);
        c.a.slopes = slopes;
    }
    c.a.out = kc_buf(k, c.n_row * c.a.out_stride * sizeof *q);
    attend(k, c.a, c.seqs, c.a.n_seq);
    c.a.seqs = c.seqs;
    for (uint32_t i = 0; i < c.a.n_seq; i++)
        for (uint32_t t = 0; t < c.seqs[i].n_query; t++)
            for (uint32_t h = kc_range(k, 0, 2); h < c.a.n_head; h += 3)
                near_f64(k, &c.a, i, t, h);
    uint32_t i = kc_range(k, 0, c.a.n_seq - 1);
    alone(k, &c, kc_buf(k, c.n_row * c.a.out_stride * sizeof *q), i);
    *out = c;
}

static void check_attention(struct kcheck *k)
{
    struct attention_case c;
    check_case(k, &c, ANY);
}

static void check_wide(struct kcheck *k)
{
    struct attention_case c;
    check_case(k, &c, WIDE);
}

#ifndef QUIRE_CUDA_CARD
void attention_sm90a(const struct attention_args *a, const struct kern_exec *x);

static void launch_sm90a(const void *args, const struct kern_exec *x)
{
    attention_sm90a(args, x);
}
static void call_sm90a(const void *args, const struct kern_exec *x)
{
    if (x->ith == 0)
        cuda_run_sm90(launch_sm90a, args);
}

/* In `sm90a` is what attention_sm90a left. */
static void compare_kernels(struct kcheck *k, const struct attention_case *sm90a)
{
    const struct kc_variant *mine = k->variant, known = {"attention", "cuda", 0, 0, call_attention};
    struct attention_args a = sm90a->a;
    const size_t step = a.out_stride * (dtype_bits(a.out_dtype) / 8);
    a.out = kc_buf(k, sm90a->n_row * a.out_stride * sizeof(float));
    k->variant = &known;
    attend(k, a, sm90a->seqs, a.n_seq);
    k->variant = mine;
    for (uint32_t row = 0; row < sm90a->n_row; row++)
        kc_same_bits(k, "by mma.sync",
                     (struct kc_bits){(char *)a.out + row * step, (char *)sm90a->a.out + row * step,
                                      a.out_dtype, (size_t)a.n_head * a.head_dim});
}
#endif

/* On a card by the kernel that its table has. */
static void check_prompts(struct kcheck *k)
{
    struct attention_case c;
    check_case(k, &c, PROMPTS);
#ifndef QUIRE_CUDA_CARD
    compare_kernels(k, &c);
#endif
}

const struct cuda_check cuda_checks_attention[] = {
    {"attention", ref_attention, call_attention, 0, check_attention, 16},
    {"attention_wide", ref_attention, call_attention, 0, check_wide, 5},
#ifdef QUIRE_CUDA_CARD
    {"attention_prompts", ref_attention, call_attention, 0, check_prompts, 16},
#else
    {"attention_sm90a", ref_attention, call_sm90a, 0, check_prompts, 16},
#endif
    {0},
};
