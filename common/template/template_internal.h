/* SPDX-License-Identifier: Apache-2.0 */
/* template_internal - the state of one rendering, and the functions its parts share.
 *
 * Limits: every evaluated node and every element of native work counts as a step (in_charge); every
 * recursion, of the tree or of nested values, goes through in_enter; values live in one arena with
 * a limit; text is built at the end of in->out (text_mark/text_take), which has a limit too. Scopes
 * are a chain: loops, blocks and macro calls open one, ifs do not; a name not found in the chain is
 * looked up in the request's variables, then in globals.def.
 * Threads: one owner. */
#ifndef QUIRE_COMMON_TEMPLATE_TEMPLATE_INTERNAL_H
#define QUIRE_COMMON_TEMPLATE_TEMPLATE_INTERNAL_H
#include "common/template/ast.h"
#include "common/template/native.h"
#include "common/template/template.h"

struct var {
    const struct str *name; /* interned */
    struct value value;
};
struct scope {
    struct scope *up;
    struct var *vars; /* [n] */
    size_t n, cap;
    bool captured; /* a macro was defined in here: keep it when the loop goes on */
};

struct macro { /* a value of kind V_MACRO */
    const struct macro_def *def;
    struct scope *scope; /* where it was defined */
};

struct loop { /* the `loop` of a for */
    const struct node *node;
    struct scope *outer; /* scope the loop runs in, for loop(items) */
    struct seq *items;
    size_t at; /* index of the current item */
    uint32_t depth;
    struct value *changed; /* arguments of the last loop.changed(), NULL before */
    size_t n_changed;
};

enum flow { FLOW_NEXT, FLOW_BREAK, FLOW_CONTINUE };

struct interp {
    const struct template *t;
    const struct template_run *run;
    struct template_limits limits;
    struct arena mem;
    struct buf out;
    struct ranges content;   /* of `out`: what came from the request */
    struct ranges generated; /* of `out`: what {% generation %} blocks wrote */
    struct scope *scope;     /* the current one */
    struct scope *top;       /* the template's own */
    enum flow flow;
    uint64_t n_step;
    uint32_t depth;
    struct template_fault fault;
    struct q_err *e;
};

/* errors and limits (interp.c). in_raise(in, type, format, …) sets the error, returns its code; a
 * macro for the reason given at q_fail. */
#define in_raise(in, type, ...) (in_raise_text((in), (type), __VA_ARGS__), q_code_same(Q_INVALID))
void in_raise_text(struct interp *in, const char *type, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
FALLIBLE in_undefined(struct interp *in,
                      const struct undef *u); /* use of an Undefined: always fails */
FALLIBLE in_charge(struct interp *in, uint64_t n_step);
/* Steps for work on n bytes, so that a step takes about as long everywhere. */
static inline uint64_t cost_copy(size_t n) /* memcpy, memcmp */
{
    return n / 256;
}
static inline uint64_t cost_search(size_t n) /* memmem and simple loops over bytes */
{
    return n / 16;
}
static inline uint64_t cost_scan(size_t n) /* loops over code points that look each up */
{
    return n / 4;
}
FALLIBLE in_enter(struct interp *in); /* pair with in_leave, also after a failure further in */
void in_leave(struct interp *in);
FALLIBLE in_output_check(struct interp *in); /* fails when in->out overflowed */
FALLIBLE in_alloc(struct interp *in, void *out_ptr, size_t n, size_t size);

/* names (interp.c) */
FALLIBLE scope_new(struct interp *in, struct scope *up, struct scope **out);
FALLIBLE scope_set(struct interp *in, struct scope *s, const struct str *name, struct value v);
FALLIBLE name_lookup(struct interp *in, const struct str *name, struct value *out);
FALLIBLE undef_new(struct interp *in, struct undef u, struct value *out);
FALLIBLE undef_hint(struct interp *in, const char *hint, struct value *out);

/* containers.c */
/* Sequences and dicts. All allocate from the rendering's arena and fail with Q_TOO_LARGE or
 * Q_NO_MEMORY. */
FALLIBLE seq_new(struct interp *in, size_t cap, struct seq **out);
FALLIBLE seq_add(struct interp *in, struct seq *s, struct value v);
/* A pair (tuple of two). */
FALLIBLE seq_pair(struct interp *in, struct value a, struct value b, struct value *out);
FALLIBLE dict_new(struct interp *in, size_t cap, struct dict **out);
FALLIBLE dict_put(struct interp *in, struct dict *d, struct value key, struct value v);
/* *out = the entry's value or NULL. Errors: TypeError for an unhashable key. */
FALLIBLE dict_get(struct interp *in, const struct dict *d, struct value key, struct value **out);
FALLIBLE dict_get_str(struct interp *in, const struct dict *d, const struct str *key,
                      struct value **out);

const char *value_type_name(struct value v); /* "str", "NoneType" */
const char *
value_object_name(struct value v); /* "str object", "None": as Undefined's messages say it */

/* expressions (eval.c) and statements (exec.c) */
FALLIBLE eval(struct interp *in, const struct node *n, struct value *out);
FALLIBLE eval_filter_on(struct interp *in, const struct node *chain, struct value input,
                        struct value *out);
FALLIBLE exec_body(struct interp *in, const struct node_list *body);
FALLIBLE exec_block(struct interp *in, const struct node *n, struct scope *around);
FALLIBLE exec_loop(struct interp *in, const struct node *n, struct seq *items, uint32_t depth);
FALLIBLE assign(struct interp *in, const struct node *target, struct value v);

/* calls and members (call.c, attr.c) */
FALLIBLE call_value(struct interp *in, struct value f, const struct call *c, struct value *out);
FALLIBLE macro_call(struct interp *in, const struct macro *m, const struct call *c,
                    struct value *out);
FALLIBLE get_attr(struct interp *in, struct value of, struct value name,
                  struct value *out); /* of.name */
FALLIBLE get_item(struct interp *in, struct value of, struct value key,
                  struct value *out); /* of[key] */
FALLIBLE get_slice(struct interp *in, struct value of, const struct value at[3], struct value *out);
/* "a.b.0" or 3, as the attribute= of filters; missing ones give `fallback` unless that is
 * V_MISSING. */
FALLIBLE get_path(struct interp *in, struct value of, struct value path, struct value fallback,
                  struct value *out);

/* operators (ops.c, compare.c) */
FALLIBLE op_binary(struct interp *in, enum node_op op, const struct value v[2], struct value *out);
FALLIBLE op_negate(struct interp *in, struct value v, bool minus, struct value *out);
FALLIBLE op_compare(struct interp *in, enum node_op op, const struct value v[2], bool *out);
FALLIBLE op_equal(struct interp *in, struct value a, struct value b, bool *out);
FALLIBLE op_less(struct interp *in, struct value a, struct value b, bool *out);
FALLIBLE op_contains(struct interp *in, struct value of, struct value item, bool *out);
FALLIBLE op_hash(struct interp *in, struct value v, uint64_t *out);
FALLIBLE op_length(struct interp *in, struct value v, size_t *out); /* TypeError when it has none */
bool op_truth(struct value v);
size_t op_range_length(const struct range *r); /* items */
/* The items a for loop would see; lists and tuples are returned as they are, iterators are used up.
 */
FALLIBLE op_iterate(struct interp *in, struct value v, struct seq **out);
bool op_iterable(struct value v);
/* Stable sort of s by keys[i] (same length); reverse keeps equal ones in order too. */
FALLIBLE op_sort(struct interp *in, struct seq *s, struct value *keys, bool reverse);
uint64_t hash_bytes(const char *data, size_t n); /* keyed per process */

#endif
