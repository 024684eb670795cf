/* SPDX-License-Identifier: Apache-2.0 */
/* gguf - one GGUF file: its metadata and where its tensors lie.
 *
 *     "GGUF"  u32 version  u64 n_tensor  u64 n_value
 *     value   u64 length, key; u32 kind; by kind: a number, u64 length and text, or of an array
 *             u32 kind, u64 n, its elements
 *     tensor  u64 length, name; u32 n_dim; u64 sizes, that of a row's elements first; u32 type;
 *             u64 offset into the data
 *     data    from the next multiple of general.alignment on; so does each tensor
 *
 * All of it is little-endian, of version 2 or 3. Checked when it is read: counts and lengths within
 * the file, no key and no name twice, tensors aligned, within the file and without overlap.
 * Numbers, texts and arrays stay where they are in the file. Source: ggml, docs/gguf.md.
 * Threads: a file that was read is only read. */
#ifndef QUIRE_COMMON_GGUF_GGUF_H
#define QUIRE_COMMON_GGUF_GGUF_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "common/err.h"

#define GGUF_DIMS_MAX    4u
#define GGUF_NAME_MAX    256u /* bytes of a tensor's name */
#define GGUF_KEY_MAX     65535u
#define GGUF_VALUES_MAX  ((uint64_t)1 << 16)
#define GGUF_TENSORS_MAX ((uint64_t)1 << 18)

/* numbers of the file */
enum gguf_kind {
    GGUF_U8,
    GGUF_I8,
    GGUF_U16,
    GGUF_I16,
    GGUF_U32,
    GGUF_I32,
    GGUF_F32,
    GGUF_BOOL,
    GGUF_TEXT,
    GGUF_ARRAY,
    GGUF_U64,
    GGUF_I64,
    GGUF_F64,
    GGUF_KIND_COUNT
};

enum gguf_read_as { GGUF_NOT, GGUF_FLOAT, GGUF_BLOCKS };
struct gguf_type {
    const char *name; /* "Q4_K" */
    uint32_t number;  /* in files */
    uint32_t block;   /* numbers that lie together */
    uint32_t bytes;   /* of them */
    enum gguf_read_as read_as;
};
/* NULL: no such type. */
const struct gguf_type *gguf_type_of(uint32_t number);
const struct gguf_type *gguf_type_named(const char *name);

struct gguf_text {
    const char *s; /* [n], into the file; no NUL behind it, and any bytes in it */
    size_t n;
};
struct gguf_value {
    struct gguf_text key;
    enum gguf_kind kind;
    enum gguf_kind of;         /* an array's elements; no arrays */
    uint64_t n;                /* elements; 1: no array */
    const unsigned char *data; /* the first element */
};
struct gguf_tensor {
    struct gguf_text name; /* no NUL in it */
    const struct gguf_type *type;
    uint32_t n_dim;
    uint64_t shape[GGUF_DIMS_MAX]; /* rows first, elements of a row last */
    const unsigned char *data;     /* [n_bytes] */
    uint64_t n_bytes, offset;      /* offset: of the data in the file */
};
struct gguf {
    const char *path;                   /* for messages, borrowed */
    uint32_t version, alignment;        /* alignment: bytes */
    struct gguf_value *values;          /* [n_value] in the file's order */
    const struct gguf_value **by_key;   /* [n_value] sorted */
    struct gguf_tensor *tensors;        /* [n_tensor] in the file's order */
    const struct gguf_tensor **by_name; /* [n_tensor] sorted */
    uint64_t n_value, n_tensor;
};
#define GGUF_INIT \
    {             \
        0         \
    }

/* Are these a file's first bytes? */
bool gguf_is(const void *data, size_t n);
/* data: [n], the whole file, borrowed by `out` with `path`. `out` is safe to release after an error
 * too. Errors: Q_CORRUPT (path, byte of the file, what was expected), Q_UNSUPPORTED (versions,
 * big-endian files), Q_TOO_LARGE, Q_NO_MEMORY. */
FALLIBLE gguf_read(struct gguf *out, const void *data, size_t n, const char *path, struct q_err *e);
void gguf_release(struct gguf *g);

/* NULL: there is none. */
const struct gguf_value *gguf_find(const struct gguf *g, const char *key);
const struct gguf_tensor *gguf_tensor(const struct gguf *g, const char *name);

/* ---- values ---- */
/* false: the value is NULL or of another kind; *out is as before. A whole number of any width. */
bool gguf_whole(const struct gguf_value *v, int64_t *out);
/* A number of any kind. */
bool gguf_number(const struct gguf_value *v, double *out);
bool gguf_bool(const struct gguf_value *v, bool *out);
bool gguf_text(const struct gguf_value *v, struct gguf_text *out);
bool gguf_text_is(const struct gguf_value *v, const char *text);
/* An array's element i as a number; false: it has no such element, or no numbers. The second: whole
 * numbers, and of bools 0 and 1. */
bool gguf_element(const struct gguf_value *v, uint64_t i, double *out);
bool gguf_element_whole(const struct gguf_value *v, uint64_t i, int64_t *out);

struct gguf_texts { /* the texts of an array, one after the other */
    const unsigned char *at;
    uint64_t left;
};
/* false: the value is NULL, or no array of texts. */
bool gguf_texts_of(struct gguf_texts *t, const struct gguf_value *v);
/* false: there are no more. */
bool gguf_texts_next(struct gguf_texts *t, struct gguf_text *out);

#endif
