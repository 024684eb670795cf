/* SPDX-License-Identifier: Apache-2.0 */
/* unknown - unknown names in a request, and known ones without effect.
 *
 * They are ignored, as in vLLM, because clients send fields of other servers; but not silently: the
 * response header X-Quire-Warning lists them with the nearest known name, and with --strict-fields
 * the request is rejected. Finding the nearest name requires a comparison with each name of a
 * table, so only the first names of a request are looked up and listed; the others are counted.
 * Threads: values. */
#ifndef QUIRE_FRONTEND_API_UNKNOWN_H
#define QUIRE_FRONTEND_API_UNKNOWN_H
#include <jansson.h>
#include <stdbool.h>
#include "common/err.h"

#define UNKNOWN_TEXT_MAX 1024 /* bytes of the header's value, NUL included */
#define UNKNOWN_NAME_MAX 96   /* of one name in it */
#define UNKNOWN_LOOK_MAX 16   /* names of a request that are looked up, and that are listed */

struct unknown {
    size_t n, n_text;
    size_t n_looked;             /* number of names compared with a table */
    size_t n_more;               /* number of names not listed in the text */
    char text[UNKNOWN_TEXT_MAX]; /* printable ASCII; "" = none */
    size_t n_idle;
    char idle[UNKNOWN_TEXT_MAX]; /* the fields without effect; "" = none */
    char first[UNKNOWN_NAME_MAX], meant[UNKNOWN_NAME_MAX]; /* the first name, and its suggestion */
};

/* nearest_name, for the first UNKNOWN_LOOK_MAX calls; 0 (none is near) after them. */
size_t unknown_nearest(struct unknown *u, const char *name, const char *names,
                       const char **nearest);
/* Note a name; `meant` (of n_meant bytes) may be empty. */
void unknown_note(struct unknown *u, const char *name, const char *meant, size_t n_meant);
/* Note a field that is known and has no effect in this request. */
void unknown_no_effect(struct unknown *u, const char *name);
#define UNKNOWN_BOTH_MAX (2 * UNKNOWN_TEXT_MAX + 2)
/* The header's value; NULL: no warning. Borrowed from u and `both`. */
const char *unknown_warning(const struct unknown *u, char both[UNKNOWN_BOTH_MAX]);
bool unknown_is_one_of(const char *name, const char *names); /* with one space between two */
/* Note the unknown members of the body's objects: stream_options, response_format, tools, … */
void unknown_members(struct unknown *u, const json_t *body);
/* Errors: Q_INVALID, with --strict-fields (`strict`) and a noted name. */
FALLIBLE unknown_check(const struct unknown *u, bool strict, struct q_err *e);

#endif
