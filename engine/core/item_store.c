/* SPDX-License-Identifier: Apache-2.0 */
/* Pieces are few (one for a request with items), so a sorted array and the first gap that fits do.
 * Looking for a request is linear too: it happens once at the start and once at the end of one. */
#include "engine/core/item_store.h"
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include "common/mem.h"

#define PIECES_MAX ((size_t)1 << 22)
#define PAGE       4096u
#define GIVE_BACK  (1u << 20) /* bytes of a piece whose memory returns to the system */

FALLIBLE item_store_init(struct item_store *s, uint64_t n_byte, struct q_err *e)
{
    *s = (struct item_store)ITEM_STORE_INIT;
    s->fd = memfd_create("quire-items", MFD_CLOEXEC);
    if (s->fd < 0 || ftruncate(s->fd, (off_t)n_byte)) {
        enum q_code rc = q_fail(e, Q_IO, "items: cannot make shared memory of %llu bytes: %s",
                                (unsigned long long)n_byte, strerror(errno));
        item_store_release(s);
        return rc;
    }
    void *memory = mmap(NULL, n_byte, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, s->fd, 0);
    if (memory == MAP_FAILED) {
        item_store_release(s);
        return q_fail(e, Q_NO_MEMORY, "items: cannot map %llu bytes: %s",
                      (unsigned long long)n_byte, strerror(errno));
    }
    s->memory = memory;
    s->n_byte = n_byte;
    return Q_OK;
}

void item_store_release(struct item_store *s)
{
    if (s->memory)
        munmap(s->memory, s->n_byte);
    if (s->fd >= 0)
        close(s->fd);
    q_free(s->pieces);
    *s = (struct item_store)ITEM_STORE_INIT;
}

/* Pages that lie in the piece as a whole. */
static void give_back(const struct item_store *s, const struct item_piece *p)
{
    const uint64_t start = (p->offset + PAGE - 1) / PAGE * PAGE;
    const uint64_t end = (p->offset + p->n_byte) / PAGE * PAGE;
    if (p->n_byte >= GIVE_BACK && madvise(s->memory + start, end - start, MADV_REMOVE)) {
        /* the memory stays with the store, which is bounded */
    }
}

static void reclaim(struct item_store *s, uint64_t settled)
{
    size_t n_kept = 0;
    for (size_t i = 0; i < s->n_piece; i++) {
        const struct item_piece *p = &s->pieces[i];
        if (p->is_released && p->released_at <= settled) {
            give_back(s, p);
            s->n_used -= p->n_byte;
        } else {
            s->pieces[n_kept++] = *p;
        }
    }
    s->n_piece = n_kept;
}

/* The index of the piece behind the first gap of n_byte; *offset: where the gap begins. */
static bool find_gap(const struct item_store *s, uint64_t n_byte, size_t *at, uint64_t *offset)
{
    uint64_t end = 0;
    for (*at = 0; *at <= s->n_piece; ++*at) {
        const uint64_t next = *at < s->n_piece ? s->pieces[*at].offset : s->n_byte;
        *offset = end;
        if (next - end >= n_byte)
            return true;
        if (*at < s->n_piece)
            end = s->pieces[*at].offset + s->pieces[*at].n_byte;
    }
    return false;
}

FALLIBLE item_store_add(struct item_store *s, uint64_t *offset, struct item_owner owner,
                        const struct item_need *need, struct q_err *e)
{
    uint64_t n_byte = need->n_byte;
    size_t at;
    Q_ASSERT(n_byte && !item_store_find(s, owner));
    if (n_byte > s->n_byte)
        return q_fail(e, Q_TOO_LARGE,
                      "multi_modal_data: %llu bytes exceed the engine's memory for items, %llu "
                      "bytes (--mm-processor-cache-gb)",
                      (unsigned long long)n_byte, (unsigned long long)s->n_byte);
    n_byte = (n_byte + ITEM_STORE_ALIGN - 1) / ITEM_STORE_ALIGN * ITEM_STORE_ALIGN;
    reclaim(s, need->settled);
    enum q_code rc =
        q_grow(&s->pieces, &s->pieces_cap, s->n_piece + 1, sizeof *s->pieces, PIECES_MAX, e);
    if (rc)
        return rc;
    if (!find_gap(s, n_byte, &at, offset))
        return q_fail(e, Q_NO_SPACE,
                      "multi_modal_data: the engine's memory for items is full: %llu of %llu bytes "
                      "are in use (--mm-processor-cache-gb); retry later",
                      (unsigned long long)s->n_used, (unsigned long long)s->n_byte);
    memmove(&s->pieces[at + 1], &s->pieces[at], (s->n_piece++ - at) * sizeof *s->pieces);
    s->pieces[at] = (struct item_piece){
        .offset = *offset,
        .n_byte = n_byte,
        .req_id = owner.req_id,
        .frontend_id = owner.frontend_id,
        .n_item = need->n_item,
    };
    s->n_used += n_byte;
    return Q_OK;
}

static bool belongs(const struct item_piece *p, struct item_owner owner)
{
    return !p->is_released && p->frontend_id == owner.frontend_id && p->req_id == owner.req_id;
}

const struct item_piece *item_store_find(const struct item_store *s, struct item_owner owner)
{
    for (size_t i = 0; i < s->n_piece; i++)
        if (belongs(&s->pieces[i], owner))
            return &s->pieces[i];
    return NULL;
}

const struct item_piece *item_store_at(const struct item_store *s, uint64_t offset)
{
    for (size_t i = 0; i < s->n_piece; i++)
        if (offset >= s->pieces[i].offset && offset - s->pieces[i].offset < s->pieces[i].n_byte)
            return &s->pieces[i];
    return NULL;
}

void item_store_drop(struct item_store *s, struct item_owner owner, uint64_t step)
{
    for (size_t i = 0; i < s->n_piece; i++)
        if (belongs(&s->pieces[i], owner)) {
            s->pieces[i].is_released = true;
            s->pieces[i].released_at = step;
            return;
        }
}

void item_store_drop_frontend(struct item_store *s, uint32_t frontend_id, uint64_t step)
{
    for (size_t i = 0; i < s->n_piece; i++)
        if (!s->pieces[i].is_released && s->pieces[i].frontend_id == frontend_id) {
            s->pieces[i].is_released = true;
            s->pieces[i].released_at = step;
        }
}

uint64_t item_store_held(const struct item_store *s)
{
    uint64_t n = 0;
    for (size_t i = 0; i < s->n_piece; i++)
        n += s->pieces[i].is_released ? 0 : s->pieces[i].n_byte;
    return n;
}

void item_store_check(const struct item_store *s)
{
    uint64_t end = 0, n_used = 0;
    for (size_t i = 0; i < s->n_piece; i++) {
        const struct item_piece *p = &s->pieces[i];
        Q_ASSERT(p->n_byte && p->offset >= end && p->offset % ITEM_STORE_ALIGN == 0);
        end = p->offset + p->n_byte;
        n_used += p->n_byte;
        Q_ASSERT(end <= s->n_byte);
    }
    Q_ASSERT(n_used == s->n_used);
}
