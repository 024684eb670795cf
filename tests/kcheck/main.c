/* SPDX-License-Identifier: Apache-2.0 */
/* kcheck [--seed N] [--cases N] [--op NAME] [--caps auto|avx512_bf16|avx512|avx2|none]
 *        [--bench [--threads N] [--json FILE]]
 * Exit status 0 when every comparison held, 1 when one did not, 2 for a wrong command line. */
#include "kcheck.h"
#include <getopt.h>
#include "common/clock.h"
#include "common/mem.h"
#include "common/parse.h"
#include "kernels/tiling/slice.h"
#include "kernels/variants.h"

/* A typed entry for each variant, so that the table below can hold one kind of function pointer. */
#define OP(op, tolerance)
#define IMPL(table, op, variant, caps) CALL_##table(op, variant)
#define CALL_CPU(op, variant)                                                      \
    static void call_##op##_##variant(const void *args, const struct kern_exec *x) \
    {                                                                              \
        op##_##variant(args, x);                                                   \
    }
#include "kernels/kernels.def"

#define TOL_EXACT  0
#define TOL_REL(r) (r)

/* One line per variant; a line without a name opens the operation and carries its tolerance. */
static const struct kc_variant lines[] = {
#define OP(op, tolerance)              {#op, NULL, 0, tolerance, NULL},
#define IMPL(table, op, variant, caps) LINE_##table(op, variant, caps)
#define LINE_CPU(op, variant, caps)    {#op, #variant, caps, 0, call_##op##_##variant},
#include "kernels/kernels.def"
};
#define N_LINE (sizeof lines / sizeof *lines)

static const struct {
    const char *name;
    void (*check)(struct kcheck *k);
    void (*bench)(struct kc_bench *b);
} ops[] = {
#define OP(op, tolerance) {#op, kcheck_##op, kbench_##op},
#define IMPL(table, op, variant, caps)
#include "kernels/kernels.def"
};
#define N_OP (sizeof ops / sizeof *ops)

struct options {
    int64_t seed, n_case, n_thread;
    const char *op, *json;
    uint32_t caps;
    bool bench;
};

/* No bit depends on the caches that slices are made for. */
static void draw_slices(struct kcheck *k)
{
    static const uint32_t far[] = {0, KERN_SLICE_FAR, 4096};
    kern_slice_far_bytes = far[kc_range(k, 0, 2)];
    kern_slice_bytes = kc_chance(k, 50) ? KERN_SLICE_SMALL : KERN_SLICE_LARGE;
}

static void check_variant(const struct options *o, size_t i_op, struct kcheck *k)
{
    for (int64_t i = 0; i < o->n_case && k->n_failed == 0; i++) {
        uint64_t start = (uint64_t)o->seed * 1000003u + (uint64_t)i;
        k->rng = start;
        k->specials = kc_chance(k, 25);
        k->scratch_bytes = kern_scratch_bytes(1, 1, 1);
        k->magnitude = 0;
        k->scale = 1;
        k->shape[0] = '\0';
        draw_slices(k);
        ops[i_op].check(k);
        kc_end_case(k);
        if (k->n_failed)
            printf("     seed %lld case %lld of %s/%s\n", (long long)o->seed, (long long)i,
                   k->variant->op, k->variant->name);
    }
}

typedef void visit_fn(const struct options *o, size_t i_op, struct kcheck *k, void *arg);

/* Runs `visit` for every variant of one operation that the machine and the options allow. */
static uint32_t each_variant_of(const struct options *o, size_t i_op, visit_fn *visit, void *arg)
{
    const struct kc_variant *ref = NULL, *sibling = NULL;
    uint32_t tolerance = 0, n = 0;
    for (size_t i = 0; i < N_LINE; i++) {
        if (strcmp(lines[i].op, ops[i_op].name) != 0)
            continue;
        if (!lines[i].name) {
            tolerance = lines[i].tolerance;
            continue;
        }
        ref = ref ? ref : &lines[i];
        if ((lines[i].caps & o->caps) != lines[i].caps)
            continue;
        struct kc_variant v = lines[i];
        v.tolerance = tolerance;
        struct kcheck k = {.ref = ref, .variant = &v, .sibling = sibling};
        visit(o, i_op, &k, arg);
        if (!sibling && ref != &lines[i])
            sibling = &lines[i];
        n++;
    }
    return n;
}

static uint32_t each_variant(const struct options *o, visit_fn *visit, void *arg)
{
    uint32_t n = 0;
    for (size_t i_op = 0; i_op < N_OP; i_op++)
        if (!o->op || strcmp(o->op, ops[i_op].name) == 0)
            n += each_variant_of(o, i_op, visit, arg);
    return n;
}

static void visit_check(const struct options *o, size_t i_op, struct kcheck *k, void *arg)
{
    uint64_t *n_failed = arg;
    int64_t start = clock_ms();
    check_variant(o, i_op, k);
    printf("%-4s %-14s %-12s %10llu comparisons %6lld ms\n", k->n_failed ? "FAIL" : "ok",
           k->variant->op, k->variant->name, (unsigned long long)k->n_compared,
           (long long)(clock_ms() - start));
    *n_failed += k->n_failed;
}

static void visit_bench(const struct options *o, size_t i_op, struct kcheck *k, void *arg)
{
    struct kc_bench *b = arg;
    b->k = k;
    k->rng = (uint64_t)o->seed;
    k->scale = 1;
    ops[i_op].bench(b);
    kc_end_case(k);
}

static bool is_op(const char *name)
{
    for (size_t i = 0; i < N_OP; i++)
        if (!strcmp(name, ops[i].name))
            return true;
    return false;
}

static FALLIBLE run_bench(const struct options *o, struct q_err *e)
{
    struct kc_bench b = {0};
    struct kcheck k = {0};
    if (o->op && !is_op(o->op)) /* before the machine is measured, which takes a while */
        return q_fail(e, Q_INVALID, "no operation is named \"%s\"", o->op);
    machine_describe(&b.machine); /* before the team is pinned */
    enum q_code rc = team_new(&b.team, (uint32_t)o->n_thread, true, e);
    if (rc)
        return rc;
    for (uint32_t i = 0; i < team_size(b.team); i++)
        b.scratch[i] = kc_buf(&k, kc_bench_scratch());
    if (!(rc = kc_roofline(&b, e)))
        each_variant(o, visit_bench, &b);
    if (!rc && o->json)
        rc = kc_bench_save(&b, o->json, e);
    buf_release(&b.json);
    kc_end_case(&k);
    team_free(b.team);
    return rc;
}

static FALLIBLE options_read(struct options *o, int argc, char **argv, struct q_err *e)
{
    static const struct option names[] = {
        {"seed", required_argument, NULL, 's'}, {"cases", required_argument, NULL, 'n'},
        {"op", required_argument, NULL, 'o'},   {"caps", required_argument, NULL, 'c'},
        {"bench", no_argument, NULL, 'b'},      {"threads", required_argument, NULL, 't'},
        {"json", required_argument, NULL, 'j'}, {NULL, 0, NULL, 0},
    };
    enum q_code rc = Q_OK;
    int c;
    while (!rc && (c = getopt_long(argc, argv, "", names, NULL)) != -1) {
        if (c == 's')
            rc = parse_i64(&o->seed, optarg, 0, INT64_MAX / 2000000, "--seed", e);
        else if (c == 'n')
            rc = parse_i64(&o->n_case, optarg, 1, 1000000, "--cases", e);
        else if (c == 't')
            rc = parse_i64(&o->n_thread, optarg, 0, TEAM_THREADS_MAX, "--threads", e);
        else if (c == 'c')
            rc = kern_caps_parse(&o->caps, optarg, e);
        else if (c == 'o')
            o->op = optarg;
        else if (c == 'j')
            o->json = optarg;
        else if (c == 'b')
            o->bench = true;
        else
            rc = q_fail(e, Q_INVALID,
                        "options: --seed --cases --op --caps --bench --threads --json");
    }
    return rc;
}

FALLIBLE kcheck_bench(const struct kcheck_bench *what, struct q_err *e)
{
    struct options o = {
        .n_thread = what->n_thread,
        .op = what->op,
        .json = what->json,
        .bench = true,
    };
    enum q_code rc = kern_caps_parse(&o.caps, what->caps, e);
    return rc ? rc : run_bench(&o, e);
}

int kcheck_main(int argc, char **argv)
{
    struct options o = {.seed = clock_unix() % 1000000, .n_case = 60, .caps = kern_caps_machine()};
    struct q_err e = Q_ERR_INIT;
    uint64_t n_failed = 0;
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (options_read(&o, argc, argv, &e) || (o.bench && run_bench(&o, &e))) {
        fprintf(stderr, "kcheck: %s\n", e.message);
        return 2;
    }
    if (o.bench)
        return 0;
    printf("kcheck --seed %lld --cases %lld\n", (long long)o.seed, (long long)o.n_case);
    uint32_t n = each_variant(&o, visit_check, &n_failed);
    if (n == 0) {
        fprintf(stderr, "kcheck: no operation is named \"%s\"\n", o.op ? o.op : "");
        return 2;
    }
    printf("kcheck: %u variants, %llu failures\n", n, (unsigned long long)n_failed);
    return n_failed != 0;
}
