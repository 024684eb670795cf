/* SPDX-License-Identifier: Apache-2.0 */
/* spm - a SentencePiece model as a tokenizer.json. Private to common/tokenizer. Threads:
 * reentrant. */
#ifndef QUIRE_COMMON_TOKENIZER_SOURCE_SPM_H
#define QUIRE_COMMON_TOKENIZER_SOURCE_SPM_H
#include "common/tokenizer/source/written.h"

struct spm_piece {
    struct tok_str text; /* UTF-8 */
    float score;         /* finite */
    uint32_t kind;       /* SentencePiece's: 1 normal, 2 unknown, 3 control, 4 user-defined, 5
                            unused, 6 byte */
};
/* A BPE model given by its pieces [n], by id: byte_fallback where there are bytes, no more rules
 * than LlamaTokenizer has. Errors as below. */
FALLIBLE spm_write_pieces(struct tok_written *out, const struct spm_piece *pieces, size_t n,
                          const struct tok_config *c, struct q_err *e);

/* file: [n], of any content. Errors: Q_CORRUPT, Q_UNSUPPORTED (the class by name), Q_TOO_LARGE,
 * Q_NO_MEMORY. Ownership: *out by tok_written_release, after an error too. */
FALLIBLE spm_write(struct tok_written *out, const char *file, size_t n, const struct tok_config *c,
                   struct q_err *e);

#endif
