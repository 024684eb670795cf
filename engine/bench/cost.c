/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/bench/cost.h"
#include <math.h>
#include <string.h>

/* In the middle of the output. */
double cost_step_bytes(const struct quire_info *info, const struct cost_shape *s)
{
    double context = s->input_len + 0.5 * s->output_len;
    return (double)info->step_bytes + s->n_seq * context * (double)info->kv_token_bytes;
}

/* Token i attends to i + 1 tokens; the logits of the prompt's last token and of those behind it are
 * asked for. */
double cost_ops(const struct quire_info *info, double input_len, double output_len)
{
    const double n = input_len + output_len - 1, context = n * (n + 1) / 2;
    const double asked_context = context - input_len * (input_len - 1) / 2;
    const double of_asked = (double)info->asked_row_ops;
    const double by_context = (double)info->asked_context_ops;
    return n * ((double)info->row_ops - of_asked) +
           output_len * (of_asked + (double)info->logit_ops) +
           context * ((double)info->context_ops - by_context) + asked_context * by_context;
}

double cost_prefill_ops(const struct quire_info *info, const struct cost_shape *s)
{
    return s->n_seq * cost_ops(info, s->input_len, 1);
}

double cost_peak(const struct bench *b, const struct quire_info *info)
{
    const struct roofline *r = &b->roofline;
    if (!b->has_roofline)
        return NAN;
    if (*info->quantization)
        return r->int8_gop_s * 1e9;
    return (strcmp(info->dtype, "BF16") == 0 ? r->bf16_gop_s : r->fp32_gop_s) * 1e9;
}

double cost_decode_fraction(const struct bench *b, const struct quire_info *info,
                            const struct cost_shape *s, double decode_tok_s)
{
    if (!b->has_roofline)
        return NAN;
    return cost_step_bytes(info, s) * decode_tok_s / s->n_seq / (b->roofline.read_gb_s * 1e9);
}

double cost_prefill_fraction(const struct bench *b, const struct quire_info *info,
                             const struct cost_shape *s, double prefill_tok_s)
{
    double seconds = (double)s->n_seq * s->input_len / prefill_tok_s;
    return cost_prefill_ops(info, s) / seconds / cost_peak(b, info);
}

void cost_print_header(struct bench *b, const struct quire_info *info)
{
    machine_print(&b->machine, b->out);
    fprintf(b->out, "%s: %.1f M parameters, %s%s%s, %.3f GB of weights read per step\n", b->model,
            (double)info->n_param * 1e-6, info->dtype, *info->quantization ? ", " : "",
            info->quantization, (double)info->step_bytes * 1e-9);
    if (b->has_roofline)
        fprintf(b->out, "peaks: %.1f GB/s read, %.0f GOP/s\n", b->roofline.read_gb_s,
                cost_peak(b, info) * 1e-9);
    bench_run_text(b, "version", QUIRE_VERSION);
    bench_run_text(b, "model", b->model);
    bench_run_text(b, "dtype", info->dtype);
    bench_run_text(b, "quantization", info->quantization);
    bench_run_number(b, "n_param", (double)info->n_param);
    bench_run_number(b, "weight_bytes", (double)info->weight_bytes);
    bench_run_number(b, "step_bytes", (double)info->step_bytes);
}
