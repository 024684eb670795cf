/* SPDX-License-Identifier: Apache-2.0 */
/* model_summary - what a model is, for people and as JSON, before its weights are read. Internal to
 * engine/model. Threads: reentrant. */
#ifndef QUIRE_ENGINE_MODEL_MODEL_SUMMARY_H
#define QUIRE_ENGINE_MODEL_MODEL_SUMMARY_H
#include "common/buf.h"
#include "engine/model/model_state.h"

struct model_summary {
    const struct model *m; /* its config, dtypes and quantization are decided, its plan is made */
    uint64_t state_bytes;  /* of a sequence */
    uint32_t n_seq;        /* sequences of max_model_len tokens */
    const char *no_device; /* why a device refuses it; NULL: it does not */
    const char *images;    /* of a model that takes other inputs too: how they are served, */
    const char *no_images; /* or why they are not; NULL both: it has none */
};
void model_summary_text(struct buf *out, const struct model_summary *s);
void model_summary_json(struct buf *out, const struct model_summary *s); /* one object, a line */

#endif
