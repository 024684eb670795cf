/* SPDX-License-Identifier: Apache-2.0 */
/* config.json and generation_config.json of arbitrary bytes: refused, or numbers that sizes and
 * rope frequencies can be derived from. */
#include <math.h>
#include "common/download.h"
#include "common/hub/config.h"
#include "engine/model/forward/rotary.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    static struct model_config c;
    static struct rotary r;
    static float row[2 * ROTARY_PAIRS_MAX];
    struct generation_defaults g;
    struct q_err e = Q_ERR_INIT;
    const char *text = (const char *)data;
    if (model_config_parse(&c, text, n, "config.json", &e) == Q_OK) {
        Q_ASSERT(c.n_layer > 0 && c.n_layer <= CONFIG_LAYERS_MAX && c.n_kv_head > 0 &&
                 c.n_head % c.n_kv_head == 0);
        Q_ASSERT(c.head_dim > 0 && c.head_dim % 2 == 0 && c.n_eos <= CONFIG_EOS_MAX);
        Q_ASSERT(!c.quant.method || (c.quant.bits >= 2 && c.quant.bits <= 8));
        Q_ASSERT(rotary_length_max(&c) > 0);
        rotary_init(&r, &c);
        rotary_row(&r, row, c.max_position - 1, c.max_position + 1);
        for (uint32_t i = 0; i < c.head_dim; i++)
            Q_ASSERT(isfinite(row[i]));
    }
    q_err_reset(&e);
    enum q_code whole = download_check(data, n, "config.json", &e);
    Q_ASSERT(whole == e.code);
    q_err_reset(&e);
    enum q_code rc = generation_defaults_parse(&c, &g, text, n, "generation_config.json", &e);
    Q_ASSERT(rc == e.code);
    return 0;
}
