/* SPDX-License-Identifier: Apache-2.0 */
/* items_run - a model with inputs that are no tokens (tests/plugins/grids.c over the Llama golden),
 * and requests with them. Threads: the test's. */
#ifndef QUIRE_TESTS_UNIT_ITEMS_RUN_H
#define QUIRE_TESTS_UNIT_ITEMS_RUN_H
#include "core_run.h"
#include "engine/model/plugins.h"
#include "common/mem.h"
#include "folder.h"

#define GRID_ID   ((uint32_t)-7)
#define STRIP_ID  ((uint32_t)-8)
#define MARK_ID   7u
#define ITEMS_TOP 16 /* of a request here */

struct items_request {
    uint32_t ids[BITS_ROWS], n;
    struct item_array items[ITEMS_TOP];
    uint32_t n_item;
    double numbers[ITEMS_TOP][8]; /* as JSON has them */
};

static struct folder items_folder;

/* The plugin is loaded into this process, for an engine and a worker thread. */
static inline void items_model(void)
{
    char path[PATH_MAX];
    struct plugins_config c = {.n = 0};
    struct q_err e = Q_ERR_INIT;
    struct buf text = BUF_INIT;
    snprintf(path, sizeof path, "%s", program_beside("/tests/plugins/grids.so"));
    const char *paths[] = {path};
    assert_ok(plugins_config_set(&c, paths, 1, "", &e), &e);
    assert_ok(plugins_open(&c, NULL, &e), &e);
    folder_init(&items_folder);
    assert_ok(file_read(&text, GOLDENS_DIR "/llama/config.json", 1u << 20, &e), &e);
    char *name = strstr(text.data, "LlamaForCausalLM");
    assert_non_null(name);
    memcpy(name, "GridsForCausalLM", strlen("GridsForCausalLM"));
    folder_write(&items_folder, "config.json", text.data, text.len);
    folder_copy(&items_folder, GOLDENS_DIR "/llama", "model.safetensors");
    buf_release(&text);
}

static inline struct core_config items_config(void)
{
    struct core_config c = config_of(items_folder.path);
    c.worker.n_thread = 1;
    c.worker.max_model_len = 144;
    c.worker.n_block = 64;
    c.prefix_cache = true;
    c.items.store_bytes = 1u << 20;
    return c;
}

static inline void add_id(struct items_request *r, uint32_t id, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        r->ids[r->n++] = id;
}

static inline double *add_array(struct items_request *r, const char *modality, uint32_t n_dim,
                                uint32_t a, uint32_t b)
{
    double *x = r->numbers[r->n_item];
    r->items[r->n_item++] = (struct item_array){
        .modality = modality,
        .dtype = ITEM_NUMBERS,
        .n_dim = n_dim,
        .dims = {a, b},
        .data = x,
        .n_byte = (size_t)a * (n_dim > 1 ? b : 1) * sizeof *x,
    };
    return x;
}

static inline void add_grid(struct items_request *r, double seed)
{
    double *x = add_array(r, "grids", 2, 2, 3);
    for (uint32_t i = 0; i < 6; i++)
        x[i] = seed + 0.25 * i;
    add_id(r, GRID_ID, 4);
}

static inline void add_strip(struct items_request *r, uint32_t n, uint32_t seed)
{
    double *x = add_array(r, "strips", 1, n, 0);
    for (uint32_t i = 0; i < n; i++)
        x[i] = (seed + 40 * i) % 256;
    add_id(r, STRIP_ID, 1);
}

static inline void add_mark(struct items_request *r, int mark)
{
    *add_array(r, "marks", 1, 1, 0) = mark;
    add_id(r, MARK_ID, 1);
}

static inline void add_text(struct items_request *r, uint32_t n, uint32_t seed)
{
    for (uint32_t i = 0; i < n; i++)
        add_id(r, 20 + (seed * 31 + i * i * 7) % 450, 1);
}

/* Text and items of all kinds: 72 rows, of grids 12, strips 9, marks 2. */
static inline void make_mixed(struct items_request *r, double seed)
{
    memset(r, 0, sizeof *r);
    add_text(r, 13, 1);
    add_grid(r, seed);
    add_text(r, 9, 2);
    add_strip(r, 5, 3);
    add_grid(r, seed + 1);
    add_grid(r, seed + 2);
    add_mark(r, 4);
    add_text(r, 20, 3);
    add_strip(r, 4, 90);
    add_mark(r, 30);
    add_text(r, 7, 4);
}

static inline struct msg_submit items_submit(const struct items_request *r, uint64_t req_id)
{
    return (struct msg_submit){
        .req_id = req_id,
        .prompt = {r->ids, r->n},
        .top_p = 1,
        .repetition_penalty = 1,
        .n_logprob = 1 + BITS_TOP,
        .max_tokens = 24,
        .ignore_eos = true,
    };
}

static inline enum q_code try_items(const struct items_request *r, const struct msg_submit *m,
                                    struct q_err *e)
{
    return core_submit_items(engine.core, 1, m, r->items, r->n_item, e);
}

static inline void ask_items(const struct items_request *r, uint64_t req_id)
{
    const struct msg_submit m = items_submit(r, req_id);
    struct q_err e = Q_ERR_INIT;
    assert_ok(try_items(r, &m, &e), &e);
}

#endif
