/* SPDX-License-Identifier: Apache-2.0 */
/* A SentencePiece model or tiktoken ranks: the first byte picks the class of the folder, the rest
 * is the file. Whatever loads must encode and decode without a crash. */
#include <string.h>
#include "common/tokenizer/source.h"

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t n);

static void use(const struct tok_written *w)
{
    static const char text[] = " a bc<s>\xc3\xa9  <user>12\n";
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

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t n)
{
    static const char *const classes[] = {"",
                                          "LlamaTokenizer",
                                          "GemmaTokenizer",
                                          "T5Tokenizer",
                                          "QWenTokenizer",
                                          "TikTokenTokenizer"};
    struct q_err e;
    struct tok_config c;
    struct tok_written w = {BUF_INIT_MAX(TOKENIZER_FILE_MAX), {0}};
    if (n == 0)
        return 0;
    unsigned kind = data[0] % 6u;
    struct tok_str file = {(const char *)data + 1, n - 1};
    tok_config_read(&c, NULL);
    c.class = classes[kind];
    enum q_code rc = kind < 4 ? spm_write(&w, file.s, file.n, &c, &e)
                              : tiktoken_write(&w, file, "x.tiktoken", &c, &e);
    if (rc == Q_OK)
        use(&w);
    tok_written_release(&w);
    return 0;
}
