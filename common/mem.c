/* SPDX-License-Identifier: Apache-2.0 */
#include "common/mem.h"
#ifdef __GLIBC__
#include <malloc.h>
#endif
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define HUGE_PAGE       ((size_t)2 << 20) /* bytes; x86-64, and aarch64 with pages of 4 KiB */
#define ARENA_CHUNK_MIN 4096 /* bytes; doubles with the arena, which thus has few chunks */
#define ARENA_CHUNK_MAX (1u << 20)
#define ARENA_ALIGN     16

static atomic_int_least64_t fail_after = -1;
static atomic_bool fails_once;
static atomic_uint_least64_t n_alloc;
static _Thread_local bool frozen;
static _Thread_local uint64_t n_failure;

/* Counts one allocation; true when it must fail. */
static bool account(void)
{
    Q_ASSERT(!frozen);
    atomic_fetch_add_explicit(&n_alloc, 1, memory_order_relaxed);
    int64_t left = atomic_load_explicit(&fail_after, memory_order_relaxed);
    if (left < 0)
        return false;
    if (left == 0) {
        if (atomic_load_explicit(&fails_once, memory_order_relaxed))
            atomic_store_explicit(&fail_after, -1, memory_order_relaxed);
        return true;
    }
    atomic_store_explicit(&fail_after, left - 1, memory_order_relaxed);
    return false;
}

static void *counted(void *p)
{
    n_failure += !p;
    return p;
}

void *q_alloc(size_t n)
{
    return counted(account() ? NULL : malloc(n ? n : 1));
}

void *q_calloc(size_t n, size_t size)
{
    return counted(account() ? NULL : calloc(n ? n : 1, size ? size : 1));
}

void *q_realloc(void *p, size_t n)
{
    return counted(account() ? NULL : realloc(p, n ? n : 1));
}

void *q_alloc_huge(size_t n)
{
    void *p = NULL;
    if (n < HUGE_PAGE || n > SIZE_MAX - HUGE_PAGE)
        return q_alloc(n);
    if (account() || posix_memalign(&p, HUGE_PAGE, n))
        return counted(NULL);
    (void)madvise(p, n & ~(HUGE_PAGE - 1), MADV_HUGEPAGE); /* a wish */
    return p;
}

void *q_realloc_array(void *p, size_t n, size_t size)
{
    size_t bytes;
    if (__builtin_mul_overflow(n, size, &bytes))
        return NULL;
    return q_realloc(p, bytes);
}

char *q_strndup(const char *s, size_t n)
{
    char *copy = q_alloc(n + 1);
    if (!copy)
        return NULL;
    memcpy(copy, s, n);
    copy[n] = '\0';
    return copy;
}

char *q_strdup(const char *s)
{
    return q_strndup(s, strlen(s));
}

void q_free(void *p)
{
    free(p);
}

enum q_code q_grow(void *items_ptr, size_t *cap, size_t n_need, size_t size, size_t n_max,
                   struct q_err *e)
{
    if (n_need <= *cap)
        return Q_OK;
    if (n_need > n_max)
        return q_fail(e, Q_TOO_LARGE, "%zu items exceed the limit of %zu", n_need, n_max);
    size_t n = *cap ? *cap : 16;
    while (n < n_need)
        n = n > n_max / 2 ? n_max : n * 2;
    if (n > n_max)
        n = n_max;
    void *items;
    memcpy(&items, items_ptr, sizeof items);
    items = q_realloc_array(items, n, size);
    if (!items)
        return q_fail(e, Q_NO_MEMORY, "out of memory growing an array to %zu x %zu bytes", n, size);
    memcpy(items_ptr, &items, sizeof items);
    *cap = n;
    return Q_OK;
}

void alloc_freeze(void)
{
    frozen = true;
}

void alloc_thaw(void)
{
    frozen = false;
}

void mem_fail_after(int64_t n)
{
    atomic_store(&fails_once, false);
    atomic_store(&fail_after, n);
}

void mem_fail_once(int64_t n)
{
    atomic_store(&fails_once, true);
    atomic_store(&fail_after, n);
}

uint64_t mem_alloc_count(void)
{
    return atomic_load(&n_alloc);
}

uint64_t mem_failure_count(void)
{
    return n_failure;
}

enum q_code mem_check(uint64_t count_before, enum q_code rc, const char *what, struct q_err *e)
{
    if (n_failure == count_before)
        return rc;
    q_err_reset(e);
    return q_fail(e, Q_NO_MEMORY, "out of memory for %s", what);
}

void mem_trim(void)
{
#ifdef __GLIBC__
    malloc_trim(0);
#endif
}

struct arena_chunk {
    struct arena_chunk *next;
    size_t size, used; /* of data, bytes */
    _Alignas(ARENA_ALIGN) unsigned char data[];
};

static struct arena_chunk *chunk_new(struct arena *a, size_t need)
{
    size_t size = a->chunks ? a->chunks->size * 2 : ARENA_CHUNK_MIN;
    if (size > ARENA_CHUNK_MAX)
        size = ARENA_CHUNK_MAX;
    if (size < need)
        size = need;
    struct arena_chunk *c = q_alloc(sizeof *c + size);
    if (!c)
        return NULL;
    c->next = a->chunks;
    c->size = size;
    c->used = 0;
    a->chunks = c;
    return c;
}

void *arena_alloc(struct arena *a, size_t n)
{
    if (n > a->bytes_max)
        return NULL;
    n = (n + ARENA_ALIGN - 1) & ~(size_t)(ARENA_ALIGN - 1);
    if (n > a->bytes_max - a->used || a->used > a->bytes_max)
        return NULL;
    struct arena_chunk *c = a->chunks;
    if ((!c || c->size - c->used < n) && !(c = chunk_new(a, n)))
        return NULL;
    void *p = c->data + c->used;
    c->used += n;
    a->used += n;
    memset(p, 0, n);
    return p;
}

void *arena_alloc_array(struct arena *a, size_t n, size_t size)
{
    size_t bytes;
    return __builtin_mul_overflow(n, size, &bytes) ? NULL : arena_alloc(a, bytes);
}

char *arena_strndup(struct arena *a, const char *s, size_t n)
{
    char *p = arena_alloc(a, n + 1);
    if (p)
        memcpy(p, s, n);
    return p;
}

void arena_reset(struct arena *a)
{
    while (a->chunks && a->chunks->next) {
        struct arena_chunk *next = a->chunks->next;
        q_free(a->chunks);
        a->chunks = next;
    }
    if (a->chunks)
        a->chunks->used = 0;
    a->used = 0;
}

void arena_release(struct arena *a)
{
    arena_reset(a);
    q_free(a->chunks);
    a->chunks = NULL;
}
