/* SPDX-License-Identifier: Apache-2.0 */
/* stream_log - the outputs of an event stream's choices, in the order of their delivery.
 *
 * The events of a stream are a function of its request and of these outputs in their order: so a
 * frontend that has both makes the same events again, with the same numbers. A log is kept by the
 * frontend that has the stream and by the engine (messages keep_stream, stream_resumed).
 * Threads: one owner. */
#ifndef QUIRE_PROTO_STREAM_LOG_H
#define QUIRE_PROTO_STREAM_LOG_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "common/buf.h"
#include "proto/proto.h"

#define STREAM_ID_BYTES        16
#define STREAM_LOG_CHOICES_MAX 4096u

struct stream_output { /* arrays are borrowed */
    uint32_t choice, n_token, finish, stop_id, n_cached;
    uint32_t n_logprob;          /* entries per token, the sampled one first; 0 = none */
    const uint32_t *tokens;      /* [n_token] */
    const uint32_t *logprob_ids; /* [n_token, n_logprob] */
    const float *logprobs;       /* same shape */
    const uint32_t *ranks;       /* [n_token] where n_logprob > 0 */
};

struct stream_log { /* growing arrays, as on the wire */
    struct buf rows, tokens, logprob_ids, logprobs, ranks;
};
/* clang-format off */
#define STREAM_LOG_INIT {BUF_INIT, BUF_INIT, BUF_INIT, BUF_INIT, BUF_INIT}
/* clang-format on */

struct stream_columns { /* of a message; borrowed */
    struct proto_u32s rows, tokens, logprob_ids;
    struct proto_f32s logprobs;
    struct proto_u32s ranks;
};
struct stream_place { /* of a reader; begins as zeros */
    size_t row, token, entry, rank;
};

/* Free its columns; the log is empty afterwards. */
void stream_log_release(struct stream_log *l);
/* Memory that the log takes, for the limit of all logs. */
size_t stream_log_bytes(const struct stream_log *l);
/* Append an output. False: no memory; the log is not whole any more. */
bool stream_log_add(struct stream_log *l, const struct stream_output *o);
/* The next output; false: there is none. */
bool stream_log_next(const struct stream_log *l, struct stream_place *at,
                     struct stream_output *out);
/* Keep the first n_token tokens of this choice, and its outputs that hold them. False: an output
 * would be divided, or no memory; the log is unchanged. */
bool stream_log_cut(struct stream_log *l, uint32_t choice, size_t n_token);
/* Columns of a log to encode; borrowed. */
struct stream_columns stream_log_columns(const struct stream_log *l);
/* Copy columns from a message into an empty log. Errors: Q_CORRUPT (lengths or values that do not
 * fit each other), Q_NO_MEMORY. */
FALLIBLE stream_log_read(struct stream_log *l, const struct stream_columns *c, struct q_err *e);

#endif
