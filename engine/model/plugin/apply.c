/* SPDX-License-Identifier: Apache-2.0 */
/* config.json of a plugin's architecture, in the spelling of its base. */
#include <string.h>
#include "common/hub/hub_json.h"
#include "common/json_read.h"
#include "engine/model/plugin/plugin_arch.h"

#define SIZE_MAX_ASKED (1u << 31)

static enum q_code fail_memory(const char *path, struct q_err *e)
{
    return q_fail(e, Q_NO_MEMORY, "%s: out of memory for a plugin's keys", path);
}

/* One key that is looked up as it is, of whatever type. */
static bool is_plain_key(const char *from)
{
    return !strchr(from, '*') && !strchr(from, ' ') && from[strspn(from, "0123456789")];
}

static bool has_all_keys(const json_t *root, const char *from)
{
    char key[128];
    for (const char *p = from; *p;) {
        p += strspn(p, " *");
        const size_t n = strcspn(p, " *");
        if (n >= sizeof key)
            return false;
        memcpy(key, p, n);
        key[n] = '\0';
        if (n && key[strspn(key, "0123456789")] && !plugin_key(root, key))
            return false;
        p += n;
    }
    return true;
}

/* What the rule gives the key, a new reference; NULL: nothing, the key stays as it is. */
static enum q_code value_of(json_t **out, const struct quire_config_rule *r,
                            const struct plugin_sizes *s, struct q_err *e)
{
    uint32_t size = 0;
    *out = NULL;
    if (r->from && has_all_keys(s->root, r->from)) {
        if (is_plain_key(r->from)) {
            *out = json_deep_copy(plugin_key(s->root, r->from));
        } else {
            const enum q_code rc = plugin_size(&size, s, r->from, SIZE_MAX_ASKED, r->key, e);
            if (rc)
                return rc;
            *out = json_integer(size);
        }
        return *out ? Q_OK : fail_memory(s->path, e);
    }
    const json_t *given = json_object_get(s->root, r->key);
    if (!r->value || (given && !json_is_null(given)))
        return Q_OK;
    *out = json_read_string(r->value, JSON_DECODE_ANY, NULL);
    return *out ? Q_OK : fail_memory(s->path, e);
}

FALLIBLE plugin_apply(const struct archs_added *added, struct model_config *c, json_t *root,
                      const char *path, struct q_err *e)
{
    const struct plugin_arch *a = (const void *)added;
    const struct plugin_sizes sizes = {root, path, NULL};
    (void)c;
    for (uint32_t i = 0; i < a->a.n_config; i++) {
        json_t *value;
        const enum q_code rc = value_of(&value, &a->a.config[i], &sizes, e);
        if (rc)
            return q_wrap(e, "plugin %s", a->plugin->text);
        if (value && json_object_set_new(root, a->a.config[i].key, value))
            return fail_memory(path, e);
    }
    /* What transformers assumes when a key is absent is the base's. */
    return json_object_set_new(root, "model_type", json_string(archs_type(added->base)))
               ? fail_memory(path, e)
               : Q_OK;
}

FALLIBLE plugin_resolve(const struct archs_added *added, struct model_config *c, json_t *root,
                        const char *path, struct q_err *e)
{
    const struct plugin_arch *a = (const void *)added;
    const struct plugin_sizes sizes = {root, path, c};
    char what[160];
    enum q_code rc = Q_OK;
    for (uint32_t i = 0; i < a->a.n_tensor && !rc; i++) {
        const struct quire_tensor *t = &a->a.tensors[i];
        snprintf(what, sizeof what, "tensor %s: rows", t->id);
        rc = plugin_size(&c->own[i].rows, &sizes, t->rows, 1u << 30, what, e);
        snprintf(what, sizeof what, "tensor %s: cols", t->id);
        if (!rc && t->cols)
            rc = plugin_size(&c->own[i].cols, &sizes, t->cols, 1u << 30, what, e);
    }
    return rc ? q_wrap(e, "plugin %s", a->plugin->text) : Q_OK;
}
