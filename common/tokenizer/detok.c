/* SPDX-License-Identifier: Apache-2.0 */
/* The text of a token is final once the decoders have returned it, with one exception of the
 * reference's streams: U+FFFD at the end of the text may change with the next token, so it is not
 * sent while it is last. The decoders hold the bytes of an incomplete character; this file keeps
 * the number of trailing U+FFFD. */
#include <string.h>
#include "common/mem.h"
#include "common/tokenizer/components/decode.h"
#include "common/tokenizer/stream.h"

#define FFFD   "\xef\xbf\xbd"
#define N_FFFD 3

struct detok {
    const struct tokenizer *t; /* borrowed from the caller until detok_free */
    bool skip_special;
    struct dec_chain chain;
    struct buf text;           /* what the chain gave for this token */
    size_t n_held;             /* U+FFFD that came last and are not sent yet */
    struct dec_stage stages[]; /* of chain: a frontend has a detok for each open stream */
};

enum q_code detok_new(struct detok **out, const struct tokenizer *t, bool skip_special,
                      struct q_err *e)
{
    struct detok *d = q_calloc(1, sizeof *d + dec_chain_stages(t) * sizeof *d->stages);
    if (!d)
        return q_fail(e, Q_NO_MEMORY, "out of memory for a stream of text");
    d->t = t;
    d->skip_special = skip_special;
    dec_chain_init(&d->chain, d->stages, t, true, &d->text);
    *out = d;
    return Q_OK;
}

void detok_free(struct detok *d)
{
    if (!d)
        return;
    dec_chain_release(&d->chain);
    buf_release(&d->text);
    q_free(d);
}

static void send_held(struct detok *d, struct buf *out)
{
    for (; d->n_held; d->n_held--)
        buf_add(out, FFFD, N_FFFD);
}

/* Move d->text to out, but for U+FFFD at its end. */
static enum q_code send(struct detok *d, struct buf *out, struct q_err *e)
{
    enum q_code rc = buf_check(&d->text, "decoded text", e);
    size_t n = d->text.len;
    size_t n_tail = 0;
    while (n >= N_FFFD && memcmp(d->text.data + n - N_FFFD, FFFD, N_FFFD) == 0) {
        n -= N_FFFD;
        n_tail++;
    }
    if (n) {
        send_held(d, out);
        buf_add(out, d->text.data, n);
    }
    d->n_held += n_tail;
    buf_reset(&d->text);
    return rc ? rc : buf_check(out, "streamed text", e);
}

enum q_code detok_push(struct detok *d, uint32_t id, struct buf *out, struct q_err *e)
{
    dec_chain_push(&d->chain, d->t, id, d->skip_special);
    return send(d, out, e);
}

enum q_code detok_flush(struct detok *d, struct buf *out, struct q_err *e)
{
    dec_chain_flush(&d->chain);
    enum q_code rc = send(d, out, e);
    send_held(d, out);
    return rc ? rc : buf_check(out, "streamed text", e);
}
