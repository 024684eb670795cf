/* SPDX-License-Identifier: Apache-2.0 */
/* stage - the layers of a pipeline stage. Threads: values. */
#ifndef QUIRE_ENGINE_DISTILL_STAGE_H
#define QUIRE_ENGINE_DISTILL_STAGE_H
#include <stdbool.h>
#include <stdint.h>

struct stage_layers { /* the first stage has the embedding, the last one the head */
    uint32_t first, n;
    bool has_embedding, has_head;
};

#endif
