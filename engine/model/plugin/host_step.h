/* SPDX-License-Identifier: Apache-2.0 */
/* host_step - quire_host's functions for a plugin's own forward pass, which
 * forward/executor_cpu_own.c has. Threads: as engine/plugin.h. */
#ifndef QUIRE_ENGINE_MODEL_PLUGIN_HOST_STEP_H
#define QUIRE_ENGINE_MODEL_PLUGIN_HOST_STEP_H
#include "engine/plugin.h"

/* Members of struct quire_host without the prefix; engine/plugin.h is their contract. */
void host_barrier(const struct quire_step *s);
int host_step_embed(const struct quire_step *s, const struct quire_rows *out,
                    struct quire_plugin_error *error);
int host_step_linear(const struct quire_step *s, const char *matrix, uint32_t layer,
                     const struct quire_rows *in, const struct quire_rows *out,
                     struct quire_plugin_error *error);
int host_step_rms_norm(const struct quire_step *s, const char *weight, uint32_t layer,
                       const struct quire_rows *in, const struct quire_rows *out,
                       struct quire_plugin_error *error);
int host_step_rope(const struct quire_step *s, uint32_t n_head, const struct quire_rows *rows,
                   struct quire_plugin_error *error);
int host_step_attention(const struct quire_step *s, uint32_t layer, const struct quire_rows *qkv,
                        const struct quire_rows *out, struct quire_plugin_error *error);
float *host_step_buffer(const struct quire_step *s, uint32_t i);

#endif
