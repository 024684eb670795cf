/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include "common/log.h"
#include "common/size_text.h"
#include "engine/model/load/load_plan.h"
#include "engine/model/load/weight_fp8.h"

#define GROUP_MAX 128u /* inputs that share a scale: kern_int4_group */

struct counts {
    /* matrices */
    uint32_t n_by_group[GROUP_MAX + 1]; /* of integers; 0: int8 */
    uint32_t n_int8_by_why[WHY_COUNT];
    uint32_t n_ordered, n_float;
    /* sources of matrices, which have a tensor each */
    uint32_t n_kept, n_blocks; /* as the checkpoint has them: a scale an output, scales of blocks */
    uint32_t n_made, n_from_float;  /* made e4m3 of other blocks, of floats */
    uint32_t n_left;                /* floats or integers */
    uint32_t n_x_scale, n_x_unused; /* whose inputs the checkpoint has a scale for: used, or not */
    /* blocks of a GGUF file that become floats: matrices, and bytes there and in memory */
    uint32_t n_blocks_made;
    uint64_t block_bytes, made_bytes;
    uint32_t n_code; /* matrices that stay in the checkpoint's own 4 or 8 bits */
    uint64_t code_bytes, n_code_number;
};

static void count_source(struct counts *n, const struct packed *form, const struct weight_source *s)
{
    uint32_t *which = form->dtype != DT_F8_E4M3 ? &n->n_left
                      : !s->quant.q             ? &n->n_from_float
                      : form->blocks            ? &n->n_blocks
                      : weight_fp8_is_plain(s)  ? &n->n_kept
                                                : &n->n_made;
    ++*which;
    if (s->quant.q && s->quant.has_x_scale)
        ++*(form->x_scale > 0 ? &n->n_x_scale : &n->n_x_unused);
}

static void count_blocks(struct counts *n, const struct load_row *r, const struct weight_source *s)
{
    const struct quant_tensors *q = &s->quant;
    if (!s->present || !q->q || q->method != QUANT_GGUF || r->form.dtype == DT_I8 ||
        r->form.codes.kind)
        return;
    n->n_blocks_made++;
    n->block_bytes += (uint64_t)s->rows * q->n_group * q->q->blocks->bytes;
    n->made_bytes += (uint64_t)s->rows * s->cols * (dtype_bits(r->form.dtype) / 8);
}

static void count_row(struct counts *n, const struct load_plan *p, const struct load_row *r)
{
    if (r->kind != KIND_MATRIX || r->place != PLACE_REGION)
        return;
    for (uint32_t i = 0; i < r->n_source; i++) {
        count_blocks(n, r, load_plan_sources(p, r) + i);
        count_source(n, &r->form, load_plan_sources(p, r) + i);
    }
    if (r->form.codes.kind) {
        n->n_code++;
        n->code_bytes += r->bytes;
        n->n_code_number += (uint64_t)r->form.n_out * r->form.n_in;
    }
    n->n_ordered += r->ordered;
    if (r->form.dtype != DT_I8)
        n->n_float += r->dest != DEST_ROUTER;
    else
        n->n_by_group[r->form.group]++;
    if (r->form.dtype == DT_I8 && !r->form.group)
        n->n_int8_by_why[r->why]++;
}

static void log_fp8(const struct counts *n, const struct load_options *o,
                    const struct quant_config *stored)
{
    const char *dtype = dtype_name(o->dtype);
    if (stored->method == QUANT_FP8 && !o->device)
        log_info("fp8: the checkpoint's matrices become floats (%s) while they are packed, with as "
                 "much memory; only devices multiply fp8",
                 dtype);
    if (o->quantization == QUANTIZE_FP8)
        log_info(
            "fp8: %u matrices as the checkpoint has them, %u with their scales of blocks; made "
            "e4m3 with a scale for each output: %u of other blocks, %u of floats; %u stay "
            "floats (%s)",
            n->n_kept + n->n_blocks, n->n_blocks, n->n_made, n->n_from_float, n->n_left, dtype);
    if (n->n_x_scale)
        log_info("fp8: inputs of %u matrices are multiplied in the checkpoint's input_scale, those "
                 "of one product in the largest of theirs",
                 n->n_x_scale);
    if (n->n_x_unused)
        log_info("fp8: the checkpoint's input_scale of %u matrices is not used: %s", n->n_x_unused,
                 o->device ? "others of their product have none, they become floats, or the config "
                             "says dynamic; each row of e4m3 has scales of its own"
                           : "activations are not quantized");
}

static void log_int4(const struct counts *n, const struct load_options *o)
{
    char left[64] = "";
    if (n->n_float)
        snprintf(left, sizeof left, "; %u stay floats (%s)", n->n_float, dtype_name(o->dtype));
    log_info("int4: %u matrices in groups of 128 inputs, %u of 64, %u of 32 (%u in act-order); "
             "%u as int8%s",
             n->n_by_group[128], n->n_by_group[64], n->n_by_group[32], n->n_ordered,
             n->n_by_group[0], left);
    for (int i = 0; i < WHY_COUNT; i++)
        if (n->n_int8_by_why[i])
            log_info("int4: %u as int8: %s", n->n_int8_by_why[i], load_why_text((enum load_why)i));
}

static void log_gguf(const struct counts *n, const struct load_options *o)
{
    char file[SIZE_TEXT_MAX], memory[SIZE_TEXT_MAX];
    if (n->n_blocks_made)
        log_info("gguf: %u matrices in blocks become floats (%s) while they are packed: %s of the "
                 "file, %s in memory; --quantization int8 or int4 takes less",
                 n->n_blocks_made, dtype_name(o->dtype),
                 size_text_binary(file, (double)n->block_bytes),
                 size_text_binary(memory, (double)n->made_bytes));
}

static void log_codes(const struct counts *n)
{
    char size[SIZE_TEXT_MAX];
    if (n->n_code)
        log_info("codes: %u matrices stay in the checkpoint's own 4 or 8 bits, %s (%.2f bits a "
                 "weight)",
                 n->n_code, size_text_binary(size, (double)n->code_bytes),
                 (double)n->code_bytes * 8 / (double)n->n_code_number);
}

void load_plan_log(const struct load_plan *p, const struct load_options *o,
                   const struct quant_config *stored)
{
    struct counts n = {0};
    for (size_t i = 0; i < p->n_row; i++)
        count_row(&n, p, &p->rows[i]);
    log_fp8(&n, o, stored);
    log_gguf(&n, o);
    log_codes(&n);
    if (o->quantization == QUANTIZE_INT4)
        log_int4(&n, o);
}
