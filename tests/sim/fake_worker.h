/* SPDX-License-Identifier: Apache-2.0 */
/* fake_worker - executes steps with arithmetic that reveals every error of the scheduler.
 *
 * The "keys and values" of a position are one hash of the history up to it and of everything that
 * separates prefix caches (fake_root), written into the block that the step's tables name. A row
 * reads all positions up to its own through its own table and compares each with the hash of the
 * history that it should have: a block that is wrongly shared, overwritten, skipped or stale is a
 * mismatch. As in a layer of a real model, all rows of a step write before any row reads. Blocks
 * are copied to host memory and back bit by bit; after the copy back the host block is filled with
 * garbage, because no sequence may use it again. A block that a sequence was admitted with
 * (step_admit.n_cached) is shared: writing it is a violation. A row of states holds the hash of a
 * history and its length: a sequence that begins with another one is a violation, and so is a row
 * that a sequence of a step writes and another one of it reads or writes. The next token is a
 * function of that
 * hash, the parameters and the position, so any request's output can be computed without a
 * scheduler (fake_next).
 * Threads: one. */
#ifndef QUIRE_TESTS_SIM_FAKE_WORKER_H
#define QUIRE_TESTS_SIM_FAKE_WORKER_H
#include <stdbool.h>
#include <stdint.h>
#include "proto/proto.h"
#include "proto/step.h"

#define FAKE_EOS 2u /* the only eos id of the fake model */

struct fake_model {
    uint32_t vocab_size;
    uint32_t eos_every;       /* one in this many tokens is an eos */
    uint32_t prompt_free_len; /* as scheduler_config.prompt_free_len */
};
#define FAKE_SALTS 3u /* seed % FAKE_SALTS is the salt of a request */
#define FAKE_KINDS 7u /* seed % FAKE_KINDS is its kind, for the owner of the worker */

/* The hash of the empty history. */
uint64_t fake_root(const struct fake_model *m, const struct step_admit *a);
/* Hash of a history of n + 1 tokens from that of its first n. */
uint64_t fake_hash(uint64_t before, uint32_t token);
/* The token after a history with this hash. stop_ids do not occur in the first min_tokens. */
uint32_t fake_next(const struct fake_model *m, uint64_t hash, const struct step_admit *a,
                   const uint32_t *stop_ids, uint32_t position);

struct fake_answer { /* what a request gives alone */
    uint32_t *ids;   /* [n] of max_tokens */
    uint32_t n, stop_id;
    enum finish_reason finish;
};
/* The answer to m by itself: token after token until a stop id, an eos or the length. Its ids: room
 * for m->max_tokens. Exits with a message on parameters that are refused. */
void fake_model_answer(const struct fake_model *model, const struct msg_submit *m,
                       uint32_t max_model_len, struct fake_answer *out);

struct fake_worker;
struct fake_worker *fake_worker_new(const struct fake_model *m, const struct step_limits *l,
                                    uint32_t n_block, uint32_t n_host);
void fake_worker_free(struct fake_worker *w);
/* Execute the step at memory[0..n) and lay its result out in result_memory. Exits with a message on
 * any violation. */
void fake_worker_execute(struct fake_worker *w, void *memory, size_t n, void *result_memory,
                         size_t result_n);
/* After the execution of this step: does one of its sequences have a seed of this kind, seed %
 * FAKE_KINDS? */
bool fake_worker_finds(struct fake_worker *w, void *memory, size_t n, uint32_t kind);
_Noreturn void sim_fail(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

#endif
