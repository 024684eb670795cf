/* SPDX-License-Identifier: Apache-2.0 */
/* The content of a region of packed weights, as text and bytes: a line for each row of the plan and
 * for each of its sources, and a small matrix of each form that occurs, packed by the kernels that
 * pack the weights. The hash of both is the key of the packed cache, so that a changed layout
 * changes the key. */
#include "engine/model/load/packed_cache_key.h"
#include "engine/model/load/fill.h"
#include "engine/model/plugin/plugin_arch.h"

#define PROBE_OUT 80u  /* a whole panel and a part of one; whole interleaved parts */
#define PROBE_IN  256u /* two groups of 128 */

/* Codes and scales that count up. */
static void fill_codes(const struct packed *w)
{
    uint8_t q[PROBE_IN];
    float scales[PROBE_IN];
    int8_t parts[PROBE_IN];
    for (uint32_t k = 0; k < PROBE_IN; k++) {
        q[k] = (uint8_t)k;
        scales[k] = (float)k;
        parts[k] = (int8_t)(k % 64);
    }
    for (uint32_t o = 0; o < w->n_out; o++)
        kern_codes_set(w, o,
                       &(struct codes_output){q, scales, scales, parts, parts, scales, scales});
}

static FALLIBLE add_probe(struct buf *key, const struct packed *like, const struct kern_table *kern,
                          struct q_err *e)
{
    struct weight_source parts[2];
    struct load_row row = {.kind = KIND_MATRIX, .form = *like, .n_source = like->gated ? 2 : 1};
    const struct load_plan p = {.rows = &row, .n_row = 1, .sources = parts, .n_source = 2};
    struct region out = REGION_INIT;
    struct filler f = {
        .kern = kern,
        .n_thread = 1,
        .part_bytes = (size_t)KERN_PANEL * PROBE_IN * sizeof(float),
    };
    enum q_code rc;
    for (uint32_t i = 0; i < 2; i++)
        parts[i] = (struct weight_source){
            .present = true,
            .dtype = DT_F32,
            .rows = PROBE_OUT,
            .cols = PROBE_IN,
            .seed = 1,
        };
    row.form.n_out = row.n_source * PROBE_OUT;
    row.form.n_in = PROBE_IN;
    row.part.n = row.form.n_out;
    const size_t n = load_form_bytes(&row.form, NULL);
    if (!(rc = region_init(&f.buffer, f.part_bytes, "a packed probe", e)) &&
        !(rc = region_init(&out, n, "a packed probe", e))) {
        row.form.data = out.data;
        if (like->codes.kind)
            fill_codes(&row.form);
        else
            fill_host(&f, &p);
        buf_add(key, row.form.data, n);
    }
    region_release(&out);
    region_release(&f.buffer);
    return rc;
}

static bool same_form(const struct packed *a, const struct packed *b)
{
    return a->dtype == b->dtype && a->group == b->group && a->gated == b->gated &&
           a->blocks == b->blocks && memcmp(&a->codes, &b->codes, sizeof a->codes) == 0;
}

/* Has an earlier matrix the same form? */
static bool is_known(const struct load_plan *p, size_t i, const size_t *first, size_t n)
{
    bool known = false;
    for (size_t k = 0; k < n && !known; k++)
        known = same_form(&p->rows[first[k]].form, &p->rows[i].form);
    return known;
}

static void add_source(struct buf *key, const struct weight_source *s)
{
    char name[ARCH_NAME_MAX];
    const struct quant_tensors *q = &s->quant;
    if (!s->present) {
        buf_add_str(key, "  zeros\n");
        return;
    }
    buf_printf(key, "  %s [%u, %u] %s", weight_source_name(name, s), s->rows, s->cols,
               dtype_name(s->dtype));
    if (s->slice.block)
        buf_printf(key, " rows %u, %u of each %u", s->slice.first, s->slice.block, s->slice.stride);
    if (s->transposed)
        buf_add_str(key, " transposed");
    if (s->stacked)
        buf_printf(key, " of expert %u", s->place.expert);
    if (s->slice.pairs)
        buf_printf(key, " pairs of %u", s->slice.pairs);
    if (s->pad.head)
        buf_printf(key, " heads of %u in %u%s", s->pad.stored, s->pad.head,
                   s->pad.of_cols ? ", columns" : "");
    if (s->fade != 0)
        buf_printf(key, " times %.17g", s->fade);
    if (q->q)
        buf_printf(key, " %s%s %u bits, groups %u, blocks %u, zeros %d + %u, order %d",
                   quant_method_name(q->method), q->q->blocks ? q->q->blocks->name : "", q->bits,
                   q->group, q->row_block, q->zeros != NULL, q->zero_offset, q->order != NULL);
    buf_add_char(key, '\n');
}

static void add_row(struct buf *key, const struct load_plan *p, const struct load_row *r)
{
    char name[LOAD_NAME_MAX];
    const struct packed *w = &r->form;
    load_row_name(name, r);
    buf_printf(key, "%s [%u, %u] %s group %u gated %u blocks %u ordered %d place %d", name,
               w->n_out, w->n_in, dtype_name(w->dtype), w->group, w->gated, w->blocks, r->ordered,
               r->place);
    if (w->codes.kind)
        buf_printf(key, " codes %u scales %u min %u group %u ints %u", w->codes.kind,
                   w->codes.scales, w->codes.has_min, w->codes.group, w->codes.by_ints);
    if (r->place == PLACE_REGION)
        buf_printf(key, " at %zu, order at %zu, %zu bytes", r->at, r->order_at, r->bytes);
    buf_add_char(key, '\n');
    for (uint32_t i = 0; i < r->n_source; i++)
        add_source(key, load_plan_sources(p, r) + i);
}

FALLIBLE packed_cache_key(struct buf *out, const struct load_plan *p, const struct kern_table *kern,
                          struct q_err *e)
{
    size_t first[32], n = 0; /* rows with a form of their own; a form beyond is probed again */
    enum q_code rc = Q_OK;
    buf_printf(out, "%s%s%s, %zu bytes\n", p->arch->name, p->arch->plugin ? " of " : "",
               plugin_arch_text(p->arch->plugin), p->n_bytes);
    for (size_t i = 0; i < p->n_row && !rc; i++) {
        const struct load_row *r = &p->rows[i];
        add_row(out, p, r);
        if (r->kind != KIND_MATRIX || r->place != PLACE_REGION || is_known(p, i, first, n))
            continue;
        rc = add_probe(out, &r->form, kern, e);
        if (n < sizeof first / sizeof *first)
            first[n++] = i;
    }
    return rc ? rc : buf_check(out, "key of the packed weights", e);
}
