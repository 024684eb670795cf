/* SPDX-License-Identifier: Apache-2.0 */
/* packed_cache_key - what the packed cache's key is made of besides the tensors: all that decides
 * the bytes of a plan's region. Threads: pure. */
#ifndef QUIRE_ENGINE_MODEL_LOAD_PACKED_CACHE_KEY_H
#define QUIRE_ENGINE_MODEL_LOAD_PACKED_CACHE_KEY_H
#include "engine/model/load/load_plan.h"

/* The rows in words, then a small matrix of each form, as `kern` packs it. Errors: Q_NO_MEMORY. */
FALLIBLE packed_cache_key(struct buf *out, const struct load_plan *p, const struct kern_table *kern,
                          struct q_err *e);

#endif
