/* SPDX-License-Identifier: Apache-2.0 */
/* The work of transformers' apply_chat_template around the template, so that the same model folder
 * and messages give the same prompt: choice of the template, its variables, preparation of
 * messages, and continue_final_message, which adds a marker to the last message and cuts the text
 * there. */
#include "common/template/chat.h"
#include "common/download.h"
#include "common/file.h"
#include "common/gguf/gguf_chat.h"
#include "common/gguf/gguf_file.h"
#include "common/json_read.h"
#include "common/mem.h"
#include "common/tokenizer/tokenizer.h"
#include "common/template/mistral.h"
#include "common/template/unicode.h"

#define CONFIG_MAX   (16u << 20) /* bytes of tokenizer_config.json */
#define CONTINUE_TAG "CONTINUE_FINAL_MESSAGE_TAG "
#define CONTINUE_MARK \
    (sizeof CONTINUE_TAG - 2) /* the tag without its blank, which a template may trim */

struct chat {
    struct buf source, tool_source; /* tool_source: of tool_use, else empty */
    struct template *plain;
    struct template *tool_use; /* NULL: `plain` serves requests with tools too */
    uint32_t mistral;          /* version of tekken.json whose format `plain` is; 0: it is not */
    json_t *tokens;            /* bos_token … */
};

/* ---- opening ---- */

/* A file of the model's folder. */
static enum q_code read_part(struct buf *text, const char *path, struct q_err *e)
{
    enum q_code rc = file_read(text, path, CONFIG_MAX, e);
    return rc ? rc : download_check(text->data, text->len, path, e);
}

/* The JSON object in dir/name; *out = NULL when there is no such file. */
static enum q_code load_config(json_t **out, const char *dir, const char *name, struct q_err *e)
{
    char path[4096];
    struct buf text = BUF_INIT;
    json_error_t at;
    enum q_code rc;
    *out = NULL;
    if ((rc = path_join(path, sizeof path, dir, name, e)) || !file_exists(path))
        return rc;
    if (!(rc = read_part(&text, path, e))) {
        /* model_max_length is often 10^30, written out: integers as reals, or it would not load */
        *out = json_read_bytes(buf_str(&text), text.len, JSON_ALLOW_NUL | JSON_DECODE_INT_AS_REAL,
                               &at);
        if (!*out)
            rc = q_fail(e, Q_CORRUPT, "%s: line %d: %s", path, at.line, at.text);
        else if (!json_is_object(*out))
            rc = q_fail(e, Q_CORRUPT, "%s: not a JSON object", path);
    }
    buf_release(&text);
    return rc;
}

/* tokenizer_config.json of a folder, or of a GGUF file's metadata. */
static enum q_code load_tokenizer_config(json_t **out, const char *dir, struct q_err *e)
{
    struct gguf_file f = GGUF_FILE_INIT;
    if (dir_exists(dir) || !gguf_file_is_named(dir))
        return load_config(out, dir, "tokenizer_config.json", e);
    enum q_code rc = gguf_file_open(&f, dir, e);
    if (!rc)
        rc = gguf_to_tokenizer_config(out, &f.g, e);
    gguf_file_release(&f);
    return rc;
}

/* A token is a string or an AddedToken object with `content`. */
static json_t *token_text(json_t *v)
{
    json_t *text = json_is_object(v) ? json_object_get(v, "content") : v;
    return json_is_string(text) ? text : NULL;
}

static enum q_code add_tokens(struct chat *c, json_t *config, struct q_err *e)
{
    const char *key;
    json_t *v;
    json_object_foreach (config, key, v) {
        size_t n = strlen(key);
        json_t *text = token_text(v);
        if (n < 7 || strcmp(key + n - 6, "_token") != 0 || !text || json_object_get(c->tokens, key))
            continue;
        if (json_object_set(c->tokens, key, text) != 0)
            return q_fail(e, Q_NO_MEMORY, "chat template: out of memory");
    }
    return Q_OK;
}

static enum q_code compile_text(struct template **out, const char *text, size_t n, const char *what,
                                struct q_err *e)
{
    return template_compile(out, text, n, NULL, e) ? q_wrap(e, "%s", what) : Q_OK;
}

/* tokenizer_config.json's chat_template: a string, or [{"name": …, "template": …}]. */
static enum q_code use_config(struct chat *c, json_t *v, struct q_err *e)
{
    enum q_code rc = Q_OK;
    size_t i;
    json_t *row;
    if (json_is_string(v)) {
        buf_add(&c->source, json_string_value(v), json_string_length(v));
        return buf_check(&c->source, "chat template", e);
    }
    json_array_foreach (v, i, row) {
        const char *name = json_string_value(json_object_get(row, "name"));
        const json_t *text = json_object_get(row, "template");
        if (!name || !json_is_string(text))
            return q_fail(e, Q_CORRUPT,
                          "tokenizer_config.json: chat_template[%zu] has no name and template", i);
        if (strcmp(name, "default") == 0) {
            buf_reset(&c->source);
            buf_add(&c->source, json_string_value(text), json_string_length(text));
        } else if (strcmp(name, "tool_use") == 0 && !c->tool_use) {
            buf_add(&c->tool_source, json_string_value(text), json_string_length(text));
            rc = compile_text(&c->tool_use, json_string_value(text), json_string_length(text),
                              "tokenizer_config.json: template \"tool_use\"", e);
        }
        if (rc)
            return rc;
    }
    if (c->source.len == 0)
        return q_fail(e, Q_INVALID,
                      "tokenizer_config.json: has several chat templates and none is named "
                      "\"default\"; choose one "
                      "with --chat-template FILE");
    return buf_check(&c->source, "chat template", e);
}

/* The folder has no template; with a tekken.json it needs none. */
static enum q_code use_mistral(struct chat *c, const char *dir, struct q_err *e)
{
    enum q_code rc = tokenizer_mistral_version(&c->mistral, dir, e);
    const char *source = mistral_template(c->mistral);
    if (rc)
        return rc;
    if (source) {
        buf_add_str(&c->source, source);
        return buf_check(&c->source, "chat template", e);
    }
    if (c->mistral)
        return q_fail(e, Q_UNSUPPORTED,
                      "%s: no chat template; quire has the formats of tekken.json v3, v7, v11 "
                      "and v13 only, not of v%u; give one with --chat-template FILE",
                      dir, c->mistral);
    return q_fail(e, Q_NOT_FOUND,
                  "%s: the model has no chat template (chat_template.jinja or "
                  "tokenizer_config.json); give one with --chat-template FILE",
                  dir);
}

/* The folder's template, in the order of transformers; sets c->source, perhaps c->tool_use. */
static enum q_code find_template(struct chat *c, const char *dir, json_t *tokenizer,
                                 struct q_err *e)
{
    enum q_code rc;
    char path[4096];
    struct buf text = BUF_INIT;
    json_t *old = NULL, *v;
    if ((rc = path_join(path, sizeof path, dir, "additional_chat_templates/tool_use.jinja", e)))
        return rc;
    if (file_exists(path)) {
        if (!(rc = read_part(&text, path, e)))
            rc = compile_text(&c->tool_use, buf_str(&text), text.len, path, e);
        buf_move(&c->tool_source, &text);
        if (rc)
            return rc;
    }
    if ((rc = path_join(path, sizeof path, dir, "chat_template.jinja", e)))
        return rc;
    if (file_exists(path))
        return read_part(&c->source, path, e);
    if ((rc = download_check_link(path, e)))
        return rc;
    rc = load_config(&old, dir, "chat_template.json", e);
    v = json_object_get(old, "chat_template");
    if (!v)
        v = json_object_get(tokenizer, "chat_template");
    if (!rc && json_is_string(v) && json_string_length(v) == 0)
        rc = q_fail(e, Q_CORRUPT, "%s: chat_template is empty", dir);
    else if (!rc && v && !json_is_null(v) && !json_is_string(v) && !json_is_array(v))
        rc = q_fail(e, Q_CORRUPT, "%s: chat_template is neither a string nor a list of templates",
                    dir);
    else if (!rc)
        rc = json_is_string(v) || json_is_array(v) ? use_config(c, v, e) : use_mistral(c, dir, e);
    json_decref(old);
    return rc;
}

bool chat_is_text(const char *given)
{
    return strpbrk(given, "{}\n") && !file_exists(given);
}

static enum q_code read_given(struct buf *source, const char *given, struct q_err *e)
{
    if (chat_is_text(given)) {
        buf_add_str(source, given);
        return buf_check(source, "the chat template", e);
    }
    return read_part(source, given, e);
}

enum q_code chat_open(struct chat **out, const char *dir, const char *template_path,
                      struct q_err *e)
{
    enum q_code rc;
    json_t *tokenizer = NULL, *map = NULL;
    struct chat *c = q_calloc(1, sizeof *c);
    if (!c)
        return q_fail(e, Q_NO_MEMORY, "chat template: out of memory");
    if (!(c->tokens = json_object()))
        rc = q_fail(e, Q_NO_MEMORY, "chat template: out of memory");
    else if (!(rc = load_tokenizer_config(&tokenizer, dir, e)) &&
             !(rc = load_config(&map, dir, "special_tokens_map.json", e)) &&
             !(rc = add_tokens(c, tokenizer, e)) && !(rc = add_tokens(c, map, e)))
        rc = template_path ? read_given(&c->source, template_path, e)
                           : find_template(c, dir, tokenizer, e);
    if (!rc)
        rc = compile_text(&c->plain, buf_str(&c->source), c->source.len,
                          !template_path               ? dir
                          : file_exists(template_path) ? template_path
                                                       : "--chat-template",
                          e);
    json_decref(tokenizer);
    json_decref(map);
    if (rc)
        chat_free(c);
    else
        *out = c;
    return rc;
}

enum q_code chat_from_source(struct chat **out, const char *source, size_t n,
                             struct template_fault *fault, struct q_err *e)
{
    struct chat *c = q_calloc(1, sizeof *c);
    enum q_code rc = Q_OK;
    if (c)
        buf_add(&c->source, source, n);
    if (!c || !(c->tokens = json_object()) || c->source.failed)
        rc = q_fail(e, Q_NO_MEMORY, "chat template: out of memory");
    else
        rc = template_compile(&c->plain, buf_str(&c->source), n, fault, e);
    if (rc)
        chat_free(c);
    else
        *out = c;
    return rc;
}

void chat_free(struct chat *c)
{
    if (!c)
        return;
    template_free(c->plain);
    template_free(c->tool_use);
    json_decref(c->tokens);
    buf_release(&c->source);
    buf_release(&c->tool_source);
    q_free(c);
}

const char *chat_source(const struct chat *c)
{
    return buf_str(&c->source);
}

const char *chat_tool_source(const struct chat *c)
{
    return c->tool_use ? buf_str(&c->tool_source) : buf_str(&c->source);
}

bool chat_marks_generation(const struct chat *c, bool with_tools)
{
    return template_marks_generation(with_tools && c->tool_use ? c->tool_use : c->plain);
}

/* ---- preparing messages ---- */

/* The reasoning of a message under whichever of its names it came. */
static json_t *reasoning_of(const json_t *message)
{
    static const char *const names[] = {"reasoning_content", "thinking", "reasoning"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        json_t *v = json_object_get(message, names[i]);
        if (v && !json_is_null(v))
            return v;
    }
    return NULL;
}

/* Does a statement {% for x in m.content %} go through a message's content? in_macros: also one
 * {% for x in content %}, as macros have it that write a content. */
static bool loops_over_content(const char *source, bool in_macros)
{
    static const char *const forms[] = {".content", "['content']", "[\"content\"]"};
    for (const char *tag = strstr(source, "{%"); tag; tag = strstr(tag + 2, "{%")) {
        const char *at = tag + 2 + (tag[2] == '-' || tag[2] == '+');
        at += strspn(at, " \t\n");
        const char *end = strstr(at, "%}"), *in = strstr(at, " in ");
        if (strncmp(at, "for ", 4) != 0 || !end || !in || in > end)
            continue;
        if (in_macros && !strncmp(in + 4 + strspn(in + 4, " "), "content", 7))
            return true;
        for (size_t i = 0; i < sizeof forms / sizeof *forms; i++) {
            const char *form = strstr(in, forms[i]);
            if (form && form < end)
                return true;
        }
    }
    return false;
}

bool chat_takes_images(enum chat_content content, const char *source, const char *token)
{
    static const char *const words[] = {"'image'", "\"image\"", "'image_url'", "\"image_url\""};
    bool has_word = *token && strstr(source, token);
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        has_word |= strstr(source, words[i]) != NULL;
    return content == CHAT_CONTENT_OPENAI ||
           (content == CHAT_CONTENT_AUTO && has_word && loops_over_content(source, true));
}

struct form {           /* how a template wants OpenAI's messages */
    bool parts, system; /* content as parts; system for developer */
};

static struct form form_of(const struct chat_request *r, const char *source)
{
    struct form f = {false, false};
    if (r->content == CHAT_CONTENT_AS_IS)
        return f;
    f.system = !strstr(source, "'developer'") && !strstr(source, "\"developer\"");
    f.parts = r->content == CHAT_CONTENT_OPENAI;
    if (r->content == CHAT_CONTENT_AUTO)
        f.parts = loops_over_content(source, false) && !strstr(source, "is string") &&
                  !strstr(source, "is not string");
    return f;
}

static bool apply_form(json_t *message, const struct form *f)
{
    const char *role = json_string_value(json_object_get(message, "role"));
    json_t *content = json_object_get(message, "content");
    if (f->system && role && strcmp(role, "developer") == 0 &&
        json_object_set_new(message, "role", json_string("system")) != 0)
        return false;
    if (!f->parts || !json_is_string(content))
        return true;
    return json_object_set_new(message, "content",
                               json_pack("[{s:s, s:O}]", "type", "text", "text", content)) == 0;
}

/* A copy without null members; `thinking` comes first and `reasoning_content` last where there is
 * reasoning. */
static json_t *prepare_message(const json_t *message, const struct form *form)
{
    json_t *copy = json_object(), *reasoning = reasoning_of(message), *v;
    const char *key;
    bool ok = copy && (!reasoning || json_object_set(copy, "thinking", reasoning) == 0);
    json_object_foreach ((json_t *)message, key, v)
        if (ok && !json_is_null(v))
            ok = json_object_set(copy, key, v) == 0;
    if (ok && reasoning && !json_object_get(copy, "reasoning_content"))
        ok = json_object_set(copy, "reasoning_content", reasoning) == 0;
    if (ok && apply_form(copy, form))
        return copy;
    json_decref(copy);
    return NULL;
}

static json_t *prepare_messages(const json_t *messages, const struct form *form)
{
    json_t *list = json_array();
    size_t i;
    json_t *m;
    json_array_foreach ((json_t *)messages, i, m) {
        json_t *copy = NULL;
        if (list)
            copy = json_is_object(m) ? prepare_message(m, form) : json_incref(m);
        if (!copy || json_array_append_new(list, copy) != 0) {
            json_decref(list);
            return NULL;
        }
    }
    return list;
}

/* ---- continue_final_message ---- */

static json_t *with_tag(const json_t *text)
{
    struct buf b = BUF_INIT;
    buf_add(&b, json_string_value(text), json_string_length(text));
    buf_add_str(&b, CONTINUE_TAG);
    json_t *made = b.failed ? NULL : json_stringn(buf_str(&b), b.len);
    buf_release(&b);
    return made;
}

/* Put the tag behind the last message's text; *text (borrowed from the request) is the text without
 * it. */
static enum q_code add_tag(json_t *messages, const json_t **text, struct q_err *e)
{
    json_t *last = json_array_get(messages, json_array_size(messages) - 1);
    json_t *content = json_object_get(last, "content"), *part = NULL;
    if (json_is_string(content)) {
        *text = content;
        json_incref(content);
        return json_object_set_new(last, "content", with_tag(content)) == 0
                   ? Q_OK
                   : q_fail(e, Q_NO_MEMORY, "chat template: out of memory");
    }
    size_t i = json_array_size(content);
    while (i-- > 0 && !json_is_string(json_object_get(json_array_get(content, i), "text")))
        ;
    if (!json_is_array(content) || i == SIZE_MAX)
        return q_fail(e, Q_INVALID,
                      "continue_final_message is set but the final message has no text that could "
                      "be continued");
    part = json_copy(json_array_get(content, i)); /* the request's own objects stay as they are */
    json_t *list = json_copy(content);
    *text = json_incref(json_object_get(part, "text"));
    if (!part || !list || json_object_set_new(part, "text", with_tag(*text)) != 0 ||
        json_array_set(list, i, part) != 0 || json_object_set(last, "content", list) != 0) {
        json_decref(part);
        json_decref(list);
        return q_fail(e, Q_NO_MEMORY, "chat template: out of memory");
    }
    json_decref(part);
    json_decref(list);
    return Q_OK;
}

/* Cut the rendered text out->data[start..] in front of the last tag. */
static enum q_code cut_at_tag(struct buf *out, size_t start, const json_t *text, struct q_err *e)
{
    const char *said = json_string_value(text);
    size_t from = 0, to = json_string_length(text), at = out->len;
    from = uni_skip_space(said, from, to);
    to = uni_trim_space(said, from, to);
    bool found = to == from || memmem(out->data + start, out->len - start, said + from, to - from);
    for (; found && at > start; at--)
        if (out->len - (at - 1) >= CONTINUE_MARK &&
            memcmp(out->data + at - 1, CONTINUE_TAG, CONTINUE_MARK) == 0)
            break;
    if (!found || at == start)
        return q_fail(e, Q_INVALID,
                      "continue_final_message is set but the final message does not appear in the "
                      "chat after applying "
                      "the chat template; the template deletes or changes it");
    at--;
    bool kept = out->len - at > CONTINUE_MARK && out->data[at + CONTINUE_MARK] == ' ';
    if (!kept) /* the template trims messages: so does the cut */
        at = uni_trim_space(out->data, start, at);
    out->len = at;
    out->data[at] = '\0';
    return Q_OK;
}

/* ---- rendering ---- */

static bool set(json_t *variables, const char *key, const json_t *v)
{
    return v ? json_object_set(variables, key, (json_t *)v) == 0
             : json_object_set_new(variables, key, json_null()) == 0;
}

/* The names of the request that the template sees; chat_template_kwargs may replace tools,
 * documents and add_generation_prompt, as they may in vLLM, but not what changes more than the
 * template's names. */
static enum q_code collect(const struct chat_request *r, json_t *messages, json_t **out,
                           struct q_err *e)
{
    static const char *const own[] = {"messages", "chat_template", "continue_final_message"};
    json_t *v = json_object();
    for (size_t i = 0; i < sizeof own / sizeof own[0]; i++)
        if (json_object_get(r->kwargs, own[i])) {
            json_decref(v);
            return q_fail(e, Q_INVALID,
                          "chat_template_kwargs: \"%s\" is a field of the request itself", own[i]);
        }
    if (v && set(v, "messages", messages) && set(v, "tools", r->tools) &&
        set(v, "documents", r->documents) &&
        json_object_set_new(v, "add_generation_prompt", json_boolean(r->add_generation_prompt)) ==
            0 &&
        (!r->kwargs || json_object_update(v, (json_t *)r->kwargs) == 0)) {
        *out = v;
        return Q_OK;
    }
    json_decref(v);
    return q_fail(e, Q_NO_MEMORY, "chat template: out of memory");
}

static enum q_code render(const struct chat *c, const struct chat_request *r, const json_t *names,
                          struct buf *out, struct template_fault *fault, struct q_err *e)
{
    enum q_code rc;
    struct template *own = NULL;
    const struct template_run run = {
        .variables = c->tokens,
        .request = names,
        .content = r->origin,
        .generated = r->generated,
        .now = r->now,
    };
    if (r->template_source &&
        (rc = template_compile(&own, r->template_source, strlen(r->template_source), fault, e)))
        return rc;
    const struct template *t = own ? own : r->tools && c->tool_use ? c->tool_use : c->plain;
    rc = template_render(t, &run, out, fault, e);
    template_free(own);
    return rc;
}

/* Messages and tools as the template of mistral.h wants them; *r is the caller's copy. */
static enum q_code as_mistral(const struct chat *c, struct chat_request *r, json_t **messages,
                              json_t **tools, struct q_err *e)
{
    json_t *made = NULL;
    enum q_code rc = mistral_messages(&made, *messages, c->mistral, e);
    if (rc)
        return rc;
    json_decref(*messages);
    *messages = made;
    if (r->tools && !(rc = mistral_tools(tools, r->tools, e)))
        r->tools = *tools;
    return rc;
}

enum q_code chat_render(const struct chat *c, const struct chat_request *request, struct buf *out,
                        struct template_fault *fault, struct q_err *e)
{
    struct chat_request own = *request, *r = &own;
    enum q_code rc = Q_OK;
    json_t *tools = NULL;
    json_t *messages = NULL, *names = NULL;
    const json_t *text = NULL;
    size_t start = out->len;
    if (json_array_size(r->messages) == 0)
        return q_fail(e, Q_INVALID, "messages: empty; a conversation needs at least one message");
    const struct form form = form_of(r, r->template_source ? r->template_source
                                        : r->tools         ? chat_tool_source(c)
                                                           : chat_source(c));
    if (!(messages = prepare_messages(r->messages, &form)))
        rc = q_fail(e, Q_NO_MEMORY, "chat template: out of memory");
    if (!rc && r->continue_final_message)
        rc = add_tag(messages, &text, e);
    if (!rc && c->mistral && !r->template_source)
        rc = as_mistral(c, r, &messages, &tools, e);
    if (!rc && !(rc = collect(r, messages, &names, e)))
        rc = render(c, r, names, out, fault, e);
    if (!rc && r->continue_final_message)
        rc = cut_at_tag(out, start, text, e);
    if (!rc && r->origin)
        ranges_cut(r->origin, out->len);
    json_decref((json_t *)text);
    json_decref(names);
    json_decref(messages);
    json_decref(tools);
    return rc;
}
