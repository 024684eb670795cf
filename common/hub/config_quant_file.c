/* SPDX-License-Identifier: Apache-2.0 */
/* Older releases of some tools write the quantization beside config.json and not into it: NVIDIA's
 * Model Optimizer as {"producer": {…}, "quantization": {"quant_algo": "FP8", …}}, AutoGPTQ and
 * AutoAWQ as the object that config.json would have, without the method's name. Sources: ModelOpt's
 * documentation of the unified Hugging Face checkpoint; checkpoints made by the others. */
#include <jansson.h>
#include "common/file.h"
#include "common/hub/config_quant.h"

/* The file of each tool, the first one found is read. */
static const struct kind {
    const char *file, *method;
    bool is_modelopt;
} kinds[] = {
    {"hf_quant_config.json", "modelopt", true},
    {"quantize_config.json", "gptq", false},
    {"quant_config.json", "awq", false},
};

/* config's quantization_config becomes `file` with the method's name. */
static enum q_code take(json_t *config, json_t *file, const struct kind *kind, const char *path,
                        struct q_err *e)
{
    const json_t *inner = json_object_get(file, "quantization");
    const json_t *algo = json_object_get(inner, "quant_algo");
    if (kind->is_modelopt && !json_is_object(inner))
        return q_fail(e, Q_CORRUPT, "%s: quantization is %s, expected an object", path,
                      hub_json_kind(inner));
    if (kind->is_modelopt && (!algo || json_is_null(algo))) /* of the KV cache alone */
        return Q_OK;
    const bool is_named = !kind->is_modelopt && json_object_get(file, "quant_method");
    if ((!is_named && json_object_set_new(file, "quant_method", json_string(kind->method))) ||
        json_object_set(config, "quantization_config", file))
        return q_fail(e, Q_NO_MEMORY, "%s: out of memory", path);
    return Q_OK;
}

/* The file of the folder; NULL: it has none of them. */
static enum q_code find(const struct kind **kind, char path[PATH_MAX], const char *dir,
                        struct q_err *e)
{
    *kind = NULL;
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds && !*kind; i++) {
        const enum q_code rc = path_join(path, PATH_MAX, dir, kinds[i].file, e);
        if (rc)
            return rc;
        *kind = file_exists(path) ? &kinds[i] : NULL;
    }
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
    const struct kind *kind;
    enum q_code rc = find(&kind, path, dir, e);
    if (rc || !kind)
        return rc;
    if ((rc = hub_json_parse(&config, buf_str(text), text->len, config_path, e)))
        return rc;
    const struct hub_json_at at = {config, config_path};
    if (!hub_json_find(&at, "quantization_config") && !hub_json_find(&at, "compression_config") &&
        !(rc = hub_json_load(&file, path, e)) && !(rc = take(config, file, kind, path, e)))
        rc = replace(text, config, config_path, e);
    json_decref(file);
    json_decref(config);
    return rc;
}
