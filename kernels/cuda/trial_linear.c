/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cuda/trial_linear.h"
#include <math.h>
#include <string.h>
#include "kernels/cuda/layout.h"

#define GROUPS   5u
#define ROWS_MAX 200u /* of y: rows, places */
#define OUT_MAX  288u
#define IN_MAX   272u
#define X_BYTES  (ROWS_MAX * IN_MAX * 2)
#define W_BYTES  (OUT_MAX * IN_MAX * 2 + 4096) /* of all of a problem */
#define N_FLOAT  (ROWS_MAX * OUT_MAX)

struct problem {
    uint32_t n_row, n_out, n_in, gated, n_group;
    bool accumulate, picked;
};
/* 130 rows are tall tiles, as are 200 places of 3 groups; the others are flat. */
static const struct problem problems[] = {
    {.n_row = 130, .n_out = 200, .n_in = 272, .accumulate = true},
    {.n_row = 40, .n_out = 288, .n_in = 208, .gated = 1},
    {.n_row = 95, .n_out = 64, .n_in = 80, .gated = 1, .n_group = 5, .picked = true},
    {.n_row = 200, .n_out = 150, .n_in = 80, .n_group = 3},
};
static const uint32_t starts[][GROUPS + 1] = {{0, 0, 40, 43, 95, 95}, {0, 140, 140, 200}};

struct room { /* on the host, and the same on the device; x and w: as aligned as matrices are */
    _Alignas(256) unsigned char x[X_BYTES];
    _Alignas(256) unsigned char w[W_BYTES];
    float bias[OUT_MAX], before[N_FLOAT], got[2][N_FLOAT];
    struct quant_row scales[ROWS_MAX];
    uint32_t starts[GROUPS + 1], rows[ROWS_MAX];
};
struct trial {
    const struct device_link *on;
    const struct kern_table *kern[2];
    struct room *host, *card;
    uint64_t rng;
};

const char *const linear_type_names[LINEAR_TYPES] = {"bf16", "f16", "int8", "e4m3"};
static const enum dtype dtypes[LINEAR_TYPES] = {DT_BF16, DT_F16, DT_I8, DT_F8_E4M3};

static uint32_t draw_value(struct trial *t)
{
    t->rng ^= t->rng << 13; /* xorshift64 */
    t->rng ^= t->rng >> 7;
    t->rng ^= t->rng << 17;
    return (uint32_t)(t->rng >> 32);
}

static float draw_f32(struct trial *t) /* -1 … 1 */
{
    return (float)(draw_value(t) >> 8) * 0x1p-23f - 1;
}

static bool is_bytes(enum linear_type type)
{
    return type == LINEAR_I8 || type == LINEAR_FP8;
}

static void fill_numbers(struct trial *t, enum linear_type type, unsigned char *p, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        const float f = draw_f32(t);
        const uint16_t h = type == LINEAR_F16 ? f32_to_f16(f) : f32_to_bf16(f);
        if (!is_bytes(type))
            memcpy(p + 2 * i, &h, 2);
        else if (type == LINEAR_I8)
            p[i] = (unsigned char)(int8_t)(int)(127 * f);
        else
            p[i] = (unsigned char)(draw_value(t) % 0x49u | (f < 0 ? 0x80u : 0)); /* up to 4 */
    }
}

static struct packed matrix_of(const struct trial *t, enum linear_type type,
                               const struct problem *p)
{
    return (struct packed){
        .data = t->card->w,
        .n_out = p->n_out,
        .n_in = p->n_in,
        .dtype = dtypes[type],
        .gated = p->gated,
    };
}

static size_t matrix_step(const struct trial *t, enum linear_type type, const struct problem *p)
{
    const struct packed w = matrix_of(t, type, p);
    return (cuda_matrix_bytes(&w) + 15) / 16 * 16;
}

static void fill_matrices(struct trial *t, enum linear_type type, const struct problem *p)
{
    struct room *h = t->host;
    const size_t step = matrix_step(t, type, p);
    fill_numbers(t, type, h->x, (size_t)p->n_row * p->n_in);
    for (uint32_t g = 0; g < (p->n_group ? p->n_group : 1); g++) {
        fill_numbers(t, type, h->w + g * step, (size_t)p->n_out * p->n_in);
        for (uint32_t o = 0; is_bytes(type) && o < p->n_out; o++) {
            const float scale = (2 + draw_f32(t)) / 256;
            memcpy(h->w + g * step + int8_scales_at(p->n_out, p->n_in) + o * sizeof scale, &scale,
                   sizeof scale);
        }
    }
    for (uint32_t i = 0; i < OUT_MAX; i++)
        h->bias[i] = draw_f32(t);
    for (uint32_t i = 0; i < N_FLOAT; i++)
        h->before[i] = draw_f32(t);
    for (uint32_t i = 0; i < ROWS_MAX; i++) {
        h->scales[i] = (struct quant_row){.scale = (2 + draw_f32(t)) / 256};
        h->rows[i] = draw_value(t) % p->n_row;
    }
    memcpy(h->starts, starts[p->n_group == GROUPS ? 0 : 1], sizeof h->starts);
}

/* Onto card->got[i], by kern[i]. */
static void launch(const struct trial *t, enum linear_type type, const struct problem *p,
                   unsigned i)
{
    const struct room *c = t->card;
    const struct kern_table *k = t->kern[i];
    const struct kern_exec x = {.nth = 1, .stream = t->on->s};
    const float *bias = p->n_group ? NULL : c->bias;
    const uint32_t n_col = p->gated ? p->n_out / 2 : p->n_out;
    const struct groups groups = {matrix_step(t, type, p), p->n_group, c->starts,
                                  p->picked ? c->rows : NULL};
    const struct linear_grouped_args floats = {
        {
            .y = t->card->got[i],
            .y_dtype = DT_F32,
            .x = c->x,
            .x_dtype = dtypes[type],
            .w = matrix_of(t, type, p),
            .bias = bias,
            .n_row = p->n_row,
            .x_stride = p->n_in,
            .y_stride = n_col,
            .accumulate = p->accumulate,
        },
        groups,
    };
    const struct linear_int8_args by = {
        .y = t->card->got[i],
        .y_dtype = DT_F32,
        .x = (const int8_t *)c->x,
        .rows = c->scales,
        .w = matrix_of(t, type, p),
        .bias = bias,
        .n_row = p->n_row,
        .x_stride = p->n_in,
        .y_stride = n_col,
        .accumulate = p->accumulate,
    };
    const struct linear_fp8_grouped_args bytes = {{by, groups}};
    const struct linear_fp8_args e4m3 = {by};
    if (type == LINEAR_I8)
        p->n_group ? k->linear_int8_grouped(&bytes.as, &x) : k->linear_int8(&by, &x);
    else if (type == LINEAR_FP8)
        p->n_group ? k->linear_fp8_grouped(&bytes, &x) : k->linear_fp8(&e4m3, &x);
    else
        p->n_group ? k->linear_grouped(&floats, &x) : k->linear(&floats.by, &x);
}

static void compare_result(struct linear_trial *r, const struct trial *t, uint32_t n)
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

static FALLIBLE solve(struct linear_trial *r, struct trial *t, enum linear_type type,
                      const struct problem *p, struct q_err *e)
{
    const struct device_table *d = t->on->t;
    const size_t n = (size_t)p->n_row * (p->gated ? p->n_out / 2 : p->n_out);
    enum q_code rc;
    fill_matrices(t, type, p);
    d->copy(t->on->s, t->card, t->host, sizeof *t->host);
    for (unsigned i = 0; i < 2; i++) {
        if (p->accumulate)
            d->copy(t->on->s, t->card->got[i], t->card->before, n * sizeof(float));
        else
            d->fill(t->on->s, t->card->got[i], 0xff, n * sizeof(float));
        launch(t, type, p, i);
        d->copy(t->on->s, t->host->got[i], t->card->got[i], n * sizeof(float));
    }
    if ((rc = d->sync(t->on->s, e)) || (rc = d->check(t->on->d, e)))
        return rc;
    compare_result(r, t, (uint32_t)n);
    return Q_OK;
}

enum q_code linear_trial_run(struct linear_trial out[LINEAR_TYPES], const struct device_link *on,
                             const struct kern_table *known, const struct kern_table *tried,
                             struct q_err *e)
{
    static const char what[] = "the trial of products";
    struct trial t = {.on = on, .kern = {known, tried}, .rng = 88172645463325252u};
    void *host = NULL, *card = NULL;
    enum q_code rc;
    memset(out, 0, LINEAR_TYPES * sizeof *out);
    if ((rc = on->t->host_alloc(on->d, &host, sizeof *t.host, what, e)) ||
        (rc = on->t->alloc(on->d, &card, sizeof *t.card, what, e)))
        goto done;
    t.host = host;
    t.card = card;
    for (int type = 0; type < LINEAR_TYPES && !rc; type++)
        for (size_t i = 0; i < sizeof problems / sizeof *problems && !rc; i++)
            rc = solve(&out[type], &t, (enum linear_type)type, &problems[i], e);
done:
    if (card)
        on->t->release(on->d, card);
    if (host)
        on->t->host_free(on->d, host);
    return rc;
}

/* Relative to the largest value; they cover another order and precision of sums (tune.c has the
 * same for cuBLASLt). */
static const double tolerances[LINEAR_TYPES] = {
    [LINEAR_BF16] = 0x1p-10,
    [LINEAR_F16] = 0x1p-10,
    [LINEAR_I8] = 0,
    [LINEAR_FP8] = 0x1p-6,
};

bool linear_trial_holds(const struct linear_trial *r, enum linear_type type, bool same_bits)
{
    return r->n > 0 && r->worst <= tolerances[type] &&
           (r->n_differ == 0 || (!same_bits && type != LINEAR_I8));
}

void linear_trial_table(struct kern_table *t)
{
    t->linear = linear_wgmma_trial;
    t->linear_int8 = linear_int8_wgmma_trial;
    t->linear_fp8 = linear_fp8_wgmma_trial;
    t->linear_grouped = linear_grouped_wgmma_trial;
    t->linear_int8_grouped = linear_int8_grouped_wgmma_trial;
    t->linear_fp8_grouped = linear_fp8_grouped_wgmma_trial;
}
