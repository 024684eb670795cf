/* SPDX-License-Identifier: Apache-2.0 */
/* adapter_config.json of arbitrary bytes: refused, or a rule for every module name with ranks and
 * scales that are numbers; and tensor names of arbitrary bytes. */
#include <math.h>
#include <string.h>
#include "common/hub/adapter.h"
#include "common/mem.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static void ask(const struct adapter_config *c, const char *module)
{
    struct q_err e = Q_ERR_INIT;
    struct adapter_size size;
    bool yes = false;
    enum q_code rc = adapter_targets(&yes, c, module, false, &e);
    Q_ASSERT(rc == e.code && !(rc && yes));
    q_err_reset(&e);
    rc = adapter_size_of(&size, c, module, &e);
    Q_ASSERT(rc == e.code);
    Q_ASSERT(rc || (size.rank > 0 && size.rank <= ADAPTER_RANK_MAX && isfinite(size.scale)));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    static const char *const modules[] = {"model.layers.0.self_attn.q_proj",
                                          "transformer.h.12.mlp.c_fc", "lm_head"};
    struct adapter_config *c = NULL;
    struct q_err e = Q_ERR_INIT;
    char module[ADAPTER_MODULE_MAX];
    enum adapter_factor factor;
    char *name = q_strndup((const char *)data, n);
    enum q_code rc = adapter_config_parse(&c, (const char *)data, n, "adapter_config.json", &e);
    Q_ASSERT(rc == e.code && (rc == Q_OK) == (c != NULL));
    for (size_t i = 0; c && i < sizeof modules / sizeof *modules; i++)
        ask(c, modules[i]);
    adapter_config_free(c);
    if (name && adapter_tensor_parse(module, &factor, name))
        Q_ASSERT(strlen(module) < sizeof module && strstr(name, module));
    q_free(name);
    return 0;
}
