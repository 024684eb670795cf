/* SPDX-License-Identifier: Apache-2.0 */
/* The operations of lora.c for rows by tiles, whose adapters lie in slots: ops_lora.h. */
#include "kernels/variants.h"

struct tile_group { /* a tile as a group of lora_shrink and lora_expand */
    struct lora_factors factors;
    struct lora_group group;
};

static void make_group(struct tile_group *to, const struct lora_slots *s, uint32_t tile)
{
    const struct lora_row_tile *t = &s->tiles[tile];
    const unsigned char *slot = s->data + t->slot * s->bytes;
    const struct lora_slot_factors *f =
        (const struct lora_slot_factors *)(const void *)slot + s->product;
    to->factors = (struct lora_factors){.dtype = s->dtype, .n_in = f->n_in, .n_part = f->n_part};
    for (uint32_t i = 0; i < f->n_part; i++) {
        const struct lora_slot_part *p = &f->parts[i];
        to->factors.parts[i] =
            (struct lora_part){slot + p->a, slot + p->b, p->rank, p->col, p->n_out, p->scale};
    }
    to->group = (struct lora_group){&to->factors, s->rows + t->first, t->n_row};
}

void lora_shrink_grouped_ref(const struct lora_shrink_grouped_args *a, const struct kern_exec *x)
{
    for (uint32_t i = 0; i < a->of.n_tile; i++) {
        struct tile_group of;
        const struct lora_shrink_args one = {
            .t = a->t,
            .x = a->x,
            .x_dtype = a->x_dtype,
            .groups = &of.group,
            .n_group = 1,
            .x_stride = a->x_stride,
            .t_stride = a->t_stride,
        };
        if (!a->of.tiles[i].n_row)
            continue;
        make_group(&of, &a->of, i);
        lora_shrink_ref(&one, x);
    }
}

void lora_expand_grouped_ref(const struct lora_expand_grouped_args *a, const struct kern_exec *x)
{
    for (uint32_t i = 0; i < a->of.n_tile; i++) {
        struct tile_group of;
        const struct lora_expand_args one = {
            .y = a->y,
            .t = a->t,
            .groups = &of.group,
            .n_group = 1,
            .y_stride = a->y_stride,
            .t_stride = a->t_stride,
        };
        if (!a->of.tiles[i].n_row)
            continue;
        make_group(&of, &a->of, i);
        lora_expand_ref(&one, x);
    }
}
