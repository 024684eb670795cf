/* SPDX-License-Identifier: Apache-2.0 */
/* multi_modal_data as JSON (first byte even), and the item fields of a submit as a frame (odd);
 * 'p': a content part's value as JSON, 'h': the modalities of a hello as a frame.
 * What is accepted has its bytes, and comes through the wire as it was. */
#include <string.h>
#include "common/items/items.h"
#include "common/mem.h"
#include "proto/item_types.h"
#include "proto/items.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static volatile uint64_t sink;

static void read_item(const struct item_array *a)
{
    Q_ASSERT(a->dtype < ITEM_DTYPES && a->n_dim <= ITEM_ARRAY_DIMS_MAX);
    Q_ASSERT(item_array_bytes(a) == a->n_byte && *a->modality && strlen(a->modality) < 64);
    for (size_t i = 0; i < a->n_byte; i++)
        sink += ((const uint8_t *)a->data)[i];
}

static void travel(const struct item_array *items, uint32_t n)
{
    struct item_wire w;
    struct msg_submit m = {.req_id = 1};
    struct q_err e = Q_ERR_INIT;
    uint32_t n_back;
    if (item_wire_make(&w, items, n, &e))
        return;
    item_wire_put(&m, &w);
    struct item_array *back = q_calloc(n + 1, sizeof *back);
    Q_ASSERT(back && item_wire_count(&n_back, &m, &e) == Q_OK && n_back == n);
    Q_ASSERT(item_wire_read(back, n, &m, NULL, 0, &e) == Q_OK);
    for (uint32_t i = 0; i < n; i++)
        Q_ASSERT(back[i].n_byte == items[i].n_byte && back[i].n_dim == items[i].n_dim &&
                 (!items[i].n_byte || !memcmp(back[i].data, items[i].data, items[i].n_byte)));
    q_free(back);
    item_wire_release(&w);
}

static void try_json(const char *text, size_t n)
{
    static const struct item_rules rules = {.files = false};
    struct item_list list;
    struct q_err e = Q_ERR_INIT;
    json_t *v = json_loadb(text, n, JSON_DECODE_ANY, NULL);
    if (!v)
        return;
    if (item_list_read(&list, v, &rules, &e) == Q_OK) {
        for (size_t i = 0; i < list.n; i++)
            read_item(&list.items[i]);
        travel(list.items, (uint32_t)list.n);
    } else {
        Q_ASSERT(!strncmp(e.message, "multi_modal_data: ", 18));
    }
    item_list_release(&list);
    json_decref(v);
}

static void try_frame(const uint8_t *frame, size_t n)
{
    struct arena arena = ARENA_INIT(1u << 22);
    struct msg_submit m;
    struct q_err e = Q_ERR_INIT;
    uint32_t n_item;
    if (msg_submit_decode(&m, frame, n, &arena, &e) == Q_OK &&
        item_wire_count(&n_item, &m, &e) == Q_OK) {
        struct item_array *items = q_calloc(n_item + 1, sizeof *items);
        if (items && item_wire_read(items, n_item, &m, NULL, 0, &e) == Q_OK)
            for (uint32_t i = 0; i < n_item; i++)
                read_item(&items[i]);
        q_free(items);
    }
    arena_release(&arena);
}

/* The value of a content part, of a type of two dimensions. */
static void try_part(const char *text, size_t n)
{
    static const struct item_rules rules = {.files = false};
    static const struct item_type type = {
        .modality = "grids",
        .part_type = "grid",
        .n_dim = 2,
        .dims = {0, 3},
        .dims_max = {4},
    };
    struct item_list list = ITEM_LIST_INIT;
    struct q_err e = Q_ERR_INIT;
    json_t *v = json_loadb(text, n, JSON_DECODE_ANY, NULL);
    if (!v)
        return;
    const enum q_code rc = item_list_add(&list, &type, 7, v, &rules, &e);
    item_list_end(&list);
    Q_ASSERT(rc ? !strncmp(e.message, "grids", 5) : list.n > 0);
    for (size_t i = 0; i < list.n && !rc; i++) {
        const struct item_array *a = &list.items[i];
        Q_ASSERT(a->n_dim == 2 && a->dims[0] >= 1 && a->dims[0] <= 4 && a->dims[1] == 3);
        read_item(a);
    }
    item_list_release(&list);
    json_decref(v);
}

/* A content part that is an image. */
static void try_image(const char *text, size_t n)
{
    static const struct item_rules rules = {.files = false};
    static const struct item_type type = {
        .modality = "image",
        .part_type = "image_url",
        .n_dim = 3,
        .dims = {0, 0, 3},
        .dims_max = {64, 64},
    };
    struct item_list list = ITEM_LIST_INIT;
    struct q_err e = Q_ERR_INIT;
    json_t *v = json_loadb(text, n, JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL);
    if (!v)
        return;
    const enum q_code rc = item_list_add(&list, &type, 0, v, &rules, &e);
    item_list_end(&list);
    Q_ASSERT(rc ? !strncmp(e.message, "image", 5) : list.n > 0);
    for (size_t i = 0; i < list.n && !rc; i++) {
        const struct item_array *a = &list.items[i];
        Q_ASSERT(a->n_dim == 3 && a->dims[0] <= 64 && a->dims[1] <= 64 && a->dims[2] == 3);
        read_item(a);
    }
    item_list_release(&list);
    json_decref(v);
}

/* What an engine says of its modalities: what is read is written the same. */
static void try_hello(const uint8_t *frame, size_t n)
{
    struct arena arena = ARENA_INIT(1u << 22);
    struct item_types types, again;
    struct item_types_wire w;
    struct msg_hello m, back = {.wire_min = 1};
    struct q_err e = Q_ERR_INIT;
    if (msg_hello_decode(&m, frame, n, &arena, &e) == Q_OK &&
        item_types_read(&types, &m, &e) == Q_OK) {
        item_types_put(&back, &w, &types);
        Q_ASSERT(item_types_read(&again, &back, &e) == Q_OK);
        Q_ASSERT(!memcmp(&types, &again, sizeof types));
    }
    arena_release(&arena);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    if (n == 0)
        return 0;
    if (data[0] == 'p')
        try_part((const char *)data + 1, n - 1);
    else if (data[0] == 'i')
        try_image((const char *)data + 1, n - 1);
    else if (data[0] == 'h')
        try_hello(data + 1, n - 1);
    else if (data[0] % 2)
        try_frame(data + 1, n - 1);
    else
        try_json((const char *)data + 1, n - 1);
    return 0;
}
