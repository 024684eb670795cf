/* SPDX-License-Identifier: Apache-2.0 */
#include "common/size_text.h"
#include <stdio.h>

#define N_UNIT 6u

/* From `most` on a number has the next unit: it would be printed as that unit's 1. */
static const char *text_of(char out[SIZE_TEXT_MAX], double bytes, double unit, double most,
                           const char *const units[N_UNIT])
{
    unsigned i = 0;
    while (bytes >= (i ? most : unit) && i + 1 < N_UNIT) {
        bytes /= unit;
        i++;
    }
    const int n_place = !i || bytes >= 99.95 ? 0 : bytes >= 9.995 ? 1 : 2;
    snprintf(out, SIZE_TEXT_MAX, "%.*f %s", n_place, bytes, units[i]);
    return out;
}

const char *size_text(char out[SIZE_TEXT_MAX], double bytes)
{
    static const char *const units[N_UNIT] = {"B", "kB", "MB", "GB", "TB", "PB"};
    return text_of(out, bytes, 1000, 999.5, units);
}

const char *size_text_binary(char out[SIZE_TEXT_MAX], double bytes)
{
    static const char *const units[N_UNIT] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
    return text_of(out, bytes, 1024, 1023.5, units);
}
