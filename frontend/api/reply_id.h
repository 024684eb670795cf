/* SPDX-License-Identifier: Apache-2.0 */
/* reply_id - the member `id` of an answer: a prefix, and the id of the request. That is the
 * client's X-Request-Id, else the field request_id, as in vLLM, else random.
 * Threads: make on the loop's, take on any. */
#ifndef QUIRE_FRONTEND_API_REPLY_ID_H
#define QUIRE_FRONTEND_API_REPLY_ID_H
#include <stddef.h>
#include "frontend/http/exchange.h"

#define REPLY_ID_MAX (HTTP_ID_MAX + 16) /* with the end */

/* Returns the length of the prefix in id; 0: the field request_id does not change this id. */
size_t reply_id_make(char id[REPLY_ID_MAX], const char *prefix, const struct http_exchange *x);
/* request_id: the field's value, or NULL. Errors: Q_INVALID (id unchanged). */
FALLIBLE reply_id_take(char id[REPLY_ID_MAX], size_t n_prefix, const char *request_id,
                       struct q_err *e);

#endif
