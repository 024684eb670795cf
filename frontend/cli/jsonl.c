/* SPDX-License-Identifier: Apache-2.0 */
#include "frontend/cli/jsonl.h"
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include "common/buf.h"
#include "common/json_read.h"
#include "common/log.h"
#include "common/mem.h"
#include "common/utf8.h"

static void print(json_t *out)
{
    json_dumpf(out, stdout, JSON_COMPACT | JSON_ENSURE_ASCII);
    putchar('\n');
    fflush(stdout);
    json_decref(out);
}

static void one_line(jsonl_answer *answer, void *ctx, const struct buf *line, uint64_t i_line)
{
    struct q_err e = Q_ERR_INIT;
    json_error_t at;
    const uint64_t n_failure = mem_failure_count();
    const size_t mark = utf8_mark(buf_str(line), line->len);
    json_t *out = NULL,
           *in = json_read_bytes(buf_str(line) + mark, line->len - mark, JSON_ALLOW_NUL, &at);
    enum q_code rc;
    if (line->failed == Q_NO_MEMORY)
        rc = q_fail(&e, Q_NO_MEMORY, "out of memory for a line");
    else if (line->failed)
        rc = q_fail(&e, Q_TOO_LARGE, "line %llu exceeds %u bytes", (unsigned long long)i_line,
                    JSONL_LINE_MAX);
    else if (!in)
        rc = q_fail(&e, Q_INVALID, "line %llu is not a JSON object: column %d: %s",
                    (unsigned long long)i_line, at.column, at.text);
    else if (!json_is_object(in))
        rc = q_fail(&e, Q_INVALID, "line %llu: expected a JSON object", (unsigned long long)i_line);
    else
        rc = answer(ctx, in, &out, &e);
    rc = mem_check(n_failure, rc, "a line", &e);
    if (!out)
        out = json_object();
    if (rc != Q_OK)
        json_object_set_new(out, "error", json_string(e.message));
    print(out);
    json_decref(in);
}

/* Read the next line, without its end. False: none. */
static bool next_line(struct buf *line)
{
    int c;
    buf_reset(line);
    while ((c = getc_unlocked(stdin)) != EOF && c != '\n')
        buf_add_char(line, (char)c);
    return c != EOF || line->len;
}

int jsonl_run(jsonl_answer *answer, void *ctx)
{
    struct buf line = BUF_INIT_MAX(JSONL_LINE_MAX);
    const uint64_t n_failure = mem_failure_count();
    for (uint64_t i_line = 1; next_line(&line); i_line++)
        if (line.failed || strspn(buf_str(&line), " \t\r") < line.len)
            one_line(answer, ctx, &line, i_line);
    buf_release(&line);
    if (mem_failure_count() != n_failure) {
        log_error("out of memory: an answer is missing, or not whole");
        return 1;
    }
    if (!ferror(stdin) && !ferror(stdout))
        return 0;
    log_error("standard %s: %s", ferror(stdin) ? "input" : "output", strerror(errno));
    return 1;
}

FALLIBLE jsonl_member(const json_t *in, const char *name, json_type type, const json_t **out,
                      struct q_err *e)
{
    static const char *const names[] = {"an object", "an array",      "a string",      "an integer",
                                        "a number",  "true or false", "true or false", "null"};
    const json_t *v = json_object_get(in, name);
    *out = NULL;
    if (!v || json_is_null(v))
        return Q_OK;
    if (json_typeof(v) != type && !(type == JSON_TRUE && json_is_boolean(v)))
        return q_fail(e, Q_INVALID, "%s: expected %s", name, names[type]);
    *out = v;
    return Q_OK;
}

FALLIBLE jsonl_only(const json_t *in, const char *const *names, struct q_err *e)
{
    const char *key;
    json_t *value;
    json_object_foreach ((json_t *)in, key, value) {
        struct buf all = BUF_INIT;
        size_t i = 0;
        while (names[i] && strcmp(names[i], key) != 0)
            i++;
        if (names[i])
            continue;
        for (i = 0; names[i]; i++)
            buf_printf(&all, "%s%s", i ? ", " : "", names[i]);
        q_fail(e, Q_INVALID, "unknown field \"%.40s\"; accepted are %s", key, buf_str(&all));
        buf_release(&all);
        return Q_INVALID;
    }
    return Q_OK;
}
