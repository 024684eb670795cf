/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/server/uploads.h"
#include <inttypes.h>
#include <string.h>
#include "common/mem.h"

void upload_free(struct upload *x)
{
    buf_release(&x->submit);
    q_free(x->contents);
    q_free(x);
}

void uploads_take(struct uploads *u, struct upload *x)
{
    struct upload **at = &u->first;
    while (*at != x)
        at = &(*at)->next;
    *at = x->next;
    x->next = NULL;
    u->n_byte -= x->n_byte;
}

static void drop(struct uploads *u, struct upload *x)
{
    uploads_take(u, x);
    upload_free(x);
}

struct upload *uploads_find(const struct uploads *u, uint32_t frontend_id, uint64_t req_id)
{
    struct upload *x = u->first;
    while (x && (x->frontend_id != frontend_id || x->req_id != req_id))
        x = x->next;
    return x;
}

bool uploads_drop(struct uploads *u, uint32_t frontend_id, uint64_t req_id)
{
    struct upload *x = uploads_find(u, frontend_id, req_id);
    if (x)
        drop(u, x);
    return x != NULL;
}

void uploads_leave(struct uploads *u, uint32_t frontend_id)
{
    for (struct upload *x = u->first, *next; x; x = next) {
        next = x->next;
        if (x->frontend_id == frontend_id)
            drop(u, x);
    }
}

void uploads_release(struct uploads *u)
{
    while (u->first)
        drop(u, u->first);
}

struct upload *uploads_silent(const struct uploads *u, int64_t now_ms)
{
    struct upload *x = u->first;
    while (x && now_ms - x->heard_ms <= UPLOAD_SILENT_MS)
        x = x->next;
    return x;
}

static FALLIBLE check_size(const struct uploads *u, const struct msg_submit *m, struct q_err *e)
{
    if (!m->item_bytes || m->item_bytes % sizeof(uint64_t) || m->item_data.n || m->item_memory.n)
        return q_fail(e, Q_CORRUPT,
                      "submit: %" PRIu64 " bytes of items in pieces, expected a multiple of 8 and "
                      "no other contents",
                      m->item_bytes);
    if (!u->bytes_max)
        return q_fail(e, Q_INVALID, "multi_modal_data: the model has no modality");
    if (m->item_bytes > ITEM_BYTES_MAX || m->item_bytes > u->bytes_max)
        return q_fail(e, Q_TOO_LARGE,
                      "multi_modal_data: %" PRIu64 " bytes, expected at most %" PRIu64,
                      m->item_bytes, ITEM_BYTES_MAX < u->bytes_max ? ITEM_BYTES_MAX : u->bytes_max);
    if (m->item_bytes > u->bytes_max - u->n_byte)
        return q_fail(e, Q_NO_SPACE,
                      "multi_modal_data: the items that are being received take %" PRIu64
                      " of %" PRIu64 " bytes (--mm-processor-cache-gb); retry later",
                      u->n_byte, u->bytes_max);
    return Q_OK;
}

/* Do the shapes make item_bytes? The contents are not read. */
static FALLIBLE check_shapes(const struct msg_submit *m, const void *contents, struct q_err *e)
{
    uint32_t n = 0;
    enum q_code rc = item_wire_count(&n, m, e);
    struct item_array *items = rc ? NULL : q_calloc(n + 1, sizeof *items);
    if (!rc && !items)
        rc = q_fail(e, Q_NO_MEMORY, "submit: out of memory for %u items", n);
    if (!rc)
        rc = item_wire_read(items, n, m, contents, m->item_bytes, e);
    q_free(items);
    return rc;
}

FALLIBLE uploads_begin(struct uploads *u, const struct msg_submit *m, const struct upload_place *p,
                       struct q_err *e)
{
    enum q_code rc;
    if (uploads_find(u, p->frontend_id, m->req_id))
        return q_fail(e, Q_CORRUPT, "submit: the request exists already");
    if ((rc = check_size(u, m, e)))
        return rc;
    struct upload *x = q_calloc(1, sizeof *x);
    if (!x)
        return q_fail(e, Q_NO_MEMORY, "submit: out of memory for a request");
    *x = (struct upload){
        .frontend_id = p->frontend_id,
        .req_id = m->req_id,
        .submit = BUF_INIT,
        .contents = q_alloc(m->item_bytes),
        .n_byte = m->item_bytes,
        .began_ms = p->now_ms,
        .heard_ms = p->now_ms,
    };
    buf_add(&x->submit, p->frame, p->n);
    if (!x->contents)
        rc = q_fail(e, Q_NO_MEMORY, "submit: out of memory for %" PRIu64 " bytes of items",
                    m->item_bytes);
    else if (!(rc = buf_check(&x->submit, "submit", e)))
        rc = check_shapes(m, x->contents, e);
    if (rc) {
        upload_free(x);
        return rc;
    }
    x->next = u->first;
    u->first = x;
    u->n_byte += x->n_byte;
    return Q_OK;
}

FALLIBLE upload_add(struct upload *x, const struct msg_item_piece *m, int64_t now_ms,
                    struct q_err *e)
{
    if (m->offset != x->n_have || !m->data.n || m->data.n > ITEM_PIECE_BYTES ||
        m->data.n > x->n_byte - x->n_have)
        return q_fail(e, Q_CORRUPT,
                      "item_piece: %zu bytes at %" PRIu64 ", expected at most %" PRIu64
                      " at %" PRIu64 " of %" PRIu64,
                      m->data.n, m->offset, ITEM_PIECE_BYTES, x->n_have, x->n_byte);
    memcpy(x->contents + x->n_have, m->data.data, m->data.n);
    x->n_have += m->data.n;
    x->heard_ms = now_ms;
    return Q_OK;
}
