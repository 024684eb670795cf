/* SPDX-License-Identifier: Apache-2.0 */
/* served - the served model: its folder, names, tokenizer, chat template and sampling defaults.
 *
 * Opening is in two parts. served_model_open reads only config.json, so that a wrong name is
 * reported at once and the frontend listens within milliseconds; served_model_load reads the rest
 * and may run on another thread. Threads: read-only after served_model_load. */
#ifndef QUIRE_FRONTEND_API_SERVED_MODEL_H
#define QUIRE_FRONTEND_API_SERVED_MODEL_H
#include <limits.h>
#include "common/hub/config.h"
#include "common/hub/pooling.h"
#include "common/hub/names.h"
#include "common/options.h"
#include "common/tokenizer/tokenizer.h"
#include "common/chat/chat_model.h"
#include "frontend/api/tenant.h"
#include "frontend/link/adapter_list.h"

struct served_model {
    const struct options *options;
    char dir[PATH_MAX];
    char tokenizer_path[PATH_MAX]; /* folder or file; dir without --tokenizer */
    const char *const *names;      /* [n_name] names in the API; responses have the first */
    uint32_t n_name;
    const char *shown[1];     /* names, without --served-model-name */
    struct model_names named; /* in this case the API also accepts this path */
    struct model_config config;
    struct pooling pooling;              /* does it make vectors, and which */
    struct generation_defaults defaults; /* of generation_config.json and the options */
    uint32_t max_model_len; /* by config and --max-model-len; the engine's value after connecting */
    unsigned char digest[32];
    struct tokenizer *tokenizer; /* NULL with --skip-tokenizer-init */
    size_t token_bytes_max;      /* tokenizer_token_bytes_max */
    struct chat_model chat;
    struct shared_prompts shared; /* --prefix-cache-shared */
};
/* model: folder or id. o: borrowed as long as s. */
FALLIBLE served_model_open(struct served_model *s, const char *model, const struct options *o,
                           struct q_err *e);
FALLIBLE served_model_load(struct served_model *s, struct q_err *e);
static inline bool served_model_pools(const struct served_model *s)
{
    return s->pooling.makes != ARCHS_GENERATES;
}
/* name NULL or "": the default. Accepts only the names of --served-model-name, as vLLM does;
 * without that option the model's name, its id and its path. Errors: Q_NOT_FOUND. */
FALLIBLE served_model_check_name(const struct served_model *s, const char *name, struct q_err *e);
/* The same, or the name of a LoRA adapter of the list (frontend/link/adapter_list.h): *adapter is
 * then its entry, else its name is NULL. */
FALLIBLE served_model_find_name(const struct served_model *s, const char *name,
                                const struct buf *adapters, struct adapter_entry *adapter,
                                struct q_err *e);
/* Can n bytes of text be as few as n_token tokens? Without the tokenizer's work. */
static inline bool served_model_may_fit(const struct served_model *s, size_t n, uint32_t n_token)
{
    return !s->token_bytes_max || n / s->token_bytes_max <= n_token;
}
/* Sampling defaults of requests. */
const struct generation_defaults *served_model_defaults(const struct served_model *s);

#endif
