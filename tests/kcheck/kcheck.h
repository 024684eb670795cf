/* SPDX-License-Identifier: Apache-2.0 */
/* kcheck - every kernel variant against its reference, and every row against itself in another
 * batch.
 *
 * Each operation of kernels.def has one kcheck_<op> here (without it the program does not link).
 * main.c calls it for each variant the machine can run, many times with a fresh seed; one call
 * is one case: make random arguments, run the reference and the variant on copies, compare, then
 * run rows alone and with other thread counts and compare bits. All buffers come from kc_buf:
 * guarded on both sides, freed by the end of the case.
 * Threads: one; the threads of a kernel are run one after another in random order, since they may
 * not depend on each other. Only the benchmarks use a real team. */
#ifndef QUIRE_TESTS_KCHECK_KCHECK_H
#define QUIRE_TESTS_KCHECK_KCHECK_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "common/buf.h"
#include "kernels/bench/machine.h"
#include "kernels/kern.h"

typedef void kc_call(const void *args, const struct kern_exec *x);

struct kc_variant {
    const char *op, *name;
    uint32_t caps;      /* required instruction sets */
    uint32_t tolerance; /* multiples of 2^-24, see kernels.def; 0 = exact */
    kc_call *call;
};

#define KC_BUFS_MAX 64

struct kcheck {
    const struct kc_variant *ref, *variant;
    const struct kc_variant *sibling; /* the first variant after ref; NULL if it is this one */
    uint64_t rng;                     /* state; the case's seed is printed with a failure */
    bool specials; /* this case has NaN, infinities, subnormals, huge values among its inputs */
    size_t scratch_bytes; /* scratch of each thread; kern_scratch_bytes of the case */
    float scale;          /* scale of the results of kc_f32 */
    double magnitude; /* least row scale of kc_compare; a check sets it when outputs may cancel */
    char shape[160];  /* of the case, for messages */
    uint64_t n_compared, n_failed;
    struct kc_buf {
        unsigned char *base;
        size_t bytes;
    } bufs[KC_BUFS_MAX];
    uint32_t n_buf;
};

/* The program: `kcheck` of the tests. */
int kcheck_main(int argc, char **argv);

struct kcheck_bench {
    const char *op;   /* NULL = all */
    const char *caps; /* as kern_caps_parse takes them */
    const char *json; /* a file for the figures; NULL = none */
    int64_t n_thread; /* 0 = all cores */
};
/* Times every variant, a row each on standard output. Errors: Q_INVALID for an unknown op. */
FALLIBLE kcheck_bench(const struct kcheck_bench *what, struct q_err *e);

/* Random. */
uint64_t kc_rnd(struct kcheck *k);
uint32_t kc_range(struct kcheck *k, uint32_t low, uint32_t high); /* inclusive */
bool kc_chance(struct kcheck *k, uint32_t percent);
uint32_t kc_pick(struct kcheck *k, const uint32_t *choices, uint32_t n);
float kc_f32(struct kcheck *k); /* -1 … 1; in a case with specials sometimes one of those */
void kc_fill(struct kcheck *k, float *p, size_t n);
/* n elements of `dtype` made from kc_f32 by rounding. */
void kc_fill_dtype(struct kcheck *k, void *p, enum dtype dtype, size_t n);
float kc_get(const void *p, enum dtype dtype, size_t i);

/* `bytes` bytes, 64-byte aligned, guards around; all of it NaN. */
void *kc_buf(struct kcheck *k, size_t bytes);
void *kc_copy(struct kcheck *k, const void *p, size_t bytes);
void kc_drop(struct kcheck *k,
             uint32_t n);           /* the last n buffers: checks their guards, frees them */
void kc_end_case(struct kcheck *k); /* checks the guards and frees everything */

__attribute__((format(printf, 2, 3))) void kc_shape(struct kcheck *k, const char *fmt, ...);
__attribute__((format(printf, 2, 3))) void kc_fail(struct kcheck *k, const char *fmt, ...);

/* Run all nth threads of one call; sometimes one takes the panels of others (tiling/share.h). */
void kc_run(struct kcheck *k, const struct kc_variant *v, const void *args, uint32_t nth);

struct kc_array { /* rows of an output */
    const void *p;
    enum dtype dtype; /* F32, BF16 or F16 */
    size_t n_row, n_col, stride;
};
/* got against want within the variant's tolerance; a row's scale is its largest finite |want|,
 * at least k->magnitude. Elements between n_col and stride must not have been touched. */
void kc_compare(struct kcheck *k, const char *what, const struct kc_array *got,
                const struct kc_array *want);
struct kc_bits { /* two arrays of n elements to compare */
    const void *a, *b;
    enum dtype dtype;
    size_t n;
};
/* The same bits, or a failure that says `what`; NaNs with different bits are equal: processors take
 * a NaN from either operand, and compilers choose their order. */
void kc_same_bits(struct kcheck *k, const char *what, struct kc_bits bits);
/* Rule 2 of kernels/README.md: all variants but the reference give the same bits. Runs the sibling
 * with `args`, whose output is bits.a, and compares that with bits.b, the variant's output. */
void kc_same_as_sibling(struct kcheck *k, const void *args, struct kc_bits bits);
/* Compare a row [n_col] of a product with gated weights to silu_mul, or to activate, of the sums of
 * the same product that is not gated. */
struct kc_sums {
    const float *sums; /* [2 n_col] */
    enum dtype dtype;  /* of the row */
    size_t n_col;
    enum kern_act act;
};
void kc_gated(struct kcheck *k, const struct kc_sums *of, const void *got);
/* |got - want| <= bound, want in f64; both not finite counts as equal. For checks of the
 * reference itself. */
void kc_near(struct kcheck *k, const char *what, double got, double want, double bound);

/* The checks and the benchmarks: one each per operation. */
#define OP(op, tolerance) void kcheck_##op(struct kcheck *k);
#define IMPL(table, op, variant, caps)
#include "kernels/kernels.def"

struct kc_bench {
    struct kcheck *k;
    struct team *team;
    void *scratch[TEAM_THREADS_MAX];
    double read_gbs;           /* measured ceilings of this run, all threads */
    int i_peak;                /* enum roofline_peak: the peak of the instruction that the
                                * variant uses */
    double gflops[PEAK_COUNT]; /* by enum roofline_peak; 0 = not on this machine */
    struct machine machine;
    struct buf json; /* the results so far */
    uint32_t n_json;
};
#define OP(op, tolerance) void kbench_##op(struct kc_bench *b);
#define IMPL(table, op, variant, caps)
#include "kernels/kernels.def"

size_t kc_bench_scratch(void); /* bytes that each thread of a benchmark has */
struct bench_seconds kc_time(struct kc_bench *b,
                             const void *args); /* k->variant by the whole team */
struct bench_seconds kc_time_team(struct team *t, team_fn *fn, void *arg); /* any team_run */
/* Print a line with the rate, and its fraction of the measured bandwidth or of the f32 or bf16
 * peak. */
void kc_print_bytes(struct kc_bench *b, const char *shape, struct bench_seconds s, double bytes);
void kc_print_flop(struct kc_bench *b, const char *shape, struct bench_seconds s, double flop);
/* Measures and prints read_gbs and gflops. Errors: Q_NO_MEMORY. */
FALLIBLE kc_roofline(struct kc_bench *b, struct q_err *e);
/* {"machine": …, "results": [a row of each line]}. Errors: Q_IO. */
FALLIBLE kc_bench_save(struct kc_bench *b, const char *path, struct q_err *e);
void *
kc_map(size_t bytes,
       bool huge); /* written once; in huge or small pages if the machine supports the choice */
void kc_unmap(void *p, size_t bytes);

#endif
