/* SPDX-License-Identifier: Apache-2.0 */
/* A quantized matrix of arbitrary tensors under an arbitrary quantization_config: refused with a
 * reason, or every output of it can be read.
 *
 *     the config as text, up to a NUL | rows / 8, columns / 8, odd (bits 0, 1: one more of each)
 *     | tensors, 8 bytes each: suffix, dtype, n_dim, data (from which byte of the rest), shape
 *     [2] u16 | 255 | the rest, which fills every tensor again and again
 *
 * What came with fp8 has numbers from LATER on: w.weight_scale_inv, e4m3, no dimension; with mxfp4,
 * whose tensors hold N_EXPERT experts, w.weight_blocks and w.weight_scales. What came with fp4 and
 * bitsandbytes has numbers from LATEST on; a dtype of 200 and more is U8 then, of POWERS and more
 * e8m0. A quant_state is `rest` as it is, so that it may be JSON. torchao's follow these:
 * w._weight_scale_and_zero has a third dimension of 2, and w._weight_qdata with n_dim of 100 and
 * more is [shape, 32, 4]. Behind them are HQQ's, and fp8's w.input_scale.
 *
 * tensor_find and what packs for the kernels are this file's: each tensor is a buffer of its own,
 * so that reading past one is seen, and what is packed is looked at. */
#include <math.h>
#include <string.h>
#include "common/hub/hub_json.h"
#include "common/mem.h"
#include "engine/model/load/weight_codes.h"
#include "engine/model/load/weight_quant.h"

#define NAME      "w.weight"
#define SIDE_MAX  512u
#define BYTES_MAX 65536u
#define LATER     250u
#define LATEST    230u
#define POWERS    245u

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static const char *const names[] = {"w.qweight",
                                    "w.qzeros",
                                    "w.scales",
                                    "w.g_idx",
                                    "w.weight_packed",
                                    "w.weight_scale",
                                    "w.weight_zero_point",
                                    "w.weight_shape",
                                    "w.weight_g_idx",
                                    "w.weight",
                                    "w.weight_scale_inv",
                                    "w.weight_blocks",
                                    "w.weight_scales"};
#define N_NAME   (sizeof names / sizeof *names)
#define N_LATER  3u
#define N_EXPERT 3u
static const char *const latest[] = {"w.weight_scale_2",
                                     "w.weight_global_scale",
                                     "w.SCB",
                                     "w.weight_format",
                                     "w.weight.absmax",
                                     "w.weight.quant_map",
                                     "w.weight.nested_absmax",
                                     "w.weight.nested_quant_map",
                                     "w.weight.quant_state.bitsandbytes__nf4",
                                     "w._weight_qdata",
                                     "w._weight_scale",
                                     "w._weight_zero_point",
                                     "w._weight_scale_and_zero",
                                     "w._weight_act_pre_scale",
                                     "w.W_q",
                                     "w.scale",
                                     "w.zero",
                                     "w.input_scale"};
enum { QUANT_STATE = 8, QDATA = 9, SCALE_AND_ZERO = 12 };
#define N_LATEST (sizeof latest / sizeof *latest)
#define N_TENSOR (N_NAME + N_LATEST)

static struct tensor tensors[N_TENSOR]; /* name NULL: not there */
static volatile uint32_t sink;          /* what was read */

const struct tensor *tensor_find(const struct tensor_set *s, const char *name)
{
    (void)s;
    for (size_t i = 0; i < N_TENSOR; i++)
        if (tensors[i].name && strcmp(tensors[i].name, name) == 0)
            return &tensors[i];
    return NULL;
}

uint32_t kern_int4_group(uint32_t n_in)
{
    return n_in % 128 == 0 ? 128 : n_in % 64 == 0 ? 64 : n_in % 32 == 0 ? 32 : 0;
}

void kern_int4_set(const struct packed *w, uint32_t o, const struct int4_output *from)
{
    Q_ASSERT(o < w->n_out && w->n_in % w->group == 0);
    for (uint32_t k = 0; k < w->n_in; k++)
        Q_ASSERT(from->q[k] <= 15);
    for (uint32_t g = 0; g < w->n_in / w->group; g++) {
        Q_ASSERT(from->zeros[g] <= 16);
        sink += from->scales[g];
    }
}

void kern_int8_set(const struct packed *w, uint32_t o, const int8_t *q, float scale)
{
    Q_ASSERT(o < w->n_out && isfinite(scale));
    for (uint32_t k = 0; k < w->n_in; k++)
        sink += (uint32_t)q[k];
}

void kern_codes_set(const struct packed *w, uint32_t o, const struct codes_output *from)
{
    Q_ASSERT(o < w->n_out && w->n_in % w->codes.group == 0);
    for (uint32_t k = 0; w->codes.kind != KERN_CODES_BYTES && k < w->n_in; k++)
        Q_ASSERT(from->q[k] <= 15);
    for (uint32_t g = 0; g < w->n_in / w->codes.group; g++)
        Q_ASSERT(isfinite(from->scales[g]) && (!w->codes.has_min || isfinite(from->mins[g])));
}

float kern_codes_value(enum kern_codes kind, uint8_t code)
{
    return kind == KERN_CODES_NF4 ? (float)code : -1;
}

/* A tensor of the record `at`, unless there is one of that name or it is too large. */
static void add_tensor(const uint8_t *at, const uint8_t *rest, size_t n_rest)
{
    static const enum dtype dtypes[] = {DT_I32, DT_F16, DT_F32, DT_BF16, DT_I8};
    const bool later = at[0] >= LATER && at[0] < LATER + N_LATER;
    const bool is_latest = at[0] >= LATEST && at[0] < LATEST + N_LATEST;
    const size_t i_name = is_latest ? N_NAME + (at[0] - LATEST)
                          : later   ? N_NAME - N_LATER + (at[0] - LATER)
                                    : at[0] % (N_NAME - N_LATER);
    struct tensor *t = &tensors[i_name];
    uint64_t shape[2] = {at[4] | (uint64_t)at[5] << 8, at[6] | (uint64_t)at[7] << 8};
    struct tensor new = {
        .name = is_latest ? latest[at[0] - LATEST] : names[i_name],
        .file = "fuzz.safetensors",
        .dtype = at[1] >= LATER    ? DT_F8_E4M3
                 : at[1] >= POWERS ? DT_F8_E8M0
                 : at[1] >= 200    ? DT_U8
                                   : dtypes[at[1] % 5],
        .n_dim = at[2] >= LATER ? 0 : 1u + at[2] % 2,
    };
    for (uint32_t i = 0; i < new.n_dim; i++)
        new.shape[i] = shape[i];
    new.n_bytes =
        (new.n_dim ? shape[0] : 1) * (new.n_dim == 2 ? shape[1] : 1) * (dtype_bits(new.dtype) / 8);
    if (later && at[0] > LATER) { /* all experts: blocks of 16 bytes, or their scales */
        const uint64_t bytes = at[0] == LATER + 1 ? 16 : 1;
        new.dtype = at[1] >= LATER ? DT_I8 : DT_U8;
        new.n_dim = at[0] == LATER + 1 ? 4 : 3;
        new.shape[0] = N_EXPERT;
        new.shape[1] = shape[0];
        new.shape[2] = shape[1];
        new.shape[3] = at[0] == LATER + 1 ? bytes : 0;
        new.n_bytes = N_EXPERT *shape[0] * shape[1] * bytes;
    }
    if (is_latest && at[0] == LATEST + SCALE_AND_ZERO && new.n_dim == 2) {
        new.n_dim = 3;
        new.shape[2] = 2;
        new.n_bytes *= 2;
    }
    if (is_latest && at[0] == LATEST + QDATA && at[2] >= 100 && new.n_dim) {
        new.n_dim = 4;
        new.shape[1] = shape[1];
        new.shape[2] = 32;
        new.shape[3] = 4;
        new.n_bytes = shape[0] * shape[1] * 128 * (dtype_bits(new.dtype) / 8);
    }
    if (t->name || new.n_bytes == 0 || new.n_bytes > BYTES_MAX)
        return;
    if (is_latest && at[0] == LATEST + QUANT_STATE) {
        new.dtype = DT_U8;
        new.n_dim = 1;
        new.shape[0] = new.n_bytes = n_rest ? n_rest : 1;
    }
    uint8_t *bytes = q_calloc(1, new.n_bytes);
    for (size_t i = 0; n_rest && i < new.n_bytes; i++)
        bytes[i] = rest[(at[3] + i) % n_rest];
    new.data = bytes;
    *t = new;
}

/* All outputs, as fill_host.c asks for them. */
static void read_all(const struct weight_source *s)
{
    const float x_scale = s->quant.x_scale;
    Q_ASSERT(x_scale == 0 || (x_scale > 0 && isfinite(x_scale) && isfinite(1 / x_scale)));
    struct packed w = {.n_out = s->rows, .n_in = s->cols, .group = weight_quant_group(s)};
    float *rows = q_calloc((size_t)s->rows * s->cols, sizeof *rows);
    void *buffer = q_calloc((size_t)KERN_PANEL * s->cols, 4);
    uint32_t *order = q_calloc(s->cols, sizeof *order);
    Q_ASSERT(w.group == 0 || (w.group % 32 == 0 && w.group <= 128));
    if (w.group && s->quant.order) {
        weight_quant_order(order, s);
        w.order = order;
        for (uint32_t k = 0; k < s->cols; k++)
            Q_ASSERT(order[k] < s->cols);
    }
    for (uint32_t o = 0; (w.group || weight_quant_is_int8(s)) && o < s->rows; o += KERN_PANEL)
        weight_quant_set(&w, o, s, o, s->rows - o < KERN_PANEL ? s->rows - o : KERN_PANEL, buffer);
    struct packed codes = {.n_out = s->rows, .n_in = s->cols, .dtype = DT_F32};
    if (weight_codes_form(&codes.codes, s))
        weight_codes_set(&codes, 0, s, 0, s->rows, buffer);
    weight_quant_rows(rows, s, 0, s->rows);
    for (size_t i = 0; i < (size_t)s->rows * s->cols; i++)
        sink += isnan(rows[i]);
    q_free(order);
    q_free(buffer);
    q_free(rows);
}

static void check(struct model_config *c, const uint8_t *data, size_t n)
{
    struct q_err e = Q_ERR_INIT;
    struct weight_finder f = {.config = c};
    struct weight_source s = {.present = true};
    c->moe.n_expert = N_EXPERT;
    s.stacked = c->quant.method == QUANT_MXFP4;
    s.place.expert = N_EXPERT - 1;
    size_t end = 3;
    if (n < 3)
        return;
    s.rows = data[0] * 8u % SIDE_MAX + (data[2] & 1);
    s.cols = data[1] * 8u % SIDE_MAX + (data[2] >> 1 & 1);
    while (end + 8 <= n && data[end] != 255)
        end += 8;
    const size_t rest = end < n ? end + 1 : n;
    for (size_t i = 3; i < end; i += 8)
        add_tensor(data + i, data + rest, n - rest);
    if (s.rows && s.cols) {
        enum q_code rc = weight_quant_find(&s, &f, NAME, &e);
        Q_ASSERT(rc == e.code && (rc == Q_OK || *e.message));
        if (rc == Q_OK && s.quant.q)
            read_all(&s);
    }
    for (size_t i = 0; i < N_TENSOR; i++) {
        q_free((void *)(uintptr_t)tensors[i].data);
        tensors[i] = (struct tensor){0};
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    static struct model_config c;
    struct q_err e = Q_ERR_INIT;
    const uint8_t *nul = memchr(data, 0, n);
    json_t *config = nul ? json_loadb((const char *)data, (size_t)(nul - data), 0, NULL) : NULL;
    const struct hub_json_at at = {config, "config.json"};
    memset(&c.quant, 0, sizeof c.quant);
    if (json_is_object(config) && config_quant_load(&c.quant, &at, &e) == Q_OK)
        check(&c, nul + 1, n - (size_t)(nul + 1 - data));
    json_decref(config);
    return 0;
}
