/* SPDX-License-Identifier: Apache-2.0 */
/* Structural tags and texts for them (grammar_texts.h); the first byte has the flags. */
#include "grammar_texts.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    if (n < 2 || n > TEXT_MAX)
        return 0;
    return try_grammar(GRAMMAR_TAGS, data[0], (const char *)data + 1, n - 1);
}
