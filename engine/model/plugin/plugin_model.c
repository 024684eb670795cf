/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/model/plugin/plugin_model.h"
#include <string.h>
#include "common/file.h"
#include "common/hub/hub_json.h"
#include "common/log.h"
#include "common/mem.h"
#include "engine/model/plugin/host_program.h"
#include "engine/model/plugin/host_rows.h"
#include "engine/model/plugin/host_step.h"

/* ---- calls ---- */

static _Thread_local const struct quire_model *model_now;
static _Thread_local const struct plugin_work *work_now;

void plugin_begin(const struct quire_model *m, const struct plugin_work *work)
{
    model_now = m;
    work_now = work;
}

void plugin_end(void)
{
    model_now = NULL;
    work_now = NULL;
}

const struct quire_model *plugin_model_now(void)
{
    return model_now;
}

const struct plugin_work *plugin_work_now(void)
{
    return work_now;
}

FALLIBLE plugin_failed(const struct quire_model *m, const char *callback,
                       struct quire_plugin_error *error, enum q_code code, struct q_err *e)
{
    error->message[sizeof error->message - 1] = '\0';
    return *error->message ? q_fail(e, code, "%s", error->message)
                           : q_fail(e, code, "plugin %s: %s failed and gave no reason",
                                    plugin_arch_text(m->arch), callback);
}

/* ---- config ---- */

static bool config_number(const struct quire_model *m, const char *key, double *out)
{
    const struct plugin_sizes sizes = {m->root, m->path, &m->config};
    const json_t *v = plugin_key(m->root, key);
    uint32_t derived;
    if (json_is_number(v))
        *out = json_number_value(v);
    else if (json_is_boolean(v))
        *out = json_is_true(v);
    else if (!v && plugin_size_derived(&derived, &sizes, key))
        *out = derived;
    else
        return false;
    return true;
}

static bool config_text(const struct quire_model *m, const char *key, const char **out)
{
    const char *text = json_string_value(plugin_key(m->root, key));
    if (text)
        *out = text;
    return text != NULL;
}

static void log_text(const char *text)
{
    log_info("plugin %s: %s", model_now ? plugin_arch_text(model_now->arch) : "?", text);
}

static uint32_t n_layer(const struct quire_model *m)
{
    return m->config.n_layer;
}

static void *scratch(const struct quire_model *m)
{
    (void)m;
    return work_now ? work_now->scratch : NULL;
}

const struct quire_host plugin_host = {
    .size = sizeof plugin_host,
    .version = QUIRE_VERSION,
    .config_number = config_number,
    .config_text = config_text,
    .log = log_text,
    .linear = host_linear,
    .layer_norm = host_layer_norm,
    .rms_norm = host_rms_norm,
    .activate = host_activate,
    .attend = host_attend,
    .tensor = host_tensor,
    .barrier = host_barrier,
    .step_embed = host_step_embed,
    .step_linear = host_step_linear,
    .step_rms_norm = host_step_rms_norm,
    .step_rope = host_step_rope,
    .step_attention = host_step_attention,
    .step_buffer = host_step_buffer,
    .insert_after = host_insert_after,
    .remove = host_remove,
    .program_model = host_program_model,
    .n_layer = n_layer,
    .scratch = scratch,
};

/* ---- life ---- */

/* config.json again, as an object, with the rules applied. */
static enum q_code read_root(struct quire_model *m, const char *dir, struct q_err *e)
{
    struct model_config unused;
    enum q_code rc;
    if ((rc = path_join(m->path, sizeof m->path, dir, "config.json", e)) ||
        (rc = hub_json_load(&m->root, m->path, e)))
        return rc;
    return plugin_apply(&m->arch->added, &unused, m->root, m->path, e);
}

static enum q_code read_buffers(struct quire_model *m, struct q_err *e)
{
    const struct plugin_sizes sizes = {m->root, m->path, &m->config};
    const char *const *texts = m->arch->a.buffers;
    char what[32];
    enum q_code rc = Q_OK;
    for (uint32_t i = 0; i < QUIRE_BUFFERS_MAX && texts[i] && !rc; i++) {
        snprintf(what, sizeof what, "buffers[%u]", i);
        rc = plugin_size(&m->buffers[i], &sizes, texts[i], 1u << 24, what, e);
    }
    return rc;
}

FALLIBLE plugin_model_open(struct quire_model **out, const char *dir, struct q_err *e)
{
    struct quire_model *m = q_calloc(1, sizeof *m);
    *out = NULL;
    if (!m)
        return q_fail(e, Q_NO_MEMORY, "%s: out of memory", dir);
    enum q_code rc = model_config_load(&m->config, NULL, dir, e);
    m->arch = rc ? NULL : plugin_arch_find(m->config.architecture);
    if (!rc && m->arch && !(rc = read_root(m, dir, e)))
        rc = read_buffers(m, e);
    if (rc || !m->arch)
        plugin_model_free(m);
    else
        *out = m;
    return rc;
}

void plugin_model_free(struct quire_model *m)
{
    if (!m)
        return;
    json_decref(m->root);
    q_free(m);
}

FALLIBLE plugin_model_check(const struct quire_model *m, struct q_err *e)
{
    struct quire_plugin_error error = {{0}};
    if (!m->arch->a.check)
        return Q_OK;
    plugin_begin(m, NULL);
    const int failed = m->arch->a.check(&plugin_host, m, &error);
    plugin_end();
    return failed ? plugin_failed(m, "check", &error, Q_UNSUPPORTED, e) : Q_OK;
}
