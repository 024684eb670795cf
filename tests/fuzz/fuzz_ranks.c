/* SPDX-License-Identifier: Apache-2.0 */
/* Files of ranks: the first byte says whose (tiktoken's by class or name, or a tekken.json), the
 * rest is the file. */
#include "common/tokenizer/source/tekken.h"
#include "common/tokenizer/source/tiktoken.h"
#include "use_tokenizer.h"

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t n);

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t n)
{
    struct q_err e;
    struct tok_config c;
    struct tok_written w = {BUF_INIT_MAX(TOKENIZER_FILE_MAX), {0}};
    if (n == 0)
        return 0;
    struct tok_str file = {(const char *)data + 1, n - 1};
    tok_config_read(&c, NULL);
    enum q_code rc;
    if (data[0] % 3 == 0)
        rc = tekken_write(&w, file, &e);
    else {
        c.class = data[0] % 3 == 1 ? "LlamaTokenizer" : "";
        rc = tiktoken_write(&w, file, "r50k_base.tiktoken", &c, &e);
    }
    if (rc == Q_OK)
        use_written(&w);
    tok_written_release(&w);
    return 0;
}
