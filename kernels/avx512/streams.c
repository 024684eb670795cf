/* SPDX-License-Identifier: Apache-2.0 */
/* kernels/wide/streams.h in AVX-512 registers. */
#include "kernels/wide/streams.h"
#include "kernels/variants.h"

void stream_match_avx512(const struct stream_match_args *a, const struct kern_exec *x)
{
    wide_stream_match(a, x);
}

void stream_predict_avx512(const struct stream_predict_args *a, const struct kern_exec *x)
{
    wide_stream_predict(a, x);
}

void stream_correct_avx512(const struct stream_correct_args *a, const struct kern_exec *x)
{
    wide_stream_correct(a, x);
}

void sparse_gate_avx512(const struct sparse_gate_args *a, const struct kern_exec *x)
{
    wide_sparse_gate(a, x);
}
