/* SPDX-License-Identifier: Apache-2.0 */
/* The operations of adapters: sums of shrink in another order than the reference's, expand in the
 * same. */
#include "check.h"
#include "kernels/variants.h"

CUDA_CALL(lora_shrink_grouped)
CUDA_CALL(lora_expand_grouped)
REF_CALL(lora_shrink_grouped)
REF_CALL(lora_expand_grouped)

const struct cuda_check cuda_checks_lora[] = {
    {"lora_shrink_grouped", ref_lora_shrink_grouped, call_lora_shrink_grouped, 16,
     kcheck_lora_shrink_grouped, 20},
    {"lora_expand_grouped", ref_lora_expand_grouped, call_lora_expand_grouped, 0,
     kcheck_lora_expand_grouped, 20},
    {0},
};
