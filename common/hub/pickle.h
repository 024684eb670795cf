/* SPDX-License-Identifier: Apache-2.0 */
/* pickle - the pickles that torch.save writes, read by an interpreter that can only build tensors.
 *
 * A pickle is a program for a stack machine, and in Python its GLOBAL and REDUCE operations call
 * any function. Here a global is a row of pickle_globals.def, and every other one is refused by its
 * name before anything is done with it. Values are numbers, texts, tuples, lists, dicts, storages
 * and tensors of storages; no other object exists.
 * Bounds: each operation makes at most one value, so memory is linear in the bytes of the pickle;
 * values are not copied, and nothing here descends into them, so depth needs no bound.
 * Source: pickletools.py (operations of protocols 2 to 5). Threads: reentrant. */
#ifndef QUIRE_COMMON_HUB_PICKLE_H
#define QUIRE_COMMON_HUB_PICKLE_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "common/dtype.h"
#include "common/err.h"
#include "common/hub/tensor.h"
#include "common/mem.h"

#define PICKLE_BYTES_MAX  ((size_t)64 << 20) /* 10^5 tensors take some 20 MB */
#define PICKLE_VALUES_MAX ((size_t)1 << 30)  /* bytes of values: those 10^5 take some 100 MB */

enum pickle_kind {
    PICKLE_NONE,
    PICKLE_BOOL,
    PICKLE_INT,   /* also of more than 64 bits: those have no number (is_big) */
    PICKLE_FLOAT, /* without its number: no size is one */
    PICKLE_TEXT,  /* also bytes */
    PICKLE_TUPLE,
    PICKLE_LIST,
    PICKLE_DICT, /* keys and values in turn, in the order of the pickle */
    PICKLE_SET,
    PICKLE_GLOBAL,
    PICKLE_STORAGE,
    PICKLE_TENSOR
};

struct pickle_text {
    const char *data; /* [n], in the pickle; no NUL behind it */
    size_t n;
};

struct pickle_storage {
    struct pickle_text key;
    enum dtype dtype;
    bool is_untyped; /* its elements are bytes */
    uint64_t n;      /* elements */
};

struct pickle_tensor {
    const struct pickle_storage *storage;
    enum dtype dtype;
    uint64_t offset; /* elements of dtype */
    uint32_t n_dim;
    uint64_t shape[TENSOR_DIMS_MAX], stride[TENSOR_DIMS_MAX]; /* elements */
};

struct pickle_value {
    enum pickle_kind kind;
    bool is_big;
    union {
        int64_t number; /* BOOL, INT */
        struct pickle_text text;
        struct pickle_items {
            const struct pickle_value **at;
            size_t n, cap;
        } items;      /* TUPLE, LIST, DICT, SET */
        uint32_t row; /* GLOBAL: of pickle_globals.def */
        struct pickle_storage *storage;
        struct pickle_tensor *tensor;
    } is;
};

struct pickle_source {
    const unsigned char *data; /* [n]; texts point into it */
    size_t n;
    const char *path; /* for messages */
};
/* The value of the pickle at the beginning of the source, which ends with its STOP operation;
 * *n_used: bytes up to there, may be NULL. Values live in `a`.
 * Errors: Q_UNSUPPORTED (a global or an operation that is not read, by name), Q_CORRUPT (path,
 * byte, reason), Q_TOO_LARGE, Q_NO_MEMORY. */
FALLIBLE pickle_read(const struct pickle_value **out, size_t *n_used, struct arena *a,
                     const struct pickle_source *s, struct q_err *e);
/* "a list", "a tensor": for messages. */
const char *pickle_kind_name(enum pickle_kind kind);
bool pickle_text_is(const struct pickle_value *v, const char *text);

#endif
