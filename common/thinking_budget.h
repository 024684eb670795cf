/* SPDX-License-Identifier: Apache-2.0 */
/* thinking_budget - the limit on the tokens of reasoning in an output, as words.
 *
 * A frontend knows the tags of the model's reasoning format and the tokenizer; the worker, which
 * enforces the limit, knows the bytes of tokens. The words are what travels from one to the other:
 *
 *     max_tokens | flags | tag | tag | …      a tag: kind | n_byte | n_id | a byte a word | ids
 *
 * Each start is followed by its own end, with the ids that write it; other ends have no ids. Tags
 * are text: names of special tokens are without marks. Threads: values. */
#ifndef QUIRE_COMMON_THINKING_BUDGET_H
#define QUIRE_COMMON_THINKING_BUDGET_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define THINKING_BUDGET_WORDS_MAX 2048u
#define THINKING_BUDGET_TAGS_MAX  24u
#define THINKING_BUDGET_BYTES_MAX 64u /* of a tag */

enum thinking_flags {
    THINKING_OPENED = 1 << 0, /* the output begins inside reasoning, of the first start */
    THINKING_AGAIN = 1 << 1,  /* a start counts anywhere; else at the begin, blanks aside */
};
enum thinking_tag_kind { THINKING_START, THINKING_END_OF, THINKING_END };

struct thinking_tag {
    enum thinking_tag_kind kind; /* END_OF: of the start before it; it has ids */
    const uint32_t *bytes, *ids; /* [n_byte], [n_id] borrowed from the words */
    uint32_t n_byte, n_id;
};
struct thinking_budget {
    uint32_t max_tokens;
    uint32_t flags;
    struct thinking_tag tags[THINKING_BUDGET_TAGS_MAX];
    uint32_t n_tag;
};
/* False: the words are none, or have an id outside of the vocabulary; *out is then undefined. */
bool thinking_budget_view(struct thinking_budget *out, const uint32_t *words, size_t n_word,
                          uint32_t vocab_size);

#endif
