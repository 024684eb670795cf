/* SPDX-License-Identifier: Apache-2.0 */
/* int4_layout - offsets within a packed matrix of 4-bit weights (picture: ops_int4.h). Private to
 * kernels/. Threads: pure functions. */
#ifndef QUIRE_KERNELS_OPS_INT4_LAYOUT_H
#define QUIRE_KERNELS_OPS_INT4_LAYOUT_H
#include <string.h>
#include "kernels/ops/ops_int4.h"

#define INT4_MOST      15
#define INT4_GROUP_MAX 128u

/* From the start of a group to its scales, and from them to its zeros. */
static inline size_t int4_scales_at(uint32_t group)
{
    return (size_t)group / 2 * KERN_PANEL;
}
#define INT4_ZEROS_AT (KERN_PANEL * sizeof(uint16_t))

static inline size_t int4_group_bytes(uint32_t group)
{
    return int4_scales_at(group) + INT4_ZEROS_AT + KERN_PANEL;
}

static inline size_t int4_panel_bytes(uint32_t n_in, uint32_t group)
{
    return n_in / group * int4_group_bytes(group);
}

struct int4_group {   /* of one output */
    const uint8_t *q; /* [group] */
    uint16_t scale;   /* f16 */
    uint8_t zero;
};

/* Output `lane` of the panel's group that starts at `at`. */
static inline void int4_put(uint8_t *at, uint32_t lane, uint32_t group, const struct int4_group *g)
{
    uint8_t *scales = at + int4_scales_at(group);
    for (uint32_t k = 0; k < group; k += 8) {
        uint32_t low, high;
        memcpy(&low, g->q + k, 4);
        memcpy(&high, g->q + k + 4, 4);
        low |= high << 4;
        memcpy(at + ((size_t)(k / 8) * KERN_PANEL + lane) * 4, &low, 4);
    }
    memcpy(scales + lane * sizeof g->scale, &g->scale, sizeof g->scale);
    scales[INT4_ZEROS_AT + lane] = g->zero;
}

#endif
