/* SPDX-License-Identifier: Apache-2.0 */
/* operation - level 4 of engine/plugin.h: operations of its own, on the CPU and on a device. The
 * MLP's output is added to the residual stream by an operation of the plugin instead of the
 * family's, and a vector times a parameter, which is 0, is added to the embedding: the bits are
 * those of the family. The device is the fake one of tests/unit/fake_device.h. */
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>
#include "engine/plugin.h"

static void run_add(const struct quire_op_call *c)
{
    for (uint32_t i = 0; i < c->n_row; i++)
        for (uint32_t k = 0; k < c->out_cols; k++)
            c->out[i * c->out_stride + k] =
                c->in[i * c->in_stride + k] + c->in2[i * c->in2_stride + k];
}

/* in + (position + id) * by * weight[k] */
static void run_shift(const struct quire_op_call *c)
{
    for (uint32_t i = 0; i < c->n_row; i++)
        for (uint32_t k = 0; k < c->out_cols; k++)
            c->out[i * c->out_stride + k] =
                c->in[i * c->in_stride + k] +
                (float)(c->positions[i] + c->token_ids[i]) * (float)c->params[0] * c->weight[k];
}

typedef void run_fn(const struct quire_op_call *call);
typedef void fake_call_fn(void *stream, run_fn *run, const struct quire_op_call *call);

/* As a CUDA launcher gives its kernel to the stream. */
static void launch(run_fn *run, const struct quire_op_call *c)
{
    void *device = dlopen("libquire-fake.so", RTLD_NOW | RTLD_NOLOAD);
    void *symbol = device ? dlsym(device, "fake_call") : NULL;
    fake_call_fn *call;
    if (!symbol)
        abort();
    memcpy(&call, &symbol, sizeof call);
    call(c->stream, run, c);
    dlclose(device);
}

static void launch_add(const struct quire_op_call *c)
{
    launch(run_add, c);
}

static void launch_shift(const struct quire_op_call *c)
{
    launch(run_shift, c);
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
    .params = {"by"},
    .run = run_shift,
    .launch = launch_shift,
};
static const struct quire_operation here_only = {
    .size = sizeof here_only,
    .name = "here only",
    .run = run_add,
};
static const struct quire_operation *const operations[] = {&add, &shift, &here_only};

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
    const struct quire_op shifted = {
        .size = sizeof shifted,
        .kind = "shift",
        .in = "x",
        .out = "x",
        .weight = "final_norm",
        .params = {{"by", 0}},
    };
    const uint32_t n = host->n_layer(host->program_model(p));
    if (host->insert_after(p, QUIRE_NO_LAYER, "embed", &shifted, error))
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
    .n_operation = 3,
};

const struct quire_plugin *quire_plugin_1(void)
{
    return &plugin;
}
