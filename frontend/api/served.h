/* SPDX-License-Identifier: Apache-2.0 */
/* served - the model a frontend speaks for: its folder, names, tokenizer, chat template and
 * sampling defaults.
 *
 * Opening is in two parts. served_open reads only config.json, so that a wrong name is told at once
 * and the frontend listens within milliseconds; served_load reads the rest and may run on another
 * thread. Threads: after served_load it is only read. */
#ifndef QUIRE_FRONTEND_API_SERVED_H
#define QUIRE_FRONTEND_API_SERVED_H
#include <limits.h>
#include "common/hub/config.h"
#include "common/hub/names.h"
#include "common/options.h"
#include "common/tokenizer/tokenizer.h"
#include "common/chat/chat_model.h"
#include "frontend/api/tenant.h"

struct served {
    const struct options *options;
    char dir[PATH_MAX];
    char tokenizer_path[PATH_MAX]; /* folder or file; dir unless --tokenizer says otherwise */
    const char *const *names;      /* [n_name] names the API shows; answers say the first */
    uint32_t n_name;
    const char *shown[1];     /* names, without --served-model-name */
    struct model_names named; /* then also what the API accepts */
    struct model_config config;
    struct generation_defaults defaults; /* of generation_config.json and the options */
    uint32_t
        max_model_len; /* by config and --max-model-len; the engine's counts once it is known */
    unsigned char digest[32];
    struct tokenizer *tokenizer; /* NULL with --skip-tokenizer-init */
    struct chat_model chat;
    struct shared_prompts shared; /* --prefix-cache-shared */
};
/* model: folder or id. o: borrowed as long as s. */
FALLIBLE served_open(struct served *s, const char *model, const struct options *o, struct q_err *e);
FALLIBLE served_load(struct served *s, struct q_err *e);
/* name NULL or "": the default. Accepted are the names of --served-model-name and no others, as
 * vLLM does; without that option the model's name, its id and its path. Errors: Q_NOT_FOUND. */
FALLIBLE served_check_name(const struct served *s, const char *name, struct q_err *e);
/* What a request that does not say is sampled with. */
const struct generation_defaults *served_defaults(const struct served *s);

#endif
