/* SPDX-License-Identifier: Apache-2.0 */
/* The tables of formats with their names and aliases. Both tables have the name "none". */
#include <string.h>
#include "common/parsers/stage.h"

#define NAMES_MAX 850 /* bytes of a list of names in a message */
#define ALIKE     3   /* first bytes of a name */

/* clang-format off */
const struct tool_format tool_formats[] = {
#define TOOL(n, f, ...) {.name = n, .family = &family_##f, __VA_ARGS__},
#include "common/parsers/tools.def"
};
static const char *const tool_names[] = {
#define TOOL(n, f, ...) n,
#include "common/parsers/tools.def"
    NULL
};
static const struct reasoning_format reasoning_formats[] = {
#define REASONING(n, ...) {.name = n, __VA_ARGS__},
#include "common/parsers/reasonings.def"
};
static const char *const reasoning_names[] = {
#define REASONING(n, ...) n,
#include "common/parsers/reasonings.def"
    "none", NULL
};
#define ALIAS_TOOL(n, row) {n, row},
#define ALIAS_REASONING(n, row)
static const struct parser_alias tool_aliases[] = {
#include "common/parsers/aliases.def"
    {NULL, NULL},
};
#define ALIAS_TOOL(n, row)
#define ALIAS_REASONING(n, row) {n, row},
static const struct parser_alias reasoning_aliases[] = {
#include "common/parsers/aliases.def"
    {NULL, NULL},
};
/* clang-format on */
const size_t n_tool_format = sizeof tool_formats / sizeof *tool_formats;

const char *const *parser_tool_names(void)
{
    return tool_names;
}

const char *const *parser_reasoning_names(void)
{
    return reasoning_names;
}

const struct parser_alias *parser_tool_aliases(void)
{
    return tool_aliases;
}

const struct parser_alias *parser_reasoning_aliases(void)
{
    return reasoning_aliases;
}

static const char *row_named(const char *const *names, const struct parser_alias *alias,
                             const char *name)
{
    for (; alias->name; alias++)
        if (strcmp(alias->name, name) == 0)
            name = alias->row;
    while (*names && strcmp(*names, name) != 0)
        names++;
    return *names;
}

const char *parser_tool_row(const char *name)
{
    return row_named(tool_names, tool_aliases, name);
}

const char *parser_reasoning_row(const char *name)
{
    return row_named(reasoning_names, reasoning_aliases, name);
}

const struct tool_format *tool_format_named(const char *name)
{
    const char *row = parser_tool_row(name);
    for (size_t i = 0; row && i < n_tool_format; i++)
        if (strcmp(tool_formats[i].name, row) == 0)
            return &tool_formats[i];
    return NULL;
}

const struct reasoning_format *reasoning_format_named(const char *name)
{
    const char *row = name ? parser_reasoning_row(name) : NULL;
    for (size_t i = 0; row && i < sizeof reasoning_formats / sizeof *reasoning_formats; i++)
        if (strcmp(reasoning_formats[i].name, row) == 0)
            return &reasoning_formats[i];
    return NULL;
}

/* The names and aliases that begin alike, then the other names; the other aliases would be too many
 * for the message. */
static enum q_code unknown(const char *what, const char *name, const char *const *names,
                           const struct parser_alias *alias, struct q_err *e)
{
    struct buf list = BUF_INIT;
    for (int alike = 1; alike >= 0; alike--) {
        for (size_t i = 0; names[i] && list.len < NAMES_MAX; i++)
            if ((strncmp(names[i], name, ALIKE) == 0) == alike)
                buf_printf(&list, "%s%s", list.len ? " " : "", names[i]);
        for (size_t i = 0; alike && alias[i].name; i++)
            if (strncmp(alias[i].name, name, ALIKE) == 0)
                buf_printf(&list, "%s%s", list.len ? " " : "", alias[i].name);
    }
    q_fail(e, Q_NOT_FOUND, "%s \"%.40s\" does not exist; expected one of: %s%s", what, name,
           buf_str(&list), list.len < NAMES_MAX ? "" : " \u2026");
    buf_release(&list);
    return Q_NOT_FOUND;
}

enum q_code tool_format_unknown(const char *name, struct q_err *e)
{
    return unknown("tool-call parser", name, tool_names, tool_aliases, e);
}

enum q_code reasoning_format_unknown(const char *name, struct q_err *e)
{
    return unknown("reasoning parser", name, reasoning_names, reasoning_aliases, e);
}
