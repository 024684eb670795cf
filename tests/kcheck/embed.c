/* SPDX-License-Identifier: Apache-2.0 */
#include "kcheck.h"
#include <string.h>
#include "kernels/variants.h"

static const uint32_t dtypes[] = {DT_F32, DT_F16, DT_BF16};

void kcheck_embed(struct kcheck *k)
{
    enum dtype t = (enum dtype)kc_pick(k, dtypes, 3);
    uint32_t n_vocab = kc_range(k, 1, 20), n_row = kc_range(k, 0, 9), n_col = kc_range(k, 1, 150);
    size_t element = dtype_bits(t) / 8, n = (size_t)n_row * n_col;
    kc_shape(k, "%s n_row %u n_col %u", dtype_name(t), n_row, n_col);
    /* a table in a mapped file is aligned to its element only */
    char *table =
        (char *)kc_buf(k, n_vocab * n_col * element + element) + kc_range(k, 0, 1) * element;
    kc_fill_dtype(k, table, t, (size_t)n_vocab * n_col);
    const bool packed = kc_chance(k, 40);
    void *panels = NULL;
    if (packed) {
        panels = kc_buf(k, packed_bytes(t, n_vocab, n_col));
        const struct pack_args p = {panels, t, table, t, n_vocab, n_col, 0, n_vocab};
        pack_ref(&p, &(struct kern_exec){.nth = 1});
    }
    uint32_t *ids = kc_buf(k, (n_row + 1) * sizeof *ids);
    struct embed_args a = {.div = 1};
    if (kc_chance(k, 30)) { /* as positions are looked up */
        a.div = kc_range(k, 1, 7);
        a.mod = kc_range(k, 1, n_vocab);
    }
    if (!a.mod && kc_chance(k, 30))
        a.limit = kc_range(k, 1, n_vocab);
    for (uint32_t i = 0; i < n_row; i++) {
        ids[i] = kc_range(k, 0, a.mod || a.limit ? 1000 : n_vocab - 1);
        ids[i] = kc_chance(k, 10) ? KERN_NO_ROW : ids[i];
    }
    float *got = kc_buf(k, n * sizeof *got), *want = kc_buf(k, n * sizeof *want);
    a.table = packed ? panels : table;
    a.dtype = t;
    a.packed = packed;
    a.ids = ids;
    a.n_row = n_row;
    a.n_col = n_col;
    a.scale = kc_chance(k, 50) ? 1.0f : kc_f32(k);
    a.accumulate = kc_chance(k, 30);
    kc_fill(k, got, n);
    memcpy(want, got, n * sizeof *got);
    a.y = got;
    kc_run(k, k->variant, &a, kc_range(k, 1, 5));
    for (uint32_t i = 0; i < n_row; i++)
        for (uint32_t c = 0; c < n_col && ids[i] != KERN_NO_ROW; c++) {
            const uint32_t r = a.mod ? ids[i] / a.div % a.mod : ids[i];
            const uint32_t id = a.limit && r >= a.limit ? 0 : r;
            const float v = kc_get(table, t, (size_t)id * n_col + c) * a.scale;
            want[i * n_col + c] = a.accumulate ? want[i * n_col + c] + v : v;
        }
    kc_compare(k, "y", &(struct kc_array){got, DT_F32, n_row, n_col, n_col},
               &(struct kc_array){want, DT_F32, n_row, n_col, n_col});
}

void kbench_embed(struct kc_bench *b)
{
    static uint32_t ids[512];
    const uint32_t n_vocab = 312 * KERN_PANEL, n_col = 896;
    for (uint32_t i = 0; i < 512; i++)
        ids[i] = i * 7919u % n_vocab;
    struct embed_args a = {.dtype = DT_BF16, .ids = ids, .n_row = 512, .n_col = n_col, .scale = 1};
    a.y = kc_buf(b->k, 512 * n_col * sizeof(float));
    a.table = kc_buf(b->k, (size_t)n_vocab * n_col * 2);
    kc_print_bytes(b, "bf16 512 x 896", kc_time(b, &a), 512.0 * n_col * 6);
    a.packed = 1;
    kc_print_bytes(b, "bf16 512 x 896 in panels", kc_time(b, &a), 512.0 * n_col * 6);
}
