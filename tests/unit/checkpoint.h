/* SPDX-License-Identifier: Apache-2.0 */
/* checkpoint - other weights of a golden model, as training would produce them: all numbers
 * slightly different, names and shapes the same. Threads: the test's. */
#ifndef QUIRE_TESTS_UNIT_CHECKPOINT_H
#define QUIRE_TESTS_UNIT_CHECKPOINT_H
#include "common/buf.h"
#include "common/hub/safetensors.h"
#include "folder.h"

struct checkpoint {
    const char *from; /* model folder, all of it F32 */
    float factor;     /* of every number */
    bool as_bf16;     /* truncated to 16 bits */
    bool no_config;   /* the weights alone */
    const char *name; /* "" or a folder below, e.g. "step-2" */
};

static inline void checkpoint_add(struct buf *data, const struct tensor *t,
                                  const struct checkpoint *c)
{
    for (uint64_t i = 0; i < t->n_bytes / sizeof(float); i++) {
        float x;
        uint16_t high;
        memcpy(&x, (const char *)t->data + i * sizeof x, sizeof x);
        x *= c->factor;
        memcpy(&high, (const char *)&x + 2, sizeof high);
        if (c->as_bf16)
            buf_add(data, (const char *)&high, sizeof high);
        else
            buf_add(data, (const char *)&x, sizeof x);
    }
}

static inline void checkpoint_copy(const struct folder *f, const struct checkpoint *c,
                                   const char *name)
{
    char from[PATH_MAX], to[PATH_MAX];
    struct buf text = BUF_INIT;
    struct q_err e = Q_ERR_INIT;
    assert_ok(path_join(from, sizeof from, c->from, name, &e), &e);
    snprintf(to, sizeof to, "%s%s%s", c->name, *c->name ? "/" : "", name);
    assert_ok(file_read(&text, from, 1 << 20, &e), &e);
    folder_write(f, to, text.data, text.len);
    buf_release(&text);
}

/* Writes f/name/model.safetensors, and config.json beside it. */
static inline void checkpoint_write(const struct folder *f, const struct checkpoint *c)
{
    struct tensor_set *s;
    struct buf header = BUF_INIT, data = BUF_INIT, file = BUF_INIT;
    struct q_err e = Q_ERR_INIT;
    char name[PATH_MAX];
    assert_ok(tensor_set_open(&s, c->from, &e), &e);
    for (uint32_t i = 0; i < tensor_count(s); i++) {
        const struct tensor *t = tensor_at(s, i);
        size_t start = data.len;
        assert_int_equal(t->dtype, DT_F32);
        checkpoint_add(&data, t, c);
        buf_printf(&header, "%c\"%s\": {\"dtype\": \"%s\", \"shape\": [", i ? ',' : '{', t->name,
                   c->as_bf16 ? "BF16" : "F32");
        for (uint32_t d = 0; d < t->n_dim; d++)
            buf_printf(&header, "%s%llu", d ? ", " : "", (unsigned long long)t->shape[d]);
        buf_printf(&header, "], \"data_offsets\": [%zu, %zu]}", start, data.len);
    }
    buf_add_char(&header, '}');
    while (header.len % 8)
        buf_add_char(&header, ' ');
    for (int i = 0; i < 8; i++)
        buf_add_char(&file, (char)((uint64_t)header.len >> 8 * i));
    buf_add(&file, header.data, header.len);
    buf_add(&file, data.data, data.len);
    snprintf(name, sizeof name, "%s%smodel.safetensors", c->name, *c->name ? "/" : "");
    folder_write(f, name, file.data, file.len);
    if (!c->no_config)
        checkpoint_copy(f, c, "config.json");
    tensor_set_free(s);
    buf_release(&header);
    buf_release(&data);
    buf_release(&file);
}

#endif
