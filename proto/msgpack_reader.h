/* SPDX-License-Identifier: Apache-2.0 */
/* msgpack_reader - reading untrusted msgpack.
 *
 * A reader is a cursor over one frame. It allocates nothing and does not recurse: skipping a value
 * counts the values still to come, so nesting costs no stack, and a declared count or length is
 * accepted only if that many bytes are present. Format:
 * https://github.com/msgpack/msgpack/blob/master/spec.md. Threads: one owner. */
#ifndef QUIRE_PROTO_MSGPACK_READER_H
#define QUIRE_PROTO_MSGPACK_READER_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum msgpack_kind {
    MSGPACK_END, /* malformed, or the frame ends inside the value */
    MSGPACK_NIL,
    MSGPACK_BOOL,  /* u */
    MSGPACK_UINT,  /* u; signed formats too when the value is >= 0 */
    MSGPACK_INT,   /* negative; the value is not stored, quire sends no negative numbers */
    MSGPACK_FLOAT, /* f */
    MSGPACK_STR,   /* data[0..n) */
    MSGPACK_BIN,   /* data[0..n) */
    MSGPACK_EXT,   /* data[0..n) */
    MSGPACK_ARRAY, /* n elements follow */
    MSGPACK_MAP    /* n pairs follow */
};

struct msgpack_reader {
    const uint8_t *data; /* [n], borrowed */
    size_t n, at;
};

struct msgpack_value {
    enum msgpack_kind kind;
    uint64_t u;
    double f;
    const uint8_t *data; /* borrowed from the frame */
    size_t n;
};

/* Read the next value's head and, for scalars and strings, its content. False (kind MSGPACK_END) at
 * the end or on invalid msgpack; the cursor then does not move. */
bool msgpack_reader_next(struct msgpack_reader *w, struct msgpack_value *v);
/* Skip the next value whole, containers included. False as above. */
bool msgpack_reader_skip(struct msgpack_reader *w);
const char *msgpack_kind_name(enum msgpack_kind kind);

#endif
