/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/library/generate_input.h"
#include <errno.h>
#include <stddef.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "common/json_read.h"
#include "common/mem.h"
#include "common/parse.h"
#include "common/utf8.h"

#define PROMPT_BYTES_MAX ((size_t)64 << 20)
#define PROMPT_IDS_MAX   ((size_t)1 << 24)
#define ANSWERS_MAX      128
#define STOPS_MAX        64

void generate_prompt_release(struct generate_prompt *p)
{
    q_free(p->ids);
    q_free(p->stops);
    for (size_t i = 0; i < GENERATE_CHAT_FIELDS; i++)
        buf_release(&p->chat[i]);
    item_list_release(&p->items);
    q_free(p->inputs);
    json_decref(p->line);
    *p = (struct generate_prompt){.text = NULL};
}

/* Fields of a line that are fields of quire_params. */
static const struct {
    const char *name;
    size_t offset;
    enum { LINE_F32, LINE_U32, LINE_I32, LINE_I64, LINE_BOOL } type;
} fields[] = {
#define FIELD(type, name) NAMED(type, name, name)
#define NAMED(type, name, field)                                 \
    {                                                            \
#name, offsetof(struct quire_params, field), LINE_##type \
    }
    FIELD(F32, temperature),
    FIELD(F32, top_p),
    FIELD(F32, min_p),
    FIELD(I64, top_k),
    FIELD(F32, repetition_penalty),
    FIELD(F32, presence_penalty),
    FIELD(F32, frequency_penalty),
    FIELD(I64, seed),
    FIELD(U32, max_tokens),
    NAMED(U32, max_completion_tokens, max_tokens),
    FIELD(U32, min_tokens),
    FIELD(U32, thinking_token_budget),
    FIELD(BOOL, ignore_eos),
    FIELD(I32, logprobs),
    FIELD(I32, priority),
    FIELD(BOOL, parallel_tool_calls),
    FIELD(BOOL, continue_final_message),
#undef FIELD
#undef NAMED
};

/* Those that are JSON in both. */
static const struct {
    const char *name;
    size_t offset;
} chat_fields[GENERATE_CHAT_FIELDS] = {
    {"messages", offsetof(struct quire_params, messages_json)},
    {"tools", offsetof(struct quire_params, tools_json)},
    {"tool_choice", offsetof(struct quire_params, tool_choice_json)},
    {"chat_template_kwargs", offsetof(struct quire_params, chat_template_kwargs_json)},
    {"documents", offsetof(struct quire_params, documents_json)},
};

bool generate_prompt_has_messages(const struct generate_prompt *p)
{
    return p->chat[0].len > 0;
}

static int add_piece(const char *text, size_t n, void *out)
{
    buf_add(out, text, n);
    return 0;
}

static FALLIBLE take_chat(struct generate_prompt *p, struct q_err *e)
{
    enum q_code rc = Q_OK;
    for (size_t i = 0; i < GENERATE_CHAT_FIELDS && !rc; i++) {
        const json_t *v = json_object_get(p->line, chat_fields[i].name);
        if (!v || json_is_null(v))
            continue;
        json_dump_callback(v, add_piece, &p->chat[i],
                           JSON_COMPACT | JSON_ENCODE_ANY | JSON_REAL_PRECISION(17));
        rc = buf_check(&p->chat[i], chat_fields[i].name, e);
    }
    return rc;
}

static FALLIBLE set_field(struct quire_params *q, size_t i, const json_t *v, struct q_err *e)
{
    void *to = (char *)q + fields[i].offset;
    json_int_t n = json_integer_value(v);
    bool fits = json_is_integer(v);
    switch (fields[i].type) {
    case LINE_F32:
        fits = json_is_number(v);
        *(float *)to = (float)json_number_value(v);
        break;
    case LINE_U32:
        fits = fits && n >= 0 && n <= UINT32_MAX;
        *(uint32_t *)to = (uint32_t)n;
        break;
    case LINE_I32:
        fits = fits && n >= INT32_MIN && n <= INT32_MAX;
        *(int32_t *)to = (int32_t)n;
        break;
    case LINE_I64:
        *(int64_t *)to = n;
        break;
    case LINE_BOOL:
        fits = json_is_boolean(v);
        *(bool *)to = json_is_true(v);
        break;
    }
    if (fits)
        return Q_OK;
    return q_fail(e, Q_INVALID, "%s: expected %s", fields[i].name,
                  fields[i].type == LINE_F32    ? "a number"
                  : fields[i].type == LINE_BOOL ? "true or false"
                                                : "a whole number");
}

FALLIBLE generate_prompt_params(const struct generate_prompt *p, struct quire_params *q,
                                struct q_err *e)
{
    const char *key;
    json_t *v;
    enum q_code rc = Q_OK;
    json_object_foreach (p->line, key, v) {
        for (size_t i = 0; i < sizeof fields / sizeof *fields && !rc; i++)
            if (!strcmp(key, fields[i].name) && !json_is_null(v))
                rc = set_field(q, i, v, e);
    }
    for (size_t i = 0; i < GENERATE_CHAT_FIELDS; i++)
        if (p->chat[i].len)
            memcpy((char *)q + chat_fields[i].offset, &p->chat[i].data, sizeof p->chat[i].data);
    v = json_object_get(p->line, "thinking_token_budget");
    q->has_thinking_budget = v && !json_is_null(v);
    q->inputs = p->inputs;
    q->n_input = p->items.n;
    q->input_files = true; /* the user's own lines */
    v = json_object_get(p->line, "adapter");
    if (json_is_string(v))
        q->adapter = json_string_value(v);
    else if (!rc && v && !json_is_null(v))
        rc = q_fail(e, Q_INVALID, "adapter: expected a string");
    v = json_object_get(p->line, "reasoning_effort");
    q->reasoning_effort = json_string_value(v);
    if (!rc && v && !json_is_null(v) && !json_is_string(v))
        rc = q_fail(e, Q_INVALID, "reasoning_effort: expected a string");
    return rc;
}

static bool is_known(const char *key)
{
    static const char *const others[] = {"prompt",     "prompt_token_ids", "multi_modal_data",
                                         "detokenize", "custom_id",        "stop",
                                         "n",          "reasoning_effort", "adapter"};
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        if (!strcmp(key, others[i]))
            return true;
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++)
        if (!strcmp(key, fields[i].name))
            return true;
    for (size_t i = 0; i < GENERATE_CHAT_FIELDS; i++)
        if (!strcmp(key, chat_fields[i].name))
            return true;
    return false;
}

static FALLIBLE take_ids(struct generate_prompt *p, const json_t *list, struct q_err *e)
{
    size_t i, cap = 0;
    json_t *v;
    json_array_foreach ((json_t *)(uintptr_t)list, i, v) {
        json_int_t id = json_integer_value(v);
        if (!json_is_integer(v) || id < INT32_MIN || id > UINT32_MAX)
            return q_fail(e, Q_INVALID, "prompt: item %zu is not a token id", i);
        enum q_code rc = q_grow(&p->ids, &cap, i + 1, sizeof *p->ids, PROMPT_IDS_MAX, e);
        if (rc)
            return rc;
        p->ids[p->n_ids++] = (uint32_t)id;
    }
    return p->n_ids ? Q_OK : q_fail(e, Q_INVALID, "prompt: the list is empty");
}

static FALLIBLE take_stops(struct generate_prompt *p, const json_t *v, struct q_err *e)
{
    size_t n = json_is_string(v) ? 1 : json_array_size(v);
    if (!v || json_is_null(v))
        return Q_OK;
    if ((!json_is_string(v) && !json_is_array(v)) || n > STOPS_MAX)
        return q_fail(e, Q_INVALID, "stop: expected a string, or a list of at most %d strings",
                      STOPS_MAX);
    p->stops = q_calloc(n + 1, sizeof *p->stops);
    if (!p->stops)
        return q_fail(e, Q_NO_MEMORY, "out of memory for a line");
    for (size_t i = 0; i < n; i++) {
        p->stops[i] = json_string_value(json_is_string(v) ? v : json_array_get(v, i));
        if (!p->stops[i])
            return q_fail(e, Q_INVALID, "stop: item %zu is not a string", i);
    }
    p->n_stop = n;
    return Q_OK;
}

/* What the library gets points into the list. */
static FALLIBLE take_items(struct generate_prompt *p, struct q_err *e)
{
    static const struct item_rules rules = {.files = true};
    enum q_code rc =
        item_list_read(&p->items, json_object_get(p->line, "multi_modal_data"), &rules, e);
    if (rc || !p->items.n)
        return rc;
    p->inputs = q_calloc(p->items.n, sizeof *p->inputs);
    if (!p->inputs)
        return q_fail(e, Q_NO_MEMORY, "out of memory for a line");
    for (size_t i = 0; i < p->items.n; i++) {
        const struct item_array *from = &p->items.items[i];
        p->inputs[i] = (struct quire_input){
            .modality = from->modality,
            .number = (enum quire_number)from->dtype,
            .n_dim = from->n_dim,
            .data = from->data,
            .n_byte = from->n_byte,
        };
        memcpy(p->inputs[i].dims, from->dims, sizeof from->dims);
    }
    return Q_OK;
}

/* "prompt_token_ids", vLLM's name for a prompt of ids, and what goes with it. */
static FALLIBLE take_inputs(struct generate_prompt *p, const json_t **prompt, struct q_err *e)
{
    const json_t *ids = json_object_get(p->line, "prompt_token_ids"),
                 *text = json_object_get(p->line, "detokenize");
    if (text && !json_is_null(text) && !json_is_boolean(text))
        return q_fail(e, Q_INVALID, "detokenize: expected true or false");
    p->no_text = json_is_false(text);
    if (ids && !json_is_null(ids)) {
        if (*prompt)
            return q_fail(e, Q_INVALID,
                          "prompt and prompt_token_ids are both given; expected one of them");
        if (!json_is_array(ids))
            return q_fail(e, Q_INVALID, "prompt_token_ids: expected a list of token ids");
        *prompt = ids;
    }
    return take_items(p, e);
}

static FALLIBLE take_line(struct generate_prompt *p, struct q_err *e)
{
    const json_t *prompt = json_object_get(p->line, "prompt"), *n = json_object_get(p->line, "n"),
                 *id = json_object_get(p->line, "custom_id");
    const char *key;
    json_t *v;
    enum q_code rc = Q_OK;
    json_object_foreach (p->line, key, v)
        if (!is_known(key))
            return q_fail(e, Q_INVALID, "unknown field \"%s\"", key);
    if ((rc = take_inputs(p, &prompt, e)) || (rc = take_chat(p, e)))
        return rc;
    p->text = json_string_value(prompt);
    p->n_text = json_string_length(prompt);
    p->custom_id = json_string_value(id);
    if (id && !p->custom_id && !json_is_null(id))
        return q_fail(e, Q_INVALID, "custom_id: expected a string");
    if (prompt && generate_prompt_has_messages(p))
        rc = q_fail(e, Q_INVALID,
                    "prompt and messages are both given; expected one of them per line");
    else if (json_is_array(prompt))
        rc = take_ids(p, prompt, e);
    else if (!p->text && !generate_prompt_has_messages(p))
        rc = q_fail(e, Q_INVALID,
                    "prompt: expected a string or a list of token ids; alternatively, the line has "
                    "\"messages\"");
    if (!rc && n && !json_is_null(n)) {
        if (!json_is_integer(n) || json_integer_value(n) < 1 || json_integer_value(n) > ANSWERS_MAX)
            return q_fail(e, Q_INVALID, "n: expected a number from 1 to %d", ANSWERS_MAX);
        p->n_answer = (uint32_t)json_integer_value(n);
    }
    return rc ? rc : take_stops(p, json_object_get(p->line, "stop"), e);
}

/* Into in->line, without its end. False: the file is over. */
static bool read_line(struct generate_input *in)
{
    int c;
    size_t n = 0;
    buf_reset(&in->line);
    while ((c = getc_unlocked(in->file)) != EOF && ++n && c != '\n')
        buf_add_char(&in->line, (char)c); /* past the limit: only `failed` is kept */
    in->done_bytes += n;
    in->n_line += n > 0;
    return n > 0;
}

static bool is_blank(const struct buf *line)
{
    return !line->failed && strspn(buf_str(line), " \t\r") == line->len;
}

static FALLIBLE next_of_file(struct generate_input *in, struct generate_prompt *out, bool *more,
                             struct q_err *e)
{
    json_error_t why;
    enum q_code rc;
    do {
        *more = read_line(in);
    } while (*more && is_blank(&in->line));
    if (ferror(in->file))
        return q_fail(e, Q_IO, "--input-file: %s", strerror(errno));
    if (!*more)
        return Q_OK;
    out->number = in->n_line;
    if ((rc = buf_check(&in->line, "the line", e)))
        return rc;
    const size_t mark = utf8_mark(buf_str(&in->line), in->line.len);
    out->line = json_read_bytes(buf_str(&in->line) + mark, in->line.len - mark, 0, &why);
    if (!json_is_object(out->line))
        return q_fail(e, Q_INVALID, "expected a JSON object%s%s", out->line ? "" : ": ",
                      out->line ? "" : why.text);
    return take_line(out, e);
}

static FALLIBLE read_stdin(struct generate_input *in, struct generate_prompt *p, struct q_err *e)
{
    char chunk[65536];
    size_t n;
    in->whole.max = PROMPT_BYTES_MAX;
    while ((n = fread(chunk, 1, sizeof chunk, stdin)) > 0)
        buf_add(&in->whole, chunk, n);
    if (ferror(stdin))
        return q_fail(e, Q_IO, "standard input: %s", strerror(errno));
    p->text = buf_str(&in->whole);
    p->n_text = in->whole.len;
    return buf_check(&in->whole, "standard input", e);
}

static FALLIBLE next_text(struct generate_input *in, struct generate_prompt *p, const char *text,
                          struct q_err *e)
{
    p->text = text;
    p->n_text = strlen(text);
    return strcmp(text, "-") ? Q_OK : read_stdin(in, p, e);
}

/* "1,2,3" */
static FALLIBLE next_ids(struct generate_prompt *p, const char *text, struct q_err *e)
{
    size_t cap = 0;
    while (*text) {
        char number[32];
        int64_t id;
        size_t n = strcspn(text, ",");
        enum q_code rc;
        snprintf(number, sizeof number, "%.*s", (int)(n < sizeof number ? n : sizeof number - 1),
                 text);
        if ((rc = parse_i64(&id, number, INT32_MIN, UINT32_MAX, "--prompt-ids", e)) ||
            (rc = q_grow(&p->ids, &cap, p->n_ids + 1, sizeof *p->ids, PROMPT_IDS_MAX, e)))
            return rc;
        p->ids[p->n_ids++] = (uint32_t)id;
        text += n + (text[n] == ',');
    }
    return p->n_ids ? Q_OK : q_fail(e, Q_INVALID, "--prompt-ids is empty");
}

FALLIBLE generate_input_next(struct generate_input *in, struct generate_prompt *out, bool *more,
                             struct q_err *e)
{
    const struct options *o = in->o;
    *out = (struct generate_prompt){.n_answer = (uint32_t)o->n, .number = in->n_prompt};
    *more = true;
    in->n_prompt++;
    if (in->i_argument + 1 < o->n_positional)
        return next_text(in, out, o->positional[++in->i_argument], e);
    if (in->i_prompt < o->prompt.n)
        return next_text(in, out, o->prompt.items[in->i_prompt++], e);
    if (in->i_ids < o->prompt_ids.n)
        return next_ids(out, o->prompt_ids.items[in->i_ids++], e);
    *more = false;
    return in->file ? next_of_file(in, out, more, e) : Q_OK;
}

FALLIBLE generate_input_open(struct generate_input *in, const struct options *o, struct q_err *e)
{
    struct stat st;
    *in = (struct generate_input){.o = o, .line = BUF_INIT_MAX(PROMPT_BYTES_MAX)};
    for (uint32_t i = 0; i < o->prompt_ids.n; i++) { /* reported before the model is loaded */
        struct generate_prompt p = {.text = NULL};
        enum q_code rc = next_ids(&p, o->prompt_ids.items[i], e);
        generate_prompt_release(&p);
        if (rc)
            return rc;
    }
    if (!*o->input_file) {
        if (o->n_positional > 1 || o->prompt.n || o->prompt_ids.n)
            return Q_OK;
        return q_fail(e, Q_INVALID,
                      "no prompt is given: add one after MODEL, or use --prompt TEXT, --prompt - "
                      "for standard input, --prompt-ids 1,2,3 or --input-file FILE");
    }
    in->file = strcmp(o->input_file, "-") ? fopen(o->input_file, "re") : stdin;
    if (!in->file || fstat(fileno(in->file), &st) != 0)
        return q_fail(e, Q_IO, "%s: %s", o->input_file, strerror(errno));
    in->file_bytes = S_ISREG(st.st_mode) ? (uint64_t)st.st_size : 0;
    return Q_OK;
}

void generate_input_close(struct generate_input *in)
{
    if (in->file && in->file != stdin)
        fclose(in->file);
    in->file = NULL;
    buf_release(&in->line);
    buf_release(&in->whole);
}
