/* SPDX-License-Identifier: Apache-2.0 */
/* vllm - the flags of `vllm serve` (vllm_flags.def): options, flags without effect, and rejected
 * flags with the reason.
 * Threads: pure. */
#ifndef QUIRE_COMMON_VLLM_H
#define QUIRE_COMMON_VLLM_H
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include "common/err.h"

#define VLLM_VERSION "0.33.0" /* the flags' */

enum vllm_takes {
    VLLM_ON,
    VLLM_ONE,   /* a text */
    VLLM_INT,   /* a whole number */
    VLLM_COUNT, /* the same with a unit: 32k, 16M */
    VLLM_NUM,   /* a number */
    VLLM_MANY,
    VLLM_MAYBE,
    VLLM_JSON,
};
enum vllm_verdict { VLLM_SAME, VLLM_AS, VLLM_ACCEPTED, VLLM_REFUSED };

struct vllm_flag {
    const char *flag, *brief; /* "--tensor-parallel-size", "-tp" or "" */
    enum vllm_takes takes;
    enum vllm_verdict verdict;
    const char *arg, *why; /* vllm_flags.def */
    bool earlier;          /* flag of older versions, not of VLLM_VERSION */
};
extern const struct vllm_flag vllm_flags[];
extern const size_t vllm_n_flag;

const struct vllm_flag *vllm_find(const char *flag);        /* NULL: not a vLLM flag */
const struct vllm_flag *vllm_find_brief(const char *brief); /* "-tp"; NULL: none */
/* quire's name of an option value that has another name in vLLM. */
const char *vllm_value(const char *flag, const char *value);
/* Check that the flag with these values is accepted without effect. Values of an ON flag are true
 * or false.
 * Errors: Q_INVALID (not a value of this kind); Q_UNSUPPORTED with the reason. */
FALLIBLE vllm_check(const struct vllm_flag *f, const char *const *words, size_t n, struct q_err *e);
/* The same for one member, "key" of "key.key". */
FALLIBLE vllm_check_member(const struct vllm_flag *f, const char *path, size_t n, struct q_err *e);
/* Print the table in lines of at most `width` columns. is_option: whether the flag is an option of
 * `quire serve`, which overrides the table. */
void vllm_page(FILE *out, unsigned width, bool (*is_option)(const char *flag));

#endif
