/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>
#include "common/hub/pickle_internal.h"
#include "common/printable.h"

enum global_kind {
    GLOBAL_DICT,
    GLOBAL_SAME,
    GLOBAL_TENSOR,
    GLOBAL_TENSOR_TYPED,
    GLOBAL_STORAGE,
    GLOBAL_BYTES,
    GLOBAL_DTYPE
};

static const struct {
    const char *module, *name;
    enum global_kind kind;
    enum dtype dtype;
} globals[] = {
#define GLOBAL(module, name, kind, dtype) {module, name, GLOBAL_##kind, DT_##dtype},
#include "common/hub/pickle_globals.def"
};
#define N_GLOBAL (sizeof globals / sizeof *globals)

/* Modules that a pickle names otherwise than people do. */
static const char *const known_as[][2] = {
    {"posix", "os"},
    {"nt", "os"},
    {"__builtin__", "builtins"},
    {"commands", "subprocess"}, /* of Python 2, as pickles of protocol 2 have it */
};

static bool is_text(const struct pickle_text *t, const char *text)
{
    return t->n == strlen(text) && memcmp(t->data, text, t->n) == 0;
}

bool pickle_text_is(const struct pickle_value *v, const char *text)
{
    return v->kind == PICKLE_TEXT && is_text(&v->is.text, text);
}

/* ---- globals ---- */

static enum q_code refuse(const struct pickle_machine *m, const struct pickle_text *module,
                          const struct pickle_text *name)
{
    struct buf full = BUF_INIT, other = BUF_INIT;
    printable_line(module->data, module->n, &full);
    buf_add_char(&full, '.');
    printable_line(name->data, name->n, &full);
    for (size_t i = 0; i < sizeof known_as / sizeof *known_as; i++)
        if (is_text(module, known_as[i][0])) {
            buf_printf(&other, " (%s.", known_as[i][1]);
            printable_line(name->data, name->n, &other);
            buf_add_char(&other, ')');
        }
    const enum q_code rc =
        q_fail(m->e, Q_UNSUPPORTED,
               "%s: refuses %s%s: a pickle that runs code; only tensors of torch.save are built, "
               "and no function but theirs is called. Use a revision of the model with "
               "safetensors",
               m->path, buf_str(&full), buf_str(&other));
    buf_release(&full);
    buf_release(&other);
    return rc;
}

enum q_code pickle_global(struct pickle_value **out, struct pickle_machine *m,
                          const struct pickle_text *module, const struct pickle_text *name)
{
    uint32_t i = 0;
    while (i < N_GLOBAL && !(is_text(module, globals[i].module) && is_text(name, globals[i].name)))
        i++;
    if (i == N_GLOBAL)
        return refuse(m, module, name);
    if (!(*out = pickle_value_new(m, PICKLE_GLOBAL)))
        return m->e->code;
    (*out)->is.row = i;
    return Q_OK;
}

/* ---- storages ---- */

enum q_code pickle_persistent(struct pickle_value **out, struct pickle_machine *m,
                              const struct pickle_value *id)
{
    const struct pickle_items *list = &id->is.items;
    if (id->kind != PICKLE_TUPLE || list->n < 5 || !pickle_text_is(list->at[0], "storage"))
        return pickle_bad(m, "a persistent id is not that of a storage");
    const struct pickle_value *type = list->at[1], *key = list->at[2], *n = list->at[4];
    const bool is_type =
        type->kind == PICKLE_GLOBAL && (globals[type->is.row].kind == GLOBAL_STORAGE ||
                                        globals[type->is.row].kind == GLOBAL_BYTES);
    if (!is_type)
        return pickle_bad(m, "the type of a storage is none");
    if (key->kind != PICKLE_TEXT || n->kind != PICKLE_INT || n->is_big || n->is.number < 0)
        return pickle_bad(m, "a storage has no key, or no number of elements");
    if (list->n > 5 && list->at[5]->kind != PICKLE_NONE)
        return q_fail(m->e, Q_UNSUPPORTED,
                      "%s: a storage that is a part of another one (torch before 0.4); load it and "
                      "save it again with a newer torch",
                      m->path);
    struct pickle_storage *s = arena_alloc(m->arena, sizeof *s);
    if (!s || !(*out = pickle_value_new(m, PICKLE_STORAGE)))
        return q_fail(m->e, Q_NO_MEMORY, "%s: out of memory for a storage", m->path);
    *s = (struct pickle_storage){
        .key = key->is.text,
        .dtype = globals[type->is.row].dtype,
        .is_untyped = globals[type->is.row].kind == GLOBAL_BYTES,
        .n = (uint64_t)n->is.number,
    };
    (*out)->is.storage = s;
    return Q_OK;
}

/* ---- tensors ---- */

/* [*n] numbers of a tuple or a list. */
static bool read_sizes(uint64_t out[TENSOR_DIMS_MAX], uint32_t *n, const struct pickle_value *v)
{
    if ((v->kind != PICKLE_TUPLE && v->kind != PICKLE_LIST) || v->is.items.n > TENSOR_DIMS_MAX)
        return false;
    *n = (uint32_t)v->is.items.n;
    for (uint32_t i = 0; i < *n; i++) {
        const struct pickle_value *one = v->is.items.at[i];
        if (one->kind != PICKLE_INT || one->is_big || one->is.number < 0)
            return false;
        out[i] = (uint64_t)one->is.number;
    }
    return true;
}

/* (storage, offset, shape, strides, …); typed: the element type is argument 6. */
static enum q_code rebuild(struct pickle_value **out, struct pickle_machine *m, bool typed,
                           const struct pickle_items *list)
{
    uint32_t n_stride = 0;
    if (list->n < (typed ? 7 : 4))
        return pickle_bad(m, "a tensor has too few arguments");
    const struct pickle_value *storage = list->at[0], *offset = list->at[1];
    if (storage->kind != PICKLE_STORAGE)
        return pickle_bad(m, "a tensor has no storage");
    if (offset->kind != PICKLE_INT || offset->is_big || offset->is.number < 0)
        return pickle_bad(m, "the offset of a tensor in its storage is not a size");
    struct pickle_tensor *t = arena_alloc(m->arena, sizeof *t);
    if (!t || !(*out = pickle_value_new(m, PICKLE_TENSOR)))
        return q_fail(m->e, Q_NO_MEMORY, "%s: out of memory for a tensor", m->path);
    t->storage = storage->is.storage;
    t->dtype = t->storage->dtype;
    t->offset = (uint64_t)offset->is.number;
    if (!read_sizes(t->shape, &t->n_dim, list->at[2]) ||
        !read_sizes(t->stride, &n_stride, list->at[3]) || n_stride != t->n_dim)
        return pickle_bad(m, "shape and strides of a tensor are not two lists of as many sizes, 8 "
                             "at most");
    if (typed) {
        const struct pickle_value *dtype = list->at[6];
        if (dtype->kind != PICKLE_GLOBAL || globals[dtype->is.row].kind != GLOBAL_DTYPE)
            return pickle_bad(m, "the type of a tensor is none");
        t->dtype = globals[dtype->is.row].dtype;
    } else if (t->storage->is_untyped) {
        return pickle_bad(m, "a tensor without a type");
    }
    (*out)->is.tensor = t;
    return Q_OK;
}

enum q_code pickle_call(struct pickle_value **out, struct pickle_machine *m,
                        const struct pickle_value *function, const struct pickle_value *arguments)
{
    if (function->kind != PICKLE_GLOBAL || arguments->kind != PICKLE_TUPLE)
        return pickle_bad(m, "REDUCE of a value that is no function, or without a tuple");
    const struct pickle_items *list = &arguments->is.items;
    const enum global_kind kind = globals[function->is.row].kind;
    switch (kind) {
    case GLOBAL_DICT:
        if (list->n)
            return pickle_bad(m, "OrderedDict has arguments, expected none");
        *out = pickle_value_new(m, PICKLE_DICT);
        return *out ? Q_OK : m->e->code;
    case GLOBAL_SAME:
        if (!list->n)
            return pickle_bad(m, "a parameter or a size without a value");
        *out = (struct pickle_value *)(uintptr_t)list->at[0];
        return Q_OK;
    case GLOBAL_TENSOR:
    case GLOBAL_TENSOR_TYPED:
        return rebuild(out, m, kind == GLOBAL_TENSOR_TYPED, list);
    default:
        return q_fail(m->e, Q_UNSUPPORTED,
                      "%s: a call of %s.%s, which is a type; only tensors are "
                      "built",
                      m->path, globals[function->is.row].module, globals[function->is.row].name);
    }
}
