/* SPDX-License-Identifier: Apache-2.0 */
/* Every tag is searched for by itself: matched[i] is the longest part of its begin that the text
 * ends with (Knuth-Morris-Pratt; tags are short, so that what is left after a mismatch is found by
 * trying). A tag that is whole ends the search of all. */
#include "engine/worker/thinking_state.h"
#include <string.h>

#define SPECIAL_MARK 0xffu /* around the name of a special token (engine/grammar/matcher/trie.h) */

static bool is_blank(unsigned char c)
{
    return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

static bool starts(const struct thinking_tag *tag)
{
    return tag->kind == THINKING_START;
}

void thinking_state_begin(struct thinking_state *s, const struct thinking_budget *b)
{
    *s = (struct thinking_state){
        .place = b->flags & THINKING_OPENED ? THINKING_IN : THINKING_AT_START,
        .i_end = 1,
    };
}

/* Bytes of the tag that are there when `byte` follows its first k; k is not all of them. */
static uint32_t next_match(const struct thinking_tag *tag, uint32_t k, uint32_t byte)
{
    for (uint32_t from = 0; from <= k; from++) /* the text ends with bytes[from … k) */
        if (tag->bytes[k - from] == byte &&
            !memcmp(tag->bytes, tag->bytes + from, (k - from) * sizeof *tag->bytes))
            return k - from + 1;
    return 0;
}

/* The tag of the wanted kinds that the byte completes, n_tag: none. *most: bytes of the tag that
 * the text has most of. */
static uint32_t find_tag(struct thinking_state *s, const struct thinking_budget *b, uint32_t byte,
                         uint32_t *most)
{
    uint32_t found = b->n_tag;
    *most = 0;
    for (uint32_t i = 0; i < b->n_tag; i++) {
        const struct thinking_tag *tag = &b->tags[i];
        if (starts(tag) == (s->place == THINKING_IN))
            continue;
        const uint32_t k = next_match(tag, s->matched[i], byte);
        s->matched[i] = (uint8_t)k;
        *most = k > *most ? k : *most;
        if (k == tag->n_byte && found == b->n_tag)
            found = i;
    }
    return found;
}

static void read_byte(struct thinking_state *s, const struct thinking_budget *b, unsigned char byte)
{
    const bool again = b->flags & THINKING_AGAIN;
    uint32_t most;
    if (byte == SPECIAL_MARK || (s->place == THINKING_OUT && !again) ||
        (s->place == THINKING_AT_START && !s->n_text && is_blank(byte)))
        return;
    const uint32_t found = find_tag(s, b, byte, &most);
    s->n_text += s->place == THINKING_AT_START;
    if (found < b->n_tag) {
        s->i_end = found + 1;
        s->place = s->place == THINKING_IN ? THINKING_OUT : THINKING_IN;
        memset(s->matched, 0, sizeof s->matched);
    } else if (s->place == THINKING_AT_START && !again && most < s->n_text) {
        s->place = THINKING_OUT; /* other text */
    }
}

void thinking_state_read(struct thinking_state *s, const struct thinking_budget *b,
                         const struct thinking_vocabulary *v, uint32_t token)
{
    s->n_token += s->place == THINKING_IN;
    if (token >= v->n_vocab)
        return;
    for (uint32_t i = v->at[token]; i < v->at[token + 1]; i++)
        read_byte(s, b, (unsigned char)v->text[i]);
}

static uint32_t bytes_of(const struct thinking_vocabulary *v, uint32_t token)
{
    uint32_t n = 0;
    for (uint32_t i = v->at[token]; i < v->at[token + 1]; i++)
        n += (unsigned char)v->text[i] != SPECIAL_MARK;
    return n;
}

/* A tag that is one token is not spelled out, whatever the text ends with. */
static uint32_t next_of_tag(const struct thinking_tag *tag, uint32_t k,
                            const struct thinking_vocabulary *v)
{
    char left[THINKING_BUDGET_BYTES_MAX];
    uint32_t at = 0, token;
    for (uint32_t i = 0; i < tag->n_id && at <= k; i++) {
        if (at == k)
            return tag->ids[i];
        at += bytes_of(v, tag->ids[i]);
    }
    for (uint32_t i = k; i < tag->n_byte; i++)
        left[i - k] = (char)tag->bytes[i];
    if (tag->n_id > 1 && v->longest(v->ctx, left, tag->n_byte - k, &token))
        return token;
    return tag->ids[0];
}

bool thinking_state_forces(const struct thinking_state *s, const struct thinking_budget *b,
                           const struct thinking_vocabulary *v, uint32_t *token)
{
    if (s->place != THINKING_IN || s->n_token < b->max_tokens)
        return false;
    *token = next_of_tag(&b->tags[s->i_end], s->matched[s->i_end], v);
    return true;
}
