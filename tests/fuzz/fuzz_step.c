/* SPDX-License-Identifier: Apache-2.0 */
/* Shared memory as a damaged process may leave it: whatever step_view, step_result_view and
 * step_items_check accept can be read in full. The first byte chooses which. */
#include <string.h>
#include "common/mem.h"
#include "proto/items.h"
#include "proto/step.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static volatile uint64_t sink; /* what was read, so that the reads stay */

static const struct step_limits limits = {
    .max_num_seqs = 8,
    .max_num_batched_tokens = 64,
    .max_model_len = 128,
    .logit_rows_max = 16,
    .known_max = 256,
    .copies_max = 8,
    .item_mib = 1,
};

static void read_bytes(const void *data, size_t n)
{
    for (size_t i = 0; i < n; i++)
        sink += ((const uint8_t *)data)[i];
}

static void try_step(void *memory, size_t n)
{
    struct step_view v;
    struct q_err e = Q_ERR_INIT;
    if (step_view(&v, memory, n, &limits, &e)) {
        Q_ASSERT(e.code == Q_CORRUPT);
        return;
    }
    const struct step_head *h = v.head;
    read_bytes(v.seqs, h->n_seq * sizeof *v.seqs);
    read_bytes(v.admits, h->n_admit * sizeof *v.admits);
    read_bytes(v.blocks, h->n_block * sizeof *v.blocks);
    read_bytes(v.known, h->n_known * sizeof *v.known);
    read_bytes(v.stop_ids, h->n_stop_id * sizeof *v.stop_ids);
    read_bytes(v.bias_ids, h->n_bias * sizeof *v.bias_ids);
    read_bytes(v.bias, h->n_bias * sizeof *v.bias);
    read_bytes(v.lists, h->n_list * sizeof *v.lists);
    read_bytes(v.outs, h->n_out * sizeof *v.outs);
    read_bytes(v.ins, h->n_in * sizeof *v.ins);
    for (uint32_t i = 0; i < h->n_admit; i++) {
        const struct step_admit *a = &v.admits[i];
        Q_ASSERT(!a->n_item || (a->item_offset <= step_store_bytes(&limits) &&
                                a->n_item * sizeof(struct step_item) <=
                                    step_store_bytes(&limits) - a->item_offset));
    }
    uint64_t n_token = 0;
    for (uint32_t i = 0; i < h->n_seq; i++) {
        Q_ASSERT(v.seqs[i].slot < limits.max_num_seqs);
        n_token += v.seqs[i].n_token;
    }
    Q_ASSERT(n_token <= limits.max_num_batched_tokens);
}

static void try_result(void *memory, size_t n)
{
    struct step_result r;
    struct q_err e = Q_ERR_INIT;
    if (step_result_view(&r, memory, n, &limits, &e)) {
        Q_ASSERT(e.code == Q_CORRUPT);
        return;
    }
    read_bytes(r.rows, r.head->n_row * sizeof *r.rows);
    for (uint32_t i = 0; i < r.head->n_note; i++) {
        Q_ASSERT(r.notes[i].slot < limits.max_num_seqs);
        read_bytes(r.notes[i].text, strlen(r.notes[i].text) + 1);
    }
    for (uint32_t i = 0; i < r.head->n_row; i++) {
        read_bytes(r.top_ids + r.rows[i].top_start, r.rows[i].n_top * sizeof *r.top_ids);
        read_bytes(r.top_logprobs + r.rows[i].top_start, r.rows[i].n_top * sizeof *r.top_logprobs);
    }
}

/* The memory is the store, with a table at its beginning. */
static void try_items(const void *memory, size_t n)
{
    const struct step_item_limits l = {.store_bytes = n, .n_modality = 2, .n_prompt = 128};
    const struct step_item *items = memory;
    const uint32_t n_item = (uint32_t)(n / sizeof *items);
    struct q_err e = Q_ERR_INIT;
    if (step_items_check(items, n_item, &l, &e)) {
        Q_ASSERT(e.code == Q_CORRUPT);
        return;
    }
    uint32_t i_item = 0, n_row = 0, n_have = 0;
    for (uint32_t i = 0; i < n_item; i++) {
        read_bytes((const char *)memory + items[i].offset, items[i].n_byte);
        n_row += items[i].n_token;
        Q_ASSERT(step_items_from(items, n_item, items[i].position) == i);
    }
    for (uint32_t i = 0; i < l.n_prompt; i++)
        n_have += step_items_have(items, n_item, &i_item, i);
    Q_ASSERT(n_row == n_have);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    if (n == 0)
        return 0;
    void *memory = q_alloc(n - 1); /* as large as the input and aligned */
    if (n > 1)
        memcpy(memory, data + 1, n - 1);
    if (data[0] >= 0x80)
        try_items(memory, n - 1);
    else if (data[0] % 2)
        try_result(memory, n - 1);
    else
        try_step(memory, n - 1);
    q_free(memory);
    return 0;
}
