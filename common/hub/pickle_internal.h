/* SPDX-License-Identifier: Apache-2.0 */
/* pickle_internal - the stack machine of pickle.c and the functions that it may call
 * (pickle_call.c). Threads: values of one reader. */
#ifndef QUIRE_COMMON_HUB_PICKLE_INTERNAL_H
#define QUIRE_COMMON_HUB_PICKLE_INTERNAL_H
#include "common/hub/pickle.h"

struct pickle_machine {
    const unsigned char *data, *at, *end;
    const char *path;
    struct arena *arena;
    struct pickle_value **stack; /* [n_stack] */
    size_t n_stack, stack_cap;
    size_t *marks; /* [n_mark], heights of the stack */
    size_t n_mark, mark_cap;
    struct pickle_value **memo; /* [n_memo], NULL where nothing was put */
    size_t n_memo, memo_cap;
    bool is_done;
    struct q_err *e;
};

/* Q_CORRUPT: the file, the byte of the next operation, the reason. */
FALLIBLE pickle_bad(const struct pickle_machine *m, const char *reason);
/* NULL: out of memory, and the error is set. */
struct pickle_value *pickle_value_new(struct pickle_machine *m, enum pickle_kind kind);
/* The global of these names. Errors: Q_UNSUPPORTED (there is no such row). */
FALLIBLE pickle_global(struct pickle_value **out, struct pickle_machine *m,
                       const struct pickle_text *module, const struct pickle_text *name);
/* The value of function(arguments). */
FALLIBLE pickle_call(struct pickle_value **out, struct pickle_machine *m,
                     const struct pickle_value *function, const struct pickle_value *arguments);
/* The storage of a persistent id. */
FALLIBLE pickle_persistent(struct pickle_value **out, struct pickle_machine *m,
                           const struct pickle_value *id);

#endif
