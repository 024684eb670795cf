/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/model/load/weight_source.h"
#include <math.h>
#include <stdio.h>

const char *weight_source_name(char buffer[ARCH_NAME_MAX], const struct weight_source *s)
{
    if (s->quant.q)
        return s->quant.q->name;
    if (s->tensor && s->tensor->name)
        return s->tensor->name;
    if (s->spec->name == ARCH_ONES)
        return "(ones)";
    arch_tensor_name(buffer, s->spec->name, s->place);
    return buffer;
}

float weight_source_made(const struct weight_source *s, uint32_t i)
{
    if (s->spec->name == ARCH_ZEROS)
        return 0;
    return s->spec->name == ARCH_RATES ? (float)(log(s->fade) - 8.0 * (i + 1) / s->rows * log(2))
                                       : 1;
}

const struct tensor *weight_source_head(const struct weight_source *s, uint32_t head)
{
    const char *first = s->tensor->name, *end = first + strlen(first);
    char name[ARCH_NAME_MAX], bare[ARCH_NAME_MAX];
    arch_tensor_name(name, s->spec->name, (struct arch_place){s->place.layer, 0});
    const size_t n_prefix = strlen(name) - (size_t)(end - first); /* that the files leave out */
    arch_tensor_name(bare, s->spec->name, (struct arch_place){s->place.layer, head});
    return tensor_find(s->files, bare + n_prefix);
}
