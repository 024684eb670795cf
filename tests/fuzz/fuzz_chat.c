/* SPDX-License-Identifier: Apache-2.0 */
/* What a server may send to quire chat: a body of events or of anything else, in pieces, and its
 * text on the terminal. The first byte picks the status and the pieces. */
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include "common/mem.h"
#include "frontend/cli/chat_stream.h"
#include "frontend/cli/wrap.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const char *body;
static size_t n_body, piece;
static int status;

/* In place of a server's answer. */
FALLIBLE http_call(const struct http_url *url, struct http_call *c, struct q_err *e)
{
    enum q_code rc = Q_OK;
    (void)url;
    c->status = status;
    for (size_t at = 0; at < n_body && rc == Q_OK; at += piece)
        rc = c->on_body(c->ctx, body + at, n_body - at < piece ? n_body - at : piece, e);
    return rc;
}

static void on_text(void *ctx, const char *text, size_t n, bool reasoning)
{
    (void)reasoning;
    wrap_add(ctx, text, n);
}

static void assert_harmless(const struct buf *out)
{
    for (size_t i = 0; i < out->len; i++)
        Q_ASSERT((unsigned char)out->data[i] >= 0x20 || out->data[i] == '\n');
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct chat_peer frontend = {.key = NULL};
    struct wrap w = {.width = 20};
    struct chat_answer a = {.content = BUF_INIT, .on_text = on_text, .ctx = &w};
    struct q_err e = Q_ERR_INIT;
    json_t *request = json_object(), *names = NULL;
    if (size) {
        status = data[0] & 1 ? 200 : 503;
        piece = (data[0] >> 1) + 1u;
        body = (const char *)data + 1;
        n_body = size - 1;
        enum q_code rc = chat_stream(&frontend, request, &a, &e);
        Q_ASSERT((rc != Q_OK) == (e.code != Q_OK) && (status == 200 || rc != Q_OK));
        wrap_flush(&w);
        assert_harmless(&w.out);
        q_err_reset(&e);
        rc = chat_models(&frontend, &names, &e);
        Q_ASSERT((rc == Q_OK) == (names != NULL));
    }
    json_decref(names);
    json_decref(request);
    chat_answer_release(&a);
    wrap_release(&w);
    return 0;
}
