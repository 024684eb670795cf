/* SPDX-License-Identifier: Apache-2.0 */
/* plain_twin - the float32 model that a checkpoint of tests/data/quantized stands for, as a folder:
 * written when a test asks for it, of what the loader reads of the checkpoint. Each tensor's floats
 * have the SHA-256 of those that numpy made (plain.json, by make.py), so the twin is numpy's.
 * Threads: the test's. */
#ifndef QUIRE_TESTS_UNIT_PLAIN_TWIN_H
#define QUIRE_TESTS_UNIT_PLAIN_TWIN_H
#include <jansson.h>
#include <openssl/evp.h>
#include "engine/model/load/weight_finder.h"
#include "engine/model/load/weight_quant.h"
#include "folder.h"
#include "common/hub/hub_json.h"
#include "common/hub/safetensors_write.h"
#include "common/mem.h"

#define PLAIN_TENSORS_MAX 64u
#define PLAIN_FLOATS_MAX  (1u << 18) /* of a model */

/* As numpy's hashlib writes it. */
static inline void plain_check_sum(const char *name, const float *data, size_t n, const char *want)
{
    unsigned char sum[EVP_MAX_MD_SIZE];
    char text[2 * EVP_MAX_MD_SIZE + 1];
    unsigned n_sum = 0;
    assert_true(EVP_Digest(data, n * sizeof *data, sum, &n_sum, EVP_sha256(), NULL));
    for (unsigned i = 0; i < n_sum; i++)
        snprintf(text + (size_t)2 * i, 3, "%02x", sum[i]);
    if (!want || strcmp(text, want) != 0)
        fail_msg("%s: the floats that are read are not numpy's: their SHA-256 is %s, expected %s; "
                 "make.py --plain writes those of numpy",
                 name, text, want ? want : "one");
}

/* rows 1: a vector. */
static inline void plain_read(float *out, const struct weight_finder *f, const char *name,
                              uint32_t rows, uint32_t cols)
{
    struct q_err e = Q_ERR_INIT;
    struct weight_source s = {.present = true, .rows = rows, .cols = cols, .stored_rows = rows};
    const struct tensor *t = tensor_find(f->files, name);
    if (rows > 1)
        assert_ok(weight_quant_find(&s, f, name, &e), &e);
    if (s.quant.q) {
        weight_quant_rows(out, &s, 0, rows);
        return;
    }
    assert_non_null(t);
    assert_true(t->dtype == DT_F16 && t->n_bytes == (size_t)rows * cols * 2);
    for (size_t i = 0; i < (size_t)rows * cols; i++) {
        uint16_t half;
        memcpy(&half, (const char *)t->data + 2 * i, sizeof half);
        out[i] = f16_to_f32(half);
    }
}

static inline void plain_write(const struct folder *twin, struct safetensors_item *items, size_t n,
                               const float *floats, size_t n_float)
{
    struct buf file = BUF_INIT;
    struct q_err e = Q_ERR_INIT;
    uint64_t n_byte;
    assert_ok(safetensors_layout(items, n, &file, &n_byte, &e), &e);
    buf_add(&file, (const char *)floats, n_float * sizeof *floats);
    assert_int_equal(file.len, n_byte);
    folder_write(twin, "model.safetensors", file.data, file.len);
    buf_release(&file);
}

/* from: a folder of tests/data/quantized. Release with folder_release. */
static inline void plain_twin(struct folder *twin, const char *from)
{
    static struct model_config config;
    static float floats[PLAIN_FLOATS_MAX];
    struct safetensors_item items[PLAIN_TENSORS_MAX];
    struct weight_finder f = {.config = &config};
    struct tensor_set *files = NULL;
    struct q_err e = Q_ERR_INIT;
    char path[PATH_MAX];
    json_t *root = NULL, *tensor;
    const char *name;
    size_t n = 0, at = 0;
    assert_ok(path_join(path, sizeof path, from, "plain.json", &e), &e);
    assert_ok(hub_json_load(&root, path, &e), &e);
    assert_ok(model_config_load(&config, NULL, from, &e), &e);
    assert_ok(arch_find(&f.arch, config.architecture, &e), &e);
    assert_ok(tensor_set_open(&files, from, &e), &e);
    f.files = files;
    json_object_foreach (json_object_get(root, "tensors"), name, tensor) {
        const json_t *shape = json_object_get(tensor, "shape");
        const uint32_t n_dim = (uint32_t)json_array_size(shape);
        const uint32_t last = (uint32_t)json_integer_value(json_array_get(shape, n_dim - 1));
        const uint32_t rows =
            n_dim == 1 ? 1 : (uint32_t)json_integer_value(json_array_get(shape, 0));
        const size_t many = (size_t)rows * last;
        assert_true(n < PLAIN_TENSORS_MAX && many <= PLAIN_FLOATS_MAX - at);
        plain_read(floats + at, &f, name, rows, last);
        plain_check_sum(name, floats + at, many,
                        json_string_value(json_object_get(tensor, "sha256")));
        items[n] = (struct safetensors_item){.name = name, .dtype = DT_F32, .n_dim = n_dim};
        items[n].shape[0] = n_dim == 1 ? last : rows;
        items[n++].shape[1] = last;
        at += many;
    }
    assert_true(n > 0);
    folder_init(twin);
    plain_write(twin, items, n, floats, at);
    char *text = json_dumps(json_object_get(root, "config"), 0);
    assert_non_null(text);
    folder_write(twin, "config.json", text, strlen(text));
    free(text);
    json_decref(root);
    tensor_set_free(files);
}

#endif
