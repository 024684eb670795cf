/* SPDX-License-Identifier: Apache-2.0 */
/* rows - the engine's functions on rows, as embed_item calls them: the first number of a sheet says
 * which call makes its rows from the four rows below; from MISTAKES on it is a wrong call. */
#include <stdio.h>
#include <string.h>
#include "engine/plugin.h"

#define N_ROW    4u
#define NARROW   48u /* columns that the matrices read */
#define MISTAKES 100u

struct sheet { /* a call of embed_item */
    const struct quire_host *host;
    const struct quire_model *m;
    struct quire_rows in;  /* the four rows of the item */
    struct quire_rows out; /* which has a copy of them */
    struct quire_plugin_error *error;
};

static int fail(struct quire_plugin_error *error, const char *why)
{
    snprintf(error->message, sizeof error->message, "%s", why);
    return 1;
}

static struct quire_rows part(const struct quire_rows *r, uint32_t col, uint32_t n_col, uint32_t n)
{
    return (struct quire_rows){r->rows + col, n, n_col, r->stride};
}

/* ---- calls ---- */

static int multiply(const struct sheet *s, const char *matrix, const char *bias)
{
    const struct quire_rows in = part(&s->in, 0, NARROW, N_ROW);
    return s->host->linear(s->m, matrix, bias, &in, &s->out, s->error);
}

static int linear_floats(const struct sheet *s)
{
    return multiply(s, "floats", "bias");
}

static int linear_quantized(const struct sheet *s)
{
    return multiply(s, "quantized", "bias");
}

/* A tensor that the program reads too, where the config has "reads". */
static int linear_read_bias(const struct sheet *s)
{
    return multiply(s, "floats", "read");
}

static int by_row(const struct sheet *s, const char *matrix)
{
    int failed = 0;
    for (uint32_t i = 0; i < N_ROW; i++) {
        const struct quire_rows in = {s->in.rows + i * s->in.stride, 1, NARROW, NARROW};
        const struct quire_rows out = {s->out.rows + i * s->out.stride, 1, s->out.n_col,
                                       s->out.stride};
        failed |= s->host->linear(s->m, matrix, "bias", &in, &out, s->error);
    }
    return failed;
}

static int linear_floats_by_row(const struct sheet *s)
{
    return by_row(s, "floats");
}

static int linear_quantized_by_row(const struct sheet *s)
{
    return by_row(s, "quantized");
}

static int linear_absent_bias(const struct sheet *s)
{
    return multiply(s, "floats", "absent");
}

static int layer_norm(const struct sheet *s)
{
    return s->host->layer_norm(s->m, "norm", "bias", 1e-5, &s->out, s->error);
}

static int layer_norm_no_bias(const struct sheet *s)
{
    return s->host->layer_norm(s->m, "norm", NULL, 1e-5, &s->out, s->error);
}

static int layer_norm_absent_bias(const struct sheet *s)
{
    return s->host->layer_norm(s->m, "norm", "absent", 1e-5, &s->out, s->error);
}

static int rms_norm(const struct sheet *s)
{
    return s->host->rms_norm(s->m, "norm", 1e-6, &s->out, s->error);
}

/* Of columns 8 … 55; the others stay as they are. */
static int rms_norm_part(const struct sheet *s)
{
    const struct quire_rows rows = part(&s->out, 8, NARROW, N_ROW);
    return s->host->rms_norm(s->m, "short norm", 1e-6, &rows, s->error);
}

/* Columns: q 0 … 15, k 16 … 31, v 32 … 55; three keys. */
static int attend(const struct sheet *s)
{
    const struct quire_rows q = part(&s->in, 0, 16, N_ROW), k = part(&s->in, 16, 16, 3),
                            v = part(&s->in, 32, 24, 3), out = part(&s->out, 0, 24, N_ROW);
    return s->host->attend(&q, &k, &v, 0.25, &out, s->error);
}

/* Rows of the table times the steps of a layer. */
static int tensors_of_layers(const struct sheet *s)
{
    const struct quire_host *host = s->host;
    uint32_t n_row = 0, n_col = 0, n_step = 0, n_one = 0;
    const float *table = host->tensor(s->m, "table", 0, &n_row, &n_col);
    if (!table || n_row != 5 || n_col != s->out.n_col)
        return fail(s->error, "the table has another shape");
    if (host->tensor(s->m, "absent", 0, NULL, NULL) || host->tensor(s->m, "floats", 0, NULL, NULL))
        return fail(s->error, "a tensor that is absent, or a matrix, was given");
    if (host->tensor(s->m, "none", 0, NULL, NULL) || host->tensor(s->m, NULL, 0, NULL, NULL))
        return fail(s->error, "a tensor that is none was given");
    if (host->tensor(s->m, "steps", host->n_layer(s->m), NULL, NULL))
        return fail(s->error, "a layer that does not exist was given");
    for (uint32_t r = 0; r < N_ROW; r++) {
        const float *steps = host->tensor(s->m, "steps", r % host->n_layer(s->m), &n_step, &n_one);
        if (!steps || n_step != n_col || n_one != 1)
            return fail(s->error, "the steps have another shape");
        for (uint32_t c = 0; c < n_col; c++)
            s->out.rows[r * s->out.stride + c] = table[(r + 1) * n_col + c] * steps[c];
    }
    return 0;
}

/* All of it is written; the rows come back reversed. */
static int scratch(const struct sheet *s)
{
    float *work = s->host->scratch(s->m);
    const uint32_t n_col = s->out.n_col;
    if (!work)
        return fail(s->error, "no work memory");
    for (uint32_t i = 0; i < N_ROW * n_col; i++)
        work[i] = s->in.rows[i / n_col * s->in.stride + i % n_col];
    for (uint32_t i = 0; i < N_ROW * n_col; i++)
        s->out.rows[(N_ROW - 1 - i / n_col) * s->out.stride + i % n_col] = work[i];
    return 0;
}

static int activate(const struct sheet *s, const char *activation)
{
    return s->host->activate(activation, &s->out, s->error);
}

static int silu(const struct sheet *s)
{
    return activate(s, "silu");
}

static int gelu(const struct sheet *s)
{
    return activate(s, "gelu");
}

static int gelu_tanh(const struct sheet *s)
{
    return activate(s, "gelu_pytorch_tanh");
}

static int quick_gelu(const struct sheet *s)
{
    return activate(s, "quick_gelu");
}

static int relu(const struct sheet *s)
{
    return activate(s, "relu");
}

static int relu2(const struct sheet *s)
{
    return activate(s, "relu2");
}

static int (*const calls[])(const struct sheet *s) = {
    linear_floats,
    linear_quantized,
    linear_floats_by_row,
    linear_quantized_by_row,
    linear_absent_bias,
    layer_norm,
    layer_norm_no_bias,
    layer_norm_absent_bias,
    rms_norm,
    rms_norm_part,
    attend,
    tensors_of_layers,
    scratch,
    silu,
    gelu,
    gelu_tanh,
    quick_gelu,
    relu,
    relu2,
    linear_read_bias,
};

/* ---- wrong calls ---- */

static int make_mistake(const struct sheet *s, unsigned number)
{
    const struct quire_rows narrow = part(&s->in, 0, 32, N_ROW), few = part(&s->in, 0, 48, 3);
    const struct quire_rows bent = {s->in.rows, N_ROW, 64, 63}, none = {NULL, N_ROW, 64, 64};
    const struct quire_host *host = s->host;
    switch (number) {
    case 0:
        return multiply(s, "none such", "bias");
    case 1:
        return multiply(s, NULL, NULL);
    case 2:
        return multiply(s, "norm", "bias");
    case 3:
        return multiply(s, "absent matrix", "bias");
    case 4:
        return host->linear(s->m, "floats", NULL, &narrow, &s->out, s->error);
    case 5:
        return host->linear(s->m, "floats", NULL, &few, &s->out, s->error);
    case 6:
        return multiply(s, "floats", "table");
    case 7:
        return multiply(s, "floats", "none such");
    case 8:
        return host->linear(s->m, "floats", NULL, NULL, &s->out, s->error);
    case 9:
        return host->layer_norm(s->m, "norm", "bias", 1e-5, &narrow, s->error);
    case 10:
        return host->layer_norm(s->m, "norm", "short norm", 1e-5, &s->out, s->error);
    case 11:
        return host->layer_norm(s->m, NULL, NULL, 1e-5, &s->out, s->error);
    case 12:
        return host->layer_norm(s->m, "norm", NULL, 1e-5, &none, s->error);
    case 13:
        return host->rms_norm(s->m, "absent", 1e-6, &s->out, s->error);
    case 14:
        return host->rms_norm(s->m, "floats", 1e-6, &s->out, s->error);
    case 15:
        return host->rms_norm(s->m, "norm", 1e-6, &bent, s->error);
    case 16:
        return activate(s, "mish");
    case 17:
        return activate(s, NULL);
    case 18:
        return host->activate("silu", NULL, s->error);
    case 19:
        return host->attend(&s->in, &narrow, &s->in, 1, &s->out, s->error);
    case 20:
        return host->attend(&s->in, &s->in, &few, 1, &s->out, s->error);
    case 21:
        return host->attend(&s->in, &s->in, &narrow, 1, &s->out, s->error);
    default:
        return host->attend(&s->out, &s->in, &s->in, 1, &s->out, s->error);
    }
}

static int embed(const struct quire_host *host, const struct quire_model *m,
                 const struct quire_item *item, const struct quire_rows *out,
                 struct quire_plugin_error *error)
{
    float *x = (float *)(uintptr_t)item->data;
    const uint32_t n_col = item->dims[1], number = (uint32_t)x[0];
    const struct sheet s = {host, m, {x + n_col, N_ROW, n_col, n_col}, *out, error};
    for (uint32_t r = 0; r < N_ROW; r++)
        memcpy(out->rows + r * out->stride, s.in.rows + r * n_col, n_col * sizeof *x);
    if (number >= MISTAKES)
        return make_mistake(&s, number - MISTAKES);
    return number < sizeof calls / sizeof *calls ? calls[number](&s) : fail(error, "no such call");
}

static size_t work_bytes(const struct quire_model *m, const struct quire_item *largest)
{
    (void)m;
    return N_ROW * largest->dims[1] * sizeof(float);
}

static const struct quire_modality sheets = {
    .size = sizeof sheets,
    .name = "sheets",
    .placeholder = -9,
    .dtype = QUIRE_F32,
    .dims = {"5", "hidden_size"},
    .n_dim = 2,
    .n_token = "4",
    .embed_item = embed,
    .scratch_bytes = work_bytes,
};
static const struct quire_modality *const modalities[] = {&sheets};

static const struct quire_tensor tensors[] = {
    {"floats", "own.floats", QUIRE_MATRIX, "hidden_size", "48", QUIRE_TENSOR_NOT_QUANTIZED},
    {"quantized", "own.quantized", QUIRE_MATRIX, "hidden_size", "48", 0},
    {"bias", "own.bias", QUIRE_VECTOR, "hidden_size", NULL, 0},
    {"norm", "own.norm", QUIRE_VECTOR, "hidden_size", NULL, 0},
    {"short norm", "own.short_norm", QUIRE_VECTOR, "48", NULL, 0},
    {"read", "own.read", QUIRE_VECTOR, "hidden_size", NULL, QUIRE_TENSOR_OPTIONAL},
    {"table", "own.table", QUIRE_TABLE, "5", "hidden_size", 0},
    {"steps", "own.layers.%u.steps", QUIRE_VECTOR, "hidden_size", NULL, 0},
    {"absent", "own.absent", QUIRE_VECTOR, "hidden_size", NULL, QUIRE_TENSOR_OPTIONAL},
    {"absent matrix", "own.absent_matrix", QUIRE_MATRIX, "hidden_size", "48",
     QUIRE_TENSOR_OPTIONAL},
};

static int change(const struct quire_host *host, struct quire_program *p,
                  struct quire_plugin_error *error)
{
    static const struct quire_op op = {
        .size = sizeof op,
        .kind = "norm",
        .in = "x",
        .out = "x",
        .weight = "read",
        .params = {{"eps", 1e-6}},
    };
    double reads;
    if (!host->config_number(host->program_model(p), "reads", &reads))
        return 0;
    return host->insert_after(p, QUIRE_NO_LAYER, "embed", &op, error);
}

static const struct quire_architecture architecture = {
    .size = sizeof architecture,
    .name = "RowsForCausalLM",
    .base = "LlamaForCausalLM",
    .tensors = tensors,
    .n_tensor = sizeof tensors / sizeof *tensors,
    .modalities = modalities,
    .n_modality = 1,
    .program = change,
};
static const struct quire_architecture *const architectures[] = {&architecture};

static const struct quire_plugin plugin = {
    .size = sizeof plugin,
    .abi = QUIRE_PLUGIN_ABI,
    .name = "rows",
    .version = "1.0",
    .architectures = architectures,
    .n_architecture = 1,
};

const struct quire_plugin *quire_plugin_1(void)
{
    return &plugin;
}
