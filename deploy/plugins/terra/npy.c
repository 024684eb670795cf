/* SPDX-License-Identifier: Apache-2.0 */
#include "npy.h"
#include <stdio.h>
#include <string.h>
#include "output.h"

#define MAGIC      "\x93NUMPY"
#define MAGIC_SIZE 6u
#define ALIGN      64u /* where numpy lets the numbers begin */

bool npy_write(const char *path, const int32_t *data, const size_t *dims, uint32_t n_dim,
               char why[OUTPUT_WHY_MAX])
{
    char header[256], shape[128] = "";
    size_t n = 1, n_shape = 0;
    for (uint32_t i = 0; i < n_dim; i++) {
        n *= dims[i];
        n_shape += (size_t)snprintf(shape + n_shape, sizeof shape - n_shape, "%zu, ", dims[i]);
    }
    const int n_text = snprintf(header, sizeof header,
                                "{'descr': '<i4', 'fortran_order': False, 'shape': (%s), }", shape);
    const size_t start = MAGIC_SIZE + 4;
    const size_t n_header = (start + (size_t)n_text + ALIGN) / ALIGN * ALIGN - start;
    const unsigned char front[] = {1, 0, (unsigned char)n_header, (unsigned char)(n_header >> 8)};
    struct output out;
    if (!output_open(&out, path, why))
        return false;
    fwrite(MAGIC, 1, MAGIC_SIZE, out.f);
    fwrite(front, 1, sizeof front, out.f);
    fprintf(out.f, "%-*s\n", (int)n_header - 1, header);
    fwrite(data, sizeof *data, n, out.f);
    return output_close(&out, why);
}
