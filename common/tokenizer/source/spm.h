/* SPDX-License-Identifier: Apache-2.0 */
/* spm - a SentencePiece model as a tokenizer.json. Private to common/tokenizer. Threads:
 * reentrant. */
#ifndef QUIRE_COMMON_TOKENIZER_SOURCE_SPM_H
#define QUIRE_COMMON_TOKENIZER_SOURCE_SPM_H
#include "common/tokenizer/source/written.h"

/* file: [n], of any content. Errors: Q_CORRUPT, Q_UNSUPPORTED (the class by name), Q_TOO_LARGE,
 * Q_NO_MEMORY. Ownership: *out by tok_written_release, after an error too. */
FALLIBLE spm_write(struct tok_written *out, const char *file, size_t n, const struct tok_config *c,
                   struct q_err *e);

#endif
