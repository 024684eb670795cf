/* SPDX-License-Identifier: Apache-2.0 */
/* lists - vocab.txt (one word per line), and vocab.json with merges.txt, converted to
 * tokenizer.json by the rules of the tokenizer_class. Private to common/tokenizer. Threads:
 * reentrant. */
#ifndef QUIRE_COMMON_TOKENIZER_SOURCE_LISTS_H
#define QUIRE_COMMON_TOKENIZER_SOURCE_LISTS_H
#include "common/tokenizer/source/written.h"

/* Errors: Q_CORRUPT (the line), Q_UNSUPPORTED (the class by name), Q_TOO_LARGE, Q_NO_MEMORY.
 * Ownership: as spm_write. */
FALLIBLE word_list_write(struct tok_written *out, struct tok_str vocab, const struct tok_config *c,
                         struct q_err *e);
FALLIBLE merge_list_write(struct tok_written *out, struct tok_str vocab, struct tok_str merges,
                          const struct tok_config *c, struct q_err *e);

#endif
