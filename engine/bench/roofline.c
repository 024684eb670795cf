/* SPDX-License-Identifier: Apache-2.0 */
/* quire bench roofline: the ceilings of this machine. quire bench kernels: kcheck, which times
 * every kernel beside them. */
#include <errno.h>
#include <limits.h>
#include <string.h>
#include <unistd.h>
#include "engine/bench/bench.h"

#define KCHECK_ARGS_MAX 16

enum q_code bench_roofline(struct bench *b, struct q_err *e)
{
    enum q_code rc;
    if ((rc = bench_ceilings(b, false, e)))
        return rc;
    const struct roofline *r = &b->roofline;
    machine_print(&b->machine, b->out);
    fprintf(b->out, "%-52s %10s %10s\n", "", "best", "median");
    for (uint32_t i = 0; i < r->n_row; i++) {
        const struct roofline_row *row = &r->rows[i];
        const int digits = strcmp(row->unit, "us") ? 1 : 2;
        fprintf(b->out, "%-52s %10.*f %10.*f %s\n", row->name, digits, row->best, digits,
                row->median, row->unit);
        bench_row_begin(b);
        bench_row_text(b, "name", row->name);
        bench_row_number(b, "best", row->best);
        bench_row_number(b, "median", row->median);
        bench_row_text(b, "unit", row->unit);
        bench_row_end(b);
    }
    fprintf(b->out, "ceilings: read %.1f GB/s; fp32 %.0f, bf16 %.0f, int8 %.0f GOP/s\n",
            r->read_gb_s, r->fp32_gop_s, r->bf16_gop_s, r->int8_gop_s);
    return Q_OK;
}

/* kcheck lies beside this program. */
static FALLIBLE find_kcheck(char *out, size_t size, struct q_err *e)
{
    ssize_t n = readlink("/proc/self/exe", out, size - 1);
    if (n <= 0)
        return q_fail(e, Q_IO, "/proc/self/exe: %s", strerror(errno));
    out[n] = '\0';
    char *name = strrchr(out, '/') + 1;
    snprintf(name, size - (size_t)(name - out), "kcheck");
    if (access(out, X_OK) != 0)
        return q_fail(e, Q_NOT_FOUND, "the program that times kernels is missing: %.200s: %s", out,
                      strerror(errno));
    return Q_OK;
}

enum q_code bench_kernels(struct bench *b, struct q_err *e)
{
    const struct options *o = &b->o;
    char path[PATH_MAX], threads[16];
    const char *argv[KCHECK_ARGS_MAX] = {"kcheck",   "--bench",   "--caps",
                                         o->cpu_isa, "--threads", threads};
    size_t n = 6;
    enum q_code rc = find_kcheck(path, sizeof path, e);
    if (rc)
        return rc;
    snprintf(threads, sizeof threads, "%lld", (long long)o->threads);
    if (*o->op) {
        argv[n++] = "--op";
        argv[n++] = o->op;
    }
    if (!strcmp(o->json_out, "-"))
        return q_fail(e, Q_INVALID, "--json: standard output has the table; give a file");
    if (*o->json_out) {
        argv[n++] = "--json";
        argv[n++] = o->json_out;
    }
    execv(path, (char *const *)(uintptr_t)argv);
    return q_fail(e, Q_IO, "%.200s: %s", path, strerror(errno));
}
