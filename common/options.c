/* SPDX-License-Identifier: Apache-2.0 */
/* One row of options.def becomes a field, a flag, an environment variable, a key of --config and a
 * line of --help. All code that handles options reads the same array, so a flag cannot be missing
 * in one of these places. This file: values; options_words.c: the command line; options_file.c: the
 * file; options_json.c: members of JSON; options_help.c: --help. */
#include "common/options_internal.h"
#include <stdlib.h>
#include <string.h>
#include "common/log.h"
#include "common/mem.h"
#include "common/parse.h"

const struct option_row option_rows[] = {
#define OPT(field, flag, type, def, min, max, programs, help) \
    {flag,          TYPE_##type, def,  (double)(min),         \
     (double)(max), programs,    help, offsetof(struct options, field)},
#include "common/options.def"
};
#define N_ROW (sizeof option_rows / sizeof *option_rows)
const size_t option_n_row = N_ROW;
_Static_assert(N_ROW <= 64 * sizeof((struct options *)0)->given / sizeof(uint64_t),
               "given is too small");

struct option_text {
    struct option_text *next;
    char text[];
};

const char *option_text(struct options *o, const char *text, size_t n)
{
    struct option_text *t = q_alloc(sizeof *t + n + 1);
    if (!t)
        return NULL;
    memcpy(t->text, text, n);
    t->text[n] = '\0';
    t->next = o->texts;
    o->texts = t;
    return t->text;
}

void options_release(struct options *o)
{
    while (o->texts) {
        struct option_text *next = o->texts->next;
        q_free(o->texts);
        o->texts = next;
    }
}

void option_mark(struct options *o, const struct option_row *row)
{
    size_t i = (size_t)(row - option_rows);
    o->given[i / 64] |= UINT64_C(1) << i % 64;
}

bool option_given(const struct options *o, const struct option_row *row)
{
    size_t i = (size_t)(row - option_rows);
    return o->given[i / 64] >> i % 64 & 1;
}

bool options_given(const struct options *o, const char *flag)
{
    for (size_t i = 0; i < N_ROW; i++)
        if (strcmp(option_rows[i].flag, flag) == 0 && option_given(o, &option_rows[i]))
            return true;
    return false;
}

/* values */

/* INT limits are doubles in the table; 2^63 - 1 is rounded up there and converted back to
 * INT64_MAX. */
static int64_t int_limit(double v)
{
    return v >= 9223372036854775807.0 ? INT64_MAX : (int64_t)v;
}

static FALLIBLE list_add(struct option_list *list, const char *value, const char *flag,
                         struct q_err *e)
{
    if (list->n == OPTION_LIST_MAX)
        return q_fail(e, Q_INVALID, "%s: given more than %d times, which is the limit", flag,
                      OPTION_LIST_MAX);
    list->items[list->n++] = value;
    return Q_OK;
}

static FALLIBLE words_add(struct options *o, struct option_list *list, const char *value,
                          const char *flag, struct q_err *e)
{
    const char *items[OPTION_LIST_MAX];
    size_t n = OPTION_LIST_MAX;
    enum q_code rc = option_array(o, value, items, &n, e);
    if (!rc && n == 0)
        return list_add(list, value, flag, e);
    for (size_t i = 0; i < n && !rc; i++)
        rc = list_add(list, items[i], flag, e);
    return rc;
}

FALLIBLE option_bool(bool *out, const char *value, const char *flag, struct q_err *e)
{
    static const char *const words[] = {"0", "1", "false", "true", "no", "yes", "off", "on"};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (strcasecmp(value, words[i]) == 0) {
            *out = i & 1;
            return Q_OK;
        }
    return q_fail(e, Q_INVALID, "%s: \"%.40s\" is not true or false", flag, value);
}

/* A minimum of -1 stands for "not given": values between -1 and 0 are rejected. */
static FALLIBLE num_put(double *out, const char *value, const struct option_row *r, struct q_err *e)
{
    double v = 0;
    enum q_code rc = parse_f64(&v, value, r->min, r->max, r->flag, e);
    if (!rc && r->min == -1 && v < 0 && v != -1)
        rc = q_fail(e, Q_INVALID, "%s: \"%.60s\" is not a number from 0 to %g, or -1", r->flag,
                    value, r->max);
    if (!rc)
        *out = v;
    return rc;
}

static FALLIBLE bytes_put(uint64_t *out, const char *value, const struct option_row *r,
                          struct q_err *e)
{
    uint64_t v = 0;
    enum q_code rc = parse_bytes(&v, value, r->flag, e);
    if (!rc && (double)v < r->min)
        rc =
            q_fail(e, Q_INVALID, "%s is %.60s, expected at least %g bytes", r->flag, value, r->min);
    if (!rc)
        *out = v;
    return rc;
}

FALLIBLE option_put(struct options *o, const struct option_row *r, const char *value,
                    struct q_err *e)
{
    void *field = (char *)o + r->offset;
    value = vllm_value(r->flag, value);
    switch (r->type) {
    case TYPE_STR:
        *(option_STR *)field = value;
        return Q_OK;
    case TYPE_JSON:
        *(option_JSON *)field = value;
        return *value ? option_member(o, &(struct option_target){.row = r}, NULL, e) : Q_OK;
    case TYPE_PAIRS:
        *(option_PAIRS *)field = value;
        return *value ? option_pairs(o, &(struct option_target){.row = r}, e) : Q_OK;
    case TYPE_INT:
        return parse_count(field, value, int_limit(r->min), int_limit(r->max), r->flag, e);
    case TYPE_NUM:
        return num_put(field, value, r, e);
    case TYPE_BYTES:
        return bytes_put(field, value, r, e);
    case TYPE_LIST:
        return list_add(field, value, r->flag, e);
    case TYPE_WORDS:
        return words_add(o, field, value, r->flag, e);
    case TYPE_BOOL:
        return option_bool(field, value, r->flag, e);
    }
    return Q_OK;
}

void options_defaults(struct options *o)
{
    memset(o, 0, sizeof *o);
    for (size_t i = 0; i < N_ROW; i++) {
        const struct option_row *r = &option_rows[i];
        struct q_err e = Q_ERR_INIT;
        if (r->type == TYPE_LIST || r->type == TYPE_WORDS)
            continue;
        enum q_code rc = option_put(o, r, r->def, &e);
        Q_ASSERT(rc == Q_OK); /* otherwise a default of the table is out of range */
    }
}

FALLIBLE options_set(struct options *o, uint32_t program, const char *name, const char *value,
                     struct q_err *e)
{
    const struct program_info p = {.program = program, .name = "an engine"};
    struct option_target t;
    char flag[OPTION_FLAG_MAX + 3] = "--";
    size_t n = 2;
    for (name += strncmp(name, "--", 2) == 0 ? 2 : 0; *name && n < OPTION_FLAG_MAX; name++)
        flag[n++] = *name;
    flag[n] = '\0';
    enum q_code rc = option_find(&t, &p, flag, *name ? OPTION_FLAG_MAX + 1 : n, e);
    if (rc || t.negated) {
        return rc ? e->code = Q_NOT_FOUND
                  : q_fail(e, Q_NOT_FOUND, "unknown option %.60s; give the option 0 or 1", flag);
    }
    const struct option_row *row = option_row_of(&t);
    if (row)
        option_mark(o, row);
    return option_apply(o, &p, &t, &value, 1, e);
}

/* for children */

/* "--flag=value" on the heap; NULL when out of memory. */
static char *flag_text(const struct option_row *r, const char *value)
{
    size_t n = strlen(r->flag) + strlen(value) + 2;
    char *text = q_alloc(n);
    if (text)
        snprintf(text, n, "%s=%s", r->flag, value);
    return text;
}

static FALLIBLE forward_one(char **argv, uint32_t *n, uint32_t max, const struct option_row *r,
                            const char *value, struct q_err *e)
{
    if (*n + 1 >= max)
        return q_fail(e, Q_TOO_LARGE, "more than %u arguments for a child process", max);
    if (!(argv[*n] = flag_text(r, value)))
        return q_fail(e, Q_NO_MEMORY, "out of memory making arguments");
    argv[++*n] = NULL;
    return Q_OK;
}

static FALLIBLE forward_row(const struct options *o, const struct option_row *r, char **argv,
                            uint32_t *n, uint32_t max, struct q_err *e)
{
    const void *field = (const char *)o + r->offset;
    char number[64] = "";
    const struct option_list *list = field;
    enum q_code rc = Q_OK;
    switch (r->type) {
    case TYPE_STR:
    case TYPE_JSON:
    case TYPE_PAIRS:
        return forward_one(argv, n, max, r, *(const option_STR *)field, e);
    case TYPE_LIST:
    case TYPE_WORDS:
        for (uint32_t i = 0; i < list->n && !rc; i++)
            rc = forward_one(argv, n, max, r, list->items[i], e);
        return rc;
    case TYPE_INT:
        snprintf(number, sizeof number, "%lld", (long long)*(const option_INT *)field);
        break;
    case TYPE_NUM:
        snprintf(number, sizeof number, "%.17g", *(const option_NUM *)field);
        break;
    case TYPE_BYTES:
        snprintf(number, sizeof number, "%llu", (unsigned long long)*(const option_BYTES *)field);
        break;
    case TYPE_BOOL:
        snprintf(number, sizeof number, "%d", *(const option_BOOL *)field);
        break;
    }
    return forward_one(argv, n, max, r, number, e);
}

/* Options that children do not get: the file is read already, and MODEL is a positional
 * argument. */
static bool stays(const struct option_row *r)
{
    return strcmp(r->flag, "--config") == 0 || strcmp(r->flag, "--model") == 0;
}

enum q_code options_forward(const struct options *o, uint32_t program, char **argv, uint32_t *n,
                            uint32_t max, struct q_err *e)
{
    for (size_t i = 0; i < N_ROW; i++) {
        const struct option_row *r = &option_rows[i];
        if (!(r->programs & program) || !option_given(o, r) || stays(r))
            continue;
        enum q_code rc = forward_row(o, r, argv, n, max, e);
        if (rc)
            return rc;
    }
    return Q_OK;
}
