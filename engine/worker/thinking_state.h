/* SPDX-License-Identifier: Apache-2.0 */
/* thinking_state - where an output stands with its thinking budget.
 *
 * The state after a sequence of tokens is a pure function of their bytes: tags are found in the
 * text, as the parser of the answer finds them (common/parsers/reasoning.c), however the model cuts
 * it into tokens; marks of special tokens are skipped.
 *
 *   START -a start tag-> IN -an end tag-> OUT      START, OUT -> IN again: with THINKING_AGAIN
 *
 * Every token that begins inside reasoning counts, over all its parts. From the limit on the next
 * token is forced: it continues the end tag behind what of it the text ends with already. So a tag
 * that the model has begun itself is completed, and reasoning has at most max_tokens tokens.
 * Threads: values. */
#ifndef QUIRE_ENGINE_WORKER_THINKING_STATE_H
#define QUIRE_ENGINE_WORKER_THINKING_STATE_H
#include "common/thinking_budget.h"

enum thinking_place { THINKING_AT_START, THINKING_IN, THINKING_OUT };

struct thinking_state {
    enum thinking_place place;
    uint32_t n_token; /* begun inside reasoning so far */
    uint32_t i_end;   /* IN: the tag that ends it */
    uint32_t n_text;  /* AT_START: bytes from the first that is no blank on */
    uint8_t matched[THINKING_BUDGET_TAGS_MAX]; /* bytes of each tag that the text ends with */
};
struct thinking_vocabulary { /* the bytes of tokens, borrowed */
    const char *text;
    const uint32_t *at; /* [n_vocab + 1] text[at[i] … at[i + 1]) are token i's */
    uint32_t n_vocab;
    /* The longest token that text[0..n) begins with; its length, 0 = none. */
    size_t (*longest)(const void *ctx, const char *text, size_t n, uint32_t *token);
    const void *ctx;
};

/* Before the first token of the output. */
void thinking_state_begin(struct thinking_state *s, const struct thinking_budget *b);
/* One more token. */
void thinking_state_read(struct thinking_state *s, const struct thinking_budget *b,
                         const struct thinking_vocabulary *v, uint32_t token);
/* Is the next token forced, and which is it? */
bool thinking_state_forces(const struct thinking_state *s, const struct thinking_budget *b,
                           const struct thinking_vocabulary *v, uint32_t *token);

#endif
