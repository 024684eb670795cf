/* SPDX-License-Identifier: Apache-2.0 */
/* after - the text before a grammar begins: a model's reasoning, up to and with its end marker.
 * Threads: as the build. */
#ifndef QUIRE_ENGINE_GRAMMAR_AFTER_H
#define QUIRE_ENGINE_GRAMMAR_AFTER_H
#include "engine/grammar/gx.h"

#define AFTER_MAX 256u /* bytes of a marker */

/* Any bytes up to the first `marker` ([n], 1 … AFTER_MAX, UTF-8), which is read too. The marker may
 * come as text, as special tokens, or as both by turns ("<|channel|>final<|message|>"). */
const struct gx *after_gx(struct build *b, const char *marker, size_t n);

#endif
