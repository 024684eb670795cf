/* SPDX-License-Identifier: Apache-2.0 */
/* Two structures: a list of the streams, oldest first, and a hash table of their open generations,
 * because each output of a step is looked up. Streams are looked up by their id in the list: that
 * happens once for a stream's begin and its resumption. */
#include "engine/server/streams.h"

#include <string.h>
#include "common/mem.h"

#define STREAM_OVERHEAD 512 /* bytes of the struct and of allocations, about */

FALLIBLE streams_init(struct streams *s, size_t bytes_max, struct q_err *e)
{
    *s = (struct streams){.bytes_max = bytes_max};
    s->buckets = q_calloc(STREAMS_BUCKETS, sizeof(struct stream_part *));
    return s->buckets ? Q_OK : q_fail(e, Q_NO_MEMORY, "engine: out of memory for kept streams");
}

static struct stream_part **bucket_of(const struct streams *s, uint32_t frontend_id,
                                      uint64_t req_id)
{
    uint64_t x = (req_id ^ ((uint64_t)frontend_id << 40)) * 0x9e3779b97f4a7c15u;
    return &s->buckets[(x >> 32) % STREAMS_BUCKETS];
}

static struct stream_part *find_part(const struct streams *s, uint32_t frontend_id, uint64_t req_id)
{
    struct stream_part *p = *bucket_of(s, frontend_id, req_id);
    while (p && (p->frontend_id != frontend_id || p->req_id != req_id))
        p = p->next;
    return p;
}

static void unlink_stream(struct streams *s, struct stream *x)
{
    if (x->prev)
        x->prev->next = x->next;
    else
        s->first = x->next;
    if (x->next)
        x->next->prev = x->prev;
    else
        s->last = x->prev;
    x->next = x->prev = NULL;
}

static void link_last(struct streams *s, struct stream *x)
{
    x->prev = s->last;
    x->next = NULL;
    if (s->last)
        s->last->next = x;
    else
        s->first = x;
    s->last = x;
}

static void free_part(struct stream_part *p)
{
    struct stream_part **at = &p->stream->parts;
    while (*at != p)
        at = &(*at)->sibling;
    *at = p->sibling;
    *p->before = p->next;
    if (p->next)
        p->next->before = p->before;
    q_free(p);
}

static void free_contents(struct stream *x)
{
    while (x->parts)
        free_part(x->parts);
    buf_release(&x->response_id);
    buf_release(&x->body);
    stream_log_release(&x->log);
}

static void forget(struct streams *s, struct stream *x)
{
    unlink_stream(s, x);
    s->n_byte -= x->n_byte;
    s->n--;
    free_contents(x);
    q_free(x);
}

void streams_clear(struct streams *s)
{
    while (s->first)
        forget(s, s->first);
}

void streams_release(struct streams *s)
{
    streams_clear(s);
    q_free(s->buckets);
    s->buckets = NULL;
}

struct stream *streams_find(const struct streams *s, const uint8_t *id, size_t n)
{
    struct stream *x = n == STREAM_ID_BYTES ? s->last : NULL; /* the newest first */
    while (x && memcmp(x->id, id, n) != 0)
        x = x->prev;
    return x;
}

bool stream_allows(const struct stream *x, const uint8_t *digest, size_t n)
{
    unsigned differs = 0;
    if (x->has_key != (n > 0) || (n && n != sizeof x->key_digest))
        return false;
    for (size_t i = 0; i < n; i++)
        differs |= x->key_digest[i] ^ digest[i];
    return !differs;
}

/* Count the bytes of x again and make room for them: streams that nobody has go first. False: there
 * is no room; x is forgotten. */
static bool fit(struct streams *s, struct stream *x)
{
    const size_t n = STREAM_OVERHEAD + x->body.cap + x->response_id.cap + stream_log_bytes(&x->log);
    s->n_byte += n - x->n_byte;
    x->n_byte = n;
    for (struct stream *y = s->first, *next; y && s->n_byte > s->bytes_max; y = next) {
        next = y->next;
        if (!y->parts && y != x)
            forget(s, y);
    }
    if (s->n_byte <= s->bytes_max && n <= STREAM_BYTES_MAX)
        return true;
    forget(s, x);
    return false;
}

static FALLIBLE fill(struct stream *x, const struct msg_keep_stream *m, struct q_err *e)
{
    const struct stream_columns columns = {m->rows, m->tokens, m->logprob_ids, m->logprobs,
                                           m->ranks};
    memcpy(x->id, m->stream_id.data, sizeof x->id);
    x->has_key = m->key_digest.n > 0;
    if (x->has_key)
        memcpy(x->key_digest, m->key_digest.data, sizeof x->key_digest);
    x->chat = m->chat;
    x->n_resume = m->n_resume;
    x->keep_ms = m->keep_ms < STREAM_KEEP_MS ? m->keep_ms : STREAM_KEEP_MS;
    x->created = m->created;
    x->seed = m->seed;
    buf_add(&x->response_id, m->response_id.data, m->response_id.n);
    buf_add(&x->body, m->body.data, m->body.n);
    enum q_code rc = buf_check(&x->body, "a kept stream", e);
    if (!rc)
        rc = buf_check(&x->response_id, "a kept stream", e);
    return rc ? rc : stream_log_read(&x->log, &columns, e);
}

FALLIBLE streams_keep(struct streams *s, const struct msg_keep_stream *m, int64_t now_ms,
                      struct q_err *e)
{
    if (m->stream_id.n != STREAM_ID_BYTES || (m->key_digest.n && m->key_digest.n != STREAM_DIGEST))
        return q_fail(e, Q_CORRUPT, "keep_stream: an id of %zu bytes and a digest of %zu",
                      m->stream_id.n, m->key_digest.n);
    struct stream *before = streams_find(s, m->stream_id.data, m->stream_id.n);
    if (before && before->n_resume > m->n_resume)
        return Q_OK;
    if (before)
        forget(s, before);
    if (m->body.n > STREAM_BYTES_MAX || m->body.n > s->bytes_max)
        return Q_OK;
    struct stream *x = q_calloc(1, sizeof *x);
    if (!x)
        return Q_OK; /* it is not kept */
    enum q_code rc = fill(x, m, e);
    if (rc) {
        free_contents(x);
        q_free(x);
        return rc == Q_CORRUPT ? rc : Q_OK;
    }
    x->left_ms = now_ms;
    link_last(s, x);
    s->n++;
    (void)fit(s, x);
    return Q_OK;
}

static void close_part(struct streams *s, struct stream_part *p, int64_t now_ms)
{
    struct stream *x = p->stream;
    free_part(p);
    if (x->parts)
        return;
    x->left_ms = now_ms;
    unlink_stream(s, x);
    link_last(s, x);
}

/* An earlier submission of the choice: its further outputs are not those of the stream. */
static void drop_choice(struct stream *x, uint32_t choice)
{
    for (struct stream_part *p = x->parts, *next; p; p = next) {
        next = p->sibling;
        if (p->choice == choice)
            free_part(p);
    }
}

bool streams_open(struct streams *s, uint32_t frontend_id, const struct msg_submit *m)
{
    struct stream *x = streams_find(s, m->stream_id.data, m->stream_id.n);
    if (!x)
        return true;
    if (m->n_resume < x->n_resume)
        return false;
    drop_choice(x, m->choice);
    struct stream_part *p = q_calloc(1, sizeof *p);
    if (!p || m->choice >= STREAM_LOG_CHOICES_MAX ||
        !stream_log_cut(&x->log, m->choice, m->emitted.n)) {
        q_free(p);
        forget(s, x);
        return true;
    }
    struct stream_part **bucket = bucket_of(s, frontend_id, m->req_id);
    *p = (struct stream_part){
        .stream = x,
        .frontend_id = frontend_id,
        .req_id = m->req_id,
        .choice = m->choice,
        .next = *bucket,
        .before = bucket,
        .sibling = x->parts,
    };
    if (p->next)
        p->next->before = &p->next;
    *bucket = x->parts = p;
    return true;
}

void streams_output(struct streams *s, uint32_t frontend_id, uint64_t req_id,
                    const struct stream_output *o, int64_t now_ms)
{
    struct stream_part *p = s->n ? find_part(s, frontend_id, req_id) : NULL;
    if (!p)
        return;
    struct stream *x = p->stream;
    struct stream_output mine = *o;
    mine.choice = p->choice;
    if (!stream_log_add(&x->log, &mine)) {
        forget(s, x);
        return;
    }
    if (o->finish)
        close_part(s, p, now_ms);
    (void)fit(s, x);
}

void streams_close(struct streams *s, uint32_t frontend_id, uint64_t req_id, int64_t now_ms)
{
    struct stream_part *p = s->n ? find_part(s, frontend_id, req_id) : NULL;
    if (p)
        close_part(s, p, now_ms);
}

void streams_leave(struct streams *s, uint32_t frontend_id, int64_t now_ms)
{
    for (uint32_t i = 0; i < STREAMS_BUCKETS && s->n; i++)
        for (struct stream_part *p = s->buckets[i], *next; p; p = next) {
            next = p->next;
            if (p->frontend_id == frontend_id)
                close_part(s, p, now_ms);
        }
}

bool stream_take_part(struct stream *x, uint32_t *frontend_id, uint64_t *req_id)
{
    if (!x->parts)
        return false;
    *frontend_id = x->parts->frontend_id;
    *req_id = x->parts->req_id;
    free_part(x->parts);
    return true;
}

void streams_tick(struct streams *s, int64_t now_ms)
{
    for (struct stream *x = s->first, *next; x; x = next) {
        next = x->next;
        if (!x->parts && now_ms - x->left_ms > (int64_t)x->keep_ms)
            forget(s, x);
    }
}
