/* SPDX-License-Identifier: Apache-2.0 */
/* item_store - memory that the engine fills with the items of its requests, and its worker reads.
 *
 *     | table, contents of a request | … | table, contents | free …
 *
 * One mapping of a memfd, made by the engine and inherited by each worker, so that steps name items
 * by their place, and a worker that replaces a crashed one finds them. The system gives pages when
 * they are first written and gets those of large pieces back. A piece belongs to one request. It is
 * given out again only when no step that may read it is in flight: its release is numbered with the
 * last planned step.
 * Threads: the core's owner. */
#ifndef QUIRE_ENGINE_CORE_ITEM_STORE_H
#define QUIRE_ENGINE_CORE_ITEM_STORE_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "common/err.h"

#define ITEM_STORE_ALIGN 64u

struct item_piece { /* ascending by offset, never overlapping */
    uint64_t offset, n_byte;
    uint64_t req_id;
    uint32_t frontend_id;
    uint32_t n_item; /* entries of its table */
    bool is_released;
    uint64_t released_at; /* step */
};
struct item_store {
    int fd;                /* -1: none */
    unsigned char *memory; /* [n_byte] shared */
    uint64_t n_byte, n_used;
    struct item_piece *pieces; /* [n_piece] */
    size_t n_piece, pieces_cap;
};
/* clang-format off */
#define ITEM_STORE_INIT {.fd = -1}
/* clang-format on */

/* Errors: Q_NO_MEMORY, Q_IO. */
FALLIBLE item_store_init(struct item_store *s, uint64_t n_byte, struct q_err *e);
void item_store_release(struct item_store *s);
struct item_owner {
    uint32_t frontend_id;
    uint64_t req_id;
};
struct item_need {
    uint64_t n_byte;
    uint32_t n_item;
    uint64_t settled; /* pieces released at or before this step are free */
};
/* A piece for this request, which has none. Errors: Q_TOO_LARGE (more than the store has),
 * Q_NO_SPACE (more than it has now), Q_NO_MEMORY. */
FALLIBLE item_store_add(struct item_store *s, uint64_t *offset, struct item_owner owner,
                        const struct item_need *need, struct q_err *e);
/* NULL: this request has none. */
const struct item_piece *item_store_find(const struct item_store *s, struct item_owner owner);
/* The piece that has the byte at `offset`, released or not; NULL: none. */
const struct item_piece *item_store_at(const struct item_store *s, uint64_t offset);
/* Nothing happens if it has none. step: the last planned one. */
void item_store_drop(struct item_store *s, struct item_owner owner, uint64_t step);
void item_store_drop_frontend(struct item_store *s, uint32_t frontend_id, uint64_t step);
uint64_t item_store_held(const struct item_store *s); /* bytes of pieces that are not released */
/* Assert every invariant. */
void item_store_check(const struct item_store *s);

#endif
