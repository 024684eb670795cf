/* SPDX-License-Identifier: Apache-2.0 */
/* quire bench roofline: the ceilings of this machine. */
#include <string.h>
#include "engine/bench/bench.h"

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
    fprintf(b->out, "peaks: read %.1f GB/s; fp32 %.0f, bf16 %.0f, int8 %.0f GOP/s\n", r->read_gb_s,
            r->fp32_gop_s, r->bf16_gop_s, r->int8_gop_s);
    fprintf(b->out, "weights of one row: %s (%s)\n", r->reading, r->reading_source);
    return Q_OK;
}
