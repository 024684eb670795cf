/* SPDX-License-Identifier: Apache-2.0 */
/* pb - a reader of the protobuf wire format: a message is a sequence of fields, each with a
 * number, a kind and a value. Nothing is copied; lengths are checked against the bytes of the
 * message. Private to common/tokenizer. Threads: one owner. */
#ifndef QUIRE_COMMON_TOKENIZER_SOURCE_PB_H
#define QUIRE_COMMON_TOKENIZER_SOURCE_PB_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "common/tokenizer/json.h"

struct pb {
    const char *p, *end;  /* borrowed from the file */
    bool bad;             /* the bytes are no message */
    uint32_t field;       /* its number */
    uint64_t number;      /* of a varint; the bits of a fixed32 or fixed64 */
    struct tok_str bytes; /* of a length-delimited field: a string, bytes or a message */
};
void pb_init(struct pb *m, struct tok_str bytes);
/* The next field; false at the end and at what is no field (bad). */
bool pb_next(struct pb *m);
float pb_float(const struct pb *m); /* of the field just read */

#endif
