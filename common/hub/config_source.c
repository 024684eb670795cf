/* SPDX-License-Identifier: Apache-2.0 */
/* A list that only grows, as that of plugins' architectures (archs.c): readers need no lock. The
 * overrides are kept as text, because the engine copies a source to its worker in shared memory. */
#include "common/hub/config_source.h"
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include "common/buf.h"
#include "common/file.h"
#include "common/hub/hub.h"
#include "common/hub/hub_json.h"
#include "common/mem.h"
#include "common/options.h"

#define DEPTH_MAX 8u /* of objects within objects */

struct entry {
    struct config_source source;
    const struct entry *next;
};
static _Atomic(const struct entry *) sources; /* the newest first */

FALLIBLE config_source_set(const struct config_source *s, struct q_err *e)
{
    if (!*s->config_dir && !*s->overrides && !config_source_find(s->dir))
        return Q_OK;
    struct entry *entry = q_alloc(sizeof *entry);
    if (!entry)
        return q_fail(e, Q_NO_MEMORY, "--hf-overrides: out of memory");
    const struct entry *head = atomic_load(&sources);
    entry->source = *s;
    do
        entry->next = head;
    while (!atomic_compare_exchange_weak(&sources, &head, entry));
    return Q_OK;
}

const struct config_source *config_source_find(const char *dir)
{
    const struct entry *entry = atomic_load(&sources);
    while (entry && strcmp(entry->source.dir, dir) != 0)
        entry = entry->next;
    return entry ? &entry->source : NULL;
}

/* Ids are one number or a list of them, and types have no kind of their own. */
static bool is_kind(const json_t *old, const json_t *new)
{
    if (!old || json_is_null(old) || json_is_null(new))
        return true;
    if (json_is_boolean(old) || json_is_boolean(new))
        return json_is_boolean(old) && json_is_boolean(new);
    if (json_is_number(old) || json_is_array(old))
        return json_is_number(new) || json_is_array(new);
    return json_typeof(old) == json_typeof(new);
}

/* key: of the object within config.json, with a dot behind it, or "". */
static enum q_code merge(json_t *config, const json_t *over, const char *key, unsigned depth,
                         struct q_err *e)
{
    const char *name;
    json_t *value;
    if (depth > DEPTH_MAX)
        return q_fail(e, Q_INVALID, "--hf-overrides: more than %u objects within each other",
                      DEPTH_MAX);
    json_object_foreach ((json_t *)over, name, value) {
        json_t *old = json_object_get(config, name);
        if (!is_kind(old, value))
            return q_fail(e, Q_INVALID,
                          "--hf-overrides: %s%.60s is %s, expected %s, as config.json has it", key,
                          name, hub_json_kind(value), hub_json_kind(old));
        if (json_is_object(old) && json_is_object(value)) {
            char within[256];
            snprintf(within, sizeof within, "%s%.60s.", key, name);
            const enum q_code rc = merge(old, value, within, depth + 1, e);
            if (rc)
                return rc;
        } else if (json_object_set(config, name, value)) {
            return q_fail(e, Q_NO_MEMORY, "--hf-overrides: out of memory");
        }
    }
    return Q_OK;
}

static enum q_code parse(json_t **out, const char *overrides, struct q_err *e)
{
    enum q_code rc = hub_json_parse(out, overrides, strlen(overrides), "--hf-overrides", e);
    if (rc == Q_CORRUPT)
        rc = e->code = Q_INVALID; /* an error of the argument, not of the model */
    return rc;
}

/* Configs that transformers 5 writes have rope_scaling and rope_theta in rope_parameters: overrides
 * by the older names go there, since those beside it are not read. */
static enum q_code move_rope(json_t *over, const json_t *config, struct q_err *e)
{
    const json_t *rope = json_object_get(config, "rope_parameters");
    json_t *scaling = json_object_get(over, "rope_scaling"),
           *theta = json_object_get(over, "rope_theta");
    if (!json_is_object(rope) || (!scaling && !theta))
        return Q_OK;
    if (json_object_get(over, "rope_parameters") || json_object_get(rope, "full_attention") ||
        json_object_get(rope, "sliding_attention") || (scaling && !json_is_object(scaling)))
        return q_fail(e, Q_INVALID,
                      "--hf-overrides: %s has no effect, because config.json has rope_parameters; "
                      "override the members of that object",
                      scaling ? "rope_scaling" : "rope_theta");
    json_t *moved = scaling ? json_copy(scaling) : json_object();
    const bool failed = !moved || (theta && json_object_set(moved, "rope_theta", theta)) ||
                        json_object_set(over, "rope_parameters", moved);
    json_decref(moved);
    if (failed)
        return q_fail(e, Q_NO_MEMORY, "--hf-overrides: out of memory");
    json_object_del(over, "rope_scaling");
    json_object_del(over, "rope_theta");
    return Q_OK;
}

FALLIBLE config_source_merge(json_t *config, const char *overrides, const char *path,
                             struct q_err *e)
{
    json_t *over = NULL;
    enum q_code rc = parse(&over, overrides, e);
    if (!rc && (move_rope(over, config, e) || merge(config, over, "", 1, e)))
        rc = q_wrap(e, "%s", path);
    json_decref(over);
    return rc;
}

static enum q_code find_config(char out[PATH_MAX], const char *what, const char *revision,
                               struct q_err *e)
{
    static const char name[] = "/config.json";
    const size_t n = strlen(what);
    if (!file_exists(what) || dir_exists(what) || n < sizeof name ||
        strcmp(what + n - (sizeof name - 1), name) != 0)
        return hub_resolve_files(out, what, revision, e) ? q_wrap(e, "--hf-config-path") : Q_OK;
    if (n >= PATH_MAX)
        return q_fail(e, Q_INVALID, "--hf-config-path: the path has more than %d bytes",
                      PATH_MAX - 1);
    snprintf(out, PATH_MAX, "%.*s", (int)(n - (sizeof name - 1)), what);
    return Q_OK;
}

FALLIBLE config_source_read(struct config_source *s, const char *dir, const char *config_path,
                            const char *revision, const char *overrides, struct q_err *e)
{
    enum q_code rc = Q_OK;
    json_t *object = NULL;
    memset(s, 0, sizeof *s);
    if (snprintf(s->dir, sizeof s->dir, "%s", dir) >= (int)sizeof s->dir)
        return q_fail(e, Q_TOO_LARGE, "%s: the path is too long", dir);
    if (*config_path)
        rc = find_config(s->config_dir, config_path, revision, e);
    if (rc || !*overrides)
        return rc;
    if (snprintf(s->overrides, sizeof s->overrides, "%s", overrides) >= (int)sizeof s->overrides)
        return q_fail(e, Q_INVALID, "--hf-overrides has %zu bytes, expected at most %zu",
                      strlen(overrides), sizeof s->overrides - 1);
    rc = parse(&object, overrides, e);
    json_decref(object);
    return rc;
}

FALLIBLE config_source_options(struct config_source *s, const char *dir, const struct options *o,
                               struct q_err *e)
{
    const enum q_code rc = config_source_read(
        s, dir, o->hf_config_path, *o->revision ? o->revision : NULL, o->hf_overrides, e);
    return rc ? rc : config_source_set(s, e);
}
