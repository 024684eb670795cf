/* SPDX-License-Identifier: Apache-2.0 */
#include "fake_cuda_memory.h"
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include "common/err.h"

#define PAGE 4096u

static struct piece {
    char *p;
    size_t n, size; /* asked for; whole pages */
    bool on_card;
} * pieces;
static uint32_t n_piece, n_room;
static uint64_t card_bytes;
static uint32_t depth; /* runs in progress: memory is open */

static void protect(const struct piece *m, bool open)
{
    Q_ASSERT(!mprotect(m->p, m->size, open ? PROT_READ | PROT_WRITE : PROT_NONE));
}

static void *add(size_t n, bool on_card, int access, int flags)
{
    const size_t size = (n + PAGE - 1) / PAGE * PAGE + PAGE;
    if (n_piece == n_room) {
        n_room = n_room ? 2 * n_room : 64;
        pieces = realloc(pieces, n_room * sizeof *pieces);
        Q_ASSERT(pieces);
    }
    char *p = mmap(NULL, size, access, MAP_PRIVATE | MAP_ANONYMOUS | flags, -1, 0);
    if (p == MAP_FAILED)
        return NULL;
    pieces[n_piece++] = (struct piece){p, n, size, on_card};
    card_bytes += on_card ? n : 0;
    return p;
}

void *memory_new(size_t n, bool on_card)
{
    void *p = add(n, on_card, PROT_READ | PROT_WRITE, 0);
    if (!p)
        return NULL;
    memset(p, 0xff, pieces[n_piece - 1].size); /* NaN */
    if (on_card && !depth)
        protect(&pieces[n_piece - 1], false);
    return p;
}

void *memory_new_untouched(size_t n, bool on_card)
{
    return on_card ? add(n, on_card, PROT_NONE, MAP_NORESERVE)
                   : add(n, on_card, PROT_READ | PROT_WRITE, 0);
}

/* The addresses stay reserved, so that a later use is seen. */
static void end(uint32_t i)
{
    struct piece *m = &pieces[i];
    protect(m, false);
    Q_ASSERT(!madvise(m->p, m->size, MADV_DONTNEED));
    card_bytes -= m->on_card ? m->n : 0;
    *m = pieces[--n_piece];
}

bool memory_free(void *p, bool on_card)
{
    for (uint32_t i = 0; i < n_piece; i++)
        if (pieces[i].p == p && pieces[i].on_card == on_card) {
            end(i);
            return true;
        }
    return false;
}

bool memory_has(const void *p, size_t n)
{
    const char *at = p;
    for (uint32_t i = 0; i < n_piece; i++)
        if (at >= pieces[i].p && at <= pieces[i].p + pieces[i].n)
            return n <= pieces[i].n - (size_t)(at - pieces[i].p);
    return false;
}

uint32_t memory_count(void)
{
    return n_piece;
}

uint64_t memory_card_bytes(void)
{
    return card_bytes;
}

void memory_open(bool open)
{
    depth = open ? depth + 1 : depth - 1;
    if (depth != open)
        return;
    for (uint32_t i = 0; i < n_piece; i++)
        if (pieces[i].on_card)
            protect(&pieces[i], open);
}
