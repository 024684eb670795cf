/* SPDX-License-Identifier: Apache-2.0 */
/* The engine's functions as a plugin sees them: struct quire_host. */
#include "common/log.h"
#include "engine/model/plugin/host_program.h"
#include "engine/model/plugin/host_rows.h"
#include "engine/model/plugin/host_step.h"
#include "engine/model/plugin/plugin_model.h"

static bool config_number(const struct quire_model *m, const char *key, double *out)
{
    const struct plugin_sizes sizes = {m->root, m->path, &m->config};
    const json_t *v = key ? plugin_key(m->root, key) : NULL;
    uint32_t derived;
    if (json_is_number(v))
        *out = json_number_value(v);
    else if (json_is_boolean(v))
        *out = json_is_true(v);
    else if (key && !v && plugin_size_derived(&derived, &sizes, key))
        *out = derived;
    else
        return false;
    return true;
}

static bool config_text(const struct quire_model *m, const char *key, const char **out)
{
    const char *text = key ? json_string_value(plugin_key(m->root, key)) : NULL;
    if (text)
        *out = text;
    return text != NULL;
}

static void log_text(const char *text)
{
    const struct quire_model *now = plugin_model_now();
    if (plugin_repeats())
        return;
    log_info("plugin %s: %s", now ? plugin_arch_text(now->arch) : "?", text ? text : "NULL");
}

static uint32_t n_layer(const struct quire_model *m)
{
    return m->config.n_layer;
}

static void *scratch(const struct quire_model *m)
{
    const struct plugin_work *work = plugin_work_now();
    (void)m;
    return work ? work->scratch : NULL;
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
