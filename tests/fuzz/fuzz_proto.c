/* SPDX-License-Identifier: Apache-2.0 */
/* A frame from the wire: whatever decodes must print, encode again, and decode to the same. */
#include "proto/codec.h"
#include "proto/proto.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

#define MSG(tag, name)                                                      \
    static void try_##name(const uint8_t *data, size_t n, struct arena *a)  \
    {                                                                       \
        struct q_err e = Q_ERR_INIT;                                        \
        struct buf text = BUF_INIT, frame = BUF_INIT;                       \
        struct msg_##name m, again;                                         \
        if (msg_##name##_decode(&m, data, n, a, &e)) {                      \
            Q_ASSERT(e.code != Q_OK && e.message[0]);                       \
        } else {                                                            \
            msg_##name##_print(&m, &text);                                  \
            enum q_code rc = msg_##name##_encode(&m, &frame, &e);           \
            Q_ASSERT(rc == Q_OK);                                           \
            rc = msg_##name##_decode(&again, frame.data, frame.len, a, &e); \
            Q_ASSERT(rc == Q_OK && msg_##name##_equal(&m, &again));         \
        }                                                                   \
        buf_release(&text);                                                 \
        buf_release(&frame);                                                \
    }
#define FIELD(tag, type, name, text)
#define END(name)
#include "proto/messages.def"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    struct arena a = ARENA_INIT((size_t)1 << 26);
    switch (proto_peek(data, n)) {
#define MSG(tag, name)           \
    case tag:                    \
        try_##name(data, n, &a); \
        break;
#define FIELD(tag, type, name, text)
#define END(name)
#include "proto/messages.def"
    default:
        try_hello(data, n, &a); /* is refused */
        break;
    }
    arena_release(&a);
    return 0;
}
