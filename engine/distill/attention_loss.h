/* SPDX-License-Identifier: Apache-2.0 */
/* attention_loss - the difference of the teacher's and the student's attention in their last
 * layers, of row i of a sequence over the columns c that both see:
 *     attention   mean over heads h of KL(At[h,i,:] || As[h,i,:]), A = softmax_c of the scores
 *     values      mean over relations r of KL(Vt[r,i,:] || Vs[r,i,:]),
 *                 V = softmax_c(v[i,r] v[c,r] / sqrt(columns of r))
 * Source: arXiv:2002.10957 (MiniLM). Both have the same number of heads h. A relation is a head of
 * V; where the numbers of these differ there are as many relations as their greatest common
 * divisor, each of neighbouring heads, as arXiv:2012.15828 has relation heads: no projection is
 * needed for other widths. Scores are those of the models: scaled, with ALiBi, capped. c runs from
 * the first position of the smaller window up to i.
 *
 * Scores of a head exist for ATTENTION_LOSS_ROWS rows at a time. Products are f32 whatever the
 * student computes in; sums of rows ascend, relation by relation: the same bits for any threads.
 * Threads: one owner calls; it runs on the team. */
#ifndef QUIRE_ENGINE_DISTILL_ATTENTION_LOSS_H
#define QUIRE_ENGINE_DISTILL_ATTENTION_LOSS_H
#include "common/team.h"
#include "engine/distill/attention_shape.h"
#include "engine/distill/micro_batch.h"
#include "kernels/kern.h"

#define ATTENTION_LOSS_ROWS 128u

struct attention_options {
    double weight, value_weight; /* in the loss; 0: it is not computed */
    struct attention_shape teacher, student;
};
static inline bool attention_is_asked(const struct attention_options *o)
{
    return o->weight > 0 || o->value_weight > 0;
}
/* Errors: Q_INVALID (both have a weight of 0, different numbers of heads). */
FALLIBLE attention_loss_check(const struct attention_options *o, struct q_err *e);

struct attention_loss;
/* n_row_max: of a sequence. team NULL: one thread. Errors: those of attention_loss_check,
 * Q_NO_MEMORY. */
FALLIBLE attention_loss_new(struct attention_loss **out, const struct attention_options *o,
                            const struct kern_table *kern, struct team *team, uint32_t n_row_max,
                            struct q_err *e);
void attention_loss_free(struct attention_loss *l);
uint64_t attention_loss_bytes(const struct attention_loss *l);

struct attention_pair { /* of a micro batch */
    const struct micro_batch *batch;
    struct attention_rows teacher, student;
    double n_position;   /* N of the global batch */
    float *dq, *dk, *dv; /* of the student, [n_row, columns] without gaps: written. dq NULL:
                             evaluation */
};
struct attention_sums { /* over the rows that count; without weights and N */
    double attention, values;
};
void attention_loss_run(struct attention_loss *l, const struct attention_pair *p,
                        struct attention_sums *out);

#endif
