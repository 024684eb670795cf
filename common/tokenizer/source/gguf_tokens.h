/* SPDX-License-Identifier: Apache-2.0 */
/* gguf_tokens - the tokenizer in a GGUF file's metadata as a tokenizer.json. Private to
 * common/tokenizer. Threads: reentrant. */
#ifndef QUIRE_COMMON_TOKENIZER_SOURCE_GGUF_TOKENS_H
#define QUIRE_COMMON_TOKENIZER_SOURCE_GGUF_TOKENS_H
#include "common/gguf/gguf.h"
#include "common/tokenizer/source/written.h"

/* c: of gguf_to_tokenizer_config. Errors: Q_CORRUPT, Q_UNSUPPORTED (the kind of tokenizer or the
 * pre-tokenizer by name, with what is supported), Q_NO_MEMORY. Ownership: *out by
 * tok_written_release, after an error too. */
FALLIBLE gguf_tokens_write(struct tok_written *out, const struct gguf *g, struct tok_config *c,
                           struct q_err *e);

#endif
