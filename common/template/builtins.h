/* SPDX-License-Identifier: Apache-2.0 */
/* builtins - the functions behind the rows of filters.def, tests.def, globals.def and methods.def,
 * and the few helpers their files share. a[0] is the filter's input, the tested value or the
 * method's object.
 * Threads: one rendering. */
#ifndef QUIRE_COMMON_TEMPLATE_BUILTINS_H
#define QUIRE_COMMON_TEMPLATE_BUILTINS_H
#include "common/template/template_internal.h"
#include "common/template/text.h"
#include "common/template/unicode.h"

/* clang-format off */
#define FILTER(name, function, signature) native_fn filter_##function;
#include "common/template/filters.def"
#define TEST(name, function, signature) native_fn test_##function;
#include "common/template/tests.def"
#define GLOBAL(name, function, signature) native_fn global_##function;
#include "common/template/globals.def"
#define METHOD(kind, name, function, signature) native_fn method_##function;
#define UNSAFE(kind, name)
#include "common/template/methods.def"
/* clang-format on */

static inline bool arg_bool(struct value v, bool fallback)
{
    return v.kind == V_MISSING ? fallback : op_truth(v);
}
/* An optional integer argument; None counts as absent. */
FALLIBLE arg_int(struct interp *in, struct value v, int64_t fallback, const char *what,
                 int64_t *out);
FALLIBLE arg_str(struct interp *in, struct value v, const char *what,
                 struct str **out); /* NULL when absent or None */

enum case_kind { CASE_UPPER, CASE_LOWER, CASE_FOLD, CASE_TITLE, CASE_CAPITAL, CASE_SWAP };
/* Append s[from..to) (bytes) to in->out in another case. */
void print_case(struct interp *in, const struct str *s, size_t from, size_t to,
                enum case_kind kind);
FALLIBLE text_case(struct interp *in, const struct str *s, enum case_kind kind, struct value *out);

/* c, n times, at the end of in->out. */
FALLIBLE print_fill(struct interp *in, int64_t n, uint32_t c);
enum pad_side { PAD_LEFT, PAD_RIGHT, PAD_BOTH };
FALLIBLE text_pad(struct interp *in, struct str *s, int64_t width, enum pad_side side,
                  struct value *out);
enum strip_side { STRIP_LEFT = 1, STRIP_RIGHT = 2, STRIP_BOTH = 3 };
/* chars NULL: white space. */
FALLIBLE text_strip(struct interp *in, struct str *s, const struct str *chars, enum strip_side side,
                    struct value *out);
FALLIBLE text_replace(struct interp *in, const struct value a[3], int64_t count, struct value *out);
FALLIBLE text_split_lines(struct interp *in, const struct str *s, bool keep_ends, struct seq **out);
/* Numbers as Python's int() and float() read them; false when they would raise ValueError. */
bool parse_python_int(const struct str *s, int base, int64_t *out);
bool parse_python_float(const struct str *s, double *out);

#endif
