/* SPDX-License-Identifier: Apache-2.0 */
/* Items on their way to the engine. Few bytes are encoded with their submit. Many are brought to
 * where they are sent from before, a piece an iteration of the loop, those of one generation at a
 * time: to shared memory that the submit names, or, for an engine on another machine, to the end of
 * the submit's own frame, which the socket then takes over without a copy.
 *
 *     item_block:   room | the submit's other fields | contents, written in pieces
 */
#include <inttypes.h>
#include <string.h>
#include <unistd.h>
#include "common/check.h"
#include "common/log.h"
#include "common/mem.h"
#include "frontend/link/link_internal.h"
#include "proto/socket.h"

#define ITEM_MEMORY_LEAST ((uint64_t)256 << 10) /* bytes; fewer go through the socket faster */
#define BLOCK_ROOM        64u /* bytes that the numbers of a submit may grow by until it is sent */

uint64_t generation_item_bytes(const struct generation *f)
{
    return f->items ? f->items->n_data * sizeof *f->items->data : 0;
}

static bool uses_memory(const struct link *l, const struct generation *f)
{
    return l->has_memory && !f->items_inline && generation_item_bytes(f) >= ITEM_MEMORY_LEAST;
}

static bool uses_block(const struct link *l, const struct generation *f)
{
    return !uses_memory(l, f) && generation_item_bytes(f) >= LINK_ITEMS_PIECE;
}

static bool is_large(const struct link *l, const struct generation *f)
{
    return uses_memory(l, f) || uses_block(l, f);
}

void link_put_items(const struct link *l, struct msg_submit *m, const struct generation *f)
{
    if (!f->items)
        return;
    item_wire_put(m, f->items);
    if (uses_block(l, f))
        m->item_data.data = NULL; /* appended */
    if (!uses_memory(l, f))
        return;
    m->item_data.n = 0;
    m->item_memory = (struct proto_str){f->item_memory, strlen(f->item_memory)};
    m->item_bytes = generation_item_bytes(f);
}

void generation_drop_items(struct link *l, struct generation *f)
{
    if (l->writing == f) {
        if (!f->item_block)
            close(l->writing_fd);
        l->writing = NULL;
    }
    q_free(f->item_block);
    f->item_block = NULL;
    item_memory_drop(f->item_memory);
    f->item_memory[0] = '\0';
    f->n_item_written = 0;
}

/* ---- before the submit ---- */

static void go_inline(struct link *l, struct generation *f, const struct q_err *why)
{
    log_warning("link: items go through the socket: %s", why->message);
    generation_drop_items(l, f);
    f->items_inline = true;
}

static FALLIBLE begin_block(struct link *l, struct generation *f, struct q_err *e)
{
    const uint64_t n_byte = generation_item_bytes(f);
    struct buf front = BUF_INIT;
    enum q_code rc = link_encode_submit(l, f, &front, e);
    if (!rc) {
        f->n_block_front = front.len + BLOCK_ROOM;
        f->item_block = q_alloc(sizeof *f->item_block + f->n_block_front + n_byte);
        if (!f->item_block)
            rc = q_fail(e, Q_NO_MEMORY, "items: out of memory for %" PRIu64 " bytes", n_byte);
    }
    buf_release(&front);
    return rc;
}

FALLIBLE link_begin_items(struct link *l, struct generation *f, bool *is_ready, struct q_err *e)
{
    struct q_err why = Q_ERR_INIT;
    enum q_code rc = Q_OK;
    *is_ready = !is_large(l, f) || f->n_item_written == generation_item_bytes(f);
    if (*is_ready || l->writing)
        return Q_OK;
    if (uses_memory(l, f) && item_memory_new(f->item_memory, &l->writing_fd, &why))
        go_inline(l, f, &why);
    if (uses_block(l, f))
        rc = begin_block(l, f, e);
    *is_ready = !is_large(l, f);
    if (!rc && !*is_ready)
        l->writing = f;
    return rc;
}

void link_write_items(struct link *l)
{
    struct generation *f = l->writing;
    struct q_err e = Q_ERR_INIT;
    if (!f)
        return;
    const uint64_t left = generation_item_bytes(f) - f->n_item_written;
    const size_t n = left < LINK_ITEMS_PIECE ? (size_t)left : LINK_ITEMS_PIECE;
    const char *from = (const char *)f->items->data + f->n_item_written;
    if (f->item_block) {
        memcpy(f->item_block->bytes + f->n_block_front + f->n_item_written, from, n);
    } else if (item_memory_write(l->writing_fd, from, n, f->n_item_written, &e)) {
        go_inline(l, f, &e);
        link_pump(l);
        return;
    }
    f->n_item_written += n;
    if (n < left)
        return;
    if (!f->item_block)
        close(l->writing_fd);
    l->writing = NULL;
    link_pump(l);
    Q_CHECK(link_check(l));
}

/* ---- the submit ---- */

/* The fields come right before the contents. */
static FALLIBLE give_block(struct link *l, struct generation *f, const struct buf *front,
                           struct q_err *e)
{
    struct socket_block *block = f->item_block;
    Q_ASSERT(f->n_item_written == generation_item_bytes(f));
    if (front->len > f->n_block_front)
        return q_fail(e, Q_INTERNAL, "submit: %zu bytes of fields, expected at most %zu",
                      front->len, f->n_block_front);
    block->start = f->n_block_front - front->len;
    block->n = front->len + f->n_item_written;
    memcpy(block->bytes + block->start, front->data, front->len);
    if (!l->give(l->send_ctx, block))
        return q_fail(e, Q_UNAVAILABLE, "there is no connection");
    f->item_block = NULL; /* the socket's */
    return Q_OK;
}

FALLIBLE link_send_submit(struct link *l, struct generation *f, struct q_err *e)
{
    struct buf b = BUF_INIT;
    enum q_code rc = link_encode_submit(l, f, &b, e);
    if (!rc && f->item_block)
        rc = give_block(l, f, &b, e);
    else if (!rc && !l->send(l->send_ctx, b.data, b.len))
        rc = q_fail(e, Q_UNAVAILABLE, "there is no connection");
    buf_release(&b);
    return rc;
}

/* ---- credit ---- */

static uint64_t open_item_bytes(const struct link *l)
{
    uint64_t n = 0;
    for (const struct generation *f = l->waiting.first; f; f = f->next)
        n += generation_item_bytes(f);
    for (const struct generation *f = l->running.first; f; f = f->next)
        n += generation_item_bytes(f);
    return n;
}

FALLIBLE link_check_items(const struct link *l, const struct generation *f, struct q_err *e)
{
    const uint64_t n = generation_item_bytes(f), credit = l->engine.item_credit;
    const size_t limit = l->has_memory ? LINK_ITEMS_MEMORY : LINK_ITEMS_FRAME;
    if (n > limit)
        return q_fail(e, Q_TOO_LARGE, "multi_modal_data: %" PRIu64 " bytes, expected at most %zu",
                      n, limit);
    if (!n || !credit)
        return Q_OK;
    if (n > credit)
        return q_fail(e, Q_TOO_LARGE,
                      "multi_modal_data: %" PRIu64 " bytes exceed the engine's memory for items, "
                      "%" PRIu64 " bytes (--mm-processor-cache-gb)",
                      n, credit);
    const uint64_t n_open = open_item_bytes(l);
    if (n > credit - (n_open < credit ? n_open : credit))
        return q_fail(e, Q_NO_SPACE,
                      "multi_modal_data: the items of open requests take %" PRIu64 " of %" PRIu64
                      " bytes (--mm-processor-cache-gb); retry later",
                      n_open, credit);
    return Q_OK;
}
