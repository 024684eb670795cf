/* SPDX-License-Identifier: Apache-2.0 */
#include "common/hub/gguf_tensors.h"
#include <string.h>
#include "common/buf.h"

/* Names of the types that are read. */
static void add_types(struct buf *out)
{
    static const uint32_t last = 64; /* numbers of types are below */
    for (uint32_t i = 0; i < last; i++) {
        const struct gguf_type *t = gguf_type_of(i);
        if (t && t->read_as != GGUF_NOT)
            buf_printf(out, "%s%s", out->len ? ", " : "", t->name);
    }
}

static enum q_code refuse_type(const struct gguf_bytes *f, const struct gguf_tensor *t,
                               struct q_err *e)
{
    struct buf types = BUF_INIT;
    add_types(&types);
    const enum q_code rc =
        q_fail(e, Q_UNSUPPORTED,
               "%s: tensor %.*s has the type %s, which is not supported; use a file of the same "
               "model with other types, such as Q4_K_M, IQ4_XS or Q3_K_M; supported are %s",
               f->path, (int)t->name.n, t->name.s, t->type->name, buf_str(&types));
    buf_release(&types);
    return rc;
}

static enum q_code add_tensor(struct tensor_list *out, struct arena *names,
                              const struct gguf_bytes *f, const struct gguf_tensor *t,
                              struct q_err *e)
{
    struct tensor to = {
        .name = arena_strndup(names, t->name.s, t->name.n),
        .file = f->path,
        .dtype = DT_U8,
        .n_dim = t->n_dim,
        .data = t->data,
        .n_bytes = t->n_bytes,
        .blocks = t->type->read_as == GGUF_BLOCKS ? t->type : NULL,
    };
    if (t->type->read_as == GGUF_NOT)
        return refuse_type(f, t, e);
    if (!to.name)
        return q_fail(e, Q_NO_MEMORY, "%s: out of memory for names of tensors", f->path);
    if (!to.blocks && !dtype_parse(&to.dtype, t->type->name))
        Q_ASSERT(false); /* a FLOAT of types.def is a line of dtype.def */
    memcpy(to.shape, t->shape, sizeof t->shape);
    out->items[out->n++] = to;
    return Q_OK;
}

enum q_code gguf_tensors_read(struct tensor_list *out, struct arena *names,
                              const struct gguf_bytes *f, struct q_err *e)
{
    struct gguf g = GGUF_INIT;
    const size_t before = out->n;
    enum q_code rc = gguf_read(&g, f->data, f->size, f->path, e);
    if (!rc)
        rc = q_grow(&out->items, &out->cap, out->n + g.n_tensor, sizeof *out->items,
                    TENSOR_LIST_MAX, e);
    for (uint64_t i = 0; i < g.n_tensor && !rc; i++)
        rc = add_tensor(out, names, f, &g.tensors[i], e);
    if (rc)
        out->n = before;
    gguf_release(&g);
    return rc;
}

enum q_code gguf_tensors_fail_split(const char *path, uint32_t count, struct q_err *e)
{
    return q_fail(e, Q_NOT_FOUND,
                  "%s: the file is missing: the model is split into %u files, and not all were "
                  "downloaded",
                  path, count);
}
