/* SPDX-License-Identifier: Apache-2.0 */
/* anthropic - Anthropic's /v1/messages as a dialect of a chat (dialect.h), and count_tokens.
 * Source: Anthropic's API reference, version 2023-06-01, and the types of its Python client.
 * Threads: as dialect.h. */
#ifndef QUIRE_FRONTEND_API_ANTHROPIC_H
#define QUIRE_FRONTEND_API_ANTHROPIC_H
#include "frontend/api/dialect.h"

extern const struct dialect anthropic_dialect;

/* dialect.h: dialect.read */
FALLIBLE anthropic_read(json_t **chat, json_t **entries, const json_t *body, struct q_err *e);

#endif
