/* SPDX-License-Identifier: Apache-2.0 */
/* host_rows - quire_host's arithmetic on rows, for embed_item: the CPU's kernels on the calling
 * thread, whatever computes the steps. Threads: as engine/plugin.h. */
#ifndef QUIRE_ENGINE_MODEL_PLUGIN_HOST_ROWS_H
#define QUIRE_ENGINE_MODEL_PLUGIN_HOST_ROWS_H
#include "engine/plugin.h"

int host_linear(const struct quire_model *m, const char *matrix, const char *bias,
                const struct quire_rows *in, const struct quire_rows *out,
                struct quire_plugin_error *error);
int host_layer_norm(const struct quire_model *m, const char *weight, const char *bias, double eps,
                    const struct quire_rows *rows, struct quire_plugin_error *error);
int host_rms_norm(const struct quire_model *m, const char *weight, double eps,
                  const struct quire_rows *rows, struct quire_plugin_error *error);
int host_activate(const char *activation, const struct quire_rows *rows,
                  struct quire_plugin_error *error);
int host_attend(const struct quire_rows *q, const struct quire_rows *k, const struct quire_rows *v,
                double scale, const struct quire_rows *out, struct quire_plugin_error *error);
const float *host_tensor(const struct quire_model *m, const char *id, uint32_t layer,
                         uint32_t *n_row, uint32_t *n_col);

#endif
