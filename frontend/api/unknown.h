/* SPDX-License-Identifier: Apache-2.0 */
/* unknown - names in a request that no table knows, and known ones that have no effect there.
 *
 * They are ignored, as in vLLM, since clients send what other servers define; but not silently: the
 * answer's header X-Quire-Warning lists them with the nearest known name, and with --strict-fields
 * the request is refused. Finding the nearest name costs a comparison with each name of a table, so
 * that only the first names of a request are looked up and listed; the others are counted.
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
    size_t n_looked;             /* names that were compared with a table */
    size_t n_more;               /* of the n names those that the text does not list */
    char text[UNKNOWN_TEXT_MAX]; /* printable ASCII; "" = none */
    size_t n_idle;
    char idle[UNKNOWN_TEXT_MAX];         /* the fields without effect; "" = none */
    char both[2 * UNKNOWN_TEXT_MAX + 2]; /* of unknown_warning */
    char first[UNKNOWN_NAME_MAX], meant[UNKNOWN_NAME_MAX]; /* the first, and what it may mean */
};

/* nearest_name, for the first UNKNOWN_LOOK_MAX calls; 0 (none is near) after them. */
size_t unknown_nearest(struct unknown *u, const char *name, const char *names,
                       const char **nearest);
/* Note a name; `meant` (of n_meant bytes) may be empty. */
void unknown_note(struct unknown *u, const char *name, const char *meant, size_t n_meant);
/* Note a field that is known and has no effect in this request. */
void unknown_no_effect(struct unknown *u, const char *name);
/* The header's value; NULL: there is nothing to tell. Borrowed from u. */
const char *unknown_warning(struct unknown *u);
bool unknown_is_one_of(const char *name, const char *names); /* with one space between two */
/* Note the unknown members of the body's objects: stream_options, response_format, tools, … */
void unknown_members(struct unknown *u, const json_t *body);
/* Errors: Q_INVALID, with --strict-fields (`strict`) and something noted. */
FALLIBLE unknown_check(const struct unknown *u, bool strict, struct q_err *e);

#endif
