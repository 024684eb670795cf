/* SPDX-License-Identifier: Apache-2.0 */
/* What rank 0 shows before the first step: data, the cut, memory, the machine's peak. Each rank
 * tells its own part. */
#include <stdio.h>
#include <string.h>
#include "common/log.h"
#include "common/mem.h"
#include "engine/distill/trainer_internal.h"
#include "kernels/bench/roofline.h"

#define PEAK_US 30000 /* of measuring an instruction */

struct told { /* by a rank */
    double memory_mb, peak_gflop_s, n_param;
};

double trainer_rss_mb(void)
{
    char line[128];
    double kb = 0;
    FILE *f = fopen("/proc/self/status", "re");
    while (f && fgets(line, sizeof line, f))
        if (sscanf(line, "VmHWM: %lf", &kb) == 1)
            break;
    if (f)
        fclose(f);
    return kb / 1024;
}

double trainer_measure_peak(struct trainer *t)
{
    static const enum roofline_peak f32[] = {PEAK_F32_16, PEAK_F32_8};
    static const enum roofline_peak bf16[] = {PEAK_BF16_AMX, PEAK_BF16_32, PEAK_F32_16, PEAK_F32_8};
    const bool is_bf16 = t->o->compute == DT_BF16;
    const enum roofline_peak *rows = is_bf16 ? bf16 : f32;
    const size_t n = is_bf16 ? sizeof bf16 / sizeof *bf16 : sizeof f32 / sizeof *f32;
    for (size_t i = 0; i < n; i++) {
        const struct roofline_row row = roofline_peak_row(t->team, rows[i], PEAK_US);
        if (row.best > 0)
            return row.best;
    }
    return 0;
}

/* The rank at this place of the first replica, as it is cut. */
static struct report_rank rank_row(const struct trainer *t, uint32_t rank)
{
    const struct topology *top = &t->top;
    const uint32_t tensor = rank % top->n_tensor, p = rank / top->n_tensor % top->n_pipeline;
    const uint32_t n_s = top->sizes.n_student_pipeline, n_t = top->sizes.n_teacher_pipeline;
    struct report_rank r = {0};
    if (p >= top->n_pipeline - n_s && tensor < top->sizes.n_student_tensor) {
        const uint32_t at = p - (top->n_pipeline - n_s);
        r.student_first = t->cut.student[at].first;
        r.n_stage = top->sizes.n_virtual;
        for (uint32_t i = at; i < t->cut.n_student; i += n_s) {
            r.student_n += t->cut.student[i].n;
            r.has_embedding |= t->cut.student[i].has_embedding;
            r.has_head |= t->cut.student[i].has_head;
        }
    }
    if (n_t && p >= top->n_pipeline - n_t && tensor < top->sizes.n_teacher_tensor) {
        const uint32_t at = p - (top->n_pipeline - n_t);
        r.teacher_first = t->cut.teacher[at].first;
        for (uint32_t i = at; i < t->cut.n_teacher; i += n_t, r.n_teacher_stage++)
            r.teacher_n += t->cut.teacher[i].n;
    }
    for (uint32_t i = 0; i < top->sizes.n_virtual; i++) {
        const struct stage_cost *c = &t->cut.costs[p * top->sizes.n_virtual + i];
        r.share += (r.student_n ? c->forward + c->backward : 0) + (r.teacher_n ? c->teacher : 0);
    }
    return r;
}

static void show(struct trainer *t, const struct told *told, struct report_rank *rows)
{
    const uint32_t n = t->top.n_rank;
    double work = 0, n_param = 0;
    for (uint32_t i = 0; i < n; i++) {
        rows[i] = rank_row(t, i);
        rows[i].memory_mb = told[i].memory_mb;
        work += rows[i].share;
        n_param += i < n / t->top.sizes.n_data ? told[i].n_param : 0;
    }
    for (uint32_t i = 0; i < n; i++)
        rows[i].share /= work > 0 ? work : 1;
    const struct report_cut cut = {
        .ranks = rows,
        .n_rank = n,
        .bubble = t->cut.bubble,
        .n_param = (uint64_t)n_param,
        .n_micro = t->n_micro,
        .n_replica = t->top.sizes.n_data,
        .peak_gflop_s = t->peak_gflop_s,
        .isa = kern_variant_name("linear", t->o->kern->caps),
    };
    report_data(t->report, "data", dataset_counts(t->data));
    if (t->eval)
        report_data(t->report, "evaluation data", dataset_counts(t->eval));
    report_cut(t->report, &cut);
    if (t->step)
        report_say(t->report, "going on from the state after step %llu",
                   (unsigned long long)t->step);
}

static double memory_mb(struct trainer *t)
{
    const double rows = t->row_max;
    double bytes = t->student ? (double)student_bytes(t->student) : 0;
    for (uint32_t i = 0; i < t->n_teacher; i++)
        bytes += (double)teacher_bytes(t->teachers[i]);
    bytes += t->head ? (double)loss_head_bytes(t->head) : 0;
    bytes += (double)attention_loss_bytes(t->attention);
    bytes += t->buffers.teacher_in ? 4 * rows * t->teacher_hidden : 0;
    bytes += t->buffers.forward_in ? 8 * rows * t->hidden : 0;
    bytes += t->buffers.loss_grads ? 4 * rows * t->hidden * t->schedule.n_slot : 0;
    return bytes / 1048576;
}

/* Virtual stages whose bubble is not smaller have only their costs. */
static FALLIBLE compare_with_plain(const struct trainer *t, struct q_err *e)
{
    const struct topology_sizes *s = &t->top.sizes;
    const bool is_whole = s->n_teacher_pipeline && s->n_teacher_virtual < 2;
    struct topology plain = t->top;
    struct trainer_cut cut = {.bubble = 0};
    plain.sizes.n_virtual = 1;
    plain.sizes.n_teacher_virtual = 1;
    enum q_code rc = trainer_cut_make(&cut, t->o, &plain, e);
    if (!rc && cut.bubble <= t->cut.bubble)
        log_warning("--virtual-pipeline-size %u: the predicted bubble is %.1f %%, with 1 it is "
                    "%.1f %%%s",
                    s->n_virtual, 100 * t->cut.bubble, 100 * cut.bubble,
                    is_whole ? "; the teacher has one stage on each of its ranks: virtual stages "
                               "need half of the student's pipeline ranks, and a layer each"
                             : "");
    trainer_cut_release(&cut);
    return rc;
}

FALLIBLE trainer_show_cut(struct trainer *t, struct q_err *e)
{
    const struct transport_group *all = &t->top.groups[TOPOLOGY_ALL];
    const uint32_t n = t->top.n_rank;
    const struct told mine = {
        .memory_mb = memory_mb(t),
        .peak_gflop_s = t->o->quiet ? 0 : trainer_measure_peak(t),
        .n_param = (double)trainer_params(t)->n_param,
    };
    struct told *told = q_calloc(n, sizeof *told);
    struct report_rank *rows = q_calloc(n, sizeof *rows);
    enum q_code rc = told && rows ? transport_gather(t->transport, all, &mine, sizeof mine, told, e)
                                  : q_fail(e, Q_NO_MEMORY, "no memory for %u ranks", n);
    for (uint32_t i = 0; i < n && !rc; i++)
        t->peak_gflop_s += told[i].peak_gflop_s;
    if (!rc && t->report)
        show(t, told, rows);
    if (!rc && t->report && t->top.sizes.n_virtual > 1)
        rc = compare_with_plain(t, e);
    q_free(told);
    q_free(rows);
    return rc;
}
