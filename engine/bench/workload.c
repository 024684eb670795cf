/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/bench/workload.h"
#include <jansson.h>
#include <string.h>
#include "common/json_read.h"
#include "common/mem.h"

#define HASH_SALT 0x6d6f6f6e63616b65u /* separates hash blocks from other prompts */

enum q_code workload_add(struct workload *w, const struct work *item, struct q_err *e)
{
    enum q_code rc = q_grow(&w->items, &w->cap, w->n + 1, sizeof *w->items, WORKLOAD_ITEMS_MAX, e);
    if (!rc)
        w->items[w->n++] = *item;
    return rc;
}

enum q_code workload_add_hash(struct workload *w, uint64_t hash, struct q_err *e)
{
    enum q_code rc =
        q_grow(&w->hashes, &w->hash_cap, w->n_hash + 1, sizeof *w->hashes, (size_t)1 << 28, e);
    if (!rc)
        w->hashes[w->n_hash++] = hash;
    return rc;
}

void workload_cut(struct workload *w, size_t n)
{
    for (; w->n > n; w->n--) {
        q_free((void *)(uintptr_t)w->items[w->n - 1].text);
        q_free((void *)(uintptr_t)w->items[w->n - 1].request);
    }
}

void workload_release(struct workload *w)
{
    workload_cut(w, 0);
    q_free(w->items);
    q_free(w->hashes);
    *w = (struct workload)WORKLOAD_INIT;
}

/* custom */

static FALLIBLE add_line(struct workload *w, const json_t *line, const struct work *given,
                         unsigned long long number, struct q_err *e)
{
    struct work item = *given;
    const json_t *prompt = json_object_get(line, "prompt");
    const json_t *tokens = json_object_get(line, "output_tokens");
    if (!json_is_string(prompt))
        return q_fail(e, Q_CORRUPT, "line %llu: prompt is not a string", number);
    tokens = tokens ? tokens : json_object_get(line, "max_tokens");
    if (tokens && (!json_is_integer(tokens) || json_integer_value(tokens) < 1 ||
                   json_integer_value(tokens) > WORKLOAD_TOKENS_MAX))
        return q_fail(e, Q_CORRUPT, "line %llu: output_tokens is not a whole number from 1 to %u",
                      number, WORKLOAD_TOKENS_MAX);
    if (tokens)
        item.output_len = (uint32_t)json_integer_value(tokens);
    item.text = q_strndup(json_string_value(prompt), json_string_length(prompt));
    if (!item.text)
        return q_fail(e, Q_NO_MEMORY, "out of memory for a prompt");
    enum q_code rc = workload_add(w, &item, e);
    if (rc)
        q_free((void *)(uintptr_t)item.text);
    return rc;
}

enum q_code workload_custom(struct workload *w, const char *data, size_t n, uint32_t output_len,
                            struct q_err *e)
{
    enum q_code rc = Q_OK;
    unsigned long long number = 0;
    const struct work given = {.output_len = output_len};
    for (size_t at = 0; at < n && !rc;) {
        const char *newline = memchr(data + at, '\n', n - at);
        size_t len = newline ? (size_t)(newline - data) - at : n - at;
        json_error_t why;
        number++;
        size_t blank = 0;
        while (blank < len && strchr(" \t\r", data[at + blank]) && data[at + blank])
            blank++;
        if (blank < len) {
            json_t *line = json_read_bytes(data + at, len, JSON_REJECT_DUPLICATES, &why);
            if (!json_is_object(line))
                rc = q_fail(e, Q_CORRUPT, "line %llu: not a JSON object: %.120s", number,
                            line ? "another value" : why.text);
            else
                rc = add_line(w, line, &given, number, e);
            json_decref(line);
        }
        at += len + 1;
    }
    return rc;
}

/* prompts */

uint32_t workload_input_len(const struct workload *w, size_t i)
{
    return w->prefix_len + w->items[i].input_len;
}

/* Where the stream of random tokens stands at position k of item i: one stream for the prefix, one
 * for each block that is named, one for each item else. */
static uint64_t stream_of(const struct workload *w, size_t i, uint32_t k, uint32_t *at)
{
    const struct work *item = &w->items[i];
    uint64_t start = w->seed * 0x9e3779b97f4a7c15u;
    *at = k;
    if (k < w->prefix_len)
        return start;
    k -= w->prefix_len;
    if (k / WORKLOAD_HASH_BLOCK < item->n_hash) {
        *at = k % WORKLOAD_HASH_BLOCK;
        return start ^ HASH_SALT ^
               w->hashes[item->hash_start + k / WORKLOAD_HASH_BLOCK] * 0xbf58476d1ce4e5b9u;
    }
    *at = k;
    return start + (i + 1) * 0x94d049bb133111ebu;
}

static uint64_t token_at(const struct workload *w, size_t i, uint32_t k)
{
    uint32_t at;
    uint64_t state = stream_of(w, i, k, &at) + at * (uint64_t)0x9e3779b97f4a7c15u;
    return bench_random(&state);
}

void workload_ids(const struct workload *w, size_t i, uint32_t vocab, uint32_t *ids)
{
    uint32_t n = workload_input_len(w, i);
    for (uint32_t k = 0; k < n; k++) /* the lowest ids are often special tokens */
        ids[k] = (uint32_t)(vocab / 8 + token_at(w, i, k) % (vocab - vocab / 8));
}

void workload_words(const struct workload *w, size_t i, struct buf *out)
{
    static const char *const words[] = {
        "time",    "year",    "people",   "way",    "day",   "man",    "thing", "woman",
        "life",    "child",   "world",    "school", "state", "family", "house", "group",
        "country", "problem", "hand",     "part",   "place", "case",   "week",  "company",
        "system",  "program", "question", "work",   "night", "point",  "home",  "water"};
    uint32_t n = workload_input_len(w, i);
    if (w->items[i].text) {
        buf_add_str(out, w->items[i].text);
        return;
    }
    for (uint32_t k = 0; k < n; k++) {
        if (k)
            buf_add_char(out, ' ');
        buf_add_str(out, words[token_at(w, i, k) % (sizeof words / sizeof *words)]);
    }
}
