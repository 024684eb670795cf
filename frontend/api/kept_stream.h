/* SPDX-License-Identifier: Apache-2.0 */
/* kept_stream - an event stream that its client can resume (--stream-resume-timeout).
 *
 * Each event has the id STREAM.N: the stream's random id in hex, and the number of the event. The
 * engine keeps the request and the outputs of its generations (engine/server/streams.h). A POST
 * with Last-Event-ID: STREAM.N gets them from the engine; the job is made from the stored request,
 * takes the outputs as it took them the first time, and leaves out the first N events: so parser,
 * counts and event numbers are those of the first time, and what follows is a usual stream. Other
 * streams of the same id end, also at another frontend.
 * Not kept: beam searches, requests with items or prompt logprobs, other dialects (dialect.h).
 * Threads: the loop's thread. */
#ifndef QUIRE_FRONTEND_API_KEPT_STREAM_H
#define QUIRE_FRONTEND_API_KEPT_STREAM_H
#include <stdbool.h>
#include <stdint.h>
#include "frontend/link/link.h"
#include "proto/stream_log.h"

#define KEPT_STREAM_BYTES_MAX ((size_t)32 << 20) /* of request and outputs: as in the engine */
#define KEPT_STREAM_DEFAULT_S 60                 /* for clients that say text/event-stream */

struct app;
struct choice;
struct http_exchange;
struct job;

struct kept_stream {
    uint8_t id[STREAM_ID_BYTES];
    uint32_t n_resume;
    uint32_t keep_ms;
    uint64_t n_event; /* made so far */
    uint64_t n_seen;  /* the client has these */
    size_t n_old;     /* bytes of the job's `out` with events that the client has */
    uint64_t kept_by; /* the engine (link_engine.instance) that has it; 0 = none */
    struct stream_log log;
    bool is_lost;   /* it has become too large */
    bool resumed;   /* the job goes on with an earlier one's stream */
    bool replaying; /* it takes the earlier outputs */
    uint64_t seed;  /* of the earlier job */
};

/* The request of this job is complete: keep its stream if it is one that can be resumed and the
 * client may want it. Errors: Q_NO_MEMORY, Q_INTERNAL. */
FALLIBLE kept_stream_begin(struct job *j, struct q_err *e);
void kept_stream_free(struct kept_stream *k);
/* Around each event in the job's `out`: its id, and what follows its data. */
void kept_stream_event(struct job *j, struct buf *out);
void kept_stream_event_end(struct job *j, struct buf *out);
/* Before a generation is submitted: the engine must have the stream. */
void kept_stream_submit(struct job *j, struct link *to);
/* A choice takes these tokens. */
void kept_stream_note(struct job *j, const struct choice *c, const struct link_tokens *t);
/* The stream will have at least so many events. Errors: Q_NOT_FOUND: its client claims more. */
FALLIBLE kept_stream_check(const struct job *j, uint64_t n_event, struct q_err *e);
/* The choices are made and not open: take the outputs so far and open what is unfinished. The job
 * may have ended afterwards. Errors: Q_NOT_FOUND (the client is ahead of the stream), Q_CORRUPT,
 * those of link_open. */
FALLIBLE kept_stream_replay(struct job *j, struct q_err *e);

/* The request has the header Last-Event-ID: answer it with the rest of that stream (resume.c). */
void resume_start(struct app *a, struct http_exchange *x);
/* Go on with a kept stream (job.c); m is the reply of the engine that `from` links to. */
void job_resume(struct app *a, struct http_exchange *x, struct link *from,
                const struct msg_stream_resumed *m, struct kept_stream *k);

#endif
