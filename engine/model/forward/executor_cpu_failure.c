/* SPDX-License-Identifier: Apache-2.0 */
/* Plugins that fail: an operation of their own (quire_operation.run) or their forward pass
 * (quire_architecture.forward).
 *
 * What fails is called for rows of several sequences, and does not say which of them it cannot
 * compute. So the whole step is computed again for each sequence by itself: one that fails alone
 * has an error (model_failure), and its request ends with it; the others have the bits that they
 * would have had (DESIGN section 6). KV is written again, with the same values. Behind the final
 * norm an operation has rows of logits, which are computed again one by one.
 *
 * Asking each call for one sequence would find the rows at once, but a decode step would be one
 * call a row, and an operation could not read its weights once for all rows. */
#include <stdio.h>
#include <string.h>
#include "engine/model/forward/executor_cpu.h"

void cpu_fail(const struct cpu_run *w, const char *what, struct quire_plugin_error *error)
{
    struct cpu_own *own = &w->s->own;
    error->message[sizeof error->message - 1] = '\0';
    if (atomic_exchange(&own->has_failed, true) || w->part.i_seq == CPU_NO_SEQ)
        return;
    snprintf(own->errors[w->part.i_seq].message, sizeof own->errors->message, "%.60s: %.440s", what,
             *error->message ? error->message : "it failed and gave no reason");
}

const char *model_failure(const struct model_scratch *s, uint32_t i_seq)
{
    const char *why = s && s->own.errors ? s->own.errors[i_seq].message : "";
    return *why ? why : NULL;
}

static const float *vector_of(const struct cpu_run *w, enum program_weight v,
                              const struct program_op *op)
{
    return program_vector(&w->m->weights, v, op->layer);
}

/* What a call that failed has not written is 0 and not what a step before has left. */
static void clear_rows(const struct quire_op_call *c)
{
    for (uint32_t i = 0; i < c->n_row; i++)
        memset(c->out + i * c->out_stride, 0, c->out_cols * sizeof *c->out);
}

/* On the CPU a thread has rows of its own in all stages, so a row at a time is safe. */
void cpu_operation(struct cpu_run *w, const struct program_op *op, struct program_ref out)
{
    const struct matmul_rows x = cpu_rows_of(w, op->in[0]), y = cpu_rows_to(w, out);
    const bool has_second = op->in[1].buffer != PROGRAM_B_NONE;
    const struct matmul_rows x2 = has_second ? cpu_rows_of(w, op->in[1]) : (struct matmul_rows){0};
    const struct cpu_rows r = cpu_share(w, (struct cpu_rows){0, w->block.n});
    const bool is_table = op->weight && program_weight_info(op->weight)->kind == PROGRAM_TABLE;
    const struct quire_op_call call = {
        .in = (const float *)x.x + r.at * x.stride,
        .in2 = has_second ? (const float *)x2.x + r.at * x2.stride : NULL,
        .out = (float *)y.x + r.at * y.stride,
        .in_stride = x.stride,
        .in2_stride = x2.stride,
        .out_stride = y.stride,
        .n_row = r.n,
        .in_cols = op->in[0].n_col,
        .in2_cols = op->in[1].n_col,
        .out_cols = out.n_col,
        .token_ids = w->asked ? NULL : w->b->token_ids + w->block.at + r.at,
        .positions = w->asked ? NULL : w->b->positions + w->block.at + r.at,
        .weight = is_table ? program_table(&w->m->weights, op->weight, op->layer).rows
                           : vector_of(w, op->weight, op),
        .bias = vector_of(w, op->bias, op),
        .params = op->own->params,
    };
    struct quire_plugin_error error = {{0}};
    char what[PROGRAM_NAME_MAX + 16];
    if (!r.n || op->own->of->run(&call, &error) == 0)
        return;
    snprintf(what, sizeof what, "operation %.*s", (int)PROGRAM_NAME_MAX, op->own->of->name);
    cpu_fail(w, what, &error);
    clear_rows(&call);
}

/* ---- once, and then each by itself ---- */

/* False: a plugin failed in some thread. */
static bool try_pass(struct cpu_run *w, cpu_pass *pass)
{
    if (w->x.ith == 0)
        atomic_store(&w->s->own.has_failed, false);
    cpu_meet(w);
    pass(w);
    cpu_meet(w);
    const bool is_good = !atomic_load(&w->s->own.has_failed);
    cpu_meet(w); /* all have read it */
    return is_good;
}

/* The batch's rows of one sequence. *logit: of its first row of logits, and behind its last one on
 * return. */
static struct batch batch_of_seq(const struct cpu_run *w, struct attention_seq *seq, uint32_t i_seq,
                                 uint32_t *logit)
{
    const struct batch *b = w->b;
    const uint32_t row = b->seqs[i_seq].row, first = *logit;
    const size_t at = (size_t)row * w->m->config.hidden_size;
    *seq = b->seqs[i_seq];
    seq->row = 0;
    while (*logit < b->n_logit && b->logit_rows[*logit] < row + seq->n_query)
        ++*logit;
    return (struct batch){
        .token_ids = b->token_ids + row,
        .positions = b->positions + row,
        .slot_mapping = b->slot_mapping + row,
        .seqs = seq,
        .logit_rows = b->logit_rows + first,
        .n_token = seq->n_query,
        .n_seq = 1,
        .n_logit = *logit - first,
        .context_max = seq->start + seq->n_query,
        .layer = b->layer,
        .n_layer = b->n_layer,
        .n_prompts = b->n_prompts ? b->n_prompts + i_seq : NULL,
        .item_rows = b->item_rows ? b->item_rows + row : NULL,
        .stream_in = b->stream_in ? b->stream_in + at : NULL,
        .stream_out = b->stream_out ? b->stream_out + at : NULL,
    };
}

void cpu_each_forward(struct cpu_run *all, cpu_pass *pass)
{
    const struct batch *b = all->b;
    uint32_t logit = 0;
    if (!all->s->own.errors) {
        pass(all);
        return;
    }
    for (uint32_t i = 0; i < b->n_seq && all->x.ith == 0; i++)
        all->s->own.errors[i].message[0] = '\0';
    all->part.i_seq = b->n_seq == 1 ? 0 : CPU_NO_SEQ;
    if (try_pass(all, pass) || b->n_seq == 1)
        return;
    for (uint32_t i = 0; i < b->n_seq; i++) {
        struct attention_seq seq;
        struct cpu_run w = *all;
        w.part = (struct cpu_part){i, b->seqs[i].row, logit};
        const struct batch one = batch_of_seq(all, &seq, i, &logit);
        w.b = &one;
        w.is_clean = false;
        memset(w.is_own, 0, sizeof w.is_own);
        (void)try_pass(&w, pass);
    }
}

static uint32_t seq_of_row(const struct batch *b, uint32_t row)
{
    uint32_t i = 0;
    while (i + 1 < b->n_seq && b->seqs[i + 1].row <= row)
        i++;
    return i;
}

void cpu_each_logits(struct cpu_run *w, cpu_pass *pass)
{
    const struct batch *b = w->b;
    const uint32_t first = w->first_logit, n = w->n_logit;
    float *rows = w->logits;
    if (!w->s->own.errors) {
        pass(w);
        return;
    }
    w->part.i_seq = CPU_NO_SEQ;
    if (try_pass(w, pass))
        return;
    for (uint32_t i = 0; i < n; i++) {
        w->part.i_seq = seq_of_row(b, b->logit_rows[first + i]);
        w->logits = rows + (size_t)i * w->m->config.vocab_size;
        w->first_logit = first + i;
        w->n_logit = 1;
        (void)try_pass(w, pass);
    }
}
