/* SPDX-License-Identifier: Apache-2.0 */
/* features - the operations that an executor supports (features.def). A program that needs another
 * one is refused at load, with its name in the message. Threads: pure functions. */
#ifndef QUIRE_ENGINE_MODEL_FORWARD_FEATURES_H
#define QUIRE_ENGINE_MODEL_FORWARD_FEATURES_H
#include "engine/model/forward/program.h"

enum executor {
    ON_CPU = 1,
    ON_DEVICE = 2,
    ON_STUDENT = 4 /* engine/distill: forward and backward passes */
};

/* Errors: Q_UNSUPPORTED (what the executor has not; of what family, in which layer). */
FALLIBLE features_check(const struct layer_program *p, enum executor on, const char *family,
                        struct q_err *e);
/* The name of what the executor lacks of an operation; NULL: nothing. */
const char *features_missing(const struct program_op *op, enum executor on);

#endif
