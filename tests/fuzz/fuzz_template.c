/* SPDX-License-Identifier: Apache-2.0 */
/* Chat templates of arbitrary bytes, rendered with a conversation under small limits: text or a
 * reason, the same twice. */
#include <stdlib.h>
#include "common/utf8.h"
#include "frontend/template/template.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static const char conversation[] =
    "{\"messages\": [{\"role\": \"system\", \"content\": \" S\\u00e9 \"}, {\"role\": \"user\", "
    "\"content\": [{\"type\": \"text\", "
    "\"text\": \"<a> \\ud83d\\ude00\"}]}, {\"role\": \"assistant\", \"content\": \"\", "
    "\"tool_calls\": [{\"function\": {\"name\": "
    "\"f\", \"arguments\": {\"x\": 1.5, \"y\": [true, null, -7]}}}]}], \"tools\": [{\"type\": "
    "\"function\", \"function\": {\"name\": "
    "\"f\", \"parameters\": {\"properties\": {\"x\": {\"type\": \"number\"}}}}}], \"bos_token\": "
    "\"<s>\", \"x\": 3, \"s\": \"a,b c\", "
    "\"add_generation_prompt\": true}";

static enum q_code render(const struct template *t, const json_t *variables, struct buf *out)
{
    static const struct template_limits limits = {1u << 18, 8u << 20, 200000, 250};
    const struct template_run run = {.variables = variables, .now = 1700000000, .limits = &limits};
    struct template_fault fault;
    struct q_err e = Q_ERR_INIT;
    enum q_code rc = template_render(t, &run, out, &fault, &e);
    Q_ASSERT(rc == e.code &&
             (rc == Q_OK || rc == Q_INVALID || rc == Q_TOO_LARGE || rc == Q_NO_MEMORY));
    Q_ASSERT(rc == Q_OK || fault.type[0]);
    Q_ASSERT(utf8_valid(e.message, strlen(e.message)));
    Q_ASSERT(utf8_valid(buf_str(out), out->len));
    return rc;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    static json_t *variables;
    struct template *t = NULL;
    struct template_fault fault = {0};
    struct q_err e = Q_ERR_INIT;
    if (!variables)
        variables = json_loads(conversation, 0, NULL);
    enum q_code rc = template_compile(&t, (const char *)data, n, &fault, &e);
    Q_ASSERT(rc == e.code);
    if (rc) {
        Q_ASSERT(rc == Q_TOO_LARGE || rc == Q_NO_MEMORY || (fault.line > 0 && fault.column > 0));
        return 0;
    }
    struct buf first = BUF_INIT, second = BUF_INIT;
    rc = render(t, variables, &first);
    Q_ASSERT(rc == render(t, variables, &second));
    Q_ASSERT(first.len == second.len && memcmp(buf_str(&first), buf_str(&second), first.len) == 0);
    buf_release(&first);
    buf_release(&second);
    template_free(t);
    return 0;
}
