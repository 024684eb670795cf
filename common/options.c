/* SPDX-License-Identifier: Apache-2.0 */
/* One row of options.def becomes a field, a flag, an environment variable and a line of --help.
 * Everything that looks at options walks the same array, so a flag cannot exist in one of these
 * places and not in another. */
#include "common/options.h"
#include <ctype.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include "common/log.h"
#include "common/mem.h"
#include "common/parse.h"

#define FLAG_MAX 64 /* bytes of a flag's name */

enum option_type { TYPE_STR, TYPE_INT, TYPE_NUM, TYPE_BYTES, TYPE_BOOL, TYPE_LIST };

struct option_row {
    const char *flag; /* "--max-num-seqs" */
    enum option_type type;
    const char *def;
    double min, max;
    uint32_t programs;
    const char *help;
    size_t offset; /* of the field in struct options */
};

static const struct option_row rows[] = {
#define OPT(field, flag, type, def, min, max, programs, help) \
    {flag,          TYPE_##type, def,  (double)(min),         \
     (double)(max), programs,    help, offsetof(struct options, field)},
#include "common/options.def"
};
#define N_ROW (sizeof rows / sizeof *rows)
_Static_assert(N_ROW <= 64 * sizeof((struct options *)0)->given / sizeof(uint64_t),
               "given is too small");

static void *field_of(struct options *o, const struct option_row *r)
{
    return (char *)o + r->offset;
}

static void mark_given(struct options *o, size_t i_row)
{
    o->given[i_row / 64] |= UINT64_C(1) << i_row % 64;
}

static bool is_given(const struct options *o, size_t i_row)
{
    return o->given[i_row / 64] >> i_row % 64 & 1;
}

/* INT limits are kept as double in the table; 2^63 - 1 rounds up there and must come back as
 * INT64_MAX. */
static int64_t int_limit(double v)
{
    return v >= 9223372036854775807.0 ? INT64_MAX : (int64_t)v;
}

static enum q_code list_add(struct option_list *list, const char *value, const char *flag,
                            struct q_err *e)
{
    if (list->n == OPTION_LIST_MAX)
        return q_fail(e, Q_INVALID, "%s: given more than %d times", flag, OPTION_LIST_MAX);
    list->items[list->n++] = value;
    return Q_OK;
}

static enum q_code set_value(struct options *o, const struct option_row *r, const char *value,
                             struct q_err *e)
{
    void *field = field_of(o, r);
    switch (r->type) {
    case TYPE_STR:
        *(option_STR *)field = value;
        return Q_OK;
    case TYPE_INT:
        return parse_i64(field, value, int_limit(r->min), int_limit(r->max), r->flag, e);
    case TYPE_NUM:
        return parse_f64(field, value, r->min, r->max, r->flag, e);
    case TYPE_BYTES:
        return parse_bytes(field, value, r->flag, e);
    case TYPE_LIST:
        return list_add(field, value, r->flag, e);
    case TYPE_BOOL:
        if (strcmp(value, "1") == 0 || strcasecmp(value, "true") == 0)
            *(option_BOOL *)field = true;
        else if (strcmp(value, "0") == 0 || strcasecmp(value, "false") == 0)
            *(option_BOOL *)field = false;
        else
            return q_fail(e, Q_INVALID, "%s: \"%.40s\" is not true or false", r->flag, value);
        return Q_OK;
    }
    return Q_OK;
}

void options_defaults(struct options *o)
{
    memset(o, 0, sizeof *o);
    for (size_t i = 0; i < N_ROW; i++) {
        struct q_err e = Q_ERR_INIT;
        if (rows[i].type == TYPE_LIST)
            continue;
        enum q_code rc = set_value(o, &rows[i], rows[i].def, &e);
        Q_ASSERT(rc == Q_OK); /* a default of the table is outside its own range */
    }
}

/* Levenshtein distance, capped by the lengths the flags have: for "did you mean". */
static size_t distance(const char *a, const char *b)
{
    size_t row[FLAG_MAX + 1];
    size_t na = strlen(a), nb = strlen(b);
    if (na > FLAG_MAX || nb > FLAG_MAX)
        return FLAG_MAX;
    for (size_t j = 0; j <= nb; j++)
        row[j] = j;
    for (size_t i = 1; i <= na; i++) {
        size_t diagonal = row[0];
        row[0] = i;
        for (size_t j = 1; j <= nb; j++) {
            size_t up = row[j];
            size_t best = diagonal + (a[i - 1] != b[j - 1]);
            if (up + 1 < best)
                best = up + 1;
            if (row[j - 1] + 1 < best)
                best = row[j - 1] + 1;
            diagonal = up;
            row[j] = best;
        }
    }
    return row[nb];
}

static enum q_code fail_unknown(const struct program_info *p, const char *flag, struct q_err *e)
{
    const char *best = NULL;
    size_t best_distance = 4; /* farther than three edits is no typing mistake */
    for (size_t i = 0; i < N_ROW; i++) {
        if (strcmp(rows[i].flag, flag) == 0)
            return q_fail(e, Q_INVALID, "%s is not an option of %s; see %s --help", flag, p->name,
                          p->name);
        size_t d = distance(flag, rows[i].flag);
        if ((rows[i].programs & p->program) && d < best_distance) {
            best = rows[i].flag;
            best_distance = d;
        }
    }
    if (best)
        return q_fail(e, Q_INVALID, "unknown option %.60s; did you mean %s?", flag, best);
    return q_fail(e, Q_INVALID, "unknown option %.60s; see %s --help", flag, p->name);
}

/* Find the row of a flag; *negated for --no-flag. N_ROW = none. */
static size_t find_row(const struct program_info *p, const char *flag, bool *negated)
{
    *negated = false;
    for (size_t i = 0; i < N_ROW; i++)
        if ((rows[i].programs & p->program) && strcmp(rows[i].flag, flag) == 0)
            return i;
    if (strncmp(flag, "--no-", 5) != 0)
        return N_ROW;
    for (size_t i = 0; i < N_ROW; i++)
        if ((rows[i].programs & p->program) && rows[i].type == TYPE_BOOL &&
            strcmp(rows[i].flag + 2, flag + 5) == 0) {
            *negated = true;
            return i;
        }
    return N_ROW;
}

/* The letters people know. */
static const char *long_flag(const char *arg)
{
    return !strcmp(arg, "-h")   ? "--help"
           : !strcmp(arg, "-i") ? "--input-file"
           : !strcmp(arg, "-o") ? "--output-file"
                                : arg;
}

static enum q_code parse_flag(struct options *o, const struct program_info *p, char **argv, int *i,
                              struct q_err *e)
{
    const char *arg = long_flag(argv[*i]);
    const char *value = strchr(arg, '=');
    char flag[FLAG_MAX + 1] = "";
    size_t n = value ? (size_t)(value - arg) : strlen(arg);
    if (n > FLAG_MAX)
        return q_fail(e, Q_INVALID, "unknown option %.60s…", arg);
    for (size_t k = 0; k < n; k++)
        flag[k] = k >= 2 && arg[k] == '_' ? '-' : arg[k];
    flag[n] = '\0';
    bool negated;
    size_t i_row = find_row(p, flag, &negated);
    if (i_row == N_ROW)
        return fail_unknown(p, flag, e);
    const struct option_row *r = &rows[i_row];
    if (value)
        value++;
    if (r->type == TYPE_BOOL && !value)
        value = negated ? "0" : "1";
    else if (negated)
        return q_fail(e, Q_INVALID, "%s takes no value", flag);
    else if (!value && !(value = argv[++*i]))
        return q_fail(e, Q_INVALID, "%s needs a value: %s", r->flag, r->help);
    mark_given(o, i_row);
    return set_value(o, r, value, e);
}

/* QUIRE_MAX_NUM_SEQS for --max-num-seqs */
static void env_name(char out[FLAG_MAX + 8], const char *flag)
{
    size_t n = (size_t)snprintf(out, FLAG_MAX + 8, "QUIRE_%s", flag + 2);
    for (size_t i = 0; i < n; i++)
        out[i] = out[i] == '-' ? '_' : (char)toupper((unsigned char)out[i]);
}

static enum q_code parse_environment(struct options *o, const struct program_info *p,
                                     struct q_err *e)
{
    for (size_t i = 0; i < N_ROW; i++) {
        char name[FLAG_MAX + 8];
        env_name(name, rows[i].flag);
        const char *value = getenv(name);
        if (!(rows[i].programs & p->program) || is_given(o, i) || !value)
            continue;
        mark_given(o, i);
        if (set_value(o, &rows[i], value, e))
            return q_wrap(e, "environment variable %s", name);
    }
    return Q_OK;
}

enum q_code options_parse(struct options *o, const struct program_info *p, int argc, char **argv,
                          struct q_err *e)
{
    bool flags_over = false;
    options_defaults(o);
    for (int i = 1; i < argc; i++)
        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0 ||
            strcmp(argv[i], "--version") == 0) {
            *(argv[i][2] == 'v' ? &o->version : &o->help) = true;
            return Q_OK;
        } else if (strcmp(argv[i], "--") == 0)
            break;
    for (int i = 1; i < argc; i++) {
        if (!flags_over && strcmp(argv[i], "--") == 0) {
            flags_over = true;
            continue;
        }
        if (!flags_over && !strncmp(long_flag(argv[i]), "--", 2)) {
            enum q_code rc = parse_flag(o, p, argv, &i, e);
            if (rc)
                return rc;
            continue;
        }
        if (!flags_over && argv[i][0] == '-' && argv[i][1])
            return q_fail(e, Q_INVALID,
                          "unknown option %.60s; options begin with --, see %s --help", argv[i],
                          p->name);
        if (o->n_positional == p->positional_max)
            return q_fail(e, Q_INVALID, "unexpected argument \"%.60s\"; usage: %s %s", argv[i],
                          p->name, p->usage);
        o->positional[o->n_positional++] = argv[i];
    }
    if (o->n_positional < p->positional_min)
        return q_fail(e, Q_INVALID, "an argument is missing; usage: %s %s", p->name, p->usage);
    return parse_environment(o, p, e);
}

enum q_code options_set(struct options *o, uint32_t program, const char *name, const char *value,
                        struct q_err *e)
{
    const struct program_info p = {.program = program, .name = "an engine"};
    char flag[FLAG_MAX + 3] = "--";
    bool negated;
    size_t n = 2;
    for (name += strncmp(name, "--", 2) == 0 ? 2 : 0; *name && n < FLAG_MAX; name++)
        flag[n++] = *name == '_' ? '-' : *name;
    flag[n] = '\0';
    size_t i_row = *name ? N_ROW : find_row(&p, flag, &negated);
    if (i_row == N_ROW || negated) {
        enum q_code rc = fail_unknown(&p, flag, e);
        e->code = Q_NOT_FOUND;
        return rc ? Q_NOT_FOUND : Q_OK;
    }
    mark_given(o, i_row);
    return set_value(o, &rows[i_row], value, e);
}

void options_help(const struct program_info *p, FILE *out)
{
    const struct option_row *named = NULL; /* the first that takes a value: an example */
    fprintf(out, "usage: %s %s\n\n%s\n\noptions:\n", p->name, p->usage, p->about);
    for (size_t i = 0; i < N_ROW; i++) {
        static const char *const values[] = {" TEXT", " N", " X", " BYTES", "", " TEXT"};
        const struct option_row *r = &rows[i];
        if (!(r->programs & p->program))
            continue;
        named = named || r->type == TYPE_BOOL ? named : r;
        char flag[FLAG_MAX * 2];
        bool on_by_default = r->type == TYPE_BOOL && r->def[0] == '1';
        snprintf(flag, sizeof flag, "%s%s%s", on_by_default ? "--[no-]" : "",
                 r->flag + (on_by_default ? 2 : 0), values[r->type]);
        fprintf(out, "  %-34s %s", flag, r->help);
        if (r->def[0] && r->type != TYPE_BOOL && strstr(r->help, "default") == NULL)
            fprintf(out, " (default %s)", r->def);
        fputc('\n', out);
    }
    if (named) {
        char name[FLAG_MAX + 8];
        env_name(name, named->flag);
        fprintf(out, "\nAn option can also be set in the environment: %s as %s.\n", named->flag,
                name);
    }
}

int options_main(struct options *o, const struct program_info *p, int argc, char **argv)
{
    struct q_err e = Q_ERR_INIT;
    enum log_level level;
    if (options_parse(o, p, argc, argv, &e) ||
        (!o->help && !o->version && log_level_parse(&level, o->log_level, &e))) {
        fprintf(stderr, "%s: %s\n", p->name, e.message);
        return 2;
    }
    if (o->help) {
        options_help(p, stdout);
        return 0;
    }
    if (o->version) {
        printf("quire %s\n", QUIRE_VERSION);
        return 0;
    }
    const char *space = strrchr(p->name, ' ');
    log_setup(space ? space + 1 : p->name, level, o->log_json);
    return -1;
}

bool options_given(const struct options *o, const char *flag)
{
    for (size_t i = 0; i < N_ROW; i++)
        if (strcmp(rows[i].flag, flag) == 0)
            return is_given(o, i);
    return false;
}

/* "--flag=value" on the heap; NULL when out of memory. */
static char *flag_text(const struct option_row *r, const char *value)
{
    size_t n = strlen(r->flag) + strlen(value) + 2;
    char *text = q_alloc(n);
    if (text)
        snprintf(text, n, "%s=%s", r->flag, value);
    return text;
}

static enum q_code forward_one(char **argv, uint32_t *n, uint32_t max, const struct option_row *r,
                               const char *value, struct q_err *e)
{
    if (*n + 1 >= max)
        return q_fail(e, Q_TOO_LARGE, "more than %u arguments for a child process", max);
    if (!(argv[*n] = flag_text(r, value)))
        return q_fail(e, Q_NO_MEMORY, "out of memory making arguments");
    argv[++*n] = NULL;
    return Q_OK;
}

static enum q_code forward_row(const struct options *o, const struct option_row *r, char **argv,
                               uint32_t *n, uint32_t max, struct q_err *e)
{
    const void *field = (const char *)o + r->offset;
    char number[64] = "";
    const struct option_list *list = field;
    enum q_code rc = Q_OK;
    switch (r->type) {
    case TYPE_STR:
        return forward_one(argv, n, max, r, *(const option_STR *)field, e);
    case TYPE_LIST:
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

enum q_code options_forward(const struct options *o, uint32_t program, char **argv, uint32_t *n,
                            uint32_t max, struct q_err *e)
{
    for (size_t i = 0; i < N_ROW; i++) {
        if (!(rows[i].programs & program) || !is_given(o, i))
            continue;
        enum q_code rc = forward_row(o, &rows[i], argv, n, max, e);
        if (rc)
            return rc;
    }
    return Q_OK;
}
