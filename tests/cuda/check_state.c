/* SPDX-License-Identifier: Apache-2.0 */
/* Operations with a state of each sequence, by the checks of tests/kcheck. */
#include "check.h"
#include "kernels/variants.h"

CUDA_CALL(state_conv)
CUDA_CALL(state_delta)
CUDA_CALL(state_scan)
REF_CALL(state_conv)
REF_CALL(state_delta)
REF_CALL(state_scan)

/* On a card expf and log1pf are its own, and every row of a sequence goes through the state. */
#ifdef QUIRE_CUDA_CARD
#define OF_EXP 512
#else
#define OF_EXP 0
#endif

const struct cuda_check cuda_checks_state[] = {
    {"state_conv", ref_state_conv, call_state_conv, 0, kcheck_state_conv, 40},
    {"state_delta", ref_state_delta, call_state_delta, OF_EXP, kcheck_state_delta, 30},
    {"state_scan", ref_state_scan, call_state_scan, OF_EXP, kcheck_state_scan, 40},
    {0},
};
