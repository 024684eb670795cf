/* SPDX-License-Identifier: Apache-2.0 */
/* Both passes over the parameters are one call of the team: elements of a parameter are divided
 * among the threads, and no thread reads what another one writes. */
#include "engine/distill/optimizer.h"
#include <math.h>
#include <string.h>
#include "common/mem.h"
#include "engine/model/forward/program.h"

#define PI           3.14159265358979323846
#define CLIP_EPSILON 1e-6 /* of the norm, as torch's clip_grad_norm_ */

struct optimizer {
    struct optimizer_options options;
    struct params *params;
    const struct kern_table *kern;
    struct team *team;
    double *blocks;  /* [sum of blocks_of] squares, tensor after tensor */
    uint64_t step;   /* of the update that runs */
    uint64_t update; /* its number */
    double clip;
};

double optimizer_lr(const struct optimizer_options *o, uint64_t step)
{
    if (step <= o->warmup_steps)
        return o->lr * (double)step / (double)o->warmup_steps;
    const double span = (double)o->n_step - (double)o->warmup_steps;
    const double at = span > 0 ? fmin(1, (double)(step - o->warmup_steps) / span) : 1;
    return o->min_lr + (o->lr - o->min_lr) / 2 * (1 + cos(PI * at));
}

double optimizer_clip(const struct optimizer_options *o, double norm)
{
    return o->max_grad_norm > 0 ? fmin(1, o->max_grad_norm / (norm + CLIP_EPSILON)) : 1;
}

static size_t size_of(const struct param *p)
{
    return (size_t)p->n_row * p->n_col;
}

static size_t blocks_of(const struct param_tensor *t)
{
    return ((size_t)t->n_row * t->n_col + KERN_SUM_BLOCK - 1) / KERN_SUM_BLOCK;
}

FALLIBLE optimizer_new(struct optimizer **out, const struct optimizer_options *o,
                       struct params *params, const struct kern_table *k, struct team *t,
                       struct q_err *e)
{
    struct optimizer *made = q_calloc(1, sizeof *made);
    size_t n = 0;
    *out = NULL;
    for (uint32_t i = 0; i < params->n; i++)
        for (uint32_t j = 0; j < params->all[i].n_tensor; j++)
            n += blocks_of(&params->all[i].tensors[j]);
    if (made)
        *made = (struct optimizer){
            .options = *o,
            .params = params,
            .kern = k,
            .team = t,
            .blocks = q_calloc(n ? n : 1, sizeof *made->blocks),
        };
    if (!made || !made->blocks) {
        optimizer_free(made);
        return q_fail(e, Q_NO_MEMORY, "optimiser: no memory for %zu sums", n);
    }
    *out = made;
    return Q_OK;
}

void optimizer_free(struct optimizer *o)
{
    if (o)
        q_free(o->blocks);
    q_free(o);
}

/* ---- norm ---- */

static void square_blocks(void *arg, uint32_t ith, uint32_t nth)
{
    const struct optimizer *o = arg;
    const struct kern_exec x = {.ith = ith, .nth = nth};
    double *sums = o->blocks;
    for (uint32_t i = 0; i < o->params->n; i++) {
        const struct param *p = &o->params->all[i];
        for (uint32_t j = 0; j < p->n_tensor; j++) {
            const struct param_tensor *t = &p->tensors[j];
            const struct sum_squares_args a = {
                .x = o->params->g + p->at + (size_t)t->row * p->n_col,
                .n = (size_t)t->n_row * t->n_col,
                .sums = sums,
            };
            o->kern->sum_squares(&a, &x);
            sums += blocks_of(t);
        }
    }
}

/* Of struct param in the sums: the embedding, the layers, the rest. */
static uint32_t place_of(const struct param *p, uint32_t n_layer)
{
    if (p->layer != PROGRAM_NO_LAYER)
        return 1 + p->layer;
    return p->weight == PROGRAM_W_EMBED || p->weight == PROGRAM_W_POSITIONS ? 0 : 1 + n_layer;
}

/* The sum of blocks, in their order. */
static double add_blocks(const double *block, size_t n)
{
    double sum = 0;
    for (size_t i = 0; i < n; i++)
        sum += block[i];
    return sum;
}

void optimizer_square_sums(struct optimizer *o, uint32_t n_layer, double *sums)
{
    memset(sums, 0, OPTIMIZER_SUMS(n_layer) * sizeof *sums);
    team_run(o->team, square_blocks, o);
    const double *block = o->blocks;
    for (uint32_t i = 0; i < o->params->n; i++) {
        const struct param *p = &o->params->all[i];
        for (uint32_t j = 0; j < p->n_tensor; j++) {
            const struct param_tensor *t = &p->tensors[j];
            if (!t->is_copy)
                sums[place_of(p, n_layer)] += add_blocks(block, blocks_of(t));
            block += blocks_of(t);
        }
    }
}

/* ---- update ---- */

static void update(void *arg, uint32_t ith, uint32_t nth)
{
    const struct optimizer *o = arg;
    const struct params *all = o->params;
    const struct kern_exec x = {.ith = ith, .nth = nth};
    for (uint32_t i = 0; i < all->n; i++) {
        const struct param *p = &all->all[i];
        const struct adamw_args a = {
            .w = all->w + p->at,
            .m = all->m + p->at,
            .v = all->v + p->at,
            .g = all->g + p->at,
            .n = size_of(p),
            .lr = optimizer_lr(&o->options, o->step),
            .beta1 = o->options.beta1,
            .beta2 = o->options.beta2,
            .eps = o->options.eps,
            .weight_decay = p->decays ? o->options.weight_decay : 0,
            .bias1 = 1 - pow(o->options.beta1, (double)o->update),
            .bias2 = 1 - pow(o->options.beta2, (double)o->update),
            .grad_scale = o->clip,
        };
        o->kern->adamw(&a, &x);
    }
}

void optimizer_step(struct optimizer *o, uint64_t step, uint64_t n_update, double norm)
{
    o->step = step;
    o->update = n_update;
    o->clip = optimizer_clip(&o->options, norm);
    team_run(o->team, update, o);
}
