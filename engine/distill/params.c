/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/distill/params.h"
#include <string.h>
#include "common/mem.h"

struct param *params_find(const struct params *p, enum program_weight w, uint32_t layer)
{
    for (uint32_t i = 0; i < p->n; i++)
        if (p->all[i].weight == w && p->all[i].layer == layer)
            return &p->all[i];
    return NULL;
}

void params_zero_gradients(struct params *p)
{
    memset(p->g, 0, p->n_element * sizeof *p->g);
}

void params_release(struct params *p)
{
    q_free(p->all);
    q_free(p->w);
    q_free(p->g);
    q_free(p->m);
    q_free(p->v);
    *p = (struct params)PARAMS_INIT;
}
