/* SPDX-License-Identifier: Apache-2.0 */
/* The file of tuned algorithms: any bytes behind its head and before its sum (which this build does
 * not compare). What is read is within bounds, and says the same when it is printed and read. */
#include <string.h>
#include "kernels/cuda/tune_file.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const struct tune_card card = {"Card", 9, 0, 13000, 130100};

static void read_again(const struct tune_table *t)
{
    struct tune_table back = TUNE_TABLE_INIT;
    struct buf text = BUF_INIT;
    struct q_err e = Q_ERR_INIT;
    tune_print(&text, t, &card);
    Q_ASSERT(tune_parse(&back, &card, buf_str(&text), text.len, &e) == Q_OK);
    Q_ASSERT(back.n == t->n);
    for (size_t i = 0; i < t->n; i++) {
        const struct tune_entry *x = &t->entries[i], *y = &back.entries[i];
        Q_ASSERT(x->bucket == y->bucket && x->shape.n_out == y->shape.n_out &&
                 x->choice.is_own == y->choice.is_own &&
                 memcmp(&x->choice.algo, &y->choice.algo, sizeof x->choice.algo) == 0);
    }
    buf_release(&text);
    tune_table_release(&back);
}

static void parse(const char *text, size_t n)
{
    struct tune_table t = TUNE_TABLE_INIT;
    struct q_err e = Q_ERR_INIT;
    enum q_code rc = tune_parse(&t, &card, text, n, &e);
    Q_ASSERT((rc == Q_OK) == (e.code == Q_OK) && (rc == Q_OK || (!t.n && !t.entries)));
    for (size_t i = 0; i < t.n; i++) {
        const struct tune_entry *x = &t.entries[i];
        struct lt_shape settled = x->shape;
        lt_shape_settle(&settled);
        Q_ASSERT(x->bucket < LT_BUCKETS && x->shape.kind < LT_KINDS && x->shape.n_out &&
                 x->shape.n_in && settled.target == x->shape.target &&
                 settled.has_bias == x->shape.has_bias);
    }
    if (!rc)
        read_again(&t);
    tune_table_release(&t);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct tune_table none = TUNE_TABLE_INIT;
    struct buf text = BUF_INIT;
    parse((const char *)data, size);
    tune_print(&text, &none, &card);
    if (text.len > 21) { /* the line of the sum goes behind the choices */
        text.len -= 21;
        buf_add(&text, data, size);
        buf_add_str(&text, "sum 0123456789abcdef\n");
        parse(buf_str(&text), text.len);
    }
    buf_release(&text);
    return 0;
}
