/* SPDX-License-Identifier: Apache-2.0 */
/* cost - memory traffic and arithmetic of a run as a fraction of the machine's ceilings.
 *
 * Decoding: bytes of a step (every matrix once, the KV of each sequence's context) per second over
 * the read bandwidth. Prefill: multiplications and additions (matrices, attention over the context
 * so far, one row of logits a sequence; what is left out for tokens without logits does not count)
 * per second over the peak of the compute type: int8 when
 * quantized, else that of the dtype. NaN without --roofline. Threads: pure. */
#ifndef QUIRE_ENGINE_BENCH_COST_H
#define QUIRE_ENGINE_BENCH_COST_H
#include "engine/bench/bench.h"
#include "engine/quire.h"

struct cost_shape {
    uint32_t n_seq, input_len, output_len;
};
double cost_step_bytes(const struct quire_info *info, const struct cost_shape *s);
/* Operations of one sequence, of all tokens but the last one, which is not read. */
double cost_ops(const struct quire_info *info, double input_len, double output_len);
double cost_prefill_ops(const struct quire_info *info, const struct cost_shape *s);
double cost_peak(const struct bench *b, const struct quire_info *info); /* operations a second */
double cost_decode_fraction(const struct bench *b, const struct quire_info *info,
                            const struct cost_shape *s, double decode_tok_s);
double cost_prefill_fraction(const struct bench *b, const struct quire_info *info,
                             const struct cost_shape *s, double prefill_tok_s);
/* The machine, the model and the ceilings, before the table; and as members of "run". */
void cost_print_header(struct bench *b, const struct quire_info *info);

#endif
