/* SPDX-License-Identifier: Apache-2.0 */
/* session - a core with its own thread, for the public library.
 *
 * The thread owns the core. Other threads send commands through one queue; output of a request goes
 * into that request's queue, whose last item has a finish (or is `gone`, after an abort). The push
 * of the last item is the thread's last access to a request, so the owner may release it then.
 * Threads: any may call; one per request. */
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
    SESSION_VECTOR,
    SESSION_FINISH
};
struct session_item { /* items of a request, in this order */
    enum session_kind kind;
    uint32_t token, rank;
    uint32_t position; /* of the token; ACCEPTED: tokens of the prompt */
    float logprob;
    struct session_top *top; /* [n_top], freed by the receiver with q_free */
    uint32_t n_top;
    float *values; /* VECTOR: [n_value], freed by the receiver with q_free */
    uint32_t n_value;
    enum finish_reason finish; /* FINISH, and the TOKEN before it */
    uint32_t stop_id;          /* likewise: the stop token's id + 1 */
    struct q_err error;        /* REFUSED; FINISH with FINISH_ERROR */
};

struct session_request {
    struct queue items;        /* of struct session_item */
    uint64_t req_id;           /* set when accepted */
    void (*notify)(void *ctx); /* after each push; may be NULL */
    void *notify_ctx;
    bool is_pending; /* submitted, and its large items are being read */
};

struct session;
/* Start the thread and load; progress (may be NULL) is called on this thread.
 * Errors: those of loading. */
FALLIBLE session_open(struct session **out, const struct core_config *c,
                      void (*progress)(void *ctx, uint32_t percent), void *progress_ctx,
                      struct q_err *e);
void session_close(struct session *s); /* NULL is fine */
struct session_submit_args {
    struct session_request *request;
    const struct msg_submit *submit;
    const struct item_array *items; /* [n_item] */
    uint32_t n_item;
    uint32_t n_prompt; /* set: tokens of the prompt, with those of items */
};
/* Submit the request and wait until it is accepted (microseconds). What `a` points to is only read
 * until then. Errors: those of core_submit; then the thread does not use the request. */
FALLIBLE session_submit(struct session *s, struct session_submit_args *a, struct q_err *e);
/* Abort the request; it still gets a last item. */
void session_abort(struct session *s, const struct session_request *r);
void session_stats(struct session *s, struct scheduler_stats *out, uint64_t *n_restart);
/* core_reload, and wait for its end. Errors: those of the reload; the old weights are kept then. */
FALLIBLE session_reload(struct session *s, const char *dir, enum in_flight_mode mode,
                        struct q_err *e);
/* The current fingerprint, read by the engine's thread; a reload changes it. */
void session_fingerprint(struct session *s, char out[CORE_FINGERPRINT_MAX]);
const struct item_types *session_item_types(const struct session *s);
const struct core_info *session_info(const struct session *s);
const struct pooling *session_pooling(const struct session *s);
uint32_t session_max_model_len(const struct session *s); /* core_max_model_len */
const struct generation_defaults *session_generation_defaults(const struct session *s);

#endif
