/* SPDX-License-Identifier: Apache-2.0 */
/* A .npy file: what npy_read accepts lies in the file, whole. */
#include "common/err.h"
#include "common/items/npy.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static volatile uint64_t sink;

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    struct npy npy;
    struct q_err e = Q_ERR_INIT;
    if (npy_read(&npy, data, n < NPY_HEAD_MAX ? n : NPY_HEAD_MAX, n, &e)) {
        Q_ASSERT(e.code == Q_INVALID && *e.message);
        return 0;
    }
    Q_ASSERT(npy.n_dim <= ITEM_ARRAY_DIMS_MAX && npy.offset + npy.n_byte == n);
    for (size_t i = 0; i < npy.n_byte; i++)
        sink += data[npy.offset + i];
    return 0;
}
