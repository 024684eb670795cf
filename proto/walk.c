/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/walk.h"
#include <string.h>
#include "common/err.h"

static uint64_t big_endian(const uint8_t *p, size_t n)
{
    uint64_t v = 0;
    for (size_t i = 0; i < n; i++)
        v = v << 8 | p[i];
    return v;
}

static void set_signed(struct walk_value *v, int64_t value)
{
    v->kind = value < 0 ? WALK_INT : WALK_UINT;
    v->u = value < 0 ? 0 : (uint64_t)value;
}

/* What a first byte of 0xc0 … 0xdf says: the kind, how many bytes of length, number or count
 * follow, and how many bytes of content come after those without being counted (fixext's payload
 * and every ext's type byte). */
struct lead {
    uint8_t kind, size, fixed;
};
static const struct lead leads[32] = {
    {WALK_NIL, 0, 0},   {WALK_END, 0, 0},   {WALK_BOOL, 0, 0}, {WALK_BOOL, 0, 0}, // c0 nil … true
    {WALK_BIN, 1, 0},   {WALK_BIN, 2, 0},   {WALK_BIN, 4, 0},                     // c4 bin
    {WALK_EXT, 1, 1},   {WALK_EXT, 2, 1},   {WALK_EXT, 4, 1},                     // c7 ext
    {WALK_FLOAT, 4, 0}, {WALK_FLOAT, 8, 0},                                       // ca float
    {WALK_UINT, 1, 0},  {WALK_UINT, 2, 0},  {WALK_UINT, 4, 0}, {WALK_UINT, 8, 0}, // cc uint
    {WALK_INT, 1, 0},   {WALK_INT, 2, 0},   {WALK_INT, 4, 0},  {WALK_INT, 8, 0},  // d0 int
    {WALK_EXT, 0, 2},   {WALK_EXT, 0, 3},   {WALK_EXT, 0, 5},                     // d4 fixext
    {WALK_EXT, 0, 9},   {WALK_EXT, 0, 17},                                        // d7 fixext
    {WALK_STR, 1, 0},   {WALK_STR, 2, 0},   {WALK_STR, 4, 0},                     // d9 str
    {WALK_ARRAY, 2, 0}, {WALK_ARRAY, 4, 0},                                       // dc array
    {WALK_MAP, 2, 0},   {WALK_MAP, 4, 0},                                         // de map
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

/* The value after a lead byte of 0xc0 … 0xdf; `number` is what its size bytes say. */
static void set_lead(struct walk_value *v, uint8_t first, const struct lead *l, uint64_t number)
{
    v->kind = (enum walk_kind)l->kind;
    switch (v->kind) {
    case WALK_BOOL:
        v->u = first & 1;
        break;
    case WALK_UINT:
        v->u = number;
        break;
    case WALK_INT: /* sign-extend from size bytes */
        Q_ASSERT(l->size > 0);
        set_signed(v, (int64_t)(number << (64 - 8 * l->size)) >> (64 - 8 * l->size));
        break;
    case WALK_FLOAT:
        v->f = read_float(number, l->size);
        break;
    default:
        v->n = (size_t)number + l->fixed;
        break;
    }
}

/* Lead bytes below 0xc0 and above 0xdf carry their value or length in themselves. */
static void set_short(struct walk_value *v, uint8_t first)
{
    if (first < 0x80 || first >= 0xe0) {
        set_signed(v, (int8_t)first);
        return;
    }
    v->kind = first < 0x90 ? WALK_MAP : first < 0xa0 ? WALK_ARRAY : WALK_STR;
    v->n = v->kind == WALK_STR ? first & 0x1f : first & 0x0f;
}

bool walk_next(struct walk *w, struct walk_value *v)
{
    *v = (struct walk_value){.kind = WALK_END};
    if (w->at >= w->n)
        return false;
    uint8_t first = w->data[w->at];
    size_t at = w->at + 1, size = 0;
    if (first < 0xc0 || first > 0xdf) {
        set_short(v, first);
    } else {
        const struct lead *l = &leads[first - 0xc0];
        size = l->size;
        if (l->kind == WALK_END || size > w->n - at)
            return false;
        set_lead(v, first, l, big_endian(w->data + at, size));
        at += size;
    }
    size_t left = w->n - at;
    bool counted = v->kind == WALK_ARRAY || v->kind == WALK_MAP;
    /* Every element takes a byte at least, so a larger count lies. */
    if (v->n > (v->kind == WALK_MAP ? left / 2 : left)) {
        *v = (struct walk_value){.kind = WALK_END};
        return false;
    }
    if (v->kind == WALK_STR || v->kind == WALK_BIN || v->kind == WALK_EXT)
        v->data = w->data + at;
    w->at = counted ? at : at + v->n;
    return true;
}

bool walk_skip(struct walk *w)
{
    size_t start = w->at;
    for (uint64_t n_left = 1; n_left; n_left--) {
        struct walk_value v;
        if (!walk_next(w, &v)) {
            w->at = start;
            return false;
        }
        if (v.kind == WALK_ARRAY)
            n_left += v.n;
        else if (v.kind == WALK_MAP)
            n_left += 2 * (uint64_t)v.n;
    }
    return true;
}

const char *walk_kind_name(enum walk_kind kind)
{
    static const char *const names[] = {
        "end of frame", "nil", "bool",  "integer", "negative integer", "float", "str",
        "bin",          "ext", "array", "map"};
    return names[kind];
}
