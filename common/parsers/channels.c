/* SPDX-License-Identifier: Apache-2.0 */
/* Messages on channels (Muse Glimmer, Muse Spark). The output continues the end of the prompt,
 * "<|start|>assistant", and is a sequence of messages:
 *
 *    to=self<|message|>REASONING<|eom|><|start|>assistant to=get_weather<|message|>CALLS<|eom|>…
 *
 *   HEADER -<|message|>-> THINKS, USER or CALLS, by the recipient -<|eom|>, <|eot|>-> HEADER
 *      `-text that is no header-> the previous message continues
 *
 * Only messages to a function contain calls: calls quoted in an answer or in reasoning are text.
 * Where the recipient or the header is missing, calls count as well, because models lose headers.
 * A message without its end tag ends at the next header, of which " to=NAME" and the last tag are
 * sufficient. Spark: messages without a recipient are reasoning, messages to "commentary" are
 * content, messages to "developer" are dropped. */
#include <string.h>
#include "common/parsers/stage.h"

#define HEADER_MAX (FORMAT_NAME_MAX + 128) /* bytes of a header: it is read anew with every byte */

enum place { HEADER, THINKS, USER, CALLS, DROPPED };

enum tag { T_EOM, T_EOT, T_START };
static const char *const tags[FORMAT_TAGS] = {"<|eom|>", "<|eot|>", "<|start|>"};
static const char start[] = "<|start|>", message[] = "<|message|>";

/* ---- headers ---- */

enum found { FOUND_NOT, FOUND_BEGUN, FOUND_WHOLE };

struct header {
    const char *at, *end;
    const char *recipient;
    size_t n_recipient;
};

static void skip_blanks(struct header *h)
{
    while (h->at < h->end && is_blank(*h->at))
        h->at++;
}

static enum found word(struct header *h, const char *text)
{
    size_t n = strlen(text), left = (size_t)(h->end - h->at);
    if (memcmp(h->at, text, n < left ? n : left) != 0)
        return FOUND_NOT;
    h->at += n < left ? n : left;
    return n <= left ? FOUND_WHOLE : FOUND_BEGUN;
}

static bool is_recipient(char c)
{
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' ||
           c == '-' || c == '.';
}

/* "to=NAME", if it is there. */
static enum found recipient(struct header *h)
{
    enum found found = word(h, "to=");
    if (found != FOUND_WHOLE)
        return found;
    h->recipient = h->at;
    while (h->at < h->end && is_recipient(*h->at))
        h->at++;
    h->n_recipient = (size_t)(h->at - h->recipient);
    if (h->n_recipient > FORMAT_NAME_MAX || (h->n_recipient == 0 && h->at < h->end))
        return FOUND_NOT;
    return h->at == h->end ? FOUND_BEGUN : FOUND_WHOLE;
}

/* [<|start|>assistant] [to=NAME] <|message|> */
static enum found read_header(struct header *h)
{
    skip_blanks(h);
    enum found found = word(h, start);
    if (found == FOUND_WHOLE) {
        skip_blanks(h);
        found = word(h, "assistant");
        if (found != FOUND_WHOLE)
            return found;
        skip_blanks(h);
    }
    if (found == FOUND_BEGUN || h->at == h->end)
        return FOUND_BEGUN;
    found = recipient(h);
    if (found == FOUND_BEGUN || (found == FOUND_NOT && h->recipient))
        return found;
    skip_blanks(h);
    return word(h, message);
}

/* ---- messages ---- */

static void say(struct parser *p, const struct channel_stage *s, char c)
{
    if (s->place == THINKS)
        say_reasoning(p, &c, 1);
    else if (s->place == USER)
        say_content(p, &c, 1);
    else if (s->place == CALLS)
        tool_stage_byte(p, c);
}

static void end_message(struct parser *p, struct channel_stage *s, int place)
{
    if (place == CALLS)
        tool_stage_finish(p);
    s->place = HEADER;
    s->inside = false;
    s->within = CALLS; /* what is no header is a message that has none */
    buf_reset(&s->header);
}

/* Whom a message is for. */
static enum place place_of(enum channels names, const struct header *h)
{
    static const struct {
        const char *recipient; /* "": none is named */
        enum place place[3];   /* by enum channels */
    } rows[] = {
        {"self", {CALLS, THINKS, THINKS}},    {"user", {CALLS, USER, USER}},
        {"commentary", {CALLS, CALLS, USER}}, {"developer", {CALLS, CALLS, DROPPED}},
        {"", {CALLS, CALLS, THINKS}},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (strlen(rows[i].recipient) == h->n_recipient &&
            memcmp(rows[i].recipient, h->n_recipient ? h->recipient : "", h->n_recipient) == 0)
            return rows[i].place[names];
    return CALLS;
}

static void begin_message(struct parser *p, struct channel_stage *s, const struct header *h)
{
    enum place place = place_of(s->names, h);
    bool self = place == THINKS;
    end_message(p, s, s->within);
    s->place = place;
    if (self && s->any) /* two messages are told apart by a newline */
        say_reasoning(p, "\n", 1);
    s->any |= self;
}

static void body_byte(struct parser *p, struct channel_stage *s, char c)
{
    if (s->n_held == 0 && is_blank(c)) {
        s->within = s->place;
        s->place = HEADER;
        s->inside = true;
        buf_add_char(&s->header, c);
        kept(p, &s->header);
        return;
    }
    s->held[s->n_held++] = c;
    while (s->n_held) {
        size_t whole;
        int i = tag_begun(tags, s->held, s->n_held, &whole);
        if (i >= 0 && !whole)
            return;
        if (whole && i == T_START) {
            s->within = s->place;
            s->place = HEADER;
            s->inside = false;
            buf_add_str(&s->header, start);
            s->n_held = 0;
        } else if (whole) {
            end_message(p, s, s->place);
            s->n_held = 0;
        } else {
            char first = s->held[0];
            memmove(s->held, s->held + 1, --s->n_held);
            say(p, s, first);
        }
    }
}

/* No header: its bytes belong to the message before. Another tag may begin in the last of them. */
static void no_header(struct parser *p, struct channel_stage *s)
{
    struct buf text = s->header;
    const char *last = text.len ? memrchr(text.data, '<', text.len) : NULL;
    size_t n_text = last ? (size_t)(last - text.data) : text.len;
    if (!last && text.len > 1 && is_blank(text.data[text.len - 1]))
        n_text = text.len - 1; /* a header may begin with it */
    s->header = (struct buf)BUF_INIT;
    s->place = s->within;
    if (text.len - n_text >= strlen(start) && !memcmp(text.data + n_text, start, strlen(start)))
        n_text = text.len; /* it would begin the same header again */
    for (size_t i = 0; i < text.len; i++)
        if (i < n_text)
            say(p, s, text.data[i]);
        else
            body_byte(p, s, text.data[i]);
    buf_release(&text);
}

static void header_byte(struct parser *p, struct channel_stage *s, char c)
{
    if (s->inside && s->header.len == 1 && c != 't') { /* " to=" does not begin here */
        char blank = s->header.data[0];
        s->place = s->within;
        buf_reset(&s->header);
        say(p, s, blank);
        body_byte(p, s, c);
        return;
    }
    buf_add_char(&s->header, c);
    kept(p, &s->header);
    count_work(p, s->header.len);
    struct header h = {.at = buf_str(&s->header), .end = buf_str(&s->header) + s->header.len};
    enum found found = s->header.len > HEADER_MAX ? FOUND_NOT : read_header(&h);
    if (found == FOUND_WHOLE)
        begin_message(p, s, &h);
    else if (found == FOUND_NOT)
        no_header(p, s);
}

void channel_byte(struct parser *p, struct channel_stage *s, char c)
{
    if (s->within == HEADER) /* the very first byte */
        s->within = CALLS;
    if (s->place == HEADER)
        header_byte(p, s, c);
    else
        body_byte(p, s, c);
}

void channel_finish(struct parser *p, struct channel_stage *s)
{
    const struct buf *h = &s->header;
    bool begun = h->len >= strlen(start) && memcmp(h->data, start, strlen(start)) == 0;
    if (s->place == HEADER && !begun) {
        s->place = s->inside ? s->within : CALLS;
        for (size_t i = 0; i < h->len; i++)
            say(p, s, h->data[i]);
    }
    for (size_t i = 0; s->place != HEADER && i < s->n_held; i++)
        say(p, s, s->held[i]);
    s->n_held = 0;
}

enum parser_thinking channel_thinking(const struct channel_stage *s)
{
    if (s->place == HEADER)
        return s->within == THINKS ? THINKING_HELD : THINKING_NOT;
    return s->place != THINKS ? THINKING_NOT : s->n_held ? THINKING_HELD : THINKING;
}

void channel_release(struct channel_stage *s)
{
    buf_release(&s->header);
}
