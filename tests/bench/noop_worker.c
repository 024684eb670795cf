/* SPDX-License-Identifier: Apache-2.0 */
/* noop_worker: speaks the ring like quire-worker and computes nothing, so that a benchmark sees the
 * engine alone. It has no weights and no KV; a token is a function of seed and position. Built for
 * tests/bench only and never installed; an engine starts it only when its core_config names it as
 * worker_program, which no option of any program does. */
#include "noop_worker.h"
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include "common/clock.h"
#include "common/mem.h"
#include "engine/worker/ring.h"

static uint64_t seeds[STEP_SEQS_MAX]; /* by slot */

static FALLIBLE begin(struct ring *r, struct worker_info *info, struct q_err *e)
{
    const struct worker_config *c = ring_config(r);
    *info = (struct worker_info){
        .shape =
            {
                .vocab_size = NOOP_VOCAB,
                .hidden_size = 1,
                .n_layer = 1,
                .n_kv_head = 1,
                .n_head = 1,
                .head_dim = 1,
                .max_model_len = NOOP_LEN_MAX,
                .compute_dtype = DT_F32,
                .kv_dtype = DT_F32,
                .n_param = 1,
            },
        .limits =
            {
                .max_num_seqs = c->max_num_seqs,
                .max_num_batched_tokens = c->max_num_batched_tokens,
                .max_model_len = NOOP_LEN_MAX,
                .logit_rows_max = c->max_num_seqs,
                .known_max = NOOP_LEN_MAX + c->max_num_batched_tokens,
            },
        .n_block = c->n_block,
        .n_thread = 1,
        .kernels = "none",
    };
    return ring_ready(r, info, e);
}

static FALLIBLE answer(const struct worker_info *info, void *step, void *result, struct q_err *e)
{
    struct step_view v;
    struct step_result out;
    int64_t start_us = clock_us();
    enum q_code rc;
    if ((rc = step_view(&v, step, info->step_bytes, &info->limits, e)) ||
        (rc = step_result_layout(&out, result, info->result_bytes, v.head->n_logit, 0, e)))
        return rc;
    const struct step_admit *admit = v.admits;
    uint32_t n_row = 0;
    for (uint32_t i = 0; i < v.head->n_seq; i++) {
        const struct step_seq *q = &v.seqs[i];
        uint32_t position = q->start + q->n_token;
        if (q->flags & STEP_ADMIT)
            seeds[q->slot] = admit++->params.seed;
        if (q->flags & STEP_SAMPLE)
            out.rows[n_row++] = (struct step_row){
                .slot = q->slot,
                .position = position,
                .token = noop_token(seeds[q->slot], position),
            };
    }
    out.head->step = v.head->step;
    out.head->error = Q_OK;
    out.head->start_us = start_us;
    out.head->forward_us = 0;
    out.head->total_us = (uint32_t)(clock_us() - start_us);
    return Q_OK;
}

int main(int argc, char **argv)
{
    struct q_err e = Q_ERR_INIT;
    struct ring *ring = NULL;
    struct worker_info info;
    int memory_fd, event_fd;
    void *step, *result;
    prctl(PR_SET_PDEATHSIG, 9);
    if (argc != 2 || sscanf(argv[1], "%d,%d", &memory_fd, &event_fd) != 2) {
        fprintf(stderr, "noop_worker: a benchmark starts it\n");
        return 2;
    }
    enum q_code rc = ring_open(&ring, memory_fd, event_fd, &e);
    if (!rc)
        rc = begin(ring, &info, &e);
    while (!rc && ring_step_wait(ring, &step, &result)) {
        rc = answer(&info, step, result, &e);
        ring_step_done(ring);
    }
    if (rc)
        fprintf(stderr, "noop_worker: %s\n", e.message);
    ring_free(ring);
    return rc != Q_OK;
}
