/* SPDX-License-Identifier: Apache-2.0 */
/* tiktoken - a file of ranks as a tokenizer.json. Private to common/tokenizer. Threads:
 * reentrant. */
#ifndef QUIRE_COMMON_TOKENIZER_SOURCE_TIKTOKEN_H
#define QUIRE_COMMON_TOKENIZER_SOURCE_TIKTOKEN_H
#include "common/tokenizer/source/written.h"

/* name: of the file, for messages and for the pattern that goes with it. Errors: Q_CORRUPT (the
 * line), Q_UNSUPPORTED, Q_TOO_LARGE, Q_NO_MEMORY. Ownership: as spm_write. */
FALLIBLE tiktoken_write(struct tok_written *out, struct tok_str file, const char *name,
                        const struct tok_config *c, struct q_err *e);

#endif
