/* SPDX-License-Identifier: Apache-2.0 */
/* The invariants of the slots between two steps: after any step, valid or not, no index or count
 * exceeds its array. */
#include "common/thinking_budget.h"
#include "engine/worker/slots.h"

static void check_slot(const struct slots *s, const struct slot *slot)
{
    const struct sample_params *p = &slot->params;
    Q_ASSERT(slot->n_prompt <= slot->n_known);
    Q_ASSERT(slot->n_known + slot->n_draft_token <= s->limits.max_model_len);
    Q_ASSERT(slot->n_draft <= s->limits.max_model_len);
    Q_ASSERT(slot->n_block * (uint64_t)STEP_BLOCK_TOKENS <
             s->limits.max_model_len + (uint64_t)STEP_BLOCK_TOKENS);
    for (uint32_t i = 0; i < slot->n_block; i++)
        Q_ASSERT(slot->blocks[i] < s->n_block);
    for (uint32_t i = 0; i < slot->n_known; i++)
        Q_ASSERT(slot->history[i] < s->vocab_size || i < slot->n_prompt);
    Q_ASSERT(!slot->n_admitted || (p->stop_ids == slot->stop_ids && p->bias == slot->bias &&
                                   p->bias_ids == slot->bias_ids && !p->allowed_ids));
    Q_ASSERT(p->n_stop_id <= STEP_STOP_IDS_MAX && p->n_bias <= SAMPLE_BIAS_MAX);
    Q_ASSERT(p->n_bad <= SAMPLE_BAD_MAX && p->n_allowed <= SAMPLE_ALLOWED_MAX);
    Q_ASSERT(p->n_thinking <= THINKING_BUDGET_WORDS_MAX);
}

static void check_rows(const struct slots *s)
{
    const struct batch *b = &s->batch;
    uint64_t n_top = 0;
    Q_ASSERT(b->n_logit <= s->limits.logit_rows_max);
    for (uint32_t i = 0; i < b->n_logit; i++) {
        const struct logit_row *r = &s->rows[i];
        Q_ASSERT(s->logit_rows[i] < b->n_token);
        Q_ASSERT(r->i_slot < s->limits.max_num_seqs && r->slot == &s->slots[r->i_slot]);
        Q_ASSERT(r->position >= 1 && r->position <= s->limits.max_model_len);
        Q_ASSERT(r->top_start == n_top);
        n_top += r->n_top;
    }
    Q_ASSERT(n_top == s->n_top && n_top <= step_top_max(&s->limits));
}

static void check_batch(const struct slots *s)
{
    const struct batch *b = &s->batch;
    uint32_t row = 0;
    Q_ASSERT(b->n_seq <= s->limits.max_num_seqs);
    Q_ASSERT(b->n_token <= s->limits.max_num_batched_tokens);
    Q_ASSERT(b->context_max <= s->limits.max_model_len);
    for (uint32_t i = 0; i < b->n_seq; i++) {
        Q_ASSERT(s->seqs[i].row == row && s->seqs[i].n_query >= 1);
        Q_ASSERT(s->seqs[i].start + s->seqs[i].n_query <= b->context_max);
        row += s->seqs[i].n_query;
    }
    Q_ASSERT(row == b->n_token);
    for (uint32_t i = 0; i < b->n_token; i++) {
        Q_ASSERT(s->token_ids[i] < s->vocab_size && s->positions[i] < b->context_max);
        Q_ASSERT(s->slot_mapping[i] == KERN_NO_SLOT ||
                 s->slot_mapping[i] / STEP_BLOCK_TOKENS < s->n_block);
    }
}

void slots_check(const struct slots *s)
{
    Q_ASSERT(s->n_fresh <= s->limits.max_num_seqs);
    for (uint32_t i = 0; i < s->limits.max_num_seqs; i++)
        check_slot(s, &s->slots[i]);
    check_batch(s);
    check_rows(s);
}
