/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/library/generate_print.h"
#include <math.h>
#include <stdio.h>
#include <string.h>

#define DIM   "\033[2m"
#define PLAIN "\033[0m"

void generated_release(struct generated *a)
{
    buf_release(&a->text);
    buf_release(&a->calls);
    buf_release(&a->ids);
    buf_release(&a->logprobs);
}

static double json_number(float x)
{
    return isfinite(x) ? (double)x : -9999.0; /* JSON has no infinity */
}

static void add_logprob(struct generated *a, const struct quire_event *ev)
{
    struct buf *b = &a->logprobs;
    buf_printf(b, "%s{\"token_id\":%u,\"logprob\":%.7g,\"rank\":%u,\"top\":[",
               a->n_token > 1 ? "," : "", ev->token, json_number(ev->logprob), ev->rank);
    for (uint32_t i = 0; i < ev->n_top; i++)
        buf_printf(b, "%s{\"token_id\":%u,\"logprob\":%.7g}", i ? "," : "", ev->top[i].token,
                   json_number(ev->top[i].logprob));
    buf_add_str(b, "]}");
}

/* A piece of the text as it streams. n 0: it is over. */
static void show_piece(struct generated *a, const struct answer_style *s, const char *text,
                       size_t n)
{
    struct buf safe = BUF_INIT;
    if (s->terminal && n)
        printable_add(&a->shown, text, n, &safe);
    else if (s->terminal)
        printable_end(&a->shown, &safe);
    else
        fwrite(text, 1, n, stdout);
    fwrite(buf_str(&safe), 1, safe.len, stdout);
    buf_release(&safe);
}

/* A text that is whole. */
static void show(const struct answer_style *s, const struct buf *text)
{
    struct buf safe = BUF_INIT;
    if (s->terminal)
        printable_text(buf_str(text), text->len, &safe);
    const struct buf *out = s->terminal ? &safe : text;
    fwrite(buf_str(out), 1, out->len, stdout);
    buf_release(&safe);
}

/* One answer as text: printed as it comes. */
static bool streams(const struct answer_style *s)
{
    return !s->many && !s->o->json && !s->o->skip_tokenizer_init;
}

static void stream(struct generated *a, const struct answer_style *s, const struct quire_event *ev)
{
    bool thinks = ev->kind == QUIRE_REASONING;
    if (ev->kind == QUIRE_TOOL_CALL || (!ev->n_text && ev->kind != QUIRE_FINISH))
        return; /* calls stand in lines of their own, behind the text */
    if (thinks && !s->terminal)
        return;
    if (thinks != a->dimmed) {
        show_piece(a, s, "", 0);
        fputs(thinks ? DIM : PLAIN "\n\n", stdout);
    }
    a->dimmed = thinks;
    if (ev->n_text)
        show_piece(a, s, ev->text, ev->n_text);
    if (ev->kind == QUIRE_FINISH)
        show_piece(a, s, "", 0);
    fflush(stdout);
}

void generated_take(struct generated *a, const struct answer_style *s, const struct quire_event *ev)
{
    if (ev->kind == QUIRE_TOKEN || ev->kind == QUIRE_FINISH)
        buf_add(&a->text, ev->text, ev->n_text);
    if (ev->kind == QUIRE_TOOL_CALL) {
        buf_add(&a->calls, ev->text, ev->n_text);
        buf_add_char(&a->calls, '\n');
    }
    if (ev->kind == QUIRE_TOKEN) {
        buf_printf(&a->ids, "%s%u", a->n_token++ ? (s->o->json ? "," : " ") : "", ev->token);
        if (ev->rank)
            add_logprob(a, ev);
    }
    if (streams(s))
        stream(a, s, ev);
    if (ev->kind == QUIRE_FINISH)
        a->last = *ev;
}

static void add_custom_id(struct buf *b, const struct generate_prompt *prompt)
{
    if (!prompt->custom_id)
        return;
    buf_add_str(b, "\"custom_id\":");
    buf_add_json_str(b, prompt->custom_id, strlen(prompt->custom_id));
    buf_add_char(b, ',');
}

static void print_json(const struct generated *a, const struct answer_style *s)
{
    const struct options *o = s->o;
    static const char *const reasons[] = {"", "stop", "length", "abort", "error", "tool_calls"};
    struct buf b = BUF_INIT;
    const char *const *stops = a->prompt->stops ? a->prompt->stops : o->stop.items;
    const char *message = quire_request_message(a->request);
    buf_printf(&b, "{\"prompt\":%llu,\"index\":%u,", (unsigned long long)a->prompt->number,
               a->i_answer);
    add_custom_id(&b, a->prompt);
    if (!o->skip_tokenizer_init && !a->prompt->no_text) {
        buf_add_str(&b, "\"text\":");
        buf_add_json_str(&b, buf_str(&a->text), a->text.len);
        buf_add_char(&b, ',');
    }
    if (*message)
        buf_printf(&b, "\"message\":%s,", message);
    buf_printf(&b, "\"token_ids\":[%s],\"finish_reason\":\"%s\",\"stop_reason\":", buf_str(&a->ids),
               reasons[a->last.finish]);
    if (a->last.i_stop >= 0)
        buf_add_json_str(&b, stops[a->last.i_stop], strlen(stops[a->last.i_stop]));
    else if (a->last.stop_id >= 0)
        buf_printf(&b, "%lld", (long long)a->last.stop_id);
    else
        buf_add_str(&b, "null");
    if (a->logprobs.len)
        buf_printf(&b, ",\"logprobs\":[%s]", buf_str(&a->logprobs));
    buf_printf(&b, ",\"prompt_tokens\":%u,\"completion_tokens\":%u}",
               quire_request_n_prompt(a->request), a->n_token);
    buf_add_char(&b, '\n');
    show(s, &b);
    buf_release(&b);
}

static void print_text(const struct generated *a, const struct answer_style *s)
{
    const struct buf *text = s->o->skip_tokenizer_init || a->prompt->no_text ? &a->ids : &a->text;
    bool file = a->prompt->line; /* its lines count from 1 */
    if (s->many)
        printf("--- prompt %llu, answer %u\n", (unsigned long long)a->prompt->number + !file,
               a->i_answer + 1);
    if (!streams(s))
        show(s, text);
    if (text->len || !a->calls.len)
        putchar('\n');
    show(s, &a->calls);
}

void generated_print(const struct generated *a, const struct answer_style *s)
{
    if (s->o->json)
        print_json(a, s);
    else
        print_text(a, s);
    fflush(stdout);
}

void generated_print_error(const struct generate_prompt *prompt, const char *message)
{
    struct buf b = BUF_INIT;
    buf_printf(&b, "{\"prompt\":%llu,", (unsigned long long)prompt->number);
    add_custom_id(&b, prompt);
    buf_add_str(&b, "\"error\":");
    buf_add_json_str(&b, message, strlen(message));
    buf_add_char(&b, '}');
    puts(buf_str(&b));
    fflush(stdout);
    buf_release(&b);
}
