/* SPDX-License-Identifier: Apache-2.0 */
/* A file of --record of arbitrary bytes: refused, or every frame can be read in full and the mirror
 * of the slots follows it. Tried as it is, and with the right checksums, so that the fuzzer gets
 * past them. */
#include <string.h>
#include <xxhash.h>
#include "common/mem.h"
#include "engine/record/mirror.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

#define MAGIC_BYTES   8u
#define SLOTS_MAX     64u
#define STORE_MIB_MAX 4u

static volatile uint64_t sink; /* what was read, so that the reads stay */

static void read_bytes(const void *data, size_t n)
{
    for (size_t i = 0; i < n; i++)
        sink += ((const uint8_t *)data)[i];
}

/* Table and contents go where they were; the store is as large as the limits say. */
static void place(const struct record_table *t, const struct step_limits *l)
{
    unsigned char *store = l->item_mib <= STORE_MIB_MAX ? q_calloc(1, step_store_bytes(l)) : NULL;
    if (store)
        record_place(t, store);
    q_free(store);
}

static void follow(struct mirror *m, const struct record_reader *r, const struct record_item *item)
{
    struct q_err e = Q_ERR_INIT;
    struct buf slot = BUF_INIT_MAX(1u << 20);
    if (item->kind == RECORD_STEP) {
        read_bytes(item->rows, item->counts.n_row * sizeof *item->rows);
        read_bytes(item->view.head, item->counts.step_bytes);
    }
    if (item->kind == RECORD_ITEMS) {
        read_bytes(item->table.items, item->table.head.n_item * sizeof *item->table.items);
        place(&item->table, &r->head.limits);
        if (m->n && mirror_items(m, item->table.payload, item->table.n_payload, &e))
            return;
    }
    if (item->kind == RECORD_ADAPTER) {
        read_bytes(item->dir, strlen(item->dir));
        read_bytes(item->adapter.digest, strlen(item->adapter.digest));
    }
    if (item->kind == RECORD_WORKER)
        mirror_reset(m);
    if (item->kind == RECORD_END)
        read_bytes(item->reason, strlen(item->reason));
    if (item->kind != RECORD_STEP || !m->n ||
        mirror_step(m, &item->view, item->rows, item->counts.n_row, &e))
        return;
    for (uint32_t i = 0; i < m->n; i++) {
        buf_reset(&slot);
        if (mirror_put(m, i, &slot))
            read_bytes(slot.data, slot.len);
    }
    buf_release(&slot);
}

static void read_all(const void *data, size_t n)
{
    struct record_reader r;
    struct record_item item;
    struct mirror m = MIRROR_INIT;
    struct q_err e = Q_ERR_INIT;
    bool more = true;
    enum q_code rc = record_open(&r, data, n, &e);
    if (!rc && r.head.limits.max_num_seqs <= SLOTS_MAX)
        Q_ASSERT(!mirror_init(&m, r.head.limits.max_num_seqs, &e));
    for (uint32_t i = 0; !rc && i < r.head.n_option; i++)
        read_bytes(r.texts.options[i], strlen(r.texts.options[i]));
    while (!rc && more && !(rc = record_next(&r, &item, &more, &e)))
        if (more)
            follow(&m, &r, &item);
    Q_ASSERT((rc != Q_OK) == (e.code != Q_OK));
    mirror_release(&m);
}

/* The frames get the checksums of their bytes. */
static void make_right(unsigned char *data, size_t n)
{
    uint32_t head[2];
    for (size_t at = MAGIC_BYTES; n >= 16 && at <= n - 16;) {
        memcpy(head, data + at, sizeof head);
        const uint64_t padded = ((uint64_t)head[1] + 7) & ~UINT64_C(7);
        if (padded > n - at - 16)
            return;
        const uint64_t sum =
            XXH3_64bits_withSeed(data + at + 16, (size_t)padded, XXH3_64bits(head, sizeof head));
        memcpy(data + at + 8, &sum, sizeof sum);
        at += 16 + (size_t)padded;
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    unsigned char *copy = q_alloc(n); /* as large as the input and aligned */
    if (n)
        memcpy(copy, data, n);
    read_all(copy, n);
    make_right(copy, n);
    read_all(copy, n);
    q_free(copy);
    return 0;
}
