/* SPDX-License-Identifier: Apache-2.0 */
/* Older releases of NVIDIA's Model Optimizer write the quantization beside config.json and not into
 * it: {"producer": {…}, "quantization": {"quant_algo": "FP8", …}}. Source: ModelOpt's documentation
 * of the unified Hugging Face checkpoint. */
#include <jansson.h>
#include "common/file.h"
#include "common/hub/config_quant.h"

#define FILE_NAME "hf_quant_config.json"

/* config's quantization_config becomes `file` with the method's name. */
static enum q_code take(json_t *config, json_t *file, const char *path, struct q_err *e)
{
    const json_t *inner = json_object_get(file, "quantization");
    const json_t *algo = json_object_get(inner, "quant_algo");
    if (!json_is_object(inner))
        return q_fail(e, Q_CORRUPT, "%s: quantization is %s, expected an object", path,
                      hub_json_kind(inner));
    if (!algo || json_is_null(algo)) /* of the KV cache alone */
        return Q_OK;
    if (json_object_set_new(file, "quant_method", json_string("modelopt")) ||
        json_object_set(config, "quantization_config", file))
        return q_fail(e, Q_NO_MEMORY, "%s: out of memory", path);
    return Q_OK;
}

static enum q_code replace(struct buf *text, const json_t *config, const char *path,
                           struct q_err *e)
{
    json_free_t release;
    char *made = json_dumps(config, JSON_REAL_PRECISION(17));
    json_get_alloc_funcs(NULL, &release);
    buf_reset(text);
    if (made)
        buf_add_str(text, made);
    release(made);
    return made ? buf_check(text, path, e) : q_fail(e, Q_NO_MEMORY, "%s: out of memory", path);
}

enum q_code config_quant_add_file(struct buf *text, const char *dir, const char *config_path,
                                  struct q_err *e)
{
    char path[PATH_MAX];
    json_t *config = NULL, *file = NULL;
    enum q_code rc = path_join(path, sizeof path, dir, FILE_NAME, e);
    if (rc || !file_exists(path))
        return rc;
    if ((rc = hub_json_parse(&config, buf_str(text), text->len, config_path, e)))
        return rc;
    const struct hub_json_at at = {config, config_path};
    if (!hub_json_find(&at, "quantization_config") && !hub_json_find(&at, "compression_config") &&
        !(rc = hub_json_load(&file, path, e)) && !(rc = take(config, file, path, e)))
        rc = replace(text, config, config_path, e);
    json_decref(file);
    json_decref(config);
    return rc;
}
