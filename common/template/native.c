/* SPDX-License-Identifier: Apache-2.0 */
#include "common/template/native.h"
#include "common/template/template_internal.h"
#include "common/template/builtins.h"

/* clang-format off */
static const struct native filters[] = {
#define FILTER(name, function, signature) {name, filter_##function, signature},
#include "common/template/filters.def"
};
static const struct native tests[] = {
#define TEST(name, function, signature) {name, test_##function, signature},
#include "common/template/tests.def"
};
static const struct native globals[] = {
#define GLOBAL(name, function, signature) {name, global_##function, signature},
#include "common/template/globals.def"
};
static const struct {
    enum value_kind kind;
    struct native row; /* fn NULL: unsafe */
} methods[] = {
#define METHOD(kind, name, function, signature) {kind, {name, method_##function, signature}},
#define UNSAFE(kind, name) {kind, {name, NULL, ""}},
#include "common/template/methods.def"
};
/* clang-format on */

static const struct native *find_native(const struct native *rows, size_t n_row, const char *name,
                                        size_t n)
{
    for (size_t i = 0; i < n_row; i++)
        if (strlen(rows[i].name) == n && memcmp(rows[i].name, name, n) == 0)
            return &rows[i];
    return NULL;
}

const struct native *filter_find(const char *name, size_t n)
{
    return find_native(filters, sizeof filters / sizeof filters[0], name, n);
}

const struct native *test_find(const char *name, size_t n)
{
    return find_native(tests, sizeof tests / sizeof tests[0], name, n);
}

const struct native *global_find(const char *name, size_t n)
{
    return find_native(globals, sizeof globals / sizeof globals[0], name, n);
}

const struct native *method_find(struct value self, const struct str *name, bool *unsafe)
{
    *unsafe = false;
    for (size_t i = 0; i < sizeof methods / sizeof methods[0]; i++) {
        if (methods[i].kind != self.kind || !text_is(name, methods[i].row.name))
            continue;
        *unsafe = !methods[i].row.fn;
        return *unsafe ? NULL : &methods[i].row;
    }
    return NULL;
}

enum q_code arg_int(struct interp *in, struct value v, int64_t fallback, const char *what,
                    int64_t *out)
{
    *out = fallback;
    return v.kind == V_MISSING || v.kind == V_NONE ? Q_OK : need_int(in, v, what, out);
}

enum q_code arg_str(struct interp *in, struct value v, const char *what, struct str **out)
{
    *out = NULL;
    return v.kind == V_MISSING || v.kind == V_NONE ? Q_OK : need_str(in, v, what, out);
}
