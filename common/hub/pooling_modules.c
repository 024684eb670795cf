/* SPDX-License-Identifier: Apache-2.0 */
/* sentence-transformers' files: modules.json lists the modules of a model in order, each with a
 * folder. Of these a Transformer comes first, then one Pooling, any number of Dense, and perhaps
 * Normalize at the end; what is anything else is refused by its name. */
#include <limits.h>
#include <string.h>
#include "common/file.h"
#include "common/hub/hub_json.h"
#include "common/hub/pooling.h"

static bool is_inside(const char *path)
{
    if (*path == '/' || strchr(path, '\\') || strlen(path) >= POOLING_PATH_MAX)
        return false;
    for (const char *p = path; *p; p++)
        if (p[0] == '.' && p[1] == '.')
            return false;
    return true;
}

static const char *last_part(const char *name)
{
    const char *dot = strrchr(name, '.');
    return dot ? dot + 1 : name;
}

static enum q_code add_dense(struct pooling_modules *m, const char *folder, const char *path,
                             struct q_err *e)
{
    if (m->n_dense == POOLING_DENSE_MAX)
        return q_fail(e, Q_UNSUPPORTED, "%s: more than %u Dense modules are not supported", path,
                      POOLING_DENSE_MAX);
    snprintf(m->dense[m->n_dense++].path, POOLING_PATH_MAX, "%s", folder);
    return Q_OK;
}

static enum q_code add_module(struct pooling_modules *m, const json_t *v, size_t i,
                              const char *path, struct q_err *e)
{
    const struct hub_json_at at = {v, path};
    const char *type = "", *folder = "";
    enum q_code rc;
    if (!json_is_object(v))
        return q_fail(e, Q_CORRUPT, "%s: entry %zu is %s, expected an object", path, i,
                      hub_json_kind(v));
    if ((rc = hub_json_str(&type, &at, "type", e)) || (rc = hub_json_str(&folder, &at, "path", e)))
        return rc;
    if (!is_inside(folder))
        return q_fail(e, Q_CORRUPT,
                      "%s: path of entry %zu is no folder in the model's folder: "
                      "%.60s",
                      path, i, folder);
    const char *kind = last_part(type);
    if (!strcmp(kind, "Transformer") && i == 0)
        return Q_OK;
    if (!strcmp(kind, "Pooling") && !*m->pooling && *folder && !m->normalizes && !m->n_dense) {
        snprintf(m->pooling, sizeof m->pooling, "%s", folder);
        return Q_OK;
    }
    if (!strcmp(kind, "Dense") && *m->pooling && *folder && !m->normalizes)
        return add_dense(m, folder, path, e);
    if (!strcmp(kind, "Normalize") && *m->pooling) {
        m->normalizes = true;
        return Q_OK;
    }
    return q_fail(e, Q_UNSUPPORTED,
                  "%s: module %zu, %.60s, is not supported there; expected Transformer, Pooling, "
                  "Dense, Normalize, in this order",
                  path, i, *type ? type : "without a type");
}

FALLIBLE pooling_parse_modules(struct pooling_modules *out, const char *text, size_t n,
                               const char *path, struct q_err *e)
{
    struct buf all = BUF_INIT; /* the file is a list; the parser takes objects */
    json_t *root = NULL;
    *out = (struct pooling_modules){.n_dense = 0};
    buf_add_str(&all, "{\"modules\":");
    buf_add(&all, text, n);
    buf_add_char(&all, '}');
    enum q_code rc = buf_check(&all, path, e);
    if (!rc)
        rc = hub_json_parse(&root, buf_str(&all), all.len, path, e);
    const json_t *list = json_object_get(root, "modules");
    if (!rc && !json_is_array(list))
        rc = q_fail(e, Q_CORRUPT, "%s: is %s, expected a list of modules", path,
                    hub_json_kind(list));
    for (size_t i = 0; i < json_array_size(list) && !rc; i++)
        rc = add_module(out, json_array_get(list, i), i, path, e);
    json_decref(root);
    buf_release(&all);
    return rc;
}

FALLIBLE pooling_parse_kind(enum pooling_kind *out, bool *with_prompt, const char *text, size_t n,
                            const char *path, struct q_err *e)
{
    static const struct {
        const char *key, *name;
        enum pooling_kind kind;
    } modes[] = {
        {"pooling_mode_cls_token", "cls", POOLING_CLS},
        {"pooling_mode_mean_tokens", "mean", POOLING_MEAN},
        {"pooling_mode_lasttoken", "lasttoken", POOLING_LAST},
        {"pooling_mode_max_tokens", "max", POOLING_MAX},
        {"pooling_mode_mean_sqrt_len_tokens", "mean_sqrt_len_tokens", POOLING_MEAN_SQRT_LEN},
        {"pooling_mode_weightedmean_tokens", "weightedmean", POOLING_WEIGHTED_MEAN},
    };
    json_t *root = NULL;
    const char *name = "";
    uint32_t n_mode = 0;
    enum q_code rc = hub_json_parse(&root, text, n, path, e);
    const struct hub_json_at at = {root, path};
    const json_t *list = hub_json_find(&at, "pooling_mode");
    *with_prompt = true;
    if (json_array_size(list) > 1)
        n_mode = (uint32_t)json_array_size(list);
    else if (json_is_array(list) && json_is_string(json_array_get(list, 0)))
        name = json_string_value(json_array_get(list, 0));
    else if (!rc)
        rc = hub_json_str(&name, &at, "pooling_mode", e);
    if (!rc)
        rc = hub_json_bool(with_prompt, &at, "include_prompt", e);
    for (size_t i = 0; i < sizeof modes / sizeof *modes && !rc; i++) {
        bool is_set = !strcmp(name, modes[i].name);
        if ((rc = hub_json_bool(&is_set, &at, modes[i].key, e)) || !is_set)
            continue;
        n_mode++;
        *out = modes[i].kind;
    }
    if (!rc && n_mode != 1)
        rc = q_fail(e, Q_UNSUPPORTED,
                    "%s: %u pooling modes are set, expected one: pooling_mode_cls_token, "
                    "_mean_tokens, _max_tokens, _mean_sqrt_len_tokens, _weightedmean_tokens or "
                    "_lasttoken",
                    path, n_mode);
    json_decref(root);
    return rc;
}

FALLIBLE pooling_parse_act(enum pooling_act *out, const char *name, const char *path,
                           const char *key, struct q_err *e)
{
    static const struct {
        const char *name;
        enum pooling_act is;
    } acts[] = {
        {"Identity", POOLING_ACT_NONE},   {"Tanh", POOLING_ACT_TANH},
        {"ReLU", POOLING_ACT_RELU},       {"Sigmoid", POOLING_ACT_SIGMOID},
        {"Softmax", POOLING_ACT_SOFTMAX}, {"GELU", POOLING_ACT_GELU},
    };
    for (size_t i = 0; i < sizeof acts / sizeof *acts; i++)
        if (!strcmp(last_part(name), acts[i].name)) {
            *out = acts[i].is;
            return Q_OK;
        }
    return q_fail(e, Q_UNSUPPORTED,
                  "%s: %s \"%.60s\" is not supported, expected Identity, Tanh, ReLU, GELU, Sigmoid "
                  "or Softmax of torch.nn",
                  path, key, name);
}

FALLIBLE pooling_parse_dense(struct pooling_dense *out, const char *text, size_t n,
                             const char *path, struct q_err *e)
{
    const struct hub_json_range range = {1, POOLING_WIDTH_MAX};
    static const char vector[] = "sentence_embedding";
    const char *act = "Identity", *reads = vector, *writes = vector;
    bool adds = false;
    json_t *root = NULL;
    int64_t n_in = 0, n_out = 0;
    enum q_code rc = hub_json_parse(&root, text, n, path, e);
    const struct hub_json_at at = {root, path};
    out->has_bias = true;
    if (!rc && !(rc = hub_json_int(&n_in, &at, "in_features", range, e)) &&
        !(rc = hub_json_int(&n_out, &at, "out_features", range, e)) &&
        !(rc = hub_json_bool(&out->has_bias, &at, "bias", e)) &&
        !(rc = hub_json_bool(&adds, &at, "use_residual", e)) &&
        !(rc = hub_json_str(&reads, &at, "module_input_name", e)) &&
        !(rc = hub_json_str(&writes, &at, "module_output_name", e)) &&
        !(rc = hub_json_str(&act, &at, "activation_function", e)))
        rc = pooling_parse_act(&out->act, act, path, "activation_function", e);
    if (!rc && (!n_in || !n_out))
        rc = q_fail(e, Q_CORRUPT, "%s: in_features or out_features is missing", path);
    if (!rc && adds)
        rc = q_fail(e, Q_UNSUPPORTED, "%s: use_residual is not supported, expected false", path);
    if (!rc && (strcmp(reads, vector) != 0 || strcmp(writes, vector) != 0))
        rc = q_fail(e, Q_UNSUPPORTED,
                    "%s: a Dense from \"%.40s\" to \"%.40s\" is not supported, expected "
                    "sentence_embedding for both",
                    path, reads, writes);
    out->n_in = (uint32_t)n_in;
    out->n_out = (uint32_t)n_out;
    json_decref(root);
    return rc;
}

struct place { /* of a file */
    char path[PATH_MAX];
    struct buf text;
};

static enum q_code read_file(struct place *p, const char *dir, const char *folder, const char *name,
                             struct q_err *e)
{
    char at[PATH_MAX];
    enum q_code rc;
    buf_reset(&p->text);
    if ((rc = path_join(at, sizeof at, dir, folder, e)) ||
        (rc = path_join(p->path, sizeof p->path, at, name, e)))
        return rc;
    return file_read(&p->text, p->path, HUB_JSON_FILE_MAX, e);
}

FALLIBLE pooling_read_modules(struct pooling_modules *out, enum pooling_kind *kind, bool *found,
                              const char *dir, struct q_err *e)
{
    struct place p = {.text = BUF_INIT};
    enum q_code rc = path_join(p.path, sizeof p.path, dir, "modules.json", e);
    *found = !rc && file_exists(p.path);
    if (rc || !*found)
        return rc;
    if ((rc = file_read(&p.text, p.path, HUB_JSON_FILE_MAX, e)) ||
        (rc = pooling_parse_modules(out, buf_str(&p.text), p.text.len, p.path, e)))
        goto out;
    if (!*out->pooling) { /* a list of one Transformer, as cross-encoders may have it */
        *found = false;
        goto out;
    }
    if ((rc = read_file(&p, dir, out->pooling, "config.json", e)) ||
        (rc = pooling_parse_kind(kind, &out->with_prompt, buf_str(&p.text), p.text.len, p.path, e)))
        goto out;
    for (uint32_t i = 0; i < out->n_dense && !rc; i++)
        if (!(rc = read_file(&p, dir, out->dense[i].path, "config.json", e)))
            rc = pooling_parse_dense(&out->dense[i], buf_str(&p.text), p.text.len, p.path, e);
out:
    buf_release(&p.text);
    return rc;
}
