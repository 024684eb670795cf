/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/model/load/weight_source.h"

const char *weight_source_name(char buffer[ARCH_NAME_MAX], const struct weight_source *s)
{
    if (s->quant.q)
        return s->quant.q->name;
    if (s->tensor && s->tensor->name)
        return s->tensor->name;
    arch_tensor_name(buffer, s->spec->name, s->place);
    return buffer;
}
