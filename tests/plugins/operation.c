/* SPDX-License-Identifier: Apache-2.0 */
/* operation - level 4 of engine/plugin.h: operations of its own, on the CPU and on a device. The
 * MLP's output is added to the residual stream by an operation of the plugin instead of the
 * family's, and a vector times a parameter, which is 0, is added to the embedding: the bits are
 * those of the family. The device is the fake one of tests/unit/fake_device.h. */
#include <dlfcn.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "engine/plugin.h"

/* Parameters of shift: a token at which it fails, one whose row it marks, how many rows its launch
 * refuses; and their keys in config.json. */
enum { BY, FAILS_AT, MARKS, REFUSES };
static const char *const faults[] = {
    [FAILS_AT] = "fails_at",
    [MARKS] = "marks",
    [REFUSES] = "refuses",
};

static void add_rows(const struct quire_op_call *c)
{
    for (uint32_t i = 0; i < c->n_row; i++)
        for (uint32_t k = 0; k < c->out_cols; k++)
            c->out[i * c->out_stride + k] =
                c->in[i * c->in_stride + k] + c->in2[i * c->in2_stride + k];
}

/* in + (position + id) * by * weight[k] */
static void shift_rows(const struct quire_op_call *c)
{
    for (uint32_t i = 0; i < c->n_row; i++)
        for (uint32_t k = 0; k < c->out_cols; k++)
            c->out[i * c->out_stride + k] =
                c->in[i * c->in_stride + k] +
                (float)(c->positions[i] + c->token_ids[i]) * (float)c->params[0] * c->weight[k];
}

static void keep_rows(const struct quire_op_call *c)
{
    for (uint32_t i = 0; i < c->n_row; i++)
        memmove(c->out + i * c->out_stride, c->in + i * c->in_stride, c->out_cols * sizeof *c->out);
}

static int fail(struct quire_plugin_error *error, const char *format, unsigned number)
{
    snprintf(error->message, sizeof error->message, format, number);
    return 1;
}

static int run_add(const struct quire_op_call *c, struct quire_plugin_error *error)
{
    (void)error;
    add_rows(c);
    return 0;
}

/* A token that it does not want stops it in the middle of its rows, of which some are changed. */
static int run_shift(const struct quire_op_call *c, struct quire_plugin_error *error)
{
    struct quire_op_call one = *c;
    one.n_row = 1;
    for (uint32_t i = 0; i < c->n_row; i++) {
        if (c->token_ids[i] == c->params[FAILS_AT])
            return fail(error, "token %u is not one that it takes", c->token_ids[i]);
        one.in = c->in + i * c->in_stride;
        one.out = c->out + i * c->out_stride;
        one.token_ids = c->token_ids + i;
        one.positions = c->positions + i;
        shift_rows(&one);
        if (c->token_ids[i] == c->params[MARKS]) {
            memset(one.out, 0, c->out_cols * sizeof *one.out);
            one.out[0] = 1e15f;
        }
    }
    return 0;
}

/* Of rows whose logits are asked for: a row that shift has marked is 0 but for its first number. */
static int run_keep(const struct quire_op_call *c, struct quire_plugin_error *error)
{
    for (uint32_t i = 0; i < c->n_row; i++)
        if (fabsf(c->in[i * c->in_stride + 1]) < 1e-9f)
            return fail(error, "a row of %u columns is marked", c->in_cols);
    keep_rows(c);
    return 0;
}

typedef void rows_fn(const struct quire_op_call *call);
typedef void fake_call_fn(void *stream, rows_fn *rows, const struct quire_op_call *call);

/* As a CUDA launcher gives its kernel to the stream. */
static int launch(rows_fn *rows, const struct quire_op_call *c)
{
    void *device = dlopen("libquire-fake.so", RTLD_NOW | RTLD_NOLOAD);
    void *symbol = device ? dlsym(device, "fake_call") : NULL;
    fake_call_fn *call;
    if (!symbol)
        abort();
    memcpy(&call, &symbol, sizeof call);
    call(c->stream, rows, c);
    dlclose(device);
    return 0;
}

static int launch_add(const struct quire_op_call *c, struct quire_plugin_error *error)
{
    (void)error;
    return launch(add_rows, c);
}

static int launch_shift(const struct quire_op_call *c, struct quire_plugin_error *error)
{
    if (c->n_row == c->params[REFUSES])
        return fail(error, "%u rows are more than its launch takes", c->n_row);
    return launch(shift_rows, c);
}

static int launch_keep(const struct quire_op_call *c, struct quire_plugin_error *error)
{
    (void)error;
    return launch(keep_rows, c);
}

static const struct quire_operation add = {
    .size = sizeof add,
    .name = "own add",
    .run = run_add,
    .launch = launch_add,
};
static const struct quire_operation shift = {
    .size = sizeof shift,
    .name = "shift",
    .params = {"by", [FAILS_AT] = "fails at", [MARKS] = "marks", [REFUSES] = "refuses"},
    .run = run_shift,
    .launch = launch_shift,
};
static const struct quire_operation keep = {
    .size = sizeof keep,
    .name = "keep",
    .run = run_keep,
    .launch = launch_keep,
};
static const struct quire_operation here_only = {
    .size = sizeof here_only,
    .name = "here only",
    .run = run_add,
};
static const struct quire_operation *const operations[] = {&add, &shift, &here_only, &keep};

static int change_with(const struct quire_host *host, struct quire_program *p, const char *kind,
                       struct quire_plugin_error *error)
{
    const struct quire_op own = {
        .size = sizeof own,
        .kind = kind,
        .in = "x",
        .in2 = "o",
        .out = "x",
    };
    const struct quire_op kept = {
        .size = sizeof kept,
        .kind = "keep",
        .in = "h",
        .out = "h",
    };
    struct quire_op shifted = {
        .size = sizeof shifted,
        .kind = "shift",
        .in = "x",
        .out = "x",
        .weight = "final_norm",
        .params = {{"by", 0}, {"fails at", -1}, {"marks", -1}, {"refuses", -1}},
    };
    for (uint32_t i = FAILS_AT; i <= REFUSES; i++)
        (void)host->config_number(host->program_model(p), faults[i], &shifted.params[i].value);
    const uint32_t n = host->n_layer(host->program_model(p));
    if (host->insert_after(p, QUIRE_NO_LAYER, "embed", &shifted, error) ||
        (shifted.params[MARKS].value >= 0 &&
         host->insert_after(p, QUIRE_NO_LAYER, "norm final_norm", &kept, error)))
        return 1;
    for (uint32_t i = 0; i < n; i++)
        if (host->insert_after(p, i, "matmul down", &own, error) ||
            host->remove(p, i, "add#2", error))
            return 1;
    return 0;
}

static int change(const struct quire_host *host, struct quire_program *p,
                  struct quire_plugin_error *error)
{
    return change_with(host, p, "own add", error);
}

static int change_here(const struct quire_host *host, struct quire_program *p,
                       struct quire_plugin_error *error)
{
    return change_with(host, p, "here only", error);
}

/* Each mistake by its number in config.json, for the messages. */
static int mistake(const struct quire_host *host, struct quire_program *p,
                   struct quire_plugin_error *error)
{
    static const struct quire_op ops[] = {
        {.size = sizeof *ops, .kind = "convolve", .in = "x", .out = "x"},
        {.size = sizeof *ops, .kind = "add", .in = "nothing", .out = "x"},
        {.size = sizeof *ops, .kind = "add", .in = "x", .out = "new"},
        {.size = sizeof *ops, .kind = "norm", .in = "x", .out = "y", .weight = "none such"},
        {.size = sizeof *ops, .kind = "matmul", .in = "x", .out = "y", .weight = "lm_head"},
        {.size = sizeof *ops, .kind = "scale", .in = "x", .out = "x", .params = {{"factor", 2}}},
        {.size = sizeof *ops, .kind = "scale", .in = "x", .out = "y", .params = {{"scale", 2}}},
        {.size = sizeof *ops, .kind = "norm", .in = "x", .out = "y", .weight = "attn_norm"},
        {.size = 8, .kind = "add", .in = "x", .out = "x"},
        {.size = sizeof *ops, .kind = "add", .in = "x", .out = NULL},
        {.size = sizeof *ops, .kind = "positions", .out = "x", .weight = "few"},
        {.size = sizeof *ops, .kind = "shift", .in = "x", .out = "kv"},
    };
    double i = 0;
    (void)host->config_number(host->program_model(p), "mistake", &i);
    if (i == 100)
        return host->insert_after(p, 0, "convolve", &ops[1], error);
    if (i == 101)
        return host->insert_after(p, 99, "add", &ops[1], error);
    if (i == 102)
        return host->remove(p, QUIRE_NO_LAYER, "embed", error); /* and x is never written */
    if (i == 103)
        return 1;
    if (i == 104) {
        memset(error->message, 'x', sizeof error->message);
        return 1;
    }
    return host->insert_after(p, QUIRE_NO_LAYER, "embed", &ops[(int)i], error);
}

static const struct quire_tensor few[] = {
    {"few", "few.weight", QUIRE_TABLE, "5", "hidden_size", 0},
};
static const struct quire_architecture architecture = {
    .size = sizeof architecture,
    .name = "OperationForCausalLM",
    .base = "LlamaForCausalLM",
    .program = change,
};
static const struct quire_architecture on_cpu = {
    .size = sizeof on_cpu,
    .name = "OperationHereForCausalLM",
    .base = "LlamaForCausalLM",
    .program = change_here,
};
static const struct quire_architecture mistaken = {
    .size = sizeof mistaken,
    .name = "MistakenForCausalLM",
    .base = "LlamaForCausalLM",
    .tensors = few,
    .n_tensor = 1,
    .program = mistake,
};
static const struct quire_architecture *const architectures[] = {&architecture, &on_cpu, &mistaken};

static const struct quire_plugin plugin = {
    .size = sizeof plugin,
    .abi = QUIRE_PLUGIN_ABI,
    .name = "operation",
    .version = "1.0",
    .architectures = architectures,
    .n_architecture = 3,
    .operations = operations,
    .n_operation = 4,
};

const struct quire_plugin *quire_plugin_1(void)
{
    return &plugin;
}
