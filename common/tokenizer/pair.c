/* SPDX-License-Identifier: Apache-2.0 */
/* Two texts as one prompt, for cross-encoders: what comes before, between and after them was found
 * at load (components/post.c). */
#include "common/tokenizer/tokenizer_internal.h"

FALLIBLE tokenizer_encode_pair(const struct tokenizer *t, const struct tokenizer_pair *p,
                               struct token_list *out, uint32_t *second_at, struct q_err *e)
{
    const struct post_pair *k = &t->pair;
    const size_t begin = out->n;
    const struct {
        const uint32_t *ids;
        size_t n;
    } regions[POST_REGIONS] = {
        [POST_BEFORE] = {k->before.ids, k->before.n},    [POST_FIRST] = {p->first, p->n_first},
        [POST_BETWEEN] = {k->between.ids, k->between.n}, [POST_SECOND] = {p->second, p->n_second},
        [POST_AFTER] = {k->after.ids, k->after.n},
    };
    enum q_code rc = Q_OK;
    *second_at = 0;
    if (!k->is_there)
        return q_fail(e, Q_UNSUPPORTED, "the tokenizer does not put two texts together");
    for (int r = 0; r < POST_REGIONS; r++) {
        if (r == (int)k->second)
            *second_at = (uint32_t)(out->n - begin) + k->n_into;
        for (size_t i = 0; i < regions[r].n && !rc; i++)
            rc = token_list_add(out, regions[r].ids[i], e);
    }
    if (*second_at >= out->n - begin) /* of an empty end */
        *second_at = 0;
    if (rc)
        out->n = begin;
    return rc;
}

size_t tokenizer_pair_special(const struct tokenizer *t)
{
    return t->pair.before.n + t->pair.between.n + t->pair.after.n;
}
