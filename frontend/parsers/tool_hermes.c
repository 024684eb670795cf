/* SPDX-License-Identifier: Apache-2.0 */
/* Hermes: <tool_call>{"name": "f", "arguments": {…}}</tool_call>, any number of times, in text.
 *
 *   TEXT -<tool_call>-> OPEN -{-> KEY > COLON > VALUE > NEXT -}-> AFTER -</tool_call>-> TEXT
 *
 * The object is read with a JSON scanner, so a tag inside a string is just text. The call is
 * announced as soon as its name is complete and the arguments follow as they are read; when they
 * come before the name they wait. Until the announcement all bytes of the call are kept: if it
 * turns out to be none, they are content. After it the call can only be cut short (no
 * TOOL_CALL_END), and the rest up to </tool_call> is dropped, since it is no content either. Blanks
 * that stand alone between two tags, before the first or after the last are layout, not content. */
#include "frontend/parsers/format.h"
#include <string.h>
#include "frontend/parsers/json_scan.h"

static const char tag_open[] = "<tool_call>", tag_close[] = "</tool_call>";
#define OPEN_LENGTH  (sizeof tag_open - 1)
#define CLOSE_LENGTH (sizeof tag_close - 1)

enum place {
    TEXT,  /* content; `matched` bytes of the opening tag are held back */
    OPEN,  /* after the opening tag */
    KEY,   /* after '{' or ',': a key, or '}' if `first_key` */
    COLON, /* after a key */
    VALUE, /* in a value, or in the blanks before it */
    NEXT,  /* after a value */
    AFTER, /* after '}': the closing tag; `matched` bytes of it seen */
    SKIP   /* in the rest of a call that went wrong after its announcement */
};

enum role { ROLE_OTHER, ROLE_KEY, ROLE_NAME, ROLE_ARGS };

struct hermes {
    enum place place;
    enum role role;    /* what the current value is */
    size_t matched;    /* bytes of a tag */
    struct buf blanks; /* white space in TEXT that may turn out to be layout */
    bool said;         /* there was content since the last tag: blanks are part of it */
    struct buf raw;    /* the call's bytes, until it is announced */
    size_t n_byte;     /* of the current call */
    struct json_scan scan;
    bool in_value; /* the scanner is past the value's first byte */
    bool keep;     /* the current value goes to `scratch`, not straight out */
    struct buf scratch;
    struct buf args; /* arguments that came before the name */
    bool first_key, announced, has_name, has_args;
};

static bool is_space(char c)
{
    return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

/* --- content ---------------------------------------------------------------------------------- */

static enum q_code say(struct tool_parser *p, struct hermes *h, const char *text, size_t n,
                       struct q_err *e)
{
    enum q_code rc;
    if ((rc = buf_check(&h->blanks, "tool-call parser", e)) ||
        (h->blanks.len && (rc = put_content(p, h->blanks.data, h->blanks.len, e))))
        return rc;
    buf_reset(&h->blanks);
    h->said = true;
    return put_content(p, text, n, e);
}

static enum q_code text_byte(struct tool_parser *p, struct hermes *h, char c, struct q_err *e)
{
    enum q_code rc;
    if (c == tag_open[h->matched] && tool_parser_n_calls(p) < TOOL_CALLS_MAX) {
        if (++h->matched < OPEN_LENGTH)
            return Q_OK;
        h->matched = 0;
        h->place = OPEN;
        h->n_byte = 0;
        buf_reset(&h->raw);
        buf_add(&h->raw, tag_open, OPEN_LENGTH);
        return Q_OK;
    }
    if (h->matched) { /* no tag; '<' occurs in it only once, so no part of it begins another */
        size_t n = h->matched;
        h->matched = 0;
        if ((rc = say(p, h, tag_open, n, e)))
            return rc;
        return text_byte(p, h, c, e);
    }
    if (is_space(c) && !h->said) {
        buf_add_char(&h->blanks, c);
        return Q_OK;
    }
    return say(p, h, &c, 1, e);
}

/* --- the call --------------------------------------------------------------------------------- */

static void call_reset(struct hermes *h)
{
    buf_reset(&h->raw);
    buf_reset(&h->scratch);
    buf_reset(&h->args);
    h->announced = h->has_name = h->has_args = false;
    h->matched = 0;
}

/* The call cannot be one: its text is content, or, when it was announced already, what is left of
 * it is dropped. */
static enum q_code call_bad(struct tool_parser *p, struct hermes *h, struct q_err *e)
{
    enum q_code rc = Q_OK;
    if (h->announced) {
        h->place = SKIP;
        h->matched = 0;
        return Q_OK;
    }
    if (!(rc = buf_check(&h->raw, "tool-call parser", e)))
        rc = say(p, h, h->raw.data, h->raw.len, e);
    call_reset(h);
    h->place = TEXT;
    return rc;
}

/* Arguments out, or aside while the name is unknown. A raw newline & co. inside a string becomes an
 * escape. */
static enum q_code args_out(struct tool_parser *p, struct hermes *h, const char *text, size_t n,
                            struct q_err *e)
{
    if (h->announced)
        return put_args(p, text, n, e);
    buf_add(&h->args, text, n);
    return buf_check(&h->args, "tool-call parser", e);
}

static enum q_code arg_byte(struct tool_parser *p, struct hermes *h, char c, bool in_string,
                            struct q_err *e)
{
    char escaped[8];
    if (!in_string || (unsigned char)c >= 0x20)
        return args_out(p, h, &c, 1, e);
    int n = snprintf(escaped, sizeof escaped, "\\u%04x", (unsigned)c);
    if (c == '\n' || c == '\t' || c == '\r')
        n = snprintf(escaped, sizeof escaped, "\\%c", c == '\n' ? 'n' : c == '\t' ? 't' : 'r');
    return args_out(p, h, escaped, (size_t)n, e);
}

static enum q_code announce(struct tool_parser *p, struct hermes *h, const char *name, size_t n,
                            struct q_err *e)
{
    enum q_code rc = put_call(p, name, n, e);
    if (rc)
        return rc;
    h->announced = true;
    buf_reset(&h->raw);
    if (h->args.len && (rc = put_args(p, h->args.data, h->args.len, e)))
        return rc;
    buf_reset(&h->args);
    return Q_OK;
}

/* Arguments written as a string: the JSON inside it, or the string itself when there is none
 * inside. */
static enum q_code args_string(struct tool_parser *p, struct hermes *h, struct q_err *e)
{
    struct buf inner = BUF_INIT;
    json_scan_unquote(&inner, h->scratch.data, h->scratch.len);
    enum q_code rc = buf_check(&inner, "tool-call parser", e);
    bool json = json_scan_valid(buf_str(&inner), inner.len);
    if (!rc && json)
        rc = args_out(p, h, inner.data, inner.len, e);
    for (size_t i = 0; i < h->scratch.len && !rc && !json; i++)
        rc = arg_byte(p, h, h->scratch.data[i], true, e);
    buf_release(&inner);
    return rc;
}

/* A value that was kept is complete in scratch. */
static enum q_code kept_value(struct tool_parser *p, struct hermes *h, struct q_err *e)
{
    enum q_code rc = buf_check(&h->scratch, "tool-call parser", e);
    struct buf text = BUF_INIT;
    if (rc)
        return rc;
    if (h->role == ROLE_ARGS)
        return h->scratch.data[0] == '"' ? args_string(p, h, e)
                                         : args_out(p, h, "{}", 2, e); /* null */
    json_scan_unquote(&text, h->scratch.data, h->scratch.len);
    if (!(rc = buf_check(&text, "tool-call parser", e)) && h->role == ROLE_KEY) {
        const char *key = buf_str(&text);
        h->role =
            strcmp(key, "name") == 0 && !h->has_name ? ROLE_NAME
            : (strcmp(key, "arguments") == 0 || strcmp(key, "parameters") == 0) && !h->has_args
                ? ROLE_ARGS
                : ROLE_OTHER;
    } else if (!rc && text.len == 0) {
        rc = call_bad(p, h, e);
    } else if (!rc) {
        h->has_name = true;
        rc = announce(p, h, text.data, text.len, e);
    }
    buf_release(&text);
    return rc;
}

static void begin_value(struct hermes *h, enum place place)
{
    h->scan = (struct json_scan)JSON_SCAN_INIT;
    h->in_value = h->keep = false;
    h->place = place;
    buf_reset(&h->scratch);
}

/* The first byte of a value decides how it is handled. False: not possible for its role. */
static bool first_byte(struct hermes *h, char c)
{
    h->in_value = true;
    if (h->role == ROLE_KEY || h->role == ROLE_NAME) {
        h->keep = true;
        return c == '"';
    }
    h->keep = h->role == ROLE_ARGS && (c == '"' || c == 'n');
    return true;
}

static enum q_code value_over(struct tool_parser *p, struct hermes *h, struct q_err *e)
{
    enum place next = h->role == ROLE_KEY ? COLON : NEXT;
    h->place = next;
    if (h->role == ROLE_ARGS)
        h->has_args = true;
    return h->keep ? kept_value(p, h, e) : Q_OK;
}

static enum q_code call_byte(struct tool_parser *p, struct hermes *h, char c, struct q_err *e);

static enum q_code value_byte(struct tool_parser *p, struct hermes *h, char c, struct q_err *e)
{
    enum q_code rc = Q_OK;
    if (!h->in_value && is_space(c))
        return Q_OK;
    if (!h->in_value && !first_byte(h, c))
        return call_bad(p, h, e);
    bool in_string = json_scan_in_string(&h->scan);
    enum json_scan_step step = json_scan_byte(&h->scan, c);
    if (step == JSON_SCAN_BAD || (h->role == ROLE_KEY && in_string && (unsigned char)c < 0x20))
        return call_bad(p, h, e);
    if (step == JSON_SCAN_PAST) {
        if ((rc = value_over(p, h, e)) || h->place != NEXT)
            return rc;
        return call_byte(p, h, c, e);
    }
    if (h->keep)
        buf_add_char(&h->scratch, c);
    else if (h->role == ROLE_ARGS)
        rc = arg_byte(p, h, c, json_scan_in_string(&h->scan), e);
    return rc || step != JSON_SCAN_END ? rc : value_over(p, h, e);
}

static enum q_code object_over(struct tool_parser *p, struct hermes *h, struct q_err *e)
{
    enum q_code rc;
    if (!h->announced)
        return call_bad(p, h, e);
    if ((!h->has_args && (rc = put_args(p, "{}", 2, e))) || (rc = put_end(p, e)))
        return rc;
    call_reset(h);
    h->place = AFTER;
    return Q_OK;
}

static enum q_code call_byte(struct tool_parser *p, struct hermes *h, char c, struct q_err *e)
{
    if (h->place == VALUE)
        return value_byte(p, h, c, e);
    if (is_space(c))
        return Q_OK;
    switch (h->place) {
    case OPEN:
        if (c != '{')
            break;
        h->role = ROLE_KEY;
        h->first_key = true;
        h->place = KEY;
        return Q_OK;
    case KEY:
        if (c == '}' && h->first_key)
            return object_over(p, h, e);
        h->first_key = false;
        h->role = ROLE_KEY;
        begin_value(h, VALUE);
        return value_byte(p, h, c, e);
    case COLON:
        if (c != ':')
            break;
        begin_value(h, VALUE);
        return Q_OK;
    default: /* NEXT */
        if (c == '}')
            return object_over(p, h, e);
        if (c != ',')
            break;
        h->place = KEY;
        return Q_OK;
    }
    return call_bad(p, h, e);
}

/* --- tags after the object -------------------------------------------------------------------- */

static void back_to_text(struct hermes *h)
{
    h->place = TEXT;
    h->matched = 0;
    h->said = false;
    buf_reset(&h->blanks);
}

/* Bytes of a tag that matched so far but is none, and c: as text. */
static enum q_code replay(struct tool_parser *p, struct hermes *h, size_t n, char c,
                          struct q_err *e)
{
    enum q_code rc = Q_OK;
    back_to_text(h);
    for (size_t i = 0; i < n && !rc; i++)
        rc = text_byte(p, h, tag_close[i], e);
    return rc ? rc : text_byte(p, h, c, e);
}

/* After a complete object: its closing tag; the next call when the model forgot to close; or just
 * text. One brace too many, a frequent slip, is ignored. */
static enum q_code after_byte(struct tool_parser *p, struct hermes *h, char c, struct q_err *e)
{
    if (c == tag_close[h->matched]) {
        if (++h->matched == CLOSE_LENGTH)
            back_to_text(h);
        return Q_OK;
    }
    if (h->matched == 0 && (is_space(c) || c == '}'))
        return Q_OK;
    return replay(p, h, h->matched, c, e);
}

static void skip_byte(struct hermes *h, char c)
{
    h->matched = c == tag_close[h->matched] ? h->matched + 1 : c == tag_close[0];
    if (h->matched < CLOSE_LENGTH)
        return;
    call_reset(h);
    back_to_text(h);
}

/* --- the format ------------------------------------------------------------------------------- */

/* One byte of a call that is not announced is kept; a byte that showed the call to be none is read
 * again as text. */
static enum q_code inside_byte(struct tool_parser *p, struct hermes *h, char c, struct q_err *e)
{
    enum q_code rc = ++h->n_byte > TOOL_CALL_BYTES_MAX ? call_bad(p, h, e) : call_byte(p, h, c, e);
    if (rc)
        return rc;
    if (h->place == TEXT)
        return text_byte(p, h, c, e);
    if (h->place == SKIP)
        skip_byte(h, c);
    else if (!h->announced && h->place != AFTER)
        buf_add_char(&h->raw, c);
    return Q_OK;
}

static enum q_code hermes_byte(struct tool_parser *p, char c, struct q_err *e)
{
    struct hermes *h = tool_state(p);
    switch (h->place) {
    case TEXT:
        return text_byte(p, h, c, e);
    case AFTER:
        return after_byte(p, h, c, e);
    case SKIP:
        skip_byte(h, c);
        return Q_OK;
    default:
        return inside_byte(p, h, c, e);
    }
}

static enum q_code hermes_finish(struct tool_parser *p, struct q_err *e)
{
    struct hermes *h = tool_state(p);
    enum q_code rc = Q_OK;
    if (h->place == TEXT && h->matched) {
        size_t n = h->matched;
        h->matched = 0;
        rc = say(p, h, tag_open, n, e);
    } else if (h->place >= OPEN && h->place < AFTER && !h->announced) {
        rc = call_bad(p, h, e);
    }
    if (!rc && tool_parser_n_calls(p) == 0 && h->blanks.len)
        rc = put_content(p, h->blanks.data, h->blanks.len, e);
    buf_reset(&h->blanks);
    return rc;
}

static void hermes_release(struct tool_parser *p)
{
    struct hermes *h = tool_state(p);
    buf_release(&h->blanks);
    buf_release(&h->raw);
    buf_release(&h->scratch);
    buf_release(&h->args);
}

const struct tool_format tool_hermes = {"hermes", sizeof(struct hermes), hermes_byte, hermes_finish,
                                        hermes_release};
