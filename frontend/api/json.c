/* SPDX-License-Identifier: Apache-2.0 */
#include "frontend/api/json.h"
#include <math.h>

void json_add_logprob(struct buf *out, float v)
{
    buf_printf(out, "%.9g", isfinite(v) ? (double)v : -9999.0);
}
