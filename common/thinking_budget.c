/* SPDX-License-Identifier: Apache-2.0 */
#include "common/thinking_budget.h"

#define TAG_HEAD 3u /* words before a tag's bytes */

static bool all_within(const uint32_t *values, uint32_t n, uint32_t first, uint32_t end)
{
    for (uint32_t i = 0; i < n; i++)
        if (values[i] < first || values[i] >= end)
            return false;
    return true;
}

/* The words of the tag at `at`; 0: it is none. */
static size_t view_tag(struct thinking_tag *out, const uint32_t *at, size_t n_word,
                       uint32_t vocab_size)
{
    if (n_word < TAG_HEAD || at[0] > THINKING_END || !at[1] || at[1] > THINKING_BUDGET_BYTES_MAX ||
        (at[0] == THINKING_END_OF) != (at[2] > 0) || n_word - TAG_HEAD < at[1] ||
        n_word - TAG_HEAD - at[1] < at[2])
        return 0;
    *out = (struct thinking_tag){
        .kind = (enum thinking_tag_kind)at[0],
        .bytes = at + TAG_HEAD,
        .ids = at + TAG_HEAD + at[1],
        .n_byte = at[1],
        .n_id = at[2],
    };
    return all_within(out->bytes, out->n_byte, 1, 0xff) &&
                   all_within(out->ids, out->n_id, 0, vocab_size)
               ? TAG_HEAD + out->n_byte + out->n_id
               : 0;
}

bool thinking_budget_view(struct thinking_budget *out, const uint32_t *words, size_t n_word,
                          uint32_t vocab_size)
{
    size_t n;
    if (n_word < 2 || n_word > THINKING_BUDGET_WORDS_MAX ||
        words[1] > (THINKING_OPENED | THINKING_AGAIN))
        return false;
    out->max_tokens = words[0];
    out->flags = words[1];
    out->n_tag = 0;
    bool due = false; /* an end, after a start */
    for (size_t at = 2; at < n_word; at += n) {
        struct thinking_tag *tag = &out->tags[out->n_tag];
        if (out->n_tag == THINKING_BUDGET_TAGS_MAX ||
            !(n = view_tag(tag, words + at, n_word - at, vocab_size)) ||
            due != (tag->kind == THINKING_END_OF))
            return false;
        due = tag->kind == THINKING_START;
        out->n_tag++;
    }
    return !due && out->n_tag && out->tags[0].kind == THINKING_START;
}
