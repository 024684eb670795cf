/* SPDX-License-Identifier: Apache-2.0 */
/* weight_parts - the tensors that stand for one quantized matrix: found by the matrix's name and a
 * suffix, checked, and read number by number. Internal to engine/model/load.
 * Threads: pure functions. */
#ifndef QUIRE_ENGINE_MODEL_LOAD_WEIGHT_PARTS_H
#define QUIRE_ENGINE_MODEL_LOAD_WEIGHT_PARTS_H
#include <math.h>
#include "engine/model/load/weight_source.h"

/* Bytes of `name` before its ".weight"; 0: it has no such end. */
size_t weight_part_base(const char *name);
/* The tensor that has `suffix` in place of ".weight" (".qzeros"); NULL: there is none. */
const struct tensor *weight_part(const struct weight_finder *f, const char *name,
                                 const char *suffix);
/* The end of a path that a message has room for. */
const char *weight_part_file(const struct tensor *t);

enum part_type {
    PART_I32,
    PART_I8,
    PART_U8,
    PART_SCALE /* F32, F16 or BF16 */,
    PART_E4M3,
    PART_E8M0
};
struct part_wanted {
    const char *name, *suffix; /* of the matrix; of the part */
    uint64_t rows, cols;       /* cols 0: a vector; both 0: one number, in any shape */
    enum part_type type;
};
/* Errors: Q_NOT_FOUND (t is NULL), Q_MISMATCH (file, tensor, found and expected). */
FALLIBLE weight_part_check(const struct tensor *t, const struct part_wanted *w, struct q_err *e);
/* Is t one number, in any shape? */
bool weight_part_is_one(const struct tensor *t);

static inline int32_t weight_part_i32(const struct tensor *t, size_t i)
{
    int32_t v;
    memcpy(&v, (const char *)t->data + i * sizeof v, sizeof v);
    return v;
}
/* A scale of e8m0 (F8_E8M0, or U8): 2^(byte - 127); 255 is NaN. Source: OCP Microscaling Formats
 * 1.0. */
static inline float weight_part_e8m0(uint8_t byte)
{
    return byte == 255 ? NAN : ldexpf(1, byte - 127);
}
/* Number i of F32, F16, BF16, or of bytes of e8m0. */
float weight_part_float(const struct tensor *t, size_t i);
/* Are all numbers of a PART_SCALE or PART_E8M0 finite? What is computed with them is then. Errors:
 * Q_CORRUPT. */
FALLIBLE weight_part_check_finite(const struct tensor *t, struct q_err *e);

#endif
