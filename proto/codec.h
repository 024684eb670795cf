/* SPDX-License-Identifier: Apache-2.0 */
/* codec - messages.def as data, used by the generated functions of proto.h.
 *
 * One struct codec_message per MSG, one struct codec_field per FIELD; encode, decode, equal and
 * print are four loops over them (codec.c), so a new field is one line of messages.def and no code.
 * Threads: constants. */
#ifndef QUIRE_PROTO_CODEC_H
#define QUIRE_PROTO_CODEC_H
#include "proto/proto.h"

enum codec_type {
    CODEC_u32,
    CODEC_u64,
    CODEC_f32,
    CODEC_bool,
    CODEC_str,
    CODEC_bytes,
    CODEC_u32s,
    CODEC_u64s,
    CODEC_words,
    CODEC_f32s
};
struct codec_field {
    uint32_t tag; /* 1 … CODEC_TAG_MAX; 0 ends the list */
    enum codec_type type;
    size_t offset; /* in the message's struct */
    const char *name, *text;
};
struct codec_message {
    uint32_t tag;
    size_t size; /* of the struct */
    const char *name;
    const struct codec_field *(*fields)(void); /* ended by tag 0 */
};
#define CODEC_TAG_MAX 63u /* decode records the fields seen in 64 bits */

extern const struct codec_message codec_messages[]; /* in order of messages.def, ended by tag 0 */
const char *codec_type_name(enum codec_type type);

#endif
