/* SPDX-License-Identifier: Apache-2.0 */
#include "kcheck.h"
#include <math.h>

void kcheck_rope(struct kcheck *k)
{
    uint32_t n_row = kc_range(k, 0, 6), n_head = kc_range(k, 1, 5), half = kc_range(k, 1, 70);
    uint32_t n_rot = 2 * half, head_dim = n_rot + (kc_chance(k, 50) ? 0 : kc_range(k, 1, 30));
    uint32_t n_pos = kc_range(k, 1, 30);
    size_t stride = (size_t)n_head * head_dim + kc_range(k, 0, 9), n = n_row * stride;
    float *x = kc_buf(k, n * sizeof *x), *table = kc_buf(k, (size_t)n_pos * n_rot * sizeof *table);
    uint32_t *pos = kc_buf(k, (n_row + 1) * sizeof *pos);
    kc_fill(k, x, n);
    kc_fill(k, table, (size_t)n_pos * n_rot);
    for (uint32_t i = 0; i < n_row; i++)
        pos[i] = kc_range(k, 0, n_pos - 1);
    struct rope_args a = {
        .x_stride = stride,
        .table = table,
        .pos = pos,
        .n_row = n_row,
        .n_head = n_head,
        .head_dim = head_dim,
        .n_rot = n_rot,
        .interleaved = kc_chance(k, 50),
    };
    kc_shape(k, "n_row %u n_head %u head_dim %u n_rot %u%s", n_row, n_head, head_dim, n_rot,
             a.interleaved ? " interleaved" : "");
    float *got = kc_copy(k, x, n * sizeof *x), *want = kc_copy(k, x, n * sizeof *x);
    for (uint32_t i = 0; i < n_row; i++) /* the formula of ops.h, pair by pair */
        for (uint32_t h = 0; h < n_head; h++)
            for (uint32_t j = 0; j < half; j++) {
                size_t head = i * stride + (size_t)h * head_dim;
                size_t p = head + (a.interleaved ? 2 * j : j),
                       q = head + (a.interleaved ? 2 * j + 1 : j + half);
                float c = table[((size_t)pos[i] * half + j) * 2],
                      s = table[((size_t)pos[i] * half + j) * 2 + 1];
                want[p] = x[p] * c - x[q] * s;
                want[q] = x[q] * c + x[p] * s;
            }
    a.x = got;
    kc_run(k, k->variant, &a, kc_range(k, 1, 6));
    kc_compare(k, "x", &(struct kc_array){got, DT_F32, n_row, stride, stride},
               &(struct kc_array){want, DT_F32, n_row, stride, stride});
}

void kbench_rope(struct kc_bench *b)
{
    static uint32_t pos[512];
    const uint32_t n_row = 512, n_head = 14, head_dim = 64;
    struct rope_args a = {
        .x_stride = n_head * head_dim,
        .pos = pos,
        .n_row = n_row,
        .n_head = n_head,
        .head_dim = head_dim,
        .n_rot = head_dim,
    };
    float *table = kc_buf(b->k, n_row * head_dim * sizeof *table);
    for (uint32_t i = 0; i < n_row; i++) {
        pos[i] = i;
        for (uint32_t j = 0; j < head_dim / 2; j++) {
            table[(i * head_dim / 2 + j) * 2] = cosf((float)i / (float)(j + 1));
            table[(i * head_dim / 2 + j) * 2 + 1] = sinf((float)i / (float)(j + 1));
        }
    }
    a.table = table;
    a.x = kc_buf(b->k, n_row * a.x_stride * sizeof(float));
    kc_fill(b->k, a.x, n_row * a.x_stride);
    kc_print_bytes(b, "512 x 14 x 64", kc_time(b, &a), n_row * (double)a.x_stride * 8);
}
