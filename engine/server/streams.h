/* SPDX-License-Identifier: Apache-2.0 */
/* streams - event streams that are kept, so that a client whose connection or frontend has gone can
 * resume its stream at any frontend.
 *
 * A kept stream is the request (as its frontend sent it) and the outputs of its generations so far
 * (proto/stream_log.h), which the engine adds as it sends them. By DESIGN section 6 that is enough
 * to go on: the frontend that resumes makes the same events again, and submits what is unfinished
 * as prompt and tokens. A stream without an open generation is kept for keep_ms of its keep_stream
 * message. All streams together have at most bytes_max: beyond it those that nobody has any more go
 * first, in the order in which they were left, then the one that grows.
 * Threads: the server's loop. */
#ifndef QUIRE_ENGINE_SERVER_STREAMS_H
#define QUIRE_ENGINE_SERVER_STREAMS_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "common/buf.h"
#include "proto/stream_log.h"

#define STREAMS_BUCKETS  4096u
#define STREAM_BYTES_MAX ((size_t)32 << 20) /* of one: half a frame */
#define STREAM_KEEP_MS   86400000u          /* maximum */
#define STREAM_DIGEST    32

struct stream;
struct stream_part { /* an open generation of a kept stream */
    struct stream *stream;
    uint32_t frontend_id;
    uint64_t req_id;
    uint32_t choice;
    struct stream_part *next, **before; /* in its bucket */
    struct stream_part *sibling;        /* in its stream */
};
struct stream {
    uint8_t id[STREAM_ID_BYTES];
    uint8_t key_digest[STREAM_DIGEST];
    bool has_key;
    bool chat;
    uint32_t n_resume;
    uint32_t keep_ms;
    uint64_t created, seed;
    struct buf response_id, body;
    struct stream_log log;
    struct stream_part *parts; /* open generations */
    int64_t left_ms;           /* when the last one ended; of no meaning while there are parts */
    size_t n_byte;             /* counted in streams->n_byte */
    struct stream *next, *prev;
};
struct streams {
    struct stream *first, *last;  /* by the time of their last change from open to left, or new */
    struct stream_part **buckets; /* [STREAMS_BUCKETS] by frontend and request */
    size_t n_byte, bytes_max;     /* bytes_max 0: nothing is kept */
    uint32_t n;
};

/* Errors: Q_NO_MEMORY. */
FALLIBLE streams_init(struct streams *s, size_t bytes_max, struct q_err *e);
void streams_release(struct streams *s);
/* NULL: it is not kept. */
struct stream *streams_find(const struct streams *s, const uint8_t *id, size_t n);
/* May the sender of this digest (n = 0: no key) have the stream? */
bool stream_allows(const struct stream *x, const uint8_t *digest, size_t n);
/* Keep a stream, or replace what is kept of it; one that was resumed since stays as it is. Without
 * room it is not kept. Open generations of the stream it replaces must have been ended
 * (stream_end_parts). Errors: Q_CORRUPT. */
FALLIBLE streams_keep(struct streams *s, const struct msg_keep_stream *m, int64_t now_ms,
                      struct q_err *e);
/* A generation of a kept stream begins, or begins again: its outputs are added from now on, behind
 * the tokens that it has already. False: the stream was resumed since, the generation must not
 * begin. A stream that is not kept is no error. */
bool streams_open(struct streams *s, uint32_t frontend_id, const struct msg_submit *m);
/* An output of a request, which may be one of a kept stream. */
void streams_output(struct streams *s, uint32_t frontend_id, uint64_t req_id,
                    const struct stream_output *o, int64_t now_ms);
/* The request has ended, or its frontend has gone. */
void streams_close(struct streams *s, uint32_t frontend_id, uint64_t req_id, int64_t now_ms);
void streams_leave(struct streams *s, uint32_t frontend_id, int64_t now_ms);
/* Take an open generation off the stream; false: there is none. */
bool stream_take_part(struct stream *x, uint32_t *frontend_id, uint64_t *req_id);
/* Forget streams whose time is over. */
void streams_tick(struct streams *s, int64_t now_ms);
void streams_clear(struct streams *s);

#endif
