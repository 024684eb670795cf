/* SPDX-License-Identifier: Apache-2.0 */
/* reading - how far ahead the threads of this process prefetch the weights that one row is
 * multiplied with, and which cache keeps those of several tiles. The fastest distance differs from
 * processor to processor; the choices, and the processors measured so far, are rows of reading.def.
 * No result depends on it.
 * Threads: kern_read_by before products are computed on other threads; the rest: any. */
#ifndef QUIRE_KERNELS_READING_H
#define QUIRE_KERNELS_READING_H
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct kern_reading {
    const char *name;     /* "prefetched 1 KiB ahead" */
    uint32_t ahead_bytes; /* 0: not prefetched */
};
enum {
#define READING(id, bytes, name) KERN_READING_##id,
#define PROCESSOR(vendor, family, first, last, floats, int8, int4, slices)
#include "kernels/reading.def"
#undef READING
#undef PROCESSOR
    KERN_READINGS
};
extern const struct kern_reading kern_readings[KERN_READINGS];
#define KERN_READING_DEFAULT (&kern_readings[KERN_READING_k2])

/* Products that read weights; each has a choice of its own. */
enum kern_product {
    KERN_PRODUCT_FLOATS, /* linear */
    KERN_PRODUCT_INT8,
    KERN_PRODUCT_INT4,
    KERN_PRODUCTS
};
extern const char *const kern_product_names[KERN_PRODUCTS]; /* "int8" */
struct kern_readings {                                      /* a choice for each product */
    const struct kern_reading *of[KERN_PRODUCTS];
    bool has_far_slices; /* slices of several tiles: of the second-level cache (tiling/slice.h) */
};

struct kern_processor { /* CPUID leaves 0 and 1; all 0 on other machines */
    char vendor[13];
    uint32_t family, model;
};
void kern_processor(struct kern_processor *out);
/* The row of a processor. False: it has none, and *out is the default. */
bool kern_readings_known(struct kern_readings *out, const struct kern_processor *p);

/* The first kern_table_cpu of a process chooses the row of its processor, or the default. */
void kern_read_by(const struct kern_readings *r);
struct kern_readings kern_readings_taken(void);

extern _Atomic uint32_t kern_ahead_bytes[KERN_PRODUCTS]; /* of what is taken */
/* For kernels, before a loop: the compiler reads it again each time. */
static inline size_t kern_ahead(enum kern_product of)
{
    return atomic_load_explicit(&kern_ahead_bytes[of], memory_order_relaxed);
}

#endif
