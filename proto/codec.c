/* SPDX-License-Identifier: Apache-2.0 */
/* Encoding and decoding of messages.
 *
 * [tag, {field tag: value}] with fields of value 0 left out (they decode to 0 anyway), fields in
 * table order. Numeric arrays are `bin` of little-endian elements: a step's output of 256 tokens is
 * five memcpys, and decoding borrows them from the frame when they lie aligned. Rejected: arrays of
 * msgpack integers (a branch and up to five bytes per token), and msgpack-c's unpacker (it
 * allocates what a hostile count declares; proto/msgpack_reader.c does not).
 *
 * Strictness: a field given twice is an error (two parsers must not disagree about which one
 * counts); a known field of another type is an error; unknown fields, unknown messages and further
 * elements of the outer array are skipped. All arrays and strings share the layout {pointer,
 * size_t}, so one struct span stands for all of them. */
#include "proto/codec.h"
#include <math.h>
#include <string.h>
#include <msgpack.h>
#include "proto/msgpack_reader.h"

#define PRINT_ELEMENTS_MAX 16u /* of one array; printed messages are written to logs */

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__,
               "arrays are sent in the format of the memory");

struct span {
    const void *data;
    size_t n;
};
#define SAME_AS_SPAN(type)                                                   \
    _Static_assert(sizeof(struct type) == sizeof(struct span) &&             \
                       offsetof(struct type, n) == offsetof(struct span, n), \
                   #type " is read as a span")
SAME_AS_SPAN(proto_str);
SAME_AS_SPAN(proto_bytes);
SAME_AS_SPAN(proto_u32s);
SAME_AS_SPAN(proto_u64s);
SAME_AS_SPAN(proto_words);
SAME_AS_SPAN(proto_f32s);

/* One function per message that returns its fields. offsetof needs the struct, which FIELD does not
 * name; so the type is that of a pointer which is never dereferenced. */
#define MSG(msg_tag, msg_name)                               \
    static const struct codec_field *msg_name##_fields(void) \
    {                                                        \
        const struct msg_##msg_name *self = NULL;            \
        (void)self;                                          \
        static const struct codec_field fields[] = {
#define FIELD(field_tag, field_type, field_name, field_text)                              \
    {field_tag, CODEC_##field_type, offsetof(__typeof__(*self), field_name), #field_name, \
     field_text},
#define END(msg_name)               \
    {                               \
        0, CODEC_u32, 0, NULL, NULL \
    }                               \
    }                               \
    ;                               \
    return fields;                  \
    }
#include "proto/messages.def"

const struct codec_message codec_messages[] = {
#define MSG(msg_tag, msg_name) \
    {msg_tag, sizeof(struct msg_##msg_name), #msg_name, msg_name##_fields},
#define FIELD(field_tag, field_type, field_name, field_text) /* in the functions above */
#define END(msg_name)                                        /* nothing to close */
#include "proto/messages.def"
    {0, 0, NULL, NULL},
};

/* Bytes of a scalar, or of one element; strings count bytes. */
static const struct {
    const char *name;
    uint8_t size;
    bool is_array;
    enum msgpack_kind kind;
    size_t n_max; /* elements */
} types[] = {
    [CODEC_u32] = {"u32", 4, false, MSGPACK_UINT, 0},
    [CODEC_u64] = {"u64", 8, false, MSGPACK_UINT, 0},
    [CODEC_f32] = {"f32", 4, false, MSGPACK_FLOAT, 0},
    [CODEC_bool] = {"bool", 1, false, MSGPACK_BOOL, 0},
    [CODEC_str] = {"str", 1, true, MSGPACK_STR, PROTO_STR_MAX},
    [CODEC_bytes] = {"bytes", 1, true, MSGPACK_BIN, PROTO_ARRAY_MAX},
    [CODEC_u32s] = {"u32s", 4, true, MSGPACK_BIN, PROTO_ARRAY_MAX},
    [CODEC_u64s] = {"u64s", 8, true, MSGPACK_BIN, PROTO_ARRAY_MAX},
    [CODEC_words] = {"words", 8, true, MSGPACK_BIN, PROTO_ARRAY_MAX},
    [CODEC_f32s] = {"f32s", 4, true, MSGPACK_BIN, PROTO_ARRAY_MAX},
};

const char *codec_type_name(enum codec_type type)
{
    return types[type].name;
}

static const void *at(const void *m, const struct codec_field *f)
{
    return (const char *)m + f->offset;
}

static bool is_empty(const void *m, const struct codec_field *f)
{
    static const char zero[8];
    if (types[f->type].is_array)
        return ((const struct span *)at(m, f))->n == 0;
    return memcmp(at(m, f), zero, types[f->type].size) == 0;
}

static int write_to_buf(void *out, const char *data, size_t n)
{
    buf_add(out, data, n); /* the buffer records a failure, which is checked at the end */
    return 0;
}

static void pack_field(msgpack_packer *pk, const void *m, const struct codec_field *f)
{
    const void *p = at(m, f);
    const struct span *s = p;
    msgpack_pack_uint32(pk, f->tag);
    switch (f->type) {
    case CODEC_u32:
        msgpack_pack_uint32(pk, *(const uint32_t *)p);
        break;
    case CODEC_u64:
        msgpack_pack_uint64(pk, *(const uint64_t *)p);
        break;
    case CODEC_f32:
        msgpack_pack_float(pk, *(const float *)p);
        break;
    case CODEC_bool:
        msgpack_pack_true(pk); /* false is left out */
        break;
    case CODEC_str:
        msgpack_pack_str_with_body(pk, s->data, s->n);
        break;
    default:
        msgpack_pack_bin_with_body(pk, s->data, s->n * types[f->type].size);
        break;
    }
}

/* Compute the size of the message and reject it before anything is written. */
static enum q_code check_sizes(const struct codec_message *cm, const void *m, uint32_t *n_field,
                               struct q_err *e)
{
    size_t total = 0;
    *n_field = 0;
    for (const struct codec_field *f = cm->fields(); f->tag; f++) {
        if (is_empty(m, f))
            continue;
        ++*n_field;
        if (!types[f->type].is_array)
            continue;
        const struct span *s = at(m, f);
        if (s->n > types[f->type].n_max)
            return q_fail(e, Q_TOO_LARGE, "%s.%s: %zu elements, expected at most %zu", cm->name,
                          f->name, s->n, types[f->type].n_max);
        total += s->n * types[f->type].size; /* at most 63 fields of 128 MiB */
    }
    if (total > PROTO_FRAME_MAX)
        return q_fail(e, Q_TOO_LARGE, "%s: %zu bytes of arrays exceed the frame limit of %zu",
                      cm->name, total, PROTO_FRAME_MAX);
    return Q_OK;
}

static enum q_code encode(const struct codec_message *cm, const void *m, struct buf *out,
                          struct q_err *e)
{
    size_t start = out->len;
    uint32_t n_field;
    enum q_code rc;
    if ((rc = check_sizes(cm, m, &n_field, e)))
        return rc;
    msgpack_packer pk;
    msgpack_packer_init(&pk, out, write_to_buf);
    msgpack_pack_array(&pk, 2);
    msgpack_pack_uint32(&pk, cm->tag);
    msgpack_pack_map(&pk, n_field);
    for (const struct codec_field *f = cm->fields(); f->tag; f++)
        if (!is_empty(m, f))
            pack_field(&pk, m, f);
    rc = buf_check(out, cm->name, e);
    if (!rc && out->len - start > PROTO_FRAME_MAX)
        rc = q_fail(e, Q_TOO_LARGE, "%s: %zu bytes exceed the frame limit of %zu", cm->name,
                    out->len - start, PROTO_FRAME_MAX);
    if (rc && out->data) { /* the contents before the call remain, and nothing of this message */
        out->len = start;
        out->data[start] = '\0';
    }
    return rc;
}

/* A number that does not fit its field is rejected with the frame: a token id must not wrap
 * around. */
static enum q_code take_scalar(const struct codec_message *cm, const struct codec_field *f,
                               const struct msgpack_value *v, void *m, struct q_err *e)
{
    void *p = (char *)m + f->offset;
    switch (f->type) {
    case CODEC_u32:
        if (v->u > UINT32_MAX)
            return q_fail(e, Q_CORRUPT, "%s.%s: %llu exceeds 32 bits", cm->name, f->name,
                          (unsigned long long)v->u);
        *(uint32_t *)p = (uint32_t)v->u;
        return Q_OK;
    case CODEC_u64:
        *(uint64_t *)p = v->u;
        return Q_OK;
    case CODEC_bool:
        *(bool *)p = v->u != 0;
        return Q_OK;
    default:
        /* Beyond float's range a double has no float value: the conversion would be undefined. */
        if (isfinite(v->f) && fabs(v->f) > 3.4028234663852886e38)
            return q_fail(e, Q_CORRUPT, "%s.%s: %g exceeds the range of 32-bit floats", cm->name,
                          f->name, v->f);
        *(float *)p = (float)v->f;
        return Q_OK;
    }
}

static enum q_code take_span(const struct codec_message *cm, const struct codec_field *f,
                             const struct msgpack_value *v, struct span *out, struct arena *a,
                             struct q_err *e)
{
    size_t size = types[f->type].size;
    if (v->n % size)
        return q_fail(e, Q_CORRUPT, "%s.%s: %zu bytes are not a multiple of the element size %zu",
                      cm->name, f->name, v->n, size);
    if (v->n / size > types[f->type].n_max)
        return q_fail(e, Q_CORRUPT, "%s.%s: %zu elements, expected at most %zu", cm->name, f->name,
                      v->n / size, types[f->type].n_max);
    const void *data = v->data;
    if (v->n && f->type != CODEC_words && (uintptr_t)data % size) {
        void *copy = arena_alloc(a, v->n);
        if (!copy)
            return q_fail(e, Q_NO_MEMORY, "%s.%s: out of memory for %zu bytes", cm->name, f->name,
                          v->n);
        data = memcpy(copy, data, v->n);
    }
    *out = (struct span){v->n ? data : NULL, v->n / size};
    return Q_OK;
}

struct decoding {
    const struct codec_message *cm;
    void *m;
    struct arena *a;
    struct msgpack_reader w;
    uint64_t seen; /* bit per field tag */
};

static enum q_code decode_field(struct decoding *d, struct q_err *e)
{
    const char *message = d->cm->name;
    struct msgpack_value key, v;
    size_t key_at = d->w.at;
    if (!msgpack_reader_next(&d->w, &key) || key.kind != MSGPACK_UINT)
        return q_fail(e, Q_CORRUPT, "%s: byte %zu: expected a field tag, found %s", message, key_at,
                      msgpack_kind_name(key.kind));
    const struct codec_field *f = d->cm->fields();
    while (f->tag && f->tag != key.u)
        f++;
    size_t value_at = d->w.at;
    if (!f->tag) {
        if (!msgpack_reader_skip(&d->w))
            return q_fail(e, Q_CORRUPT, "%s: byte %zu: field %llu is malformed or truncated",
                          message, value_at, (unsigned long long)key.u);
        return Q_OK;
    }
    if (d->seen & UINT64_C(1) << f->tag)
        return q_fail(e, Q_CORRUPT, "%s.%s: byte %zu: duplicate field", message, f->name, key_at);
    d->seen |= UINT64_C(1) << f->tag;
    if (!msgpack_reader_next(&d->w, &v) || v.kind != types[f->type].kind)
        return q_fail(e, Q_CORRUPT, "%s.%s: byte %zu: expected %s as %s, found %s", message,
                      f->name, value_at, types[f->type].name,
                      msgpack_kind_name(types[f->type].kind), msgpack_kind_name(v.kind));
    if (types[f->type].is_array)
        return take_span(d->cm, f, &v, (struct span *)((char *)d->m + f->offset), d->a, e);
    return take_scalar(d->cm, f, &v, d->m, e);
}

/* [tag, … : reads the outer array's head and the tag; *n_more elements follow. */
static bool open_frame(struct msgpack_reader *w, uint32_t *tag, size_t *n_more)
{
    struct msgpack_value v;
    if (!msgpack_reader_next(w, &v) || v.kind != MSGPACK_ARRAY || v.n < 2)
        return false;
    *n_more = v.n - 1;
    if (!msgpack_reader_next(w, &v) || v.kind != MSGPACK_UINT || v.u == MSG_NONE ||
        v.u > UINT32_MAX)
        return false;
    *tag = (uint32_t)v.u;
    return true;
}

static enum q_code decode_body(struct decoding *d, size_t n_more, struct q_err *e)
{
    const char *message = d->cm->name;
    struct msgpack_value map;
    size_t map_at = d->w.at;
    if (!msgpack_reader_next(&d->w, &map) || map.kind != MSGPACK_MAP)
        return q_fail(e, Q_CORRUPT, "%s: byte %zu: expected the map of fields, found %s", message,
                      map_at, msgpack_kind_name(map.kind));
    for (size_t i = 0; i < map.n; i++) {
        enum q_code rc = decode_field(d, e);
        if (rc)
            return rc;
    }
    for (size_t i = 1; i < n_more; i++) /* elements that a newer version may add after the map */
        if (!msgpack_reader_skip(&d->w))
            return q_fail(e, Q_CORRUPT, "%s: byte %zu: malformed or truncated", message, d->w.at);
    if (d->w.at != d->w.n)
        return q_fail(e, Q_CORRUPT, "%s: %zu extra bytes after the message's end at %zu", message,
                      d->w.n - d->w.at, d->w.at);
    return Q_OK;
}

static enum q_code decode(const struct codec_message *cm, void *m,
                          const struct msgpack_reader *frame, struct arena *a, struct q_err *e)
{
    struct decoding d = {cm, m, a, *frame, 0};
    uint32_t tag;
    size_t n_more;
    memset(m, 0, cm->size);
    if (d.w.n > PROTO_FRAME_MAX)
        return q_fail(e, Q_CORRUPT, "%s: a frame of %zu bytes, expected at most %zu", cm->name,
                      d.w.n, PROTO_FRAME_MAX);
    if (!open_frame(&d.w, &tag, &n_more))
        return q_fail(e, Q_CORRUPT, "%s: the frame of %zu bytes does not start with a message",
                      cm->name, d.w.n);
    if (tag != cm->tag)
        return q_fail(e, Q_CORRUPT, "%s: the frame is a %s (tag %u)", cm->name, proto_name(tag),
                      tag);
    enum q_code rc = decode_body(&d, n_more, e);
    if (rc)
        memset(m, 0, cm->size);
    return rc;
}

static bool equal(const struct codec_message *cm, const void *a, const void *b)
{
    for (const struct codec_field *f = cm->fields(); f->tag; f++) {
        size_t size = types[f->type].size;
        const struct span *x = at(a, f), *y = at(b, f);
        if (!types[f->type].is_array) {
            if (memcmp(x, y, size) != 0)
                return false;
        } else if (x->n != y->n || (x->n && memcmp(x->data, y->data, x->n * size) != 0)) {
            return false;
        }
    }
    return true;
}

static void print_element(enum codec_type type, const void *p, struct buf *out)
{
    switch (type) {
    case CODEC_u32:
    case CODEC_u32s:
        buf_printf(out, "%u", *(const uint32_t *)p);
        break;
    case CODEC_u64:
    case CODEC_u64s:
        buf_printf(out, "%llu", (unsigned long long)*(const uint64_t *)p);
        break;
    case CODEC_f32:
    case CODEC_f32s:
        buf_printf(out, "%.9g", (double)*(const float *)p);
        break;
    case CODEC_bool:
        buf_add_str(out, *(const bool *)p ? "true" : "false");
        break;
    default:
        buf_printf(out, "%02x", *(const uint8_t *)p);
        break;
    }
}

static void print_span(enum codec_type type, const struct span *s, struct buf *out)
{
    if (type == CODEC_str) {
        buf_add_json_str(out, s->data, s->n);
        return;
    }
    buf_printf(out, "[%zu:", s->n);
    for (size_t i = 0; i < s->n && i < PRINT_ELEMENTS_MAX; i++) {
        buf_add_char(out, ' ');
        print_element(type, (const char *)s->data + i * types[type].size, out);
    }
    buf_add_str(out, s->n > PRINT_ELEMENTS_MAX ? " …]" : "]");
}

static void print(const struct codec_message *cm, const void *m, struct buf *out)
{
    buf_printf(out, "%s{", cm->name);
    const char *sep = "";
    for (const struct codec_field *f = cm->fields(); f->tag; f++) {
        if (is_empty(m, f))
            continue;
        buf_printf(out, "%s%s=", sep, f->name);
        if (types[f->type].is_array)
            print_span(f->type, at(m, f), out);
        else
            print_element(f->type, at(m, f), out);
        sep = " ";
    }
    buf_add_char(out, '}');
}

static const struct codec_message *message_of(uint32_t tag)
{
    const struct codec_message *cm = codec_messages;
    while (cm->tag && cm->tag != tag)
        cm++;
    return cm;
}

#define MSG(msg_tag, name)                                                                        \
    enum q_code msg_##name##_encode(const struct msg_##name *m, struct buf *out, struct q_err *e) \
    {                                                                                             \
        return encode(message_of(MSG_##name), m, out, e);                                         \
    }                                                                                             \
    enum q_code msg_##name##_decode(struct msg_##name *m, const void *frame, size_t n,            \
                                    struct arena *a, struct q_err *e)                             \
    {                                                                                             \
        return decode(message_of(MSG_##name), m, &(struct msgpack_reader){frame, n, 0}, a, e);    \
    }                                                                                             \
    bool msg_##name##_equal(const struct msg_##name *a, const struct msg_##name *b)               \
    {                                                                                             \
        return equal(message_of(MSG_##name), a, b);                                               \
    }                                                                                             \
    void msg_##name##_print(const struct msg_##name *m, struct buf *out)                          \
    {                                                                                             \
        print(message_of(MSG_##name), m, out);                                                    \
    }
#define FIELD(tag, type, name, text) /* in the tables */
#define END(name)                    /* nothing to close */
#include "proto/messages.def"

uint32_t proto_peek(const void *frame, size_t n)
{
    struct msgpack_reader w = {frame, n, 0};
    uint32_t tag;
    size_t n_more;
    return open_frame(&w, &tag, &n_more) ? tag : (uint32_t)MSG_NONE;
}

const char *proto_name(uint32_t tag)
{
    const struct codec_message *cm = message_of(tag);
    return cm->tag && tag ? cm->name : "?";
}
