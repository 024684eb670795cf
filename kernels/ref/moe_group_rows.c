/* SPDX-License-Identifier: Apache-2.0 */
/* A counting sort on thread 0; `starts` holds the counts. */
#include "kernels/variants.h"

void moe_group_rows_ref(const struct moe_group_rows_args *a, const struct kern_exec *x)
{
    const size_t n = (size_t)a->n_row * a->n_used;
    uint32_t *begin = a->starts; /* of each expert's places; then, one on, where they end */
    if (x->ith != 0)
        return;
    for (uint32_t j = 0; j <= a->n_expert; j++)
        begin[j] = 0;
    for (size_t i = 0; i < n; i++)
        begin[a->experts[i] + 1]++;
    for (uint32_t j = 0; j < a->n_expert; j++)
        begin[j + 1] += begin[j];
    for (size_t i = 0; i < n; i++) {
        const uint32_t place = begin[a->experts[i]]++;
        a->rows[place] = (uint32_t)(i / a->n_used);
        a->places[i] = place;
    }
    for (uint32_t j = a->n_expert; j > 0; j--) /* each begins where the one before it has ended */
        begin[j] = begin[j - 1];
    begin[0] = 0;
}
