/* SPDX-License-Identifier: Apache-2.0 */
/* teacher_link - the teacher's rows for the loss where teacher and student have different numbers
 * of tensor ranks on the last stage.
 *
 * Tensor rank 0 has parts of both. Ranks with a part of the teacher compute its rows together,
 * ranks with a part of the student need them:
 *     more ranks of the teacher   rank 0 broadcasts which rows; those without a student serve
 *                                 (teacher_link_serve) until teacher_link_end
 *     more ranks of the student   rank 0 broadcasts the rows to those without a teacher
 * Hidden states are whole on each rank of the teacher, so only the second case shares them.
 * All messages are broadcasts of the pipeline rank's tensor ranks. Threads: one owner. */
#ifndef QUIRE_ENGINE_DISTILL_TEACHER_LINK_H
#define QUIRE_ENGINE_DISTILL_TEACHER_LINK_H
#include "engine/distill/loss_head.h"
#include "engine/distill/topology.h"

struct teacher_link;
/* top, transport: borrowed. Errors: Q_NO_MEMORY. */
struct teacher_link_args {
    struct teacher_source source; /* of this rank's teacher; rows NULL: it has none. n_vocab: the
                                     teacher's, on all ranks */
    uint32_t n_hidden; /* the teacher's hidden_size; 0: hidden states are not asked for */
    const struct topology *top;
    struct transport *transport;
};
FALLIBLE teacher_link_new(struct teacher_link **out, const struct teacher_link_args *a,
                          struct q_err *e);
void teacher_link_free(struct teacher_link *l);
/* For loss_head_run, on ranks with a student. */
struct teacher_source teacher_link_source(struct teacher_link *l);
/* Behind each loss_head_run. Errors: those of the transport. */
FALLIBLE teacher_link_end(struct teacher_link *l, struct q_err *e);
/* On a rank without a student, for each micro batch: what the loss asks for. */
FALLIBLE teacher_link_serve(struct teacher_link *l, const struct micro_batch *b, struct q_err *e);

#endif
