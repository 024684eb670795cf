/* SPDX-License-Identifier: Apache-2.0 */
/* The cut of layers into stages. best[s][i] is the cost of the largest stage when stages s … hold
 * the layers i …; then stages take layers from the first one on, each as many as that cost of the
 * whole allows. Costs are added layer by layer in both passes, so equal cuts have equal sums. */
#include <math.h>
#include "common/mem.h"
#include "engine/distill/schedule.h"

static enum q_code check_costs(const struct cut_costs *c, struct q_err *e)
{
    if (c->n_stage == 0 || c->n_layer < c->n_stage)
        return q_fail(e, Q_INVALID,
                      "%u layers cannot be cut into %u pipeline stages; each has a layer at least",
                      c->n_layer, c->n_stage);
    for (uint32_t i = 0; c->beside && i < c->n_stage; i++)
        Q_ASSERT(isfinite(c->beside[i]) && c->beside[i] >= 0);
    bool valid = isfinite(c->embedding) && c->embedding >= 0 && isfinite(c->head) && c->head >= 0;
    for (uint32_t i = 0; i < c->n_layer; i++)
        valid = valid && isfinite(c->layers[i]) && c->layers[i] >= 0;
    return valid ? Q_OK : q_fail(e, Q_INVALID, "the cost of a layer is below 0 or no number");
}

/* What a stage costs before its first layer; its layers; the head. */
static double first_cost(const struct cut_costs *c, uint32_t stage)
{
    return (stage == 0 ? c->embedding : 0) + (c->beside ? c->beside[stage] : 0);
}

static double with_head(const struct cut_costs *c, uint32_t stage, double cost)
{
    return stage + 1 == c->n_stage ? cost + c->head : cost;
}

/* next: best of the stages behind; NULL: this is the last one. */
static double best_from(const struct cut_costs *c, uint32_t stage, uint32_t layer,
                        const double *next)
{
    double best = INFINITY, cost = first_cost(c, stage);
    for (uint32_t end = layer; end < c->n_layer; end++) {
        cost += c->layers[end];
        double rest = end + 1 < c->n_layer ? INFINITY : 0;
        if (next)
            rest = next[end + 1];
        best = fmin(best, fmax(with_head(c, stage, cost), rest));
    }
    return best;
}

FALLIBLE cut_layers(const struct cut_costs *c, struct stage_layers *out, struct q_err *e)
{
    enum q_code rc = check_costs(c, e);
    if (rc)
        return rc;
    const size_t width = (size_t)c->n_layer + 1; /* the last column: no layer is left */
    double *best = q_calloc(width * c->n_stage, sizeof *best);
    if (!best)
        return q_fail(e, Q_NO_MEMORY, "no memory to cut %u layers", c->n_layer);
    for (uint32_t stage = c->n_stage; stage-- > 0;) {
        const double *next = stage + 1 < c->n_stage ? best + (stage + 1) * width : NULL;
        for (uint32_t layer = 0; layer <= c->n_layer; layer++)
            best[stage * width + layer] = best_from(c, stage, layer, next);
    }
    const double largest = best[0];
    uint32_t first = 0;
    for (uint32_t stage = 0; stage < c->n_stage; stage++) {
        const bool is_last = stage + 1 == c->n_stage;
        uint32_t n = 0;
        double cost = first_cost(c, stage);
        for (uint32_t end = first; end < c->n_layer; end++) {
            cost += c->layers[end];
            double rest = is_last ? (end + 1 == c->n_layer ? 0 : INFINITY)
                                  : best[(stage + 1) * width + end + 1];
            if (with_head(c, stage, cost) <= largest && rest <= largest)
                n = end + 1 - first;
        }
        out[stage] = (struct stage_layers){first, n, stage == 0, is_last};
        first += n;
    }
    q_free(best);
    return Q_OK;
}

/* ---- virtual stages ---- */

#define STAGE_PART 1e-3 /* of the largest stage, beside the largest rank: it decides equal ones */

static double balance_cost(const struct cut_costs *c, uint32_t n_rank, const double *beside,
                           const struct stage_layers *stages)
{
    double largest = 0, largest_stage = 0;
    for (uint32_t rank = 0; rank < n_rank; rank++) {
        double sum = 0;
        for (uint32_t stage = rank; stage < c->n_stage; stage += n_rank) {
            double here = beside[stage];
            for (uint32_t i = 0; i < stages[stage].n; i++)
                here += c->layers[stages[stage].first + i];
            sum += here;
            largest_stage = fmax(largest_stage, here);
        }
        largest = fmax(largest, sum);
    }
    return largest + STAGE_PART * largest_stage;
}

/* A layer from a stage to the one behind it, or back. */
static void move_layer(struct stage_layers *stages, uint32_t stage, bool back)
{
    stages[stage].n += back ? 1 : UINT32_MAX;
    stages[stage + 1].n += back ? UINT32_MAX : 1;
    stages[stage + 1].first += back ? 1 : UINT32_MAX;
}

void cut_balance(const struct cut_costs *c, uint32_t n_rank, const double *beside,
                 struct stage_layers *stages)
{
    const uint32_t n = 2 * (c->n_stage - 1); /* moves: over each border, there and back */
    double best = balance_cost(c, n_rank, beside, stages);
    uint32_t chosen;
    do {
        chosen = n;
        for (uint32_t i = 0; i < n; i++) {
            if (stages[i / 2 + i % 2].n < 2)
                continue;
            move_layer(stages, i / 2, i % 2);
            const double now = balance_cost(c, n_rank, beside, stages);
            move_layer(stages, i / 2, !(i % 2));
            if (now < best * (1 - 1e-9)) {
                best = now;
                chosen = i;
            }
        }
        if (chosen < n)
            move_layer(stages, chosen / 2, chosen % 2);
    } while (chosen < n);
}
