/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/model/plugin/plugin_model.h"
#include <stdio.h>
#include <string.h>
#include "common/file.h"
#include "common/hub/hub_json.h"
#include "common/mem.h"
#include "common/utf8.h"

/* ---- calls ---- */

static _Thread_local const struct quire_model *model_now;
static _Thread_local const struct plugin_work *work_now;
static _Thread_local bool repeats;

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

bool plugin_repeats(void)
{
    return repeats;
}

FALLIBLE plugin_try(const struct trial *t, struct q_err *e)
{
    bool ran;
    const enum q_code rc = plugin_trial(&ran, t, e);
    if (rc)
        return rc;
    repeats = ran;
    t->run(t->ctx);
    repeats = false;
    return Q_OK;
}

FALLIBLE plugin_call(const struct quire_model *m, const char *callback, void (*run)(void *ctx),
                     void *ctx, struct q_err *e)
{
    char when[64];
    snprintf(when, sizeof when, "in its callback %s", callback);
    const struct trial trial = {plugin_arch_text(m->arch), when, TRIAL_MS, run, ctx};
    plugin_begin(m, NULL);
    const enum q_code rc = plugin_try(&trial, e);
    plugin_end();
    return rc;
}

/* Control characters and bytes that are no UTF-8 become spaces: clients and logs show the text. */
static void make_plain(char *text)
{
    const size_t n = strlen(text);
    for (size_t i = 0, step; i < n; i += step) {
        uint32_t cp;
        step = utf8_decode(text + i, n - i, &cp);
        if (cp < 0x20 || (cp >= 0x7f && cp < 0xa0) || cp == UTF8_REPLACEMENT)
            memset(text + i, ' ', step);
    }
}

FALLIBLE plugin_failed(const struct quire_model *m, const char *callback,
                       struct quire_plugin_error *error, enum q_code code, struct q_err *e)
{
    error->message[sizeof error->message - 1] = '\0';
    make_plain(error->message);
    return error->message[strspn(error->message, " ")]
               ? q_fail(e, code, "%s", error->message)
               : q_fail(e, code, "plugin %s: %s failed and gave no reason",
                        plugin_arch_text(m->arch), callback);
}

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

struct check_call {
    const struct quire_model *m;
    struct quire_plugin_error error;
    int failed;
};

static void call_check(void *ctx)
{
    struct check_call *c = ctx;
    c->failed = c->m->arch->a.check(&plugin_host, c->m, &c->error);
}

FALLIBLE plugin_model_check(const struct quire_model *m, struct q_err *e)
{
    struct check_call c = {.m = m};
    if (!m->arch->a.check)
        return Q_OK;
    const enum q_code rc = plugin_call(m, "check", call_check, &c, e);
    if (rc)
        return rc;
    return c.failed ? plugin_failed(m, "check", &c.error, Q_UNSUPPORTED, e) : Q_OK;
}
