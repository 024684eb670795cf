/* SPDX-License-Identifier: Apache-2.0 */
/* The invariants of a job while its choices are open. */
#include <string.h>
#include "frontend/api/job_internal.h"

static void check_choice(const struct job *j, uint32_t i)
{
    const struct choice *c = &j->choices[i];
    Q_ASSERT(c->job == j && c->index == i);
    Q_ASSERT(c->prompt == &j->prompts.items[i / j->width]);
    Q_ASSERT(c->i_stop >= -1 && c->i_stop < (int)j->n_stop);
    Q_ASSERT(c->n_told <= c->n_token && c->n_thought <= c->n_token);
    Q_ASSERT(c->finished == (c->finish != NULL));
    Q_ASSERT(!c->closed || c->finished);
    Q_ASSERT(!c->finished || !c->generation.list);
}

void job_check(const struct job *j)
{
    uint32_t n_closed = 0;
    Q_ASSERT(j->n_choice <= CHOICES_MAX && j->n_choice <= j->prompts.n * (size_t)j->width);
    Q_ASSERT(j->last_fingerprint <= strlen(j->fingerprints));
    for (uint32_t i = 0; i < j->n_choice && !j->ended; i++)
        check_choice(j, i);
    for (uint32_t i = 0; i < j->n_choice; i++) {
        n_closed += j->choices[i].closed;
        Q_ASSERT(!j->ended ||
                 !j->choices[i].generation.list); /* no generation is open after the response */
    }
    Q_ASSERT(n_closed == j->n_finished);
}
