/* SPDX-License-Identifier: Apache-2.0 */
#include "common/vllm.h"
#include <ctype.h>
#include <float.h>
#include <jansson.h>
#include <string.h>
#include "common/columns.h"
#include "common/json_read.h"
#include "common/parse.h"

/* bytes of a list of values on the page; a longer one is in the error of a wrong value */
#define SHOWN_MAX 30

const struct vllm_flag vllm_flags[] = {
#define VLLM(flag, brief, takes, verdict, arg, why) \
    {flag, brief, VLLM_##takes, VLLM_##verdict, arg, why, false},
#define EARLIER(flag, brief, takes, verdict, arg, why) \
    {flag, brief, VLLM_##takes, VLLM_##verdict, arg, why, true},
#define VALUE(flag, theirs, ours)
#include "common/vllm_flags.def"
};
#define N_FLAG (sizeof vllm_flags / sizeof *vllm_flags)
const size_t vllm_n_flag = N_FLAG;
_Static_assert(N_FLAG <= 512, "struct options: no_effect is too small");

static const struct {
    const char *flag, *theirs, *ours;
} values[] = {
#define VLLM(flag, brief, takes, verdict, arg, why)
#define EARLIER(flag, brief, takes, verdict, arg, why)
#define VALUE(flag, theirs, ours) {flag, theirs, ours},
#include "common/vllm_flags.def"
};

const struct vllm_flag *vllm_find(const char *flag)
{
    for (size_t i = 0; i < N_FLAG; i++)
        if (strcmp(vllm_flags[i].flag, flag) == 0)
            return &vllm_flags[i];
    return NULL;
}

const struct vllm_flag *vllm_find_brief(const char *brief)
{
    for (size_t i = 0; i < N_FLAG && *brief; i++)
        if (strcmp(vllm_flags[i].brief, brief) == 0)
            return &vllm_flags[i];
    return NULL;
}

const char *vllm_value(const char *flag, const char *value)
{
    for (size_t i = 0; i < sizeof values / sizeof *values; i++)
        if (strcmp(values[i].flag, flag) == 0 && strcasecmp(values[i].theirs, value) == 0)
            return values[i].ours;
    return value;
}

static int folded(char c)
{
    return c == '-' ? '_' : tolower((unsigned char)c);
}

/* Is the word one of "a|b|c"? vLLM takes most choices in either case, and - for _. */
static bool is_among(const char *list, const char *word, size_t n)
{
    while (*list) {
        size_t length = strcspn(list, "|"), same = 0;
        while (length == n && same < n && folded(list[same]) == folded(word[same]))
            same++;
        if (length == n && same == n)
            return true;
        list += length + (list[length] == '|');
    }
    return false;
}

static bool any(const struct vllm_flag *f)
{
    return strcmp(f->arg, "*") == 0;
}

/* "--flag value is not supported, expected a|b: why" */
static FALLIBLE refuse(const struct vllm_flag *f, const char *value, struct q_err *e)
{
    bool is_object = f->takes == VLLM_JSON,
         negated = f->takes == VLLM_ON && value && !strcmp(value, "false");
    bool shown = value && f->takes != VLLM_ON && !is_object;
    const char *what = is_object ? ", except for the members " : ", expected ";
    bool list = *f->arg && f->takes != VLLM_ON && !any(f);
    return q_fail(e, Q_UNSUPPORTED, "%s%s%s%.60s is not supported%s%s: %s",
                  negated ? "--no-" : "--", f->flag + 2, shown ? " " : "", shown ? value : "",
                  list ? what : "", list ? f->arg : "", f->why);
}

static bool is_none(const char *value)
{
    return strcmp(value, "None") == 0;
}

static FALLIBLE check_object(const struct vllm_flag *f, const char *text, struct q_err *e)
{
    const char *key;
    json_t *v;
    json_error_t at;
    if (f->verdict == VLLM_ACCEPTED && is_none(text))
        return Q_OK;
    json_t *object = json_read_string(text, JSON_DECODE_ANY, &at);
    enum q_code rc = Q_OK;
    if (!object && text[strspn(text, " \t\n")] == '{')
        return q_fail(e, Q_INVALID, "%s is not valid JSON: column %d: %s", f->flag, at.column,
                      at.text);
    if (!json_is_object(object))
        rc = f->verdict == VLLM_REFUSED
                 ? refuse(f, NULL, e)
                 : q_fail(e, Q_INVALID, "%s: \"%.60s\" is not a JSON object such as '{\"key\": 1}'",
                          f->flag, text);
    if (!any(f) && f->verdict != VLLM_AS && json_is_object(object))
        json_object_foreach (object, key, v)
            if (!rc && !is_among(f->arg, key, strlen(key)))
                rc = refuse(f, NULL, e);
    json_decref(object);
    return rc;
}

/* A decimal integer of any size. */
static bool is_integer(const char *text)
{
    size_t n = strspn(text += *text == '-' || *text == '+', "0123456789");
    return n && !text[n];
}

/* Is the value of the kind that the flag takes? A flag that is rejected with any value has its
 * reason instead, and None requests the default. */
static FALLIBLE check_kind(const struct vllm_flag *f, const char *value, struct q_err *e)
{
    int64_t count;
    double number;
    if (f->verdict == VLLM_REFUSED || is_none(value))
        return Q_OK;
    if (f->takes == VLLM_INT && !is_integer(value))
        return q_fail(e, Q_INVALID, "%s: \"%.60s\" is not a whole number", f->flag, value);
    if (f->takes == VLLM_COUNT)
        return parse_count(&count, value, INT64_MIN, INT64_MAX, f->flag, e);
    if (f->takes == VLLM_NUM && parse_f64(&number, value, -DBL_MAX, DBL_MAX, f->flag, NULL))
        return q_fail(e, Q_INVALID, "%s: \"%.60s\" is not a number", f->flag, value);
    return Q_OK;
}

FALLIBLE vllm_check(const struct vllm_flag *f, const char *const *words, size_t n, struct q_err *e)
{
    enum q_code rc;
    for (size_t i = 0; i < n && f->takes == VLLM_JSON; i++) {
        if ((rc = check_object(f, words[i], e)))
            return rc;
    }
    for (size_t i = 0; i < n && f->takes != VLLM_JSON; i++) {
        if ((rc = check_kind(f, words[i], e)))
            return rc;
        const char *value = words[i];
        while (f->takes == VLLM_INT && (*value == '+' || *value == '0') && value[1])
            value++; /* 01 is 1 */
        if (!any(f) && !is_among(f->arg, value, strlen(value)))
            return refuse(f, words[i], e);
    }
    return n == 0 && f->verdict == VLLM_REFUSED ? refuse(f, NULL, e) : Q_OK;
}

FALLIBLE vllm_check_member(const struct vllm_flag *f, const char *path, size_t n, struct q_err *e)
{
    size_t first = 0;
    while (first < n && path[first] != '.' && path[first] != '+')
        first++;
    return any(f) || is_among(f->arg, path, first) ? Q_OK : refuse(f, NULL, e);
}

/* page */

struct page {
    FILE *out;
    unsigned width;
    bool (*is_option)(const char *flag);
};

static enum vllm_verdict verdict_of(const struct page *p, const struct vllm_flag *f)
{
    return p->is_option(f->flag) ? VLLM_SAME : f->verdict;
}

static void row(const struct page *p, const struct vllm_flag *f)
{
    static const char *const takes[] = {"", " X", " N", " N", " N", " X ...", " [X]", " JSON"};
    enum vllm_verdict verdict = verdict_of(p, f);
    char left[128], right[1024];
    bool some = verdict >= VLLM_ACCEPTED && *f->arg && !any(f) && f->takes != VLLM_ON &&
                strlen(f->arg) <= SHOWN_MAX;
    snprintf(left, sizeof left, "%s%s%s%s", f->brief, *f->brief ? ", " : "", f->flag,
             takes[f->takes]);
    if (verdict == VLLM_SAME)
        snprintf(right, sizeof right, "same name and meaning");
    else if (verdict == VLLM_AS)
        snprintf(right, sizeof right, "%.*s%s", (int)strcspn(f->arg, " "), f->arg,
                 strstr(f->arg, "*1000") ? " in milliseconds" : "");
    else
        snprintf(right, sizeof right, "%s%s%s%s",
                 !some                      ? ""
                 : verdict == VLLM_ACCEPTED ? "only "
                                            : "except for ",
                 some ? f->arg : "", some ? ": " : "", f->why);
    columns_row(p->out, left, 36, p->width, right);
}

/* The rows of the verdicts from..to. Returns how many. */
static size_t rows(const struct page *p, enum vllm_verdict from, enum vllm_verdict to, bool earlier,
                   bool show)
{
    size_t n = 0;
    for (size_t i = 0; i < N_FLAG; i++) {
        const struct vllm_flag *f = &vllm_flags[i];
        enum vllm_verdict verdict = verdict_of(p, f);
        if (verdict < from || verdict > to || f->earlier != earlier)
            continue;
        n++;
        if (show)
            row(p, f);
    }
    return n;
}

void vllm_page(FILE *out, unsigned width, bool (*is_option)(const char *flag))
{
    const struct page p = {out, width, is_option};
    char text[400];
    snprintf(text, sizeof text,
             "Flags of vLLM " VLLM_VERSION
             " (`vllm serve`) in `quire serve`: %zu are supported, %zu are accepted without "
             "effect, %zu are rejected. The command line and the file of --config accept them.",
             rows(&p, VLLM_SAME, VLLM_AS, false, false),
             rows(&p, VLLM_ACCEPTED, VLLM_ACCEPTED, false, false),
             rows(&p, VLLM_REFUSED, VLLM_REFUSED, false, false));
    columns_put(out, 0, 0, width, text);
    fputs("\nSupported: options of quire\n", out);
    rows(&p, VLLM_SAME, VLLM_AS, false, true);
    fputs("\nAccepted without effect; a log line gives the reason\n", out);
    rows(&p, VLLM_ACCEPTED, VLLM_ACCEPTED, false, true);
    fputs("\nRejected: the program exits with code 2 and the reason\n", out);
    rows(&p, VLLM_REFUSED, VLLM_REFUSED, false, true);
    fputs("\nFlags of older versions\n", out);
    rows(&p, VLLM_SAME, VLLM_REFUSED, true, true);
}
