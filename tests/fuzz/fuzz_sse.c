/* SPDX-License-Identifier: Apache-2.0 */
/* A server's stream of events: any bytes, in pieces; the pieces must not matter. */
#include <stdlib.h>
#include "engine/bench/sse.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

struct count {
    uint64_t n_piece, n_token, n_output;
};

static enum q_code add(void *ctx, const struct sse_piece *p, struct q_err *e)
{
    struct count *c = ctx;
    (void)e;
    c->n_piece++;
    c->n_token += p->has_token;
    c->n_output += p->n_output;
    return Q_OK;
}

static enum q_code read_all(struct count *c, const char *data, size_t size, size_t part)
{
    struct sse s;
    struct q_err e = Q_ERR_INIT;
    enum q_code rc = Q_OK;
    sse_init(&s, add, c);
    for (size_t at = 0; at < size && !rc; at += part)
        rc = sse_push(&s, data + at, size - at < part ? size - at : part, &e);
    sse_release(&s);
    return rc;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct count whole = {0}, cut = {0};
    char text[64];
    if (!size)
        return 0;
    enum q_code a = read_all(&whole, (const char *)data, size, size);
    enum q_code b = read_all(&cut, (const char *)data, size, 1 + data[0] % 7);
    if (a != b || whole.n_piece != cut.n_piece || whole.n_token != cut.n_token ||
        whole.n_output != cut.n_output)
        abort();
    sse_error_text(text, sizeof text, (const char *)data, size);
    return 0;
}
