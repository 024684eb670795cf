/* SPDX-License-Identifier: Apache-2.0 */
/* grammar_texts - what the fuzz targets of grammars have in common: a source, a NUL, a text for it.
 * What compiles is a program that the matcher takes, forced bytes are accepted, and masks have the
 * tokens that the matcher takes. Threads: one. */
#ifndef QUIRE_TESTS_FUZZ_GRAMMAR_TEXTS_H
#define QUIRE_TESTS_FUZZ_GRAMMAR_TEXTS_H
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include "common/mem.h"
#include "engine/grammar/grammar.h"
#include "engine/grammar/matcher/matcher.h"

#define TEXT_MAX 4096u /* of an input */
#define WORK_MAX 6000u /* of compiling and of a mask: what is slow by design is cut short */

/* Every byte, and pieces that cut texts at awkward places. */
static inline const struct trie *vocabulary(void)
{
    static const char *const pieces[] = {"\xc3",   "\xa9x",
                                         "{\"",    "\": ",
                                         "\",",    "\"}",
                                         "}}",     "a\":",
                                         "[[",     "1]",
                                         "12",     "-1",
                                         ".5",     "true",
                                         "\\u",    "00",
                                         "\n ",    "xx",
                                         "xxxx",   "<f>",
                                         "</",     "abc",
                                         "b\"",    "\xff</t>\xff",
                                         "k</t>{", "ab ab ab ab ab ab ab"};
    static struct trie t;
    char text[1024];
    uint32_t at[512], n = 0, used = 0;
    struct q_err e = Q_ERR_INIT;
    if (t.nodes)
        return &t;
    for (uint32_t i = 0; i < 256 + sizeof pieces / sizeof *pieces; i++) {
        char byte[2] = {(char)i, 0};
        const char *piece = i < 256 ? byte : pieces[i - 256];
        size_t length = i < 256 ? 1 : strlen(piece);
        at[n++] = used;
        memcpy(text + used, piece, length);
        used += (uint32_t)length;
    }
    at[n] = used;
    if (trie_init(&t, text, at, n, &e))
        abort();
    return &t;
}

static inline void check_mask(struct matcher *m, const struct trie *t, matcher_config c)
{
    uint32_t bits[16] = {0};
    if (!c || !matcher_mask(m, c, bits))
        return;
    for (uint32_t id = 0; id < t->n_vocab; id++) {
        bool takes = matcher_token(m, c, id) != 0;
        if (!matcher_stuck(m) && takes != (bits[id / 32] >> id % 32 & 1))
            abort();
    }
}

/* kind: a grammar_kind; flags 0x80: compact, 0x40: behind reasoning (an end, tags of ours, or what
 * stands behind the source as tags, by n), 0x20: spaced. */
static inline int try_grammar(uint32_t kind, uint8_t flags, const char *source, size_t n)
{
    struct q_err e = Q_ERR_INIT;
    uint32_t *words = NULL, n_word = 0;
    struct matcher *m = NULL;
    char forced[64];
    size_t n_source = strnlen(source, n);
    kind |= (flags & 0x80 ? GRAMMAR_COMPACT : 0) | (flags & 0x20 ? GRAMMAR_SPACED : 0);
    const uint32_t limit = n % 32 ? WORK_MAX : WORK_MAX * 16;
    static const char tags[] = "<f>\0</t>\0\xff</t>\xff\0";
    bool ours = n % 3 == 1;
    const struct grammar_source from = {
        .kind = kind,
        .text = source,
        .n = n_source,
        .after = "</t>",
        .n_after = flags & 0x40 && n % 3 == 0 ? 4 : 0,
        .tags = ours ? tags : source + n_source,
        .n_tags = !(flags & 0x40) || n % 3 == 0 ? 0
                  : ours                        ? sizeof tags
                                                : n - n_source,
        .work_max = limit,
    };
    enum q_code rc = grammar_compile(&words, &n_word, &from, &e);
    if ((rc != Q_OK) != (e.code != Q_OK) || (rc && !*e.message))
        abort();
    if (rc)
        return 0;
    const struct trie *t = vocabulary();
    if (matcher_new(&m, words, n_word, t, &e))
        abort();
    matcher_limit(m, limit);
    matcher_begin(m);
    matcher_config c = matcher_start(m);
    size_t n_forced = matcher_forced(m, c, forced, sizeof forced);
    if (!matcher_stuck(m) && n_forced && !matcher_bytes(m, c, forced, n_forced))
        abort();
    check_mask(m, t, c);
    for (size_t i = n_source + 1; i < n && i < n_source + 50 && c; i += 24) {
        matcher_begin(m);
        c = matcher_bytes(m, matcher_start(m), source + n_source + 1, i - n_source);
        check_mask(m, t, c);
    }
    matcher_free(m);
    q_free(words);
    return 0;
}

#endif
