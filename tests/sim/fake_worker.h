/* SPDX-License-Identifier: Apache-2.0 */
/* fake_worker - executes steps with arithmetic that shows every mistake of the scheduler.
 *
 * "Keys and values" of a position are one hash of the history up to there, written into the block
 * the step's tables name. A row reads all positions before it through its own table and compares
 * each with the hash of the history it ought to have: a block shared by two, overwritten, skipped
 * or stale is a mismatch. The next token is a function of that hash, the parameters and the
 * position, so any request's output can be computed without a scheduler (fake_next).
 * Threads: one. */
#ifndef QUIRE_TESTS_SIM_FAKE_WORKER_H
#define QUIRE_TESTS_SIM_FAKE_WORKER_H
#include <stdbool.h>
#include <stdint.h>
#include "proto/step.h"

#define FAKE_EOS 2u /* the only eos id of the fake model */

struct fake_model {
    uint32_t vocab_size;
    uint32_t eos_every; /* one token in so many is an eos */
};

/* Hash of a history of n + 1 tokens from that of its first n; the empty history has hash 0. */
uint64_t fake_hash(uint64_t before, uint32_t token);
/* The token after a history with this hash. stop_ids are kept away from the first min_tokens. */
uint32_t fake_next(const struct fake_model *m, uint64_t hash, const struct step_admit *a,
                   const uint32_t *stop_ids, uint32_t position);

struct fake_worker;
struct fake_worker *fake_worker_new(const struct fake_model *m, const struct step_limits *l,
                                    uint32_t n_block);
void fake_worker_free(struct fake_worker *w);
/* Execute the step at memory[0..n) and lay its result out in result_memory. Exits with a message on
 * any violation. */
void fake_worker_execute(struct fake_worker *w, void *memory, size_t n, void *result_memory,
                         size_t result_n);
_Noreturn void sim_fail(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

#endif
