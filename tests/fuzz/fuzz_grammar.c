/* SPDX-License-Identifier: Apache-2.0 */
/* Sources of grammars and texts for them: the first byte is the kind (0x40: behind reasoning that
 * ends with "</t>"), then the source, a NUL, the text. What compiles is a program that the matcher takes, and forced bytes are accepted. */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include "common/mem.h"
#include "engine/grammar/grammar.h"
#include "engine/grammar/matcher.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    struct q_err e = Q_ERR_INIT;
    uint32_t *words = NULL, n_word = 0;
    struct matcher *m = NULL;
    char forced[64];
    if (n < 2 || n > 4096)
        return 0;
    const char *source = (const char *)data + 1;
    size_t n_source = strnlen(source, n - 1);
    uint32_t kind = (data[0] & 0x3F) % GRAMMAR_KINDS | (data[0] & 0x80 ? GRAMMAR_COMPACT : 0);
    const struct grammar_source from = {kind, source, n_source, "</t>", data[0] & 0x40 ? 4 : 0};
    enum q_code rc = grammar_compile(&words, &n_word, &from, &e);
    if ((rc != Q_OK) != (e.code != Q_OK) || (rc && !*e.message))
        abort();
    if (rc)
        return 0;
    if (matcher_new(&m, words, n_word, NULL, &e))
        abort();
    matcher_begin(m);
    matcher_config c = matcher_start(m);
    size_t n_forced = matcher_forced(m, c, forced, sizeof forced);
    if (!matcher_stuck(m) && n_forced && !matcher_bytes(m, c, forced, n_forced))
        abort();
    if (n_source + 1 < n)
        matcher_bytes(m, c, source + n_source + 1, n - n_source - 2);
    matcher_free(m);
    q_free(words);
    return 0;
}
