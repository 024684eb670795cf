/* SPDX-License-Identifier: Apache-2.0 */
/* variants - declares every kernel function of kernels.def, so that a variant whose name or
 * arguments do not match its line does not compile. For kernels/ and tests/kcheck only; all other
 * code includes kern.h. Threads: see ops.h. */
#ifndef QUIRE_KERNELS_VARIANTS_H
#define QUIRE_KERNELS_VARIANTS_H
#include "kernels/ops/ops_codes.h"
#include "kernels/ops/ops_device.h"
#include "kernels/ops/ops_distill.h"
#include "kernels/ops/ops_elementwise.h"
#include "kernels/ops/ops_fp8.h"
#include "kernels/ops/ops_int4.h"
#include "kernels/ops/ops_lora.h"
#include "kernels/ops/ops_mla.h"
#include "kernels/ops/ops_moe.h"
#include "kernels/ops/ops_row.h"
#include "kernels/ops/ops_state.h"
#include "kernels/ops/ops_streams.h"
#include "kernels/ops/ops_train.h"

/* The declarations of the CUDA launchers stay in kernels/cuda. */
#define OP(op, tolerance)
#define IMPL(table, op, variant, caps) DECLARE_##table(op, variant)
#define DECLARE_CPU(op, variant) \
    void op##_##variant(const struct op##_args *a, const struct kern_exec *x);
#include "kernels/kernels.def"
#undef DECLARE_CPU

/* A second definition, of linear_amx with bf16 x; not in the table. */
void linear_ref_tiles(const struct linear_args *a, const struct kern_exec *x);

#endif
