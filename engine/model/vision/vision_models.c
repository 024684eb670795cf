/* SPDX-License-Identifier: Apache-2.0 */
/* The towers and the architectures whose images are served, as data. Defaults are those of
 * transformers' configs and image processors (2026-11). */
#include <string.h>
#include "engine/model/vision/vision_config.h"

/* clang-format off */
#define CLIP_MEAN {0.48145466, 0.4578275, 0.40821073}
#define CLIP_STD  {0.26862954, 0.26130258, 0.27577711}
#define HALVES    {0.5, 0.5, 0.5}
/* clang-format on */

static const struct vision_tower towers[] = {
    {
        .type = "clip_vision_model", /* arXiv:2103.00020 */
        .prefixes = {"vision_tower.vision_model.", "model.vision_tower.vision_model.",
                     "model.vision_tower.", "vision_tower."},
        .has_class = true,
        .has_first_norm = true,
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
        .type = "idefics3_vision",
        .prefixes = {"model.vision_model."},
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
        .type = "smolvlm_vision",
        .prefixes = {"model.vision_model."},
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
};

static const struct vision_model models[] = {
    {
        .architecture = "LlavaForConditionalGeneration",
        .default_tower = "clip_vision_model",
        .cut = VISION_CUT_SQUARE,
        .projector = VISION_MLP,
        .token_keys = {"image_token_id", "image_token_index"},
        .prefixes = {"multi_modal_projector.", "model.multi_modal_projector."},
        .mean = CLIP_MEAN,
        .std = CLIP_STD,
        .filter = IMAGE_BICUBIC,
    },
    {
        .architecture = "Idefics3ForConditionalGeneration",
        .default_tower = "idefics3_vision",
        .cut = VISION_CUT_TILES,
        .projector = VISION_SHUFFLE,
        .token_keys = {"image_token_id"},
        .prefixes = {"model.connector."},
        .has_last_norm = true,
        .mean = HALVES,
        .std = HALVES,
        .filter = IMAGE_LANCZOS,
        .longest_edge = 1456,
    },
    {
        .architecture = "SmolVLMForConditionalGeneration",
        .default_tower = "smolvlm_vision",
        .cut = VISION_CUT_TILES,
        .projector = VISION_SHUFFLE,
        .token_keys = {"image_token_id"},
        .prefixes = {"model.connector."},
        .has_last_norm = true,
        .mean = HALVES,
        .std = HALVES,
        .filter = IMAGE_LANCZOS,
        .longest_edge = 1456,
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
