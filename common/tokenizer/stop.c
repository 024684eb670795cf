/* SPDX-License-Identifier: Apache-2.0 */
/* One Knuth-Morris-Pratt automaton per stop string, each fed with every byte. There are at most
 * 16, so the work per byte is bounded, and a table has two bytes per byte of stop string. (An
 * Aho-Corasick automaton over 16 strings of 1 KiB would need megabytes per request for the same
 * speed.)
 *
 * The text that is held back is the longest prefix of a stop string at the end of the text: the
 * largest of the states. It needs no buffer, as it is the prefix of that stop string. */
#include <string.h>
#include "common/mem.h"
#include "common/tokenizer/stream.h"

struct pattern {
    char *s;        /* [n] */
    uint16_t *fail; /* [n] length of the longest proper border of s[0..i] */
    size_t n;
    size_t at; /* state: this many bytes of s are the end of the text so far */
};

struct stop {
    struct pattern patterns[STOP_STRINGS_MAX];
    size_t n_pattern;
    size_t i_held; /* the pattern whose beginning is held back, patterns[i_held].at bytes of it */
    bool include, done;
};

static enum q_code pattern_init(struct pattern *p, const char *s, size_t n, struct q_err *e)
{
    p->s = q_strndup(s, n);
    p->fail = q_calloc(n, sizeof *p->fail);
    p->n = n;
    if (!p->s || !p->fail)
        return q_fail(e, Q_NO_MEMORY, "out of memory for stop strings");
    for (size_t i = 1, k = 0; i < n; i++) {
        while (k && s[i] != s[k])
            k = p->fail[k - 1];
        k += s[i] == s[k];
        p->fail[i] = (uint16_t)k;
    }
    return Q_OK;
}

enum q_code stop_new(struct stop **out, const char *const *stops, size_t n_stop, bool include,
                     struct q_err *e)
{
    enum q_code rc = Q_OK;
    if (n_stop > STOP_STRINGS_MAX)
        return q_fail(e, Q_INVALID, "stop: %zu strings, expected at most %d", n_stop,
                      STOP_STRINGS_MAX);
    struct stop *s = q_calloc(1, sizeof *s);
    if (!s)
        return q_fail(e, Q_NO_MEMORY, "out of memory for stop strings");
    s->include = include;
    s->n_pattern = n_stop;
    for (size_t i = 0; i < n_stop && !rc; i++) {
        size_t n = strlen(stops[i]);
        if (n == 0)
            rc = q_fail(e, Q_INVALID, "stop[%zu] is empty", i);
        else if (n > STOP_BYTES_MAX)
            rc = q_fail(e, Q_INVALID, "stop[%zu] has %zu bytes, expected at most %d", i, n,
                        STOP_BYTES_MAX);
        else
            rc = pattern_init(&s->patterns[i], stops[i], n, e);
    }
    if (rc)
        stop_free(s);
    else
        *out = s;
    return rc;
}

void stop_free(struct stop *s)
{
    if (!s)
        return;
    for (size_t i = 0; i < s->n_pattern; i++) {
        q_free(s->patterns[i].s);
        q_free(s->patterns[i].fail);
    }
    q_free(s);
}

static size_t advance(struct pattern *p, char c)
{
    while (p->at && (p->at == p->n || p->s[p->at] != c))
        p->at = p->fail[p->at - 1];
    p->at += p->s[p->at] == c;
    return p->at;
}

/* Feed one byte to all; the index of the longest stop string that it completes, or -1. */
static int feed(struct stop *s, char c)
{
    int hit = -1;
    s->i_held = 0;
    for (size_t i = 0; i < s->n_pattern; i++) {
        struct pattern *p = &s->patterns[i];
        size_t at = advance(p, c);
        if (at > s->patterns[s->i_held].at)
            s->i_held = i;
        if (at == p->n && (hit < 0 || p->n > s->patterns[hit].n))
            hit = (int)i;
    }
    return hit;
}

enum q_code stop_push(struct stop *s, const char *text, size_t n, struct buf *out, int *i_hit,
                      struct q_err *e)
{
    *i_hit = -1;
    if (s->done)
        return Q_OK;
    const char *held = s->n_pattern ? s->patterns[s->i_held].s : "";
    size_t n_held = s->n_pattern ? s->patterns[s->i_held].at : 0;
    size_t used = 0;
    while (used < n && *i_hit < 0)
        *i_hit = feed(s, text[used++]);
    size_t n_send = n_held + used; /* of held followed by text */
    if (*i_hit >= 0) {
        s->done = true;
        n_send -= s->include ? 0 : s->patterns[*i_hit].n;
    } else if (s->n_pattern)
        n_send -= s->patterns[s->i_held].at;
    size_t from_held = n_send < n_held ? n_send : n_held;
    buf_add(out, held, from_held);
    buf_add(out, text, n_send - from_held);
    return buf_check(out, "streamed text", e);
}

enum q_code stop_flush(struct stop *s, struct buf *out, struct q_err *e)
{
    if (!s->done && s->n_pattern)
        buf_add(out, s->patterns[s->i_held].s, s->patterns[s->i_held].at);
    s->done = true;
    return buf_check(out, "streamed text", e);
}
