/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/grammar/source/ebnf.h"
#include <string.h>
#include "engine/grammar/source/gbnf.h"
#include "engine/grammar/source/lark.h"

const struct gx *ebnf_gx(struct build *b, const char *source, size_t n)
{
    bool gbnf = strstr(source, "::=") != NULL;
    return gbnf ? gbnf_gx(b, source, n) : lark_gx(b, source, n);
}
