/* SPDX-License-Identifier: Apache-2.0 */
/* A plugin for tests of items: Llama with inputs of every kind that the engine has.
 *
 *     grids    [2, 3] f32, 4 rows, placeholder -7 four times
 *     strips   [1 … 5] u8, as many rows as numbers, placeholder -8 once (expand)
 *     blobs    [1 … 2^24] u8, 1 row, placeholder -9 once; none begins with 255
 *     marks    [1] i32, 1 row, placeholder: token 7 of the vocabulary; no negative number
 *
 * A row is made of the item's numbers alone. A grid that begins with 666 cannot be computed, one
 * with 999 crashes its process, one with 777 never ends. The check of a blob that begins with 254
 * never ends; with 253 or 252 its message is no plain text. QUIRE_TEST_ZEROS: a grid of zeros
 * crashes, exits, fails. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "engine/plugin.h"

static int fail(struct quire_plugin_error *error, const char *text)
{
    size_t i = 0;
    for (; text[i] && i + 1 < sizeof error->message; i++)
        error->message[i] = text[i];
    error->message[i] = '\0';
    return 1;
}

static void hang(void)
{
    for (;;)
        sleep(1);
}

static int fail_zeros(struct quire_plugin_error *error)
{
    const char *fault = getenv("QUIRE_TEST_ZEROS");
    if (!fault)
        return 0;
    if (strcmp(fault, "crash") == 0)
        abort();
    if (strcmp(fault, "exit") == 0)
        exit(0);
    return fail(error, "zeros are no grid");
}

/* Row r of an item, from a number of it. */
static void fill_row(const struct quire_rows *out, uint32_t r, double number)
{
    float *row = out->rows + r * out->stride;
    for (uint32_t i = 0; i < out->n_col; i++)
        row[i] = (float)(number * (double)((i * 7 + r * 3) % 11) * 0.02 - 0.05 * (double)(i % 5));
}

static int embed_grid(const struct quire_host *host, const struct quire_model *m,
                      const struct quire_item *item, const struct quire_rows *out,
                      struct quire_plugin_error *error)
{
    const float *x = item->data;
    (void)host, (void)m;
    if (x[0] == 666)
        return fail(error, "this grid cannot be computed");
    if (x[0] == 999)
        abort();
    if (x[0] == 777)
        hang();
    if (x[0] == 0 && fail_zeros(error))
        return 1;
    for (uint32_t r = 0; r < out->n; r++)
        fill_row(out, r, (double)x[r] + 0.5 * (double)x[r + 2]);
    return 0;
}

static int embed_strip(const struct quire_host *host, const struct quire_model *m,
                       const struct quire_item *item, const struct quire_rows *out,
                       struct quire_plugin_error *error)
{
    const unsigned char *x = item->data;
    (void)host, (void)m, (void)error;
    for (uint32_t r = 0; r < out->n; r++)
        fill_row(out, r, (double)x[r] / 100);
    return 0;
}

static uint32_t count_strip(const struct quire_model *m, const struct quire_item *item)
{
    (void)m;
    return item->dims[0];
}

static int check_mark(const struct quire_host *host, const struct quire_model *m,
                      const struct quire_item *item, struct quire_plugin_error *error)
{
    (void)host, (void)m;
    if ((uintptr_t)item->data % 16)
        return fail(error, "its data are not aligned to 16 bytes");
    return *(const int32_t *)item->data < 0 ? fail(error, "a mark is 0 or more") : 0;
}

static int embed_mark(const struct quire_host *host, const struct quire_model *m,
                      const struct quire_item *item, const struct quire_rows *out,
                      struct quire_plugin_error *error)
{
    (void)host, (void)m, (void)error;
    fill_row(out, 0, (double)*(const int32_t *)item->data / 10);
    return 0;
}

static const struct quire_modality grids = {
    .size = sizeof grids,
    .name = "grids",
    .part_type = "grid",
    .placeholder = -7,
    .dtype = QUIRE_F32,
    .dims = {"2", "3"},
    .n_dim = 2,
    .n_token = "4",
    .max_items = "6",
    .embed_item = embed_grid,
};
static const struct quire_modality strips = {
    .size = sizeof strips,
    .name = "strips",
    .part_type = "strips",
    .placeholder = -8,
    .expand = true,
    .dtype = QUIRE_U8,
    .dims = {""},
    .n_dim = 1,
    .dims_max = {5},
    .max_items = "8",
    .count_tokens = count_strip,
    .embed_item = embed_strip,
};
static const struct quire_modality marks = {
    .size = sizeof marks,
    .name = "marks",
    .part_type = "mark",
    .placeholder = 7,
    .dtype = QUIRE_I32,
    .dims = {"1"},
    .n_dim = 1,
    .n_token = "1",
    .max_items = "4",
    .check_item = check_mark,
    .embed_item = embed_mark,
};
static int check_blob(const struct quire_host *host, const struct quire_model *m,
                      const struct quire_item *item, struct quire_plugin_error *error)
{
    const unsigned char first = *(const unsigned char *)item->data;
    (void)host, (void)m;
    if (first == 254)
        hang();
    if (first == 253)
        memset(error->message, 0xe9, sizeof error->message);
    if (first == 252)
        fail(error, "no\nblob \x1b[1mbegins with 252\xff");
    return first == 255 ? fail(error, "no blob begins with 255") : first > 251;
}

static int embed_blob(const struct quire_host *host, const struct quire_model *m,
                      const struct quire_item *item, const struct quire_rows *out,
                      struct quire_plugin_error *error)
{
    const unsigned char *x = item->data;
    uint32_t sum = 0;
    (void)host, (void)m, (void)error;
    for (size_t i = 0; i < item->n_byte; i += 4096)
        sum += x[i];
    fill_row(out, 0, (double)(sum % 1000) / 100);
    return 0;
}

static const struct quire_modality blobs = {
    .size = sizeof blobs,
    .name = "blobs",
    .placeholder = -9,
    .dtype = QUIRE_U8,
    .dims = {""},
    .n_dim = 1,
    .dims_max = {1 << 24},
    .n_token = "1",
    .max_items = "8",
    .check_item = check_blob,
    .embed_item = embed_blob,
};
static const struct quire_modality *const modalities[] = {&grids, &strips, &marks, &blobs};
static const struct quire_architecture architecture = {
    .size = sizeof architecture,
    .name = "GridsForCausalLM",
    .base = "LlamaForCausalLM",
    .modalities = modalities,
    .n_modality = 4,
};
static const struct quire_architecture *const architectures[] = {&architecture};
static const struct quire_plugin plugin = {
    .size = sizeof plugin,
    .abi = QUIRE_PLUGIN_ABI,
    .name = "grids",
    .version = "1.0",
    .architectures = architectures,
    .n_architecture = 1,
};

const struct quire_plugin *quire_plugin_1(void)
{
    return &plugin;
}
