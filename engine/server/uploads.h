/* SPDX-License-Identifier: Apache-2.0 */
/* uploads - submits whose items arrive in pieces (item_piece of messages.def), until all are there.
 *
 *     submit in_pieces ─▶ uploads_begin ─▶ uploads_add … ─▶ uploads_take ─▶ the core
 *
 * An upload has the memory of its contents from the begin on, touched as they come. All of them
 * together have at most bytes_max: what a frontend promises to send is bounded before it sends it.
 * Threads: the server's loop. */
#ifndef QUIRE_ENGINE_SERVER_UPLOADS_H
#define QUIRE_ENGINE_SERVER_UPLOADS_H
#include <stdbool.h>
#include "common/buf.h"
#include "proto/items.h"

#define UPLOAD_SILENT_MS 30000 /* without a piece: the request ends */

struct upload {
    uint32_t frontend_id;
    uint64_t req_id;
    struct buf submit;       /* its frame */
    unsigned char *contents; /* [n_byte], n_have of them received; owned */
    uint64_t n_byte, n_have;
    int64_t began_ms, heard_ms;
    struct upload *next;
};
struct uploads {
    struct upload *first;
    uint64_t n_byte, bytes_max; /* of all */
};

struct upload_place {
    uint32_t frontend_id;
    const void *frame; /* [n] of the submit, copied */
    size_t n;
    int64_t now_ms;
};
/* Its shapes are checked and its memory is reserved. Errors: Q_CORRUPT (fields that do not fit each
 * other), Q_INVALID, Q_TOO_LARGE (never), Q_NO_SPACE (now), Q_NO_MEMORY. */
FALLIBLE uploads_begin(struct uploads *u, const struct msg_submit *m, const struct upload_place *p,
                       struct q_err *e);
/* NULL: there is none. */
struct upload *uploads_find(const struct uploads *u, uint32_t frontend_id, uint64_t req_id);
/* Errors: Q_CORRUPT (not the next bytes, or too many). */
FALLIBLE upload_add(struct upload *x, const struct msg_item_piece *m, int64_t now_ms,
                    struct q_err *e);
static inline bool upload_is_whole(const struct upload *x)
{
    return x->n_have == x->n_byte;
}
/* Take it out of the list; it is the caller's, for upload_free. */
void uploads_take(struct uploads *u, struct upload *x);
void upload_free(struct upload *x);
/* Drop one; false: there is none. Drop those of a frontend. */
bool uploads_drop(struct uploads *u, uint32_t frontend_id, uint64_t req_id);
void uploads_leave(struct uploads *u, uint32_t frontend_id);
/* The first one without a piece for UPLOAD_SILENT_MS; NULL: there is none. */
struct upload *uploads_silent(const struct uploads *u, int64_t now_ms);
void uploads_release(struct uploads *u);

#endif
