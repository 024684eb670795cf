/* SPDX-License-Identifier: Apache-2.0 */
/* items - level 3 of engine/plugin.h: modalities. "actions" of a fixed shape, a row each, by a
 * linear layer; "clips" of any length, whose rows are the means of pieces; "marks" of bytes. */
#include <math.h>
#include <stdio.h>
#include <string.h>
#include "engine/plugin.h"

#define CLIP_PIECE 4u /* numbers of a clip that one row is made of */

static int fail(struct quire_plugin_error *error, const char *why)
{
    snprintf(error->message, sizeof error->message, "%s", why);
    return 1;
}

static int embed_action(const struct quire_host *host, const struct quire_model *m,
                        const struct quire_item *item, const struct quire_rows *out,
                        struct quire_plugin_error *error)
{
    const struct quire_rows in = {(float *)(uintptr_t)item->data, 1, item->dims[0], item->dims[0]};
    return host->linear(m, "action", "action.bias", &in, out, error);
}

static uint32_t count_clip(const struct quire_model *m, const struct quire_item *item)
{
    (void)m;
    return item->dims[0] / CLIP_PIECE;
}

static int check_clip(const struct quire_host *host, const struct quire_model *m,
                      const struct quire_item *item, struct quire_plugin_error *error)
{
    double most;
    const float *x = item->data;
    if (item->dims[0] % CLIP_PIECE)
        return fail(error, "its length is no multiple of 4");
    if (!host->config_number(m, "clip_max", &most))
        return fail(error, "config.json has no clip_max");
    for (uint32_t i = 0; i < item->dims[0]; i++)
        if (!(fabs((double)x[i]) <= most))
            return fail(error, "a number is beyond clip_max");
    return 0;
}

static int embed_clip(const struct quire_host *host, const struct quire_model *m,
                      const struct quire_item *item, const struct quire_rows *out,
                      struct quire_plugin_error *error)
{
    float *sums = host->scratch(m);
    const float *x = item->data;
    if (!sums)
        return fail(error, "no work memory");
    for (uint32_t r = 0; r < out->n; r++) {
        sums[0] = 0;
        for (uint32_t i = 0; i < CLIP_PIECE; i++)
            sums[0] += x[r * CLIP_PIECE + i];
        for (uint32_t c = 0; c < out->n_col; c++)
            out->rows[r * out->stride + c] = sums[0] / (float)(c + 1);
    }
    return 0;
}

static size_t clip_bytes(const struct quire_model *m, const struct quire_item *largest)
{
    (void)m;
    return largest->dims[0] * sizeof(float);
}

static int embed_mark(const struct quire_host *host, const struct quire_model *m,
                      const struct quire_item *item, const struct quire_rows *out,
                      struct quire_plugin_error *error)
{
    const uint8_t *x = item->data;
    (void)host;
    (void)m;
    if (x[0] == 255)
        return fail(error, "255 is no mark");
    if (x[0] == 254)
        return 1; /* and says nothing */
    if (x[0] == 253)
        *(volatile int *)0 = 1;
    for (uint32_t i = 0; i < out->n * out->n_col; i++)
        out->rows[i / out->n_col * out->stride + i % out->n_col] = x[0];
    return 0;
}

static const struct quire_modality actions = {
    .size = sizeof actions,
    .name = "actions",
    .part_type = "action",
    .placeholder = -3,
    .dtype = QUIRE_F32,
    .dims = {"action_dim"},
    .n_dim = 1,
    .n_token = "1",
    .max_items = "num_frames * actions_per_frame",
    .embed_item = embed_action,
};
static const struct quire_modality clips = {
    .size = sizeof clips,
    .name = "clips",
    .placeholder = -4,
    .expand = true,
    .dtype = QUIRE_F32,
    .dims = {""},
    .dims_max = {64},
    .n_dim = 1,
    .count_tokens = count_clip,
    .max_items = "2",
    .check_item = check_clip,
    .embed_item = embed_clip,
    .scratch_bytes = clip_bytes,
};
static const struct quire_modality marks = {
    .size = sizeof marks,
    .name = "marks",
    .placeholder = 7,
    .dtype = QUIRE_U8,
    .dims = {"2", "3"},
    .n_dim = 2,
    .n_token = "2",
    .embed_item = embed_mark,
};
static const struct quire_modality *const modalities[] = {&actions, &clips, &marks};

static const struct quire_tensor tensors[] = {
    {"action", "action.weight", QUIRE_MATRIX, "hidden_size", "action_dim", 0},
    {"action.bias", "action.bias", QUIRE_VECTOR, "hidden_size", NULL, 0},
};

static int check(const struct quire_host *host, const struct quire_model *m,
                 struct quire_plugin_error *error)
{
    const char *flavour;
    double dim;
    if (host->config_text(m, "flavour", &flavour) && strcmp(flavour, "plain") != 0) {
        snprintf(error->message, sizeof error->message, "flavour \"%s\" is not plain", flavour);
        return 1;
    }
    return host->config_number(m, "action_dim", &dim) ? 0 : fail(error, "action_dim is missing");
}

static const struct quire_architecture architecture = {
    .size = sizeof architecture,
    .name = "ItemsForCausalLM",
    .base = "LlamaForCausalLM",
    .tensors = tensors,
    .n_tensor = sizeof tensors / sizeof *tensors,
    .modalities = modalities,
    .n_modality = 3,
    .check = check,
};
static const struct quire_architecture *const architectures[] = {&architecture};

static const struct quire_plugin plugin = {
    .size = sizeof plugin,
    .abi = QUIRE_PLUGIN_ABI,
    .name = "items",
    .version = "2",
    .architectures = architectures,
    .n_architecture = 1,
};

const struct quire_plugin *quire_plugin_1(void)
{
    return &plugin;
}
