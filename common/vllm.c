/* SPDX-License-Identifier: Apache-2.0 */
#include "common/vllm.h"
#include <jansson.h>
#include <string.h>
#include "common/columns.h"

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

/* Is the word one of "a|b|c"? */
static bool is_among(const char *list, const char *word, size_t n)
{
    while (*list) {
        size_t length = strcspn(list, "|");
        if (length == n && strncasecmp(list, word, n) == 0)
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

static FALLIBLE check_object(const struct vllm_flag *f, const char *text, struct q_err *e)
{
    const char *key;
    json_t *v;
    json_error_t at;
    json_t *object = json_loads(text, JSON_DECODE_ANY, &at);
    enum q_code rc = Q_OK;
    if (!object && text[strspn(text, " \t\n")] == '{')
        return q_fail(e, Q_INVALID, "%s is not valid JSON: column %d: %s", f->flag, at.column,
                      at.text);
    if (!any(f) && !json_is_object(object))
        rc = refuse(f, NULL, e);
    if (!any(f) && json_is_object(object))
        json_object_foreach (object, key, v)
            if (!rc && !is_among(f->arg, key, strlen(key)))
                rc = refuse(f, NULL, e);
    json_decref(object);
    return rc;
}

FALLIBLE vllm_check(const struct vllm_flag *f, const char *const *words, size_t n, struct q_err *e)
{
    for (size_t i = 0; i < n && f->takes == VLLM_JSON; i++) {
        enum q_code rc = check_object(f, words[i], e);
        if (rc)
            return rc;
    }
    for (size_t i = 0; i < n && f->takes != VLLM_JSON; i++)
        if (!any(f) && !is_among(f->arg, words[i], strlen(words[i])))
            return refuse(f, words[i], e);
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
    static const char *const takes[] = {"", " X", " X ...", " [X]", " JSON"};
    enum vllm_verdict verdict = verdict_of(p, f);
    char left[128], right[1024];
    bool some = verdict >= VLLM_ACCEPTED && *f->arg && !any(f) && f->takes != VLLM_ON;
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
