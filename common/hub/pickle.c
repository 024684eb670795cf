/* SPDX-License-Identifier: Apache-2.0 */
/* One table says what each operation does; what is not in it is refused, by name where pickletools
 * has one. Values are made mutable, shared by pointer (a memo may bring a list back while it is
 * being filled) and never released one by one. */
#include "common/hub/pickle.h"
#include <string.h>
#include "common/hub/pickle_internal.h"

#define LINE_MAX_BYTES 256u /* of a name in GLOBAL */

static const char *const kind_names[] = {
    [PICKLE_NONE] = "None",     [PICKLE_BOOL] = "a bool",     [PICKLE_INT] = "a number",
    [PICKLE_FLOAT] = "a float", [PICKLE_TEXT] = "a text",     [PICKLE_TUPLE] = "a tuple",
    [PICKLE_LIST] = "a list",   [PICKLE_DICT] = "a dict",     [PICKLE_SET] = "a set",
    [PICKLE_GLOBAL] = "a type", [PICKLE_STORAGE] = "storage", [PICKLE_TENSOR] = "a tensor",
};

const char *pickle_kind_name(enum pickle_kind kind)
{
    return kind_names[kind];
}

enum q_code pickle_bad(const struct pickle_machine *m, const char *reason)
{
    return q_fail(m->e, Q_CORRUPT, "%s: the pickle is damaged at byte %zu: %s", m->path,
                  (size_t)(m->at - m->data), reason);
}

static enum q_code no_memory(const struct pickle_machine *m)
{
    return q_fail(m->e, Q_NO_MEMORY, "%s: out of memory for the values of its pickle", m->path);
}

struct pickle_value *pickle_value_new(struct pickle_machine *m, enum pickle_kind kind)
{
    struct pickle_value *v = arena_alloc(m->arena, sizeof *v);
    if (v)
        v->kind = kind;
    else
        (void)no_memory(m);
    return v;
}

/* ---- bytes ---- */

static enum q_code take(const unsigned char **out, struct pickle_machine *m, uint64_t n)
{
    if (n > (uint64_t)(m->end - m->at))
        return pickle_bad(m, "it ends within an operation");
    *out = m->at;
    m->at += n;
    return Q_OK;
}

/* A little-endian number of n bytes, 8 at most. */
static enum q_code take_number(uint64_t *out, struct pickle_machine *m, uint32_t n)
{
    const unsigned char *p;
    const enum q_code rc = take(&p, m, n);
    if (rc)
        return rc;
    *out = 0;
    while (n-- > 0)
        *out = *out << 8 | p[n];
    return Q_OK;
}

static enum q_code take_line(struct pickle_text *out, struct pickle_machine *m)
{
    const size_t left = (size_t)(m->end - m->at),
                 most = left < LINE_MAX_BYTES ? left : LINE_MAX_BYTES;
    const unsigned char *newline = most ? memchr(m->at, '\n', most) : NULL;
    if (!newline)
        return pickle_bad(m, "the name of a global has no end");
    *out = (struct pickle_text){(const char *)m->at, (size_t)(newline - m->at)};
    m->at = newline + 1;
    return Q_OK;
}

/* ---- stack, marks, memo ---- */

static enum q_code push(struct pickle_machine *m, struct pickle_value *v)
{
    const size_t most = (size_t)(m->end - m->data);
    const enum q_code rc =
        q_grow(&m->stack, &m->stack_cap, m->n_stack + 1, sizeof *m->stack, most + 1, m->e);
    if (!rc)
        m->stack[m->n_stack++] = v;
    return rc;
}

static enum q_code push_new(struct pickle_value **out, struct pickle_machine *m,
                            enum pickle_kind kind)
{
    *out = pickle_value_new(m, kind);
    return *out ? push(m, *out) : m->e->code;
}

/* Values above the newest mark may be taken. */
static size_t floor_of(const struct pickle_machine *m)
{
    return m->n_mark ? m->marks[m->n_mark - 1] : 0;
}

static enum q_code pop(struct pickle_value **out, struct pickle_machine *m)
{
    if (m->n_stack <= floor_of(m))
        return pickle_bad(m, "an operation finds too few values");
    *out = m->stack[--m->n_stack];
    return Q_OK;
}

static enum q_code top(struct pickle_value **out, struct pickle_machine *m)
{
    if (m->n_stack <= floor_of(m))
        return pickle_bad(m, "an operation finds no value");
    *out = m->stack[m->n_stack - 1];
    return Q_OK;
}

/* The values above the newest mark, [*n], which leave the stack with it. */
static enum q_code pop_mark(struct pickle_value ***out, size_t *n, struct pickle_machine *m)
{
    if (!m->n_mark)
        return pickle_bad(m, "an operation finds no mark");
    const size_t start = m->marks[--m->n_mark];
    *n = m->n_stack - start;
    *out = m->stack ? m->stack + start : NULL;
    m->n_stack = start;
    return Q_OK;
}

static enum q_code put(struct pickle_machine *m, uint64_t i)
{
    struct pickle_value *v;
    enum q_code rc = top(&v, m);
    if (rc)
        return rc;
    if (i > (uint64_t)(m->end - m->data))
        return pickle_bad(m, "a memo number is larger than the pickle");
    if ((rc = q_grow(&m->memo, &m->memo_cap, i + 1, sizeof *m->memo, i + 1, m->e)))
        return rc;
    while (m->n_memo <= i)
        m->memo[m->n_memo++] = NULL;
    m->memo[i] = v;
    return Q_OK;
}

static enum q_code get(struct pickle_machine *m, uint64_t i)
{
    if (i >= m->n_memo || !m->memo[i])
        return pickle_bad(m, "a memo number that was not given");
    return push(m, m->memo[i]);
}

/* ---- lists ---- */

static enum q_code append(struct pickle_machine *m, struct pickle_value *list,
                          struct pickle_value *const *items, size_t n)
{
    struct pickle_items *to = &list->is.items;
    if (to->n + n > to->cap) {
        const size_t cap = 2 * to->cap > to->n + n ? 2 * to->cap : to->n + n;
        const struct pickle_value **more = arena_alloc_array(m->arena, cap, sizeof *more);
        if (!more)
            return no_memory(m);
        if (to->n)
            memcpy(more, to->at, to->n * sizeof *more);
        to->at = more;
        to->cap = cap;
    }
    if (n && items)
        memcpy(to->at + to->n, items, n * sizeof *items);
    to->n += n;
    return Q_OK;
}

/* The n newest values become a value of this kind. */
static enum q_code gather(struct pickle_machine *m, enum pickle_kind kind,
                          struct pickle_value *const *items, size_t n)
{
    struct pickle_value *v = pickle_value_new(m, kind);
    if (!v)
        return m->e->code;
    const enum q_code rc = append(m, v, items, n);
    return rc ? rc : push(m, v);
}

static enum q_code gather_last(struct pickle_machine *m, enum pickle_kind kind, size_t n)
{
    if (m->n_stack - floor_of(m) < n)
        return pickle_bad(m, "a tuple finds too few values");
    m->n_stack -= n;
    return gather(m, kind, m->stack + m->n_stack, n);
}

static enum q_code gather_marked(struct pickle_machine *m, enum pickle_kind kind)
{
    struct pickle_value **items;
    size_t n;
    const enum q_code rc = pop_mark(&items, &n, m);
    if (rc)
        return rc;
    if (kind == PICKLE_DICT && n % 2)
        return pickle_bad(m, "a dict has a key without a value");
    return gather(m, kind, items, n);
}

/* Adds to the value below the mark, which is of this kind. */
static enum q_code add_marked(struct pickle_machine *m, enum pickle_kind kind)
{
    struct pickle_value **items, *list;
    size_t n;
    enum q_code rc;
    if ((rc = pop_mark(&items, &n, m)) || (rc = top(&list, m)))
        return rc;
    if (list->kind != kind || (kind == PICKLE_DICT && n % 2))
        return pickle_bad(m, "values are added to a value that takes none such");
    return append(m, list, items, n);
}

static enum q_code add_last(struct pickle_machine *m, enum pickle_kind kind, size_t n)
{
    struct pickle_value *list;
    if (m->n_stack - floor_of(m) < n + 1)
        return pickle_bad(m, "an operation finds too few values");
    m->n_stack -= n;
    const enum q_code rc = top(&list, m);
    if (rc)
        return rc;
    if (list->kind != kind)
        return pickle_bad(m, "values are added to a value that takes none such");
    return append(m, list, m->stack + m->n_stack, n);
}

/* ---- operations ---- */

static enum q_code do_proto(struct pickle_machine *m, uint32_t unused)
{
    uint64_t version;
    const enum q_code rc = take_number(&version, m, 1);
    (void)unused;
    if (!rc && version > 5)
        return q_fail(m->e, Q_UNSUPPORTED, "%s: pickle protocol %u is not read, expected 2 to 5",
                      m->path, (unsigned)version);
    return rc;
}

/* Frames only say how much to read ahead. */
static enum q_code do_skip(struct pickle_machine *m, uint32_t n)
{
    const unsigned char *p;
    return take(&p, m, n);
}

static enum q_code do_mark(struct pickle_machine *m, uint32_t unused)
{
    const size_t most = (size_t)(m->end - m->data);
    const enum q_code rc =
        q_grow(&m->marks, &m->mark_cap, m->n_mark + 1, sizeof *m->marks, most + 1, m->e);
    (void)unused;
    if (!rc)
        m->marks[m->n_mark++] = m->n_stack;
    return rc;
}

static enum q_code do_stop(struct pickle_machine *m, uint32_t unused)
{
    (void)unused;
    if (m->n_mark || m->n_stack != 1)
        return pickle_bad(m, "it stops with other than one value");
    m->is_done = true;
    return Q_OK;
}

static enum q_code do_pop(struct pickle_machine *m, uint32_t unused)
{
    struct pickle_value *v;
    (void)unused;
    return pop(&v, m);
}

static enum q_code do_pop_mark(struct pickle_machine *m, uint32_t unused)
{
    struct pickle_value **items;
    size_t n;
    (void)unused;
    return pop_mark(&items, &n, m);
}

static enum q_code do_dup(struct pickle_machine *m, uint32_t unused)
{
    struct pickle_value *v;
    const enum q_code rc = top(&v, m);
    (void)unused;
    return rc ? rc : push(m, v);
}

/* None, False, True, [], {}, (), set() */
static enum q_code do_new(struct pickle_machine *m, uint32_t kind)
{
    struct pickle_value *v;
    return push_new(&v, m, kind);
}

static enum q_code do_bool(struct pickle_machine *m, uint32_t yes)
{
    struct pickle_value *v;
    const enum q_code rc = push_new(&v, m, PICKLE_BOOL);
    if (!rc)
        v->is.number = yes;
    return rc;
}

static enum q_code do_int(struct pickle_machine *m, uint32_t n_bytes)
{
    struct pickle_value *v;
    uint64_t number;
    enum q_code rc;
    if ((rc = take_number(&number, m, n_bytes)) || (rc = push_new(&v, m, PICKLE_INT)))
        return rc;
    v->is.number = n_bytes == 4 ? (int64_t)(int32_t)(uint32_t)number : (int64_t)number;
    return Q_OK;
}

/* A number in two's complement behind its length. */
static enum q_code do_long(struct pickle_machine *m, uint32_t n_bytes)
{
    struct pickle_value *v;
    const unsigned char *p;
    uint64_t n = 0, number = 0;
    enum q_code rc;
    if ((rc = take_number(&n, m, n_bytes)) || (rc = take(&p, m, n)) ||
        (rc = push_new(&v, m, PICKLE_INT)))
        return rc;
    v->is_big = n > 8;
    for (uint64_t i = v->is_big ? 0 : n; i-- > 0;)
        number = number << 8 | p[i];
    if (n && n < 8 && p[n - 1] & 0x80)
        number |= ~(uint64_t)0 << 8 * n;
    v->is.number = v->is_big ? 0 : (int64_t)number;
    return Q_OK;
}

static enum q_code do_float(struct pickle_machine *m, uint32_t n_bytes)
{
    struct pickle_value *v;
    const enum q_code rc = do_skip(m, n_bytes);
    return rc ? rc : push_new(&v, m, PICKLE_FLOAT);
}

static enum q_code do_text(struct pickle_machine *m, uint32_t n_bytes)
{
    struct pickle_value *v;
    const unsigned char *p;
    uint64_t n = 0;
    enum q_code rc;
    if ((rc = take_number(&n, m, n_bytes)) || (rc = take(&p, m, n)) ||
        (rc = push_new(&v, m, PICKLE_TEXT)))
        return rc;
    v->is.text = (struct pickle_text){(const char *)p, n};
    return Q_OK;
}

static enum q_code do_put(struct pickle_machine *m, uint32_t n_bytes)
{
    uint64_t i = m->n_memo; /* MEMOIZE: the next number */
    const enum q_code rc = n_bytes ? take_number(&i, m, n_bytes) : Q_OK;
    return rc ? rc : put(m, i);
}

static enum q_code do_get(struct pickle_machine *m, uint32_t n_bytes)
{
    uint64_t i;
    const enum q_code rc = take_number(&i, m, n_bytes);
    return rc ? rc : get(m, i);
}

static enum q_code do_global(struct pickle_machine *m, uint32_t unused)
{
    struct pickle_text module, name;
    struct pickle_value *v;
    enum q_code rc;
    (void)unused;
    if ((rc = take_line(&module, m)) || (rc = take_line(&name, m)) ||
        (rc = pickle_global(&v, m, &module, &name)))
        return rc;
    return push(m, v);
}

static enum q_code do_stack_global(struct pickle_machine *m, uint32_t unused)
{
    struct pickle_value *module, *name, *v;
    enum q_code rc;
    (void)unused;
    if ((rc = pop(&name, m)) || (rc = pop(&module, m)))
        return rc;
    if (module->kind != PICKLE_TEXT || name->kind != PICKLE_TEXT)
        return pickle_bad(m, "the name of a global is no text");
    rc = pickle_global(&v, m, &module->is.text, &name->is.text);
    return rc ? rc : push(m, v);
}

static enum q_code do_reduce(struct pickle_machine *m, uint32_t unused)
{
    struct pickle_value *arguments, *function, *v;
    enum q_code rc;
    (void)unused;
    if ((rc = pop(&arguments, m)) || (rc = pop(&function, m)) ||
        (rc = pickle_call(&v, m, function, arguments)))
        return rc;
    return push(m, v);
}

static enum q_code do_persistent(struct pickle_machine *m, uint32_t unused)
{
    struct pickle_value *id, *v;
    enum q_code rc;
    (void)unused;
    if ((rc = pop(&id, m)) || (rc = pickle_persistent(&v, m, id)))
        return rc;
    return push(m, v);
}

/* Attributes of a dict (_metadata of a state_dict) are not needed. */
static enum q_code do_build(struct pickle_machine *m, uint32_t unused)
{
    struct pickle_value *state, *object;
    enum q_code rc;
    (void)unused;
    if ((rc = pop(&state, m)) || (rc = top(&object, m)))
        return rc;
    if (object->kind == PICKLE_DICT)
        return Q_OK;
    return q_fail(m->e, Q_UNSUPPORTED,
                  "%s: the pickle sets attributes of %s, which only a dict has", m->path,
                  pickle_kind_name(object->kind));
}

static enum q_code do_gather(struct pickle_machine *m, uint32_t n)
{
    return gather_last(m, PICKLE_TUPLE, n);
}

/* TUPLE, LIST, DICT, FROZENSET */
static enum q_code do_gather_marked(struct pickle_machine *m, uint32_t kind)
{
    return gather_marked(m, kind);
}

/* APPENDS, SETITEMS, ADDITEMS */
static enum q_code do_add_marked(struct pickle_machine *m, uint32_t kind)
{
    return add_marked(m, kind);
}

/* APPEND, SETITEM */
static enum q_code do_add(struct pickle_machine *m, uint32_t kind)
{
    return add_last(m, kind, kind == PICKLE_DICT ? 2 : 1);
}

static const struct operation {
    const char *name;
    enum q_code (*run)(struct pickle_machine *m, uint32_t arg); /* NULL: not read */
    uint32_t arg;
} operations[256] = {
    // clang-format off
    [0x80] = {"PROTO", do_proto, 0},
    [0x95] = {"FRAME", do_skip, 8},
    ['('] = {"MARK", do_mark, 0},
    ['.'] = {"STOP", do_stop, 0},
    ['0'] = {"POP", do_pop, 0},
    ['1'] = {"POP_MARK", do_pop_mark, 0},
    ['2'] = {"DUP", do_dup, 0},
    ['N'] = {"NONE", do_new, PICKLE_NONE},
    [']'] = {"EMPTY_LIST", do_new, PICKLE_LIST},
    ['}'] = {"EMPTY_DICT", do_new, PICKLE_DICT},
    [')'] = {"EMPTY_TUPLE", do_new, PICKLE_TUPLE},
    [0x8f] = {"EMPTY_SET", do_new, PICKLE_SET},
    [0x88] = {"NEWTRUE", do_bool, 1},
    [0x89] = {"NEWFALSE", do_bool, 0},
    ['J'] = {"BININT", do_int, 4},
    ['M'] = {"BININT2", do_int, 2},
    ['K'] = {"BININT1", do_int, 1},
    [0x8a] = {"LONG1", do_long, 1},
    [0x8b] = {"LONG4", do_long, 4},
    ['G'] = {"BINFLOAT", do_float, 8},
    ['X'] = {"BINUNICODE", do_text, 4},
    [0x8c] = {"SHORT_BINUNICODE", do_text, 1},
    [0x8d] = {"BINUNICODE8", do_text, 8},
    ['T'] = {"BINSTRING", do_text, 4},
    ['U'] = {"SHORT_BINSTRING", do_text, 1},
    ['B'] = {"BINBYTES", do_text, 4},
    ['C'] = {"SHORT_BINBYTES", do_text, 1},
    [0x8e] = {"BINBYTES8", do_text, 8},
    ['q'] = {"BINPUT", do_put, 1},
    ['r'] = {"LONG_BINPUT", do_put, 4},
    [0x94] = {"MEMOIZE", do_put, 0},
    ['h'] = {"BINGET", do_get, 1},
    ['j'] = {"LONG_BINGET", do_get, 4},
    ['c'] = {"GLOBAL", do_global, 0},
    [0x93] = {"STACK_GLOBAL", do_stack_global, 0},
    ['R'] = {"REDUCE", do_reduce, 0},
    ['Q'] = {"BINPERSID", do_persistent, 0},
    ['b'] = {"BUILD", do_build, 0},
    [0x85] = {"TUPLE1", do_gather, 1},
    [0x86] = {"TUPLE2", do_gather, 2},
    [0x87] = {"TUPLE3", do_gather, 3},
    ['t'] = {"TUPLE", do_gather_marked, PICKLE_TUPLE},
    ['l'] = {"LIST", do_gather_marked, PICKLE_LIST},
    ['d'] = {"DICT", do_gather_marked, PICKLE_DICT},
    [0x91] = {"FROZENSET", do_gather_marked, PICKLE_SET},
    ['e'] = {"APPENDS", do_add_marked, PICKLE_LIST},
    ['u'] = {"SETITEMS", do_add_marked, PICKLE_DICT},
    [0x90] = {"ADDITEMS", do_add_marked, PICKLE_SET},
    ['a'] = {"APPEND", do_add, PICKLE_LIST},
    ['s'] = {"SETITEM", do_add, PICKLE_DICT},
    /* objects of classes, numbers and texts of protocol 0, extensions, buffers outside of it */
    [0x81] = {"NEWOBJ", NULL, 0}, [0x92] = {"NEWOBJ_EX", NULL, 0}, ['i'] = {"INST", NULL, 0},
    ['o'] = {"OBJ", NULL, 0},     ['P'] = {"PERSID", NULL, 0},     ['S'] = {"STRING", NULL, 0},
    ['V'] = {"UNICODE", NULL, 0}, ['I'] = {"INT", NULL, 0},        ['L'] = {"LONG", NULL, 0},
    ['F'] = {"FLOAT", NULL, 0},   ['p'] = {"PUT", NULL, 0},        ['g'] = {"GET", NULL, 0},
    [0x82] = {"EXT1", NULL, 0},   [0x83] = {"EXT2", NULL, 0},      [0x84] = {"EXT4", NULL, 0},
    [0x96] = {"BYTEARRAY8", NULL, 0}, [0x97] = {"NEXT_BUFFER", NULL, 0},
    [0x98] = {"READONLY_BUFFER", NULL, 0},
    // clang-format on
};

static enum q_code run(struct pickle_machine *m)
{
    enum q_code rc = Q_OK;
    while (!rc && !m->is_done) {
        const unsigned char *code;
        if ((rc = take(&code, m, 1)))
            break;
        const struct operation *op = &operations[*code];
        if (op->run)
            rc = op->run(m, op->arg);
        else if (op->name)
            rc =
                q_fail(m->e, Q_UNSUPPORTED,
                       "%s: refuses the pickle operation %s, which torch.save does not write: only "
                       "tensors are built",
                       m->path, op->name);
        else
            rc = pickle_bad(m, "an operation that does not exist");
    }
    return rc;
}

enum q_code pickle_read(const struct pickle_value **out, size_t *n_used, struct arena *a,
                        const struct pickle_source *s, struct q_err *e)
{
    struct pickle_machine m = {
        .data = s->data,
        .at = s->data,
        .end = s->data + s->n,
        .path = s->path,
        .arena = a,
        .e = e,
    };
    const enum q_code rc = run(&m);
    if (!rc) {
        *out = m.stack[0];
        if (n_used)
            *n_used = (size_t)(m.at - m.data);
    }
    q_free(m.stack);
    q_free(m.marks);
    q_free(m.memo);
    return rc;
}
