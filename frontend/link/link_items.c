/* SPDX-License-Identifier: Apache-2.0 */
/* Items on their way to the engine. Few bytes are encoded with their submit. Many go by themselves,
 * those of one generation at a time and a piece an iteration of the loop: before the submit, to
 * shared memory that it names; or behind it in messages of ITEM_PIECE_BYTES, if the engine is on
 * another machine. Of these at most ITEM_PIECES_AHEAD are on their way, which the engine says by
 * items_received: a message of another generation waits behind no more than that, whatever the
 * sockets could hold. */
#include <inttypes.h>
#include <string.h>
#include <unistd.h>
#include "common/check.h"
#include "common/log.h"
#include "common/mem.h"
#include "frontend/link/link_internal.h"

#define ITEM_MEMORY_LEAST ((uint64_t)256 << 10) /* bytes; fewer go through the socket faster */

uint64_t generation_item_bytes(const struct generation *f)
{
    return f->items ? f->items->n_data * sizeof *f->items->data : 0;
}

static bool uses_memory(const struct link *l, const struct generation *f)
{
    return l->has_memory && !f->items_inline && generation_item_bytes(f) >= ITEM_MEMORY_LEAST;
}

static bool uses_pieces(const struct link *l, const struct generation *f)
{
    return !uses_memory(l, f) && generation_item_bytes(f) > ITEM_PIECE_BYTES;
}

void link_put_items(const struct link *l, struct msg_submit *m, const struct generation *f)
{
    if (!f->items)
        return;
    item_wire_put(m, f->items);
    m->in_pieces = uses_pieces(l, f);
    if (uses_memory(l, f))
        m->item_memory = (struct proto_str){f->item_memory, strlen(f->item_memory)};
    else if (!m->in_pieces)
        return;
    m->item_data = (struct proto_words){NULL, 0};
    m->item_bytes = generation_item_bytes(f);
}

void generation_drop_items(struct link *l, struct generation *f)
{
    if (l->writing == f) {
        if (*f->item_memory)
            close(l->writing_fd);
        l->writing = NULL;
    }
    item_memory_drop(f->item_memory);
    f->item_memory[0] = '\0';
    f->n_item_written = f->n_item_received = 0;
}

/* ---- to shared memory, before the submit ---- */

static void go_inline(struct link *l, struct generation *f, const struct q_err *why)
{
    log_warning("link: items go through the socket: %s", why->message);
    generation_drop_items(l, f);
    f->items_inline = true;
}

bool link_begin_items(struct link *l, struct generation *f)
{
    struct q_err why = Q_ERR_INIT;
    if (uses_memory(l, f) && f->n_item_written == generation_item_bytes(f))
        return true;
    if (!uses_memory(l, f) && !uses_pieces(l, f))
        return true;
    if (l->writing)
        return false;
    if (uses_memory(l, f) && item_memory_new(f->item_memory, &l->writing_fd, &why))
        go_inline(l, f, &why);
    if (uses_memory(l, f))
        l->writing = f;
    return !l->writing;
}

static void write_memory(struct link *l, struct generation *f)
{
    struct q_err e = Q_ERR_INIT;
    const uint64_t left = generation_item_bytes(f) - f->n_item_written;
    const size_t n = left < LINK_ITEMS_PIECE ? (size_t)left : LINK_ITEMS_PIECE;
    const char *from = (const char *)f->items->data + f->n_item_written;
    if (item_memory_write(l->writing_fd, from, n, f->n_item_written, &e)) {
        go_inline(l, f, &e);
        link_pump(l);
        return;
    }
    f->n_item_written += n;
    if (n < left)
        return;
    close(l->writing_fd);
    l->writing = NULL;
    link_pump(l);
}

/* ---- in pieces, behind the submit ---- */

void link_follow_items(struct link *l, struct generation *f)
{
    if (!uses_pieces(l, f))
        return;
    Q_ASSERT(!l->writing && !f->n_item_written);
    l->writing = f;
    l->is_stuck = false;
}

static void send_piece(struct link *l, struct generation *f)
{
    struct q_err e = Q_ERR_INIT;
    struct buf b = BUF_INIT;
    const uint64_t left = generation_item_bytes(f) - f->n_item_written;
    const size_t n = left < ITEM_PIECE_BYTES ? (size_t)left : ITEM_PIECE_BYTES;
    const struct msg_item_piece m = {
        .req_id = f->wire_id,
        .offset = f->n_item_written,
        .data = {(const uint8_t *)f->items->data + f->n_item_written, n},
    };
    l->is_stuck = msg_item_piece_encode(&m, &b, &e) || !l->send(l->send_ctx, b.data, b.len);
    if (!l->is_stuck)
        f->n_item_written += n;
    buf_release(&b);
}

FALLIBLE link_items_received(struct link *l, const struct msg_items_received *m, struct q_err *e)
{
    struct generation *f = generation_by_wire_id(l, m->req_id);
    if (!f || f != l->writing)
        return Q_OK; /* an earlier submission */
    if (m->n_byte < f->n_item_received || m->n_byte > f->n_item_written)
        return q_fail(e, Q_CORRUPT,
                      "items_received: %" PRIu64 " bytes, expected %" PRIu64 " to %" PRIu64,
                      m->n_byte, f->n_item_received, f->n_item_written);
    f->n_item_received = m->n_byte;
    if (m->n_byte == generation_item_bytes(f)) {
        l->writing = NULL;
        link_pump(l); /* the next one's */
    }
    return Q_OK;
}

/* ---- both ---- */

bool link_may_write(const struct link *l)
{
    const struct generation *f = l->writing;
    if (!f || f->list == &l->waiting)
        return f != NULL;
    return !l->is_stuck && f->n_item_written < generation_item_bytes(f) &&
           f->n_item_written - f->n_item_received < ITEM_PIECES_AHEAD * ITEM_PIECE_BYTES;
}

void link_write_items(struct link *l)
{
    if (!link_may_write(l))
        return;
    if (l->writing->list == &l->waiting)
        write_memory(l, l->writing);
    else
        send_piece(l, l->writing);
    Q_CHECK(link_check(l));
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
    if (n > ITEM_BYTES_MAX)
        return q_fail(e, Q_TOO_LARGE,
                      "multi_modal_data: %" PRIu64 " bytes, expected at most %" PRIu64, n,
                      ITEM_BYTES_MAX);
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
