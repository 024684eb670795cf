/* SPDX-License-Identifier: Apache-2.0 */
/* Folders of lists: the first byte picks the class; then a vocab.txt, or a vocab.json, a NUL byte
 * and a merges.txt. */
#include "common/tokenizer/source/lists.h"
#include "use_tokenizer.h"

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t n);

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t n)
{
    static const char *const classes[] = {"BertTokenizer",  "MPNetTokenizer",   "GPT2Tokenizer",
                                          "Qwen2Tokenizer", "RobertaTokenizer", "CLIPTokenizer"};
    struct q_err e;
    struct tok_config c;
    struct tok_written w = {BUF_INIT_MAX(TOKENIZER_FILE_MAX), {0}};
    if (n == 0)
        return 0;
    unsigned kind = data[0] % 6u;
    struct tok_str file = {(const char *)data + 1, n - 1};
    tok_config_read(&c, NULL);
    c.class = classes[kind];
    const char *nul = file.n ? memchr(file.s, 0, file.n) : NULL;
    struct tok_str vocab = {file.s, nul ? (size_t)(nul - file.s) : file.n};
    struct tok_str merges = {nul ? nul + 1 : "", nul ? file.n - vocab.n - 1 : 0};
    enum q_code rc =
        kind < 2 ? word_list_write(&w, file, &c, &e) : merge_list_write(&w, vocab, merges, &c, &e);
    if (rc == Q_OK)
        use_written(&w);
    tok_written_release(&w);
    return 0;
}
