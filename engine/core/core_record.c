/* SPDX-License-Identifier: Apache-2.0 */
/* The steps of --record: each is recorded when it is settled, with its result. */
#include <stdio.h>
#include <string.h>
#include "common/clock.h"
#include "common/log.h"
#include "engine/core/core_internal.h"

static FALLIBLE refused(const char *what, struct q_err *e)
{
    return q_fail(e, Q_UNSUPPORTED, "--record: steps with %s are not recorded yet", what);
}

/* What a step refers to and the file does not hold. */
static const char *not_recorded(const struct core *c)
{
    if (core_items_any(&c->items))
        return "inputs that are no tokens";
    if (c->config.adapters.max_loras)
        return "LoRA adapters (--enable-lora)";
    if (c->config.worker.speculation.method == SPECULATE_DRAFT)
        return "draft models (--speculative-config)";
    return NULL;
}

FALLIBLE core_record_open(struct core *c, struct q_err *e)
{
    const struct recorder_options *config = &c->config.record;
    if (!config->path)
        return Q_OK;
    const char *what = not_recorded(c);
    return what ? refused(what, e) : recorder_new(&c->recorder, config, e);
}

FALLIBLE core_record_check(const struct core *c, struct q_err *e)
{
    return c->recorder && c->info.limits.n_state
               ? refused("models that have a state of each sequence", e)
               : Q_OK;
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

void core_record_step(struct core *c, const struct step_result *result)
{
    struct step_view v;
    struct q_err e = Q_ERR_INIT;
    if (!c->recorder || !recorder_runs(c->recorder))
        return;
    /* the worker shares this memory: it is checked again */
    if (step_view(&v, ring_result_step(c->ring), c->step_bytes, &c->info.limits, &e))
        log_warning("a step is not recorded: %s", e.message);
    else
        recorder_step(c->recorder, &v, result);
}
