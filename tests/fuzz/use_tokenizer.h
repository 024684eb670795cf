/* SPDX-License-Identifier: Apache-2.0 */
/* What the fuzz targets of tokenizer files do with what was made of a file: load, encode, decode;
 * each may fail, none may crash. */
#ifndef QUIRE_TESTS_FUZZ_USE_TOKENIZER_H
#define QUIRE_TESTS_FUZZ_USE_TOKENIZER_H
#include <string.h>
#include "common/tokenizer/tokenizer_internal.h"

static inline void use_written(const struct tok_written *w)
{
    static const char text[] = " a bc<s>\xc3\xa9  <user>12\n[INST]\xe4\xb8\xad";
    struct q_err e;
    struct tokenizer *t = NULL;
    struct token_list ids = TOKEN_LIST_INIT;
    struct buf back = BUF_INIT;
    struct tok_texts in = {{buf_str(&w->json), w->json.len}, {"", 0}, &w->extra};
    if (!tok_from_texts(&t, &in, &e) &&
        !tokenizer_encode(t, text, sizeof text - 1, true, &ids, &e)) {
        enum q_code rc = tokenizer_decode(t, ids.ids, ids.n, false, &back, &e);
        (void)rc; /* either is fine */
    }
    tokenizer_free(t);
    token_list_release(&ids);
    buf_release(&back);
}

#endif
