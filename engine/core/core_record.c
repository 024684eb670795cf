/* SPDX-License-Identifier: Apache-2.0 */
/* The steps of --record: each is recorded when it is settled, with its result. */
#include <stdio.h>
#include <string.h>
#include "common/clock.h"
#include "common/log.h"
#include "engine/core/core_internal.h"

FALLIBLE core_record_open(struct core *c, struct q_err *e)
{
    const struct recorder_options *config = &c->config.record;
    return config->path ? recorder_new(&c->recorder, config, e) : Q_OK;
}

void core_record_begin(struct core *c)
{
    const struct recorder_options *config = &c->config.record;
    struct record_head head = {
        .version = RECORD_VERSION,
        .limits = c->info.limits,
        .n_block = c->info.n_block,
        .n_swap_block = c->info.n_swap_block,
        .vocab_size = c->info.shape.vocab_size,
        .max_model_len = c->info.shape.max_model_len,
        .unix_s = clock_unix(),
    };
    struct record_texts texts = {
        .model = config->model && *config->model ? config->model : c->config.worker.model_dir,
        .weights_dir = c->config.worker.weights_dir,
    };
    if (!c->recorder)
        return;
    while (head.n_option < config->n_option && head.n_option < RECORD_OPTIONS_MAX) {
        texts.options[head.n_option] = config->options[head.n_option];
        head.n_option++;
    }
    snprintf(head.fingerprint, sizeof head.fingerprint, "%s", c->info.fingerprint);
    snprintf(head.program, sizeof head.program, "%s", QUIRE_VERSION);
    recorder_begin(c->recorder, &head, &texts);
}

void core_record_worker(struct core *c)
{
    if (c->recorder)
        recorder_worker(c->recorder);
}

/* The items of each admission: its request's piece of the store is there until the step is settled.
 * Where all items are cached only the place of their table is in the admission. */
static void record_items(struct core *c, const struct step_view *v)
{
    const struct item_store *s = &c->items.store;
    for (uint32_t i = 0; i < v->head->n_admit && core_items_any(&c->items); i++) {
        const struct step_admit *a = &v->admits[i];
        const struct item_piece *p =
            a->n_item || a->item_offset ? item_store_at(s, a->item_offset) : NULL;
        if (!p)
            continue;
        const struct record_items head = {.offset = p->offset, .i_admit = i, .n_item = p->n_item};
        recorder_items(c->recorder, &head, (const void *)(s->memory + p->offset), s->memory);
    }
}

void core_record_step(struct core *c, const struct step_result *result)
{
    struct step_view v;
    struct q_err e = Q_ERR_INIT;
    if (!c->recorder || !recorder_runs(c->recorder))
        return;
    /* the worker shares this memory: it is checked again */
    if (step_view(&v, ring_result_step(c->ring), c->step_bytes, &c->info.limits, &e)) {
        log_warning("a step is not recorded: %s", e.message);
    } else {
        record_items(c, &v);
        recorder_step(c->recorder, &v, result);
    }
}
