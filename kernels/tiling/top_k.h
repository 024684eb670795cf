/* SPDX-License-Identifier: Apache-2.0 */
/* top_k - the k largest values of a row, of equal ones those with the lowest columns.
 *
 * A heap with the least item first. A row is offered in ascending columns, so an item that equals
 * the least one comes after it and stays out: an item enters if and only if its value is above the
 * least. The result depends on the row alone, so all variants use this code and differ in how they
 * skip what is not above. Private to kernels/. Threads: pure functions. */
#ifndef QUIRE_KERNELS_TILING_TOP_K_H
#define QUIRE_KERNELS_TILING_TOP_K_H
#include <stdbool.h>
#include "kernels/ops/ops_distill.h"
#include "kernels/ops/ops_row.h"

struct top_k {
    struct row_item *items; /* [k] */
    uint32_t n, k;
};

/* Scratch of distill_loss. */
struct top_k_scratch {
    struct row_item items[KERN_TOP_K_MAX];
    float teacher[KERN_TOP_K_MAX], student[KERN_TOP_K_MAX]; /* logits at K */
    float slopes[KERN_TOP_K_MAX]; /* what K's columns get in the gradient */
    uint32_t ids[KERN_TOP_K_MAX];
};

/* Is a to leave the heap before b? A NaN counts as -inf. */
static inline bool top_k_before(const struct row_item *a, const struct row_item *b)
{
    const bool a_low = !(a->value >= b->value), b_low = !(b->value >= a->value);
    return a_low != b_low ? a_low : a->id > b->id;
}

static inline bool top_k_id_above(const struct row_item *a, const struct row_item *b)
{
    return a->id > b->id;
}

typedef bool top_k_order(const struct row_item *a, const struct row_item *b);

/* Item i goes down until no child is to come before it. */
static inline void top_k_sink(struct row_item *items, uint32_t n, uint32_t i, top_k_order *before)
{
    const struct row_item item = items[i];
    for (uint32_t child = 2 * i + 1; child < n; child = 2 * i + 1) {
        if (child + 1 < n && before(&items[child + 1], &items[child]))
            child++;
        if (!before(&items[child], &item))
            break;
        items[i] = items[child];
        i = child;
    }
    items[i] = item;
}

/* The least value that is in, once the heap is full. */
static inline float top_k_least(const struct top_k *t)
{
    return t->items[0].value;
}

/* Column `id`, above all those offered before. */
static inline void top_k_offer(struct top_k *t, float value, uint32_t id)
{
    const struct row_item item = {value, id};
    if (t->n < t->k) {
        t->items[t->n++] = item;
        for (uint32_t i = t->k / 2; t->n == t->k && i-- > 0;)
            top_k_sink(t->items, t->k, i, top_k_before);
    } else if (top_k_before(&t->items[0], &item)) {
        t->items[0] = item;
        top_k_sink(t->items, t->k, 0, top_k_before);
    }
}

/* By ascending column: the largest goes to the end, then the next. */
static inline void top_k_sort(struct top_k *t)
{
    for (uint32_t i = t->n / 2; i-- > 0;)
        top_k_sink(t->items, t->n, i, top_k_id_above);
    for (uint32_t n = t->n; n > 1; n--) {
        const struct row_item last = t->items[n - 1];
        t->items[n - 1] = t->items[0];
        t->items[0] = last;
        top_k_sink(t->items, n - 1, 0, top_k_id_above);
    }
}

#endif
