/* SPDX-License-Identifier: Apache-2.0 */
/* model_show - describes the model that a folder would give, from config.json and the headers of
 * its weights, without loading it. Threads: reentrant. */
#ifndef QUIRE_ENGINE_MODEL_MODEL_SHOW_H
#define QUIRE_ENGINE_MODEL_MODEL_SHOW_H
#include "common/buf.h"
#include "engine/model/model.h"

struct model_show {
    bool json;
    uint32_t n_token; /* rows of the step that is summed up */
    uint32_t n_seq;   /* sequences whose K, V and states the summary counts */
};
/* Add what the model is: family, sizes, what it computes in, the files and what of them is used,
 * weights by form, memory of sequences, and why a device would refuse it. o->kern, o->team: not
 * looked at. Errors: as model_check; Q_NO_MEMORY. */
FALLIBLE model_show_summary(struct buf *out, const struct model_options *o,
                            const struct model_show *how, struct q_err *e);
/* Add the layer program that `o` would be run with on the CPU. o->kern, o->team: not looked at.
 * Errors: as model_check; Q_NO_MEMORY. */
FALLIBLE model_show_program(struct buf *out, const struct model_options *o,
                            const struct model_show *how, struct q_err *e);
/* Add the plan by which `o` would load the weights on the CPU: every matrix and vector with its
 * tensors, form, bytes and why. o->kern, o->team: not looked at.
 * Errors: as model_check; Q_NO_MEMORY. */
FALLIBLE model_show_weights(struct buf *out, const struct model_options *o,
                            const struct model_show *how, struct q_err *e);

#endif
