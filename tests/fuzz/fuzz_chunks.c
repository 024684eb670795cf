/* SPDX-License-Identifier: Apache-2.0 */
/* The framing of a chunked body: in one piece and byte by byte it is the same, and what follows the
 * body's end changes nothing. */
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include "common/mem.h"
#include "frontend/http/chunks.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct chunks whole = {.n_digit = 0}, single = {.n_digit = 0};
    char *body = q_alloc(size ? size : 1); /* of its exact size, so that a byte too far is seen */
    const char *found = NULL;
    size_t at = 0;
    if (!body)
        return 0;
    memcpy(body, data, size);
    const char *fault = chunks_take(&whole, body, size);
    while (at < size && single.state < CHUNKS_WHOLE)
        found = chunks_take(&single, body + at++, 1);
    Q_ASSERT(found == fault && single.state == whole.state && single.left == whole.left);
    Q_ASSERT((whole.state == CHUNKS_WRONG) == (fault != NULL));
    if (whole.state == CHUNKS_WHOLE)
        Q_ASSERT(at >= 5 && !memcmp(body + at - 2, "\r\n", 2));
    Q_ASSERT(whole.state < CHUNKS_WHOLE || !chunks_take(&whole, body, size));
    q_free(body);
    return 0;
}
