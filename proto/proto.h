/* SPDX-License-Identifier: Apache-2.0 */
/* proto - the messages between frontends and engines, generated from messages.def.
 *
 * A frame is one ZeroMQ message part holding msgpack: [tag, {field tag: value, …}]. Numeric arrays
 * are msgpack `bin` of little-endian elements, so that a step's output is a few memcpys. Unknown
 * messages and fields are skipped; missing fields are 0 or empty; a duplicate field or a wrong type
 * is an error. For each MSG(name) there are: struct msg_name, msg_name_encode, msg_name_decode,
 * msg_name_equal, msg_name_print (fields: proto/reference.md).
 * Threads: reentrant. */
#ifndef QUIRE_PROTO_PROTO_H
#define QUIRE_PROTO_PROTO_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "common/buf.h"
#include "common/mem.h"

#define PROTO_WIRE_MIN  1u
#define PROTO_WIRE_MAX  1u
#define PROTO_FRAME_MAX ((size_t)64 << 20) /* bytes */
#define PROTO_ARRAY_MAX ((size_t)1 << 24)  /* elements of one array */
#define PROTO_STR_MAX   ((size_t)1 << 16)  /* bytes of one string */

enum { CONTROL_WAKE = 3 };                      /* msg_control.sleep */
enum { CONTROL_PAUSE = 1, CONTROL_RESUME = 2 }; /* msg_control.pause */
/* Treatment of running requests in a pause: suspend them, end them at once with their tokens so far
 * (waiting requests too), or finish them first. */
enum in_flight_mode { IN_FLIGHT_KEEP, IN_FLIGHT_ABORT, IN_FLIGHT_WAIT, IN_FLIGHT_MODES };
/* msg_command.kind */
enum engine_command_kind {
    ENGINE_COMMAND_RELOAD = 1,
    ENGINE_COMMAND_START_PROFILE,
    ENGINE_COMMAND_STOP_PROFILE,
    ENGINE_COMMAND_LOAD_ADAPTER,
    ENGINE_COMMAND_UNLOAD_ADAPTER
};
enum finish_reason { FINISH_NONE, FINISH_STOP, FINISH_LENGTH, FINISH_ABORT, FINISH_ERROR };

/* C types of the fields. Arrays and strings are borrowed: when decoded, from the frame or the arena
 * given to decode (an unaligned array is copied there). */
struct proto_str {
    const char *data; /* not NUL-terminated */
    size_t n;
};
struct proto_bytes {
    const uint8_t *data;
    size_t n;
};
struct proto_u32s {
    const uint32_t *data;
    size_t n;
};
/* [n] of 8 bytes each; data may lie anywhere, so that it is never copied. */
struct proto_words {
    const void *data;
    size_t n;
};
struct proto_u64s {
    const uint64_t *data;
    size_t n;
};
struct proto_f32s {
    const float *data;
    size_t n;
};
typedef uint32_t proto_u32;
typedef uint64_t proto_u64;
typedef float proto_f32;
typedef bool proto_bool;

enum msg_tag {
#define MSG(tag, name) MSG_##name = tag,
#define FIELD(tag, type, name, text)
#define END(name)
#include "proto/messages.def"
    MSG_NONE = 0
};

#define MSG(tag, name)               struct msg_##name {
#define FIELD(tag, type, name, text) struct_member_##type(name)
/* clang-format off */
#define END(name) };
/* clang-format on */
#define struct_member_u32(name)      proto_u32 name;
#define struct_member_u64(name)      proto_u64 name;
#define struct_member_f32(name)      proto_f32 name;
#define struct_member_bool(name)     proto_bool name;
#define struct_member_str(name)      struct proto_str name;
#define struct_member_bytes(name)    struct proto_bytes name;
#define struct_member_u32s(name)     struct proto_u32s name;
#define struct_member_u64s(name)     struct proto_u64s name;
#define struct_member_words(name)    struct proto_words name;
#define struct_member_f32s(name)     struct proto_f32s name;
#include "proto/messages.def"

/* Encode to the end of `out`; Q_TOO_LARGE beyond PROTO_FRAME_MAX. Decode from frame[0..n):
 * Q_CORRUPT with the reason and position. */
#define MSG(tag, name)                                                                          \
    FALLIBLE msg_##name##_encode(const struct msg_##name *m, struct buf *out, struct q_err *e); \
    FALLIBLE msg_##name##_decode(struct msg_##name *m, const void *frame, size_t n,             \
                                 struct arena *a, struct q_err *e);                             \
    bool msg_##name##_equal(const struct msg_##name *a, const struct msg_##name *b);            \
    void msg_##name##_print(const struct msg_##name *m, struct buf *out);
/* clang-format off */
#define FIELD(tag, type, name, text) _Static_assert((tag) > 0 && (tag) < 64, #name ": a bit of 64 says that a field has come");
/* clang-format on */
#define END(name)
#include "proto/messages.def"

/* The frame's message tag, MSG_NONE if it is not a frame. An unknown tag is returned unchanged. */
uint32_t proto_peek(const void *frame, size_t n);
const char *proto_name(uint32_t tag); /* "submit"; "?" when unknown */

/* The reference page of all messages. proto/reference.md is a copy of it; a test compares both. */
void proto_reference(struct buf *out);

#endif
