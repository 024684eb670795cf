/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/model/load/load_options.h"

const char *quantization_name(enum quantization q)
{
    static const char *const names[] = {
        [QUANTIZE_NOT] = "",
        [QUANTIZE_INT8] = "int8",
        [QUANTIZE_INT4] = "int4",
        [QUANTIZE_FP8] = "fp8",
    };
    return names[q];
}
