/* SPDX-License-Identifier: Apache-2.0 */
/* Numbers that are neighbours in the file are written in pieces of one buffer. */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>
#include "common/file.h"
#include "common/mem.h"
#include "engine/distill/checkpoint_internal.h"

#define BUFFER_ELEMENTS ((size_t)1 << 18)

static const float *array_of(const struct params *p, enum checkpoint_array a)
{
    switch (a) {
    case CHECKPOINT_W:
        return p->w;
    case CHECKPOINT_G:
        return p->g;
    case CHECKPOINT_M:
        return p->m;
    default:
        return p->v;
    }
}

/* Every step-th number, rounded to nearest even. */
static void convert(void *out, const float *x, size_t n, size_t step, enum dtype dtype)
{
    uint16_t *y = out;
    float *z = out;
    if (dtype == DT_F32)
        for (size_t i = 0; i < n; i++)
            z[i] = x[i * step];
    else if (dtype == DT_BF16)
        for (size_t i = 0; i < n; i++)
            y[i] = f32_to_bf16(x[i * step]);
    else
        for (size_t i = 0; i < n; i++)
            y[i] = f32_to_f16(x[i * step]);
}

struct writer {
    struct file_open file;
    enum dtype dtype;
    void *buffer; /* BUFFER_ELEMENTS */
};

/* at: of the tensor in the file. */
static enum q_code write_piece(const struct writer *w, const struct param_piece *p, const float *x,
                               uint64_t at, struct q_err *e)
{
    const size_t size = dtype_bits(w->dtype) / 8;
    enum q_code rc = Q_OK;
    for (size_t i = 0; i < p->n && !rc; i += BUFFER_ELEMENTS) {
        const size_t m = p->n - i < BUFFER_ELEMENTS ? p->n - i : BUFFER_ELEMENTS;
        convert(w->buffer, x + p->of + i * p->step, m, p->step, w->dtype);
        rc = file_write_at(&w->file, w->buffer, m * size, at + (p->at + i) * size, e);
    }
    return rc;
}

static enum q_code write_part(const struct writer *w, const struct own_part *part, const float *x,
                              uint64_t at, struct q_err *e)
{
    const struct param_tensor *t = part->tensor;
    const float *from = x + part->param->at + (size_t)t->row * part->param->n_col;
    struct param_walk walk = {.t = t};
    struct param_piece piece;
    enum q_code rc = Q_OK;
    while (!rc && param_next_piece(&piece, &walk))
        rc = write_piece(w, &piece, from, at, e);
    return rc;
}

/* All of this rank's parts that are in file i. */
static enum q_code write_file_parts(const struct write_parts *w, const struct writer *to,
                                    uint32_t i_file, struct q_err *e)
{
    const struct layout *l = w->layout;
    enum q_code rc = Q_OK;
    const uint32_t n_array = l->n_item / (l->n_tensor ? l->n_tensor : 1);
    for (uint32_t k = 0; k < w->table->n_own && !rc; k++) {
        const struct own_part *part = &w->table->own[k];
        const bool writes = part->writes && part->whole < l->n_tensor;
        for (uint32_t a = 0; a < n_array && writes && !rc; a++) {
            const struct layout_item *item = &l->items[a * l->n_tensor + part->whole];
            if (item->i_file == i_file)
                rc = write_part(to, part, array_of(w->params, item->array), item->at, e);
        }
    }
    return rc;
}

enum q_code write_parts(const struct write_parts *w, struct q_err *e)
{
    char path[PATH_MAX];
    struct writer to = {{-1, path}, w->layout->dtype, q_alloc(BUFFER_ELEMENTS * sizeof(float))};
    enum q_code rc = to.buffer ? Q_OK : q_fail(e, Q_NO_MEMORY, "out of memory for a checkpoint");
    for (uint32_t i = 0; i < w->layout->n_file && !rc; i++) {
        if ((rc = path_join(path, sizeof path, w->dir, w->layout->files[i].name, e)))
            break;
        to.file.fd = open(path, O_WRONLY | O_CLOEXEC);
        if (to.file.fd < 0) {
            rc = q_fail(e, Q_IO, "%s: cannot open: %s", path, strerror(errno));
            break;
        }
        rc = write_file_parts(w, &to, i, e);
        if (!rc && fsync(to.file.fd) != 0)
            rc = q_fail(e, Q_IO, "%s: cannot sync: %s", path, strerror(errno));
        if (close(to.file.fd) != 0 && !rc)
            rc = q_fail(e, Q_IO, "%s: cannot close: %s", path, strerror(errno));
    }
    q_free(to.buffer);
    return rc;
}
