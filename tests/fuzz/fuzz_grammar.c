/* SPDX-License-Identifier: Apache-2.0 */
/* Sources of grammars of every kind, the first byte says which (grammar_texts.h); most inputs are
 * EBNF and choices, as schemas, patterns and tags have targets of their own. */
#include "grammar_texts.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    if (n < 2 || n > TEXT_MAX)
        return 0;
    return try_grammar((data[0] & 0x1F) % GRAMMAR_KINDS, data[0], (const char *)data + 1, n - 1);
}
