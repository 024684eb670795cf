/* SPDX-License-Identifier: Apache-2.0 */
/* free_attention - attention in whatever order keeps all threads busy; for bench_determinism alone.
 *
 * The engine's attention cuts a row's context in fixed spans alone. This one gives every thread
 * the same share of the step's work and cuts a decoding row's context where a share ends; the parts
 * meet in a second pass (Flash-Decoding's split, by the batch and the number of threads). It is
 * what the engine could do if a row's bits were free to depend on the batch.
 * Everything else is the engine's own code. Threads: as ops.h, but it waits for the others of nth;
 * one batch at a time. */
#ifndef QUIRE_TESTS_BENCH_FREE_ATTENTION_H
#define QUIRE_TESTS_BENCH_FREE_ATTENTION_H
#include <stdbool.h>
#include "kernels/ops/ops_attention.h"

/* False: not compiled for this machine's instructions. */
bool free_attention_there(void);
void free_attention(const struct attention_args *a, const struct kern_exec *x);

#endif
