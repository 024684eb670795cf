/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/reading.h"
#include <string.h>
#include "kernels/tiling/slice.h"
#ifdef __x86_64__
#include <cpuid.h>
#endif

const struct kern_reading kern_readings[KERN_READINGS] = {
#define READING(id, bytes, name) {name, bytes},
#define PROCESSOR(vendor, family, first, last, floats, int8, int4, slices)
#include "kernels/reading.def"
#undef READING
#undef PROCESSOR
};

const char *const kern_product_names[KERN_PRODUCTS] = {"floats", "int8", "int4"};

static const struct {
    const char *vendor;
    uint32_t family, first, last;
    int of[KERN_PRODUCTS];
    bool has_far_slices;
} processors[] = {
#define READING(id, bytes, name)
#define SLICES_near false
#define SLICES_far  true
#define PROCESSOR(vendor, family, first, last, floats, int8, int4, slices) \
    {vendor,                                                               \
     family,                                                               \
     first,                                                                \
     last,                                                                 \
     {KERN_READING_##floats, KERN_READING_##int8, KERN_READING_##int4},    \
     SLICES_##slices},
#include "kernels/reading.def"
#undef READING
#undef PROCESSOR
};

_Atomic uint32_t kern_ahead_bytes[KERN_PRODUCTS] = {2048, 2048, 2048};

/* Source: Intel SDM volume 2, CPUID, "family" and "model" of leaf 1 (AMD's are read alike). */
void kern_processor(struct kern_processor *out)
{
    memset(out, 0, sizeof *out);
#ifdef __x86_64__
    unsigned a, b, c, d;
    if (!__get_cpuid(0, &a, &b, &c, &d))
        return;
    memcpy(out->vendor, &b, 4);
    memcpy(out->vendor + 4, &d, 4);
    memcpy(out->vendor + 8, &c, 4);
    if (!__get_cpuid(1, &a, &b, &c, &d))
        return;
    out->family = a >> 8 & 0xf;
    out->model = a >> 4 & 0xf;
    if (out->family == 0xf || out->family == 6)
        out->model |= (a >> 16 & 0xf) << 4;
    if (out->family == 0xf)
        out->family += a >> 20 & 0xff;
#endif
}

bool kern_readings_known(struct kern_readings *out, const struct kern_processor *p)
{
    for (size_t i = 0; i < sizeof processors / sizeof *processors; i++)
        if (strcmp(p->vendor, processors[i].vendor) == 0 && p->family == processors[i].family &&
            p->model >= processors[i].first && p->model <= processors[i].last) {
            for (int k = 0; k < KERN_PRODUCTS; k++)
                out->of[k] = &kern_readings[processors[i].of[k]];
            out->has_far_slices = processors[i].has_far_slices;
            return true;
        }
    for (int k = 0; k < KERN_PRODUCTS; k++)
        out->of[k] = KERN_READING_DEFAULT;
    out->has_far_slices = false;
    return false;
}

void kern_read_by(const struct kern_readings *r)
{
    for (int k = 0; k < KERN_PRODUCTS; k++)
        atomic_store_explicit(&kern_ahead_bytes[k], r->of[k]->ahead_bytes, memory_order_relaxed);
    atomic_store_explicit(&kern_slice_far_bytes, r->has_far_slices ? KERN_SLICE_FAR : 0,
                          memory_order_relaxed);
}

struct kern_readings kern_readings_taken(void)
{
    struct kern_readings r = {
        .has_far_slices = atomic_load_explicit(&kern_slice_far_bytes, memory_order_relaxed),
    };
    for (int k = 0; k < KERN_PRODUCTS; k++) {
        r.of[k] = KERN_READING_DEFAULT;
        for (int i = 0; i < KERN_READINGS; i++)
            if (kern_readings[i].ahead_bytes == kern_ahead((enum kern_product)k))
                r.of[k] = &kern_readings[i];
    }
    return r;
}
