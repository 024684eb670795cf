/* SPDX-License-Identifier: Apache-2.0 */
/* trainer_internal - what the files of the trainer share: the parts of a rank, the cut into stages,
 * a step's numbers. Threads: the trainer's. */
#ifndef QUIRE_ENGINE_DISTILL_TRAINER_INTERNAL_H
#define QUIRE_ENGINE_DISTILL_TRAINER_INTERNAL_H
#include "engine/distill/model_costs.h"
#include "engine/distill/report.h"
#include "engine/distill/teacher.h"
#include "engine/distill/trainer.h"

/* ---- trainer_cut.c: layers to stages ---- */

struct trainer_cut {
    struct model_costs student_costs, teacher_costs;
    struct stage_layers *student, *teacher; /* [n_student], [n_teacher] */
    uint32_t n_student, n_teacher;
    struct stage_cost *costs; /* [n_pipeline][n_virtual] FLOP of a row, of the first tensor rank */
    double bubble;            /* that the schedule has with these costs */
};
/* c: zeroed; to be released also after an error. */
FALLIBLE trainer_cut_make(struct trainer_cut *c, const struct distill_options *o,
                          const struct topology *top, struct q_err *e);
void trainer_cut_release(struct trainer_cut *c);
/* The cut of this topology, with the teacher's virtual stages or without them
 * (top->sizes.n_teacher_virtual becomes 1), whichever has the smaller predicted bubble. */
FALLIBLE trainer_cut_choose(struct trainer_cut *c, const struct distill_options *o,
                            struct topology *top, struct q_err *e);

/* ---- trainer_pass.c: the items of a schedule ---- */

struct pass_buffers { /* f32 rows */
    float *teacher_in, *forward_in, *backward_in;
    float *loss_grads; /* [n_slot][row_max][hidden] of the last stage */
};

struct pass_sums { /* of this rank's micro batches */
    struct loss_sums loss;
    struct attention_sums attention;
    uint64_t n_row;
};

/* ---- a step ---- */

/* What a rank tells all others at the end of a step; behind it OPTIMIZER_SUMS squares. */
struct rank_numbers {
    double kd, ce, hidden, attention, values, agree,
        n_row;                  /* of the last stage's first tensor rank, else 0 */
    double waited_s, elapsed_s; /* in messages; in all, from the step's begin on this rank */
    double rss_mb;
    double stop; /* 1: a signal has come */
};
#define RANK_NUMBERS (sizeof(struct rank_numbers) / sizeof(double))

/* What decides about spikes, and counts: kept with the state. */
struct trainer_numbers {
    double n_update;  /* updates of the masters */
    double n_bad;     /* skipped steps, the last ones in a row */
    double norm_mean; /* running mean of the norm, over steps that were not skipped */
    double n_norm;    /* norms in it */
};

struct trainer {
    const struct distill_options *o;
    struct transport *transport;
    struct topology top;
    struct team *team;
    struct dataset *data, *eval;
    struct trainer_cut cut;
    struct stage_layers *stages; /* [n_virtual] of this rank's student */
    struct student *student;     /* NULL: none here */
    struct teacher **teachers;   /* [n_teacher] a stage each; NULL: none here */
    uint32_t n_teacher;
    struct loss_head *head;           /* of the last stage */
    struct attention_loss *attention; /* of the last stage; NULL: not asked for */
    struct teacher_source source;
    struct teacher_link *link; /* of the teacher's rows; NULL: not needed */
    struct teacher_file *file; /* in place of `teachers`, on the last stage */
    bool eval_has_teacher;
    struct params no_params; /* of a rank without a student */
    struct optimizer *optimizer;
    struct checkpoint *checkpoint;
    struct schedule schedule;
    struct pass_buffers buffers;
    struct report *report; /* of rank 0 */
    double *mine, *all;    /* RANK_NUMBERS and sums of this rank, of all ranks */
    double *rss_mb;        /* [n_rank] */
    struct buf run;        /* what the run depends on, JSON */
    struct trainer_numbers numbers;
    uint32_t n_layer, hidden, teacher_hidden, row_max, n_micro;
    uint64_t step;               /* done */
    double step_s, peak_gflop_s; /* mean time of a step; measured peak of all ranks */
    const struct dataset *batch_data[DATASET_SLOTS]; /* trainer_pass.c: what a slot has */
    uint64_t batch_steps[DATASET_SLOTS];
    uint32_t batch_micros[DATASET_SLOTS];
    struct micro_batch batches[DATASET_SLOTS];
};

struct params *trainer_params(struct trainer *t); /* of a rank without a student: none */
/* Is this the tensor rank whose sums of the last stage count? */
bool trainer_has_sums(const struct trainer *t);
/* FLOP of a row in a step: teacher, student, both passes. */
double trainer_row_flop(const struct trainer *t);

struct trainer_pass {
    struct dataset *data;
    const struct schedule *schedule;
    uint64_t step;     /* of the data set */
    uint32_t micro_at; /* this replica's first micro batch; the next ones are `stride` apart */
    uint32_t stride;
    bool each_is_a_step; /* evaluation: micro batch i is that of step `step` + i */
    bool trains;
    double n_position;
};
/* All items of the schedule, with their messages. Errors: those of the parts. */
FALLIBLE trainer_pass_run(struct trainer *t, const struct trainer_pass *p, struct pass_sums *out,
                          struct q_err *e);

/* ---- trainer_open.c ---- */
/* What the run depends on, of t->run. */
struct checkpoint_run trainer_checkpoint_run(const struct trainer *t);
/* t: zeroed, with o and transport. Errors: those of the parts. */
FALLIBLE trainer_open(struct trainer *t, struct q_err *e);
void trainer_close(struct trainer *t);

/* ---- trainer_rates.c: the learning rates of a run that goes on ---- */

/* The options that learning rates are computed from, as a JSON object. */
void trainer_rates_write(struct buf *out, const struct optimizer_options *p);
/* As struct checkpoint_run's judge. ctx: the struct optimizer_options of now. Errors: Q_MISMATCH (a
 * step that is done has another rate, or --steps is less than `step`), Q_CORRUPT. */
enum q_code trainer_rates_judge(void *ctx, uint64_t step, const char *before, struct q_err *e);

/* ---- trainer_teacher.c ---- */
/* Of a rank with a part of the teacher. Errors: those of teacher_load. */
FALLIBLE trainer_teacher_load(struct trainer *t, struct q_err *e);
/* The source of the loss, when the student is loaded. Errors: those of teacher_file.h. */
FALLIBLE trainer_teacher_connect(struct trainer *t, struct q_err *e);
void trainer_teacher_free(struct trainer *t);

/* ---- trainer_table.c: what is shown at the start ---- */
FALLIBLE trainer_show_cut(struct trainer *t, struct q_err *e);
/* Of the instruction that computes products: 0 where nobody is told. */
double trainer_measure_peak(struct trainer *t);
double trainer_rss_mb(void); /* largest resident memory so far */

/* ---- trainer_step.c ---- */
/* Step t->step + 1. *stop: a rank has got a signal. Errors: those of the parts; Q_INTERNAL with
 * *bad_numbers. */
FALLIBLE trainer_step(struct trainer *t, bool *stop, bool *bad_numbers, struct q_err *e);
bool trainer_signalled(void);

/* ---- trainer_eval.c ---- */
/* Errors: those of the parts. */
FALLIBLE trainer_evaluate(struct trainer *t, struct q_err *e);

#endif
