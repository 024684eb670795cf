/* SPDX-License-Identifier: Apache-2.0 */
/* kern - selection of the kernels that this machine runs.
 *
 * kern_table_cpu selects, for each operation of kernels.def, the last variant whose instruction
 * sets the machine has.
 * Threads: the table is made once and then only read. */
#ifndef QUIRE_KERNELS_KERN_H
#define QUIRE_KERNELS_KERN_H
#include <stdbool.h>
#include "common/err.h"
#include "kernels/ops/ops_attention.h"
#include "kernels/ops/ops_codes.h"
#include "kernels/ops/ops_device.h"
#include "kernels/ops/ops_distill.h"
#include "kernels/ops/ops_elementwise.h"
#include "kernels/ops/ops_streams.h"
#include "kernels/ops/ops_fp8.h"
#include "kernels/ops/ops_int4.h"
#include "kernels/ops/ops_lora.h"
#include "kernels/ops/ops_mla.h"
#include "kernels/ops/ops_moe.h"
#include "kernels/ops/ops_row.h"
#include "kernels/ops/ops_state.h"
#include "kernels/ops/ops_train.h"

/* instruction sets that a variant requires; a machine has a set of these */
enum {
    CAP_NONE = 0,
    CAP_AVX2 = 1 << 0,        /* AVX2, FMA, F16C */
    CAP_AVX512 = 1 << 1,      /* F, BW, DQ, VL */
    CAP_AVX512_BF16 = 1 << 2, /* vdpbf16ps; implies CAP_AVX512 */
    CAP_AVX_VNNI = 1 << 3,    /* vpdpbusd of 256 bits without AVX-512 */
    CAP_AVX512_VNNI = 1 << 4, /* vpdpbusd; implies CAP_AVX512 */
    CAP_AMX_INT8 = 1 << 5,    /* tdpbsud; implies CAP_AVX512_VNNI */
    CAP_AMX_BF16 = 1 << 6     /* tdpbf16ps; implies CAP_AVX512_BF16 */
};

struct kern_table {
#define OP(op, tolerance) void (*op)(const struct op##_args *a, const struct kern_exec *x);
#define OP_DEVICE(op)     void (*op)(const struct op##_args *a, const struct kern_exec *x);
#define IMPL(table, op, variant, caps)
#include "kernels/kernels.def"
    uint32_t caps; /* the instruction sets that it was made for */
};

uint32_t kern_caps_machine(void); /* CAP_* bits of the instruction sets this machine has */
/* "amx", "avx512_bf16", "avx512_vnni", "avx512", "avx2_vnni", "avx2", "none" or "auto" -> caps,
 * never more than the machine has.
 * Errors: Q_INVALID. */
FALLIBLE kern_caps_parse(uint32_t *caps, const char *text, struct q_err *e);
/* Select for each operation the last variant of kernels.def that requires no bit outside caps. */
void kern_table_cpu(struct kern_table *t, uint32_t caps);
const char *kern_variant_name(const char *op,
                              uint32_t caps); /* "avx512"; for logs and system_fingerprint */

/* Bytes of a matrix [n_out, n_in] packed for `linear`, padding included. */
size_t packed_bytes(enum dtype dtype, uint32_t n_out, uint32_t n_in);
/* Bytes of a matrix packed for `linear_int8`. */
size_t packed_int8_bytes(uint32_t n_out, uint32_t n_in);
/* Bytes of a matrix packed for `linear_fp8_block`. */
size_t packed_fp8_block_bytes(uint32_t n_out, uint32_t n_in);
/* Bytes of a matrix packed for `linear_w4a8`. */
size_t packed_int4_bytes(uint32_t n_out, uint32_t n_in, uint32_t group);
/* Bytes of a matrix packed for `linear_codes`. */
size_t packed_codes_bytes(const struct packed_codes *c, uint32_t n_out, uint32_t n_in);
/* Panels begin … end - 1 of a packed matrix of any kind, as a matrix: its output 0 is output begin
 * * KERN_PANEL of w (gated weights: column begin * KERN_PANEL / 2 of the product). */
struct packed kern_panels(const struct packed *w, uint32_t begin, uint32_t end);
/* The largest group that divides n_in: 128, 64 or 32; 0 when none does. */
uint32_t kern_int4_group(uint32_t n_in);
/* Store quantized 4-bit weights as output o of a matrix packed for `linear_w4a8`. q: [n_in] 0 … 15;
 * scales: [n_in / group] f16; zeros: [n_in / group] 0 … 16. */
struct int4_output {
    const uint8_t *q;
    const uint16_t *scales;
    const uint8_t *zeros;
};
void kern_int4_set(const struct packed *w, uint32_t o, const struct int4_output *from);
/* Store int8 weights with one scale as output o of a matrix packed for `linear_int8`. q: [n_in]. */
void kern_int8_set(const struct packed *w, uint32_t o, const int8_t *q, float scale);
/* Store codes as output o of a matrix packed for `linear_codes`. */
void kern_codes_set(const struct packed *w, uint32_t o, const struct codes_output *from);
/* Scratch one thread needs for any op with these limits. */
size_t kern_scratch_bytes(uint32_t context_max, uint32_t n_head, uint32_t head_dim);
/* Scratch one thread needs for mla with these limits. */
size_t kern_mla_scratch_bytes(uint32_t context_max, uint32_t n_value);
/* Scratch one thread needs for any op of ops_train.h and ops_distill.h with these limits. */
size_t kern_train_scratch_bytes(uint32_t head_dim);
/* True if attention with these arguments and nth threads leaves partial results for
 * attention_join. */
bool kern_attention_splits(const struct attention_args *a, uint32_t nth);
/* Useful size of attention_args.parts within these limits, in floats; 0: no context is split. */
size_t kern_attention_parts(uint32_t context_max, uint32_t n_head, uint32_t head_dim, uint32_t nth);
/* Bytes of one layer's K (or V; both are the same) for one block. */
size_t kern_kv_block_bytes(enum dtype kv_dtype, uint32_t n_kv_head, uint32_t head_dim);

#endif
