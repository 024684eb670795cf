/* SPDX-License-Identifier: Apache-2.0 */
#include "common/chat/roles.h"

#include <string.h>
#include "common/nearest.h"

#define KNOWN    "system developer user assistant tool function"
#define ROLE_MAX 64 /* bytes of one that a template may have */

static bool is_word(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
}

/* Is the quote at `at` behind "==", or in a list or map, and not a subscript or an argument? */
static bool is_compared(const char *begin, const char *at)
{
    const char *p = at;
    while (p > begin && strchr(" \t\n", p[-1]))
        p--;
    if (p == begin)
        return false;
    if (strchr("=,{", p[-1]))
        return true;
    /* [ or ( directly behind a name or another bracket reads from it or calls it */
    return strchr("[(", p[-1]) && p - 1 > begin && !is_word(p[-2]) && !strchr("])'\"", p[-2]);
}

/* Is it before "=="? */
static bool compares(const char *behind)
{
    behind += strspn(behind, " \t\n");
    return *behind == '=' && behind[1] == '=';
}

/* One {% … %} or {{ … }}. */
static bool role_in_tag(const char *role, const char *begin, const char *end)
{
    size_t n = strlen(role);
    const char *word = memmem(begin, (size_t)(end - begin), "role", 4);
    if (!word)
        return false;
    for (const char *at = begin; at + n + 2 <= end; at++)
        if ((*at == '\'' || *at == '"') && at[n + 1] == *at && !memcmp(at + 1, role, n) &&
            (is_compared(begin, at) || compares(at + n + 2)))
            return true;
    return false;
}

bool role_in_template(const char *role, const char *source)
{
    size_t n = strlen(role);
    if (!n || n > ROLE_MAX)
        return false;
    for (const char *at = source; (at = strchr(at, '{')); at++) {
        const char *close = at[1] == '%' ? "%}" : at[1] == '{' ? "}}" : NULL;
        const char *end = close ? strstr(at + 2, close) : NULL;
        if (end && role_in_tag(role, at + 2, end))
            return true;
    }
    return false;
}

static bool is_known(const char *role, const char *const *sources, size_t n_source)
{
    size_t n = strlen(role), n_known;
    for (const char *at = KNOWN; *at; at += n_known, at += *at == ' ') {
        n_known = strcspn(at, " ");
        if (n == n_known && !memcmp(at, role, n))
            return true;
    }
    for (size_t i = 0; i < n_source; i++)
        if (sources[i] && role_in_template(role, sources[i]))
            return true;
    return false;
}

FALLIBLE roles_check(const struct chat_model *m, const char *own, const json_t *messages,
                     struct q_err *e)
{
    const char *const sources[] = {m->template ? chat_source(m->template) : NULL,
                                   m->template ? chat_tool_source(m->template) : NULL, own};
    const size_t n_source = sizeof sources / sizeof *sources;
    const char *before = "";
    size_t i;
    json_t *message;
    json_array_foreach ((json_t *)messages, i, message) {
        const char *role = json_string_value(json_object_get(message, "role")), *nearest = "";
        if (!role || !*role || !strcmp(role, before))
            continue;
        if (is_known(role, sources, n_source)) {
            before = role;
            continue;
        }
        size_t n = nearest_name(role, KNOWN, &nearest);
        return q_fail(
            e, Q_INVALID,
            "messages: entry %zu: unknown role \"%.40s\"%s%.*s%s; accepted are system, developer, "
            "user, assistant, tool, function and the roles in the model's chat template",
            i, role, n ? " (did you mean \"" : "", (int)n, nearest, n ? "\"?)" : "");
    }
    return Q_OK;
}
