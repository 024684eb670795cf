/* SPDX-License-Identifier: Apache-2.0 */
/* walk - reading untrusted msgpack.
 *
 * A walk is a cursor over one frame. It allocates nothing and does not recurse: skipping a value
 * counts the values still to come, so nesting costs no stack, and a declared count or length is
 * accepted only if that many bytes are present. Format:
 * https://github.com/msgpack/msgpack/blob/master/spec.md. Threads: one owner. */
#ifndef QUIRE_PROTO_WALK_H
#define QUIRE_PROTO_WALK_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum walk_kind {
    WALK_END, /* malformed, or the frame ends inside the value */
    WALK_NIL,
    WALK_BOOL,  /* u */
    WALK_UINT,  /* u; signed formats too when the value is >= 0 */
    WALK_INT,   /* negative; the value is not stored, quire sends no negative numbers */
    WALK_FLOAT, /* f */
    WALK_STR,   /* data[0..n) */
    WALK_BIN,   /* data[0..n) */
    WALK_EXT,   /* data[0..n) */
    WALK_ARRAY, /* n elements follow */
    WALK_MAP    /* n pairs follow */
};

struct walk {
    const uint8_t *data; /* [n], borrowed */
    size_t n, at;
};

struct walk_value {
    enum walk_kind kind;
    uint64_t u;
    double f;
    const uint8_t *data; /* borrowed from the frame */
    size_t n;
};

/* Read the next value's head and, for scalars and strings, its content. False (kind WALK_END) at
 * the end or on invalid msgpack; the cursor then does not move. */
bool walk_next(struct walk *w, struct walk_value *v);
/* Skip the next value whole, containers included. False as above. */
bool walk_skip(struct walk *w);
const char *walk_kind_name(enum walk_kind kind);

#endif
