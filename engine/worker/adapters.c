/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/worker/adapters.h"
#include "common/clock.h"
#include "common/log.h"
#include "common/mem.h"
#include "common/size_text.h"
#include "engine/model/lora/lora_device.h"

struct adapters {
    struct {
        uint32_t adapter; /* 0: free */
        struct lora *lora;
    } loaded[RING_ADAPTERS_MAX];
    struct lora_device *device; /* NULL: the CPU, or none was loaded */
    struct lora_seq *seqs;      /* [max_num_seqs] */
    uint32_t *rows;             /* [max_num_batched_tokens] */
    struct lora_batch batch;
};

enum dtype adapters_dtype(const struct worker_config *c, const struct model *m)
{
    return c->lora_dtype_auto ? model_shape(m)->compute_dtype : c->lora_dtype;
}

FALLIBLE adapters_new(struct adapters **out, const struct step_limits *limits, struct q_err *e)
{
    struct adapters *a = q_calloc(1, sizeof *a);
    if (a) {
        a->seqs = q_calloc(limits->max_num_seqs, sizeof *a->seqs);
        a->rows = q_calloc(limits->max_num_batched_tokens, sizeof *a->rows);
    }
    if (!a || !a->seqs || !a->rows) {
        adapters_free(a);
        return q_fail(e, Q_NO_MEMORY, "worker: out of memory for adapters");
    }
    *out = a;
    return Q_OK;
}

static void release(struct adapters *a, uint32_t i)
{
    if (a->device && a->loaded[i].lora)
        lora_device_remove(a->device, a->loaded[i].lora);
    lora_free(a->loaded[i].lora);
    a->loaded[i].lora = NULL;
    a->loaded[i].adapter = 0;
}

void adapters_free(struct adapters *a)
{
    if (!a)
        return;
    for (uint32_t i = 0; i < RING_ADAPTERS_MAX; i++)
        release(a, i);
    q_free(a->seqs);
    q_free(a->rows);
    q_free(a);
}

FALLIBLE adapters_load(struct adapters *a, const struct adapters_load *o, struct q_err *e)
{
    const struct worker_config *c = o->config;
    const int64_t start_ms = clock_ms();
    const struct lora_options options = {
        .dir = o->dir,
        .dtype = adapters_dtype(c, o->model),
        .rank_max = c->max_lora_rank,
    };
    uint32_t i = 0;
    adapters_drop(a, o->adapter);
    while (i < RING_ADAPTERS_MAX && a->loaded[i].adapter)
        i++;
    if (i == RING_ADAPTERS_MAX)
        return q_fail(e, Q_NO_SPACE, "%u adapters are in memory, which is the limit", i);
    enum q_code rc = lora_load(&a->loaded[i].lora, model_config(o->model), &options, e);
    if (!rc && o->device && (rc = lora_device_add(o->device, a->loaded[i].lora, e))) {
        lora_free(a->loaded[i].lora);
        a->loaded[i].lora = NULL;
    }
    if (rc)
        return rc;
    a->device = o->device;
    a->loaded[i].adapter = o->adapter;
    char size[SIZE_TEXT_MAX];
    log_info("loaded adapter %s: %s, %s, %lld ms", o->dir,
             size_text(size, (double)lora_bytes(a->loaded[i].lora)), dtype_name(options.dtype),
             (long long)(clock_ms() - start_ms));
    return Q_OK;
}

void adapters_drop(struct adapters *a, uint32_t adapter)
{
    for (uint32_t i = 0; i < RING_ADAPTERS_MAX; i++) {
        if (adapter && a->loaded[i].adapter == adapter)
            release(a, i);
    }
}

static const struct lora *find(const struct adapters *a, uint32_t adapter)
{
    for (uint32_t i = 0; a && i < RING_ADAPTERS_MAX; i++)
        if (a->loaded[i].adapter == adapter)
            return a->loaded[i].lora;
    return NULL;
}

FALLIBLE adapters_batch(struct adapters *a, const struct slots *s, const struct step_view *v,
                        struct batch *b, struct q_err *e)
{
    bool any = false;
    b->lora = NULL;
    for (uint32_t i = 0; i < v->head->n_seq; i++) {
        const uint32_t adapter = s->slots[v->seqs[i].slot].adapter;
        const struct lora *lora = adapter ? find(a, adapter) : NULL;
        if (adapter && !lora)
            return q_fail(e, Q_CORRUPT, "step %llu, sequence %u: adapter %u is not loaded",
                          (unsigned long long)v->head->step, i, adapter);
        any = any || lora;
        if (a)
            a->seqs[i] = (struct lora_seq){lora, b->seqs[i].row, b->seqs[i].n_query};
    }
    if (!a || !any)
        return Q_OK;
    b->lora = &a->batch;
    return lora_batch_make(&a->batch, a->rows, a->seqs, b->n_seq, e);
}
