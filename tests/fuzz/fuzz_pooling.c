/* SPDX-License-Identifier: Apache-2.0 */
/* Sentence-transformers' files of arbitrary bytes: refused, or folders inside of the model's folder
 * and sizes within their limits. */
#include <string.h>
#include "common/hub/pooling.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static void check_path(const char *path)
{
    Q_ASSERT(strlen(path) < POOLING_PATH_MAX && *path && *path != '/' && !strstr(path, ".."));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    const char *text = (const char *)data;
    struct pooling_modules m;
    struct pooling_dense dense = {.n_in = 0};
    enum pooling_kind kind = POOLING_KINDS;
    bool with_prompt;
    enum pooling_act act = POOLING_ACT_NONE;
    struct q_err e = Q_ERR_INIT;
    if (pooling_parse_modules(&m, text, n, "modules.json", &e) == Q_OK) {
        Q_ASSERT(m.n_dense <= POOLING_DENSE_MAX && (*m.pooling || !m.n_dense));
        if (*m.pooling)
            check_path(m.pooling);
        for (uint32_t i = 0; i < m.n_dense; i++)
            check_path(m.dense[i].path);
    }
    q_err_reset(&e);
    if (pooling_parse_kind(&kind, &with_prompt, text, n, "config.json", &e) == Q_OK)
        Q_ASSERT(kind < POOLING_KINDS);
    q_err_reset(&e);
    if (pooling_parse_dense(&dense, text, n, "config.json", &e) == Q_OK)
        Q_ASSERT(dense.n_in && dense.n_out && dense.n_in <= POOLING_WIDTH_MAX &&
                 dense.n_out <= POOLING_WIDTH_MAX && dense.act <= POOLING_ACT_GELU);
    q_err_reset(&e);
    char name[64] = "";
    memcpy(name, text, n < sizeof name ? n : sizeof name - 1);
    const enum q_code rc = pooling_parse_act(&act, name, "config.json", "key", &e);
    Q_ASSERT(rc == e.code);
    return 0;
}
