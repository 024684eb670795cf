/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/grammar/source/ebnf.h"
#include <string.h>
#include "engine/grammar/source/gbnf.h"
#include "engine/grammar/source/lark.h"

const struct expr *ebnf_expr(struct build *b, const char *source, size_t n)
{
    bool gbnf = strstr(source, "::=") != NULL;
    return gbnf ? gbnf_expr(b, source, n) : lark_expr(b, source, n);
}
