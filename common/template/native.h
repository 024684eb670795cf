/* SPDX-License-Identifier: Apache-2.0 */
/* native - filters, tests, functions and methods written in C: rows of filters.def, tests.def,
 * globals.def, methods.def.
 *
 * A row has a name, a function and a signature. The signature lists the parameters by name, blank
 * separated: "old new count?" takes two or three, by position or keyword; "_" is a parameter
 * without a keyword; "*" collects the rest by position as a tuple; "**" the rest by keyword as a
 * dict. The caller binds, the function gets an array with one value per parameter, V_MISSING where
 * an optional one was not given. Filters and tests have their input as parameter 0, methods their
 * object.
 * Threads: tables are constant. */
#ifndef QUIRE_COMMON_TEMPLATE_NATIVE_H
#define QUIRE_COMMON_TEMPLATE_NATIVE_H
#include "common/template/value.h"

typedef enum q_code native_fn(struct interp *in, const struct value *a, struct value *out);

struct native {
    const char *name;
    native_fn *fn;
    const char *signature;
};
#define NATIVE_PARAM_MAX 8

struct named_value {
    const struct str *name;
    struct value value;
};
struct call {           /* evaluated arguments */
    struct value *args; /* [n_arg] */
    size_t n_arg;
    struct named_value *named; /* [n_named] */
    size_t n_named;
};

/* The row of that name; NULL = none. */
const struct native *filter_find(const char *name, size_t n);
const struct native *test_find(const char *name, size_t n);
const struct native *global_find(const char *name, size_t n);
/* The method `name` of a value's type; *unsafe is set when the sandbox forbids it. */
const struct native *method_find(struct value self, const struct str *name, bool *unsafe);

/* Bind and run. `self` (may be NULL) comes before the arguments. */
FALLIBLE native_call(struct interp *in, const struct native *row, const struct value *self,
                     const struct call *c, struct value *out);

#endif
