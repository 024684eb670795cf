/* SPDX-License-Identifier: Apache-2.0 */
/* A plugin for tests of images: Llama with a modality of them, as a vision model has one.
 *
 *     image    [1 … 128, 1 … 128, 3] u8, a row for each 8 x 8 patch, placeholder: token 2559
 *
 * A row is made of the mean colour of its patch and of the patch's place. An image whose first
 * pixel is (255, 0, 255) is refused. */
#include <string.h>
#include "engine/plugin.h"

#define PATCH    8u
#define SIDE_MAX 128u
#define TOKEN    2559

static uint32_t patches(uint32_t side)
{
    return (side + PATCH - 1) / PATCH;
}

static uint32_t count_image(const struct quire_model *m, const struct quire_item *item)
{
    (void)m;
    return patches(item->dims[0]) * patches(item->dims[1]);
}

static int check_image(const struct quire_host *host, const struct quire_model *m,
                       const struct quire_item *item, struct quire_plugin_error *error)
{
    const unsigned char *x = item->data;
    (void)host, (void)m;
    if (x[0] != 255 || x[1] != 0 || x[2] != 255)
        return 0;
    memcpy(error->message, "no picture is pink", sizeof "no picture is pink");
    return 1;
}

/* The means of red, green and blue, 0 … 1. */
static void mean_of(double mean[3], const struct quire_item *item, uint32_t top, uint32_t left)
{
    const unsigned char *x = item->data;
    const uint32_t height = item->dims[0], width = item->dims[1];
    uint32_t n = 0, sums[3] = {0};
    for (uint32_t y = top; y < top + PATCH && y < height; y++)
        for (uint32_t c = left; c < left + PATCH && c < width; c++, n++)
            for (uint32_t k = 0; k < 3; k++)
                sums[k] += x[((size_t)y * width + c) * 3 + k];
    for (uint32_t k = 0; k < 3; k++)
        mean[k] = n ? (double)sums[k] / (255.0 * n) : 0;
}

static int embed_image(const struct quire_host *host, const struct quire_model *m,
                       const struct quire_item *item, const struct quire_rows *out,
                       struct quire_plugin_error *error)
{
    const uint32_t n_col = patches(item->dims[1]);
    (void)host, (void)m, (void)error;
    for (uint32_t r = 0; r < out->n; r++) {
        double mean[3];
        mean_of(mean, item, r / n_col * PATCH, r % n_col * PATCH);
        for (uint32_t i = 0; i < out->n_col; i++)
            out->rows[r * out->stride + i] =
                (float)(0.3 * mean[i % 3] * (double)((i * 7 + r * 3) % 11 + 1) / 6 - 0.1);
    }
    return 0;
}

static const struct quire_modality image = {
    .size = sizeof image,
    .name = "image",
    .part_type = "image_url",
    .placeholder = TOKEN,
    .expand = true,
    .dtype = QUIRE_U8,
    .dims = {"", "", "3"},
    .n_dim = 3,
    .dims_max = {SIDE_MAX, SIDE_MAX},
    .max_items = "4",
    .count_tokens = count_image,
    .check_item = check_image,
    .embed_item = embed_image,
};
static const struct quire_modality *const modalities[] = {&image};
static const struct quire_architecture architecture = {
    .size = sizeof architecture,
    .name = "PicturesForCausalLM",
    .base = "LlamaForCausalLM",
    .modalities = modalities,
    .n_modality = 1,
};
static const struct quire_architecture *const architectures[] = {&architecture};
static const struct quire_plugin plugin = {
    .size = sizeof plugin,
    .abi = QUIRE_PLUGIN_ABI,
    .name = "pictures",
    .version = "1.0",
    .architectures = architectures,
    .n_architecture = 1,
};

const struct quire_plugin *quire_plugin_1(void)
{
    return &plugin;
}
