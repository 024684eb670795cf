/* SPDX-License-Identifier: Apache-2.0 */
/* value - the values of a template: Python's types, 16 bytes each.
 *
 * A value is a tag and either the value itself (bool, int, float) or a pointer into the
 * rendering's arena. Values are not freed individually. They are immutable for the template (the
 * sandbox allows no mutation), except namespaces, loops, cyclers, joiners and the read position of
 * an iterator. Integers have 64 bits; a larger result is an error. Text is well-formed UTF-8;
 * lengths in the language are code points. Threads: a rendering's values belong to it; the
 * constants of a compiled template are never written. */
#ifndef QUIRE_COMMON_TEMPLATE_VALUE_H
#define QUIRE_COMMON_TEMPLATE_VALUE_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "common/err.h"

struct interp;

enum value_kind {
    V_MISSING, /* no value: an argument that was not given */
    V_UNDEF,   /* Jinja's Undefined */
    V_NONE,
    V_BOOL,
    V_INT,
    V_FLOAT,
    V_STR,
    V_LIST,
    V_TUPLE,
    V_ITER, /* a generator: can be read once */
    V_DICT,
    V_VIEW, /* dict.keys(), .values(), .items() */
    V_RANGE,
    V_NAMESPACE,
    V_LOOP,
    V_MACRO,
    V_TEMPLATE, /* `self`: the template, whose members are its blocks */
    V_BLOCK,
    V_FUNC,   /* a row of globals.def */
    V_METHOD, /* a row of methods.def with its object */
    V_CYCLER,
    V_JOINER
};

struct str_room { /* memory that several strings may share; the last one can grow in place */
    char *data;   /* [cap] */
    unsigned char *content; /* [cap] as str.content, or NULL: strings have not needed it */
    size_t used, cap;
};

struct str {
    const char *data; /* [n] bytes, in the arena, the template or the request's JSON */
    size_t n;
    size_t n_char;                /* code points; STR_UNCOUNTED until first needed */
    const unsigned char *content; /* [n] 1 where a byte is the request's; NULL: none, TEXT_ALL */
    struct str_room *room;
    bool markup; /* came from |safe or |escape: joining it with plain text escapes the latter */
};
#define STR_UNCOUNTED SIZE_MAX

struct value {
    enum value_kind kind;
    union {
        bool b;
        int64_t i;
        double f;
        struct str *s;
        struct seq *seq;   /* V_LIST, V_TUPLE, V_ITER */
        struct dict *dict; /* V_DICT, V_NAMESPACE */
        struct view *view;
        struct range *range;
        struct loop *loop;
        struct macro *macro;
        const struct node *block; /* N_BLOCK; NULL for V_TEMPLATE */
        struct method *method;
        struct cycler *cycler; /* V_CYCLER, V_JOINER */
        const struct native *func;
        const struct undef *undef;
    } as;
};

struct seq {
    struct value *items; /* [n], [cap] allocated; a longer list may share the front of it */
    size_t n, cap;
    size_t *used; /* made by list + list: how much of items[cap] any list has; NULL otherwise */

    size_t at;    /* V_ITER: next item to hand out */
    bool grouper; /* a tuple of groupby: .grouper and .list are its items */
};

struct dict_entry {
    struct value key, value;
    uint64_t hash;
};
struct dict {                   /* in order of insertion */
    struct dict_entry *entries; /* [n] */
    size_t n, cap;
    uint32_t *index; /* [n_slot] entry + 1, 0 = empty; NULL while n is small */
    size_t n_slot;
};

enum view_kind { VIEW_KEYS, VIEW_VALUES, VIEW_ITEMS };
struct view {
    enum view_kind kind;
    struct dict *dict;
};

struct range {
    int64_t start, stop, step;
};

enum undef_kind { UNDEF_NAME, UNDEF_MEMBER, UNDEF_HINT, UNDEF_UNSAFE };
struct undef { /* why it is undefined, for the message when it is used */
    enum undef_kind kind;
    const char *owner; /* UNDEF_MEMBER: "dict object"; UNDEF_UNSAFE: "list" */
    struct value name; /* the name or subscript */
    const char *hint;  /* UNDEF_HINT: the whole message */
};

struct method {
    const struct native *row;
    struct value self;
};

/* cycler(a, b): items and position; joiner(sep): one item, at = 0 before the first use. */
struct cycler {
    struct value *items;
    size_t n, at;
};

static inline struct value v_none(void)
{
    return (struct value){.kind = V_NONE};
}
static inline struct value v_bool(bool b)
{
    return (struct value){.kind = V_BOOL, .as.b = b};
}
static inline struct value v_int(int64_t i)
{
    return (struct value){.kind = V_INT, .as.i = i};
}
static inline struct value v_float(double f)
{
    return (struct value){.kind = V_FLOAT, .as.f = f};
}
static inline struct value v_str(struct str *s)
{
    return (struct value){.kind = V_STR, .as.s = s};
}
static inline struct value v_seq(enum value_kind kind, struct seq *s)
{
    return (struct value){.kind = kind, .as.seq = s};
}
static inline struct value v_dict(struct dict *d)
{
    return (struct value){.kind = V_DICT, .as.dict = d};
}
static inline bool v_is_number(struct value v)
{
    return v.kind == V_BOOL || v.kind == V_INT || v.kind == V_FLOAT;
}
static inline bool v_is_int(struct value v) /* Python's isinstance(v, int) */
{
    return v.kind == V_BOOL || v.kind == V_INT;
}
static inline int64_t v_as_int(struct value v)
{
    return v.kind == V_BOOL ? v.as.b : v.as.i;
}
static inline double v_as_float(struct value v)
{
    return v.kind == V_FLOAT ? v.as.f : (double)v_as_int(v);
}

#endif
