/* SPDX-License-Identifier: Apache-2.0 */
/* product - shared code of the checks of the matrix products. Threads: as kcheck.h. */
#ifndef QUIRE_TESTS_KCHECK_PRODUCT_H
#define QUIRE_TESTS_KCHECK_PRODUCT_H
#include "kcheck.h"

/* One call of linear, linear_int8 or linear_w4a8: y [n_row, n_out], rows y_stride apart. */
struct kc_product {
    void *args; /* of the operation */
    void **y;   /* their member y */
    enum dtype *y_dtype;
    int *accumulate;
    uint32_t *gated, *act; /* act: NULL where gate has silu only, on a device */
    uint32_t n_row, n_out;
    size_t y_stride;
    const struct kc_variant *definition; /* k->ref, or its substitute */
    bool sibling;                        /* kc_same_as_sibling holds too */
    /* Arguments for row i alone, from the first y_stride of y; valid until the next call. */
    const void *(*row)(const struct kc_product *p, uint32_t i, float *y);
    /* The definition's y against sums in f64; before: y as it was. */
    void (*near)(struct kcheck *k, const struct kc_product *p, const float *y, const float *before);
};

/* The variant against the definition, that against f64, and rows of the batch against the same rows
 * alone, with any number of threads: the same bits. Then the same weights gated, where n_out
 * allows. */
void kc_product_check(struct kcheck *k, const struct kc_product *p);

/* 1 … most, often such that they may be gated. */
uint32_t kc_product_outputs(struct kcheck *k, uint32_t most);
/* [n_out] or NULL. */
const float *kc_product_bias(struct kcheck *k, uint32_t n_out);

#endif
