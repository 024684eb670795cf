/* SPDX-License-Identifier: Apache-2.0 */
/* A packed request body: the first byte chooses the coding, the second the limit. */
#include <stddef.h>
#include <stdint.h>
#include "frontend/http/unpack.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct q_err e = Q_ERR_INIT;
    if (size < 2)
        return 0;
    struct buf out = BUF_INIT_MAX((size_t)(data[1] + 1) << 9);
    enum q_code rc = unpack(&out, data[0] % 2 ? CODING_GZIP : CODING_DEFLATE,
                            (const char *)data + 2, size - 2, &e);
    Q_ASSERT((rc == Q_OK) == (e.code == Q_OK) && out.len <= out.max);
    (void)coding_read((const char *)data, size);
    buf_release(&out);
    return 0;
}
