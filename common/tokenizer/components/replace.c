/* SPDX-License-Identifier: Apache-2.0 */
#include "common/tokenizer/components/replace.h"
#include "common/mem.h"

FALLIBLE replace_load(void **self, const json_t *spec, const char *at, struct q_err *e)
{
    enum q_code rc;
    struct tok_str content;
    struct replace *r = q_calloc(1, sizeof *r);
    if (!r)
        return q_fail(e, Q_NO_MEMORY, "out of memory loading %s", at);
    *self = r;
    if ((rc = tok_json_str(spec, "content", at, &content, e)) ||
        (rc = tok_pattern(spec, at, &r->pattern, e)))
        return rc;
    r->content = q_strndup(content.s, content.n);
    r->n = content.n;
    return r->content ? Q_OK : q_fail(e, Q_NO_MEMORY, "out of memory loading %s", at);
}

void replace_drop(void *self)
{
    struct replace *r = self;
    if (!r)
        return;
    tok_regex_free(r->pattern.regex);
    q_free(r->pattern.string);
    q_free(r->content);
    q_free(r);
}
