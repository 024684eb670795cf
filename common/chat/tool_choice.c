/* SPDX-License-Identifier: Apache-2.0 */
/* Tools that are not allowed are left out of the prompt too: models call the tools that the prompt
 * lists, and under "auto" only a grammar over the whole answer could prevent that. */
#include "common/chat/tool_choice.h"
#include <stdbool.h>
#include <string.h>

#define ALLOWED_MAX 1024 /* as many as there can be tools */
#define ACCEPTED                                                                             \
    "accepted are \"none\", \"auto\", \"required\", {\"type\": \"function\", \"function\": " \
    "{\"name\": …}} and {\"type\": \"allowed_tools\", \"allowed_tools\": {\"mode\": …, " \
    "\"tools\": […]}}"

/* {"function": {"name": "f"}} or {"name": "f"}; NULL: neither */
static const char *function_name(const json_t *v)
{
    const char *name = json_string_value(json_object_get(json_object_get(v, "function"), "name"));
    return name ? name : json_string_value(json_object_get(v, "name"));
}

static FALLIBLE read_mode(enum tool_mode *out, const char *text, struct q_err *e)
{
    static const char *const modes[] = {
        [TOOL_NONE] = "none",
        [TOOL_AUTO] = "auto",
        [TOOL_REQUIRED] = "required",
    };
    for (size_t i = 0; i < sizeof modes / sizeof *modes; i++)
        if (!strcmp(text, modes[i])) {
            *out = (enum tool_mode)i;
            return Q_OK;
        }
    return q_fail(e, Q_INVALID, "tool_choice: unknown value \"%.24s\"; " ACCEPTED, text);
}

static FALLIBLE read_allowed(struct tool_choice *out, const json_t *choice, struct q_err *e)
{
    const json_t *nested = json_object_get(choice, "allowed_tools"), *list;
    const char *mode = json_string_value(json_object_get(nested ? nested : choice, "mode"));
    list = json_object_get(nested ? nested : choice, "tools");
    if (!mode || (strcmp(mode, "auto") != 0 && strcmp(mode, "required") != 0))
        return q_fail(e, Q_INVALID,
                      "tool_choice: allowed_tools: unknown mode \"%.40s\"; accepted are \"auto\" "
                      "and \"required\"",
                      mode ? mode : "");
    if (json_array_size(list) == 0 || json_array_size(list) > ALLOWED_MAX)
        return q_fail(e, Q_INVALID,
                      "tool_choice: allowed_tools: \"tools\" must be a list of 1 to %d functions",
                      ALLOWED_MAX);
    out->allowed = list;
    return read_mode(&out->mode, mode, e);
}

FALLIBLE tool_choice_read(struct tool_choice *out, const json_t *choice, struct q_err *e)
{
    const char *type = json_string_value(json_object_get(choice, "type"));
    *out = (struct tool_choice){.mode = TOOL_AUTO};
    if (!choice || json_is_null(choice))
        return Q_OK;
    if (json_is_string(choice))
        return read_mode(&out->mode, json_string_value(choice), e);
    if (!json_is_object(choice))
        return q_fail(e, Q_INVALID, "tool_choice: expected a string or an object; " ACCEPTED);
    if (type && !strcmp(type, "allowed_tools"))
        return read_allowed(out, choice, e);
    out->mode = TOOL_REQUIRED;
    out->name = function_name(choice);
    if (out->name)
        return Q_OK;
    return q_fail(e, Q_INVALID,
                  "tool_choice: an object of type \"%.24s\" without a function name; " ACCEPTED,
                  type ? type : "");
}

static bool lists(const json_t *tools, const char *name)
{
    size_t i;
    json_t *tool;
    json_array_foreach ((json_t *)tools, i, tool) {
        const char *other = function_name(tool);
        if (other && !strcmp(other, name))
            return true;
    }
    return false;
}

FALLIBLE tool_choice_apply(const struct tool_choice *c, json_t *tools, struct q_err *e)
{
    size_t i;
    json_t *allowed;
    if (!c->allowed)
        return Q_OK;
    json_array_foreach ((json_t *)c->allowed, i, allowed) {
        const char *type = json_string_value(json_object_get(allowed, "type")),
                   *name = function_name(allowed);
        if (!name || (type && strcmp(type, "function") != 0))
            return q_fail(e, Q_INVALID,
                          "tool_choice: allowed_tools: entry %zu has no function name; expected "
                          "{\"type\": \"function\", \"function\": {\"name\": …}}",
                          i);
        if (!lists(tools, name))
            return q_fail(
                e, Q_INVALID,
                "tool_choice: allowed_tools: entry %zu: \"tools\" has no function \"%.60s\"", i,
                name);
    }
    for (i = json_array_size(tools); i-- > 0;)
        if (!lists(c->allowed, function_name(json_array_get(tools, i))))
            json_array_remove(tools, i);
    return Q_OK;
}
