/* SPDX-License-Identifier: Apache-2.0 */
/* Loading. What is loaded is never unloaded, so that whoever found an architecture may keep it; a
 * list that only grows needs no lock. */
#include <dirent.h>
#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include "common/file.h"
#include "common/hub/hub_json.h"
#include "common/log.h"
#include "common/mem.h"
#include "engine/model/forward/program_weight.h"
#include "engine/model/plugin/entry.h"
#include "engine/model/plugin/plugin_arch.h"
#include "engine/model/plugin/trial.h"

static _Atomic(const struct plugin *) loaded;

const struct plugin_arch *plugin_arch_find(const char *name)
{
    return (const void *)archs_added_find(name); /* `added` is its first member */
}

const char *plugin_arch_text(const struct plugin_arch *a)
{
    return a ? a->plugin->text : "";
}

const char *plugins_text(const char *architecture)
{
    return plugin_arch_text(plugin_arch_find(architecture));
}

/* ---- from a plugin's tables to an architecture ---- */

static bool is_known_file(const struct quire_plugin *from)
{
    const struct plugin *p = atomic_load(&loaded);
    while (p && p->from != from)
        p = p->next;
    return p != NULL;
}

static enum q_code check_free(const char *name, struct q_err *e)
{
    const struct plugin_arch *other = plugin_arch_find(name);
    return other
               ? q_fail(e, Q_INVALID,
                        "architecture %s: plugin %s (%s) serves it already; leave one of both out",
                        name, other->plugin->text, other->plugin->path)
               : Q_OK;
}

/* What operations call a weight of a family. */
static bool is_weight_of_families(const char *id)
{
    for (uint32_t w = PROGRAM_W_NONE; w < PROGRAM_WEIGHTS; w++)
        if (strcmp(program_weight_info((enum program_weight)w)->name, id) == 0)
            return true;
    return false;
}

static enum q_code make_tensor(struct arch_own *own, const struct quire_tensor *t, uint32_t i,
                               struct q_err *e)
{
    static const enum program_weight_kind kinds[] = {
        [QUIRE_VECTOR] = PROGRAM_VECTOR,
        [QUIRE_TABLE] = PROGRAM_TABLE,
        [QUIRE_MATRIX] = PROGRAM_MATRIX,
    };
    *own = (struct arch_own){
        .tensor = t,
        .spec = {.name = t->name, .slot = W_IGNORE, .when = WHEN_ALWAYS},
        .of_layer = strstr(t->name, "%u") != NULL,
    };
    if (is_weight_of_families(t->id))
        return q_fail(e, Q_INVALID,
                      "tensor %s: its id is that of a weight which families have; choose another",
                      t->id);
    const struct program_weight_info info = {
        .name = t->id,
        .scope = own->of_layer ? PROGRAM_OF_LAYER : PROGRAM_OF_MODEL,
        .kind = kinds[t->kind],
        .i_own = i,
    };
    own->weight = program_weight_add(&info);
    return own->weight == PROGRAM_W_NONE
               ? q_fail(e, Q_TOO_LARGE, "plugins have too many tensors, at %s", t->id)
               : Q_OK;
}

static enum q_code make_tensors(struct plugin_arch *a, struct q_err *e)
{
    struct arch_own *own = q_calloc((size_t)a->a.n_tensor + 1, sizeof *own);
    enum q_code rc = own ? Q_OK : q_fail(e, Q_NO_MEMORY, "out of memory");
    a->arch.own = own;
    a->arch.n_own = a->a.n_tensor;
    for (uint32_t i = 0; i < a->a.n_tensor && !rc; i++)
        rc = make_tensor(&own[i], &a->a.tensors[i], i, e);
    return rc;
}

static void free_architecture(struct plugin_arch *a)
{
    if (a)
        q_free((void *)(uintptr_t)a->arch.own);
    q_free(a);
}

/* The base's table and layers, with what the plugin says otherwise. */
static enum q_code make_family(struct plugin_arch *a, struct q_err *e)
{
    const struct arch *base;
    enum q_code rc = arch_find_own(&base, a->a.base, e);
    if (rc)
        return rc;
    a->arch = *base;
    a->arch.name = a->a.name;
    a->arch.plugin = a;
    a->arch.takes_items = a->a.n_modality > 0;
    return plugin_settings(&a->arch.layer, a->a.layer, a->a.n_layer, e);
}

static enum q_code make_modalities(struct plugin_arch *a, struct q_err *e)
{
    char what[40];
    enum q_code rc = Q_OK;
    for (uint32_t i = 0; i < a->a.n_modality && !rc; i++) {
        struct quire_modality *m = &a->modalities[i];
        snprintf(what, sizeof what, "modalities[%u]", i);
        rc = plugin_take(m, sizeof *m, a->a.modalities[i], what, e);
        if (!rc)
            rc = plugin_check_modality(m, e);
        for (uint32_t k = 0; k < i && !rc; k++)
            if (strcmp(a->modalities[k].name, m->name) == 0 ||
                a->modalities[k].placeholder == m->placeholder)
                rc = q_fail(e, Q_INVALID,
                            "modality %s: its name or its placeholder %lld is that of %s too",
                            m->name, (long long)m->placeholder, a->modalities[k].name);
    }
    return rc;
}

static enum q_code make_architecture(struct plugin_arch **out, const struct plugin *p, uint32_t i,
                                     struct q_err *e)
{
    char what[40];
    struct plugin_arch *a = q_calloc(1, sizeof *a);
    enum q_code rc;
    if (!a)
        return q_fail(e, Q_NO_MEMORY, "out of memory");
    snprintf(what, sizeof what, "architectures[%u]", i);
    a->plugin = p;
    if ((rc = plugin_take(&a->a, sizeof a->a, p->p.architectures[i], what, e)) ||
        (rc = plugin_check_architecture(&a->a, e)) || (rc = make_family(a, e)) ||
        (rc = make_tensors(a, e)) || (rc = make_modalities(a, e))) {
        free_architecture(a);
        return rc;
    }
    a->added = (struct archs_added){
        .name = a->a.name,
        .base = a->a.base,
        .apply = plugin_apply,
        .resolve = plugin_resolve,
        .family = &a->arch,
    };
    *out = a;
    return Q_OK;
}

static enum q_code make_operations(struct plugin *p, struct q_err *e)
{
    char what[40];
    enum q_code rc = Q_OK;
    p->operations = q_calloc((size_t)p->p.n_operation + 1, sizeof *p->operations);
    if (!p->operations)
        return q_fail(e, Q_NO_MEMORY, "out of memory");
    for (uint32_t i = 0; i < p->p.n_operation && !rc; i++) {
        snprintf(what, sizeof what, "operations[%u]", i);
        rc = plugin_take(&p->operations[i], sizeof *p->operations, p->p.operations[i], what, e);
        if (!rc)
            rc = plugin_check_operation(&p->operations[i], e);
    }
    return rc;
}

/* ---- files ---- */

static enum q_code check_abi(const struct quire_plugin *p, struct q_err *e)
{
    uint32_t abi;
    if (!p)
        return q_fail(e, Q_INVALID, ENTRY_NAME " gave NULL");
    memcpy(&abi, (const char *)p + offsetof(struct quire_plugin, abi), sizeof abi);
    if (abi != QUIRE_PLUGIN_ABI)
        return q_fail(e, Q_MISMATCH,
                      "its ABI is version %u, this engine's is version %u; build it with the "
                      "engine/plugin.h of quire " QUIRE_VERSION,
                      abi, QUIRE_PLUGIN_ABI);
    return Q_OK;
}

/* Of a plugin from the search path, an architecture that another one serves is left to that one. */
static void leave_out_served(struct plugin_arch **all, uint32_t *n, const struct plugin *p)
{
    uint32_t n_kept = 0;
    for (uint32_t i = 0; i < *n; i++) {
        const struct plugin_arch *other = plugin_arch_find(all[i]->a.name);
        if (!other) {
            all[n_kept++] = all[i];
            continue;
        }
        log_info("plugin %s (%s): %s is served by plugin %s (%s) already", p->text, p->path,
                 all[i]->a.name, other->plugin->text, other->plugin->path);
        free_architecture(all[i]);
    }
    *n = n_kept;
}

static enum q_code check_names(struct plugin_arch *const *all, uint32_t n, struct q_err *e)
{
    enum q_code rc = Q_OK;
    for (uint32_t i = 0; i < n && !rc; i++) {
        for (uint32_t k = 0; k < i && !rc; k++)
            if (strcmp(all[i]->a.name, all[k]->a.name) == 0)
                rc = q_fail(e, Q_INVALID, "architectures[%u] is %s, as architectures[%u]", i,
                            all[i]->a.name, k);
        if (!rc)
            rc = check_free(all[i]->a.name, e);
    }
    return rc;
}

/* All that the plugin's tables say, made into architectures, [*n] of them, of which nothing counts
 * yet. *all: the caller's, also after an error. */
static enum q_code read_tables(struct plugin *p, struct plugin_arch ***all, uint32_t *n,
                               struct q_err *e)
{
    enum q_code rc;
    if ((rc = plugin_take(&p->p, sizeof p->p, p->from, "the plugin", e)) ||
        (rc = plugin_check(&p->p, e)) || (rc = make_operations(p, e)))
        return rc;
    snprintf(p->text, sizeof p->text, "%s %s", p->p.name, p->p.version);
    *all = q_calloc(p->p.n_architecture, sizeof(struct plugin_arch *));
    if (!*all)
        return q_fail(e, Q_NO_MEMORY, "out of memory");
    for (; *n < p->p.n_architecture && !rc; *n += rc == Q_OK)
        rc = make_architecture(&(*all)[*n], p, *n, e);
    return rc;
}

/* All of it is checked before anything of it counts. is_found: on the search path. */
static enum q_code take_plugin(struct plugin *p, bool is_found, struct q_err *e)
{
    struct plugin_arch **all = NULL;
    uint32_t n = 0;
    enum q_code rc = read_tables(p, &all, &n, e);
    if (!rc && is_found)
        leave_out_served(all, &n, p);
    if (!rc)
        rc = check_names(all, n, e);
    for (uint32_t i = 0; i < n; i++) {
        if (rc) {
            free_architecture(all[i]);
            continue;
        }
        archs_add(&all[i]->added);
        log_info("plugin %s (%s) serves %s, as a variation of %s%s", p->text, p->path,
                 all[i]->a.name, all[i]->a.base,
                 archs_is_own(all[i]->a.name) ? ", in place of the built-in family" : "");
    }
    q_free(all);
    return rc;
}

/* What the entry of the shared object gives. */
static enum q_code open_entry(const struct quire_plugin **out, const char *path, struct q_err *e)
{
    void *handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!handle)
        return q_fail(e, Q_CORRUPT, "plugin %s: not a shared object that can be loaded: %s", path,
                      dlerror());
    plugin_entry *entry = plugin_entry_of(handle);
    if (!entry) {
        dlclose(handle);
        return q_fail(e, Q_CORRUPT,
                      "plugin %s: it does not export " ENTRY_NAME " (engine/plugin.h), so it is no "
                      "plugin",
                      path);
    }
    *out = entry();
    enum q_code rc = check_abi(*out, e);
    return rc ? q_wrap(e, "plugin %s", path) : Q_OK;
}

/* In the process of a trial: a wrong pointer in a table crashes that one. What is wrong without a
 * crash is said when this process reads the tables. */
static void try_tables(void *plugin)
{
    struct plugin *p = plugin;
    struct plugin_arch **all = NULL;
    struct q_err ignored = Q_ERR_INIT;
    uint32_t n = 0;
    enum q_code rc = open_entry(&p->from, p->path, &ignored);
    if (!rc)
        rc = read_tables(p, &all, &n, &ignored);
    (void)rc;
}

/* Opening a pipe or a device could wait for ever. */
static enum q_code check_file(const char *path, struct q_err *e)
{
    struct stat st;
    if (stat(path, &st))
        return q_fail(e, errno == ENOENT ? Q_NOT_FOUND : Q_IO, "plugin %s: %s", path,
                      errno == ENOENT ? "no such file, or a link to none" : strerror(errno));
    if (!S_ISREG(st.st_mode))
        return q_fail(e, Q_CORRUPT, "plugin %s: not a regular file, expected a shared object",
                      path);
    return Q_OK;
}

/* *is_known: another path of a file that is loaded. */
static enum q_code load_new(struct plugin *p, bool is_found, bool *is_known, struct q_err *e)
{
    const struct trial trial = {p->path, "while it was loaded", TRIAL_MS, try_tables, p};
    bool ran;
    enum q_code rc;
    *is_known = false;
    if ((rc = check_file(p->path, e)) || (rc = plugin_trial(&ran, &trial, e)) ||
        (rc = open_entry(&p->from, p->path, e)) || (*is_known = is_known_file(p->from)))
        return rc;
    return take_plugin(p, is_found, e) ? q_wrap(e, "plugin %s", p->path) : Q_OK;
}

static enum q_code load_file(const char *path, bool is_found, struct q_err *e)
{
    bool is_known;
    for (const struct plugin *p = atomic_load(&loaded); p; p = p->next)
        if (strcmp(p->path, path) == 0)
            return Q_OK;
    struct plugin *p = q_calloc(1, sizeof *p);
    if (!p)
        return q_fail(e, Q_NO_MEMORY, "plugin %s: out of memory", path);
    snprintf(p->path, sizeof p->path, "%s", path);
    enum q_code rc = load_new(p, is_found, &is_known, e);
    if (rc || is_known) {
        q_free(p->operations);
        q_free(p);
        return rc;
    }
    p->next = atomic_load(&loaded);
    while (!atomic_compare_exchange_weak(&loaded, &p->next, p)) {
    }
    return Q_OK;
}

/* ---- the search path ---- */

/* config.json's architecture; "": not to be told, which the reader of the config explains. */
static void architecture_of(char out[CONFIG_NAME_MAX], const char *dir)
{
    char path[PATH_MAX];
    struct q_err ignored = Q_ERR_INIT;
    json_t *root = NULL;
    *out = '\0';
    if (path_join(path, sizeof path, dir, "config.json", &ignored) ||
        hub_json_load(&root, path, &ignored))
        return;
    const char *name = json_string_value(json_array_get(json_object_get(root, "architectures"), 0));
    if (name && strlen(name) < CONFIG_NAME_MAX)
        snprintf(out, CONFIG_NAME_MAX, "%s", name);
    json_decref(root);
}

static bool is_shared_object(const char *name)
{
    const size_t n = strlen(name);
    return n > 3 && strcmp(name + n - 3, ".so") == 0;
}

/* The next *.so of the folder behind `last` in the order of names; false: there is none. */
static bool next_object(char next[NAME_MAX + 1], DIR *folder, const char *last)
{
    *next = '\0';
    rewinddir(folder);
    for (const struct dirent *d; (d = readdir(folder));)
        if (is_shared_object(d->d_name) && strcmp(d->d_name, last) > 0 &&
            (!*next || strcmp(d->d_name, next) < 0))
            snprintf(next, NAME_MAX + 1, "%s", d->d_name);
    return *next;
}

/* What is beside the plugin that is looked for is nobody's request: its faults are warnings. */
static void try_all(const char *folder, const char *architecture)
{
    char path[PATH_MAX], last[NAME_MAX + 1] = "", name[NAME_MAX + 1];
    DIR *d = opendir(folder);
    while (d && !archs_added_find(architecture) && next_object(name, d, last)) {
        struct q_err e = Q_ERR_INIT;
        if (path_join(path, sizeof path, folder, name, &e) || load_file(path, true, &e))
            log_warning("%s: left out; %s", folder, e.message);
        memcpy(last, name, sizeof last);
    }
    if (d)
        closedir(d);
}

static enum q_code search_folder(const char *folder, const char *architecture, struct q_err *e)
{
    char path[PATH_MAX], name[CONFIG_NAME_MAX + 4];
    if (!dir_exists(folder)) {
        log_warning("QUIRE_PLUGIN_PATH: %s is no folder", folder);
        return Q_OK;
    }
    snprintf(name, sizeof name, "%s.so", architecture);
    if (strchr(name, '/') || path_join(path, sizeof path, folder, name, e))
        return Q_OK;
    if (file_exists(path))
        return load_file(path, true, e);
    try_all(folder, architecture);
    return Q_OK;
}

static enum q_code search(const char *folders, const char *architecture, struct q_err *e)
{
    char folder[PATH_MAX];
    enum q_code rc = Q_OK;
    for (const char *p = folders; *p && !rc && !archs_added_find(architecture);) {
        const size_t n = strcspn(p, ":");
        if (n && n < sizeof folder) {
            snprintf(folder, sizeof folder, "%.*s", (int)n, p);
            rc = search_folder(folder, architecture, e);
        }
        p += n + (p[n] == ':');
    }
    return rc;
}

FALLIBLE plugins_open(const struct plugins_config *c, const char *dir, struct q_err *e)
{
    char architecture[CONFIG_NAME_MAX] = "";
    enum q_code rc = Q_OK;
    for (uint32_t i = 0; i < c->n && !rc; i++)
        rc = load_file(c->paths[i], false, e);
    if (rc || !*c->search || !dir)
        return rc;
    architecture_of(architecture, dir);
    if (!*architecture || archs_is_own(architecture))
        return Q_OK;
    return search(c->search, architecture, e);
}

void plugins_pin(struct plugins_config *c, const char *dir)
{
    char architecture[CONFIG_NAME_MAX], path[PATH_MAX];
    architecture_of(architecture, dir);
    const struct plugin_arch *a = plugin_arch_find(architecture);
    if (!a || !realpath(a->plugin->path, path))
        return;
    for (uint32_t i = 0; i < c->n; i++)
        if (strcmp(c->paths[i], path) == 0)
            return;
    if (c->n < PLUGINS_MAX) /* else it is searched for again */
        memcpy(c->paths[c->n++], path, sizeof path);
}

static enum q_code add_path(struct plugins_config *c, const char *path, struct q_err *e)
{
    if (c->n == PLUGINS_MAX)
        return q_fail(e, Q_INVALID, "--plugin: given more than %u times, which is the limit",
                      PLUGINS_MAX);
    if (!realpath(path, c->paths[c->n]))
        return q_fail(e, errno == ENOENT ? Q_NOT_FOUND : Q_IO, "plugin %s: %s", path,
                      errno == ENOENT ? "no such file" : strerror(errno));
    if (!file_exists(c->paths[c->n]))
        return q_fail(e, Q_NOT_FOUND, "plugin %s: is no file", path);
    c->n++;
    return Q_OK;
}

FALLIBLE plugins_config_set(struct plugins_config *c, const char *const *paths, uint32_t n,
                            const char *folders, struct q_err *e)
{
    const char *environment = getenv("QUIRE_PLUGIN_PATH");
    const char *where = *folders ? folders : environment ? environment : "";
    enum q_code rc = Q_OK;
    for (uint32_t i = 0; i < n && !rc; i++)
        rc = *paths[i] ? add_path(c, paths[i], e) : Q_OK;
    if (!rc && snprintf(c->search, sizeof c->search, "%s", where) >= (int)sizeof c->search)
        rc =
            q_fail(e, Q_INVALID, "QUIRE_PLUGIN_PATH has more than %zu bytes", sizeof c->search - 1);
    return rc;
}
