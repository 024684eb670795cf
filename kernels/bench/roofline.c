/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/bench/roofline.h"
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define READ_BYTES     ((size_t)512 << 20) /* more than any last-level cache of two sockets */
#define READ_BYTES_MIN ((size_t)32 << 20)
#define BUDGET_US      400000
#define QUICK_US       150000
#define BARRIER_RUNS   15
#define BARRIERS       2000 /* a run: a millisecond or less when all cores are ours */

static const char *const read_names[READ_COUNT][2] = {
    {"read, one contiguous part per thread, small pages",
     "read, one contiguous part per thread, huge pages"},
    {"read, the next 32 KiB in eight streams, small pages",
     "read, the next 32 KiB in eight streams, huge pages"},
    {"read, 64 KiB chunks round robin, small pages", "read, 64 KiB chunks round robin, huge pages"},
    {"read, four rows of 1792 bytes at once, small pages",
     "read, four rows of 1792 bytes at once, huge pages"},
};

static const char *const reading_names[] = {
#define READING(id, bytes, name) "read, " name ", huge pages",
#define PROCESSOR(vendor, family, first, last, floats, int8, int4, slices)
#include "kernels/reading.def"
#undef READING
#undef PROCESSOR
};

static void add_row(struct roofline *r, const struct roofline_options *o, struct roofline_row row)
{
    r->rows[r->n_row] = row;
    if (o->on_row)
        o->on_row(o->ctx, &r->rows[r->n_row]);
    r->n_row++;
}

/* Half of the free memory, at most READ_BYTES. */
static size_t read_bytes(void)
{
    size_t bytes = READ_BYTES;
    long pages = sysconf(_SC_AVPHYS_PAGES), page = sysconf(_SC_PAGESIZE);
    while (pages > 0 && bytes > READ_BYTES_MIN && bytes > (size_t)pages * (size_t)page / 2)
        bytes /= 2;
    return bytes;
}

static int64_t budget_us(const struct roofline_options *o)
{
    return o->quick ? QUICK_US : BUDGET_US;
}

static void add_read(struct roofline *r, const struct roofline_options *o, const char *name,
                     double bytes, struct bench_seconds s)
{
    struct roofline_row row = {name, "GB/s", bytes / s.best * 1e-9, bytes / s.median * 1e-9};
    r->read_gb_s = row.best > r->read_gb_s ? row.best : r->read_gb_s;
    add_row(r, o, row);
}

/* Choose how weights are read, and show each choice. */
static void measure_readings(struct roofline *r, struct team *team,
                             const struct roofline_options *o, const struct roofline_memory *m)
{
    struct kern_processor p;
    struct kern_table kern;
    kern_processor(&p);
    kern_table_cpu(&kern, kern_caps_machine());
    const struct reading_memory memory = {m->data, m->bytes};
    r->reading_source = reading_source_text(reading_choose(team, &kern, &memory, &p));
    reading_describe(r->reading);
    for (int i = 0; i < KERN_READINGS && !o->quick; i++)
        add_read(r, o, reading_names[i], (double)m->bytes,
                 roofline_read_time(team, m, READ_SHARES, &kern_readings[i], BUDGET_US));
}

static FALLIBLE measure_reads(struct roofline *r, struct team *team,
                              const struct roofline_options *o, bool huge, struct q_err *e)
{
    const size_t bytes = read_bytes();
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED)
        return q_fail(e, Q_NO_MEMORY, "roofline: out of memory for a buffer of %zu MB",
                      bytes >> 20);
    (void)madvise(p, bytes, huge ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
    memset(p, 1, bytes);
    const struct roofline_memory m = {p, bytes};
    if (huge)
        measure_readings(r, team, o, &m);
    for (int how = 0; how < READ_COUNT; how++) {
        if (o->quick && how == READ_ROWS)
            continue;
        struct bench_seconds s =
            roofline_read_time(team, &m, (enum roofline_read)how,
                               kern_readings_taken().of[KERN_PRODUCT_FLOATS], budget_us(o));
        add_read(r, o, read_names[how][huge], (double)bytes, s);
    }
    munmap(p, bytes);
    return Q_OK;
}

/* The cost of a barrier. On a busy machine the best of many short runs is used. */
static void measure_barrier(struct roofline *r, struct team *team, const struct roofline_options *o)
{
    double us[BARRIER_RUNS];
    for (int i = 0; i < BARRIER_RUNS; i++) {
        us[i] = team_barrier_us(team, BARRIERS);
        for (int k = i; k > 0 && us[k] < us[k - 1]; k--) {
            const double x = us[k];
            us[k] = us[k - 1];
            us[k - 1] = x;
        }
    }
    r->barrier_us = us[BARRIER_RUNS / 2];
    add_row(r, o,
            (struct roofline_row){"a barrier of all threads", "us", us[0], us[BARRIER_RUNS / 2]});
}

static double larger(double a, double b)
{
    return a > b ? a : b;
}

enum q_code roofline_measure(struct roofline *r, struct team *team,
                             const struct roofline_options *o, struct q_err *e)
{
    enum q_code rc = Q_OK;
    memset(r, 0, sizeof *r);
    r->n_thread = team_size(team);
    for (int huge = o->quick ? 1 : 0; huge < 2 && !rc; huge++)
        rc = measure_reads(r, team, o, huge, e);
    for (int i = 0; i < PEAK_COUNT && !rc; i++) {
        struct roofline_row row = roofline_peak_row(team, (enum roofline_peak)i, budget_us(o));
        r->peak_gop_s[i] = row.best;
        if (row.best > 0)
            add_row(r, o, row);
    }
    if (!rc && r->n_thread > 1)
        measure_barrier(r, team, o);
    r->fp32_gop_s = larger(r->peak_gop_s[PEAK_F32_8], r->peak_gop_s[PEAK_F32_16]);
    r->bf16_gop_s =
        larger(larger(r->peak_gop_s[PEAK_BF16_32], r->peak_gop_s[PEAK_BF16_AMX]), r->fp32_gop_s);
    r->int8_gop_s = larger(larger(r->peak_gop_s[PEAK_I8_AVX2], r->peak_gop_s[PEAK_I8_VNNI32]),
                           larger(r->peak_gop_s[PEAK_I8_VNNI64], r->fp32_gop_s));
    r->int8_gop_s = larger(r->int8_gop_s, r->peak_gop_s[PEAK_I8_AMX]);
    return rc;
}
