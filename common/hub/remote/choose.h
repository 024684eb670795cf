/* SPDX-License-Identifier: Apache-2.0 */
/* choose - which files of a repository a model needs.
 *
 * Config, tokenizer, template and the like first; they include the index that names the shards, so
 * weights are chosen in a second step, in one format: safetensors, else PyTorch's, else Mistral's.
 * Files of other frameworks, folders such as original/ and code are never chosen.
 * Threads: pure. */
#ifndef QUIRE_COMMON_HUB_REMOTE_CHOOSE_H
#define QUIRE_COMMON_HUB_REMOTE_CHOOSE_H
#include "common/hub/remote/listing.h"
#include "common/options.h"

struct choose_rules {
    const struct option_list *include, *exclude; /* patterns; an empty include: what is needed */
    const char *format;                          /* auto, or a row of choose.c: formats */
    bool weights;
};

/* take: [l->n], set to true for each chosen file, else unchanged. Without weights. */
void choose_texts(bool *take, const struct listing *l, const struct choose_rules *r);
/* The same for weights. *index: the name of their index, to be given to choose_shards; NULL: all
 * files are chosen. what: id, for messages. Errors: Q_INVALID (format), Q_NOT_FOUND (no weights, of
 * this format), Q_UNSUPPORTED (only weights that are not chosen without being named). */
FALLIBLE choose_weights(bool *take, const char **index, const struct listing *l,
                        const struct choose_rules *r, const char *what, struct q_err *e);
struct choose_index { /* an index of shards that was fetched */
    const char *name, *text;
    size_t n; /* bytes of the text */
};
/* Errors: Q_CORRUPT (no index, or a shard that the repository does not have). */
FALLIBLE choose_shards(bool *take, const struct listing *l, const struct choose_rules *r,
                       const struct choose_index *index, struct q_err *e);
/* Does the pattern match? `*` also matches slashes; a pattern that ends in a slash means all of a
 * folder. */
bool choose_matches(const char *pattern, const char *name);

#endif
