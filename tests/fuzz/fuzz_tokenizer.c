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

/* As a prompt of which every other stretch is a user's; without such stretches the ids are
 * tokenizer_encode's. */
static void use_prompt(const struct tokenizer *t, const char *text, size_t n)
{
    struct q_err e;
    struct token_list plain = TOKEN_LIST_INIT, same = TOKEN_LIST_INIT, ids = TOKEN_LIST_INIT;
    struct ranges content = RANGES_INIT;
    const struct tokenizer_text own = {.data = text, .n = n, .content = &content},
                                whole = {.data = text, .n = n};
    enum q_code rc = tokenizer_encode(t, text, n, false, &plain, &e);
    Q_ASSERT(rc == tokenizer_encode_prompt(t, &whole, false, &same, &e));
    Q_ASSERT(plain.n == same.n &&
             (!same.n || memcmp(plain.ids, same.ids, same.n * sizeof *same.ids) == 0));
    size_t step = 1 + (n ? (unsigned char)text[0] % 13 : 0);
    for (size_t i = step; i < n && !rc; i += 2 * step)
        rc = ranges_add(&content, i, i + step < n ? i + step : n, &e);
    if (!rc)
        rc = tokenizer_encode_prompt(t, &own, false, &ids, &e);
    token_list_release(&plain);
    token_list_release(&same);
    token_list_release(&ids);
    ranges_release(&content);
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
        use_prompt(t, text, nul ? n - n_json - 1 : strlen(text));
    }
    tokenizer_free(t);
    return 0;
}
