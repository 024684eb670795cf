/* SPDX-License-Identifier: Apache-2.0 */
/* vllm - the flags of `vllm serve` (vllm_flags.def): which are options here, which have no effect,
 * which are refused, and why.
 * Threads: pure. */
#ifndef QUIRE_COMMON_VLLM_H
#define QUIRE_COMMON_VLLM_H
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include "common/err.h"

#define VLLM_VERSION "0.33.0" /* the flags' */

enum vllm_takes { VLLM_ON, VLLM_ONE, VLLM_MANY, VLLM_MAYBE, VLLM_JSON };
enum vllm_verdict { VLLM_SAME, VLLM_AS, VLLM_ACCEPTED, VLLM_REFUSED };

struct vllm_flag {
    const char *flag, *brief; /* "--tensor-parallel-size", "-tp" or "" */
    enum vllm_takes takes;
    enum vllm_verdict verdict;
    const char *arg, *why; /* vllm_flags.def */
    bool earlier;          /* older versions had it, VLLM_VERSION has not */
};
extern const struct vllm_flag vllm_flags[];
extern const size_t vllm_n_flag;

const struct vllm_flag *vllm_find(const char *flag);        /* NULL: none of vLLM's */
const struct vllm_flag *vllm_find_brief(const char *brief); /* "-tp"; NULL: none */
/* What the value of a named option is called here: vLLM's other names for it. */
const char *vllm_value(const char *flag, const char *value);
/* May the flag stand there with these words, to no effect? Those of an ON flag are true or false.
 * Errors: Q_UNSUPPORTED with the reason; Q_INVALID (no JSON object). */
FALLIBLE vllm_check(const struct vllm_flag *f, const char *const *words, size_t n, struct q_err *e);
/* The same for one member, "key" of "key.key". */
FALLIBLE vllm_check_member(const struct vllm_flag *f, const char *path, size_t n, struct q_err *e);
/* The whole table for people, in lines of at most `width` columns. is_option: is this flag an
 * option of `quire serve`, whatever the table says? */
void vllm_page(FILE *out, unsigned width, bool (*is_option)(const char *flag));

#endif
