/* SPDX-License-Identifier: Apache-2.0 */
/* speculative - parsing of --speculative-config. Threads: start-up. */
#ifndef QUIRE_ENGINE_CORE_SPECULATIVE_H
#define QUIRE_ENGINE_CORE_SPECULATIVE_H
#include "engine/worker/ring.h"

/* text: a JSON object with vLLM's names, or "" for no speculation:
 *
 *     method                  "ngram" or "draft_model"; by default derived from "model"
 *     model                   folder or cached id of the draft model ("ngram" means that method)
 *     revision                of that id
 *     num_speculative_tokens  1 … SCHEDULER_DRAFT_TOKENS_MAX; no default
 *     prompt_lookup_max, _min n-gram: tokens that must match; default 5, or the value of the other
 *     one
 *
 * Errors: Q_INVALID (the message has the field and the accepted values), those of hub_resolve. */
FALLIBLE speculative_parse(struct speculation *out, const char *text, struct q_err *e);

#endif
