/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/core/item_options.h"
#include <jansson.h>
#include <string.h>
#include "common/json_read.h"

#define FLAG          "--limit-mm-per-prompt"
#define GIB_DEFAULT   4.0
#define STORE_MIB_MIN 1u

static FALLIBLE add_limit(struct core_item_config *c, const char *name, size_t n_name, int64_t n,
                          struct q_err *e)
{
    if (!n_name || n_name >= MODALITY_NAME_MAX || c->n_limit == MODALITIES_MAX)
        return q_fail(e, Q_INVALID, FLAG ": expected at most %u names of 1 to %u bytes",
                      MODALITIES_MAX, MODALITY_NAME_MAX - 1);
    if (n < 0 || n > MODALITY_ITEMS_LIMIT)
        return q_fail(e, Q_INVALID, FLAG ": %.*s is %lld, expected 0 to %u", (int)n_name, name,
                      (long long)n, MODALITY_ITEMS_LIMIT);
    struct core_item_limit *l = &c->limits[c->n_limit++];
    memcpy(l->name, name, n_name);
    l->name[n_name] = '\0';
    l->n = (uint32_t)n;
    return Q_OK;
}

static FALLIBLE read_object(struct core_item_config *c, const char *text, struct q_err *e)
{
    json_error_t at;
    json_t *root = json_read_string(text, 0, &at), *v;
    const char *key;
    enum q_code rc = Q_OK;
    if (!json_is_object(root)) {
        json_decref(root);
        return q_fail(e, Q_INVALID, FLAG ": \"%.60s\" is not a JSON object such as {\"image\": 2}",
                      text);
    }
    json_object_foreach (root, key, v) {
        const json_t *count = json_is_object(v) ? json_object_get(v, "count") : v;
        if (json_is_object(v) && !count)
            continue;
        rc = json_is_integer(count)
                 ? add_limit(c, key, strlen(key), json_integer_value(count), e)
                 : q_fail(e, Q_INVALID, FLAG ": %.60s: expected a whole number, or {\"count\": 2}",
                          key);
        if (rc)
            break;
    }
    json_decref(root);
    return rc;
}

FALLIBLE item_options(struct core_item_config *c, const char *text, double gib, struct q_err *e)
{
    const double mib = (gib > 0 ? gib : GIB_DEFAULT) * 1024;
    c->store_bytes = (uint64_t)(mib < STORE_MIB_MIN ? STORE_MIB_MIN : mib) << 20;
    c->n_limit = 0;
    if (!*text)
        return Q_OK;
    return read_object(c, text, e);
}

uint32_t item_options_limit(const struct core_item_config *c, const char *name)
{
    for (uint32_t i = 0; i < c->n_limit; i++)
        if (strcmp(c->limits[i].name, name) == 0)
            return c->limits[i].n;
    return UINT32_MAX;
}
