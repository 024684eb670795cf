/* SPDX-License-Identifier: Apache-2.0 */
/* quire_options - from the public library's options and errors to ours and back. Internal to
 * engine/library. Threads: reentrant. */
#ifndef QUIRE_ENGINE_LIBRARY_QUIRE_OPTIONS_H
#define QUIRE_ENGINE_LIBRARY_QUIRE_OPTIONS_H
#include "common/options.h"
#include "engine/core/core.h"
#include "engine/quire.h"

/* Fill `c` from what a caller gave; *full is that with the defaults of fields that an older header
 * lacks, and borrows its strings. Errors: Q_INVALID, those of engine_options. */
FALLIBLE quire_options_config(struct core_config *c, struct quire_options *full,
                              const struct quire_options *given, struct q_err *e);
/* The same as struct options, of which the frontend's (chat_template, …) count too: those of
 * `full`. Errors: Q_INVALID. */
FALLIBLE quire_options_all(struct options *all, const struct quire_options *full, struct q_err *e);
/* The public code; `out` may be NULL. */
enum quire_code quire_error_give(struct quire_error *out, const struct q_err *e);

#endif
