/* SPDX-License-Identifier: Apache-2.0 */
/* Formats are detected by the chat template's text, which contains the tags of the model's
 * training data. */
#include <string.h>
#include "common/parsers/parser_internal.h"

#define MARKS 3

struct row {
    const char *name;
    const char *marks[MARKS]; /* all of them */
};
/* clang-format off */
#define DETECT_TOOL(n, ...) {n, {__VA_ARGS__}},
#define DETECT_REASONING(n, ...)
static const struct row tools[] = {
#include "common/parsers/detect.def"
};
#define DETECT_TOOL(n, ...)
#define DETECT_REASONING(n, ...) {n, {__VA_ARGS__}},
static const struct row reasonings[] = {
#include "common/parsers/detect.def"
};
/* clang-format on */

static const char *find_format(const struct row *rows, size_t n, const char *text)
{
    for (size_t i = 0; i < n; i++) {
        int k = 0;
        while (k < MARKS && rows[i].marks[k] && strstr(text, rows[i].marks[k]))
            k++;
        if (k == MARKS || !rows[i].marks[k])
            return rows[i].name;
    }
    return NULL;
}

struct parser_detected parser_detect(const char *text)
{
    return (struct parser_detected){
        find_format(tools, sizeof tools / sizeof *tools, text),
        find_format(reasonings, sizeof reasonings / sizeof *reasonings, text)};
}

/* Behind `text` in `in`, NULL if it is not there. */
static const char *behind(const char *in, const char *text)
{
    const char *at = strstr(in, text);
    return at ? at + strlen(text) : NULL;
}

/* "set NAME = 'VALUE'": the value of a variable that is set once, as a text. */
static const char *value_of(const char *in, const char *name, size_t n)
{
    for (const char *at = behind(in, "set "); at; at = behind(at, "set ")) {
        at += strspn(at, " ");
        if (strncmp(at, name, n) != 0)
            continue;
        const char *value = at + n + strspn(at + n, " ");
        if (*value != '=')
            continue;
        value++;
        value += strspn(value, " ");
        return *value == '\'' || *value == '"' ? value + 1 : NULL;
    }
    return NULL;
}

/* Templates write <arg_key:name>, or '<arg_key{}>'.format(VARIABLE). */
void parser_suffix(const char *text, char *out)
{
    const char *suffix = strstr(text, "<arg_key:"), *variable = behind(text, "<arg_key{}>");
    out[0] = 0;
    if (suffix) {
        suffix += strlen("<arg_key");
    } else if (variable) {
        variable = behind(variable, ".format(");
        variable += variable ? strspn(variable, " ") : 0;
        suffix = variable ? value_of(text, variable, strcspn(variable, " )")) : NULL;
    }
    size_t n = suffix ? tag_suffix(suffix, strlen(suffix)) : 0;
    if (n > 1 && strchr(">'\"", suffix[n])) {
        memcpy(out, suffix, n);
        out[n] = 0;
    }
}
