/* SPDX-License-Identifier: Apache-2.0 */
/* quire-tokenize: a tokenizer without a server. One JSON object per input and output line:
 *
 *   {"text": "…", "add_special_tokens": true}                   {"ids": […]}
 *   {"text": "…", "content_ranges": [[from, to], …]}            {"ids": […]}: no control tokens in
 *                                                               these bytes of it
 *   {"ids": […], "skip_special_tokens": true}                   {"text": "…"}
 *   {"ids": […], "stream": true}                                {"pieces": ["…", …], "flush": "…"}
 *
 * A line with a fault is answered with {"error": "…"}, and processing continues. */
#include <stdio.h>
#include <string.h>
#include "common/hub/hub.h"
#include "common/json_read.h"
#include "common/mem.h"
#include "common/options.h"
#include "common/tokenizer/stream.h"
#include "common/tokenizer/tokenizer.h"
#include "common/utf8.h"
#include <jansson.h>

/* a text of 64 MiB with each byte escaped as \u00XX */
#define LINE_MAX_BYTES ((size_t)512 << 20)

struct line { /* one input line; absent fields have their defaults */
    json_t *root;
    const json_t *text, *ids; /* one of them is set */
    struct ranges content;
    bool add_special, skip_special, stream, limits;
};

static enum q_code read_bool(const json_t *root, const char *key, bool *out, struct q_err *e)
{
    const json_t *v = json_object_get(root, key);
    if (v && !json_is_boolean(v))
        return q_fail(e, Q_INVALID, "%s: expected true or false", key);
    if (v)
        *out = json_is_true(v);
    return Q_OK;
}

static enum q_code check_keys(const json_t *root, struct q_err *e)
{
    static const char *const known[] = {"text",
                                        "ids",
                                        "add_special_tokens",
                                        "skip_special_tokens",
                                        "stream",
                                        "truncate_and_pad",
                                        "content_ranges"};
    const char *key;
    json_t *value;
    json_object_foreach ((json_t *)root, key, value) {
        bool found = false;
        for (size_t i = 0; i < sizeof known / sizeof *known; i++)
            found = found || strcmp(known[i], key) == 0;
        if (!found)
            return q_fail(e, Q_INVALID,
                          "unknown field \"%.40s\"; accepted are text, ids, add_special_tokens, "
                          "skip_special_tokens, stream, truncate_and_pad, content_ranges",
                          key);
    }
    return Q_OK;
}

static enum q_code read_ranges(struct ranges *out, const json_t *list, size_t n, struct q_err *e)
{
    enum q_code rc = Q_OK;
    size_t done = 0, i;
    json_t *pair;
    if (list && !json_is_array(list))
        return q_fail(e, Q_INVALID, "content_ranges: expected an array of [from, to]");
    json_array_foreach ((json_t *)list, i, pair) {
        json_int_t from = json_integer_value(json_array_get(pair, 0));
        json_int_t to = json_integer_value(json_array_get(pair, 1));
        if (json_array_size(pair) != 2 || from < (json_int_t)done || to < from ||
            to > (json_int_t)n)
            return q_fail(e, Q_INVALID,
                          "content_ranges[%zu]: expected [from, to], byte offsets in the text, in "
                          "ascending order",
                          i);
        done = (size_t)to;
        if ((rc = ranges_add(out, (size_t)from, (size_t)to, e)))
            return rc;
    }
    return rc;
}

static enum q_code read_line(struct line *l, const struct buf *text, struct q_err *e)
{
    json_error_t why;
    enum q_code rc;
    const size_t mark = utf8_mark(buf_str(text), text->len);
    l->root = json_read_bytes(buf_str(text) + mark, text->len - mark, JSON_ALLOW_NUL, &why);
    if (!l->root)
        return q_fail(e, Q_INVALID, "not valid JSON: column %d: %.120s", why.column, why.text);
    if (!json_is_object(l->root))
        return q_fail(e, Q_INVALID, "expected an object with \"text\" or \"ids\"");
    l->text = json_object_get(l->root, "text");
    l->ids = json_object_get(l->root, "ids");
    l->add_special = l->skip_special = true;
    if ((rc = check_keys(l->root, e)) ||
        (rc = read_bool(l->root, "add_special_tokens", &l->add_special, e)) ||
        (rc = read_bool(l->root, "skip_special_tokens", &l->skip_special, e)) ||
        (rc = read_bool(l->root, "stream", &l->stream, e)) ||
        (rc = read_bool(l->root, "truncate_and_pad", &l->limits, e)))
        return rc;
    if (!l->text == !l->ids)
        return q_fail(e, Q_INVALID, "expected one of \"text\" and \"ids\"");
    if (l->text && !json_is_string(l->text))
        return q_fail(e, Q_INVALID, "text: expected a string");
    if (l->ids && !json_is_array(l->ids))
        return q_fail(e, Q_INVALID, "ids: expected an array of token ids");
    return read_ranges(&l->content, json_object_get(l->root, "content_ranges"),
                       json_string_length(l->text), e);
}

static enum q_code encode(const struct tokenizer *t, const struct line *l, struct buf *out,
                          struct q_err *e)
{
    struct token_list ids = TOKEN_LIST_INIT;
    const char *text = json_string_value(l->text);
    size_t n = json_string_length(l->text);
    const struct tokenizer_text whole = {.data = text, .n = n, .content = &l->content};
    enum q_code rc = l->limits ? tokenizer_encode_limited(t, text, n, l->add_special, &ids, e)
                               : tokenizer_encode_prompt(t, &whole, l->add_special, &ids, e);
    if (!rc) {
        buf_add_str(out, "{\"ids\":[");
        for (size_t i = 0; i < ids.n; i++)
            buf_printf(out, "%s%u", i ? "," : "", ids.ids[i]);
        buf_add_str(out, "]}");
    }
    token_list_release(&ids);
    return rc;
}

static enum q_code read_ids(const json_t *list, struct token_list *ids, struct q_err *e)
{
    enum q_code rc = Q_OK;
    for (size_t i = 0; i < json_array_size(list) && !rc; i++) {
        const json_t *v = json_array_get(list, i);
        json_int_t id = json_integer_value(v);
        if (!json_is_integer(v) || id < 0 || id > UINT32_MAX)
            return q_fail(e, Q_INVALID, "ids[%zu]: expected a token id", i);
        rc = token_list_add(ids, (uint32_t)id, e);
    }
    return rc;
}

static enum q_code stream(const struct tokenizer *t, const struct line *l,
                          const struct token_list *ids, struct buf *out, struct q_err *e)
{
    struct detok *d = NULL;
    struct buf piece = BUF_INIT;
    enum q_code rc = detok_new(&d, t, l->skip_special, e);
    buf_add_str(out, "{\"pieces\":[");
    for (size_t i = 0; i < ids->n && !rc; i++) {
        buf_reset(&piece);
        rc = detok_push(d, ids->ids[i], &piece, e);
        buf_add_str(out, i ? "," : "");
        buf_add_json_str(out, buf_str(&piece), piece.len);
    }
    buf_reset(&piece);
    if (!rc)
        rc = detok_flush(d, &piece, e);
    buf_add_str(out, "],\"flush\":");
    buf_add_json_str(out, buf_str(&piece), piece.len);
    buf_add_char(out, '}');
    detok_free(d);
    buf_release(&piece);
    return rc;
}

static enum q_code decode(const struct tokenizer *t, const struct line *l, struct buf *out,
                          struct q_err *e)
{
    struct token_list ids = TOKEN_LIST_INIT;
    struct buf text = BUF_INIT;
    enum q_code rc = read_ids(l->ids, &ids, e);
    if (!rc && l->stream)
        rc = stream(t, l, &ids, out, e);
    else if (!rc && !(rc = tokenizer_decode(t, ids.ids, ids.n, l->skip_special, &text, e))) {
        buf_add_str(out, "{\"text\":");
        buf_add_json_str(out, buf_str(&text), text.len);
        buf_add_char(out, '}');
    }
    token_list_release(&ids);
    buf_release(&text);
    return rc;
}

static void answer(const struct tokenizer *t, const struct buf *text, struct buf *out)
{
    struct q_err e = Q_ERR_INIT;
    struct line l = {0};
    const uint64_t n_failure = mem_failure_count();
    enum q_code rc = read_line(&l, text, &e);
    if (!rc)
        rc = l.text ? encode(t, &l, out, &e) : decode(t, &l, out, &e);
    if (!rc)
        rc = buf_check(out, "the answer", &e);
    rc = mem_check(n_failure, rc, "the line", &e);
    if (rc) {
        buf_reset(out);
        buf_add_str(out, "{\"error\":");
        buf_add_json_str(out, e.message, strlen(e.message));
        buf_add_char(out, '}');
    }
    json_decref(l.root);
    ranges_release(&l.content);
}

/* Read the next line without its newline; false at the end. */
static bool next_line(FILE *in, struct buf *line)
{
    int c;
    buf_reset(line);
    while ((c = getc_unlocked(in)) != EOF && c != '\n')
        buf_add_char(line, (char)c);
    return c != EOF || line->len;
}

static int answer_all(const struct tokenizer *t)
{
    struct buf line = BUF_INIT_MAX(LINE_MAX_BYTES);
    struct buf out = BUF_INIT;
    const uint64_t n_failure = mem_failure_count();
    while (next_line(stdin, &line)) {
        if (line.len == 0 && !line.failed)
            continue;
        buf_reset(&out);
        if (line.failed == Q_NO_MEMORY)
            buf_add_str(&out, "{\"error\":\"out of memory for the line\"}");
        else if (line.failed)
            buf_printf(&out, "{\"error\":\"the line exceeds %zu bytes\"}", LINE_MAX_BYTES);
        else
            answer(t, &line, &out);
        buf_add_char(&out, '\n');
        fwrite(buf_str(&out), 1, out.len, stdout);
        if (fflush(stdout))
            return 1;
    }
    buf_release(&line);
    buf_release(&out);
    if (mem_failure_count() != n_failure) {
        fprintf(stderr, "quire tokenize: out of memory: an answer is missing, or not whole\n");
        return 1;
    }
    return ferror(stdin) ? 1 : 0;
}

static enum q_code open_model(struct tokenizer **t, const struct options *o, struct q_err *e)
{
    char path[PATH_MAX];
    enum q_code rc =
        hub_find_tokenizer(path, o->positional[0], *o->revision ? o->revision : NULL, e);
    return rc ? rc : tokenizer_open(t, path, e);
}

int main(int argc, char **argv)
{
    static struct options o;
    static const struct program_info info = {
        .program = FOR_TOKENIZE,
        .name = "quire tokenize",
        .usage = "MODEL [options] < LINES",
        .about =
            "Converts text to token ids and back, without a server. MODEL is a model id, or a "
            "folder or "
            "file of a tokenizer. Each line of standard input is a JSON object:\n"
            "\"text\": \"…\"\ttext to encode; the output line is {\"ids\": […]}\n"
            "\"add_special_tokens\": true\tadd the tokens that begin and end a text\n"
            "\"content_ranges\": [[0, 9], …]\tbyte ranges in which no control tokens are "
            "recognized\n"
            "\"truncate_and_pad\": true\tapply the truncation and padding of the tokenizer file, "
            "which "
            "servers ignore\n"
            "\"ids\": […]\ttoken ids to decode; the output line is {\"text\": \"…\"}\n"
            "\"skip_special_tokens\": true\tleave special tokens out of the text\n"
            "\"stream\": true\tdecode id by id; the output line is {\"pieces\": [one for each id], "
            "\"flush\": \"…\"}",
        .positional_min = 1,
        .positional_max = 1,
    };
    struct q_err e = Q_ERR_INIT;
    struct tokenizer *t = NULL;
    int code = options_main(&o, &info, argc, argv);
    if (code >= 0)
        return code;
    if (open_model(&t, &o, &e)) {
        fprintf(stderr, "quire tokenize: %s\n", e.message);
        return 3;
    }
    code = answer_all(t);
    tokenizer_free(t);
    return code;
}
