/* SPDX-License-Identifier: Apache-2.0 */
/* The header is a Python dictionary. It is scanned for the three keys that every writer writes,
 * each value in the one form that numpy gives it; whatever differs is refused. */
#include "npy.h"
#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAGIC      "\x93NUMPY"
#define MAGIC_SIZE 6u
#define HEADER_MAX 4096u
#define ALIGN      64u /* where numpy lets the numbers begin */
#define BYTES_MAX  (1ull << 32)

struct text {
    const char *at, *end;
};

static bool refuse(char why[NPY_WHY_MAX], const char *text)
{
    snprintf(why, NPY_WHY_MAX, "%s", text);
    return false;
}

static bool take(struct text *t, char c)
{
    while (t->at < t->end && *t->at == ' ')
        t->at++;
    if (t->at == t->end || *t->at != c)
        return false;
    t->at++;
    return true;
}

/* Behind 'key': */
static bool find(struct text *t, const char *header, size_t n, const char *key)
{
    char quoted[32];
    const int n_key = snprintf(quoted, sizeof quoted, "'%s'", key);
    const char *at = memmem(header, n, quoted, (size_t)n_key);
    if (!at)
        return false;
    *t = (struct text){at + n_key, header + n};
    return take(t, ':');
}

/* '<f4', '|u1' */
static bool read_type(struct npy *a, struct text t, char why[NPY_WHY_MAX])
{
    if (!take(&t, '\'') || t.end - t.at < 4 || t.at[3] != '\'')
        return refuse(why, "its descr is not a number's type");
    const char order = t.at[0];
    a->kind = t.at[1];
    a->width = (uint32_t)(t.at[2] - '0');
    const bool is_float = a->kind == 'f' && (a->width == 4 || a->width == 8);
    const bool is_integer = (a->kind == 'i' || a->kind == 'u') &&
                            (a->width == 1 || a->width == 2 || a->width == 4 || a->width == 8);
    if ((order != '<' && !(order == '|' && a->width == 1)) || (!is_float && !is_integer)) {
        snprintf(why, NPY_WHY_MAX,
                 "its type is %.3s, expected <f4, <f8 or an integer, little-endian",
                 isprint((unsigned char)order) && isprint((unsigned char)a->kind) &&
                         isprint((unsigned char)t.at[2])
                     ? t.at
                     : "?");
        return false;
    }
    return true;
}

/* (3, 576), (5,), () */
static bool read_shape(struct npy *a, struct text t, char why[NPY_WHY_MAX])
{
    a->n_dim = 0;
    a->n = 1;
    if (!take(&t, '('))
        return refuse(why, "its shape is not a list of sizes");
    while (!take(&t, ')')) {
        size_t size = 0, n_digit = 0;
        for (; t.at < t.end && isdigit((unsigned char)*t.at) && n_digit < 18; n_digit++)
            size = size * 10 + (size_t)(*t.at++ - '0');
        if (n_digit == 0 || (!take(&t, ',') && (t.at == t.end || *t.at != ')')))
            return refuse(why, "its shape is not a list of sizes");
        if (a->n_dim == NPY_DIMS_MAX)
            return refuse(why, "it has more than 4 dimensions");
        if (size > BYTES_MAX || (a->n && size > BYTES_MAX / a->n))
            return refuse(why, "it is too large");
        a->dims[a->n_dim++] = size;
        a->n *= size;
    }
    return true;
}

static bool read_header(struct npy *a, const char *header, size_t n, char why[NPY_WHY_MAX])
{
    struct text type, order, shape;
    if (!find(&type, header, n, "descr") || !find(&order, header, n, "fortran_order") ||
        !find(&shape, header, n, "shape"))
        return refuse(why, "its header has no descr, fortran_order and shape");
    if (!take(&order, 'F')) /* False */
        return refuse(why, "it is in Fortran's order; numpy.ascontiguousarray changes it");
    return read_type(a, type, why) && read_shape(a, shape, why);
}

bool npy_parse(struct npy *a, const void *bytes, size_t n, char why[NPY_WHY_MAX])
{
    const unsigned char *b = bytes;
    *a = (struct npy)NPY_INIT;
    if (n < MAGIC_SIZE + 6 || memcmp(b, MAGIC, MAGIC_SIZE) != 0)
        return refuse(why, "it is not a .npy file");
    const unsigned major = b[MAGIC_SIZE];
    size_t at = MAGIC_SIZE + 4, header = b[MAGIC_SIZE + 2] | (size_t)b[MAGIC_SIZE + 3] << 8;
    if (major == 2 || major == 3) {
        header |= (size_t)b[MAGIC_SIZE + 4] << 16 | (size_t)b[MAGIC_SIZE + 5] << 24;
        at += 2;
    } else if (major != 1) {
        return refuse(why, "it is of a version of .npy after 3.0");
    }
    if (header > HEADER_MAX || header > n - at)
        return refuse(why, "its header is cut short");
    if (!read_header(a, (const char *)b + at, header, why))
        return false;
    if ((n - at - header) / a->width < a->n)
        return refuse(why, "it is cut short");
    a->data = b + at + header;
    return true;
}

bool npy_read(struct npy *a, const char *path, char why[NPY_WHY_MAX])
{
    FILE *f = fopen(path, "rb");
    unsigned char *bytes = NULL;
    long size = -1;
    bool is_read = false;
    *a = (struct npy)NPY_INIT;
    if (!f)
        return refuse(why, strerror(errno));
    if (fseek(f, 0, SEEK_END) == 0 && (size = ftell(f)) >= 0 && fseek(f, 0, SEEK_SET) == 0 &&
        (unsigned long long)size <= BYTES_MAX)
        bytes = malloc((size_t)size + 1);
    if (bytes)
        is_read = fread(bytes, 1, (size_t)size, f) == (size_t)size;
    fclose(f);
    if (!is_read)
        refuse(why, "it cannot be read");
    else if ((is_read = npy_parse(a, bytes, (size_t)size, why)))
        a->file = bytes;
    if (!is_read)
        free(bytes);
    return is_read;
}

void npy_release(struct npy *a)
{
    free(a->file);
    *a = (struct npy)NPY_INIT;
}

/* ---- numbers ---- */

static uint64_t bits_at(const struct npy *a, size_t i)
{
    uint64_t bits = 0;
    for (uint32_t k = 0; k < a->width; k++)
        bits |= (uint64_t)a->data[i * a->width + k] << 8 * k;
    return bits;
}

double npy_number(const struct npy *a, size_t i)
{
    const uint64_t bits = bits_at(a, i);
    int64_t integer = 0;
    double number;
    if (a->kind != 'f')
        return npy_integer(a, i, &integer) ? (double)integer : (double)bits;
    if (a->width == 4) {
        const uint32_t half = (uint32_t)bits;
        float f;
        memcpy(&f, &half, sizeof f);
        return f;
    }
    memcpy(&number, &bits, sizeof number);
    return number;
}

bool npy_integer(const struct npy *a, size_t i, int64_t *out)
{
    const uint64_t bits = bits_at(a, i);
    if (a->kind == 'f') {
        const double x = npy_number(a, i);
        if (!(fabs(x) < 9e15) || x != floor(x))
            return false;
        *out = (int64_t)x;
    } else if (a->kind == 'u') {
        if (bits > INT64_MAX)
            return false;
        *out = (int64_t)bits;
    } else {
        const uint32_t unused = (64 - 8 * a->width) % 64; /* above the number and its sign */
        *out = (int64_t)(bits << unused) >> unused;
    }
    return true;
}

/* ---- writing ---- */

bool npy_write(const char *path, const int32_t *data, const size_t *dims, uint32_t n_dim,
               char why[NPY_WHY_MAX])
{
    char header[256], shape[128] = "";
    size_t n = 1, n_shape = 0;
    for (uint32_t i = 0; i < n_dim; i++) {
        n *= dims[i];
        n_shape += (size_t)snprintf(shape + n_shape, sizeof shape - n_shape, "%zu, ", dims[i]);
    }
    const int n_text = snprintf(header, sizeof header,
                                "{'descr': '<i4', 'fortran_order': False, 'shape': (%s), }", shape);
    const size_t start = MAGIC_SIZE + 4;
    const size_t n_header = (start + (size_t)n_text + ALIGN) / ALIGN * ALIGN - start;
    const unsigned char front[] = {1, 0, (unsigned char)n_header, (unsigned char)(n_header >> 8)};
    FILE *f = fopen(path, "wb");
    if (!f)
        return refuse(why, strerror(errno));
    fwrite(MAGIC, 1, MAGIC_SIZE, f);
    fwrite(front, 1, sizeof front, f);
    fprintf(f, "%-*s\n", (int)n_header - 1, header);
    fwrite(data, sizeof *data, n, f);
    const bool is_bad = ferror(f) != 0;
    if (fclose(f) != 0 || is_bad)
        return refuse(why, "it cannot be written whole");
    return true;
}
