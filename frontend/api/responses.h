/* SPDX-License-Identifier: Apache-2.0 */
/* responses - OpenAI's /v1/responses as a dialect of a chat (dialect.h). Responses are not kept: a
 * client sends the whole conversation, and what refers to an earlier response is refused.
 * Source: OpenAI's API reference and the types of its Python client 3.52. Threads: as dialect.h. */
#ifndef QUIRE_FRONTEND_API_RESPONSES_H
#define QUIRE_FRONTEND_API_RESPONSES_H
#include "frontend/api/dialect.h"

extern const struct dialect responses_dialect;

/* dialect.h: dialect.read */
FALLIBLE responses_read(json_t **chat, json_t **entries, const json_t *body, struct q_err *e);

#endif
