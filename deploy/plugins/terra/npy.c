/* SPDX-License-Identifier: Apache-2.0 */
#include "npy.h"
#include <errno.h>
#include <stdio.h>
#include <string.h>

#define MAGIC      "\x93NUMPY"
#define MAGIC_SIZE 6u
#define ALIGN      64u /* where numpy lets the numbers begin */

static bool refuse(char why[NPY_WHY_MAX], const char *text)
{
    snprintf(why, NPY_WHY_MAX, "%s", text);
    return false;
}

bool npy_write(const char *path, const int32_t *data, const size_t *dims, uint32_t n_dim,
               char why[NPY_WHY_MAX])
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
    FILE *f = fopen(path, "wb");
    if (!f)
        return refuse(why, strerror(errno));
    fwrite(MAGIC, 1, MAGIC_SIZE, f);
    fwrite(front, 1, sizeof front, f);
    fprintf(f, "%-*s\n", (int)n_header - 1, header);
    fwrite(data, sizeof *data, n, f);
    const bool is_bad = ferror(f) != 0;
    if (fclose(f) != 0 || is_bad)
        return refuse(why, "it cannot be written whole");
    return true;
}
