/* SPDX-License-Identifier: Apache-2.0 */
/* A params.json of arbitrary bytes: refused, or a config.json that is refused or read. */
#include <string.h>
#include "common/hub/config.h"
#include "common/hub/hub_json.h"
#include "common/hub/params.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    static struct model_config c;
    json_t *params = NULL, *config = NULL;
    struct q_err e = Q_ERR_INIT;
    enum q_code rc = hub_json_parse(&params, (const char *)data, n, "params.json", &e);
    if (!rc)
        rc = params_to_config(&config, params, n % 2 ? DT_F32 : DT_BF16, "params.json", &e);
    Q_ASSERT(rc == e.code && !rc == !!config);
    if (!rc) {
        char *text = json_dumps(config, JSON_COMPACT | JSON_REAL_PRECISION(17));
        json_free_t release;
        json_get_alloc_funcs(NULL, &release);
        Q_ASSERT(text);
        rc = model_config_parse(&c, text, strlen(text), "params.json", &e);
        Q_ASSERT(rc == e.code);
        release(text);
    }
    json_decref(config);
    json_decref(params);
    return 0;
}
