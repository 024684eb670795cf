/* SPDX-License-Identifier: Apache-2.0 */
/* The towers and the architectures whose images are served, as data. Defaults are those of
 * transformers' configs and image processors (2026-11). */
#include <string.h>
#include "engine/model/arch.h"
#include "engine/model/vision/vision_config.h"

/* clang-format off */
#define CLIP_MEAN {0.48145466, 0.4578275, 0.40821073}
#define CLIP_STD  {0.26862954, 0.26130258, 0.27577711}
#define HALVES    {0.5, 0.5, 0.5}
#define IMAGENET_MEAN {0.485, 0.456, 0.406}
#define IMAGENET_STD  {0.229, 0.224, 0.225}

/* Of CLIP and what comes from it. */
static const struct arch_tensor clip_layer[] = {
    /* checkpoint name, slot, [rows, cols], split over ranks, when it must be there */
    {"encoder.layers.%u.layer_norm1.weight",        W_ATTN_NORM,      {D_HIDDEN},          SHARD_NONE, WHEN_ALWAYS},
    {"encoder.layers.%u.layer_norm1.bias",          W_ATTN_NORM_BIAS, {D_HIDDEN},          SHARD_NONE, WHEN_ALWAYS},
    {"encoder.layers.%u.self_attn.q_proj.weight",   W_Q,              {D_Q, D_HIDDEN},     SHARD_ROWS, WHEN_ALWAYS},
    {"encoder.layers.%u.self_attn.q_proj.bias",     W_Q_BIAS,         {D_Q},               SHARD_ROWS, WHEN_ALWAYS},
    {"encoder.layers.%u.self_attn.k_proj.weight",   W_K,              {D_KV, D_HIDDEN},    SHARD_ROWS, WHEN_ALWAYS},
    {"encoder.layers.%u.self_attn.k_proj.bias",     W_K_BIAS,         {D_KV},              SHARD_ROWS, WHEN_ALWAYS},
    {"encoder.layers.%u.self_attn.v_proj.weight",   W_V,              {D_KV, D_HIDDEN},    SHARD_ROWS, WHEN_ALWAYS},
    {"encoder.layers.%u.self_attn.v_proj.bias",     W_V_BIAS,         {D_KV},              SHARD_ROWS, WHEN_ALWAYS},
    {"encoder.layers.%u.self_attn.out_proj.weight", W_O,              {D_HIDDEN, D_Q},     SHARD_COLS, WHEN_ALWAYS},
    {"encoder.layers.%u.self_attn.out_proj.bias",   W_O_BIAS,         {D_HIDDEN},          SHARD_NONE, WHEN_ALWAYS},
    {"encoder.layers.%u.layer_norm2.weight",        W_MLP_NORM,       {D_HIDDEN},          SHARD_NONE, WHEN_ALWAYS},
    {"encoder.layers.%u.layer_norm2.bias",          W_MLP_NORM_BIAS,  {D_HIDDEN},          SHARD_NONE, WHEN_ALWAYS},
    {"encoder.layers.%u.mlp.fc1.weight",            W_UP,             {D_INTER, D_HIDDEN}, SHARD_ROWS, WHEN_ALWAYS},
    {"encoder.layers.%u.mlp.fc1.bias",              W_UP_BIAS,        {D_INTER},           SHARD_ROWS, WHEN_ALWAYS},
    {"encoder.layers.%u.mlp.fc2.weight",            W_DOWN,           {D_HIDDEN, D_INTER}, SHARD_COLS, WHEN_ALWAYS},
    {"encoder.layers.%u.mlp.fc2.bias",              W_DOWN_BIAS,      {D_HIDDEN},          SHARD_NONE, WHEN_ALWAYS},
};

static const struct arch_tensor internvl_layer[] = {
    {"encoder.layer.%u.layernorm_before.weight",           W_ATTN_NORM,      {D_HIDDEN},          SHARD_NONE, WHEN_ALWAYS},
    {"encoder.layer.%u.layernorm_before.bias",             W_ATTN_NORM_BIAS, {D_HIDDEN},          SHARD_NONE, WHEN_ALWAYS},
    {"encoder.layer.%u.attention.q_proj.weight",           W_Q,              {D_Q, D_HIDDEN},     SHARD_ROWS, WHEN_ALWAYS},
    {"encoder.layer.%u.attention.q_proj.bias",             W_Q_BIAS,         {D_Q},               SHARD_ROWS, WHEN_ATTENTION_BIAS},
    {"encoder.layer.%u.attention.k_proj.weight",           W_K,              {D_KV, D_HIDDEN},    SHARD_ROWS, WHEN_ALWAYS},
    {"encoder.layer.%u.attention.k_proj.bias",             W_K_BIAS,         {D_KV},              SHARD_ROWS, WHEN_ATTENTION_BIAS},
    {"encoder.layer.%u.attention.v_proj.weight",           W_V,              {D_KV, D_HIDDEN},    SHARD_ROWS, WHEN_ALWAYS},
    {"encoder.layer.%u.attention.v_proj.bias",             W_V_BIAS,         {D_KV},              SHARD_ROWS, WHEN_ATTENTION_BIAS},
    {"encoder.layer.%u.attention.projection_layer.weight", W_O,              {D_HIDDEN, D_Q},     SHARD_COLS, WHEN_ALWAYS},
    {"encoder.layer.%u.attention.projection_layer.bias",   W_O_BIAS,         {D_HIDDEN},          SHARD_NONE, WHEN_ALWAYS},
    {"encoder.layer.%u.lambda_1",                          W_O_SCALE,        {D_HIDDEN},          SHARD_NONE, WHEN_ALWAYS},
    {"encoder.layer.%u.layernorm_after.weight",            W_MLP_NORM,       {D_HIDDEN},          SHARD_NONE, WHEN_ALWAYS},
    {"encoder.layer.%u.layernorm_after.bias",              W_MLP_NORM_BIAS,  {D_HIDDEN},          SHARD_NONE, WHEN_ALWAYS},
    {"encoder.layer.%u.mlp.fc1.weight",                    W_UP,             {D_INTER, D_HIDDEN}, SHARD_ROWS, WHEN_ALWAYS},
    {"encoder.layer.%u.mlp.fc1.bias",                      W_UP_BIAS,        {D_INTER},           SHARD_ROWS, WHEN_ALWAYS},
    {"encoder.layer.%u.mlp.fc2.weight",                    W_DOWN,           {D_HIDDEN, D_INTER}, SHARD_COLS, WHEN_ALWAYS},
    {"encoder.layer.%u.mlp.fc2.bias",                      W_DOWN_BIAS,      {D_HIDDEN},          SHARD_NONE, WHEN_ALWAYS},
    {"encoder.layer.%u.lambda_2",                          W_DOWN_SCALE,     {D_HIDDEN},          SHARD_NONE, WHEN_ALWAYS},
};
/* clang-format on */

#define CLIP_TENSORS                                                                            \
    .layer = clip_layer, .n_layer_tensor = sizeof clip_layer / sizeof *clip_layer,              \
    .patch = "embeddings.patch_embedding", .positions = "embeddings.position_embedding.weight", \
    .last_norm = "post_layernorm"

static const struct vision_tower towers[] = {
    {
        .type = "clip_vision_model", /* arXiv:2103.00020 */
        .prefixes = {"vision_tower.vision_model.", "model.vision_tower.vision_model.",
                     "model.vision_tower.", "vision_tower."},
        CLIP_TENSORS,
        .class_row = "embeddings.class_embedding",
        .first_norm = "pre_layrnorm",
        .hidden_size = 768,
        .intermediate_size = 3072,
        .n_layer = 12,
        .n_head = 12,
        .image_size = 224,
        .patch_size = 32,
        .act = "quick_gelu",
        .eps = 1e-5,
    },
    {
        .type = "siglip_vision_model", /* arXiv:2303.15343 */
        .prefixes = {"vision_tower.vision_model.", "model.vision_tower.vision_model.",
                     "model.vision_tower.", "vision_tower."},
        CLIP_TENSORS,
        .has_patch_bias = true,
        .hidden_size = 768,
        .intermediate_size = 3072,
        .n_layer = 12,
        .n_head = 12,
        .image_size = 224,
        .patch_size = 16,
        .act = "gelu_pytorch_tanh",
        .eps = 1e-6,
    },
    {
        .type = "idefics3_vision", /* SmolVLM's too */
        .prefixes = {"model.vision_model."},
        CLIP_TENSORS,
        .has_patch_bias = true,
        .hidden_size = 1152,
        .intermediate_size = 3072,
        .n_layer = 12,
        .n_head = 16,
        .image_size = 224,
        .patch_size = 32,
        .act = "gelu_pytorch_tanh",
        .eps = 1e-6,
    },
    {
        .type = "internvl_vision", /* arXiv:2312.14238 */
        .prefixes = {"model.vision_tower.", "vision_tower."},
        .layer = internvl_layer,
        .n_layer_tensor = sizeof internvl_layer / sizeof *internvl_layer,
        .patch = "embeddings.patch_embeddings.projection",
        .positions = "embeddings.position_embeddings",
        .class_row = "embeddings.cls_token",
        .has_patch_bias = true,
        .hidden_size = 1024,
        .intermediate_size = 4096,
        .n_layer = 24,
        .n_head = 16,
        .image_size = 448,
        .patch_size = 14,
        .act = "gelu",
        .eps = 1e-6,
    },
};

/* Idefics 3, and SmolVLM, which is made of it. */
#define IDEFICS3                                                                               \
    .default_tower = "idefics3_vision", .cut = VISION_CUT_TILES, .projector = VISION_SHUFFLE,  \
    .token_keys = {"image_token_id"}, .prefixes = {"model.connector."}, .has_last_norm = true, \
    .mean = HALVES, .std = HALVES, .filter = IMAGE_LANCZOS, .longest_edge = 1456

static const struct vision_model models[] = {
    {
        .architecture = "LlavaForConditionalGeneration",
        .default_tower = "clip_vision_model",
        .reads_type = true,
        .cut = VISION_CUT_SQUARE,
        .projector = VISION_MLP,
        .token_keys = {"image_token_id", "image_token_index"},
        .prefixes = {"multi_modal_projector.", "model.multi_modal_projector."},
        .mean = CLIP_MEAN,
        .std = CLIP_STD,
        .filter = IMAGE_BICUBIC,
    },
    {.architecture = "Idefics3ForConditionalGeneration", IDEFICS3},
    {.architecture = "SmolVLMForConditionalGeneration", IDEFICS3},
    {
        .architecture = "InternVLForConditionalGeneration",
        .default_tower = "internvl_vision",
        .cut = VISION_CUT_GRID,
        .projector = VISION_SHUFFLE_MLP,
        .token_keys = {"image_token_id"},
        .prefixes = {"model.multi_modal_projector.", "multi_modal_projector."},
        .mean = IMAGENET_MEAN,
        .std = IMAGENET_STD,
        .filter = IMAGE_BICUBIC,
    },
};

const struct vision_model *vision_model_of(const char *architecture)
{
    for (size_t i = 0; i < sizeof models / sizeof *models; i++)
        if (strcmp(models[i].architecture, architecture) == 0)
            return &models[i];
    return NULL;
}

const struct vision_tower *vision_tower_of(const char *type)
{
    for (size_t i = 0; i < sizeof towers / sizeof *towers; i++)
        if (strcmp(towers[i].type, type) == 0)
            return &towers[i];
    return NULL;
}
