/* SPDX-License-Identifier: Apache-2.0 */
/* The definition, row by row: the sum of a row begins with the bias and goes from the oldest row to
 * the newest one. */
#include "kernels/variants.h"
#include "kernels/wide/state_rows.h"

/* u of the row that is `back` rows before row r of the part: a row of the step, or of the state. */
static float input_at(const struct state_conv_args *a, const struct state_part *part, uint32_t r,
                      uint32_t back, size_t c)
{
    const uint32_t n_kept = a->width - 1;
    const float *state = state_at(&a->states, part->state);
    if (back > r)
        return state[(size_t)(n_kept + r - back) * a->n_col + c];
    const size_t at = (size_t)(part->row + r - back) * a->x_stride + c;
    return a->pre ? a->x[at] * a->pre[at] : a->x[at];
}

static void column(const struct state_conv_args *a, const struct state_part *part, size_t c)
{
    const uint32_t n_kept = a->width - 1;
    float *state = state_at(&a->states, part->state), kept[KERN_CONV_MAX];
    for (uint32_t r = 0; r < part->n_row; r++) {
        float sum = a->bias ? a->bias[c] : 0;
        for (uint32_t j = 0; j < a->width; j++)
            sum += a->w[c * a->width + j] * input_at(a, part, r, n_kept - j, c);
        const size_t row = part->row + r;
        a->y[row * a->y_stride + c] = a->post ? sum * a->post[row * a->x_stride + c] : sum;
    }
    for (uint32_t j = 0; j < n_kept; j++)
        kept[j] = input_at(a, part, part->n_row, n_kept - j, c);
    for (uint32_t j = 0; j < n_kept; j++)
        state[(size_t)j * a->n_col + c] = kept[j];
}

void state_conv_ref(const struct state_conv_args *a, const struct kern_exec *x)
{
    const struct range mine = state_columns(a->n_col, x);
    const struct state_piece piece = {mine.begin, mine.end - mine.begin, a->width - 1, a->n_col};
    for (uint32_t i = 0; i < a->states.n_part; i++) {
        const struct state_part *part = &a->states.parts[i];
        if (part->n_row == 0)
            continue;
        state_begin(&a->states, part, &piece);
        for (size_t c = mine.begin; c < mine.end; c++)
            column(a, part, c);
        state_end(&a->states, part, &piece);
    }
}
