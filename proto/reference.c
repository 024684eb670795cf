/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/codec.h"

static const struct {
    uint32_t tag;
    const char *name, *text;
} reserved[] = {
#define MSG(tag, name)
#define FIELD(tag, type, name, text)
#define END(name)
#define RESERVED(tag, name, text) {tag, #name, text},
#include "proto/messages.def"
};

void proto_reference(struct buf *out)
{
    buf_add_str(out,
                "# The messages between frontends and engines\n\nWritten from `messages.def` by "
                "`proto_reference`; do not edit.\n\n");
    buf_printf(out,
               "Wire versions %u to %u. A frame is one ZeroMQ message part of at most %zu MiB: "
               "msgpack `[message tag, {field tag: value}]`.\nFields of value 0 and empty ones are "
               "left out. Arrays are msgpack `bin` of little-endian elements, at most 2^24;\nbytes "
               "at most %zu MiB, strings at most %zu KiB.\n",
               PROTO_WIRE_MIN, PROTO_WIRE_MAX, PROTO_FRAME_MAX >> 20, PROTO_ARRAY_MAX >> 20,
               PROTO_STR_MAX >> 10);
    for (const struct codec_message *m = codec_messages; m->tag; m++) {
        buf_printf(out, "\n## %u %s\n\n| tag | field | type | meaning |\n|---|---|---|---|\n",
                   m->tag, m->name);
        for (const struct codec_field *f = m->fields(); f->tag; f++)
            buf_printf(out, "| %u | %s | %s | %s |\n", f->tag, f->name, codec_type_name(f->type),
                       f->text);
    }
    buf_add_str(out, "\n## Reserved tags\n\n| tag | was | meaning |\n|---|---|---|\n");
    for (size_t i = 0; i < sizeof reserved / sizeof *reserved; i++)
        buf_printf(out, "| %u | %s | %s |\n", reserved[i].tag, reserved[i].name, reserved[i].text);
}
