/* SPDX-License-Identifier: Apache-2.0 */
#include "common/tokenizer/source/ranks.h"
#include <openssl/evp.h>
#include "common/mem.h"
#include "common/tokenizer/chars.h"
#include "common/utf8.h"

/* The token in the byte-level alphabet, as a JSON key. Of the alphabet only two characters have to
 * be escaped, and none is longer than two bytes. */
static void add_token(struct buf *b, struct tok_str token)
{
    char text[2 * RANK_TOKEN_MAX + 2];
    size_t n = 0;
    text[n++] = '"';
    for (size_t i = 0; i < token.n; i++) {
        char c = token.s[i];
        if (c == '"' || c == '\\')
            text[n++] = '\\';
        n += utf8_encode(tok_byte_char((unsigned char)c), text + n);
    }
    text[n++] = '"';
    buf_add(b, text, n);
}

enum q_code rank_write(struct tok_written *out, struct tok_str token, uint32_t id, uint32_t rank,
                       struct q_err *e)
{
    struct tok_extra *x = &out->extra;
    enum q_code rc =
        q_grow(&x->ranks, &x->rank_cap, (size_t)id + 1, sizeof *x->ranks, TOK_ID_MAX, e);
    if (rc)
        return rc;
    for (; x->n <= id; x->n++)
        x->ranks[x->n] = RANK_NONE;
    x->ranks[id] = rank;
    add_token(&out->json, token);
    buf_printf(&out->json, ":%u", id);
    return Q_OK;
}

size_t rank_token(unsigned char token[RANK_TOKEN_MAX + 4], struct tok_str base64)
{
    size_t n = base64.n;
    if (n == 0 || n % 4 || n / 4 * 3 > RANK_TOKEN_MAX)
        return 0;
    int n_token = EVP_DecodeBlock(token, (const unsigned char *)base64.s, (int)n);
    for (size_t i = n; n_token > 0 && i + 2 > n && base64.s[i - 1] == '='; i--)
        n_token--;
    return n_token > 0 ? (size_t)n_token : 0;
}
