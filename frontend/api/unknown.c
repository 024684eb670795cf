/* SPDX-License-Identifier: Apache-2.0 */
/* Members of tools are passed to the chat template, so an unknown one may have an effect: there
 * only likely misspellings are noted. */
#include "frontend/api/unknown.h"

#include <stdio.h>
#include <string.h>
#include "common/nearest.h"

#define ITEMS_MAX 1024 /* items of a list that are checked */

static const struct nested {
    const char *field, *member; /* member NULL: the field itself, or each of its items */
    const char *names;
    bool near; /* only likely misspellings */
} nested[] = {
    {"stream_options", NULL, "include_usage continuous_usage_stats include_obfuscation", false},
    {"response_format", NULL, "type json_schema schema format structures triggers strict", false},
    {"response_format", "json_schema", "name description schema strict", false},
    {"tools", NULL, "type function defer_loading", true},
    {"tools", "function", "name description parameters strict defer_loading", true},
    {"tool_choice", NULL, "type function name allowed_tools mode tools", false},
    {"tool_choice", "function", "name", false},
    {"tool_choice", "allowed_tools", "mode tools", false},
};

/* Printable characters, without those that separate entries in the header's value. */
static size_t encode(char out[UNKNOWN_NAME_MAX], const char *name)
{
    size_t n = 0;
    for (; *name && n + 7 < UNKNOWN_NAME_MAX; name++) {
        unsigned char c = (unsigned char)*name;
        if (c > ' ' && c < 0x7f && !strchr("%,;()\"", c))
            out[n++] = (char)c;
        else
            n += (size_t)snprintf(out + n, 4, "%%%02X", c);
    }
    n += (size_t)snprintf(out + n, 4, "%s", *name ? "..." : "");
    return n;
}

size_t unknown_nearest(struct unknown *u, const char *name, const char *names, const char **nearest)
{
    if (u->n_looked >= UNKNOWN_LOOK_MAX)
        return 0;
    u->n_looked++;
    return nearest_name(name, names, nearest);
}

static void count_more(struct unknown *u)
{
    u->n_more++;
    snprintf(u->text + u->n_text, sizeof u->text - u->n_text, " and %zu more", u->n_more);
}

void unknown_note(struct unknown *u, const char *name, const char *meant, size_t n_meant)
{
    static const char opening[] = "ignored unknown fields: ";
    static const char longest_end[] = " and 18446744073709551615 more";
    char shown[UNKNOWN_NAME_MAX], line[3 * UNKNOWN_NAME_MAX];
    if (u->n++ >= UNKNOWN_LOOK_MAX || u->n_more) {
        count_more(u);
        return;
    }
    encode(shown, name);
    if (u->n == 1) {
        u->n_text = (size_t)snprintf(u->text, sizeof u->text, "%s", opening);
        snprintf(u->first, sizeof u->first, "%s", shown);
        snprintf(u->meant, sizeof u->meant, "%.*s", (int)n_meant, meant);
    }
    int n = snprintf(line, sizeof line, n_meant ? "%s%s (did you mean %.*s?)" : "%s%s",
                     u->n > 1 ? ", " : "", shown, (int)n_meant, meant);
    if (u->n_text + (size_t)n + sizeof longest_end > sizeof u->text) {
        count_more(u);
        return;
    }
    memcpy(u->text + u->n_text, line, (size_t)n + 1);
    u->n_text += (size_t)n;
}

/* Known names, each once: plain text that needs no encoding, and not many. */
void unknown_no_effect(struct unknown *u, const char *name)
{
    static const char more[] = ", ...";
    size_t n = strlen(u->idle), room = sizeof u->idle - n;
    const char *before = u->n_idle++ ? ", " : "fields without effect: ";
    if (strlen(before) + strlen(name) + sizeof more <= room)
        snprintf(u->idle + n, room, "%s%s", before, name);
    else if (n < sizeof more || strcmp(u->idle + n + 1 - sizeof more, more) != 0)
        snprintf(u->idle + n, room, "%s", more);
}

const char *unknown_warning(const struct unknown *u, char both[UNKNOWN_BOTH_MAX])
{
    if (!u->n || !u->n_idle)
        return u->n ? u->text : u->n_idle ? u->idle : NULL;
    snprintf(both, UNKNOWN_BOTH_MAX, "%s; %s", u->text, u->idle);
    return both;
}

bool unknown_is_one_of(const char *name, const char *names)
{
    size_t n = strlen(name);
    for (const char *at = names; *at; at += strcspn(at, " "), at += *at == ' ')
        if (!strncmp(at, name, n) && (at[n] == ' ' || !at[n]))
            return true;
    return false;
}

static void look(struct unknown *u, const struct nested *r, const json_t *object, int index)
{
    const char *key;
    json_t *v;
    if (r->member)
        object = json_object_get(object, r->member);
    json_object_foreach ((json_t *)object, key, v) {
        char path[UNKNOWN_NAME_MAX + 64], at[16] = "";
        const char *nearest = "";
        if (unknown_is_one_of(key, r->names))
            continue;
        size_t n = unknown_nearest(u, key, r->names, &nearest);
        if (r->near && !n)
            continue;
        if (index >= 0)
            snprintf(at, sizeof at, "[%d]", index);
        snprintf(path, sizeof path, "%s%s%s%s.%.*s", r->field, at, r->member ? "." : "",
                 r->member ? r->member : "", UNKNOWN_NAME_MAX, key);
        unknown_note(u, path, nearest, n);
    }
}

void unknown_members(struct unknown *u, const json_t *body)
{
    for (size_t i = 0; i < sizeof nested / sizeof *nested; i++) {
        const json_t *v = json_object_get(body, nested[i].field);
        for (size_t k = 0; json_is_array(v) && k < json_array_size(v) && k < ITEMS_MAX; k++)
            look(u, &nested[i], json_array_get(v, k), (int)k);
        if (json_is_object(v))
            look(u, &nested[i], v, -1);
    }
}

FALLIBLE unknown_check(const struct unknown *u, bool strict, struct q_err *e)
{
    if (!u->n || !strict)
        return Q_OK;
    if (*u->meant)
        return q_fail(e, Q_INVALID, "%s: unknown field (--strict-fields); did you mean %s?",
                      u->first, u->meant);
    return q_fail(e, Q_INVALID, "%s: unknown field (--strict-fields)", u->first);
}
