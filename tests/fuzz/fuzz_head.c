/* SPDX-License-Identifier: Apache-2.0 */
/* The head of a request as it came; one whose headers were renamed announces no body. */
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include "common/mem.h"
#include "frontend/http/head.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define FIELDS 3

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char *head = q_alloc(size + 1); /* of its exact size, so that a byte too far is seen */
    if (!head)
        return 0;
    memcpy(head, data, size);
    size_t n = head_length(head, size);
    Q_ASSERT(n <= size && head_n_field(head, size, FIELDS) <= FIELDS + 1);
    if (n) {
        Q_ASSERT(head[n - 1] == '\n' && head_length(head, n) == n && !head_length(head, n - 1));
        const char *fault = head_fault(head, n);
        struct head_value value;
        if (head_find(head, n, "authorization", &value))
            Q_ASSERT(value.data >= head && value.data + value.n <= head + n);
        head_unframe(head, n);
        Q_ASSERT(head_length(head, n) == n && !head_has_body(head, n));
        const char *after = head_fault(head, n);
        Q_ASSERT(!after || (fault && (strstr(after, "Host") || strstr(after, "space"))));
    }
    if (size >= HEAD_BLANK_MIN) {
        head_blank(head, size);
        Q_ASSERT(head_length(head, size) == size && !head_fault(head, size));
    }
    q_free(head);
    return 0;
}
