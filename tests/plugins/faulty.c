/* SPDX-License-Identifier: Apache-2.0 */
/* faulty - a plugin with one fault, which the environment's QUIRE_TEST_FAULT names. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "engine/plugin.h"

static int check(const struct quire_host *host, const struct quire_model *m,
                 struct quire_plugin_error *error);
static int change(const struct quire_host *host, struct quire_program *program,
                  struct quire_plugin_error *error);

static const struct quire_architecture good = {
    .size = sizeof good,
    .name = "FaultyForCausalLM",
    .base = "LlamaForCausalLM",
    .check = check,
    .program = change,
};
static struct quire_architecture architecture, second;
static const struct quire_architecture *architectures[2];
static struct quire_modality modality;
static const struct quire_modality *modalities[2];
static struct quire_operation operation;
static const struct quire_operation *operations[1];
static struct quire_tensor tensors[2];
static struct quire_config_rule rule;
static struct quire_setting setting;
static struct quire_tensor_map map;
static struct {
    struct quire_plugin p;
    char newer[8];
} plugin;

static void *const wild = (void *)64; /* where no memory is */
static char long_name[100];           /* without an end */

static int fault_is(const char *name)
{
    const char *fault = getenv("QUIRE_TEST_FAULT");
    return fault && strcmp(fault, name) == 0;
}

__attribute__((constructor)) static void begin(void)
{
    if (fault_is("crash"))
        abort();
    if (fault_is("exit"))
        _exit(0);
}

static int embed(const struct quire_host *host, const struct quire_model *m,
                 const struct quire_item *item, const struct quire_rows *out,
                 struct quire_plugin_error *error)
{
    (void)host, (void)m, (void)item, (void)out, (void)error;
    return 1;
}

static void fault_in(const char *callback)
{
    char fault[32];
    snprintf(fault, sizeof fault, "crash in %s", callback);
    if (fault_is(fault))
        abort();
    snprintf(fault, sizeof fault, "exit in %s", callback);
    if (fault_is(fault))
        exit(3);
}

static int check(const struct quire_host *host, const struct quire_model *m,
                 struct quire_plugin_error *error)
{
    (void)m, (void)error;
    host->log("the check begins");
    fault_in("check");
    return 0;
}

static int change(const struct quire_host *host, struct quire_program *program,
                  struct quire_plugin_error *error)
{
    (void)host, (void)program, (void)error;
    fault_in("program");
    return 0;
}

static void make_modality(void)
{
    modality = (struct quire_modality){
        .size = sizeof modality,
        .name = "things",
        .placeholder = -1,
        .dims = {"3"},
        .n_dim = 1,
        .n_token = "1",
        .embed_item = embed,
    };
    modalities[0] = modalities[1] = &modality;
    architecture.modalities = modalities;
    architecture.n_modality = 1;
}

/* Faults of the plugin as a whole. */
static void spoil_plugin(void)
{
    if (fault_is("abi"))
        plugin.p.abi = 99;
    if (fault_is("older abi"))
        plugin.p.abi = QUIRE_PLUGIN_ABI - 1;
    if (fault_is("small"))
        plugin.p.size = sizeof plugin.p - 8;
    if (fault_is("newer")) {
        plugin.p.size = sizeof plugin;
        plugin.newer[3] = 1;
    }
    if (fault_is("newer and unused"))
        plugin.p.size = sizeof plugin;
    if (fault_is("no name"))
        plugin.p.name = NULL;
    if (fault_is("control characters"))
        plugin.p.version = "1\n2";
    if (fault_is("no architectures"))
        plugin.p.n_architecture = 0;
    if (fault_is("null list"))
        plugin.p.architectures = NULL;
    if (fault_is("null architecture"))
        architectures[0] = NULL;
    if (fault_is("twice"))
        plugin.p.n_architecture = 2;
    if (fault_is("null operation") || fault_is("no run"))
        plugin.p.n_operation = 1;
    if (fault_is("wild name"))
        plugin.p.name = wild;
    if (fault_is("bytes"))
        plugin.p.name = "f\xff";
    if (fault_is("long name"))
        plugin.p.name = memset(long_name, 'a', sizeof long_name);
    if (fault_is("wild list"))
        plugin.p.architectures = wild;
    if (fault_is("wild architecture"))
        architectures[0] = wild;
    if (fault_is("huge count"))
        plugin.p.n_architecture = UINT32_MAX;
    operation = (struct quire_operation){.size = sizeof operation, .name = "own"};
    operations[0] = fault_is("null operation") ? NULL : &operation;
}

static void spoil_tables(void)
{
    if (fault_is("config value"))
        rule.value = "{";
    if (fault_is("config size"))
        rule.from = "a +  b";
    if (fault_is("config nothing"))
        rule.value = NULL;
    if (fault_is("setting key"))
        setting.key = "colour";
    if (fault_is("setting value"))
        setting.value = "whole heads";
    if (fault_is("setting null"))
        setting.value = NULL;
    if (fault_is("pattern"))
        map.pattern = "model.(";
    if (fault_is("map name"))
        map.name = NULL;
    if (fault_is("wild pattern"))
        map.pattern = wild;
    if (fault_is("huge list"))
        architecture.n_map = 1u << 30;
    if (fault_is("tensor id"))
        tensors[1].id = tensors[0].id;
    if (fault_is("tensor size"))
        tensors[1].rows = "";
    if (fault_is("tensor kind"))
        tensors[1].kind = QUIRE_VECTOR;
    if (fault_is("tensor name"))
        tensors[1].name = "layers.%u.%u";
}

static void spoil_modality(void)
{
    if (fault_is("modality size"))
        modality.size = 8;
    if (fault_is("modality dims"))
        modality.n_dim = 5;
    if (fault_is("modality any"))
        modality.dims[0] = "";
    if (fault_is("modality embed"))
        modality.embed_item = NULL;
    if (fault_is("modality tokens"))
        modality.n_token = NULL;
    if (fault_is("modality twice"))
        architecture.n_modality = 2;
}

const struct quire_plugin *quire_plugin_1(void)
{
    if (fault_is("crash in entry"))
        *(volatile int *)0 = 1;
    if (fault_is("null"))
        return NULL;
    if (fault_is("wild"))
        return wild;
    architecture = good;
    rule = (struct quire_config_rule){"hidden_size", NULL, "64"};
    setting = (struct quire_setting){"qk_norm", "heads"};
    map = (struct quire_tensor_map){"x", "y", QUIRE_AS_IS};
    tensors[0] = (struct quire_tensor){"a", "a.weight", QUIRE_MATRIX, "3", "4", 0};
    tensors[1] = (struct quire_tensor){"b", "b.weight", QUIRE_MATRIX, "3", "4", 0};
    architecture.config = &rule;
    architecture.layer = &setting;
    architecture.maps = &map;
    architecture.n_config = architecture.n_layer = architecture.n_map = 1;
    architecture.tensors = tensors;
    architecture.n_tensor = 2;
    if (fault_is("base"))
        architecture.base = "FourierForCausalLM";
    if (fault_is("built in"))
        architecture.name = "LlamaForCausalLM";
    if (fault_is("taken"))
        architecture.name = "VariationForCausalLM";
    architectures[0] = architectures[1] = &architecture;
    memset(&plugin, 0, sizeof plugin);
    plugin.p = (struct quire_plugin){
        .size = sizeof plugin.p,
        .abi = QUIRE_PLUGIN_ABI,
        .name = "faulty",
        .version = "0",
        .architectures = architectures,
        .n_architecture = 1,
        .operations = operations,
    };
    if (fault_is("two")) { /* no fault by itself: another plugin serves the second one too */
        second = architecture;
        architecture.name = "SecondForCausalLM";
        second.name = "OperationForCausalLM";
        architectures[1] = &second;
        plugin.p.n_architecture = 2;
    }
    make_modality();
    spoil_plugin();
    spoil_tables();
    spoil_modality();
    return &plugin.p;
}
