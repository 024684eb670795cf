/* SPDX-License-Identifier: Apache-2.0 */
/* Tools of a request, as JSON of arbitrary bytes, turned into the grammar of calls in a format: a
 * structural tag, nothing, or a reason. The first byte chooses the format and what is asked for. */
#include <stdlib.h>
#include <string.h>
#include "common/parsers/call_grammar.h"
#include "common/parsers/parser.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    const char *const *names = parser_tool_names();
    struct q_err e = Q_ERR_INIT;
    size_t n_name = 0, i;
    json_t *out = NULL, *tool;
    if (n < 2)
        return 0;
    while (names[n_name])
        n_name++;
    json_t *tools = json_loadb((const char *)data + 2, n - 2, 0, NULL);
    json_array_foreach (tools, i, tool) /* what a request is refused for before */
        if (!json_is_string(json_object_get(json_object_get(tool, "function"), "name"))) {
            json_decref(tools);
            return 0;
        }
    json_t *answer = json_pack("{s:s,s:s}", "type", "const_string", "value", "yes");
    const struct call_grammar f = {
        .tool = names[data[0] % n_name],
        .template = data[1] & 4 ? "[ARGS]<|function_call|>```json" : NULL,
        .tools = tools,
        .required = data[1] & 1,
        .answer = data[1] & 8 ? answer : NULL,
        .parallel = data[1] & 2,
    };
    enum q_code rc = json_is_array(tools) ? call_grammar_tools(&out, &f, &e) : Q_INVALID;
    Q_ASSERT(rc == Q_OK || rc == Q_INVALID || rc == Q_UNSUPPORTED);
    Q_ASSERT(rc == Q_OK || !out);
    if (out) {
        char *text = json_dumps(out, JSON_COMPACT);
        Q_ASSERT(text);
        free(text);
    }
    json_decref(out);
    json_decref(answer);
    json_decref(tools);
    return 0;
}
