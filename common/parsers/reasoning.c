/* SPDX-License-Identifier: Apache-2.0 */
/* The reasoning stage: text between a start tag and an end tag is reasoning, other text is passed
 * to the tool stage. Reasoning stands at the beginning of the text or, if its tags are special
 * tokens, anywhere; any other start tag in content is content. Blanks around reasoning are layout.
 *
 *   START -start tag, or begun inside-> IN -end tag-> OUT
 *     `-any other text-> OUT              `-a tag of the tool format-> TRIAL -a call-> OUT
 *                                                                      `-no call-> IN
 *
 * A call ends reasoning that has no end tag. The tool stage reads the text after a tag on trial;
 * if that text is no call, it is read again as reasoning. Formats with sections require the tag of
 * the section. */
#include "common/parsers/stage.h"
#include <string.h>

#define TRIAL_AGAIN_MAX 4096 /* bytes of a trial in vain that are looked at again */

enum place { START, IN, OUT, TRIAL };

struct piece {
    const char *text;
    size_t n;
};

static void take_held(struct reasoning_stage *r, size_t n)
{
    r->n_held -= n;
    memmove(r->held, r->held + n, r->n_held);
}

static void pass_on(struct parser *p, const char *text, size_t n)
{
    for (size_t i = 0; i < n; i++)
        tool_stage_byte(p, text[i]);
}

/* One byte of reasoning; blanks wait for what follows. */
static void think(struct parser *p, struct reasoning_stage *r, char c)
{
    if (is_blank(c)) {
        if (!r->trim)
            buf_add_char(&r->blanks, c);
        kept(p, &r->blanks);
        return;
    }
    say_reasoning(p, buf_str(&r->blanks), r->blanks.len);
    buf_reset(&r->blanks);
    r->trim = false;
    r->any = true;
    say_reasoning(p, &c, 1);
}

/* What came of a label is reasoning, unless all of it did. */
static void no_label(struct parser *p, struct reasoning_stage *r)
{
    const char *label = r->format->label;
    size_t n = r->labelled && label[r->n_label] ? r->n_label : 0;
    r->labelled = false;
    for (size_t i = 0; i < n; i++)
        think(p, r, label[i]);
}

/* Does the byte belong to the label's line? */
static bool label_byte(struct parser *p, struct reasoning_stage *r, char c)
{
    const char *label = r->format->label;
    if (!r->labelled)
        return false;
    if (label[r->n_label] && c == label[r->n_label]) {
        r->n_label++;
        return true;
    }
    if (!label[r->n_label] && !is_blank(c)) { /* a longer word */
        r->labelled = false;
        for (size_t i = 0; i < r->n_label; i++)
            think(p, r, label[i]);
        return false;
    }
    no_label(p, r);
    return false;
}

static void begin_reasoning(struct reasoning_stage *r)
{
    r->labelled = r->format->label != NULL;
    r->n_label = 0;
    if (r->any) { /* another block: the two are told apart by a newline */
        buf_reset(&r->blanks);
        buf_add_char(&r->blanks, '\n');
        r->trim = false;
    } else {
        buf_reset(&r->blanks); /* blanks before the tag are layout */
        r->trim = true;
    }
    r->place = IN;
}

static void end_reasoning(struct reasoning_stage *r)
{
    buf_reset(&r->blanks);
    r->trim = r->ended = true;
    r->place = OUT;
}

/* Text that follows: blanks right behind reasoning are layout. */
static void answer(struct parser *p, struct reasoning_stage *r, char c)
{
    if (r->trim && is_blank(c))
        return;
    r->trim = false;
    tool_stage_byte(p, c);
}

static const char cite_open[] = "<co>", cite_close[] = "</co";
#define N_CITE (sizeof cite_open - 1) /* bytes of either */

/* The bytes of a citation's closing tag that `text` begins with: </co>, </co: 0:[1,2]>. 0: none,
 * or more of it has to come (*begun). */
static size_t cite_end(const char *text, size_t n, bool *begun)
{
    *begun = memcmp(cite_close, text, n < N_CITE ? n : N_CITE) == 0;
    for (size_t i = N_CITE; i < n && *begun; i++) {
        if (text[i] == '>')
            return i + 1;
        *begun = i == N_CITE ? text[i] == ':' : text[i] && strchr(" 0123456789:,[]", text[i]);
    }
    return 0;
}

/* Does `text`, behind <co>, begin a citation? Text that begins with a blank is one only if it ends
 * like one, in the same line. *begun: more of it has to come. */
static bool cites(const char *text, size_t n, bool *begun)
{
    *begun = n == 0;
    if (n && !is_blank(*text))
        return true;
    for (size_t i = 0; i < n; i++) {
        const size_t left = n - i;
        if (text[i] == '\n' || (left >= N_CITE && memcmp(text + i, cite_open, N_CITE) == 0))
            return false;
        if (cite_end(text + i, left, begun))
            return true;
        if (*begun)
            return false;
    }
    *begun = true;
    return false;
}

/* The bytes of a citation's tag that `text` begins with. 0: none, or more of it has to come
 * (*begun). */
static size_t cite(const char *text, size_t n, bool cited, bool *begun)
{
    size_t n_tag = 0;
    *begun = memcmp(cite_open, text, n < N_CITE ? n : N_CITE) == 0;
    if (*begun && n >= N_CITE)
        n_tag = cites(text + N_CITE, n - N_CITE, begun) ? N_CITE : 0;
    else if (!*begun && cited)
        n_tag = cite_end(text, n, begun);
    *begun &= n < CITE_MAX;
    return n_tag;
}

/* The tags that count in this place, in the order start, end, call, drop, and those of a tool call,
 * which show that a text does not begin inside reasoning; CITE. */
#define CITE 6

/* *whole: the bytes of the longest tag; 0: more of it has to come, or of a longer one that begins
 * with it (unless no more does: `last`). */
static int find_tag(const struct parser *p, const struct reasoning_stage *r, bool last,
                    size_t *whole)
{
    const struct reasoning_format *f = r->format;
    const struct tool_format *t = r->tool;
    const char *const *const lists[] = {f->start, f->end, f->call, f->drop, t->open, t->layout};
    const bool calls = t->open[0]; /* are calls looked for at all? */
    const bool single = !t->layout[0] || !t->layout[1] || !tag_closes(t->layout[1]);
    const bool counts[3][6] = {
        {true, r->open || f->stray, r->open && calls, !r->open, r->open, r->open},
        {false, true, calls, false, calls && single, calls},
        {f->again, r->ended && (f->stray || r->trim) && !tool_stage_busy(p), false, true,
         calls && f->drop[0], false},
    };
    int kind = -1;
    bool longer = false, begun;
    *whole = 0;
    for (int k = 0; k < 6; k++) {
        size_t here;
        int i = counts[r->place][k] ? tag_begun(lists[k], r->held, r->n_held, &here) : -1;
        if (i < 0 || (here && here <= *whole))
            continue;
        longer |= !here;
        kind = here || !*whole ? k : kind;
        *whole = here ? here : *whole;
    }
    if (longer && *whole && !last)
        *whole = 0;
    if (!f->cites || *whole || tool_stage_busy(p))
        return kind;
    *whole = cite(r->held, r->n_held, r->cited, &begun);
    return *whole ? CITE : kind < 0 && begun ? CITE : kind;
}

/* Nothing of a start tag where one is due. */
static void not_begun(struct parser *p, struct reasoning_stage *r)
{
    if (r->open) {
        r->trim = true; /* the prompt's tag stands before */
        buf_reset(&r->blanks);
        r->place = IN;
        return;
    }
    r->place = OUT;
    pass_on(p, buf_str(&r->blanks), r->blanks.len);
    buf_reset(&r->blanks);
}

static void plain_byte(struct parser *p, struct reasoning_stage *r, char c)
{
    if (r->place == START && is_blank(c)) {
        buf_add_char(&r->blanks, c);
        kept(p, &r->blanks);
        return;
    }
    if (r->place == START)
        not_begun(p, r);
    if (r->place != IN)
        answer(p, r, c);
    else if (!label_byte(p, r, c))
        think(p, r, c);
}

/* The trial is over. */
static void settle_trial(struct parser *p, struct reasoning_stage *r, enum trial trial)
{
    struct buf text = r->probe;
    if (trial == TRIAL_MORE)
        return;
    r->probe = (struct buf)BUF_INIT;
    if (trial == TRIAL_CALL) {
        end_reasoning(r);
        r->trim = false;
    } else {
        size_t n_think = text.len > TRIAL_AGAIN_MAX ? text.len : text.len > 0;
        r->place = IN;
        for (size_t i = 0; i < n_think; i++)
            think(p, r, text.data[i]);
        put_back(p, &r->again, &r->i_again, buf_str(&text) + n_think, text.len - n_think);
    }
    buf_release(&text);
}

static void trial_byte(struct parser *p, struct reasoning_stage *r, char c)
{
    buf_add_char(&r->probe, c);
    kept(p, &r->probe);
    settle_trial(p, r, tool_trial_byte(p, c));
}

static void begin_trial(struct parser *p, struct reasoning_stage *r, const char *tag, size_t n)
{
    r->place = TRIAL;
    put_back(p, &r->again, &r->i_again, r->held, r->n_held);
    r->n_held = 0;
    buf_reset(&r->probe);
    tool_trial_begin(p);
    for (size_t i = 0; i < n && r->place == TRIAL; i++)
        trial_byte(p, r, tag[i]);
}

static void take_tag(struct parser *p, struct reasoning_stage *r, int kind, size_t n)
{
    char tag[CITE_MAX];
    memcpy(tag, r->held, n);
    take_held(r, n);
    if (kind == CITE) {
        r->cited = n == N_CITE && memcmp(tag, cite_open, n) == 0;
        return;
    }
    if (r->place == IN)
        no_label(p, r);
    if (kind == 0) {
        begin_reasoning(r);
    } else if (kind == 1) {
        if (r->place != OUT)
            end_reasoning(r);
    } else if (kind >= 4 && r->place == IN) {
        begin_trial(p, r, tag, n);
    } else if (r->place == OUT && kind >= 4) {
        r->trim = false;
        pass_on(p, tag, n);
    } else if (kind == 2 || kind >= 4) {
        end_reasoning(r);
        r->trim = false;
        pass_on(p, tag, n);
    } else if (r->place == START) {
        buf_reset(&r->blanks);
        r->place = OUT;
        r->trim = true;
    }
}

/* Settle the held bytes as far as that is possible; all of them if no more come. */
static void settle(struct parser *p, struct reasoning_stage *r, bool last)
{
    while (r->n_held && r->place != TRIAL) {
        size_t whole;
        int kind = find_tag(p, r, last, &whole);
        if (whole) {
            take_tag(p, r, kind, whole);
        } else if (kind >= 0 && !last) {
            return;
        } else {
            char c = r->held[0];
            take_held(r, 1);
            plain_byte(p, r, c);
        }
    }
}

static void one_byte(struct parser *p, struct reasoning_stage *r, char c)
{
    count_work(p, 1);
    if (r->place == TRIAL) {
        trial_byte(p, r, c);
        return;
    }
    r->held[r->n_held++] = c;
    settle(p, r, false);
}

static void read_again(struct parser *p, struct reasoning_stage *r)
{
    while (r->i_again < r->again.len)
        one_byte(p, r, r->again.data[r->i_again++]);
    buf_reset(&r->again);
    r->i_again = 0;
}

void reasoning_byte(struct parser *p, struct reasoning_stage *r, char c)
{
    if (r->format && r->format->before) {
        if (!r->begun)
            pass_on(p, r->format->before, strlen(r->format->before));
        r->begun = true;
    }
    if (!r->format || r->format->before) {
        tool_stage_byte(p, c);
        return;
    }
    one_byte(p, r, c);
    read_again(p, r);
}

void reasoning_finish(struct parser *p, struct reasoning_stage *r)
{
    if (!r->format || r->format->before)
        return;
    do { /* a trial that ends in vain may have another one in it, shorter every time */
        read_again(p, r);
        if (r->place == TRIAL)
            settle_trial(p, r, tool_trial_finish(p));
        read_again(p, r);
        settle(p, r, true);
    } while (r->place == TRIAL || r->again.len);
    if (r->place == START && !r->open)
        not_begun(p, r);
    if (r->place == IN)
        no_label(p, r);
}

enum parser_thinking reasoning_thinking(const struct reasoning_stage *r)
{
    if (r->format->before || r->place == OUT || (r->place == START && !r->open))
        return THINKING_NOT;
    bool held = r->n_held || r->place == TRIAL || (r->labelled && r->n_label);
    return held ? THINKING_HELD : THINKING;
}

void reasoning_release(struct reasoning_stage *r)
{
    buf_release(&r->blanks);
    buf_release(&r->probe);
    buf_release(&r->again);
}

/* ---- the prompt ---- */

/* Which of the tags does the prompt end in, blanks aside? -1: none. *tag: as it stands there. */
static int ends_in(const char *const *list, struct piece prompt, struct piece *tag)
{
    while (prompt.n && is_blank(prompt.text[prompt.n - 1]))
        prompt.n--;
    for (int i = 0; i < FORMAT_TAGS && list[i]; i++) {
        tag->n = tag_ends(list[i], prompt.text, prompt.n);
        tag->text = prompt.text + prompt.n - tag->n;
        if (tag->n)
            return i;
    }
    return -1;
}

/* The end tag of the row, with the suffix of the start tag `start` that the prompt has. */
static const char *end_of(const char *end, const char *start, struct piece there, char *out)
{
    size_t at = strcspn(start, TAG_SUFFIX), has = start[at] != 0;
    return tag_write(end, there.text + at, has ? there.n + 1 - strlen(start) : 0, out);
}

enum reasoning_start parser_reasoning_start(const char *reasoning, const char *prompt, size_t n)
{
    const struct reasoning_format *f = reasoning_format_named(reasoning);
    struct piece tag;
    return f && ends_in(f->start, (struct piece){prompt, n}, &tag) >= 0 ? REASONING_OPEN
                                                                        : REASONING_NOT_OPEN;
}

/* Messages on channels: the answer's may be the first, and one of reasoning may come before it. */
static const char harmony_tags[] = "<|channel|>analysis\0<|channel|>final<|message|>\0"
                                   "<|channel|>commentary\0<|channel|>final<|message|>\0"
                                   "<|channel|>final<|message|>\0",
                  muse_tags[] = " to=self<|message|>\0to=user<|message|>\0"
                                " to=user<|message|>\0";

static void put_tag(struct parser_before *out, const char *tag, const char *suffix)
{
    char text[FORMAT_TAG_MAX];
    size_t n = strlen(tag_write(tag, suffix, strlen(suffix), text)) + 1;
    Q_ASSERT(out->n_tags + n <= sizeof out->tags);
    memcpy(out->tags + out->n_tags, text, n);
    out->n_tags += n;
}

void parser_reasoning_before(struct parser_before *out, const char *reasoning,
                             const char *template_text, const char *prompt, size_t n)
{
    const struct reasoning_format *f = reasoning_format_named(reasoning);
    struct piece tag, whole = {prompt, n};
    char suffix[PARSER_SUFFIX_MAX + 1];
    out->end[0] = 0;
    out->n_tags = 0;
    if (!f || f->before)
        return;
    if (!f->end[0]) {
        out->n_tags = f->channels ? sizeof muse_tags : sizeof harmony_tags;
        memcpy(out->tags, f->channels ? muse_tags : harmony_tags, out->n_tags);
        return;
    }
    int open = ends_in(f->start, whole, &tag);
    if (open >= 0)
        end_of(f->end[open] ? f->end[open] : f->end[0], f->start[open], tag, out->end);
    if (open >= 0 || ends_in(f->end, whole, &tag) >= 0)
        return;
    parser_suffix(template_text ? template_text : "", suffix);
    for (size_t i = 0; i < FORMAT_TAGS && f->start[i]; i++) {
        put_tag(out, f->start[i], suffix);
        put_tag(out, f->end[i] ? f->end[i] : f->end[0], suffix);
    }
}

static char *other_tag(struct parser_tags *out)
{
    Q_ASSERT(out->n_other < PARSER_TAGS_MAX);
    return out->others[out->n_other++];
}

bool parser_reasoning_tags(struct parser_tags *out, const char *reasoning, bool calls,
                           const char *template_text, const char *prompt, size_t n)
{
    const struct reasoning_format *f = reasoning_format_named(reasoning);
    struct piece tag;
    char suffix[PARSER_SUFFIX_MAX + 1];
    *out = (struct parser_tags){.n_pair = 0};
    if (!f || !f->start[0] || !f->end[0])
        return false;
    const int open = ends_in(f->start, (struct piece){prompt, n}, &tag);
    size_t n_start = 0;
    parser_suffix(template_text ? template_text : "", suffix);
    out->again = f->again;
    out->open = open >= 0;
    if (open >= 0) {
        memcpy(out->starts[0], tag.text, tag.n);
        end_of(f->end[open] ? f->end[open] : f->end[0], f->start[open], tag, out->ends[0]);
        out->n_pair = 1;
    }
    for (size_t i = 0; i < FORMAT_TAGS && f->start[i]; i++, n_start++, out->n_pair++) {
        tag_write(f->start[i], suffix, strlen(suffix), out->starts[out->n_pair]);
        tag_write(f->end[i] ? f->end[i] : f->end[0], suffix, strlen(suffix),
                  out->ends[out->n_pair]);
    }
    for (size_t i = n_start; i < FORMAT_TAGS && f->end[i]; i++)
        tag_write(f->end[i], suffix, strlen(suffix), other_tag(out));
    for (size_t i = 0; calls && i < FORMAT_TAGS && f->call[i]; i++)
        tag_write(f->call[i], suffix, strlen(suffix), other_tag(out));
    return true;
}
