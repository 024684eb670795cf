/* SPDX-License-Identifier: Apache-2.0 */
/* What device.c says of a stream, for the launchers on the host emulation. */
#include "emu_lt.h"

struct lt *emu_lt;

struct lt *lt_of(const struct kern_exec *x)
{
    (void)x;
    return emu_lt;
}

void *lt_stream_of(const struct kern_exec *x)
{
    (void)x;
    return NULL;
}
