/* SPDX-License-Identifier: Apache-2.0 */
/* gpt-oss: the whole text is a sequence of messages on channels,
 *
 *   <|channel|>analysis<|message|>TEXT<|end|>
 *   <|start|>assistant<|channel|>commentary to=functions.f <|constrain|>json<|message|>{…}<|call|>
 *   <|start|>assistant<|channel|>final<|message|>TEXT<|return|>
 *
 * The channel analysis is reasoning, a message with a recipient is a call, all other messages are
 * content. The prompt ends inside the header of the first message, so the text begins there. Text
 * without a header is content: a header has no newline and at most HEADER_MAX bytes. */
#include "common/parsers/parser_internal.h"
#include <string.h>
#include "common/parsers/lenient_json.h"

#define HEADER_MAX 256

enum tag { T_CHANNEL, T_MESSAGE, T_START, T_END, T_CALL, T_RETURN, N_TAG };
static const char *const tags[FORMAT_TAGS] = {"<|channel|>", "<|message|>", "<|start|>",
                                              "<|end|>",     "<|call|>",    "<|return|>"};

enum place { HEADER, REASONING, CONTENT, ARGS, ARGS_DONE };

struct harmony {
    enum place place;
    struct buf header; /* its text, tags of its own included */
    bool channel;      /* a channel tag was in it */
    bool kept;         /* the header has to come out as text: no message followed */
    char tag[FORMAT_TAG_MAX];
    size_t n_tag;
    struct buf name, args; /* until the announcement */
    struct lenient_json value;
};

/* The function in "… to=functions.f …". */
static size_t recipient(const char *header, const char **name)
{
    const char *to = strstr(header, "to=");
    if (!to)
        return 0;
    to += 3;
    if (strncmp(to, "functions.", 10) == 0)
        to += 10;
    *name = to;
    return strcspn(to, " \t<");
}

static void begin_message(struct parser *p, struct harmony *h)
{
    const char *name, *header = buf_str(&h->header), *channel = strstr(header, tags[T_CHANNEL]);
    size_t n = recipient(header, &name);
    channel = channel ? channel + strlen(tags[T_CHANNEL]) : header;
    buf_reset(&h->name);
    buf_reset(&h->args);
    if (n) {
        buf_add(&h->name, name, n);
        lenient_json_init(&h->value, NULL, false);
        call_drop_kept(p);
        h->place = ARGS;
    } else {
        h->place = strncmp(channel, "analysis", 8) == 0 ? REASONING : CONTENT;
    }
    buf_reset(&h->header);
}

/* The message is over before its arguments are. */
static void end_args(struct parser *p, struct harmony *h)
{
    struct buf piece = BUF_INIT;
    lenient_json_settle(&h->value, &piece);
    call_args(p, buf_str(&piece), piece.len);
    buf_release(&piece);
    if (!call_complete(p))
        call_cut(p);
}

/* What there is of the message's end cannot be a call any more. */
static void end_message(struct parser *p, struct harmony *h)
{
    if (h->place == ARGS && !call_announced(p))
        say_content(p, buf_str(&h->args), h->args.len);
    else if (h->place == ARGS)
        end_args(p, h);
    buf_reset(&h->args);
    buf_reset(&h->header);
}

/* Text without a header: content, up to the next message. */
static void no_header(struct parser *p, struct harmony *h)
{
    if (h->header.len)
        say_content(p, h->header.data, h->header.len);
    buf_reset(&h->header);
    h->place = CONTENT;
}

static void args_byte(struct parser *p, struct harmony *h, char c)
{
    struct buf piece = BUF_INIT;
    if (!call_announced(p) && h->args.len == 0 && is_blank(c))
        return;
    call_keep(p, &c, 1);
    enum lenient_json_step step = lenient_json_byte(&h->value, c, &piece);
    kept(p, &piece);
    bool bad = step == LENIENT_JSON_BAD || step == LENIENT_JSON_PAST;
    if (bad && !call_announced(p)) {
        buf_add_char(&h->args, c);
        say_content(p, buf_str(&h->args), h->args.len);
        h->place = CONTENT;
    } else if (bad) {
        call_cut(p);
        h->place = CONTENT; /* as the rest of the message is */
    } else if (call_announced(p)) {
        call_args(p, buf_str(&piece), piece.len);
    } else {
        buf_add(&h->args, buf_str(&piece), piece.len);
        kept(p, &h->args);
        if (h->args.len >= 2 && h->name.len) {
            call_announce(p, h->name.data, h->name.len);
            call_args(p, buf_str(&h->args), h->args.len);
        }
    }
    if (step == LENIENT_JSON_END && call_announced(p)) {
        call_end(p);
        h->place = ARGS_DONE;
    }
    buf_release(&piece);
}

static void text_byte(struct parser *p, struct harmony *h, char c)
{
    switch (h->place) {
    case HEADER:
        buf_add_char(&h->header, c);
        if (c == '\n' || h->header.len > HEADER_MAX)
            no_header(p, h);
        break;
    case REASONING:
        say_reasoning(p, &c, 1);
        break;
    case CONTENT:
        say_content(p, &c, 1);
        break;
    case ARGS:
        args_byte(p, h, c);
        break;
    default: /* behind the arguments */
        break;
    }
}

static void take_tag(struct parser *p, struct harmony *h, enum tag tag)
{
    if (h->place == HEADER) {
        if (tag == T_MESSAGE)
            begin_message(p, h);
        else if (tag == T_CHANNEL)
            buf_add_str(&h->header, tags[tag]);
        else if (tag == T_START)
            buf_reset(&h->header);
        return;
    }
    if (tag == T_MESSAGE) /* inside a message it is text */
        for (size_t i = 0; tags[tag][i]; i++)
            text_byte(p, h, tags[tag][i]);
    else
        end_message(p, h);
    if (tag == T_MESSAGE)
        return;
    h->place = HEADER;
    if (tag == T_CHANNEL)
        buf_add_str(&h->header, tags[tag]);
}

static enum part read_byte(struct parser *p, struct harmony *h, char c)
{
    size_t whole;
    h->tag[h->n_tag++] = c;
    while (h->n_tag) {
        int i = tag_begun(tags, h->tag, h->n_tag, &whole);
        if (whole) {
            h->n_tag = 0;
            take_tag(p, h, (enum tag)i);
        } else if (i >= 0) {
            break;
        } else {
            char first = h->tag[0];
            memmove(h->tag, h->tag + 1, --h->n_tag);
            text_byte(p, h, first);
        }
    }
    return PART_MORE;
}

static enum part harmony_byte(struct parser *p, char c)
{
    struct harmony *h = format_state(p);
    enum part part = read_byte(p, h, c);
    kept(p, &h->header);
    kept(p, &h->name);
    kept(p, &h->args);
    return part;
}

static bool harmony_finish(struct parser *p)
{
    struct harmony *h = format_state(p);
    for (size_t i = 0; i < h->n_tag; i++)
        text_byte(p, h, h->tag[i]);
    h->n_tag = 0;
    if (h->place == HEADER)
        no_header(p, h);
    else
        end_message(p, h);
    return true;
}

static void harmony_release(struct parser *p)
{
    struct harmony *h = format_state(p);
    buf_release(&h->header);
    buf_release(&h->name);
    buf_release(&h->args);
}

static enum parser_thinking harmony_thinking(const void *state)
{
    const struct harmony *h = state;
    return h->place != REASONING ? THINKING_NOT : h->n_tag ? THINKING_HELD : THINKING;
}

const struct tool_family family_harmony = {
    .state_bytes = sizeof(struct harmony),
    .whole = true,
    .byte = harmony_byte,
    .finish = harmony_finish,
    .release = harmony_release,
    .thinking = harmony_thinking,
};
