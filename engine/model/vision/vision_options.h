/* SPDX-License-Identifier: Apache-2.0 */
/* vision_options - how images of a built-in model are served. Threads: values. */
#ifndef QUIRE_ENGINE_MODEL_VISION_VISION_OPTIONS_H
#define QUIRE_ENGINE_MODEL_VISION_VISION_OPTIONS_H
#include <stdbool.h>
#include "common/err.h"

#define VISION_PROCESSOR_MAX 1024u
struct vision_options {
    bool none; /* images are not served: no tower is loaded */
    /* JSON object whose members replace those of the processor's settings; "": none */
    char processor[VISION_PROCESSOR_MAX];
};
/* --mm-processor-kwargs. Errors: Q_INVALID (no JSON object, too long). */
FALLIBLE vision_options_processor(struct vision_options *o, const char *text, struct q_err *e);

#endif
