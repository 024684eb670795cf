/* SPDX-License-Identifier: Apache-2.0 */
/* The command line: the option that a flag's text names, the number of its arguments, and their
 * effect. The arguments of the last list are applied at the end: if MODEL is missing, the last of
 * them is MODEL (`--api-key KEY MODEL`). vLLM's parser adds all of them to the list, so that MODEL
 * is missing. */
#include <ctype.h>
#include <stdlib.h>
#include <string.h>
#include "common/columns.h"
#include "common/json_read.h"
#include "common/log.h"
#include "common/mem.h"
#include "common/nearest.h"
#include "common/options_internal.h"
#include "common/output.h"
#include "common/start.h"

#define WORDS_MAX (OPTION_LIST_MAX + 1)

struct command {
    struct options *o;
    const struct program_info *p;
    char **argv; /* NULL-terminated */
    int i;       /* the word being read */
    struct option_target last;
    const char *const *last_words; /* of the last list, not applied yet */
    size_t n_last;
};

/* finding */

/* The library accepts the vLLM flags of an engine, and `check-model` those that say how a model is
 * loaded, so that a command line of serve can be tried. */
static bool takes_vllm(uint32_t program)
{
    return program & (FOR_VLLM | FOR_LIBRARY | FOR_CHECK);
}

struct nearest {
    const char *text; /* as it was written */
    const char *flag;
    size_t distance;
    bool begins; /* the flag begins with the text */
};

static void consider(struct nearest *n, const char *flag)
{
    size_t length = strlen(n->text), d = nearest_distance(n->text, length, flag, strlen(flag));
    bool begins = length >= 6 && strncmp(flag, n->text, length) == 0;
    bool better = n->begins == begins ? d < n->distance : begins;
    size_t most = (length - 1) / 2; /* half of the letters after the dashes, at most three edits */
    if (begins ? better : better && d <= (most < 3 ? most : 3)) {
        n->flag = flag;
        n->distance = d;
        n->begins = begins;
    }
}

static FALLIBLE fail_unknown(const struct program_info *p, const char *flag, struct q_err *e)
{
    struct nearest n = {flag, NULL, SIZE_MAX, false};
    for (size_t i = 0; i < option_n_row; i++) {
        const struct option_row *r = &option_rows[i];
        if (strcmp(r->flag, flag) == 0)
            return q_fail(e, Q_INVALID, "%s is not an option of %s; %s --help lists its options",
                          flag, p->name, p->name);
        if (r->programs & p->program)
            consider(&n, r->flag);
    }
    for (size_t i = 0; i < vllm_n_flag && takes_vllm(p->program); i++)
        if (!vllm_flags[i].earlier)
            consider(&n, vllm_flags[i].flag);
    if (n.flag)
        return q_fail(e, Q_INVALID, "unknown option %.60s; did you mean %s?", flag, n.flag);
    return q_fail(e, Q_INVALID, "unknown option %.60s; %s --help lists the options", flag, p->name);
}

static const struct option_row *find_row(uint32_t program, const char *flag)
{
    for (size_t i = 0; i < option_n_row; i++)
        if ((option_rows[i].programs & program) && strcmp(option_rows[i].flag, flag) == 0)
            return &option_rows[i];
    return NULL;
}

static bool look_up(struct option_target *t, uint32_t program, const char *flag)
{
    t->row = find_row(program, flag);
    t->vllm = t->row || !takes_vllm(program) ? NULL : vllm_find(flag);
    if (t->vllm && t->vllm->verdict == VLLM_SAME) /* an option of other programs */
        t->vllm = NULL;
    return t->row || t->vllm;
}

static bool is_on_off(const struct option_target *t)
{
    return t->row ? t->row->type == TYPE_BOOL : t->vllm->takes == VLLM_ON;
}

static bool is_json(const struct option_target *t)
{
    return t->row ? t->row->type >= TYPE_JSON : t->vllm->takes == VLLM_JSON;
}

FALLIBLE option_find(struct option_target *t, const struct program_info *p, const char *text,
                     size_t n, struct q_err *e)
{
    const char *dot = memchr(text, '.', n < strlen(text) ? n : strlen(text));
    *t = (struct option_target){.row = NULL};
    if (dot) {
        t->path = dot + 1;
        t->n_path = n - (size_t)(t->path - text);
        n = (size_t)(dot - text);
    }
    if (n > OPTION_FLAG_MAX)
        return q_fail(e, Q_INVALID, "unknown option %.60s…", text);
    for (size_t i = 0; i < n; i++)
        t->flag[i] = i >= 2 && text[i] == '_' ? '-' : text[i];
    if (!look_up(t, p->program, t->flag) && strncmp(t->flag, "--no-", 5) == 0) {
        char positive[OPTION_FLAG_MAX + 1];
        snprintf(positive, sizeof positive, "--%s", t->flag + 5);
        t->negated = look_up(t, p->program, positive) && is_on_off(t);
        if (!t->negated)
            t->row = NULL, t->vllm = NULL;
    }
    if (!t->row && !t->vllm)
        return fail_unknown(p, t->flag, e);
    if (t->path && !is_json(t))
        return q_fail(e, Q_INVALID,
                      "%s does not take a JSON object, so its member %.*s cannot be set", t->flag,
                      (int)t->n_path, t->path);
    return Q_OK;
}

enum option_arity option_arity(const struct option_target *t)
{
    if (is_on_off(t))
        return ARITY_NONE;
    if (t->row)
        return t->row->type == TYPE_WORDS ? ARITY_MANY : ARITY_ONE;
    Q_ASSERT(t->vllm); /* a target is a row of one of the two tables */
    return t->vllm->takes == VLLM_MANY    ? ARITY_MANY
           : t->vllm->takes == VLLM_MAYBE ? ARITY_MAYBE
                                          : ARITY_ONE;
}

/* Length of the flag in the arg of an alias such as "--option *1000" or "--option.key". */
static size_t alias_length(const char *arg)
{
    return strcspn(arg, " .");
}

const struct option_row *option_row_of(const struct option_target *t)
{
    if (t->row || !t->vllm || t->vllm->verdict != VLLM_AS)
        return t->row;
    const char *arg = t->vllm->arg;
    size_t n = alias_length(arg);
    for (size_t i = 0; i < option_n_row; i++)
        if (strncmp(option_rows[i].flag, arg, n) == 0 && !option_rows[i].flag[n])
            return &option_rows[i];
    return NULL;
}

/* applying */

/* The product of value and factor: an option in seconds may set one in milliseconds. */
static const char *times(struct options *o, const char *value, const char *factor)
{
    char text[40], *end;
    double v = strtod(value, &end);
    if (end == value || *end || !(v * strtod(factor, NULL) < 1e15))
        return value; /* the option's own check reports the error */
    int n = snprintf(text, sizeof text, "%.0f", v * strtod(factor, NULL));
    return option_text(o, text, (size_t)n);
}

static const char *joined(struct options *o, const char *const *words, size_t n)
{
    char text[2048];
    size_t used = 0;
    for (size_t i = 0; i < n && used < sizeof text; i++)
        used += (size_t)snprintf(text + used, sizeof text - used, "%s%s", i ? "," : "", words[i]);
    return option_text(o, text, used < sizeof text ? used : sizeof text - 1);
}

static const char *prefixed(struct options *o, const char *prefix, const char *value)
{
    char text[256];
    int n = snprintf(text, sizeof text, "%s%s", prefix, value);
    return option_text(o, text, n < (int)sizeof text ? (size_t)n : sizeof text - 1);
}

/* Values that are joined by commas or get a prefix are numbers. They are checked here, because the
 * message names the flag that was typed. */
static FALLIBLE check_numbers(const struct option_target *t, const char *const *words, size_t n,
                              bool one, struct q_err *e)
{
    const char *accepted = one ? "0123456789" : "0123456789,";
    for (size_t i = 0; i < n; i++)
        if (!*words[i] || words[i][strspn(words[i], accepted)])
            return q_fail(e, one ? Q_UNSUPPORTED : Q_INVALID,
                          "%s %.60s is not supported, expected %s%s%s", t->flag, words[i],
                          one ? "one number" : "numbers", *t->vllm->why ? ": " : "", t->vllm->why);
    return Q_OK;
}

static FALLIBLE apply_alias(struct options *o, const struct program_info *p,
                            const struct option_target *t, const char *const *words, size_t n,
                            struct q_err *e)
{
    const char *arg = t->vllm->arg, *how = strchr(arg, ' ');
    const char *value = vllm_value(t->flag, words[0]);
    char name[256]; /* the option, and the member that was typed behind the flag */
    struct option_target to;
    enum q_code rc;
    if (t->vllm->takes == VLLM_JSON && !t->path && (rc = vllm_check(t->vllm, words, n, e)))
        return rc;
    snprintf(name, sizeof name, "%.*s%s%.*s", (int)(how ? (size_t)(how - arg) : strlen(arg)), arg,
             t->path ? "." : "", t->path ? (int)t->n_path : 0, t->path ? t->path : "");
    if (option_find(&to, p, name, strlen(name), e))
        return q_wrap(e, "%s", t->flag);
    if (how && how[1] != '*' && (rc = check_numbers(t, words, n, how[1] != ',', e)))
        return rc;
    if (how && how[1] == '*')
        value = times(o, value, how + 2);
    else if (how && how[1] == ',')
        value = joined(o, words, n);
    else if (how)
        value = prefixed(o, how + 1, value);
    if (!value)
        return q_fail(e, Q_NO_MEMORY, "%s: out of memory", t->flag);
    rc = option_apply(o, p, &to, &value, 1, e);
    return rc ? q_wrap(e, "%s", t->flag) : Q_OK;
}

FALLIBLE option_apply(struct options *o, const struct program_info *p,
                      const struct option_target *t, const char *const *words, size_t n,
                      struct q_err *e)
{
    enum q_code rc = Q_OK;
    if (t->vllm && t->vllm->verdict == VLLM_AS)
        return apply_alias(o, p, t, words, n, e);
    if (t->vllm) {
        static const char *const truth[] = {"false", "true"};
        size_t i = (size_t)(t->vllm - vllm_flags);
        bool on = false;
        if (n && is_on_off(t)) {
            if ((rc = option_bool(&on, words[0], t->flag, e)))
                return rc;
            words = &truth[on];
        }
        o->no_effect[i / 64] |= UINT64_C(1) << i % 64;
        return t->path ? vllm_check_member(t->vllm, t->path, t->n_path, e)
                       : vllm_check(t->vllm, words, n, e);
    }
    if (t->path)
        return option_member(o, t, words[0], e);
    for (size_t i = 0; i < n && !rc; i++)
        rc = option_put(o, t->row, words[i], e);
    return rc;
}

/* words */

/* Does this word begin an option? A single - is a value (standard input), and so is -1. */
static bool is_flag(const char *word)
{
    return word[0] == '-' && word[1] && !isdigit((unsigned char)word[1]);
}

/* The long flag of a short form such as -i, -tp or -O3, or NULL; *value = the attached value. */
static const char *long_flag(const struct program_info *p, const char *word, const char **value)
{
    static const struct {
        const char *letter, *flag;
    } shorts[] = {
#define SHORT(letter, flag) {letter, flag},
#include "common/options.def"
    };
    char name[16] = "";
    size_t n = strcspn(word, "=.");
    const struct vllm_flag *f;
    if (n < sizeof name)
        memcpy(name, word, n);
    for (size_t i = 0; i < sizeof shorts / sizeof *shorts; i++)
        if (strcmp(shorts[i].letter, name) == 0 && find_row(p->program, shorts[i].flag))
            return shorts[i].flag;
    if (!(p->program & (FOR_SERVE | FOR_ENGINE | FOR_FRONTEND | FOR_BATCH)))
        return NULL;
    if ((f = vllm_find_brief(name)))
        return word[n] == '.' && f->takes != VLLM_JSON && strcmp(f->brief, "-O") == 0
                   ? "--compilation-config" /* as in vLLM: -O3, and -O.level=3 */
                   : f->flag;
    name[2] = '\0'; /* -O3, -n2 */
    f = vllm_find_brief(name);
    if (!f || f->takes == VLLM_ON || !word[2])
        return NULL;
    *value = word + 2;
    return f->flag;
}

static FALLIBLE fail_no_value(const struct option_target *t, struct q_err *e)
{
    Q_ASSERT(t->row || t->vllm); /* a target is a row of one of the two tables */
    if (t->vllm && t->vllm->verdict == VLLM_AS && !t->vllm->why[0])
        return q_fail(e, Q_INVALID, "%s needs a value: it sets %.*s", t->flag,
                      (int)strcspn(t->vllm->arg, " "), t->vllm->arg);
    return q_fail(e, Q_INVALID, "%s needs a value: %s", t->flag,
                  t->row ? t->row->help : t->vllm->why);
}

/* The argument of a flag with one value. Errors: Q_INVALID. */
static FALLIBLE one_word(struct command *c, const struct option_target *t, const char **value,
                         struct q_err *e)
{
    const char *next = c->argv[c->i + 1];
    if (!next)
        return fail_no_value(t, e);
    if (strncmp(next, "--", 2) == 0 && next[2])
        return q_fail(
            e, Q_INVALID,
            "%s needs a value, and %.60s is an option; to use it as the value, write %s=%.60s",
            t->flag, next, t->flag, next);
    *value = next;
    c->i++;
    return Q_OK;
}

static FALLIBLE apply_last(struct command *c, struct q_err *e)
{
    const char *const *words = c->last_words;
    c->last_words = NULL;
    if (!words)
        return Q_OK;
    return option_apply(c->o, c->p, &c->last, words, c->n_last, e);
}

/* The arguments of `--flag a b c`, up to the next option. */
static FALLIBLE many_words(struct command *c, const struct option_target *t, struct q_err *e)
{
    enum q_code rc = apply_last(c, e);
    bool one = option_arity(t) == ARITY_MAYBE || !(c->p->program & FOR_VLLM); /* chat [MODEL] */
    size_t n = 0, max = one ? 1 : WORDS_MAX;
    if (rc)
        return rc;
    while (n < max && c->argv[c->i + 1 + (int)n] && !is_flag(c->argv[c->i + 1 + (int)n]))
        n++;
    if (n == 0 && option_arity(t) == ARITY_MANY)
        return fail_no_value(t, e);
    c->last = *t;
    c->last_words = (const char *const *)c->argv + c->i + 1;
    c->n_last = n;
    c->i += (int)n;
    return Q_OK;
}

static FALLIBLE parse_flag(struct command *c, struct q_err *e)
{
    const char *word = c->argv[c->i], *text = word, *value = strchr(word, '=');
    const char *const truth[] = {"false", "true"};
    char whole[256];
    struct option_target t;
    size_t n = value ? (size_t)(value++ - word) : strlen(word);
    if (word[1] != '-') {
        const char *attached = NULL;
        const char *flag = long_flag(c->p, word, &attached);
        if (!flag)
            return q_fail(e, Q_INVALID,
                          "unknown option %.60s; options start with --, and %s --help lists them",
                          word, c->p->name);
        const char *path = attached || !memchr(word, '.', n) ? "" : strchr(word, '.');
        n = (size_t)snprintf(whole, sizeof whole, "%s%.*s", flag,
                             (int)(*path ? n - (size_t)(path - word) : 0), path);
        text = whole;
        value = attached ? attached : value;
        if (n >= sizeof whole)
            return q_fail(e, Q_INVALID, "unknown option %.60s…", word);
    }
    enum q_code rc = option_find(&t, c->p, text, n, e);
    if (rc)
        return rc;
    const struct option_row *row = option_row_of(&t);
    if (row && option_given(c->o, row) && row->offset == offsetof(struct options, config))
        return q_fail(e, Q_INVALID, "--config is given twice, expected one file with all options");
    if (row)
        option_mark(c->o, row);
    if (t.negated && value)
        return q_fail(e, Q_INVALID, "%s does not take a value", t.flag);
    enum option_arity arity = t.path ? ARITY_ONE : option_arity(&t);
    if (arity == ARITY_NONE && !value)
        value = truth[!t.negated];
    else if (!value && arity != ARITY_ONE)
        return many_words(c, &t, e);
    else if (!value && (rc = one_word(c, &t, &value, e)))
        return rc;
    return option_apply(c->o, c->p, &t, &value, 1, e);
}

static bool is_truth(const char *word)
{
    return strcasecmp(word, "true") == 0 || strcasecmp(word, "false") == 0;
}

static FALLIBLE parse_words(struct command *c, struct q_err *e)
{
    struct options *o = c->o;
    const struct program_info *p = c->p;
    bool flags_over = false;
    for (c->i = 1; c->argv[c->i]; c->i++) {
        const char *word = c->argv[c->i];
        if (!flags_over && strcmp(word, "--") == 0) {
            flags_over = true;
            continue;
        }
        if (!flags_over && word[0] == '-' && word[1]) {
            enum q_code rc = parse_flag(c, e);
            if (rc)
                return rc;
            continue;
        }
        if (o->n_positional == p->positional_max && is_truth(word) && is_flag(c->argv[c->i - 1]))
            return q_fail(e, Q_INVALID, "unexpected argument \"%s\"; write %.60s=%s", word,
                          c->argv[c->i - 1], word);
        if (o->n_positional == p->positional_max)
            return q_fail(e, Q_INVALID, "unexpected argument \"%.60s\"; usage: %s %s", word,
                          p->name, p->usage);
        o->positional[o->n_positional++] = word;
    }
    return Q_OK;
}

/* the environment */

void option_env_name(char out[OPTION_FLAG_MAX + 8], const char *flag)
{
    size_t n = (size_t)snprintf(out, OPTION_FLAG_MAX + 8, "QUIRE_%s", flag + 2);
    for (size_t i = 0; i < n; i++)
        out[i] = out[i] == '-' ? '_' : (char)toupper((unsigned char)out[i]);
}

/* A variable contains several WORDS one per line. */
static FALLIBLE put_lines(struct options *o, const struct option_row *r, const char *value,
                          struct q_err *e)
{
    if (r->type != TYPE_WORDS || !strchr(value, '\n'))
        return option_put(o, r, value, e);
    enum q_code rc = Q_OK;
    while (*value && !rc) {
        size_t n = strcspn(value, "\n");
        const char *line = option_text(o, value, n);
        rc = !line ? q_fail(e, Q_NO_MEMORY, "out of memory") : n ? option_put(o, r, line, e) : Q_OK;
        value += n + (value[n] == '\n');
    }
    return rc;
}

static FALLIBLE parse_environment(struct options *o, const struct program_info *p, struct q_err *e)
{
    for (size_t i = 0; i < option_n_row; i++) {
        const struct option_row *r = &option_rows[i];
        char name[OPTION_FLAG_MAX + 8];
        option_env_name(name, r->flag);
        const char *value = getenv(name);
        bool question = r->offset == offsetof(struct options, help) ||
                        r->offset == offsetof(struct options, version);
        if (!(r->programs & p->program) || option_given(o, r) || !value || question)
            continue;
        option_mark(o, r);
        if (put_lines(o, r, value, e))
            return q_wrap(e, "environment variable %s", name);
    }
    return Q_OK;
}

/* MODEL */

static bool takes_model(const struct program_info *p)
{
    return (p->program & FOR_VLLM) && p->positional_max > 0;
}

/* MODEL is a positional argument, --model, `model` in the file, or the last argument of the last
 * list. from_flags: --model is on the command line; then all positional arguments have other
 * meanings (the prompts of generate). */
static FALLIBLE place_model(struct command *c, bool from_flags, struct q_err *e)
{
    struct options *o = c->o;
    const char *model = o->model_name;
    if (!takes_model(c->p))
        return Q_OK;
    if (!*model && !o->n_positional && c->last_words &&
        c->n_last > (option_arity(&c->last) == ARITY_MANY))
        model = c->last_words[--c->n_last];
    if (!*model || (o->n_positional && !from_flags))
        return Q_OK;
    if (o->n_positional && c->p->positional_max == 1)
        return strcmp(o->positional[0], model) == 0
                   ? Q_OK
                   : q_fail(e, Q_INVALID, "MODEL is given twice: %.80s and --model %.80s",
                            o->positional[0], model);
    if (o->n_positional == OPTION_POSITIONAL_MAX)
        return q_fail(e, Q_INVALID, "more than %d arguments", OPTION_POSITIONAL_MAX);
    memmove(o->positional + 1, o->positional, o->n_positional * sizeof *o->positional);
    o->positional[0] = model;
    o->n_positional++;
    return Q_OK;
}

/* --help and --version take precedence over all other arguments. */
static bool asks_for_help(struct options *o, int argc, char **argv)
{
    for (int i = 1; i < argc && strcmp(argv[i], "--") != 0; i++) {
        const char *word = argv[i];
        if (strcmp(word, "--version") == 0)
            o->version = true;
        else if (strcmp(word, "--help") == 0 || strcmp(word, "-h") == 0)
            o->help = true;
        else if (strncmp(word, "--help=", 7) == 0)
            o->help = true, o->help_word = word + 7;
        if (o->help || o->version)
            return true;
    }
    return false;
}

/* Remove the brackets of an IPv6 address: [::1] becomes ::1. */
static FALLIBLE strip_brackets(struct options *o, option_STR *host, struct q_err *e)
{
    const size_t n = strlen(*host);
    if (n < 4 || (*host)[0] != '[' || (*host)[n - 1] != ']' || !strchr(*host, ':'))
        return Q_OK;
    const char *plain = option_text(o, *host + 1, n - 2);
    if (!plain)
        return q_fail(e, Q_NO_MEMORY, "--host: out of memory");
    *host = plain;
    return Q_OK;
}

enum q_code options_parse(struct options *o, const struct program_info *p, int argc, char **argv,
                          struct q_err *e)
{
    struct command c = {.o = o, .p = p, .argv = argv};
    enum q_code rc;
    options_defaults(o);
    if (asks_for_help(o, argc, argv))
        return Q_OK;
    if ((rc = parse_words(&c, e)))
        return rc;
    bool from_flags = *o->model_name;
    if ((rc = parse_environment(o, p, e)) ||
        (*o->config && (rc = options_file(o, p, o->config, e))))
        return rc;
    if ((rc = place_model(&c, from_flags, e)) || (rc = apply_last(&c, e)))
        return rc;
    if ((rc = strip_brackets(o, &o->host, e)) || (rc = strip_brackets(o, &o->bench_host, e)))
        return rc;
    if (o->n_positional < p->positional_min)
        return q_fail(e, Q_INVALID, "an argument is missing; usage: %s %s", p->name, p->usage);
    return Q_OK;
}

/* main */

static void tell_no_effect(const struct options *o)
{
    for (size_t i = 0; i < vllm_n_flag; i++)
        if (o->no_effect[i / 64] >> i % 64 & 1)
            log_info("%s has no effect: %s", vllm_flags[i].flag, vllm_flags[i].why);
}

/* Arguments are visible to every user of the machine: the values of --api-key are copied, and
 * overwritten where the kernel shows them. */
static bool hide_keys(struct options *o, int argc, char **argv)
{
    for (uint32_t i = 0; i < o->api_key.n; i++) {
        const char *key = o->api_key.items[i];
        for (int a = 1; a < argc; a++)
            if (key >= argv[a] && key < argv[a] + strlen(argv[a]) &&
                !(o->api_key.items[i] = q_strdup(key))) /* lives as long as the process */
                return false;
    }
    bool follows = false;
    for (int a = 1; a < argc; a++) {
        const char *text = argv[a];
        const bool is_flag = !strncmp(text, "--api-key", 9) || !strncmp(text, "--api_key", 9);
        char *value = is_flag && text[9] == '=' ? argv[a] + 10
                      : follows && *text != '-' ? argv[a]
                                                : NULL;
        follows = is_flag ? !text[9] : follows && *text != '-';
        for (uint32_t p = 0; value && p < o->n_positional; p++)
            if (o->positional[p] == value)
                value = NULL;
        if (value && *value)
            memset(value, '*', strlen(value));
    }
    return true;
}

/* The name of the program in log lines. */
static const char *component_of(const struct program_info *p)
{
    const char *space = strrchr(p->name, ' ');
    return space ? space + 1 : p->name;
}

/* Options that are wrong may stand before --log-json: then it is not in `o`. */
static void report_wrong(const struct options *o, const struct program_info *p, char **argv,
                         const struct q_err *e)
{
    bool json = o->log_json;
    for (char **a = argv; *a && !json; a++)
        json = !strcmp(*a, "--log-json");
    if (json && !start_is_check()) {
        log_setup(component_of(p), LOG_ERROR, true);
        log_error("%s", e->message);
    } else {
        fprintf(stderr, "%s: %s\n", p->name, e->message);
    }
}

int options_main(struct options *o, const struct program_info *p, int argc, char **argv)
{
    struct q_err e = Q_ERR_INIT;
    enum log_level level = LOG_INFO; /* parsed, but for --help and --version */
    json_use_mem();
    output_check_at_exit(p->name);
    if (options_parse(o, p, argc, argv, &e) ||
        (!o->help && !o->version && log_level_parse(&level, o->log_level, &e))) {
        report_wrong(o, p, argv, &e);
        return 2;
    }
    if (!hide_keys(o, argc, argv)) {
        fprintf(stderr, "%s: out of memory for the API keys\n", p->name);
        return 1;
    }
    if (o->help) {
        options_help(p, o->help_word, columns_width(stdout), stdout);
        return 0;
    }
    if (o->version) {
        printf("quire %s\n", QUIRE_VERSION);
        return 0;
    }
    log_setup(component_of(p), level, o->log_json);
    if (*o->download_dir)
        setenv("QUIRE_DOWNLOAD_DIR", o->download_dir, 1); /* for hub.c, and for children */
    tell_no_effect(o);
    return -1;
}
