/* SPDX-License-Identifier: Apache-2.0 */
/* A .npy file of arbitrary bytes: refused with a reason, or every number of it can be read. */
#include <string.h>
#include "common/err.h"
#include "deploy/plugins/terra/npy.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    struct npy a;
    char why[NPY_WHY_MAX] = "";
    if (!npy_parse(&a, data, n, why)) {
        Q_ASSERT(*why && memchr(why, '\0', sizeof why));
        return 0;
    }
    size_t n_number = 1;
    for (uint32_t i = 0; i < a.n_dim; i++)
        n_number *= a.dims[i];
    Q_ASSERT(a.n == n_number && a.n * a.width <= n);
    for (size_t i = 0; i < a.n; i++) {
        int64_t integer;
        const double number = npy_number(&a, i);
        if (npy_integer(&a, i, &integer))
            Q_ASSERT((double)integer == number);
    }
    return 0;
}
