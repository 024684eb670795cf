/* SPDX-License-Identifier: Apache-2.0 */
/* json - the JSON of bodies (common/chat/json.h), and the numbers of answers.
 * Threads: reentrant. */
#ifndef QUIRE_FRONTEND_API_JSON_H
#define QUIRE_FRONTEND_API_JSON_H
#include "common/chat/json.h"

/* Append a number; infinities and NaN, which JSON lacks, become -9999 (as vLLM's value for log
 * 0). */
void json_add_logprob(struct buf *out, float v);

#endif
