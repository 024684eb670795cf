/* SPDX-License-Identifier: Apache-2.0 */
/* fill - writes the numbers of a plan's rows from their sources into the region. For the CPU all
 * threads pack pieces of about a megabyte (fill_host.c). For a device the rows are uploaded and
 * packed there (fill_device.c). Vectors, tables and orders of inputs are filled before matrices,
 * which read them. Pages of a file are released once they are read, so that source and result are
 * never resident together.
 * Threads: one calls; it runs the team. */
#ifndef QUIRE_ENGINE_MODEL_LOAD_FILL_H
#define QUIRE_ENGINE_MODEL_LOAD_FILL_H
#include "engine/model/load/load_plan.h"
#include "engine/model/load/upload.h"
#include "engine/model/region.h"

struct load_units { /* rows of a table */
    uint32_t from, n;
};

enum fill_way {
    FILL_TAKEN,  /* threads take pieces as they come: a slower one does fewer */
    FILL_OWN,    /* each thread packs what it will multiply with, and touches it first: on several
                    NUMA nodes */
    FILL_UPLOAD, /* to a device */
    FILL_FOUND   /* nothing: the region came packed from the cache */
};

struct filler {
    enum fill_way way;
    const struct kern_table *kern;
    struct team *team; /* NULL: one thread */
    uint32_t n_thread;
    struct upload upload; /* of FILL_UPLOAD */
    /* Rows on their way into panels, part_bytes a thread; on a device those that are put into an
     * order, and a part for that. */
    struct region buffer;
    size_t part_bytes;
    enum load_place place; /* of the rows that are filled: PLACE_REGION or PLACE_HOST */
    void (*progress)(void *ctx, uint64_t bytes_done, uint64_t bytes_total); /* may be NULL */
    void *progress_ctx;
};

/* Buffers for the rows of `p`; `way` is set for the CPU or a device. f is safe to release after an
 * error too. Errors: Q_NO_MEMORY. */
FALLIBLE fill_init(struct filler *f, const struct load_plan *p, const struct load_options *o,
                   struct q_err *e);
void fill_release(struct filler *f);
/* All rows with a place in the region, which is placed and zero. Errors: those of the device. */
FALLIBLE fill_run(struct filler *f, const struct load_plan *p, struct q_err *e);

/* All rows of PLACE_HOST, by the CPU. Errors: Q_NO_MEMORY. */
FALLIBLE fill_run_host(const struct load_plan *p, const struct load_options *o, struct q_err *e);

/* ---- what both ways share (fill_host.c) ---- */
/* Bytes of its sources, for the progress. */
uint64_t fill_source_bytes(const struct load_plan *p, const struct load_row *r);
/* A vector of zeros gets the numbers of its sources that are present; of one of them alone. */
void fill_vector(float *to, const struct load_plan *p, const struct load_row *r);
void fill_vector_part(float *to, const struct weight_source *s, enum load_kind kind);
/* Rows from … of a matrix's source that is no tensor, n of them, as f32. */
void fill_make_rows(float *rows, const struct weight_source *s, uint32_t from, uint32_t n);
/* Rows from … of a table, n of them, in the source's type, or as f32 (as_f32). */
void fill_table_rows(void *to, const struct weight_source *s, uint32_t from, uint32_t n);
void fill_table_floats(float *to, const struct weight_source *s, uint32_t from, uint32_t n);
/* The one that the row's type asks for. */
static inline void fill_table(void *to, const struct load_row *r, const struct weight_source *s,
                              struct load_units u)
{
    if (r->form.dtype == s->dtype && !s->slice.pairs && !weight_source_is_scaled(s))
        fill_table_rows(to, s, u.from, u.n);
    else
        fill_table_floats(to, s, u.from, u.n);
}
static inline size_t fill_table_row_bytes(const struct load_row *r)
{
    return (size_t)r->form.n_in * (dtype_bits(r->form.dtype) / 8);
}

/* ---- the two ways ---- */
void fill_host(const struct filler *f, const struct load_plan *p);
void fill_device(struct filler *f, const struct load_plan *p);
/* Outputs that a thread puts into an order of inputs at a time: so many bytes an input are enough
 * for the order too. */
#define FILL_ORDERED 16u

#endif
