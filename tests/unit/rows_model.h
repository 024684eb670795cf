/* SPDX-License-Identifier: Apache-2.0 */
/* rows_model - a checkpoint of tests/plugins/rows.c: the Llama golden and the plugin's tensors.
 * Threads: the test's. */
#ifndef QUIRE_TESTS_UNIT_ROWS_MODEL_H
#define QUIRE_TESTS_UNIT_ROWS_MODEL_H
#include "common/buf.h"
#include "common/hub/safetensors.h"
#include "folder.h"

#define ROWS_COLS   64u /* hidden size */
#define ROWS_NARROW 48u
#define ROWS_N      4u
#define ROWS_ID     ((uint32_t)-9)

static const struct rows_tensor {
    const char *name;
    uint32_t n_row, n_col; /* n_col 0: a vector */
} rows_tensors[] = {
    {"own.floats", ROWS_COLS, ROWS_NARROW},
    {"own.quantized", ROWS_COLS, ROWS_NARROW},
    {"own.bias", ROWS_COLS, 0},
    {"own.norm", ROWS_COLS, 0},
    {"own.short_norm", ROWS_NARROW, 0},
    {"own.table", 5, ROWS_COLS},
    {"own.layers.0.steps", ROWS_COLS, 0},
    {"own.layers.1.steps", ROWS_COLS, 0},
    {"own.read", ROWS_COLS, 0},
};
enum {
    ROWS_FLOATS,
    ROWS_QUANTIZED,
    ROWS_BIAS,
    ROWS_NORM,
    ROWS_SHORT_NORM,
    ROWS_TABLE,
    ROWS_STEPS, /* of layer 0; then of layer 1 */
    ROWS_READ = ROWS_STEPS + 2,
    ROWS_TENSORS
};

/* Number i of tensor t. */
static inline float rows_number(uint32_t t, uint32_t i)
{
    return (float)((i * 2654435761u + t * 40503u + i / 7) >> 8 & 1023) / 512 - 0.9f;
}

static inline void rows_put(struct buf *header, struct buf *data, const struct tensor *t)
{
    const size_t from = data->len;
    buf_add(data, t->data, t->n_bytes);
    buf_printf(header, "%c\"%s\": {\"dtype\": \"F32\", \"shape\": [%llu", from ? ',' : '{', t->name,
               (unsigned long long)t->shape[0]);
    for (uint32_t d = 1; d < t->n_dim; d++)
        buf_printf(header, ", %llu", (unsigned long long)t->shape[d]);
    buf_printf(header, "], \"data_offsets\": [%zu, %zu]}", from, data->len);
}

static inline void rows_put_own(struct buf *header, struct buf *data, uint32_t i)
{
    static float x[ROWS_COLS * ROWS_COLS];
    const struct rows_tensor *r = &rows_tensors[i];
    const uint32_t n = r->n_row * (r->n_col ? r->n_col : 1);
    for (uint32_t k = 0; k < n; k++)
        x[k] = rows_number(i, k);
    const struct tensor t = {
        .name = r->name,
        .n_dim = r->n_col ? 2 : 1,
        .shape = {r->n_row, r->n_col},
        .data = x,
        .n_bytes = n * sizeof *x,
    };
    rows_put(header, data, &t);
}

/* Makes the folder; `llama` has the golden. more: keys of the config, with a comma behind each. */
static inline void rows_model(struct folder *f, const char *llama, const char *more)
{
    struct buf header = BUF_INIT, data = BUF_INIT, file = BUF_INIT, text = BUF_INIT,
               config = BUF_INIT;
    struct tensor_set *s;
    struct q_err e = Q_ERR_INIT;
    char path[PATH_MAX];
    folder_init(f);
    assert_ok(tensor_set_open(&s, llama, &e), &e);
    for (uint32_t i = 0; i < tensor_count(s); i++)
        rows_put(&header, &data, tensor_at(s, i));
    for (uint32_t i = 0; i < ROWS_TENSORS; i++)
        rows_put_own(&header, &data, i);
    buf_add_char(&header, '}');
    while (header.len % 8)
        buf_add_char(&header, ' ');
    const uint64_t n = header.len;
    buf_add(&file, &n, sizeof n);
    buf_add(&file, header.data, header.len);
    buf_add(&file, data.data, data.len);
    folder_write(f, "model.safetensors", file.data, file.len);
    snprintf(path, sizeof path, "%s/config.json", llama);
    assert_ok(file_read(&text, path, 1u << 20, &e), &e);
    char *name = strstr(text.data, "LlamaForCausalLM");
    assert_non_null(name);
    buf_printf(&config, "{%s%.*sRowsForCausalLM%s", more, (int)(name - text.data - 1),
               text.data + 1, name + strlen("LlamaForCausalLM"));
    folder_text(f, "config.json", config.data);
    tensor_set_free(s);
    buf_release(&text);
    buf_release(&config);
    buf_release(&header);
    buf_release(&data);
    buf_release(&file);
}

#endif
