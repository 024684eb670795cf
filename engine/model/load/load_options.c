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

enum weight_format load_format_files(enum load_format f)
{
    static const enum weight_format formats[] = {
        [LOAD_AUTO] = WEIGHTS_AUTO, [LOAD_SAFETENSORS] = WEIGHTS_SAFETENSORS,
        [LOAD_PT] = WEIGHTS_PT,     [LOAD_MISTRAL] = WEIGHTS_MISTRAL,
        [LOAD_GGUF] = WEIGHTS_GGUF, [LOAD_DUMMY] = WEIGHTS_AUTO,
    };
    return formats[f];
}
