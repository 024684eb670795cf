/* SPDX-License-Identifier: Apache-2.0 */
/* Timing: the ceilings of the machine first, then every variant as a fraction of them, all in
 * one run. */
#include "kcheck.h"
#include <errno.h>
#include <sys/mman.h>
#include "common/file.h"

#define TIME_US 400000 /* spent on one measurement, about */

struct bench_seconds kc_time_team(struct team *t, team_fn *fn, void *arg)
{
    return bench_time(t, fn, arg, TIME_US);
}

size_t kc_bench_scratch(void)
{
    const size_t forward = kern_scratch_bytes(8192, 128, 256);
    const size_t train = kern_train_scratch_bytes(KERN_TRAIN_HEAD_MAX);
    return forward > train ? forward : train;
}

struct call {
    struct kc_bench *b;
    const void *args;
};

static void call_run(void *arg, uint32_t ith, uint32_t nth)
{
    const struct call *c = arg;
    struct kern_exec x = {
        .ith = ith,
        .nth = nth,
        .scratch = c->b->scratch[ith],
        .scratch_bytes = kc_bench_scratch(),
    };
    c->b->k->variant->call(c->args, &x);
}

struct bench_seconds kc_time(struct kc_bench *b, const void *args)
{
    struct call c = {b, args};
    return kc_time_team(b->team, call_run, &c);
}

struct rate {
    double value, fraction;
    const char *unit, *of;
};

static void print_line(struct kc_bench *b, const char *shape, struct bench_seconds s, struct rate r)
{
    const struct kc_variant *v = b->k->variant;
    printf("%-13s %-11s %-35s median %8.3f best %8.3f ms %7.1f %-7s %5.2f of %s\n", v->op, v->name,
           shape, s.median * 1e3, s.best * 1e3, r.value, r.unit, r.fraction, r.of);
    buf_printf(&b->json, "%s{\"op\":\"%s\",\"variant\":\"%s\",\"shape\":", b->n_json++ ? "," : "",
               v->op, v->name);
    buf_add_json_str(&b->json, shape, strlen(shape));
    buf_printf(&b->json,
               ",\"median_ms\":%.6f,\"best_ms\":%.6f,\"rate\":%.2f,\"unit\":\"%s\","
               "\"fraction\":%.4f,\"ceiling\":\"%s\"}",
               s.median * 1e3, s.best * 1e3, r.value, r.unit, r.fraction, r.of);
}

void kc_print_bytes(struct kc_bench *b, const char *shape, struct bench_seconds s, double bytes)
{
    double gbs = bytes / s.best * 1e-9;
    print_line(b, shape, s, (struct rate){gbs, gbs / b->read_gbs, "GB/s", "read"});
}

void kc_print_flop(struct kc_bench *b, const char *shape, struct bench_seconds s, double flop)
{
    double gflops = flop / s.best * 1e-9, peak = b->gflops[b->i_peak];
    print_line(b, shape, s, (struct rate){gflops, peak > 0 ? gflops / peak : 0, "GFLOP/s", "peak"});
}

void *kc_map(size_t bytes, bool huge)
{
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    Q_ASSERT(p != MAP_FAILED);
    (void)madvise(p, bytes, huge ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
    memset(p, 1, bytes);
    return p;
}

void kc_unmap(void *p, size_t bytes)
{
    munmap(p, bytes);
}

static void print_row(void *ctx, const struct roofline_row *row)
{
    (void)ctx;
    printf("%-52s %8.1f %s\n", row->name, row->best, row->unit);
}

enum q_code kc_roofline(struct kc_bench *b, struct q_err *e)
{
    struct roofline r;
    const struct roofline_options o = {.on_row = print_row};
    b->machine.n_thread = team_size(b->team);
    machine_print(&b->machine, stdout);
    enum q_code rc = roofline_measure(&r, b->team, &o, e);
    b->read_gbs = r.read_gb_s;
    memcpy(b->gflops, r.peak_gop_s, sizeof b->gflops);
    buf_add_str(&b->json, "{\"machine\":");
    machine_json(&b->json, &b->machine, &r);
    buf_add_str(&b->json, ",\"results\":[");
    return rc;
}

enum q_code kc_bench_save(struct kc_bench *b, const char *path, struct q_err *e)
{
    buf_add_str(&b->json, "]}\n");
    enum q_code rc = buf_check(&b->json, "the results", e);
    if (!rc)
        rc = file_write(path, b->json.data, b->json.len, 0666, e);
    return rc;
}
