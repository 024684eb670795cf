/* SPDX-License-Identifier: Apache-2.0 */
/* A tokenizer file and a text: JSON, a NUL byte, text. Whatever loads must encode, decode and
 * stream without a crash, and its stream must be what decoding at once gives. */
#include <string.h>
#include "common/err.h"
#include "common/tokenizer/stream.h"

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t n);

static void stream(const struct tokenizer *t, const struct token_list *ids, const struct buf *whole)
{
    struct q_err e;
    struct detok *d = NULL;
    struct buf text = BUF_INIT;
    if (detok_new(&d, t, false, &e))
        return;
    bool ok = true;
    for (size_t i = 0; i < ids->n && ok; i++)
        ok = !detok_push(d, ids->ids[i], &text, &e);
    ok = ok && !detok_flush(d, &text, &e);
    /* ill-formed byte tokens may have been sent before they turned out to be so */
    bool exact = !memmem(buf_str(whole), whole->len, "\xef\xbf\xbd", 3);
    Q_ASSERT(!ok || !exact ||
             (text.len == whole->len && memcmp(buf_str(&text), buf_str(whole), text.len) == 0));
    detok_free(d);
    buf_release(&text);
}

static void use(const struct tokenizer *t, const char *text, size_t n)
{
    struct q_err e;
    struct token_list ids = TOKEN_LIST_INIT;
    struct buf whole = BUF_INIT;
    if (!tokenizer_encode(t, text, n, true, &ids, &e) &&
        !tokenizer_decode(t, ids.ids, ids.n, false, &whole, &e))
        stream(t, &ids, &whole);
    token_list_release(&ids);
    buf_release(&whole);
}

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t n)
{
    struct q_err e;
    struct tokenizer *t = NULL;
    const unsigned char *nul = n ? memchr(data, 0, n) : NULL;
    size_t n_json = nul ? (size_t)(nul - data) : n;
    if (tokenizer_from_json(&t, (const char *)data, n_json, &e) == Q_OK) {
        const char *text = nul ? (const char *)nul + 1 : "a b\xc3\xa9 12";
        use(t, text, nul ? n - n_json - 1 : strlen(text));
    }
    tokenizer_free(t);
    return 0;
}
