/* SPDX-License-Identifier: Apache-2.0 */
/* A SentencePiece model: the first byte picks the class of the folder, the rest is the file. */
#include "common/tokenizer/source/spm.h"
#include "use_tokenizer.h"

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t n);

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t n)
{
    static const char *const classes[] = {"", "LlamaTokenizer", "GemmaTokenizer", "T5Tokenizer"};
    struct q_err e;
    struct tok_config c;
    struct tok_written w = {BUF_INIT_MAX(TOKENIZER_FILE_MAX), {0}};
    if (n == 0)
        return 0;
    tok_config_read(&c, NULL);
    c.class = classes[data[0] % 4u];
    if (spm_write(&w, (const char *)data + 1, n - 1, &c, &e) == Q_OK)
        use_written(&w);
    tok_written_release(&w);
    return 0;
}
