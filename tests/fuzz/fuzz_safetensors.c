/* SPDX-License-Identifier: Apache-2.0 */
/* A safetensors file of arbitrary bytes: refused, or every tensor lies wholly inside the file.
 * The input is tried as the whole file, and as a header with the right length in front of it and
 * as many data bytes behind it as its last byte says, so that the fuzzer gets past the length at
 * once. */
#include <string.h>
#include "common/hub/safetensors_internal.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static void check_file(const unsigned char *data, size_t n)
{
    struct tensor_list list = {0};
    struct arena names = ARENA_INIT(1u << 20);
    struct q_err e = Q_ERR_INIT;
    struct safetensors_file f = {data, n, "fuzz.safetensors"};
    enum q_code rc = safetensors_header_read(&list, &names, &f, &e);
    Q_ASSERT(rc == e.code && (rc == Q_OK || list.n == 0));
    for (size_t i = 0; i < list.n; i++) {
        const unsigned char *at = list.items[i].data;
        Q_ASSERT(at >= data && at + list.items[i].n_bytes <= data + n);
        Q_ASSERT(strlen(list.items[i].name) < n && list.items[i].n_dim <= TENSOR_DIMS_MAX);
    }
    q_free(list.items);
    arena_release(&names);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    check_file(data, n);
    if (n == 0)
        return 0;
    size_t n_header = n - 1, n_data = data[n - 1];
    unsigned char *file = q_calloc(1, 8 + n_header + n_data);
    for (int i = 0; i < 8; i++)
        file[i] = (unsigned char)((uint64_t)n_header >> 8 * i);
    memcpy(file + 8, data, n_header);
    check_file(file, 8 + n_header + n_data);
    q_free(file);
    return 0;
}
