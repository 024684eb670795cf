/* SPDX-License-Identifier: Apache-2.0 */
/* items - inputs of a request that are no tokens (actions, images, …): as they travel to an engine,
 * and as its worker finds them.
 *
 * A frontend knows no modality. It sends arrays with the name of their modality; the engine checks
 * them against its model, copies them into the item store (memory shared with its worker) and puts
 * a table of struct step_item in front of them. A step names the table of a sequence by its place
 * in the store.
 * Threads: values. */
#ifndef QUIRE_PROTO_ITEMS_H
#define QUIRE_PROTO_ITEMS_H
#include <stdbool.h>
#include "common/item_array.h"
#include "proto/item_memory.h"
#include "proto/proto.h"

#define ITEMS_MAX         65536u /* of one request */
#define ITEM_ALIGN        16u    /* contents in the store */
#define ITEM_DIMS_MAX     4u     /* of an item that a model takes */
#define ITEM_NAME_MAX     64u    /* bytes of a modality's name, with its NUL */
/* Contents of a request's items on the wire: all of them; a message of them where they go in
 * pieces, so that no other message waits for more than the pieces on their way. */
#define ITEM_BYTES_MAX    ((uint64_t)256 << 20)
#define ITEM_PIECE_BYTES  ((uint64_t)256 << 10)
#define ITEM_PIECES_AHEAD 4u /* sent and not received: 1 MiB */

/* The items of a submit, for its item_* fields. Ownership: item_wire_release. */
struct item_wire {
    struct buf names; /* each with its NUL */
    uint32_t *shapes; /* [n_shape] per item: number of its name, dtype, n_dim, dims */
    size_t n_shape;
    uint64_t *data; /* [n_data] contents, each from a multiple of 8 bytes on */
    size_t n_data;
};
/* clang-format off */
#define ITEM_WIRE_INIT {.names = BUF_INIT}
/* clang-format on */
FALLIBLE item_wire_make(struct item_wire *w, const struct item_array *items, uint32_t n,
                        struct q_err *e);
void item_wire_release(struct item_wire *w);
/* The fields of m; borrowed from w. */
void item_wire_put(struct msg_submit *m, const struct item_wire *w);

/* *n = items of m. Errors: Q_INVALID (more than ITEMS_MAX), Q_CORRUPT (fields that do not fit each
 * other). */
FALLIBLE item_wire_count(uint32_t *n, const struct msg_submit *m, struct q_err *e);
/* out: [n] of item_wire_count; names and contents are borrowed from m, or contents from data
 * [n_byte] if m->item_memory names them. Errors: Q_CORRUPT. */
FALLIBLE item_wire_read(struct item_array *out, uint32_t n, const struct msg_submit *m,
                        const void *data, size_t n_byte, struct q_err *e);

struct step_item {            /* an entry of a sequence's table, ascending by position */
    uint64_t offset, n_byte;  /* contents, in the store */
    uint32_t position;        /* of its first row in the prompt */
    uint32_t n_token;         /* rows */
    uint32_t modality, index; /* index: of the request's items of this modality */
    uint32_t dtype, n_dim, dims[ITEM_DIMS_MAX];
    uint64_t hash[4]; /* SHA-256 of modality, dtype, shape and contents */
};
struct step_item_limits {
    uint64_t store_bytes;
    uint32_t n_modality, n_prompt; /* n_prompt: rows end here at most */
};
/* Does every entry stay in the store and in the prompt? Errors: Q_CORRUPT. */
FALLIBLE step_items_check(const struct step_item *items, uint32_t n,
                          const struct step_item_limits *l, struct q_err *e);
/* The first item that ends behind `position`; n = none. O(log n). */
uint32_t step_items_from(const struct step_item *items, uint32_t n, uint32_t position);
/* Does a row at `position` belong to an item? *i_item walks along with ascending positions. */
static inline bool step_items_have(const struct step_item *items, uint32_t n, uint32_t *i_item,
                                   uint32_t position)
{
    while (*i_item < n && items[*i_item].position + items[*i_item].n_token <= position)
        ++*i_item;
    return *i_item < n && items[*i_item].position <= position;
}

/* The engine's own submit: its items are in the store, at `offset`. Overwrites what a frontend
 * sent. */
void step_items_put(struct msg_submit *m, const struct step_item *items, uint32_t n,
                    uint64_t offset);
/* n 0: none. */
const struct step_item *step_items_get(const struct msg_submit *m, uint32_t *n, uint64_t *offset);

#endif
