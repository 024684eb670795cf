/* SPDX-License-Identifier: Apache-2.0 */
/* engine_options - from command-line options to the configuration of a core. Threads: start-up. */
#ifndef QUIRE_ENGINE_CORE_ENGINE_OPTIONS_H
#define QUIRE_ENGINE_CORE_ENGINE_OPTIONS_H
#include "common/options.h"
#include "engine/core/core.h"

/* Resolve the model (hub_resolve) and fill `c`. Errors: those of hub_resolve, Q_INVALID (load
 * format, dtype, KV dtype). */
FALLIBLE engine_options(struct core_config *c, const struct options *o, const char *model,
                        struct q_err *e);
/* "auto", "float32", "bfloat16", "float16" -> dtype; "auto", "safetensors", "pt", "mistral", "dummy" -> format.
 * Errors: Q_INVALID. */
FALLIBLE engine_dtype_parse(bool *is_auto, enum dtype *out, const char *text, struct q_err *e);
/* "auto" -> not given; "bfloat16", "float32", "int8" -> dtype. Errors: Q_INVALID. */
FALLIBLE engine_kv_dtype_parse(bool *is_given, enum dtype *out, const char *text, struct q_err *e);
/* "none", "" or "int8". Errors: Q_INVALID. */
FALLIBLE engine_quantization_parse(enum quantization *out, const char *text, struct q_err *e);
/* The same, or the method of the checkpoint in dir, as vLLM names it: then it is loaded unchanged.
 * Errors: Q_INVALID (also: it is of another method, which is named), those of model_config_load. */
FALLIBLE engine_quantization_option(enum quantization *out, const char *text, const char *dir,
                                    struct q_err *e);
FALLIBLE engine_format_parse(enum load_format *out, const char *text, struct q_err *e);

#endif
