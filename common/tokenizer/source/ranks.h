/* SPDX-License-Identifier: Apache-2.0 */
/* ranks - tokens with ranks of tiktoken's files and tekken.json: base64 to bytes, bytes to an
 * entry of the vocabulary. Private to common/tokenizer. Threads: reentrant. */
#ifndef QUIRE_COMMON_TOKENIZER_SOURCE_RANKS_H
#define QUIRE_COMMON_TOKENIZER_SOURCE_RANKS_H
#include "common/tokenizer/source/written.h"

#define RANK_TOKEN_MAX 4096 /* bytes of one token */

/* Append ,"token":id (the token in the byte-level alphabet) to out->json, and note its rank. Errors:
 * Q_TOO_LARGE, Q_NO_MEMORY. */
FALLIBLE rank_write(struct tok_written *out, struct tok_str token, uint32_t id, uint32_t rank,
                    struct q_err *e);
/* Bytes of the token written in base64, at most RANK_TOKEN_MAX; 0: it is not base64, or longer. */
size_t rank_token(unsigned char token[RANK_TOKEN_MAX + 4], struct tok_str base64);

#endif
