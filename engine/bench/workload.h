/* SPDX-License-Identifier: Apache-2.0 */
/* workload - the requests that `throughput` and `serve` send: prompts, answer lengths, times.
 *
 * Prompts are generated from a seed: token ids, or words of about a token each. Trace prompts with
 * block hashes (Mooncake's hash_ids) share the prefixes of the recorded ones, so that a prefix
 * cache has the same load. Threads: one owner. */
#ifndef QUIRE_ENGINE_BENCH_WORKLOAD_H
#define QUIRE_ENGINE_BENCH_WORKLOAD_H
#include "engine/bench/bench.h"

#define WORKLOAD_ITEMS_MAX  ((size_t)10000000)
#define WORKLOAD_TOKENS_MAX (1u << 24) /* of a prompt or an answer */
#define WORKLOAD_HASH_BLOCK 512u       /* tokens of a block of a Mooncake trace */

struct work {
    double at_s; /* of a trace: after its first request */
    uint32_t input_len, output_len;
    size_t hash_start, n_hash; /* its blocks in workload.hashes; n_hash 0: a unique prompt */
    const char *text;          /* custom: the prompt; owned by the workload */
    const char *request; /* a trace of --record-requests: a JSON object of parameters; likewise */
};

struct workload {
    struct work *items; /* [n] */
    size_t n, cap;
    uint64_t *hashes; /* [n_hash] */
    size_t n_hash, hash_cap;
    bool timed;          /* at_s is set */
    uint32_t prefix_len; /* tokens of the common prefix */
    uint64_t seed;
};
/* clang-format off */
#define WORKLOAD_INIT {NULL, 0, 0, NULL, 0, 0, false, 0, 0}
/* clang-format on */

/* Free the items and token ids; w is WORKLOAD_INIT afterwards. */
void workload_release(struct workload *w);
/* Keep the first n items. */
void workload_cut(struct workload *w, size_t n);
/* Errors: Q_NO_MEMORY, Q_TOO_LARGE. */
FALLIBLE workload_add(struct workload *w, const struct work *item, struct q_err *e);
FALLIBLE workload_add_hash(struct workload *w, uint64_t hash, struct q_err *e);
/* JSONL with prompt and output_tokens (or max_tokens). Errors: Q_CORRUPT (line, what, expected). */
FALLIBLE workload_custom(struct workload *w, const char *data, size_t n, uint32_t output_len,
                         struct q_err *e);

uint32_t workload_input_len(const struct workload *w, size_t i); /* with the common prefix */
/* ids: [workload_input_len]; each below `vocab`. The same for the same seed, item and vocab. */
void workload_ids(const struct workload *w, size_t i, uint32_t vocab, uint32_t *ids);
/* The prompt as words, or the text of a custom one. */
void workload_words(const struct workload *w, size_t i, struct buf *out);

#endif
