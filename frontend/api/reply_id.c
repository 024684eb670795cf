/* SPDX-License-Identifier: Apache-2.0 */
#include "frontend/api/reply_id.h"
#include <stdio.h>
#include <string.h>

size_t reply_id_make(char id[REPLY_ID_MAX], const char *prefix, const struct http_exchange *x)
{
    const struct http_text given = http_header(x, "x-request-id");
    snprintf(id, REPLY_ID_MAX, "%s%s", prefix, http_request_id(x));
    return http_id_acceptable(given.data, given.n) ? 0 : strlen(prefix);
}

FALLIBLE reply_id_take(char id[REPLY_ID_MAX], size_t n_prefix, const char *request_id,
                       struct q_err *e)
{
    if (!request_id)
        return Q_OK;
    if (!http_id_acceptable(request_id, strlen(request_id)))
        return q_fail(e, Q_INVALID,
                      "request_id: expected 1 to %d letters, digits and characters of \"-_.:\"",
                      HTTP_ID_MAX);
    if (n_prefix)
        snprintf(id + n_prefix, REPLY_ID_MAX - n_prefix, "%s", request_id);
    return Q_OK;
}
