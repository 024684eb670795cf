/* SPDX-License-Identifier: Apache-2.0 */
/* quire-worker with injected faults: it inspects each step before the real worker, and crashes on
 * sequences that contain the token FAULT_POISON. The token after it selects the fault:
 *
 *     FAULT_AT_ONCE   in every step with the sequence
 *     FAULT_DECODING  in steps that decode it, not in its prefill
 *     FAULT_HANGING   it does not die but never finishes the step */
#include "fault_worker.h"
#include <signal.h>
#include <unistd.h>
#include "engine/worker/ring.h"

#define SLOTS_MAX 256

bool __real_ring_step_wait(struct ring *r, void **step, void **result);
enum q_code __real_ring_ready(struct ring *r, struct worker_info *info, struct q_err *e);
bool __wrap_ring_step_wait(struct ring *r, void **step, void **result);
enum q_code __wrap_ring_ready(struct ring *r, struct worker_info *info, struct q_err *e);

static struct worker_info known;
static uint32_t faults[SLOTS_MAX]; /* of the sequence in the slot; 0 = it is healthy */

enum q_code __wrap_ring_ready(struct ring *r, struct worker_info *info, struct q_err *e)
{
    enum q_code rc = __real_ring_ready(r, info, e);
    known = *info;
    return rc;
}

static uint32_t fault_of(const uint32_t *tokens, uint32_t n)
{
    for (uint32_t i = 0; i + 1 < n; i++)
        if (tokens[i] == FAULT_POISON)
            return tokens[i + 1];
    return 0;
}

static void fail_for(uint32_t fault, const struct step_seq *q)
{
    bool decoding = q->n_token == 1 && !(q->flags & STEP_ADMIT);
    if (fault == FAULT_AT_ONCE || (fault == FAULT_DECODING && decoding))
        raise(SIGILL);
    while (fault == FAULT_HANGING)
        pause();
}

bool __wrap_ring_step_wait(struct ring *r, void **step, void **result)
{
    struct step_view v;
    if (!__real_ring_step_wait(r, step, result))
        return false;
    if (!*step || step_view(&v, *step, known.step_bytes, &known.limits, NULL))
        return true;
    const struct step_admit *admit = v.admits;
    const uint32_t *tokens = v.known;
    for (uint32_t i = 0; i < v.head->n_seq; i++) {
        const struct step_seq *q = &v.seqs[i];
        if (q->flags & STEP_ADMIT) {
            faults[q->slot] = fault_of(tokens, admit->n_known);
            tokens += admit++->n_known;
        }
        fail_for(faults[q->slot], q);
    }
    return true;
}
