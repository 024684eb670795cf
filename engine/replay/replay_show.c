/* SPDX-License-Identifier: Apache-2.0 */
#include <inttypes.h>
#include <string.h>
#include "engine/replay/replay.h"

static void add_numbers(struct buf *out, const uint32_t *numbers, uint32_t n)
{
    buf_add_char(out, '[');
    for (uint32_t i = 0; i < n; i++)
        buf_printf(out, "%s%u", i ? ", " : "", numbers[i]);
    buf_add_char(out, ']');
}

static void add_copies(struct buf *out, const struct step_copy *copies, uint32_t n)
{
    buf_add_char(out, '[');
    for (uint32_t i = 0; i < n; i++)
        buf_printf(out, "%s[%u, %u]", i ? ", " : "", copies[i].block, copies[i].host);
    buf_add_char(out, ']');
}

/* The tokens that the step sampled for a slot. */
static void add_tokens(struct buf *out, const struct record_item *item, uint32_t slot)
{
    bool any = false;
    buf_add_char(out, '[');
    for (uint32_t i = 0; i < item->counts.n_row; i++) {
        const struct record_row *row = &item->rows[i];
        if (row->slot != slot || row->flags & (RECORD_PROMPT | RECORD_REJECTED))
            continue;
        buf_printf(out, "%s%u", any ? ", " : "", row->token);
        any = true;
    }
    buf_add_char(out, ']');
}

static void show_seq(const struct record_item *item, const struct step_seq *q,
                     const uint32_t *blocks, bool as_json, struct buf *out)
{
    const bool admits = q->flags & STEP_ADMIT;
    if (as_json)
        buf_printf(out, "{\"slot\": %u, \"admitted\": %s, \"start\": %u, \"rows\": %u, ", q->slot,
                   admits ? "true" : "false", q->start, q->n_token);
    else
        buf_printf(out, "    slot %u%s: rows %u to %u", q->slot, admits ? " (admitted)" : "",
                   q->start, q->start + q->n_token - 1);
    buf_add_str(out, as_json ? "\"blocks\": " : ", new blocks ");
    add_numbers(out, blocks, q->n_new_block);
    buf_add_str(out, as_json ? ", \"tokens\": " : ", tokens ");
    add_tokens(out, item, q->slot);
    buf_add_str(out, as_json ? "}" : "\n");
}

static void show_step(const struct record_item *item, bool as_json, struct buf *out)
{
    const struct step_head *h = item->view.head;
    const uint32_t *blocks = item->view.blocks;
    buf_printf(out,
               as_json ? "{\"step\": %" PRIu64 ", \"rows\": %u, \"admitted\": %u, \"sequences\": ["
                       : "step %" PRIu64 ": %u rows, %u sequences admitted\n",
               h->step, h->n_token, h->n_admit);
    for (uint32_t i = 0; i < h->n_seq; i++) {
        if (as_json && i)
            buf_add_str(out, ", ");
        show_seq(item, &item->view.seqs[i], blocks, as_json, out);
        blocks += item->view.seqs[i].n_new_block;
    }
    if (as_json || h->n_out || h->n_in) {
        buf_add_str(out, as_json ? "], \"to_swap\": " : "    to swap space ");
        add_copies(out, item->view.outs, h->n_out);
        buf_add_str(out, as_json ? ", \"from_swap\": " : ", from it ");
        add_copies(out, item->view.ins, h->n_in);
        buf_add_str(out, as_json ? "}\n" : "\n");
    }
}

static void show_adapter(const struct record_item *item, bool as_json, struct buf *out)
{
    const struct record_adapter *a = &item->adapter;
    if (!as_json) {
        buf_printf(out, "adapter %u is %s: %s, digest %s\n", a->number,
                   a->is_dropped ? "dropped" : "loaded", item->dir, a->digest);
        return;
    }
    buf_printf(out, "{\"adapter\": %u, \"loaded\": %s, \"digest\": ", a->number,
               a->is_dropped ? "false" : "true");
    buf_add_json_str(out, a->digest, strlen(a->digest));
    buf_add_str(out, ", \"folder\": ");
    buf_add_json_str(out, item->dir, strlen(item->dir));
    buf_add_str(out, "}\n");
}

void replay_show(const struct record_item *item, bool as_json, struct buf *out)
{
    if (item->kind == RECORD_STEP) {
        show_step(item, as_json, out);
    } else if (item->kind == RECORD_WORKER) {
        buf_add_str(out, as_json ? "{\"worker\": \"new\"}\n" : "a new worker\n");
    } else if (item->kind == RECORD_SLOT) {
        buf_printf(out,
                   as_json ? "{\"slot\": %u, \"tokens\": %u}\n"
                           : "slot %u was running, with %u tokens\n",
                   item->view.seqs[0].slot, item->view.admits[0].n_known);
    } else if (item->kind == RECORD_ADAPTER) {
        show_adapter(item, as_json, out);
    } else if (item->kind == RECORD_ITEMS) {
        buf_printf(out,
                   as_json ? "{\"items\": %u, \"admission\": %u}\n"
                           : "%u items of admission %u of the next step\n",
                   item->table.head.n_item, item->table.head.i_admit);
    } else if (as_json) {
        buf_add_str(out, "{\"end\": ");
        buf_add_json_str(out, item->reason, strlen(item->reason));
        buf_add_str(out, "}\n");
    } else {
        buf_printf(out, "end: %s\n", item->reason);
    }
}
