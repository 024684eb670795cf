/* SPDX-License-Identifier: Apache-2.0 */
/* fingerprint - `system_fingerprint`: engines with the same fingerprint give the same tokens for
 * the same request.
 *
 * A hash over the weights' identity (sizes and headers of the safetensors files, and some bytes of
 * every tensor: hashing all data would take longer than loading, and checkpoints of one training
 * differ everywhere), config and tokenizer (hub_digest), the kernels in use, dtypes, rope length
 * and quire's version. Threads: reentrant. */
#ifndef QUIRE_ENGINE_CORE_FINGERPRINT_H
#define QUIRE_ENGINE_CORE_FINGERPRINT_H
#include "engine/worker/ring.h"

#define FINGERPRINT_MAX 24

/* out: "fp_" and 16 hex digits. changed: of weights that replaced others on disk (WEIGHTS_IDENTITY
 * _BYTES), which changes the fingerprint even where the bytes that it reads are the same; NULL: of
 * no such weights. Errors: Q_IO, those of hub_digest. */
FALLIBLE fingerprint_make(char out[FINGERPRINT_MAX], const struct worker_config *c,
                          const struct worker_info *info, const unsigned char *changed,
                          struct q_err *e);

#endif
