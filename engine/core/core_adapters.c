/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/core/core_adapters.h"
#include <openssl/evp.h>
#include <stdlib.h>
#include <string.h>
#include "common/file.h"
#include "common/hub/hub.h"
#include "common/log.h"
#include "common/mem.h"
#include "engine/model/lora/lora.h"

#define CRASHES_MAX 2u /* of workers that load an adapter, until it counts as failed */
#define FILES_MAX   2u /* of an adapter: its config, its tensors */

struct adapter {
    uint32_t number;
    bool is_named; /* new requests may have it */
    enum { ADAPTER_AWAY, ADAPTER_ORDERED, ADAPTER_THERE } state;
    uint32_t n_crash;
    uint64_t used;       /* of core_adapters.clock: when a request was last admitted with it */
    struct q_err failed; /* code Q_OK: it has not */
    struct adapter_module module;
    char dir[PATH_MAX]; /* absolute */
    struct file_stamp stamps[FILES_MAX];
    char fingerprint[CORE_ADAPTER_FP];
};

struct core_adapters {
    struct core_adapters_args args;
    struct adapter *items; /* [n] in the order of their numbers */
    uint32_t n;
    uint32_t number_last;
    uint32_t wanted;  /* number of the adapter that a request waits for; 0 = none */
    uint32_t ordered; /* of the command in flight; 0 = none */
    bool is_drop;     /* the command drops it */
    uint64_t clock, n_change;
    struct buf list;
};

static struct adapter *find(const struct core_adapters *a, uint32_t number)
{
    for (uint32_t i = 0; a && number && i < a->n; i++)
        if (a->items[i].number == number)
            return &a->items[i];
    return NULL;
}

static struct adapter *find_name(const struct core_adapters *a, const char *name, size_t n)
{
    for (uint32_t i = 0; i < a->n; i++) {
        const struct adapter *x = &a->items[i];
        if (x->is_named && strlen(x->module.name) == n && !memcmp(x->module.name, name, n))
            return &a->items[i];
    }
    return NULL;
}

static void list_changed(struct core_adapters *a)
{
    a->n_change++;
    buf_reset(&a->list);
    for (uint32_t i = 0; i < a->n; i++) {
        const struct adapter *x = &a->items[i];
        if (!x->is_named)
            continue;
        buf_add(&a->list, x->module.name, strlen(x->module.name) + 1);
        buf_add(&a->list, x->dir, strlen(x->dir) + 1);
        buf_add(&a->list, x->fingerprint, strlen(x->fingerprint) + 1);
    }
}

const struct buf *core_adapters_list(const struct core_adapters *a, uint64_t *n_change)
{
    static const struct buf none = BUF_INIT;
    *n_change = a ? a->n_change : 0;
    return a ? &a->list : &none;
}

/* ---- files ---- */

static const char *const file_names[] = {"adapter_config.json", "adapter_model.safetensors",
                                         "adapter_model.bin"};

static void hash_file(EVP_MD_CTX *md, const char *path)
{
    struct mapping m = MAPPING_INIT;
    struct q_err ignored = Q_ERR_INIT;
    if (!mapping_open(&m, path, &ignored))
        EVP_DigestUpdate(md, m.data, m.size);
    mapping_release(&m);
}

/* The stamps of the files, and, unless `md` is NULL, their contents. */
static uint32_t stamp_files(struct file_stamp stamps[FILES_MAX], const char *dir, EVP_MD_CTX *md)
{
    uint32_t n = 0;
    memset(stamps, 0, FILES_MAX * sizeof *stamps);
    for (size_t i = 0; i < sizeof file_names / sizeof *file_names && n < FILES_MAX; i++) {
        char path[PATH_MAX];
        struct q_err ignored = Q_ERR_INIT;
        if (path_join(path, sizeof path, dir, file_names[i], &ignored) ||
            !file_stamp(&stamps[n], path))
            continue;
        n++;
        if (md)
            hash_file(md, path);
    }
    return n;
}

static FALLIBLE read_files(char digest[CORE_ADAPTER_FP], struct file_stamp stamps[FILES_MAX],
                           const char *dir, struct q_err *e)
{
    unsigned char hash[EVP_MAX_MD_SIZE];
    EVP_MD_CTX *md = EVP_MD_CTX_new();
    enum q_code rc = Q_OK;
    if (!md || EVP_DigestInit_ex(md, EVP_sha256(), NULL) != 1) {
        rc = q_fail(e, Q_NO_MEMORY, "adapter: SHA-256 is not available");
    } else {
        (void)stamp_files(stamps, dir, md);
        EVP_DigestFinal_ex(md, hash, NULL);
        for (uint32_t i = 0; i < 8; i++)
            snprintf(digest + 2 * i, 3, "%02x", hash[i]);
    }
    EVP_MD_CTX_free(md);
    return rc;
}

FALLIBLE core_adapters_digest(char out[CORE_ADAPTER_FP], const char *dir, struct q_err *e)
{
    struct file_stamp ignored[FILES_MAX];
    return read_files(out, ignored, dir, e);
}

static bool has_changed(const struct adapter *x)
{
    struct file_stamp now[FILES_MAX];
    return stamp_files(now, x->dir, NULL) != FILES_MAX || memcmp(now, x->stamps, sizeof now) != 0;
}

static FALLIBLE check_module(const struct core_adapters *a, const struct adapter *x,
                             struct q_err *e)
{
    const struct worker_config *w = a->args.worker;
    const struct lora_options o = {.dir = x->dir, .dtype = DT_F32, .rank_max = w->max_lora_rank};
    const enum q_code rc = lora_check(a->args.model, &o, e);
    return rc ? q_wrap(e, "adapter %s", x->module.name) : Q_OK;
}

/* ---- names ---- */

static enum q_code check_name(const char *name, struct q_err *e)
{
    const size_t n = strlen(name);
    for (size_t i = 0; i < n; i++)
        if ((unsigned char)name[i] < 0x20 || name[i] == 0x7f)
            return q_fail(e, Q_INVALID, "lora_name: contains a control character");
    return n ? Q_OK : q_fail(e, Q_INVALID, "lora_name: is empty");
}

FALLIBLE core_adapters_load(struct core_adapters *a, const struct adapter_module *m, bool in_place,
                            struct q_err *e)
{
    struct adapter x = {.module = *m, .is_named = true};
    enum q_code rc;
    if (!a)
        return q_fail(e, Q_UNSUPPORTED,
                      "LoRA adapters are not enabled; start the server with --enable-lora");
    if ((rc = check_name(m->name, e)))
        return rc;
    struct adapter *old = find_name(a, m->name, strlen(m->name));
    if (old && !in_place)
        return q_fail(e, Q_INVALID,
                      "lora_name: adapter %s is loaded already; unload it first, or set "
                      "load_inplace",
                      m->name);
    if (a->n == CORE_ADAPTERS_MAX)
        return q_fail(e, Q_NO_SPACE, "there are %u adapters already, which is the limit", a->n);
    char found[PATH_MAX];
    if (hub_find_adapter(found, m->path, false, e))
        return q_wrap(e, "lora_path: adapter %s", m->name);
    if (!realpath(found, x.dir))
        return q_fail(e, Q_NOT_FOUND, "lora_path: adapter %s: there is no folder %.200s", m->name,
                      m->path);
    if ((rc = check_module(a, &x, e)) || (rc = read_files(x.fingerprint, x.stamps, x.dir, e)))
        return rc;
    x.number = ++a->number_last;
    if (old)
        old->is_named = false;
    a->items[a->n++] = x;
    list_changed(a);
    log_info("adapter %s: %s, number %u", m->name, x.dir, x.number);
    return Q_OK;
}

/* "a, b, c" */
static void names_text(const struct core_adapters *a, char *out, size_t size)
{
    size_t used = 0;
    snprintf(out, size, "none");
    for (uint32_t i = 0; i < a->n && used < size; i++)
        if (a->items[i].is_named)
            used += (size_t)snprintf(out + used, size - used, "%s%s", used ? ", " : "",
                                     a->items[i].module.name);
}

static enum q_code fail_name(const struct core_adapters *a, const char *name, size_t n,
                             struct q_err *e)
{
    char names[200];
    names_text(a, names, sizeof names);
    return q_fail(e, Q_NOT_FOUND, "there is no adapter %.*s; loaded are: %s",
                  n < 100 ? (int)n : 100, name, names);
}

FALLIBLE core_adapters_unload(struct core_adapters *a, const char *name, struct q_err *e)
{
    if (!a)
        return q_fail(e, Q_UNSUPPORTED,
                      "LoRA adapters are not enabled; start the server with --enable-lora");
    struct adapter *x = find_name(a, name, strlen(name));
    if (!x)
        return fail_name(a, name, strlen(name), e);
    x->is_named = false;
    list_changed(a);
    log_info("adapter %s is unloaded", name);
    return Q_OK;
}

FALLIBLE core_adapters_find(struct core_adapters *a, uint32_t *adapter, const char *name, size_t n,
                            struct q_err *e)
{
    *adapter = 0;
    if (!n)
        return Q_OK;
    if (!a)
        return q_fail(e, Q_NOT_FOUND, "there is no adapter %.*s: LoRA adapters are not enabled",
                      n < 100 ? (int)n : 100, name);
    const struct adapter *x = find_name(a, name, n);
    if (!x)
        return fail_name(a, name, n, e);
    if (x->failed.code)
        return q_fail(e, x->failed.code, "adapter %s cannot be used: %s", x->module.name,
                      x->failed.message);
    *adapter = x->number;
    return Q_OK;
}

bool core_adapters_has(const struct core_adapters *a, uint32_t adapter)
{
    return find(a, adapter) != NULL;
}

/* ---- the worker's memory ---- */

bool core_adapters_ready(void *adapters, uint32_t number)
{
    struct core_adapters *a = adapters;
    struct adapter *x = find(a, number);
    Q_ASSERT(x); /* it has a request */
    x->used = ++a->clock;
    if (x->state == ADAPTER_THERE)
        return true;
    if (!a->wanted)
        a->wanted = number;
    return false;
}

bool core_adapters_waiting(const struct core_adapters *a)
{
    return a && (a->wanted || a->ordered);
}

static void remove_adapter(struct core_adapters *a, struct adapter *x)
{
    const size_t i = (size_t)(x - a->items);
    memmove(x, x + 1, (a->n - i - 1) * sizeof *x);
    a->n--;
}

/* Of those in memory that no running request has the least recently used one; with is_gone of those
 * that no request can have any more. */
static struct adapter *find_idle(const struct core_adapters *a, const struct scheduler *s,
                                 bool is_gone)
{
    struct adapter *least = NULL;
    for (uint32_t i = 0; i < a->n; i++) {
        struct adapter *x = &a->items[i];
        if (is_gone ? x->is_named : x->state != ADAPTER_THERE)
            continue;
        if (!scheduler_count_adapter(s, x->number, !is_gone) && (!least || x->used < least->used))
            least = x;
    }
    return least;
}

static uint32_t count_there(const struct core_adapters *a)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < a->n; i++)
        n += a->items[i].state == ADAPTER_THERE;
    return n;
}

/* For --record: the worker has it now, or no more. */
static void record(const struct core_adapters *a, const struct adapter *x, bool is_dropped)
{
    struct record_adapter r = {.number = x->number, .is_dropped = is_dropped};
    if (!a->args.recorder)
        return;
    memcpy(r.digest, x->fingerprint, sizeof x->fingerprint);
    recorder_adapter(a->args.recorder, &r, x->dir);
}

static void order(struct core_adapters *a, struct ring *r, struct adapter *x, bool is_drop)
{
    ring_adapter(r, is_drop ? RING_DROP_ADAPTER : RING_LOAD_ADAPTER, x->number,
                 is_drop ? NULL : x->dir);
    if (is_drop)
        record(a, x, true);
    x->state = is_drop ? ADAPTER_AWAY : ADAPTER_ORDERED;
    a->ordered = x->number;
    a->is_drop = is_drop;
}

static uint32_t fail_adapter(struct core_adapters *a, struct adapter *x, const struct q_err *why)
{
    log_error("adapter %s: %s", x->module.name, why->message);
    x->failed = *why;
    x->state = ADAPTER_AWAY;
    if (a->wanted == x->number)
        a->wanted = 0;
    return x->number;
}

/* The result of the last command. */
static uint32_t take_result(struct core_adapters *a, const struct ring *r, struct q_err *why)
{
    struct adapter *x = find(a, a->ordered);
    const bool loaded = !a->is_drop;
    const enum q_code rc = ring_command_result(r, why);
    a->ordered = 0;
    if (!x || !loaded)
        return 0;
    if (rc)
        return fail_adapter(a, x, why);
    record(a, x, false);
    x->state = ADAPTER_THERE;
    x->n_crash = 0;
    if (a->wanted == x->number)
        a->wanted = 0;
    return 0;
}

/* What is to be in memory next: what a request waits for, else a named one while there is room. */
static struct adapter *next_load(const struct core_adapters *a)
{
    if (a->wanted)
        return find(a, a->wanted);
    for (uint32_t i = 0; i < a->n && count_there(a) < a->args.settings->max_in_memory; i++)
        if (a->items[i].is_named && a->items[i].state == ADAPTER_AWAY && !a->items[i].failed.code &&
            !a->items[i].used)
            return &a->items[i];
    return NULL;
}

void core_adapters_step(struct core_adapters *a, struct ring *r, const struct scheduler *s,
                        uint32_t *failed, struct q_err *why)
{
    *failed = 0;
    if (!a)
        return;
    if (a->ordered && (*failed = take_result(a, r, why)))
        return;
    struct adapter *gone = find_idle(a, s, true);
    if (gone) {
        const bool is_there = gone->state == ADAPTER_THERE;
        if (a->wanted == gone->number)
            a->wanted = 0;
        if (is_there)
            order(a, r, gone, true);
        remove_adapter(a, gone);
        if (is_there)
            return;
    }
    struct adapter *x = next_load(a);
    if (!x) {
        a->wanted = 0;
        return;
    }
    if (x->failed.code || has_changed(x)) {
        if (!x->failed.code)
            q_fail(why, Q_MISMATCH,
                   "the files in %.200s changed after the adapter was loaded; load it again in "
                   "place",
                   x->dir);
        else
            *why = x->failed;
        *failed = fail_adapter(a, x, why);
        return;
    }
    struct adapter *least =
        count_there(a) < a->args.settings->max_in_memory ? NULL : find_idle(a, s, false);
    order(a, r, least ? least : x, least != NULL);
}

void core_adapters_lost(struct core_adapters *a)
{
    struct q_err why = Q_ERR_INIT;
    struct adapter *x = a && !a->is_drop ? find(a, a->ordered) : NULL;
    if (x && ++x->n_crash >= CRASHES_MAX) {
        q_fail(&why, Q_INTERNAL, "the worker crashed %u times while it loaded the adapter",
               x->n_crash);
        x->failed = why;
    }
    for (uint32_t i = 0; a && i < a->n; i++)
        a->items[i].state = ADAPTER_AWAY;
    if (a)
        a->ordered = 0;
}

static FALLIBLE load_module(struct core_adapters *a, const struct adapter_module *m,
                            struct q_err *e)
{
    struct q_err why = Q_ERR_INIT;
    if (!a->args.settings->is_remembered)
        return core_adapters_load(a, m, false, e);
    if (core_adapters_load(a, m, false, &why))
        log_warning("%s; requests of this adapter are refused", why.message);
    return Q_OK;
}

FALLIBLE core_adapters_new(struct core_adapters **out, const struct core_adapters_args *args,
                           struct q_err *e)
{
    struct core_adapters *a;
    enum q_code rc = Q_OK;
    *out = NULL;
    if (!args->settings->max_loras)
        return Q_OK;
    if (!(a = q_calloc(1, sizeof *a)) ||
        !(a->items = q_calloc(CORE_ADAPTERS_MAX, sizeof *a->items))) {
        q_free(a);
        return q_fail(e, Q_NO_MEMORY, "engine: out of memory for adapters");
    }
    a->args = *args;
    for (uint32_t i = 0; i < args->settings->n && !rc; i++)
        rc = load_module(a, &args->settings->modules[i], e);
    if (rc)
        core_adapters_free(a);
    else
        *out = a;
    return rc;
}

void core_adapters_free(struct core_adapters *a)
{
    if (!a)
        return;
    buf_release(&a->list);
    q_free(a->items);
    q_free(a);
}
