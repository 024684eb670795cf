/* SPDX-License-Identifier: Apache-2.0 */
/* ast - the tree of a compiled template.
 *
 * One node type for expressions and statements; the comment of a kind lists its fields.
 * Names are interned: two equal names are the same `struct str`, so scopes compare pointers. The
 * tree is never written after compiling.
 * Threads: read-only. */
#ifndef QUIRE_COMMON_TEMPLATE_AST_H
#define QUIRE_COMMON_TEMPLATE_AST_H
#include "common/buf.h"
#include "common/mem.h"
#include "common/template/value.h"

enum node_kind {
    /* expressions */
    N_CONST,   /* constant */
    N_NAME,    /* name */
    N_LIST,    /* body */
    N_TUPLE,   /* body */
    N_DICT,    /* body: key, value, key, value … */
    N_ATTR,    /* a . name (constant: the name as a value) */
    N_ITEM,    /* a [ b ] */
    N_SLICE,   /* a : b : c, each may be NULL; only as b of N_ITEM */
    N_CALL,    /* a ( args ) */
    N_FILTER,  /* a | row ( args ); a NULL: the text of the enclosing block */
    N_TEST,    /* a is row ( args ) */
    N_CONCAT,  /* body, joined by ~ */
    N_BINARY,  /* a op b */
    N_NEG,     /* - a */
    N_POS,     /* + a */
    N_NOT,     /* not a */
    N_AND,     /* a and b */
    N_OR,      /* a or b */
    N_COND,    /* b if a else c (c may be NULL) */
    N_COMPARE, /* a, then body of N_OPERAND */
    N_OPERAND, /* op a */
    /* statements */
    N_TEXT,         /* constant: literal text */
    N_PRINT,        /* a */
    N_FOR,          /* for a in b if c: body, else: alt; flag: recursive */
    N_IF,           /* body of N_BRANCH */
    N_BRANCH,       /* a: test or NULL (else), body */
    N_SET,          /* a = b */
    N_SET_BLOCK,    /* a = body, through the filters b */
    N_NSREF,        /* as a target: name . constant */
    N_MACRO,        /* macro */
    N_CALL_BLOCK,   /* a: the call, macro: its body */
    N_FILTER_BLOCK, /* b: filters, body */
    N_WITH,         /* alt: target, value, target, value …; body */
    N_SCOPE,        /* body in a scope of its own; flag: {% print %} */
    N_GENERATION,   /* {% generation %}: body in a scope of its own, noted in interp.generated */
    N_BLOCK,        /* name, body; flag (scoped): it sees what is around, else the top scope only;
                       required: there is no text, and reaching it is an error */
    N_BREAK,
    N_CONTINUE,
    N_NO_LOADER /* include, import, extends: there is nowhere to load from */
};

enum node_op {
    OP_ADD,
    OP_SUB,
    OP_MUL,
    OP_DIV,
    OP_FLOORDIV,
    OP_MOD,
    OP_POW,
    OP_EQ,
    OP_NE,
    OP_LT,
    OP_LE,
    OP_GT,
    OP_GE,
    OP_IN,
    OP_NOT_IN
};

struct node;
struct node_list {
    struct node **at; /* [n] */
    size_t n, cap;
};

struct keyword {
    struct str *name;
    struct node *value;
};
struct call_args { /* (x, y, *rest, k=v, **more) */
    struct node_list positional;
    struct keyword *keywords; /* [n_keyword] */
    size_t n_keyword;
    struct node *star, *star_star; /* or NULL */
};

struct macro_def {
    struct str *name;       /* "caller" for a call block */
    struct str **params;    /* [n_param] */
    struct node **defaults; /* [n_param], NULL where there is none */
    size_t n_param;
    struct node_list body;
    bool uses_caller, uses_varargs, uses_kwargs; /* the body mentions these names */
    bool has_caller_param;                       /* "caller" is one of params */
};

struct node {
    enum node_kind kind;
    enum node_op op;
    bool flag, required;
    uint32_t line, column; /* from 1 */
    struct str *name;
    struct value constant;
    struct node *a, *b, *c;
    struct node_list body, alt;
    struct call_args *args;
    struct macro_def *macro;
    const struct native
        *row; /* N_FILTER, N_TEST; NULL = no such row, an error when it is reached */
};

struct template
{
    struct arena mem;
    const char *source; /* [n], newlines normalised */
    size_t n;
    struct node_list body;
    struct node_list blocks; /* all N_BLOCK */
    bool marks_generation;   /* it has an N_GENERATION */
    struct str *self_name, *loop_name, *caller_name, *varargs_name, *kwargs_name; /* interned */
};

#define TEMPLATE_BLOCKS_MAX  1000
#define TEMPLATE_SOURCE_MAX  (4u << 20)   /* bytes of source */
#define TEMPLATE_MEMORY_MAX  (256u << 20) /* bytes of one compiled template */
#define TEMPLATE_NESTING_MAX 200          /* brackets and blocks inside each other */

#endif
