/* SPDX-License-Identifier: Apache-2.0 */
/* session - a core with a thread of its own, for the public library.
 *
 * The thread owns the core. Other threads speak to it through one queue of commands; what comes
 * for a request goes into that request's queue, whose last item has a finish (or is `gone`,
 * after an abort). The thread's last touch of a request is the push of its last item, so the
 * owner may release it then. Threads: any may call; one per request. */
#ifndef QUIRE_ENGINE_LIBRARY_SESSION_H
#define QUIRE_ENGINE_LIBRARY_SESSION_H
#include "common/queue.h"
#include "engine/core/core.h"

struct session_top {
    uint32_t token;
    float logprob;
};
enum session_kind {
    SESSION_ACCEPTED,
    SESSION_REFUSED,
    SESSION_PROMPT,
    SESSION_TOKEN,
    SESSION_FINISH
};
struct session_item { /* what comes for a request, in this order */
    enum session_kind kind;
    uint32_t token, position, rank;
    float logprob;
    struct session_top *top; /* [n_top], the receiver's to q_free */
    uint32_t n_top;
    enum finish_reason finish; /* FINISH, and the TOKEN before it */
    uint32_t stop_id;          /* likewise: the stop token's id + 1 */
    struct q_err error;        /* REFUSED; FINISH with FINISH_ERROR */
};

struct session_request {
    struct queue items;        /* of struct session_item */
    uint64_t req_id;           /* set when accepted */
    void (*notify)(void *ctx); /* after each push; may be NULL */
    void *notify_ctx;
};

struct session;
/* Start the thread and load; progress (may be NULL) is called on this thread. Errors: why it
 * cannot be loaded. */
FALLIBLE session_open(struct session **out, const struct core_config *c,
                      void (*progress)(void *ctx, uint32_t percent), void *progress_ctx,
                      struct q_err *e);
void session_close(struct session *s); /* NULL is fine */
/* Hand the request over and wait until it is accepted (microseconds). `m` is only read until then.
 * Errors: those of core_submit; r is then the caller's alone. */
FALLIBLE session_submit(struct session *s, struct session_request *r, struct msg_submit *m,
                        struct q_err *e);
/* Ask for its end; a last item comes all the same. */
void session_abort(struct session *s, const struct session_request *r);
void session_stats(struct session *s, struct scheduler_stats *out, uint64_t *n_restart);
/* core_reload, and wait until it is over. Errors: its, or why the old weights are served on. */
FALLIBLE session_reload(struct session *s, const char *dir, enum in_flight_mode mode,
                        struct q_err *e);
/* What session_info has no more once weights were reloaded: asks the engine's thread. */
void session_fingerprint(struct session *s, char out[CORE_FINGERPRINT_MAX]);
const struct core_info *session_info(const struct session *s);
const struct generation_defaults *session_generation_defaults(const struct session *s);

#endif
