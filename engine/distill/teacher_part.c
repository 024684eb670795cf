/* SPDX-License-Identifier: Apache-2.0 */
/* Logits of n rows: norm of each thread's rows -> this rank's columns of the head -> gathered ->
 * joined, multiplied and capped, by rows again. */
#include "engine/distill/teacher_part.h"
#include <string.h>
#include "common/mem.h"
#include "engine/distill/student.h"
#include "engine/model/region.h"

struct teacher_part {
    struct student *model;
    struct team *team;
    uint32_t n_thread;
    bool has_head;
    struct head_weights head;
    const float *stream; /* of the last micro batch */
    uint32_t n_local;    /* columns of the head here */
    size_t scratch_bytes;
    struct region memory;
    uint32_t n_max;         /* rows that memory has room for */
    void *h;                /* [n_max][hidden] in the head's type */
    float *part, *gathered; /* [n_max][n_local]; of all ranks, one after another */
    float *z;               /* [n_max][n_vocab] */
    unsigned char *scratch; /* [n_thread] */
};

/* ---- what is accepted ---- */

static struct student_options options_of(const struct teacher_options *o,
                                         const struct stage_layers *stage)
{
    return (struct student_options){
        .dir = o->dir,
        .kern = o->kern,
        .team = o->team,
        .compute = o->dtype,
        .stages = stage,
        .n_stage = 1,
        .n_slot = 1,
        .n_row_max = o->n_row_max ? o->n_row_max : 1,
        .forward_only = true,
        .tensor_parallel = o->tensor_parallel,
    };
}

/* The cause is in e: what is accepted goes behind it. */
static enum q_code say_accepted(const struct teacher_options *o, struct q_err *e)
{
    const struct q_err cause = *e;
    q_err_reset(e);
    return q_fail(e, cause.code,
                  "%s: %s; over %u tensor-parallel ranks a teacher is a dense model of float "
                  "weights, any other takes --teacher-tensor-parallel-size 1 and, for more ranks, "
                  "--teacher-pipeline-parallel-size",
                  o->dir, cause.message, o->tensor_parallel.size);
}

static enum q_code check_weights(const struct teacher_options *o, const struct model_config *c,
                                 struct q_err *e)
{
    if (o->quantization != QUANTIZE_NOT)
        return q_fail(e, Q_UNSUPPORTED, "--teacher-quantization %s cannot be divided among ranks",
                      quantization_name(o->quantization));
    if (o->dtype != DT_F32 && o->dtype != DT_BF16)
        return q_fail(e, Q_UNSUPPORTED, "--teacher-dtype is %s, expected float32 or bfloat16",
                      o->dtype == DT_F16 ? "float16" : dtype_name(o->dtype));
    if (c->quant.method != QUANT_NONE)
        return q_fail(e, Q_UNSUPPORTED, "its weights are quantized (%s)",
                      quant_method_name(c->quant.method));
    return Q_OK;
}

static enum q_code check_model(const struct teacher_options *o, const struct model_config *c,
                               struct q_err *e)
{
    const struct stage_layers all = {0, c->n_layer, true, true};
    const struct student_options s = options_of(o, &all);
    enum q_code rc = check_weights(o, c, e);
    if (!rc)
        rc = student_check(&s, e);
    return rc == Q_UNSUPPORTED ? say_accepted(o, e) : rc;
}

FALLIBLE teacher_part_check(const struct teacher_options *o, struct q_err *e)
{
    struct model_config *c = q_calloc(1, sizeof *c);
    enum q_code rc;
    Q_ASSERT(!o->dtype_auto);
    if (!c)
        return q_fail(e, Q_NO_MEMORY, "no memory for a teacher's config");
    if (!(rc = model_config_load(c, NULL, o->dir, e)))
        rc = check_model(o, c, e);
    q_free(c);
    return rc;
}

/* ---- life ---- */

FALLIBLE teacher_part_load(struct teacher_part **out, const struct teacher_options *o,
                           struct q_err *e)
{
    const struct student_options s = options_of(o, &o->layers);
    struct teacher_part *t;
    enum q_code rc = teacher_part_check(o, e);
    if (rc)
        return rc;
    if (!(t = q_calloc(1, sizeof *t)))
        return q_fail(e, Q_NO_MEMORY, "no memory for a teacher");
    if ((rc = student_load(&t->model, &s, e))) {
        teacher_part_free(t);
        return rc;
    }
    const size_t any = kern_scratch_bytes(1, 1, KERN_PANEL);
    t->team = o->team;
    t->n_thread = o->team ? team_size(o->team) : 1;
    t->scratch_bytes = (any + REGION_ALIGN - 1) / REGION_ALIGN * REGION_ALIGN;
    t->has_head = student_head(t->model, &t->head);
    t->n_local = t->has_head ? t->head.n_vocab / o->tensor_parallel.size : 0;
    *out = t;
    return Q_OK;
}

void teacher_part_free(struct teacher_part *t)
{
    if (!t)
        return;
    student_free(t->model);
    region_release(&t->memory);
    q_free(t);
}

const struct model_config *teacher_part_config(const struct teacher_part *t)
{
    return student_config(t->model);
}

uint64_t teacher_part_bytes(const struct teacher_part *t)
{
    return student_bytes(t->model) + t->memory.size;
}

/* ---- forward ---- */

FALLIBLE teacher_part_forward(struct teacher_part *t, const struct micro_batch *b, const float *x,
                              const float **out, struct q_err *e)
{
    const struct student_pass pass = {0, 0, b};
    const enum q_code rc = student_forward(t->model, &pass, x, &t->stream, e);
    *out = t->stream;
    return rc;
}

/* ---- logits ---- */

struct logits_job {
    const struct teacher_part *t;
    const uint32_t *rows;
    uint32_t n;
};
struct job_rows { /* of a thread */
    uint32_t begin, end;
};

static struct job_rows rows_of(const struct logits_job *j, uint32_t ith, uint32_t nth)
{
    return (struct job_rows){
        (uint32_t)((uint64_t)j->n * ith / nth),
        (uint32_t)((uint64_t)j->n * (ith + 1) / nth),
    };
}

static struct kern_exec exec_of(const struct teacher_part *t, uint32_t ith, uint32_t nth)
{
    return (struct kern_exec){
        .ith = ith,
        .nth = nth,
        .scratch = t->scratch + ith * t->scratch_bytes,
        .scratch_bytes = t->scratch_bytes,
    };
}

static struct kern_exec alone(struct kern_exec x)
{
    x.ith = 0;
    x.nth = 1;
    return x;
}

static void multiply(void *arg, uint32_t ith, uint32_t nth)
{
    const struct logits_job *j = arg;
    const struct teacher_part *t = j->t;
    const struct head_weights *w = &t->head;
    const struct job_rows r = rows_of(j, ith, nth);
    const struct kern_exec x = exec_of(t, ith, nth), mine = alone(x);
    for (uint32_t i = r.begin; i < r.end; i++)
        head_norm(w, (char *)t->h + (size_t)i * w->hidden * (dtype_bits(w->compute) / 8),
                  t->stream + (size_t)j->rows[i] * w->hidden, 1, &mine);
    if (nth > 1)
        team_barrier(t->team);
    const struct linear_args a = {
        .y = t->part,
        .y_dtype = DT_F32,
        .x = t->h,
        .x_dtype = w->compute,
        .w = w->w,
        .bias = w->bias,
        .n_row = j->n,
        .x_stride = w->hidden,
        .y_stride = t->n_local,
    };
    w->kern->linear(&a, &x);
}

static void join(void *arg, uint32_t ith, uint32_t nth)
{
    const struct logits_job *j = arg;
    const struct teacher_part *t = j->t;
    const struct head_weights *w = &t->head;
    const struct job_rows r = rows_of(j, ith, nth);
    const struct kern_exec mine = alone(exec_of(t, ith, nth));
    const size_t n_vocab = w->n_vocab, n_local = t->n_local;
    float *z = t->z + r.begin * n_vocab;
    if (r.begin == r.end)
        return;
    for (uint32_t rank = 0; rank < w->tensor_parallel.size; rank++)
        for (uint32_t i = r.begin; i < r.end; i++)
            memcpy(t->z + i * n_vocab + rank * n_local,
                   t->gathered + (rank * (size_t)j->n + i) * n_local, n_local * sizeof(float));
    head_scale(w, z, n_vocab, r.end - r.begin, &mine);
    head_cap(w, z, n_vocab, r.end - r.begin, &mine);
}

/* Run twice (region_cutter). */
static void cut(struct teacher_part *t, uint32_t n, struct region_cutter *c)
{
    const struct head_weights *w = &t->head;
    t->h = region_cut(c, (size_t)n * w->hidden, dtype_bits(w->compute) / 8);
    t->part = region_cut(c, (size_t)n * t->n_local, sizeof *t->part);
    t->gathered = region_cut(c, (size_t)n * w->n_vocab, sizeof *t->gathered);
    t->z = region_cut(c, (size_t)n * w->n_vocab, sizeof *t->z);
    t->scratch = region_cut(c, t->n_thread, t->scratch_bytes);
}

static FALLIBLE want_rows(struct teacher_part *t, uint32_t n, struct q_err *e)
{
    struct region_cutter c = {0};
    if (n <= t->n_max)
        return Q_OK;
    region_release(&t->memory);
    t->n_max = 0;
    cut(t, n, &c);
    const enum q_code rc = region_init(&t->memory, c.used, "a teacher's logits", e);
    if (rc)
        return rc;
    c = (struct region_cutter){.base = t->memory.data};
    cut(t, n, &c);
    t->n_max = n;
    return Q_OK;
}

static void run(const struct teacher_part *t, team_fn *phase, struct logits_job *j)
{
    if (t->n_thread > 1)
        team_run(t->team, phase, j);
    else
        phase(j, 0, 1);
}

FALLIBLE teacher_part_logits(struct teacher_part *t, const uint32_t *rows, uint32_t n,
                             const float **out, struct q_err *e)
{
    const struct tensor_group *g = &t->head.tensor_parallel;
    struct logits_job j = {t, rows, n};
    enum q_code rc;
    Q_ASSERT(t->has_head && t->stream);
    if ((rc = want_rows(t, n, e)))
        return rc;
    run(t, multiply, &j);
    if ((rc = g->gather(g->ctx, t->part, (size_t)n * t->n_local, t->gathered, e)))
        return rc;
    run(t, join, &j);
    *out = t->z;
    return Q_OK;
}
