/* SPDX-License-Identifier: Apache-2.0 */
/* quire_options - conversion of options and errors between the public library and the engine.
 * Internal to engine/library. Threads: reentrant. */
#ifndef QUIRE_ENGINE_LIBRARY_QUIRE_OPTIONS_H
#define QUIRE_ENGINE_LIBRARY_QUIRE_OPTIONS_H
#include "common/options.h"
#include "engine/core/core.h"
#include "engine/quire.h"

/* Fill `c` from a caller's options; *full is these options with defaults for fields that an older
 * header lacks, and borrows the strings. Errors: Q_INVALID, those of engine_options. */
FALLIBLE quire_options_config(struct core_config *c, struct quire_options *full,
                              const struct quire_options *given, struct q_err *e);
/* The same as struct options, including the frontend's options (chat_template, …), from `full`.
 * Errors: Q_INVALID. */
FALLIBLE quire_options_all(struct options *all, const struct quire_options *full, struct q_err *e);
/* The public code; `out` may be NULL. */
enum quire_code quire_error_give(struct quire_error *out, const struct q_err *e);

#endif
