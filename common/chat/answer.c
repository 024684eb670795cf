/* SPDX-License-Identifier: Apache-2.0 */
#include "common/chat/answer.h"
#include <openssl/evp.h>
#include <openssl/rand.h>
#include <string.h>
#include "common/mem.h"

#define ID_BYTES 12

void answer_release(struct answer *a)
{
    buf_release(&a->content);
    buf_release(&a->reasoning);
    for (size_t i = 0; i < a->n_call; i++) {
        q_free(a->calls[i].name);
        buf_release(&a->calls[i].args);
    }
    q_free(a->calls);
    *a = (struct answer){.n_call = 0};
}

static FALLIBLE make_id(const struct answer *a, char out[ANSWER_ID_MAX], struct q_err *e)
{
    unsigned char bytes[EVP_MAX_MD_SIZE] = {0};
    bool made;
    if (a->id_seed) {
        unsigned char from[ANSWER_SEED + 2 * sizeof(uint32_t)];
        const uint32_t numbers[] = {a->id_number, (uint32_t)a->n_call};
        memcpy(from, a->id_seed, ANSWER_SEED);
        memcpy(from + ANSWER_SEED, numbers, sizeof numbers);
        made = EVP_Digest(from, sizeof from, bytes, NULL, EVP_sha256(), NULL);
    } else {
        made = RAND_bytes(bytes, ID_BYTES) == 1;
    }
    if (!made)
        return q_fail(e, Q_INTERNAL, "cannot get random numbers for a tool call's id");
    int n = snprintf(out, ANSWER_ID_MAX, "call_");
    for (size_t i = 0; i < ID_BYTES; i++)
        n += snprintf(out + n, ANSWER_ID_MAX - (size_t)n, "%02x", bytes[i]);
    return Q_OK;
}

static FALLIBLE begin_call(struct answer *a, const struct parsed_event *event, struct q_err *e)
{
    enum q_code rc =
        q_grow(&a->calls, &a->calls_cap, a->n_call + 1, sizeof *a->calls, PARSER_CALLS_MAX, e);
    if (rc != Q_OK)
        return rc;
    struct answer_call *call = &a->calls[a->n_call];
    *call = (struct answer_call){.args = BUF_INIT};
    if ((rc = make_id(a, call->id, e)))
        return rc;
    call->name = q_strndup(event->text, event->n);
    if (!call->name)
        return q_fail(e, Q_NO_MEMORY, "out of memory for a tool call");
    a->n_call++;
    return Q_OK;
}

/* It is no call after all: what the model wrote for it is content. A shown name cannot be taken
 * back: then the text is left out, since a client that adds up deltas would have it twice. */
static void break_call(struct answer *a)
{
    struct answer_call *call = &a->calls[a->n_call - 1];
    a->state = call->shown ? ANSWER_IGNORED : ANSWER_BROKEN;
    if (call->shown) {
        a->n_broken++;
        return;
    }
    q_free(call->name);
    buf_release(&call->args);
    a->n_call--;
}

bool answer_has_calls(const struct answer *a)
{
    return a->n_call > a->n_broken;
}

static enum q_code take_call(struct answer *a, const struct parsed_event *event, struct q_err *e)
{
    bool open = a->state == ANSWER_OPEN;
    struct answer_call *call = open ? &a->calls[a->n_call - 1] : NULL;
    if (event->kind == PARSED_CALL_BEGIN) {
        bool more = a->one_call && answer_has_calls(a);
        a->state = more ? ANSWER_IGNORED : ANSWER_OPEN;
        return more ? Q_OK : begin_call(a, event, e);
    }
    if (event->kind == PARSED_CALL_END && call)
        call->whole = true;
    if (event->kind == PARSED_CALL_BROKEN && call)
        break_call(a);
    if (event->kind == PARSED_CALL_BROKEN && a->state == ANSWER_BROKEN)
        buf_add(&a->content, event->text, event->n);
    if (event->kind == PARSED_CALL_ARGS && call)
        buf_add(&call->args, event->text, event->n);
    return event->kind == PARSED_CALL_ARGS && call ? buf_check(&call->args, "a tool call", e)
                                                   : buf_check(&a->content, "the answer", e);
}

enum q_code answer_take(void *answer, const struct parsed_event *event, struct q_err *e)
{
    struct answer *a = answer;
    if (event->kind >= PARSED_CALL_BEGIN)
        return take_call(a, event, e);
    if (event->kind == PARSED_REASONING && a->no_reasoning)
        return Q_OK;
    struct buf *out = event->kind == PARSED_CONTENT ? &a->content : &a->reasoning;
    buf_add(out, event->text, event->n);
    return buf_check(out, "the answer", e);
}

/* "function":{["name":…,]"arguments":…}} and so the call's end */
static void add_function(const struct answer_call *c, bool name, struct buf *out)
{
    buf_add_str(out, "\"function\":{");
    if (name) {
        buf_add_str(out, "\"name\":");
        buf_add_json_str(out, c->name, strlen(c->name));
        buf_add_char(out, ',');
    }
    buf_add_str(out, "\"arguments\":");
    buf_add_json_str(out, buf_str(&c->args), c->args.len);
    buf_add_str(out, "}}");
}

static void add_id(const struct answer_call *c, struct buf *out)
{
    buf_printf(out, "\"id\":\"%s\",\"type\":\"function\",", c->id);
}

void answer_call_json(const struct answer_call *c, struct buf *out)
{
    buf_add_char(out, '{');
    add_id(c, out);
    add_function(c, true, out);
}

void answer_calls_json(const struct answer *a, struct buf *out)
{
    for (size_t i = 0; i < a->n_call; i++) {
        buf_add_char(out, i ? ',' : '[');
        answer_call_json(&a->calls[i], out);
    }
    buf_add_str(out, a->n_call ? "]" : "[]");
}

void answer_content_json(const struct answer *a, struct buf *out)
{
    if (a->content.len == 0 && (a->n_call || a->reasoning.len))
        buf_add_str(out, "null");
    else
        buf_add_json_str(out, buf_str(&a->content), a->content.len);
}

void answer_reasoning_json(const struct answer *a, struct buf *out)
{
    buf_add_str(out, "\"reasoning\":");
    buf_add_json_str(out, buf_str(&a->reasoning), a->reasoning.len);
    buf_add_str(out, ",\"reasoning_content\":");
    buf_add_json_str(out, buf_str(&a->reasoning), a->reasoning.len);
}

void answer_json(const struct answer *a, struct buf *out)
{
    buf_add_str(out, "{\"role\":\"assistant\",\"content\":");
    answer_content_json(a, out);
    if (a->reasoning.len) {
        buf_add_str(out, ",\"reasoning\":");
        buf_add_json_str(out, buf_str(&a->reasoning), a->reasoning.len);
    }
    if (a->n_call) {
        buf_add_str(out, ",\"tool_calls\":");
        answer_calls_json(a, out);
    }
    buf_add_char(out, '}');
}

static bool pending(const struct answer_call *c)
{
    return !c->shown || c->args.len;
}

bool answer_calls_pending(const struct answer *a)
{
    for (size_t i = 0; i < a->n_call; i++)
        if (pending(&a->calls[i]))
            return true;
    return false;
}

/* The array of calls in a delta: with id and name the first time, then pieces of the arguments. */
static void add_call_deltas(struct answer *a, struct buf *out)
{
    const char *before = "[";
    for (size_t i = 0; i < a->n_call; i++) {
        struct answer_call *c = &a->calls[i];
        if (!pending(c))
            continue;
        buf_printf(out, "%s{\"index\":%zu,", before, i);
        if (!c->shown)
            add_id(c, out);
        add_function(c, !c->shown, out);
        c->shown = true;
        buf_reset(&c->args);
        before = ",";
    }
    buf_add_char(out, ']');
}

void answer_delta_json(struct answer *a, bool always_content, struct buf *out)
{
    const char *before = "{";
    if (a->reasoning.len) {
        buf_add_str(out, before);
        answer_reasoning_json(a, out);
        before = ",";
    }
    if (a->content.len || always_content) {
        buf_printf(out, "%s\"content\":", before);
        buf_add_json_str(out, buf_str(&a->content), a->content.len);
        before = ",";
    }
    if (answer_calls_pending(a)) {
        buf_printf(out, "%s\"tool_calls\":", before);
        add_call_deltas(a, out);
        before = ",";
    }
    buf_add_str(out, *before == '{' ? "{}" : "}");
}
