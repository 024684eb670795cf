/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cuda/trial_linear.h"
#include <string.h>
#include "kernels/cuda/layout.h"

#define GROUPS_MAX 16u

struct problem {
    uint32_t n_row, n_out, n_in, gated, n_group;
    bool accumulate, picked;
    bool blocks;                 /* scales of blocks; of e4m3 alone */
    uint32_t shares[GROUPS_MAX]; /* of the rows, by group; all together SHARES */
};
#define SHARES 200u

/* 130 rows are tall tiles, as are 200 rows of 3 groups; the others are flat. */
static const struct problem small[] = {
    {.n_row = 130, .n_out = 200, .n_in = 272, .accumulate = true},
    {.n_row = 40, .n_out = 288, .n_in = 208, .gated = 1},
    {.n_row = 130, .n_out = 200, .n_in = 272, .accumulate = true, .blocks = true},
    {.n_row = 40, .n_out = 288, .n_in = 208, .gated = 1, .blocks = true},
};
static const struct problem small_grouped[] = {
    {
        .n_row = 100,
        .n_out = 64,
        .n_in = 80,
        .gated = 1,
        .n_group = 5,
        .picked = true,
        .shares = {0, 80, 6, 114, 0},
    },
    {.n_row = 200, .n_out = 150, .n_in = 80, .n_group = 3, .shares = {140, 0, 60}},
    {
        .n_row = 100,
        .n_out = 64,
        .n_in = 144,
        .gated = 1,
        .n_group = 5,
        .picked = true,
        .blocks = true,
        .shares = {0, 80, 6, 114, 0},
    },
    {
        .n_row = 200,
        .n_out = 150,
        .n_in = 80,
        .n_group = 3,
        .blocks = true,
        .shares = {140, 0, 60},
    },
};
/* o_proj of Llama 3 8B, gate_up and down of Llama 3.2 1B; experts of Qwen3 30B-A3B. */
static const struct problem large[] = {
    {.n_row = 1100, .n_out = 4096, .n_in = 4096, .accumulate = true},
    {.n_row = 300, .n_out = 16384, .n_in = 2048, .gated = 1},
    {.n_row = 2200, .n_out = 2048, .n_in = 8192},
    {.n_row = 300, .n_out = 16384, .n_in = 2048, .gated = 1, .blocks = true},
    {.n_row = 2200, .n_out = 2048, .n_in = 8192, .accumulate = true, .blocks = true},
};
static const struct problem large_grouped[] = {
    {
        .n_row = 4000,
        .n_out = 1536,
        .n_in = 2048,
        .gated = 1,
        .n_group = 16,
        .picked = true,
        .shares = {25, 0, 1, 14, 30, 2, 0, 8, 20, 10, 10, 10, 0, 40, 15, 15},
    },
    {
        .n_row = 2000,
        .n_out = 2048,
        .n_in = 768,
        .n_group = 8,
        .shares = {25, 25, 1, 74, 0, 25, 49, 1},
    },
    {
        .n_row = 4000,
        .n_out = 1536,
        .n_in = 2048,
        .gated = 1,
        .n_group = 16,
        .picked = true,
        .blocks = true,
        .shares = {25, 0, 1, 14, 30, 2, 0, 8, 20, 10, 10, 10, 0, 40, 15, 15},
    },
};
#define N(list) (sizeof(list) / sizeof *(list))

struct arrays { /* of one problem, in host memory or in the device's */
    unsigned char *x, *w;
    float *bias, *before, *got[2];
    float *block_scales; /* of x: [n_row][blocks_stride()] */
    struct quant_row *scales;
    uint32_t *starts, *rows;
};
struct trial {
    const struct device_link *on;
    const struct kern_table *kern[2];
    enum linear_type type;
    void *host, *card;
    size_t bytes;
    uint64_t rng;
};

static const enum dtype dtypes[LINEAR_TYPES] = {DT_BF16, DT_F16, DT_I8, DT_F8_E4M3};

static bool is_bytes(enum linear_type type)
{
    return type == LINEAR_I8 || type == LINEAR_FP8;
}

static uint32_t n_col_of(const struct problem *p)
{
    return p->gated ? p->n_out / 2 : p->n_out;
}

static size_t n_float_of(const struct problem *p) /* values of y */
{
    return (size_t)p->n_row * n_col_of(p);
}

static struct packed matrix_of(enum linear_type type, const struct problem *p, const void *data)
{
    return (struct packed){
        .data = data,
        .n_out = p->n_out,
        .n_in = p->n_in,
        .dtype = dtypes[type],
        .gated = p->gated,
        .blocks = p->blocks,
    };
}

static size_t matrix_step(enum linear_type type, const struct problem *p)
{
    const struct packed w = matrix_of(type, p, NULL);
    return (cuda_matrix_bytes(&w) + 15) / 16 * 16;
}

static struct arrays arrays_at(void *base, enum linear_type type, const struct problem *p,
                               size_t *bytes)
{
    const size_t n_float = n_float_of(p) * sizeof(float);
    const uint32_t n_matrix = p->n_group ? p->n_group : 1;
    size_t n = 0;
    struct arrays a;
    a.x = trial_take(base, &n, (size_t)p->n_row * p->n_in * 2);
    a.w = trial_take(base, &n, n_matrix * matrix_step(type, p));
    a.bias = trial_take(base, &n, p->n_out * sizeof(float));
    a.before = trial_take(base, &n, n_float);
    a.scales = trial_take(base, &n, p->n_row * sizeof(struct quant_row));
    a.block_scales =
        trial_take(base, &n, (size_t)p->n_row * blocks_stride(p->n_in) * sizeof(float));
    a.starts = trial_take(base, &n, (GROUPS_MAX + 1) * sizeof(uint32_t));
    a.rows = trial_take(base, &n, p->n_row * sizeof(uint32_t));
    a.got[0] = trial_take(base, &n, n_float);
    a.got[1] = trial_take(base, &n, n_float);
    *bytes = n;
    return a;
}

static void fill_numbers(struct trial *t, unsigned char *p, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        const float f = trial_draw_f32(&t->rng);
        const uint16_t h = t->type == LINEAR_F16 ? f32_to_f16(f) : f32_to_bf16(f);
        if (!is_bytes(t->type))
            memcpy(p + 2 * i, &h, 2);
        else if (t->type == LINEAR_I8)
            p[i] = (unsigned char)(int8_t)(int)(127 * f);
        else /* e4m3, up to 4 */
            p[i] = (unsigned char)(trial_draw(&t->rng) % 0x49u | (f < 0 ? 0x80u : 0));
    }
}

static size_t n_scale_of(const struct problem *p) /* of a matrix */
{
    const size_t n_group = (p->n_out + KERN_GATE_INTERLEAVE - 1) / KERN_GATE_INTERLEAVE;
    return p->blocks ? n_group * blocks_stride(p->n_in) : p->n_out;
}

static void fill_matrices(struct trial *t, const struct problem *p, const struct arrays *h)
{
    const size_t step = matrix_step(t->type, p);
    fill_numbers(t, h->x, (size_t)p->n_row * p->n_in);
    for (uint32_t g = 0; g < (p->n_group ? p->n_group : 1); g++) {
        fill_numbers(t, h->w + g * step, (size_t)p->n_out * p->n_in);
        unsigned char *scales = h->w + g * step + int8_scales_at(p->n_out, p->n_in);
        for (uint32_t o = 0; is_bytes(t->type) && o < n_scale_of(p); o++) {
            const float scale = (2 + trial_draw_f32(&t->rng)) / 256;
            memcpy(scales + o * sizeof scale, &scale, sizeof scale);
        }
    }
    for (uint32_t i = 0; i < p->n_out; i++)
        h->bias[i] = trial_draw_f32(&t->rng);
    for (size_t i = 0; i < n_float_of(p); i++)
        h->before[i] = trial_draw_f32(&t->rng);
    for (size_t i = 0; i < (size_t)p->n_row * blocks_stride(p->n_in); i++)
        h->block_scales[i] = (2 + trial_draw_f32(&t->rng)) / 256;
    for (uint32_t i = 0; i < p->n_row; i++) {
        h->scales[i] = (struct quant_row){.scale = (2 + trial_draw_f32(&t->rng)) / 256};
        h->rows[i] = trial_draw(&t->rng) % p->n_row;
    }
    h->starts[0] = 0;
    for (uint32_t g = 0, shares = 0; g < GROUPS_MAX; g++) {
        shares += p->shares[g];
        h->starts[g + 1] = p->n_row * shares / SHARES;
    }
}

/* Onto card->got[i], by kern[i]. */
static void launch(const struct trial *t, const struct problem *p, const struct arrays *card,
                   unsigned i)
{
    const struct kern_table *k = t->kern[i];
    const struct kern_exec x = {.nth = 1, .stream = t->on->s};
    const float *bias = p->n_group ? NULL : card->bias;
    const struct groups groups = {matrix_step(t->type, p), p->n_group, card->starts,
                                  p->picked ? card->rows : NULL};
    const struct linear_grouped_args floats = {
        {
            .y = card->got[i],
            .y_dtype = DT_F32,
            .x = card->x,
            .x_dtype = dtypes[t->type],
            .w = matrix_of(t->type, p, card->w),
            .bias = bias,
            .n_row = p->n_row,
            .x_stride = p->n_in,
            .y_stride = n_col_of(p),
            .accumulate = p->accumulate,
        },
        groups,
    };
    const struct linear_int8_args by = {
        .y = card->got[i],
        .y_dtype = DT_F32,
        .x = (const int8_t *)card->x,
        .rows = card->scales,
        .w = matrix_of(t->type, p, card->w),
        .bias = bias,
        .n_row = p->n_row,
        .x_stride = p->n_in,
        .y_stride = n_col_of(p),
        .accumulate = p->accumulate,
    };
    const struct linear_fp8_grouped_args bytes = {{by, groups}};
    const struct linear_fp8_args e4m3 = {by};
    const struct linear_fp8_block_grouped_args blocks = {
        {
            .y = card->got[i],
            .y_dtype = DT_F32,
            .x = card->x,
            .x_scales = card->block_scales,
            .w = matrix_of(t->type, p, card->w),
            .bias = bias,
            .n_row = p->n_row,
            .x_stride = p->n_in,
            .scale_stride = blocks_stride(p->n_in),
            .y_stride = n_col_of(p),
            .accumulate = p->accumulate,
        },
        groups,
    };
    if (p->blocks)
        p->n_group ? k->linear_fp8_block_grouped(&blocks, &x) : k->linear_fp8_block(&blocks.by, &x);
    else if (t->type == LINEAR_I8)
        p->n_group ? k->linear_int8_grouped(&bytes.as, &x) : k->linear_int8(&by, &x);
    else if (t->type == LINEAR_FP8)
        p->n_group ? k->linear_fp8_grouped(&bytes, &x) : k->linear_fp8(&e4m3, &x);
    else
        p->n_group ? k->linear_grouped(&floats, &x) : k->linear(&floats.by, &x);
}

static FALLIBLE solve(struct trial_result *r, struct trial *t, const struct problem *p,
                      struct q_err *e)
{
    const struct device_table *d = t->on->t;
    const size_t n = n_float_of(p), n_byte = n * sizeof(float);
    size_t bytes;
    const struct arrays host = arrays_at(t->host, t->type, p, &bytes);
    const struct arrays card = arrays_at(t->card, t->type, p, &bytes);
    enum q_code rc;
    fill_matrices(t, p, &host);
    d->copy(t->on->s, t->card, t->host, bytes);
    for (unsigned i = 0; i < 2; i++) {
        if (p->accumulate)
            d->copy(t->on->s, card.got[i], card.before, n_byte);
        else
            d->fill(t->on->s, card.got[i], 0xff, n_byte);
        launch(t, p, &card, i);
        d->copy(t->on->s, host.got[i], card.got[i], n_byte);
    }
    if ((rc = d->sync(t->on->s, e)) || (rc = d->check(t->on->d, e)))
        return rc;
    trial_compare(r, host.got[0], host.got[1], n);
    return Q_OK;
}

static bool serves(const struct trial *t, const struct problem *p)
{
    return !p->blocks || t->type == LINEAR_FP8;
}

static FALLIBLE solve_all(struct trial_result *out, struct trial *t, const struct problem *list,
                          size_t n, struct q_err *e)
{
    static const char what[] = "the trial of products";
    const struct device_link *on = t->on;
    enum q_code rc;
    t->host = t->card = NULL;
    t->bytes = 0;
    for (size_t i = 0; i < n; i++) {
        size_t bytes = 0;
        if (serves(t, &list[i]))
            (void)arrays_at(NULL, t->type, &list[i], &bytes);
        t->bytes = bytes > t->bytes ? bytes : t->bytes;
    }
    if (!(rc = on->t->host_alloc(on->d, &t->host, t->bytes, what, e)) &&
        !(rc = on->t->alloc(on->d, &t->card, t->bytes, what, e)))
        for (size_t i = 0; i < n && !rc; i++)
            rc = serves(t, &list[i]) ? solve(out, t, &list[i], e) : Q_OK;
    if (t->card)
        on->t->release(on->d, t->card);
    if (t->host)
        on->t->host_free(on->d, t->host);
    return rc;
}

enum q_code linear_trial_run(struct trial_result *out, const struct device_link *on,
                             const struct kern_table *known, const struct kern_table *tried,
                             enum linear_type type, bool grouped, enum trial_size size,
                             struct q_err *e)
{
    struct trial t = {.on = on, .kern = {known, tried}, .type = type, .rng = TRIAL_SEED};
    *out = (struct trial_result){0};
    enum q_code rc = grouped ? solve_all(out, &t, small_grouped, N(small_grouped), e)
                             : solve_all(out, &t, small, N(small), e);
    if (rc || size == TRIAL_SMALL)
        return rc;
    return grouped ? solve_all(out, &t, large_grouped, N(large_grouped), e)
                   : solve_all(out, &t, large, N(large), e);
}

/* Relative to the largest value; they cover another order and precision of sums (tune.c has the
 * same for cuBLASLt). */
static const double tolerances[LINEAR_TYPES] = {
    [LINEAR_BF16] = 0x1p-10,
    [LINEAR_F16] = 0x1p-10,
    [LINEAR_I8] = 0,
    [LINEAR_FP8] = 0x1p-6,
};

bool linear_trial_holds(const struct trial_result *r, enum linear_type type, bool same_bits)
{
    return r->n > 0 && r->worst <= tolerances[type] &&
           (r->n_differ == 0 || (!same_bits && type != LINEAR_I8));
}

void linear_trial_table(struct kern_table *t)
{
    t->linear = linear_wgmma_trial;
    t->linear_int8 = linear_int8_wgmma_trial;
    t->linear_fp8 = linear_fp8_wgmma_trial;
    t->linear_fp8_block = linear_fp8_block_wgmma_trial;
    t->linear_grouped = linear_grouped_wgmma_trial;
    t->linear_int8_grouped = linear_int8_grouped_wgmma_trial;
    t->linear_fp8_grouped = linear_fp8_grouped_wgmma_trial;
    t->linear_fp8_block_grouped = linear_fp8_block_grouped_wgmma_trial;
}
