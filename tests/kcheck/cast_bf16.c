/* SPDX-License-Identifier: Apache-2.0 */
#include "kcheck.h"

void kcheck_cast_bf16(struct kcheck *k)
{
    uint32_t n_row = kc_range(k, 0, 6), n_col = kc_range(k, 1, 200);
    size_t x_stride = n_col + kc_range(k, 0, 9), y_stride = n_col + kc_range(k, 0, 9);
    kc_shape(k, "n_row %u n_col %u", n_row, n_col);
    float *x = kc_buf(k, n_row * x_stride * sizeof *x);
    kc_fill(k, x, n_row * x_stride);
    for (size_t i = 0; i < n_row * x_stride;
         i += 5) { /* any bits: ties, NaN payloads, subnormals */
        static const uint32_t edges[] = {
            0x7f800001u, 0xff80ffffu, 0x7fc00000u, /* NaN whose payload is in the low half; quiet */
            0x7f7fffffu, 0x7f7f8000u, 0x7f7f7fffu, /* rounds to infinity, ties to it, does not */
            0x00008000u, 0x00018000u, 0x80000001u, /* ties and rest among the subnormals */
        };
        uint32_t bits = (uint32_t)(kc_rnd(k) >> 32);
        bits = kc_chance(k, 50) ? (bits & 0xffff0000u) | 0x8000u : bits;
        bits = kc_chance(k, 30) ? edges[kc_range(k, 0, 8)] : bits;
        memcpy(&x[i], &bits, sizeof bits);
    }
    uint16_t *got = kc_buf(k, n_row * y_stride * sizeof *got),
             *want = kc_buf(k, n_row * y_stride * sizeof *want);
    struct cast_bf16_args a = {.y = got,
                               .x = x,
                               .n_row = n_row,
                               .n_col = n_col,
                               .x_stride = x_stride,
                               .y_stride = y_stride};
    kc_run(k, k->variant, &a, kc_range(k, 1, 5));
    for (uint32_t i = 0; i < n_row; i++)
        for (uint32_t c = 0; c < n_col; c++)
            want[i * y_stride + c] = f32_to_bf16(x[i * x_stride + c]);
    kc_compare(k, "y", &(struct kc_array){got, DT_BF16, n_row, n_col, y_stride},
               &(struct kc_array){want, DT_BF16, n_row, n_col, y_stride});
}

void kbench_cast_bf16(struct kc_bench *b)
{
    const uint32_t n_row = 512, n_col = 4864;
    struct cast_bf16_args a = {
        .n_row = n_row, .n_col = n_col, .x_stride = n_col, .y_stride = n_col};
    float *x = kc_buf(b->k, (size_t)n_row * n_col * 4);
    kc_fill(b->k, x, (size_t)n_row * n_col);
    a.x = x;
    a.y = kc_buf(b->k, (size_t)n_row * n_col * 2);
    kc_print_bytes(b, "512 x 4864", kc_time(b, &a), n_row * (double)n_col * 6);
}
