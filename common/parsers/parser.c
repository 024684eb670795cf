/* SPDX-License-Identifier: Apache-2.0 */
/* The core: the tool stage, which finds the tags of a format, and the collector between the stages
 * and the sink, which joins pieces of the same kind until a piece of another kind comes or the
 * feed ends.
 *
 * A region that is no call is text up to its first byte, and the rest is read again, because a
 * real call may begin inside it ("the tag <tool_call> opens: <tool_call>{…"). At most RESCAN_MAX
 * bytes of a region are read again, which keeps the time linear; the rest of a longer region is
 * text. */
#include "common/parsers/parser_internal.h"
#include <string.h>
#include "common/mem.h"
#include "common/parsers/json_scan.h"
#include "common/parsers/stage.h"

#define RESCAN_MAX 4096 /* bytes of a region that are looked at again */

enum mode { TEXT, REGION, SKIP };

struct parser {
    const struct tool_format *format;
    const struct tool_family *family; /* which of the format's two reads the region */
    void *state, *state_otherwise;    /* of the one, of the other */
    struct reasoning_stage reasoning;
    struct channel_stage channels; /* instead of it, where the format has channels */
    bool in_channels;
    const json_t *tools; /* borrowed from the caller */
    parsed_sink *sink;   /* of the feed that is running */
    void *ctx;
    struct q_err *e;
    enum q_code rc; /* first failure of the feed */
    struct buf pending;
    enum parsed_kind pending_kind;
    uint32_t n_call;
    uint64_t work; /* bytes that were read, again and again */
    /* the tool stage */
    enum mode mode;
    char held[FORMAT_TAG_MAX]; /* bytes that may begin a tag */
    size_t n_held;
    struct buf layout;     /* blanks and layout tags that are dropped if a call follows */
    size_t n_layout_tag;   /* tags among them */
    size_t layout_open;    /* where the last of them is, plus 1, if it opens something; else 0 */
    bool said;             /* text since the begin or the last call: blanks are part of it */
    bool line_start;       /* only blanks since the last newline or call */
    bool announced;        /* a call of this region, which is not over */
    bool bare;             /* the region began without a tag */
    size_t n_open;         /* bytes of the tag it began with */
    bool tag_failed;       /* no call followed the last tag of `open` */
    struct buf raw;        /* bytes of the region behind its last call */
    struct json_scan scan; /* of the announced call's arguments */
    bool noisy;            /* something of the announced call is dropped */
    bool slipped;          /* SKIP: the call is broken, not only undecided */
    bool cut;              /* the text ends at a limit */
    size_t n_byte;         /* of the current call */
    struct buf unread;     /* bytes to read before what comes, from i_unread */
    size_t i_unread;
    struct { /* a trial, and what it goes back to */
        bool on, failed;
        bool said, line_start;
        size_t n_layout, n_layout_tag;
        uint32_t n_call;
    } trial;
};

/* ---- making one ---- */

static enum q_code find_rows(struct parser *p, const struct parser_config *c, struct q_err *e)
{
    const char *tool = c->tool ? c->tool : "none", *reasoning = c->reasoning;
    p->format = tool_format_named(tool);
    if (!p->format)
        return tool_format_unknown(tool, e);
    if (!reasoning || strcmp(reasoning, "none") == 0)
        return Q_OK;
    p->reasoning.format = reasoning_format_named(reasoning);
    return p->reasoning.format ? Q_OK : reasoning_format_unknown(reasoning, e);
}

static enum q_code make_states(struct parser *p, struct q_err *e)
{
    const struct tool_family *other = p->format->otherwise;
    p->family = p->format->family;
    p->state = q_calloc(1, p->family->state_bytes);
    p->state_otherwise = other ? q_calloc(1, other->state_bytes) : NULL;
    if (p->state && (!other || p->state_otherwise))
        return Q_OK;
    q_free(p->state);
    q_free(p->state_otherwise);
    return q_fail(e, Q_NO_MEMORY, "parser: out of memory");
}

enum q_code parser_new(struct parser **out, const struct parser_config *config, struct q_err *e)
{
    struct parser *p = q_calloc(1, sizeof *p);
    enum q_code rc;
    if (!p)
        return q_fail(e, Q_NO_MEMORY, "parser: out of memory");
    if ((rc = find_rows(p, config, e)) != Q_OK) {
        q_free(p);
        return rc;
    }
    const struct reasoning_format *r = p->reasoning.format;
    p->channels.names = p->format->channels ? p->format->channels : r ? r->channels : CHANNELS_NONE;
    p->in_channels = p->channels.names != CHANNELS_NONE;
    if (p->in_channels) {
        p->reasoning.format = NULL;
    } else if (r && !r->end[0]) { /* the tool stage reads channels, of which reasoning is one */
        for (size_t i = 0; i < n_tool_format; i++)
            if (tool_formats[i].family == &family_harmony && p->format->family == &family_none)
                p->format = &tool_formats[i];
        p->reasoning.format = NULL;
    } else if (r) {
        p->reasoning.open =
            config->start == REASONING_BY_FORMAT ? r->open : config->start == REASONING_OPEN;
    }
    p->tools = config->tools;
    p->reasoning.tool = p->format;
    p->line_start = true;
    if ((rc = make_states(p, e)) != Q_OK) {
        q_free(p);
        return rc;
    }
    *out = p;
    return Q_OK;
}

/* The one that is to read what p->family could not; NULL: there is none. */
static const struct tool_family *next_family(const struct parser *p)
{
    return p->family == p->format->family ? p->format->otherwise : NULL;
}

void parser_free(struct parser *p)
{
    if (!p)
        return;
    for (p->family = p->format->family; p->family; p->family = next_family(p))
        if (p->family->release)
            p->family->release(p);
    reasoning_release(&p->reasoning);
    channel_release(&p->channels);
    buf_release(&p->pending);
    buf_release(&p->layout);
    buf_release(&p->raw);
    buf_release(&p->unread);
    q_free(p->state);
    q_free(p->state_otherwise);
    q_free(p);
}

uint32_t parser_n_calls(const struct parser *p)
{
    return p->n_call;
}

uint64_t parser_work(const struct parser *p)
{
    return p->work;
}

void count_work(struct parser *p, size_t n)
{
    p->work += n;
}

/* ---- events ---- */

static void send(struct parser *p, enum parsed_kind kind, const char *text, size_t n)
{
    const bool of_call = kind >= PARSED_CALL_BEGIN;
    const struct parsed_event event = {kind, of_call ? p->n_call - 1 : 0, text, n};
    if (!p->rc)
        p->rc = p->sink(p->ctx, &event, p->e);
}

static void flush(struct parser *p)
{
    if (!p->rc)
        p->rc = buf_check(&p->pending, "parser", p->e);
    if (!p->rc && p->pending.len)
        send(p, p->pending_kind, p->pending.data, p->pending.len);
    buf_reset(&p->pending);
}

static void collect(struct parser *p, enum parsed_kind kind, const char *text, size_t n)
{
    if (n == 0)
        return;
    if (p->pending.len && p->pending_kind != kind)
        flush(p);
    p->pending_kind = kind;
    buf_add(&p->pending, text, n);
}

void say_reasoning(struct parser *p, const char *text, size_t n)
{
    collect(p, PARSED_REASONING, text, n);
}

static void take_layout(struct parser *p, bool keep)
{
    if (keep)
        collect(p, PARSED_CONTENT, buf_str(&p->layout), p->layout.len);
    kept(p, &p->layout);
    buf_reset(&p->layout);
    p->n_layout_tag = p->layout_open = 0;
}

void say_content(struct parser *p, const char *text, size_t n)
{
    if (p->trial.on) { /* text is no call */
        p->trial.failed = true;
        return;
    }
    take_layout(p, true);
    p->said = true;
    collect(p, PARSED_CONTENT, text, n);
}

/* The layout before a call is its own, should the call be broken. */
static void keep_layout(struct parser *p)
{
    struct buf raw = p->raw;
    if (p->layout.len == 0)
        return;
    p->raw = p->layout;
    p->layout = (struct buf)BUF_INIT;
    kept(p, &raw);
    buf_add(&p->raw, buf_str(&raw), raw.len);
    kept(p, &p->raw);
    buf_release(&raw);
}

void call_announce(struct parser *p, const char *name, size_t n)
{
    keep_layout(p);
    take_layout(p, false);
    flush(p);
    if (n == 0 && !p->rc)
        p->rc = q_fail(p->e, Q_NO_MEMORY, "parser: out of memory for the name of a function");
    p->n_call++;
    p->announced = true;
    p->noisy = false;
    p->scan = (struct json_scan)JSON_SCAN_INIT;
    send(p, PARSED_CALL_BEGIN, name, n);
}

bool call_announced(const struct parser *p)
{
    return p->announced;
}

bool region_bare(const struct parser *p)
{
    return p->bare;
}

bool region_first(const struct parser *p)
{
    return !p->said;
}

void call_args(struct parser *p, const char *text, size_t n)
{
    Q_ASSERT(p->announced);
    for (size_t i = 0; i < n; i++)
        json_scan_byte(&p->scan, text[i]);
    collect(p, PARSED_CALL_ARGS, text, n);
}

void call_end(struct parser *p)
{
    flush(p);
    send(p, PARSED_CALL_END, "", 0);
    p->announced = p->said = p->tag_failed = false;
    p->line_start = true;
    p->n_byte = 0;
    call_drop_kept(p);
}

void call_cut(struct parser *p)
{
    flush(p);
    kept(p, &p->raw);
    send(p, PARSED_CALL_BROKEN, buf_str(&p->raw), p->raw.len);
    buf_reset(&p->raw);
    p->announced = false;
    p->said = true; /* its text is content to the caller, and so are blanks behind it */
}

void call_noise(struct parser *p)
{
    p->noisy = true;
}

bool call_complete(struct parser *p)
{
    struct buf closing = BUF_INIT;
    size_t n = p->raw.len;
    while (n && is_blank(p->raw.data[n - 1]))
        n--;
    bool more = n && strchr(",:=", p->raw.data[n - 1]); /* something was to follow */
    bool good =
        p->announced && !p->cut && !p->noisy && !more && json_scan_close(&p->scan, &closing);
    kept(p, &closing);
    if (good) {
        call_args(p, buf_str(&closing), closing.len);
        call_end(p);
    }
    buf_release(&closing);
    return good;
}

void call_keep(struct parser *p, const char *text, size_t n)
{
    buf_add(&p->raw, text, n);
    kept(p, &p->raw);
}

void kept(struct parser *p, const struct buf *b)
{
    if (b->failed && !p->rc)
        p->rc = buf_check(b, "parser", p->e);
}

void call_drop_kept(struct parser *p)
{
    buf_reset(&p->raw);
    p->n_open = 0; /* the tag is among them */
}

/* ---- what families ask ---- */

const struct tool_format *format_row(const struct parser *p)
{
    return p->format;
}

void *format_state(struct parser *p)
{
    return p->family == p->format->family ? p->state : p->state_otherwise;
}

const json_t *format_tools(const struct parser *p)
{
    return p->tools;
}

bool format_tools_known(const struct parser *p)
{
    return json_array_size(p->tools) > 0;
}

const json_t *format_function(const struct parser *p, const char *name)
{
    size_t i;
    json_t *tool;
    json_array_foreach ((json_t *)p->tools, i, tool) {
        const json_t *f = json_object_get(tool, "function");
        const char *s = json_string_value(json_object_get(f ? f : tool, "name"));
        if (s && strcmp(s, name) == 0)
            return f ? f : tool;
    }
    return NULL;
}

/* ---- reading again ---- */

void put_back(struct parser *p, struct buf *unread, size_t *at, const char *text, size_t n)
{
    struct buf next = BUF_INIT;
    if (n == 0)
        return;
    if (*at >= n) { /* there is room before what is unread already */
        *at -= n;
        memcpy(unread->data + *at, text, n);
        return;
    }
    buf_add(&next, text, n);
    if (unread->len > *at)
        buf_add(&next, unread->data + *at, unread->len - *at);
    kept(p, &next);
    buf_release(unread);
    *unread = next;
    *at = 0;
}

static void unread(struct parser *p, const char *text, size_t n)
{
    put_back(p, &p->unread, &p->i_unread, text, n);
}

void region_unread(struct parser *p, const char *text, size_t n)
{
    p->raw.len -= n < p->raw.len ? n : p->raw.len; /* they come again */
    unread(p, text, n);
}

/* ---- regions ---- */

static void enter_region(struct parser *p, const char *text, size_t n)
{
    p->mode = REGION;
    p->announced = false;
    p->bare = n == 0;
    p->n_open = n;
    p->n_byte = 0;
    buf_reset(&p->raw);
    buf_add(&p->raw, text, n);
    p->family = p->bare && p->format->otherwise ? p->format->otherwise : p->format->family;
    p->family->begin(p);
}

/* What came behind the tag is read again by the format's other family. */
static void read_otherwise(struct parser *p)
{
    struct buf raw = p->raw;
    p->raw = (struct buf)BUF_INIT;
    kept(p, &raw);
    buf_add(&p->raw, buf_str(&raw), raw.len < p->n_open ? raw.len : p->n_open);
    if (raw.len > p->n_open)
        unread(p, raw.data + p->n_open, raw.len - p->n_open);
    buf_release(&raw);
    p->n_byte = 0;
    p->family = p->format->otherwise;
    p->family->begin(p);
}

/* The bytes at a region's begin that are not even text. */
static size_t dropped(struct parser *p)
{
    size_t n = p->n_open;
    if (!p->format->tag_drops || n == 0 || n > p->raw.len)
        return 0;
    p->tag_failed = true;
    while (n < p->raw.len && is_blank(p->raw.data[n]))
        n++;
    return p->said ? 0 : n;
}

/* The kept bytes are text: the first at once, the others are read again. */
static void give_back(struct parser *p)
{
    if (p->trial.on) { /* their holder reads them */
        p->trial.failed = true;
        return;
    }
    size_t n_drop = dropped(p);
    struct buf raw = p->raw;
    p->raw = (struct buf)BUF_INIT;
    p->mode = TEXT;
    p->line_start = false;
    kept(p, &raw);
    size_t n = raw.len - n_drop, n_said = n > RESCAN_MAX ? n : n > 0 && n_drop == 0;
    const char *text = buf_str(&raw) + n_drop;
    if (n_said)
        say_content(p, text, n_said);
    unread(p, text + n_said, n - n_said);
    buf_release(&raw);
}

static void region_bad(struct parser *p, char c)
{
    if (!p->announced && next_family(p)) {
        read_otherwise(p);
        return;
    }
    if (!p->announced) {
        give_back(p);
        return;
    }
    p->mode = SKIP;
    p->slipped = false;
    p->raw.len -= p->raw.len > 0; /* the byte is read again */
    p->n_held = 0;
    unread(p, &c, 1);
}

static void region_byte(struct parser *p, char c)
{
    bool keep = !p->announced;
    buf_add_char(&p->raw, c);
    kept(p, &p->raw);
    enum part part = ++p->n_byte > PARSER_CALL_BYTES_MAX ? PART_BAD : p->family->byte(p, c);
    if (part == PART_BAD) {
        region_bad(p, c);
    } else if (part == PART_END) {
        p->mode = TEXT;
        buf_reset(&p->raw);
    } else if (part == PART_PAST) {
        p->mode = TEXT;
        if (keep && p->raw.len)
            unread(p, p->raw.data, p->raw.len);
        else
            unread(p, &c, 1);
        buf_reset(&p->raw);
    }
}

/* ---- text ---- */

static void drop_held(struct parser *p, size_t n)
{
    p->n_held -= n;
    memmove(p->held, p->held + n, p->n_held);
}

/* Right behind a layout tag or a call, blanks aside. */
static bool behind_tag(const struct parser *p)
{
    return p->n_layout_tag || (p->n_call && !p->said);
}

static bool begins_bare(const struct parser *p, char c)
{
    const struct tool_format *f = p->format;
    if (!f->bare || !c || !strchr(f->bare, c) || p->n_call >= PARSER_CALLS_MAX)
        return false;
    if (f->tag_drops)
        return p->tag_failed;
    return f->bare_behind ? behind_tag(p) : p->line_start || format_tools_known(p);
}

/* A byte that is part of no tag. */
static void plain_byte(struct parser *p, char c)
{
    if (begins_bare(p, c)) {
        enter_region(p, "", 0);
        region_byte(p, c);
        return;
    }
    p->line_start = c == '\n' || (p->line_start && is_blank(c));
    if (is_blank(c) && (!p->said || p->layout.len))
        buf_add_char(&p->layout, c);
    else
        say_content(p, &c, 1);
}

/* What was opened and closed with nothing in it leaves nothing. */
static void layout_tag(struct parser *p, const char *tag, size_t n, bool closing)
{
    if (p->n_call && !p->said) { /* after a call */
        buf_reset(&p->layout);
        return;
    }
    if (closing && p->layout_open) {
        p->layout.len = p->layout_open - 1;
        p->layout_open = 0;
        p->n_layout_tag--;
        return;
    }
    p->layout_open = closing ? 0 : p->layout.len + 1;
    buf_add(&p->layout, tag, n);
    p->n_layout_tag++;
}

/* The tag of `tags` that the held bytes begin, or -1. *whole: its bytes if it is all there. */
static int held_tag(const struct parser *p, const char *const *tags, size_t n_tag, size_t *whole)
{
    const char *list[FORMAT_TAGS] = {NULL};
    memcpy(list, tags, n_tag * sizeof *list);
    return tag_begun(list, p->held, p->n_held, whole);
}

/* Settle the held bytes as far as that is possible; all of them if no more come. */
static void settle(struct parser *p, bool last)
{
    const struct tool_format *f = p->format;
    while (p->n_held && p->mode == TEXT) {
        size_t open_whole = 0, layout_whole, drop_whole;
        int open = -1, layout = held_tag(p, f->layout, FORMAT_TAGS, &layout_whole);
        int drop = held_tag(p, f->drop, FORMAT_TAGS, &drop_whole);
        if (p->n_call < PARSER_CALLS_MAX)
            open = held_tag(p, f->open, FORMAT_TAGS, &open_whole);
        bool behind = p->n_call < PARSER_CALLS_MAX && open < 0 && (!p->said || behind_tag(p));
        if (behind)
            open = held_tag(p, f->behind, sizeof f->behind / sizeof *f->behind, &open_whole);
        if (open >= 0 && open_whole) {
            enter_region(p, p->held, open_whole);
            p->bare = behind;
            drop_held(p, open_whole);
        } else if (layout >= 0 && layout_whole && open < 0) {
            layout_tag(p, p->held, layout_whole, tag_closes(f->layout[layout]));
            drop_held(p, layout_whole);
        } else if (drop >= 0 && drop_whole && (open < 0 || last)) {
            drop_held(p, drop_whole);
        } else if ((open >= 0 || layout >= 0 || drop >= 0) && !last) {
            return;
        } else {
            char c = p->held[0];
            drop_held(p, 1);
            plain_byte(p, c);
        }
    }
    if (p->n_held) { /* a region began before them */
        size_t n = p->n_held;
        p->n_held = 0;
        unread(p, p->held, n);
    }
}

/* What becomes of the call of a slip: is it broken, or was it complete but for brackets? */
static bool is_broken(struct parser *p)
{
    if (!p->slipped && call_complete(p))
        return false;
    if (!p->slipped)
        call_cut(p);
    p->slipped = true;
    return true;
}

/* Bytes behind a slip: blanks leave it open what the call is, others break it. */
static void skipped(struct parser *p, const char *text, size_t n)
{
    if (!p->slipped && n == 1 && is_blank(*text)) {
        call_keep(p, text, n);
        return;
    }
    if (!p->slipped)
        call_cut(p);
    p->slipped = true;
    collect(p, PARSED_CALL_BROKEN, text, n);
}

/* A tag ends what is skipped; the closing one belongs to the call. */
static void end_skip(struct parser *p, size_t n_close)
{
    if (is_broken(p))
        collect(p, PARSED_CALL_BROKEN, p->held, n_close);
    drop_held(p, n_close);
    p->mode = TEXT;
    p->line_start = true;
}

/* In the rest of a call that went wrong after its announcement: up to a tag, or the line's end. */
static void skip_byte(struct parser *p, char c)
{
    const struct tool_format *f = p->format;
    if (!f->close[0] && c == '\n') {
        if (is_broken(p))
            collect(p, PARSED_CALL_BROKEN, &c, 1);
        p->mode = TEXT;
        p->line_start = true;
        return;
    }
    p->held[p->n_held++] = c;
    while (p->n_held) {
        size_t open_whole, close_whole, layout_whole;
        int open = tag_begun(f->open, p->held, p->n_held, &open_whole);
        int close = tag_begun(f->close, p->held, p->n_held, &close_whole);
        int layout = tag_begun(f->layout, p->held, p->n_held, &layout_whole);
        if (open_whole || close_whole || layout_whole) {
            end_skip(p, close_whole);
            settle(p, false);
            return;
        }
        if (open >= 0 || close >= 0 || layout >= 0)
            return;
        skipped(p, p->held, 1);
        drop_held(p, 1);
    }
}

static void one_byte(struct parser *p, char c)
{
    count_work(p, 1);
    if (p->format->family->whole) {
        p->format->family->byte(p, c);
    } else if (p->mode == REGION) {
        region_byte(p, c);
    } else if (p->mode == SKIP) {
        skip_byte(p, c);
    } else {
        p->held[p->n_held++] = c;
        settle(p, false);
    }
}

static void read_unread(struct parser *p)
{
    while (p->i_unread < p->unread.len && !p->rc && !(p->trial.on && p->trial.failed))
        one_byte(p, p->unread.data[p->i_unread++]);
    buf_reset(&p->unread);
    p->i_unread = 0;
}

void tool_stage_byte(struct parser *p, char c)
{
    one_byte(p, c);
    if (p->unread.len)
        read_unread(p);
}

void tool_stage_finish(struct parser *p)
{
    if (p->format->family->whole) {
        p->family->finish(p);
        return;
    }
    do {
        if (p->mode == REGION) {
            bool layout = p->family->finish && p->family->finish(p);
            p->mode = TEXT;
            if (!p->announced && !layout)
                give_back(p);
            else if (p->announced && !call_complete(p))
                call_cut(p);
            buf_reset(&p->raw);
            read_unread(p);
        }
        if (p->mode == SKIP) {
            for (size_t i = 0; i < p->n_held; i++)
                skipped(p, &p->held[i], 1);
            if (is_broken(p))
                p->said = true;
            p->n_held = 0;
            p->mode = TEXT;
        }
        if (p->mode == TEXT) {
            settle(p, true);
            read_unread(p);
        }
    } while (p->mode == REGION && !p->rc);
    if (!p->trial.on)
        take_layout(p, p->n_call == 0 || p->n_layout_tag);
}

/* ---- trials ---- */

void tool_trial_begin(struct parser *p)
{
    p->trial.on = true;
    p->trial.failed = false;
    p->trial.said = p->said;
    p->trial.line_start = p->line_start;
    p->trial.n_layout = p->layout.len;
    p->trial.n_layout_tag = p->n_layout_tag;
    p->trial.n_call = p->n_call;
    p->said = false; /* blanks may stand before a call */
}

static void trial_drop(struct parser *p)
{
    p->trial.on = false;
    p->mode = TEXT;
    p->announced = false;
    p->said = p->trial.said;
    p->line_start = p->trial.line_start;
    p->n_held = p->i_unread = 0;
    buf_reset(&p->raw);
    buf_reset(&p->unread);
    if (p->layout.len > p->trial.n_layout)
        p->layout.len = p->trial.n_layout;
    p->n_layout_tag = p->trial.n_layout_tag;
    p->layout_open = 0;
}

static enum trial trial_so_far(struct parser *p)
{
    if (p->n_call > p->trial.n_call) {
        p->trial.on = false;
        return TRIAL_CALL;
    }
    if (!p->trial.failed && !p->rc)
        return TRIAL_MORE;
    trial_drop(p);
    return TRIAL_NOT;
}

enum trial tool_trial_byte(struct parser *p, char c)
{
    tool_stage_byte(p, c);
    return trial_so_far(p);
}

enum trial tool_trial_finish(struct parser *p)
{
    tool_stage_finish(p);
    p->trial.failed = true; /* what did not become a call does not become one */
    return trial_so_far(p);
}

bool tool_stage_busy(const struct parser *p)
{
    return p->mode != TEXT;
}

enum parser_thinking parser_thinking(const struct parser *p)
{
    if (p->in_channels)
        return channel_thinking(&p->channels);
    if (p->reasoning.format)
        return reasoning_thinking(&p->reasoning);
    return p->format->family->thinking ? p->format->family->thinking(p->state) : THINKING_NOT;
}

enum q_code parser_feed(struct parser *p, const char *text, size_t n, parsed_sink *sink, void *ctx,
                        struct q_err *e)
{
    p->sink = sink;
    p->ctx = ctx;
    p->e = e;
    for (size_t i = 0; i < n && !p->rc; i++)
        if (p->in_channels)
            channel_byte(p, &p->channels, text[i]);
        else
            reasoning_byte(p, &p->reasoning, text[i]);
    flush(p);
    return p->rc;
}

bool text_was_cut(const struct parser *p)
{
    return p->cut;
}

void parser_cut(struct parser *p)
{
    p->cut = true;
}

enum q_code parser_finish(struct parser *p, parsed_sink *sink, void *ctx, struct q_err *e)
{
    p->sink = sink;
    p->ctx = ctx;
    p->e = e;
    if (p->in_channels)
        channel_finish(p, &p->channels);
    else
        reasoning_finish(p, &p->reasoning);
    tool_stage_finish(p);
    flush(p);
    return p->rc;
}

/* ---- "none": everything is content ---- */

static enum part none_byte(struct parser *p, char c)
{
    say_content(p, &c, 1);
    return PART_MORE;
}

static bool none_finish(struct parser *p)
{
    (void)p;
    return true;
}

const struct tool_family family_none = {
    .state_bytes = 1,
    .whole = true,
    .byte = none_byte,
    .finish = none_finish,
};
