/* SPDX-License-Identifier: Apache-2.0 */
/* attention_shape - the attention of a model's last layer, as attention_loss.h compares it, and
 * what it reads. Threads: values. */
#ifndef QUIRE_ENGINE_DISTILL_ATTENTION_SHAPE_H
#define QUIRE_ENGINE_DISTILL_ATTENTION_SHAPE_H
#include "common/hub/config.h"
#include "common/err.h"

struct attention_shape {
    uint32_t n_head, n_kv_head, head_dim;
    uint32_t window; /* positions that a row sees; 0: all up to its own */
    float scale, soft_cap;
    float slope_scale; /* of ALiBi's slopes; 0: there are none */
};
static inline uint32_t attention_q_columns(const struct attention_shape *s)
{
    return s->n_head * s->head_dim;
}
static inline uint32_t attention_kv_columns(const struct attention_shape *s)
{
    return s->n_kv_head * s->head_dim;
}

struct attention_rows { /* of a micro batch, as attention reads them: normed, rotated */
    const float *q;     /* [n_row, attention_q_columns] with q_stride */
    const float *k, *v; /* [n_row, attention_kv_columns] with kv_stride */
    size_t q_stride, kv_stride;
};

/* From the config alone. Errors: Q_UNSUPPORTED (what the last layer has in place of causal softmax
 * attention over keys of each head), those of program_compile. */
FALLIBLE attention_shape_of(struct attention_shape *out, const struct model_config *c,
                            struct q_err *e);

#endif
