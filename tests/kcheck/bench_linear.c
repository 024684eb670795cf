/* SPDX-License-Identifier: Apache-2.0 */
/* linear in the cases whose speed matters: one pass over a gigabyte of weights, the matrices of a
 * Qwen2.5-0.5B decode step with a barrier after each, and prompts. */
#include "kcheck.h"

#define BIG_OUT 262144u
#define BIG_IN  1792u
#define N_LAYER 24u
#define N_MAT   (4 * N_LAYER + 1)

static const struct {
    enum dtype w, x;
    const char *name;
} types[] = {
    {DT_BF16, DT_BF16, "bf16 x bf16"},
    {DT_BF16, DT_F32, "f32 x bf16"},
    {DT_F16, DT_F32, "f32 x f16"},
    {DT_F32, DT_F32, "f32 x f32"},
};

/* Random values, cheap: kc_fill_dtype would take longer than the measurements. */
static void fill_random(void *p, enum dtype t, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        float f = (float)(i * 2654435761u % 2048) / 1024 - 1;
        uint16_t h = t == DT_F16 ? f32_to_f16(f) : f32_to_bf16(f);
        if (t == DT_F32)
            ((float *)p)[i] = f;
        else
            ((uint16_t *)p)[i] = h;
    }
}

static void bench_stream(struct kc_bench *b, uint32_t i_type, const void *weights)
{
    static const uint32_t rows[] = {1, 2, 4, 8, 32};
    struct linear_args a = {.x_dtype = types[i_type].x, .x_stride = BIG_IN, .y_stride = BIG_OUT};
    a.w = (struct packed){
        .data = weights,
        .n_out = types[i_type].w == DT_F32 ? BIG_OUT / 2 : BIG_OUT,
        .n_in = BIG_IN,
        .dtype = types[i_type].w,
    };
    void *x = kc_buf(b->k, 32 * BIG_IN * sizeof(float));
    fill_random(x, types[i_type].x, 32 * BIG_IN);
    a.x = x;
    a.y = kc_buf(b->k, 32 * (size_t)BIG_OUT * sizeof(float));
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char shape[64];
        a.n_row = rows[i];
        snprintf(shape, sizeof shape, "%s %u x [%u,%u]", types[i_type].name, a.n_row, a.w.n_out,
                 BIG_IN);
        kc_print_bytes(b, shape, kc_time(b, &a),
                       (double)packed_bytes(a.w.dtype, a.w.n_out, BIG_IN));
    }
}

/* The weights of a decode step, in the order in which the decoder reads them. */
struct step {
    struct kc_bench *b;
    struct linear_args mats[N_MAT];
};

static void step_run(void *arg, uint32_t ith, uint32_t nth)
{
    const struct step *s = arg;
    struct kern_exec x = {
        .ith = ith,
        .nth = nth,
        .scratch = s->b->scratch[ith],
        .scratch_bytes = kern_scratch_bytes(8192, 128, 256),
    };
    for (uint32_t i = 0; i < N_MAT; i++) {
        s->b->k->variant->call(&s->mats[i], &x);
        team_barrier(s->b->team);
    }
}

static void bench_step(struct kc_bench *b, uint32_t i_type, const void *weights)
{
    static const uint32_t shapes[5][2] = {
        {1152, 896}, {896, 896}, {9728, 896}, {896, 4864}, {151936, 896},
    };
    static struct step s;
    size_t used = 0;
    char shape[64];
    void *x = kc_buf(b->k, 4864 * sizeof(float));
    float *y = kc_buf(b->k, 151936 * sizeof *y);
    fill_random(x, types[i_type].x, 4864);
    s.b = b;
    for (uint32_t i = 0; i < N_MAT; i++) {
        const uint32_t *d = shapes[i + 1 < N_MAT ? i % 4 : 4];
        s.mats[i] = (struct linear_args){
            .y = y,
            .x = x,
            .x_dtype = types[i_type].x,
            .n_row = 1,
            .x_stride = d[1],
            .y_stride = d[0],
        };
        s.mats[i].w = (struct packed){
            .data = (const char *)weights + used,
            .n_out = d[0],
            .n_in = d[1],
            .dtype = types[i_type].w,
        };
        used += packed_bytes(types[i_type].w, d[0], d[1]);
    }
    snprintf(shape, sizeof shape, "%s decode step, Qwen2.5-0.5B", types[i_type].name);
    kc_print_bytes(b, shape, kc_time_team(b->team, step_run, &s), (double)used);
}

static void bench_prompt(struct kc_bench *b, uint32_t i_type, const void *weights)
{
    static const uint32_t shapes[][3] = {
        {512, 9728, 896},
        {512, 896, 4864},
        {64, 9728, 896},
        {16, 9728, 896},
    };
    b->i_peak = b->k->variant->caps & (CAP_AVX512 | CAP_AVX512_BF16 | CAP_AMX_BF16) ? PEAK_F32_16
                                                                                    : PEAK_F32_8;
    if (b->k->variant->caps & CAP_AVX512_BF16 && types[i_type].x == DT_BF16)
        b->i_peak = PEAK_BF16_32;
    if (b->k->variant->caps & CAP_AMX_BF16 && types[i_type].x == DT_BF16)
        b->i_peak = PEAK_BF16_AMX;
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        uint32_t n_row = shapes[i][0], n_out = shapes[i][1], n_in = shapes[i][2];
        struct linear_args a = {
            .x_dtype = types[i_type].x,
            .n_row = n_row,
            .x_stride = n_in,
            .y_stride = n_out,
        };
        a.w = (struct packed){
            .data = weights,
            .n_out = n_out,
            .n_in = n_in,
            .dtype = types[i_type].w,
        };
        void *x = kc_buf(b->k, (size_t)n_row * n_in * sizeof(float));
        fill_random(x, types[i_type].x, (size_t)n_row * n_in);
        a.x = x;
        a.y = kc_buf(b->k, (size_t)n_row * n_out * sizeof(float));
        char shape[64];
        snprintf(shape, sizeof shape, "%s %u x [%u,%u]", types[i_type].name, n_row, n_out, n_in);
        kc_print_flop(b, shape, kc_time(b, &a), 2.0 * n_row * n_out * n_in);
    }
}

void kbench_linear(struct kc_bench *b)
{
    const size_t bytes = (size_t)BIG_OUT * BIG_IN * 9 / 4; /* a decode step's 0.99 GB fit too */
    if (!b->k->variant->caps)
        return; /* the reference would take minutes */
    for (uint32_t i = 0; i < sizeof types / sizeof *types; i++) {
        void *weights = kc_map(bytes, true);
        fill_random(weights, types[i].w, bytes / (dtype_bits(types[i].w) / 8));
        bench_stream(b, i, weights);
        if (types[i].w == DT_BF16)
            bench_step(b, i, weights);
        bench_prompt(b, i, weights);
        kc_unmap(weights, bytes);
        kc_end_case(b->k);
    }
}
