/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/msgpack_reader.h"
#include <string.h>
#include "common/err.h"

static uint64_t big_endian(const uint8_t *p, size_t n)
{
    uint64_t v = 0;
    for (size_t i = 0; i < n; i++)
        v = v << 8 | p[i];
    return v;
}

static void set_signed(struct msgpack_value *v, int64_t value)
{
    v->kind = value < 0 ? MSGPACK_INT : MSGPACK_UINT;
    v->u = value < 0 ? 0 : (uint64_t)value;
}

/* Meaning of a lead byte of 0xc0 … 0xdf: the kind, the number of bytes of length, number or count
 * that follow, and the number of content bytes that this count does not include (fixext's payload
 * and every ext's type byte). */
struct lead {
    uint8_t kind, size, fixed;
};
static const struct lead leads[32] = {
    {MSGPACK_NIL, 0, 0},   {MSGPACK_END, 0, 0},   {MSGPACK_BOOL, 0, 0},
    {MSGPACK_BOOL, 0, 0},                                              // c0 nil … true
    {MSGPACK_BIN, 1, 0},   {MSGPACK_BIN, 2, 0},   {MSGPACK_BIN, 4, 0}, // c4 bin
    {MSGPACK_EXT, 1, 1},   {MSGPACK_EXT, 2, 1},   {MSGPACK_EXT, 4, 1}, // c7 ext
    {MSGPACK_FLOAT, 4, 0}, {MSGPACK_FLOAT, 8, 0},                      // ca float
    {MSGPACK_UINT, 1, 0},  {MSGPACK_UINT, 2, 0},  {MSGPACK_UINT, 4, 0},
    {MSGPACK_UINT, 8, 0}, // cc uint
    {MSGPACK_INT, 1, 0},   {MSGPACK_INT, 2, 0},   {MSGPACK_INT, 4, 0},
    {MSGPACK_INT, 8, 0},                                               // d0 int
    {MSGPACK_EXT, 0, 2},   {MSGPACK_EXT, 0, 3},   {MSGPACK_EXT, 0, 5}, // d4 fixext
    {MSGPACK_EXT, 0, 9},   {MSGPACK_EXT, 0, 17},                       // d7 fixext
    {MSGPACK_STR, 1, 0},   {MSGPACK_STR, 2, 0},   {MSGPACK_STR, 4, 0}, // d9 str
    {MSGPACK_ARRAY, 2, 0}, {MSGPACK_ARRAY, 4, 0},                      // dc array
    {MSGPACK_MAP, 2, 0},   {MSGPACK_MAP, 4, 0},                        // de map
};

static double read_float(uint64_t bits, size_t size)
{
    if (size == 8) {
        double f;
        memcpy(&f, &bits, sizeof f);
        return f;
    }
    uint32_t half = (uint32_t)bits;
    float f;
    memcpy(&f, &half, sizeof f);
    return (double)f;
}

/* The value after a lead byte of 0xc0 … 0xdf; `number` is the value of its size bytes. */
static void set_lead(struct msgpack_value *v, uint8_t first, const struct lead *l, uint64_t number)
{
    v->kind = (enum msgpack_kind)l->kind;
    switch (v->kind) {
    case MSGPACK_BOOL:
        v->u = first & 1;
        break;
    case MSGPACK_UINT:
        v->u = number;
        break;
    case MSGPACK_INT: /* sign-extend from size bytes */
        Q_ASSERT(l->size > 0);
        set_signed(v, (int64_t)(number << (64 - 8 * l->size)) >> (64 - 8 * l->size));
        break;
    case MSGPACK_FLOAT:
        v->f = read_float(number, l->size);
        break;
    default:
        v->n = (size_t)number + l->fixed;
        break;
    }
}

/* Lead bytes below 0xc0 and above 0xdf contain their value or length. */
static void set_short(struct msgpack_value *v, uint8_t first)
{
    if (first < 0x80 || first >= 0xe0) {
        set_signed(v, (int8_t)first);
        return;
    }
    v->kind = first < 0x90 ? MSGPACK_MAP : first < 0xa0 ? MSGPACK_ARRAY : MSGPACK_STR;
    v->n = v->kind == MSGPACK_STR ? first & 0x1f : first & 0x0f;
}

bool msgpack_reader_next(struct msgpack_reader *w, struct msgpack_value *v)
{
    *v = (struct msgpack_value){.kind = MSGPACK_END};
    if (w->at >= w->n)
        return false;
    uint8_t first = w->data[w->at];
    size_t at = w->at + 1, size = 0;
    if (first < 0xc0 || first > 0xdf) {
        set_short(v, first);
    } else {
        const struct lead *l = &leads[first - 0xc0];
        size = l->size;
        if (l->kind == MSGPACK_END || size > w->n - at)
            return false;
        set_lead(v, first, l, big_endian(w->data + at, size));
        at += size;
    }
    size_t left = w->n - at;
    bool counted = v->kind == MSGPACK_ARRAY || v->kind == MSGPACK_MAP;
    /* Every element has at least one byte, so a larger count is invalid. */
    if (v->n > (v->kind == MSGPACK_MAP ? left / 2 : left)) {
        *v = (struct msgpack_value){.kind = MSGPACK_END};
        return false;
    }
    if (v->kind == MSGPACK_STR || v->kind == MSGPACK_BIN || v->kind == MSGPACK_EXT)
        v->data = w->data + at;
    w->at = counted ? at : at + v->n;
    return true;
}

bool msgpack_reader_skip(struct msgpack_reader *w)
{
    size_t start = w->at;
    for (uint64_t n_left = 1; n_left; n_left--) {
        struct msgpack_value v;
        if (!msgpack_reader_next(w, &v)) {
            w->at = start;
            return false;
        }
        if (v.kind == MSGPACK_ARRAY)
            n_left += v.n;
        else if (v.kind == MSGPACK_MAP)
            n_left += 2 * (uint64_t)v.n;
    }
    return true;
}

const char *msgpack_kind_name(enum msgpack_kind kind)
{
    static const char *const names[] = {
        "end of frame", "nil", "bool",  "integer", "negative integer", "float", "str",
        "bin",          "ext", "array", "map"};
    return names[kind];
}
