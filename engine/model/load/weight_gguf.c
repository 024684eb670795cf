/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/model/load/weight_gguf.h"

#define PART 1024u /* numbers of a row that are converted at a time: whole blocks of every type */

enum q_code weight_gguf_use(struct weight_source *s, const struct weight_finder *f,
                            const struct tensor *t, struct q_err *e)
{
    const struct quant_config *c = &f->config->quant;
    const bool kept =
        c->method == QUANT_GGUF && c->bits == 4 && strcmp(t->blocks->name, "Q4_0") == 0;
    if (s->cols == 1)
        return q_fail(e, Q_UNSUPPORTED,
                      "%s: tensor %s is a vector of type %s; only F32, F16 and BF16 are supported "
                      "of vectors",
                      t->file, t->stored ? t->stored : t->name, t->blocks->name);
    s->quant = (struct quant_tensors){
        .method = QUANT_GGUF,
        .bits = kept ? 4 : 0,
        .group = t->blocks->block,
        .n_group = s->cols / t->blocks->block,
        .q = t,
        .is_made = !kept,
    };
    s->dtype = f->dummy_dtype;
    return Q_OK;
}

static const unsigned char *row_at(const struct weight_source *s, uint32_t o)
{
    const struct tensor *t = s->quant.q;
    const size_t first = s->stacked ? (size_t)s->place.expert * s->stored_rows : 0;
    return (const unsigned char *)t->data + (first + o) * s->quant.n_group * t->blocks->bytes;
}

void weight_gguf_rows(float *out, const struct weight_source *s, uint32_t o, uint32_t n)
{
    gguf_rows(out, s->quant.q->blocks, row_at(s, o), (size_t)n * s->quant.n_group);
}

void weight_gguf_codes(const struct gguf_codes *to, const struct weight_source *s, uint32_t o)
{
    gguf_codes(to, s->quant.q->blocks, row_at(s, o), s->quant.n_group);
}

void weight_gguf_table_row(void *out, const struct weight_source *s, uint32_t o)
{
    const struct gguf_type *t = s->quant.q->blocks;
    const uint32_t step = PART / t->block;
    const unsigned char *from = row_at(s, o);
    float part[PART];
    uint16_t *half = out;
    for (uint32_t b = 0; b < s->quant.n_group; b += step) {
        const uint32_t n = s->quant.n_group - b < step ? s->quant.n_group - b : step;
        const size_t at = (size_t)b * t->block, n_number = (size_t)n * t->block;
        gguf_rows(part, t, from + (size_t)b * t->bytes, n);
        if (s->dtype == DT_F32)
            memcpy((float *)out + at, part, n_number * sizeof *part);
        else
            for (size_t i = 0; i < n_number; i++)
                half[at + i] = s->dtype == DT_F16 ? f32_to_f16(part[i]) : f32_to_bf16(part[i]);
    }
}

void weight_gguf_integers(uint8_t *out, const struct weight_source *s, uint32_t o, uint32_t n)
{
    const struct gguf_type *t = s->quant.q->blocks;
    const unsigned char *from = row_at(s, o);
    uint16_t scale;
    for (size_t b = 0; b < (size_t)n * s->quant.n_group; b++)
        gguf_q4_0(&scale, out + b * t->block, from + b * t->bytes);
}

uint16_t weight_gguf_scale(const struct weight_source *s, uint32_t o, uint32_t g)
{
    uint8_t q[32];
    uint16_t scale;
    gguf_q4_0(&scale, q, row_at(s, o) + (size_t)g * s->quant.q->blocks->bytes);
    return scale;
}
