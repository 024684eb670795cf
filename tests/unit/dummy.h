/* SPDX-License-Identifier: Apache-2.0 */
/* dummy - the largest step a worker can get, with made-up data, to see what memory it takes
 * and that it is no more than memory.h counts.
 *
 * max_num_batched_tokens rows; among them rows of sequences of max_model_len for every thread,
 * since attention's scratch grows with the context; as many rows of logits as there may be, each
 * sampled with the parameters that take most. One layer stands for all, which use the same memory:
 * the one that sees the longest context. Its keys and values go to a small pool of its own.
 * Threads: the test's; runs the team. */
#ifndef QUIRE_TESTS_UNIT_DUMMY_H
#define QUIRE_TESTS_UNIT_DUMMY_H
#include "engine/model/model.h"
#include "engine/worker/sample.h"

struct dummy { /* what a step uses; borrowed */
    const struct model *model;
    struct team *team;
    struct model_scratch *scratch;
    float *logits;                   /* [MODEL_LOGIT_ROWS, vocab_size] */
    struct sample_scratch *samplers; /* one a thread; NULL = its rows are not sampled */
    struct step_limits limits;
};

/* Afterwards the step's memory is as resident as it will ever be. Errors: Q_NO_MEMORY. */
FALLIBLE dummy_step(const struct dummy *d, struct q_err *e);

#endif
