/* SPDX-License-Identifier: Apache-2.0 */
/* pooler - from the pooled row of a sequence to the vector that a request gets: the layers behind
 * the pooling (a classifier, or sentence-transformers' Dense), the first values alone where fewer
 * are asked for, and its activation or normalization.
 *
 * These layers are small, so that one thread computes a row in f32: sums of 16 lanes, element k in
 * lane k % 16, folded by halves. A vector depends on its row alone. Weights are f32, whatever the
 * model's are. Threads: pooler_new by one; then only read. */
#ifndef QUIRE_ENGINE_MODEL_POOLER_H
#define QUIRE_ENGINE_MODEL_POOLER_H
#include "common/hub/pooling.h"
#include "engine/model/arch.h"
#include "engine/model/load/load_options.h"

struct pooler_args { /* borrowed for the call */
    const struct arch *arch;
    const struct model_config *config;
    const struct pooling *pooling;
    const char *dir;         /* of the weights */
    enum load_format format; /* LOAD_DUMMY: numbers of its own, no file needed */
};

struct pooler;
/* Errors: Q_NOT_FOUND, Q_MISMATCH (file, tensor, expected and found), Q_NO_MEMORY. */
FALLIBLE pooler_new(struct pooler **out, const struct pooler_args *a, struct q_err *e);
void pooler_free(struct pooler *p);
uint32_t pooler_n_out(const struct pooler *p);     /* values of a vector */
uint32_t pooler_n_scratch(const struct pooler *p); /* floats */

struct pooler_ask { /* by a request */
    uint32_t n;     /* the first so many values; 0: all */
    bool is_raw;    /* without the activation */
};
/* x: [hidden_size]; y: [ask.n, or n_out]; scratch: [pooler_n_scratch]. False: a value is NaN or
 * infinite. */
bool pooler_run(const struct pooler *p, const float *x, struct pooler_ask ask, float *scratch,
                float *y);

#endif
