/* SPDX-License-Identifier: Apache-2.0 */
/* teacher_options - what a teacher is loaded by. Threads: values. */
#ifndef QUIRE_ENGINE_DISTILL_TEACHER_OPTIONS_H
#define QUIRE_ENGINE_DISTILL_TEACHER_OPTIONS_H
#include "common/team.h"
#include "engine/distill/attention_shape.h"
#include "engine/distill/head_weights.h"
#include "engine/distill/stage.h"
#include "engine/model/load/load_options.h"

struct teacher_options {
    const char *dir;
    const struct kern_table *kern;
    struct team *team;
    bool dtype_auto;  /* as the checkpoint has it */
    enum dtype dtype; /* F32, BF16, F16 */
    enum quantization quantization;
    struct stage_layers layers; /* of this rank */
    uint32_t n_row_max;         /* of a micro batch */
    bool keeps_hidden;          /* of a stage with the head: for teacher_source.hidden */
    /* Of the last layer, of a stage with the head: for teacher_source.attention; NULL: not asked
     * for. */
    const struct attention_shape *attention;
    struct tensor_group tensor_parallel;
};

#endif
