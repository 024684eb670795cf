/* SPDX-License-Identifier: Apache-2.0 */
/* check [--seed N] [--times N] [--every N] [--op NAME] [--list]: random cases of every CUDA kernel,
 * N times as many as a short run has, or every N-th of them; --list: the names of the operations.
 * Exit status 0 when every comparison held, 1 when one did not, 2 for a wrong command line. */
#include "check.h"
#include <getopt.h>
#include "common/clock.h"
#include "common/parse.h"

struct options {
    int64_t seed, times, every;
    const char *op;
    bool list;
};

static void run_cases(const struct options *o, const struct cuda_check *c, struct kcheck *k)
{
    for (int64_t i = 0; i < c->n_case * o->times && k->n_failed == 0; i += o->every) {
        k->rng = (uint64_t)o->seed * 1000003u + (uint64_t)i;
        k->specials = kc_chance(k, 25);
        k->scratch_bytes = kern_scratch_bytes(1024, 32, 256);
        k->magnitude = 0;
        k->scale = 1;
        k->shape[0] = '\0';
        c->check(k);
        kc_end_case(k);
        if (k->n_failed)
            printf("     seed %lld case %lld of %s\n", (long long)o->seed, (long long)i, c->name);
    }
}

static uint32_t run_table(const struct options *o, const struct cuda_check *table,
                          uint64_t *n_failed)
{
    uint32_t n = 0;
    for (const struct cuda_check *c = table; c->name; c++) {
        if (o->op && strcmp(o->op, c->name) != 0)
            continue;
        n++;
        if (o->list) {
            printf("%s\n", c->name);
            continue;
        }
        struct kc_variant ref = {c->name, "ref", 0, 0, c->ref};
        struct kc_variant cuda = {c->name, "cuda", 0, c->tolerance, c->cuda};
        struct kcheck k = {.ref = &ref, .variant = &cuda};
        int64_t start = clock_ms();
        run_cases(o, c, &k);
        if (k.n_compared == 0)
            kc_fail(&k, "%s: nothing was compared", c->name);
        printf("%-4s %-14s %10llu comparisons %6lld ms\n", k.n_failed ? "FAIL" : "ok", c->name,
               (unsigned long long)k.n_compared, (long long)(clock_ms() - start));
        *n_failed += k.n_failed;
    }
    return n;
}

static FALLIBLE read_options(struct options *o, int argc, char **argv, struct q_err *e)
{
    static const struct option names[] = {
        {"seed", required_argument, NULL, 's'},  {"times", required_argument, NULL, 'n'},
        {"every", required_argument, NULL, 'e'}, {"op", required_argument, NULL, 'o'},
        {"list", no_argument, NULL, 'l'},        {NULL, 0, NULL, 0},
    };
    enum q_code rc = Q_OK;
    int c;
    while (!rc && (c = getopt_long(argc, argv, "", names, NULL)) != -1) {
        if (c == 's')
            rc = parse_i64(&o->seed, optarg, 0, INT32_MAX, "--seed", e);
        else if (c == 'n')
            rc = parse_i64(&o->times, optarg, 1, INT32_MAX, "--times", e);
        else if (c == 'e')
            rc = parse_i64(&o->every, optarg, 1, INT32_MAX, "--every", e);
        else if (c == 'o')
            o->op = optarg;
        else if (c == 'l')
            o->list = true;
        else
            rc = q_fail(e, Q_INVALID, "options: --seed N --times N --every N --op NAME --list");
    }
    return rc;
}

int main(int argc, char **argv)
{
    static const struct cuda_check *const tables[] = {
        cuda_checks_rows,   cuda_checks_kv,    cuda_checks_attention, cuda_checks_linear,
        cuda_checks_sample, cuda_checks_mla,   cuda_checks_moe,       cuda_checks_fp8,
        cuda_checks_blocks, cuda_checks_state, cuda_checks_lora,
#ifndef QUIRE_CUDA_CARD
        cuda_checks_lt,     cuda_checks_wgmma,
#endif
    };
    struct options o = {.seed = clock_unix() % 1000000, .times = 1, .every = 1};
    struct q_err e = Q_ERR_INIT;
    uint64_t n_failed = 0;
    uint32_t n = 0;
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (read_options(&o, argc, argv, &e)) {
        fprintf(stderr, "%s: %s\n", argv[0], e.message);
        return 2;
    }
    if (!o.list)
        printf("%s --seed %lld --times %lld --every %lld\n", argv[0], (long long)o.seed,
               (long long)o.times, (long long)o.every);
    for (size_t i = 0; i < sizeof tables / sizeof *tables; i++)
        n += run_table(&o, tables[i], &n_failed);
    if (!o.list)
        printf("%u operations, %llu failures\n", n, (unsigned long long)n_failed);
    return n == 0 ? 2 : n_failed != 0;
}
