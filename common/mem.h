/* SPDX-License-Identifier: Apache-2.0 */
/* mem - the only module that calls malloc.
 *
 * Three uses: q_alloc & co. for memory with an owner; `arena` for memory with the lifetime of one
 * request or one file load; alloc_freeze() for loops that must not allocate. Tests make the n-th
 * allocation fail with mem_fail_after, so every caller handles NULL.
 * Threads: q_* from any thread; an arena belongs to one thread at a time; freeze is per thread. */
#ifndef QUIRE_COMMON_MEM_H
#define QUIRE_COMMON_MEM_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "common/err.h"

/* As malloc, calloc, realloc, strdup, strndup: NULL when out of memory. q_calloc and
 * q_realloc_array check n * size for overflow. n == 0 gives a valid pointer. Released by q_free
 * (NULL is fine). */
__attribute__((malloc)) void *q_alloc(size_t n);
__attribute__((malloc)) void *q_calloc(size_t n, size_t size);
void *q_realloc(void *p, size_t n);
void *q_realloc_array(void *p, size_t n, size_t size);
__attribute__((malloc)) char *q_strdup(const char *s);
__attribute__((malloc)) char *q_strndup(const char *s, size_t n);
void q_free(void *p);
/* As q_alloc, on huge pages if available: for large tables with random access. */
__attribute__((malloc)) void *q_alloc_huge(size_t n);

/* Grow *items (of `size` bytes each) so that at least n_need fit, doubling *cap, never beyond n_max
 * items. Errors: Q_TOO_LARGE (n_need > n_max), Q_NO_MEMORY; both leave *items and *cap as they
 * were. */
FALLIBLE q_grow(void *items_ptr, size_t *cap, size_t n_need, size_t size, size_t n_max,
                struct q_err *e);

/* From now on q_alloc, q_calloc and q_realloc on this thread trip a Q_ASSERT. q_free remains
 * allowed. */
void alloc_freeze(void);
void alloc_thaw(void); /* at shutdown and in tests */

/* Tests: the n-th allocation from now (0 = the next) and all later ones return NULL; n < 0 switches
 * it off. */
void mem_fail_after(int64_t n);
void mem_fail_once(int64_t n);  /* likewise that one alone */
uint64_t mem_alloc_count(void); /* allocations since start, all threads */
/* For code with many allocations, all of which have to succeed: those of the calling thread that
 * found no memory until now; and rc, or if there were more since then Q_NO_MEMORY, in place of
 * whatever e has: "out of memory for WHAT". */
uint64_t mem_failure_count(void);
enum q_code mem_check(uint64_t count_before, enum q_code rc, const char *what, struct q_err *e);

/* Return freed memory to the system, e.g. after parsing a file with large temporary data. */
void mem_trim(void);

/* arena: memory with one lifetime, freed all at once. */
struct arena_chunk;
struct arena {
    struct arena_chunk *chunks; /* newest first */
    size_t used;                /* bytes handed out, all chunks */
    size_t bytes_max;           /* limit on used */
};
/* clang-format off */
#define ARENA_INIT(limit) {NULL, 0, (limit)}
/* clang-format on */
/* 16-byte aligned, zeroed. NULL if the limit or the machine's memory is exhausted. */
void *arena_alloc(struct arena *a, size_t n);
void *arena_alloc_array(struct arena *a, size_t n, size_t size);
char *arena_strndup(struct arena *a, const char *s, size_t n);
void arena_reset(struct arena *a);   /* free everything except one chunk, which is reused */
void arena_release(struct arena *a); /* free everything */

#endif
