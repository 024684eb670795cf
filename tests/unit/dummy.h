/* SPDX-License-Identifier: Apache-2.0 */
/* dummy - the largest possible step of a worker, with synthetic data, to measure its memory and to
 * check that memory.h counts at least as much.
 *
 * max_num_batched_tokens rows; among them rows of sequences of max_model_len for every thread,
 * since attention's scratch grows with the context; as many rows of logits as there may be, each
 * sampled with the parameters that need the most memory. One layer is computed, because all layers
 * use the same memory: the one with the longest context. Its keys and values go to a small pool of
 * its own. Threads: the test's; runs the team. */
#ifndef QUIRE_TESTS_UNIT_DUMMY_H
#define QUIRE_TESTS_UNIT_DUMMY_H
#include "engine/model/model.h"
#include "engine/worker/sample.h"

struct dummy { /* the worker's objects that a step uses; borrowed */
    const struct model *model;
    struct team *team;
    struct model_scratch *scratch;
    float *logits;                   /* [MODEL_LOGIT_ROWS, vocab_size] */
    struct sample_scratch *samplers; /* one per thread; NULL = rows are not sampled */
    struct step_limits limits;
};

/* Afterwards all memory of a step is resident. Errors: Q_NO_MEMORY. */
FALLIBLE dummy_step(const struct dummy *d, struct q_err *e);

#endif
