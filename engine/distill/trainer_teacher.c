/* SPDX-License-Identifier: Apache-2.0 */
/* Where the rows of the teacher come from: a model on the ranks, its rows shared where teacher and
 * student have different numbers of tensor ranks, or a file. */
#include "common/log.h"
#include "common/mem.h"
#include "engine/distill/teacher_file.h"
#include "engine/distill/teacher_link.h"
#include "engine/distill/trainer_internal.h"

/* ---- a model ---- */

static enum q_code teacher_sum(void *ctx, float *x, size_t n, struct q_err *e)
{
    struct trainer *t = ctx;
    return transport_sum_f32(t->transport, &t->top.groups[TOPOLOGY_TEACHER_TENSOR], x, n, e);
}

static enum q_code teacher_gather(void *ctx, const float *x, size_t n, float *out, struct q_err *e)
{
    struct trainer *t = ctx;
    return transport_gather(t->transport, &t->top.groups[TOPOLOGY_TEACHER_TENSOR], x, n * sizeof *x,
                            out, e);
}

/* The i-th stage of this rank. */
static FALLIBLE load_stage(struct trainer *t, uint32_t i, struct q_err *e)
{
    const struct teacher_options o = {
        .dir = t->o->teacher,
        .kern = t->o->kern,
        .team = t->team,
        .dtype = t->o->teacher_dtype,
        .quantization = t->o->teacher_quantization,
        .layers = t->cut.teacher[topology_teacher_stage(&t->top, i)],
        .n_row_max = t->row_max,
        .keeps_hidden = t->o->loss.hidden.kind != HIDDEN_NONE,
        .attention =
            attention_is_asked(&t->o->loss.attention) ? &t->o->loss.attention.teacher : NULL,
        .tensor_parallel = {t->top.tensor, t->top.sizes.n_teacher_tensor, teacher_sum,
                            teacher_gather, t},
    };
    enum q_code rc = teacher_load(&t->teachers[i], &o, e);
    if (rc)
        return q_wrap(e, "--teacher");
    t->n_teacher = i + 1;
    if (o.layers.has_head)
        t->source = teacher_logits_source(t->teachers[i]);
    return Q_OK;
}

FALLIBLE trainer_teacher_load(struct trainer *t, struct q_err *e)
{
    enum q_code rc = Q_OK;
    if (!t->top.has_teacher)
        return Q_OK;
    const uint32_t n = t->cut.n_teacher / t->top.sizes.n_teacher_pipeline;
    if (!(t->teachers = q_calloc(n, sizeof *t->teachers)))
        return q_fail(e, Q_NO_MEMORY, "no memory for %u stages of a teacher", n);
    for (uint32_t i = 0; i < n && !rc; i++)
        rc = load_stage(t, i, e);
    return rc;
}

/* Where the numbers of tensor ranks differ, the last stage's ranks share the teacher's rows. */
static FALLIBLE link_teacher(struct trainer *t, struct q_err *e)
{
    const bool is_last = t->top.pipeline + 1 == t->top.n_pipeline;
    if (!t->o->teacher || !is_last ||
        t->top.sizes.n_teacher_tensor == t->top.sizes.n_student_tensor)
        return Q_OK;
    t->source.n_vocab = t->o->teacher_vocab;
    const struct teacher_link_args link = {
        .source = t->source,
        .n_hidden = t->o->loss.hidden.kind != HIDDEN_NONE ? t->o->teacher_hidden : 0,
        .top = &t->top,
        .transport = t->transport,
    };
    enum q_code rc = teacher_link_new(&t->link, &link, e);
    if (!rc)
        t->source = teacher_link_source(t->link);
    return rc;
}

/* ---- a file ---- */

/* Has the file all sequences of the first n_step steps? */
static FALLIBLE check_file(struct trainer *t, struct dataset *data, uint64_t n_step,
                           uint32_t n_micro, struct q_err *e)
{
    enum q_code rc = Q_OK;
    for (uint64_t step = 1; step <= n_step && !rc; step++)
        for (uint32_t i = 0; i < n_micro && !rc; i++) {
            struct micro_batch batch;
            if (!(rc = dataset_batch(data, step, i, 0, &batch, e)))
                rc = teacher_file_check(t->file, &batch, e);
        }
    return rc;
}

/* Training data: all of it, of an epoch. Evaluation data may be missing as a whole. */
static FALLIBLE check_data(struct trainer *t, struct q_err *e)
{
    const uint64_t n_sequence = dataset_counts(t->data)->n_sequence;
    const uint64_t epoch = n_sequence / t->o->data.global_batch + 1;
    const uint64_t n_step = t->o->optimizer.n_step < epoch ? t->o->optimizer.n_step : epoch;
    const uint32_t n_micro = t->o->data.global_batch / t->o->data.micro_batch;
    struct q_err missing = Q_ERR_INIT;
    enum q_code rc = check_file(t, t->data, n_step, n_micro, e);
    if (rc || !t->eval)
        return rc;
    rc = check_file(t, t->eval, dataset_counts(t->eval)->n_sequence, 1, &missing);
    t->eval_has_teacher = rc == Q_OK;
    if (rc)
        log_warning("evaluations have no difference to the teacher: %s", missing.message);
    return Q_OK;
}

static FALLIBLE open_file(struct trainer *t, struct q_err *e)
{
    const uint32_t n_student = t->o->data.vocab_size;
    if (teacher_file_open(&t->file, t->o->teacher_file, e) ||
        teacher_file_source(t->file, t->o->loss.top_k, n_student, &t->source, e) ||
        check_data(t, e))
        return q_wrap(e, "--teacher-file");
    return Q_OK;
}

/* ---- either ---- */

FALLIBLE trainer_teacher_connect(struct trainer *t, struct q_err *e)
{
    t->eval_has_teacher = t->o->teacher != NULL;
    if (t->o->teacher_file && t->head)
        return open_file(t, e);
    return link_teacher(t, e);
}

void trainer_teacher_free(struct trainer *t)
{
    teacher_link_free(t->link);
    teacher_file_close(t->file);
    for (uint32_t i = 0; i < t->n_teacher; i++)
        teacher_free(t->teachers[i]);
    q_free(t->teachers);
}
