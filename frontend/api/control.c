/* SPDX-License-Identifier: Apache-2.0 */
/* Endpoints by which an operator, or a program that trains in a loop, steers the engine. They take
 * no body; names and answers are vLLM's. */
#include "frontend/api/app.h"

void on_reset_prefix_cache(void *app, struct http_exchange *x)
{
    struct app *a = app;
    struct q_err e = Q_ERR_INIT;
    struct buf none = BUF_INIT;
    if (!app_available(a, x, on_reset_prefix_cache))
        return;
    if (link_reset_prefix_cache(a->link, "POST /reset_prefix_cache", &e) == Q_OK)
        http_reply(x, 200, "application/json", &none);
    else
        app_reply_error(x, &e, NULL);
}
