/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/worker/speculate.h"
#include <string.h>

/* Where the last n tokens occurred before, most recently: the position after them; 0 = nowhere. */
static uint32_t find_before(const uint32_t *history, uint32_t n_known, uint32_t n)
{
    const uint32_t *last = history + n_known - n;
    for (uint32_t end = n_known - 1; end >= n; end--) {
        const uint32_t *at = history + end - n;
        if (at[n - 1] == last[n - 1] && memcmp(at, last, (n - 1) * sizeof *at) == 0)
            return end;
    }
    return 0;
}

uint32_t speculate_ngram(uint32_t *draft_tokens, uint32_t n_draft_token_max,
                         const uint32_t *history, uint32_t n_known, const struct speculation *c)
{
    for (uint32_t n = c->ngram_max; n >= c->ngram_min && n > 0; n--) {
        uint32_t at = n_known > n ? find_before(history, n_known, n) : 0;
        if (at == 0)
            continue;
        uint32_t n_draft_token =
            n_known - at < n_draft_token_max ? n_known - at : n_draft_token_max;
        memcpy(draft_tokens, history + at, n_draft_token * sizeof *draft_tokens);
        return n_draft_token;
    }
    return 0;
}
