/* SPDX-License-Identifier: Apache-2.0 */
/* tekken - Mistral's own file as a tokenizer.json. Private to common/tokenizer. Threads:
 * reentrant. */
#ifndef QUIRE_COMMON_TOKENIZER_SOURCE_TEKKEN_H
#define QUIRE_COMMON_TOKENIZER_SOURCE_TEKKEN_H
#include "common/tokenizer/source/written.h"

/* The file holds everything, so there is no config to read. Errors: Q_CORRUPT (the entry),
 * Q_UNSUPPORTED, Q_TOO_LARGE, Q_NO_MEMORY. Ownership: as spm_write. */
FALLIBLE tekken_write(struct tok_written *out, struct tok_str file, struct q_err *e);
/* The number of its "version" ("v13": 13). Errors: Q_CORRUPT, Q_NO_MEMORY. */
FALLIBLE tekken_version(uint32_t *version, struct tok_str file, struct q_err *e);

#endif
