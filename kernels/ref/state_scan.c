/* SPDX-License-Identifier: Apache-2.0 */
/* The definition is the source of all variants: its loops say the order of every sum. */
#include "kernels/wide/state_scan.h"
#include "kernels/variants.h"

void state_scan_ref(const struct state_scan_args *a, const struct kern_exec *x)
{
    wide_state_scan(a, x);
}
