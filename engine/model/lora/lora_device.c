/* SPDX-License-Identifier: Apache-2.0 */
/* An adapter's image is what a slot has of it: the factors of each product, whose a and b are bytes
 * from the begin of the slot, so that an image is the same for every slot; then the numbers as
 * lora_load laid them out. */
#include "engine/model/lora/lora_device.h"
#include <string.h>
#include "common/hub/config.h"
#include "common/mem.h"
#include "engine/model/lora/lora_internal.h"
#include "engine/model/region.h"

struct lora_slot {
    const struct lora *adapter; /* NULL: free */
    uint64_t used;              /* the last lora_device_place that had it */
};

struct lora_device {
    const struct device_link *link;
    struct region memory; /* [n_slot][slot_bytes] */
    size_t head_bytes, slot_bytes;
    enum dtype dtype;
    uint32_t n_slot;
    uint64_t n_place;
    struct lora_slot slots[LORA_GROUPS_MAX]; /* [n_slot] */
};

/* ---- images ---- */

static size_t head_bytes_of(uint32_t n_layer)
{
    const size_t n = (size_t)n_layer * LORA_PRODUCTS * sizeof(struct lora_slot_factors);
    return (n + 63) / 64 * 64;
}

static void write_head(struct lora_slot_factors *to, const struct lora *a, size_t head_bytes)
{
    for (size_t i = 0; i < (size_t)a->n_layer * LORA_PRODUCTS; i++) {
        const struct lora_factors *f = &a->factors[i];
        to[i] = (struct lora_slot_factors){.n_in = f->n_in, .n_part = f->n_part};
        for (uint32_t k = 0; k < f->n_part; k++) {
            const struct lora_part *p = &f->parts[k];
            to[i].parts[k] = (struct lora_slot_part){
                .a = head_bytes + (size_t)((const unsigned char *)p->a - a->data),
                .b = head_bytes + (size_t)((const unsigned char *)p->b - a->data),
                .rank = p->rank,
                .col = p->col,
                .n_out = p->n_out,
                .scale = p->scale,
            };
        }
    }
}

FALLIBLE lora_device_add(const struct lora_device *d, struct lora *a, struct q_err *e)
{
    const size_t n = d->head_bytes + a->n_byte;
    void *p;
    Q_ASSERT(!a->link && n <= d->slot_bytes);
    const enum q_code rc = d->link->t->host_alloc(d->link->d, &p, n, "an adapter", e);
    if (rc)
        return rc;
    memset(p, 0, d->head_bytes);
    write_head(p, a, d->head_bytes);
    memcpy((unsigned char *)p + d->head_bytes, a->data, a->n_byte);
    q_free(a->data);
    a->data = NULL;
    a->link = d->link;
    a->image = p;
    a->image_bytes = n;
    return Q_OK;
}

/* ---- slots ---- */

FALLIBLE lora_device_new(struct lora_device **out, const struct lora_device_args *a,
                         struct q_err *e)
{
    const struct lora_options o = {.dtype = a->dtype, .rank_max = a->rank_max};
    size_t factors;
    enum q_code rc = lora_most_bytes(&factors, a->config, &o, e);
    Q_ASSERT(a->n_slot && a->n_slot <= LORA_GROUPS_MAX);
    if (rc)
        return rc;
    struct lora_device *d = q_calloc(1, sizeof *d);
    if (!d)
        return q_fail(e, Q_NO_MEMORY, "out of memory for the adapters of a device");
    d->link = a->link;
    d->dtype = a->dtype;
    d->n_slot = a->n_slot;
    d->head_bytes = head_bytes_of(a->config->n_layer);
    d->slot_bytes = d->head_bytes + factors;
    rc = region_init_on(&d->memory, d->n_slot * d->slot_bytes, "adapters", d->link, e);
    if (rc) {
        (void)q_wrap(e, "%u slots of %zu bytes for adapters (--max-loras, --max-lora-rank)",
                     d->n_slot, d->slot_bytes);
        q_free(d);
        return rc;
    }
    *out = d;
    return Q_OK;
}

void lora_device_free(struct lora_device *d)
{
    if (!d)
        return;
    region_release(&d->memory);
    q_free(d);
}

uint64_t lora_device_bytes(const struct lora_device *d)
{
    return d->memory.size;
}

void lora_device_remove(struct lora_device *d, const struct lora *a)
{
    for (uint32_t i = 0; i < d->n_slot; i++)
        if (d->slots[i].adapter == a)
            d->slots[i] = (struct lora_slot){0};
}

/* n_slot: none. */
static uint32_t slot_of(const struct lora_device *d, const struct lora *a)
{
    uint32_t i = 0;
    while (i < d->n_slot && d->slots[i].adapter != a)
        i++;
    return i;
}

/* The slot that no step had for longest: not one of this step, which has no more adapters than
 * there are slots. */
static uint32_t oldest_slot(const struct lora_device *d)
{
    uint32_t found = 0;
    for (uint32_t i = 1; i < d->n_slot; i++)
        if (d->slots[i].used < d->slots[found].used)
            found = i;
    Q_ASSERT(d->slots[found].used < d->n_place);
    return found;
}

FALLIBLE lora_device_place(struct lora_device *d, const struct lora_batch *b, struct q_err *e)
{
    if (b->n_group > d->n_slot)
        return q_fail(e, Q_TOO_LARGE, "a step has %u adapters, the device has %u slots", b->n_group,
                      d->n_slot);
    d->n_place++;
    for (uint32_t i = 0; i < b->n_group; i++) {
        const uint32_t slot = slot_of(d, b->groups[i].adapter);
        if (slot < d->n_slot)
            d->slots[slot].used = d->n_place;
    }
    for (uint32_t i = 0; i < b->n_group; i++) {
        const struct lora *a = b->groups[i].adapter;
        if (slot_of(d, a) < d->n_slot)
            continue;
        const uint32_t slot = oldest_slot(d);
        d->slots[slot] = (struct lora_slot){a, d->n_place};
        d->link->t->copy(d->link->s, d->memory.data + slot * d->slot_bytes, a->image,
                         a->image_bytes);
    }
    return Q_OK;
}

/* ---- steps ---- */

uint32_t lora_device_n_tile(const struct lora_device *d, uint32_t n_row)
{
    return lora_tiles_max(n_row, d->n_slot);
}

void lora_device_tiles(const struct lora_device *d, const struct lora_batch *b, uint32_t n_row,
                       struct lora_row_tile *tiles, uint32_t *rows)
{
    const uint32_t n_tile = lora_device_n_tile(d, n_row);
    uint32_t n = 0, n_used = 0;
    for (uint32_t g = 0; b && g < b->n_group; g++) {
        const struct lora_rows *of = &b->groups[g];
        const uint32_t slot = slot_of(d, of->adapter);
        memcpy(rows + n_used, of->rows, of->n_row * sizeof *rows);
        for (uint32_t at = 0; at < of->n_row; at += KERN_LORA_ROWS) {
            const uint32_t left = of->n_row - at;
            Q_ASSERT(n < n_tile && slot < d->n_slot);
            tiles[n++] = (struct lora_row_tile){slot, n_used + at,
                                                left < KERN_LORA_ROWS ? left : KERN_LORA_ROWS};
        }
        n_used += of->n_row;
    }
    memset(tiles + n, 0, (n_tile - n) * sizeof *tiles);
}

struct lora_slots lora_device_slots(const struct lora_device *d, uint32_t n_row,
                                    const struct lora_row_tile *tiles, const uint32_t *rows)
{
    return (struct lora_slots){
        .data = d->memory.data,
        .bytes = d->slot_bytes,
        .dtype = d->dtype,
        .tiles = tiles,
        .rows = rows,
        .n_tile = lora_device_n_tile(d, n_row),
    };
}
