/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/core/adapter_settings.h"
#include <string.h>
#include "common/file.h"
#include "common/hub/hub.h"
#include "common/mem.h"
#include "engine/model/lora/lora.h"
#include "engine/worker/ring.h"

#define FILE_BYTES_MAX ((size_t)16 << 20)

static enum q_code dtype_option(struct worker_config *w, const char *text, struct q_err *e)
{
    static const struct {
        const char *name;
        enum dtype dtype;
    } names[] = {{"float32", DT_F32}, {"bfloat16", DT_BF16}, {"float16", DT_F16}};
    w->lora_dtype_auto = !strcmp(text, "auto");
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (!strcmp(text, names[i].name)) {
            w->lora_dtype = names[i].dtype;
            return Q_OK;
        }
    return w->lora_dtype_auto ? Q_OK
                              : q_fail(e, Q_INVALID,
                                       "--lora-dtype is \"%.40s\", expected auto, float32, "
                                       "bfloat16 or float16",
                                       text);
}

/* Texts that are not empty. */
static size_t count_given(const struct options *o)
{
    size_t n = 0;
    for (size_t i = 0; i < o->lora_modules.n; i++)
        n += *o->lora_modules.items[i] != 0;
    return n;
}

/* An id of the hub is in the cache from here on. */
static enum q_code fetch(const struct adapter_module *m, struct q_err *e)
{
    char dir[PATH_MAX];
    return hub_find_adapter(dir, m->path, true, e) ? q_wrap(e, "--lora-modules %s", m->name) : Q_OK;
}

static enum q_code read_modules(struct adapter_settings *s, const struct options *o,
                                struct q_err *e)
{
    const size_t n = count_given(o);
    s->modules = n ? q_calloc(n, sizeof *s->modules) : NULL;
    if (!n)
        return Q_OK;
    if (!s->modules)
        return q_fail(e, Q_NO_MEMORY, "out of memory for --lora-modules");
    for (size_t i = 0; i < o->lora_modules.n; i++) {
        struct adapter_module *m = &s->modules[s->n];
        if (!*o->lora_modules.items[i])
            continue;
        enum q_code rc = adapter_module_parse(m, o->lora_modules.items[i], e);
        if (rc || (rc = fetch(m, e)))
            return rc;
        for (uint32_t k = 0; k < s->n; k++)
            if (!strcmp(s->modules[k].name, m->name))
                return q_fail(e, Q_INVALID, "--lora-modules: two adapters have the name %s",
                              m->name);
        s->n++;
    }
    return Q_OK;
}

FALLIBLE adapter_options(struct adapter_settings *s, struct worker_config *w,
                         const struct options *o, struct q_err *e)
{
    if (!o->enable_lora && !count_given(o))
        return Q_OK;
    if (!o->enable_lora)
        return q_fail(e, Q_INVALID, "--lora-modules needs --enable-lora");
    s->max_loras = (uint32_t)o->max_loras;
    s->max_in_memory = (uint32_t)o->max_cpu_loras;
    if (!s->max_in_memory)
        s->max_in_memory = s->max_loras > 32 ? s->max_loras : 32;
    if (s->max_in_memory < s->max_loras)
        return q_fail(e, Q_INVALID, "--max-cpu-loras is %u, expected at least --max-loras (%u)",
                      s->max_in_memory, s->max_loras);
    w->max_lora_rank = (uint32_t)o->max_lora_rank;
    w->max_loras = s->max_loras;
    const enum q_code rc = dtype_option(w, o->lora_dtype, e);
    return rc ? rc : read_modules(s, o, e);
}

/* The next of the texts that a NUL ends each; NULL: there is none. */
static const char *next_text(const struct buf *b, size_t *at)
{
    const char *text = buf_str(b) + *at, *end = memchr(text, 0, b->len - *at);
    if (!end)
        return NULL;
    *at += (size_t)(end - text) + 1;
    return text;
}

FALLIBLE adapter_settings_take(struct adapter_settings *s, const char *path, struct q_err *e)
{
    struct buf list = BUF_INIT;
    size_t at = 0, n_max = 0;
    enum q_code rc = file_read(&list, path, FILE_BYTES_MAX, e);
    for (size_t i = 0; i < list.len; i++)
        n_max += buf_str(&list)[i] == 0;
    struct adapter_module *modules = rc ? NULL : q_calloc(n_max / 3 + 1, sizeof *modules);
    if (!rc && !modules)
        rc = q_fail(e, Q_NO_MEMORY, "%s: out of memory", path);
    uint32_t n = 0;
    while (!rc && at < list.len) {
        const char *name = next_text(&list, &at), *dir = name ? next_text(&list, &at) : NULL;
        if (!dir || !next_text(&list, &at)) /* the last one: the fingerprint */
            rc = q_fail(e, Q_CORRUPT, "%s: is cut off", path);
        else
            rc = adapter_module_set(&modules[n], name, strlen(name), dir, e);
        n += !rc;
    }
    buf_release(&list);
    if (rc) {
        q_free(modules);
        return rc;
    }
    q_free(s->modules);
    s->modules = modules;
    s->n = n;
    s->is_remembered = true;
    return Q_OK;
}
