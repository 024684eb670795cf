/* SPDX-License-Identifier: Apache-2.0 */
/* An option is a field of struct quire_options, or it is stored as text. Both are converted to a
 * struct options, as a command line is, and then to a core's configuration. So an option of the
 * engine needs one line in options.def and no code here. */
#include "engine/library/quire_options.h"
#include <string.h>
#include "common/log.h"
#include "common/mem.h"
#include "common/options.h"
#include "engine/core/engine_options.h"

#define SETTINGS_MAX 256 /* more than there are options */

struct quire_settings { /* options that are no field, in the order of the calls */
    struct setting {
        const char *name, *value; /* borrowed */
    } * items;                    /* [n] */
    size_t n, cap;
};

static enum quire_code public_code(enum q_code code)
{
    switch (code) {
    case Q_OK:
        return QUIRE_OK;
    case Q_INVALID:
        return QUIRE_INVALID;
    case Q_UNSUPPORTED:
        return QUIRE_UNSUPPORTED;
    case Q_NOT_FOUND:
        return QUIRE_NOT_FOUND;
    case Q_TIMEOUT:
        return QUIRE_TIMEOUT;
    case Q_MISMATCH:
        return QUIRE_MISMATCH;
    case Q_TOO_LARGE:
        return QUIRE_TOO_LARGE;
    case Q_NO_SPACE:
        return QUIRE_BUSY;
    case Q_CANCELLED:
        return QUIRE_CANCELLED;
    case Q_NO_MEMORY:
        return QUIRE_NO_MEMORY;
    case Q_IO:
        return QUIRE_IO;
    case Q_CORRUPT:
        return QUIRE_CORRUPT;
    case Q_UNAVAILABLE:
        return QUIRE_UNAVAILABLE;
    default:
        return QUIRE_INTERNAL;
    }
}

enum quire_code quire_error_give(struct quire_error *out, const struct q_err *e)
{
    if (out) {
        out->code = public_code(e->code);
        snprintf(out->message, sizeof out->message, "%s", e->message);
    }
    return public_code(e->code);
}

void quire_options_init(struct quire_options *o, size_t size)
{
    const struct quire_options defaults = {
        .size = size,
        .load_format = "auto",
        .dtype = "auto",
        .generation_config = "auto",
        .cpu_isa = "auto",
        .max_num_seqs = 256,
        .max_num_batched_tokens = 2048,
        .max_num_queued_reqs = 1024,
        .pin_threads = true,
        .kv_cache_dtype = "auto",
    };
    memset(o, 0, size);
    memcpy(o, &defaults, size < sizeof defaults ? size : sizeof defaults);
}

/* A caller built against an older header has a smaller struct: missing fields have their
 * defaults. */
static FALLIBLE take_options(struct quire_options *out, const struct quire_options *o,
                             struct q_err *e)
{
    quire_options_init(out, sizeof *out);
    if (o->size < offsetof(struct quire_options, revision) || o->size > 2 * sizeof *out)
        return q_fail(e, Q_INVALID, "options: size is %zu; call quire_options_init first", o->size);
    memcpy(out, o, o->size < sizeof *out ? o->size : sizeof *out);
    if (!out->model || !*out->model)
        return q_fail(e, Q_INVALID, "options: model is not set");
    if (!out->max_num_seqs || !out->max_num_batched_tokens || !out->max_num_queued_reqs)
        return q_fail(
            e, Q_INVALID,
            "options: max_num_seqs, max_num_batched_tokens and max_num_queued_reqs must not be 0");
    if (!(out->gpu_memory_utilization >= 0 && out->gpu_memory_utilization <= 1))
        return q_fail(e, Q_INVALID, "options: gpu_memory_utilization is %g, expected 0 to 1",
                      out->gpu_memory_utilization);
    return Q_OK;
}

/* The options that are fields, by their names in options.def. */
static const struct {
    const char *name;
    size_t in, out;
    enum { FIELD_STR, FIELD_U32, FIELD_U64, FIELD_NUM, FIELD_BOOL } type;
} fields[] = {
#define FIELD(type, name, field)                                                                   \
    {                                                                                              \
#name, offsetof(struct quire_options, field), offsetof(struct options, name), FIELD_##type \
    }
    FIELD(STR, revision, revision),
    FIELD(STR, load_format, load_format),
    FIELD(STR, dtype, dtype),
    FIELD(STR, generation_config, generation_config),
    FIELD(STR, cpu_isa, cpu_isa),
    FIELD(STR, log_level, log_level),
    FIELD(STR, kv_cache_dtype, kv_cache_dtype),
    FIELD(U32, max_model_len, max_model_len),
    FIELD(U32, max_num_seqs, max_num_seqs),
    FIELD(U32, max_num_batched_tokens, max_num_batched_tokens),
    FIELD(U32, max_num_queued_reqs, max_num_queued_reqs),
    FIELD(U32, num_gpu_blocks_override, num_blocks),
    FIELD(U32, threads, threads),
    FIELD(U64, kv_cache_memory_bytes, kv_cache_bytes),
    FIELD(NUM, gpu_memory_utilization, gpu_memory_utilization),
    FIELD(BOOL, skip_tokenizer_init, skip_tokenizer),
#undef FIELD
};

/* One field to the option of the same meaning, or back. */
static void copy_field(size_t i, struct quire_options *q, struct options *o, bool back)
{
    void *in = (char *)q + fields[i].in, *out = (char *)o + fields[i].out;
    switch (fields[i].type) {
    case FIELD_STR:
        if (back)
            *(const char **)in = *(option_STR *)out;
        else if (*(const char **)in)
            *(option_STR *)out = *(const char **)in;
        break;
    case FIELD_U32:
        if (back)
            *(uint32_t *)in = (uint32_t) * (option_INT *)out;
        else
            *(option_INT *)out = (int32_t) * (uint32_t *)in; /* UINT32_MAX is -1 */
        break;
    case FIELD_U64:
        if (back)
            *(uint64_t *)in = *(option_BYTES *)out;
        else
            *(option_BYTES *)out = *(uint64_t *)in;
        break;
    case FIELD_NUM:
        if (back)
            *(double *)in = *(option_NUM *)out;
        else
            *(option_NUM *)out = *(double *)in;
        break;
    case FIELD_BOOL:
        if (back)
            *(bool *)in = *(option_BOOL *)out;
        else
            *(option_BOOL *)out = *(bool *)in;
        break;
    }
}

/* Does the name (given by a caller in any of its spellings) mean this field? */
static bool names_field(const char *name, size_t i)
{
    const char *field = fields[i].name;
    name += strncmp(name, "--", 2) == 0 ? 2 : 0;
    while (*name && (*name == *field || (*name == '-' && *field == '_')))
        name++, field++;
    return *name == '\0' && *field == '\0';
}

static FALLIBLE keep_setting(struct quire_options *o, const char *name, const char *value,
                             struct q_err *e)
{
    struct quire_settings *s = o->settings ? o->settings : q_calloc(1, sizeof *s);
    if (!s)
        return q_fail(e, Q_NO_MEMORY, "options: out of memory for \"%.40s\"", name);
    o->settings = s;
    if (s->n == SETTINGS_MAX)
        return q_fail(e, Q_TOO_LARGE, "options: more than %d options are set by name",
                      SETTINGS_MAX);
    enum q_code rc = q_grow(&s->items, &s->cap, s->n + 1, sizeof *s->items, SETTINGS_MAX, e);
    if (!rc)
        s->items[s->n++] = (struct setting){name, value};
    return rc;
}

static FALLIBLE set_option(struct quire_options *o, const char *name, const char *value,
                           struct q_err *e)
{
    struct options checked;
    if (o->size < sizeof *o)
        return q_fail(e, Q_UNSUPPORTED, "options: this program was built with an older quire.h");
    options_defaults(&checked);
    enum q_code rc = options_set(&checked, FOR_LIBRARY, name, value, e);
    options_release(&checked); /* the fields have texts of the caller's and of tables alone */
    if (rc)
        return rc;
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++)
        if (names_field(name, i)) {
            copy_field(i, o, &checked, true);
            return Q_OK;
        }
    return keep_setting(o, name, value, e);
}

void quire_options_release(struct quire_options *o)
{
    if (!o || o->size < sizeof *o || !o->settings)
        return;
    q_free(o->settings->items);
    q_free(o->settings);
    o->settings = NULL;
}

enum quire_code quire_options_set(struct quire_options *o, const char *name, const char *value,
                                  struct quire_error *error)
{
    struct q_err e = Q_ERR_INIT;
    return set_option(o, name, value, &e) ? quire_error_give(error, &e) : QUIRE_OK;
}

FALLIBLE quire_options_all(struct options *all, const struct quire_options *full, struct q_err *e)
{
    enum q_code rc = Q_OK;
    struct quire_options *from = (struct quire_options *)(uintptr_t)full; /* only read */
    options_defaults(all);
    all->log_level = "error";
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++)
        copy_field(i, from, all, false);
    const struct quire_settings *s = full->settings;
    for (size_t i = 0; s && i < s->n && !rc; i++)
        rc = options_set(all, FOR_LIBRARY, s->items[i].name, s->items[i].value, e);
    return rc;
}

FALLIBLE quire_options_config(struct core_config *c, struct quire_options *full,
                              const struct quire_options *given, struct q_err *e)
{
    struct options all;
    enum q_code rc = take_options(full, given, e);
    if (rc)
        return rc;
    enum log_level level;
    if (!(rc = quire_options_all(&all, full, e)) &&
        !(rc = log_level_parse(&level, all.log_level, e))) {
        log_setup("quire", level, all.log_json); /* plugins that are loaded are told of */
        rc = engine_options(c, &all, full->model, e);
    }
    options_release(&all);
    if (rc)
        return rc;
    c->worker.pin = full->pin_threads;
    c->in_process = !full->worker_program;
    c->worker_program = full->worker_program;
    return Q_OK;
}
