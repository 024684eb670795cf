/* SPDX-License-Identifier: Apache-2.0 */
/* quire-render: converts messages to the prompt of a chat template. */
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include "common/buf.h"
#include "common/file.h"
#include "common/hub/hub.h"
#include "common/options.h"
#include "frontend/cli/jsonl.h"
#include "common/template/chat.h"

#define TEMPLATE_MAX (16u << 20) /* bytes */

struct verb {
    struct chat *chat; /* NULL: every line has a template */
};

struct line {
    struct chat_request request;
    const json_t *template, *now;
    const json_t *add_generation_prompt, *continue_final_message;
};

/* A date, or a date with time; local time, a time zone is ignored. */
static enum q_code read_time(int64_t *out, const char *text, struct q_err *e)
{
    static const char *const forms[] = {"%Y-%m-%dT%H:%M:%S", "%Y-%m-%d %H:%M:%S", "%Y-%m-%dT%H:%M",
                                        "%Y-%m-%d %H:%M", "%Y-%m-%d"};
    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++) {
        struct tm tm = {0};
        const char *rest = strptime(text, forms[i], &tm);
        if (rest && i < 4 && *rest == '.' && strspn(rest + 1, "0123456789"))
            rest += 1 + strspn(rest + 1, "0123456789");
        if (rest && i < 4 && *rest == 'Z')
            rest++;
        else if (rest && i < 4 && (*rest == '+' || *rest == '-'))
            rest += 1 + strspn(rest + 1, "0123456789:");
        if (!rest || *rest)
            continue;
        *out = timegm(&tm);
        return Q_OK;
    }
    return q_fail(e, Q_INVALID, "now: expected a time such as 2026-01-31T12:00:00, got \"%.40s\"",
                  text);
}

static enum q_code read_line(struct line *l, const json_t *in, struct q_err *e)
{
    static const char *const names[] = {
        "messages",  "tools", "documents", "add_generation_prompt", "continue_final_message",
        "variables", "now",   "template",  "chat_template_kwargs",  NULL};
    struct chat_request *r = &l->request;
    const json_t *more;
    enum q_code rc;
    if ((rc = jsonl_only(in, names, e)) ||
        (rc = jsonl_member(in, "messages", JSON_ARRAY, &r->messages, e)) ||
        (rc = jsonl_member(in, "tools", JSON_ARRAY, &r->tools, e)) ||
        (rc = jsonl_member(in, "documents", JSON_ARRAY, &r->documents, e)) ||
        (rc = jsonl_member(in, "variables", JSON_OBJECT, &r->kwargs, e)) ||
        (rc = jsonl_member(in, "chat_template_kwargs", JSON_OBJECT, &more, e)) ||
        (rc = jsonl_member(in, "template", JSON_STRING, &l->template, e)) ||
        (rc = jsonl_member(in, "now", JSON_STRING, &l->now, e)) ||
        (rc = jsonl_member(in, "add_generation_prompt", JSON_TRUE, &l->add_generation_prompt, e)) ||
        (rc = jsonl_member(in, "continue_final_message", JSON_TRUE, &l->continue_final_message, e)))
        return rc;
    if (!r->kwargs)
        r->kwargs = more;
    r->add_generation_prompt = json_is_true(l->add_generation_prompt);
    r->continue_final_message = json_is_true(l->continue_final_message);
    return l->now ? read_time(&r->now, json_string_value(l->now), e) : Q_OK;
}

/* Without messages, only the variables are defined in the template. */
static enum q_code render_plain(const struct line *l, const char *source, struct buf *out,
                                struct template_fault *fault, struct q_err *e)
{
    struct template *t = NULL;
    json_t *none = json_object();
    const struct template_run run = {
        .variables = l->request.kwargs ? l->request.kwargs : none,
        .now = l->request.now,
    };
    enum q_code rc = template_compile(&t, source, strlen(source), fault, e);
    if (rc == Q_OK)
        rc = template_render(t, &run, out, fault, e);
    template_free(t);
    json_decref(none);
    return rc;
}

struct text {
    struct buf text;
    struct ranges content; /* the ranges that came from the request, for conversations only */
};

static json_t *ranges_json(const struct ranges *r)
{
    json_t *list = json_array();
    for (size_t i = 0; i < r->n; i++)
        json_array_append_new(
            list, json_pack("[I,I]", (json_int_t)r->at[i].start, (json_int_t)r->at[i].end));
    return list;
}

static enum q_code render(const struct verb *verb, const struct line *l, struct text *out,
                          struct template_fault *fault, struct q_err *e)
{
    struct chat *own = NULL;
    enum q_code rc = Q_OK;
    if (!verb->chat && !l->template)
        return q_fail(e, Q_INVALID,
                      "template: missing; `quire render -` requires it in every line");
    if (!l->request.messages)
        return render_plain(l,
                            l->template ? json_string_value(l->template) : chat_source(verb->chat),
                            &out->text, fault, e);
    struct chat_request r = l->request;
    if (verb->chat && l->template)
        r.template_source = json_string_value(l->template);
    r.origin = &out->content;
    if (!verb->chat)
        rc = chat_from_source(&own, json_string_value(l->template), json_string_length(l->template),
                              fault, e);
    if (rc == Q_OK)
        rc = chat_render(own ? own : verb->chat, &r, &out->text, fault, e);
    chat_free(own);
    return rc;
}

static enum q_code answer(void *ctx, const json_t *in, json_t **out, struct q_err *e)
{
    struct line line = {0};
    struct template_fault fault = {0};
    struct text made = {BUF_INIT, RANGES_INIT};
    enum q_code rc = read_line(&line, in, e);
    if (rc == Q_OK)
        rc = render(ctx, &line, &made, &fault, e);
    if (rc == Q_OK)
        rc = buf_check(&made.text, "the text", e);
    *out = json_object();
    if (rc == Q_OK)
        json_object_set_new(*out, "text", json_stringn(buf_str(&made.text), made.text.len));
    else
        json_object_set_new(*out, "type", json_string(fault.type ? fault.type : q_code_name(rc)));
    if (rc != Q_OK && fault.line) {
        json_object_set_new(*out, "line", json_integer(fault.line));
        json_object_set_new(*out, "column", json_integer(fault.column));
    }
    if (rc == Q_OK && line.request.messages)
        json_object_set_new(*out, "content_ranges", ranges_json(&made.content));
    buf_release(&made.text);
    ranges_release(&made.content);
    return rc;
}

static enum q_code open_template(struct verb *v, const struct options *o, struct q_err *e)
{
    const char *what = o->positional[0];
    struct stat st;
    struct buf text = BUF_INIT;
    char dir[PATH_MAX];
    enum q_code rc;
    if (!strcmp(what, "-"))
        return Q_OK;
    if (stat(what, &st) != 0 || !S_ISREG(st.st_mode) || weight_files_is_gguf(what)) {
        if ((rc = hub_resolve_files(dir, what, *o->revision ? o->revision : NULL, e)) != Q_OK)
            return rc;
        return chat_open(&v->chat, dir, *o->chat_template ? o->chat_template : NULL, e);
    }
    if ((rc = file_read(&text, what, TEMPLATE_MAX, e)) == Q_OK)
        rc = chat_from_source(&v->chat, buf_str(&text), text.len, NULL, e);
    buf_release(&text);
    return rc;
}

int main(int argc, char **argv)
{
    static struct options o;
    static const struct program_info info = {
        .program = FOR_RENDER,
        .name = "quire render",
        .usage = "MODEL|FILE|- [options] < LINES",
        .about = "Renders a chat template: of a model, of a file, or with - the one in each line. "
                 "Each line "
                 "of standard input is a JSON object:\n"
                 "\"messages\": […]\tconversation; without it, only the variables are defined\n"
                 "\"tools\": […]\ttools of the request\n"
                 "\"documents\": […]\tdocuments of the request\n"
                 "\"add_generation_prompt\": true\tend with the beginning of an answer\n"
                 "\"continue_final_message\": true\tend inside the last message\n"
                 "\"variables\": {…}\tvariables of the template, such as enable_thinking\n"
                 "\"now\": \"2026-01-31T12:00:00\"\ttime of the template's date functions\n"
                 "\"template\": \"…\"\ttemplate, with - in place of MODEL\n"
                 "Each line of standard output has the members text and content_ranges (byte "
                 "ranges copied "
                 "from messages, tools and documents), or error, type, line and column.",
        .positional_min = 1,
        .positional_max = 1,
    };
    struct verb verb = {NULL};
    struct q_err e = Q_ERR_INIT;
    int code = options_main(&o, &info, argc, argv);
    if (code >= 0)
        return code;
    if (open_template(&verb, &o, &e) != Q_OK) {
        fprintf(stderr, "quire render: %s\n", e.message);
        return 3;
    }
    code = jsonl_run(answer, &verb);
    chat_free(verb.chat);
    return code;
}
